//! Operators with rules of their own: a file each, named after the operator, and a line in the list below.
//!
//! Their rows have `Own` for rules that are in the file. A rule that two operators share has a name of its own instead.

mod combinations;
mod istft;
mod kron;
mod linalg_tensorsolve;
mod linalg_vander;
mod norm_except_dim;
mod segment_reduce;
mod stft;
mod take_along_dim;

use operators::ShapeRule;

use crate::{
    cost::keep::Keep,
    fact::TensorFact,
    infer::call::{Call, Result, Stop},
};

/// The rules of such an operator.
struct Own {
    /// Sizes and types of its results.
    infer: fn(&Call<'_>) -> Result,
    /// Saves the tensors that its gradient needs, given the first result; false if operands are not as expected.
    keep: fn(&mut Keep<'_>, &Call<'_>, Option<&TensorFact>) -> bool,
    /// Operations of the forward pass, and of the gradient of the first operand.
    flops: Option<Operations>,
}

/// Computes operations from a call and its first result.
type Operations = fn(&Call<'_>, Option<&TensorFact>) -> Option<[u64; 2]>;

macro_rules! own {
    ($($name:ident,)*) => {
        const ALL: &[(&str, Own)] = &[$((stringify!($name), $name::OWN)),*];
    };
}

own! {
    combinations,
    istft,
    kron,
    linalg_tensorsolve,
    linalg_vander,
    norm_except_dim,
    segment_reduce,
    stft,
    take_along_dim,
}

fn of(call: &Call<'_>) -> Option<&'static Own> {
    let row = call.row()?;
    ALL.iter().find(|(name, _)| *name == row.name).map(|(_, own)| own)
}

/// Returns the sizes and types of an operator's results.
fn infer(call: &Call<'_>) -> Result {
    (of(call).ok_or(Stop::Unknown)?.infer)(call)
}

/// Returns the function of the rule.
pub(crate) fn function(rule: ShapeRule) -> Option<fn(&Call<'_>) -> Result> {
    (rule == ShapeRule::Own).then_some(infer)
}

/// Saves the tensors that an operator's gradient needs; false if they are unknown.
pub(crate) fn keep(keep: &mut Keep<'_>, call: &Call<'_>, result: Option<&TensorFact>) -> bool {
    of(call).is_some_and(|own| (own.keep)(keep, call, result))
}

/// Returns an operator's operations, forward and for the gradient of the first operand.
pub(crate) fn flops(call: &Call<'_>, result: Option<&TensorFact>) -> Option<[u64; 2]> {
    of(call)?.flops?(call, result)
}

#[cfg(test)]
mod tests {
    use operators::{Flops, Keeps};

    use super::*;

    #[test]
    fn rows_and_files_agree() {
        for row in operators::all() {
            let own = ALL.iter().find(|(name, _)| *name == row.name).map(|(_, own)| own);
            assert_eq!(own.is_some(), row.shape == ShapeRule::Own, "sizes of `{}`", row.name);
            assert_eq!(own.is_some(), row.keeps == Keeps::Own, "saved activations of `{}`", row.name);
            let has_flops = own.is_some_and(|own| own.flops.is_some());
            assert_eq!(has_flops, row.flops == Flops::Own, "operations of `{}`", row.name);
        }
    }
}
