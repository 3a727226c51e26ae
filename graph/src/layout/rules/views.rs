//! Views with other shapes; concatenation and splits; sizes.

use tracer::{Constant, Operand, ValueId};

use super::{Axis, Side, each_cut, elementwise::broadcast};
use crate::layout::subject::{Source, Subject};

/// A run of dimensions on each side of a reshape with the same elements.
struct Run {
    before: std::ops::Range<usize>,
    after: std::ops::Range<usize>,
}

/// Pairs runs of dimensions whose products are equal.
fn runs(before: &[u64], after: &[u64]) -> Option<Vec<Run>> {
    let mut all = Vec::new();
    let (mut i, mut j) = (0, 0);
    while i < before.len() || j < after.len() {
        let (from_i, from_j) = (i, j);
        let mut left = before.get(i).copied().unwrap_or(1);
        let mut right = after.get(j).copied().unwrap_or(1);
        (i, j) = (i + 1, j + 1);
        while left != right {
            if left < right {
                left = left.checked_mul(*before.get(i)?)?;
                i += 1;
            } else {
                right = right.checked_mul(*after.get(j)?)?;
                j += 1;
            }
        }
        all.push(Run { before: from_i..i.min(before.len()), after: from_j..j.min(after.len()) });
    }
    Some(all)
}

/// Returns how the dimensions `to` of a run are cut if `from` is cut along `dim`, in blocks.
fn carried(from: &[u64], to: &[u64], dim: usize, blocks: u64, degree: u64) -> Option<(usize, u64)> {
    // Elements are in `outer` consecutive blocks, of each of which a device takes an equal part.
    let outer = from[..dim].iter().product::<u64>().checked_mul(blocks)?;
    let mut in_front = 1;
    for (at, size) in to.iter().enumerate() {
        let own = outer / in_front;
        if outer.is_multiple_of(in_front) && own > 0 && size.is_multiple_of(own.checked_mul(degree)?) {
            return Some((at, own));
        }
        in_front *= size;
        if in_front > outer {
            return None;
        }
    }
    None
}

/// `view`, `reshape`, `flatten`, `unflatten`, `view_as`.
pub fn reshape(subject: &Subject<'_>) -> Option<Vec<Axis>> {
    let result = subject.result()?;
    let first = subject.leaves.first()?;
    if subject.leaves.len() > 2 || subject.call.has("dtype") {
        return None;
    }
    let other = subject.leaf("other");
    let runs = runs(&first.sizes, result)?;
    let degree = subject.context.degree;
    Some(
        each_cut(subject, &first.sizes, |dim, blocks| {
            let run = runs.iter().find(|run| run.before.contains(&dim))?;
            let (from, to) = (&first.sizes[run.before.clone()], &result[run.after.clone()]);
            let (at, own) = carried(from, to, dim - run.before.start, blocks, degree)?;
            let after = run.after.start + at;
            let mut axis = Axis::new(vec![Side::Cut(dim, blocks)], Side::Cut(after, own));
            if other.is_some() {
                axis.leaves.push(Side::Cut(after, own));
            }
            sized(subject, axis, after, first.sizes.len())
        })
        .into_iter()
        .chain(on_terms(subject))
        .collect(),
    )
}

/// Divides the number that gives the size of a dimension of the result.
fn sized(subject: &Subject<'_>, axis: Axis, after: usize, rank: usize) -> Option<Axis> {
    let (argument, first) =
        match (subject.argument("size"), subject.argument("shape"), subject.argument("sizes")) {
            (Some(size), ..) => (size, 0),
            (None, Some(shape), _) => (shape, 0),
            // `unflatten` lists the parts of one dimension.
            (None, None, Some(sizes)) => (sizes, subject.dim("dim", rank)?),
            _ => return Some(axis),
        };
    let name = subject.operator.arguments[argument].name.clone();
    let numbers = subject.call.ints(&name)?;
    let Some(item) = after.checked_sub(first).filter(|item| *item < numbers.len()) else { return Some(axis) };
    // A list made by another operator has no items to change here.
    let is_list =
        matches!(subject.operator.arguments[argument].operand, Operand::List(_) | Operand::Tuple(_));
    match numbers[item] {
        Some(-1) => Some(axis),
        _ if !is_list => None,
        _ => Some(axis.dividing(Some(argument), Some(item))),
    }
}

/// A view of terms of a sum gives terms of the sum's view.
fn on_terms(subject: &Subject<'_>) -> Option<Axis> {
    let mut leaves = vec![Side::Any; subject.leaves.len()];
    *leaves.first_mut()? = Side::Sum;
    Some(Axis::new(leaves, Side::Sum).on_terms())
}

/// Returns the number of blocks of a dimension that is split into two or more, if another than the first would be cut:
/// three for queries, keys and values.
pub fn packed(subject: &Subject<'_>) -> Vec<u64> {
    let found = || {
        let result = subject.result()?;
        let first = subject.leaves.first()?;
        let runs = runs(&first.sizes, result)?;
        let opened = runs.iter().filter(|run| run.before.len() == 1 && run.after.len() > 2);
        Some(opened.map(|run| result[run.after.start]).filter(|blocks| (2..=8).contains(blocks)).collect())
    };
    found().unwrap_or_default()
}

/// `permute`, `transpose`, `t`.
pub fn permute(subject: &Subject<'_>) -> Option<Vec<Axis>> {
    let [leaf] = subject.leaves.as_slice() else { return None };
    let rank = leaf.sizes.len();
    let mut order: Vec<usize> = (0..rank).collect();
    let pair =
        [("dim0", "dim1"), ("axis0", "axis1")].into_iter().find(|(a, _)| subject.argument(a).is_some());
    match pair {
        Some((a, b)) => order.swap(subject.dim(a, rank)?, subject.dim(b, rank)?),
        None if subject.argument("dims").is_some() => order = subject.call.dims("dims", rank).ok()?,
        // Without arguments the last two are exchanged.
        None => order.swap(rank.checked_sub(2)?, rank - 1),
    }
    let mut all = each_cut(subject, &leaf.sizes, |dim, blocks| {
        let after = order.iter().position(|from| *from == dim)?;
        Some(Axis::new(vec![Side::Cut(dim, blocks)], Side::Cut(after, blocks)))
    });
    all.extend(on_terms(subject));
    Some(all)
}

/// `expand`, `expand_as`, `broadcast_to`.
pub fn expand(subject: &Subject<'_>) -> Option<Vec<Axis>> {
    let result = subject.result()?;
    let first = &subject.leaves.first()?.sizes;
    let other = subject.leaf("other");
    let mut all = each_cut(subject, result, |dim, blocks| {
        let mut axis = Axis::new(vec![broadcast(first, result, dim, blocks)?], Side::Cut(dim, blocks));
        if other.is_some() {
            axis.leaves.push(Side::Cut(dim, blocks));
            return Some(axis);
        }
        sized(subject, axis, dim, first.len())
    });
    all.extend(on_terms(subject));
    Some(all)
}

/// `squeeze`, `unsqueeze`.
pub fn squeeze(subject: &Subject<'_>) -> Option<Vec<Axis>> {
    let [leaf] = subject.leaves.as_slice() else { return None };
    let result = subject.result()?;
    // Only dimensions of size one are added or removed, so the others keep their order.
    let large = |sizes: &[u64]| -> Vec<usize> { (0..sizes.len()).filter(|dim| sizes[*dim] != 1).collect() };
    let (before, after) = (large(&leaf.sizes), large(result));
    let mut all = each_cut(subject, &leaf.sizes, |dim, blocks| {
        // A part of size one would be squeezed away.
        if leaf.sizes[dim] == subject.context.degree && result.len() <= leaf.sizes.len() {
            return None;
        }
        let at = *after.get(before.iter().position(|own| *own == dim)?)?;
        Some(Axis::new(vec![Side::Cut(dim, blocks)], Side::Cut(at, blocks)))
    });
    all.extend(on_terms(subject));
    Some(all)
}

/// `slice`, `narrow`: unchanged dimensions.
pub fn slice(subject: &Subject<'_>) -> Option<Vec<Axis>> {
    let [leaf] = subject.leaves.as_slice() else { return None };
    let result = subject.result()?;
    let along = subject.dim("dim", leaf.sizes.len())?;
    let mut all = each_cut(subject, &leaf.sizes, |dim, blocks| {
        (dim != along).then_some(Axis::new(vec![Side::Cut(dim, blocks)], Side::Cut(dim, blocks)))
    });
    // The whole dimension, from its start to a number that is at least its size.
    let is_all = leaf.sizes == result && subject.call.int("step") == Some(1);
    if is_all {
        all.extend(each_cut(subject, &leaf.sizes, |dim, blocks| {
            (dim == along).then_some(Axis::new(vec![Side::Cut(dim, blocks)], Side::Cut(dim, blocks)))
        }));
    }
    all.extend(on_terms(subject));
    Some(all)
}

/// `select`, `unbind`: the remaining dimensions.
pub fn select(subject: &Subject<'_>) -> Option<Vec<Axis>> {
    let [leaf] = subject.leaves.as_slice() else { return None };
    subject.result()?;
    let gone = subject.dim("dim", leaf.sizes.len())?;
    let mut all = each_cut(subject, &leaf.sizes, |dim, blocks| {
        let after = if dim < gone { dim } else { dim.checked_sub(1)? };
        (dim != gone).then_some(Axis::new(vec![Side::Cut(dim, blocks)], Side::Cut(after, blocks)))
    });
    all.extend(on_terms(subject));
    Some(all)
}

/// Returns the dimension that is split, and the number of equal parts.
pub fn parts(subject: &Subject<'_>) -> Option<(usize, u64)> {
    let [leaf] = subject.leaves.as_slice() else { return None };
    let dim = subject.dim("dim", leaf.sizes.len())?;
    let size = leaf.sizes[dim];
    let number = |name: &str| subject.call.int(name).and_then(|number| u64::try_from(number).ok());
    let count = match number("chunks") {
        Some(count) => count,
        None => {
            let name = if subject.argument("split_sizes").is_some() { "split_sizes" } else { "split_size" };
            match subject.call.ints(name)?.as_slice() {
                [Some(part)] => size / u64::try_from(*part).ok().filter(|part| *part > 0)?,
                all if all.iter().all(|part| part.is_some() && *part == all[0]) => all.len() as u64,
                _ => return None,
            }
        }
    };
    (count > 1 && size.is_multiple_of(count)).then_some((dim, count))
}

/// `chunk`, `split`: other dimensions; if parts are equal, each of them is cut.
pub fn taken_apart(subject: &Subject<'_>) -> Option<Vec<Axis>> {
    let [leaf] = subject.leaves.as_slice() else { return None };
    let along = subject.dim("dim", leaf.sizes.len())?;
    subject.result()?;
    let parts = parts(subject);
    let mut all = each_cut(subject, &leaf.sizes, |dim, blocks| {
        let cut = vec![Side::Cut(dim, blocks)];
        if dim != along {
            return Some(Axis::new(cut, Side::Cut(dim, blocks)));
        }
        let (_, count) = parts?;
        let axis = Axis::new(cut, Side::Cut(dim, blocks / count));
        if !blocks.is_multiple_of(count) {
            return None;
        }
        if subject.argument("chunks").is_some() {
            return Some(axis);
        }
        let argument = subject.argument("split_sizes").or(subject.argument("split_size"))?;
        Some(match &subject.operator.arguments[argument].operand {
            Operand::List(items) => {
                (0..items.len()).fold(axis, |axis, item| axis.dividing(Some(argument), Some(item)))
            }
            _ => axis.dividing(Some(argument), None),
        })
    });
    all.extend(on_terms(subject));
    Some(all)
}

/// `cat`: all dimensions but the concatenated one.
pub fn cat(subject: &Subject<'_>) -> Option<Vec<Axis>> {
    let result = subject.result()?;
    let along = subject.dim("dim", result.len())?;
    if subject.leaves.iter().any(|leaf| leaf.sizes.len() != result.len()) {
        return None;
    }
    let mut all = each_cut(subject, result, |dim, blocks| {
        (dim != along)
            .then(|| Axis::new(vec![Side::Cut(dim, blocks); subject.leaves.len()], Side::Cut(dim, blocks)))
    });
    all.push(Axis::new(vec![Side::Sum; subject.leaves.len()], Side::Sum).on_terms());
    Some(all)
}

/// Returns the dimension that one tensor of positions indexes, and the number of dimensions of the positions.
fn indexed(subject: &Subject<'_>) -> Option<(usize, usize)> {
    let input = subject.leaf("self")?;
    let argument = subject.argument("indices")?;
    let Operand::List(items) = &subject.operator.arguments[argument].operand else { return None };
    // Other items would be whole dimensions.
    let is_left_out = |item: &Operand| matches!(item, Operand::Constant(Constant::None));
    let [at] = (0..items.len()).filter(|item| !is_left_out(&items[*item])).collect::<Vec<_>>()[..] else {
        return None;
    };
    let [_, positions] = subject.leaves.as_slice() else { return None };
    if input != 0 || positions.argument != argument || positions.item != Some(at) {
        return None;
    }
    let (sizes, own) = (&subject.leaves[0].sizes, positions.sizes.len());
    let result = subject.result()?;
    // Booleans select rows in an unknown number.
    let made = [&sizes[..at], &positions.sizes[..], sizes.get(at + 1..)?].concat();
    (result == made && !subject.has_dtype(positions.source, tracer::DType::Bool)).then_some((at, own))
}

/// Returns the number of rows, and the positions, by which an `index` takes rows.
pub fn rows_at(subject: &Subject<'_>) -> Option<(u64, ValueId)> {
    let [rows, positions] = subject.leaves.as_slice() else { return None };
    let Source::Value(id) = positions.source else { return None };
    (indexed(subject)? == (0, 1)).then_some((*rows.sizes.first()?, id))
}

/// `index` by one tensor of positions: its dimensions, and the dimensions that are not indexed.
pub fn index(subject: &Subject<'_>) -> Option<Vec<Axis>> {
    let (at, own) = indexed(subject)?;
    let result = subject.result()?;
    let mut all = each_cut(subject, result, |dim, blocks| {
        let cut = Side::Cut(dim, blocks);
        Some(match dim {
            dim if dim < at => Axis::new(vec![cut, Side::Whole], cut),
            dim if dim < at + own => Axis::new(vec![Side::Partial, Side::Cut(dim - at, blocks)], cut),
            dim => Axis::new(vec![Side::Cut(dim + 1 - own, blocks), Side::Whole], cut),
        })
    });
    all.push(Axis::new(vec![Side::Sum, Side::Whole], Side::Sum).on_terms());
    Some(all)
}

/// `stack`: all dimensions of the operands.
pub fn stack(subject: &Subject<'_>) -> Option<Vec<Axis>> {
    let result = subject.result()?;
    let new = subject.dim("dim", result.len())?;
    Some(each_cut(subject, result, |dim, blocks| {
        let own = if dim < new { dim } else { dim.checked_sub(1)? };
        (dim != new)
            .then(|| Axis::new(vec![Side::Cut(own, blocks); subject.leaves.len()], Side::Cut(dim, blocks)))
    }))
}

/// An item of a list, or all of them, are cut as the list is.
pub fn items(subject: &Subject<'_>) -> Option<Vec<Axis>> {
    let [leaf] = subject.leaves.as_slice() else { return None };
    subject.result()?;
    let mut all = each_cut(subject, &leaf.sizes, |dim, blocks| {
        Some(Axis::new(vec![Side::Cut(dim, blocks)], Side::Cut(dim, blocks)))
    });
    all.push(Axis::new(vec![Side::Sum], Side::Sum).on_terms());
    Some(all)
}

/// `size`: the size of a cut dimension is multiplied.
pub fn size(subject: &Subject<'_>) -> Option<Vec<Axis>> {
    let [leaf] = subject.leaves.as_slice() else { return None };
    // Reading all sizes at once would give a list with one wrong item.
    let asked = subject.dim("dim", leaf.sizes.len())?;
    let mut all = vec![Axis::new(vec![Side::Sum], Side::Whole)];
    all.extend(each_cut(subject, &leaf.sizes, |dim, blocks| {
        let mut axis = Axis::new(vec![Side::Cut(dim, blocks)], Side::Whole);
        if dim == asked {
            axis.edits.push(crate::layout::Edit::Multiply);
        }
        Some(axis)
    }));
    Some(all)
}

/// `repeat`: dimensions that are repeated once.
pub fn repeat(subject: &Subject<'_>) -> Option<Vec<Axis>> {
    let [leaf] = subject.leaves.as_slice() else { return None };
    let result = subject.result()?;
    let times = subject.call.ints("repeats")?;
    let new = result.len().checked_sub(leaf.sizes.len())?;
    Some(each_cut(subject, &leaf.sizes, |dim, blocks| {
        (times.get(dim + new)? == &Some(1))
            .then_some(Axis::new(vec![Side::Cut(dim, blocks)], Side::Cut(dim + new, blocks)))
    }))
}

/// `repeat_interleave` by one number: repeats are next to their original, and are cut with it.
pub fn interleave(subject: &Subject<'_>) -> Option<Vec<Axis>> {
    let [leaf] = subject.leaves.as_slice() else { return None };
    let result = subject.result()?;
    subject.call.int("repeats")?;
    if result.len() != leaf.sizes.len() || subject.call.has("output_size") || !subject.call.has("dim") {
        return None;
    }
    Some(each_cut(subject, &leaf.sizes, |dim, blocks| {
        Some(Axis::new(vec![Side::Cut(dim, blocks)], Side::Cut(dim, blocks)))
    }))
}

/// `pad`: dimensions without padding.
pub fn pad(subject: &Subject<'_>) -> Option<Vec<Axis>> {
    let [leaf] = subject.leaves.as_slice() else { return None };
    let result = subject.result()?;
    let name = if subject.argument("pad").is_some() { "pad" } else { "padding" };
    let padded = subject.call.ints(name)?.len() / 2;
    Some(each_cut(subject, &leaf.sizes, |dim, blocks| {
        let is_alone = dim + padded < result.len();
        is_alone.then_some(Axis::new(vec![Side::Cut(dim, blocks)], Side::Cut(dim, blocks)))
    }))
}
