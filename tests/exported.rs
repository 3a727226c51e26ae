//! Programs of torch.export (`.pt2`) given to the commands that take a model.
#![allow(clippy::unwrap_used, clippy::print_stdout, missing_docs)]

use std::{
    fs,
    io::{Cursor, Read, Write},
    path::Path,
    process::Output,
};

use assert_cmd::Command;
use zip::{CompressionMethod, ZipArchive, ZipWriter, write::SimpleFileOptions};

#[path = "oracle/mod.rs"]
mod oracle;

mod needs;

const DECODER: &str = "fixtures/exported/decoder.pt2";

fn run(arguments: &[&str]) -> Output {
    let mut command = Command::cargo_bin("model-analyze").unwrap();
    command.current_dir(env!("CARGO_MANIFEST_DIR")).env("NO_COLOR", "1").args(arguments).output().unwrap()
}

#[track_caller]
fn answer(arguments: &[&str]) -> (String, String) {
    let output = run(arguments);
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    assert!(output.status.success(), "{}", text(output.stderr));
    (text(output.stdout), text(output.stderr))
}

#[track_caller]
fn refused(arguments: &[&str], expected: &str) {
    let output = run(arguments);
    assert_eq!(String::from_utf8(output.stderr).unwrap(), expected);
    assert_eq!(output.status.code(), Some(2));
    assert!(output.stdout.is_empty());
}

#[track_caller]
fn inspected(arguments: &[&str]) -> serde_json::Value {
    let (json, _) = answer(&[&["inspect"], arguments, &["--format", "json"]].concat());
    serde_json::from_str(&json).unwrap()
}

#[test]
fn inspect_shows_the_modules_and_says_which_sizes_are_open() {
    let (text, notes) = answer(&["inspect", DECODER]);
    insta::assert_snapshot!("decoder", text);
    assert_eq!(
        notes,
        "note: dimension 0 of `ids` may be 1 to 64 (2 in the example), dimension 1 of `ids` may be 2 to 31 (6 in the example); \
         --input decides, else the example\n"
    );
}

#[test]
fn inputs_that_share_a_size_follow_the_one_that_is_given() {
    let shape = |answer: &serde_json::Value| answer["outputs"][0]["shape"].clone();
    let example = inspected(&[DECODER]);
    assert_eq!(shape(&example), serde_json::json!([2, 6, 40]));
    let larger = inspected(&[DECODER, "--input", "ids=8x24"]);
    assert_eq!(shape(&larger), serde_json::json!([8, 24, 40]));
    assert_eq!(larger["inputs"][1]["shape"], serde_json::json!([8, 24]));
    assert_eq!(larger["totals"]["parameters"], example["totals"]["parameters"]);
    let flops = |answer: &serde_json::Value| answer["totals"]["flops"].as_u64().unwrap();
    // Without attention, which grows with the square of the length.
    assert_eq!(flops(&larger), flops(&example) * 16);
}

#[test]
fn sizes_that_the_program_does_not_take_are_refused() {
    const HINT: &str = "  hint: export it with the sizes left open: torch.export.export(model, args, \
                        dynamic_shapes={\"x\": {0: torch.export.Dim(\"batch\", max=64)}})\n";
    let check = |inputs: &[&str], expected: &str| {
        let inputs: Vec<&str> = inputs.iter().flat_map(|input| ["--input", input]).collect();
        // What may be was said before.
        let notes = "note: dimension 0 of `ids` may be 1 to 64 (2 in the example), dimension 1 of `ids` may be 2 to 31 \
                     (6 in the example); --input decides, else the example\n";
        refused(
            &[&["inspect", DECODER], &inputs[..]].concat(),
            &format!("{notes}error: {DECODER}: {expected}\n{HINT}"),
        );
    };
    check(&["ids=65x6"], "dimension 0 of `ids` may be 1 to 64 in the exported program, and 65 is given");
    check(
        &["ids=2x6", "weights=3x6"],
        "dimension 0 of `weights` is that of dimension 0 of `ids`, 2, and 3 is given",
    );
    check(&["ids=2x6x1"], "`ids` has 2 dimensions, and 3 are given");
}

#[test]
fn a_program_under_another_ending_is_named_and_tracing_it_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.pt");
    fs::copy(Path::new(env!("CARGO_MANIFEST_DIR")).join(DECODER), &path).unwrap();
    let path = path.to_str().unwrap();
    let (_, notes) = answer(&["inspect", path]);
    assert!(notes.starts_with(&format!("note: {path} is a program of torch.export (.pt2)\n")), "{notes}");
    let expected =
        "is a program of torch.export already\n  hint: inspect, graph, plan and split read it directly\n";
    refused(&["trace", path, "--input", "2x6", "-o", "out.pt"], &format!("error: {path} {expected}"));
}

#[test]
fn graph_and_plan_take_it() {
    let folder = tempfile::tempdir().unwrap();
    let picture = folder.path().join("decoder.dot");
    answer(&["graph", DECODER, "-o", picture.to_str().unwrap()]);
    let drawn = fs::read_to_string(&picture).unwrap();
    assert!(drawn.contains("blocks.0") && drawn.contains("head"), "{drawn}");
    let plan = folder.path().join("plan.yaml");
    answer(&["plan", DECODER, "--devices", "2xt4", "--stages", "2", "-o", plan.to_str().unwrap()]);
    let written = fs::read_to_string(&plan).unwrap();
    assert!(written.contains("blocks.1"), "{written}");
}

/// The decoder with another dialect, in a file of its own.
fn decomposed(folder: &Path) -> String {
    let whole = fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join(DECODER)).unwrap();
    let mut archive = ZipArchive::new(Cursor::new(whole)).unwrap();
    let path = folder.join("decomposed.pt2");
    let mut writer = ZipWriter::new(fs::File::create(&path).unwrap());
    for index in 0..archive.len() {
        let mut record = archive.by_index(index).unwrap();
        let mut bytes = Vec::new();
        record.read_to_end(&mut bytes).unwrap();
        if record.name().ends_with("models/model.json") {
            bytes = String::from_utf8(bytes).unwrap().replace("\"TRAINING\"", "\"ATEN\"").into_bytes();
        }
        let stored = SimpleFileOptions::default().compression_method(CompressionMethod::Stored);
        writer.start_file(record.name(), stored).unwrap();
        writer.write_all(&bytes).unwrap();
    }
    writer.finish().unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn a_decomposed_program_is_read_with_a_note_and_not_cut() {
    let folder = tempfile::tempdir().unwrap();
    let path = decomposed(folder.path());
    const NOTE: &str = "the exported program is decomposed: its operators are not those that the model calls, which changes times and memory";
    let (_, notes) = answer(&["inspect", &path]);
    assert!(notes.contains(&format!("note: {NOTE}\n")), "{notes}");
    let out = folder.path().join("out");
    let output = run(&["emit", &path, "--stages", "2", "-o", out.to_str().unwrap()]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(
        said.ends_with(&format!(
            "error: {path} cannot be cut: it is decomposed, and does not train as the model does\n  \
             hint: export without run_decompositions(), or trace the model\n"
        )),
        "{said}"
    );
    assert!(!out.exists());
}

#[test]
fn a_program_without_weights_takes_them_from_a_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let emit = |out: &str, more: &[&str]| {
        let out = folder.path().join(out);
        let arguments =
            ["emit", "fixtures/exported/weightless.pt2", "--stages", "2", "-o", out.to_str().unwrap()];
        run(&[&arguments, more].concat())
    };
    let refused = emit("without", &[]);
    let said = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(2));
    assert!(said.contains("fixtures/exported/weightless.pt2 was exported without its weights\n"), "{said}");
    let taken = emit("with", &["--weights", DECODER]);
    assert!(taken.status.success(), "{}", String::from_utf8_lossy(&taken.stderr));
}

#[test]
fn stages_of_exported_models_do_what_the_models_do() {
    if needs::python().is_none() {
        return;
    }
    oracle::run("exported_stages");
}

#[test]
fn what_is_read_of_exported_models_is_what_is_read_of_their_traces() {
    if needs::python().is_none() {
        return;
    }
    oracle::run("exported");
}
