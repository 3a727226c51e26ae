//! From a file to a model: mapped, read, built, and every fault shown with its place.

use std::path::Path;

use graph::{BuildError, BuildErrors, BuildOptions, InputShape, ModelGraph};
use tracer::{Program, Span, TraceError};

use crate::{commands::trace::input_spec::InputSpec, failure::Failure, files};

/// A model that was read.
pub struct Model {
    /// What the trace says.
    pub program: Program,
    /// What it is made of.
    pub graph: ModelGraph,
}

/// Reads a trace, an archive or IR text, and builds its graph for the given inputs (`[NAME=]SHAPE[:DTYPE]`).
pub fn load(path: &Path, inputs: &[String]) -> Result<Model, Failure> {
    let inputs = inputs.iter().map(|text| input_shape(text)).collect::<Result<Vec<_>, _>>()?;
    let bytes = files::map(path)?;
    let program = read(path, &bytes)?;
    let graph = graph::build(&program, &BuildOptions { inputs })
        .map_err(|errors| build_failure(path, &program, &errors))?;
    Ok(Model { program, graph })
}

/// Reads a trace without building its graph.
pub fn program(path: &Path) -> Result<Program, Failure> {
    read(path, &files::map(path)?)
}

/// Reads what the bytes are: an archive or IR text.
fn read(path: &Path, bytes: &[u8]) -> Result<Program, Failure> {
    // Only a text with a graph in it is taken for IR; everything else is best explained by the reader of archives.
    let text = match tracer::is_archive(bytes) {
        true => None,
        false => std::str::from_utf8(bytes).ok().filter(|text| text.contains("graph(")),
    };
    let Some(text) = text else {
        return tracer::read_archive(bytes).map_err(|error| trace_failure(path, &error));
    };
    tracer::ir::read_ir(text).map_err(|error| {
        let failure = Failure::input(format!("{}: {error}", path.display())).with_hint(
            "IR text is what str(traced.graph) or str(traced.inlined_graph) gives, whole and unchanged",
        );
        match error.span() {
            Some(span) => {
                failure.at(&path.display().to_string(), text, span.start as usize..span.end as usize, "here")
            }
            None => failure,
        }
    })
}

fn input_shape(text: &str) -> Result<InputShape, Failure> {
    let spec = InputSpec::parse(text).map_err(|error| {
        Failure::input(&error)
            .at("--input", text, error.span(), error.found())
            .with_hint("inputs are written [NAME=]SHAPE[:DTYPE], such as 8x3x224x224 or ids=8x128:int64")
    })?;
    let is_written = text.split(':').skip(1).any(|part| part == spec.dtype);
    let dtype = is_written
        .then(|| DTYPES.into_iter().find(|dtype| graph::dtype_name(*dtype) == spec.dtype))
        .flatten();
    Ok(InputShape { name: spec.name, shape: spec.shape, dtype })
}

const DTYPES: [graph::DType; 17] = {
    use graph::DType::*;
    [
        Float64, Float32, Float16, BFloat16, Int64, Int32, Int16, Int8, UInt8, UInt16, UInt32, UInt64, Bool,
        Complex64, Complex128, Float8E4M3, Float8E5M2,
    ]
};

/// Turns what `tracer` found into a failure with its place and hint.
pub fn trace_failure(path: &Path, error: &TraceError) -> Failure {
    let mut failure = Failure::input(format!("{}: {error}", path.display()));
    if let Some(place) = error.place() {
        failure = failure.at(&place.source.name, &place.source.text, place.range.clone(), "here");
    }
    match error.hint() {
        Some(hint) => failure.with_hint(hint),
        None => failure,
    }
}

/// Turns what `graph` found into one failure; the first error with a place is drawn.
fn build_failure(path: &Path, program: &Program, errors: &BuildErrors) -> Failure {
    let lines: Vec<String> = errors.0.iter().map(ToString::to_string).collect();
    let mut failure = Failure::input(format!("{}: {}", path.display(), lines.join("\n       ")));
    let place = errors.0.iter().find_map(|error| match error {
        BuildError::Rejected { span, reason, .. } => Some((span, reason)),
        _ => None,
    });
    if let Some((span, reason)) = place {
        failure = at_span(failure, program, *span, reason);
    }
    match errors.0.iter().find_map(hint) {
        Some(hint) => failure.with_hint(hint),
        None => failure,
    }
}

/// Says what could not be followed exactly, and where.
pub fn notes(program: &Program) -> impl Iterator<Item = String> {
    program.notes.iter().map(|note| {
        let path = if note.path.is_empty() { "(root)" } else { &note.path };
        let mut text = format!("{path}: {}", note.text);
        if note.node.is_some_and(|node| program.nodes[node.index()].operator == "prim::Opaque") {
            text.push_str("; what it costs is not counted");
        }
        let source = program.sources.get(note.span.source as usize);
        if let Some(source) = source.filter(|_| note.span.end > note.span.start) {
            let before = source.text.as_bytes().get(..note.span.start as usize).unwrap_or_default();
            let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
            text.push_str(&match source.name.is_empty() {
                true => format!(" (line {line})"),
                false => format!(" ({}:{line})", source.name),
            });
        }
        text
    })
}

/// Adds the place that a span of the program points at.
pub fn at_span(failure: Failure, program: &Program, span: Span, label: &str) -> Failure {
    match program.sources.get(span.source as usize) {
        Some(source) if span.end > span.start => {
            failure.at(&source.name, &source.text, span.start as usize..span.end as usize, label)
        }
        _ => failure,
    }
}

fn hint(error: &BuildError) -> Option<String> {
    match error {
        BuildError::NoShape { inputs, missing, dtypes } => {
            let flags = inputs.iter().zip(dtypes).filter(|(name, _)| missing.contains(name)).map(|(name, dtype)| {
                let dtype = dtype.map_or(String::new(), |dtype| format!(":{}", graph::dtype_name(dtype)));
                format!("--input {name}=SHAPE{dtype}")
            });
            let flags: Vec<String> = flags.collect();
            Some(format!("give each a shape: {} (SHAPE is like 8x3x224x224, or 8x128:int64)", flags.join(" ")))
        }
        BuildError::TooManyInputs { inputs, .. } => Some(format!("give at most {} --input", inputs.len())),
        BuildError::NoSuchInput { .. } | BuildError::InputTwice { .. } => {
            Some("give each input one --input NAME=SHAPE, or shapes in the order of `forward`".to_string())
        }
        BuildError::Rejected { .. } => Some(
            "sizes that tracing has fixed as numbers fit the traced shapes only; try those, or trace again with the shapes you want"
                .to_string(),
        ),
        _ => None,
    }
}
