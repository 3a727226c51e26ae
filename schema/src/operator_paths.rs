//! The names in plans and commands of operators between the calls of a block: `layer1.0/add_`, and `layer1.0/add_ (2)`
//! for the second of that name in the same call.

use std::collections::HashMap;

/// Returns an operator's name without its name space: `conv2d` of `aten::conv2d`.
pub fn short_name(operator: &str) -> &str {
    operator.rsplit("::").next().unwrap_or(operator)
}

/// Counts operators in the order of the model. Two name spaces may share a name, `aten::abs` and `prim::abs`: they are
/// counted together, since paths do not distinguish them.
#[derive(Debug, Default)]
pub struct OperatorPaths<'a> {
    counts: HashMap<(u32, &'a str), usize>,
}

impl<'a> OperatorPaths<'a> {
    /// Counts the next operator, which belongs to a call, and returns its number among those of its name.
    pub fn count(&mut self, call: u32, operator: &'a str) -> usize {
        let count = self.counts.entry((call, short_name(operator))).or_insert(0);
        *count += 1;
        *count
    }

    /// Counts the next operator and returns its path, which begins with that of its call.
    pub fn next(&mut self, call: u32, path: &str, operator: &'a str) -> String {
        operator_path(path, operator, self.count(call, operator))
    }
}

/// Returns the path of an operator by its number among those of its name in the call.
pub fn operator_path(call: &str, operator: &str, place: usize) -> String {
    let name = short_name(operator);
    match place {
        0 | 1 => format!("{call}/{name}"),
        place => format!("{call}/{name} ({place})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operators_of_one_name_are_counted_by_call() {
        let mut paths = OperatorPaths::default();
        let operators = [
            (0, "", "aten::abs", "/abs"),
            (1, "a", "aten::abs", "a/abs"),
            (0, "", "prim::abs", "/abs (2)"),
            (0, "", "aten::add", "/add"),
            (1, "a", "abs", "a/abs (2)"),
            (0, "", "aten::abs", "/abs (3)"),
        ];
        for (call, path, operator, expected) in operators {
            assert_eq!(paths.next(call, path, operator), expected);
        }
    }
}
