//! Files that people mistake for a traced model, each with its own advice.

use super::{
    pickle::{Object, Pickle},
    safetensors::is_safetensors,
    zip::Records,
};
use crate::{
    bytes::{Bytes, start},
    error::TraceError,
};

const TRACE_FIRST: &str =
    "trace the model first: torch.jit.trace(model, example).save(\"model.pt\"), or `model-analyze trace`";

fn not(found: &'static str, advice: &'static str) -> Option<TraceError> {
    Some(TraceError::NotArchive { found, advice })
}

/// Recognises what is not a zip at all.
pub(super) fn recognise_file(source: &dyn Bytes) -> Option<TraceError> {
    if source.size() == 0 {
        return Some(TraceError::Empty);
    }
    let bytes = &start(source, 512)[..];
    if bytes.starts_with(b"PK\x03\x04") {
        return None;
    }
    // Magic number of torch.save before 1.6: LONG1 of ten bytes.
    if bytes.starts_with(b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19") {
        return not("a torch.save file of the old kind", TRACE_FIRST);
    }
    if bytes.starts_with(b"\x80") && matches!(bytes.get(1), Some(2..=5)) {
        return not("a plain pickle", TRACE_FIRST);
    }
    if is_safetensors(source) {
        return not("a safetensors file, which holds weights and no code", TRACE_FIRST);
    }
    if bytes.starts_with(b"GGUF") {
        return not("a GGUF file, which holds weights and no code", TRACE_FIRST);
    }
    if bytes.starts_with(b"\x89HDF") {
        return not("an HDF5 file", TRACE_FIRST);
    }
    if bytes.starts_with(b"\x1f\x8b") {
        return not("a gzip file", "unpack it first");
    }
    if bytes.starts_with(b"version https://git-lfs.github.com/") {
        return not("a pointer of Git LFS instead of the file itself", "fetch the file: git lfs pull");
    }
    let start = bytes.trim_ascii_start().to_ascii_lowercase();
    if start.starts_with(b"<!doctype") || start.starts_with(b"<html") {
        return not("a web page", "download the file again: this is what a server says instead of it");
    }
    if bytes.starts_with(b"\xff\xfe") || bytes.starts_with(b"\xfe\xff") {
        return not("text in UTF-16", "write it as UTF-8");
    }
    if bytes.get(257..262) == Some(b"ustar") {
        return not("a tar archive", "unpack it first");
    }
    // The version of a ModelProto, then who made it.
    let is_onnx = bytes.starts_with(b"\x08") && bytes.get(2) == Some(&0x12);
    if is_onnx
        && (start.windows(7).any(|part| part == b"pytorch") || start.windows(4).any(|part| part == b"onnx"))
    {
        return not("an ONNX model", "ONNX is not read; trace the PyTorch model with torch.jit.trace");
    }
    if bytes.starts_with(b"PK\x05\x06") {
        return not("an empty zip archive", TRACE_FIRST);
    }
    if bytes.starts_with(b"graph(") {
        return not(
            "IR text, which holds no weights",
            "give the archive that torch.jit.save wrote of the same model",
        );
    }
    not("a file that is not a zip archive", TRACE_FIRST)
}

/// Recognises zip archives that hold something else than a script module.
pub(super) fn recognise_archive(records: &mut Records<'_>) -> Option<TraceError> {
    let code = records.names_under("code/").next().is_some();
    if code && records.has("data.pkl") {
        return None;
    }
    if records.has("data.pkl") {
        let bytes = match records.read("data.pkl") {
            Ok(bytes) => bytes,
            Err(error) => return Some(error),
        };
        return match Pickle::read("data.pkl", &bytes) {
            Ok(pickle) => match pickle.get(pickle.root) {
                Object::Dict(_) => {
                    not("a torch.save state dict, which holds weights and no code", TRACE_FIRST)
                }
                Object::Tensor { .. } => not("a torch.save tensor", TRACE_FIRST),
                _ => not("a torch.save file without code", TRACE_FIRST),
            },
            Err(TraceError::Pickle { .. }) => {
                not("a torch.save file that pickles Python objects, which holds no code", TRACE_FIRST)
            }
            Err(error) => Some(error),
        };
    }
    if records.has("model.json") && code {
        return not("an archive of torch 1.0, before data.pkl", "load and save it again with a newer torch");
    }
    if records.has_outside("model.weights.h5") {
        return not("a Keras model", "Keras is not read; trace a PyTorch model");
    }
    if records.has_outside(".npy") {
        return not("a NumPy archive (.npz), which holds arrays and no code", TRACE_FIRST);
    }
    not("a zip archive without `data.pkl` and `code/`", TRACE_FIRST)
}
