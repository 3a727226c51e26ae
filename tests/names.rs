//! A model whose every name wants to become code (`fixtures/hostile/names.pt`): in all that is written of it, names stay names.

#![allow(clippy::unwrap_used, clippy::print_stdout, missing_docs)]

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

mod needs;

/// Elements that a picture of ours has; none of them loads, runs or links.
const ELEMENTS: &[&str] = &[
    "circle",
    "clipPath",
    "defs",
    "desc",
    "ellipse",
    "g",
    "line",
    "linearGradient",
    "marker",
    "metadata",
    "path",
    "pattern",
    "polygon",
    "polyline",
    "rect",
    "stop",
    "style",
    "svg",
    "text",
    "title",
    "tspan",
    "use",
];

/// What a written program may import, and that it calls nothing by a name that reaches the system.
const PROGRAM: &str = r#"
import ast, sys
allowed = {"torch", "train_parts", "pathlib", "safetensors", "argparse", "concurrent", "contextlib", "copy", "csv", "difflib", "faulthandler", "fnmatch", "functools", "hashlib", "heapq", "importlib", "inspect", "io", "itertools", "json", "logging", "math",
           "os", "random", "ray", "re", "resource", "shutil", "signal", "socket", "statistics", "subprocess", "sys", "tempfile", "threading", "time", "traceback", "types", "warnings", "weakref", "datetime", "collections", "deepspeed", "zlib"}
for path in sys.argv[1:]:
    text = open(path, encoding="utf-8").read()
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module]
            for name in names:
                assert name.split(".")[0] in allowed, (path, name)
        if isinstance(node, ast.Attribute):
            assert node.attr not in {"system", "popen", "alert"}, (path, node.lineno)
        if isinstance(node, ast.Name):
            assert node.id not in {"eval", "exec", "alert", "owned", "compile"}, (path, node.lineno)
    assert not any("\u202a" <= c <= "\u202e" or "\u2066" <= c <= "\u2069" for c in text), (path, "turns its letters around")
"#;

/// Loads the stages as they lie and compares them with the model.
const STAGES: &str = r#"
import importlib, sys, torch
sys.path.insert(0, "stages")
x = torch.rand(4, 3)
whole = torch.jit.load(sys.argv[1])(x)
script = python = x
for k in range(3):
    script = torch.jit.load(f"stages/stage_{k}.pt")(script)
    python = importlib.import_module(f"stage_{k}").load()(python)
assert torch.equal(whole, script) and torch.equal(whole, python), (whole, script, python)
"#;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn run(folder: &Path, line: &str) -> String {
    let model = root().join("fixtures/hostile/names.pt");
    let words = line.split(' ').map(|word| if word == "MODEL" { model.as_os_str() } else { word.as_ref() });
    let output = Command::new(env!("CARGO_BIN_EXE_model-analyze"))
        .args(words)
        .current_dir(folder)
        .output()
        .expect("the command starts");
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn files(folder: &Path, kind: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap().flatten() {
        match entry.path() {
            path if path.is_dir() => found.extend(files(&path, kind)),
            path if path.extension().is_some_and(|extension| extension == kind) => found.push(path),
            _ => {}
        }
    }
    found.sort();
    found
}

/// Returns an interpreter, the one with torch if there is one.
fn python() -> PathBuf {
    let own = root().join(".venv/bin/python");
    if own.exists() { own } else { "python3".into() }
}

fn everything(folder: &Path) {
    run(folder, "split MODEL --devices 2xt4 --stages 2 --input 4x3 -o split");
    run(folder, "emit MODEL --stages 3 -o emitted --launch torchrun,slurm,kubernetes");
    run(folder, "graph MODEL --input 4x3 --depth 9 -o graph.svg");
    run(folder, "graph MODEL --input 4x3 --color cost --plan split/plan.yaml -o staged.svg");
    run(folder, "graph MODEL --input 4x3 -o graph.dot");
    run(folder, "graph MODEL --input 4x3 -o graph.json");
    run(folder, "graph MODEL --input 4x3 -o graph.adjacency.json");
    run(folder, "report MODEL split/plan.yaml --input 4x3 -o report.html");
    run(folder, "simulate split/plan.yaml --timeline timeline.svg");
    run(folder, "simulate split/plan.yaml --timeline timeline.json");
}

#[test]
fn pictures_are_pictures() {
    let place = tempfile::tempdir().unwrap();
    everything(place.path());
    let pictures = files(place.path(), "svg");
    assert!(pictures.len() >= 5, "{pictures:?}");
    for path in pictures {
        let text = fs::read_to_string(&path).unwrap();
        let picture =
            roxmltree::Document::parse(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        for node in picture.descendants().filter(roxmltree::Node::is_element) {
            let name = node.tag_name().name();
            assert!(ELEMENTS.contains(&name), "{}: <{name}>", path.display());
            for attribute in node.attributes() {
                let (name, value) = (attribute.name(), attribute.value());
                let is_reference = name == "href" && !value.starts_with('#');
                assert!(!name.starts_with("on") && !is_reference, "{}: {name}={value}", path.display());
            }
        }
        let style = picture.descendants().filter(|node| node.has_tag_name("style"));
        assert!(
            style
                .filter_map(|node| node.text())
                .all(|text| !text.contains("url(") && !text.contains("@import"))
        );
    }
    for path in files(place.path(), "json") {
        let text = fs::read_to_string(&path).unwrap();
        let _: serde_json::Value =
            serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }
    for path in files(place.path(), "html") {
        let text = fs::read_to_string(&path).unwrap();
        assert!(!text.contains("<script>alert") && !text.contains("<img src=x"), "{}", path.display());
    }
}

#[test]
fn names_come_back_from_plans_as_they_were() {
    let place = tempfile::tempdir().unwrap();
    run(place.path(), "plan MODEL --devices 2xt4 --stages 2 --input 4x3 -o plan.yaml");
    let report: serde_json::Value =
        serde_json::from_str(&run(place.path(), "inspect MODEL --input 4x3 --format json")).unwrap();
    let blocks =
        report["blocks"].as_array().unwrap().iter().map(|block| block["path"].as_str().unwrap().to_string());
    let of_model: BTreeSet<String> = blocks.filter(|path| !path.is_empty()).collect();
    assert!(of_model.len() >= 36, "{of_model:?}");
    // Read back by the command itself, with the same names: scored as it stands, and cut by them.
    run(place.path(), "plan MODEL --input 4x3 --check plan.yaml");
    run(place.path(), "emit MODEL plan.yaml -o out");
    let answer: serde_json::Value =
        serde_json::from_str(&run(place.path(), "plan MODEL --input 4x3 --check plan.yaml --format json"))
            .unwrap();
    let stages = answer["stages"].as_array().unwrap();
    let named = stages.iter().flat_map(|stage| stage["blocks"].as_array().unwrap());
    for block in named.map(|block| block.as_str().unwrap()) {
        // Operators between calls are named by the call that they stand in.
        let call = block.rsplit_once('/').map_or(block, |(call, _)| call);
        let is_known = call.is_empty() || of_model.contains(call) || of_model.contains(block);
        assert!(is_known, "{block:?} is not a block of the model");
    }
}

#[test]
fn programs_are_the_programs_that_we_meant() {
    let place = tempfile::tempdir().unwrap();
    everything(place.path());
    let programs = files(place.path(), "py");
    assert!(programs.len() >= 10, "{programs:?}");
    let output =
        Command::new(python()).args(["-c", PROGRAM]).args(&programs).output().expect("python starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for script in
        [files(place.path(), "sh"), files(place.path(), "sbatch"), files(place.path(), "env")].concat()
    {
        let output = Command::new("bash").arg("-n").arg(&script).output().expect("bash starts");
        assert!(output.status.success(), "{}: {}", script.display(), String::from_utf8_lossy(&output.stderr));
        let text = fs::read_to_string(&script).unwrap();
        assert!(!text.contains("owned"), "{}: a name of the model is in a shell script", script.display());
    }
    let owned = Command::new("find").arg(place.path()).args(["-name", "*owned*"]).output().unwrap();
    assert!(owned.stdout.is_empty(), "{}", String::from_utf8_lossy(&owned.stdout));
}

#[test]
fn stages_of_such_a_model_run() {
    let Some(python) = needs::python() else { return };
    let place = tempfile::tempdir().unwrap();
    run(place.path(), "emit MODEL --stages 3 -o emitted");
    let output = Command::new(python)
        .args(["-c", STAGES])
        .arg(root().join("fixtures/hostile/names.pt"))
        .current_dir(place.path().join("emitted"))
        .output()
        .expect("python starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(!place.path().join("emitted/owned").exists());
}

#[test]
fn tables_keep_their_lines() {
    let place = tempfile::tempdir().unwrap();
    let table = run(place.path(), "inspect MODEL --input 4x3 --depth 1");
    let rows = table.lines().take_while(|line| !line.is_empty()).count();
    assert_eq!(rows, 1 + 1 + 36, "{table}");
    assert!(table.lines().all(|line| line.chars().count() < 160), "{table}");
}
