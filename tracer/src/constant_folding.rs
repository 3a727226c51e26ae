//! Constant folding: how often a loop runs, and which branch a condition takes.
//!
//! Scripted code that was called from a trace counts its loops by `range(min([9223372036854775807, len(list)]))` and asks
//! `x is None` before it does anything; both are constants once the arguments in the trace are known. A branch that only raises is a
//! check: the model goes on by the other branch, or not at all.

use std::cell::Cell;

use operators::Arithmetic;

use crate::program::{Argument, Constant, Node, Operand, Type, Value};

/// Operators looked through, one behind the other.
const MAX_DEPTH: usize = 16;
/// Operators looked at in all: sums of sums of one value would else double with each.
const MAX_LOOKS: usize = 1000;

/// Returns the constant that an operand folds to, if any.
pub(crate) fn known(operand: &Operand, values: &[Value], nodes: &[Node]) -> Option<Constant> {
    Reader { values, nodes, looks: Cell::new(0) }.constant(operand, MAX_DEPTH)
}

/// Tells whether an operator of scripted code only computes or tests a number for control flow.
pub(crate) fn only_asks(operator: &str) -> bool {
    matches!(
        arithmetic(operator),
        ("aten", Arithmetic::Length | Arithmetic::Is | Arithmetic::IsNot | Arithmetic::Not)
            | ("prim", Arithmetic::Minimum | Arithmetic::Maximum)
    )
}

/// Returns the name space of an operator, and its arithmetic.
fn arithmetic(operator: &str) -> (&str, Arithmetic) {
    let (space, name) = operator.split_once("::").unwrap_or(("", operator));
    (space, Arithmetic::of(name))
}

/// Returns the result of such an operator if only constants decide it: it leaves no node.
pub(crate) fn settled(
    operator: &str,
    arguments: &[Argument],
    values: &[Value],
    nodes: &[Node],
) -> Option<Constant> {
    let reader = Reader { values, nodes, looks: Cell::new(0) };
    only_asks(operator).then(|| reader.result(operator, arguments, MAX_DEPTH))?
}

/// The operator that ends a model with an exception.
pub(crate) const RAISE: &str = "prim::RaiseException";

/// Chooses the branch that a model takes: the one of the condition, or the one that does not end in an exception.
pub(crate) fn taken<T>(
    condition: Option<Constant>,
    then: T,
    otherwise: T,
    raises: impl Fn(&T) -> bool,
) -> Option<T> {
    match (condition.and_then(truth), raises(&then), raises(&otherwise)) {
        (Some(true), ..) | (None, false, true) => Some(then),
        (Some(false), ..) | (None, true, false) => Some(otherwise),
        (None, ..) => None,
    }
}

/// Tells whether an operator only marks a stretch for a profiler, as `DataParallel` and `record_function` do.
pub(crate) fn is_mark(operator: &str) -> bool {
    operator.starts_with("profiler::")
}

struct Reader<'p> {
    values: &'p [Value],
    nodes: &'p [Node],
    looks: Cell<usize>,
}

impl<'p> Reader<'p> {
    fn constant(&self, operand: &Operand, depth: usize) -> Option<Constant> {
        self.looks.set(self.looks.get() + 1);
        if self.looks.get() > MAX_LOOKS {
            return None;
        }
        match operand {
            Operand::Constant(constant) => Some(constant.clone()),
            Operand::Value(_) => {
                let node = self.producer(operand)?;
                self.result(&node.operator, &node.arguments, depth.checked_sub(1)?)
            }
            _ => None,
        }
    }

    fn result(&self, operator: &str, arguments: &[Argument], depth: usize) -> Option<Constant> {
        use Constant::{Bool, Int};
        let all = || arguments.iter().map(|argument| self.constant(&argument.operand, depth));
        let ints = || all().map(|known| known.and_then(int)).collect::<Option<Vec<i64>>>();
        let bools = || all().map(|known| known.and_then(truth)).collect::<Option<Vec<bool>>>();
        let (space, numbers) = arithmetic(operator);
        match (space, numbers) {
            ("aten", Arithmetic::Length) => match &arguments.first()?.operand {
                Operand::List(items) | Operand::Tuple(items) => i64::try_from(items.len()).ok().map(Int),
                _ => None,
            },
            ("prim", Arithmetic::Minimum | Arithmetic::Maximum) => {
                let ints = match &arguments.first()?.operand {
                    Operand::List(items) => {
                        let item = |item| self.constant(item, depth).and_then(int);
                        items.iter().map(item).collect::<Option<Vec<i64>>>()?
                    }
                    _ => ints()?,
                };
                let ints = ints.into_iter();
                let chosen = if numbers == Arithmetic::Minimum { ints.min() } else { ints.max() };
                chosen.map(Int)
            }
            ("aten", Arithmetic::ToInt) => ints()?.first().copied().map(Int),
            ("aten", Arithmetic::ToBool) => bools()?.first().copied().map(Bool),
            ("aten", Arithmetic::Negate) => ints()?.first()?.checked_neg().map(Int),
            (
                "aten",
                Arithmetic::Add
                | Arithmetic::Subtract
                | Arithmetic::Multiply
                | Arithmetic::FloorDivideNumbers,
            ) => {
                let ints = ints()?;
                let [a, b] = ints[..] else { return None };
                match numbers {
                    Arithmetic::Add => a.checked_add(b),
                    Arithmetic::Subtract => a.checked_sub(b),
                    Arithmetic::Multiply => a.checked_mul(b),
                    // As Python rounds.
                    _ => a.checked_div_euclid(b).filter(|_| b > 0),
                }
                .map(Int)
            }
            ("aten", _) if numbers.compares() => {
                let both = all().collect::<Option<Vec<Constant>>>()?;
                let [a, b] = both.as_slice() else { return None };
                // Comparisons with a NaN stay undecided.
                let order = match (int(a.clone()), int(b.clone())) {
                    (Some(a), Some(b)) => a.cmp(&b),
                    _ => float(a)?.partial_cmp(&float(b)?)?,
                };
                Some(Bool(match numbers {
                    Arithmetic::Equal => order.is_eq(),
                    Arithmetic::NotEqual => order.is_ne(),
                    Arithmetic::Less => order.is_lt(),
                    Arithmetic::LessOrEqual => order.is_le(),
                    Arithmetic::Greater => order.is_gt(),
                    _ => order.is_ge(),
                }))
            }
            ("aten", Arithmetic::Not) => bools()?.first().map(|value| Bool(!value)),
            ("aten", Arithmetic::And | Arithmetic::Or) => {
                let bools = bools()?;
                let [a, b] = bools[..] else { return None };
                Some(Bool(if numbers == Arithmetic::And { a && b } else { a || b }))
            }
            ("aten", Arithmetic::Is | Arithmetic::IsNot) => {
                let [a, b] = arguments else { return None };
                let is_none = match (self.is_none(&a.operand)?, self.is_none(&b.operand)?) {
                    (true, true) => true,
                    (true, false) | (false, true) => false,
                    (false, false) => return None,
                };
                Some(Bool(is_none == (numbers == Arithmetic::Is)))
            }
            _ => None,
        }
    }

    fn producer(&self, operand: &Operand) -> Option<&'p Node> {
        let Operand::Value(value) = operand else { return None };
        let node = &self.nodes[self.values[value.index()].producer?.index()];
        // Of several outputs it is not said here which one this is.
        (node.outputs.len() == 1).then_some(node)
    }

    /// Tells whether an operand is `None`; `None` if that is decided while the model runs.
    fn is_none(&self, operand: &Operand) -> Option<bool> {
        match operand {
            Operand::Constant(constant) => Some(*constant == Constant::None),
            Operand::Value(value) => {
                // Code gives undeclared names the type `Tensor`; results of these operators are tensors indeed.
                let is_sure = match self.producer(operand) {
                    Some(node) => node
                        .operator
                        .strip_prefix("aten::")
                        .is_some_and(|name| !operators::may_give_none(name)),
                    None => self.values[value.index()].producer.is_none(),
                };
                (is_sure && matches!(self.values[value.index()].type_, Type::Tensor(_))).then_some(false)
            }
            Operand::Tensor(_) | Operand::List(_) | Operand::Tuple(_) | Operand::Dict(_) => Some(false),
        }
    }
}

fn int(constant: Constant) -> Option<i64> {
    match constant {
        Constant::Int(value) => Some(value),
        Constant::Bool(value) => Some(i64::from(value)),
        _ => None,
    }
}

/// A number as a float; whole numbers that no float holds are left out.
fn float(constant: &Constant) -> Option<f64> {
    match constant {
        Constant::Float(value) => Some(*value),
        _ => int(constant.clone()).filter(|value| value.unsigned_abs() < 1 << 53).map(|value| value as f64),
    }
}

fn truth(constant: Constant) -> Option<bool> {
    match constant {
        Constant::Bool(value) => Some(value),
        Constant::Int(value) => Some(value != 0),
        _ => None,
    }
}

/// A loop that runs no more often than this is written out.
const MAX_STEPS: usize = 1000;
/// Statements of all loops together that are written out.
const MAX_WRITTEN_OUT: usize = 50_000;

/// Statements of loops that were written out so far: archives and IR text write out the same loops.
#[derive(Debug, Default)]
pub(crate) struct WrittenOut(usize);

impl WrittenOut {
    /// Returns the numbers that a loop over a range counts through, where writing out its statements so often is allowed.
    pub(crate) fn steps(&mut self, bounds: &[i64], n_statements: usize) -> Option<Vec<i64>> {
        let steps: Vec<i64> = range(bounds)?.take(MAX_STEPS + 1).collect();
        let written_out = self.0 + steps.len() * n_statements;
        if steps.len() > MAX_STEPS || written_out > MAX_WRITTEN_OUT {
            return None;
        }
        self.0 = written_out;
        Some(steps)
    }
}

/// The numbers that `range` gives; nothing for a step of zero.
fn range(bounds: &[i64]) -> Option<Range> {
    let (start, end, step) = match *bounds {
        [end] => (0, end, 1),
        [start, end] => (start, end, 1),
        [start, end, step] if step != 0 => (start, end, step),
        _ => return None,
    };
    Some(Range { next: start, end, step })
}

/// See [`range`].
#[derive(Clone, Copy, Debug)]
struct Range {
    next: i64,
    end: i64,
    step: i64,
}

impl Iterator for Range {
    type Item = i64;

    fn next(&mut self) -> Option<i64> {
        let is_over = if self.step > 0 { self.next >= self.end } else { self.next <= self.end };
        if is_over {
            return None;
        }
        let step = self.next;
        match self.next.checked_add(self.step) {
            Some(next) => self.next = next,
            None => self.end = self.next,
        }
        Some(step)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_pythons() {
        let check = |bounds: &[i64], expected: &[i64]| {
            assert_eq!(range(bounds).expect("a range").take(20).collect::<Vec<_>>(), expected);
        };
        check(&[3], &[0, 1, 2]);
        check(&[-3], &[]);
        check(&[2, 5], &[2, 3, 4]);
        check(&[5, 0, -2], &[5, 3, 1]);
        check(&[i64::MAX - 1, i64::MAX, 2], &[i64::MAX - 1]);
        assert!(range(&[0, 5, 0]).is_none());
    }
}
