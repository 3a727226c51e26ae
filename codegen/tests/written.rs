//! Emitted files that were changed: each is refused with the fault.

#![allow(clippy::unwrap_used)]

mod emitted;

use std::{
    io::{Cursor, Read, Write},
    path::Path,
};

use codegen::{Assignment, CutOptions, Names, Targets, WrittenError, cut};
use emitted::Emitted;
use schema::Manifest;
use zip::{ZipArchive, ZipWriter, write::SimpleFileOptions};

fn emitted(name: &str) -> Emitted {
    emitted_cut(name, None)
}

/// A fixture in two stages. With `shards`, only in Python.
fn emitted_cut(name: &str, shards: Option<codegen::Shards>) -> Emitted {
    let targets = Targets { torchscript: shards.is_none(), python: true };
    Emitted::of(name, 2, &codegen::About { shards, ..codegen::About::default() }, targets)
}

fn checked(emitted: &Emitted) -> Result<(), WrittenError> {
    emitted.check()
}

/// Changes one file of an emitted GPT-2 and expects this text in the refusal, in addition to the name of a file.
#[track_caller]
fn refused(file: &str, change: impl FnOnce(Vec<u8>) -> Vec<u8>, expected: &str) {
    let mut emitted = emitted("gpt2_tiny.pt");
    let before = emitted.files.remove(file).unwrap();
    let after = change(before.clone());
    assert_ne!(before, after, "nothing was changed");
    emitted.files.insert(file.to_string(), after);
    let error = checked(&emitted).expect_err("a changed file must be refused");
    let said = error.to_string();
    assert!(said.contains(expected), "{said}");
    // A wrong manifest may be noticed in a stage, and the reverse.
    assert!(emitted.files.contains_key(&error.file) && said.starts_with(&error.file), "{said}");
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
        assert_eq!(checked(&emitted(name)), Ok(()), "{name}");
    }
}

/// The tied table of GPT-2 is in both stages, under another name in each.
fn shards() -> codegen::Shards {
    let cut = [("transformer.wte.weight", (0, 1)), ("transformer.h.0.attn.c_attn.weight", (1, 3))];
    codegen::Shards {
        degree: 2,
        cuts: cut.map(|(name, cut)| (name.to_string(), cut)).into(),
        ..Default::default()
    }
}

#[test]
fn cuts_inside_operators_are_in_source_and_manifest_alike() {
    let whole = emitted("gpt2_tiny.pt");
    let emitted = emitted_cut("gpt2_tiny.pt", Some(shards()));
    assert_eq!(checked(&emitted), Ok(()));
    let manifest: Manifest = serde_json::from_slice(&emitted.files["stages/manifest.json"]).unwrap();
    assert_eq!(manifest.shards, Some(2));
    assert_eq!(manifest.stages[0].cuts, Some(shards().cuts));
    let source = std::str::from_utf8(&emitted.files["stages/stage_0.py"]).unwrap();
    assert!(source.contains("    \"transformer.h.0.attn.c_attn.weight\": (1, 3),\n"), "{source}");
    assert!(emitted.files.contains_key("stages/shards.py"));
    // Uncut stages are written as before.
    if manifest.stages[1].cuts.is_none() {
        assert_eq!(emitted.files["stages/stage_1.py"], whole.files["stages/stage_1.py"]);
    }
    let weights = "stages/stage_0.safetensors";
    assert_eq!(emitted.files[weights], whole.files[weights], "weights are whole in every file");
}

#[test]
fn cuts_that_differ_are_refused() {
    let check = |file: &str, change: &dyn Fn(&str) -> String, expected: &str| {
        let mut emitted = emitted_cut("gpt2_tiny.pt", Some(shards()));
        let before = String::from_utf8(emitted.files[file].clone()).unwrap();
        let after = change(&before);
        assert_ne!(before, after, "nothing was changed");
        emitted.files.insert(file.into(), after.into_bytes());
        let said = checked(&emitted).expect_err("a changed file must be refused").to_string();
        assert!(said.contains(expected), "{said}");
    };
    let source = "stages/stage_0.py";
    check(source, &|text| text.replacen("(1, 3),\n", "(1, 1),\n", 1), "its cuts differ");
    let line = "    \"transformer.h.0.attn.c_attn.weight\": (1, 3),\n";
    check(source, &|text| text.replacen(line, "", 1), "transformer.h.0.attn.c_attn.weight");
    check(source, &|text| text.replacen("shard=None):", "shard=1):", 1), "not in the grammar of stages");
    check("stages/shards.py", &|text| text.replacen("self.sum", "self.same", 1), "not the file that ships");
}

#[test]
fn archives_cannot_be_cut_inside_operators() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/traces/gpt2_tiny.pt");
    let program = tracer::read_archive(&std::fs::read(path).unwrap()).unwrap();
    let names = Names::new(&program);
    let pipeline =
        cut(&program, &Assignment::at(program.nodes.len(), &[]), &names, &CutOptions::default()).unwrap();
    let about = codegen::About { shards: Some(shards()), ..Default::default() };
    let facts = codegen::facts(&program);
    let error = |targets| codegen::stages(&program, &names, &pipeline, &facts, &about, targets).err();
    let python = Targets { torchscript: false, python: true };
    assert_eq!(error(python), None);
    assert_eq!(error(Targets { torchscript: true, ..python }), Some(codegen::CutError::ShardedArchive));
}

#[test]
fn a_file_that_is_missing_or_cut_off_is_refused() {
    let mut emitted = emitted("gpt2_tiny.pt");
    let files = emitted.files.clone();
    for (name, bytes) in &files {
        emitted.files.remove(name);
        assert_eq!(checked(&emitted).unwrap_err().file, *name);
        emitted.files.insert(name.clone(), bytes[..bytes.len() - 2].to_vec());
        assert_eq!(checked(&emitted).unwrap_err().file, *name);
        emitted.files.insert(name.clone(), bytes.clone());
    }
}

#[test]
fn stages_that_change_places_are_refused() {
    let mut emitted = emitted("gpt2_tiny.pt");
    let files = emitted.files.clone();
    for kind in ["pt", "py", "safetensors"] {
        let (first, second) = (format!("stages/stage_0.{kind}"), format!("stages/stage_1.{kind}"));
        emitted.files.insert(first.clone(), files[&second].clone());
        emitted.files.insert(second, files[&first].clone());
        assert!(checked(&emitted).is_err(), "{kind}");
        emitted.files.clone_from(&files);
    }
    emitted.files.clear();
    assert!(checked(&emitted).is_err());
}

#[test]
fn a_manifest_that_lies_is_refused() {
    let file = "stages/manifest.json";
    refused(file, manifest(|m| m.stages[1].inputs[0].from = "stage:1:x".into()), "not available before it");
    refused(file, manifest(|m| m.stages[0].inputs[0].from = "stage:1:x".into()), "not available before it");
    refused(file, manifest(|m| m.stages[1].inputs.swap(0, 1)), "the manifest has");
    refused(file, manifest(|m| drop(m.stages[1].outputs.pop())), "the manifest has");
    refused(file, manifest(|m| drop(m.stages[1].parameters.pop())), "is missing, or not the model's");
    refused(file, manifest(|m| m.stages[0].parameters.push("ghost".into())), "`ghost`");
    refused(file, manifest(|m| m.tied.clear()), "not declared tied");
    let untied = |m: &mut Manifest| {
        let mut tied = m.tied[0].clone();
        for holder in &mut tied.holders {
            let stage = &m.stages[holder.stage as usize];
            holder.name = stage.parameters.iter().find(|name| **name != holder.name).unwrap().clone();
        }
        m.tied.push(tied);
    };
    refused(file, manifest(untied), "declared tied and in one stage");
    refused(
        file,
        manifest(|m| m.stages.iter_mut().for_each(|s| s.repeated_operators = 0)),
        "times in the model",
    );
    refused(file, manifest(|m| drop(m.stages.remove(0))), "not available before it");
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

/// Returns the position of a tensor's elements in a file of stage 0.
fn place_of(emitted: &Emitted, name: &str, file: &[u8]) -> usize {
    let tensor = emitted.program.tensors.iter().find(|tensor| tensor.path == name).unwrap();
    let storage = tensor.storage.as_ref().unwrap();
    let bytes = &emitted.source[storage.position.unwrap() as usize..][..storage.bytes as usize];
    file.windows(bytes.len()).position(|window| window == bytes).unwrap()
}

#[test]
fn weights_with_other_bytes_are_refused() {
    let emitted = emitted("gpt2_tiny.pt");
    for kind in ["pt", "safetensors"] {
        let file = format!("stages/stage_0.{kind}");
        let (one, other) = ("transformer.h.0.ln_1.weight", "transformer.h.0.ln_1.bias");
        let places = [one, other].map(|name| place_of(&emitted, name, &emitted.files[&file]));
        // One bit, in the middle of a large tensor, outside of any sample.
        let large = place_of(&emitted, "transformer.wte.weight", &emitted.files[&file]);
        let flipped = |mut bytes: Vec<u8>| {
            bytes[large + 4 * 100 + 1] ^= 1;
            bytes
        };
        refused(&file, flipped, "these are not the model's bytes");
        // Two tensors of equal size, exchanged.
        let exchanged = |mut bytes: Vec<u8>| {
            for at in 0..64 {
                bytes.swap(places[0] + at, places[1] + at);
            }
            bytes
        };
        refused(&file, exchanged, "tensor `transformer.h.0.ln_1");
    }
    // The bytes are unchanged, but the header gives them the other's name.
    let renamed = |bytes: Vec<u8>| {
        let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        let header = String::from_utf8(bytes[8..8 + length].to_vec()).unwrap();
        let header =
            header.replace("h.0.ln_1.weight", "h.0.ln_1.?").replace("h.0.ln_1.bias", "h.0.ln_1.weight");
        let header = header.replace("h.0.ln_1.?", "h.0.ln_1.bias");
        [&bytes[..8], header.as_bytes(), &bytes[8 + length..]].concat()
    };
    refused("stages/stage_0.safetensors", renamed, "tensor `transformer.h.0.ln_1");
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
        "the manifest has",
    );
    refused(source, text(|t| t.replacen("transformer.wpe.weight", "wpe", 1)), "transformer.wpe.weight");
}
