//! `model-analyze emit`, end to end: what it refuses, what it writes, and that torch agrees.

#![allow(clippy::unwrap_used, clippy::print_stdout, missing_docs)]

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn trace(name: &str) -> PathBuf {
    root().join("fixtures/traces").join(name)
}

/// Runs the command; returns exit code, standard output and standard error.
fn run(arguments: &[&str]) -> (i32, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_model-analyze"))
        .args(arguments)
        .output()
        .expect("the command starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code().unwrap_or(-1), text(&output.stdout), text(&output.stderr))
}

fn emit(model: &Path, out: &Path, more: &[&str]) -> (i32, String, String) {
    let mut arguments = vec!["emit", model.to_str().unwrap(), "-o", out.to_str().unwrap()];
    arguments.extend(more);
    run(&arguments)
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

/// Lists what lies in a folder.
fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn a_folder_is_written_whole_and_never_mixed() {
    let place = folder();
    let out = place.path().join("out");
    let model = trace("cnn_basic.pt");
    let (code, stdout, stderr) = emit(&model, &out, &["--stages", "2"]);
    assert_eq!(code, 0, "{stderr}");
    assert!(stdout.contains("stage 1:"), "{stdout}");
    assert_eq!(names(&out), ["exports", "stages", "train.py"]);
    let expected = [
        "manifest.json",
        "stage_0.pt",
        "stage_0.py",
        "stage_0.safetensors",
        "stage_1.pt",
        "stage_1.py",
        "stage_1.safetensors",
    ];
    assert_eq!(names(&out.join("stages")), expected);
    // Again: refused, then replaced.
    let (code, _, stderr) = emit(&model, &out, &["--stages", "3"]);
    assert_eq!(code, 2);
    assert!(stderr.contains("is not empty") && stderr.contains("--force"), "{stderr}");
    assert_eq!(emit(&model, &out, &["--stages", "3", "--targets", "python", "--force"]).0, 0);
    assert_eq!(names(&out.join("stages")).iter().filter(|name| name.ends_with(".pt")).count(), 0);
    // A folder that we did not write is left alone.
    let foreign = place.path().join("foreign");
    fs::create_dir(&foreign).unwrap();
    fs::write(foreign.join("thesis.tex"), "text").unwrap();
    let (code, _, stderr) = emit(&model, &foreign, &["--stages", "2", "--force"]);
    assert_eq!(code, 2, "{stderr}");
    assert_eq!(names(&foreign), ["thesis.tex"]);
    // Nothing is left beside.
    assert_eq!(names(place.path()), ["foreign", "out"]);
}

#[test]
fn the_same_input_gives_the_same_bytes() {
    let place = folder();
    for name in ["a", "b"] {
        let out = place.path().join(name);
        assert_eq!(emit(&trace("gpt2_tiny.pt"), &out, &["--stages", "3"]).0, 0);
    }
    for name in names(&place.path().join("a/stages")) {
        let read = |folder: &str| fs::read(place.path().join(folder).join("stages").join(&name)).unwrap();
        assert!(read("a") == read("b"), "{name} differs");
    }
}

#[test]
fn wrong_cuts_are_refused_with_the_reason() {
    let place = folder();
    let check = |more: &[&str], message: &str| {
        let (code, _, stderr) = emit(&trace("gpt2_tiny.pt"), &place.path().join("out"), more);
        assert_eq!(code, 2, "{stderr}");
        assert!(stderr.contains(message), "{stderr}");
        assert!(names(place.path()).is_empty());
    };
    check(&["--cut", "transformer.h.9"], "did you mean `transformer.h");
    check(&["--cut", "transformer.h.1,transformer.h.1"], "begins at the same operator");
    check(&["--cut", "transformer.wte,transformer"], "leaves a stage empty");
    check(&["--stages", "100000"], "is empty");
    check(&["--cut", "transformer.h.1", "--no-tied"], "transformer.wte.weight");
    check(&["--stages", "0"], "0");
}

#[test]
fn plans_are_checked_against_the_model() {
    let place = folder();
    let plan = place.path().join("plan.yaml");
    let model = trace("gpt2_tiny.pt");
    let made = run(&[
        "plan",
        model.to_str().unwrap(),
        "--devices",
        "2xh100",
        "--strategy",
        "interleaved",
        "-o",
        plan.to_str().unwrap(),
    ]);
    assert_eq!(made.0, 0, "{}", made.2);
    let text = fs::read_to_string(&plan).unwrap();
    let check = |text: &str, model: &str, message: &str| {
        fs::write(&plan, text).unwrap();
        let out = place.path().join("out");
        let (code, _, stderr) = emit(&trace(model), &out, &[plan.to_str().unwrap()]);
        assert_eq!(code, 2, "{stderr}");
        assert!(stderr.contains(message), "{stderr}");
        assert!(!out.exists());
    };
    check(&text, "cnn_basic.pt", "made for another model");
    check(&text.replacen("  - lm_head\n", "", 1), "gpt2_tiny.pt", "`lm_head`");
    check(
        &text.replacen("  - lm_head\n", "  - lm_head\n  - transformer.h.0\n", 1),
        "gpt2_tiny.pt",
        "again in stage",
    );
    check(&text.replacen("  - lm_head\n", "  - lm_hed\n", 1), "gpt2_tiny.pt", "did you mean `lm_head`");
    fs::write(&plan, &text).unwrap();
    let out = place.path().join("out");
    let (code, _, stderr) =
        emit(&model, &out, &[plan.to_str().unwrap(), "--launch", "torchrun,slurm,kubernetes"]);
    assert_eq!(code, 0, "{stderr}");
    assert_eq!(names(&out), ["exports", "launch", "plan.yaml", "schedule.csv", "stages", "train.py"]);
    assert_eq!(names(&out.join("launch")), ["torchrun.sh", "train.sbatch", "trainjob.yaml"]);
}

/// The oracle: torch runs the whole model and the chained stages, in both forms.
#[test]
fn torch_finds_no_difference() {
    let python = root().join(".venv/bin/python");
    if !python.exists() {
        println!("skipped: there is no .venv/bin/python with torch");
        return;
    }
    let place = folder();
    let cuts: [(&str, &[&str]); 4] = [
        ("gpt2_tiny.pt", &["--stages", "3"]),
        ("unet_small.pt", &["--stages", "4"]),
        ("odd_calls.pt", &["--stages", "3", "--skips", "portal"]),
        ("lstm_seq2seq_small.pt", &["--stages", "2"]),
    ];
    let mut pairs = Vec::new();
    for (model, more) in cuts {
        let out = place.path().join(model);
        let (code, _, stderr) = emit(&trace(model), &out, more);
        assert_eq!(code, 0, "{model}: {stderr}");
        pairs.extend([trace(model), out]);
    }
    // One interpreter for all: importing torch is most of the time.
    let output = Command::new(python)
        .arg(root().join("tests/oracle/verify_stages.py"))
        .args(pairs)
        .args(["--steps", "2"])
        .env("OMP_NUM_THREADS", "1")
        .output()
        .expect("python starts");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(text.matches("\"ok\": true").count(), 8, "{text}");
}
