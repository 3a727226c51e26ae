//! IR text: what `str(traced.graph)` and `str(traced.inlined_graph)` print.
//!
//! Two steps: [`parse()`] reads a tree that prints back byte for byte, [`read_ir`] also lowers it to a
//! [`Program`]. An inlined graph has lost its calls but kept the scope of each node, so calls are found again as
//! contiguous runs of one scope. A graph that is not inlined keeps each call as one `prim::CallMethod`.

mod boundaries;
mod control;
mod error;
mod fault;
mod literals;
mod lower;
mod meaning;
mod parse;
mod print;
mod scopes;
mod strings;
pub mod tree;
mod types;

pub use error::IrError;
pub use tree::Graph;

use crate::{Program, Source, Span};

const MAX_BYTES: usize = 1 << 30;

/// Reads an IR text into a program.
///
/// # Errors
/// The first fault, with its place in the text.
pub fn read_ir(text: &str) -> Result<Program, IrError> {
    let graph = parse(text)?;
    let mut program = lower::lower(&graph)?;
    program.sources = vec![Source { name: "graph".to_owned(), text: text.to_owned() }];
    Ok(program)
}

/// Reads an IR text into the tree that prints as that text.
///
/// # Errors
/// The first fault, with its place in the text.
pub fn parse(text: &str) -> Result<Graph, IrError> {
    if text.len() > MAX_BYTES {
        return Err(IrError::TooLarge { bytes: text.len(), limit: MAX_BYTES });
    }
    let whole = parse::Whole::new(text);
    match parse::file(text, whole) {
        Ok((_, graph)) => Ok(graph),
        Err(nom::Err::Error(fault) | nom::Err::Failure(fault)) => {
            let start = whole.position(fault.rest);
            let (found, length) = found(fault.rest);
            let expected = if fault.expected.is_empty() { "something else" } else { fault.expected };
            let span = Span { source: 0, start: start as u32, end: (start + length) as u32 };
            Err(IrError::Syntax { expected: expected.to_owned(), found, span })
        }
        Err(nom::Err::Incomplete(_)) => {
            let end = Span { source: 0, start: text.len() as u32, end: text.len() as u32 };
            let found = "the end of the text".to_owned();
            Err(IrError::Syntax { expected: "more".to_owned(), found, span: end })
        }
    }
}

/// Returns the word that stands at the fault, as shown, and its length.
fn found(rest: &str) -> (String, usize) {
    let Some(first) = rest.chars().next() else {
        return ("the end of the text".to_owned(), 0);
    };
    if first == '\n' || first == '\r' {
        return ("the end of the line".to_owned(), 0);
    }
    let is_word = |c: char| c.is_alphanumeric() || matches!(c, '_' | '.' | ':' | '%');
    let word: String = if is_word(first) {
        rest.chars().take_while(|c| is_word(*c)).take(40).collect()
    } else {
        first.to_string()
    };
    (format!("`{word}`"), word.len())
}

#[cfg(test)]
mod tests;
