//! Argument names of every operator that torch knows, from `signatures.txt`.
//!
//! The text is printed by torch itself (`fixtures/signatures.py`), sorted by name. It is searched, not loaded: only the
//! operators that a model uses are ever parsed. `Tensor(a!)` marks a tensor that is written, `Tensor(a)` one that the
//! result may alias.

static SIGNATURES: &str = include_str!("signatures.txt");

/// One overload of an operator.
#[derive(Clone, Debug, PartialEq)]
pub struct Signature {
    /// The part after the dot in `aten::add.Tensor`; empty for the overload without a name.
    pub overload: &'static str,
    /// Parameters in order.
    pub parameters: Vec<Parameter>,
    /// Types of the results.
    pub results: Vec<&'static str>,
}

/// One parameter of a signature.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameter {
    /// Its name.
    pub name: &'static str,
    /// Its type without alias marks: `Tensor?`, `SymInt[]`.
    pub type_: &'static str,
    /// True if the operator writes to it.
    pub is_written: bool,
    /// Its default.
    pub default: Option<Default>,
    /// True after the `*`.
    pub is_keyword_only: bool,
}

/// A default value.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)] // Literals.
pub enum Default {
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Str(String),
    Integers(Vec<i64>),
}

/// Returns the overloads of an operator: `aten::add`.
pub fn overloads(name: &str) -> Vec<Signature> {
    lines(name).filter_map(parse).collect()
}

/// Returns the lines of one operator. Binary search over the bytes, then a short walk.
fn lines(name: &str) -> impl Iterator<Item = &'static str> + '_ {
    let (mut low, mut high) = (0, SIGNATURES.len());
    while low < high {
        let middle = low + (high - low) / 2;
        let start = SIGNATURES[..middle].rfind('\n').map_or(0, |at| at + 1);
        let end = SIGNATURES[middle..].find('\n').map_or(SIGNATURES.len(), |at| middle + at);
        if plain_name(&SIGNATURES[start..end]) < name { low = (end + 1).min(high) } else { high = start }
    }
    SIGNATURES[low..].lines().take_while(move |line| plain_name(line) == name)
}

fn plain_name(line: &str) -> &str {
    let head = line.split('(').next().unwrap_or(line);
    head.split('.').next().unwrap_or(head)
}

/// Parses `aten::sum.dim(Tensor self, int[1]? dim, *, ScalarType? dtype=None) -> Tensor`.
fn parse(line: &'static str) -> Option<Signature> {
    let open = line.find('(')?;
    let (arguments, rest) = enclosed(&line[open..])?;
    let overload = line[..open].split_once('.').map_or("", |(_, overload)| overload);
    let mut parameters = Vec::new();
    let mut is_keyword_only = false;
    for piece in split(arguments) {
        if piece == "*" {
            is_keyword_only = true;
            continue;
        }
        let (piece, default) = match piece.split_once('=') {
            Some((piece, default)) => (piece, Some(parse_default(default))),
            None => (piece, None),
        };
        let (type_, name) = piece.rsplit_once(' ')?;
        let is_written = type_.contains('!');
        parameters.push(Parameter {
            name,
            type_: without_alias(type_),
            is_written,
            default,
            is_keyword_only,
        });
    }
    let results = rest.trim_start().strip_prefix("->")?.trim();
    let results = if results.starts_with('(') { split(enclosed(results)?.0) } else { vec![results] };
    Some(Signature { overload, parameters, results: results.into_iter().map(without_alias).collect() })
}

/// Splits `(a, (b), c) rest` at the parenthesis that closes the first.
fn enclosed(text: &'static str) -> Option<(&'static str, &'static str)> {
    let mut depth = 0;
    for (at, letter) in text.char_indices() {
        match letter {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some((&text[1..at], &text[at + 1..]));
        }
    }
    None
}

/// Splits at commas outside of brackets.
fn split(text: &'static str) -> Vec<&'static str> {
    let (mut depth, mut start, mut pieces) = (0, 0, Vec::new());
    for (at, letter) in text.char_indices() {
        match letter {
            '(' | '[' => depth += 1,
            ')' | ']' => depth -= 1,
            ',' if depth == 0 => {
                pieces.push(text[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
    }
    let last = text[start..].trim();
    if !last.is_empty() {
        pieces.push(last);
    }
    pieces
}

/// Drops `(a!)` from `Tensor(a!)`; a list keeps its brackets in the rare `Tensor(a)[]`.
fn without_alias(type_: &'static str) -> &'static str {
    match type_.strip_prefix("Tensor(") {
        Some(rest) if rest.ends_with(")[]") => "Tensor[]",
        Some(rest) if rest.ends_with(")?") => "Tensor?",
        Some(_) => "Tensor",
        None => type_,
    }
}

fn parse_default(text: &str) -> Default {
    match text {
        "None" => return Default::None,
        "True" => return Default::Bool(true),
        "False" => return Default::Bool(false),
        _ => {}
    }
    if let Some(list) = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')) {
        return Default::Integers(list.split(',').filter_map(|item| item.trim().parse().ok()).collect());
    }
    if let Ok(value) = text.parse() {
        Default::Int(value)
    } else if let Ok(value) = text.parse() {
        Default::Float(value)
    } else {
        Default::Str(text.trim_matches(['"', '\'']).to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_parses() {
        for line in SIGNATURES.lines() {
            assert!(parse(line).is_some(), "{line}");
        }
    }

    #[test]
    fn every_name_is_found() {
        let mut names: Vec<&str> = SIGNATURES.lines().map(plain_name).collect();
        assert!(names.is_sorted());
        names.dedup();
        for name in names {
            assert!(!overloads(name).is_empty(), "{name}");
        }
        assert!(overloads("aten::no_such").is_empty());
        assert!(overloads("").is_empty());
        assert!(overloads("zzz").is_empty());
    }

    #[test]
    fn parameters_have_names_types_and_defaults() {
        let max_pool = &overloads("aten::max_pool2d")[0];
        let shown: Vec<String> =
            max_pool.parameters.iter().map(|p| format!("{} {} {:?}", p.type_, p.name, p.default)).collect();
        assert_eq!(
            shown,
            [
                "Tensor self None",
                "int[2] kernel_size None",
                "int[2] stride Some(Integers([]))",
                "int[2] padding Some(Int(0))",
                "int[2] dilation Some(Int(1))",
                "bool ceil_mode Some(Bool(false))"
            ]
        );
        assert!(overloads("aten::relu_")[0].parameters[0].is_written);
    }
}
