//! Saved activations of recurrent layers, as PyTorch runs them on a CPU.
//!
//! LSTM layers of 32-bit floats run in oneDNN, which saves inputs, outputs and a workspace for each layer and
//! direction; the workspace's layout is oneDNN's own (`rnn_utils`), in pages. All others (GRU, plain layers,
//! projections, other dtypes, packed sequences) run step by step, and each step saves the activations of its operators.
//! On a GPU cuDNN saves a reserve space instead, about half of oneDNN's workspace, whose exact size is not documented.

use operators::ShapeRule;
use tracer::DType;

use super::{keep::Keep, lookup::Lookup, times};
use crate::{
    fact::{Fact, TensorFact},
    infer::{Call, Factor, Recurrence, recurrence},
    model::Operator,
};

/// Counts `lstm`, `gru`, `rnn_tanh`, `rnn_relu` and their cells.
pub(super) fn keep_recurrent(keep: &mut Keep<'_>, lookup: &Lookup<'_>, operator: &Operator, call: &Call<'_>) {
    let Ok(input) = call.first() else { return };
    if !call.shape_rule().is_recurrent_layer() {
        return cell(keep, call, input);
    }
    let states: Vec<&TensorFact> = call.get("hx").map(Fact::tensors).unwrap_or_default();
    states.iter().for_each(|state| keep.tensor(state));
    let Ok(layer) = recurrence(call) else { return keep.tensor(input) };
    let Some(sizes) = Sizes::of(&layer, input) else { return };
    let turned = steps_first(call, input);
    if is_fused(call, input, &layer) {
        fused(keep, lookup, operator, call, &layer, &sizes, &turned);
    } else {
        stepwise(keep, call, &layer, &sizes, &turned);
    }
    // Dropout between layers saves a mask, one byte per element as elsewhere.
    let is_dropping = call.flag("train") == Some(true) && call.float("dropout").is_some_and(|p| p > 0.0);
    if is_dropping {
        keep.fresh(Some(times([layer.layers - 1, sizes.rows, sizes.output, layer.directions])));
    }
}

/// Tells whether a layer runs in oneDNN, which torch's flop counter cannot see into.
pub(super) fn is_fused(call: &Call<'_>, input: &TensorFact, layer: &Recurrence) -> bool {
    let is_packed = input.shape.as_ref().is_some_and(|shape| shape.len() == 2);
    call.shape_rule() == ShapeRule::Lstm
        && input.dtype == Some(DType::Float32)
        && !has_projection(layer)
        && !is_packed
}

fn has_projection(layer: &Recurrence) -> bool {
    layer.matrices.iter().any(|(_, _, factor)| *factor == Factor::Projection)
}

/// The factors of all sizes.
struct Sizes {
    steps: u64,
    batch: u64,
    /// Rows of all steps.
    rows: u64,
    hidden: u64,
    output: u64,
    /// Columns of the first layer's input.
    width: u64,
    /// Bytes of an element.
    element: u64,
}

impl Sizes {
    fn of(layer: &Recurrence, input: &TensorFact) -> Option<Self> {
        let (steps, batch) = (layer.steps?, layer.batch?);
        Some(Self {
            steps,
            batch,
            rows: steps.saturating_mul(batch),
            hidden: layer.hidden?,
            output: layer.output?,
            width: (*input.shape.as_ref()?.last()?)?,
            element: input.dtype?.bytes(),
        })
    }
}

/// The input in the layers' order: steps first.
fn steps_first(call: &Call<'_>, input: &TensorFact) -> TensorFact {
    let mut turned = input.clone();
    if call.flag("batch_first") == Some(true)
        && let (Some(shape), Some(strides)) = (&mut turned.shape, &mut turned.strides)
        && shape.len() == 3
    {
        shape.swap(0, 1);
        strides.swap(0, 1);
    }
    turned
}

/// oneDNN's LSTM: one call for each layer and direction.
fn fused(
    keep: &mut Keep<'_>,
    lookup: &Lookup<'_>,
    operator: &Operator,
    call: &Call<'_>,
    layer: &Recurrence,
    sizes: &Sizes,
    turned: &TensorFact,
) {
    match turned.is_contiguous() {
        Some(false) => keep.fresh(turned.bytes()),
        _ => keep.tensor(turned),
    }
    let state = times([sizes.batch, sizes.hidden, sizes.element]);
    let output = times([sizes.rows, sizes.hidden, sizes.element]);
    for index in 0..layer.layers {
        let width = match index {
            0 => sizes.width,
            _ => sizes.hidden.saturating_mul(layer.directions),
        };
        let one = workspace(sizes, width).saturating_add(times([2, state]));
        keep.fresh(Some(times([layer.directions, one])));
        let is_last = index + 1 == layer.layers;
        match lookup.result(operator).filter(|_| is_last && layer.directions == 1) {
            // The layer's output is the operator's.
            Some(result) => keep.tensor(result),
            None => keep.fresh(Some(times([layer.directions, output]))),
        }
        // Two directions are joined for the next layer.
        if layer.directions == 2 && !is_last {
            keep.fresh(Some(times([2, output])));
        }
        // Without biases zeros replace them, as many as there are weights.
        if call.flag("has_biases") == Some(false) {
            let weights = times([4, sizes.hidden, width.saturating_add(sizes.hidden), sizes.element]);
            keep.fresh(Some(times([layer.directions, weights])));
        }
    }
}

/// oneDNN's workspace of one LSTM layer and direction in training, in bytes.
fn workspace(sizes: &Sizes, width: u64) -> u64 {
    const PAGE: u64 = 4096;
    const FLOAT: u64 = 4;
    let pages = |numbers: &[u64]| times(numbers.iter().copied()).div_ceil(PAGE).saturating_mul(PAGE);
    // Rows begin at multiples of 64 bytes, and not 4 KiB apart, which would share cache lines.
    let padded = |row: u64| match row.div_ceil(16).saturating_mul(16) {
        row if row.is_multiple_of(256) => row.saturating_add(16),
        row => row,
    };
    let gates = pages(&[sizes.rows, padded(sizes.hidden.saturating_mul(4)), FLOAT]);
    let hidden = pages(&[sizes.rows, padded(sizes.hidden), FLOAT]);
    // Before and after each layer and step.
    let places = times([2, sizes.steps.saturating_add(1), sizes.batch, FLOAT]);
    let states = pages(&[places, padded(sizes.hidden.max(width))]);
    let cells = pages(&[places, sizes.hidden]);
    // States have space for the layer's values and for their gradient, cells for their gradient.
    [gates, hidden, states, states, states, cells, cells].into_iter().fold(0, u64::saturating_add)
}

/// Layers that run step by step.
fn stepwise(keep: &mut Keep<'_>, call: &Call<'_>, layer: &Recurrence, sizes: &Sizes, turned: &TensorFact) {
    let between = sizes.steps.saturating_sub(1);
    let per_direction = match call.shape_rule() {
        // Four gates and tanh of the cell in each step; cells and outputs between steps.
        ShapeRule::Lstm => {
            let step = times([if has_projection(layer) { 6 } else { 5 }, sizes.hidden]);
            let kept_between = times([between, sizes.hidden.saturating_add(sizes.output)]);
            times([sizes.steps, step]).saturating_add(kept_between)
        }
        // Three gates, two overwritten operands, the new state's tanh; states between steps.
        ShapeRule::Gru => {
            times([sizes.steps, 6, sizes.hidden]).saturating_add(times([between, sizes.hidden]))
        }
        // The state itself is the result of tanh or relu.
        _ => times([sizes.steps, sizes.hidden]),
    };
    let inner = times([layer.layers - 1, sizes.rows, layer.directions, sizes.output]);
    let each = times([layer.layers, layer.directions, per_direction, sizes.batch]);
    keep.fresh(Some(each.saturating_add(inner).saturating_mul(sizes.element)));
    // Each direction folds the input for its product.
    (0..layer.directions).for_each(|_| keep.rows(turned));
    // Products save their weights if a gradient flows to the other factor; weights that were made, for example by a
    // cast, are memory of their own.
    let of_each = if has_projection(layer) { 3 } else { 2 };
    for (index, matrix) in matrices(call.get("params")).enumerate() {
        let reads_input = index.is_multiple_of(of_each) && (index as u64) < of_each as u64 * layer.directions;
        if !reads_input || turned.requires_grad {
            keep.tensor(matrix);
        }
    }
}

/// Returns weights without biases.
fn matrices(fact: Option<&Fact>) -> impl Iterator<Item = &TensorFact> {
    let found = fact.map(Fact::tensors).unwrap_or_default();
    found.into_iter().filter(|tensor| tensor.shape.as_ref().is_some_and(|shape| shape.len() == 2))
}

/// `lstm_cell`, `gru_cell`, `rnn_tanh_cell`, `rnn_relu_cell`: one step.
fn cell(keep: &mut Keep<'_>, call: &Call<'_>, input: &TensorFact) {
    keep.tensor(input);
    let states: Vec<&TensorFact> = call.get("hx").map(Fact::tensors).unwrap_or_default();
    states.iter().for_each(|state| keep.tensor(state));
    let flows = [input.requires_grad, states.first().is_some_and(|state| state.requires_grad)];
    for (name, _) in ["w_ih", "w_hh"].into_iter().zip(flows).filter(|(_, flows)| *flows) {
        matrices(call.get(name)).for_each(|matrix| keep.tensor(matrix));
    }
    let parts = match call.shape_rule() {
        ShapeRule::LstmCell => 5,
        ShapeRule::GruCell => 6,
        _ => 1,
    };
    keep.fresh(states.first().and_then(|state| state.bytes()).map(|bytes| bytes.saturating_mul(parts)));
}
