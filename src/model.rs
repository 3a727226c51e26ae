//! From a file to a model: read and built; every fault is shown with its place.

use std::{collections::BTreeMap, path::Path};

use graph::{BuildError, BuildErrors, BuildOptions, InputShape, ModelGraph};
use tracer::{ArchiveKind, Program, Span, Tensor, TraceError};

use crate::{commands::trace::input_spec::InputSpec, failure::Failure, files};

/// Builds the graph of a trace for inputs of the given shapes.
pub fn build(path: &Path, program: &Program, inputs: Vec<InputShape>) -> Result<ModelGraph, Failure> {
    let graph = graph::build(program, &BuildOptions { inputs })
        .map_err(|errors| build_failure(path, program, &errors))?;
    if let Some(note) = disagreements(&graph) {
        crate::failure::note(note);
    }
    Ok(graph)
}

/// Reads a trace without building its graph, and prints the notes of tracing.
pub fn program(path: &Path) -> Result<Program, Failure> {
    let program = program_quietly(path)?;
    crate::trace_notes::tell(&program);
    Ok(program)
}

/// Reads a trace without building its graph.
pub fn program_quietly(path: &Path) -> Result<Program, Failure> {
    let file = files::open(path)?;
    file.unless_changed(read(&file))
}

/// Describes the kind of a model file; `None` if it is none.
pub fn kind_of_file(path: &Path) -> Option<&'static str> {
    let program = path.is_file().then(|| program_quietly(path).ok())??;
    Some(if is_exported(&program) { "a program of torch.export" } else { "a trace" })
}

/// Tells whether a program was read from an archive of torch.export.
pub fn is_exported(program: &Program) -> bool {
    program.archive.as_ref().is_some_and(|archive| matches!(archive.kind, ArchiveKind::Export { .. }))
}

/// Reads an archive.
pub fn read_archive(file: &files::Opened) -> Result<Program, Failure> {
    tracer::read_archive_at(file).map_err(|error| trace_failure(file.path(), &error))
}

/// Reads an archive or IR text, whichever the bytes are.
pub fn read(file: &files::Opened) -> Result<Program, Failure> {
    // Only a text with a graph in it counts as IR; all else gets the best message from the reader of archives.
    let text = if tracer::is_archive(&file.start(4)?) { None } else { file.text()? };
    let text = text.filter(|text| text.contains("graph("));
    // Some editors mark UTF-8.
    let text = text.as_deref().map(|text| text.strip_prefix('\u{feff}').unwrap_or(text));
    let Some(text) = text else { return read_archive(file) };
    let path = file.path();
    tracer::ir::read_ir(text).map_err(|error| {
        let failure = Failure::input(format!("{}: {error}", path.display()))
            .with_hint("IR text is the complete output of str(traced.graph) or str(traced.inlined_graph)");
        match error.span() {
            Some(span) => {
                failure.at(&path.display().to_string(), text, span.start as usize..span.end as usize, "here")
            }
            None => failure,
        }
    })
}

/// Reads the sizes of tensors by path.
fn tensors(path: &Path) -> Result<Vec<Tensor>, Failure> {
    let file = files::open(path)?;
    let start = file.start(1 << 12)?;
    if tracer::is_archive(&start) || !start.trim_ascii_start().starts_with(b"{") {
        return file.unless_changed(tracer::read_tensors_at(&file).map_err(|error| {
            trace_failure(path, &error).with_hint(
                "--parameters takes a file of torch.save(model.state_dict(), FILE), a .safetensors, an archive, or JSON",
            )
        }));
    }
    let text = files::read_text(path)?;
    let sizes: BTreeMap<String, Vec<u64>> = serde_json::from_str(&text).map_err(|error| {
        Failure::json(&path.display().to_string(), &text, &error)
            .with_hint("write the sizes as {\"conv1.weight\": [64, 3, 7, 7], …}")
    })?;
    let tensor = |(path, shape): (String, Vec<u64>)| {
        let strides = tracer::dense_strides(&shape);
        let role = tracer::role_by_name(&path, graph::DType::Float32);
        let (dtype, requires_grad) = (graph::DType::Float32, role == graph::Role::Parameter);
        Tensor { path, dtype, shape, strides, storage: None, requires_grad, role, device: "cpu".to_string() }
    };
    Ok(sizes.into_iter().map(tensor).collect())
}

/// Completes the trace's tensors with the sizes in another file, and adds tensors that no operator reads.
pub fn adopt_sizes(program: &mut Program, from: &Path) -> Result<(), Failure> {
    let mut rest: BTreeMap<String, Tensor> =
        tensors(from)?.into_iter().map(|tensor| (tensor.path.clone(), tensor)).collect();
    let mut n_found = 0;
    for tensor in program.tensors.iter_mut().filter(|tensor| tensor.role != graph::Role::Constant) {
        if let Some(known) = rest.remove(&tensor.path) {
            n_found += 1;
            *tensor = known;
        }
    }
    if n_found == 0 {
        return Err(Failure::input(format!("{} names no parameter of the trace", from.display()))
            .with_hint("names are paths from the root, as in model.state_dict(): layer1.0.conv1.weight"));
    }
    program.tensors.extend(rest.into_values().filter(|tensor| tensor.role != graph::Role::Constant));
    Ok(())
}

/// Reports sizes for which the trace's record was used although inference disagrees.
fn disagreements(graph: &ModelGraph) -> Option<String> {
    let first = graph.disagreements.first()?;
    let operator = graph.operator(first.operator);
    let path = &graph.block(operator.block).path;
    let place = if path.is_empty() { "the root".to_string() } else { format!("`{path}`") };
    let count = match graph.disagreements.len() {
        1 => "one operator has".to_string(),
        count => format!("{count} operators have"),
    };
    Some(format!(
        "{count} sizes or types in the trace that differ from the inferred ones; the trace's are used (`{}` in {place}: {}, recorded {})",
        operator.name, first.inferred, first.recorded
    ))
}

/// Reads the shapes of inputs.
pub fn input_shapes(inputs: &[String]) -> Result<Vec<InputShape>, Failure> {
    inputs.iter().map(|text| input_shape(text)).collect()
}

fn input_shape(text: &str) -> Result<InputShape, Failure> {
    let spec = InputSpec::parse(text).map_err(|error| {
        Failure::input(&error)
            .at("--input", text, error.span(), error.found())
            .with_hint("the format is [NAME=]SHAPE[:DTYPE], such as 8x3x224x224 or ids=8x128:int64")
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

/// Turns an error of `tracer` into a failure with its place and hint.
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

/// Turns the errors of `graph` into one failure; the first error with a place is drawn.
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

/// Lists operators that could not be followed exactly, and their places.
pub fn notes(program: &Program) -> impl Iterator<Item = String> {
    program.notes.iter().map(|note| {
        let path = if note.path.is_empty() { "(root)" } else { &note.path };
        let mut text = format!("{path}: {}", note.text);
        if note.node.is_some_and(|node| program.nodes[node.index()].operator == "prim::Opaque") {
            text.push_str("; its cost is not counted");
        }
        let source = program.sources.get(note.span.source as usize);
        if let Some(source) = source.filter(|_| note.span.end > note.span.start) {
            let line = source.line(note.span.start as usize);
            text.push_str(&if source.name.is_empty() {
                format!(" (line {line})")
            } else {
                format!(" ({}:{line})", source.name)
            });
        }
        text
    })
}

/// Adds the place of a span of the program.
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
        BuildError::TooManyInputs { inputs, .. } if !inputs.is_empty() => {
            Some(format!("give at most {} --input", inputs.len()))
        }
        BuildError::TooManyInputs { .. } | BuildError::NoTensor { .. } => Some(
            "--input gives shapes only to tensors; wrap the model in one whose `forward` takes tensors, and trace that"
                .to_string(),
        ),
        BuildError::NoSuchInput { .. } | BuildError::InputTwice { .. } => {
            Some("give one --input NAME=SHAPE per input, or shapes in the order of `forward`".to_string())
        }
        BuildError::Size { .. } => Some(
            "export it with the sizes left open: torch.export.export(model, args, dynamic_shapes={\"x\": {0: torch.export.Dim(\"batch\", max=64)}})"
                .to_string(),
        ),
        BuildError::Rejected { .. } => Some(
            "tracing fixed sizes as numbers that fit only the traced shapes; use those, or trace again with the wanted shapes"
                .to_string(),
        ),
        _ => None,
    }
}
