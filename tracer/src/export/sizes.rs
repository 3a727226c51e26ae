//! Sizes that an exported program leaves open: the range of its inputs' sizes, and sizes that follow from given ones.
//!
//! The file writes a size as sympy prints it. torch hands that text to `sympify`, which evaluates Python; here it is parsed, and
//! a text that the parser does not know is an unknown size.

use std::collections::HashMap;

use super::document::{SymInt, TensorMeta};

/// Longest text of an expression, and how deep its brackets go.
const MAX_TEXT: usize = 1 << 16;
const MAX_DEPTH: usize = 100;

/// The least and the most that a size may be.
type Bounds = (Option<u64>, Option<u64>);

/// The open sizes of an exported program's inputs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpenSizes {
    /// Names that stand for sizes, in the order of their first places.
    pub symbols: Vec<Symbol>,
    /// The sizes of each input, in the order of the program's; `None` for what is not a tensor.
    pub inputs: Vec<Option<Vec<Size>>>,
}

/// A name that stands for a size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Symbol {
    /// As the file has it: `s77`.
    pub name: String,
    /// Its first occurrence: an input, and its dimension.
    pub place: (usize, usize),
    /// The least that it may be.
    pub least: Option<u64>,
    /// The most that it may be.
    pub most: Option<u64>,
    /// Its value in the example.
    pub example: Option<u64>,
}

/// One size of an input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Size {
    /// The same whatever else is given.
    Number(u64),
    /// Left open: an index into [`OpenSizes::symbols`].
    Symbol(usize),
    /// An expression of open sizes, and its value in the example.
    Computed(Expression, Option<u64>),
}

/// The expression of a size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expression {
    /// A number.
    Number(i64),
    /// An index into [`OpenSizes::symbols`].
    Symbol(usize),
    /// The sum of all.
    Sum(Vec<Expression>),
    /// The product of all.
    Product(Vec<Expression>),
    /// The first divided by the second, rounded down.
    Quotient(Box<[Expression; 2]>),
    /// Something else.
    Unknown,
}

impl Expression {
    fn value(&self, bound: &[Option<u64>]) -> Option<i64> {
        match self {
            Expression::Number(value) => Some(*value),
            Expression::Symbol(symbol) => i64::try_from((*bound.get(*symbol)?)?).ok(),
            Expression::Sum(items) => {
                items.iter().try_fold(0_i64, |sum, item| sum.checked_add(item.value(bound)?))
            }
            Expression::Product(items) => {
                items.iter().try_fold(1_i64, |product, item| product.checked_mul(item.value(bound)?))
            }
            Expression::Quotient(parts) => {
                let (a, b) = (parts[0].value(bound)?, parts[1].value(bound)?);
                if b > 0 { a.checked_div_euclid(b) } else { None }
            }
            Expression::Unknown => None,
        }
    }
}

/// Sizes that were given and that a program does not take.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)] // The messages say it.
pub enum SizeFault {
    #[error("`{input}` has {expected} dimensions, and {given} are given")]
    Rank { input: String, expected: usize, given: usize },
    #[error("dimension {dimension} of `{input}` is {expected} in the exported program, and {given} is given")]
    Fixed { input: String, dimension: usize, expected: u64, given: u64 },
    #[error(
        "dimension {dimension} of `{input}` may be {range} in the exported program, and {given} is given"
    )]
    Range { input: String, dimension: usize, range: String, given: u64 },
    #[error("dimension {dimension} of `{input}` is that of dimension {} of `{}`, {expected}, and {given} is given", .other.1, .other.0)]
    Differs { input: String, dimension: usize, other: (String, usize), expected: u64, given: u64 },
}

impl OpenSizes {
    /// Reads the sizes of all inputs.
    pub(super) fn read<'d>(
        inputs: impl Iterator<Item = Option<&'d TensorMeta>>,
        range: &dyn Fn(&str) -> Bounds,
    ) -> Self {
        let mut sizes = OpenSizes::default();
        let mut places = HashMap::new();
        for (input, meta) in inputs.enumerate() {
            let Some(meta) = meta else {
                sizes.inputs.push(None);
                continue;
            };
            let read = meta.sizes.iter().enumerate().map(|(dimension, size)| {
                let example = size.example();
                let text = match size {
                    SymInt::AsInt(_) => return Size::Number(example.unwrap_or(0)),
                    SymInt::AsExpr(expression) => expression.expr_str.as_str(),
                };
                let mut symbol = |name: &str| -> usize {
                    *places.entry(name.to_owned()).or_insert_with(|| {
                        let (least, most) = range(name);
                        let (name, place) = (name.to_owned(), (input, dimension));
                        sizes.symbols.push(Symbol { name, place, least, most, example: None });
                        sizes.symbols.len() - 1
                    })
                };
                match parse(text, &mut symbol) {
                    Expression::Symbol(symbol) => {
                        sizes.symbols[symbol].example = sizes.symbols[symbol].example.or(example);
                        Size::Symbol(symbol)
                    }
                    other => Size::Computed(other, example),
                }
            });
            let read = read.collect();
            sizes.inputs.push(Some(read));
        }
        sizes
    }

    /// Returns the sizes of all inputs when some are given: those that share a name follow, the rest are the example's.
    ///
    /// # Errors
    /// When the program does not take them.
    pub fn resolve(
        &self,
        names: &[String],
        given: &[Option<&[u64]>],
    ) -> Result<Vec<Option<Vec<u64>>>, SizeFault> {
        let mut bound: Vec<Option<u64>> = vec![None; self.symbols.len()];
        let mut met: Vec<(usize, usize)> = vec![(0, 0); self.symbols.len()];
        let name = |input: usize| names.get(input).cloned().unwrap_or_default();
        let all = || {
            let inputs = self.inputs.iter().zip(given).enumerate();
            inputs.filter_map(|(index, (sizes, given))| Some((index, sizes.as_ref()?, (*given)?)))
        };
        for (input, sizes, given) in all() {
            if sizes.len() != given.len() {
                let (expected, given) = (sizes.len(), given.len());
                return Err(SizeFault::Rank { input: name(input), expected, given });
            }
            for (dimension, (size, &given)) in sizes.iter().zip(given).enumerate() {
                let symbol = match size {
                    Size::Number(expected) if *expected != given => {
                        let (input, expected) = (name(input), *expected);
                        return Err(SizeFault::Fixed { input, dimension, expected, given });
                    }
                    Size::Symbol(symbol) => *symbol,
                    Size::Number(_) | Size::Computed(..) => continue,
                };
                match bound[symbol] {
                    Some(expected) if expected != given => {
                        let other = (name(met[symbol].0), met[symbol].1);
                        return Err(SizeFault::Differs {
                            input: name(input),
                            dimension,
                            other,
                            expected,
                            given,
                        });
                    }
                    _ => (bound[symbol], met[symbol]) = (Some(given), (input, dimension)),
                }
                let range = &self.symbols[symbol];
                if range.least.is_some_and(|least| given < least)
                    || range.most.is_some_and(|most| given > most)
                {
                    let range = range.range();
                    return Err(SizeFault::Range { input: name(input), dimension, range, given });
                }
            }
        }
        // A multiple of one size gives it: `8·s`.
        for (_, sizes, given) in all() {
            for (size, &given) in sizes.iter().zip(given) {
                if let Size::Computed(Expression::Product(factors), _) = size
                    && let [Expression::Number(times), Expression::Symbol(symbol)] = factors.as_slice()
                    && let Ok(times @ 1..) = u64::try_from(*times)
                    && given.is_multiple_of(times)
                {
                    bound[*symbol].get_or_insert(given / times);
                }
            }
        }
        for (symbol, bound) in self.symbols.iter().zip(&mut bound) {
            *bound = bound.or(symbol.example);
        }
        let resolved = self.inputs.iter().enumerate().map(|(input, sizes)| {
            let Some(sizes) = sizes else { return Ok(None) };
            let given = given.get(input).copied().flatten();
            let resolved = sizes.iter().enumerate().map(|(dimension, size)| {
                let given = given.map(|given| given[dimension]);
                let computed = match size {
                    Size::Number(value) => Some(*value),
                    Size::Symbol(symbol) => bound[*symbol],
                    Size::Computed(expression, _) => {
                        expression.value(&bound).and_then(|value| u64::try_from(value).ok())
                    }
                };
                match (computed, given, size) {
                    (Some(expected), Some(given), _) if expected != given => {
                        Err(SizeFault::Fixed { input: name(input), dimension, expected, given })
                    }
                    (None, Some(given), _) => Ok(Some(given)),
                    (None, None, Size::Computed(_, example)) => Ok(*example),
                    (computed, ..) => Ok(computed),
                }
            });
            resolved.collect::<Result<Option<Vec<u64>>, SizeFault>>()
        });
        resolved.collect()
    }
}

impl Symbol {
    /// Says what it may be: `1 to 64`, `at least 2`.
    pub fn range(&self) -> String {
        match (self.least, self.most) {
            (Some(least), Some(most)) => format!("{least} to {most}"),
            (Some(least), None) => format!("at least {least}"),
            (None, Some(most)) => format!("at most {most}"),
            (None, None) => "of any size".to_owned(),
        }
    }
}

/// Parses the text that sympy prints; unknown parts are [`Expression::Unknown`].
fn parse(text: &str, symbol: &mut dyn FnMut(&str) -> usize) -> Expression {
    if text.len() > MAX_TEXT {
        return Expression::Unknown;
    }
    let mut parser = Parser { rest: text, symbol };
    match parser.expression(0) {
        Some(expression) if parser.rest.trim().is_empty() => expression,
        _ => Expression::Unknown,
    }
}

struct Parser<'t, 's> {
    rest: &'t str,
    symbol: &'s mut dyn FnMut(&str) -> usize,
}

impl<'t> Parser<'t, '_> {
    fn expression(&mut self, depth: usize) -> Option<Expression> {
        if depth > MAX_DEPTH {
            return None;
        }
        let function = self.word()?;
        if !self.eat('(') {
            return Some(function.parse().map_or(Expression::Unknown, Expression::Number));
        }
        if function == "Symbol" {
            let name = self.quoted()?;
            // Assumptions about the symbol are skipped.
            while self.eat(',') {
                self.word()?;
                if !self.eat('=') {
                    return None;
                }
                self.word()?;
            }
            return self.eat(')').then(|| Expression::Symbol((self.symbol)(name)));
        }
        let mut items = Vec::new();
        while !self.eat(')') {
            items.push(self.expression(depth + 1)?);
            if !self.eat(',') && !self.rest.trim_start().starts_with(')') {
                return None;
            }
        }
        Some(match (function, items.as_slice()) {
            ("Integer", [Expression::Number(value)]) => Expression::Number(*value),
            ("Add", [_, ..]) => Expression::Sum(items),
            ("Mul", [_, ..]) => Expression::Product(items),
            ("FloorDiv" | "CleanDiv", [_, _]) => {
                let mut items = items.into_iter();
                Expression::Quotient(Box::new([items.next()?, items.next()?]))
            }
            _ => Expression::Unknown,
        })
    }

    fn word(&mut self) -> Option<&'t str> {
        let rest = self.rest.trim_start();
        let is_of_word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-' | '+');
        let end = rest.find(|c| !is_of_word(c)).unwrap_or(rest.len());
        self.rest = &rest[end..];
        (end > 0).then(|| &rest[..end])
    }

    fn quoted(&mut self) -> Option<&'t str> {
        let (name, rest) = self.rest.trim_start().strip_prefix('\'')?.split_once('\'')?;
        self.rest = rest;
        Some(name)
    }

    fn eat(&mut self, letter: char) -> bool {
        let rest = self.rest.trim_start().strip_prefix(letter);
        rest.inspect(|rest| self.rest = rest).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> (Expression, Vec<String>) {
        let mut names: Vec<String> = Vec::new();
        let expression = parse(text, &mut |name: &str| match names.iter().position(|known| known == name) {
            Some(known) => known,
            None => {
                names.push(name.to_owned());
                names.len() - 1
            }
        });
        (expression, names)
    }

    #[test]
    fn expressions_are_parsed_and_computed() {
        let check = |text: &str, expected: Option<i64>| {
            assert_eq!(parsed(text).0.value(&[Some(7), Some(3)]), expected, "{text}");
        };
        check("Symbol('s77', positive=True, integer=True)", Some(7));
        check("Mul(Integer(256), Symbol('s70', positive=True, integer=True))", Some(1792));
        check("Add(Integer(-1), Symbol('a'), Mul(Integer(2), Symbol('b', integer=True)))", Some(12));
        check("FloorDiv(Symbol('a'), Integer(2))", Some(3));
        check("Integer(-4)", Some(-4));
        check("Min(Integer(32), Symbol('a'))", None);
        check("__import__('os').system('true')", None);
        check("Mul(Integer(9223372036854775807), Symbol('a'))", None);
        check("FloorDiv(Symbol('a'), Integer(0))", None);
        check("", None);
        check("Mul(", None);
        check(&format!("{}1{}", "Add(".repeat(10_000), ")".repeat(10_000)), None);
        check(&"(".repeat(MAX_TEXT), None);
    }

    fn two_inputs() -> (OpenSizes, Vec<String>) {
        let batch = |name: &str, place| Symbol {
            name: name.into(),
            place,
            least: Some(1),
            most: Some(64),
            example: Some(2),
        };
        let twice = Expression::Product(vec![Expression::Number(2), Expression::Symbol(1)]);
        let sizes = OpenSizes {
            symbols: vec![batch("s0", (0, 0)), batch("s1", (1, 1))],
            inputs: vec![
                Some(vec![Size::Symbol(0), Size::Number(3)]),
                Some(vec![Size::Symbol(0), Size::Computed(twice, Some(4))]),
                None,
            ],
        };
        (sizes, ["x", "y", "flag"].map(str::to_owned).to_vec())
    }

    #[test]
    fn sizes_that_share_a_name_follow_those_that_are_given() {
        let (sizes, names) = two_inputs();
        let resolve = |x: Option<&[u64]>, y: Option<&[u64]>| sizes.resolve(&names, &[x, y, None]);
        let expected = |x: [u64; 2], y: [u64; 2]| Ok(vec![Some(x.to_vec()), Some(y.to_vec()), None]);
        assert_eq!(resolve(None, None), expected([2, 3], [2, 4]));
        assert_eq!(resolve(Some(&[5, 3]), None), expected([5, 3], [5, 4]));
        assert_eq!(resolve(None, Some(&[6, 20])), expected([6, 3], [6, 20]));
    }

    #[test]
    fn sizes_that_the_program_does_not_take_are_refused() {
        let (sizes, names) = two_inputs();
        let check = |x: Option<&[u64]>, y: Option<&[u64]>, expected: &str| {
            let fault = sizes.resolve(&names, &[x, y, None]).expect_err(expected);
            assert_eq!(fault.to_string(), expected);
        };
        check(Some(&[5]), None, "`x` has 2 dimensions, and 1 are given");
        check(Some(&[5, 4]), None, "dimension 1 of `x` is 3 in the exported program, and 4 is given");
        check(
            Some(&[65, 3]),
            None,
            "dimension 0 of `x` may be 1 to 64 in the exported program, and 65 is given",
        );
        check(
            Some(&[5, 3]),
            Some(&[6, 4]),
            "dimension 0 of `y` is that of dimension 0 of `x`, 5, and 6 is given",
        );
        check(None, Some(&[2, 5]), "dimension 1 of `y` is 4 in the exported program, and 5 is given");
    }
}
