//! TorchScript's code dialect: text to tree.

pub(crate) mod ast;
pub(crate) mod expression;
pub(crate) mod file;
pub(crate) mod lexer;
pub(crate) mod statement;

#[cfg(test)]
mod tests;

use ast::{Definition, File, Function};
use lexer::{Fault, word};

use crate::{
    error::{SourceRange, TraceError},
    program::Source,
};

/// Parses a file's classes and functions; function bodies stay unparsed.
pub(crate) fn parse_file(source: &Source) -> Result<File<'_>, TraceError> {
    file::file(&source.text).map(|(_, file)| file).map_err(|error| syntax(source, error))
}

/// Parses a function's body, once.
pub(crate) fn parse_body<'f, 'a>(
    source: &Source,
    function: &'f Function<'a>,
) -> Result<&'f Definition<'a>, TraceError> {
    let body = function.body.get_or_init(|| match statement::definition(function.text, 0) {
        Ok(("", definition)) => Ok(definition),
        Ok((rest, _)) => {
            Err(Box::new(fault(source, Fault { at: rest, expected: "the indentation of the function" })))
        }
        Err(error) => Err(Box::new(syntax(source, error))),
    });
    body.as_ref().map_err(|error| (**error).clone())
}

fn syntax(source: &Source, error: nom::Err<Fault<'_>>) -> TraceError {
    match error {
        nom::Err::Error(found) | nom::Err::Failure(found) => fault(source, found),
        nom::Err::Incomplete(_) => unreachable!("complete parsers never ask for more"),
    }
}

fn fault(source: &Source, fault: Fault<'_>) -> TraceError {
    let start = offset_in(&source.text, fault.at);
    let found = match word(fault.at) {
        "" => "the end of the text".to_owned(),
        "\n" | "\r" => "the end of the line".to_owned(),
        word => format!("`{word}`"),
    };
    let end = start + word(fault.at).len();
    TraceError::Syntax {
        place: SourceRange { source: Box::new(source.clone()), range: start..end },
        expected: fault.expected,
        found,
    }
}

/// Returns where a slice lies in the text that it was cut from.
pub(crate) fn offset_in(text: &str, slice: &str) -> usize {
    (slice.as_ptr() as usize).saturating_sub(text.as_ptr() as usize).min(text.len())
}
