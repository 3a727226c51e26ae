//! The main job end to end: split, then (with libtorch) verify and run what was written.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};

use assert_cmd::Command;
use serde_json::Value;

#[cfg(feature = "torch")]
mod validate;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(name)
}

fn command() -> Command {
    Command::new(env!("CARGO_BIN_EXE_model-analyze"))
}

fn split(model: &str, folder: &Path, more: &[&str]) -> Value {
    let run = command().arg("split").arg(fixture(model)).args(more).arg("-o").arg(folder).assert();
    let run = run.success();
    serde_json::from_slice(&run.get_output().stdout).unwrap()
}

const TWO_STAGES: [&str; 8] =
    ["--devices", "2xt4", "--stages", "2", "--strategy", "1f1b", "--format", "json"];

#[test]
fn everything_is_written_and_agrees() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let answer = split("traces/unet_small.pt", &out, &TWO_STAGES);
    for file in [
        "plan.yaml",
        "graph.svg",
        "timeline.svg",
        "report.html",
        "schedule.csv",
        "train.py",
        "stages/manifest.json",
        "stages/stage_0.pt",
        "stages/stage_1.safetensors",
        "exports/torch_split_spec.py",
    ] {
        assert!(out.join(file).is_file(), "{file}");
    }
    // The page knows what each block takes.
    let page = std::fs::read_to_string(out.join("report.html")).unwrap();
    assert!(page.contains("<th class=\"n\">Time<th>Stage") && !page.contains("no predicted times"));
    let (plan, simulated) = (&answer["plan"], &answer["simulated"]);
    let seconds = |value: &Value| value.as_f64().unwrap();
    let off = seconds(&plan["step_seconds"]) / seconds(&simulated["step_seconds"]) - 1.0;
    assert!(off.abs() < 0.01, "planned and simulated differ by {off}");
    assert!(seconds(&plan["lower_bound_seconds"]) <= seconds(&plan["step_seconds"]));
    for by_hand in answer["by_hand"].as_array().unwrap() {
        let Some(step) = by_hand["step_seconds"].as_f64() else { continue };
        assert!(step * 1.0001 >= seconds(&plan["step_seconds"]), "{by_hand} beats the plan");
    }
}

/// Memory that several parts of this model write to: the fastest four stages could not be written.
const PARTED: [&str; 6] = ["--devices", "4xt4", "--stages", "4", "--format", "json"];

#[test]
fn what_no_cut_may_part_stays_together() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let mut run = command();
    let run = run.arg("split").arg(fixture("traces/writes.pt")).args(PARTED).arg("-o").arg(&out);
    let run = run.assert().success();
    let said = String::from_utf8(run.get_output().stderr.clone()).unwrap();
    assert!(
        said.contains("some cuts cannot be written (`aten::")
            && said.contains("in stage 1 changes memory in place"),
        "{said}"
    );
    let answer: Value = serde_json::from_slice(&run.get_output().stdout).unwrap();
    assert_eq!(answer["plan"]["stages"].as_array().unwrap().len(), 4);
    // Each block is named once, and the plan is worth what was said.
    let mut check = command();
    let check = check.arg("plan").arg(fixture("traces/writes.pt")).arg("--check").arg(out.join("plan.yaml"));
    let run = check.args(["--format", "json"]).assert().success();
    let checked: Value = serde_json::from_slice(&run.get_output().stdout).unwrap();
    assert_eq!(checked["step_seconds"], answer["plan"]["step_seconds"]);
    // More stages than there are places to cut.
    let mut run = command();
    let run =
        run.arg("split").arg(fixture("traces/writes.pt")).args(["--devices", "60xt4", "--stages", "60"]);
    let run = run.arg("--dry-run").assert().code(2);
    let said = String::from_utf8(run.get_output().stderr.clone()).unwrap();
    assert!(
        said.contains("60 stages were asked for") && said.contains("hint: some cuts cannot be written"),
        "{said}"
    );
}

#[cfg(feature = "torch")]
#[test]
fn stages_around_what_no_cut_may_part_are_right() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    // The finest stages that there are cut between `unsqueeze_` and what is written through it.
    let finest = ["--devices", "28xt4", "--stages", "28", "--format", "json", "--force"];
    for arguments in [&PARTED[..], &finest] {
        split("traces/writes.pt", &out, arguments);
        let run = command().arg("verify").arg(&out).args(["--format", "json"]).assert().success();
        let answer: Value = serde_json::from_slice(&run.get_output().stdout).unwrap();
        assert_eq!((&answer["ok"], &answer["outputs_max_difference"]), (&true.into(), &0.0.into()));
    }
}

/// The system tells of every opening of the file, whoever opens it.
#[cfg(target_os = "linux")]
#[test]
fn a_model_is_opened_once() {
    use rustix::fs::inotify;
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model.pt");
    std::fs::copy(fixture("traces/unet_small.pt"), &model).unwrap();
    let plan = folder.path().join("plan.yaml");
    let out = |name: &str| folder.path().join(name).into_os_string();
    let check = |arguments: &[&std::ffi::OsStr]| {
        let watched = inotify::init(inotify::CreateFlags::NONBLOCK).unwrap();
        // What stands between two openings keeps the system from telling of both as one.
        let wanted = inotify::WatchFlags::OPEN | inotify::WatchFlags::ACCESS | inotify::WatchFlags::CLOSE;
        inotify::add_watch(&watched, &model, wanted).unwrap();
        command().arg(arguments[0]).arg(&model).args(&arguments[1..]).assert().success();
        let mut buffer = [std::mem::MaybeUninit::uninit(); 1 << 16];
        let mut events = inotify::Reader::new(&watched, &mut buffer);
        let mut opened = 0;
        while let Ok(event) = events.next() {
            opened += usize::from(event.events().contains(inotify::ReadFlags::OPEN));
        }
        assert_eq!(opened, 1, "{arguments:?}");
    };
    let two = ["--devices", "2xt4", "--stages", "2", "-o"].map(std::ffi::OsStr::new);
    check(&[&["split".as_ref()], &two[..], &[&out("split")]].concat());
    check(&[&["plan".as_ref()], &two[..], &[plan.as_os_str()]].concat());
    check(&["plan".as_ref(), "--check".as_ref(), plan.as_os_str()]);
    check(&["emit".as_ref(), plan.as_os_str(), "-o".as_ref(), &out("emit")]);
}

#[test]
fn a_folder_in_use_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("mine"), "precious").unwrap();
    let mut run = command();
    let run = run.arg("split").arg(fixture("traces/cnn_basic.pt")).args(["--devices", "2xt4", "-o"]);
    let run = run.arg(folder.path()).assert().code(2);
    let message = String::from_utf8(run.get_output().stderr.clone()).unwrap();
    assert!(message.contains("is not empty"), "{message}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn a_dry_run_writes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let mut run = command();
    let run = run.arg("split").arg(fixture("traces/gpt2_tiny.pt")).args(["--devices", "4xh100"]);
    run.arg("--dry-run").current_dir(folder.path()).assert().success();
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

/// Runs `split --dry-run` and returns what it prints.
fn screen(model: &str, more: &[&str]) -> String {
    let mut run = command();
    let run = run.arg("split").arg(fixture(model)).args(more).arg("--dry-run").assert().success();
    String::from_utf8(run.get_output().stdout.clone()).unwrap()
}

#[test]
fn one_screen_says_it_all() {
    for (model, more) in [
        ("traces/unet_small.pt", &["--devices", "2xt4"][..]),
        ("traces/gpt2_tiny.pt", &["--devices", "4xh100", "--stages", "4"]),
        ("traces/amoebanet_6_small.pt", &["--devices", "16xh100", "--stages", "16"]),
        ("traces/bert_tiny.pt", &["--devices", "2x8xa100"]),
    ] {
        let screen = screen(model, more);
        // What is written, and what to do next, are seven lines more.
        assert!(screen.lines().count() + 7 <= 40, "{model}:\n{screen}");
        // The table of stages, the second paragraph, holds whole names: this is a pipe.
        let others = screen.split("\n\n").enumerate().filter(|(paragraph, _)| *paragraph != 1);
        let lines = others.flat_map(|(_, paragraph)| paragraph.lines());
        let widest = lines.map(|line| line.chars().count()).max().unwrap();
        assert!(widest <= 100, "{model}: {widest} columns\n{screen}");
        for part in ["samples/s", "speed-up", "bubble", "optimal", "compared", "even layers, by hand"] {
            assert!(screen.contains(part), "{model}: {part} is missing\n{screen}");
        }
    }
}

#[test]
fn the_winner_is_compared_with_every_family_and_says_why() {
    let folder = tempfile::tempdir().unwrap();
    // On GPUs the host bounds this small model, and cuts differ by little.
    let chosen_here = ["--devices", "2xcpu", "--stages", "2", "--format", "json"];
    let answer = split("traces/unet_small.pt", &folder.path().join("out"), &chosen_here);
    let compared = answer["compared"].as_array().unwrap();
    let of = |name: &str| compared.iter().find(|row| row["name"] == name).unwrap();
    let step = answer["simulated"]["step_seconds"].as_f64().unwrap();
    assert_eq!(of("best pipeline")["step_seconds"].as_f64().unwrap(), step);
    assert_eq!(of("best pipeline")["is_chosen"], true);
    // Not asked for, and told all the same.
    assert!(of("data parallel")["step_seconds"].as_f64().unwrap() > 0.0);
    assert!(of("best hybrid")["fails"].as_str().unwrap().contains("need 4 devices"));
    for name in ["even layers, by hand", "even parameters, by hand"] {
        assert!(of(name)["step_seconds"].as_f64().unwrap() >= step, "{name}");
    }
    assert!(answer["why"].as_array().unwrap().iter().any(|why| why.as_str().unwrap().contains("saves")));
    // Each number of micro-batches costs less than the one before; the chosen one is the first that is enough.
    let tried = answer["micro_batches_tried"].as_array().unwrap();
    let each: Vec<f64> = tried.iter().map(|one| one["seconds_each"].as_f64().unwrap()).collect();
    let least = each.iter().copied().fold(f64::INFINITY, f64::min);
    let chosen = tried.iter().position(|one| one["micro_batches"] == answer["simulated"]["micro_batches"]);
    assert_eq!(chosen, each.iter().position(|seconds| *seconds <= 1.05 * least));
    let asked = split("traces/unet_small.pt", &folder.path().join("asked"), &TWO_STAGES)["compared"].clone();
    let ours = asked.as_array().unwrap().iter().find(|row| row["is_chosen"] == true).unwrap();
    assert_eq!(ours["name"], "1f1b", "who asks for a strategy sees it beside the best");
    let asked = screen("traces/unet_small.pt", &["--devices", "2xt4", "--micro-batches", "6"]);
    assert!(asked.contains("6 micro-batches per step") && !asked.contains("chosen"), "{asked}");
}

#[test]
fn explaining_goes_deeper() {
    let explained = screen("traces/unet_small.pt", &["--devices", "2xt4", "--stages", "2", "--explain"]);
    for part in [
        "what bounds each stage",
        "every strategy",
        "micro-batches per step",
        "what would help",
        "critical path",
    ] {
        assert!(explained.contains(part), "{part} is missing\n{explained}");
    }
}

#[test]
fn names_that_are_nearly_right_are_recognised() {
    for (flag, wrong, right) in [
        ("--strategy", "hybird", "did you mean `hybrid`?"),
        ("--schedule", "1f2b", "did you mean `1f1b`?"),
        ("--devices", "4xh10", "did you mean H100"),
    ] {
        let devices: &[&str] = if flag == "--devices" { &[] } else { &["--devices", "2xt4"] };
        let mut run = command();
        let run = run.arg("split").arg(fixture("traces/cnn_basic.pt")).args(devices).args([
            flag,
            wrong,
            "--dry-run",
        ]);
        let message = String::from_utf8(run.assert().code(2).get_output().stderr.clone()).unwrap();
        assert!(message.contains(right), "{message}");
    }
    let screen = screen("traces/unet_small.pt", &["--devices", "2xt4", "--schedule", "gpipe"]);
    assert!(screen.contains("under gpipe"), "{screen}");
}

#[test]
fn what_is_said_to_be_enough_is_enough() {
    let folder = tempfile::tempdir().unwrap();
    let cluster = |memory: u64, devices: usize| {
        let devices: String =
            (0..devices).map(|i| format!("- {{name: gpu{i}, type: tiny, place: [0]}}\n")).collect();
        let path = folder.path().join("cluster.yaml");
        let text = format!(
            "kind: cluster\nversion: 1\ntypes:\n  tiny: {{memory: {memory}, memory_bandwidth: 1.0e11, peak: {{float32: 1.0e12}}}}\n\
             devices:\n{devices}levels:\n- {{name: pcie, bandwidth: 1.0e10, latency: 1.0e-5}}\n"
        );
        std::fs::write(&path, text).unwrap();
        path
    };
    let split = |cluster: &Path, more: &[&str]| {
        let mut run = command();
        run.arg("split")
            .arg(fixture("traces/gpt2_tiny.pt"))
            .arg("--cluster")
            .arg(cluster)
            .args(["--tensor-parallel", "none"])
            .args(more)
            .arg("--dry-run");
        run.assert()
    };
    let failed = split(&cluster(120_000, 2), &[]).code(1);
    let message = String::from_utf8(failed.get_output().stderr.clone()).unwrap();
    assert!(message.contains("one of these suffices:"), "{message}");
    let enough = message.split(" devices instead of 2").next().unwrap().rsplit(' ').next().unwrap();
    let enough: usize = enough.parse().unwrap_or_else(|_| panic!("{message}"));
    split(&cluster(120_000, enough), &[]).success();
    for option in ["--offload", "--optimizer momentum", "--optimizer sgd"] {
        let words: Vec<&str> = option.split(' ').collect();
        let run = split(&cluster(120_000, 2), &words);
        run.code(i32::from(!message.contains(option)));
    }
}

#[cfg(feature = "torch")]
#[test]
fn stages_give_what_the_whole_model_gives() {
    for model in
        ["unet_small", "gpt2_tiny", "cnn_basic", "bert_tiny", "lstm_seq2seq_small", "amoebanet_6_small"]
    {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("out");
        split(&format!("traces/{model}.pt"), &out, &TWO_STAGES);
        let run = command().arg("verify").arg(&out).args(["--format", "json"]).assert().success();
        let answer: Value = serde_json::from_slice(&run.get_output().stdout).unwrap();
        validate::validate("answer-verify", &answer);
        assert_eq!(answer["ok"], true, "{model}");
        assert_eq!(answer["outputs_max_difference"], 0.0, "{model}");
        assert_eq!(answer["steps"], 10, "{model}");
        assert!(answer["gradients_compared"].as_u64().unwrap() > 0, "{model}");
    }
}

#[cfg(feature = "torch")]
#[test]
fn another_model_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    split("traces/unet_small.pt", &out, &TWO_STAGES);
    let run = command().arg("verify").arg(&out).arg("--model").arg(fixture("traces/cnn_basic.pt")).assert();
    let message = String::from_utf8(run.code(2).get_output().stderr.clone()).unwrap();
    assert!(message.contains("is not the model that the stages were cut from"), "{message}");
}

#[cfg(feature = "torch")]
#[test]
fn changed_weights_are_found() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    split("traces/cnn_basic.pt", &out, &TWO_STAGES);
    // One weight of the last stage gets another value: flip a byte inside its largest record.
    let path = out.join("stages/stage_1.pt");
    let mut bytes = std::fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0x40;
    std::fs::write(&path, bytes).unwrap();
    let run = command().arg("verify").arg(&out).assert().failure();
    assert!(matches!(run.get_output().status.code(), Some(1 | 2)));
}

#[cfg(feature = "torch")]
#[test]
fn schedules_and_replicas_do_not_change_the_losses() {
    let folder = tempfile::tempdir().unwrap();
    let losses = |out: &Path, schedule: &str, devices: usize| -> Vec<f64> {
        let timeline = folder.path().join("timeline.json");
        let mut run = command();
        run.arg("run").arg(out).args(["--schedule", schedule, "--micro-batches", "4", "--steps", "3"]);
        let run = run.args(["--format", "json", "--timeline"]).arg(&timeline).assert().success();
        let answer: Value = serde_json::from_slice(&run.get_output().stdout).unwrap();
        assert!(answer["step_seconds"].as_f64().unwrap() > 0.0);
        let timeline: Value = serde_json::from_slice(&std::fs::read(&timeline).unwrap()).unwrap();
        assert_eq!(timeline["tracks"].as_array().unwrap().len(), devices);
        answer["losses"].as_array().unwrap().iter().map(|loss| loss.as_f64().unwrap()).collect()
    };
    // Images, and words: where the input has no gradient, the input half of a split backward pass has nothing to do.
    for model in ["unet_small", "gpt2_tiny"] {
        let (out, twice) = (folder.path().join(model), folder.path().join(format!("{model}_twice")));
        split(&format!("traces/{model}.pt"), &out, &TWO_STAGES);
        let expected = losses(&out, "gpipe", 2);
        assert_eq!(expected.len(), 3);
        assert!(expected[2] < expected[0], "{expected:?}");
        let check = |out: &Path, schedule: &str, devices: usize| {
            for (ours, expected) in losses(out, schedule, devices).iter().zip(&expected) {
                assert!((ours / expected - 1.0).abs() < 1e-5, "{model}, {schedule}: {ours} {expected}");
            }
        };
        check(&out, "1f1b", 2);
        check(&out, "interleaved-zero-bubble", 2);
        // The same stages on two devices each.
        let plan = std::fs::read_to_string(out.join("plan.yaml")).unwrap();
        let (head, stages) = plan.split_once("\nstages:\n").unwrap();
        let devices = head.find("  devices:\n").unwrap();
        let mut head = head.to_string();
        for more in ["more:0", "more:1"] {
            head.insert_str(
                devices + "  devices:\n".len(),
                &format!("  - name: {more}\n    type: T4\n    place: []\n"),
            );
        }
        let stages = stages.replace("  - node0:0\n", "  - node0:0\n  - more:0\n");
        let stages = stages.replace("  - node0:1\n", "  - node0:1\n  - more:1\n");
        let edited = folder.path().join("twice.yaml");
        std::fs::write(&edited, format!("{head}\nstages:\n{stages}")).unwrap();
        let mut emit = command();
        emit.arg("emit").arg(fixture(&format!("traces/{model}.pt"))).arg(&edited).arg("-o").arg(&twice);
        emit.assert().success();
        check(&twice, "1f1b", 4);
        check(&twice, "zb1p", 4);
    }
}

/// Schedules of their own cut, run as `split` wrote them: where stages lie, what `plan --check` says of the plan, the losses.
#[cfg(feature = "torch")]
#[test]
fn stages_in_a_v_train_as_others_do() {
    let folder = tempfile::tempdir().unwrap();
    let losses = |out: &Path| {
        let mut run = command();
        run.arg("run").arg(out).args(["--steps", "2", "--format", "json"]);
        let answer: Value = serde_json::from_slice(&run.assert().success().get_output().stdout).unwrap();
        answer["losses"].as_array().unwrap().iter().map(|loss| loss.as_f64().unwrap()).collect::<Vec<_>>()
    };
    let mut expected = Vec::new();
    let asked = ["--devices", "2xt4", "--micro-batches", "8", "--format", "json"];
    for (schedule, devices) in
        [("gpipe", &[0, 1][..]), ("zb2p", &[0, 1]), ("zbv", &[0, 1, 1, 0]), ("dualpipev", &[0, 1, 1, 0])]
    {
        let out = folder.path().join(schedule);
        let model = "traces/gpt2_tiny.pt";
        split(model, &out, &[&["--schedule", schedule], &asked[..]].concat());
        let file = out.join("plan.yaml");
        let plan = std::fs::read_to_string(&file).unwrap();
        let (_, stages) = plan.split_once("\nstages:\n").unwrap();
        let found: Vec<&str> = stages.lines().filter_map(|line| line.strip_prefix("  - node0:")).collect();
        assert_eq!(found, devices.iter().map(ToString::to_string).collect::<Vec<_>>(), "{schedule}");
        let simulated = command().arg("simulate").arg(&file).args(["--format", "json"]).assert().success();
        let simulated: Value = serde_json::from_slice(&simulated.get_output().stdout).unwrap();
        let mut check = command();
        check
            .arg("plan")
            .arg(fixture(model))
            .args(["--devices", "2xt4", "--format", "json", "--check"])
            .arg(&file);
        let checked: Value = serde_json::from_slice(&check.assert().success().get_output().stdout).unwrap();
        let [checked, simulated] =
            [checked, simulated].map(|answer| (answer["step_seconds"].as_f64().unwrap() * 1e9).round());
        assert_eq!(checked, simulated, "{schedule}");
        let ours = losses(&out);
        if expected.is_empty() {
            expected.clone_from(&ours);
        }
        for (ours, expected) in ours.iter().zip(&expected) {
            assert!((ours / expected - 1.0).abs() < 1e-5, "{schedule}: {ours} {expected}");
        }
    }
}

#[test]
fn every_file_says_who_wrote_it() {
    let place = tempfile::tempdir().unwrap();
    let out = place.path().join("out");
    split("traces/unet_small.pt", &out, &TWO_STAGES);
    let by = concat!("model-analyze ", env!("CARGO_PKG_VERSION"));
    let (mut folders, mut n) = (vec![out], 0);
    while let Some(folder) = folders.pop() {
        for path in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let name = path.file_name().unwrap().to_str().unwrap();
            // Formats of others without a place for it; the manifest stands beside them.
            if matches!(name, "device_map.json" | "megatron.txt" | "schedule.csv" | "README.md") {
                continue;
            }
            let text = std::fs::read(&path).unwrap();
            assert!(String::from_utf8_lossy(&text).contains(by), "{name} does not say who wrote it");
            n += 1;
        }
    }
    assert!(n >= 12, "{n} files");
}

/// The folder of micro-batches that the trace does not have is what `plan` says of them; stages are those of the trace, and right.
#[test]
fn micro_batches_have_as_many_samples_as_serve_best() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let asked = ["--devices", "2xt4", "--batch", "12", "--micro-batch-size", "..4", "--tensor-parallel", "2"];
    let asked = [&asked[..], &["--format", "json"]].concat();
    let answer = split("traces/unet_small.pt", &out, &asked);
    let mut plan = command();
    let plan = plan.arg("plan").arg(fixture("traces/unet_small.pt")).args(&asked).assert().success();
    let plan: Value = serde_json::from_slice(&plan.get_output().stdout).unwrap();
    assert_eq!(answer["plan"]["micro_batch_sizes_tried"], plan["micro_batch_sizes_tried"]);
    assert_eq!(answer["plan"]["step_seconds"], plan["step_seconds"]);
    assert_eq!(answer["plan"]["samples"], 12);
    let text = std::fs::read_to_string(out.join("plan.yaml")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("micro_batch_size: ")).unwrap();
    let samples: u64 = line.parse().unwrap();
    assert!(text.contains("constraints:\n  micro_batch_size:\n    most: 4\n"), "{text}");
    let script = std::fs::read_to_string(out.join("train.py")).unwrap();
    assert!(script.contains(&format!("\"micro_batch_size\": {samples}")));
    // Stages, and the exchanges that `verify` holds them against, are those of the trace.
    let (again, other) = (folder.path().join("again"), folder.path().join("other.yaml"));
    std::fs::write(&other, text.replace(&format!("micro_batch_size: {samples}\n"), "")).unwrap();
    for (plan, files) in [(&other, &["stages/stage_0.py"][..]), (&out.join("plan.yaml"), &["train.py"])] {
        let mut emit = command();
        emit.arg("emit").arg(fixture("traces/unet_small.pt")).arg(plan).arg("-o").arg(&again).arg("--force");
        emit.assert().success();
        for file in files.iter().chain(&["stages/stage_0.py"]) {
            let read = |folder: &Path| std::fs::read_to_string(folder.join(file)).unwrap();
            assert_eq!(read(&out), read(&again), "{file}");
        }
        let stages = |folder: &Path| {
            let text = std::fs::read_to_string(folder.join("stages/manifest.json")).unwrap();
            serde_json::from_str::<Value>(&text).unwrap()["stages"].clone()
        };
        assert_eq!(stages(&out), stages(&again));
        assert!(stages(&out)[0]["exchanges"].is_object() || stages(&out)[0]["exchanges"].is_array());
    }
    let page = std::fs::read_to_string(out.join("report.html")).unwrap();
    assert!(!page.contains("no predicted times"));
}
