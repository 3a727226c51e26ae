//! Predicts the times of every operator of a graph.
//!
//! A kind with a fitted curve takes its time from there; other kinds, and kinds whose gradients were not measured, take
//! it from the data sheet: arithmetic or memory traffic at the share of the peak that such kernels reach, whichever is
//! longer, and never less than a launch. Each time says which it was. O(operators), each distinct shape once.

use std::{collections::HashMap, ops::Range};

use graph::{
    BlockId, ModelGraph, Operator, OperatorClass, OperatorCost, OperatorCosts, OperatorId, TensorFact,
    TensorId, ValueId, dtype_name,
};
use operators::{Kernel, Mark};
use schema::{Bytes, Phase, Seconds, WorkSize, kinds};

use crate::{
    batch_dependence::depends_on_batch,
    broadcast_gradients,
    cache::{Warmth, moved, warmth},
    calls,
    efficiency::{self, Sort, Use},
    estimate::{Estimate, combine},
    float8::Float8,
    group::{CONVOLUTION, NATIVE},
    host::{HostTimes, is_native},
    instructions::Instructions,
    model::CostModel,
    parts::Parts,
    recurrent::{self, Products},
    shape::{Key, Shape, flat, is_true, kernel, kernel_of_kind, key, matrix, scaled, shape, tensor_of},
    unfused_attention::Unfused,
    work::{Machine, Work},
};

/// Options of a prediction.
#[derive(Clone, Debug, PartialEq)]
pub struct PredictOptions {
    /// Samples relative to those that the graph was built with: 0.5 for half the micro-batch.
    pub batch_scale: f64,
    /// Data type of products, convolutions and attention under automatic mixed precision; the graph's own when absent.
    pub autocast: Option<String>,
    /// In how many parts each operator is split beside its samples: times are those of one. Recurrent layers are not split.
    pub parts: Parts,
    /// What products may round their operands to, where the device has it.
    pub rounding: Rounding,
}

/// What products may round their operands to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rounding {
    /// Nothing but their own data type.
    #[default]
    Own,
    /// TF32, those of float32 numbers: torch's `set_float32_matmul_precision("high")`.
    Tf32,
    /// Float8, those of linear layers in 16 bits: torchao's `convert_to_float8_training`.
    Float8,
}

impl Default for PredictOptions {
    fn default() -> Self {
        Self { batch_scale: 1.0, autocast: None, parts: Parts::default(), rounding: Rounding::Own }
    }
}

/// The source of a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TimeSource {
    /// It costs nothing: numbers, and views where nothing is known of calls.
    Free,
    /// It was measured itself.
    Measured,
    /// A call without work, as measured.
    Overhead,
    /// Host overhead of an accelerator, where the whole pass waits for the host.
    Host,
    /// A fitted curve.
    Curve,
    /// A fitted curve of the forward pass times the ratio of work, or of a kind that is alike.
    ScaledCurve,
    /// The data sheet.
    Roofline,
}

impl TimeSource {
    /// Returns its name in answers.
    pub fn name(self) -> &'static str {
        match self {
            TimeSource::Free => "free",
            TimeSource::Measured => "measured",
            TimeSource::Overhead => "overhead",
            TimeSource::Host => "host",
            TimeSource::Curve => "curve",
            TimeSource::ScaledCurve => "scaled-curve",
            TimeSource::Roofline => "roofline",
        }
    }
}

/// The predicted times of one operator, or of a run of operators.
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
    n_float8: usize,
}

/// The same for a scaled curve.
pub(crate) const SCALED_BAND: (f64, f64) = (0.75, 1.4);
impl Costs {
    /// Returns the prediction for one operator.
    pub fn operator(&self, id: OperatorId) -> &Prediction {
        &self.operators[id.index()]
    }

    /// Returns the number of linear layers that run in float8.
    pub fn n_float8(&self) -> usize {
        self.n_float8
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

    /// Returns the share of the whole time that curves give for sizes outside those they were fitted to.
    pub fn outside(&self) -> f64 {
        let all = |one: &Prediction| [one.forward, one.input_gradient, one.weight_gradient];
        let whole: f64 = self.operators.iter().flat_map(all).map(|time| time.seconds).sum();
        let is_curve = |one: &&Prediction| matches!(one.source, TimeSource::Curve | TimeSource::ScaledCurve);
        let by_curves = self.operators.iter().filter(is_curve).flat_map(all);
        let outside: f64 = by_curves.map(|time| time.seconds * (1.0 - time.trust)).sum();
        if whole > 0.0 { outside / whole } else { 0.0 }
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

/// Predicts every operator of a graph.
pub fn predict(
    graph: &ModelGraph,
    costs: &OperatorCosts,
    model: &CostModel,
    options: &PredictOptions,
) -> Costs {
    let cache = model.figures.l2.map_or(0.0, |bytes| bytes.0 as f64);
    let machine = Machine::of(&model.figures, "float32");
    // Without curves nothing tells what a cache saves.
    let has_curves = model.n_curves() > 0;
    let moved = if has_curves { moved(graph, costs, options.batch_scale) } else { Vec::new() };
    let mut predictor = Predictor {
        graph,
        model,
        options,
        warmth: [cache, machine.last_cache].map(|cache| {
            if has_curves { warmth(graph, &moved, cache, options.batch_scale) } else { Warmth::default() }
        }),
        host: HostTimes::new(graph, costs, model.call_times(), &machine, &moved, options.batch_scale),
        knows_channels: model.knows_channels(),
        readers: readers(graph),
        depends_on_batch: depends_on_batch(graph),
        last_layer: None,
        n_float8: 0,
        machines: HashMap::new(),
        known: HashMap::new(),
    };
    if options.rounding == Rounding::Float8 {
        let mut layers = graph.operators.iter().filter(|operator| predictor.is_layer(operator));
        predictor.last_layer = layers.next_back().map(|operator| operator.id);
    }
    let operators =
        graph.operators.iter().map(|operator| predictor.operator(operator, costs.operator(operator.id)));
    let mut operators: Vec<Prediction> = operators.collect();
    let is_called =
        |operator: &Operator| operator.class != OperatorClass::Plumbing && predictor.has_work(operator);
    let goes_back = |operator: &Operator| predictor.wants_gradient(operator);
    calls::bound(graph, costs, model, is_called, goes_back, &mut operators);
    let n_float8 = predictor.n_float8;
    Costs { operators, n_float8 }
}

struct Predictor<'a> {
    graph: &'a ModelGraph,
    model: &'a CostModel,
    options: &'a PredictOptions,
    /// Shares of operands in the near and the last cache.
    warmth: [Warmth; 2],
    /// Effects that only processors have.
    host: HostTimes<'a>,
    /// Whether a curve is of statistics of channels.
    knows_channels: bool,
    /// By weight, those that are tied as one: the first operator that reads it, and how many do.
    readers: HashMap<TensorId, (OperatorId, usize)>,
    /// By value, whether it is made of the model's inputs, so that its size follows the batch.
    depends_on_batch: Vec<bool>,
    /// The last product with weights, which is not rounded further.
    last_layer: Option<OperatorId>,
    /// Layers in float8 so far.
    n_float8: usize,
    machines: HashMap<&'a str, Machine>,
    /// Memo table of curve times.
    known: HashMap<Asked<'a>, Option<Found>>,
}

/// Kind, data type, phase, size, and the shares of reads that the near and the last cache hold, and of code that the last one
/// lost, in sixteenths.
type Asked<'a> = (&'a str, &'a str, Phase, Key, [u8; 4]);

/// A curve's prediction for a phase.
#[derive(Clone, Copy)]
struct Found {
    time: Estimate,
    source: TimeSource,
    /// Whether finding everything again that other operators drove from the caches is in it.
    is_whole: bool,
}

const FREE: Estimate = Estimate { seconds: 0.0, p10: 0.0, p90: 0.0, trust: 1.0 };

/// An operator with its cost, machine and shape.
struct Subject<'a> {
    operator: &'a Operator,
    cost: OperatorCost,
    dtype: &'a str,
    machine: Machine,
    shape: Option<Shape<'a>>,
}

impl<'a> Predictor<'a> {
    fn operator(&mut self, operator: &'a Operator, cost: OperatorCost) -> Prediction {
        let mut own = Prediction {
            forward: FREE,
            input_gradient: FREE,
            weight_gradient: FREE,
            workspace: Bytes(0),
            saved: Bytes((cost.saved_bytes as f64 * self.scale(operator)) as u64),
            source: TimeSource::Free,
            is_launch_bound: false,
        };
        if operator.class == OperatorClass::Plumbing || !self.has_work(operator) {
            return own;
        }
        let dtype = self.dtype(operator);
        let machine = *self.machines.entry(dtype).or_insert_with(|| Machine::of(&self.model.figures, dtype));
        let shape = shape(self.graph, operator, &cost).map(|shape| {
            let size =
                self.options.parts.of(scaled(shape.size, self.scale(operator)), self.is_image(operator));
            let is_processor = machine.is_processor();
            let size = if is_processor || !self.knows_channels { size.as_rows() } else { size };
            let size = if is_processor { size } else { flat(kernel(operator), size) };
            Shape { size, ..shape }
        });
        let subject = Subject { operator, cost, dtype, machine, shape };
        // A `reshape` that cannot look at what lies there moves bytes.
        let is_idle = cost.read_bytes + cost.written_bytes + cost.forward_flops == 0;
        let wants_gradient = self.wants_gradient(operator);
        let is_whole = if is_idle {
            self.idle(&subject, wants_gradient, &mut own);
            [false; 3]
        } else {
            self.busy(&subject, wants_gradient, &mut own)
        };
        let sums = [self.gradient_sums(operator), self.broadcast_sums(&subject, wants_gradient)];
        for (time, source) in sums.into_iter().flatten() {
            own.input_gradient = combine([own.input_gradient, time].into_iter());
            own.source = own.source.max(source);
        }
        self.cold_code(operator, is_whole, &mut own);
        own
    }

    /// Adds what it takes to find code again to each pass that runs.
    fn cold_code(&self, operator: &Operator, is_whole: [bool; 3], own: &mut Prediction) {
        let passes = [
            (&mut own.forward, Phase::Forward),
            (&mut own.input_gradient, Phase::InputGradient),
            (&mut own.weight_gradient, Phase::WeightGradient),
        ];
        for ((time, phase), is_whole) in passes.into_iter().zip(is_whole) {
            let cold = self.host.cold_code(operator, phase, is_whole);
            if let Some(cold) = cold.filter(|_| time.seconds > 0.0) {
                *time = combine([*time, cold].into_iter());
            }
        }
    }

    /// Views: a call forward, and a call back.
    fn idle(&mut self, subject: &Subject<'a>, wants_gradient: bool, own: &mut Prediction) {
        // What the host of an accelerator takes is its own, see `calls`.
        let Some([forward, backward]) = self.host.view() else { return };
        own.source = TimeSource::Overhead;
        own.is_launch_bound = true;
        own.forward = forward;
        if !wants_gradient {
            return;
        }
        own.input_gradient = backward;
        // Where several views make up a tensor, their gradients are written into one of its size; so is that of a part.
        let input = subject.operator.inputs.first().and_then(|value| self.graph.value(*value).fact.tensor());
        let bytes = |fact: Option<&TensorFact>| fact.and_then(TensorFact::bytes).unwrap_or(0);
        let whole = bytes(input);
        let outputs = &subject.operator.outputs;
        let part: u64 = outputs
            .iter()
            .flat_map(|value| self.graph.value(*value).fact.tensors())
            .map(|one| bytes(Some(one)))
            .sum();
        let n_parts =
            outputs.iter().map(|value| self.graph.value(*value).fact.tensors().len()).sum::<usize>();
        if (n_parts > 1 || part < whole)
            && let Some(sizes) = input.and_then(TensorFact::sizes)
        {
            let kinds: &'static [&'static str] =
                if n_parts > 1 { &[kinds::CAT, kinds::COPY] } else { &[kinds::COPY] };
            let scale = self.scale(subject.operator);
            let size = scaled(matrix(&sizes, sizes.len().saturating_sub(1), 1.0), scale);
            let (written, source) = self.other(kinds, size, subject.dtype, &subject.machine);
            own.input_gradient = combine([own.input_gradient, written].into_iter());
            own.source = own.source.max(source);
        }
    }

    /// Returns of which passes all is said: forward, input's and weights' gradient.
    fn busy(&mut self, subject: &Subject<'a>, wants_gradient: bool, own: &mut Prediction) -> [bool; 3] {
        let Subject { operator, cost, machine, .. } = subject;
        let sort =
            Sort::of(operator.class, kernel(operator), subject.shape.as_ref().map(|shape| &shape.size));
        let rates = efficiency::of(&self.model.figures, sort);
        let in_a_run = efficiency::in_a_run(&self.model.figures, sort, subject.dtype);
        let unfused = self.unfused(subject);
        let [forward_sheet, input_sheet, weight_sheet] =
            [Phase::Forward, Phase::InputGradient, Phase::WeightGradient].map(|phase| match &unfused {
                Some(attention) => attention.seconds(&self.model.figures, &self.wide_machine(subject), phase),
                None => self.data_sheet(subject, sort, &rates, phase),
            });
        let passes = wants_gradient && !(cost.forward_flops == 0 && is_passed_on(operator));
        // Weights come as they are, or made of parameters: cast, normed, put together.
        let [of_batch, of_weights] = self.who_wants_gradients(operator);
        let trains = wants_gradient
            && (of_weights || operator.tensors.iter().any(|tensor| self.graph.tensor(*tensor).requires_grad));
        // What has no gradient of weights of its own, such as a cast, hands theirs on like any other.
        let has_own = weight_sheet > 0.0 || self.curve(subject, Phase::WeightGradient).is_some();
        let flows = wants_gradient && (of_batch || trains && !has_own);
        let mut source = TimeSource::Free;
        let mut forward_ratio = None;
        let mut wholes = [false; 3];
        let mut time = |own: &mut Self, phase: Phase, sheet: f64| -> Estimate {
            if let Some(found) = own.curve(subject, phase) {
                source = source.max(found.source);
                if phase == Phase::Forward && sheet > 0.0 {
                    forward_ratio = Some((found.time.seconds / sheet, found.time.trust));
                }
                let place = match phase {
                    Phase::Forward => 0,
                    Phase::InputGradient => 1,
                    _ => 2,
                };
                wholes[place] = found.is_whole;
                return found.time.times(in_a_run);
            }
            if sheet == 0.0 {
                return FREE;
            }
            // How the forward curve differs from the data sheet carries over to the gradients.
            let (seconds, band, from, trust) = match forward_ratio {
                Some((ratio, trust)) => (sheet * ratio, SCALED_BAND, TimeSource::ScaledCurve, trust),
                None => (sheet, rates.band(phase), TimeSource::Roofline, 1.0),
            };
            source = source.max(from);
            Estimate { trust, ..Estimate::about(seconds * in_a_run, band) }
        };
        own.forward = time(self, Phase::Forward, forward_sheet);
        if passes && flows {
            own.input_gradient = time(self, Phase::InputGradient, input_sheet);
        }
        if passes && trains {
            own.weight_gradient = time(self, Phase::WeightGradient, weight_sheet);
        }
        if let Some(layer) = self.float8(subject) {
            let figures = &self.model.figures;
            let is_alone = own.input_gradient.seconds == 0.0;
            let time = |product, phase| layer.time(figures, product, phase, is_alone);
            own.forward = time(own.forward, Phase::Forward);
            own.input_gradient = time(own.input_gradient, Phase::InputGradient);
            own.weight_gradient = time(own.weight_gradient, Phase::WeightGradient);
            self.n_float8 += 1;
            source = source.max(TimeSource::ScaledCurve);
        }
        // A profile measures each by itself. (Timed with libtorch 2.11: batch and group norm take as long for all as for the
        // input's, layer norm as long as for both apart. On an H100 cuDNN's batch norm takes as long for the weights' alone as
        // for all; torch's own kernels begin the input's gradient with the sums that are the weights', but not in eval mode.)
        let is_one_pass = match kernel(operator) {
            Kernel::BatchNorm => machine.is_processor() || is_true(operator, "training"),
            kernel => matches!(kernel, Kernel::InstanceNorm | Kernel::GroupNorm),
        };
        if is_one_pass && own.input_gradient.seconds > 0.0 {
            own.weight_gradient = own.weight_gradient.beside(own.input_gradient);
        }
        if let Some(recording) = self.host.recording().filter(|_| wants_gradient) {
            own.input_gradient = combine([own.input_gradient, recording].into_iter());
        }
        if let Some(touched) = self.host.first_touch(operator, machine, trains, own.saved.0 as f64) {
            own.input_gradient = combine([own.input_gradient, touched].into_iter());
        }
        own.source = source;
        own.is_launch_bound = own.forward.seconds < 2.0 * self.host.shortest(machine.launch);
        own.workspace = workspace(operator, cost, self.scale(operator));
        wholes
    }

    /// Where a value has several readers, their gradients are added up: one sum for each reader but one. The first
    /// reader's way back is the last, so the sums are its.
    fn gradient_sums(&mut self, operator: &'a Operator) -> Option<(Estimate, TimeSource)> {
        let graph = self.graph;
        let mut sums = Vec::new();
        let mut source = TimeSource::Free;
        for value in &operator.inputs {
            let value = graph.value(*value);
            let Some(fact) = value.fact.tensor().filter(|fact| fact.requires_grad) else { continue };
            let readers =
                value.consumers.iter().filter(|reader| self.wants_gradient(graph.operator(**reader)));
            let n_readers = readers.count();
            if value.consumers.first() != Some(&operator.id) || n_readers < 2 {
                continue;
            }
            let sizes = fact.sizes()?;
            let dtype = fact.dtype.map_or("float32", dtype_name);
            let machine = Machine::of(&self.model.figures, dtype);
            let scale = if self.depends_on_batch[value.id.index()] { self.options.batch_scale } else { 1.0 };
            let size = scaled(matrix(&sizes, sizes.len().saturating_sub(1), 2.0), scale);
            let (one, from) = self.other(&[kinds::ADD], size, dtype, &machine);
            source = source.max(from);
            sums.extend(std::iter::repeat_n(one, n_readers - 1));
        }
        // So are the gradients of a weight that several operators read.
        for tensor in &operator.tensors {
            let tensor = graph.tensor(*tensor);
            let readers = self
                .readers
                .get(&tensor.first)
                .map_or(0, |(first, n)| if *first == operator.id { *n } else { 0 });
            if readers < 2 {
                continue;
            }
            let dtype = tensor.dtype.name();
            let machine = Machine::of(&self.model.figures, dtype);
            let size = matrix(&tensor.shape, tensor.shape.len().saturating_sub(1), 2.0);
            let (mut one, from) = self.other(&[kinds::ADD], size, dtype, &machine);
            source = source.max(from);
            // Autograd adds gradients of activations in place, those of weights into a tensor of its own.
            let add = self.model.curve(kinds::ADD, dtype, Phase::Forward, &size);
            let is_counted = add.is_some_and(|curve| curve.fresh().is_some());
            let cleared = self.host.cleared(&machine, tensor.bytes as f64);
            if let Some(cleared) = cleared.filter(|_| !is_counted) {
                one = combine([one, cleared].into_iter());
            }
            sums.extend(std::iter::repeat_n(one, readers - 1));
        }
        (!sums.is_empty()).then(|| (combine(sums.into_iter()), source))
    }

    /// Gradients of operands that were broadcast are summed over the dimensions that they were broadcast to. Processors are left
    /// out: their whole models are predicted well without.
    fn broadcast_sums(
        &mut self,
        subject: &Subject<'a>,
        wants_gradient: bool,
    ) -> Option<(Estimate, TimeSource)> {
        let Subject { operator, machine, dtype, .. } = subject;
        if !wants_gradient || machine.is_processor() {
            return None;
        }
        let scale = self.scale(operator);
        let parts = self.options.parts;
        let is_image = self.is_image(operator);
        let mut times = Vec::new();
        for sum in broadcast_gradients::sums(self.graph, operator) {
            let products = sum.product.map(|size| (&[kinds::MUL, kinds::ADD][..], size));
            for (kinds, size) in products.into_iter().chain([(&[kinds::COPY][..], sum.read)]) {
                let size = parts.of(scaled(size, scale), is_image);
                times.push(self.other(kinds, size, dtype, machine));
            }
        }
        let source = times.iter().map(|(_, source)| *source).max()?;
        Some((combine(times.into_iter().map(|(time, _)| time)), source))
    }

    /// Tells whether tensors come out, or one number of many: a loss, a mean.
    fn has_work(&self, operator: &Operator) -> bool {
        let has_axes = |fact: &TensorFact| fact.shape.as_ref().is_none_or(|shape| !shape.is_empty());
        let facts = |values: &[ValueId]| -> Vec<&TensorFact> {
            values.iter().flat_map(|value| self.graph.value(*value).fact.tensors()).collect()
        };
        let outputs = facts(&operator.outputs);
        let is_summed = || !operator.tensors.is_empty() || facts(&operator.inputs).into_iter().any(has_axes);
        outputs.iter().any(|fact| has_axes(fact)) || !outputs.is_empty() && is_summed()
    }

    fn wants_gradient(&self, operator: &Operator) -> bool {
        let wants = |tensor: &&TensorFact| tensor.requires_grad;
        operator.outputs.iter().any(|value| self.graph.value(*value).fact.tensors().iter().any(wants))
    }

    /// Tells whether gradients flow to what is made of the model's inputs, and to what is made of parameters alone.
    fn who_wants_gradients(&self, operator: &Operator) -> [bool; 2] {
        let wants = |value: &&ValueId| {
            self.graph.value(**value).fact.tensors().iter().any(|tensor| tensor.requires_grad)
        };
        let wanting = || operator.inputs.iter().filter(wants);
        [true, false]
            .map(|is_of_batch| wanting().any(|value| self.depends_on_batch[value.index()] == is_of_batch))
    }

    /// Returns by how much an operator's work grows with the batch: not at all where it works on weights alone.
    fn scale(&self, operator: &Operator) -> f64 {
        if operator.outputs.iter().any(|value| self.depends_on_batch[value.index()]) {
            self.options.batch_scale
        } else {
            1.0
        }
    }

    /// Tells whether an operator makes images: samples of channels of rows.
    fn is_image(&self, operator: &Operator) -> bool {
        let value = operator.outputs.first().map(|value| self.graph.value(*value));
        let shape =
            value.and_then(|value| value.fact.tensors().first()?.shape.as_ref().map(|shape| shape.len()));
        shape == Some(4)
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
        // PyTorch's defaults: convolutions may use TF32 where the device has it, matrix products may not. Fused attention's
        // kernels are left with float32.
        let may_round = match operator.class {
            OperatorClass::Convolution => true,
            OperatorClass::Matmul | OperatorClass::Recurrent => options.rounding == Rounding::Tf32,
            _ => false,
        };
        let has_tf32 = self.model.figures.peak.contains_key("tf32");
        if own == "float32" && may_round && has_tf32 { "tf32" } else { own }
    }

    /// Tells whether an operator is a product with weights: parameters, or what is made of them alone.
    fn is_layer(&self, operator: &Operator) -> bool {
        let is_of_weights = |value: &ValueId| {
            let sizes = self.graph.value(*value).fact.tensor().and_then(TensorFact::sizes);
            !self.depends_on_batch[value.index()] && sizes.is_some_and(|sizes| sizes.len() == 2)
        };
        operator.class == OperatorClass::Matmul
            && (!operator.tensors.is_empty() || operator.inputs.iter().any(is_of_weights))
    }

    /// Returns a linear layer that runs in float8.
    fn float8(&self, subject: &Subject<'a>) -> Option<Float8> {
        let Subject { operator, machine, shape, .. } = subject;
        let is_asked = self.options.rounding == Rounding::Float8 && self.last_layer != Some(operator.id);
        if !is_asked || machine.is_processor() || !self.is_layer(operator) {
            return None;
        }
        Float8::of(&self.model.figures, shape.as_ref()?.size, *machine)
    }

    /// Returns an attention that no kernel of a GPU takes as a whole.
    fn unfused(&self, subject: &Subject<'a>) -> Option<Unfused> {
        let Subject { operator, cost, machine, .. } = subject;
        if operator.class != OperatorClass::Attention || machine.is_processor() {
            return None;
        }
        let sizes = |name: &str| tensor_of(self.graph, operator, name);
        // Its kernels take four dimensions; of what others refuse that processors have, they take much.
        let query = sizes("query").filter(|query| query.len() != 4)?;
        let widths = query.last()? + sizes("value")?.last()?;
        let has_mask = tensor_of(self.graph, operator, "attn_mask").is_some();
        Unfused::of(cost, self.scale(operator), machine.element, widths as f64, has_mask)
    }

    /// Returns the device as it is for products of float32, or of the operator's own type where that is wider.
    fn wide_machine(&self, subject: &Subject<'a>) -> Machine {
        if subject.machine.element > 4.0 {
            return subject.machine;
        }
        let has_tf32 =
            self.options.rounding == Rounding::Tf32 && self.model.figures.peak.contains_key("tf32");
        Machine::of(&self.model.figures, if has_tf32 { "tf32" } else { "float32" })
    }

    /// Returns the time by a curve of the operator's kind, or of one that is alike.
    fn curve(&mut self, subject: &Subject<'a>, phase: Phase) -> Option<Found> {
        if self.model.n_curves() == 0 || self.unfused(subject).is_some() {
            return None;
        }
        let Subject { operator, dtype, machine, shape, .. } = subject;
        if operator.class == OperatorClass::Recurrent {
            return self.recurrent(subject, phase);
        }
        let shape = shape.as_ref()?;
        let [near, far] = self.warmth.each_ref().map(|warmth| {
            let shares = if phase == Phase::Forward { &warmth.forward } else { &warmth.backward };
            shares.get(operator.id.index()).copied().unwrap_or(0.0)
        });
        let [code, memory] = self.host.lost(operator, phase);
        let sixteenths = |share: f64| (share * 16.0).round() as u8;
        let steps = [near, far, code, memory].map(sixteenths);
        let entry = (shape.name(), *dtype, phase, key(&shape.size), steps);
        if let Some(found) = self.known.get(&entry) {
            return *found;
        }
        let model = self.model;
        let [near, far, code, memory] = steps.map(|step| f64::from(step) / 16.0);
        let predicted = |kind: &str, phase| {
            let work = Work::of(shape.size, phase, machine.element);
            let curve = |kind| model.curve(kind, dtype, phase, &shape.size);
            let is_native = kind == CONVOLUTION && is_native(&work, machine);
            let curve = if is_native { curve(NATIVE) } else { None }.or_else(|| curve(kind))?;
            let time = curve.predict_warm(&work, [near, far]);
            Some(match curve.flushed(&work, code, memory) {
                Some(seconds) => (combine([time, HostTimes::found_again(seconds)].into_iter()), true),
                None => (time, false),
            })
        };
        let estimate = |kind: &str| {
            predicted(kind, phase).or_else(|| match phase {
                // Measured together: each half of the products takes half of the time.
                Phase::InputGradient | Phase::WeightGradient => {
                    let half = if matches!(shape.size, WorkSize::Rows { .. } | WorkSize::Channels { .. }) {
                        1.0
                    } else {
                        0.5
                    };
                    predicted(kind, Phase::Backward).map(|(whole, is_whole)| {
                        let half = Estimate {
                            seconds: whole.seconds * half,
                            p10: whole.p10 * half,
                            p90: whole.p90 * half,
                            trust: whole.trust,
                        };
                        (half, is_whole)
                    })
                }
                _ => None,
            })
        };
        let own = shape.find(estimate).map(|own| (own, TimeSource::Curve));
        let alike = || {
            let (found, is_whole) = shape.alike.iter().find_map(|kind| estimate(kind))?;
            let widened = Estimate::about(found.seconds, SCALED_BAND);
            let (p10, p90) = (found.p10.min(widened.p10), found.p90.max(widened.p90));
            Some(((Estimate { p10, p90, ..found }, is_whole), TimeSource::ScaledCurve))
        };
        let found = own.or_else(alike).map(|((time, is_whole), source)| Found { time, source, is_whole });
        self.known.insert(entry, found);
        found
    }

    /// Returns the time of a recurrent layer by the curve of products. All steps but the first find the state's weights in the
    /// cache.
    fn recurrent(&self, subject: &Subject<'a>, phase: Phase) -> Option<Found> {
        let Subject { operator, dtype, machine, .. } = subject;
        let mut times = Vec::new();
        let products = recurrent::products(self.graph, operator, phase, self.scale(operator))?;
        for Products { size, phase, number } in products {
            let work = Work::of(size, phase, machine.element);
            let curve = self.model.curve(kinds::LINEAR, dtype, phase, &size)?;
            let caches = [machine.l2, machine.last_cache];
            // Nothing comes between two steps: what is read again was read just before.
            let held = caches.map(|cache| (cache / work.bytes() - 1.0).clamp(0.0, 1.0));
            let one = curve.predict_warm(&work, if number > 1.0 { held } else { [0.0; 2] });
            times.push(one.seconds * number);
        }
        let time = Estimate::about(times.iter().sum(), SCALED_BAND);
        Some(Found { time, source: TimeSource::ScaledCurve, is_whole: false })
    }

    /// Predicts work that autograd adds to the operators of the graph; it finds what it reads in the cache.
    fn other(
        &mut self,
        kinds: &'static [&'static str],
        size: WorkSize,
        dtype: &'a str,
        machine: &Machine,
    ) -> (Estimate, TimeSource) {
        let size = if !machine.is_processor() { flat(kernel_of_kind(kinds[0]), size) } else { size };
        let work = Work::of(size, Phase::Forward, machine.element);
        let shares =
            [machine.l2, machine.last_cache].map(|cache| (1.0 - work.bytes() / cache).clamp(0.0, 1.0));
        let curve = kinds.iter().find_map(|kind| self.model.curve(kind, dtype, Phase::Forward, &size));
        match curve {
            Some(curve) => (curve.predict_warm(&work, shares), TimeSource::Curve),
            None => {
                let rates = efficiency::of(&self.model.figures, Sort::Elementwise);
                let bytes = work.bytes() / machine.bandwidth;
                let seconds = rates.seconds(Phase::Forward, 0.0, bytes, machine.launch);
                (Estimate::about(seconds, rates.band), TimeSource::Roofline)
            }
        }
    }

    /// Returns the time by the data sheet; 0 for what is not computed.
    fn data_sheet(&self, subject: &Subject<'a>, sort: Sort, rates: &Use, phase: Phase) -> f64 {
        let Subject { operator, cost, machine, .. } = subject;
        let scale = self.scale(operator);
        // What does not follow the batch: stored tensors, and what is made of them alone.
        let stored: u64 = operator.tensors.iter().map(|tensor| self.graph.tensor(*tensor).bytes).sum();
        let made = operator.inputs.iter().filter(|value| !self.depends_on_batch[value.index()]);
        let made: u64 = made
            .flat_map(|value| self.graph.value(*value).fact.tensors())
            .filter_map(TensorFact::bytes)
            .sum();
        let fixed = (stored + made).min(cost.read_bytes) as f64;
        let (read, written) = ((cost.read_bytes as f64 - fixed) * scale, cost.written_bytes as f64 * scale);
        let parts = self.options.parts;
        let traffic = parts.traffic(cost.forward_flops > 0, read, fixed, written);
        if let Some(seconds) = self.by_instructions(subject, phase, traffic) {
            return seconds;
        }
        let (flops, bytes) = match phase {
            Phase::InputGradient => {
                let flops = cost.backward_flops_input as f64;
                let is_product = cost.forward_flops > 0;
                if is_product && flops == 0.0 || !is_product && is_passed_on(operator) {
                    return 0.0;
                }
                // Gradients of both operands, as of a product of activations, are two products.
                let products = if is_product { flops / cost.forward_flops as f64 } else { 1.0 };
                let own = broadcast_gradients::product_traffic(self.graph, operator);
                let gradient = own.unwrap_or_else(|| sort.gradient_traffic(kernel(operator)));
                (flops, traffic * gradient * products)
            }
            Phase::WeightGradient => {
                if cost.backward_flops_weight == 0 {
                    return 0.0;
                }
                (cost.backward_flops_weight as f64, traffic)
            }
            _ if is_trained_norm(operator) => (0.0, traffic * TWO_READS),
            _ => (cost.forward_flops as f64, traffic),
        };
        let peak = sort.peak(&self.model.figures, machine);
        rates.seconds(phase, flops * scale / parts.all() / peak, bytes / machine.bandwidth, machine.launch)
    }

    /// Returns the time of a kernel that instructions bound, given the bytes of its forward pass; nothing where bytes bound it.
    fn by_instructions(&self, subject: &Subject<'a>, phase: Phase, traffic: f64) -> Option<f64> {
        let Subject { machine, shape, .. } = subject;
        let shape = shape.as_ref()?;
        // Channels that lie side by side have cuDNN's kernels.
        if shape.name() == kinds::DEPTHWISE_CONVOLUTION_CHANNELS_LAST {
            return None;
        }
        let instructions = shape.find(|kind| Instructions::of(kind, &shape.size, subject.dtype, phase))?;
        let operations = Work::of(shape.size, Phase::Forward, machine.element).flops;
        efficiency::by_instructions(&self.model.figures, instructions, machine, traffic, operations)
    }
}

/// A norm that computes its statistics reads twice before it writes.
const TWO_READS: f64 = 1.5;

/// Tells whether a norm computes the statistics of its batch.
fn is_trained_norm(operator: &Operator) -> bool {
    let training = match kernel(operator) {
        Kernel::BatchNorm => "training",
        Kernel::InstanceNorm => "use_input_stats",
        _ => return false,
    };
    is_true(operator, training)
}

/// Finds who reads each weight.
fn readers(graph: &ModelGraph) -> HashMap<TensorId, (OperatorId, usize)> {
    let mut readers: HashMap<TensorId, (OperatorId, usize)> = HashMap::new();
    for tensor in graph.tensors.iter().filter(|tensor| tensor.requires_grad && tensor.has_shape) {
        for reader in &tensor.consumers {
            let entry = readers.entry(tensor.first).or_insert((*reader, 0));
            entry.0 = entry.0.min(*reader);
            entry.1 += 1;
        }
    }
    readers
}

/// Tells whether the gradient is the output's own: nothing is computed.
fn is_passed_on(operator: &Operator) -> bool {
    // The gradient of a copy in another order is a view.
    operator.class == OperatorClass::View || operator.row().is_some_and(|row| row.has(Mark::KeepsGradient))
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
