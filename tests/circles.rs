//! Holds files of a crate free of circles: a file that imports another, directly or through others, is not imported by it.
//!
//! An import counts for the file that defines what is imported, so a module that only re-exports is not a stop on the way. Tests, and
//! modules that are declared for tests alone, are left out.

#![allow(clippy::unwrap_used, missing_docs)]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    ops::Range,
    path::{Path, PathBuf},
};

mod members;

use members::members;

/// The longest circle that may appear anywhere.
const LONGEST: usize = 3;

#[test]
fn no_circle_of_files_is_long() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (mut wrong, mut n_files) = (Vec::new(), 0);
    let mut folders: Vec<PathBuf> = members().iter().map(|name| Path::new(name).join("src")).collect();
    folders.extend(["src", "src/bin/model-analyze-torch"].map(PathBuf::from));
    for folder in folders {
        let sources = Sources::read(&root.join(&folder));
        assert!(!sources.files.is_empty(), "{}: nothing is read", folder.display());
        n_files += sources.files.len();
        let mut circles = sources.circles();
        circles.retain(|circle| circle.len() > LONGEST);
        let line = |files: &Vec<PathBuf>| format!("{}: {} files: {files:?}", folder.display(), files.len());
        wrong.extend(circles.iter().map(line));
    }
    assert!(n_files > 500, "{n_files} files are not all");
    assert!(wrong.is_empty(), "a circle of more than {LONGEST} files, to be broken:\n{}", wrong.join("\n"));
}

/// Every way to write an import is seen: this is a circle of five in folders, with a re-export that is not a part of it.
#[test]
fn a_circle_is_found_however_it_is_written() {
    let files = [
        ("lib.rs", "mod a;\nmod b;\npub mod facade;\npub use b::deep::Deep;\n#[cfg(test)]\nmod oracle;\n"),
        (
            "a.rs",
            "use crate::{b::{\n    deep::Deep as Other, // over two lines\n}, b::flat as _flat};\npub struct A;\n",
        ),
        ("b.rs", "pub mod deep;\npub(crate) mod flat;\n"),
        (
            "b/deep.rs",
            "use super::flat::Flat;\npub struct Deep;\n#[cfg(test)]\nmod tests {\n    use crate::oracle::O;\n}\n",
        ),
        ("b/flat.rs", "pub struct Flat(crate::facade::Face);\n"),
        ("facade.rs", "mod face;\npub use face::Face;\n"),
        ("facade/face.rs", "use self::inner::Inner;\nmod inner;\npub struct Face;\n"),
        ("facade/face/inner.rs", "fn f() {\n    use crate::a;\n}\npub struct Inner;\n"),
        ("oracle.rs", "use crate::a::A;\npub struct O;\n"),
    ];
    let sources =
        Sources::of(files.iter().map(|(file, text)| (PathBuf::from(file), text.to_string())).collect());
    let expected =
        ["a.rs", "b/deep.rs", "b/flat.rs", "facade/face/inner.rs", "facade/face.rs"].map(PathBuf::from);
    assert_eq!(sources.circles(), [expected.to_vec()]);
}

/// A path of modules from the root of a crate.
type Module = Vec<String>;

/// The production files of a crate.
struct Sources {
    /// Each file's module and its text without comments and tests.
    files: BTreeMap<PathBuf, (Module, String)>,
    /// The file of each module.
    modules: BTreeMap<Module, PathBuf>,
}

impl Sources {
    fn read(folder: &Path) -> Self {
        let (mut found, mut open) = (BTreeMap::new(), vec![folder.to_path_buf()]);
        while let Some(folder_or_file) = open.pop() {
            if folder_or_file.is_dir() {
                open.extend(fs::read_dir(&folder_or_file).unwrap().map(|entry| entry.unwrap().path()));
            } else if folder_or_file.extension().is_some_and(|extension| extension == "rs") {
                let path = folder_or_file.strip_prefix(folder).unwrap().to_path_buf();
                found.insert(path, fs::read_to_string(&folder_or_file).unwrap());
            }
        }
        Self::of(found)
    }

    fn of(texts: BTreeMap<PathBuf, String>) -> Self {
        let mut sources = Self { files: BTreeMap::new(), modules: BTreeMap::new() };
        for root in
            ["lib.rs", "main.rs"].map(PathBuf::from).into_iter().filter(|root| texts.contains_key(root))
        {
            // A command's own files are not part of its library.
            let module = if root == Path::new("main.rs") { vec!["main".to_string()] } else { Vec::new() };
            sources.add(&texts, root, module);
        }
        sources
    }

    /// Adds a file and the files of the modules that it declares.
    fn add(&mut self, texts: &BTreeMap<PathBuf, String>, file: PathBuf, module: Module) {
        let Some(text) = texts.get(&file) else { return };
        let text = production(text);
        let is_root = file == Path::new("lib.rs") || file == Path::new("main.rs");
        let folder = if is_root || file.ends_with("mod.rs") {
            file.parent().unwrap().to_path_buf()
        } else {
            file.with_extension("")
        };
        self.modules.insert(module.clone(), file.clone());
        for line in text.lines() {
            let words: Vec<&str> = line.split_whitespace().filter(|word| !word.starts_with("pub")).collect();
            if let ["mod", name] = words[..]
                && let Some(name) = name.strip_suffix(';')
            {
                let flat = folder.join(format!("{name}.rs"));
                let deep = folder.join(name).join("mod.rs");
                let child = [module.as_slice(), &[name.to_string()]].concat();
                self.add(texts, if texts.contains_key(&flat) { flat } else { deep }, child);
            }
        }
        self.files.insert(file, (module, text));
    }

    /// The file that defines what a path names, seen from a module.
    fn defining(&self, from: &Module, path: &[String], depth: usize) -> Option<&PathBuf> {
        let root = from.iter().take_while(|name| *name == "main").take(1).cloned().collect::<Module>();
        let (mut module, mut rest) = match path.first().map(String::as_str)? {
            "crate" => (root, &path[1..]),
            "self" => (from.clone(), &path[1..]),
            "super" => {
                let n_up = path.iter().take_while(|name| *name == "super").count();
                (from[..from.len().checked_sub(n_up)?].to_vec(), &path[n_up..])
            }
            first if self.modules.contains_key(&[from.as_slice(), &[first.to_string()]].concat()) => {
                (from.clone(), path)
            }
            _ => return None,
        };
        while let Some((name, behind)) = rest.split_first() {
            let child = [module.as_slice(), std::slice::from_ref(name)].concat();
            if !self.modules.contains_key(&child) {
                break;
            }
            (module, rest) = (child, behind);
        }
        let file = self.modules.get(&module)?;
        if let Some(name) = rest.first().filter(|_| depth > 0) {
            let exports = imports(&self.files[file].1).into_iter().filter(|import| import.is_exported);
            for export in exports.filter(|export| export.name == *name || export.name == "*") {
                let path = match export.name.as_str() {
                    "*" => [&export.path[..export.path.len() - 1], &rest[..1]].concat(),
                    _ => export.path.clone(),
                };
                if let Some(found) = self.defining(&module, &path, depth - 1)
                    && found != file
                    && (export.name != "*" || self.has(found, name))
                {
                    return Some(found);
                }
            }
        }
        Some(file)
    }

    /// Tells whether a file defines a name.
    fn has(&self, file: &Path, name: &str) -> bool {
        ["fn", "struct", "enum", "trait", "type", "const", "static", "mod", "macro_rules!"].iter().any(
            |kind| {
                let text = &self.files[file].1;
                text.match_indices(&format!("{kind} {name}")).any(|(at, found)| {
                    !text[at + found.len()..].starts_with(|next: char| next.is_alphanumeric() || next == '_')
                })
            },
        )
    }

    /// The files that each file imports from.
    fn uses(&self) -> BTreeMap<&PathBuf, BTreeSet<&PathBuf>> {
        let of = |file| {
            let (module, text) = &self.files[file];
            let paths = imports(text).into_iter().map(|import| import.path).chain(inline_paths(text));
            let used: BTreeSet<&PathBuf> = paths.filter_map(|path| self.defining(module, &path, 8)).collect();
            (file, used.into_iter().filter(|used| *used != file).collect())
        };
        self.files.keys().map(of).collect()
    }

    /// Files that can all be reached from each other by imports, sorted; the longest sets first.
    fn circles(&self) -> Vec<Vec<PathBuf>> {
        let uses = self.uses();
        let reached = |from: &PathBuf| {
            let (mut reached, mut open) = (BTreeSet::new(), vec![from]);
            while let Some(file) = open.pop() {
                open.extend(uses[file].iter().filter(|used| reached.insert((**used).clone())));
            }
            reached
        };
        let reached: BTreeMap<&PathBuf, BTreeSet<PathBuf>> =
            uses.keys().map(|file| (*file, reached(file))).collect();
        let circle = |file: &&PathBuf| -> Vec<PathBuf> {
            reached[*file].iter().filter(|other| reached[*other].contains(*file)).cloned().collect()
        };
        let circles: BTreeSet<Vec<PathBuf>> =
            uses.keys().map(circle).filter(|circle| circle.len() > 1).collect();
        let mut circles: Vec<Vec<PathBuf>> = circles.into_iter().collect();
        circles.sort_by_key(|circle| std::cmp::Reverse(circle.len()));
        circles
    }
}

/// A file's text without comments, its tests, and modules for tests.
fn production(text: &str) -> String {
    let text = text.split("\nmod tests {").next().unwrap_or_default();
    let mut lines = text.lines().map(|line| line.split("//").next().unwrap_or_default());
    let mut kept = String::new();
    while let Some(line) = lines.next() {
        if line.trim() == "#[cfg(test)]" {
            lines.next();
            continue;
        }
        kept.push_str(line);
        kept.push('\n');
    }
    kept
}

/// One name that a `use` brings.
struct Import {
    path: Vec<String>,
    /// As what it is known afterwards.
    name: String,
    is_exported: bool,
}

/// Where the trees of all `use` of a text stand, and whether each is exported.
fn statements(text: &str) -> Vec<(Range<usize>, bool)> {
    let (mut found, mut at) = (Vec::new(), 0);
    while let Some(next) = text[at..].find("use ") {
        at += next + "use ".len();
        let line = text[..at - "use ".len()].rsplit('\n').next().unwrap_or_default();
        let before = line.trim();
        if before.is_empty() || before.starts_with("pub") {
            let end = text[at..].find(';').map_or(text.len(), |end| at + end);
            found.push((at..end, !before.is_empty()));
            at = end;
        }
    }
    found
}

/// What all `use` of a text bring.
fn imports(text: &str) -> Vec<Import> {
    let mut found = Vec::new();
    for (statement, is_exported) in statements(text) {
        let mut names = Vec::new();
        tree(&tokens(&text[statement]), &mut 0, &[], &mut names);
        found.extend(names.into_iter().map(|(path, name)| Import { path, name, is_exported }));
    }
    found
}

/// Words, braces and commas of a `use`.
fn tokens(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        let end =
            if is_word(first) { rest.find(|c| !is_word(c)).unwrap_or(rest.len()) } else { first.len_utf8() };
        found.extend(Some(&rest[..end]).filter(|token| *token != ":"));
        rest = rest[end..].trim_start();
    }
    found
}

/// Lists the paths of a tree of imports, with the names that they get.
fn tree(tokens: &[&str], at: &mut usize, before: &[String], found: &mut Vec<(Vec<String>, String)>) {
    let mut path = before.to_vec();
    while let Some(&token) = tokens.get(*at) {
        match token {
            "{" => {
                *at += 1;
                while tokens.get(*at).is_some_and(|token| *token != "}") {
                    tree(tokens, at, &path, found);
                    *at += usize::from(tokens.get(*at) == Some(&","));
                }
                *at += 1;
                return;
            }
            "," | "}" => break,
            "as" => {
                let name = tokens.get(*at + 1).unwrap_or(&"").to_string();
                *at += 2;
                found.push((path, name));
                return;
            }
            // `{self, …}` is the module itself.
            "self" if !path.is_empty() => {}
            name => path.push(name.to_string()),
        }
        *at += 1;
    }
    if let Some(name) = path.last().cloned() {
        found.push((path, name));
    }
}

/// Paths that begin with `crate` or `super` outside of `use`.
fn inline_paths(text: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    let statements = statements(text);
    for root in ["crate::", "super::"] {
        for (at, _) in text.match_indices(root) {
            if statements.iter().any(|(statement, _)| statement.contains(&at)) {
                continue;
            }
            let end = text[at..]
                .find(|c: char| !c.is_alphanumeric() && c != '_' && c != ':')
                .map_or(text.len(), |end| at + end);
            let path: Vec<String> =
                text[at..end].split("::").filter(|name| !name.is_empty()).map(str::to_string).collect();
            if path.len() > 1 && !text[..at].ends_with("::") {
                found.push(path);
            }
        }
    }
    found
}
