//! What comes in from outside, and what is `unsafe`: each with a reason that a person can read.

#![allow(clippy::unwrap_used, missing_docs)]

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

mod members;

use members::members;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn text(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Names under `[workspace.dependencies]` that are not ours.
fn dependencies() -> BTreeSet<String> {
    let manifest = text("Cargo.toml");
    let (_, table) = manifest.split_once("[workspace.dependencies]\n").unwrap();
    let (table, _) = table.split_once("\n[").unwrap();
    let entries = table.lines().filter_map(|line| line.split_once(" = "));
    entries.filter(|(_, value)| !value.contains("path =")).map(|(name, _)| name.to_string()).collect()
}

#[test]
fn each_dependency_has_its_reason() {
    let page = text("ARCHITECTURE.md");
    let (_, table) = page.split_once("| crate | job |").expect("the table of outside crates");
    let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
    let mut listed = BTreeSet::new();
    for row in rows {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        assert!(cells.len() == 2 && cells[1].len() > 8, "no reason in `{row}`");
        listed.extend(cells[0].split(", ").map(str::to_string));
    }
    let used = dependencies();
    let missing: Vec<_> = used.difference(&listed).collect();
    let gone: Vec<_> = listed.difference(&used).collect();
    assert!(missing.is_empty(), "ARCHITECTURE.md does not say why {missing:?} are here");
    assert!(gone.is_empty(), "ARCHITECTURE.md lists {gone:?}, which Cargo.toml lacks");
}

#[test]
fn dependencies_come_from_one_registry() {
    let lock = text("Cargo.lock");
    for source in lock.lines().filter(|line| line.starts_with("source = ")) {
        assert_eq!(source, "source = \"registry+https://github.com/rust-lang/crates.io-index\"");
    }
    assert!(lock.matches("checksum = ").count() > 100);
}

#[test]
fn the_container_has_the_libraries_that_we_test_with() {
    let container = text("Containerfile");
    let pinned = text("requirements.txt");
    for package in ["torch", "numpy", "safetensors"] {
        let line = pinned.lines().find(|line| line.starts_with(&format!("{package}=="))).unwrap();
        assert!(container.contains(&format!(" {line}")), "Containerfile does not install {line}");
    }
    let version = pinned.lines().find_map(|line| line.strip_prefix("torch==")).unwrap();
    assert!(text("build.rs").contains(&format!("const TORCH: &str = \"{version}\";")));
}

/// Reads `1.88` or `1.88.0`.
fn version(text: &str) -> [u32; 2] {
    let mut parts = text.split('.').map(|part| part.parse().unwrap());
    [parts.next().unwrap(), parts.next().unwrap()]
}

#[test]
fn every_dependency_builds_with_the_oldest_rust_that_we_promise() {
    let said = |text: &str, key: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(key)).expect("the key is there");
        version(line.trim_matches(|letter| letter == ' ' || letter == '=' || letter == '"'))
    };
    let promised = said(&text("Cargo.toml"), "rust-version");
    let containerfile = text("Containerfile");
    let image = containerfile.split("docker.io/library/rust:").nth(1).expect("an image with Rust");
    let image = version(image.split('-').next().unwrap());
    assert!(promised <= image, "Containerfile builds with an older Rust than Cargo.toml promises");
    // Only packages of this system are sure to be downloaded.
    let rustc = std::process::Command::new("rustc").arg("-vV").output().unwrap();
    let rustc = String::from_utf8(rustc.stdout).unwrap();
    let host = rustc.lines().find_map(|line| line.strip_prefix("host: ")).unwrap();
    let output = std::process::Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--locked", "--offline", "--filter-platform", host])
        .current_dir(root())
        .output()
        .unwrap();
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    assert!(packages.len() > 100);
    for package in packages {
        let Some(needed) = package["rust_version"].as_str() else { continue };
        assert!(version(needed) <= promised, "{} needs Rust {needed}", package["name"]);
    }
}

#[test]
fn the_forge_calls_what_people_call() {
    let workflow = text(".github/workflows/ci.yml");
    for script in [".ci/run", ".ci/minimum"] {
        assert!(workflow.contains(&format!("run: {script}\n")), "no job runs {script}");
        assert!(root().join(script).exists(), "{script} is gone");
    }
}

#[test]
fn a_release_is_tried_on_each_platform() {
    let workflow = text(".github/workflows/release.yml");
    assert_eq!(
        workflow.matches(".ci/wheel").count(),
        3,
        "two jobs build wheels, and the first lines say by what"
    );
    let targets: Vec<&str> =
        workflow.split("target: ").skip(1).filter_map(|rest| rest.split(',').next()).collect();
    assert_eq!(
        targets,
        [
            "x86_64-unknown-linux-gnu",
            "aarch64-unknown-linux-gnu",
            "aarch64-apple-darwin",
            "x86_64-apple-darwin",
            "x86_64-pc-windows-msvc"
        ]
    );
    // README's first command is what tries them.
    let readme = text("README.md");
    let first = readme.split("cargo run --release -- ").nth(1).and_then(|rest| rest.lines().next()).unwrap();
    let tried = text(".ci/wheel");
    assert!(tried.contains(&first.replace(" -o out", " -o \"$place/out\"")), "{first}");
    // What `cargo binstall` looks for is what is packed.
    assert!(
        text("Cargo.toml").contains("{ name }-{ target }.tgz")
            && text(".ci/pack").contains("\"target/packed/$name.tgz\"")
    );
}

#[test]
fn entries_of_the_changelog_are_short() {
    for line in text("CHANGELOG.md").lines() {
        if let Some(kind) = line.strip_prefix("### ") {
            assert!(["Breaking", "New", "Fixed"].contains(&kind), "`{kind}` is not a kind of change");
        }
        let length = line.chars().count();
        assert!(!line.starts_with('-') || length <= 240, "more than two lines ({length} letters): {line}");
    }
}

/// Files of ours that may say `unsafe`, and how often they do.
const UNSAFE: &[(&str, usize)] = &[
    ("src/files.rs", 1),
    ("libtorch/src/card.rs", 6),
    ("libtorch/src/gpu.rs", 1),
    ("libtorch/src/memory.rs", 2),
    ("libtorch/src/precision.rs", 5),
    ("tracer/examples/read.rs", 1),
];

#[test]
fn each_unsafe_block_states_why_it_is_sound() {
    let mut files = Vec::new();
    for folder in members().into_iter().chain(["src".into()]) {
        rust_files(&root().join(folder), &mut files);
    }
    assert!(files.len() > 200, "{} files are not all", files.len());
    let mut found = Vec::new();
    for path in files {
        let content = fs::read_to_string(&path).unwrap();
        let lines: Vec<&str> = content.lines().collect();
        let opens = |line: &&str| {
            line.contains("unsafe {") || line.contains("unsafe extern") || line.contains("unsafe fn")
        };
        let places: Vec<usize> = (0..lines.len()).filter(|at| opens(&lines[*at])).collect();
        for at in &places {
            let above = lines[at.saturating_sub(8)..*at].join("\n");
            assert!(above.contains("SAFETY: "), "{}:{} has no invariant", path.display(), at + 1);
        }
        if !places.is_empty() {
            let name = path.strip_prefix(root()).unwrap().to_string_lossy().into_owned();
            found.push((name, places.len()));
        }
    }
    found.sort();
    let mut expected: Vec<(String, usize)> =
        UNSAFE.iter().map(|(name, n)| ((*name).to_string(), *n)).collect();
    expected.sort();
    assert_eq!(found, expected);
}

fn rust_files(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() && path.file_name().is_some_and(|name| name != "target") {
            rust_files(&path, files);
        } else if path.extension().is_some_and(|kind| kind == "rs") {
            files.push(path);
        }
    }
}
