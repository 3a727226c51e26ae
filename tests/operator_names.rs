//! How many names of torch's operators still stand in string literals outside the table of operators. The numbers may only fall.

#![allow(clippy::unwrap_used, missing_docs)]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

/// Production files with eight names or more outside `operators`, and how many different ones each has.
///
/// An upper bound: an argument called `dim`, a kind in a profile and a word of a message count, too.
const LEFT: &[(&str, usize)] = &[
    ("codegen/src/called.rs", 13),
    ("codegen/src/names.rs", 35),
    ("codegen/src/nodes.rs", 56),
    ("codegen/src/python/call.rs", 65),
    ("codegen/src/sizes.rs", 13),
    ("codegen/src/torchscript/code.rs", 26),
    ("codegen/src/written/source.rs", 44),
    ("cost-model/src/predict.rs", 11),
    ("cost-model/src/shape.rs", 24),
    ("graph/src/build.rs", 17),
    ("graph/src/infer/convolution.rs", 8),
    ("graph/src/infer/copy.rs", 47),
    ("graph/src/infer/elementwise.rs", 26),
    ("graph/src/infer/linalg.rs", 10),
    ("graph/src/infer/matmul.rs", 9),
    ("graph/src/infer/number.rs", 72),
    ("graph/src/infer/reduce.rs", 21),
    ("graph/src/infer/view.rs", 34),
    ("graph/src/sizes.rs", 20),
    ("runtime/src/profile/kind.rs", 21),
    ("schema/src/profile_csv/work_size.rs", 18),
    ("tracer/src/archive/pickle.rs", 9),
    ("tracer/src/archive/recorded.rs", 8),
    ("tracer/src/flatten/call.rs", 11),
    ("tracer/src/flatten/expression.rs", 12),
    ("tracer/src/flatten/opaque.rs", 13),
    ("tracer/src/flatten/operators.rs", 13),
    ("tracer/src/flatten/types.rs", 10),
    ("tracer/src/ir/control.rs", 11),
    ("tracer/src/known.rs", 28),
    ("viz/src/from_graph.rs", 8),
];

/// Fewer names than this are chance: a `size`, a `mean`.
const FEW: usize = 8;

#[test]
fn names_of_operators_stand_in_the_table_alone() {
    let found = found();
    let allowed: BTreeMap<&str, usize> = LEFT.iter().copied().collect();
    let mut wrong = Vec::new();
    for (file, names) in &found {
        match allowed.get(file.as_str()) {
            Some(n) if names.len() < *n => {
                wrong.push(format!("{file}: {} now, write that down", names.len()));
            }
            Some(n) if names.len() == *n => {}
            None if names.len() < FEW => {}
            _ => wrong.push(format!("{file}: {} names: {}", names.len(), joined(names))),
        }
    }
    let gone = allowed.keys().filter(|file| found.get(**file).is_none_or(|names| names.len() < FEW));
    wrong.extend(gone.map(|file| format!("{file}: fewer than {FEW}, strike it off")));
    assert!(wrong.is_empty(), "ask a row of `operators` instead:\n{}", wrong.join("\n"));
}

/// The names in each production file.
fn found() -> BTreeMap<String, BTreeSet<String>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let list = fs::read_to_string(root.join("operators/src/names.txt")).unwrap();
    let names: BTreeSet<&str> = list
        .lines()
        .filter_map(|line| line.split(' ').next()?.split_once("::"))
        .map(|(_, name)| name)
        .collect();
    assert!(names.len() > 1500, "{} names are not all", names.len());
    let mut files = Vec::new();
    for member in [
        "src",
        "schema",
        "tracer",
        "graph",
        "cost-model",
        "simulator",
        "partitioner",
        "peers",
        "codegen",
        "viz",
        "runtime",
    ] {
        let folder = if member == "src" { root.join(member) } else { root.join(member).join("src") };
        rust_files(&folder, &mut files);
    }
    assert!(files.len() > 200, "{} files are not all", files.len());
    let of_file = |path: &PathBuf| {
        let text = fs::read_to_string(path).unwrap();
        let production = text.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
        let words: BTreeSet<String> = literals(production)
            .iter()
            .flat_map(|literal| words(literal))
            .filter(|word| names.contains(word.as_str()))
            .collect();
        (path.strip_prefix(root).unwrap().to_string_lossy().into_owned(), words)
    };
    files.iter().map(of_file).filter(|(_, words)| !words.is_empty()).collect()
}

/// String literals of a Rust file, without comments.
fn literals(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for line in text.split('\n') {
        let mut rest = line;
        while let Some((before, after)) = rest.split_once('"') {
            if before.contains("//") {
                break;
            }
            let mut end = 0;
            let bytes = after.as_bytes();
            while end < bytes.len() && bytes[end] != b'"' {
                end += if bytes[end] == b'\\' { 2 } else { 1 };
            }
            let end = end.min(after.len());
            found.push(after.get(..end).unwrap_or_default().to_string());
            rest = after.get(end + 1..).unwrap_or_default();
        }
    }
    found
}

/// Words of a literal that is a name or a list of names, not a sentence.
fn words(literal: &str) -> Vec<String> {
    let is_list = literal.chars().all(|c| c.is_ascii_alphanumeric() || "_: \\".contains(c));
    let words =
        literal.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').filter(|word| !word.is_empty());
    if is_list { words.map(str::to_string).collect() } else { Vec::new() }
}

fn joined(names: &BTreeSet<String>) -> String {
    names.iter().map(String::as_str).collect::<Vec<_>>().join(" ")
}

fn rust_files(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap().flatten() {
        let path = entry.path();
        let name = entry.file_name();
        if path.is_dir() {
            rust_files(&path, files);
        } else if path.extension().is_some_and(|kind| kind == "rs") && name != "tests.rs" {
            files.push(path);
        }
    }
    files.sort();
}
