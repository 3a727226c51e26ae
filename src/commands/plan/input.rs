//! The kind of a MODEL argument, recognised by its first bytes, not by its name.

use std::{ops::Range, path::Path};

use schema::{
    DnnWorkload, PipedreamProfile, PiperWorkload, ProfileGraphError, ProfileGraphFault, ProfileGraphPlace,
};

use crate::{
    failure::Failure,
    files::{self, Opened},
};

/// The kinds of input.
pub enum Input {
    /// A profile graph.
    Pipedream(PipedreamProfile),
    /// A workload of dnn-partitioning.
    DnnPartitioning(DnnWorkload),
    /// A workload of Piper.
    Piper(PiperWorkload),
    /// A traced model, opened but not yet read.
    Trace(Opened),
}

impl Input {
    /// Reads a profile or workload; a trace is only opened.
    pub fn read(path: &Path) -> Result<Self, Failure> {
        let file = files::open(path)?;
        let start = file.start(2)?;
        if start.is_empty() {
            return Err(crate::model::trace_failure(path, &tracer::TraceError::Empty));
        }
        // Archives are zip files; all other inputs are text.
        if start == b"PK" {
            return Ok(Self::Trace(file));
        }
        let name = path.display().to_string();
        // A file that is neither gets the best message from the reader of archives.
        let Some(text) = file.text()? else { return Ok(Self::Trace(file)) };
        let text = text.as_str();
        let failure = |error| failure_of(&name, text, error);
        if PiperWorkload::looks_like(text) {
            return Ok(Self::Piper(PiperWorkload::from_text(text).map_err(failure)?));
        }
        if DnnWorkload::looks_like(text) {
            return Ok(Self::DnnPartitioning(DnnWorkload::from_text(text).map_err(failure)?));
        }
        if text.contains(" -- ") || text.trim().is_empty() {
            return Ok(Self::Pipedream(PipedreamProfile::from_text(text).map_err(failure)?));
        }
        if text.trim_start().starts_with('{') {
            let failure = Failure::input(format!("{name}: this JSON is not a known workload"));
            return Err(failure.with_hint("dnn-partitioning has `maxFPGAs`, Piper has `TMPCs`"));
        }
        Ok(Self::Trace(file))
    }
}

/// Shows the place of an error in a profile.
fn failure_of(name: &str, text: &str, error: ProfileGraphError) -> Failure {
    let failure = Failure::input(format!("{name}: {error}"));
    let failure = match &error.place {
        ProfileGraphPlace::Line(_, span) => failure.at(name, text, span.clone(), "here"),
        _ => match json_place(text, &error.fault) {
            Some(span) => failure.at(name, text, span, "here"),
            None => failure,
        },
    };
    match error.fault {
        ProfileGraphFault::Cycle(_) => {
            failure.with_hint("a model's layers form no cycle; remove one of these edges")
        }
        ProfileGraphFault::Disconnected(..) => {
            failure.with_hint("plan each part by itself, or add the missing edge")
        }
        ProfileGraphFault::UnknownNode(_) if matches!(error.place, ProfileGraphPlace::Line(..)) => {
            failure.with_hint("nodes stand on lines of their own, before or after edges")
        }
        _ => failure,
    }
}

/// Returns the position in a JSON message: `… at line 3 column 7`.
fn json_place(text: &str, fault: &ProfileGraphFault) -> Option<Range<usize>> {
    let ProfileGraphFault::Json(message) = fault else { return None };
    let (_, place) = message.rsplit_once(" at line ")?;
    let (line, column) = place.split_once(" column ")?;
    let (line, column): (usize, usize) = (line.parse().ok()?, column.parse().ok()?);
    let start: usize = text.split_inclusive('\n').take(line.checked_sub(1)?).map(str::len).sum();
    let at = (start + column.saturating_sub(1)).min(text.len());
    text.is_char_boundary(at).then_some(at..at)
}
