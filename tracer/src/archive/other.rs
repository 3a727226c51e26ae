//! Files that people mistake for a traced model, each with its own advice.

use super::{
    pickle::{Object, Pickle},
    zip::Records,
};
use crate::error::TraceError;

const TRACE_FIRST: &str =
    "trace the model first: torch.jit.trace(model, example).save(\"model.pt\"), or `model-analyze trace`";

fn not(found: &'static str, advice: &'static str) -> Option<TraceError> {
    Some(TraceError::NotArchive { found, advice })
}

/// Recognises what is no zip at all.
pub(super) fn recognise_file(bytes: &[u8]) -> Option<TraceError> {
    if bytes.is_empty() {
        return Some(TraceError::Empty);
    }
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
    if bytes.get(8) == Some(&b'{') && header_length(bytes) < bytes.len() as u64 {
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
    if bytes.starts_with(b"PK\x05\x06") {
        return not("an empty zip archive", TRACE_FIRST);
    }
    if bytes.starts_with(b"graph(") {
        return not("IR text", "read it as text");
    }
    not("a file that is no zip archive", TRACE_FIRST)
}

fn header_length(bytes: &[u8]) -> u64 {
    bytes.first_chunk::<8>().map_or(u64::MAX, |length| u64::from_le_bytes(*length))
}

/// Recognises zip archives that hold something else than a script module.
pub(super) fn recognise_archive(records: &mut Records<'_>) -> Option<TraceError> {
    let code = records.names_under("code/").next().is_some();
    if code && records.has("data.pkl") {
        return None;
    }
    if records.has("archive_format")
        || records.has("models/model.json")
        || records.has("serialized_exported_program.json")
    {
        return not(
            "a torch.export program (.pt2)",
            "export is not read yet; trace the model with torch.jit.trace",
        );
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
    not("a zip archive without `data.pkl` and `code/`", TRACE_FIRST)
}
