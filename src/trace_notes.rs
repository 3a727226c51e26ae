//! Findings of tracing: every command that reads the archive prints one line per kind.

use tracer::{Comparison, Program, TraceNote};

/// The most places that one line names.
const NAMED_PLACES: usize = 3;

/// Prints the findings of tracing.
pub fn tell(program: &Program) {
    for line in lines(program) {
        crate::failure::note(line);
    }
}

/// Returns one line per kind of finding.
pub fn lines(program: &Program) -> Vec<String> {
    let Some(recorded) = &program.recorded else { return Vec::new() };
    let mut lines = Vec::new();
    let places: Vec<String> = recorded.notes.iter().filter_map(place).collect();
    if let Some(first) = recorded.notes.iter().find(|note| note.place.is_some()) {
        let more = match places.len().saturating_sub(NAMED_PLACES) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let named = places[..places.len().min(NAMED_PLACES)].join(", ");
        lines.push(match places.len() {
            1 => format!(
                "the trace contains only one outcome of a statement that depends on data: {named}: {}",
                first.text
            ),
            count => format!(
                "the trace contains only one outcome of {count} statements that depend on data: {named}{more}"
            ),
        });
    }
    lines.extend(recorded.notes.iter().filter(|note| note.place.is_none()).map(|note| note.text.clone()));
    if let Comparison::Skipped(reason) = &recorded.comparison {
        lines.push(format!("the trace was not compared with the model on a second input ({reason})"));
    }
    if !recorded.inlined_functions.is_empty() {
        lines.push(format!(
            "traced with --inline-functions: {} run as their forward passes, with torch's gradients",
            recorded.inlined_functions.join(", ")
        ));
    }
    lines
}

/// Returns the lines for the user who traces: every statement, and one line per other kind of finding.
pub fn detailed(program: &Program) -> Vec<String> {
    let statements = |note: &TraceNote| place(note).map(|place| format!("{place}: {}", note.text));
    let recorded = program.recorded.as_ref();
    let found: Vec<String> =
        recorded.iter().flat_map(|recorded| recorded.notes.iter().filter_map(statements)).collect();
    let others = lines(program).into_iter().skip(usize::from(!found.is_empty()));
    crate::failure::shown_notes(found).into_iter().chain(others).collect()
}

/// Returns every finding with its place.
pub fn all(program: &Program) -> Vec<String> {
    let told = |note: &TraceNote| match place(note) {
        Some(place) => format!("{place}: {}", note.text),
        None => note.text.clone(),
    };
    program.recorded.iter().flat_map(|recorded| recorded.notes.iter().map(told)).collect()
}

fn place(note: &TraceNote) -> Option<String> {
    note.place.as_ref().map(|(file, line)| format!("{file}:{line}"))
}
