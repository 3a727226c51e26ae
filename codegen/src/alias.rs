//! Alias analysis: which values share memory, and where a write in place makes a cut wrong.
//!
//! Values and stored tensors form alias classes (union-find over view operators). A class without writes needs no care.
//! In a class with writes the current contents move: after a write in stage `m`, every later reader must get the value
//! from stage `m`. A value that a stage receives and writes to is cloned on receipt, or the operator is replaced by its
//! out-of-place form: autograd forbids writing to another stage's tensor.
//!
//! Near-linear in operators and operands; for each class with writes, linear in its uses.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use tracer::{NodeId, Operand, Program, TensorId, ValueId};

use crate::{
    error::CutError,
    nodes::{leaves, mutated_arguments, out_of_place, split},
    views::{is_view, is_wide_view, may_copy, may_share},
};

/// What writes in place require of a cut.
#[derive(Clone, Debug, Default)]
pub(crate) struct InPlace {
    /// Values that a stage clones on receipt.
    pub clones: BTreeSet<(u32, ValueId)>,
    /// Nodes that run in their out-of-place form.
    pub out_of_place: BTreeSet<NodeId>,
    /// Stage from which a reading stage must get a value, if it is not the stage that made it.
    pub holders: HashMap<(u32, ValueId), u32>,
    /// Views that a stage recomputes, so that they alias the memory that it writes to.
    pub rederived: BTreeSet<(u32, ValueId)>,
    /// Values that a stage needs although it does not read them: the bases of the views above.
    pub bases: BTreeSet<(u32, ValueId)>,
    /// Values whose memory is written to: they must not be computed twice.
    pub mutated: Vec<bool>,
    /// Stored tensors whose memory is written to.
    pub mutated_tensors: Vec<bool>,
}

/// Memory classes of values and stored tensors.
pub(crate) struct Classes {
    parents: Vec<u32>,
    values: usize,
    /// First tensor of the same storage.
    storages: Vec<u32>,
}

impl Classes {
    pub fn new(program: &Program) -> Self {
        let values = program.values.len();
        let mut first = HashMap::new();
        let storages: Vec<u32> = (0..program.tensors.len() as u32)
            .map(|index| match &program.tensors[index as usize].storage {
                Some(storage) => *first.entry(storage.record.as_str()).or_insert(index),
                None => index,
            })
            .collect();
        let parents = (0..(values + program.tensors.len()) as u32).collect();
        let mut classes = Self { parents, values, storages };
        for node in &program.nodes {
            if !is_view(node) {
                continue;
            }
            let wide = is_wide_view(node);
            let read = if wide { &node.arguments[..] } else { node.arguments.get(..1).unwrap_or_default() };
            let mut members = Vec::new();
            for argument in read {
                leaves(&argument.operand, &mut |leaf| members.extend(classes.slot(leaf)));
            }
            let outputs = node.outputs.iter().filter(|o| o.index() < values).map(|o| o.index());
            let members: Vec<usize> = members.into_iter().chain(outputs).collect();
            for pair in members.windows(2) {
                classes.join(pair[0], pair[1]);
            }
        }
        classes
    }

    fn slot(&self, leaf: &Operand) -> Option<usize> {
        match leaf {
            Operand::Value(value) if value.index() < self.values => Some(value.index()),
            Operand::Tensor(tensor) if tensor.index() < self.storages.len() => {
                Some(self.tensor_slot(*tensor))
            }
            _ => None,
        }
    }

    fn tensor_slot(&self, tensor: TensorId) -> usize {
        self.values + self.storages[tensor.index()] as usize
    }

    /// Returns the class of a value or stored tensor; `usize::MAX` for anything else.
    pub fn of(&mut self, leaf: &Operand) -> usize {
        self.slot(leaf).map_or(usize::MAX, |slot| self.find(slot))
    }

    fn find(&mut self, slot: usize) -> usize {
        let mut root = slot;
        while self.parents[root] as usize != root {
            root = self.parents[root] as usize;
        }
        let mut at = slot;
        while at != root {
            at = std::mem::replace(&mut self.parents[at], root as u32) as usize;
        }
        root
    }

    fn join(&mut self, a: usize, b: usize) {
        let (a, b) = (self.find(a), self.find(b));
        self.parents[a.max(b)] = a.min(b) as u32;
    }
}

/// One access to a class, in the order of the trace.
struct Event {
    node: usize,
    stage: u32,
    reads: Vec<ValueId>,
    tensors: Vec<TensorId>,
    made: Vec<ValueId>,
    writes_to: Vec<Operand>,
}

/// Examines every class with writes under an assignment of nodes to stages.
pub(crate) fn examine(program: &Program, stage_of: &[u32], last: u32) -> (InPlace, Vec<CutError>) {
    let mut classes = Classes::new(program);
    let mut result = InPlace {
        mutated: vec![false; program.values.len()],
        mutated_tensors: vec![false; program.tensors.len()],
        ..InPlace::default()
    };
    let mut written = BTreeSet::new();
    for node in &program.nodes {
        for index in mutated_arguments(node) {
            leaves(&node.arguments[index].operand, &mut |leaf| {
                if let Some(slot) = classes.slot(leaf) {
                    written.insert(slot);
                }
            });
        }
    }
    if written.is_empty() {
        return (result, Vec::new());
    }
    let written: BTreeSet<usize> = written.into_iter().map(|slot| classes.find(slot)).collect();
    for value in 0..program.values.len() {
        result.mutated[value] = written.contains(&classes.find(value));
    }
    for tensor in 0..program.tensors.len() {
        let slot = classes.tensor_slot(TensorId(tensor as u32));
        result.mutated_tensors[tensor] = written.contains(&classes.find(slot));
    }
    let mut events: BTreeMap<usize, Vec<Event>> = BTreeMap::new();
    let pseudo = std::iter::once((program.nodes.len(), last, vec![&program.output], Vec::new(), None));
    let nodes = program.nodes.iter().enumerate().map(|(index, node)| {
        let operands: Vec<&Operand> = node.arguments.iter().map(|a| &a.operand).collect();
        (index, stage_of[index], operands, node.outputs.clone(), Some(node))
    });
    for (index, stage, operands, outputs, node) in nodes.chain(pseudo) {
        let mut touched: BTreeMap<usize, Event> = BTreeMap::new();
        let fresh = |_: ()| Event {
            node: index,
            stage,
            reads: Vec::new(),
            tensors: Vec::new(),
            made: Vec::new(),
            writes_to: Vec::new(),
        };
        for operand in &operands {
            leaves(operand, &mut |leaf| {
                let Some(slot) = classes.slot(leaf) else { return };
                let class = classes.find(slot);
                if written.contains(&class) {
                    let event = touched.entry(class).or_insert_with(|| fresh(()));
                    match leaf {
                        Operand::Value(value) => event.reads.push(*value),
                        Operand::Tensor(tensor) => event.tensors.push(*tensor),
                        _ => {}
                    }
                }
            });
        }
        for &output in &outputs {
            let class = classes.find(output.index());
            if written.contains(&class) {
                touched.entry(class).or_insert_with(|| fresh(())).made.push(output);
            }
        }
        if let Some(node) = node {
            for argument in mutated_arguments(node) {
                leaves(&node.arguments[argument].operand, &mut |leaf| {
                    if let Some(slot) = classes.slot(leaf) {
                        let class = classes.find(slot);
                        if let Some(event) = touched.get_mut(&class) {
                            event.writes_to.push(leaf.clone());
                        }
                    }
                });
            }
        }
        for (class, event) in touched {
            events.entry(class).or_default().push(event);
        }
    }
    let mut errors = Vec::new();
    for events in events.values() {
        follow(program, stage_of, events, &mut result, &mut errors);
    }
    (result, errors)
}

/// Follows one class through the trace.
fn follow(
    program: &Program,
    stage_of: &[u32],
    events: &[Event],
    result: &mut InPlace,
    errors: &mut Vec<CutError>,
) {
    let first_stage = events[0].stage;
    if let Some(&tensor) = events.iter().find_map(|event| event.tensors.first()) {
        return follow_stored(program, tensor, events, result, errors);
    }
    let made_in = |value: ValueId| -> Option<u32> {
        program.values[value.index()].producer.map(|node| stage_of[node.index()])
    };
    let is_input = |value: ValueId| made_in(value).is_none();
    if events.iter().all(|event| event.stage == first_stage && !event.reads.iter().any(|v| is_input(*v))) {
        return;
    }
    let mut fresh: Option<u32> = None;
    for (position, event) in events.iter().enumerate() {
        let stage = event.stage;
        for &value in &event.reads {
            let made = made_in(value);
            // The stage that made a value does not see the writes of later stages.
            if let Some(holder) = fresh.filter(|holder| made.is_none_or(|made| *holder > made)) {
                if holder > stage {
                    errors.push(CutError::InPlaceOrder {
                        value: program.values[value.index()].name.clone(),
                        stage,
                        writer: holder,
                        node: NodeId(event.node as u32),
                    });
                } else if holder < stage {
                    result.holders.insert((stage, value), holder);
                }
            }
        }
        if event.writes_to.is_empty() {
            continue;
        }
        let operator = || program.nodes[event.node].operator.clone();
        let node = NodeId(event.node as u32);
        if let Some(earlier) = events[..position].iter().find(|earlier| earlier.stage > stage) {
            errors.push(CutError::InPlaceOrder {
                value: operator(),
                stage: earlier.stage,
                writer: stage,
                node,
            });
            continue;
        }
        if fresh == Some(stage) {
            continue;
        }
        let foreign = foreign(event, events, made_in);
        let last_writer = fresh.replace(stage);
        let Some((root, views)) = common_base(program, &foreign) else {
            if !foreign.is_empty() {
                let names = foreign.iter().take(3).map(|v| program.values[v.index()].name.clone()).collect();
                errors.push(CutError::InPlaceAlias { operator: operator(), stage, values: names, node });
            }
            continue;
        };
        // A copy from before an earlier stage's write cannot be recomputed from what that stage sends.
        let mut before = events[..position].iter().rev();
        let written = before.find(|event| !event.writes_to.is_empty() && event.stage < stage);
        let is_stale = |view: &&ValueId| {
            let made = program.values[view.index()].producer.map(|made| made.index());
            made.is_some_and(|made| {
                written.is_some_and(|write| write.node > made) && may_copy(&program.nodes[made])
            })
        };
        if let Some(view) = views.iter().find(is_stale) {
            let names = [*view, root].iter().map(|v| program.values[v.index()].name.clone()).collect();
            errors.push(CutError::InPlaceAlias { operator: operator(), stage, values: names, node });
            continue;
        }
        if foreign.len() > 1 || !foreign.contains(&root) {
            result.rederived.extend(views.into_iter().map(|view| (stage, view)));
            result.bases.insert((stage, root));
            result.clones.insert((stage, root));
            // The base is not read in this stage, so no earlier iteration recorded its last writer: record it now.
            if let Some(writer) = last_writer.filter(|writer| made_in(root).is_none_or(|made| *writer > made))
            {
                result.holders.insert((stage, root), writer);
            }
            continue;
        }
        if event.writes_to == [Operand::Value(root)] && is_apart(program, event, &events[position + 1..]) {
            result.out_of_place.insert(node);
        } else {
            result.clones.insert((stage, root));
        }
    }
}

/// Follows a class with a stored tensor: once it is written to, only one stage may use it.
fn follow_stored(
    program: &Program,
    tensor: TensorId,
    events: &[Event],
    result: &mut InPlace,
    errors: &mut Vec<CutError>,
) {
    let first_stage = events[0].stage;
    let write = events.iter().find(|event| !event.writes_to.is_empty());
    if let (Some(other), Some(write)) = (events.iter().find(|event| event.stage != first_stage), write) {
        errors.push(CutError::SharedBuffer {
            tensor: program.tensors[tensor.index()].path.clone(),
            operator: program.nodes[write.node].operator.clone(),
            stages: (first_stage.min(other.stage), first_stage.max(other.stage)),
            node: NodeId(write.node as u32),
        });
    }
    // A list may contain an input among the values.
    let written = events.iter().flat_map(|event| &event.writes_to).filter_map(|operand| match operand {
        Operand::Value(value) => Some(*value),
        _ => None,
    });
    let inputs = written.filter(|value| program.values[value.index()].producer.is_none());
    result.clones.extend(inputs.map(|value| (first_stage, value)));
}

/// Returns the values of a class that reach an event's stage from outside, now or later, or pass through it.
fn foreign(event: &Event, events: &[Event], made_in: impl Fn(ValueId) -> Option<u32>) -> BTreeSet<ValueId> {
    let stage = event.stage;
    let mut foreign = BTreeSet::new();
    for other in events {
        for &value in &other.reads {
            let made = made_in(value);
            let comes_in = other.stage == stage && made != Some(stage);
            let goes_on =
                other.stage > stage && other.node > event.node && made.is_none_or(|made| made < stage);
            if comes_in || goes_on {
                foreign.insert(value);
            }
        }
    }
    foreign
}

/// Tells whether the out-of-place form may replace a write in place: the old contents are not read later, and no later write aliases them.
fn is_apart(program: &Program, event: &Event, later: &[Event]) -> bool {
    let old_is_done = later.iter().all(|later| {
        later.reads.iter().all(|v| {
            program.values[v.index()].producer.is_some_and(|producer| producer.index() >= event.node)
        })
    });
    // The out-of-place form of `unsqueeze_` is a view, and that of `dropout_` in evaluation its argument: a later write would
    // reach the other stage's tensor through it.
    let writes_again = later.iter().any(|later| later.stage == event.stage && !later.writes_to.is_empty());
    let can_be = out_of_place(&program.nodes[event.node].operator)
        .is_some_and(|form| !writes_again || !may_share(split(&form).1));
    old_is_done && can_be
}

/// The longest chain of views.
const MAX_VIEWS: usize = 64;

/// Finds the common base of some values, itself one of them or the base of the first; and the views in between.
fn common_base(program: &Program, values: &BTreeSet<ValueId>) -> Option<(ValueId, BTreeSet<ValueId>)> {
    let chain = |value: ValueId| {
        let mut chain = vec![value];
        while let Some(base) = looks_at(program, chain[chain.len() - 1]).filter(|_| chain.len() < MAX_VIEWS) {
            chain.push(base);
        }
        chain
    };
    let chains: Vec<Vec<ValueId>> = values.iter().map(|value| chain(*value)).collect();
    let root = chains.first()?.iter().find(|base| chains.iter().all(|chain| chain.contains(base)))?;
    let views =
        chains.iter().flat_map(|chain| chain.iter().take_while(|value| *value != root)).copied().collect();
    Some((*root, views))
}

/// Returns the base of a plain view.
fn looks_at(program: &Program, value: ValueId) -> Option<ValueId> {
    let node = &program.nodes[program.values[value.index()].producer?.index()];
    let is_plain = is_view(node) && !is_wide_view(node) && mutated_arguments(node).is_empty();
    match node.arguments.first().map(|argument| &argument.operand) {
        Some(Operand::Value(base)) if is_plain => Some(*base),
        _ => None,
    }
}
