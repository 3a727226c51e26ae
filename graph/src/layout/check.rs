//! A proof that the program of one device does what the whole one does, given that each operator's rule is right.
//!
//! It reads the two programs and the choice, not how one was made from the other. Each value gets a type: its layout and, where that is
//! whole, whether consumers use it identically on all devices or for a part each, which makes its gradient a partial sum. Exchanges map
//! types to types and operators require types, so gradients are proven along with values. Sizes are traced to their origin: each is a
//! size of the whole unless a rule asks for that of a part. The rules themselves are not proven here (`tests/oracle/layouts.py` runs
//! each of them).
//!
//! One walk over operands.

use std::collections::{HashMap, HashSet};

use thiserror::Error;
use tracer::{Node, NodeId, Operand, Program, ValueId};

use super::{
    Bands, Layout, Routed, Rows, Slice, Taken,
    exchange::Exchange,
    rules::strategies,
    sharded::{Choice, INPUT, Sharded, Writes, constant, counted, done_after, spelled, stand_in, written},
    strategy::{Edit, Need, Strategy},
    subject::{Context, Source, Subject},
};
use crate::model::OperatorId;

/// The operators that make one device's part of a number.
const PARTS: [&str; 3] = ["shard_part", "shard_rows", "shard_on_first"];

/// Statistics of a proof.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Proof {
    /// Operators whose operands and gradients have the layouts that their strategies need.
    pub operators: usize,
    /// Exchanges between them.
    pub exchanges: usize,
    /// Results of operators that are not whole on any device.
    pub parts: usize,
}

/// Why there is no proof.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[allow(missing_docs)] // The text says it.
pub enum CheckError {
    #[error("`{operator}` in `{path}` takes `{operand}`, which is {found}, but needs it {needed}")]
    Operand { operator: String, path: String, operand: String, found: String, needed: String },
    #[error("`{operator}` in `{path}` takes another value as `{operand}`")]
    Other { operator: String, path: String, operand: String },
    #[error("`{operator}` in `{path}` takes a copy of `{operand}` from before the last write to it")]
    Stale { operator: String, path: String, operand: String },
    #[error("`{operator}` in `{path}` gets a size of the whole in place of a part's, or the reverse")]
    Number { operator: String, path: String },
    #[error("`{operator}` in `{path}` is missing, or at another place")]
    Missing { operator: String, path: String },
    #[error("`{exchange}`, which makes `{value}`, gets a value that is {found}")]
    Exchange { exchange: String, value: String, found: String },
    #[error("the model returns `{value}`, which is {found}")]
    Output { value: String, found: String },
}

/// The type of a value: its layout, and how its consumers use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Held {
    /// Everything; consumers do the same with it on all devices.
    Whole,
    /// Everything; consumers do a part with it on each device, and its gradients are summed.
    ForParts,
    /// An equal slice.
    Even(Slice),
    /// Rows.
    Bands(Bands),
    /// Rows that are routed to experts.
    Routed(Routed),
    /// Rows that are taken from the device's own.
    Taken(Taken),
    /// Rows on the first device only.
    First(u64),
    /// A weight on the first device, and an empty tensor of its sizes on the others.
    Lent(u64),
    /// Rows, with the halo that windows over them read.
    Rows(Rows),
    /// A term.
    Sum,
    /// A result that still needs post-processing.
    Unfinished,
}

impl From<Layout> for Held {
    fn from(layout: Layout) -> Self {
        match layout {
            Layout::Whole => Held::Whole,
            Layout::Even(slice) => Held::Even(slice),
            Layout::Bands(bands) => Held::Bands(bands),
            Layout::Routed(routed) => Held::Routed(routed),
            Layout::Taken(taken) => Held::Taken(taken),
            Layout::First(rows) => Held::First(rows),
            Layout::Sum => Held::Sum,
        }
    }
}

impl std::fmt::Display for Held {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match *self {
            Held::Whole => f.write_str("whole, used equally by all"),
            Held::ForParts => f.write_str("whole, used for a part by each"),
            Held::Even(slice) => Layout::Even(slice).fmt(f),
            Held::Bands(bands) => Layout::Bands(bands).fmt(f),
            Held::Routed(routed) => Layout::Routed(routed).fmt(f),
            Held::Taken(taken) => Layout::Taken(taken).fmt(f),
            Held::First(rows) => Layout::First(rows).fmt(f),
            Held::Lent(_) => f.write_str("on the first device, and empty on the others"),
            Held::Rows(_) => f.write_str("in bands, with a halo"),
            Held::Sum => Layout::Sum.fmt(f),
            Held::Unfinished => f.write_str("not post-processed"),
        }
    }
}

impl Held {
    /// Tells whether an operand has the type that an operator needs. Without a gradient, identical use is not required.
    fn serves(self, need: Need, has_gradient: bool) -> bool {
        match (need, self) {
            (Need::Any, held) => held != Held::Unfinished,
            (Need::Whole | Need::In(Layout::Whole), held) => {
                held == Held::Whole || held == Held::ForParts && !has_gradient
            }
            (Need::Partial, held) => held == Held::ForParts || held == Held::Whole && !has_gradient,
            (Need::Lent(rows), Held::Lent(own)) => own == rows,
            (Need::Lent(_), held) => held.serves(Need::Partial, has_gradient),
            (Need::In(layout), held) => held == Held::from(layout),
            (Need::Rows(rows), held) => held == Held::Rows(rows),
        }
    }

    /// Returns the type after an exchange.
    fn exchanged(self, exchange: Exchange) -> Option<Held> {
        let (from, to) = match exchange {
            Exchange::Copy => (Held::Whole, Held::ForParts),
            Exchange::Reduce => (Held::Sum, Held::Whole),
            Exchange::Scatter(slice) => (Held::Whole, Held::Even(slice)),
            Exchange::Gather(slice) => (Held::Even(slice), Held::Whole),
            Exchange::GatherSplit(slice) => (Held::Even(slice), Held::ForParts),
            Exchange::ReduceScatter(slice) => (Held::Sum, Held::Even(slice)),
            Exchange::Exchange { from, to } => {
                let along = |dim| Held::Even(Slice { dim, blocks: 1 });
                (along(from), along(to))
            }
            Exchange::Once => (Held::Whole, Held::Sum),
            Exchange::ToBands(bands) => (Held::Whole, Held::Bands(bands)),
            Exchange::FromBands(bands) => (Held::Bands(bands), Held::Whole),
            Exchange::FromBandsSplit(bands) => (Held::Bands(bands), Held::ForParts),
            Exchange::Rows(rows) => (Held::Bands(rows.from), Held::Rows(rows)),
            Exchange::ToExperts(routed) => (Held::Whole, Held::Routed(routed)),
            Exchange::FromExperts(routed) => (Held::Routed(routed), Held::Whole),
            Exchange::FromExpertsSplit(routed) => (Held::Routed(routed), Held::ForParts),
            Exchange::ExpertsTerm(routed) => (Held::Routed(routed), Held::Sum),
            Exchange::Dispatch(taken, routed) => (Held::Taken(taken), Held::Routed(routed)),
            Exchange::ToFirst(rows) => (Held::Whole, Held::First(rows)),
            Exchange::FromFirst(rows) => (Held::First(rows), Held::Whole),
            Exchange::FromFirstSplit(rows) => (Held::First(rows), Held::ForParts),
            Exchange::Collect(rows) => (Held::Even(Slice { dim: 0, blocks: 1 }), Held::First(rows)),
            Exchange::Deal(rows) => (Held::First(rows), Held::Even(Slice { dim: 0, blocks: 1 })),
            Exchange::FirstTerm(rows) => (Held::First(rows), Held::Sum),
            Exchange::Lend(rows) => (Held::First(rows), Held::Lent(rows)),
        };
        (self == from).then_some(to)
    }
}

/// Proves that the program of one device computes the same as the whole one, given that the rules are correct.
///
/// # Errors
/// The first operator, exchange or result that violates its requirements.
pub fn check(
    program: &Program,
    context: &Context<'_>,
    choice: &Choice,
    made: &Sharded,
) -> Result<Proof, CheckError> {
    let mut checker = Checker {
        context,
        choice,
        whole: program,
        made,
        writes: Writes::new(context),
        held: program.inputs.iter().map(|id| (*id, Held::Whole)).collect(),
        origins: HashMap::new(),
        local: HashSet::new(),
        awaited: HashMap::new(),
        next: 0,
        proof: Proof::default(),
    };
    for (index, node) in made.program.nodes.iter().enumerate() {
        let is_ours = node.outputs.first().is_some_and(|value| value.index() >= program.values.len());
        if is_ours { checker.ours(NodeId(index as u32), node)? } else { checker.operator(node)? }
    }
    if checker.next < program.nodes.len() {
        return Err(checker.missing());
    }
    checker.returned(&program.output, &made.program.output)?;
    Ok(checker.proof)
}

struct Checker<'a> {
    context: &'a Context<'a>,
    choice: &'a Choice,
    whole: &'a Program,
    made: &'a Sharded,
    writes: Writes,
    /// Types of the values of either program; values other than tensors are whole.
    held: HashMap<ValueId, Held>,
    /// The value of the whole program that each value represents.
    origins: HashMap<ValueId, Origin>,
    /// Numbers that are sizes of one device's part.
    local: HashSet<ValueId>,
    /// Results that need post-processing: the operator's name, its numbers, the type afterwards.
    awaited: HashMap<ValueId, (String, Vec<Operand>, Held)>,
    /// The next operator of the whole program.
    next: usize,
    proof: Proof,
}

/// The value of the whole program that a value represents.
#[derive(Clone, Default)]
struct Origin {
    /// A value or tensor of the whole program, or a number.
    of: Operand,
    /// For one device's part of a number, the operator that made it: of equal slices, of bands, or all of it on the
    /// first device and 0 on the others.
    part: Option<&'static str>,
    /// The operator before which it was exchanged, if it was.
    exchanged_at: Option<usize>,
}

impl Checker<'_> {
    fn name(&self, value: ValueId) -> String {
        self.made.program.values[value.index()].name.clone()
    }

    fn held_of(&self, operand: &Operand) -> Held {
        match operand {
            Operand::Value(value) => self.held.get(value).copied().unwrap_or(Held::Whole),
            Operand::Tensor(id) => match (self.made.cuts.get(id), self.made.on_first.get(id)) {
                (Some(slice), None) => Held::Even(*slice),
                (None, Some(rows)) => Held::First(*rows),
                _ => Held::Whole,
            },
            _ => Held::Whole,
        }
    }

    fn origin(&self, operand: &Operand) -> Option<&Origin> {
        match operand {
            Operand::Value(value) => self.origins.get(value),
            _ => None,
        }
    }

    /// Checks an operator that the whole program does not have.
    fn ours(&mut self, id: NodeId, node: &Node) -> Result<(), CheckError> {
        let [value] = node.outputs[..] else { return Err(self.missing()) };
        let operands: Vec<&Operand> = node.arguments.iter().map(|argument| &argument.operand).collect();
        let held = operands.first().map_or(Held::Unfinished, |operand| self.held_of(operand));
        let (space, name) = node.operator.split_once("::").unwrap_or_default();
        let wrong = |found: String| CheckError::Exchange {
            exchange: name.to_string(),
            value: self.name(value),
            found,
        };
        let (Some((first, rest)), Some(degree)) = (operands.split_first(), operands.last()) else {
            return Err(wrong("none".into()));
        };
        if space != self.context.space() {
            return Err(wrong("for other devices".into()));
        }
        if **degree != constant(self.made.degree as i64) {
            return Err(wrong("for another number of devices".into()));
        }
        let numbers = &rest[..rest.len().saturating_sub(1)];
        let is_given = |expected: &[Operand]| numbers.iter().copied().eq(expected);
        let before = self.origin(first).cloned();
        let of = before.as_ref().map_or_else(|| (*first).clone(), |origin| origin.of.clone());
        if let Some(exchange) = self.made.exchanges.get(&id) {
            let (expected, numbers, _) = spelled(*exchange);
            // The routing of rows must be whole on all devices, and known.
            let is_routed = exchange.routing().all(|value| {
                let maker = self.whole.values[value.index()].producer;
                self.held.get(&value).is_none_or(|held| *held == Held::Whole)
                    && maker.is_none_or(|node| node.index() < self.next)
            });
            let to =
                held.exchanged(*exchange).filter(|_| expected == name && is_given(&numbers) && is_routed);
            let to = to.ok_or_else(|| wrong(held.to_string()))?;
            self.held.insert(value, to);
            let at = before.and_then(|origin| origin.exchanged_at).unwrap_or(self.next);
            self.origins.insert(value, Origin { of, exchanged_at: Some(at), ..Origin::default() });
            self.proof.exchanges += 1;
            return Ok(());
        }
        if let Operand::Value(raw) = first
            && let Some((expected, numbers, held)) = self.awaited.get(raw)
        {
            if expected != name || !is_given(numbers) {
                return Err(wrong("not the result of its operator".into()));
            }
            self.held.insert(value, *held);
            self.origins.insert(value, Origin { of, ..Origin::default() });
            return Ok(());
        }
        let is_local = |operand: &Operand| matches!(operand, Operand::Value(id) if self.local.contains(id));
        let part = PARTS.into_iter().find(|part| *part == name);
        let fits = match part {
            Some(_) => !is_local(first) && before.is_none_or(|origin| origin.part.is_none()),
            None => is_local(first) && self.is_made_whole(first, name, numbers),
        };
        if !fits {
            return Err(wrong("not a known number".into()));
        }
        self.origins.insert(value, Origin { of, part, ..Origin::default() });
        Ok(())
    }

    /// Tells whether a size read from a part is converted to the size of the whole.
    fn is_made_whole(&self, read: &Operand, name: &str, numbers: &[&Operand]) -> bool {
        let Operand::Value(value) = read else { return false };
        let Some(maker) = self.whole.values[value.index()].producer else { return false };
        let Some(strategy) = self.strategy(maker.index()) else { return false };
        let bands = strategy.bands().map(|bands| constant(bands.size as i64));
        name == if bands.is_some() { "shard_all_rows" } else { "shard_whole" }
            && numbers.iter().copied().eq(bands.iter())
    }

    fn strategy(&self, index: usize) -> Option<Strategy> {
        let subject = self.context.subject(self.context.graph.operators.get(index)?);
        strategies(&subject).into_iter().nth(*self.choice.strategies.get(index)?)
    }

    fn missing(&self) -> CheckError {
        let (operator, path) = self.place(self.next);
        CheckError::Missing { operator, path }
    }

    fn place(&self, index: usize) -> (String, String) {
        let Some(operator) = self.context.graph.operators.get(index) else {
            return ("the end".into(), String::new());
        };
        (operator.name.clone(), self.context.graph.block(operator.block).path.clone())
    }

    /// Checks an operator of the whole program.
    fn operator(&mut self, node: &Node) -> Result<(), CheckError> {
        let index = self.next;
        let original = self.whole.nodes.get(index).filter(|original| original.outputs == node.outputs);
        let (Some(original), Some(strategy)) = (original, self.strategy(index)) else {
            return Err(self.missing());
        };
        let context = self.context;
        let operator = context.graph.operator(OperatorId(index as u32));
        let subject = context.subject(operator);
        // The whole program's operator, with the values that represent its operands on each device.
        let mut expected = original.clone();
        for edit in &strategy.edits {
            if let Edit::Set { argument, item, to } = *edit
                && let Some(place) = written(&mut expected, &subject, argument, item)
            {
                *place = to.operand();
            }
        }
        let mut found = node.clone();
        self.operands(&mut found, &strategy, &subject)?;
        if strategy.special.is_none() {
            for edit in &strategy.edits {
                let Edit::Divide { argument, item } = *edit else { continue };
                let Some(place) = written(&mut found, &subject, argument, item) else { continue };
                match self.origin(place) {
                    Some(origin) if origin.part == Some(counted(&strategy)) => {
                        *place = origin.of.clone();
                    }
                    _ => return Err(self.number()),
                }
            }
        }
        if let Some(special) = strategy.special {
            stand_in(&mut expected, &subject, special);
        }
        let mut numbers = true;
        found.arguments.iter_mut().for_each(|argument| numbers &= self.stands_for(&mut argument.operand));
        // Numbers compare unequal to no number.
        let is_same = found.operator == expected.operator
            && (found.arguments == expected.arguments
                || format!("{:?}", found.arguments) == format!("{:?}", expected.arguments));
        if !numbers || !is_same {
            return Err(self.number());
        }
        let is_counted = strategy.edits.contains(&Edit::Multiply);
        for value in &node.outputs {
            let held = Held::from(context.layout_of(*value, strategy.gives));
            self.proof.parts += usize::from(held != Held::Whole);
            self.held.insert(*value, held);
            if is_counted {
                self.local.insert(*value);
            }
        }
        if let (Some(after), [value]) = (strategy.after, &node.outputs[..]) {
            let (name, numbers, _) = done_after(after, node);
            let held = self.held.insert(*value, Held::Unfinished).unwrap_or(Held::Unfinished);
            self.awaited.insert(*value, (name.to_string(), numbers, held));
        }
        self.next += 1;
        self.proof.operators += 1;
        Ok(())
    }

    fn number(&self) -> CheckError {
        let (operator, path) = self.place(self.next);
        CheckError::Number { operator, path }
    }

    /// Proves that each tensor has the type that the operator needs.
    fn operands(
        &self,
        node: &mut Node,
        strategy: &Strategy,
        subject: &Subject<'_>,
    ) -> Result<(), CheckError> {
        let id = OperatorId(self.next as u32);
        let fixed = self.context.fixed(id, &self.writes);
        for (place_of_leaf, (leaf, need)) in subject.leaves.iter().zip(&strategy.needs).enumerate() {
            let (operator, path) = self.place(self.next);
            let operand = match leaf.source {
                Source::Value(id) => self.whole.values[id.index()].name.clone(),
                Source::Tensor(id) => self.whole.tensors[id.index()].path.clone(),
            };
            let name = &subject.operator.arguments[leaf.argument].name;
            let place = match strategy.special {
                Some(_) => {
                    let name = if name.as_ref() == "self" { INPUT } else { name.as_ref() };
                    let mut named = node.arguments.iter().filter(|one| one.name.as_deref() == Some(name));
                    named.next().map(|one| one.operand.clone())
                }
                None => written(node, subject, leaf.argument, leaf.item).map(|place| place.clone()),
            };
            // The replacement has fewer arguments: unused running statistics are omitted.
            let Some(taken) = place else {
                if strategy.special.is_some() {
                    continue;
                }
                return Err(CheckError::Other { operator, path, operand });
            };
            let origin = self.origin(&taken);
            let source = match origin.map_or(&taken, |origin| &origin.of) {
                Operand::Value(id) => Some(Source::Value(*id)),
                Operand::Tensor(id) => Some(Source::Tensor(*id)),
                _ => None,
            };
            if source != Some(leaf.source) {
                return Err(CheckError::Other { operator, path, operand });
            }
            let held = self.held_of(&taken);
            let exchanged_at = origin.and_then(|origin| origin.exchanged_at);
            if !held.serves(*need, leaf.has_gradient) {
                let needed = match need {
                    Need::Partial => Held::ForParts.to_string(),
                    Need::Whole => Held::Whole.to_string(),
                    Need::In(layout) => Held::from(*layout).to_string(),
                    Need::Rows(rows) => Held::Rows(*rows).to_string(),
                    Need::Lent(rows) => Held::Lent(*rows).to_string(),
                    Need::Any => "finished".to_string(),
                };
                let found = held.to_string();
                return Err(CheckError::Operand { operator, path, operand, found, needed });
            }
            if let Some(at) = exchanged_at {
                let written_since = self.context.storages(leaf.source).into_iter().any(|storage| {
                    let then = self.writes.before(storage, OperatorId(at as u32));
                    then != self.writes.before(storage, id)
                });
                if written_since || fixed[place_of_leaf] {
                    return Err(CheckError::Stale { operator, path, operand });
                }
            }
        }
        Ok(())
    }

    /// Replaces an operand by the value that it represents; tells whether no number in it is a size of a part.
    fn stands_for(&self, operand: &mut Operand) -> bool {
        match operand {
            Operand::Value(value) => match self.origins.get(value) {
                Some(origin) => {
                    let is_whole = origin.part.is_none();
                    *operand = origin.of.clone();
                    is_whole
                }
                None => !self.local.contains(value),
            },
            // Every item is replaced, also after one that is not whole.
            Operand::List(items) | Operand::Tuple(items) => {
                items.iter_mut().filter_map(|item| (!self.stands_for(item)).then_some(())).count() == 0
            }
            Operand::Dict(items) => {
                items.iter_mut().filter_map(|(_, item)| (!self.stands_for(item)).then_some(())).count() == 0
            }
            Operand::Tensor(_) | Operand::Constant(_) => true,
        }
    }

    /// Proves that the model's outputs are whole.
    fn returned(&self, whole: &Operand, found: &Operand) -> Result<(), CheckError> {
        let wrong = |found: &Operand, held: String| {
            let value = match found {
                Operand::Value(value) => self.name(*value),
                other => format!("{other:?}"),
            };
            CheckError::Output { value, found: held }
        };
        let mut of = found.clone();
        if !self.stands_for(&mut of) || of != *whole {
            return Err(wrong(found, "not the whole model's value".into()));
        }
        let mut left = vec![found];
        while let Some(one) = left.pop() {
            match one {
                Operand::List(items) | Operand::Tuple(items) => left.extend(items),
                Operand::Dict(items) => left.extend(items.iter().map(|(_, item)| item)),
                Operand::Value(_) | Operand::Tensor(_) if self.held_of(one) != Held::Whole => {
                    return Err(wrong(one, self.held_of(one).to_string()));
                }
                _ => {}
            }
        }
        Ok(())
    }
}
