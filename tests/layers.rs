//! Holds the arrows of ARCHITECTURE.md: who may depend on whom, and who alone may know what.

use std::{collections::BTreeMap, process::Command};

mod members;

use members::members;

/// Every crate of the workspace with the members it may use.
const ARROWS: &[(&str, &[&str])] = &[
    ("model-analyze-operators", &[]),
    ("model-analyze-schema", &[]),
    ("model-analyze-tracer", &["operators"]),
    ("model-analyze-graph", &["tracer", "schema", "operators"]),
    ("model-analyze-simulator", &["schema"]),
    ("model-analyze-cost-model", &["graph", "schema", "operators"]),
    ("model-analyze-codegen", &["graph", "tracer", "schema", "operators"]),
    ("model-analyze-viz", &["graph", "schema", "operators"]),
    ("model-analyze-runtime", &["simulator", "schema", "operators"]),
    ("model-analyze-libtorch", &["runtime", "simulator", "schema", "operators"]),
    ("model-analyze-partitioner", &["graph", "simulator", "schema"]),
    ("model-analyze-peers", &["partitioner", "schema"]),
    (
        "model-analyze",
        &[
            "tracer",
            "graph",
            "cost-model",
            "simulator",
            "partitioner",
            "peers",
            "codegen",
            "viz",
            "runtime",
            "libtorch",
            "schema",
            "operators",
        ],
    ),
];

/// Outside crates that only one of ours may use directly.
const ALONE: &[(&str, &str)] = &[
    ("tch", "model-analyze-libtorch"),
    ("linfa", "model-analyze-cost-model"),
    ("linfa-linear", "model-analyze-cost-model"),
    ("nom", "model-analyze-tracer"),
    ("plotters", "model-analyze-viz"),
    ("graphviz-rust", "model-analyze-viz"),
    ("serde_yaml", "model-analyze-schema"),
    ("schemars", "model-analyze-schema"),
    ("clap", "model-analyze"),
    ("memmap2", "model-analyze"),
];

/// Normal dependencies of every workspace member, by package name.
fn dependencies() -> BTreeMap<String, Vec<String>> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--format-version", "1", "--offline"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo runs");
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).expect("cargo prints JSON");
    let text = |value: &serde_json::Value| value.as_str().expect("a name").to_string();
    let packages = metadata["packages"].as_array().expect("packages");
    packages
        .iter()
        .map(|package| {
            let all = package["dependencies"].as_array().expect("dependencies").iter();
            let normal = all.filter(|dependency| dependency["kind"].is_null());
            (text(&package["name"]), normal.map(|dependency| text(&dependency["name"])).collect())
        })
        .collect()
}

#[test]
fn crates_use_only_the_layers_below() {
    let dependencies = dependencies();
    assert_eq!(dependencies.len(), ARROWS.len(), "a crate is missing from ARROWS");
    for (package, allowed) in ARROWS {
        for used in dependencies[*package].iter().filter_map(|name| name.strip_prefix("model-analyze-")) {
            assert!(allowed.contains(&used), "{package} must not use {used}");
        }
    }
}

#[test]
fn what_one_crate_knows_stays_there() {
    for (package, used) in dependencies() {
        for (library, owner) in ALONE {
            let uses = used.iter().any(|name| name == library);
            assert!(!uses || package == *owner, "only {owner} may use {library}, not {package}");
        }
    }
}

/// `make lint` looks at tests and programs at once, and tests may be long.
#[test]
fn each_crate_limits_its_functions() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let crates = members().into_iter().map(|member| root.join(member).join("src/lib.rs"));
    let own = ["src/lib.rs", "src/bin/model-analyze-torch/main.rs"].map(|file| root.join(file));
    for file in crates.chain(own) {
        let text = std::fs::read_to_string(&file).expect("source is text");
        let limits = "cfg_attr(not(test), warn(clippy::too_many_lines, clippy::excessive_nesting))";
        assert!(text.contains(limits), "{} has no `#![{limits}]`", file.display());
    }
}

#[test]
fn only_schema_is_serialisable() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let others = members().into_iter().filter(|member| member != "schema");
    let mut folders: Vec<_> = others.chain(["src".into()]).map(|member| root.join(member)).collect();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder of ours").flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = std::fs::read_to_string(&path).expect("source is text");
                let derives = text.lines().any(|line| line.contains("derive(") && line.contains("Serialize"));
                assert!(!derives, "{} derives Serialize; that belongs in schema", path.display());
            }
        }
    }
}

/// `cost-model/src/host.rs` is the only way to what processors alone need: its parts are private, nobody else looks into a `Host`, and
/// the words for such times stand there alone.
#[test]
fn what_only_processors_need_has_one_door() {
    let source = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("cost-model/src");
    let (mut folders, mut files) = (vec![source.clone()], Vec::new());
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder of ours").flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else {
                files.push(path);
            }
        }
    }
    let mut n_inside = 0;
    for path in files.iter().filter(|path| path.extension().is_some_and(|extension| extension == "rs")) {
        let text = std::fs::read_to_string(path).expect("source is text");
        let code: Vec<&str> = text.lines().map(|line| line.split("//").next().unwrap_or_default()).collect();
        let code = code.join("\n");
        if path.starts_with(source.join("host")) {
            n_inside += 1;
        } else if path.ends_with("cost-model/src/host.rs") {
            assert!(
                !code.contains("pub mod") && !code.contains("pub(crate) mod"),
                "a part of `host` is open"
            );
        } else {
            for word in [
                "machine.host",
                "host.lanes",
                "host.mapped",
                "overhead.cold",
                "host::cold_caches",
                "host::times",
                "host::terms",
                "host::registers",
            ] {
                assert!(!code.contains(word), "{} says `{word}`: ask cost-model/src/host.rs", path.display());
            }
        }
    }
    assert!(n_inside >= 4, "{n_inside} parts of `host` are not all");
}
