//! A folder is one thing: whatever is not the file that was written with it is named, by everything that takes files from it.

#![allow(clippy::unwrap_used, clippy::print_stdout, missing_docs)]

use needs::python;
use std::{
    collections::BTreeSet,
    fs,
    path::Path,
    process::{Command, Output},
};

mod needs;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn run(folder: &Path, line: &str) -> Output {
    let words = line.split(' ').map(|word| match word.strip_prefix("ROOT/") {
        Some(name) => root().join(name).into_os_string(),
        None => word.into(),
    });
    Command::new(env!("CARGO_BIN_EXE_model-analyze"))
        .args(words)
        .current_dir(folder)
        .env("NO_COLOR", "1")
        .output()
        .expect("the command starts")
}

fn done(folder: &Path, line: &str) {
    let output = run(folder, line);
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
}

const SPLIT: &str = "split ROOT/fixtures/traces/unet_small.pt --devices 2xt4 --stages 2 -o out";

/// Lists the files below a folder by their path in it.
fn files(folder: &Path) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(next) = folders.pop() {
        for path in fs::read_dir(next).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                folders.push(path);
            } else {
                found.insert(path.strip_prefix(folder).unwrap().to_str().unwrap().replace('\\', "/"));
            }
        }
    }
    found
}

fn manifest(folder: &Path) -> schema::Manifest {
    serde_json::from_slice(&fs::read(folder.join("stages/manifest.json")).unwrap()).unwrap()
}

#[test]
fn the_manifest_lists_every_file_and_its_bytes() {
    let place = tempfile::tempdir().unwrap();
    let emit = "emit ROOT/fixtures/traces/unet_small.pt --stages 3 -o out --force --launch torchrun";
    for line in [SPLIT, emit] {
        done(place.path(), line);
        let out = place.path().join("out");
        let listed = manifest(&out).files;
        let mut names: BTreeSet<String> = listed.keys().cloned().collect();
        names.insert("stages/manifest.json".into());
        assert_eq!(names, files(&out), "{line}");
        for (name, digest) in listed {
            let mut checksum = codegen::Checksum::default();
            checksum.update(&fs::read(out.join(&name)).unwrap());
            assert_eq!(digest, checksum.digest(), "{name}");
        }
    }
}

#[test]
fn train_py_and_load_name_the_file_that_is_another() {
    let Some(python) = python() else { return };
    let place = tempfile::tempdir().unwrap();
    done(place.path(), SPLIT);
    done(place.path(), "emit ROOT/fixtures/traces/unet_small.pt --cut down.0 -o other");
    let output = Command::new(python)
        .arg(root().join("tests/oracle/damaged_folder.py"))
        .args(["out", "other", &std::env::var("DAMAGES").unwrap_or("60".into()), "0"])
        .current_dir(place.path())
        .env("OMP_NUM_THREADS", "1")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let answer: serde_json::Value =
        serde_json::from_str(String::from_utf8(output.stdout).unwrap().lines().last().unwrap()).unwrap();
    println!("{}", answer["tried"]);
    assert_eq!(answer["lost"], serde_json::json!([]));
    assert!(answer["tried"].as_object().unwrap().values().all(|count| count.as_u64() > Some(0)));
}

#[cfg(feature = "torch")]
#[test]
fn verify_and_run_name_the_file_that_is_another() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path();
    done(folder, SPLIT);
    let check = |file: &str, change: &dyn Fn(&mut Vec<u8>), run_takes_it: bool| {
        let path = folder.join("out").join(file);
        let before = fs::read(&path).unwrap();
        let mut after = before.clone();
        change(&mut after);
        fs::write(&path, after).unwrap();
        for (line, takes_it) in
            [("verify out --steps 1", true), ("run out --steps 1 --micro-batches 4", run_takes_it)]
        {
            let output = run(folder, line);
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            let expected = format!("error: out/{file} was changed after it was written\n");
            assert_eq!(output.status.code(), Some(if takes_it { 2 } else { 0 }), "{line}: {said}");
            assert_eq!(said.starts_with(&expected), takes_it, "{line}: {said}");
        }
        fs::write(&path, before).unwrap();
    };
    let longer = |bytes: &mut Vec<u8>| bytes.push(b'\n');
    let flipped = |bytes: &mut Vec<u8>| {
        let at = bytes.len() / 2;
        bytes[at] ^= 4;
    };
    for file in ["stages/stage_1.safetensors", "stages/stage_0.py", "train.py", "schedule.csv"] {
        check(file, &flipped, false);
    }
    check("stages/stage_1.pt", &flipped, true);
    check("plan.yaml", &longer, true);
    fs::remove_file(folder.join("out/stages/stage_0.safetensors")).unwrap();
    let said = String::from_utf8_lossy(&run(folder, "verify out").stderr).into_owned();
    assert!(said.starts_with("error: out/stages/stage_0.safetensors is missing\n"), "{said}");
    // On purpose.
    done(folder, SPLIT.replace("-o out", "-o out --force").as_str());
    let source = folder.join("out/stages/stage_0.py");
    fs::write(&source, fs::read_to_string(&source).unwrap() + "# Mine.\n").unwrap();
    let output = run(folder, "verify out --steps 1 --allow-changes");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && said.contains("note: out/stages/stage_0.py was changed"), "{said}");
    // Folders of earlier versions list no files.
    let path = folder.join("out/stages/manifest.json");
    let mut old: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    old.as_object_mut().unwrap().remove("files");
    fs::write(&path, old.to_string()).unwrap();
    done(folder, "verify out --steps 1");
}

#[test]
fn force_replaces_what_the_manifest_lists_and_nothing_else() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path();
    let out = folder.join("out");
    let emit = "emit ROOT/fixtures/traces/unet_small.pt -o out --force --stages";
    let write = |name: &str| {
        let path = out.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, name).unwrap();
    };
    let foreign =
        ["checkpoints/step_1/stage_0.pt", "stages/notes.txt", "task.py", ".hidden", "launch/mine.sh"];
    let is_kept =
        || foreign.iter().all(|name| fs::read(out.join(name)).is_ok_and(|text| text == name.as_bytes()));
    done(folder, &format!("{emit} 3 --launch torchrun"));
    foreign.iter().for_each(|name| write(name));
    fs::create_dir(out.join("empty")).unwrap();
    write("stages/__pycache__/stage_0.pyc");
    for line in [format!("{emit} 2"), format!("{SPLIT} --force")] {
        done(folder, &line);
        assert!(is_kept() && out.join("empty").is_dir(), "{line}: {:?}", files(&out));
        let mut expected: BTreeSet<String> = manifest(&out).files.into_keys().collect();
        expected.extend(foreign.iter().map(ToString::to_string));
        expected.insert("stages/manifest.json".into());
        // Without the launch file, the third stage and what Python compiled.
        assert_eq!(files(&out), expected, "{line}");
    }
    // Of another version, which lists nothing: what we write is ours by its name.
    let path = out.join("stages/manifest.json");
    let mut old: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    old.as_object_mut().unwrap().remove("files");
    fs::write(&path, old.to_string()).unwrap();
    // Those wrote no parts, and other exports.
    fs::remove_dir_all(out.join("train_parts")).unwrap();
    for file in fs::read_dir(out.join("exports")).unwrap() {
        let path = file.unwrap().path();
        if path.extension().is_some_and(|kind| kind == "py") && !path.ends_with("torch_split_spec.py") {
            fs::remove_file(path).unwrap();
        }
    }
    done(folder, &format!("{emit} 2"));
    assert!(is_kept() && !out.join("graph.svg").exists(), "{:?}", files(&out));

    let refused = |line: &str, message: &str| {
        let before = files(&out);
        let output = run(folder, line);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.starts_with(&format!("error: {message}")), "{said}");
        assert_eq!(files(&out), before);
        assert_eq!(fs::read_dir(folder).unwrap().count(), 1, "something was left beside");
    };
    write("launch/torchrun.sh");
    let taken = "was not written by this command and would be replaced";
    refused(&format!("{emit} 2 --launch torchrun"), &format!("out/launch/torchrun.sh {taken}"));
    fs::remove_file(out.join("launch/torchrun.sh")).unwrap();
    fs::remove_dir_all(out.join("exports")).unwrap();
    fs::write(out.join("exports"), "a file").unwrap();
    refused(&format!("{emit} 2"), &format!("out/exports {taken}"));
    fs::remove_file(out.join("exports")).unwrap();
    fs::write(&path, "{}").unwrap();
    refused(&format!("{emit} 2"), "out/stages/manifest.json: ");
    assert!(is_kept());
}

/// Copies a fixture with one bit of a parameter's bytes flipped; returns the parameter's name.
fn flipped(model: &str, to: &Path, which: usize) -> String {
    let mut bytes = fs::read(root().join("fixtures/traces").join(model)).unwrap();
    let program = tracer::read_archive(&bytes).unwrap();
    let tensor = program.tensors.iter().filter(|t| t.role == tracer::Role::Parameter).nth(which).unwrap();
    let elements: u64 = tensor.shape.iter().product();
    let at = tensor.first_byte().unwrap() + (elements - 1) / 2 * tensor.dtype.bytes();
    bytes[usize::try_from(at).unwrap()] ^= 1;
    fs::write(to, bytes).unwrap();
    tensor.path.clone()
}

#[test]
fn damage_of_the_model_is_not_written_with_a_new_checksum() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path();
    // The second lays several tensors into one record, of which a Python stage takes parts.
    for (model, which) in [("unet_small.pt", 7), ("lstm_seq2seq_small.pt", 3), ("numbers.pt", 0)] {
        let name = flipped(model, &folder.join("m.pt"), which);
        for line in ["emit m.pt --stages 1 -o out", "emit m.pt --stages 1 -o out --targets python"] {
            let output = run(folder, line);
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(2), "{model}: {said}");
            // Tensors that lie together are damaged together; the first is named.
            assert!(
                said.starts_with("error: m.pt: `") && said.contains("is damaged: the checksum of its record"),
                "{said}"
            );
            assert!(said.contains(&format!("`{name}`")) || model != "unet_small.pt", "{name}: {said}");
            assert_eq!(fs::read_dir(folder).unwrap().count(), 1, "something was left");
        }
    }
}

#[test]
fn weights_that_are_no_numbers_are_said_once() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path();
    done(folder, "emit ROOT/fixtures/traces/cnn_basic.pt --stages 1 -o whole");
    let mut bytes = fs::read(folder.join("whole/stages/stage_0.safetensors")).unwrap();
    let header = u64::from_le_bytes(*bytes.first_chunk().unwrap());
    let text = String::from_utf8(bytes[8..8 + usize::try_from(header).unwrap()].to_vec()).unwrap();
    let about: serde_json::Value = serde_json::from_str(text.trim()).unwrap();
    for (name, number) in [("conv1.weight", f32::NAN), ("conv1.bias", f32::INFINITY)] {
        let at = (8 + header + about[name]["data_offsets"][0].as_u64().unwrap()) as usize;
        bytes[at..at + 4].copy_from_slice(&number.to_le_bytes());
    }
    fs::write(folder.join("lost.safetensors"), bytes).unwrap();
    let model = "ROOT/fixtures/traces/cnn_basic.pt --weights lost.safetensors";
    for line in [format!("emit {model} --stages 2 -o out"), format!("split {model} --devices 2xt4 -o other")]
    {
        let output = run(folder, &line);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{said}");
        assert_eq!(said.matches("parameters hold NaN or infinity: conv1.").count(), 1, "{said}");
        assert!(said.contains("note: 2 of "), "{said}");
    }
    let output = run(folder, "emit ROOT/fixtures/traces/gpt2_tiny.pt --stages 2 -o masked");
    assert!(!String::from_utf8_lossy(&output.stderr).contains("NaN"), "masks may hold infinity");
}

#[test]
fn predictions_stand_beside_what_they_are_of() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path();
    let split = "split ROOT/fixtures/traces/unet_small.pt --devices";
    done(folder, &format!("{split} 2xt4 --strategy 1f1b --stages 2 -o out"));
    done(folder, &format!("{split} 2xcpu --strategy 1f1b --stages 2 -o processors"));
    let check = |line: &str, expected: &str| {
        let output = run(folder, line);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert!(said.contains(expected), "{line}: {said}");
        assert_eq!(said.contains("\npredicted "), expected == "\npredicted ", "{said}");
    };
    check("run out --steps 1 --backend null", "\npredicted ");
    check("run out --steps 1 --backend null --micro-batches 2", "not for this run");
    check("run out --steps 1 --backend null --schedule gpipe", "under 1f1b, not for this run");
    if cfg!(feature = "torch") {
        check("run out --steps 1", "the plan's prediction is for T4, not for this run");
        check("run processors --steps 1", "\npredicted ");
    }
    // Versions of the weights are kept where no two stages share some.
    for (model, is_executed) in [("unet_small", true), ("gpt2_tiny", false)] {
        let (trace, plan) = (format!("ROOT/fixtures/traces/{model}.pt"), format!("{model}.yaml"));
        done(folder, &format!("plan {trace} --devices 2xt4 --strategy 1f1b --stages 2 -o {plan}"));
        let text = fs::read_to_string(folder.join(&plan)).unwrap();
        fs::write(folder.join(&plan), text.replace("\nschedule: 1f1b\n", "\nschedule: pipedream\n")).unwrap();
        let said = run(folder, &format!("emit {trace} {plan} -o {model}")).stderr;
        let said = String::from_utf8_lossy(&said);
        assert_eq!(said.contains("note: train.py cannot run this pipedream"), !is_executed, "{said}");
        let script = fs::read_to_string(folder.join(model).join("train.py")).unwrap();
        assert_eq!(script.contains("\"schedule\": \"PipeDream\""), is_executed, "{model}");
        assert_eq!(folder.join(model).join("schedule.csv").exists(), !is_executed, "{model}");
    }
    // Slices of gradients are sent of stages in Python.
    let trace = "ROOT/fixtures/traces/unet_small.pt";
    let ddp = "--devices 2xt4 --strategy data-parallel --sharding none";
    done(folder, &format!("plan {trace} {ddp} -o p3.yaml"));
    let text = fs::read_to_string(folder.join("p3.yaml")).unwrap();
    let text = text.replace("\npredicted:", "\nexecution: {sync: p3, collective: ring}\npredicted:");
    fs::write(folder.join("p3.yaml"), text).unwrap();
    for (form, is_sliced) in [("python", true), ("torchscript", false)] {
        let said = run(folder, &format!("emit {trace} p3.yaml --targets {form} -o p3_{form}")).stderr;
        let said = String::from_utf8_lossy(&said);
        assert_eq!(said.contains("does not send gradients of archives in slices"), !is_sliced, "{said}");
        let script = fs::read_to_string(folder.join(format!("p3_{form}/train.py"))).unwrap();
        assert_eq!(script.contains("\"sync\": \"p3\""), is_sliced, "{form}");
        assert_eq!(script.contains("\"prediction\": None"), !is_sliced, "{form}");
    }
}
