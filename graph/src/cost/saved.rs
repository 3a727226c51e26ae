//! What autograd keeps for the backward pass, by operator, after PyTorch's `derivatives.yaml`.
//!
//! A storage counts once, at the first operator that keeps it: views, in-place results and tensors that two operators
//! keep share it. Parameters and buffers are not counted, and nothing is kept where no gradient flows. A product that
//! must first copy its operand into order keeps the copy.

use smallvec::SmallVec;
use tracer::DType;

use super::{look::Look, times};
use crate::{
    fact::{Fact, Shape, StorageId, TensorFact},
    infer::{Call, attention_by_parts, is_dropout_idle, like, viewed_strides},
    model::{ModelGraph, Operator, OperatorClass, Origin},
};

/// What has been kept so far.
pub(super) struct Saved {
    is_kept: Vec<bool>,
}

/// Operators that keep their result.
const RESULT: &str = " relu sigmoid tanh exp exp2 expm1 sqrt rsqrt reciprocal softmax log_softmax _softmax _log_softmax \
    softmin tan erfinv _safe_softmax special_expit special_softmax special_log_softmax polar linalg_inv inverse \
    linalg_cholesky cholesky linalg_inv_ex linalg_cholesky_ex linalg_tensorinv special_ndtri ";
/// In-place forms that keep their result, where the plain form keeps its operand.
const RESULT_IN_PLACE: &str = " leaky_relu elu selu celu ";
/// Operators that keep their first operand.
const OPERAND: &str = " gelu silu mish hardswish hardsigmoid hardtanh relu6 leaky_relu elu selu celu softplus softshrink \
    hardshrink threshold logit log log2 log10 log1p sin cos sinh cosh asin acos atan asinh acosh atanh erf erfc \
    abs square clamp clamp_min clamp_max clip nan_to_num glu lgamma digamma angle sgn var var_mean i0 sinc \
    special_log1p adaptive_avg_pool2d adaptive_avg_pool3d _adaptive_avg_pool2d avg_pool1d avg_pool2d avg_pool3d \
    reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d replication_pad3d \
    absolute arccos arcsin arctan hypot matrix_exp linalg_matrix_exp special_digamma special_psi special_entr \
    special_multigammaln mvlgamma ";
/// Operators that keep operand and result.
const BOTH: &str = " norm linalg_norm linalg_vector_norm frobenius_norm std std_mean amax amin prod cumprod logsumexp \
    logcumsumexp pow_tensor special_erfcx special_i0e special_i1 special_i1e special_log_ndtr linalg_pinv pinverse \
    cholesky_inverse ";
/// Operators that keep every tensor among their operands that is not the first.
const OTHERS: &str = " masked_fill index_select index index_put scatter scatter_add index_add index_fill index_copy \
    fmod remainder repeat_interleave _unsafe_index _unsafe_masked_index \
    _unsafe_masked_index_put_accumulate ";
/// Operators that keep all tensors among their operands.
const ALL: &str = " gather take masked_select maximum minimum fmax fmin atan2 mse_loss l1_loss smooth_l1_loss \
    huber_loss binary_cross_entropy binary_cross_entropy_with_logits dot outer ger mv bilinear grid_sampler grid_sampler_2d grid_sampler_3d deform_conv2d roi_align cross \
    linalg_cross xlogy special_xlogy special_xlog1py special_zeta igamma igammac special_gammainc special_gammaincc \
    logaddexp logaddexp2 ";
/// Operators that keep only indices among their results.
const INDICES: &str = " sort topk kthvalue mode median frexp ";

impl Saved {
    pub fn new(graph: &ModelGraph) -> Self {
        Self { is_kept: vec![false; graph.storages.len()] }
    }

    /// Returns the bytes that this operator keeps and no earlier one does, and whether these are all.
    pub fn count(&mut self, look: &Look<'_>, operator: &Operator, call: &Call<'_>) -> (u64, bool) {
        if operator.class == OperatorClass::Plumbing || operator.class == OperatorClass::Create {
            return (0, true);
        }
        let outputs: Vec<&Fact> =
            operator.outputs.iter().map(|value| &look.graph.value(*value).fact).collect();
        let flows = outputs.iter().flat_map(|fact| fact.tensors()).any(|tensor| tensor.requires_grad);
        if !flows || !call.tensors().iter().any(|tensor| tensor.requires_grad) {
            return (0, true);
        }
        if operator.class == OperatorClass::Unknown {
            return (0, false);
        }
        let mut keep = Keep { saved: self, graph: look.graph, bytes: 0, is_all: true };
        rule(&mut keep, look, operator, call, &outputs);
        (keep.bytes, keep.is_all)
    }
}

/// Collects what one operator keeps.
pub(super) struct Keep<'a> {
    saved: &'a mut Saved,
    graph: &'a ModelGraph,
    bytes: u64,
    /// False once something of unknown size is kept.
    pub(super) is_all: bool,
}

impl Keep<'_> {
    fn storage(&mut self, id: StorageId) {
        let storage = self.graph.storage(id);
        let is_stored = matches!(storage.origin, Origin::Stored(_));
        if !is_stored && !std::mem::replace(&mut self.saved.is_kept[id.index()], true) {
            self.fresh(storage.bytes);
        }
    }

    pub(super) fn tensor(&mut self, tensor: &TensorFact) {
        if let Some(storage) = tensor.storage {
            self.storage(storage);
        }
    }

    pub(super) fn named(&mut self, call: &Call<'_>, name: &str) {
        if let Ok(tensor) = call.tensor(name) {
            self.tensor(tensor);
        }
    }

    pub(super) fn fresh(&mut self, bytes: Option<u64>) {
        self.is_all &= bytes.is_some();
        self.bytes = self.bytes.saturating_add(bytes.unwrap_or(0));
    }

    /// Keeps an operand of a batched product, or the copy of it that is made.
    fn matrix(&mut self, tensor: &TensorFact, batch: &[u64]) {
        match spread_copy(tensor, batch) {
            Some(bytes) => self.fresh(bytes),
            None => self.tensor(tensor),
        }
    }

    /// Keeps an operand of a batched product that was made just before, or the copy of it.
    fn fresh_matrix(&mut self, tensor: &TensorFact, batch: &[u64]) {
        let bytes = spread_copy(tensor, batch);
        self.fresh(bytes.unwrap_or(tensor.bytes()));
    }

    /// Keeps an operand of a folded product: all but its last dimension become one.
    pub(super) fn rows(&mut self, tensor: &TensorFact) {
        let (Some(sizes), Some(strides)) = (tensor.sizes(), tensor.strides.as_ref()) else {
            return self.tensor(tensor);
        };
        let Some((last, outer)) = sizes.split_last() else { return self.tensor(tensor) };
        let together = times(outer.iter().copied());
        self.reshaped(tensor, &sizes, strides, &Shape::from_slice(&[Some(together), Some(*last)]));
    }

    fn reshaped(&mut self, tensor: &TensorFact, sizes: &[u64], strides: &[u64], shape: &Shape) {
        match viewed_strides(sizes, strides, shape) {
            Some(_) => self.tensor(tensor),
            None => self.fresh(copy_bytes(tensor, sizes)),
        }
    }

    /// Keeps both factors, each where the other needs a gradient.
    fn factors(&mut self, a: &TensorFact, b: &TensorFact) {
        if b.requires_grad {
            self.tensor(a);
        }
        if a.requires_grad {
            self.tensor(b);
        }
    }
}

/// Returns the bytes of the copy that is made of an operand of a batched product. It is first expanded to `batch`, then
/// its leading dimensions become one; most strides allow that as a view.
fn spread_copy(tensor: &TensorFact, batch: &[u64]) -> Option<Option<u64>> {
    let (sizes, strides) = (tensor.sizes()?, tensor.strides.as_ref()?);
    let n_inner = sizes.len().min(2);
    let inner = &sizes[sizes.len() - n_inner..];
    let expanded: SmallVec<[u64; 8]> = batch.iter().chain(inner).copied().collect();
    let extra = expanded.len() - sizes.len();
    let spread: SmallVec<[u64; 8]> = (0..expanded.len())
        .map(|at| match at.checked_sub(extra) {
            Some(own) if sizes[own] == expanded[at] => strides[own],
            _ => 0,
        })
        .collect();
    let together = times(batch.iter().copied());
    let shape: Shape = std::iter::once(together).chain(inner.iter().copied()).map(Some).collect();
    match viewed_strides(&expanded, &spread, &shape) {
        Some(_) => None,
        None => Some(copy_bytes(tensor, &expanded)),
    }
}

fn copy_bytes(tensor: &TensorFact, sizes: &[u64]) -> Option<u64> {
    tensor.dtype.map(|dtype| times(sizes.iter().copied()).saturating_mul(dtype.bytes()))
}

fn rule(keep: &mut Keep<'_>, look: &Look<'_>, operator: &Operator, call: &Call<'_>, outputs: &[&Fact]) {
    let is = |names: &str| names.split_ascii_whitespace().any(|name| name == call.name);
    let result = look.result(operator);
    let keep_result = |keep: &mut Keep<'_>| {
        if let Some(result) = result {
            keep.tensor(result);
        }
    };
    let first = call.at(0).tensor();
    let second = call.at(1).tensor();
    if call.is_in_place && is(RESULT_IN_PLACE) || is(RESULT) {
        return keep_result(keep);
    }
    if is(BOTH) {
        first.into_iter().for_each(|tensor| keep.tensor(tensor));
        return keep_result(keep);
    }
    if super::unusual::keep_unusual(keep, call, result)
        || super::linalg::keep_linear_algebra(keep, call, result, outputs)
    {
        return;
    }
    if is("adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d")
        && call.ints("output_size").is_some_and(|sizes| sizes.iter().all(|size| *size == Some(1)))
    {
        // One average over everything is a mean, which keeps nothing.
        return;
    }
    if is(OPERAND) {
        match first {
            // The operand is overwritten, so a copy of it is kept.
            Some(tensor) if call.is_in_place => keep.fresh(tensor.bytes()),
            Some(tensor) => keep.tensor(tensor),
            None => {}
        }
        return;
    }
    if is(OTHERS) {
        let others = call.facts().skip(1).flat_map(Fact::tensors);
        others.filter(|tensor| !tensor.requires_grad).for_each(|tensor| keep.tensor(tensor));
        return;
    }
    if is(ALL) {
        call.tensors().into_iter().for_each(|tensor| keep.tensor(tensor));
        return;
    }
    if is("cummax cummin") {
        first.into_iter().for_each(|tensor| keep.tensor(tensor));
    }
    if is(INDICES) || is("max min cummax cummin") && outputs.len() > 1 {
        outputs.iter().skip(1).flat_map(|fact| fact.tensors()).for_each(|tensor| keep.tensor(tensor));
        return;
    }
    match (call.name, first, second) {
        ("mul" | "multiply", Some(a), Some(b)) => {
            if b.requires_grad && !call.is_in_place {
                keep.tensor(a);
            } else if b.requires_grad {
                keep.fresh(a.bytes());
            }
            if a.requires_grad {
                keep.tensor(b);
            }
        }
        ("div" | "divide" | "true_divide", Some(a), Some(b)) => {
            keep.tensor(b);
            match b.requires_grad {
                // The quotient takes the dividend's place: a copy of it is kept.
                true if call.is_in_place => keep.fresh(a.bytes()),
                true => keep.tensor(a),
                false => {}
            }
        }
        ("linalg_solve_triangular", Some(a), _) => {
            keep.tensor(a);
            keep_result(keep);
        }
        ("complex", Some(a), Some(b)) => {
            [a, b].into_iter().filter(|part| part.requires_grad).for_each(|part| keep.tensor(part));
        }
        ("copysign", Some(a), _) => {
            if a.requires_grad {
                keep.tensor(a);
            }
            keep_result(keep);
        }
        ("ldexp", Some(a), Some(b)) => {
            if a.requires_grad {
                keep.tensor(b);
            }
            keep_result(keep);
        }
        ("max" | "min", Some(a), Some(b)) => {
            keep.tensor(a);
            keep.tensor(b);
        }
        ("max" | "min", Some(a), None) => {
            keep.tensor(a);
            keep_result(keep);
        }
        ("pow" | "float_power", Some(a), None) => keep.tensor(a),
        ("pow", a, Some(b)) => {
            a.into_iter().for_each(|a| keep.tensor(a));
            keep.tensor(b);
            keep_result(keep);
        }
        ("where", Some(condition), _) => keep.tensor(condition),
        ("masked_scatter", _, Some(mask)) => keep.tensor(mask),
        ("addcmul" | "addcdiv" | "lerp", ..) => {
            call.facts().skip(1).flat_map(Fact::tensors).for_each(|tensor| keep.tensor(tensor));
        }
        ("prelu" | "_prelu_kernel", ..) => {
            call.tensors().into_iter().for_each(|tensor| keep.tensor(tensor));
        }
        ("embedding", ..) => keep.named(call, "indices"),
        ("cross_entropy_loss", Some(a), _) => {
            keep.fresh(a.bytes());
            keep.named(call, "target");
            // The sum of the targets' weights.
            keep.fresh(a.dtype.map(DType::bytes));
        }
        ("dropout" | "native_dropout" | "alpha_dropout", Some(a), _) if !is_dropout_idle(call) => {
            // A mask of one byte an element, as on a GPU; a CPU keeps it in the input's dtype.
            keep.fresh(a.elements());
        }
        ("feature_dropout" | "feature_alpha_dropout", Some(a), _) if !is_dropout_idle(call) => {
            // One factor a channel, written as the input's numbers.
            let factors =
                a.shape.as_ref().and_then(|shape| (*shape.first()?)?.checked_mul((*shape.get(1)?)?));
            keep.fresh(factors.zip(a.dtype).map(|(n, dtype)| n.saturating_mul(dtype.bytes())));
        }
        ("linear" | "_linear", Some(input), Some(weight)) => {
            if weight.requires_grad {
                keep.rows(input);
            }
            if input.requires_grad {
                keep.tensor(weight);
            }
        }
        ("matmul" | "__matmul__" | "linalg_matmul", Some(a), Some(b)) => matmul(keep, a, b),
        ("mm" | "bmm" | "_int_mm", Some(a), Some(b)) => keep.factors(a, b),
        ("addmm" | "baddbmm" | "addbmm" | "addmv" | "addr" | "_addmm_activation", ..) => {
            if let (Some(a), Some(b)) = (call.at(1).tensor(), call.at(2).tensor()) {
                keep.factors(a, b);
            }
        }
        ("_grouped_mm", Some(a), Some(b)) => {
            keep.factors(a, b);
            keep.named(call, "offs");
        }
        // From real numbers to complex ones torch keeps what it transformed.
        (
            "fft_fft" | "fft_ifft" | "fft_rfft" | "fft_rfft2" | "fft_rfftn" | "fft_ihfft" | "fft_ihfft2"
            | "fft_ihfftn",
            Some(input),
            _,
        ) if input.dtype.is_some_and(|dtype| !dtype.is_complex()) => {
            match super::unusual::padded(call, input) {
                Some(bytes) => keep.fresh(bytes),
                None => keep.tensor(input),
            }
        }
        // Linear: the backward pass needs nothing but sizes.
        (name, ..) if name.starts_with("fft_") => {}
        ("pad", Some(input), _) if !matches!(call.get("mode"), Some(Fact::Str(mode)) if mode == "constant") =>
        {
            keep.tensor(input);
        }
        ("einsum", ..) => super::einsum::keep_einsum(keep, call),
        ("tensordot", ..) => call.tensors().into_iter().for_each(|tensor| keep.tensor(tensor)),
        ("batch_norm" | "native_batch_norm", Some(input), _) => {
            keep.tensor(input);
            // Stored as a rule, and then not counted; but they may be computed.
            ["weight", "running_mean", "running_var"].into_iter().for_each(|name| keep.named(call, name));
            let is_training = call.flag("training") == Some(true) || !call.has("running_mean");
            if is_training {
                let channels = input.shape.as_ref().and_then(|shape| *shape.get(1)?);
                keep.fresh(channels.map(|channels| channels.saturating_mul(8)));
            }
        }
        ("instance_norm", Some(input), _) => {
            keep.tensor(input);
            let groups =
                input.shape.as_ref().and_then(|shape| (*shape.first()?)?.checked_mul((*shape.get(1)?)?));
            // Batch norm over the channels of every picture: weight and running statistics are repeated for each.
            let weight = if call.has("weight") { 4 } else { 0 };
            let running = if call.has("running_mean") { 8 } else { 0 };
            let fresh = if call.flag("use_input_stats") == Some(false) { 0 } else { 8 };
            keep.fresh(groups.map(|groups| groups.saturating_mul(weight + running + fresh)));
        }
        ("layer_norm" | "native_layer_norm" | "rms_norm" | "_fused_rms_norm", Some(input), _) => {
            keep.tensor(input);
            keep.named(call, "weight");
            let inner = call.ints("normalized_shape").map_or(1, |sizes| sizes.len());
            let rows =
                input.sizes().map(|sizes| times(sizes[..sizes.len().saturating_sub(inner)].iter().copied()));
            let statistics = if call.name.contains("rms") { 4 } else { 8 };
            keep.fresh(rows.map(|rows| rows.saturating_mul(statistics)));
            // In parts on a CPU: what the weight is multiplied with.
            if call.name == "rms_norm" && call.tensor("weight").is_ok_and(|weight| weight.requires_grad) {
                keep.fresh(input.bytes());
            }
        }
        ("group_norm", Some(input), _) => {
            match input.is_contiguous() {
                Some(false) if !crate::infer::channels_last(input) => keep.fresh(input.bytes()),
                _ => keep.tensor(input),
            }
            let batch = input.shape.as_ref().and_then(|shape| *shape.first()?);
            let groups = call.int("num_groups").and_then(|groups| u64::try_from(groups).ok());
            keep.fresh(
                batch.zip(groups).map(|(batch, groups)| batch.saturating_mul(groups).saturating_mul(8)),
            );
        }
        (name, Some(input), _) if name.contains("max_pool") => {
            keep.tensor(input);
            match outputs.get(1).and_then(|fact| fact.tensor()) {
                Some(indices) => keep.tensor(indices),
                None => keep
                    .fresh(result.and_then(TensorFact::elements).map(|elements| elements.saturating_mul(8))),
            }
        }
        ("_weight_norm" | "_weight_norm_interface", ..) => {
            keep.fresh(call.at(1).tensor().and_then(TensorFact::bytes));
        }
        _ => by_class(keep, look, operator, call),
    }
}

fn by_class(keep: &mut Keep<'_>, look: &Look<'_>, operator: &Operator, call: &Call<'_>) {
    match operator.class {
        OperatorClass::Convolution => {
            let (Ok(input), Ok(weight)) =
                (call.tensor("input").or_else(|_| call.first()), call.tensor("weight"))
            else {
                return;
            };
            // Both, whatever needs a gradient: one backward function makes all of them.
            keep.tensor(input);
            keep.tensor(weight);
        }
        OperatorClass::Attention if attention_by_parts(call) => {
            keep.is_all &= attention(keep, call).is_some();
        }
        OperatorClass::Attention => {
            for name in ["query", "key", "value"] {
                keep.named(call, name);
            }
            match (call.tensor("attn_mask"), call.tensor("query").ok().and_then(|query| query.dtype)) {
                // A mask of booleans is first written as one of numbers.
                (Ok(mask), Some(dtype)) if mask.dtype == Some(DType::Bool) => {
                    keep.fresh(mask.elements().map(|elements| elements.saturating_mul(dtype.bytes())));
                }
                (Ok(mask), _) => keep.tensor(mask),
                _ => {}
            }
            if let Some(result) = look.result(operator) {
                keep.tensor(result);
                // The logarithm of each row's sum.
                let width = result.shape.as_ref().and_then(|shape| *shape.last()?).filter(|width| *width > 0);
                keep.fresh(
                    result
                        .elements()
                        .zip(width)
                        .map(|(elements, width)| (elements / width).saturating_mul(4)),
                );
            }
        }
        OperatorClass::Recurrent => super::recurrent::keep_recurrent(keep, look, operator, call),
        // Differentiable, but of no rule: most keep what they read.
        OperatorClass::Unknown | OperatorClass::Other => {
            call.tensors().into_iter().for_each(|tensor| keep.tensor(tensor));
        }
        _ => {}
    }
}

/// What attention by parts keeps: scaled query and key, the weights after the softmax, and the value, each spread to
/// all heads.
fn attention(keep: &mut Keep<'_>, call: &Call<'_>) -> Option<()> {
    let (query, key, value) =
        (call.tensor("query").ok()?, call.tensor("key").ok()?, call.tensor("value").ok()?);
    let (q, k, v) = (query.sizes()?, key.sizes()?, value.sizes()?);
    let outer = |sizes: &[u64]| -> Shape {
        sizes[..sizes.len().saturating_sub(2)].iter().map(|size| Some(*size)).collect()
    };
    let ([.., rows, _], [.., columns, width]) = (q.as_slice(), k.as_slice()) else { return None };
    let all = |batch: &[u64], inner: [u64; 2]| [batch, &inner].concat();
    let Ok(batch) = crate::infer::broadcast(&[&outer(&q), &outer(&k), &outer(&v)]) else {
        // Keys and values of several queries are first repeated for each of them.
        let batch = &q[..q.len() - 2];
        keep.fresh(query.bytes());
        keep.fresh(copy_bytes(key, &all(batch, [*columns, *width])));
        keep.fresh(copy_bytes(query, &all(batch, [*rows, *columns])));
        keep.fresh(copy_bytes(value, &all(batch, [*columns, *v.last()?])));
        return Some(());
    };
    let batch: Vec<u64> = batch.iter().map(|size| size.unwrap_or(1)).collect();
    for scaled in [query, key] {
        keep.fresh_matrix(&like(scaled, scaled.dtype), &batch);
    }
    keep.fresh(copy_bytes(query, &all(&batch, [*rows, *columns])));
    keep.matrix(value, &batch);
    Some(())
}

/// What `at::matmul` keeps: folded to a plain product when one side has at most two dimensions, else batched.
fn matmul(keep: &mut Keep<'_>, a: &TensorFact, b: &TensorFact) {
    let (Some(x), Some(y)) = (a.sizes(), b.sizes()) else { return keep.factors(a, b) };
    if x.len() <= 2 && y.len() <= 2 {
        return keep.factors(a, b);
    }
    if y.len() <= 2 && x.len() >= 3 {
        if b.requires_grad {
            keep.rows(a);
        }
        if a.requires_grad {
            keep.tensor(b);
        }
        return;
    }
    let batch = |sizes: &[u64]| -> Shape {
        sizes[..sizes.len().saturating_sub(2)].iter().map(|size| Some(*size)).collect()
    };
    let Ok(batch) = crate::infer::broadcast(&[&batch(&x), &batch(&y)]) else { return keep.factors(a, b) };
    let batch: Vec<u64> = batch.iter().map(|size| size.unwrap_or(1)).collect();
    if b.requires_grad {
        keep.matrix(a, &batch);
    }
    if a.requires_grad {
        keep.matrix(b, &batch);
    }
}
