//! The commands of README.md and of the pages under docs/ do what the pages show.
//!
//! A block that begins with `$ model-analyze …` is run, and what follows the command must be its output. With
//! `UPDATE_README=1` the output is written into the page instead. Every other line `model-analyze …` of a block must succeed, but
//! for those of `NOT_RUN`; `make …` must name a target. A page's commands run one after the other in a folder that has the fixtures,
//! and a small `model.pt`.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};

/// Commands that are not run, by how they begin or what they contain, and why. Nor is what stands behind one in the same block, for
/// it may read what that writes, nor what reads a trace of the reader's (`resnet50.pt`).
const NOT_RUN: &[(&str, &str)] = &[
    ("trace ", "imports torch and the reader's model"),
    ("profile ", "needs a build with libtorch, a GPU or minutes"),
    ("verify ", "needs torch; tests/verify.rs runs it"),
    ("--weights ", "reads the reader's checkpoint"),
    ("--layers 7,8,9,8", "a model of 32 layers"),
    ("compare model.pt --devices 2x8xh100", "a minute and more"),
];

/// Programs of others: what a page says of them is not tried here.
const OTHERS: &[&str] = &["python ", ".venv/bin/python ", "cargo ", "docker ", "grep ", "torchrun ", "pip "];

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Splits a command line as a shell does: words, and single quotes around some; a `#` begins a comment.
fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    for (n_quote, part) in line.split('\'').enumerate() {
        if n_quote % 2 == 1 {
            words.push(part.to_string());
        } else {
            words.extend(part.split_whitespace().map(ToString::to_string));
        }
    }
    let comment = words.iter().position(|word| word == "#");
    words.truncate(comment.unwrap_or(words.len()));
    words
}

/// Returns what the command prints in this folder; it must succeed.
fn printed(page: &Path, line: &str, folder: &Path) -> String {
    let mut run = assert_cmd::Command::new(env!("CARGO_BIN_EXE_model-analyze"));
    let output = run.args(words(line)).current_dir(folder).env("NO_COLOR", "1").output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{}: `{line}` fails:\n{error}", page.display());
    String::from_utf8(output.stdout).unwrap()
}

/// Runs a block of commands; returns the block as it should stand in the page.
fn block(page: &Path, text: &str, folder: &Path, used: &mut Vec<&'static str>) -> String {
    if let Some(command) = text.strip_prefix("$ model-analyze ") {
        let line = command.lines().next().unwrap();
        return format!("$ model-analyze {line}\n{}", printed(page, line, folder));
    }
    let makefile = std::fs::read_to_string(root().join("Makefile")).unwrap();
    let mut is_run = true;
    for line in text.lines().filter(|line| !line.is_empty()) {
        let ours =
            line.strip_prefix("model-analyze ").or_else(|| line.strip_prefix("cargo run --release -- "));
        if let Some(line) = ours {
            let is_named = |name: &str| {
                if name.starts_with('-') { line.contains(name) } else { line.starts_with(name) }
            };
            let names = NOT_RUN.iter().map(|(name, _)| *name).filter(|name| is_named(name));
            let n_used = used.len();
            used.extend(names);
            let is_readers =
                |word: &String| word.ends_with(".pt") && !word.contains('/') && !folder.join(word).exists();
            is_run &= n_used == used.len() && !words(line).iter().any(is_readers);
            if is_run {
                printed(page, line, folder);
            }
        } else if let Some(target) = line.strip_prefix("make ").and_then(|rest| rest.split(' ').next()) {
            assert!(makefile.contains(&format!("\n{target}:")), "{}: no target {target}", page.display());
        } else {
            let is_known = OTHERS.iter().any(|program| line.starts_with(program));
            assert!(is_known, "{}: what is `{line}`?", page.display());
        }
    }
    text.to_string()
}

/// Runs a page's blocks; returns the page as it should be.
fn renewed(path: &Path, used: &mut Vec<&'static str>) -> String {
    let page = std::fs::read_to_string(path).unwrap();
    let folder = tempfile::tempdir().unwrap();
    #[cfg(unix)]
    std::os::unix::fs::symlink(root().join("fixtures"), folder.path().join("fixtures")).unwrap();
    std::fs::copy(root().join("fixtures/traces/unet_small.pt"), folder.path().join("model.pt")).unwrap();
    let mut renewed = String::new();
    let mut rest = page.as_str();
    while let Some(start) = rest.find("\n```") {
        let body = start + 1 + rest[start + 1..].find('\n').expect("a fence ends its line") + 1;
        let end = body + rest[body..].find("```\n").expect("a block ends");
        let is_shell = matches!(&rest[start..body], "\n```console\n" | "\n```sh\n");
        renewed.push_str(&rest[..body]);
        let text = &rest[body..end];
        renewed.push_str(&if is_shell { block(path, text, folder.path(), used) } else { text.to_string() });
        renewed.push_str("```\n");
        // The newline before the next fence may be this one's.
        rest = &rest[end + "```\n".len() - 1..];
        renewed.pop();
    }
    renewed.push_str(rest);
    renewed
}

/// Returns README.md and the pages under docs/.
fn pages() -> Vec<PathBuf> {
    let mut pages: Vec<PathBuf> =
        std::fs::read_dir(root().join("docs")).unwrap().map(|entry| entry.unwrap().path()).collect();
    pages.retain(|page| page.extension().is_some_and(|extension| extension == "md"));
    pages.push(root().join("README.md"));
    pages.sort();
    pages
}

#[test]
fn the_pages_show_real_output() {
    let mut used = Vec::new();
    for path in pages() {
        let renewed = renewed(&path, &mut used);
        if std::env::var_os("UPDATE_README").is_some() {
            std::fs::write(&path, &renewed).unwrap();
        } else {
            let page = std::fs::read_to_string(&path).unwrap();
            assert_eq!(page, renewed, "UPDATE_README=1 cargo test --test readme renews {}", path.display());
        }
    }
    for (name, reason) in NOT_RUN {
        assert!(used.contains(name), "no page has `{name}`, which is not run ({reason})");
    }
}
