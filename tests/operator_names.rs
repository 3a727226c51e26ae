//! How many names of torch's operators still stand in string literals outside the table of operators. The numbers may only fall.
//!
//! Not counted is what is not an operator's name though it is spelled like one: an argument that `signatures.txt` knows, where
//! it is asked for by a function of that purpose (`call.dim("dim", …)`), words of a message, which is told by its articles, and
//! the constants in `OTHER_WORDS`, each a list of what another language or file calls its own.
//!
//! What stays are words of other languages: of IR text and of archives' code (`tracer/src/ir`, `tracer/src/flatten`), of Python in emitted
//! lines (`codegen/src/python`, `codegen/src/written`), columns of files, keys of answers. `LEFT` and `QUALIFIED` list the files.

#![allow(clippy::unwrap_used, missing_docs)]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

mod members;

use members::members;

/// Production files with [`FEW`] names or more outside `operators`, how many different ones each has, and what they are. None of
/// them is a fact about an operator.
const LEFT: &[(&str, usize, &str)] = &[
    (
        "codegen/src/python/call.rs",
        5,
        "arguments that say how a tensor is made, and a method that is not a function",
    ),
    ("codegen/src/read_back/source.rs", 5, "functions of Python that make constants, or a list"),
    ("graph/src/infer/number.rs", 5, "modes of rounding, bounds of `clamp`, the device of a trace"),
    ("graph/src/layout/sharded.rs", 6, "names of new values, arguments of exchanges"),
    ("runtime/src/profile/row.rs", 6, "columns of a profile"),
    ("schema/src/profile.rs", 6, "columns of a profile"),
    ("schema/src/serde_words.rs", 5, "words of another library's messages"),
    ("src/commands/fit.rs", 5, "columns and words of an answer"),
    ("src/commands/trace.rs", 5, "keys of a trace's description"),
    ("src/commands/verify/python.rs", 6, "keys of a request to an interpreter"),
    (
        "tracer/src/export/graph.rs",
        6,
        "keys of an export; where inputs change type, two operators take their place",
    ),
    ("tracer/src/flatten/call.rs", 6, "functions of the language of archives"),
    ("tracer/src/ir/lower.rs", 6, "words of IR text, which give values instead of nodes"),
    ("viz/src/gantt.rs", 5, "passes of a step"),
];

/// Files that write a qualified name (`aten::…`, `prim::…`), and why: the language that a trace is written in is theirs to know.
const QUALIFIED: &[(&str, &str)] = &[
    ("codegen/src/allowed.rs", "words of graphs that torch's list of operators lacks"),
    ("codegen/src/nodes.rs", "`aten::device` makes of text what `prim::device` asks of a tensor"),
    ("codegen/src/opaque.rs", "statements that are kept as text"),
    ("codegen/src/read_back/source.rs", "a line without an operator takes a list apart"),
    ("codegen/src/read_back.rs", "what an archive says another way than the trace"),
    ("codegen/src/torchscript/code.rs", "a list is taken apart with a comma at the end"),
    ("graph/src/cost/flops.rs", "calls that are not written out"),
    ("tracer/src/archive/recorded.rs", "constants, which the record has nodes for"),
    ("tracer/src/constant_folding.rs", "the operator that ends a model with an exception"),
    ("tracer/src/export/graph.rs", "where inputs change type, two operators take their place"),
    ("tracer/src/flatten/call.rs", "reads the language of archives"),
    ("tracer/src/flatten/expression.rs", "reads the language of archives"),
    ("tracer/src/flatten/lists.rs", "reads the language of archives"),
    ("tracer/src/flatten/statement.rs", "reads the language of archives"),
    ("tracer/src/ir/control.rs", "reads IR text"),
    ("tracer/src/ir/lower.rs", "reads IR text"),
];

/// Constants with words that are spelled like operators' names and mean something else; a whole file where none is named.
const OTHER_WORDS: &[(&str, &str, &str)] = &[
    (
        "codegen/src/names.rs",
        "RESERVED",
        "words of Python and its built-in functions, which no variable may be called",
    ),
    ("codegen/src/python/call.rs", "OF_MODULES", "what every `nn.Module` has: no child may be called so"),
    (
        "tracer/src/flatten/expression.rs",
        "PROPERTIES",
        "what a tensor has behind a dot in the language of archives",
    ),
    ("schema/src/kinds.rs", "", "kinds of a profile, as its file names them"),
];

/// Fewer names than this are chance: a `size`, a `mean`.
const FEW: usize = 5;

#[test]
fn names_of_operators_stand_in_the_table_alone() {
    let found = found();
    let allowed: BTreeMap<&str, usize> = LEFT.iter().map(|(file, n, _)| (*file, *n)).collect();
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

#[test]
fn few_files_write_qualified_names() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let writes = |path: &PathBuf| {
        let text = fs::read_to_string(path).unwrap();
        let production = text.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
        literals(production).iter().any(|(_, literal)| {
            // `prim::Opaque` is our own: a statement that is kept as text.
            let name = literal.strip_prefix("aten::").or_else(|| literal.strip_prefix("prim::"));
            name.is_some_and(|name| {
                name.starts_with(|c: char| c.is_alphabetic() || c == '_') && name != "Opaque"
            })
        })
    };
    let name = |path: &PathBuf| path.strip_prefix(root).unwrap().to_string_lossy().into_owned();
    let found: Vec<String> = production(root).iter().filter(|path| writes(path)).map(name).collect();
    let allowed: Vec<&str> = QUALIFIED.iter().map(|(file, _)| *file).collect();
    assert_eq!(found, allowed, "ask a row of `operators`, or say here why not");
}

/// A rule that does another thing for one operator has a value of its own in the table instead.
#[test]
fn nothing_asks_for_an_operators_own_name() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut wrong = Vec::new();
    for path in production(root) {
        let text = fs::read_to_string(&path).unwrap();
        let asked = [
            "call.name ==",
            "call.name !=",
            "match call.name",
            "short_name() ==",
            "match operator.short_name()",
        ];
        // Exchanges between devices are operators of our own.
        if asked.iter().any(|asked| text.contains(asked)) && !path.ends_with("graph/src/infer/shared.rs") {
            wrong.push(path);
        }
    }
    assert!(wrong.is_empty(), "a value of a column says what is different: {wrong:?}");
}

/// Production files of all crates but the table's own.
fn production(root: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for member in members().into_iter().filter(|member| member != "operators").chain([String::new()]) {
        rust_files(&root.join(member).join("src"), &mut files);
    }
    assert!(files.len() > 200, "{} files are not all", files.len());
    files
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
    let arguments = argument_names(root);
    assert!(arguments.contains("dim") && arguments.len() > 300, "{} arguments are not all", arguments.len());
    let files = production(root);
    let of_file = |path: &PathBuf| {
        let text = fs::read_to_string(path).unwrap();
        let mut production = text.split("#[cfg(test)]\nmod ").next().unwrap_or_default().to_string();
        for (_, constant, _) in OTHER_WORDS.iter().filter(|other| path.ends_with(other.0)) {
            let rest = production.split_off(production.find(&format!("const {constant}")).unwrap());
            let end = if constant.is_empty() { rest.len() } else { rest.find("];").unwrap() };
            production.push_str(&rest[end..]);
        }
        let words: BTreeSet<String> = literals(&production)
            .iter()
            .filter(|(before, literal)| !is_message(literal) && !is_argument(before, literal, &arguments))
            .flat_map(|(_, literal)| words(literal))
            .filter(|word| names.contains(word.as_str()))
            .collect();
        (path.strip_prefix(root).unwrap().to_string_lossy().into_owned(), words)
    };
    files.iter().map(of_file).filter(|(_, words)| !words.is_empty()).collect()
}

/// Names of all arguments in torch's signatures.
fn argument_names(root: &Path) -> BTreeSet<String> {
    let signatures = fs::read_to_string(root.join("operators/src/signatures.txt")).unwrap();
    let given = signatures
        .lines()
        .filter_map(|line| line.split_once('(')?.1.split_once(") ->").map(|(all, _)| all.to_string()));
    let name = |one: &str| one.trim().split('=').next()?.rsplit(' ').next().map(str::to_string);
    given.flat_map(|all| all.split(',').filter_map(name).collect::<Vec<_>>()).collect()
}

/// Functions that are asked for an argument by its name.
const ASKING: &[&str] = &[
    "argument", "axes", "constant", "dim", "dims", "dtype", "flag", "float", "get", "has", "int", "integers",
    "ints", "is_true", "length", "named", "natural", "number", "numbers", "pair", "shape_of", "sizes",
    "tensor",
];

/// Tells whether a literal is an argument's name where a function is asked for it.
fn is_argument(before: &str, literal: &str, arguments: &BTreeSet<String>) -> bool {
    let function = before.trim_end().strip_suffix('(').or_else(|| {
        // A later one of several: `pair("dim0", "dim1")`, or behind another operand: `integers(operator, "stride")`.
        let (function, inner) = before.rsplit_once('(')?;
        let is_list = inner.chars().all(|c| c.is_ascii_alphanumeric() || "_\", ".contains(c));
        is_list.then_some(function)
    });
    let asks = |function: &str| {
        let name =
            function.rsplit(|c: char| !c.is_ascii_alphanumeric() && c != '_').next().unwrap_or_default();
        ASKING.contains(&name)
    };
    arguments.contains(literal) && function.is_some_and(asks)
}

/// Tells whether a literal is text for people.
fn is_message(literal: &str) -> bool {
    literal.split(' ').any(|word| ["a", "an", "the", "of", "is", "no", "every"].contains(&word))
        && literal.contains(' ')
}

/// String literals of a Rust file, without comments, each with what stands before it in its line.
fn literals(text: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for line in text.split('\n') {
        let mut rest = line;
        while let Some((between, after)) = rest.split_once('"') {
            if between.contains("//") {
                break;
            }
            let mut end = 0;
            let bytes = after.as_bytes();
            while end < bytes.len() && bytes[end] != b'"' {
                end += if bytes[end] == b'\\' { 2 } else { 1 };
            }
            let end = end.min(after.len());
            let before = line.get(..line.len() - after.len() - 1).unwrap_or_default();
            found.push((before.to_string(), after.get(..end).unwrap_or_default().to_string()));
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
