//! Maps an operator of a graph to a profile's terms: a kind, and the size of its work.
//!
//! A profile measures some thirty kinds; a graph has hundreds of operators. Those that do the same under another name
//! (`addmm`, `relu_`) are one kind; those that move the same bytes (`hardswish`, `sub`) may borrow the curve of a kind
//! that is alike, and say so.

use std::{
    borrow::Cow,
    mem::{Discriminant, discriminant},
};

use graph::{Constant, ModelGraph, Operand, Operator, OperatorClass, OperatorCost, TensorFact};
use operators::{Kernel, ShapeRule};
use schema::{WorkSize, kinds};

/// An operator as profiles have it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Shape<'a> {
    /// Names of its kind in profiles, ours first.
    pub kinds: Kinds<'a>,
    /// Kinds that do about the same.
    pub alike: &'static [&'static str],
    /// Its size at the graph's own batch.
    pub size: WorkSize,
}

/// Names of a kind.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Kinds<'a> {
    /// Known names, ours first.
    Known(&'static [&'static str]),
    /// The operator's own.
    Own(&'a str),
}

impl<'a> Shape<'a> {
    /// Returns the name that tells kinds apart.
    pub fn name(&self) -> &'a str {
        match self.kinds {
            Kinds::Known(names) => names[0],
            Kinds::Own(name) => name,
        }
    }

    /// Tries the names one after the other.
    pub fn find<T>(&self, mut find: impl FnMut(&str) -> Option<T>) -> Option<T> {
        match self.kinds {
            Kinds::Known(names) => names.iter().find_map(|name| find(name)),
            Kinds::Own(name) => find(name),
        }
    }
}

/// Kinds that read a tensor and write one, at the speed of memory.
const CHEAP: &[&str] = &[kinds::RELU, kinds::COPY, kinds::ADD];
/// Kinds with a function for each element.
const DEAR: &[&str] = &[kinds::SIGMOID, kinds::SILU, kinds::GELU, kinds::TANH];

/// Returns how a profile measures an operator.
pub(crate) fn kernel(operator: &Operator) -> Kernel {
    operator.row().map_or(Kernel::OfClass, |row| row.kernel)
}

/// Returns the same for a kind of a profile: most are called as their operator.
pub(crate) fn kernel_of_kind(kind: &str) -> Kernel {
    let name = ["_scalar", "_channels_last"].iter().find_map(|end| kind.strip_suffix(end)).unwrap_or(kind);
    operators::find(operators::plain(name).0).map_or(Kernel::OfClass, |row| row.kernel)
}

/// Sees an operator as profiles do; nothing when its sizes are not known.
pub(crate) fn shape<'a>(
    graph: &'a ModelGraph,
    operator: &'a Operator,
    cost: &OperatorCost,
) -> Option<Shape<'a>> {
    let call = Call { graph, operator };
    let out = call.result()?;
    let known = |kinds, size| Some(Shape { kinds: Kinds::Known(kinds), alike: &[], size });
    let (name, _) = operators::plain(operator.short_name());
    let kernel = kernel(operator);
    match operator.class {
        OperatorClass::Matmul => {
            let is_flat =
                kernel == Kernel::FlatProduct || call.shape_of("other").is_some_and(|other| other.len() == 2);
            let elements = product(&out);
            let n = at_least_one(*out.last()? as f64);
            let k = at_least_one(cost.forward_flops as f64 / (2.0 * elements));
            if is_flat || out.len() < 3 {
                let size = WorkSize::Product { batch: 1.0, m: at_least_one(elements / n), n, k };
                return known(&[kinds::LINEAR, kinds::GEMM, kinds::MATMUL], size);
            }
            let m = out[out.len() - 2] as f64;
            let size = WorkSize::Product { batch: at_least_one(elements / (m * n)), m, n, k };
            known(&[kinds::BMM, kinds::MATMUL, kinds::GEMM, kinds::LINEAR], size)
        }
        OperatorClass::Convolution => call.convolution(&out),
        OperatorClass::Attention => {
            let (query, keys) = (call.shape_of("query")?, call.shape_of("key")?);
            let [batch, heads, seq, head_dim] = *query else { return None };
            let [_, kv_heads, kv_seq, _] = *keys else { return None };
            let number = |value: u64| at_least_one(value as f64);
            let size = WorkSize::Attention {
                batch: number(batch),
                heads: number(heads),
                kv_heads: number(kv_heads),
                seq: number(seq),
                kv_seq: number(kv_seq),
                head_dim: number(head_dim),
                causal: call.is_true("is_causal"),
            };
            known(&[kinds::ATTENTION, kinds::SDPA], size)
        }
        OperatorClass::Embedding => {
            let cols = at_least_one(*out.last()? as f64);
            let table = call.shape_of("weight")?;
            let (rows, vocabulary) =
                (at_least_one(product(&out) / cols), at_least_one(*table.first()? as f64));
            known(&[kinds::EMBEDDING], WorkSize::Table { rows, cols, vocabulary })
        }
        OperatorClass::Norm => {
            let split = match kernel {
                // A table has its channels side by side, as images have their pixels.
                Kernel::BatchNorm if out.len() == 2 => 1,
                Kernel::BatchNorm | Kernel::GroupNorm | Kernel::InstanceNorm => 2,
                _ => {
                    let normalized = call.length("normalized_shape").unwrap_or(1);
                    out.len().saturating_sub(normalized)
                }
            };
            let groups = call.number("num_groups").unwrap_or(1.0);
            match kernel {
                Kernel::GroupNorm => {
                    let rows = at_least_one(*out.first()? as f64 * groups);
                    known(
                        &[kinds::GROUP_NORM],
                        WorkSize::Rows { rows, cols: at_least_one(product(&out) / rows), inputs: 1.0 },
                    )
                }
                Kernel::BatchNorm => {
                    let is_last = split == 2 && call.is_channels_last();
                    let kinds: &[&str] = match (call.is_true("training"), is_last) {
                        (true, false) => &[kinds::BATCH_NORM],
                        (false, false) => &[kinds::BATCH_NORM_EVAL, kinds::BATCH_NORM],
                        (true, true) => &[kinds::BATCH_NORM_CHANNELS_LAST, kinds::BATCH_NORM],
                        (false, true) => {
                            &[kinds::BATCH_NORM_EVAL_CHANNELS_LAST, kinds::BATCH_NORM_EVAL, kinds::BATCH_NORM]
                        }
                    };
                    let [batch, channels, pixels @ ..] = out.as_slice() else { return None };
                    let number = |value: u64| at_least_one(value as f64);
                    let pixels = at_least_one(product(pixels));
                    known(
                        kinds,
                        WorkSize::Channels { batch: number(*batch), channels: number(*channels), pixels },
                    )
                }
                Kernel::LayerNorm => known(&[kinds::LAYER_NORM], matrix(&out, split, 1.0)),
                _ => Some(Shape {
                    kinds: Kinds::Own(name),
                    alike: &[kinds::LAYER_NORM],
                    size: matrix(&out, split, 1.0),
                }),
            }
        }
        OperatorClass::Pool => call.pool(name, kernel, &out),
        _ => call.rows(name, kernel, &out),
    }
}

/// Returns the size of an operator's work, as a profile has it; `None` where its sizes are not known.
pub fn work_size(graph: &ModelGraph, operator: &Operator, cost: &OperatorCost) -> Option<WorkSize> {
    shape(graph, operator, cost).map(|shape| shape.size)
}

/// Returns the steps of a recurrent layer, and its batch.
pub(crate) fn recurrent_input(graph: &ModelGraph, operator: &Operator) -> Option<(f64, f64)> {
    let call = Call { graph, operator };
    let input = call.input()?;
    let [first, second, _] = *input.as_slice() else { return None };
    let (steps, batch) = if call.is_true("batch_first") { (second, first) } else { (first, second) };
    Some((at_least_one(steps as f64), at_least_one(batch as f64)))
}

/// An operator with its graph.
#[derive(Clone, Copy)]
struct Call<'a> {
    graph: &'a ModelGraph,
    operator: &'a Operator,
}

impl<'a> Call<'a> {
    fn result(self) -> Option<Vec<u64>> {
        let value = self.operator.outputs.first()?;
        self.graph.value(*value).fact.tensors().first()?.sizes()
    }

    /// Tells whether the result is images whose channels lie side by side: other kernels make them.
    fn is_channels_last(self) -> bool {
        let value = self.operator.outputs.first().map(|value| self.graph.value(*value));
        value.and_then(|value| value.fact.tensors().first().map(|fact| fact.is_channels_last())) == Some(true)
    }

    fn shape_of(self, argument: &str) -> Option<Cow<'a, [u64]>> {
        tensor_of(self.graph, self.operator, argument)
    }

    fn is_true(self, argument: &str) -> bool {
        is_true(self.operator, argument)
    }

    fn number(self, argument: &str) -> Option<f64> {
        integer(self.operator.argument(argument)?)
    }

    fn length(self, argument: &str) -> Option<usize> {
        match self.operator.argument(argument)? {
            Operand::List(items) => Some(items.len()),
            _ => None,
        }
    }

    /// Returns a list of integers, the last axes last; one number stands for all.
    fn axes(self, argument: &str) -> Option<[f64; 3]> {
        let mut axes = [1.0; 3];
        match self.operator.argument(argument)? {
            Operand::List(items) if !items.is_empty() => {
                for (axis, item) in axes.iter_mut().rev().zip(items.iter().rev()) {
                    *axis = at_least_one(integer(item)?);
                }
            }
            one => axes[1..].fill(at_least_one(integer(one)?)),
        }
        Some(axes)
    }

    /// Returns the first tensor that is read.
    fn input(self) -> Option<Vec<u64>> {
        let named = self.shape_of("input").or_else(|| self.shape_of("self")).map(Cow::into_owned);
        named.or_else(|| {
            let value = self.operator.inputs.first()?;
            self.graph.value(*value).fact.tensors().first()?.sizes()
        })
    }

    fn convolution(self, out: &[u64]) -> Option<Shape<'a>> {
        let weight = self.shape_of("weight")?;
        let input = self.input()?;
        let rank = weight.len().checked_sub(2).filter(|rank| (1..=3).contains(rank))?;
        if input.len() != rank + 2 || out.len() != rank + 2 {
            return None;
        }
        let is_transposed =
            self.is_true("transposed") || self.operator.shape_rule() == ShapeRule::TransposedConvolution;
        // A transposed convolution is described by the one that it turns around.
        let (from, to) = if is_transposed { (out, input.as_slice()) } else { (input.as_slice(), out) };
        let (input_axes, output_axes) = (spatial(from), spatial(to));
        let mut stride = self.axes("stride").unwrap_or([1.0; 3]);
        for axis in 0..3 {
            if output_axes[axis] >= input_axes[axis] {
                stride[axis] = 1.0;
            }
        }
        let channels = at_least_one(from[1] as f64);
        let groups = self.number("groups").unwrap_or(1.0).max(1.0);
        let size = WorkSize::Convolution {
            batch: at_least_one(from[0] as f64),
            in_channels: channels,
            out_channels: at_least_one(to[1] as f64),
            groups,
            input: input_axes,
            output: output_axes,
            kernel: spatial(&weight),
            stride,
        };
        let is_plain = groups == 1.0 && spatial(&weight) == [1.0, 3.0, 3.0] && stride == [1.0; 3];
        let is_last = rank == 2 && self.is_channels_last();
        let kinds: &[&str] = match groups {
            _ if is_transposed => &[kinds::TRANSPOSED_CONVOLUTION],
            _ if is_last && is_plain && input_axes == output_axes => {
                &[kinds::CONVOLUTION_CHANNELS_LAST, kinds::CONVOLUTION_3X3, kinds::CONVOLUTION, kinds::CONV2D]
            }
            1.0 if is_last => &[kinds::CONVOLUTION_CHANNELS_LAST, kinds::CONVOLUTION, kinds::CONV2D],
            _ if is_last && groups == channels => &[
                kinds::DEPTHWISE_CONVOLUTION_CHANNELS_LAST,
                kinds::DEPTHWISE_CONVOLUTION,
                kinds::CONVOLUTION,
                kinds::CONV2D,
            ],
            _ if is_last => &[
                kinds::GROUPED_CONVOLUTION_CHANNELS_LAST,
                kinds::GROUPED_CONVOLUTION,
                kinds::CONVOLUTION,
                kinds::CONV2D,
            ],
            _ if is_plain && input_axes == output_axes => {
                &[kinds::CONVOLUTION_3X3, kinds::CONVOLUTION, kinds::CONV2D]
            }
            1.0 => &[kinds::CONVOLUTION, kinds::CONV2D],
            _ if groups == channels => &[kinds::DEPTHWISE_CONVOLUTION, kinds::CONVOLUTION, kinds::CONV2D],
            _ => &[kinds::GROUPED_CONVOLUTION, kinds::CONVOLUTION, kinds::CONV2D],
        };
        let alike: &[&str] = if is_transposed { &[kinds::CONVOLUTION, kinds::CONV2D] } else { &[] };
        Some(Shape { kinds: Kinds::Known(kinds), alike, size })
    }

    fn pool(self, name: &'a str, kernel: Kernel, out: &[u64]) -> Option<Shape<'a>> {
        let input = self.input()?;
        let known = |kinds, size| Some(Shape { kinds: Kinds::Known(kinds), alike: &[], size });
        let resampled = || matrix(out, 2, product(&input) / product(out).max(1.0));
        match kernel {
            Kernel::UpsampleNearest => return known(&[kinds::UPSAMPLE_NEAREST], resampled()),
            Kernel::Upsample => {
                return Some(Shape {
                    kinds: Kinds::Known(&[kinds::UPSAMPLE_BILINEAR]),
                    alike: &[kinds::UPSAMPLE_NEAREST],
                    size: resampled(),
                });
            }
            _ if input.len() < 3 || input.len() != out.len() => return self.rows(name, kernel, out),
            _ => {}
        }
        let (from, to) = (spatial(&input), spatial(out));
        let is_global = matches!(kernel, Kernel::AdaptivePool | Kernel::AdaptiveMaxPool) && to == [1.0; 3];
        if is_global {
            return known(&[kinds::GLOBAL_AVG_POOL], matrix(&input, 2, 1.0));
        }
        let channels = at_least_one(input[1] as f64);
        let ratio = |axis: usize| (from[axis] / to[axis]).round().max(1.0);
        let shrunk = [ratio(0), ratio(1), ratio(2)];
        let window = self.axes("kernel_size").unwrap_or(shrunk);
        let size = WorkSize::Convolution {
            batch: at_least_one(input[0] as f64),
            in_channels: channels,
            out_channels: channels,
            groups: channels,
            input: from,
            output: to,
            kernel: window,
            stride: self.axes("stride").unwrap_or(shrunk),
        };
        match kernel {
            Kernel::MaxPool | Kernel::AdaptiveMaxPool if self.is_channels_last() => {
                known(&[kinds::MAX_POOL_CHANNELS_LAST, kinds::MAX_POOL], size)
            }
            Kernel::MaxPool | Kernel::AdaptiveMaxPool => known(&[kinds::MAX_POOL], size),
            _ => known(&[kinds::AVG_POOL], size),
        }
    }

    fn rows(self, name: &'a str, kernel: Kernel, out: &[u64]) -> Option<Shape<'a>> {
        let image = if out.len() == 4 { 2 } else { out.len().saturating_sub(1) };
        let plain = |inputs| matrix(out, image, inputs);
        // `x + 1` reads one tensor: it costs what other operators of one tensor do. So does `x + bias`, whose second
        // operand is read once for all.
        let inputs = self.whole_operands(out);
        let is_pair = inputs > 1.5;
        let single = || matrix(out, image, inputs.max(1.0));
        let known = |kinds, size| Some(Shape { kinds: Kinds::Known(kinds), alike: &[], size });
        let alike = |alike, size| Some(Shape { kinds: Kinds::Own(name), alike, size });
        let last = || matrix(out, out.len().saturating_sub(1), 1.0);
        match kernel {
            Kernel::Add if is_pair => known(&[kinds::ADD], plain(2.0)),
            Kernel::Mul if is_pair => known(&[kinds::MUL, kinds::ADD], plain(2.0)),
            Kernel::Pairwise if is_pair => alike(&[kinds::ADD, kinds::MUL], plain(2.0)),
            Kernel::Add => Some(Shape {
                kinds: Kinds::Known(&[kinds::ADD_SCALAR, kinds::MUL_SCALAR]),
                alike: CHEAP,
                size: single(),
            }),
            Kernel::Mul => Some(Shape {
                kinds: Kinds::Known(&[kinds::MUL_SCALAR, kinds::ADD_SCALAR]),
                alike: CHEAP,
                size: single(),
            }),
            Kernel::Pairwise | Kernel::Cheap => alike(CHEAP, single()),
            Kernel::Activation => alike(&[], plain(1.0)),
            Kernel::Costly => alike(DEAR, plain(1.0)),
            Kernel::Dropout => known(&[kinds::DROPOUT], plain(1.0)),
            Kernel::Softmax => known(&[kinds::SOFTMAX], last()),
            Kernel::LogSoftmax => alike(&[kinds::SOFTMAX], last()),
            Kernel::Cat => {
                let axis = self.number("dim").unwrap_or(0.0);
                let axis = if axis < 0.0 { out.len() as f64 + axis } else { axis };
                known(&[kinds::CAT, kinds::COPY], matrix(out, axis.max(0.0) as usize, 1.0))
            }
            // The axes of the result are only names for what was copied.
            Kernel::Reorder if self.is_reordered() => {
                let input = self.input()?;
                known(&[kinds::PERMUTE, kinds::COPY], matrix(&input, input.len().saturating_sub(1), 1.0))
            }
            Kernel::Reduce => {
                let input = self.input()?;
                let reduced = product(&input) / product(out).max(1.0);
                let rows = at_least_one(product(&input) / reduced.max(1.0));
                alike(
                    &[kinds::GLOBAL_AVG_POOL],
                    WorkSize::Rows { rows, cols: at_least_one(reduced), inputs: 1.0 },
                )
            }
            _ => {
                let copies: &[&str] = match self.operator.class {
                    // Of views only those come here that cannot look at what lies there.
                    OperatorClass::Copy | OperatorClass::View => &[kinds::COPY],
                    OperatorClass::Elementwise | OperatorClass::Create => CHEAP,
                    _ => &[],
                };
                alike(copies, plain(1.0))
            }
        }
    }

    /// Returns how many tensors of the result's size are read: what is broadcast counts by its own size.
    fn whole_operands(self, out: &[u64]) -> f64 {
        let all = product(out).max(1.0);
        let share = |elements: Option<u64>| elements.map_or(1.0, |elements| (elements as f64 / all).min(1.0));
        let values = self.operator.inputs.iter().map(|value| self.graph.value(*value));
        let values = values.flat_map(|value| value.fact.tensors()).map(|fact| share(fact.elements()));
        let stored = self.operator.tensors.iter().map(|tensor| self.graph.tensor(*tensor));
        let stored = stored.map(|tensor| share(tensor.has_shape.then(|| tensor.elements())));
        values.chain(stored).sum()
    }

    /// Tells whether what is read lies in memory in another order.
    fn is_reordered(self) -> bool {
        let value = self.operator.inputs.first();
        let fact = value.and_then(|value| self.graph.value(*value).fact.tensor());
        fact.and_then(TensorFact::is_contiguous) == Some(false)
    }
}

/// Tells whether an argument is a constant that says yes.
/// Returns the sizes of the tensor that an argument is.
pub(crate) fn tensor_of<'a>(
    graph: &'a ModelGraph,
    operator: &'a Operator,
    argument: &str,
) -> Option<Cow<'a, [u64]>> {
    match operator.argument(argument)? {
        Operand::Value(value) => {
            graph.value(*value).fact.tensor().and_then(TensorFact::sizes).map(Into::into)
        }
        Operand::Tensor(tensor) => Some(graph.tensor(*tensor).shape.as_slice().into()),
        _ => None,
    }
}

/// Tells whether an argument is true.
pub(crate) fn is_true(operator: &Operator, argument: &str) -> bool {
    matches!(operator.constant(argument), Some(Constant::Bool(true) | Constant::Int(1)))
}

/// Multiplies the part of a size that follows the batch.
pub(crate) fn scaled(size: WorkSize, scale: f64) -> WorkSize {
    let mut size = size;
    match &mut size {
        WorkSize::Product { batch, .. } if *batch > 1.0 => *batch = at_least_one(*batch * scale),
        WorkSize::Product { m: rows, .. }
        | WorkSize::Convolution { batch: rows, .. }
        | WorkSize::Attention { batch: rows, .. }
        | WorkSize::Rows { rows, .. }
        | WorkSize::Channels { batch: rows, .. }
        | WorkSize::Table { rows, .. } => *rows = at_least_one(*rows * scale),
    }
    size
}

/// Columns of an element-wise operator on an accelerator.
const FLAT: f64 = 1024.0;

/// Sees an element-wise operator as an accelerator does: one long row of elements, whatever the axes. It is cut into rows of
/// one length, so that a tensor of four axes lies among the matrices that were measured.
pub(crate) fn flat(kernel: Kernel, size: WorkSize) -> WorkSize {
    let is_flat = matches!(
        kernel,
        Kernel::Add
            | Kernel::Mul
            | Kernel::Pairwise
            | Kernel::Activation
            | Kernel::Cheap
            | Kernel::Costly
            | Kernel::Dropout
    );
    match size {
        WorkSize::Rows { rows, cols, inputs } if is_flat => {
            let elements = rows * cols;
            let cols = FLAT.min(elements);
            WorkSize::Rows { rows: elements / cols, cols, inputs }
        }
        other => other,
    }
}

/// Sees a tensor as a matrix whose rows are its first axes.
pub(crate) fn matrix(sizes: &[u64], axes: usize, inputs: f64) -> WorkSize {
    let (rows, cols) = sizes.split_at(axes.min(sizes.len()));
    WorkSize::Rows { rows: at_least_one(product(rows)), cols: at_least_one(product(cols)), inputs }
}

fn integer(operand: &Operand) -> Option<f64> {
    match operand {
        Operand::Constant(Constant::Int(number)) => Some(*number as f64),
        _ => None,
    }
}

/// Returns the last axes of an image or a kernel.
fn spatial(sizes: &[u64]) -> [f64; 3] {
    let mut axes = [1.0; 3];
    for (axis, size) in axes.iter_mut().rev().zip(sizes.iter().skip(2).rev()) {
        *axis = at_least_one(*size as f64);
    }
    axes
}

fn product(sizes: &[u64]) -> f64 {
    sizes.iter().map(|size| *size as f64).product()
}

fn at_least_one(value: f64) -> f64 {
    value.max(1.0)
}

/// A size that can be compared and looked up.
pub(crate) type Key = (Discriminant<WorkSize>, [u64; 16]);

/// Returns the numbers of a size, bit by bit.
pub(crate) fn key(size: &WorkSize) -> Key {
    let mut numbers = [0; 16];
    let mut fill = |parts: &[&[f64]]| {
        for (number, value) in numbers.iter_mut().zip(parts.iter().copied().flatten()) {
            *number = value.to_bits();
        }
    };
    match *size {
        WorkSize::Product { batch, m, n, k } => fill(&[&[batch, m, n, k]]),
        WorkSize::Convolution { batch, in_channels, out_channels, groups, input, output, kernel, stride } => {
            fill(&[&[batch, in_channels, out_channels, groups], &input, &output, &kernel, &stride]);
        }
        WorkSize::Attention { batch, heads, kv_heads, seq, kv_seq, head_dim, causal } => {
            fill(&[&[batch, heads, kv_heads, seq, kv_seq, head_dim, f64::from(u8::from(causal))]]);
        }
        WorkSize::Rows { rows, cols, inputs } => fill(&[&[rows, cols, inputs]]),
        WorkSize::Channels { batch, channels, pixels } => fill(&[&[batch, channels, pixels]]),
        WorkSize::Table { rows, cols, vocabulary } => fill(&[&[rows, cols, vocabulary]]),
    }
    (discriminant(size), numbers)
}
