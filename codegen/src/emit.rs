//! All files of a cut model.

use schema::{FileDigest, Files, Manifest};
use tracer::Program;

use crate::{
    allowed::check_operators,
    content::{Content, File, Piece},
    error::CutError,
    manifest::{About, Facts, manifest},
    names::Names,
    nodes::{INNER, OUTER},
    pipeline::{Carried, Pipeline, Port},
    python, torchscript,
};

/// The formats of stages to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Targets {
    /// `stage_k.pt`.
    pub torchscript: bool,
    /// `stage_k.py` and `stage_k.safetensors`.
    pub python: bool,
}

impl Targets {
    /// Returns the same without archives, which cannot communicate with the other shards of a stage.
    pub fn python_alone(self) -> Self {
        Self { torchscript: false, python: true }
    }
}

/// Returns the files below `stages/`, and the manifest, still without their digests.
///
/// # Errors
/// If an operator may not be called, or a tensor cannot be written.
pub fn stages(
    program: &Program,
    names: &Names,
    pipeline: &Pipeline,
    facts: &Facts,
    about: &About,
    targets: Targets,
) -> Result<(Vec<File>, Manifest), CutError> {
    // Without this check names of the archive would become code.
    let shared = about.shards.iter().flat_map(|_| [INNER, OUTER]).map(str::to_string);
    let spaces: Vec<String> = about.operators.iter().cloned().chain(shared).collect();
    check_operators(program, &spaces).map_err(|mut faults| faults.swap_remove(0))?;
    if about.shards.is_some() && targets.torchscript {
        return Err(CutError::ShardedArchive);
    }
    let stays = |port: &&Port| {
        let value = |id| about.shards.as_ref().is_some_and(|shards| shards.stays.contains(&id));
        matches!(port.carried, Carried::Value(id) if value(id))
    };
    for (stage, own) in pipeline.stages.iter().enumerate() {
        if let Some(port) = own.outputs.iter().find(stays) {
            return Err(CutError::Uneven { value: port.name.clone(), stage });
        }
    }
    let mut files = Vec::new();
    for index in 0..pipeline.stages.len() {
        if targets.torchscript {
            let content = torchscript::stage(program, names, pipeline, index, &about.operators)?;
            files.push(File { path: format!("stages/stage_{index}.pt"), content });
        }
        if targets.python {
            let (source, weights) = python::stage(program, names, pipeline, index, about)?;
            files.push(File { path: format!("stages/stage_{index}.py"), content: Content::text(source) });
            files.push(File { path: format!("stages/stage_{index}.safetensors"), content: weights });
        }
    }
    let of_stage = |index: usize| Files {
        torchscript: targets.torchscript.then(|| format!("stage_{index}.pt")),
        python: targets.python.then(|| format!("stage_{index}.py")),
        weights: targets.python.then(|| format!("stage_{index}.safetensors")),
    };
    let manifest = manifest(program, names, pipeline, facts, about, &of_stage);
    if targets.python && manifest.stages.iter().any(|stage| stage.cuts.is_some()) {
        let content = Content::text(python::shipped::SHARDS.to_string());
        files.push(File { path: "stages/shards.py".into(), content });
    }
    Ok((files, manifest))
}

/// Returns the manifest's file.
pub fn manifest_file(manifest: &Manifest) -> File {
    let text = serde_json::to_string_pretty(manifest).expect("a manifest has string keys and finite numbers");
    File { path: "stages/manifest.json".into(), content: Content::text(text + "\n") }
}

/// Returns the path of the weights that a Python source loads.
pub fn weights_of(source: &str) -> Option<String> {
    let stage = source.strip_suffix(".py").filter(|stage| stage.starts_with("stages/"))?;
    Some(format!("{stage}.safetensors"))
}

/// Writes the digest of the weights into a Python source, whose `load()` compares it.
pub fn know_weights(source: &mut File, weights: &FileDigest) {
    let Content::Plain(pieces) = &mut source.content else { return };
    let Some(Piece::Bytes(text)) = pieces.first_mut() else { return };
    let known = format!("\nWEIGHTS = ({}, \"{}\")\n", weights.bytes, weights.crc32);
    *text = String::from_utf8_lossy(text).replacen("\nWEIGHTS = None\n", &known, 1).into_bytes();
}
