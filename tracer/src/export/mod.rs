//! Archives of `torch.export`: a graph as JSON beside raw weights, read into the program that a traced archive gives.
//!
//! Three generations lie about: a zip without a top folder (torch 2.6, 2.7), one with `models/NAME.json` and a `torch.save` file of
//! weights (2.8), and one with a record for each storage (2.9 on). Operators, numbers of types and size arithmetic become those
//! of TorchScript at this border, so that nothing behind it knows which kind of file was read. The example inputs that a file may
//! hold are a pickle of somebody's data: they are not opened.

mod codes;
mod document;
mod graph;
mod output;
mod scopes;
mod sizes;
mod text;
mod weights;

use serde::de::DeserializeOwned;

pub use sizes::{OpenSizes, Size, SizeFault, Symbol};

use self::{document::Document, weights::Weights};
use crate::{
    archive::{
        literals,
        zip::{FLAT, Records},
    },
    bytes::Bytes,
    error::TraceError,
    program::{Archive, ArchiveKind, ByteOrder, Program, Tensor},
};

/// The only major version of the format: torch refuses another, and takes any minor one.
const MAJOR: u64 = 8;
/// The only version of the archive around it.
const ARCHIVE_VERSION: &str = "0";
/// Sizes of a tensor; torch's own limit.
const MAX_DIMENSIONS: usize = 64;
/// Letters of a fault in JSON that are told.
const MAX_FAULT: usize = 160;

/// How an archive is laid out.
pub(crate) enum Generation {
    /// Records at the root, weights in a file of `torch.save`.
    Flat,
    /// Records in a folder, for each model.
    Folder {
        /// Name of the only model.
        model: String,
    },
}

impl Generation {
    /// Recognises an archive of torch.export; `None` for any other.
    pub(crate) fn of(records: &Records<'_>) -> Result<Option<Self>, TraceError> {
        if records.has(FLAT) {
            return Ok(Some(Generation::Flat));
        }
        let is_one = records.has("archive_format") || records.names_under("models/").next().is_some();
        if !is_one || records.names_under("code/").next().is_some() {
            return Ok(None);
        }
        let name = |record: &str| Some(record.strip_prefix("models/")?.strip_suffix(".json")?.to_owned());
        let mut models: Vec<String> = records.names_under("models/").filter_map(name).collect();
        match models.len() {
            1 => Ok(Some(Generation::Folder { model: models.swap_remove(0) })),
            0 if records.names_under("data/aotinductor/").next().is_some() => Err(TraceError::NotArchive {
                found: "an AOTInductor package, which holds compiled code and no graph",
                advice: "save the exported program itself: torch.export.save(program, \"model.pt2\")",
            }),
            0 => Err(export("there is no program in it, no `models/NAME.json`".to_owned())),
            count => Err(export(format!(
                "there are {count} programs in it, `{}` and `{}` among them, and one is read; save it alone",
                models[0], models[1]
            ))),
        }
    }

    fn record(&self) -> String {
        match self {
            Generation::Flat => FLAT.to_owned(),
            Generation::Folder { model } => format!("models/{model}.json"),
        }
    }
}

/// Reads an archive of torch.export.
pub(crate) fn read(
    bytes: &dyn Bytes,
    records: &mut Records<'_>,
    generation: &Generation,
) -> Result<Program, TraceError> {
    let (document, weights) = parts(bytes, records, generation)?;
    let kind = ArchiveKind::Export { obstacle: None };
    let archive = Archive { folder: records.folder.clone(), version: 0, byte_order: ByteOrder::Little, kind };
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

/// Reads a record of JSON. It must be stored, as torch writes it: then what is read is no longer than the file.
fn json<T: DeserializeOwned>(records: &mut Records<'_>, name: &str) -> Result<T, TraceError> {
    records.extent(name)?;
    let bytes = records.read(name)?;
    serde_json::from_slice(&bytes).map_err(|error| {
        let text = error.to_string();
        // What else might have stood there fills a screen.
        let (fault, place) = match text.split_once(", expected one of") {
            Some((fault, rest)) => (fault, rest.rfind(" at line ").map_or("", |at| &rest[at..])),
            None => (text.as_str(), ""),
        };
        let fault: String = fault.chars().take(MAX_FAULT).collect();
        TraceError::Record {
            record: name.to_owned(),
            reason: format!("not what torch.export writes: {fault}{place}"),
        }
    })
}

/// A program that is odd.
fn export(reason: String) -> TraceError {
    TraceError::Export { reason }
}

/// Returns `cpu`, `cuda:1`.
fn device(device: &document::Device) -> String {
    match device.index {
        Some(index) => format!("{}:{index}", device.type_),
        None => device.type_.clone(),
    }
}
