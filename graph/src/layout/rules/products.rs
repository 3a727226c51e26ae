//! Matrix products: the origin of terms of sums.

use super::{Axis, Side, each_cut, elementwise::broadcast};
use crate::layout::{
    Layout, Routed, Slice, Source, Strategy,
    sharded::INPUT,
    strategy::{Need, Special},
    subject::Subject,
};

/// Makes an axis from the sides of `input` and `weight`; a bias follows the weight.
fn weighted(subject: &Subject<'_>, [input, weight, bias]: [Side; 3], gives: Side) -> Axis {
    let (at_input, at_weight) = (subject.leaf("input"), subject.leaf("weight"));
    let side = |at| match Some(at) {
        at if at == at_input => input,
        at if at == at_weight => weight,
        _ => bias,
    };
    Axis::new((0..subject.leaves.len()).map(side).collect(), gives)
}

/// `linear`: rows of the input, output features, input features.
pub fn linear(subject: &Subject<'_>) -> Option<Vec<Axis>> {
    let (input, weight) = (subject.leaf("input")?, subject.leaf("weight")?);
    let (sizes, table) = (&subject.leaves[input].sizes, &subject.leaves[weight].sizes);
    if table.len() != 2 || sizes.is_empty() {
        return None;
    }
    let last = sizes.len() - 1;
    let made = |sides, gives| weighted(subject, sides, gives);
    let mut all = each_cut(subject, sizes, |dim, blocks| {
        let cut = Side::Cut(dim, blocks);
        Some(if dim == last {
            // The bias is added once.
            made([cut, Side::Cut(1, blocks), Side::Sum], Side::Sum)
        } else {
            made([cut, Side::Partial, Side::Partial], cut)
        })
    });
    all.extend(each_cut(subject, &table[..1], |_, blocks| {
        Some(made([Side::Partial, Side::Cut(0, blocks), Side::Cut(0, blocks)], Side::Cut(last, blocks)))
    }));
    Some(all)
}

/// `matmul`, `mm`, `bmm`: the two leaves from `first` on; leading dimensions broadcast.
pub fn matmul(subject: &Subject<'_>, first: usize) -> Option<Vec<Axis>> {
    let (left, right) = (subject.leaves.get(first)?, subject.leaves.get(first + 1)?);
    let result = subject.result()?;
    let (a, b) = (left.sizes.len(), right.sizes.len());
    if a < 2 || b < 2 || subject.leaves.len() != first + 2 || result.len() != a.max(b) {
        return None;
    }
    let rank = result.len();
    let mut all = each_cut(subject, result, |dim, blocks| {
        let (of_left, of_right) = match rank - dim {
            1 => (Side::Partial, Side::Cut(b - 1, blocks)),
            2 => (Side::Cut(a - 2, blocks), Side::Partial),
            _ => {
                (broadcast(&left.sizes, result, dim, blocks)?, broadcast(&right.sizes, result, dim, blocks)?)
            }
        };
        Some(Axis::new(vec![of_left, of_right], Side::Cut(dim, blocks)))
    });
    all.extend(each_cut(subject, &left.sizes, |dim, blocks| {
        (dim == a - 1).then(|| Axis::new(vec![Side::Cut(a - 1, blocks), Side::Cut(b - 2, blocks)], Side::Sum))
    }));
    Some(all)
}

/// `addmm`, `baddbmm`: the same, with a summand, which is added in one term only.
pub fn added(subject: &Subject<'_>) -> Option<Vec<Axis>> {
    let summand = subject.leaf("self")?;
    let result = subject.result()?;
    if summand != 0 {
        return None;
    }
    let own = subject.leaves[0].sizes.clone();
    let rest = Subject {
        context: subject.context,
        images: subject.images,
        operator: subject.operator,
        call: subject.call.of(subject.call.name),
        leaves: subject.leaves[1..].to_vec(),
        outputs: subject.outputs.clone(),
        row: subject.row,
    };
    let made = |axis: Axis| {
        let first = match axis.gives {
            Side::Cut(dim, blocks) => broadcast(&own, result, dim, blocks)?,
            gives => gives,
        };
        Some(Axis { leaves: [vec![first], axis.leaves].concat(), ..axis })
    };
    Some(matmul(&rest, 0)?.into_iter().filter_map(made).collect())
}

/// `_grouped_mm`: each run of rows with its own matrix, as for experts: output features, and input features, over which
/// terms are summed.
pub fn grouped(subject: &Subject<'_>) -> Option<Vec<Axis>> {
    let [input, table, _] = grouped_leaves(subject)?;
    let (sizes, matrices) = (&subject.leaves[input].sizes, &subject.leaves[table].sizes);
    let made = |of_input, of_table, gives| {
        let mut leaves = vec![Side::Whole; subject.leaves.len()];
        (leaves[input], leaves[table]) = (of_input, of_table);
        Axis::new(leaves, gives)
    };
    let mut all = each_cut(subject, matrices, |dim, blocks| {
        (dim == 2).then(|| made(Side::Partial, Side::Cut(2, blocks), Side::Cut(1, blocks)))
    });
    all.extend(each_cut(subject, sizes, |dim, blocks| {
        (dim == 1).then(|| made(Side::Cut(1, blocks), Side::Cut(1, blocks), Side::Sum))
    }));
    Some(all)
}

/// The rows and matrices of a grouped product, and the ends of the runs; calls with a bias or another data type are not
/// cut.
fn grouped_leaves(subject: &Subject<'_>) -> Option<[usize; 3]> {
    let input = subject.leaf("self").or_else(|| subject.leaf(INPUT))?;
    let leaves = [input, subject.leaf("mat2")?, subject.leaf("offs")?];
    let ranks = leaves.map(|at| subject.leaves[at].sizes.len());
    let is_plain = !subject.call.has("bias") && !subject.call.has("out_dtype");
    (ranks == [2, 3, 1] && subject.leaves.len() == 3 && is_plain).then_some(leaves)
}

/// Returns the numbers of experts and of rows.
pub fn grouped_sizes(subject: &Subject<'_>) -> Option<(u64, u64)> {
    let [input, table, _] = grouped_leaves(subject)?;
    Some((subject.leaves[table].sizes[0], subject.leaves[input].sizes[0]))
}

/// Returns how a grouped product routes rows to experts, and the number of rows.
pub fn routed(subject: &Subject<'_>) -> Option<(Routed, u64)> {
    let [.., offsets] = grouped_leaves(subject)?;
    if subject.is_of_groups() {
        return None; // Rows are those of a group's experts, the ends those of all.
    }
    let (experts, rows) = grouped_sizes(subject)?;
    let Source::Value(offsets) = subject.leaves[offsets].source else { return None };
    let degree = subject.context.degree;
    let is_even = rows > 0 && rows.is_multiple_of(degree) && experts.is_multiple_of(degree);
    is_even.then_some((Routed { offsets, experts }, rows))
}

/// A grouped product of the rows that are routed to the device's own experts.
pub fn by_expert(subject: &Subject<'_>, layout: Layout) -> Option<Strategy> {
    let [input, table, _] = grouped_leaves(subject)?;
    let mut needs = vec![Need::Whole; subject.leaves.len()];
    needs[input] = Need::In(layout);
    needs[table] = Need::In(Layout::Even(Slice { dim: 0, blocks: 1 }));
    Some(Strategy {
        needs,
        gives: layout,
        special: Some(Special::Experts),
        is_split: true,
        ..Strategy::default()
    })
}

/// Attention: dimensions before positions, and positions of the query. With causal attention a device's keys end at its
/// own last position, so the last device does the most.
pub fn attention(subject: &Subject<'_>) -> Option<Vec<Axis>> {
    let (query, key, value) = (subject.leaf("query")?, subject.leaf("key")?, subject.leaf("value")?);
    let mask = subject.leaf("attn_mask");
    let result = subject.result()?;
    let rank = result.len();
    let sizes = |at: usize| &subject.leaves[at].sizes;
    let ranks_agree = [query, key, value].iter().all(|at| sizes(*at).len() == rank);
    let drops = subject.argument("dropout_p").is_some() && subject.call.float("dropout_p") != Some(0.0);
    if rank < 3 || !ranks_agree || drops {
        return None;
    }
    let is_grouped = subject.call.flag("enable_gqa").unwrap_or(false);
    let is_causal = subject.call.flag("is_causal") != Some(false);
    // Equal positions on both sides, and no mask.
    let looks_back = subject.call.flag("is_causal") == Some(true)
        && mask.is_none()
        && sizes(key)[rank - 2] == result[rank - 2]
        && subject.images.is_none();
    Some(each_cut(subject, result, |dim, blocks| {
        let is_head = dim + 3 == rank;
        let of_keys = match dim {
            _ if dim + 1 == rank => return None,
            _ if dim + 2 == rank && is_causal && !(looks_back && blocks == 1) => return None,
            _ if dim + 2 == rank => Side::Partial,
            _ if is_head && is_grouped && blocks > 1 => return None,
            _ if is_head && is_grouped || sizes(key)[dim] == result[dim] => Side::Cut(dim, blocks),
            _ if sizes(key)[dim] == 1 => Side::Partial,
            _ => return None,
        };
        let of_values = match of_keys {
            Side::Cut(..) if sizes(value)[dim] == sizes(key)[dim] => of_keys,
            Side::Partial if sizes(value)[dim] == 1 || dim + 2 == rank => of_keys,
            _ => return None,
        };
        let mut leaves = vec![Side::Cut(dim, blocks); subject.leaves.len()];
        (leaves[key], leaves[value]) = (of_keys, of_values);
        if let Some(mask) = mask {
            leaves[mask] = broadcast(sizes(mask), result, dim, blocks)?;
        }
        let special = (dim + 2 == rank && is_causal).then_some(Special::CausalAttention);
        let axis = Axis { special, ..Axis::new(leaves, Side::Cut(dim, blocks)) };
        (sizes(query)[dim] == result[dim]).then_some(axis)
    }))
}

/// `embedding`: indices, columns, and rows of the table.
pub fn embedding(subject: &Subject<'_>) -> Option<Vec<Axis>> {
    let (weight, indices) = (subject.leaf("weight")?, subject.leaf("indices")?);
    let (table, looked_up) = (&subject.leaves[weight].sizes, &subject.leaves[indices].sizes);
    let is_plain =
        subject.call.flag("scale_grad_by_freq") != Some(true) && subject.call.flag("sparse") != Some(true);
    if table.len() != 2 || !is_plain || subject.leaves.len() != 2 {
        return None;
    }
    let made = |of_weight, of_indices, gives| {
        let mut leaves = vec![Side::Whole; 2];
        (leaves[weight], leaves[indices]) = (of_weight, of_indices);
        Axis::new(leaves, gives)
    };
    let mut all = each_cut(subject, looked_up, |dim, blocks| {
        Some(made(Side::Partial, Side::Cut(dim, blocks), Side::Cut(dim, blocks)))
    });
    all.extend(each_cut(subject, table, |dim, blocks| match dim {
        0 if blocks == 1 => {
            Some(Axis { special: Some(Special::Rows), ..made(Side::Cut(0, 1), Side::Whole, Side::Sum) })
        }
        0 => None,
        _ => Some(made(Side::Cut(1, blocks), Side::Whole, Side::Cut(looked_up.len(), blocks))),
    }));
    Some(all)
}

/// Convolutions, also transposed ones: samples, output channels, input channels, and groups of both.
pub fn convolution(subject: &Subject<'_>) -> Option<Vec<Axis>> {
    let (input, weight) = (subject.leaf("input")?, subject.leaf("weight")?);
    let (sizes, kernel) = (&subject.leaves[input].sizes, &subject.leaves[weight].sizes);
    if sizes.len() != kernel.len() || sizes.len() < 3 {
        return None;
    }
    let groups = u64::try_from(subject.call.int("groups")?).ok()?;
    let is_transposed = subject.call.is_transposed();
    let (of_out, of_in) = if is_transposed { (1, 0) } else { (0, 1) };
    let made = |sides, gives| weighted(subject, sides, gives);
    let mut all = each_cut(subject, &sizes[..1], |_, blocks| {
        let cut = Side::Cut(0, blocks);
        Some(made([cut, Side::Partial, Side::Partial], cut))
    });
    let channels = [sizes[0], sizes[1]];
    if groups == 1 {
        all.extend(each_cut(subject, &channels, |dim, blocks| {
            (dim == 1).then(|| made([Side::Cut(1, blocks), Side::Cut(of_in, blocks), Side::Sum], Side::Sum))
        }));
        all.extend(each_cut(subject, &kernel[of_out..=of_out], |_, blocks| {
            Some(made([Side::Partial, Side::Cut(of_out, blocks), Side::Cut(0, blocks)], Side::Cut(1, blocks)))
        }));
    } else if groups.is_multiple_of(subject.context.degree) {
        // The kernel has groups in its first dimension either way.
        let axis = made([Side::Cut(1, 1), Side::Cut(0, 1), Side::Cut(0, 1)], Side::Cut(1, 1));
        all.push(axis.dividing(subject.argument("groups"), None));
    }
    Some(all)
}
