//! LSTM, GRU and plain recurrent layers.

use operators::ShapeRule;

use super::{
    call::{Call, Known, Result, fresh, reject, shape},
    rules::rules,
};
use crate::fact::{Fact, Shape, TensorFact, show_shape};

rules! {
    recurrent: Lstm | Gru | Rnn,
    cell: LstmCell | GruCell | RnnCell,
    pack: PackSequence,
    unpack: UnpackSequence,
}

/// A recurrent layer's dimensions.
pub struct Recurrence {
    /// Steps in time.
    pub steps: Option<u64>,
    /// Sequences of a batch; 1 for packed ones, whose steps are concatenated.
    pub batch: Option<u64>,
    /// Sequences, packed or not.
    pub sequences: Option<u64>,
    /// Size of the hidden state.
    pub hidden: Option<u64>,
    /// Size of the output, smaller than `hidden` with projections.
    pub output: Option<u64>,
    /// Stacked layers.
    pub layers: u64,
    /// 2 when bidirectional.
    pub directions: u64,
    /// Matrices of each layer and direction: rows, columns and their operand.
    pub matrices: Vec<(u64, u64, Factor)>,
}

/// The operand that a matrix of a recurrent layer multiplies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Factor {
    /// The layer's input.
    Input,
    /// The hidden state of the previous step.
    State,
    /// The hidden state of this step, before the projection.
    Projection,
}

/// Reads the dimensions of `aten::lstm`, `aten::gru`, `aten::rnn_tanh`, `aten::rnn_relu`.
pub fn recurrence(call: &Call<'_>) -> Result<Recurrence> {
    let input = call.first()?;
    let x = shape(input)?;
    let is_batch_first = call.flag("batch_first").unwrap_or(false);
    let (steps, batch) = match (x.as_slice(), is_batch_first) {
        ([batch, steps, _], true) => (*steps, *batch),
        ([steps, batch, _], false) => (*steps, *batch),
        // Packed sequences: all steps of all sequences, concatenated.
        ([steps, _], _) => (*steps, Some(1)),
        _ => reject!("a recurrent layer over {}", show_shape(x)),
    };
    let sequences = match x.len() {
        2 => {
            let states = call.get("hx").map(Fact::tensors).unwrap_or_default();
            let sizes = states.first().and_then(|state| state.shape.as_ref());
            sizes.and_then(|sizes| sizes.get(1).copied().flatten())
        }
        _ => batch,
    };
    let parameters = call.get("params").or_else(|| call.get("_3")).known()?.tensors();
    let has_biases = call.flag("has_biases").unwrap_or(true);
    let layers = call.int("num_layers").known()?.clamp(1, 1 << 16) as u64;
    let directions = if call.flag("bidirectional").unwrap_or(false) { 2 } else { 1 };
    let each = parameters.len() / (layers * directions) as usize;
    let biases = if has_biases { 2 } else { 0 };
    if each < 2 + biases {
        reject!("{} parameters for {layers} layers", parameters.len());
    }
    let mut matrices = Vec::new();
    for group in parameters.chunks(each) {
        for (position, matrix) in
            group.iter().enumerate().filter(|(position, _)| *position < 2 || *position >= 2 + biases)
        {
            if let [Some(rows), Some(columns)] = shape(matrix)?.as_slice() {
                let factor = match position {
                    0 => Factor::Input,
                    1 => Factor::State,
                    _ => Factor::Projection,
                };
                matrices.push((*rows, *columns, factor));
            }
        }
    }
    let rows = *shape(parameters.first().known()?)?.first().known()?;
    let hidden = rows.map(|rows| rows / call.shape_rule().gates());
    let projection =
        (each > 2 + biases).then(|| shape(parameters[each - 1]).ok()?.first().copied().flatten()).flatten();
    let columns = *shape(parameters[0])?.get(1).known()?;
    super::matmul::agree(x[x.len() - 1], columns, || {
        format!("the last size of {} is not the layer's", show_shape(x))
    })?;
    let output = projection.or(hidden);
    Ok(Recurrence { steps, batch, sequences, hidden, output, layers, directions, matrices })
}

/// The outputs of a recurrent layer: all steps, the last hidden state, and the last cell state of an LSTM.
pub fn recurrent(call: &Call<'_>) -> Result {
    let input = call.first()?;
    let layer = recurrence(call)?;
    let x = shape(input)?;
    let times = |size: Option<u64>, by: u64| size.and_then(|size| size.checked_mul(by));
    let mut sizes = x.clone();
    *sizes.last_mut().known()? = times(layer.output, layer.directions);
    let state = |size| {
        let sizes = Shape::from_slice(&[Some(layer.layers * layer.directions), layer.sequences, size]);
        Fact::Tensor(fresh(input.dtype, sizes))
    };
    let mut output = fresh(input.dtype, sizes.clone());
    if call.flag("batch_first") == Some(true) && x.len() == 3 {
        // Computed with the steps first, then transposed.
        let turned = super::call::contiguous_strides(&[sizes[1], sizes[0], sizes[2]]);
        let strides = turned.map(|s| [s[1], s[0], s[2]].into_iter().collect());
        output = TensorFact { strides, ..output };
    }
    let mut results = vec![Fact::Tensor(output), state(layer.output)];
    if call.shape_rule() == ShapeRule::Lstm {
        results.push(state(layer.hidden));
    }
    Ok(Fact::List(results))
}

/// `lstm_cell`, `gru_cell`, `rnn_tanh_cell`.
pub fn cell(call: &Call<'_>) -> Result {
    let state = match call.get("hx").known()? {
        Fact::List(states) => states.clone(),
        state => vec![state.clone()],
    };
    let made = state.iter().map(|state| {
        let state = state.tensor().known()?;
        Ok(Fact::Tensor(fresh(state.dtype, shape(state)?.clone())))
    });
    let made: Vec<Fact> = made.collect::<Result<_>>()?;
    Ok(match made.len() {
        1 => made[0].clone(),
        _ => Fact::List(made),
    })
}

/// `_pack_padded_sequence`: data and batch sizes, whose length depends on the data.
pub fn pack(call: &Call<'_>) -> Result {
    let input = call.first()?;
    let mut sizes = Shape::from_slice(&[None]);
    sizes.extend(shape(input)?.iter().skip(2).copied());
    let lengths = fresh(Some(tracer::DType::Int64), Shape::from_slice(&[None]));
    Ok(Fact::List(vec![Fact::Tensor(fresh(input.dtype, sizes)), Fact::Tensor(lengths)]))
}

/// `_pad_packed_sequence`: sizes depend on the data.
pub fn unpack(call: &Call<'_>) -> Result {
    let input = call.first()?;
    let mut sizes = Shape::from_slice(&[None, None]);
    sizes.extend(shape(input)?.iter().skip(1).copied());
    let lengths = fresh(Some(tracer::DType::Int64), Shape::from_slice(&[None]));
    Ok(Fact::List(vec![Fact::Tensor(fresh(input.dtype, sizes)), Fact::Tensor(lengths)]))
}
