//! Names and texts that are safe in generated code.
//!
//! Names come from an untrusted file: none of them reaches code, a comment or a path unescaped.

use std::collections::{BTreeSet, HashMap};

use operators::{Arithmetic, ShapeRule};
use tracer::{Program, ValueId};

/// Words with a meaning in the generated code.
const RESERVED: &[&str] = &[
    "False",
    "None",
    "True",
    "and",
    "as",
    "assert",
    "async",
    "await",
    "break",
    "class",
    "continue",
    "def",
    "del",
    "elif",
    "else",
    "except",
    "finally",
    "for",
    "from",
    "global",
    "if",
    "import",
    "in",
    "is",
    "lambda",
    "nonlocal",
    "not",
    "or",
    "pass",
    "raise",
    "return",
    "try",
    "while",
    "with",
    "yield",
    "match",
    "case",
    "type",
    "print",
    // Names that the generated code uses itself.
    "self",
    "torch",
    "nn",
    "F",
    "ops",
    "inf",
    "nan",
    "annotate",
    "unchecked_cast",
    "number",
    "int",
    "float",
    "bool",
    "str",
    "list",
    "tuple",
    "dict",
    "len",
    "getattr",
    "range",
    "uninitialized",
    "CONSTANTS",
    "List",
    "Dict",
    "Tuple",
    "Optional",
    "Tensor",
    "Device",
    "NoneType",
    "Stage",
    "Holder",
    "Path",
    "__torch__",
    "super",
    "complex",
    "device",
    "Any",
    "Scalar",
    "Final",
    "Future",
    "RRef",
    "Union",
    "isinstance",
    "min",
    "max",
    "abs",
    "all",
    "any",
    "sum",
    "zip",
    "enumerate",
    "map",
    "input_device",
    "ord",
    "chr",
    "hex",
    "oct",
    "bin",
    "hash",
    "sorted",
    "round",
    "pow",
    "divmod",
    "iter",
    "next",
    "id",
    "dir",
    "fork",
    "wait",
    "rpc_async",
    "pytorch",
    "again",
    "kept",
    "on_host",
    "_operators",
];

const LONGEST: usize = 48;

/// Names that differ from each other.
#[derive(Default)]
pub(crate) struct Distinct {
    taken: BTreeSet<String>,
    /// The last number that a wanted name was given.
    counters: HashMap<String, u32>,
}

impl Distinct {
    /// Returns a name, with a number if it is taken.
    pub fn choose(&mut self, wanted: String) -> String {
        if self.taken.insert(wanted.clone()) {
            return wanted;
        }
        let counter = self.counters.entry(wanted.clone()).or_insert(1);
        loop {
            *counter += 1;
            let name = format!("{wanted}_{counter}");
            if self.taken.insert(name.clone()) {
                return name;
            }
        }
    }
}

/// A Python identifier for each value of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names {
    by_value: Vec<String>,
}

impl Names {
    /// Chooses the names: the trace's own if it has one, the operator's for temporaries such as `_12`.
    pub fn new(program: &Program) -> Self {
        let mut distinct = Distinct::default();
        let mut by_value = vec![String::new(); program.values.len()];
        // Inputs choose first: their names are the stage's interface.
        for &input in &program.inputs {
            if let Some(value) = program.values.get(input.index()) {
                by_value[input.index()] = distinct.choose(identifier(&value.name));
            }
        }
        for (index, value) in program.values.iter().enumerate() {
            if !by_value[index].is_empty() {
                continue;
            }
            // `x.3` is the third `x`: numbers are assigned here.
            let base = match value.name.rsplit_once('.') {
                Some((base, number)) if number.bytes().all(|b| b.is_ascii_digit()) => base,
                _ => value.name.as_str(),
            };
            let is_temporary = base
                .strip_prefix('_')
                .is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_digit()));
            let wanted = match value.producer.and_then(|node| program.nodes.get(node.index())) {
                Some(node) => {
                    let short = node.operator.rsplit("::").next().unwrap_or("value").trim_matches('_');
                    match short {
                        _ if !is_temporary && base != short => identifier(base),
                        "" => "value".to_string(),
                        _ => named_after(short),
                    }
                }
                None => identifier(base),
            };
            by_value[index] = distinct.choose(wanted);
        }
        Self { by_value }
    }

    /// Returns the identifier of a value.
    pub fn get(&self, value: ValueId) -> &str {
        &self.by_value[value.index()]
    }
}

/// Returns a name for the result of an operator.
fn named_after(operator: &str) -> String {
    let row = operators::find(operator);
    match (Arithmetic::of(operator), row.map(|row| row.shape)) {
        // Values that a trace converts to tensors and back are sizes.
        (
            Arithmetic::ToInt
            | Arithmetic::ToIntImplicitly
            | Arithmetic::ToTensor
            | Arithmetic::ToNumberImplicitly,
            _,
        ) => "size".to_string(),
        (_, Some(ShapeRule::AnyConvolution)) => "conv".to_string(),
        _ => identifier(&operator.to_ascii_lowercase()),
    }
}

/// Makes an identifier from any text.
pub fn identifier(text: &str) -> String {
    let mut name: String = text
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() || c == '_' { c } else { '_' })
        .take(LONGEST)
        .collect();
    if name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit()) {
        name.insert(0, '_');
    }
    // A leading double underscore would be mangled inside a class.
    if name.starts_with("__") {
        name = format!("v{name}");
    }
    // Functions of scripted statements are named by a number.
    if RESERVED.contains(&name.as_str()) || name.starts_with("_opaque_") {
        name.push('_');
    }
    name
}

/// Tells whether an attribute name can be written after a dot.
pub fn is_identifier(name: &str) -> bool {
    let starts_well = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    starts_well
        && !name.starts_with("__")
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
        && !is_keyword(name)
}

/// Tells whether a name has a meaning in the generated code.
pub(crate) fn is_reserved(name: &str) -> bool {
    RESERVED.contains(&name)
}

pub(crate) fn is_keyword(name: &str) -> bool {
    // The keywords come first in the list, up to `yield`.
    let keywords = RESERVED.iter().take_while(|word| **word != "match");
    keywords.into_iter().any(|word| *word == name)
}

/// Writes a text as a string literal that is valid in both Python and TorchScript.
pub fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if (c as u32) < 0x20 || c == '\x7f' => out.push_str(&format!("\\{:03o}", c as u32)),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// Writes a text as a Python string literal: direction marks could make code look like something else, so they are
/// escaped. TorchScript has no escape for them.
pub fn python_quoted(text: &str) -> String {
    let mut out = String::new();
    for c in quoted(text).chars() {
        match c {
            c if turns(c) || matches!(c, '\u{80}'..='\u{9f}' | '\u{2028}' | '\u{2029}' | '\u{feff}') => {
                out.push_str(&format!("\\u{:04x}", c as u32));
            }
            c => out.push(c),
        }
    }
    out
}

/// Tells whether a character changes the direction of text.
fn turns(c: char) -> bool {
    matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Writes a text so that it stays on its line of a comment or a docstring.
pub fn comment(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars().take(400) {
        match c {
            '\\' => out.push('/'),
            '"' => out.push('\''),
            c if c.is_control() || matches!(c, '\u{2028}' | '\u{2029}' | '\u{feff}') => {
                out.push_str(&format!("<{:x}>", c as u32));
            }
            // Direction marks could make code look like something else.
            c if turns(c) => out.push('?'),
            c => out.push(c),
        }
    }
    out
}

/// Writes a float so that it is read back unchanged.
pub fn float(value: f64, infinity: &str, not_a_number: &str) -> String {
    if value.is_nan() {
        return not_a_number.to_string();
    }
    if value.is_infinite() {
        return if value > 0.0 { infinity.to_string() } else { format!("-{infinity}") };
    }
    let plain = format!("{value:?}");
    // Rust prints whole numbers in full up to 1e16; both notations are floats in Python.
    plain
}

/// Returns the path of a module or tensor with a star for each number, as a plan names the cuts of equal layers.
pub fn starred(path: &str) -> String {
    let part = |part| if str::bytes(part).all(|byte| byte.is_ascii_digit()) { "*" } else { part };
    path.split('.').map(part).collect::<Vec<&str>>().join(".")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_text_becomes_an_identifier() {
        let check = |text: &str, expected: &str| assert_eq!(identifier(text), expected);
        check("x", "x");
        check("input.1", "input_1");
        check("0", "_0");
        check("", "_");
        check("class", "class_");
        check("a\nimport os", "a_import_os");
        check("__x", "v__x");
        check("_opaque_3", "_opaque_3_");
    }

    #[test]
    fn literals_and_comments_stay_where_they_are() {
        assert_eq!(quoted("a\"b\\c\nd\x01"), "\"a\\\"b\\\\c\\nd\\001\"");
        assert_eq!(python_quoted("a\u{202e}\nb"), "\"a\\u202e\\nb\"");
        assert_eq!(comment("a\nb\u{202e}c\"\"\""), "a<a>b?c'''");
        assert_eq!(float(1e-5, "inf", "nan"), "1e-5");
        assert_eq!(float(f64::NEG_INFINITY, "inf", "nan"), "-inf");
        assert_eq!(float(2.0, "inf", "nan"), "2.0");
    }

    #[test]
    fn identifiers_are_told_from_other_names() {
        for name in ["conv1", "_x", "type", "self_"] {
            assert!(is_identifier(name), "{name}");
        }
        for name in ["0", "block1-0", "class", "", "a b", "__init__"] {
            assert!(!is_identifier(name), "{name}");
        }
    }
}
