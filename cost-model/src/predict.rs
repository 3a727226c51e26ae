//! Every operator of a graph gets its times.
//!
//! A kind with a fitted curve takes its time from there; other kinds, and kinds whose gradients were not measured, take
//! it from the data sheet: arithmetic or memory traffic at the share of the peak that such kernels reach, whichever is
//! longer, and never less than a launch. Each time says which it was. O(operators), each distinct shape once.

use std::{collections::HashMap, ops::Range};

use graph::{
    BlockId, ModelGraph, Operand, Operator, OperatorClass, OperatorCost, OperatorCosts, OperatorId,
    TensorFact, dtype_name,
};
use schema::{Bytes, Phase, Seconds, WorkSize};

use crate::{
    curve::Estimate,
    efficiency::{self, Efficiency},
    model::CostModel,
    work::{Machine, Work},
};

/// How a graph is run.
#[derive(Clone, Debug, PartialEq)]
pub struct PredictOptions {
    /// Samples relative to those that the graph was built with: 0.5 for half the micro-batch.
    pub batch_scale: f64,
    /// Data type of products, convolutions and attention under automatic mixed precision; the graph's own when absent.
    pub autocast: Option<String>,
}

impl Default for PredictOptions {
    fn default() -> Self {
        Self { batch_scale: 1.0, autocast: None }
    }
}

/// Where a time comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TimeSource {
    /// It costs nothing: views and numbers.
    Free,
    /// A fitted curve.
    Curve,
    /// A fitted curve of the forward pass, times the ratio of work.
    ScaledCurve,
    /// The data sheet.
    Roofline,
}

impl TimeSource {
    /// Returns its name in answers.
    pub fn name(self) -> &'static str {
        match self {
            TimeSource::Free => "free",
            TimeSource::Curve => "curve",
            TimeSource::ScaledCurve => "scaled-curve",
            TimeSource::Roofline => "roofline",
        }
    }
}

/// What one operator, or a run of them, takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prediction {
    /// Inputs to outputs.
    pub forward: Estimate,
    /// Gradient of the inputs.
    pub input_gradient: Estimate,
    /// Gradient of the weights.
    pub weight_gradient: Estimate,
    /// Scratch memory that a kernel asks for.
    pub workspace: Bytes,
    /// Kept from forward to backward.
    pub saved: Bytes,
    /// The least certain source of its times.
    pub source: TimeSource,
    /// Whether launching takes most of the forward time.
    pub is_launch_bound: bool,
}

/// Predictions for each operator of a graph.
#[derive(Clone, Debug, PartialEq)]
pub struct Costs {
    operators: Vec<Prediction>,
}

/// Correlation of the errors of two operators in one model: they share the device and the kernels' authors. With the
/// shape of both independent it would be 0; the same kind of mistake everywhere would be 1.
const CORRELATION: f64 = 0.5;
/// Ends of the band of a data-sheet time, relative to it: an assumption, not a calibration.
const ROOFLINE_BAND: (f64, f64) = (0.6, 1.9);
/// The same for a scaled curve.
const SCALED_BAND: (f64, f64) = (0.75, 1.4);

impl Costs {
    /// Returns the prediction for one operator.
    pub fn operator(&self, id: OperatorId) -> &Prediction {
        &self.operators[id.index()]
    }

    /// Returns the prediction for a run of operators, one after the other.
    pub fn run(&self, range: &Range<u32>) -> Prediction {
        let operators = &self.operators[range.start as usize..range.end as usize];
        let sum = |part: fn(&Prediction) -> Estimate| combine(operators.iter().map(part));
        let launch_bound = operators.iter().filter(|one| one.is_launch_bound).map(|one| one.forward.seconds);
        let forward = sum(|one| one.forward);
        Prediction {
            is_launch_bound: launch_bound.sum::<f64>() > 0.5 * forward.seconds,
            forward,
            input_gradient: sum(|one| one.input_gradient),
            weight_gradient: sum(|one| one.weight_gradient),
            // Scratch memory is given back after each operator.
            workspace: operators.iter().map(|one| one.workspace).max().unwrap_or_default(),
            saved: operators.iter().map(|one| one.saved).sum(),
            source: operators.iter().map(|one| one.source).max().unwrap_or(TimeSource::Free),
        }
    }

    /// Returns the prediction for a block.
    pub fn block(&self, graph: &ModelGraph, block: BlockId) -> Prediction {
        self.run(&graph.block(block).operators)
    }

    /// Returns the prediction for the whole model.
    pub fn total(&self) -> Prediction {
        self.run(&(0..self.operators.len() as u32))
    }
}

impl Prediction {
    /// Returns the time of both gradients.
    pub fn backward(&self) -> Estimate {
        combine([self.input_gradient, self.weight_gradient].into_iter())
    }

    /// Returns the forward time with its unit.
    pub fn forward_seconds(&self) -> Seconds {
        Seconds(self.forward.seconds)
    }
}

/// Adds estimates; half of the variance of their errors is common.
pub fn combine(parts: impl Iterator<Item = Estimate>) -> Estimate {
    let mut sum = Estimate { seconds: 0.0, p10: 0.0, p90: 0.0, trust: 0.0 };
    let (mut below, mut above) = ((0.0, 0.0), (0.0, 0.0));
    for part in parts {
        sum.seconds += part.seconds;
        sum.trust += part.trust * part.seconds;
        // A curve's most likely time may lie a little outside its own quantiles.
        for (width, total) in [
            ((part.seconds - part.p10).max(0.0), &mut below),
            ((part.p90 - part.seconds).max(0.0), &mut above),
        ] {
            total.0 += width;
            total.1 += width * width;
        }
    }
    let width = |(sum, squares): (f64, f64)| (CORRELATION * sum * sum + (1.0 - CORRELATION) * squares).sqrt();
    sum.p10 = (sum.seconds - width(below)).max(0.0);
    sum.p90 = sum.seconds + width(above);
    sum.trust = if sum.seconds > 0.0 { sum.trust / sum.seconds } else { 1.0 };
    sum
}

/// Predicts every operator of a graph.
pub fn predict(
    graph: &ModelGraph,
    costs: &OperatorCosts,
    model: &CostModel,
    options: &PredictOptions,
) -> Costs {
    let mut predictor = Predictor {
        graph,
        model,
        options,
        efficiency: efficiency::of(&model.figures),
        machines: HashMap::new(),
        known: HashMap::new(),
    };
    let operators =
        graph.operators.iter().map(|operator| predictor.operator(operator, costs.operator(operator.id)));
    Costs { operators: operators.collect() }
}

struct Predictor<'a> {
    graph: &'a ModelGraph,
    model: &'a CostModel,
    options: &'a PredictOptions,
    efficiency: Efficiency,
    machines: HashMap<&'a str, Machine>,
    /// Curve times that were asked for before.
    known: HashMap<(&'static str, &'a str, Phase, [u64; 8]), Option<Estimate>>,
}

const FREE: Estimate = Estimate { seconds: 0.0, p10: 0.0, p90: 0.0, trust: 1.0 };

impl<'a> Predictor<'a> {
    fn operator(&mut self, operator: &'a Operator, cost: OperatorCost) -> Prediction {
        let free = Prediction {
            forward: FREE,
            input_gradient: FREE,
            weight_gradient: FREE,
            workspace: Bytes(0),
            saved: self.scaled(cost.saved_bytes),
            source: TimeSource::Free,
            is_launch_bound: false,
        };
        let is_idle = matches!(operator.class, OperatorClass::Plumbing | OperatorClass::View);
        if is_idle || cost.read_bytes + cost.written_bytes + cost.forward_flops == 0 {
            return free;
        }
        let dtype = self.dtype(operator);
        let machine = *self.machines.entry(dtype).or_insert_with(|| Machine::of(&self.model.figures, dtype));
        let kind = kind(operator);
        let size = self.size(operator, &cost);
        let requires_grad = operator
            .outputs
            .iter()
            .any(|value| self.graph.value(*value).fact.tensors().iter().any(|tensor| tensor.requires_grad));
        let [forward_sheet, input_sheet, weight_sheet] =
            [Phase::Forward, Phase::InputGradient, Phase::WeightGradient]
                .map(|phase| self.roofline(operator, &cost, &machine, phase));
        let (input_sheet, weight_sheet) =
            if requires_grad { (input_sheet, weight_sheet) } else { (0.0, 0.0) };
        let mut source = TimeSource::Curve;
        let mut time = |phase: Phase, sheet: f64, forward: Option<f64>| -> Estimate {
            if sheet == 0.0 {
                return FREE;
            }
            if let Some(own) = self.curve(kind, dtype, phase, size.as_ref(), &machine) {
                return own;
            }
            let (seconds, band, own) = match forward {
                Some(forward) => (sheet * forward, SCALED_BAND, TimeSource::ScaledCurve),
                None => (sheet, ROOFLINE_BAND, TimeSource::Roofline),
            };
            source = source.max(own);
            Estimate { seconds, p10: seconds * band.0, p90: seconds * band.1, trust: 0.0 }
        };
        let forward = time(Phase::Forward, forward_sheet, None);
        // How the forward curve differs from the data sheet carries over to the gradients.
        let ratio = (forward.trust > 0.0).then(|| forward.seconds / forward_sheet);
        let input_gradient = time(Phase::InputGradient, input_sheet, ratio);
        let weight_gradient = time(Phase::WeightGradient, weight_sheet, ratio);
        Prediction {
            is_launch_bound: forward.seconds < 2.0 * machine.launch,
            forward,
            input_gradient,
            weight_gradient,
            workspace: workspace(operator, &cost, self.options.batch_scale),
            source,
            ..free
        }
    }

    fn scaled(&self, bytes: u64) -> Bytes {
        Bytes((bytes as f64 * self.options.batch_scale) as u64)
    }

    /// Returns the data type that decides the rate.
    fn dtype(&self, operator: &Operator) -> &'a str {
        let is_product = matches!(
            operator.class,
            OperatorClass::Matmul
                | OperatorClass::Convolution
                | OperatorClass::Attention
                | OperatorClass::Recurrent
        );
        let options: &'a PredictOptions = self.options;
        if let (true, Some(name)) = (is_product, &options.autocast) {
            return name;
        }
        let fact = operator
            .outputs
            .first()
            .and_then(|value| self.graph.value(*value).fact.tensors().first().copied());
        let own = fact.and_then(|fact| fact.dtype).map_or("float32", dtype_name);
        // PyTorch's defaults: convolutions may use TF32 where the device has it, matrix products may not.
        let has_tf32 = self.model.figures.peak.contains_key("tf32");
        if own == "float32" && operator.class == OperatorClass::Convolution && has_tf32 {
            "tf32"
        } else {
            own
        }
    }

    fn curve(
        &mut self,
        kind: &'a str,
        dtype: &'a str,
        phase: Phase,
        size: Option<&WorkSize>,
        machine: &Machine,
    ) -> Option<Estimate> {
        if self.model.n_curves() == 0 {
            return None;
        }
        let size = size?;
        // The key's first part tells shapes of different forms apart.
        let (form, numbers) = key(size);
        let model = self.model;
        let kinds: &[&str] = match kind {
            "linear" => &["linear", "gemm", "matmul"],
            "bmm" => &["bmm", "matmul", "gemm", "linear"],
            "convolution" => &["convolution", "conv2d"],
            "attention" => &["attention", "sdpa"],
            own => &[own],
        };
        let entry = (form, kind, phase, numbers.map(f64::to_bits));
        if let Some(found) = self.known.get(&entry) {
            return *found;
        }
        let found = |phase| kinds.iter().find_map(|kind| model.curve(kind, dtype, phase, size));
        let predicted = |phase| {
            let work = Work::of(*size, phase, machine.element);
            found(phase).map(|curve| curve.predict(&work))
        };
        let estimate = predicted(phase).or_else(|| match phase {
            // Measured together: each half of the products takes half of the time.
            Phase::InputGradient | Phase::WeightGradient => {
                let half = if matches!(size, WorkSize::Rows { .. }) { 1.0 } else { 0.5 };
                predicted(Phase::Backward).map(|whole| Estimate {
                    seconds: whole.seconds * half,
                    p10: whole.p10 * half,
                    p90: whole.p90 * half,
                    trust: whole.trust,
                })
            }
            _ => None,
        });
        self.known.insert(entry, estimate);
        estimate
    }

    /// Returns the time by the data sheet; 0 for what is not computed.
    fn roofline(&self, operator: &Operator, cost: &OperatorCost, machine: &Machine, phase: Phase) -> f64 {
        let scale = self.options.batch_scale;
        let stored: u64 = operator.tensors.iter().map(|tensor| self.graph.tensor(*tensor).bytes).sum();
        let stored = stored.min(cost.read_bytes) as f64;
        let traffic = (cost.read_bytes as f64 - stored + cost.written_bytes as f64) * scale + stored;
        let (flops, bytes) = match phase {
            Phase::InputGradient => {
                let flops = cost.backward_flops_input as f64;
                let is_product = cost.forward_flops > 0;
                if is_product && flops == 0.0 || !is_product && is_passed_on(operator) {
                    return 0.0;
                }
                (flops, traffic * gradient_traffic(operator))
            }
            Phase::WeightGradient => {
                if cost.backward_flops_weight == 0 {
                    return 0.0;
                }
                (cost.backward_flops_weight as f64, traffic)
            }
            _ => (cost.forward_flops as f64, traffic),
        };
        let arithmetic = flops * scale / (machine.peak * self.efficiency.arithmetic(operator.class));
        let memory = bytes / (machine.bandwidth * self.efficiency.traffic(operator.class));
        arithmetic.max(memory).max(machine.launch)
    }

    /// Sees the operator as a shape that curves are functions of.
    fn size(&self, operator: &Operator, cost: &OperatorCost) -> Option<WorkSize> {
        let output = operator.outputs.first().map(|value| &self.graph.value(*value).fact)?;
        let out = output.tensors().first()?.sizes()?;
        let scale = self.options.batch_scale;
        let at_least = |value: f64| value.max(1.0);
        match operator.class {
            OperatorClass::Matmul => {
                let flops = cost.forward_flops as f64;
                let n = *out.last()? as f64;
                let elements: f64 = out.iter().map(|size| *size as f64).product();
                let is_flat = out.len() < 3 || kind(operator) == "linear";
                let m = if is_flat { elements / n } else { out[out.len() - 2] as f64 };
                let batch = elements / (m * n);
                let k = at_least(flops / (2.0 * elements));
                let (m, batch) = if is_flat { (m * scale, batch) } else { (m, batch * scale) };
                Some(WorkSize::Product { batch: at_least(batch), m: at_least(m), n: at_least(n), k })
            }
            OperatorClass::Convolution => {
                let weight = self.shape_of(operator, "weight")?;
                let input = self.shape_of(operator, "input").or_else(|| self.shape_of(operator, "self"))?;
                let rank = weight.len().checked_sub(2).filter(|rank| (1..=3).contains(rank))?;
                if operator.name.contains("transpose") || input.len() != rank + 2 || out.len() != rank + 2 {
                    return None;
                }
                let axes = |sizes: &[u64]| {
                    let mut axes = [1.0; 3];
                    for (axis, size) in axes.iter_mut().rev().zip(sizes.iter().rev()) {
                        *axis = at_least(*size as f64);
                    }
                    axes
                };
                let (from, to) = (axes(&input[2..]), axes(&out[2..]));
                let mut stride = [1.0; 3];
                for axis in 0..3 {
                    stride[axis] = (from[axis] / to[axis]).round().max(1.0);
                }
                Some(WorkSize::Convolution {
                    batch: at_least(input[0] as f64 * scale),
                    in_channels: at_least(input[1] as f64),
                    out_channels: at_least(weight[0] as f64),
                    groups: at_least(input[1] as f64 / at_least(weight[1] as f64)),
                    input: from,
                    output: to,
                    kernel: axes(&weight[2..]),
                    stride,
                })
            }
            OperatorClass::Attention => {
                let (query, keys) = (self.shape_of(operator, "query")?, self.shape_of(operator, "key")?);
                let [batch, heads, seq, head_dim] = query.as_slice() else { return None };
                let [_, kv_heads, kv_seq, _] = keys.as_slice() else { return None };
                let number = |value: &u64| at_least(*value as f64);
                Some(WorkSize::Attention {
                    batch: at_least(*batch as f64 * scale),
                    heads: number(heads),
                    kv_heads: number(kv_heads),
                    seq: number(seq),
                    kv_seq: number(kv_seq),
                    head_dim: number(head_dim),
                    causal: matches!(operator.constant("is_causal"), Some(graph::Constant::Bool(true))),
                })
            }
            _ => {
                let elements: f64 = out.iter().map(|size| *size as f64).product();
                let cols = at_least(out.last().map_or(1.0, |size| *size as f64));
                let inputs = (cost.read_bytes as f64 / (cost.written_bytes as f64).max(1.0)).round();
                Some(WorkSize::Rows { rows: at_least(elements / cols * scale), cols, inputs })
            }
        }
    }

    fn shape_of(&self, operator: &Operator, argument: &str) -> Option<Vec<u64>> {
        match operator.argument(argument)? {
            Operand::Value(value) => self.graph.value(*value).fact.tensor().and_then(TensorFact::sizes),
            Operand::Tensor(tensor) => Some(self.graph.tensor(*tensor).shape.clone()),
            _ => None,
        }
    }
}

/// Names the kind as profiles do: without the mark of in-place operators, products by their form.
fn kind(operator: &Operator) -> &str {
    let name = operator.short_name();
    match (operator.class, name) {
        (OperatorClass::Matmul, "linear" | "_linear" | "addmm" | "mm" | "_addmm_activation") => "linear",
        (OperatorClass::Matmul, _) => "bmm",
        (OperatorClass::Convolution, _) => "convolution",
        (OperatorClass::Attention, _) => "attention",
        _ => name.strip_suffix('_').unwrap_or(name),
    }
}

/// Tells whether the gradient is the output's own: nothing is computed.
fn is_passed_on(operator: &Operator) -> bool {
    matches!(kind(operator), "add" | "sub" | "contiguous" | "clone" | "to")
}

/// Traffic of the input's gradient relative to the forward's.
///
/// The gradient of most element-wise operators reads the output's gradient and what was saved, and writes one tensor:
/// three for the forward's two. The others are what was measured on V100 and H100 (NeuSight's labels: softmax 2.6–3.0,
/// dropout 2.4–2.8 times the forward).
fn gradient_traffic(operator: &Operator) -> f64 {
    match (operator.class, kind(operator)) {
        (_, "softmax" | "log_softmax") => 2.7,
        (_, "dropout") => 2.5,
        (OperatorClass::Norm, _) => 2.0,
        (OperatorClass::Elementwise | OperatorClass::Reduce, _) => 1.5,
        (OperatorClass::Attention, _) => 2.0,
        _ => 1.0,
    }
}

/// Estimates scratch memory: convolutions unfold or transform their input, at most to a gibibyte.
fn workspace(operator: &Operator, cost: &OperatorCost, scale: f64) -> Bytes {
    match operator.class {
        OperatorClass::Convolution => {
            Bytes(((cost.read_bytes.max(cost.written_bytes) as f64 * scale) as u64).min(1 << 30))
        }
        _ => Bytes(0),
    }
}

fn key(size: &WorkSize) -> (&'static str, [f64; 8]) {
    match *size {
        WorkSize::Product { batch, m, n, k } => ("product", [batch, m, n, k, 0.0, 0.0, 0.0, 0.0]),
        WorkSize::Convolution { batch, in_channels, out_channels, groups, input, output, kernel, .. } => {
            // Two axes with one number: sizes are far below 2²⁰.
            let pair = |sizes: [f64; 3]| (sizes[0] * 1_048_576.0 + sizes[1]) * 1_048_576.0 + sizes[2];
            (
                "convolution",
                [batch, in_channels, out_channels, groups, pair(input), pair(output), pair(kernel), 0.0],
            )
        }
        WorkSize::Attention { batch, heads, kv_heads, seq, kv_seq, head_dim, causal } => {
            ("attention", [batch, heads, kv_heads, seq, kv_seq, head_dim, f64::from(u8::from(causal)), 0.0])
        }
        WorkSize::Rows { rows, cols, inputs } => ("rows", [rows, cols, inputs, 0.0, 0.0, 0.0, 0.0, 0.0]),
    }
}
