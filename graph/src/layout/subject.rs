//! `Subject`: an operator with its operands' sizes and sources, which is the whole input of a layout rule.

use std::collections::BTreeSet;

use tracer::{Operand, TensorId, ValueId};

use super::{Layout, Routed};
use crate::{
    fact::Fact,
    infer::{Call, Scope},
    model::{ModelGraph, Operator, OperatorId},
};

/// A graph prepared for layout rules, for one number of devices.
pub struct Context<'g> {
    /// The graph of the whole model.
    pub graph: &'g ModelGraph,
    /// The number of devices that share the work.
    pub degree: u64,
    /// Numbers of blocks that packed projections of this model are divided into.
    pub blocks: Vec<u64>,
    /// Set if images are cut into bands, and nothing else is cut.
    pub images: Option<Images>,
    /// Images that are cut into bands beside all other cuts, by dimension.
    pub also: Vec<Images>,
    /// Set if work may be done on the first device only.
    pub on_first: bool,
    /// Set if what shares the work are groups of devices, which share each part further.
    pub of_groups: bool,
    /// Values of which groups of devices, whose part this is, have rows whose number is known only at run time: they stay whole.
    pub uneven: BTreeSet<ValueId>,
    /// Rows that are routed to experts.
    routed: Vec<RoutedRows>,
    /// Values that say where rows go, which all devices have whole.
    routing: BTreeSet<ValueId>,
    values: Vec<Fact>,
    tensors: Vec<Fact>,
}

/// Images that are cut into bands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Images {
    /// The dimension that bands divide: 0 for rows, 1 for columns.
    pub along: usize,
    /// The largest size along it.
    pub size: u64,
    /// Dimensions of values that hold these rows.
    dims: BTreeSet<(ValueId, usize)>,
}

/// Values whose rows are routed to the same experts.
#[derive(Clone, Debug)]
struct RoutedRows {
    layout: Routed,
    /// Number of rows.
    rows: u64,
    /// The operator that makes the offsets; rows have a known routing after it.
    behind: Option<OperatorId>,
    values: BTreeSet<ValueId>,
}

/// One tensor that an operator reads.
#[derive(Clone, Debug, PartialEq)]
pub struct Leaf {
    /// The argument that contains it.
    pub argument: usize,
    /// The item of the argument, if that is a list.
    pub item: Option<usize>,
    /// Its source.
    pub source: Source,
    /// Its sizes; for a list of tensors those of the first.
    pub sizes: Vec<u64>,
    /// Whether a gradient flows back through it.
    pub has_gradient: bool,
}

/// The source of an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Source {
    /// Made by an operator, or an input.
    Value(ValueId),
    /// Stored.
    Tensor(TensorId),
}

/// The most numbers of blocks that are tried, in addition to one.
const MOST_BLOCKS: usize = 3;
/// The most samples that are treated as blocks if samples and positions are flattened into one dimension.
const MOST_SAMPLES: u64 = 64;

impl<'g> Context<'g> {
    /// Prepares a graph.
    pub fn new(graph: &'g ModelGraph, degree: u64) -> Self {
        let values = graph.values.iter().map(|value| value.fact.clone()).collect();
        let tensors = graph.tensors.iter().map(|tensor| Fact::Tensor(tensor.fact())).collect();
        let mut context = Self {
            graph,
            degree,
            blocks: vec![1],
            images: None,
            also: Vec::new(),
            on_first: false,
            of_groups: false,
            uneven: BTreeSet::new(),
            routed: Vec::new(),
            routing: BTreeSet::new(),
            values,
            tensors,
        };
        let mut found: std::collections::BTreeMap<u64, usize> = Default::default();
        for operator in &graph.operators {
            for blocks in super::rules::blocks_of(&context.subject(operator)) {
                *found.entry(blocks).or_default() += 1;
            }
        }
        let mut found: Vec<(u64, usize)> = found.into_iter().filter(|(blocks, _)| *blocks > 1).collect();
        found.sort_by_key(|(blocks, count)| (std::cmp::Reverse(*count), *blocks));
        context.blocks.extend(found.iter().take(MOST_BLOCKS).map(|(blocks, _)| *blocks));
        context.find_routed();
        context
    }

    /// Finds rows that are routed to experts: those of grouped products, and of row-by-row operators around them.
    fn find_routed(&mut self) {
        let graph = self.graph;
        let is_grouped = |operator: &&Operator| super::rules::is_grouped(&self.subject(operator));
        let grouped: Vec<&Operator> = graph.operators.iter().filter(is_grouped).collect();
        if grouped.is_empty() {
            return;
        }
        let writes = super::Writes::new(self);
        let routed: Vec<(&Operator, Routed, u64)> = grouped
            .into_iter()
            .filter_map(|operator| {
                let (layout, rows) = super::rules::routed_by(&self.subject(operator))?;
                self.is_kept(layout.offsets, &writes).then_some((operator, layout, rows))
            })
            .collect();
        for (operator, layout, rows) in routed {
            let found = self.routed.iter_mut().find(|known| known.layout == layout && known.rows == rows);
            let values = operator.inputs.first().into_iter().chain(&operator.outputs).copied();
            match found {
                Some(known) => known.values.extend(values),
                None => self.routed.push(RoutedRows {
                    layout,
                    rows,
                    behind: graph.value(layout.offsets).producer,
                    values: values.collect(),
                }),
            }
        }
        for at in 0..self.routed.len() {
            let RoutedRows { layout, rows, behind, .. } = self.routed[at];
            let first = behind.map_or(0, |operator| operator.index() + 1);
            let order = || first..graph.operators.len();
            for index in order().chain(order().rev()) {
                let found = {
                    let subject = self.subject(&graph.operators[index]);
                    let is_near = subject.touches(&self.routed[at]);
                    if is_near { super::rules::routed_of(&subject, layout, rows) } else { Vec::new() }
                };
                self.routed[at].values.extend(found);
            }
        }
        let positions = |operator| super::rules::positions_of(&self.subject(operator));
        let kept = graph.operators.iter().filter_map(positions).filter(|value| self.is_kept(*value, &writes));
        let offsets = self.routed.iter().map(|routed| routed.layout.offsets);
        self.routing = kept.chain(offsets).collect();
    }

    /// Tells whether a value stays as it was made: what is written to later differs from what rows were routed by.
    fn is_kept(&self, value: ValueId, writes: &super::Writes) -> bool {
        let storages = self.storages(Source::Value(value));
        storages.into_iter().all(|storage| writes.last(storage) <= self.graph.value(value).producer)
    }

    /// Returns the name space of the operators that sharing adds.
    pub(super) fn space(&self) -> &'static str {
        if self.of_groups { "outer" } else { "shard" }
    }

    /// Returns the numbers of experts, and of the rows that are routed to them, of each grouped product.
    pub fn grouped(&self) -> Vec<(u64, u64)> {
        let sizes = |operator: &Operator| super::rules::grouped_sizes(&self.subject(operator));
        self.graph.operators.iter().filter_map(sizes).collect()
    }

    /// Returns the stored tensors with the matrices of experts, which devices can share out whole.
    pub fn expert_weights(&self) -> BTreeSet<TensorId> {
        let mut found = BTreeSet::new();
        for operator in &self.graph.operators {
            let Some(mut source) = super::rules::matrices_of(&self.subject(operator)) else { continue };
            // Views and casts of one tensor.
            while let Source::Value(id) = source {
                let Some(maker) = self.graph.value(id).producer else { break };
                let [leaf] = &self.leaves(maker)[..] else { break };
                source = leaf.source;
            }
            if let Source::Tensor(id) = source {
                found.insert(id);
            }
        }
        found
    }

    /// Tells whether a value says where rows go.
    pub(super) fn is_routing(&self, value: ValueId) -> bool {
        self.routing.contains(&value)
    }

    /// Prepares a graph for cuts along samples or positions: if both are flattened into one dimension, each sample is a
    /// block.
    pub fn of_positions(graph: &'g ModelGraph, degree: u64) -> Self {
        let mut context = Self::new(graph, degree);
        for input in &graph.inputs {
            let samples = context.sizes(*input).and_then(|sizes| sizes.first().copied());
            context.blocks.extend(samples.filter(|samples| (2..=MOST_SAMPLES).contains(samples)));
        }
        context.blocks.sort_unstable();
        context.blocks.dedup();
        context
    }

    /// Prepares a graph for images in bands along a dimension: 0 for rows, 1 for columns.
    pub fn in_bands(graph: &'g ModelGraph, degree: u64, along: usize) -> Self {
        let plain = Self::new(graph, degree);
        let mut context = Self { blocks: vec![1], routed: Vec::new(), routing: BTreeSet::new(), ..plain };
        let mut images = Images { along, ..Images::default() };
        let dim = 2 + along;
        for operator in &graph.operators {
            let subject = context.subject(operator);
            let is_image = subject.row.is_some_and(|row| {
                row.split == operators::Split::Convolution
                    || row.split == operators::Split::Samples && row.class == operators::OperatorClass::Pool
            });
            let input = subject.leaves.first().filter(|_| is_image);
            let Some(leaf) = input.filter(|leaf| leaf.sizes.len() > dim) else { continue };
            images.size = images.size.max(leaf.sizes[dim]);
            if let Source::Value(id) = leaf.source {
                images.dims.insert((id, dim));
            }
            images.dims.extend(operator.outputs.iter().map(|id| (*id, dim)));
        }
        // Propagates to operators that preserve rows, forward and backward.
        context.images = Some(images);
        let order: Vec<OperatorId> = graph.operators.iter().map(|operator| operator.id).collect();
        let back: Vec<OperatorId> = order.iter().rev().copied().collect();
        for operator in order.iter().chain(&back).chain(&order) {
            let found = super::rules::rows_of(&context.subject(graph.operator(*operator)));
            if let Some(images) = &mut context.images {
                images.dims.extend(found);
            }
        }
        context
    }

    /// Prepares a graph for every cut that a program can have: equal slices of any dimension, bands of rows and of
    /// columns, and work on the first device.
    pub fn of_all(graph: &'g ModelGraph, degree: u64) -> Self {
        let images = (0..3).filter_map(|along| Self::in_bands(graph, degree, along).images);
        let also = images.filter(|images| images.size >= degree).collect();
        Self { on_first: true, also, ..Self::of_positions(graph, degree) }
    }

    /// Tells whether a value holds images that can be cut into bands.
    pub fn is_image(&self, value: ValueId) -> bool {
        self.also.iter().any(|images| images.has_rows(value, 2 + images.along))
    }

    /// Returns an operator with its operands.
    pub(crate) fn subject<'a>(&'a self, operator: &'a Operator) -> Subject<'a> {
        self.subject_of(operator, self.images.as_ref())
    }

    /// Returns an operator whose rules cut these images into bands; `None` for equal slices.
    pub(crate) fn subject_of<'a>(
        &'a self,
        operator: &'a Operator,
        images: Option<&'a Images>,
    ) -> Subject<'a> {
        let scope = Scope { values: &self.values, tensors: &self.tensors };
        let call = Call::new(&operator.name, &operator.arguments, operator.outputs.len(), &scope);
        let mut leaves = Vec::new();
        for (argument, given) in operator.arguments.iter().enumerate() {
            match &given.operand {
                Operand::List(items) | Operand::Tuple(items) => {
                    for (item, operand) in items.iter().enumerate() {
                        leaves.extend(self.leaf(operand, argument, Some(item)));
                    }
                }
                operand => leaves.extend(self.leaf(operand, argument, None)),
            }
        }
        let outputs = operator.outputs.iter().map(|value| sizes_of(&self.values[value.index()])).collect();
        // Groups share a program first, devices of a group share what that makes.
        let is_known = ["aten::", "prim::", "outer::"].iter().any(|space| operator.name.starts_with(space));
        let row = operators::find(operators::plain(operator.short_name()).0).filter(|_| is_known);
        Subject { context: self, images, operator, call, leaves, outputs, row }
    }

    /// Returns an operator's leaves.
    pub fn leaves(&self, operator: OperatorId) -> Vec<Leaf> {
        self.subject(self.graph.operator(operator)).leaves
    }

    fn leaf(&self, operand: &Operand, argument: usize, item: Option<usize>) -> Option<Leaf> {
        let (source, fact) = match operand {
            Operand::Value(value) => (Source::Value(*value), &self.values[value.index()]),
            Operand::Tensor(tensor) => (Source::Tensor(*tensor), &self.tensors[tensor.index()]),
            _ => return None,
        };
        let has_gradient = fact.tensors().iter().any(|tensor| tensor.requires_grad);
        // A single number cannot be cut, but if parts are computed with it, each device has a term of its gradient.
        let is_trained_number = |fact: &&Fact| {
            has_gradient
                && matches!(fact, Fact::Tensor(tensor) if tensor.sizes().is_some_and(|sizes| sizes.is_empty()))
        };
        let sizes = sizes_of(fact).or_else(|| Some(fact).filter(is_trained_number).map(|_| Vec::new()))?;
        Some(Leaf { argument, item, source, sizes, has_gradient })
    }

    /// Returns the layout of an operator's result, if its strategy gives this: a number is whole, or a term of a sum if it has
    /// a gradient.
    pub(super) fn layout_of(&self, value: ValueId, gives: Layout) -> Layout {
        let is_term = || gives == Layout::Sum && self.is_trained_number(value);
        if self.sizes(value).is_some() || is_term() { gives } else { Layout::Whole }
    }

    /// Tells whether a value is a single number that has a gradient.
    pub(super) fn is_trained_number(&self, value: ValueId) -> bool {
        matches!(&self.values[value.index()], Fact::Tensor(tensor)
            if tensor.requires_grad && tensor.sizes().is_some_and(|sizes| sizes.is_empty()))
    }

    /// Returns the sizes of a value that can be cut: a tensor with dimensions, or a list of tensors of the same rank.
    pub fn sizes(&self, value: ValueId) -> Option<Vec<u64>> {
        sizes_of(&self.values[value.index()])
    }
}

/// Sizes of a tensor with dimensions, or of the first of a list of these.
fn sizes_of(fact: &Fact) -> Option<Vec<u64>> {
    match fact {
        Fact::Tensor(tensor) => tensor.sizes().filter(|sizes| !sizes.is_empty()),
        Fact::List(items) => {
            let all: Vec<Vec<u64>> = items.iter().map(sizes_of).collect::<Option<_>>()?;
            let first = all.first()?;
            all.iter().all(|sizes| sizes.len() == first.len()).then(|| first.clone())
        }
        _ => None,
    }
}

/// An operator with its operands.
pub(crate) struct Subject<'a> {
    /// The graph that contains it.
    pub context: &'a Context<'a>,
    /// The images that its rules cut into bands; `None` for equal slices.
    pub images: Option<&'a Images>,
    /// The operator.
    pub operator: &'a Operator,
    /// Its arguments as facts.
    pub call: Call<'a>,
    /// The tensors that it reads.
    pub leaves: Vec<Leaf>,
    /// The sizes of its results; `None` for values that cannot be cut.
    pub outputs: Vec<Option<Vec<u64>>>,
    /// Its row of the table.
    pub row: Option<&'static operators::Operator>,
}

impl Images {
    /// Tells whether a dimension of a value holds rows of these images.
    pub(crate) fn has_rows(&self, value: ValueId, dim: usize) -> bool {
        self.dims.contains(&(value, dim))
    }
}

impl Subject<'_> {
    /// Returns the rows of experts that it reads or makes, and their number.
    pub fn routed(&self) -> impl Iterator<Item = (Routed, u64)> {
        let is_behind = |routed: &RoutedRows| routed.behind.is_none_or(|maker| maker < self.operator.id);
        let routed =
            self.context.routed.iter().filter(move |routed| is_behind(routed) && self.touches(routed));
        routed.map(|routed| (routed.layout, routed.rows))
    }

    /// Returns the experts, if it makes rows for them, and their number.
    pub fn makes_routed(&self) -> Option<(Routed, u64)> {
        let made =
            |routed: &&RoutedRows| self.operator.outputs.iter().any(|value| routed.values.contains(value));
        self.context.routed.iter().find(made).map(|routed| (routed.layout, routed.rows))
    }

    /// Returns the experts, if its first operand are rows of them, and their number.
    pub fn takes_routed(&self) -> Option<(Routed, u64)> {
        let first = self.operator.inputs.first()?;
        let is_behind = |routed: &&RoutedRows| routed.behind.is_none_or(|maker| maker < self.operator.id);
        let taken = |routed: &&RoutedRows| is_behind(routed) && routed.values.contains(first);
        self.context.routed.iter().find(taken).map(|routed| (routed.layout, routed.rows))
    }

    fn touches(&self, routed: &RoutedRows) -> bool {
        let mut all = self.operator.inputs.iter().chain(&self.operator.outputs);
        all.any(|value| routed.values.contains(value))
    }

    /// Tells whether a new tensor may take the place of what the operator writes to: nothing of that memory is read later
    /// except through its result.
    pub fn may_write_elsewhere(&self) -> bool {
        let Some(leaf) = self.leaves.first().filter(|_| self.operator.is_writing) else { return true };
        let (graph, written) = (self.context.graph, self.context.storages(leaf.source));
        let is_older = |value: &ValueId| {
            let made = graph.value(*value).producer;
            let mut storages = self.context.storages(Source::Value(*value)).into_iter();
            made.is_none_or(|producer| producer < self.operator.id)
                && storages.any(|storage| written.contains(&storage))
        };
        let later = graph.operators.iter().skip(self.operator.id.index() + 1);
        matches!(leaf.source, Source::Value(_))
            && !later.flat_map(|operator| &operator.inputs).chain(&graph.outputs).any(is_older)
    }

    /// Tells whether groups of devices added it, of which this is one's part.
    pub fn is_of_groups(&self) -> bool {
        self.operator.name.starts_with("outer::")
    }

    /// Returns the position of a named argument.
    pub fn argument(&self, name: &str) -> Option<usize> {
        self.operator.arguments.iter().position(|argument| argument.name == name)
    }

    /// Returns the position of a named argument's leaf.
    pub fn leaf(&self, name: &str) -> Option<usize> {
        let argument = self.argument(name)?;
        self.leaves.iter().position(|leaf| leaf.argument == argument && leaf.item.is_none())
    }

    /// Returns the common sizes of all results; `None` if one cannot be cut, or they differ.
    pub fn result(&self) -> Option<&[u64]> {
        let first = self.outputs.first()?.as_deref()?;
        self.outputs
            .iter()
            .all(|sizes| sizes.as_ref().is_some_and(|s| s.len() == first.len()))
            .then_some(first)
    }

    /// Tells whether a source holds elements of a type.
    pub fn has_dtype(&self, source: Source, dtype: tracer::DType) -> bool {
        let fact = match source {
            Source::Value(id) => &self.context.values[id.index()],
            Source::Tensor(id) => &self.context.tensors[id.index()],
        };
        fact.tensors().iter().any(|tensor| tensor.dtype == Some(dtype))
    }

    /// Tells whether the results are floats of at least 16 bits, so that partial sums can be added.
    pub fn is_float(&self) -> bool {
        let outputs = self.operator.outputs.iter();
        let mut tensors = outputs.flat_map(|value| self.context.values[value.index()].tensors());
        tensors.all(|tensor| tensor.dtype.is_some_and(|dtype| dtype.is_float() && dtype.bytes() > 1))
    }

    /// Returns the dimension that an argument names, counted from the front.
    pub fn dim(&self, name: &str, rank: usize) -> Option<usize> {
        self.call.dim(name, rank).ok()
    }
}
