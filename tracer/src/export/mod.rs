//! Archives of `torch.export`: a graph as JSON beside raw weights, read into the program that a traced archive gives.
//!
//! Three generations lie about: a zip without a top folder (torch 2.6, 2.7), one with `models/NAME.json` and a `torch.save` file of
//! weights (2.8), and one with a record for each storage (2.9 on). Operators, numbers of types and size arithmetic become those
//! of TorchScript at this boundary, so that nothing behind it knows which kind of file was read. The example inputs that a file may
//! hold are a pickle of user data: they are not opened.

mod codes;
mod document;
mod generation;
mod graph;
mod output;
mod record;
mod scopes;
mod sizes;
mod text;
mod weights;

pub(crate) use generation::Generation;
pub use sizes::{OpenSizes, Size, SizeFault, Symbol};

use self::{document::Document, generation::export, record::json, weights::Weights};
use crate::{
    archive::{NEWEST_VERSION, literals, zip::Records},
    bytes::Bytes,
    error::TraceError,
    program::{Archive, ArchiveKind, ByteOrder, Program, Tensor},
};

/// The only major version of the format: torch refuses another, and takes any minor one.
const MAJOR: u64 = 8;
/// The only version of the archive around it.
const ARCHIVE_VERSION: &str = "0";
/// Reads an archive of torch.export.
pub(crate) fn read(
    bytes: &dyn Bytes,
    records: &mut Records<'_>,
    generation: &Generation,
) -> Result<Program, TraceError> {
    let (document, weights) = parts(bytes, records, generation)?;
    let kind = ArchiveKind::Export { obstacle: None };
    // Operators of a program mean what they do today: for an older version torch would put what they once were in their place.
    let version = NEWEST_VERSION;
    let archive = Archive { folder: records.folder.clone(), version, byte_order: ByteOrder::Little, kind };
    let mut program = graph::read(&document, &weights, archive)?;
    program.literals = literals::read(bytes, &program);
    Ok(program)
}

/// Reads the tensors of an archive alone.
pub(crate) fn read_tensors(
    bytes: &dyn Bytes,
    records: &mut Records<'_>,
    generation: &Generation,
) -> Result<Vec<Tensor>, TraceError> {
    let (document, weights) = parts(bytes, records, generation)?;
    Ok(graph::tensors(&document, &weights)?.into_iter().map(|(_, tensor)| tensor).collect())
}

fn parts(
    bytes: &dyn Bytes,
    records: &mut Records<'_>,
    generation: &Generation,
) -> Result<(Document, Weights), TraceError> {
    if records.has("archive_version") {
        let version = records.read_text("archive_version")?;
        if version.trim() != ARCHIVE_VERSION {
            let version: String = version.trim().chars().take(40).collect();
            return Err(export(format!(
                "its layout has version {version}, and the only one known is {ARCHIVE_VERSION}"
            )));
        }
    }
    if records.has("byteorder") {
        let order = records.read_text("byteorder")?;
        if order.trim() != "little" {
            return Err(export("its weights are not little-endian".to_owned()));
        }
    }
    let document: Document = json(records, &generation.record())?;
    let version = &document.schema_version;
    if version.major != MAJOR {
        return Err(export(format!(
            "its format has version {}.{}, and {MAJOR} is the only one known",
            version.major, version.minor
        )));
    }
    let weights = Weights::read(bytes, records, generation)?;
    Ok((document, weights))
}
