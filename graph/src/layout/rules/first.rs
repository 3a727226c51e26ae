//! Work of the first device only: the others have no rows, and run the same operators on none.
//!
//! This applies to operators that compute each row independently, as shown by an axis along their first dimension.
//! Weights are on the first device, too, or whole.

use operators::{OperatorClass, Split};
use tracer::{Constant, Operand, Role};

use super::{Axis, Layout, Side, Source, Strategy};
use crate::layout::{
    strategy::{Edit, Need, Special, Value},
    subject::Subject,
};

/// Returns the strategies in which the first device computes an operator.
pub fn strategies(subject: &Subject<'_>, axes: Vec<Axis>) -> Vec<Strategy> {
    // Other operators may not support tensors without rows; the gradient of `pixel_shuffle` does not.
    let is_known = subject.row.is_some_and(|row| {
        (row.split != Split::Samples || row.class == OperatorClass::Pool)
            && matches!(
                row.class,
                OperatorClass::Elementwise
                    | OperatorClass::View
                    | OperatorClass::Copy
                    | OperatorClass::Matmul
                    | OperatorClass::Pool
                    | OperatorClass::Convolution
                    | OperatorClass::Norm
            )
    });
    if !is_known || subject.images.is_some() {
        return Vec::new();
    }
    axes.into_iter().filter_map(|axis| strategy(subject, axis)).collect()
}

fn strategy(subject: &Subject<'_>, axis: Axis) -> Option<Strategy> {
    let is_of_rows = axis.gives == Side::Cut(0, 1) && axis.leaves.contains(&Side::Cut(0, 1));
    if !is_of_rows || axis.leaves.len() != subject.leaves.len() || axis.after.is_some() {
        return None;
    }
    let rows = *subject.result()?.first()?;
    let is_alike =
        |sizes: &Option<Vec<u64>>| sizes.as_ref().is_some_and(|sizes| sizes.first() == Some(&rows));
    if !subject.outputs.iter().all(is_alike) {
        return None;
    }
    let need = |(leaf, side): (&crate::layout::Leaf, &Side)| {
        let stored = match leaf.source {
            Source::Tensor(id) => Some(subject.context.graph.tensor(id).role),
            Source::Value(_) => None,
        };
        match (*side, stored, leaf.sizes.first()) {
            (Side::Cut(0, 1), None, Some(rows)) => Some(Need::In(Layout::First(*rows))),
            (Side::Partial, Some(Role::Parameter), Some(rows)) => Some(Need::Lent(*rows)),
            (Side::Partial, ..) => Some(Need::Partial),
            (Side::Whole, ..) => Some(Need::Whole),
            _ => None,
        }
    };
    let needs: Option<Vec<Need>> = subject.leaves.iter().zip(&axis.leaves).map(need).collect();
    let special = match axis.special {
        None => None,
        Some(Special::Dropout(_)) => Some(Special::DropoutOfFirst(rows)),
        Some(_) => return None,
    };
    let mut edits = Vec::with_capacity(axis.edits.len());
    for edit in axis.edits {
        match edit {
            Edit::Divide { argument, .. } if subject.operator.arguments[argument].is_given => {
                edits.push(edit);
            }
            _ => return None,
        }
    }
    edits.extend(known_sizes(subject)?);
    Some(Strategy {
        needs: needs?,
        gives: Layout::First(rows),
        edits,
        after: None,
        special,
        // One device does all of it, as without sharing.
        is_split: false,
    })
}

/// Fixes a size that is otherwise derived from the number of elements: with none it cannot be derived.
fn known_sizes(subject: &Subject<'_>) -> Option<Vec<Edit>> {
    let result = subject.result()?;
    let named = ["size", "shape"].into_iter().find_map(|name| subject.argument(name));
    let Some(argument) = named.filter(|_| subject.row.is_some_and(|row| row.split == Split::Reshape)) else {
        return Some(Vec::new());
    };
    let (Operand::List(items) | Operand::Tuple(items)) = &subject.operator.arguments[argument].operand else {
        return None;
    };
    if items.len() != result.len() {
        return None;
    }
    let is_open = |operand: &Operand| matches!(operand, Operand::Constant(Constant::Int(-1)));
    let open = (1..items.len()).filter(|item| is_open(&items[*item]));
    Some(
        open.map(|item| Edit::Set { argument, item: Some(item), to: Value::Int(result[item] as i64) })
            .collect(),
    )
}
