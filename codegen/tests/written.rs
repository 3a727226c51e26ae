//! Emitted files that are changed behind our back: each is refused, and says what is wrong.

#![allow(clippy::unwrap_used)]

use std::{
    collections::BTreeMap,
    io::{Cursor, Read, Write},
    path::Path,
};

use codegen::{Assignment, CutOptions, Names, Targets, WrittenError, check_written, cut};
use schema::Manifest;
use tracer::Program;
use zip::{ZipArchive, ZipWriter, write::SimpleFileOptions};

type Files = BTreeMap<String, Vec<u8>>;

/// Emits a fixture in two stages, into memory.
fn emitted(name: &str) -> (Program, Files) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/traces").join(name);
    let bytes = std::fs::read(path).unwrap();
    let program = tracer::read_archive(&bytes).unwrap();
    let names = Names::new(&program);
    let assignment = Assignment::at(program.nodes.len(), &[program.nodes.len() / 2]);
    let pipeline = cut(&program, &assignment, &names, &CutOptions::default()).unwrap();
    let targets = Targets { torchscript: true, python: true };
    let facts = codegen::facts(&program);
    let about = codegen::About::default();
    let about = codegen::About {
        model: Some(schema::ModelReference { name: program.name.clone(), digest: tracer::digest(&program) }),
        ..about
    };
    let files = codegen::stages(&program, &names, &pipeline, &facts, &about, targets).unwrap();
    let written = files.iter().map(|file| {
        let mut out = Vec::new();
        file.content.write(&mut &bytes[..], &mut out).unwrap();
        (file.path.clone(), out)
    });
    let written = written.collect();
    (program, written)
}

fn checked(program: &Program, files: &Files) -> Result<(), WrittenError> {
    check_written(program, &mut |name| {
        files.get(name).cloned().ok_or_else(|| std::io::ErrorKind::NotFound.into())
    })
}

/// Changes one file of an emitted GPT-2 and expects its name and this text in the refusal.
#[track_caller]
fn refused(file: &str, change: impl FnOnce(Vec<u8>) -> Vec<u8>, expected: &str) {
    let (program, mut files) = emitted("gpt2_tiny.pt");
    let before = files.remove(file).unwrap();
    let after = change(before.clone());
    assert_ne!(before, after, "nothing was changed");
    files.insert(file.to_string(), after);
    let said = checked(&program, &files).expect_err("a changed file must be refused").to_string();
    assert!(said.contains(expected), "{said}");
}

fn manifest(change: impl FnOnce(&mut Manifest)) -> impl FnOnce(Vec<u8>) -> Vec<u8> {
    |bytes| {
        let mut manifest: Manifest = serde_json::from_slice(&bytes).unwrap();
        change(&mut manifest);
        serde_json::to_vec(&manifest).unwrap()
    }
}

/// Rewrites an archive with its code changed.
fn code(change: impl FnOnce(String) -> String) -> impl FnOnce(Vec<u8>) -> Vec<u8> {
    |bytes| {
        let mut archive = ZipArchive::new(Cursor::new(bytes)).unwrap();
        let mut out = ZipWriter::new(Cursor::new(Vec::new()));
        let options = SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored);
        let mut change = Some(change);
        for index in 0..archive.len() {
            let mut record = archive.by_index(index).unwrap();
            let mut content = Vec::new();
            record.read_to_end(&mut content).unwrap();
            if record.name().ends_with(".py") {
                let change = change.take().expect("there is one file of code");
                content = change(String::from_utf8(content).unwrap()).into_bytes();
            }
            out.start_file(record.name(), options).unwrap();
            out.write_all(&content).unwrap();
        }
        out.finish().unwrap().into_inner()
    }
}

fn text(change: impl FnOnce(String) -> String) -> impl FnOnce(Vec<u8>) -> Vec<u8> {
    |bytes| change(String::from_utf8(bytes).unwrap()).into_bytes()
}

#[test]
fn what_is_written_passes() {
    for name in [
        "gpt2_tiny.pt",
        "unet_small.pt",
        "lstm_seq2seq_small.pt",
        "odd_calls.pt",
        "repeats.pt",
        "cnn_dropout.pt",
    ] {
        let (program, files) = emitted(name);
        assert_eq!(checked(&program, &files), Ok(()), "{name}");
    }
}

#[test]
fn a_file_that_is_missing_or_cut_off_is_refused() {
    let (program, files) = emitted("gpt2_tiny.pt");
    for name in files.keys() {
        let mut fewer = files.clone();
        fewer.remove(name);
        assert_eq!(checked(&program, &fewer).unwrap_err().file, *name);
        let mut shorter = files.clone();
        let last = shorter.get_mut(name).unwrap();
        last.truncate(last.len() - 2);
        // Only a source may lack its end unseen: its forward and its tensors stand before.
        assert_eq!(checked(&program, &shorter).is_err(), !name.ends_with(".py"), "{name}");
    }
}

#[test]
fn stages_that_change_places_are_refused() {
    let (program, mut files) = emitted("gpt2_tiny.pt");
    for kind in ["pt", "py", "safetensors"] {
        let (first, second) = (format!("stages/stage_0.{kind}"), format!("stages/stage_1.{kind}"));
        let mut swapped = files.clone();
        swapped.insert(first.clone(), files[&second].clone());
        swapped.insert(second, files[&first].clone());
        assert!(checked(&program, &swapped).is_err(), "{kind}");
    }
    files.clear();
    assert!(checked(&program, &files).is_err());
}

#[test]
fn a_manifest_that_lies_is_refused() {
    let file = "stages/manifest.json";
    refused(file, manifest(|m| m.stages[1].inputs[0].from = "stage:1:x".into()), "not there before it");
    refused(file, manifest(|m| m.stages[0].inputs[0].from = "stage:1:x".into()), "not there before it");
    refused(file, manifest(|m| m.stages[1].inputs.swap(0, 1)), "the manifest says");
    refused(file, manifest(|m| drop(m.stages[1].outputs.pop())), "the manifest says");
    refused(file, manifest(|m| drop(m.stages[1].parameters.pop())), "is missing, or not the model's");
    refused(file, manifest(|m| m.stages[0].parameters.push("ghost".into())), "`ghost`");
    refused(file, manifest(|m| m.tied.clear()), "not declared tied");
    refused(
        file,
        manifest(|m| m.stages.iter_mut().for_each(|s| s.repeated_operators = 0)),
        "times in the model",
    );
    refused(file, manifest(|m| drop(m.stages.remove(0))), "not there before it");
}

#[test]
fn an_archive_that_computes_something_else_is_refused() {
    let twice = |text: String| {
        let line = text.lines().find(|line| line.contains("= torch.tanh(")).unwrap().to_string() + "\n";
        text.replacen(&line, &line.repeat(2), 1)
    };
    let file = "stages/stage_1.pt";
    refused(file, code(|t| t.replacen("torch.tanh(", "torch.relu(", 1)), "order");
    refused(file, code(twice), "order");
    refused(file, code(|t| t.replacen("torch.layer_norm(", "torch.dropout(", 1)), "order");
}

#[test]
fn a_source_that_computes_something_else_is_refused() {
    let file = "stages/stage_1.py";
    let line_of =
        |text: &str| text.lines().find(|line| line.contains("= torch.tanh(")).unwrap().to_string() + "\n";
    refused(file, text(|t| t.replacen("torch.tanh(", "torch.relu(", 1)), "operator relu");
    refused(
        file,
        text(|t| t.replacen(&line_of(&t), "", 1)),
        "operator tanh (transformer.h.0.mlp.act) runs 0 times",
    );
    refused(file, text(|t| t.replacen(&line_of(&t), &line_of(&t).repeat(2), 1)), "order");
    refused(
        file,
        text(|t| t.replacen("# transformer.ln_f\n", "# transformer.ln_g\n", 1)),
        "transformer.ln_g",
    );
    refused(
        file,
        text(|t| t.replacen("# transformer.ln_f\n", "# transformer.ln_f (again)\n", 1)),
        "layer_norm",
    );
    // In another order, each operator once.
    let swapped = |t: String| {
        let lines: Vec<&str> = t.lines().collect();
        let at = lines.iter().position(|line| line.contains("torch.tanh(")).unwrap();
        [&lines[..at], &[lines[at + 1], lines[at]], &lines[at + 2..]].concat().join("\n") + "\n"
    };
    refused(file, text(swapped), "order");
}

#[test]
fn weights_of_another_size_are_refused() {
    let file = "stages/stage_0.safetensors";
    refused(
        file,
        |mut bytes| {
            bytes.extend([0; 8]);
            bytes
        },
        "not fully covered",
    );
    refused(
        file,
        |bytes| {
            let text = b"transformer.wpe.weight";
            let at = bytes.windows(text.len()).position(|window| window == text).unwrap();
            let mut bytes = bytes;
            bytes[at] = b'T';
            bytes
        },
        "transformer.wpe.weight",
    );
    let source = "stages/stage_0.py";
    refused(
        source,
        text(|t| t.replacen("def forward(self, ", "def forward(self, y, ", 1)),
        "the manifest says",
    );
    refused(source, text(|t| t.replacen("transformer.wpe.weight", "wpe", 1)), "transformer.wpe.weight");
}
