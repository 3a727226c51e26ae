//! The list of rules that a module of functions begins with.

use super::call::{Call, Result};

/// Infers the results of an operator.
pub(super) type Infer = fn(&Call<'_>) -> Result;

/// Lists a module's functions, each with its rules in the table of operators.
macro_rules! rules {
    ($($function:ident: $($rule:ident)|+,)+) => {
        /// Returns the function of a rule, if it is in this module.
        pub(super) fn function(rule: operators::ShapeRule) -> Option<super::rules::Infer> {
            match rule {
                $($(operators::ShapeRule::$rule)|+ => Some($function),)+
                _ => None,
            }
        }
    };
}
pub(super) use rules;
