//! Operations as `torch.utils.flop_counter` counts them: `mm`, `bmm`, convolution and attention; a multiply-add is two.
//!
//! Operators that torch runs as a vector product (`mv`, `dot`) or elementwise count nothing there, and here. One
//! difference is on purpose: torch's formula for a grouped convolution's weight gradient ignores the groups and is too
//! large by their number; the count here is of the actual operations. A first layer has no input gradient if the
//! model's input needs none.

use std::num::Saturating;

use operators::{AttentionSize, ConvolutionSize, Flops, OperatorClass, ProductSize};

use super::{
    OperatorCost, chain, linalg,
    lookup::Lookup,
    product::{add_backward, of_two},
    times,
};
use crate::{
    fact::{Shape, TensorFact},
    infer::{Call, Einsum, Factor, recurrence},
    model::Operator,
    own,
};

/// Counts one operator. Operators of unknown size count nothing and are marked.
pub(super) fn count(lookup: &Lookup<'_>, operator: &Operator, call: &Call<'_>) -> OperatorCost {
    // An operator of another library, or one without a visible implementation.
    let is_unknown = operator.class == OperatorClass::Unknown;
    let flops = call.row().filter(|_| !is_unknown).map_or(Flops::Nothing, |row| row.flops);
    let counted = match flops {
        Flops::Nothing | Flops::Unseen => None,
        Flops::Own => of_its_own(lookup, operator, call),
        Flops::Linear => linear(lookup, call),
        Flops::Product => product(lookup, call.at(0).tensor(), call.at(1).tensor()),
        Flops::AddedProduct => product(lookup, call.at(1).tensor(), call.at(2).tensor()),
        Flops::Inner => inner(lookup, call),
        Flops::GroupedProduct => grouped(lookup, call),
        Flops::Tensordot => tensordot(lookup, call),
        Flops::Einsum => einsum(lookup, call),
        Flops::Chain => chain::chain_flops(lookup, call),
        Flops::MatrixPower => chain::power(lookup, call),
        Flops::Covariance => linalg::covariance(lookup, call),
        Flops::Convolution => convolution(lookup, operator, call),
        Flops::Attention => attention(call),
        Flops::TransformerLayer => transformer_layer(call),
        Flops::Recurrent => recurrent(call),
        Flops::RecurrentCell => cell(call),
        // Its forward kernel is opaque, its gradient is a product.
        Flops::AffineGrid => grid(lookup, operator, call),
        Flops::Solve
        | Flops::TriangularSolve
        | Flops::SolveFromFactors
        | Flops::LuSolve
        | Flops::CholeskyInverse
        | Flops::Inverse
        | Flops::TensorInverse
        | Flops::PseudoInverse
        | Flops::EigenValues
        | Flops::Eigen
        | Flops::HermitianEigen
        | Flops::SingularValues
        | Flops::Svd
        | Flops::MatrixNorm
        | Flops::Condition => linalg::solver(lookup, operator, call, flops),
    };
    let is_product = !matches!(flops, Flops::Nothing | Flops::AffineGrid);
    let is_counted = counted.is_some() || call.tensors().iter().all(|tensor| tensor.sizes().is_some());
    // An unknown operator may hide products with stored tensors, and so may an opaque call.
    let hides_products = is_unknown && (!operator.tensors.is_empty() || operator.name == "prim::CallMethod");
    let uncounted = u32::from(!is_counted && is_product || hides_products);
    OperatorCost { uncounted, ..counted.unwrap_or_default() }
}

fn of_its_own(lookup: &Lookup<'_>, operator: &Operator, call: &Call<'_>) -> Option<OperatorCost> {
    let [forward, backward] = own::flops(call, lookup.result(operator))?;
    let mut cost = OperatorCost { forward_flops: forward, ..OperatorCost::default() };
    add_backward(lookup, &mut cost, call.first().ok()?, backward);
    Some(cost)
}

/// All dimensions but the last two.
fn batch(sizes: &[u64]) -> Shape {
    sizes[..sizes.len().saturating_sub(2)].iter().map(|size| Some(*size)).collect()
}

/// Returns the operations of a batch of products of m × k and k × n.
fn product_flops([batch, m, n, k]: [u64; 4]) -> u64 {
    let [batch, m, n, k] = [batch, m, n, k].map(Saturating);
    ProductSize { batch, m, n, k }.flops().0
}

/// Returns the sizes for counting attention, with heads as samples: their number, positions, and widths.
fn attention_size([batch, seq, kv_seq, width, value_width]: [u64; 5]) -> AttentionSize<Saturating<u64>> {
    let [one, batch, seq, kv_seq, width, value_width] =
        [1, batch, seq, kv_seq, width, value_width].map(Saturating);
    AttentionSize { batch, heads: one, kv_heads: one, seq, kv_seq, width, value_width }
}

fn linear(lookup: &Lookup<'_>, call: &Call<'_>) -> Option<OperatorCost> {
    let (input, weight) = (call.tensor("input").ok()?, call.tensor("weight").ok()?);
    let (x, w) = (input.sizes()?, weight.sizes()?);
    let flops = match (w.as_slice(), x.split_last()) {
        ([out, _], Some((k, rows))) => product_flops([1, times(rows.iter().copied()), *out, *k]),
        _ => 0,
    };
    Some(of_two(lookup, input, weight, flops))
}

fn product(lookup: &Lookup<'_>, a: Option<&TensorFact>, b: Option<&TensorFact>) -> Option<OperatorCost> {
    let (a, b) = (a?, b?);
    let (x, y) = (a.sizes()?, b.sizes()?);
    // A matrix with a vector is `mv`, which is not counted; a vector with a matrix is `mm`.
    let flops = if y.len() == 1 || x.len() == 1 && y.len() > 2 {
        0
    } else {
        let (k, n) = (*x.last()?, *y.last()?);
        let m = if x.len() > 1 { x[x.len() - 2] } else { 1 };
        let batch = crate::infer::broadcast(&[&batch(&x), &batch(&y)]).ok()?;
        product_flops([times(batch.iter().map(|size| size.unwrap_or(1))), m, n, k])
    };
    Some(of_two(lookup, a, b, flops))
}

fn inner(lookup: &Lookup<'_>, call: &Call<'_>) -> Option<OperatorCost> {
    let (a, b) = (call.at(0).tensor()?, call.at(1).tensor()?);
    let (x, y) = (a.sizes()?, b.sizes()?);
    let inner = x.last().copied()?.max(1);
    Some(of_two(lookup, a, b, times([2, times(x), times(y) / inner])))
}

/// Rows are multiplied with the matrix of their own group only.
fn grouped(lookup: &Lookup<'_>, call: &Call<'_>) -> Option<OperatorCost> {
    let (a, b) = (call.at(0).tensor()?, call.at(1).tensor()?);
    let (x, y) = (a.sizes()?, b.sizes()?);
    let (k, rows) = x.split_last()?;
    let flops = product_flops([1, times(rows.iter().copied()), *y.last()?, *k]);
    Some(OperatorCost { fused_flops: flops, ..of_two(lookup, a, b, flops) })
}

fn tensordot(lookup: &Lookup<'_>, call: &Call<'_>) -> Option<OperatorCost> {
    let (a, b) = (call.tensor("self").ok()?, call.tensor("other").ok()?);
    let (x, y) = (a.sizes()?, b.sizes()?);
    let over = call.dims("dims_self", x.len()).ok()?;
    let inner = times(over.iter().map(|dim| x[*dim])).max(1);
    Some(of_two(lookup, a, b, times([2, times(x), times(y) / inner])))
}

/// Batched products of two operands over the summed letters.
fn einsum(lookup: &Lookup<'_>, call: &Call<'_>) -> Option<OperatorCost> {
    let (parsed, tensors) = Einsum::of(call).ok()?;
    let products = parsed.products(call).ok()?;
    let mut cost = OperatorCost::default();
    let mut terms: Vec<(Vec<char>, TensorFact)> =
        parsed.operands.into_iter().zip(tensors.iter().map(|tensor| (*tensor).clone())).collect();
    let (output, sizes) = (parsed.output, parsed.sizes);
    for product in products {
        let ((left, a), (right, b)) = product.take(&mut terms);
        let needed =
            |letter: &char| output.contains(letter) || terms.iter().any(|(term, _)| term.contains(letter));
        // Letters of one operand that the result lacks are summed before the product.
        let kept_left: Vec<char> = left.iter().copied().filter(|l| needed(l) || right.contains(l)).collect();
        let kept_right: Vec<char> = right.iter().copied().filter(|l| needed(l) || left.contains(l)).collect();
        // A summed letter of size one is multiplied, not summed: that is not a matrix product.
        let is_one = |letter: &char| sizes.get(letter) == Some(&Some(1));
        let is_summed =
            kept_left.iter().any(|letter| kept_right.contains(letter) && !needed(letter) && !is_one(letter));
        let mut letters = kept_left;
        letters.extend(kept_right);
        letters.sort_unstable();
        letters.dedup();
        if is_summed {
            let counts = letters.iter().map(|letter| sizes.get(letter).copied().flatten());
            let counts: Option<Vec<u64>> = counts.collect();
            cost += of_two(lookup, &a, &b, times([2, times(counts?)]));
        }
        letters.retain(needed);
        // The result of a product is not a parameter.
        let requires_grad = a.requires_grad || b.requires_grad;
        terms.insert(product.place, (letters, TensorFact { requires_grad, ..TensorFact::default() }));
    }
    Some(cost)
}

/// Every position of the grid, by the columns of the matrix that makes it.
fn grid(lookup: &Lookup<'_>, operator: &Operator, call: &Call<'_>) -> Option<OperatorCost> {
    let (matrix, result) = (call.first().ok()?, lookup.result(operator)?.sizes()?);
    let mut cost = OperatorCost::default();
    add_backward(lookup, &mut cost, matrix, times([2, times(result.iter().copied()), result.last()? + 1]));
    Some(cost)
}

fn convolution(lookup: &Lookup<'_>, operator: &Operator, call: &Call<'_>) -> Option<OperatorCost> {
    let input = call.tensor("input").or_else(|_| call.first()).ok()?;
    let weight = call.tensor("weight").ok()?;
    let (x, w, out) = (input.sizes()?, weight.sizes()?, lookup.result(operator)?.sizes()?);
    let rank = w.len().checked_sub(2)?;
    let is_transposed = call.is_transposed();
    let batch = if x.len() == rank + 2 { x[0] } else { 1 };
    // Every kernel element meets every position of the smaller image.
    let positions = if is_transposed { &x } else { &out };
    let picture = positions.get(positions.len().checked_sub(rank)?..)?;
    let (out_channels, in_group) = (w[0], w[1]);
    let number = |sizes: &[u64]| Saturating(times(sizes.iter().copied()));
    let count = ConvolutionSize {
        batch: Saturating(batch),
        in_channels: Saturating(in_group),
        in_group: Saturating(in_group),
        out_channels: Saturating(out_channels),
        // The operations do not depend on the larger image.
        input: Saturating(0),
        output: number(picture),
        kernel: number(&w[2..]),
    };
    Some(of_two(lookup, input, weight, count.flops().0))
}

fn transformer_layer(call: &Call<'_>) -> Option<OperatorCost> {
    let query = call.first().ok()?.sizes()?;
    let [batch, length, width] = query.as_slice() else { return None };
    let projection = product_flops([*batch, *length, *width, *width]);
    let attention = attention_size([*batch, *length, *length, *width, *width]);
    // A whole layer of an encoder has two more products; attention alone has no such operands.
    let mlp =
        ["ffn_weight_1", "ffn_weight_2"].map(|name| match call.tensor(name).ok()?.sizes()?.as_slice() {
            [outputs, inputs] => Some(product_flops([*batch, *length, *inputs, *outputs])),
            _ => None,
        });
    let mlp = mlp.into_iter().flatten().fold(0, u64::saturating_add);
    let forward_flops = times([4, projection]).saturating_add(attention.flops().0).saturating_add(mlp);
    Some(OperatorCost { forward_flops, fused_flops: forward_flops, ..OperatorCost::default() })
}

fn attention(call: &Call<'_>) -> Option<OperatorCost> {
    let [query, key, value] = ["query", "key", "value"].map(|name| call.tensor(name).ok());
    let (query, key, value) = (query?, key?, value?);
    let (q, k, v) = (query.sizes()?, key.sizes()?, value.sizes()?);
    let [.., rows, width] = q.as_slice() else { return None };
    let ([.., columns, _], Some(out)) = (k.as_slice(), v.last()) else { return None };
    let batch = match crate::infer::broadcast(&[&batch(&q), &batch(&k)]) {
        Ok(batch) => times(batch.iter().map(|size| size.unwrap_or(1))),
        // Grouped queries: fewer keys than queries.
        Err(_) => times(q[..q.len() - 2].iter().copied()),
    };
    let count = attention_size([batch, *rows, *columns, *width, *out]);
    let forward_flops = count.flops().0;
    let needs_gradient = [query, key, value].iter().any(|tensor| tensor.requires_grad);
    let is_fused = !crate::infer::attention_by_parts(call);
    Some(OperatorCost {
        forward_flops,
        fused_flops: if is_fused { forward_flops } else { 0 },
        backward_flops_input: if needs_gradient { count.backward_flops(is_fused).0 } else { 0 },
        ..OperatorCost::default()
    })
}

fn cell(call: &Call<'_>) -> Option<OperatorCost> {
    let (input, state) = (call.first().ok()?, call.get("hx")?.tensors().first().copied()?);
    let batch =
        |tensor: &TensorFact| tensor.sizes().map(|s| times(s[..s.len().saturating_sub(1)].iter().copied()));
    let [w_ih, w_hh] = ["w_ih", "w_hh"].map(|name| call.tensor(name).ok().and_then(|tensor| tensor.sizes()));
    let (forward_input, forward_state) =
        (times([2, batch(input)?, times(w_ih?)]), times([2, batch(state)?, times(w_hh?)]));
    let forward_flops = forward_input.saturating_add(forward_state);
    let inputs = [(input, forward_input), (state, forward_state)];
    Some(OperatorCost {
        forward_flops,
        backward_flops_weight: forward_flops,
        backward_flops_input: inputs
            .iter()
            .filter(|(t, _)| t.requires_grad)
            .fold(0, |sum, (_, flops)| sum.saturating_add(*flops)),
        ..OperatorCost::default()
    })
}

fn recurrent(call: &Call<'_>) -> Option<OperatorCost> {
    let layer = recurrence(call).ok()?;
    let (steps, batch) = (layer.steps?, layer.batch?);
    let input = call.first().ok()?;
    let is_packed = input.shape.as_ref().is_some_and(|shape| shape.len() == 2);
    let state = call.get("hx")?.tensors().iter().any(|tensor| tensor.requires_grad);
    let mut cost = OperatorCost::default();
    for (position, (rows, columns, factor)) in layer.matrices.iter().enumerate() {
        let one_step = product_flops([1, batch, *rows, *columns]);
        let flops = times([one_step, steps]);
        cost.forward_flops = cost.forward_flops.saturating_add(flops);
        cost.backward_flops_weight = cost.backward_flops_weight.saturating_add(flops);
        let per_layer = layer.matrices.len() as u64 / layer.layers;
        let position = position as u64;
        let is_first_layer = position < per_layer;
        let place = position.checked_rem(per_layer).unwrap_or(0);
        let is_backwards = place >= per_layer.div_ceil(layer.directions);
        let back = match factor {
            // The first step's state needs no gradient unless a given one does. All packed sequences begin together,
            // and in reverse the longest begins alone.
            Factor::State if !state => {
                let first = if is_packed && !is_backwards { layer.sequences.unwrap_or(1) } else { 1 };
                flops.saturating_sub(times([one_step, first]))
            }
            Factor::Input if is_first_layer && !input.requires_grad => 0,
            _ => flops,
        };
        cost.backward_flops_input = cost.backward_flops_input.saturating_add(back);
    }
    if super::recurrent::is_fused(call, input, &layer) {
        cost.fused_flops = cost.forward_flops;
    }
    Some(cost)
}
