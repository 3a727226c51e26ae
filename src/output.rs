//! Standard output: data only, quiet when the reader leaves.

use std::{
    cell::RefCell,
    io::{self, Write},
    rc::Rc,
};

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

    /// Returns an output that keeps what is written, and where it is kept.
    pub fn captured() -> (Self, Rc<RefCell<Vec<u8>>>) {
        let kept = Rc::default();
        (Self { writer: Box::new(Captured(Rc::clone(&kept))) }, kept)
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

struct Captured(Rc<RefCell<Vec<u8>>>);

impl Write for Captured {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.borrow_mut().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
