//! Standard output: data only, quiet when the reader leaves.

use std::io::{self, Write};

use clap::ValueEnum;

use crate::failure::Failure;

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

    /// Writes a text as it is.
    pub fn text(&mut self, text: &str) -> Result<(), Failure> {
        self.writer.write_all(text.as_bytes())?;
        self.writer.flush()?;
        Ok(())
    }

    /// Writes one JSON document.
    pub fn json(&mut self, value: &serde_json::Value) -> Result<(), Failure> {
        self.text(&format!("{value:#}\n"))
    }
}
