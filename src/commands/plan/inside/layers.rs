//! A graph's operators as layers that can be split. Operators without a rule here are split by samples, or not at all.

use graph::{
    Constant, ModelGraph, Operand, Operator, OperatorClass, OperatorCosts, OperatorId, TensorFact, ValueId,
};
use operators::Kernel;
use partitioner::inside::{Layer, Need, Read};

/// An operand is needed in the same parts as the result.
const SAME: [Need; 4] = [Need::SAME; 4];
/// The part of the samples, and everything of the other dimensions.
const SAMPLES: [Need; 4] = [Need::SAME, Need::All, Need::All, Need::All];

/// The operators of a graph that make tensors, as layers.
pub struct Layers {
    /// The layers.
    pub layers: Vec<Layer>,
    /// The operator of each layer.
    pub operators: Vec<OperatorId>,
}

impl Layers {
    /// Makes the layers of a graph's operators.
    pub fn of(graph: &ModelGraph, costs: &OperatorCosts) -> Self {
        let mut this = Self { layers: Vec::new(), operators: Vec::new() };
        let mut made_by: Vec<Option<usize>> = vec![None; graph.values.len()];
        for operator in &graph.operators {
            let tensors = operator.outputs.iter().flat_map(|value| graph.value(*value).fact.tensors());
            // Single numbers are transferred with the layer: a batch norm counts its batches.
            let is_number = |fact: &TensorFact| fact.shape.as_ref().is_some_and(|shape| shape.is_empty());
            let is_idle = operator.class == OperatorClass::Plumbing || tensors.clone().all(is_number);
            let Some(result) = tensors.clone().next().filter(|_| !is_idle) else { continue };
            let described = Described { graph, operator, layers: &this.layers, made_by: &made_by, result };
            let cost = costs.operator(operator.id);
            let mut layer = described.layer();
            layer.parameters = cost.parameter_bytes as f64;
            layer.saved = cost.saved_bytes as f64;
            for value in &operator.outputs {
                made_by[value.index()] = Some(this.layers.len());
            }
            this.layers.push(layer);
            this.operators.push(operator.id);
        }
        this
    }
}

/// An operator, and the tensors known before it.
struct Described<'a> {
    graph: &'a ModelGraph,
    operator: &'a Operator,
    layers: &'a [Layer],
    made_by: &'a [Option<usize>],
    result: &'a TensorFact,
}

/// The part of an operand that a part of the result needs.
type Needs<'a> = Box<dyn Fn(&TensorFact) -> [Need; 4] + 'a>;

/// How an operator may be split, and which part of an operand it reads.
struct Rule<'a> {
    splits: [bool; 4],
    needs: Needs<'a>,
}

impl<'a> Described<'a> {
    fn layer(&self) -> Layer {
        let sizes = dimensions(self.result);
        let elements = self.result.elements().unwrap_or(1).max(1) as f64;
        let rule = self.rule();
        let sums = (self.operator.class == OperatorClass::Matmul && rule.splits[1])
            .then(|| self.facts().next().and_then(|(_, fact)| dimensions(fact).map(|sizes| sizes[1])))
            .flatten();
        let mut reads = Vec::new();
        let mut like = None;
        for (value, fact) in self.facts() {
            let Some(from) = self.made_by[value.index()] else { continue };
            let maker = &self.layers[from];
            let own = dimensions(fact).unwrap_or([1; 4]);
            let mut needs = (rule.needs)(fact);
            // Of a list of results only the first one's sizes are known: the others are read whole except along
            // samples.
            if own != maker.sizes {
                let is_sample = needs[0] == Need::SAME && own[0] == maker.sizes[0];
                needs = [if is_sample { Need::SAME } else { Need::All }, Need::All, Need::All, Need::All];
            }
            let is_like = needs == SAME && rule.splits == [true; 4] && Some(maker.sizes) == sizes;
            like = like.or((is_like && self.is_light()).then_some(from));
            reads.push(Read { from, needs, has_gradient: fact.requires_grad });
        }
        Layer {
            sizes: sizes.unwrap_or([1; 4]),
            element: self.result.bytes().map_or(4.0, |bytes| bytes as f64 / elements),
            splits: if sizes.is_some() { rule.splits } else { [false; 4] },
            sums,
            reads,
            parameters: 0.0,
            statistics: self.statistics(),
            saved: 0.0,
            like,
        }
    }

    /// Returns the tensors that operators read and make, and the inputs.
    fn facts(&self) -> impl Iterator<Item = (ValueId, &'a TensorFact)> {
        let graph = self.graph;
        self.operator
            .inputs
            .iter()
            .filter_map(|value| Some((*value, *graph.value(*value).fact.tensors().first()?)))
    }

    fn kernel(&self) -> Kernel {
        operators::find(operators::plain(self.operator.short_name()).0)
            .map_or(Kernel::OfClass, |row| row.kernel)
    }

    /// Tells whether an operator does too little to be split in a way of its own.
    fn is_light(&self) -> bool {
        matches!(self.operator.class, OperatorClass::Elementwise | OperatorClass::View | OperatorClass::Copy)
            || self.kernel() == Kernel::BatchNorm
    }

    /// Returns the bytes that parts of a batch norm exchange: sums and sums of squares per channel.
    fn statistics(&self) -> f64 {
        let is_trained = matches!(self.operator.constant("training"), Some(Constant::Bool(true)));
        let channels = dimensions(self.result).map_or(0, |sizes| sizes[1]);
        if self.kernel() == Kernel::BatchNorm && is_trained { 8.0 * channels as f64 } else { 0.0 }
    }

    fn rule(&self) -> Rule<'a> {
        let result = self.result;
        let rank = result.shape.as_ref().map_or(0, |shape| shape.len());
        let known = match self.operator.class {
            OperatorClass::Elementwise => Some(self.element_wise()),
            OperatorClass::View | OperatorClass::Copy if self.kernel() == Kernel::Cat => {
                self.concatenation(rank)
            }
            OperatorClass::View | OperatorClass::Copy => self.same_size().or_else(|| self.flattened(rank)),
            OperatorClass::Convolution => self.convolution(rank),
            OperatorClass::Pool => self.pool(rank),
            OperatorClass::Matmul => self.product(rank),
            OperatorClass::Norm if self.kernel() == Kernel::BatchNorm => Some(self.element_wise()),
            _ => None,
        };
        known.unwrap_or_else(|| self.by_samples())
    }

    /// Splits samples, if every operand has them.
    fn by_samples(&self) -> Rule<'a> {
        let samples = dimensions(self.result).map(|sizes| sizes[0]);
        let has = |fact: &TensorFact| dimensions(fact).map(|sizes| sizes[0]) == samples;
        // If the first axis is not samples, independence along it is unknown.
        let is_kept = !matches!(self.operator.class, OperatorClass::Create | OperatorClass::Recurrent)
            && self.facts().next().is_some_and(|(_, fact)| has(fact));
        Rule {
            splits: [is_kept, false, false, false],
            needs: Box::new(move |fact| {
                let own = dimensions(fact).map(|sizes| sizes[0]);
                if is_kept && own == samples { SAMPLES } else { [Need::All; 4] }
            }),
        }
    }

    /// Splits every dimension; operands that are smaller in one are read whole along it.
    fn element_wise(&self) -> Rule<'a> {
        let own = dimensions(self.result);
        let rank = self.result.shape.as_ref().map_or(0, |shape| shape.len());
        Rule {
            splits: [true; 4],
            needs: Box::new(move |fact| {
                let is_alike = fact.shape.as_ref().is_some_and(|shape| shape.len() == rank);
                match (own, dimensions(fact).filter(|_| is_alike)) {
                    (Some(own), Some(other)) => {
                        std::array::from_fn(
                            |axis| {
                                if own[axis] == other[axis] { Need::SAME } else { Need::All }
                            },
                        )
                    }
                    _ => [Need::All; 4],
                }
            }),
        }
    }

    /// Copies and views of the same sizes.
    fn same_size(&self) -> Option<Rule<'a>> {
        let is_same = self.facts().all(|(_, fact)| fact.shape == self.result.shape);
        // The axes of a permuted tensor may have equal sizes by coincidence.
        (is_same && self.kernel() != Kernel::Reorder).then(|| self.element_wise())
    }

    /// Flattened images.
    fn flattened(&self, rank: usize) -> Option<Rule<'a>> {
        let (_, input) = self.facts().next()?;
        let (from, to) = (dimensions(input)?, dimensions(self.result)?);
        let is_image = input.shape.as_ref()?.len() == 4 && input.is_contiguous() != Some(false);
        let is_flat = rank == 2 && is_image && from[0] == to[0] && from[1] * from[2] * from[3] == to[1];
        is_flat.then(|| {
            let each = from[2] * from[3];
            let needs = move |_: &TensorFact| [Need::SAME, Need::Flat(each), Need::All, Need::All];
            Rule { splits: [true, true, false, false], needs: Box::new(needs) }
        })
    }

    /// Concatenation of images along channels.
    fn concatenation(&self, rank: usize) -> Option<Rule<'a>> {
        let Some(Operand::List(items)) = self.operator.argument("tensors") else { return None };
        let is_channels = rank == 4 && matches!(self.operator.constant("dim"), Some(Constant::Int(1 | -3)));
        let mut starts: Vec<(*const TensorFact, u64)> = Vec::new();
        let mut at = 0;
        for item in items {
            let Operand::Value(value) = item else { return None };
            let fact = self.graph.value(*value).fact.tensor()?;
            starts.push((std::ptr::from_ref(fact), at));
            at += dimensions(fact)?[1];
        }
        let is_once = self.operator.inputs.len() == items.len();
        (is_channels && is_once).then(|| Rule {
            splits: [true; 4],
            needs: Box::new(move |fact| {
                let start =
                    starts.iter().find(|(other, _)| std::ptr::eq(*other, fact)).map(|(_, start)| *start);
                start.map_or(SAMPLES, |start| [Need::SAME, Need::From(start), Need::SAME, Need::SAME])
            }),
        })
    }

    fn convolution(&self, rank: usize) -> Option<Rule<'a>> {
        let weight = self.operator.tensors.first().map(|tensor| &self.graph.tensor(*tensor).shape)?;
        let is_transposed = matches!(self.operator.constant("transposed"), Some(Constant::Bool(true)));
        let (_, input) = self.facts().next()?;
        if rank != 4 || weight.len() != 4 || is_transposed || self.operator.name.contains("transpose") {
            return None;
        }
        let windows = self.windows([weight[2], weight[3]]);
        let is_depthwise = weight[1] == 1 && weight[0] == dimensions(input)?[1];
        let channels = if is_depthwise { Need::SAME } else { Need::All };
        let [rows, columns] = windows.unwrap_or([Need::All; 2]);
        Some(Rule {
            splits: [true, true, windows.is_some(), windows.is_some()],
            needs: Box::new(move |_| [Need::SAME, channels, rows, columns]),
        })
    }

    fn pool(&self, rank: usize) -> Option<Rule<'a>> {
        let kernel = self.axes("kernel_size", None);
        let windows = kernel.filter(|_| rank == 4).and_then(|kernel| self.windows(kernel));
        let [rows, columns] = windows.unwrap_or([Need::All; 2]);
        (rank == 4).then(|| Rule {
            splits: [true, true, windows.is_some(), windows.is_some()],
            needs: Box::new(move |_| [Need::SAME, Need::SAME, rows, columns]),
        })
    }

    /// Returns the rows and columns that an image's windows read.
    fn windows(&self, kernel: [u64; 2]) -> Option<[Need; 2]> {
        let stride = self.axes("stride", Some(kernel))?;
        let padding = self.axes("padding", Some([0; 2]))?;
        let dilation = self.axes("dilation", Some([1; 2]))?;
        let need = |axis: usize| {
            let reach = kernel[axis].checked_sub(1)? * dilation[axis];
            Some(Need::Window {
                stride: stride[axis],
                before: padding[axis],
                after: reach.checked_sub(padding[axis])?,
            })
        };
        Some([need(0)?, need(1)?])
    }

    /// Returns two integers of an argument, or of another argument if it is absent or empty.
    fn axes(&self, argument: &str, other: Option<[u64; 2]>) -> Option<[u64; 2]> {
        let one = |operand: &Operand| match operand {
            Operand::Constant(Constant::Int(number)) => u64::try_from(*number).ok(),
            _ => None,
        };
        match self.operator.argument(argument) {
            None => other,
            Some(Operand::List(items)) => match items.as_slice() {
                [] => other,
                [both] => one(both).map(|both| [both; 2]),
                [rows, columns] => Some([one(rows)?, one(columns)?]),
                _ => None,
            },
            Some(operand) => one(operand).map(|both| [both; 2]),
        }
    }

    /// Products with a stored matrix.
    fn product(&self, rank: usize) -> Option<Rule<'a>> {
        let mut facts = self.facts();
        let (_, input) = facts.next()?;
        let is_alone = facts.next().is_none() && !self.operator.tensors.is_empty();
        let has_rank = input.shape.as_ref().is_some_and(|shape| shape.len() == rank);
        let (from, to) = (dimensions(input)?, dimensions(self.result)?);
        let is_kept = from[0] == to[0] && from[2..] == to[2..];
        (is_alone && has_rank && is_kept && (2..4).contains(&rank)).then(|| Rule {
            splits: [true, true, true, false],
            needs: Box::new(|_| [Need::SAME, Need::Sums, Need::SAME, Need::SAME]),
        })
    }
}

/// Returns samples, channels, height and width of a tensor. Without an image's axes, the last axis is channels, and of
/// three the middle one is height; tensors of more axes have none of these.
fn dimensions(fact: &TensorFact) -> Option<[u64; 4]> {
    let sizes = fact.sizes()?;
    match *sizes.as_slice() {
        [] => Some([1; 4]),
        [channels] => Some([1, channels, 1, 1]),
        [samples, channels] => Some([samples, channels, 1, 1]),
        [samples, positions, channels] => Some([samples, channels, positions, 1]),
        [samples, channels, height, width] => Some([samples, channels, height, width]),
        [samples, channels, ref rest @ ..] => {
            Some([samples, channels, rest.iter().fold(1, |product, size| product.saturating_mul(*size)), 1])
        }
    }
}
