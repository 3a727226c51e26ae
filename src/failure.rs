//! `Failure`: the fault, its place, and a hint.
//!
//! Libraries return errors that name the thing and the fault; only here do they get a hint, a colour and an exit code.

use std::{fmt, io, io::Write as _};

use miette::{Diagnostic, GraphicalReportHandler, GraphicalTheme, LabeledSpan, SourceCode};

use crate::{
    excerpt::Excerpt,
    visible::{shortened, visible},
};

/// The longest line of a message: one screen at most, whatever a file contains.
const LONGEST_LINE: usize = 400;
const MOST_LINES: usize = 24;

/// Why a command ends without its result.
#[derive(Debug)]
pub struct Failure {
    code: u8,
    message: String,
    hint: Option<String>,
    place: Option<Box<LabelledExcerpt>>,
    /// Further faults.
    also: Option<Box<Failure>>,
    broken_pipe: bool,
}

/// Returns both values, or all failures.
pub fn both<A, B>(one: Result<A, Failure>, other: Result<B, Failure>) -> Result<(A, B), Failure> {
    match (one, other) {
        (Ok(one), Ok(other)) => Ok((one, other)),
        (Err(one), Err(other)) => Err(one.and(other)),
        (Err(failure), Ok(_)) | (Ok(_), Err(failure)) => Err(failure),
    }
}

/// An excerpt of a text that the user wrote or passed.
#[derive(Debug)]
struct LabelledExcerpt {
    source: Excerpt,
    label: String,
}

impl Failure {
    /// No plan exists, or a check found a difference.
    pub const NO: u8 = 1;
    /// Wrong input or usage.
    pub const INPUT: u8 = 2;
    /// A bug of this program.
    pub const BUG: u8 = 70;

    /// A wrong input.
    pub fn input(message: impl fmt::Display) -> Self {
        Self::with_code(Self::INPUT, message)
    }

    /// A valid question whose answer is no.
    pub fn no(message: impl fmt::Display) -> Self {
        Self::with_code(Self::NO, message)
    }

    /// A bug of this program, found before it did harm.
    pub fn bug(message: impl fmt::Display) -> Self {
        Self::with_code(Self::BUG, message)
    }

    fn with_code(code: u8, message: impl fmt::Display) -> Self {
        Self { code, message: message.to_string(), hint: None, place: None, also: None, broken_pipe: false }
    }

    /// Names the faulty file.
    pub fn in_file(mut self, path: &std::path::Path) -> Self {
        let name = path.display().to_string();
        if !self.message.starts_with(&name) {
            self.message = format!("{name}: {}", self.message);
        }
        self
    }

    /// Replaces a temporary path in the message by the path that the user knows.
    pub fn with_place(mut self, made: &std::path::Path, known: &std::path::Path) -> Self {
        self.message = self.message.replace(&made.display().to_string(), &known.display().to_string());
        self
    }

    /// Adds a hint.
    pub fn with_hint(mut self, hint: impl fmt::Display) -> Self {
        self.hint = Some(hint.to_string());
        self
    }

    /// Adds the place: a span of bytes in a named text.
    pub fn at(
        mut self,
        name: &str,
        text: &str,
        span: std::ops::Range<usize>,
        label: impl fmt::Display,
    ) -> Self {
        let label = shortened(&visible(&label.to_string()), 100).into_owned();
        self.place = Some(Box::new(LabelledExcerpt { source: Excerpt::new(name, text, span), label }));
        self
    }

    /// Adds the place of a fault by its line and column, both counted from one.
    pub fn at_line(self, name: &str, text: &str, place: Option<(usize, usize)>) -> Self {
        let Some((line, column)) = place else { return self };
        let before: usize = text.split_inclusive('\n').take(line.saturating_sub(1)).map(str::len).sum();
        let mut rest = text[before..].char_indices().skip(column.saturating_sub(1));
        let span = match rest.next() {
            Some((at, c)) => before + at..before + at + c.len_utf8(),
            None => text.len()..text.len(),
        };
        self.at(name, text, span, "here")
    }

    /// The failure of a faulty JSON text, with its place.
    pub fn json(name: &str, text: &str, error: &serde_json::Error) -> Self {
        let place = (error.line(), error.column().max(1));
        let words = schema::in_file_words(&error.to_string());
        Self::input(format!("{name}: {words}")).at_line(name, text, (place.0 > 0).then_some(place))
    }

    /// Tells whether a valid question was answered with no.
    pub fn is_no(&self) -> bool {
        self.code == Self::NO
    }

    /// Adds another fault, which is shown after this one.
    pub fn and(mut self, other: Self) -> Self {
        self.also = Some(Box::new(match self.also.take() {
            Some(also) => also.and(other),
            None => other,
        }));
        self
    }

    /// Returns the process's exit code.
    pub fn exit_code(&self) -> u8 {
        self.code
    }

    /// Tells whether the reader of the output has left, which is not a failure.
    pub fn is_broken_pipe(&self) -> bool {
        self.broken_pipe
    }

    /// Writes the failure to standard error.
    pub fn show(&self) {
        let bold_red = anstyle::AnsiColor::Red.on_default().bold();
        let mut text = format!("{bold_red}error{bold_red:#}: {}\n", bounded(&self.message));
        if let Some(place) = &self.place {
            let handler = GraphicalReportHandler::new_themed(GraphicalTheme::unicode_nocolor());
            // The handler also prints the message; only its drawing of the place is used.
            let mut drawing = String::new();
            if handler.render_report(&mut drawing, place.as_ref()).is_ok() {
                text.extend(drawing.lines().skip(1).map(|line| format!("{line}\n")));
            }
        }
        if let Some(hint) = &self.hint {
            text.push_str(&format!("  hint: {}\n", bounded(hint)));
        }
        say(&text);
        if let Some(also) = &self.also {
            also.show();
        }
    }
}

/// Writes to standard error; if that is closed or full, the text is lost.
pub fn say(text: &str) {
    crate::progress::done();
    let _ = anstream::stderr().write_all(text.as_bytes());
}

/// Writes a note to standard error. Steps of one command with the same note print it once.
pub fn note(text: impl fmt::Display) {
    static SAID: std::sync::Mutex<std::collections::BTreeSet<String>> =
        std::sync::Mutex::new(std::collections::BTreeSet::new());
    let text = bounded(&text.to_string());
    let is_new = SAID.lock().is_ok_and(|mut said| said.insert(text.clone()));
    if is_new {
        let text = format!("note: {text}");
        let width = crate::terminal::error_width().unwrap_or(usize::MAX);
        let lines: Vec<_> = text.lines().map(|line| crate::terminal::broken(line, width)).collect();
        say(&format!("{}\n", lines.join("\n")));
    }
}

/// The most notes of one kind that are printed.
const MOST_NOTES: usize = 8;

/// Returns the notes to print: the first few, and the number of the others.
pub fn shown_notes(notes: Vec<String>) -> Vec<String> {
    let more = notes.len().saturating_sub(MOST_NOTES);
    let mut shown = notes;
    // A single further note takes as much room as its count.
    if more > 1 {
        shown.truncate(MOST_NOTES);
        shown.push(format!("and {more} more like these (--format json lists all)"));
    }
    shown
}

/// Makes a message fit a screen: of bounded size, without control characters, and without lines that imitate the
/// program's own.
fn bounded(message: &str) -> String {
    let message = visible(message);
    let mut lines = message.lines();
    let mut text = shortened(lines.next().unwrap_or_default(), LONGEST_LINE).into_owned();
    for line in lines.by_ref().take(MOST_LINES - 1) {
        let indent = if line.starts_with(' ') { "" } else { "  " };
        text.push_str(&format!("\n{indent}{}", shortened(line, LONGEST_LINE)));
    }
    match lines.count() {
        0 => text,
        more => format!("{text}\n  … and {more} more lines"),
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        let broken_pipe = error.kind() == io::ErrorKind::BrokenPipe;
        Self { broken_pipe, ..Self::input(error) }
    }
}

impl fmt::Display for LabelledExcerpt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.label)
    }
}

impl std::error::Error for LabelledExcerpt {}

impl Diagnostic for LabelledExcerpt {
    fn source_code(&self) -> Option<&dyn SourceCode> {
        Some(&self.source)
    }

    fn labels(&self) -> Option<Box<dyn Iterator<Item = LabeledSpan> + '_>> {
        let span = self.source.span();
        Some(Box::new(std::iter::once(LabeledSpan::new(Some(self.label.clone()), span.start, span.len()))))
    }
}
