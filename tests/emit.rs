//! `model-analyze emit`, end to end: what it refuses, what it writes, and that torch agrees.

#![allow(clippy::unwrap_used, clippy::print_stdout, missing_docs)]

use needs::python;
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};
use warm::warm;

mod needs;
mod warm;

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
    assert_eq!(names(&out), ["exports", "stages", "train.py", "train_parts"]);
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
fn a_cut_before_nothing_is_refused() {
    let place = folder();
    for cut in ["", "conv2,", ",conv2"] {
        let (code, _, stderr) = emit(&trace("cnn_basic.pt"), &place.path().join("out"), &["--cut", cut]);
        assert_eq!(code, 2, "{cut:?}: {stderr}");
        assert!(stderr.contains("a value is required for '--cut <BLOCK,…>'"), "{cut:?}: {stderr}");
    }
    assert_eq!(names(place.path()), [""; 0]);
}

/// Only Python stages keep the results of products where the rest of a block is computed again.
#[test]
fn archives_of_blocks_that_keep_their_products_are_told() {
    let folder = folder();
    let (model, plan) = (trace("unet_small.pt"), folder.path().join("plan.yaml"));
    let (name, path) = (model.to_str().unwrap(), plan.to_str().unwrap());
    let asked = ["--devices", "2xt4", "--stages", "2", "--recompute", "DoubleConv=light"];
    assert_eq!(run(&[&["plan", name, "-o", path][..], &asked].concat()).0, 0);
    for (targets, is_told) in [("torchscript", true), ("python,torchscript", false)] {
        let out = folder.path().join(targets);
        let (code, _, said) = emit(&model, &out, &[path, "--targets", targets]);
        assert_eq!((code, said.contains("recompute_light")), (0, is_told), "{targets}: {said}");
    }
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
        "and in stage",
    );
    check(&text.replacen("  - lm_head\n", "  - lm_hed\n", 1), "gpt2_tiny.pt", "did you mean `lm_head`");
    fs::write(&plan, &text).unwrap();
    let out = place.path().join("out");
    let (code, _, stderr) =
        emit(&model, &out, &[plan.to_str().unwrap(), "--launch", "torchrun,slurm,kubernetes"]);
    assert_eq!(code, 0, "{stderr}");
    assert_eq!(
        names(&out),
        ["exports", "launch", "plan.yaml", "schedule.csv", "stages", "train.py", "train_parts"]
    );
    assert_eq!(names(&out.join("launch")), ["torchrun.sh", "train.sbatch", "trainjob.yaml"]);
}

/// What the command says in a folder of its own, and that it leaves nothing there.
#[track_caller]
fn refusal(place: &Path, shell: &str) -> String {
    let before = names(place);
    let output = Command::new("sh")
        .args(["-c", shell])
        .env("MODEL_ANALYZE", env!("CARGO_BIN_EXE_model-analyze"))
        .env("NO_COLOR", "1")
        .current_dir(place)
        .output()
        .expect("a shell starts");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(output.stdout.is_empty(), "{shell}");
    assert_eq!(names(place), before, "{shell} has left something");
    text
}

#[cfg(unix)]
#[test]
fn wrong_plans_and_places_are_refused() {
    let temporary = folder();
    let place = temporary.path();
    fs::copy(trace("gpt2_tiny.pt"), place.join("model.pt")).unwrap();
    fs::copy(trace("cnn_basic.pt"), place.join("other.pt")).unwrap();
    fs::create_dir(place.join("full")).unwrap();
    fs::write(place.join("full/thesis.tex"), "text").unwrap();
    fs::write(place.join("file"), "text").unwrap();
    let (model, plan) = (place.join("model.pt"), place.join("plan.yaml"));
    let arguments =
        ["--devices", "2xh100", "--strategy", "torchgpipe", "--stages", "2", "-o", plan.to_str().unwrap()];
    assert_eq!(run(&[&["plan", model.to_str().unwrap()], &arguments[..]].concat()).0, 0);
    let written = fs::read_to_string(&plan).unwrap();
    let check = |name: &str, change: &dyn Fn(&str) -> String, shell: &str| {
        let changed = change(&written);
        fs::write(&plan, &changed).unwrap();
        insta::assert_snapshot!(name, refusal(place, shell));
        fs::write(&plan, &written).unwrap();
    };
    let emit = "$MODEL_ANALYZE emit model.pt plan.yaml -o out";
    let same = |text: &str| text.to_string();
    let replaced = |from: &'static str, to: &'static str| {
        move |text: &str| {
            assert!(text.contains(from), "{from}");
            text.replacen(from, to, 1)
        }
    };
    let block = "  - transformer.h.0\n";
    check("a_plan_for_another_model", &same, "$MODEL_ANALYZE emit other.pt plan.yaml -o out");
    check("a_block_in_two_stages", &replaced("  - lm_head\n", "  - lm_head\n  - transformer.h.0\n"), emit);
    check("a_block_twice_in_a_stage", &replaced(block, "  - transformer.h.0\n  - transformer.h.0\n"), emit);
    check("a_block_in_no_stage", &replaced(block, ""), emit);
    check("a_block_that_is_none", &replaced(block, "  - transformer.h.7\n"), emit);
    check("an_unknown_device", &replaced("  - node0:1\n  cost", "  - node0:9\n  cost"), emit);
    let emptied = |text: &str| {
        let (head, last) = text.rsplit_once("- blocks:\n").unwrap();
        let devices = last.find("  devices:").unwrap();
        format!("{head}- blocks: []\n{}", &last[devices..])
    };
    check("an_empty_stage", &emptied, emit);
    check("a_folder_with_something_else", &same, "$MODEL_ANALYZE emit model.pt plan.yaml -o full");
    check("forced_over_something_else", &same, "$MODEL_ANALYZE emit model.pt plan.yaml --force -o full");
    check("a_file_for_a_folder", &same, "$MODEL_ANALYZE emit model.pt plan.yaml -o file");
    // A limit on the size of files stands for a full disk: half of a stage can be written.
    let full = format!("trap '' XFSZ; ulimit -f 40; {emit}");
    check("a_full_disk", &same, &full);
}

/// Lets torch compare models with the folders that follow each, and expects so many forms to be right.
#[track_caller]
fn check_in_torch(python: &Path, pairs: &[PathBuf], more: &[&str], right: usize) {
    let output = Command::new(warm(python, &[]))
        .arg(root().join("tests/oracle/verify_stages.py"))
        .args(pairs)
        .args(more)
        .env("OMP_NUM_THREADS", "1")
        .output()
        .expect("python starts");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(text.matches("\"ok\": true").count(), right, "{text}");
}

/// The oracle: torch runs the whole model and the chained stages, in both forms.
#[test]
fn torch_finds_no_difference() {
    let Some(python) = python() else { return };
    let place = folder();
    let cuts: [(&str, &[&str]); 5] = [
        ("gpt2_tiny.pt", &["--stages", "3"]),
        ("unet_small.pt", &["--stages", "4"]),
        ("odd_calls.pt", &["--stages", "3", "--skips", "portal"]),
        ("lstm_seq2seq_small.pt", &["--stages", "2"]),
        ("conversions.pt", &["--stages", "3"]),
    ];
    let mut pairs = Vec::new();
    for (model, more) in cuts {
        let out = place.path().join(model);
        let (code, _, stderr) = emit(&trace(model), &out, more);
        assert_eq!(code, 0, "{model}: {stderr}");
        pairs.extend([trace(model), out]);
    }
    // One interpreter for all: importing torch is most of the time.
    check_in_torch(&python, &pairs, &["--steps", "2"], 10);
}

/// A training-mode trace draws what nobody reads, too; a stage that left it out would go on with other random numbers.
#[test]
fn numbers_that_nobody_reads_are_drawn() {
    let Some(python) = python() else { return };
    let place = folder();
    let at = |name: &str| place.path().join(name);
    let source = "
from torch import nn

class Both(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.drop = nn.Linear(8, 8), nn.Dropout(0.5)
    def forward(self, x, side):
        return self.drop(self.linear(x)), self.drop(self.linear(side) + 1)

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.last = Both(), Both(), Both()
    def forward(self, x):
        x, side = self.first(x, x)
        x, side = self.second(x, side)
        side * 2
        return self.last(x, x)[0]
";
    fs::write(at("both.py"), source).unwrap();
    let target = format!("{}:Model", at("both.py").display());
    let traced = Command::new(env!("CARGO_BIN_EXE_model-analyze"))
        .env("MODEL_ANALYZE_PYTHON", warm(&python, &[]))
        .args(["trace", &target, "--train", "--input", "4x8", "-o", at("both.pt").to_str().unwrap()])
        .output()
        .expect("the command starts");
    assert!(traced.status.success(), "{}", String::from_utf8_lossy(&traced.stderr));
    let (code, _, stderr) = emit(&at("both.pt"), &at("out"), &["--stages", "3"]);
    assert_eq!(code, 0, "{stderr}");
    check_in_torch(&python, &[at("both.pt"), at("out")], &[], 2);
}
