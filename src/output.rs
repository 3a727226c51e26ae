//! Standard output: data only, quiet when the reader leaves.

use std::io::{self, Write};

use clap::ValueEnum;

use crate::{failure::Failure, progress, visible::visible};

/// How a command prints its answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people.
    #[default]
    Text,
    /// For programs: one JSON document with a `schema_version`.
    Json,
}

/// Where a command's answer goes.
pub struct Output {
    writer: Box<dyn Write>,
}

impl Output {
    /// Returns the process's standard output; colours are dropped where nobody can see them.
    pub fn stdout() -> Self {
        Self { writer: Box::new(anstream::AutoStream::auto(io::stdout())) }
    }

    /// Writes a text for people; names in it cannot speak to their terminal.
    pub fn text(&mut self, text: &str) -> Result<(), Failure> {
        self.document(&visible(text))
    }

    /// Writes a document as it is.
    pub fn document(&mut self, text: &str) -> Result<(), Failure> {
        progress::done();
        let done = self.writer.write_all(text.as_bytes()).and_then(|()| self.writer.flush());
        done.map_err(|error| match error.kind() {
            io::ErrorKind::BrokenPipe => error.into(),
            _ => Failure::input(format!("cannot write to standard output: {error}")),
        })
    }

    /// Writes one JSON document.
    pub fn json(&mut self, value: &serde_json::Value) -> Result<(), Failure> {
        self.document(&format!("{value:#}\n"))
    }
}
