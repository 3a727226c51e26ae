//! Standard output: only data, and silent when the reader leaves.

use std::{
    fmt::Write as _,
    io::{self, IsTerminal, Write},
};

use clap::ValueEnum;

use crate::{
    failure::Failure,
    progress,
    terminal::{self, EMPHASIS, broken},
    visible::visible,
};

/// The style of emphasis.
const STRONG: anstyle::Style = anstyle::Style::new().bold();

/// The format of an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people.
    #[default]
    Text,
    /// For programs: one JSON document with a `schema_version`.
    Json,
}

/// The destination of a command's answer.
pub struct Output {
    writer: Box<dyn Write>,
}

impl Output {
    /// Returns the process's standard output; colours are dropped if it is not a terminal.
    pub fn stdout() -> Self {
        Self { writer: Box::new(anstream::AutoStream::auto(io::stdout())) }
    }

    /// Writes a text for people: control characters in names are replaced, and long lines break between words.
    pub fn text(&mut self, text: &str) -> Result<(), Failure> {
        let width = terminal::width();
        let mut shown = String::with_capacity(text.len() + 64);
        for line in text.split_inclusive('\n') {
            let (line, is_strong) = line.strip_prefix(EMPHASIS).map_or((line, false), |line| (line, true));
            let (line, end) = line.strip_suffix('\n').map_or((line, ""), |line| (line, "\n"));
            let line = visible(line);
            let line = width.map_or_else(|| line.clone(), |width| broken(&line, width).into_owned().into());
            if is_strong {
                let _ = write!(shown, "{STRONG}{line}{STRONG:#}");
            } else {
                shown.push_str(&line);
            }
            shown.push_str(end);
        }
        self.document(&shown)
    }

    /// Writes a document unchanged.
    pub fn document(&mut self, text: &str) -> Result<(), Failure> {
        progress::done();
        let done = self.writer.write_all(text.as_bytes()).and_then(|()| self.writer.flush());
        done.map_err(unwritten)
    }

    /// Writes binary data; refused on a terminal.
    pub fn bytes(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        if io::stdout().is_terminal() {
            return Err(Failure::input("a terminal cannot show this").with_hint("name a file with -o"));
        }
        progress::done();
        // Bypasses the filter of colours.
        let mut plain = io::stdout().lock();
        plain.write_all(bytes).and_then(|()| plain.flush()).map_err(unwritten)
    }

    /// Writes one JSON document.
    pub fn json(&mut self, value: &serde_json::Value) -> Result<(), Failure> {
        self.document(&format!("{value:#}\n"))
    }
}

fn unwritten(error: io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::BrokenPipe => error.into(),
        _ => Failure::input(format!("cannot write to standard output: {error}")),
    }
}
