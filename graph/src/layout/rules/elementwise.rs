//! Elementwise operators, with broadcasting; reductions, which keep other dimensions.

use operators::Split;

use super::{Axis, Side, each_cut};
use crate::{
    infer::call::integer,
    layout::{
        Slice,
        strategy::{After, Special},
        subject::Subject,
    },
};

/// The side of an operand if a dimension of the results is cut: cut, too, or broadcast along it.
pub fn broadcast(sizes: &[u64], result: &[u64], dim: usize, blocks: u64) -> Option<Side> {
    let Some(own) = (dim + sizes.len()).checked_sub(result.len()) else { return Some(Side::Partial) };
    match sizes[own] {
        size if size == result[dim] => Some(Side::Cut(own, blocks)),
        1 => Some(Side::Partial),
        _ => None,
    }
}

/// Any dimension of the results.
pub fn any(subject: &Subject<'_>) -> Option<Vec<Axis>> {
    let result = subject.result()?;
    Some(each_cut(subject, result, |dim, blocks| {
        let leaves: Option<Vec<Side>> =
            subject.leaves.iter().map(|leaf| broadcast(&leaf.sizes, result, dim, blocks)).collect();
        Some(Axis::new(leaves?, Side::Cut(dim, blocks)))
    }))
}

/// `add`, `sub`: terms of two sums add up to terms of their sum. A number would be added by each device.
pub fn additive(subject: &Subject<'_>) -> Option<Vec<Axis>> {
    let mut all = any(subject)?;
    if subject.leaves.len() == 2 && subject.leaf("self").is_some() && subject.leaf("other").is_some() {
        all.push(Axis::new(vec![Side::Sum; 2], Side::Sum).on_terms());
    }
    Some(all)
}

/// `mul` and `div` by a number.
pub fn scaling(subject: &Subject<'_>) -> Option<Vec<Axis>> {
    let mut all = any(subject)?;
    let is_rounding = subject.call.has("rounding_mode");
    if subject.leaf("self") != Some(0) || is_rounding {
        return Some(all);
    }
    match subject.leaves.len() {
        1 => all.push(Axis::new(vec![Side::Sum], Side::Sum).on_terms()),
        // A product with a term is a term of the product, as large as the whole; so is the other factor's gradient.
        2 => all.push(Axis::new(vec![Side::Sum, Side::Partial], Side::Sum).on_terms()),
        _ => {}
    }
    Some(all)
}

/// `clone`, `contiguous`, `to`, …: elements do not change. A second tensor only gives the type.
pub fn through(subject: &Subject<'_>) -> Option<Vec<Axis>> {
    let result = subject.result()?;
    let rest = subject.leaves.len() - 1;
    let with = |first: Side| [vec![first], vec![Side::Any; rest]].concat();
    if subject.leaf("self") != Some(0) || subject.leaves[0].sizes != result {
        return None;
    }
    let mut all = each_cut(subject, result, |dim, blocks| {
        Some(Axis::new(with(Side::Cut(dim, blocks)), Side::Cut(dim, blocks)))
    });
    all.push(Axis::new(with(Side::Sum), Side::Sum).on_terms());
    Some(all)
}

/// Exchanges between groups of devices, which are sums of slices, slices, or rows at positions: all dimensions but those along
/// which they go. What says where rows go is whole.
pub fn exchanged(subject: &Subject<'_>) -> Option<Vec<Axis>> {
    let (leaf, routing) = subject.leaves.split_first()?;
    let count = match subject.operator.short_name() {
        "shard_copy" | "shard_weight" | "shard_reduce" | "shard_once" => 0,
        "shard_exchange" => 2,
        _ => 1,
    };
    let numbers = || (1..=count).map(|at| usize::try_from(integer(subject.call.at(at))?).ok());
    let along: Vec<usize> = if routing.is_empty() { numbers().collect::<Option<_>>()? } else { vec![0] };
    let made = |first: Side| {
        let leaves = std::iter::once(first).chain(routing.iter().map(|_| Side::Whole));
        Axis::new(leaves.collect(), first)
    };
    let mut all = each_cut(subject, &leaf.sizes, |dim, blocks| {
        (!along.contains(&dim)).then(|| made(Side::Cut(dim, blocks)))
    });
    all.push(made(Side::Sum).on_terms());
    Some(all)
}

/// `dropout`.
pub fn dropout(subject: &Subject<'_>) -> Option<Vec<Axis>> {
    let mut all = any(subject)?;
    let is_idle = subject.call.flag("train") == Some(false) || subject.call.float("p") == Some(0.0);
    if !is_idle {
        // What draws a part of a mask makes a new tensor.
        if !subject.may_write_elsewhere() {
            return None;
        }
        for axis in &mut all {
            if let Side::Cut(dim, blocks) = axis.gives {
                axis.special = Some(Special::Dropout(Slice { dim, blocks }));
            }
        }
    } else if subject.leaves.len() == 1 {
        // Without dropout it is the identity, and sums may pass through.
        all.push(Axis::new(vec![Side::Sum], Side::Sum).on_terms());
    }
    Some(all)
}

/// `softmax`, `cumsum`, `gather`, …: all dimensions but one, in which operands and results may differ.
pub fn other_dims(subject: &Subject<'_>) -> Option<Vec<Axis>> {
    let result = subject.result()?;
    let along = subject.dim("dim", result.len())?;
    let is_index = |at: usize| subject.leaf("index") == Some(at) && subject.leaves[at].sizes.len() == 1;
    Some(each_cut(subject, result, |dim, blocks| {
        let side = |(at, leaf): (usize, &crate::layout::Leaf)| {
            if is_index(at) && result.len() > 1 {
                return Some(Side::Whole);
            }
            (leaf.sizes.get(dim) == Some(&result[dim]) && leaf.sizes.len() == result.len())
                .then_some(Side::Cut(dim, blocks))
        };
        let leaves: Option<Vec<Side>> = subject.leaves.iter().enumerate().map(side).collect();
        (dim != along).then_some(Axis::new(leaves?, Side::Cut(dim, blocks)))
    }))
}

/// `tril`, `triu`: all dimensions but the `last` ones.
pub fn leading(subject: &Subject<'_>, last: usize) -> Option<Vec<Axis>> {
    let result = subject.result()?;
    Some(
        any(subject)?
            .into_iter()
            .filter(|axis| matches!(axis.gives, Side::Cut(dim, _) if dim + last < result.len()))
            .collect(),
    )
}

/// `sum`, `mean`, `amax`, …: the dimensions that remain, and for sums also the reduced ones.
pub fn reduce(subject: &Subject<'_>) -> Option<Vec<Axis>> {
    let [leaf] = subject.leaves.as_slice() else { return None };
    let result = subject.result()?;
    let gone = subject.call.dims("dim", leaf.sizes.len()).ok()?;
    let keeps = subject.call.flag("keepdim").unwrap_or(false);
    let split = subject.row.map(|row| row.split);
    let is_sum = split == Some(Split::Sum);
    // Bands may be uneven, so each device weights its mean.
    let is_mean = subject.images.is_some() && split == Some(Split::Mean);
    if result.len() != leaf.sizes.len() - if keeps { 0 } else { gone.len() } {
        return None;
    }
    let mut all = each_cut(subject, &leaf.sizes, |dim, blocks| {
        let before = gone.iter().filter(|gone| **gone < dim).count();
        if gone.contains(&dim) {
            let axis = Axis::new(vec![Side::Cut(dim, 1)], Side::Sum);
            let after = is_mean.then_some(After::Weigh(leaf.sizes[dim]));
            return ((is_sum || is_mean) && blocks == 1).then_some(Axis { after, ..axis });
        }
        let after = if keeps { dim } else { dim - before };
        Some(Axis::new(vec![Side::Cut(dim, blocks)], Side::Cut(after, blocks)))
    });
    if matches!(split, Some(Split::Sum | Split::Mean)) {
        all.push(Axis::new(vec![Side::Sum], Side::Sum).on_terms());
    }
    Some(all)
}
