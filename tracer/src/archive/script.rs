//! TorchScript archives: the zip's records, read in the order in which they explain each other.

use super::{
    absent, files::Library, literals, modules::Modules, other, pickle::Pickle, recorded, zip::Records,
};
use crate::{
    bytes::Bytes,
    error::TraceError,
    export::{self, Generation},
    flatten,
    program::{Archive, ArchiveKind, ByteOrder, Program, Source},
};

/// The newest format version that torch 2.11 reads.
pub(crate) const NEWEST_VERSION: u32 = 10;

/// Tells whether bytes begin like a zip archive.
pub fn is_archive(bytes: &[u8]) -> bool {
    bytes.starts_with(b"PK\x03\x04")
}

/// Reads what `torch.jit.save` wrote, a traced or a scripted module, or what `torch.export.save` wrote.
///
/// `bytes` is the whole file: code and pickles are read, tensor data is not touched.
///
/// # Errors
///
/// The file is no such archive, is damaged, asks for more than data, or has code that cannot be followed.
pub fn read_archive(bytes: &[u8]) -> Result<Program, TraceError> {
    read_archive_at(&bytes)
}

/// Reads an archive at the places that it needs: [`read_archive`] of a file that is not in memory.
///
/// # Errors
///
/// As [`read_archive`]; unreadable parts are treated as absent.
pub fn read_archive_at(bytes: &dyn Bytes) -> Result<Program, TraceError> {
    if let Some(error) = other::recognise_file(bytes) {
        return Err(error);
    }
    let mut records = Records::open(bytes)?;
    if let Some(generation) = Generation::of(&records)? {
        return export::read(bytes, &mut records, &generation);
    }
    if let Some(error) = other::recognise_archive(&mut records) {
        return Err(error);
    }
    let archive = Archive {
        folder: records.folder.clone(),
        version: version(&mut records)?,
        byte_order: byte_order(&mut records)?,
        kind: ArchiveKind::TorchScript,
    };
    let sources = sources(&mut records)?;
    let library = Library::new(&sources);
    let data = records.read("data.pkl")?;
    let data = Pickle::read("data.pkl", &data)?;
    let constants =
        if records.has("constants.pkl") { records.read("constants.pkl")? } else { b"\x80\x02).".to_vec() };
    let constants = Pickle::read("constants.pkl", &constants)?;
    let modules = Modules::read(&data, &constants, &library, &mut records)?;
    let recorded = recorded::read(&mut records)?;
    let (mut program, settled) = flatten::flatten(&library, modules, &mut records)?;
    program.name.clone_from(&archive.folder);
    program.archive = Some(archive);
    program.recorded = match recorded {
        Some(recorded) => Some(recorded::align(recorded, &program, &settled)),
        None => recorded::traced_inputs(&mut records, &program)?,
    };
    if let Some(recorded) = &program.recorded {
        absent::forget(&mut program.tensors, &recorded.absent);
    }
    program.sources = sources;
    program.literals = literals::read(bytes, &program);
    Ok(program)
}

fn version(records: &mut Records<'_>) -> Result<u32, TraceError> {
    // Torch writes it at either place.
    let name = if records.has("version") { "version" } else { ".data/version" };
    let text = records.read_text(name)?;
    let found = text.trim();
    match found.parse::<u32>() {
        Ok(version) if version <= NEWEST_VERSION => Ok(version),
        _ => Err(TraceError::Version { found: found.chars().take(40).collect(), newest: NEWEST_VERSION }),
    }
}

/// Archives of torch before 2.1 have no such record; all were little-endian in practice.
fn byte_order(records: &mut Records<'_>) -> Result<ByteOrder, TraceError> {
    if !records.has("byteorder") {
        return Ok(ByteOrder::Little);
    }
    match records.read_text("byteorder")?.trim() {
        "little" => Ok(ByteOrder::Little),
        "big" => Ok(ByteOrder::Big),
        other => Err(TraceError::Record {
            record: "byteorder".to_owned(),
            reason: format!(
                "expected `little` or `big`, found `{}`",
                other.chars().take(40).collect::<String>()
            ),
        }),
    }
}

fn sources(records: &mut Records<'_>) -> Result<Vec<Source>, TraceError> {
    let names: Vec<String> =
        records.names_under("code/").filter(|name| name.ends_with(".py")).map(str::to_owned).collect();
    let source = |name: String| Ok(Source { text: records.read_text(&name)?, name });
    names.into_iter().map(source).collect()
}
