//! What tests say when they lack something, and how it is counted.
#![allow(clippy::unwrap_used, missing_docs)]

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use needs::{Need, may_lack, names};

mod needs;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn the_list_names_needs_and_never_torch() {
    let list = fs::read_to_string(root().join(".ci/may-lack")).unwrap();
    let known = Need::ALL.map(Need::name);
    for name in names(&list) {
        assert!(known.contains(&name), "nothing needs {name}");
    }
    assert!(!may_lack(&list, Need::Torch));
    assert!(may_lack("# comment\nzoo  2 GB\n", Need::Zoo));
    assert!(!may_lack("# zoo\ntorch zoo\n", Need::Zoo));
}

/// Runs this very test binary on one of its tests, as cargo would.
fn run_one(name: &str, ci: Option<&str>) -> (bool, String) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([name, "--exact", "--nocapture"]).env("SKIP_ONE", "1").env_remove("CI");
    if let Some(ci) = ci {
        command.env("CI", ci);
    }
    let output = command.output().unwrap();
    let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap()).concat();
    (output.status.success(), text)
}

/// Lacks what `CI` forbids to lack, when another test asks it to.
#[test]
fn one_without_glibc() {
    if std::env::var_os("SKIP_ONE").is_some() {
        needs::skip(Need::Glibc);
    }
}

/// Lacks what `CI` allows to lack, when another test asks it to.
#[test]
fn one_without_cuda() {
    if std::env::var_os("SKIP_ONE").is_some() {
        needs::skip(Need::Cuda);
    }
}

#[test]
fn what_is_lacking_is_said_and_fails_where_it_must_not() {
    for ci in [None, Some("0"), Some("")] {
        let (passed, text) = run_one("one_without_glibc", ci);
        assert!(passed && text.contains("skipped: skips::one_without_glibc: this is not glibc\n"), "{text}");
    }
    for ci in ["1", "true"] {
        let (passed, text) = run_one("one_without_glibc", Some(ci));
        assert!(!passed && text.contains("this test needs glibc: this is not glibc (CI is set, "), "{text}");
        let (passed, text) = run_one("one_without_cuda", Some(ci));
        assert!(passed && text.contains("skipped: skips::one_without_cuda: "), "{text}");
    }
}

/// Sums up what cargo printed; the last line and whether all passed.
fn count(log: &str) -> (String, bool) {
    let mut awk = Command::new("awk")
        .arg("-f")
        .arg(root().join(".ci/count.awk"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    awk.stdin.take().unwrap().write_all(log.as_bytes()).unwrap();
    let output = awk.wait_with_output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    (text, output.status.success())
}

#[test]
fn skipped_tests_are_not_counted_as_passed() {
    let ok = |n: u32| {
        format!(
            "test result: ok. {n} passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0s\n"
        )
    };
    let skipped =
        "skipped: trace::one: no torch\nskipped: trace::one: no torch\nskipped: emit::two: no torch\n";
    let log = format!(
        "{skipped}test a ... skipped: emit::three: no dot\nok\nshortened: plan::four: no sets\n{}{}",
        ok(5),
        ok(2)
    );
    let (text, passed) = count(&log);
    assert!(text.ends_with("\n4 passed (1 shortened), 0 failed, 3 skipped\n") && passed, "{text}");
    assert!(
        text.contains("   2 skipped: no torch\n") && text.contains("   1 shortened: no sets\n"),
        "{text}"
    );
    let failed = "test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out\n";
    let (text, passed) = count(&format!("{}{failed}", ok(3)));
    assert!(text.ends_with("4 passed (0 shortened), 2 failed, 0 skipped\n") && !passed, "{text}");
    assert!(!count("").1, "nothing ran");
}

/// A test that says by itself that it is skipped is not counted.
#[test]
fn no_test_skips_itself_by_other_means() {
    let mut files = Vec::new();
    for folder in fs::read_dir(root()).unwrap().flatten() {
        rust_files(&folder.path().join("tests"), &mut files);
    }
    rust_files(&root().join("tests"), &mut files);
    assert!(files.len() > 60, "{}", files.len());
    for path in files.iter().filter(|path| !path.ends_with("tests/skips.rs")) {
        let text = fs::read_to_string(path).unwrap();
        let says = text.lines().find(|line| line.contains("println!") && line.contains("skipped"));
        assert_eq!(says, None, "{}", path.display());
        let looks = text.lines().find(|line| line.contains("shared/data") && !line.contains("//"));
        assert!(looks.is_none() || path.ends_with("needs/mod.rs"), "{}: {looks:?}", path.display());
    }
}

fn rust_files(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            rust_files(&path, files);
        } else if path.extension().is_some_and(|kind| kind == "rs") {
            files.push(path);
        }
    }
}
