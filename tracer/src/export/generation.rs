//! Which of the layouts of torch.export's archives a file has.

use crate::{
    archive::zip::{FLAT, Records},
    error::TraceError,
};

/// The layout of an archive.
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

    /// Returns the name of the record with the graph.
    pub(super) fn record(&self) -> String {
        match self {
            Generation::Flat => FLAT.to_owned(),
            Generation::Folder { model } => format!("models/{model}.json"),
        }
    }
}

/// A program that is odd.
pub(super) fn export(reason: String) -> TraceError {
    TraceError::Export { reason }
}
