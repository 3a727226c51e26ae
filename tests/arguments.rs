//! What is said of arguments: everything that is wrong at once, and commands that can be copied.
#![allow(clippy::unwrap_used, missing_docs)]

use std::{fs, path::Path, process::Output};

const UNET: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/traces/unet_small.pt");

fn split(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_model-analyze"));
    command.current_dir(folder).env("NO_COLOR", "1").arg("split").args(arguments).output().unwrap()
}

#[test]
fn everything_that_is_wrong_is_said_at_once() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("out")).unwrap();
    fs::write(folder.path().join("out/mine"), "").unwrap();
    let wrong = ["nothing.pt", "--devices=2xt5", "--stages=0", "--batch=0", "--strategy=foo", "-o", "out"];
    let output = split(folder.path(), &wrong);
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8(output.stderr).unwrap();
    let errors: Vec<&str> = said.lines().filter(|line| line.starts_with("error: ")).collect();
    assert_eq!(
        errors,
        [
            "error: no strategy is called `foo`",
            "error: --batch is 0; a step has at least one sample",
            "error: --stages is 0; a pipeline has at least one",
            "error: no device is called `t5`",
            "error: nothing.pt: No such file or directory (os error 2)",
            "error: out is not empty",
        ]
    );
    assert_eq!(said.lines().filter(|line| line.starts_with("  hint: ")).count(), 3, "{said}");
    let left: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["out"]);
}

#[test]
fn commands_to_copy_are_quoted() {
    let folder = tempfile::tempdir().unwrap();
    let output = split(folder.path(), &[UNET, "--devices=2xt4", "--stages=2", "-o", "my out"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("\n  model-analyze verify 'my out'    "), "{text}");
    assert!(text.contains("\n  python 'my out/train.py' --check    "), "{text}");
}
