//! What a command works on: a model's file, opened and read once, with its graph and its costs, made once and handed on.
//!
//! The file stays open: what weights are copied from later is what the code was read from.

use std::{cell::OnceCell, path::Path, sync::Arc};

use graph::{InputShape, ModelGraph, OperatorCosts};
use tracer::Program;

use crate::{
    failure::Failure,
    files::{self, Opened},
    model, trace_notes,
};

/// A model's file, and what was read from it.
pub struct ModelFile {
    file: Arc<Opened>,
    /// What the trace says.
    pub program: Program,
    digest: OnceCell<String>,
}

impl ModelFile {
    /// Reads a trace, an archive or IR text, and tells what was found while it was made.
    pub fn read(path: &Path) -> Result<Self, Failure> {
        Self::of(files::open(path)?)
    }

    /// Reads a trace from a file that is open.
    pub fn of(file: Opened) -> Result<Self, Failure> {
        let program = model::read(&file);
        Self::with(file, program)
    }

    /// Reads an archive: what stages are cut from.
    pub fn read_archive(path: &Path) -> Result<Self, Failure> {
        let file = files::open(path)?;
        let program = model::read_archive(&file);
        Self::with(file, program)
    }

    fn with(file: Opened, program: Result<Program, Failure>) -> Result<Self, Failure> {
        let program = file.unless_changed(program)?;
        trace_notes::tell(&program);
        Ok(Self { file: Arc::new(file), program, digest: OnceCell::new() })
    }

    /// Returns the place of the file.
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// Returns the file, open.
    pub fn opened(&self) -> &Arc<Opened> {
        &self.file
    }

    /// Returns what tells the model from others.
    pub fn digest(&self) -> &str {
        self.digest.get_or_init(|| tracer::digest(&self.program))
    }

    /// Returns the file's name without its ending.
    pub fn stem(&self) -> String {
        self.path().file_stem().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// Refuses what stages cannot be cut from, an IR text.
    pub fn require_archive(&self) -> Result<(), Failure> {
        if self.program.archive.is_some() { Ok(()) } else { model::read_archive(&self.file).map(|_| ()) }
    }
}

/// A model with its graph and its costs.
pub struct Workspace {
    /// The file that it was read from.
    pub file: ModelFile,
    /// What it is made of.
    pub graph: ModelGraph,
    /// What its operators take, in FLOPs and bytes.
    pub costs: OperatorCosts,
}

impl Workspace {
    /// Reads a trace and builds its graph for the given inputs (`[NAME=]SHAPE[:DTYPE]`).
    pub fn read(path: &Path, inputs: &[String]) -> Result<Self, Failure> {
        Self::read_with(path, inputs, None)
    }

    /// Reads a trace with the sizes of its parameters from another file, where the trace does not say them.
    pub fn read_with(path: &Path, inputs: &[String], parameters: Option<&Path>) -> Result<Self, Failure> {
        let inputs = model::input_shapes(inputs)?;
        let mut file = ModelFile::read(path)?;
        if let Some(parameters) = parameters {
            model::adopt_sizes(&mut file.program, parameters)?;
        }
        Self::build(file, inputs)
    }

    /// Reads a trace from a file that is open.
    pub fn of(file: Opened, inputs: &[String]) -> Result<Self, Failure> {
        let inputs = model::input_shapes(inputs)?;
        Self::build(ModelFile::of(file)?, inputs)
    }

    /// Builds the graph of a trace that was read.
    pub fn build(file: ModelFile, inputs: Vec<InputShape>) -> Result<Self, Failure> {
        let graph = model::build(file.path(), &file.program, inputs)?;
        let costs = graph::costs(&graph);
        Ok(Self { file, graph, costs })
    }

    /// Returns what the trace says.
    pub fn program(&self) -> &Program {
        &self.file.program
    }
}
