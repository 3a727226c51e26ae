//! The lines of a stage: one operator is one line, and `del` frees values after their last read.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    ops::Range,
};

use tracer::{Constant, NodeId, Operand, Program, ValueId};

use super::{
    call::{Writer, follows_device},
    repeated::{Block, Repeated},
    scope::Scope,
};
use crate::{
    fold::Folded,
    location,
    names::comment,
    nodes::{Kind, is_in_place, leaves, split, values_of},
    opaque::Function,
    operands::Operands,
    pipeline::{Carried, Stage, Step},
    saving::Segment,
};

/// A stage and the writers of its lines.
pub(super) struct Text<'w> {
    pub writer: Writer<'w>,
    pub stage: &'w Stage,
    functions: &'w [(NodeId, String, Function)],
    /// The position of each value's last read; outputs of the stage are read after its last line.
    pub last: BTreeMap<ValueId, usize>,
    /// The values that are read last at each step: their memory is freed.
    deaths: BTreeMap<usize, Vec<ValueId>>,
    /// Steps whose results blocks may keep that are recomputed.
    kept: BTreeSet<usize>,
}

impl<'w> Text<'w> {
    pub fn new(
        writer: Writer<'w>,
        stage: &'w Stage,
        functions: &'w [(NodeId, String, Function)],
        kept: BTreeSet<usize>,
    ) -> Self {
        let last = last_readers(writer.program, stage, writer.folded);
        let mut deaths: BTreeMap<usize, Vec<ValueId>> = BTreeMap::new();
        for (&value, &position) in last.iter().filter(|(_, position)| **position < stage.steps.len()) {
            deaths.entry(position).or_default().push(value);
        }
        Self { writer, stage, functions, last, deaths, kept }
    }

    /// Returns the node of a step that has a line, unless another stage owns it.
    pub fn own_node(&self, position: usize) -> Option<NodeId> {
        match self.stage.steps[position] {
            Step::Run { node, is_repeated: false, .. } => Some(node),
            _ => None,
        }
    }

    /// Writes the step at a position; nothing if it is folded. Frees the values of it that `frees` selects.
    pub fn line(&self, scope: &Scope, position: usize, frees: impl Fn(ValueId) -> bool) -> String {
        let writer = self.writer.within(scope);
        let step = &self.stage.steps[position];
        let Some((mut line, about)) = line_of(&writer, self.functions, step) else { return String::new() };
        let dead = self.deaths.get(&position);
        let unread = dead.is_some_and(|dead| is_all_dead(writer.program, step, dead));
        if unread && is_counter(writer.program, step, writer.training) {
            line = format!("if self.training: {line}");
        } else {
            let dead: Vec<&str> = dead
                .into_iter()
                .flatten()
                .filter(|value| frees(**value))
                .map(|value| writer.own_name(*value))
                .collect();
            line.push_str(&deleted(&dead));
        }
        if self.kept.contains(&position) {
            line.insert_str(0, "with kept: ");
        }
        format!("        {line}  # {}\n", comment(&about))
    }

    /// Writes the steps of a range in order, and blocks that are written elsewhere as calls, at their beginning.
    pub fn lines(&self, scope: &Scope, repeated: &Repeated, range: &Range<usize>) -> Vec<String> {
        let made = scope.call.as_ref().map(|_| self.made(range));
        let frees = |value| made.as_ref().is_none_or(|made| made.contains(&value));
        let mut lines = vec![String::new(); range.len()];
        let mut position = range.start;
        while position < range.end {
            if let Some(block) = repeated.at(position, range) {
                let (module, place) = self.module(scope, block);
                let end = self.freed(scope, &block.inputs, &block.steps, frees);
                let call = format!("{module}({})", self.given(scope, block).join(", "));
                let outputs = self.outputs(scope, block).join(", ");
                lines[position - range.start] =
                    format!("        {outputs} = {call}{end}  # {}\n", comment(&place));
                position = block.steps.end;
            } else {
                lines[position - range.start] = self.line(scope, position, frees);
                position += 1;
            }
        }
        lines
    }

    /// Returns the values that the steps of a range compute.
    pub fn made(&self, range: &Range<usize>) -> HashSet<ValueId> {
        let nodes = range.clone().filter_map(|position| self.own_node(position));
        let nodes = nodes.filter(|node| !self.writer.folded.skips(*node));
        nodes.flat_map(|node| self.writer.program.nodes[node.index()].outputs.iter().copied()).collect()
    }

    /// Returns the module of a block, and its place.
    fn module(&self, scope: &Scope, block: &Block) -> (String, String) {
        let inside = scope.place_of(&block.path, block.ordinal);
        let place = inside.unwrap_or_else(|| location::numbered(&block.path, block.ordinal));
        (self.writer.within(scope).module(&block.path), place)
    }

    /// Returns the arguments of a block's call; in the block's own scope, its parameters.
    pub fn given(&self, scope: &Scope, block: &Block) -> Vec<String> {
        let writer = self.writer.within(scope);
        let values = block.inputs.iter().map(|value| writer.own_name(*value).to_string());
        let tensors = block.tensors.iter().map(|id| writer.tensor(*id));
        values.chain(tensors).chain(block.has_device.then(|| "device".to_string())).collect()
    }

    /// Returns the names of a block's results.
    pub fn outputs(&self, scope: &Scope, block: &Block) -> Vec<String> {
        let writer = self.writer.within(scope);
        block.outputs.iter().map(|value| writer.own_name(*value).to_string()).collect()
    }

    /// Frees values that only a call has read, after it.
    fn freed(
        &self,
        scope: &Scope,
        inputs: &[ValueId],
        steps: &Range<usize>,
        frees: impl Fn(ValueId) -> bool,
    ) -> String {
        let writer = self.writer.within(scope);
        let dead = steps.clone().flat_map(|at| self.deaths.get(&at).into_iter().flatten());
        let dead: Vec<&str> = dead
            .filter(|value| inputs.contains(value) && frees(**value))
            .map(|value| writer.own_name(*value))
            .collect();
        deleted(&dead)
    }
}

/// Writes that values are freed after a line.
fn deleted(names: &[&str]) -> String {
    if names.is_empty() { String::new() } else { format!("; del {}", names.join(", ")) }
}

/// Writes the last line of a method.
pub(super) fn returns(names: &[impl AsRef<str>]) -> String {
    match names {
        [only] => format!("        return {}\n", only.as_ref()),
        all => {
            let all: Vec<&str> = all.iter().map(AsRef::as_ref).collect();
            format!("        return ({})\n", all.join(", "))
        }
    }
}

/// Writes the methods of a stage: blocks that save no activations and are not written elsewhere, and `forward`.
pub(super) fn forward(out: &mut String, text: &Text<'_>, repeated: &Repeated, segments: &[Segment]) {
    let (writer, stage) = (&text.writer, text.stage);
    let all = 0..stage.steps.len();
    let lines = text.lines(writer.scope, repeated, &all);
    let has_device = (0..stage.steps.len()).any(|position| names_device(writer, &stage.steps[position]));
    let block_of = |segment: &Segment| {
        repeated.at(segment.steps.start, &all).filter(|block| block.steps == segment.steps)
    };
    for (number, segment) in segments.iter().enumerate().filter(|(_, segment)| block_of(segment).is_none()) {
        method(out, writer, segment, (number, has_device), &lines[segment.steps.clone()].concat());
    }
    let names: Vec<&str> = stage.inputs.iter().map(|port| port.name.as_str()).collect();
    let arguments: String = names.iter().map(|name| format!(", {name}")).collect();
    out.push_str(&format!("    def forward(self{arguments}):\n"));
    if has_device {
        let tensor_input = stage.inputs.iter().find(|port| is_tensor_input(writer.program, port.carried));
        let device = match (tensor_input, stage.tensors.first()) {
            (Some(port), _) => format!("{}.device", port.name),
            (None, Some(tensor)) => format!("{}.device", writer.tensor(*tensor)),
            (None, None) => "torch.device(\"cpu\")".into(),
        };
        out.push_str(&format!("        device = {device}\n"));
    }
    let mut position = 0;
    while position < stage.steps.len() {
        match segments.iter().enumerate().find(|(_, segment)| segment.steps.start == position) {
            Some((number, segment)) => {
                let (function, given, outputs) = match block_of(segment) {
                    Some(block) => {
                        let (module, _) = text.module(writer.scope, block);
                        (
                            module,
                            text.given(writer.scope, block),
                            text.outputs(writer.scope, block).join(", "),
                        )
                    }
                    None => {
                        let given =
                            taken(writer, segment, has_device).into_iter().map(str::to_string).collect();
                        let outputs: Vec<&str> =
                            segment.outputs.iter().map(|value| writer.own_name(*value)).collect();
                        (format!("self.block_{number}"), given, outputs.join(", "))
                    }
                };
                let call = call_of(writer, segment, function, given);
                let end = text.freed(writer.scope, &segment.inputs, &segment.steps, |_| true);
                out.push_str(&format!(
                    "        {outputs} = {}{end}  # {}: {}\n",
                    call.0,
                    comment(&segment.path),
                    call.1
                ));
                position = segment.steps.end;
            }
            None => {
                out.push_str(&lines[position]);
                position += 1;
            }
        }
    }
    returned(out, writer, stage);
}

/// Returns the line of a step, and its comment; `None` for a folded step.
fn line_of(
    writer: &Writer<'_>,
    functions: &[(NodeId, String, Function)],
    step: &Step,
) -> Option<(String, String)> {
    let program = writer.program;
    Some(match step {
        Step::Clone(value) => {
            let name = writer.own_name(*value);
            (format!("{name} = {name}.clone()"), "changed in place below".to_string())
        }
        Step::Unbox(value) => {
            let name = writer.own_name(*value);
            let boxed = format!("{name}__boxed");
            let text = match writer.kinds[value.index()] {
                Kind::IntList => format!("{name} = {boxed}.tolist()"),
                Kind::Float => format!("{name} = float({boxed})"),
                Kind::Bool => format!("{name} = bool({boxed})"),
                _ => format!("{name} = int({boxed})"),
            };
            (text, "sent as a tensor".to_string())
        }
        Step::Run { node, .. } if writer.folded.skips(*node) => return None,
        Step::Run { node, form, is_repeated } => {
            let content = &program.nodes[node.index()];
            let opaque = functions.iter().find(|(opaque, _, _)| opaque == node);
            let (call, outputs) = match opaque {
                Some((_, name, function)) => {
                    let arguments: Vec<String> =
                        function.arguments.iter().map(|a| writer.operand(a)).collect();
                    (format!("_{name}({})", arguments.join(", ")), &function.outputs)
                }
                None => (writer.call(content, *form), &content.outputs),
            };
            let left: Vec<&str> = outputs.iter().map(|v| writer.own_name(*v)).collect();
            let is_unpacking = content.operator.ends_with("Unpack");
            let text = match left.as_slice() {
                [] => call,
                [only] if is_unpacking => format!("({only},) = {call}"),
                _ => format!("{} = {call}", left.join(", ")),
            };
            let place = writer.scope.place(program, *node);
            (text, if *is_repeated { format!("{place} (again)") } else { place })
        }
    })
}

/// Writes the return statement of a stage.
fn returned(out: &mut String, writer: &Writer<'_>, stage: &Stage) {
    let returned: Vec<String> = stage
        .outputs
        .iter()
        .map(|port| match port.carried {
            Carried::Tensor(tensor) => writer.tensor(tensor),
            Carried::Value(value) => match port.kind {
                Kind::Int | Kind::Bool | Kind::Float | Kind::IntList => {
                    boxed(writer.own_name(value), &port.kind)
                }
                _ => writer.own_name(value).to_string(),
            },
        })
        .collect();
    out.push_str(&returns(&returned));
}

/// Names of a block's arguments.
fn taken<'w>(writer: &'w Writer<'_>, segment: &Segment, has_device: bool) -> Vec<&'w str> {
    let inputs = segment.inputs.iter().map(|value| writer.own_name(*value));
    inputs.chain(has_device.then_some("device")).collect()
}

/// Writes a block that saves no activations as a method.
fn method(
    out: &mut String,
    writer: &Writer<'_>,
    segment: &Segment,
    (number, has_device): (usize, bool),
    lines: &str,
) {
    let names: String = taken(writer, segment, has_device).iter().map(|name| format!(", {name}")).collect();
    let outputs: Vec<&str> = segment.outputs.iter().map(|value| writer.own_name(*value)).collect();
    let path = comment(&segment.path);
    out.push_str(&format!("    def block_{number}(self{names}):  # {path}\n{lines}"));
    out.push_str(&format!("{}\n", returns(&outputs)));
}

/// Returns the call of a block that saves no activations, and its comment.
fn call_of(
    writer: &Writer<'_>,
    segment: &Segment,
    function: String,
    given: Vec<String>,
) -> (String, &'static str) {
    let mut parts = vec![function];
    parts.extend(given);
    if segment.recompute && !segment.buffers.is_empty() {
        let buffers: Vec<String> = segment.buffers.iter().map(|id| writer.tensor(*id)).collect();
        parts.push(format!("buffers=[{}]", buffers.join(", ")));
    }
    if segment.light {
        parts.push("light=True".into());
    }
    let arguments = parts.join(", ");
    match (segment.recompute, segment.offload) {
        (true, false) if segment.light => {
            (format!("again({arguments})"), "recomputed in the backward pass but for what is kept")
        }
        (true, true) => (format!("on_host(self, again, {arguments})"), "recomputed from host memory"),
        (true, false) => (format!("again({arguments})"), "recomputed in the backward pass"),
        _ => (format!("on_host(self, {arguments})"), "kept in host memory"),
    }
}

/// Writes a number as a tensor.
fn boxed(name: &str, kind: &Kind) -> String {
    let dtype = match kind {
        Kind::Float => "torch.float64",
        Kind::Bool => "torch.bool",
        _ => "torch.int64",
    };
    format!("torch.tensor({name}, dtype={dtype})")
}

fn is_all_dead(program: &Program, step: &Step, dead: &[ValueId]) -> bool {
    let Step::Run { node, .. } = step else { return false };
    program.nodes[node.index()].outputs.iter().all(|output| dead.contains(output))
}

/// Batches are counted only in training: a model traced in training mode has such a line for each batch norm.
fn is_counter(program: &Program, step: &Step, training: bool) -> bool {
    let Step::Run { node, .. } = step else { return false };
    let node = &program.nodes[node.index()];
    let Some(Operand::Tensor(tensor)) = node.arguments.first().map(|a| &a.operand) else { return false };
    training
        && is_in_place(split(&node.operator).1)
        && program.tensors[tensor.index()].path.ends_with("num_batches_tracked")
}

fn is_tensor_input(program: &Program, carried: Carried) -> bool {
    match carried {
        Carried::Value(value) => matches!(program.values[value.index()].type_, tracer::Type::Tensor(_)),
        Carried::Tensor(_) => false,
    }
}

/// Returns whether the line of a step names the stage's device.
pub(super) fn names_device(writer: &Writer<'_>, step: &Step) -> bool {
    let Step::Run { node, .. } = step else { return false };
    let node = &writer.program.nodes[node.index()];
    let mut names_device = false;
    for argument in &node.arguments {
        leaves(&argument.operand, &mut |leaf| {
            names_device |= matches!(leaf, Operand::Constant(Constant::Device(_)));
        });
    }
    names_device && follows_device(node, writer.on_host)
}

/// Returns the position of each value's last read, or of its computation if it is not read; outputs of the stage are
/// read after its last line.
fn last_readers(program: &Program, stage: &Stage, folded: &Folded) -> BTreeMap<ValueId, usize> {
    let mut last: BTreeMap<ValueId, usize> = BTreeMap::new();
    for (position, step) in stage.steps.iter().enumerate() {
        if let Step::Run { node, .. } = step {
            if folded.skips(*node) {
                continue;
            }
            let node = &program.nodes[node.index()];
            for argument in &node.arguments {
                for value in values_of(&argument.operand) {
                    last.insert(folded.get(value), position);
                }
            }
            // Control flow returns only values that are read.
            for output in node.outputs.iter().filter(|_| node.operator != "prim::Opaque") {
                last.insert(*output, position);
            }
        }
    }
    for port in &stage.outputs {
        if let Carried::Value(value) = port.carried {
            last.insert(value, stage.steps.len());
        }
    }
    last
}
