//! The commands of README.md do what the page shows.
//!
//! A block that begins with `$ model-analyze …` is run; what follows the command must be its output. With
//! `UPDATE_README=1` the output is written into the page instead.
#![allow(clippy::unwrap_used)]

use std::path::Path;

/// Splits the page at its runnable blocks: text before, command, output.
fn blocks(page: &str) -> (Vec<(String, String, String)>, String) {
    let mut blocks = Vec::new();
    let mut rest = page;
    while let Some(start) = rest.find("```console\n$ model-analyze ") {
        let body = start + "```console\n".len();
        let end = body + rest[body..].find("```\n").expect("a block ends");
        let (command, output) = rest[body..end].split_once('\n').expect("a command ends its line");
        blocks.push((rest[..body].to_string(), command.to_string(), output.to_string()));
        rest = &rest[end..];
    }
    (blocks, rest.to_string())
}

#[test]
fn the_page_shows_real_output() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = std::fs::read_to_string(root.join("README.md")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    #[cfg(unix)]
    std::os::unix::fs::symlink(root.join("fixtures"), folder.path().join("fixtures")).unwrap();
    let (blocks, rest) = blocks(&page);
    assert!(blocks.len() >= 4, "README.md lost its examples");
    let mut renewed = String::new();
    for (before, command, _) in &blocks {
        let arguments = command.strip_prefix("$ model-analyze ").unwrap().split_whitespace();
        let mut run = assert_cmd::Command::new(env!("CARGO_BIN_EXE_model-analyze"));
        let run = run.args(arguments).current_dir(folder.path()).env("NO_COLOR", "1").assert().success();
        let output = String::from_utf8(run.get_output().stdout.clone()).unwrap();
        renewed.push_str(&format!("{before}{command}\n{output}"));
    }
    renewed.push_str(&rest);
    if std::env::var_os("UPDATE_README").is_some() {
        std::fs::write(root.join("README.md"), &renewed).unwrap();
    } else {
        assert_eq!(page, renewed, "UPDATE_README=1 cargo test --test readme renews the page");
    }
}
