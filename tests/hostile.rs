//! Files of strangers, given to every command that reads their kind: each ends soon, in little memory, with an answer or a
//! message that fits a screen, and writes nothing that it was not asked for.
//!
//! The corpus is `fixtures/hostile/`, made by `fixtures/hostile.py`. Commands run as processes under `ulimit`.

#![cfg(unix)]
#![allow(clippy::unwrap_used, clippy::print_stdout, missing_docs)]

#[path = "hostile/corpus.rs"]
mod corpus;

use std::{
    collections::BTreeSet,
    fs,
    path::Path,
    process::{Command, Output},
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use corpus::{Entry, entries, root};

mod needs;

/// Address space in KiB, seconds of the processor, and 512-byte blocks of a file: far more than any honest file of this size needs.
/// A sanitizer (`make sanitize`) reserves address space without end, limits memory by itself, and is slow.
const LIMITS: &str = "if [ -z \"$ASAN_OPTIONS\" ]; then ulimit -v 1500000 && ulimit -t 20; fi && ulimit -f 200000 && exec \"$@\"";

/// One file in so many is tried. With libtorch each start takes a quarter of a second and the whole corpus minutes, so that
/// `cargo test --test hostile` without the feature is what tries them all.
const EVERY: usize = if cfg!(feature = "torch") { 8 } else { 1 };

/// How a command line names the file, and the folder that it may write to.
const FILE: &str = "FILE";
const OUT: &str = "OUT/";

/// Command lines for a kind of file; the first tells whether the rest is of interest.
fn commands(kind: &str) -> Vec<&'static str> {
    let model = [
        "inspect FILE --input 4x3",
        "split FILE --devices 2xt4 --stages 2 --input 4x3 -o OUT/out",
        "emit FILE --stages 2 -o OUT/out --launch torchrun,slurm,kubernetes",
    ];
    let more = [
        "inspect FILE --format json",
        "graph FILE --depth 9 -o OUT/g.dot --input 4x3",
        "graph FILE -o OUT/g.adjacency.json --input 4x3",
        "report FILE --input 4x3 -o OUT/r.html",
        "plan FILE --devices 2xt4 --input 4x3 -o OUT/p.yaml",
    ];
    match kind {
        "archive" | "code" | "export" | "ir" | "operator" => [&model[..], &more[..]].concat(),
        "plan" => vec![
            "simulate FILE",
            "simulate FILE --timeline OUT/t.svg --format json",
            "simulate FILE --schedule 1f1b --timeline OUT/t.json",
            "emit ROOT/fixtures/traces/unet_small.pt FILE -o OUT/out",
            "report ROOT/fixtures/traces/unet_small.pt FILE -o OUT/r.html",
            "graph ROOT/fixtures/traces/unet_small.pt --plan FILE -o OUT/g.svg",
            "plan ROOT/fixtures/traces/unet_small.pt --check FILE",
        ],
        "cluster" => vec![
            "plan ROOT/fixtures/traces/cnn_dropout.pt --cluster FILE -o OUT/p.yaml",
            "split ROOT/fixtures/traces/cnn_dropout.pt --cluster FILE --stages 2 -o OUT/out",
        ],
        "map" => vec!["fit OUT/folder/rows.csv --map FILE -o OUT/c.yaml"],
        "devices" => vec![
            "fit OUT/folder/rows.csv --devices FILE",
            "fit OUT/folder/rows.csv --devices FILE --device v100",
        ],
        "profile" => vec![
            "fit FILE",
            "fit FILE -o OUT/c.yaml --plot OUT/f.svg --format json",
            "fit FILE --train-rows 30 --split extrapolate --features raw",
        ],
        "schedule" => vec![
            "simulate --csv FILE",
            "simulate --csv FILE --lint --format json",
            "simulate --csv FILE --chain 2 --as-torch --cost 3,2,1,1 --format json",
            "simulate --csv FILE --timeline OUT/t.svg --write-csv OUT/o.csv",
        ],
        "pipedream" => vec![
            "plan FILE --machines 2,2 --bandwidth 30e9,3e9",
            "plan FILE --compat pipedream --machines 4 --bandwidth 1e9 --activation-transfer",
            "plan FILE --strategy pipedream --machines 4 --bandwidth 1e9 --format json",
            "inspect FILE",
        ],
        "workload" => vec!["plan FILE", "plan FILE --format json --machines 2,1"],
        "manifest" => {
            vec!["run OUT/folder", "verify OUT/folder", "run OUT/folder --backend null --format json"]
        }
        "timeline" => vec!["report ROOT/fixtures/traces/cnn_dropout.pt PLAN --measured FILE -o OUT/r.html"],
        "cost-model" => {
            vec!["plan ROOT/fixtures/traces/cnn_dropout.pt --devices 2xcpu --cost-model FILE -o OUT/p.yaml"]
        }
        other => panic!("no command reads {other}"),
    }
}

fn run(line: &str, file: &Path, out: &Path) -> Output {
    let words = line.split(' ').map(|word| match word {
        FILE => file.as_os_str().to_os_string(),
        "PLAN" => out.join("folder/plan.yaml").into_os_string(),
        word => match (word.strip_prefix(OUT), word.strip_prefix("ROOT/")) {
            (Some(name), _) => out.join(name).into_os_string(),
            (_, Some(name)) => root().join(name).into_os_string(),
            _ => word.into(),
        },
    });
    Command::new("sh")
        .args(["-c", LIMITS, "sh", env!("CARGO_BIN_EXE_model-analyze")])
        .args(words)
        .current_dir(out)
        .output()
        .expect("the shell starts")
}

/// Kinds whose commands read no other file that may be at fault.
const READS_ONE: [&str; 10] =
    ["archive", "code", "export", "ir", "operator", "plan", "cluster", "profile", "schedule", "pipedream"];

/// Says what is wrong with the way a command has ended, if anything.
fn complaint(line: &str, entry: &Entry, output: &Output, out: &Path) -> Option<String> {
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    let Some(code) = output.status.code() else { return Some(format!("ended by {}", output.status)) };
    if !matches!(code, 0..=2) {
        return Some(format!("exit code {code}: {stderr}"));
    }
    if stderr.lines().count() > 60 || stderr.len() > 24_000 {
        return Some(format!("{} lines, {} bytes of messages", stderr.lines().count(), stderr.len()));
    }
    let speaks = |text: &str| text.chars().find(|c| c.is_control() && !matches!(c, '\n' | '\t'));
    if let Some(c) = speaks(&stderr).or_else(|| speaks(&stdout)) {
        return Some(format!("prints {c:?}"));
    }
    let expected: Vec<&str> = match code {
        0 => line.split(' ').filter_map(|word| word.strip_prefix(OUT)).collect(),
        _ => Vec::new(),
    };
    if code != 0 {
        // What was found on the way may stand before it.
        let message = stderr.lines().find(|line| !line.starts_with("note: ")).unwrap_or_default();
        if !message.starts_with("error: ") {
            return Some(format!("no message: {stderr}"));
        }
        if code == 2 && READS_ONE.contains(&entry.kind) && !stderr.contains(&entry.name) {
            return Some(format!("the message does not name the file: {stderr}"));
        }
    }
    for found in fs::read_dir(out).unwrap().flatten() {
        let name = found.file_name().to_string_lossy().into_owned();
        if !expected.contains(&name.as_str()) && name != entry.name && name != "folder" {
            return Some(format!("left `{name}` behind"));
        }
    }
    if out.parent().is_some_and(|parent| parent.join("owned").exists()) {
        return Some("code of the file was run".to_string());
    }
    None
}

/// Returns the file that a kind's commands need beside the one that may be wrong: a name and what it holds.
fn beside(kind: &str) -> Option<(&'static str, Vec<u8>)> {
    let right = |kind| entries(kind).into_iter().next().expect("the first file is the right one").bytes;
    match kind {
        "map" | "devices" => Some(("rows.csv", right("profile"))),
        "manifest" => Some(("plan.yaml", right("plan"))),
        "timeline" => {
            let folder = tempfile::tempdir().unwrap();
            fs::create_dir(folder.path().join("folder")).unwrap();
            let line = "plan ROOT/fixtures/traces/cnn_dropout.pt --devices 2xt4 -o PLAN";
            assert!(run(line, Path::new(""), folder.path()).status.success());
            Some(("plan.yaml", fs::read(folder.path().join("folder/plan.yaml")).unwrap()))
        }
        _ => None,
    }
}

/// Runs all commands on all files of a kind.
fn check(kind: &'static str) {
    let entries: Vec<Entry> = entries(kind).into_iter().step_by(EVERY).collect();
    let beside = beside(kind);
    let next = AtomicUsize::new(0);
    let (answers, complaints) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let answered = Mutex::new(BTreeSet::new());
    let work = || {
        while let Some(entry) = entries.get(next.fetch_add(1, Ordering::Relaxed)) {
            for (index, line) in commands(kind).into_iter().enumerate() {
                let folder = tempfile::tempdir().unwrap();
                let out = folder.path().join("work");
                let file = out.join(&entry.name);
                fs::create_dir_all(out.join("folder/stages")).unwrap();
                fs::write(&file, &entry.bytes).unwrap();
                if kind == "manifest" {
                    fs::copy(&file, out.join("folder/stages/manifest.json")).unwrap();
                }
                if let Some((name, bytes)) = &beside {
                    fs::write(out.join("folder").join(name), bytes).unwrap();
                }
                let output = run(line, &file, &out);
                let is_cut = kind == "operator" && (line.starts_with("split") || line.starts_with("emit"));
                if is_cut && output.status.success() && !entry.name.starts_with("right") {
                    complaints.lock().unwrap().push(format!("{line} ({}): stages were cut", entry.name));
                }
                if let Some(text) = complaint(line, entry, &output, &out) {
                    complaints.lock().unwrap().push(format!("{line} ({}): {text}", entry.name));
                }
                if output.status.success() {
                    answers.fetch_add(1, Ordering::Relaxed);
                    answered.lock().unwrap().insert(entry.name.clone());
                }
                // What cannot be read at all is refused by all in the same way; two have seen it.
                if index >= 2 && !output.status.success() {
                    break;
                }
            }
        }
    };
    std::thread::scope(|scope| (0..2).for_each(|_| drop(scope.spawn(work))));
    let complaints = complaints.into_inner().unwrap();
    assert!(complaints.is_empty(), "{} complaints:\n{}", complaints.len(), complaints.join("\n"));
    // What is bent must have been straight, or nothing gets past the door.
    let answered = answered.into_inner().unwrap();
    let right: Vec<&Entry> = entries.iter().filter(|entry| entry.name.contains("right.")).collect();
    assert!(!right.is_empty(), "no file of kind {kind} is right");
    for entry in right {
        assert!(answered.contains(&entry.name), "{kind}: {} is refused by every command", entry.name);
    }
    println!("{kind}: {} files, {} answers", entries.len(), answers.into_inner());
}

#[test]
fn archives() {
    check("archive");
}

#[test]
fn exports() {
    check("export");
}

#[test]
fn code() {
    check("code");
}

#[test]
fn operators() {
    check("operator");
}

/// Everything that is emitted of the corpus and of the fixtures compiles, and training with it runs nothing but operators.
#[test]
fn what_is_emitted_runs_nothing_but_operators() {
    let Some(python) = needs::python() else { return };
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path();
    let all = entries("operator");
    let (right, wrong): (Vec<Entry>, Vec<Entry>) =
        all.into_iter().partition(|entry| entry.name.starts_with("right"));
    let mut entries: Vec<Entry> = right.into_iter().chain(wrong.into_iter().step_by(EVERY)).collect();
    let trace = |name: &str| Entry {
        kind: "operator",
        name: name.to_string(),
        bytes: fs::read(root().join("fixtures").join(name)).unwrap(),
    };
    entries.extend(
        ["hostile/names.pt", "traces/conversions.pt", "traces/called.pt", "traces/odd_calls.pt"].map(trace),
    );
    // Names of programs of torch.export, which come from JSON.
    let is_named = |entry: &Entry| {
        ["parameter_", "argument_string", "stack_escape"].iter().any(|start| entry.name.starts_with(start))
    };
    entries.extend(self::entries("export").into_iter().filter(is_named));
    let mut emitted = Vec::new();
    for (index, entry) in entries.iter().enumerate() {
        let file = out.join("model.pt");
        fs::write(&file, &entry.bytes).unwrap();
        let line = format!("emit FILE --stages 2 --targets python -o OUT/emitted_{index}");
        if run(&line, &file, out).status.success() {
            emitted.push((entry, out.join(format!("emitted_{index}"))));
        }
    }
    let status = Command::new(&python).args(["-m", "compileall", "-q"]).arg(out).status().unwrap();
    assert!(status.success(), "an emitted file does not compile");
    let names: Vec<&str> = emitted.iter().map(|(entry, _)| entry.name.as_str()).collect();
    assert_eq!(&names[..2], ["right.pt", "right_branch.pt"], "{names:?}");
    for (entry, stages) in emitted.iter().filter(|(entry, _)| !entry.name.starts_with("traces/")) {
        let output = Command::new(&python)
            .arg(stages.join("train.py"))
            .args(["--single", "--steps", "1", "--allow-eval"])
            .current_dir(out)
            .output()
            .unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        if entry.name.starts_with("right") {
            assert!(output.status.success(), "{}: {stderr}", entry.name);
        }
        for marker in [out.join("OWNED"), stages.join("OWNED")] {
            assert!(!marker.exists(), "{} has run code", entry.name);
        }
    }
}

#[test]
fn operators_of_another_library_are_called_when_they_are_allowed_and_it_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path();
    let file = out.join("model.pt");
    let entry = entries("operator").into_iter().find(|entry| entry.name == "in_fbgemm.pt").unwrap();
    fs::write(&file, entry.bytes).unwrap();
    let stderr = |output: &Output| String::from_utf8_lossy(&output.stderr).into_owned();
    let refused = run("emit FILE --stages 2 -o OUT/out", &file, out);
    assert_eq!(refused.status.code(), Some(2));
    let said = stderr(&refused);
    assert!(said.contains("`model` calls `fbgemm::nothing` (code/__torch__.py:"), "{said}");
    assert!(said.contains("hint: --allow-operators fbgemm lets"), "{said}");
    for line in ["emit FILE --stages 2", "split FILE --devices 2xt4 --stages 2 --input 4x3"] {
        let name = line.split(' ').next().unwrap();
        let output = run(&format!("{line} --allow-operators fbgemm -o OUT/{name}"), &file, out);
        let said = stderr(&output);
        assert!(output.status.success(), "{said}");
        assert!(
            said.contains("note: stages will call operators that are not torch's: fbgemm::nothing"),
            "{said}"
        );
        let stage = |number: u32| out.join(name).join(format!("stages/stage_{number}.py"));
        let source = [0, 1].map(|number| fs::read_to_string(stage(number)).unwrap()).concat();
        assert!(source.contains("y = _operators[\"fbgemm::nothing\"](\"OWNED\")"), "{source}");
        assert!(!source.contains("torch.ops.fbgemm"), "{source}");
    }
    for space in ["aten", "prim", "a.b", "", "é"] {
        let output = run(&format!("emit FILE --stages 2 --allow-operators {space} -o OUT/x"), &file, out);
        assert_eq!(output.status.code(), Some(2), "{space}");
    }
}

/// libtorch's parser overflows the stack there, and takes the process with it.
#[cfg(feature = "torch")]
#[test]
fn a_stage_that_is_nested_too_deeply_for_libtorch_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path();
    let model = root().join("fixtures/traces/cnn_dropout.pt");
    assert!(run("emit FILE --stages 2 -o OUT/out", &model, out).status.success());
    let nested = entries("code").into_iter().find(|entry| entry.name == "brackets.pt").unwrap();
    fs::write(out.join("out/stages/stage_0.pt"), nested.bytes).unwrap();
    // A stranger's manifest says nothing of its files.
    let manifest = out.join("out/stages/manifest.json");
    let mut known: serde_json::Value = serde_json::from_slice(&fs::read(&manifest).unwrap()).unwrap();
    known.as_object_mut().unwrap().remove("files");
    fs::write(&manifest, known.to_string()).unwrap();
    let output = run("run OUT/out", Path::new(""), out);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("stage_0.pt: expected at most 64 nested brackets"), "{stderr}");
}

#[test]
fn ir() {
    check("ir");
}

#[test]
fn plans() {
    check("plan");
}

#[test]
fn clusters() {
    check("cluster");
}

#[test]
fn maps() {
    check("map");
}

#[test]
fn devices() {
    check("devices");
}

#[test]
fn cost_models() {
    check("cost-model");
}

#[test]
fn profiles() {
    check("profile");
}

#[test]
fn schedules() {
    check("schedule");
}

#[test]
fn profile_graphs() {
    check("pipedream");
}

#[test]
fn workloads() {
    check("workload");
}

#[test]
fn manifests() {
    check("manifest");
}

#[test]
fn timelines() {
    check("timeline");
}
