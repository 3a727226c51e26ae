//! Several matrix products in one operator: a chain of matrices, and a matrix's power.

use super::{
    OperatorCost,
    keep::Keep,
    lookup::Lookup,
    product::{add_backward, of_two},
    times,
};
use crate::{fact::TensorFact, infer::Call};

/// `linalg_matrix_power`: its products, each with two gradients; an inverse adds a solve.
pub(super) fn power(lookup: &Lookup<'_>, call: &Call<'_>) -> Option<OperatorCost> {
    let matrices = call.first().ok()?;
    let sizes = matrices.sizes()?;
    let one = times([2, *sizes.last()?, times(sizes)]);
    let n = call.int("n")?;
    let forward_flops = times([n_products(n), one]);
    let of_inverse = if n < 0 { times([2, one]) } else { 0 };
    let mut cost = OperatorCost { forward_flops, ..OperatorCost::default() };
    add_backward(lookup, &mut cost, matrices, times([2, forward_flops]).saturating_add(of_inverse));
    Some(cost)
}

/// Saves the factors of a power's products.
pub(super) fn keep_power(keep: &mut Keep<'_>, call: &Call<'_>, result: Option<&TensorFact>) -> Option<()> {
    let matrices = call.first().ok()?;
    let n = call.int("n")?;
    match n {
        // The inverse is its own result.
        -1 => result.into_iter().for_each(|inverse| keep.tensor(inverse)),
        ..0 => keep.fresh(matrices.bytes()),
        0 | 1 => {}
        _ => keep.tensor(matrices),
    }
    // Every product but the last is a factor of another.
    let fresh = n_products(n).saturating_sub(1);
    keep.fresh(matrices.bytes().map(|bytes| bytes.saturating_mul(fresh)));
    Some(())
}

/// Returns the number of products of a power: one per doubling and one per further digit.
fn n_products(n: i64) -> u64 {
    match n.unsigned_abs() {
        0 => 0,
        n => u64::from(n.ilog2() + n.count_ones() - 1),
    }
}

/// One product of a chain.
struct Link {
    rows: u64,
    columns: u64,
    tensor: TensorFact,
    is_made: bool,
}

/// `linalg_multi_dot`: products in torch's cheapest order; calls `product` with the two factors of each. O(n³) in
/// matrices.
fn chain(call: &Call<'_>, product: &mut dyn FnMut(&Link, &Link)) -> Option<()> {
    let all = call.tensors();
    let n = all.len();
    // Longer chains do not occur, but a list in a file may have any length.
    if n > 64 {
        return None;
    }
    let mut links = Vec::new();
    for (at, tensor) in all.into_iter().enumerate() {
        let (rows, columns) = match tensor.sizes()?.as_slice() {
            [length] if at == 0 => (1, *length),
            [length] => (*length, 1),
            [rows, columns] => (*rows, *columns),
            _ => return None,
        };
        links.push(Some(Link { rows, columns, tensor: tensor.clone(), is_made: false }));
    }
    let sides: Vec<u64> = {
        let first = links.first()?.as_ref()?.rows;
        std::iter::once(first).chain(links.iter().flatten().map(|link| link.columns)).collect()
    };
    let mut costs = vec![vec![0_u64; n]; n];
    let mut cuts = vec![vec![0; n]; n];
    for length in 1..n {
        for from in 0..n - length {
            let to = from + length;
            costs[from][to] = u64::MAX;
            for cut in from..to {
                let own = times([sides[from], sides[cut + 1], sides[to + 1]]);
                let cost = costs[from][cut].saturating_add(costs[cut + 1][to]).saturating_add(own);
                // With three matrices torch multiplies the first two if costs are equal.
                if cut == from || cost < costs[from][to] || n == 3 && cost == costs[from][to] {
                    (costs[from][to], cuts[from][to]) = (cost, cut);
                }
            }
        }
    }
    fn walk(
        links: &mut [Option<Link>],
        cuts: &[Vec<usize>],
        (from, to): (usize, usize),
        product: &mut dyn FnMut(&Link, &Link),
    ) -> Option<Link> {
        if from == to {
            return links.get_mut(from)?.take();
        }
        let cut = cuts[from][to];
        let a = walk(links, cuts, (from, cut), product)?;
        let b = walk(links, cuts, (cut + 1, to), product)?;
        product(&a, &b);
        let requires_grad = a.tensor.requires_grad || b.tensor.requires_grad;
        let tensor = TensorFact { dtype: a.tensor.dtype, requires_grad, ..TensorFact::default() };
        Some(Link { rows: a.rows, columns: b.columns, tensor, is_made: true })
    }
    walk(&mut links, &cuts, (0, n.checked_sub(1)?), product).map(|_| ())
}

/// The operations of a chain.
pub(super) fn chain_flops(lookup: &Lookup<'_>, call: &Call<'_>) -> Option<OperatorCost> {
    let mut cost = OperatorCost::default();
    chain(call, &mut |a, b| {
        cost += of_two(lookup, &a.tensor, &b.tensor, times([2, a.rows, a.columns, b.columns]));
    })?;
    Some(cost)
}

/// Saves each factor if the other needs a gradient.
pub(super) fn keep_chain(keep: &mut Keep<'_>, call: &Call<'_>) -> Option<()> {
    chain(call, &mut |a, b| {
        for (kept, _) in [(a, b), (b, a)].into_iter().filter(|(_, other)| other.tensor.requires_grad) {
            if kept.is_made {
                let bytes = kept.tensor.dtype.map(tracer::DType::bytes);
                keep.fresh(bytes.map(|bytes| times([kept.rows, kept.columns, bytes])));
            } else {
                keep.tensor(&kept.tensor);
            }
        }
    })
}
