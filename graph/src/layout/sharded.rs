//! The program that each device of a group runs: operators on parts, with exchanges as operators of their own.
//!
//! Sizes in it are those of the whole, as in the trace: a size that is read from a part is multiplied, a size that is
//! passed to an operator is divided, each where the operator's rule requires it. So literals and sizes that were read
//! can be mixed freely.
//!
//! One walk over operands; exchanges of one value to one layout are made once.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use thiserror::Error;
use tracer::{
    Argument, CallId, Constant, Node, NodeId, Operand, Program, Role, Span, TensorId, TensorType, Type,
    Value, ValueId,
};

use super::{
    Layout, Routed, Rows, Slice, Take, Window,
    exchange::{Exchange, exchanges},
    rules::strategies,
    strategy::{After, Edit, Need, Special, Strategy},
    subject::{Context, Source, Subject},
};
use crate::{fact::StorageId, model::OperatorId};

/// The strategy of each operator, and the cut of each stored tensor.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Choice {
    /// Per operator the position in [`Context::strategies`].
    pub strategies: Vec<usize>,
    /// Per stored tensor.
    pub tensors: Vec<Layout>,
}

/// A shared program.
#[derive(Clone, Debug)]
pub struct Sharded {
    /// The program of one device. Values and stored tensors keep their numbers; new ones follow. Sizes of stored
    /// tensors are those of a part.
    pub program: Program,
    /// The number of devices that share the work.
    pub degree: u64,
    /// The cuts of stored tensors.
    pub cuts: BTreeMap<TensorId, Slice>,
    /// Stored tensors that only the first device has, with their numbers of rows; sizes are those on it.
    pub on_first: BTreeMap<TensorId, u64>,
    /// Exchanges by their node in the new program.
    pub exchanges: BTreeMap<NodeId, Exchange>,
    /// The collectives inside operators, by node.
    pub inside: BTreeMap<NodeId, Inside>,
    /// Values with unequal numbers of rows on devices: those of their own experts, or all on the first device.
    pub uneven: BTreeSet<ValueId>,
    /// Per operator of the whole program, whether each device does a part of its work.
    pub is_split: Vec<bool>,
}

/// A collective inside an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inside {
    /// Mean and variance of each channel.
    Channels,
    /// Mean and variance of each group of channels of each sample; with the number of groups.
    Groups(u64),
    /// The largest score of each row, then the sum of all and the target's own.
    Scores,
    /// Its rows, from the devices that have them.
    Rows,
    /// The number of targets.
    Targets,
}

/// Why a program cannot be shared with the chosen strategies.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[allow(missing_docs)] // The text says it.
pub enum ShardError {
    #[error("`{operator}` in `{path}` has no such strategy")]
    NoStrategy { operator: String, path: String },
    #[error(
        "`{operator}` in `{path}` takes `{operand}` in another layout than it was made in, but writes to its memory or returns a view of it"
    )]
    Fixed { operator: String, path: String, operand: String },
    #[error(
        "`{operator}` in `{path}` cannot get `{operand}`: {from} cannot be converted to the layout that it needs"
    )]
    NoExchange { operator: String, path: String, operand: String, from: String },
    #[error("two names of one parameter are cut differently: `{first}` and `{second}`")]
    Tied { first: String, second: String },
    #[error("the model's output is not a tensor that can be gathered")]
    Output,
}

impl<'g> Context<'g> {
    /// Returns all strategies of an operator; in the first, each device does all of the work.
    pub fn strategies(&self, operator: OperatorId) -> Vec<Strategy> {
        strategies(&self.subject(self.graph.operator(operator)))
    }

    /// Returns for each leaf of an operator whether it must be taken in the layout that it was made in: if it is
    /// written in place, also by a later operator through a view that this one makes.
    pub fn fixed(&self, operator: OperatorId, writes: &Writes) -> Vec<bool> {
        let operator = self.graph.operator(operator);
        let subject = self.subject(operator);
        let results: Vec<StorageId> = operator
            .outputs
            .iter()
            .flat_map(|value| self.graph.value(*value).fact.tensors())
            .filter_map(|tensor| tensor.storage)
            .collect();
        let is_fixed = |leaf: &super::Leaf| {
            let storages = self.storages(leaf.source);
            let is_written = operator.is_writing && leaf.argument == 0;
            let is_watched =
                storages.iter().any(|s| results.contains(s) && writes.last(*s) > Some(operator.id));
            // A training norm writes its statistics.
            let is_buffer =
                matches!(leaf.source, Source::Tensor(id) if self.graph.tensor(id).role == Role::Buffer);
            let keeps_statistics = is_buffer && operator.class == operators::OperatorClass::Norm;
            // Lists are unpacked in their own layout.
            let is_list = matches!(leaf.source, Source::Value(id)
                if matches!(self.graph.value(id).fact, crate::fact::Fact::List(_)));
            is_written || is_watched || keeps_statistics || is_list
        };
        subject.leaves.iter().map(is_fixed).collect()
    }

    pub(super) fn storages(&self, source: Source) -> Vec<StorageId> {
        match source {
            Source::Tensor(id) => vec![self.graph.tensor(id).storage],
            Source::Value(id) => {
                self.graph.value(id).fact.tensors().iter().filter_map(|t| t.storage).collect()
            }
        }
    }
}

/// The operators that write in place, by storage.
#[derive(Clone, Debug, Default)]
pub struct Writes {
    by_storage: HashMap<StorageId, Vec<OperatorId>>,
}

impl Writes {
    /// Finds them.
    pub fn new(context: &Context<'_>) -> Self {
        let mut by_storage: HashMap<StorageId, Vec<OperatorId>> = HashMap::new();
        for operator in context.graph.operators.iter().filter(|operator| operator.is_writing) {
            let Some(leaf) = context.subject(operator).leaves.first().cloned() else { continue };
            for storage in context.storages(leaf.source) {
                by_storage.entry(storage).or_default().push(operator.id);
            }
        }
        Self { by_storage }
    }

    pub(super) fn last(&self, storage: StorageId) -> Option<OperatorId> {
        self.by_storage.get(&storage)?.last().copied()
    }

    /// Returns how often a storage was written to before an operator.
    pub(super) fn before(&self, storage: StorageId, operator: OperatorId) -> usize {
        self.by_storage.get(&storage).map_or(0, |all| all.iter().filter(|at| **at < operator).count())
    }
}

/// Writes the program of one device of a group.
///
/// # Errors
/// If the choice is impossible.
pub fn sharded(program: &Program, context: &Context<'_>, choice: &Choice) -> Result<Sharded, ShardError> {
    let graph = context.graph;
    for group in &graph.tied {
        let first = group[0];
        if let Some(other) =
            group.iter().find(|id| choice.tensors[id.index()] != choice.tensors[first.index()])
        {
            let path = |id: TensorId| graph.tensor(id).path.clone();
            return Err(ShardError::Tied { first: path(first), second: path(*other) });
        }
    }
    let mut writer = Writer {
        context,
        choice,
        writes: Writes::new(context),
        layouts: vec![Layout::Whole; program.values.len()],
        instead: HashMap::new(),
        made: HashMap::new(),
        parts: HashMap::new(),
        names: program.values.iter().map(|value| value.name.clone()).collect(),
        out: Program { nodes: Vec::with_capacity(program.nodes.len() + 64), ..program.clone() },
        exchanges: BTreeMap::new(),
        inside: BTreeMap::new(),
        uneven: BTreeSet::new(),
        recorded: Vec::new(),
        is_split: Vec::with_capacity(program.nodes.len()),
    };
    let mut starts = Vec::with_capacity(program.nodes.len() + 1);
    for index in 0..program.nodes.len() {
        starts.push(writer.out.nodes.len() as u32);
        writer.add(program, index)?;
    }
    let output = writer.returned(program)?;
    starts.push(writer.out.nodes.len() as u32);
    Ok(writer.finish(program, &starts, output))
}

struct Writer<'a> {
    context: &'a Context<'a>,
    choice: &'a Choice,
    writes: Writes,
    layouts: Vec<Layout>,
    /// Values that replace others once they are made: whole sizes for sizes of parts.
    instead: HashMap<ValueId, ValueId>,
    /// Values in other layouts, by the number of earlier writes to their memory.
    made: HashMap<(Source, Vec<Exchange>, usize), ValueId>,
    /// Divided numbers, by the call that they are for.
    parts: HashMap<(String, CallId), ValueId>,
    names: std::collections::HashSet<String>,
    out: Program,
    exchanges: BTreeMap<NodeId, Exchange>,
    inside: BTreeMap<NodeId, Inside>,
    uneven: BTreeSet<ValueId>,
    recorded: Vec<tracer::RecordedNode>,
    is_split: Vec<bool>,
}

impl Writer<'_> {
    fn layout(&self, source: Source) -> Layout {
        match source {
            Source::Value(id) => self.layouts[id.index()],
            Source::Tensor(id) => self.choice.tensors[id.index()],
        }
    }

    fn add(&mut self, program: &Program, index: usize) -> Result<(), ShardError> {
        let context = self.context;
        let operator = context.graph.operator(OperatorId(index as u32));
        let subject = context.subject(operator);
        let path = || context.graph.block(operator.block).path.clone();
        let mut ways = strategies(&subject);
        let at = self.choice.strategies[index];
        if at >= ways.len() {
            return Err(ShardError::NoStrategy { operator: operator.name.clone(), path: path() });
        }
        let strategy = ways.swap_remove(at);
        let mut node = program.nodes[index].clone();
        node.arguments.iter_mut().for_each(|argument| self.substitute(&mut argument.operand));
        self.exchange(program, &subject, &strategy, &mut node)?;
        self.edit(&subject, &strategy, &mut node);
        if let Some(special) = strategy.special {
            stand_in(&mut node, &subject, special);
        }
        let recorded = program.recorded.as_ref().and_then(|recorded| recorded.nodes.get(index)).cloned();
        let outputs = node.outputs.clone();
        for value in &outputs {
            self.layouts[value.index()] = context.layout_of(*value, strategy.gives);
            if matches!(self.layouts[value.index()], Layout::Routed(_) | Layout::Taken(_) | Layout::First(_))
            {
                self.uneven.insert(*value);
            }
            self.out.values[value.index()].type_ =
                local(&self.out.values[value.index()].type_, strategy.gives, context.degree);
        }
        self.is_split.push(strategy.is_split);
        let (call, span) = (node.call, node.span);
        let mut record = recorded.unwrap_or_default();
        record.operator.clone_from(&node.operator);
        for type_ in record.outputs.iter_mut().flatten() {
            *type_ = local_type(type_, strategy.gives, context.degree);
            // Rows that are removed afterwards are not part of the band.
            type_.shape = type_.shape.take().filter(|_| !matches!(strategy.after, Some(After::Crop(_))));
        }
        let inside = match strategy.special {
            Some(Special::Norm { groups, .. }) if has_own_statistics(&subject) => {
                Some(groups.map_or(Inside::Channels, Inside::Groups))
            }
            Some(Special::CrossEntropy) => Some(Inside::Scores),
            Some(Special::Combine(..)) => Some(Inside::Rows),
            _ => None,
        };
        if let Some(inside) = inside {
            self.inside.insert(NodeId(self.out.nodes.len() as u32), inside);
        }
        self.out.nodes.push(node);
        self.recorded.push(record);
        self.follow(&strategy, &outputs, call, span);
        Ok(())
    }

    /// Converts operands to the layouts that a strategy needs.
    fn exchange(
        &mut self,
        program: &Program,
        subject: &Subject<'_>,
        strategy: &Strategy,
        node: &mut Node,
    ) -> Result<(), ShardError> {
        let (context, operator) = (self.context, subject.operator);
        let path = || context.graph.block(operator.block).path.clone();
        let fixed = context.fixed(operator.id, &self.writes);
        for ((leaf, need), is_fixed) in subject.leaves.iter().zip(&strategy.needs).zip(fixed) {
            let from = self.layout(leaf.source);
            let operand = || match leaf.source {
                Source::Value(id) => program.values[id.index()].name.clone(),
                Source::Tensor(id) => program.tensors[id.index()].path.clone(),
            };
            let is_whole = |step: &Exchange| {
                step.routing().all(|value| self.layout(Source::Value(value)) == Layout::Whole)
            };
            let steps = exchanges(from, *need, leaf.has_gradient);
            let Some(steps) = steps.filter(|steps| steps.iter().all(is_whole)) else {
                let from = from.to_string();
                return Err(ShardError::NoExchange {
                    operator: operator.name.clone(),
                    path: path(),
                    operand: operand(),
                    from,
                });
            };
            if steps.is_empty() {
                continue;
            }
            if is_fixed {
                return Err(ShardError::Fixed {
                    operator: operator.name.clone(),
                    path: path(),
                    operand: operand(),
                });
            }
            let storages = context.storages(leaf.source);
            let epoch = storages.iter().map(|storage| self.writes.before(*storage, operator.id)).sum();
            let value = self.exchanged(leaf.source, steps, epoch, node);
            if let Some(place) = written(node, subject, leaf.argument, leaf.item) {
                *place = Operand::Value(value);
            }
        }
        Ok(())
    }

    /// Divides the numbers that are sizes of cut dimensions.
    fn edit(&mut self, subject: &Subject<'_>, strategy: &Strategy, node: &mut Node) {
        for edit in &strategy.edits {
            match *edit {
                Edit::Divide { argument, item } => {
                    let call = node.call;
                    let Some(place) = written(node, subject, argument, item) else { continue };
                    let number = std::mem::take(place);
                    let part = self.part(number, call, node.span, strategy);
                    *written(node, subject, argument, item).expect("it was there") = Operand::Value(part);
                }
                Edit::Set { argument, item, to } => {
                    if let Some(place) = written(node, subject, argument, item) {
                        *place = to.operand();
                    }
                }
                Edit::Multiply => {}
            }
        }
    }

    /// Adds the nodes after an operator: multiplied sizes, and post-processing of the result.
    fn follow(&mut self, strategy: &Strategy, outputs: &[ValueId], call: CallId, span: Span) {
        if strategy.edits.contains(&Edit::Multiply) {
            let bands = strategy.bands();
            let size = bands.map(|bands| constant(bands.size as i64));
            let name = if bands.is_some() { "shard_all_rows" } else { "shard_whole" };
            for value in outputs.iter().copied() {
                let operands = [Operand::Value(value)].into_iter().chain(size.clone()).collect();
                let whole = self.node(name, operands, Type::Int, call, span, "whole");
                self.instead.insert(value, whole);
            }
        }
        if let (Some(after), [value]) = (strategy.after, outputs) {
            let node = self.out.nodes.last().expect("its operator was added");
            let (name, others, about) = done_after(after, node);
            let operands = [Operand::Value(*value)].into_iter().chain(others).collect();
            let type_ = self.out.values[value.index()].type_.clone();
            if let (After::Crop(_), Type::Tensor(own)) = (after, &mut self.out.values[value.index()].type_) {
                own.shape = None;
            }
            if let After::PerTarget { .. } = after {
                self.inside.insert(NodeId(self.out.nodes.len() as u32), Inside::Targets);
            }
            let made = self.node(name, operands, type_, call, span, about);
            self.instead.insert(*value, made);
        }
    }

    /// Gathers the model's outputs.
    fn returned(&mut self, program: &Program) -> Result<Operand, ShardError> {
        let mut output = program.output.clone();
        let root = CallId(0);
        let Some(last) = program.nodes.last().cloned() else { return Ok(output) };
        let end = Node { call: root, ..last };
        self.gathered(&mut output, &end)?;
        Ok(output)
    }

    fn gathered(&mut self, operand: &mut Operand, end: &Node) -> Result<(), ShardError> {
        let source = match operand {
            Operand::Value(value) => Source::Value(*value),
            Operand::Tensor(tensor) => Source::Tensor(*tensor),
            Operand::List(items) | Operand::Tuple(items) => {
                return items.iter_mut().try_for_each(|item| self.gathered(item, end));
            }
            Operand::Dict(items) => {
                return items.iter_mut().try_for_each(|(_, item)| self.gathered(item, end));
            }
            Operand::Constant(_) => return Ok(()),
        };
        let steps = exchanges(self.layout(source), Need::Whole, true).unwrap_or_default();
        if steps.is_empty() {
            self.substitute(operand);
            return Ok(());
        }
        if let Source::Value(id) = source
            && matches!(self.context.graph.value(id).fact, crate::fact::Fact::List(_))
        {
            return Err(ShardError::Output);
        }
        *operand = Operand::Value(self.exchanged(source, steps, usize::MAX, end));
        Ok(())
    }

    fn substitute(&self, operand: &mut Operand) {
        substitute_all(&self.instead, operand);
    }

    /// Returns a value in another layout, made before a node.
    fn exchanged(&mut self, source: Source, steps: Vec<Exchange>, epoch: usize, before: &Node) -> ValueId {
        // The result of the first steps may exist already: a sum that one consumer needs whole and another in parts.
        let mut operand = match source {
            Source::Value(id) => Operand::Value(id),
            Source::Tensor(id) => Operand::Tensor(id),
        };
        self.substitute(&mut operand);
        let mut value = None;
        for end in 1..=steps.len() {
            let key = (source, steps[..end].to_vec(), epoch);
            let found = match self.made.get(&key) {
                Some(found) => *found,
                None => {
                    let step = steps[end - 1];
                    let (name, numbers, about) = spelled(step);
                    let mut arguments = vec![operand.clone()];
                    arguments.extend(numbers);
                    let type_ = Type::Tensor(TensorType::default());
                    let id = NodeId(self.out.nodes.len() as u32);
                    let made = self.node(name, arguments, type_, before.call, before.span, about);
                    self.exchanges.insert(id, step);
                    let is_uneven = matches!(
                        step,
                        Exchange::ToExperts(_)
                            | Exchange::Dispatch(..)
                            | Exchange::ToFirst(_)
                            | Exchange::Collect(_)
                    );
                    if is_uneven {
                        self.uneven.insert(made);
                    }
                    self.made.insert(key, made);
                    made
                }
            };
            operand = Operand::Value(found);
            value = Some(found);
        }
        value.expect("there is a step")
    }

    /// Returns one device's part of a number.
    fn part(&mut self, number: Operand, call: CallId, span: Span, of: &Strategy) -> ValueId {
        let name = counted(of);
        let key = (format!("{name} {number:?}"), call);
        if let Some(known) = self.parts.get(&key) {
            return *known;
        }
        let made = self.node(name, vec![number], Type::Int, call, span, "part");
        self.parts.insert(key, made);
        made
    }

    /// Adds an exchange with one result.
    fn node(
        &mut self,
        name: &str,
        operands: Vec<Operand>,
        type_: Type,
        call: CallId,
        span: Span,
        about: &str,
    ) -> ValueId {
        let of = match operands.first() {
            Some(Operand::Value(value)) => self.out.values[value.index()].name.clone(),
            Some(Operand::Tensor(tensor)) => {
                self.out.tensors[tensor.index()].path.rsplit('.').next().unwrap_or("tensor").to_string()
            }
            _ => "size".to_string(),
        };
        let base = format!("{of}_{about}");
        let mut name_of_value = base.clone();
        let mut count = 1;
        while !self.names.insert(name_of_value.clone()) {
            count += 1;
            name_of_value = format!("{base}_{count}");
        }
        let value = ValueId(self.out.values.len() as u32);
        let producer = Some(NodeId(self.out.nodes.len() as u32));
        self.out.values.push(Value { name: name_of_value, type_, producer, span });
        let degree = Operand::Constant(Constant::Int(self.context.degree as i64));
        let operands = operands.into_iter().chain([degree]);
        let arguments = operands.map(|operand| Argument { name: None, operand }).collect();
        let operator = format!("{}::{name}", self.context.space());
        self.recorded.push(tracer::RecordedNode { operator: operator.clone(), outputs: Vec::new() });
        self.out.nodes.push(Node {
            operator,
            arguments,
            outputs: vec![value],
            changes: Vec::new(),
            call,
            span,
        });
        value
    }

    fn finish(self, program: &Program, starts: &[u32], output: Operand) -> Sharded {
        let Writer {
            context, choice, mut out, exchanges, inside, uneven, recorded, is_split, instead, ..
        } = self;
        let replaced = |operand: &mut Operand| substitute_all(&instead, operand);
        for (index, node) in out.nodes.iter().enumerate() {
            for value in &node.outputs {
                out.values[value.index()].producer = Some(NodeId(index as u32));
            }
        }
        for (at, call) in out.calls.iter_mut().enumerate() {
            let end = match at {
                // Values that are gathered for the caller belong to the whole model.
                0 => starts[starts.len() - 1],
                _ => starts[call.nodes.end as usize],
            };
            call.nodes = starts[call.nodes.start as usize]..end;
            call.arguments.iter_mut().for_each(replaced);
            replaced(&mut call.output);
        }
        if let Some(root) = out.calls.first_mut() {
            root.output = output.clone();
        }
        out.output = output;
        for note in &mut out.notes {
            // The node itself follows the nodes inserted before it.
            note.node = note.node.map(|node| NodeId(starts[node.index() + 1].saturating_sub(1)));
        }
        if let Some(about) = &mut out.recorded {
            let is_whole = about.nodes.len() == program.nodes.len();
            about.nodes = if is_whole { recorded } else { Vec::new() };
        }
        let (mut cuts, mut on_first) = (BTreeMap::new(), BTreeMap::new());
        for (index, layout) in choice.tensors.iter().enumerate() {
            if let Layout::First(rows) = *layout {
                on_first.insert(TensorId(index as u32), rows);
            }
            if let Layout::Even(slice) = *layout {
                cuts.insert(TensorId(index as u32), slice);
                let tensor = &mut out.tensors[index];
                if tensor.shape.is_empty() {
                    tensor.shape.clone_from(&context.graph.tensors[index].shape);
                }
                tensor.shape[slice.dim] /= context.degree;
                tensor.strides = tracer::dense_strides(&tensor.shape);
            }
        }
        Sharded { program: out, degree: context.degree, cuts, on_first, exchanges, inside, uneven, is_split }
    }
}

/// Returns the operator that makes one device's part of a number.
pub(super) fn counted(strategy: &Strategy) -> &'static str {
    match strategy.gives {
        Layout::First(_) => "shard_on_first",
        _ if strategy.bands().is_some() => "shard_rows",
        _ => "shard_part",
    }
}

fn substitute_all(instead: &HashMap<ValueId, ValueId>, operand: &mut Operand) {
    match operand {
        Operand::Value(value) => *value = instead.get(value).copied().unwrap_or(*value),
        Operand::List(items) | Operand::Tuple(items) => {
            items.iter_mut().for_each(|item| substitute_all(instead, item));
        }
        Operand::Dict(items) => items.iter_mut().for_each(|(_, item)| substitute_all(instead, item)),
        Operand::Tensor(_) | Operand::Constant(_) => {}
    }
}

/// Returns the place of an argument, or of an item of it, in a node.
pub(super) fn written<'n>(
    node: &'n mut Node,
    subject: &Subject<'_>,
    argument: usize,
    item: Option<usize>,
) -> Option<&'n mut Operand> {
    let about = subject.operator.arguments.get(argument).filter(|about| about.is_given)?;
    let by_name = node.arguments.iter().position(|given| given.name.as_deref() == Some(about.name.as_ref()));
    let is_positional = node.arguments.get(argument).is_some_and(|given| given.name.is_none());
    let at = by_name.or_else(|| is_positional.then_some(argument))?;
    let operand = &mut node.arguments[at].operand;
    match (item, operand) {
        (None, operand) => Some(operand),
        (Some(item), Operand::List(items) | Operand::Tuple(items)) => items.get_mut(item),
        (Some(_), _) => None,
    }
}

/// Returns an exchange's operator, its numbers, and the name of its result.
pub(super) fn spelled(exchange: Exchange) -> (&'static str, Vec<Operand>, &'static str) {
    let numbers = |slice: Slice| vec![constant(slice.dim as i64), constant(slice.blocks as i64)];
    let of_bands = |bands: super::Bands| vec![constant(bands.dim as i64), constant(bands.size as i64)];
    let of_experts = |routed: Routed| vec![Operand::Value(routed.offsets), constant(routed.experts as i64)];
    match exchange {
        Exchange::Copy => ("shard_copy", Vec::new(), "copy"),
        Exchange::Reduce => ("shard_reduce", Vec::new(), "sum"),
        Exchange::Scatter(slice) => ("shard_scatter", numbers(slice), "part"),
        Exchange::Gather(slice) => ("shard_gather", numbers(slice), "whole"),
        Exchange::GatherSplit(slice) => ("shard_gather_split", numbers(slice), "whole"),
        Exchange::ReduceScatter(slice) => ("shard_reduce_scatter", numbers(slice), "part"),
        Exchange::Exchange { from, to } => {
            ("shard_exchange", vec![constant(from as i64), constant(to as i64)], "turned")
        }
        Exchange::Once => ("shard_once", Vec::new(), "once"),
        Exchange::ToBands(bands) => ("shard_to_bands", of_bands(bands), "band"),
        Exchange::FromBands(bands) => ("shard_from_bands", of_bands(bands), "whole"),
        Exchange::FromBandsSplit(bands) => ("shard_from_bands_split", of_bands(bands), "whole"),
        Exchange::ToFirst(rows) => ("shard_to_first", vec![constant(rows as i64)], "first"),
        Exchange::FromFirst(rows) => ("shard_from_first", vec![constant(rows as i64)], "whole"),
        Exchange::FromFirstSplit(rows) => ("shard_from_first_split", vec![constant(rows as i64)], "whole"),
        Exchange::Collect(rows) => ("shard_collect", vec![constant(rows as i64)], "first"),
        Exchange::Deal(rows) => ("shard_deal", vec![constant(rows as i64)], "part"),
        Exchange::FirstTerm(rows) => ("shard_first_term", vec![constant(rows as i64)], "term"),
        Exchange::Lend(rows) => ("shard_lend", vec![constant(rows as i64)], "lent"),
        Exchange::ToExperts(routed) => ("shard_to_experts", of_experts(routed), "routed"),
        Exchange::FromExperts(routed) => ("shard_from_experts", of_experts(routed), "whole"),
        Exchange::FromExpertsSplit(routed) => ("shard_from_experts_split", of_experts(routed), "whole"),
        Exchange::ExpertsTerm(routed) => ("shard_experts_term", of_experts(routed), "term"),
        Exchange::Dispatch(taken, routed) => {
            let positions = [Operand::Value(taken.positions)].into_iter();
            let numbers = [taken.rows, taken.blocks].map(|number| constant(number as i64));
            ("shard_dispatch", positions.chain(of_experts(routed)).chain(numbers).collect(), "routed")
        }
        Exchange::Rows(rows) => match rows.take {
            Take::Window { window, fill } => {
                let fill = Operand::Constant(Constant::Float(f64::from_bits(fill)));
                ("shard_window", windows(rows, window).chain([fill]).collect(), "rows")
            }
            Take::Spread(window) => ("shard_spread", windows(rows, window).collect(), "rows"),
            Take::Stretch(stretch) => {
                let scale =
                    stretch.scale.map_or(Constant::None, |bits| Constant::Float(f64::from_bits(bits)));
                let how = [
                    constant(rows.from.dim as i64),
                    constant(rows.from.size as i64),
                    constant(rows.results as i64),
                    Operand::Constant(Constant::Str(stretch.mode().into())),
                    Operand::Constant(Constant::Bool(stretch.align_corners)),
                    Operand::Constant(scale),
                ];
                ("shard_stretch", how.to_vec(), "stretched")
            }
        },
    }
}

/// The dimension, its size, the rows of results, and the windows.
fn windows(rows: Rows, window: Window) -> impl Iterator<Item = Operand> {
    let numbers = [rows.from.dim as i64, rows.from.size as i64, rows.results as i64];
    numbers.into_iter().chain([window.extent as i64, window.stride as i64, window.padding]).map(constant)
}

pub(super) fn constant(number: i64) -> Operand {
    Operand::Constant(Constant::Int(number))
}

/// Returns the operator that post-processes a node's result, its other arguments, and the name of its result.
pub(super) fn done_after(after: After, node: &Node) -> (&'static str, Vec<Operand>, &'static str) {
    let of = |rows: Rows| match rows.take {
        Take::Window { window, .. } | Take::Spread(window) => windows(rows, window).collect(),
        Take::Stretch(_) => Vec::new(),
    };
    match after {
        After::Weigh(size) => ("shard_weighed", vec![constant(size as i64)], "weighed"),
        After::Crop(rows) => ("shard_crop", of(rows), "band"),
        After::PerTarget { argument, ignored } => {
            let named = node.arguments.iter().find(|given| given.name.as_deref() == Some("target"));
            let targets = named.unwrap_or(&node.arguments[argument]).operand.clone();
            ("shard_per_target", vec![targets, constant(ignored)], "per_target")
        }
        After::Count { rows, counts_padding } => {
            let flag = Operand::Constant(Constant::Bool(counts_padding));
            ("shard_counted", of(rows).into_iter().chain([flag]).collect(), "counted")
        }
    }
}

/// Tells whether a norm averages: in eval mode it uses its running averages.
fn has_own_statistics(subject: &Subject<'_>) -> bool {
    let training = ["training", "use_input_stats"].into_iter().find(|name| subject.argument(name).is_some());
    subject.leaf("running_mean").is_none()
        || training.is_none_or(|name| subject.call.flag(name) != Some(false))
}

/// The name in these operators for the argument that torch calls `self`, which cannot be passed by name.
pub(super) const INPUT: &str = "input";

/// Replaces a node by an operator on shared layers.
pub(super) fn stand_in(node: &mut Node, subject: &Subject<'_>, special: Special) {
    let mut take = |name: &'static str| {
        // Forms in place call it otherwise.
        let in_place = || subject.argument("self").filter(|_| name == INPUT);
        let at = subject.argument(name).or_else(in_place);
        let place = at.and_then(|at| written(node, subject, at, None));
        (name, place.map(std::mem::take).unwrap_or_default())
    };
    let number = constant;
    let along =
        |bands: super::Bands| [("along", number(bands.dim as i64)), ("rows", number(bands.size as i64))];
    let (operator, operands): (_, Vec<_>) = match special {
        Special::DropoutOfBands(bands) => (
            "shard_dropout_bands",
            [take("input"), take("p"), take("train")].into_iter().chain(along(bands)).collect(),
        ),
        Special::Norm { bands, groups: None } => {
            let names =
                ["input", "weight", "bias", "running_mean", "running_var", "training", "momentum", "eps"];
            ("shard_batch_norm", names.map(&mut take).into_iter().chain(along(bands)).collect())
        }
        Special::Norm { bands, groups: Some(groups) } => {
            let groups = ("num_groups", number(groups as i64));
            let eps = subject.call.float("eps").map_or(Constant::None, Constant::Float);
            let eps = ("eps", Operand::Constant(eps));
            let given = [take("input"), groups, take("weight"), take("bias"), eps];
            ("shard_group_norm", given.into_iter().chain(along(bands)).collect())
        }
        Special::DropoutOfFirst(rows) => (
            "shard_dropout_first",
            vec![take("input"), take("p"), take("train"), ("rows", number(rows as i64))],
        ),
        Special::Dropout(slice) => {
            let numbers = [("dim", number(slice.dim as i64)), ("blocks", number(slice.blocks as i64))];
            ("shard_dropout", [take("input"), take("p"), take("train")].into_iter().chain(numbers).collect())
        }
        Special::CrossEntropy => {
            let int = |name, default| number(subject.call.int(name).unwrap_or(default));
            let numbers = [("reduction", int("reduction", 1)), ("ignore_index", int("ignore_index", -100))];
            let scores = (INPUT, take("self").1);
            ("shard_cross_entropy", [scores, take("target")].into_iter().chain(numbers).collect())
        }
        Special::CausalAttention => {
            let flag = subject.call.flag("enable_gqa").unwrap_or(false);
            let is_grouped = ("enable_gqa", Operand::Constant(Constant::Bool(flag)));
            let given = ["query", "key", "value", "scale"].map(&mut take);
            ("shard_attention", given.into_iter().chain([is_grouped]).collect())
        }
        Special::Experts => {
            let offsets = take("offs");
            let given = [(INPUT, take("self").1), take("mat2"), offsets];
            ("shard_grouped_mm", given.into_iter().collect())
        }
        Special::Take(taken) => {
            let numbers =
                [("rows", taken.rows), ("blocks", taken.blocks), ("degree", subject.context.degree)];
            let numbers = numbers.map(|(name, size)| (name, number(size as i64)));
            let given = [(INPUT, take("self").1), ("indices", position(take("indices").1))];
            ("shard_take", given.into_iter().chain(numbers).collect())
        }
        Special::Combine(routed, slice) => {
            let numbers =
                [("experts", routed.experts), ("blocks", slice.blocks), ("degree", subject.context.degree)];
            let numbers = numbers.map(|(name, size)| (name, number(size as i64)));
            let rows = [(INPUT, take("self").1), ("indices", position(take("indices").1))];
            let offsets = ("offsets", Operand::Value(routed.offsets));
            ("shard_combine", rows.into_iter().chain([offsets]).chain(numbers).collect())
        }
        Special::Rows => {
            let padding = number(subject.call.int("padding_idx").unwrap_or(-1));
            ("shard_embedding", vec![take("weight"), take("indices"), ("padding_idx", padding)])
        }
    };
    node.operator = format!("{}::{operator}", subject.context.space());
    let named =
        operands.into_iter().map(|(name, operand)| Argument { name: Some(name.to_string()), operand });
    node.arguments = named.collect();
}

/// Returns the only tensor of positions of an `index`.
fn position(indices: Operand) -> Operand {
    match indices {
        Operand::List(mut items) if items.len() == 1 => items.remove(0),
        other => other,
    }
}

fn local(type_: &Type, gives: Layout, degree: u64) -> Type {
    match type_ {
        Type::Tensor(type_) => Type::Tensor(local_type(type_, gives, degree)),
        other => other.clone(),
    }
}

fn local_type(type_: &TensorType, gives: Layout, degree: u64) -> TensorType {
    let mut type_ = type_.clone();
    let (dim, parts) = match gives {
        Layout::Even(slice) => (slice.dim, degree),
        Layout::Bands(bands) => (bands.dim, degree),
        Layout::Routed(_) | Layout::Taken(_) => (0, degree),
        // Sizes are those on the first device.
        Layout::Whole | Layout::Sum | Layout::First(_) => return type_,
    };
    if let Some(size) = type_.shape.as_mut().and_then(|shape| shape.get_mut(dim)) {
        *size = size.div_ceil(parts);
        type_.strides = None;
    }
    type_
}
