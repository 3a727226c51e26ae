//! The function of each rule in the table of operators, found in its module.

use operators::{OperatorClass, ShapeRule};

use super::{
    convolution, copied, copy, elementwise, linalg, matmul, norm, number, recurrent, reduce, rules::Infer,
    shared, unusual, view,
};
use crate::own;

/// The rule of an operator.
#[derive(Clone, Copy)]
pub struct Rule {
    /// Its family.
    pub class: OperatorClass,
    /// The function that infers its results.
    pub infer: Infer,
}

/// Each module's rules.
const MODULES: [fn(ShapeRule) -> Option<Infer>; 14] = [
    elementwise::function,
    number::function,
    shared::function,
    reduce::function,
    unusual::function,
    matmul::function,
    copy::function,
    linalg::function,
    convolution::function,
    norm::function,
    recurrent::function,
    view::function,
    copied::function,
    own::function,
];

/// Finds the rule of an operator by its short, plain name.
pub fn rule(name: &str) -> Option<Rule> {
    let row = operators::find(name)?;
    let infer = MODULES.iter().find_map(|function| function(row.shape))?;
    Some(Rule { class: row.class, infer })
}

/// Tells whether the sizes of an operator's result depend on values.
pub fn is_sized_by_values(name: &str) -> bool {
    operators::find(name).is_some_and(|row| row.shape.is_by_values())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rule_has_one_function() {
        for row in operators::all() {
            let n_functions = MODULES.iter().filter(|function| function(row.shape).is_some()).count();
            let expected = usize::from(row.shape != ShapeRule::Unknown);
            assert_eq!(n_functions, expected, "{:?}, the rule of `{}`", row.shape, row.name);
        }
    }
}
