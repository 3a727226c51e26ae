//! A record of JSON in an archive.

use serde::de::DeserializeOwned;

use crate::{archive::zip::Records, error::TraceError};

/// Letters of a fault in JSON that are told.
const MAX_FAULT: usize = 160;

/// Reads a record of JSON. It must be stored, as torch writes it: then what is read is no longer than the file.
pub(super) fn json<T: DeserializeOwned>(records: &mut Records<'_>, name: &str) -> Result<T, TraceError> {
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
