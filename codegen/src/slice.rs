//! Cutting: turns an assignment of nodes to stages into one program per stage, with transfers between them.
//!
//! Stages are processed from the last to the first. A value that a stage needs from outside is, in this order: an input
//! of the model (passed to the stage directly), a value that must be sent (it carries a gradient or is expensive), or a
//! cheap value without gradient that the stage recomputes (masks, positions, sizes). Numbers cannot be sent as such: a
//! size is sent as a tensor without dimensions if the stage does not have the tensor itself.
//!
//! O(stages × (nodes + crossing values)) for the walk; recomputation is bounded by [`MAX_REPEATED`] nodes per value.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use tracer::{DType, NodeId, Operand, Program, Role, TensorId, ValueId};

use crate::{
    alias,
    error::CutError,
    manifest::facts,
    names::Names,
    nodes::{
        Kind, cuts_gradient, is_cheap, is_plumbing, is_unpacking, kinds, leaves, rule_of, split, values_of,
    },
    overlap,
    pipeline::{
        Assignment, Carried, CutOptions, Form, Pipeline, Port, Skips, Source, Stage, Step, Tied, TiedTensor,
    },
};

/// Longest chain of nodes that is recomputed instead of sent.
const MAX_REPEATED: usize = 400;

/// Cuts a program.
///
/// # Errors
/// Every reason why the stages would not compute the program's results.
pub fn cut(
    program: &Program,
    assignment: &Assignment,
    names: &Names,
    options: &CutOptions,
) -> Result<Pipeline, Vec<CutError>> {
    let n_stages = assignment.stages();
    if n_stages == 0 || assignment.stage_of.len() != program.nodes.len() {
        return Err(vec![CutError::StageCount { stages: n_stages, operators: program.nodes.len() }]);
    }
    let kinds = kinds(program);
    let stage_of = settle(program, &assignment.stage_of, &kinds);
    let mut errors: Vec<CutError> = (0..n_stages as u32)
        .filter(|stage| !stage_of.contains(stage) && !program.nodes.is_empty())
        .map(|stage| CutError::EmptyStage { stage })
        .collect();
    let last = n_stages as u32 - 1;
    errors.extend(overlap::overlaps(program));
    let (in_place, problems) = alias::examine(program, &stage_of, last);
    errors.extend(problems);
    let gradient = gradients(program, |_| false, |_| false);
    let reached = reached(program, &in_place);
    let slicer = Slicer { program, names, kinds, stage_of, in_place, gradient, reached, n_stages };
    let needs = slicer.needs(&mut errors);
    if !errors.is_empty() {
        return Err(errors);
    }
    let boundaries = slicer.boundaries(&needs, options.skips, &mut errors);
    if !errors.is_empty() {
        return Err(errors);
    }
    let stages = slicer.stages(assignment, &boundaries, options.skips);
    let mut pipeline =
        Pipeline { stages, tied: Vec::new(), skips: options.skips, output: program.output.clone() };
    slicer.place_tensors(&mut pipeline);
    if options.tied == Tied::Refuse && !pipeline.tied.is_empty() {
        return Err(pipeline
            .tied
            .iter()
            .map(|tied| CutError::Tied {
                tensor: program.tensors[tied.holders[0].1.index()].path.clone(),
                stages: tied.holders.iter().map(|(stage, _)| *stage).collect(),
            })
            .collect());
    }
    Ok(pipeline)
}

/// Moves nodes that unpack a list to the stage that makes the list: lists are not sent, their items are.
fn settle(program: &Program, stage_of: &[u32], kinds: &[Kind]) -> Vec<u32> {
    let mut stage_of = stage_of.to_vec();
    for (index, node) in program.nodes.iter().enumerate() {
        if !is_unpacking(node) {
            continue;
        }
        let Some(Operand::Value(list)) = node.arguments.first().map(|a| &a.operand) else { continue };
        let rest_is_constant = node.arguments[1..].iter().all(|a| matches!(a.operand, Operand::Constant(_)));
        let producer = program.values.get(list.index()).and_then(|value| value.producer);
        if let (Some(producer), true, false) = (producer, rest_is_constant, kinds[list.index()].can_be_sent())
        {
            stage_of[index] = stage_of[index].min(stage_of[producer.index()]);
        }
    }
    stage_of
}

/// Returns which values a gradient may reach in the model. What is written in place counts, as its other names do not
/// tell what was written; so do not integers, by the types that the trace recorded.
fn reached(program: &Program, in_place: &alias::InPlace) -> Vec<bool> {
    let facts = facts(program);
    let is_whole = |value: ValueId| {
        let dtype = facts[value.index()].as_ref().and_then(|known| known.dtype);
        dtype.is_some_and(|dtype| !may_train(dtype))
    };
    let is_written = |leaf: &Operand| match leaf {
        Operand::Value(value) => in_place.mutated[value.index()] && !is_whole(*value),
        Operand::Tensor(tensor) => in_place.mutated_tensors[tensor.index()],
        _ => false,
    };
    let mut reached = gradients(program, is_whole, is_written);
    for (value, is_reached) in reached.iter_mut().enumerate() {
        *is_reached |= in_place.mutated[value];
    }
    reached
}

/// Tells whether tensors of a type can have a gradient.
fn may_train(dtype: DType) -> bool {
    use DType::{
        BFloat16, Bool, Complex64, Complex128, Float8E4M3, Float8E5M2, Float16, Float32, Float64, Int8,
        Int16, Int32, Int64, UInt8, UInt16, UInt32, UInt64,
    };
    match dtype {
        Float64 | Float32 | Float16 | BFloat16 | Float8E4M3 | Float8E5M2 | Complex64 | Complex128 => true,
        Int64 | Int32 | Int16 | Int8 | UInt8 | UInt16 | UInt32 | UInt64 | Bool => false,
    }
}

/// Returns which values carry a gradient when parameters train, and what else `also` names; values that `never` names
/// do not.
fn gradients(
    program: &Program,
    never: impl Fn(ValueId) -> bool,
    also: impl Fn(&Operand) -> bool,
) -> Vec<bool> {
    let mut carries = vec![false; program.values.len()];
    for node in &program.nodes {
        if cuts_gradient(node) {
            continue;
        }
        // An integer has no gradient, whatever it was made from.
        let (_, name) = split(&node.operator);
        let to_integer = rule_of(name).is_cast_by_argument()
            && node.arguments.iter().skip(1).any(|argument| {
                let is_dtype = argument.name.as_deref().is_none_or(|name| name == "dtype");
                is_dtype && matches!(argument.operand, Operand::Constant(tracer::Constant::Int(0..=4 | 11)))
            });
        if to_integer {
            continue;
        }
        let mut any = false;
        for argument in &node.arguments {
            leaves(&argument.operand, &mut |leaf| {
                any |= also(leaf);
                any |= match leaf {
                    Operand::Value(value) => carries[value.index()],
                    // A frozen weight has none now, but users often unfreeze it later.
                    Operand::Tensor(tensor) => program.tensors[tensor.index()].role == Role::Parameter,
                    _ => false,
                };
            });
        }
        for output in &node.outputs {
            carries[output.index()] = any && !never(*output);
        }
    }
    carries
}

struct Slicer<'p> {
    program: &'p Program,
    names: &'p Names,
    kinds: Vec<Kind>,
    stage_of: Vec<u32>,
    in_place: alias::InPlace,
    gradient: Vec<bool>,
    reached: Vec<bool>,
    n_stages: usize,
}

/// The boundary of one stage: the values that it receives, and those that it recomputes.
#[derive(Clone, Debug, Default)]
struct Boundary {
    /// Values that come from other stages, with the stage that sends them.
    sent: BTreeMap<ValueId, u32>,
    /// Inputs of the model.
    inputs: BTreeSet<ValueId>,
    /// Recomputed nodes.
    repeated: BTreeSet<NodeId>,
}

impl Slicer<'_> {
    /// Returns the stage that makes a value; `None` for an input of the model.
    fn made_in(&self, value: ValueId) -> Option<u32> {
        self.program.values[value.index()].producer.map(|node| self.stage_of[node.index()])
    }

    /// Returns the stage from which a stage must get a value; `None` for the caller of the model.
    fn holder(&self, stage: u32, value: ValueId) -> Option<u32> {
        self.in_place.holders.get(&(stage, value)).copied().or_else(|| self.made_in(value))
    }

    /// Lists the values that each stage reads from outside, each with a node that reads it.
    fn needs(&self, errors: &mut Vec<CutError>) -> Vec<BTreeMap<ValueId, NodeId>> {
        let mut needs = vec![BTreeMap::new(); self.n_stages];
        let mut need = |stage: u32, value: ValueId, node: NodeId| match self.holder(stage, value) {
            Some(maker) if maker == stage => {}
            Some(maker) if maker > stage => {
                let reader =
                    self.program.nodes.get(node.index()).map(|node| self.path(node.call)).unwrap_or_default();
                let value = self.names.get(value).to_string();
                errors.push(CutError::Backward { reader, stage, value, maker, node });
            }
            _ => {
                needs[stage as usize].entry(value).or_insert(node);
            }
        };
        for (index, node) in self.program.nodes.iter().enumerate() {
            for argument in &node.arguments {
                for value in values_of(&argument.operand) {
                    need(self.stage_of[index], value, NodeId(index as u32));
                }
            }
        }
        for value in values_of(&self.program.output) {
            need(self.n_stages as u32 - 1, value, NodeId(self.program.nodes.len() as u32));
        }
        for &(stage, base) in &self.in_place.bases {
            need(stage, base, NodeId(0));
        }
        needs
    }

    fn path(&self, call: tracer::CallId) -> String {
        let call = &self.program.calls[call.index()];
        self.program.modules[call.module.index()].path.clone()
    }

    /// Decides which values are sent and which are recomputed, from the last stage to the first.
    fn boundaries(
        &self,
        needs: &[BTreeMap<ValueId, NodeId>],
        skips: Skips,
        errors: &mut Vec<CutError>,
    ) -> Vec<Boundary> {
        let mut boundaries = vec![Boundary::default(); self.n_stages];
        for stage in (0..self.n_stages as u32).rev() {
            let mut wanted: BTreeMap<ValueId, Option<NodeId>> = BTreeMap::new();
            if skips == Skips::Relay {
                if let Some(next) = boundaries.get(stage as usize + 1) {
                    let passed = next.sent.keys().filter(|value| {
                        self.made_in(**value) != Some(stage) && self.holder(stage + 1, **value) != Some(stage)
                    });
                    wanted.extend(passed.map(|value| (*value, None)));
                    // A value that this stage changes in place for later ones is also received.
                    let changed = next.sent.keys().filter(|value| {
                        self.made_in(**value) != Some(stage) && self.holder(stage + 1, **value) == Some(stage)
                    });
                    wanted.extend(changed.map(|value| (*value, None)));
                }
            } else {
                let later = boundaries.iter().flat_map(|boundary| &boundary.sent);
                let sent_by_us =
                    later.filter(|(value, from)| **from == stage && self.made_in(**value) != Some(stage));
                wanted.extend(sent_by_us.map(|(value, _)| (*value, None)).collect::<Vec<_>>());
            }
            wanted.extend(needs[stage as usize].iter().map(|(value, node)| (*value, Some(*node))));
            let mut boundary = Boundary::default();
            let mut maybe = Vec::new();
            for (&value, &reader) in &wanted {
                match self.holder(stage, value) {
                    None => {
                        boundary.inputs.insert(value);
                    }
                    Some(holder) => {
                        let sendable = self.kinds[value.index()].can_be_sent();
                        let rederived = self.in_place.rederived.contains(&(stage, value));
                        if (reader.is_none() || !self.may_repeat(value)) && sendable && !rederived {
                            boundary.sent.insert(value, holder);
                        } else {
                            maybe.push((value, reader, holder));
                        }
                    }
                }
            }
            // The bases of views come first.
            for (value, reader, holder) in maybe {
                let sendable = self.kinds[value.index()].can_be_sent();
                if self.repeat(value, stage, !sendable, &mut boundary) {
                    continue;
                }
                if sendable {
                    boundary.sent.insert(value, holder);
                } else {
                    errors.push(CutError::NotSendable {
                        value: self.names.get(value).to_string(),
                        kind: match &self.kinds[value.index()] {
                            Kind::Other(kind) => kind.clone(),
                            _ => "no tensor".into(),
                        },
                        from: holder,
                        to: stage,
                        node: reader.unwrap_or(NodeId(0)),
                    });
                }
            }
            if skips == Skips::Relay {
                for from in boundary.sent.values_mut() {
                    *from = stage.saturating_sub(1);
                }
            }
            boundaries[stage as usize] = boundary;
        }
        boundaries
    }

    /// Tells whether a value may be recomputed: it carries no gradient, or cannot be sent at all.
    fn may_repeat(&self, value: ValueId) -> bool {
        let producer = self.program.values[value.index()].producer;
        let Some(node) = producer.map(|node| &self.program.nodes[node.index()]) else { return false };
        !self.in_place.mutated[value.index()] && !self.gradient[value.index()] && is_cheap(node)
    }

    /// Adds the requirements of recomputing a value to a boundary; returns false and changes nothing if that exceeds
    /// the budget.
    ///
    /// `must` is set for values that cannot be sent: their operands are sent rather than refused.
    fn repeat(&self, value: ValueId, stage: u32, must: bool, boundary: &mut Boundary) -> bool {
        let mut trial = boundary.clone();
        let mut budget = MAX_REPEATED;
        let mut failed = BTreeSet::new();
        let is_done = self.repeat_one(value, stage, must, &mut trial, &mut budget, &mut failed);
        if is_done {
            *boundary = trial;
        }
        is_done
    }

    // The budget bounds the depth.
    fn repeat_one(
        &self,
        value: ValueId,
        stage: u32,
        must: bool,
        boundary: &mut Boundary,
        budget: &mut usize,
        failed: &mut BTreeSet<ValueId>,
    ) -> bool {
        let Some(producer) = self.program.values[value.index()].producer else {
            if self.holder(stage, value).is_some() {
                return false;
            }
            boundary.inputs.insert(value);
            return true;
        };
        if self.stage_of[producer.index()] == stage
            || boundary.sent.contains_key(&value)
            || boundary.repeated.contains(&producer)
        {
            return true;
        }
        let node = &self.program.nodes[producer.index()];
        let mut holds_parameter = false;
        for argument in &node.arguments {
            leaves(&argument.operand, &mut |leaf| {
                if let Operand::Tensor(tensor) = leaf {
                    holds_parameter |= self.program.tensors[tensor.index()].role == Role::Parameter;
                }
            });
        }
        let rederived = self.in_place.rederived.contains(&(stage, value));
        let plumbing = rederived || (must && !self.in_place.mutated[value.index()] && is_plumbing(node));
        let may = plumbing || (self.may_repeat(value) && !holds_parameter);
        if may && *budget > 0 && !failed.contains(&value) {
            *budget -= 1;
            let before = boundary.clone();
            boundary.repeated.insert(producer);
            let is_done =
                node.arguments.iter().flat_map(|argument| values_of(&argument.operand)).all(|read| {
                    let must = plumbing || !self.kinds[read.index()].can_be_sent();
                    self.repeat_one(read, stage, must, boundary, budget, failed)
                });
            if is_done {
                return true;
            }
            *boundary = before;
            failed.insert(value);
        }
        // A value that cannot be recomputed may be sent if it is tiny, or if there is no other way.
        let kind = &self.kinds[value.index()];
        match self.holder(stage, value) {
            Some(holder) if (kind.is_boxed() || must) && kind.can_be_sent() && holder < stage => {
                boundary.sent.insert(value, holder);
                true
            }
            _ => false,
        }
    }

    /// Builds the stages.
    fn stages(&self, assignment: &Assignment, boundaries: &[Boundary], skips: Skips) -> Vec<Stage> {
        let last = self.n_stages - 1;
        let mut outputs: Vec<Vec<Port>> = Vec::new();
        for stage in 0..self.n_stages {
            let mut ports = Vec::new();
            if stage == last {
                let mut used: HashMap<String, u32> = HashMap::new();
                leaves(&self.program.output, &mut |leaf| {
                    let (carried, name, kind) = match leaf {
                        Operand::Value(value) => {
                            let kind = self.kinds[value.index()].clone();
                            (Carried::Value(*value), self.names.get(*value).to_string(), kind)
                        }
                        Operand::Tensor(tensor) => {
                            let path = &self.program.tensors[tensor.index()].path;
                            (Carried::Tensor(*tensor), crate::names::identifier(path), Kind::Tensor)
                        }
                        _ => return,
                    };
                    // A model may return one value twice.
                    let count = used.entry(name.clone()).or_insert(0);
                    *count += 1;
                    let name = if *count == 1 { name } else { format!("{name}__{count}") };
                    let has_gradient = match carried {
                        Carried::Value(value) => self.reached[value.index()],
                        Carried::Tensor(_) => true,
                    };
                    ports.push(Port { name, carried, kind, source: Source::Model(0), has_gradient });
                });
            } else {
                let sent: BTreeSet<ValueId> = match skips {
                    Skips::Relay => boundaries[stage + 1].sent.keys().copied().collect(),
                    Skips::Portal => boundaries
                        .iter()
                        .flat_map(|boundary| &boundary.sent)
                        .filter(|(_, from)| **from as usize == stage)
                        .map(|(value, _)| *value)
                        .collect(),
                };
                ports.extend(sent.into_iter().map(|value| self.port(value, Source::Model(0))));
            }
            outputs.push(ports);
        }
        let mut stages = Vec::with_capacity(self.n_stages);
        for (index, boundary) in boundaries.iter().enumerate() {
            let mut inputs = Vec::new();
            for (&value, &from) in &boundary.sent {
                let port = outputs[from as usize]
                    .iter()
                    .position(|port| port.carried == Carried::Value(value))
                    .expect("a sent value is an output of its sender");
                inputs.push(self.port(value, Source::Stage { stage: from, port }));
            }
            // In the order of the model's signature.
            for (position, input) in self.program.inputs.iter().enumerate() {
                if boundary.inputs.contains(input) {
                    inputs.push(Port { kind: Kind::Tensor, ..self.port(*input, Source::Model(position)) });
                }
            }
            let mut steps = Vec::new();
            for port in &inputs {
                let Carried::Value(value) = port.carried else { continue };
                if port.kind.is_boxed() {
                    steps.push(Step::Unbox(value));
                }
            }
            let clones = &self.in_place.clones;
            steps.extend(
                clones.iter().filter(|(stage, _)| *stage as usize == index).map(|(_, v)| Step::Clone(*v)),
            );
            for (position, &stage) in self.stage_of.iter().enumerate() {
                let node = NodeId(position as u32);
                let is_repeated = boundary.repeated.contains(&node);
                if stage as usize == index || is_repeated {
                    let form = if self.in_place.out_of_place.contains(&node) {
                        Form::OutOfPlace
                    } else {
                        Form::AsWritten
                    };
                    steps.push(Step::Run { node, form, is_repeated: stage as usize != index });
                }
            }
            stages.push(Stage {
                label: assignment.labels[index].clone(),
                inputs,
                steps,
                outputs: outputs[index].clone(),
                tensors: Vec::new(),
                constants: Vec::new(),
            });
        }
        stages
    }

    fn port(&self, value: ValueId, source: Source) -> Port {
        let kind = self.kinds[value.index()].clone();
        let name = if kind.is_boxed() {
            format!("{}__boxed", self.names.get(value))
        } else {
            self.names.get(value).to_string()
        };
        let has_gradient = self.reached[value.index()];
        Port { name, carried: Carried::Value(value), kind, source, has_gradient }
    }

    /// Gives each stage its tensors: those that it uses, and unused ones of the state dict.
    fn place_tensors(&self, pipeline: &mut Pipeline) {
        let program = self.program;
        let mut users: Vec<BTreeSet<u32>> = vec![BTreeSet::new(); program.tensors.len()];
        for (stage, content) in pipeline.stages.iter().enumerate() {
            let mut take = |operand: &Operand| {
                leaves(operand, &mut |leaf| {
                    if let Operand::Tensor(tensor) = leaf {
                        users[tensor.index()].insert(stage as u32);
                    }
                });
            };
            for step in &content.steps {
                if let Step::Run { node, .. } = step {
                    program.nodes[node.index()].arguments.iter().for_each(|argument| take(&argument.operand));
                }
            }
            if stage + 1 == self.n_stages {
                take(&program.output);
            }
        }
        // Tensors at the same place of the same storage are one tensor with several names.
        let mut same: HashMap<_, Vec<TensorId>> = HashMap::new();
        for (index, tensor) in program.tensors.iter().enumerate() {
            if let Some(place) = tensor.place() {
                same.entry(place).or_default().push(TensorId(index as u32));
            }
        }
        let homes = self.homes(&users);
        for index in 0..program.tensors.len() {
            let tensor = &program.tensors[index];
            if tensor.role == Role::Constant || !users[index].is_empty() {
                continue;
            }
            let home = home(&homes, &tensor.path);
            let mut stages: BTreeSet<u32> = BTreeSet::new();
            if let Some(place) = tensor.place() {
                for other in same.get(&place).into_iter().flatten() {
                    stages.extend(&users[other.index()]);
                }
            }
            // The second name of a used tensor is in the stage of the first.
            let stage = if stages.contains(&home) { home } else { stages.first().copied().unwrap_or(home) };
            users[index].insert(stage);
        }
        for (index, stages) in users.iter().enumerate() {
            for &stage in stages {
                let stage = &mut pipeline.stages[stage as usize];
                match program.tensors[index].role {
                    Role::Constant => stage.constants.push(TensorId(index as u32)),
                    _ => stage.tensors.push(TensorId(index as u32)),
                }
            }
        }
        let mut groups: Vec<Vec<TensorId>> = same.into_values().collect();
        groups.extend(
            (0..program.tensors.len())
                .filter(|i| program.tensors[*i].storage.is_none())
                .map(|i| vec![TensorId(i as u32)]),
        );
        groups.sort();
        for group in groups {
            if program.tensors[group[0].index()].role != Role::Parameter {
                continue;
            }
            let mut holders = BTreeMap::new();
            for tensor in &group {
                for &stage in &users[tensor.index()] {
                    holders.entry(stage).or_insert(*tensor);
                }
            }
            if holders.len() > 1 {
                let requires_grad = program.tensors[group[0].index()].requires_grad;
                pipeline.tied.push(TiedTensor { holders: holders.into_iter().collect(), requires_grad });
            }
        }
    }

    /// Returns for each module path the first stage that runs it or uses a tensor below it.
    fn homes(&self, users: &[BTreeSet<u32>]) -> HashMap<String, u32> {
        let mut homes: HashMap<String, u32> = HashMap::new();
        let mut note = |path: &str, stage: u32| match homes.get_mut(path) {
            Some(home) => *home = stage.min(*home),
            None => {
                homes.insert(path.to_string(), stage);
            }
        };
        for (index, node) in self.program.nodes.iter().enumerate() {
            note(&self.path(node.call), self.stage_of[index]);
        }
        for (tensor, stages) in self.program.tensors.iter().zip(users) {
            if let Some(&stage) = stages.first() {
                note(parent(&tensor.path), stage);
            }
        }
        homes
    }
}

fn parent(path: &str) -> &str {
    path.rsplit_once('.').map_or("", |(parent, _)| parent)
}

fn home(homes: &HashMap<String, u32>, path: &str) -> u32 {
    let mut at = parent(path);
    loop {
        if let Some(stage) = homes.get(at) {
            return *stage;
        }
        if at.is_empty() {
            return 0;
        }
        at = parent(at);
    }
}
