//! The command as a whole: every subcommand's help, answers, failures and manners.
#![allow(clippy::unwrap_used)]

use std::{
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use serde_json::Value;
use validate::validate;

mod validate;

fn command() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_model-analyze"));
    // What a user has set must not change what the tests see.
    for name in ["NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "MODEL_ANALYZE_PYTHON"] {
        command.env_remove(name);
    }
    command
}

fn run(arguments: &[&str]) -> Output {
    command().args(arguments).output().unwrap()
}

/// Runs what must succeed quietly; returns what it prints.
#[track_caller]
fn text(arguments: &[&str]) -> String {
    let output = run(arguments);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {error}");
    assert_eq!(error, "", "{arguments:?} is not quiet");
    String::from_utf8(output.stdout).unwrap()
}

fn fixture(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(name).display().to_string()
}

/// A process with libtorch takes a quarter of a second to start.
#[cfg(all(feature = "torch", target_os = "linux"))]
#[test]
fn only_the_program_that_computes_is_linked_to_libtorch() {
    let is_linked = |program: &str| {
        let bytes = std::fs::read(program).unwrap();
        bytes.windows(16).any(|bytes| bytes == b"libtorch_cpu.so\0")
    };
    assert!(is_linked(env!("CARGO_BIN_EXE_model-analyze-torch")));
    assert!(!is_linked(env!("CARGO_BIN_EXE_model-analyze")));
}

/// Names of the subcommands, as the help lists them.
fn subcommands() -> Vec<String> {
    let help = text(&["--help"]);
    let list = help.split_once("Commands:\n").unwrap().1.split("\n\n").next().unwrap();
    let names = list.lines().filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    let names: Vec<String> = names.map(|line| line.split_whitespace().next().unwrap().to_string()).collect();
    assert!(names.len() >= 15, "{names:?}");
    names.into_iter().filter(|name| name != "help").collect()
}

/// Splits a line as a shell does, up to what the shell keeps for itself.
fn words(line: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut quote = None;
    for c in line.chars() {
        match (c, quote) {
            ('\'' | '"', None) => quote = Some(c),
            (c, Some(open)) if c == open => quote = None,
            ('>' | '|', None) => break,
            (' ', None) => words.push(String::new()),
            (c, _) => words.last_mut().unwrap().push(c),
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

#[test]
fn every_subcommand_has_examples_that_can_be_typed() {
    for name in subcommands() {
        let help = text(&[&name, "--help"]);
        let examples: Vec<Vec<String>> = help
            .lines()
            .filter_map(|line| line.strip_prefix("  model-analyze "))
            .map(|line| words(line.split("        ").next().unwrap()))
            .collect();
        assert!(!examples.is_empty(), "{name} has no example");
        for example in examples {
            assert_eq!(example[0], name, "{example:?}");
            // Unknown options and wrong values come before the help that ends the line.
            let output = command().args(&example).arg("--help").output().unwrap();
            assert!(output.status.success(), "{example:?}: {}", String::from_utf8_lossy(&output.stderr));
        }
    }
}

/// Runs with `--format json` and holds the answer against its schema.
#[track_caller]
fn answer(name: &str, arguments: &[&str]) -> Value {
    let value: Value = serde_json::from_str(&text(&[arguments, &["--format", "json"]].concat())).unwrap();
    assert!(value["schema_version"].is_u64(), "{name} has no version");
    validate(name, &value);
    value
}

fn yaml_as_json(path: &Path) -> Value {
    schema::from_yaml(&std::fs::read_to_string(path).unwrap()).unwrap()
}

#[test]
fn answers_and_files_follow_their_schemas() {
    let folder = tempfile::tempdir().unwrap();
    let place = |name: &str| folder.path().join(name).display().to_string();
    let unet = fixture("traces/unet_small.pt");
    let (out, other) = (place("out"), place("other.yaml"));
    answer(
        "answer-split",
        &["split", &unet, "--devices", "2xt4", "--stages", "2", "--strategy", "1f1b", "-o", &out],
    );
    let plan = format!("{out}/plan.yaml");
    validate("plan", &yaml_as_json(Path::new(&plan)));
    let manifest = std::fs::read_to_string(format!("{out}/stages/manifest.json")).unwrap();
    validate("manifest", &serde_json::from_str(&manifest).unwrap());

    answer("answer-plan", &["plan", &unet, "--devices", "4xt4", "--strategy", "even-layers", "-o", &other]);
    validate("plan", &yaml_as_json(Path::new(&other)));
    answer("answer-plan", &["plan", &unet, "--devices", "2xt4", "--check", &plan]);
    let profile = fixture("profiles/small_vgg.txt");
    let machines = ["--machines", "4", "--bandwidth", "1e9"];
    answer("answer-plan", &[&["plan", &profile, "--compat", "pipedream"], &machines[..]].concat());
    answer("answer-compare", &["compare", &unet, "--devices", "2xt4", "--only", "data-*", "--only", "*f*"]);
    answer("answer-diff", &["diff", &other, &plan]);
    answer("answer-model-diff", &["diff", &unet, &fixture("traces/cnn_basic.pt")]);
    answer("answer-inspect", &["inspect", &unet]);
    answer("answer-simulate", &["simulate", &plan]);
    let csv = format!("{out}/schedule.csv");
    answer("answer-order", &["simulate", "--csv", &csv]);
    answer("answer-lint", &["simulate", "--csv", &csv, "--lint"]);
    answer("answer-emit", &["emit", &unet, &plan, "-o", &place("emitted")]);

    let timeline = place("timeline.json");
    answer("answer-run", &["run", &out, "--backend", "null", "--steps", "2", "--timeline", &timeline]);
    validate("timeline", &serde_json::from_slice(&std::fs::read(&timeline).unwrap()).unwrap());

    let costs = place("cost-model.yaml");
    // Rows with their times, and without what says how steady the machine was: nothing to remark on.
    let profile = std::fs::read_to_string(fixture("profiles/cpu-epyc-1-thread.csv")).unwrap();
    let columns = profile.lines().find(|line| !line.starts_with('#')).unwrap();
    let seconds = columns.split(',').position(|name| name == "seconds").unwrap();
    let is_plain = |line: &&str| match line.strip_prefix('#') {
        Some(remark) => !remark.starts_with(" pace"),
        None => line.split(',').nth(seconds).is_some_and(|cell| !cell.is_empty()),
    };
    let measured = place("profile.csv");
    let lines = profile.lines().filter(is_plain).map(|line| format!("{line}\n"));
    std::fs::write(&measured, lines.collect::<String>()).unwrap();
    let devices = place("devices.yaml");
    let cpu = "kind: devices\nversion: 1\ndevices:\n  AMD EPYC family 25 model 17 (1 thread):\n    memory: 8000000000\n    memory_bandwidth: 1.0e10\n    peak: {float32: 5.0e10}\n    sources: {peak: assumed}\n";
    std::fs::write(&devices, cpu).unwrap();
    answer("answer-fit", &["fit", &measured, "--devices", &devices, "-o", &costs]);
    answer("answer-links", &["fit", &fixture("profiles/nccl_tests_a100_8.txt")]);
    validate("cost-model", &yaml_as_json(Path::new(&costs)));
    let rows = std::fs::read_to_string(&measured).unwrap();
    let header = rows.lines().find(|line| !line.starts_with('#')).unwrap();
    validate("profile-header", &header.split(',').collect());
    for cluster in std::fs::read_dir(fixture("clusters")).unwrap() {
        validate("cluster", &yaml_as_json(&cluster.unwrap().path()));
    }
    for map in std::fs::read_dir(fixture("maps")).unwrap() {
        let path = map.unwrap().path();
        if path.extension().is_some_and(|ending| ending == "yaml") {
            validate("profile-map", &yaml_as_json(&path));
        }
    }
    let graph = place("unet.adjacency.json");
    text(&["graph", &unet, "-o", &graph]);
    validate("graph", &serde_json::from_slice(&std::fs::read(&graph).unwrap()).unwrap());
    let page = text(&["report", &unet, "-o", "-"]);
    let data = page.split_once("<script id=\"data\" type=\"application/json\">").unwrap().1;
    validate("report", &serde_json::from_str(data.split_once('<').unwrap().0).unwrap());
}

#[test]
fn schemas_are_printed() {
    let list = text(&["schema"]);
    for line in list.lines() {
        let name = line.split_whitespace().next().unwrap();
        let printed: Value = serde_json::from_str(&text(&["schema", name])).unwrap();
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("schema/json/{name}.json"));
        assert_eq!(printed, serde_json::from_slice::<Value>(&std::fs::read(path).unwrap()).unwrap());
        assert!(jsonschema::meta::is_valid(&printed), "{name} is not a JSON Schema");
    }
    let all: Value = serde_json::from_str(&text(&["schema", "--format", "json"])).unwrap();
    assert_eq!(all["schemas"].as_object().unwrap().len(), list.lines().count());
    fails(&["schema", "plam"], 2, "did you mean `plan`?");
    fails(&["schema", "nothing-like-it"], 2, "`model-analyze schema` lists them");
}

/// Runs what must fail: with its exit code, its words on standard error, and nothing on standard output.
#[track_caller]
fn fails(arguments: &[&str], code: i32, expected: &str) {
    let output = run(arguments);
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {error}");
    assert!(error.contains(expected), "{arguments:?}: {error}");
    assert!(!error.contains('\u{1b}'), "colours where nobody sees them: {error:?}");
    assert!(output.stdout.is_empty(), "{arguments:?} prints and fails");
}

#[test]
fn wrong_words_are_answered_with_the_right_ones() {
    fails(&["spli"], 2, "'split'");
    fails(&["simulate", "plan.yaml", "--schedul", "1f1b"], 2, "a similar argument exists: '--schedule'");
    fails(&["inspect", "model.pt", "--format", "jsn"], 2, "a similar value exists: 'json'");
    fails(&["simulate", &fixture("plans/unet-4.yaml"), "--schedule", "gpipw"], 2, "did you mean `gpipe`?");
    fails(&["man", "splt"], 2, "did you mean `split`?");
    let unet = fixture("traces/unet_small.pt");
    fails(&["plan", &unet, "--devices", "2xt5"], 2, "did you mean T4");
    fails(&["plan", &unet, "--devices", "2xt4", "--strategy", "pipedram"], 2, "pipedream");
}

#[test]
fn exit_codes_are_those_of_the_manual() {
    let unet = fixture("traces/unet_small.pt");
    // 1: a right question whose answer is no.
    let folder = tempfile::tempdir().unwrap();
    let cluster = folder.path().join("cluster.yaml");
    let tiny = "kind: cluster\nversion: 1\ntypes:\n  tiny: {memory: 1000, memory_bandwidth: 1.0e9, peak: {float32: 1.0e9}}\n\
                devices: [{type: tiny, count: 2}]\nlevels: [{name: pcie, bandwidth: 1.0e9, latency: 1.0e-6}]\n";
    std::fs::write(&cluster, tiny).unwrap();
    let cluster = cluster.display().to_string();
    fails(&["plan", &unet, "--cluster", &cluster], 1, "hint: ");
    fails(&["split", &unet, "--cluster", &cluster, "--dry-run"], 1, "hint: ");
    // 2: wrong input or usage, one for each subcommand that reads something.
    for name in ["inspect", "graph", "report"] {
        fails(&[name, "/nowhere/model.pt"], 2, "/nowhere/model.pt");
    }
    fails(&["split", "/nowhere/model.pt", "--devices", "2xt4", "--dry-run"], 2, "/nowhere/model.pt");
    fails(&["plan", "/nowhere/model.pt", "--devices", "2xt4"], 2, "/nowhere/model.pt");
    fails(&["simulate", "/nowhere/plan.yaml"], 2, "/nowhere/plan.yaml");
    fails(&["diff", "/nowhere/a.yaml", "/nowhere/b.yaml"], 2, "/nowhere/a.yaml");
    fails(&["emit", "/nowhere/model.pt", "--stages", "2", "-o", "/nowhere/out"], 2, "/nowhere/model.pt");
    fails(&["fit", "/nowhere/profile.csv", "-o", "/nowhere/c.yaml"], 2, "/nowhere");
    fails(&["run", "/nowhere"], 2, "/nowhere");
    fails(&["verify", "/nowhere"], 2, "");
    fails(&["trace", "nowhere:model", "--input", "axb", "-o", "x.pt"], 2, "axb");
    fails(&["completions", "dos"], 2, "dos");
}

#[test]
fn colours_are_for_those_who_see_them() {
    let wrong = ["simulate", "/nowhere/plan.yaml"];
    let error = |name: &str, value: &str| {
        let output = command().args(wrong).env(name, value).output().unwrap();
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(error("CLICOLOR_FORCE", "1").contains("\u{1b}["));
    assert!(!error("NO_COLOR", "1").contains('\u{1b}'));
    assert!(!error("TERM", "dumb").contains('\u{1b}'));
}

/// Starts a command whose reader leaves at once.
#[test]
fn a_reader_may_leave() {
    let unet = fixture("traces/unet_small.pt");
    let plan = fixture("plans/unet-4.yaml");
    for arguments in [
        &["inspect", &unet, "--format", "json"][..],
        &["graph", &unet],
        &["simulate", &plan],
        &["diff", &plan, &plan],
        &["report", &unet, "-o", "-"],
        &["split", &unet, "--devices", "2xt4", "--dry-run"],
        &["schema", "plan"],
        &["completions", "bash"],
        &["man"],
        &["--help"],
    ] {
        let mut child =
            command().args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{arguments:?}");
        assert!(output.status.success(), "{arguments:?}: {:?}", output.status);
    }
}

#[test]
fn completions_and_manuals_know_every_subcommand() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = text(&["completions", shell]);
        for name in subcommands() {
            assert!(script.contains(&name), "{shell} does not know {name}");
        }
    }
    assert!(text(&["man"]).contains(".TH model-analyze 1"));
    for name in subcommands() {
        let page = text(&["man", &name]);
        assert!(page.contains(&format!("model-analyze-{name}")) && page.contains("Example"), "{name}");
    }
}

#[test]
fn two_models_are_compared() {
    let folder = tempfile::tempdir().unwrap();
    let place = |name: &str| folder.path().join(name).display().to_string();
    let cnn = fixture("ir/cnn_basic.inlined.txt");
    let same = text(&["diff", &cnn, &cnn]);
    assert!(same.contains("every operator is in both"), "{same}");
    // One operator is another: nothing else differs.
    let source = std::fs::read_to_string(&cnn).unwrap();
    let place_of = source.find("aten::relu").unwrap();
    let mut other = source;
    other.replace_range(place_of..place_of + "aten::relu".len(), "aten::sigmoid");
    let sigmoid = place("sigmoid.txt");
    std::fs::write(&sigmoid, &other).unwrap();
    let picture = place("models.svg");
    let differ = answer("answer-model-diff", &["diff", &cnn, &sigmoid, "-o", &picture]);
    let inner = ["operators", "different"].map(|of| (&differ["before"][of], &differ["after"][of]));
    assert!(inner[0].0 == inner[0].1 && inner[0].0.as_u64() > Some(8), "{differ:#}");
    assert_eq!(inner[1], (&serde_json::json!(1), &serde_json::json!(1)));
    assert_eq!(differ["blocks"], serde_json::json!([{"block": "", "before": 1, "after": 1}]));
    // Both graphs stand in the picture, each with the one box coloured.
    let svg = std::fs::read_to_string(&picture).unwrap();
    let document = roxmltree::Document::parse(&svg).unwrap();
    assert_eq!(document.descendants().filter(|node| node.has_tag_name("svg")).count(), 3);
    assert!(svg.contains("sigmoid") && svg.matches("1 differ").count() >= 2, "{svg}");
    // A plan and a model are not two of a kind.
    fails(&["diff", &cnn, &fixture("plans/unet-4.yaml")], 2, "is a model and");
    fails(&["diff", &cnn, &cnn, "-o", "x.gif"], 2, "end it with .svg, .png or .pdf");
    let plan = fixture("plans/unet-4.yaml");
    fails(&["diff", &plan, &plan, "--depth", "1"], 2, "--input and --depth are for models");
    let steps = place("steps.svg");
    text(&["diff", &plan, &plan, "-o", &steps]);
    let svg = std::fs::read_to_string(&steps).unwrap();
    assert_eq!(
        roxmltree::Document::parse(&svg)
            .unwrap()
            .descendants()
            .filter(|node| node.has_tag_name("svg"))
            .count(),
        3
    );
}

#[test]
fn two_plans_are_compared() {
    let folder = tempfile::tempdir().unwrap();
    let place = |name: &str| -> PathBuf { folder.path().join(name) };
    let unet = fixture("traces/unet_small.pt");
    let plan = |strategy: &str, name: &str| {
        let path = place(name).display().to_string();
        let stages = ["--stages", "2", "--strategy", strategy, "-o", &path];
        text(&[&["plan", &unet, "--devices", "2xt4"], &stages[..]].concat());
        path
    };
    let (ours, by_hand) = (plan("1f1b", "ours.yaml"), plan("even-parameters", "hand.yaml"));
    let same = text(&["diff", &ours, &ours]);
    assert!(same.contains("no block moves"), "{same}");
    // A change stands behind the second column.
    let columns = |line: &str| line.split("  ").filter(|cell| !cell.trim().is_empty()).count();
    let rows = same.lines().skip(1).take_while(|line| !line.is_empty());
    assert!(rows.clone().count() > 5 && rows.into_iter().all(|line| columns(line) == 3), "{same}");
    let answer = answer("answer-diff", &["diff", &by_hand, &ours]);
    assert!(answer["time_change"].as_f64().unwrap() < 0.0, "{answer:#}");
    let moved = answer["moved"].as_array().unwrap();
    assert!(!moved.is_empty() && moved.iter().all(|one| one["before"] != one["after"]));
    // Every block that is said to move is in those stages of the files.
    for one in moved {
        for (file, stage) in [(&by_hand, &one["before"]), (&ours, &one["after"])] {
            let plan = yaml_as_json(Path::new(file));
            let blocks = plan["stages"][stage.as_u64().unwrap() as usize]["blocks"].as_array().unwrap();
            // A plan may name what holds the block.
            let moved = one["block"].as_str().unwrap();
            let holds = |block: &str| {
                moved.strip_prefix(block).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '/']))
            };
            let is_there = blocks.iter().any(|block| holds(block.as_str().unwrap()));
            assert!(is_there, "{moved} in {blocks:?}");
        }
    }
    // Another trace and another cluster are said to be that.
    let other = text(&["diff", &ours, &fixture("plans/unet-4.yaml")]);
    assert!(other.contains("for different traces, `unet_small` and `unet`"), "{other}");
    assert!(other.contains("for different clusters"), "{other}");
}
