//! Blocks of a stage that are equal except for their tensors: written once, as a class with a `forward` of its own.
//!
//! Two calls of modules are the same block where their lines are the same text, with values numbered as they appear and paths
//! counted from the call. The highest such calls of a stage become classes, and so do repeated calls inside of a class. A block
//! has to be whole in the stage, and the stage has to hold a tensor of it, so that there is a module to call. Calls with scripted
//! statements, with operators that several stages run, or with copies of values that they change in place stay as they are.
//!
//! O(depth of the modules × lines), in time and memory.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    ops::Range,
};

use tracer::{Call, NodeId, Operand, Role, TensorId, ValueId};

use super::{
    call::constant_name,
    forward::{Text, names_device, returns},
    scope::Scope,
};
use crate::{
    names::{Distinct, comment, identifier, is_reserved, python_quoted as quoted},
    nodes::{leaves, values_of},
    saving::Segment,
};

/// Shorter blocks are not written as classes.
const FEWEST_LINES: usize = 4;

/// A call that can be written as a call of a class.
#[derive(Clone, Debug)]
pub(super) struct Block {
    /// Path of its module.
    pub path: String,
    /// The number of the call, from 1.
    pub ordinal: u32,
    pub steps: Range<usize>,
    /// Values that it reads, in the order of reading.
    pub inputs: Vec<ValueId>,
    /// Tensors that it is passed, since they are outside of it.
    pub tensors: Vec<TensorId>,
    /// Whether it is passed the device of the stage.
    pub has_device: bool,
    /// Values that it returns, in the order of computation.
    pub outputs: Vec<ValueId>,
    /// Equal for equal blocks.
    kind: usize,
}

/// The blocks of a stage.
#[derive(Debug, Default)]
pub(super) struct Repeated {
    /// By their first step, larger ones first.
    blocks: Vec<Block>,
    /// Kinds with a class.
    kinds: BTreeSet<usize>,
}

impl Repeated {
    /// Finds the blocks of a stage, except those that save no activations or contain such blocks.
    pub fn find(text: &Text<'_>, segments: &[Segment], is_sharded: bool) -> Self {
        let mut this = Self { blocks: candidates(text, segments, is_sharded), kinds: BTreeSet::new() };
        this.one_kind_a_module();
        let mut scopes = this.choose(&(0..text.stage.steps.len()));
        while let Some(scope) = scopes.pop() {
            scopes.extend(this.choose(&scope));
        }
        this
    }

    /// Returns the largest block with a class that begins at a step and is inside a range, but not the range itself.
    pub fn at(&self, position: usize, range: &Range<usize>) -> Option<&Block> {
        let first = self.blocks.partition_point(|block| block.steps.start < position);
        let here = self.blocks[first..].iter().take_while(|block| block.steps.start == position);
        here.into_iter().find(|block| {
            self.kinds.contains(&block.kind) && block.steps.end <= range.end && block.steps != *range
        })
    }

    /// Writes the classes of a stage, and the modules of each.
    pub fn write(&self, out: &mut String, text: &Text<'_>) {
        let mut found = BTreeMap::new();
        let mut order = Vec::new();
        self.walk(&(0..text.stage.steps.len()), &mut |block| {
            found.insert(block.path.as_str(), block.kind);
            if !order.iter().any(|first: &&Block| first.kind == block.kind) {
                order.push(block);
            }
        });
        let (mut distinct, mut names) = (Distinct::default(), HashMap::new());
        for block in order {
            let name = distinct.choose(class_name(text, block));
            let like: Vec<&str> =
                found.iter().filter(|(_, kind)| **kind == block.kind).map(|(path, _)| *path).collect();
            self.class(out, text, block, &name, &like);
            names.insert(block.kind, name);
        }
        out.push_str("\n\n# Blocks that are written once: these modules are of these classes.\nBLOCKS = {\n");
        for (path, kind) in found {
            out.push_str(&format!("    {}: {},\n", quoted(path), names[&kind]));
        }
        out.push_str("}\n");
    }

    /// Writes a block as a class.
    fn class(&self, out: &mut String, text: &Text<'_>, block: &Block, name: &str, like: &[&str]) {
        let scope = block.scope(text);
        let lines = text.lines(&scope, self, &block.steps).concat();
        let about = match like {
            [_] | [] => block.path.clone(),
            [first, rest @ ..] => format!("{first} and {} like it", rest.len()),
        };
        out.push_str(&format!("\n\nclass {name}(Holder):\n    \"\"\"{}.\"\"\"\n\n", comment(&about)));
        let parameters: String = text.given(&scope, block).iter().map(|name| format!(", {name}")).collect();
        let returned = returns(&text.outputs(&scope, block));
        out.push_str(&format!("    def forward(self{parameters}):\n{lines}{returned}"));
    }

    /// Calls `each` with every block that is written as a call, including nested ones.
    fn walk<'b>(&'b self, range: &Range<usize>, each: &mut impl FnMut(&'b Block)) {
        let mut position = range.start;
        while position < range.end {
            match self.at(position, range) {
                Some(block) => {
                    each(block);
                    self.walk(&block.steps, each);
                    position = block.steps.end;
                }
                None => position += 1,
            }
        }
    }

    /// Removes modules that are called as more than one kind: a module has one `forward`.
    fn one_kind_a_module(&mut self) {
        let mut kinds: HashMap<String, Option<usize>> = HashMap::new();
        for block in &self.blocks {
            let kind = kinds.entry(block.path.clone()).or_insert(Some(block.kind));
            if *kind != Some(block.kind) {
                *kind = None;
            }
        }
        self.blocks.retain(|block| kinds[&block.path].is_some());
    }

    /// Assigns classes to the highest blocks of a range that occur more than once; returns a range of each new class.
    fn choose(&mut self, range: &Range<usize>) -> Vec<Range<usize>> {
        let is_inside = |block: &&Block| {
            block.steps.start >= range.start && block.steps.end <= range.end && block.steps != *range
        };
        let inside: Vec<&Block> = self.blocks.iter().filter(is_inside).collect();
        let mut count: HashMap<usize, usize> = HashMap::new();
        inside.iter().for_each(|block| *count.entry(block.kind).or_default() += 1);
        let (mut end, mut chosen) = (range.start, Vec::new());
        for block in inside {
            let is_apart = block.steps.start >= end;
            if is_apart && (count[&block.kind] > 1 || self.kinds.contains(&block.kind)) {
                end = block.steps.end;
                chosen.push((block.kind, block.steps.clone()));
            }
        }
        chosen.into_iter().filter(|(kind, _)| self.kinds.insert(*kind)).map(|(_, steps)| steps).collect()
    }
}

impl Block {
    /// Returns the names that its lines use: without the numbers that distinguish values of the stage, where they are not needed.
    fn scope(&self, text: &Text<'_>) -> Scope {
        let program = text.writer.program;
        let mut scope = Scope { call: Some((self.path.clone(), self.ordinal)), ..Scope::default() };
        let mut distinct = Distinct::default();
        let mut name = |wanted: &str| distinct.choose(identifier(wanted));
        let nodes = self.steps.clone().filter_map(|position| text.own_node(position));
        let nodes = nodes.filter(|node| !text.writer.folded.skips(*node));
        let made = nodes.flat_map(|node| program.nodes[node.index()].outputs.iter());
        for value in self.inputs.iter().chain(made) {
            let own = text.writer.names.get(*value);
            let unnumbered = own.trim_end_matches(|c: char| c.is_ascii_digit()).strip_suffix('_');
            scope.values.insert(*value, name(unnumbered.filter(|name| !name.is_empty()).unwrap_or(own)));
        }
        for &id in &self.tensors {
            let tensor = &program.tensors[id.index()];
            let wanted = match tensor.role {
                Role::Constant => constant_name(program, id),
                _ => tensor.path.rsplit('.').next().unwrap_or_default().to_string(),
            };
            scope.tensors.insert(id, name(&wanted));
        }
        scope
    }
}

/// Returns the calls that could be calls of a class, by their first step, larger ones first.
fn candidates(text: &Text<'_>, segments: &[Segment], is_sharded: bool) -> Vec<Block> {
    let program = text.writer.program;
    let mut position_of = vec![None; program.nodes.len()];
    for position in 0..text.stage.steps.len() {
        if let Some(node) = text.own_node(position) {
            position_of[node.index()] = Some(position);
        }
    }
    let held: BTreeSet<&str> =
        text.stage.tensors.iter().map(|id| program.tensors[id.index()].path.as_str()).collect();
    let mut kinds: HashMap<String, usize> = HashMap::new();
    let mut found: Vec<Block> = Vec::new();
    for call in program.calls.iter().filter(|call| call.parent.is_some()) {
        let path = &program.modules[call.module.index()].path;
        let below = format!("{path}.");
        let mut own = held.range(below.as_str()..).take_while(|name| name.starts_with(&below)).peekable();
        // A module with such a child cannot have the attribute.
        let has_shard = |name: &&&str| is_sharded && name[below.len()..].split('.').next() == Some("shard");
        if own.peek().is_none()
            || own.any(|name| has_shard(&name))
            || comment(path) != *path
            || path.starts_with('.')
        {
            continue;
        }
        let Some(steps) = steps_of(call, &position_of) else { continue };
        let is_clear = |segment: &Segment| {
            let (of, own) = (&segment.steps, &steps);
            of == own
                || of.end <= own.start
                || own.end <= of.start
                || (of.start <= own.start && own.end <= of.end)
        };
        if !segments.iter().all(is_clear) || found.last().is_some_and(|block| block.steps == steps) {
            continue;
        }
        if let Some((mut block, key)) = block(text, path, call.ordinal.max(1), steps) {
            let next = kinds.len();
            block.kind = *kinds.entry(key).or_insert(next);
            found.push(block);
        }
    }
    found.sort_by_key(|block| (block.steps.start, std::cmp::Reverse(block.steps.end)));
    found
}

/// Returns the steps of a call, if they are all of its operators and nothing else.
fn steps_of(call: &Call, position_of: &[Option<usize>]) -> Option<Range<usize>> {
    let nodes = position_of.get(call.nodes.start as usize..call.nodes.end as usize)?;
    let first = (*nodes.first()?)?;
    let follows = |(at, position): (usize, &Option<usize>)| *position == Some(first + at);
    nodes.iter().enumerate().all(follows).then(|| first..first + nodes.len())
}

/// Returns the arguments and results of a call, and its lines in a form that is equal for equal blocks.
fn block(text: &Text<'_>, path: &str, ordinal: u32, steps: Range<usize>) -> Option<(Block, String)> {
    let (program, folded) = (text.writer.program, text.writer.folded);
    let made = text.made(&steps);
    let mut scope = Scope { call: Some((path.to_string(), ordinal)), ..Scope::default() };
    let (mut inputs, mut outputs, mut tensors) = (Vec::new(), Vec::new(), Vec::new());
    let (mut values, mut has_device) = (HashMap::new(), false);
    for position in steps.clone() {
        let node: NodeId = text.own_node(position)?;
        let content = &program.nodes[node.index()];
        let place = &program.modules[program.calls[content.call.index()].module.index()].path;
        if content.operator == "prim::Opaque" || comment(place) != *place || place.starts_with('.') {
            return None;
        }
        if folded.skips(node) {
            continue;
        }
        has_device |= names_device(&text.writer, &text.stage.steps[position]);
        let mut number = |value: ValueId| {
            let next = format!("v{}", values.len());
            values.entry(value).or_insert(next);
        };
        for argument in &content.arguments {
            for value in values_of(&argument.operand).into_iter().map(|value| folded.get(value)) {
                if !made.contains(&value) && !inputs.contains(&value) {
                    inputs.push(value);
                }
                number(value);
            }
            leaves(&argument.operand, &mut |leaf| {
                let Operand::Tensor(id) = leaf else { return };
                let tensor = &program.tensors[id.index()];
                let is_own = tensor.role != Role::Constant && scope.holds(&tensor.path);
                if !is_own && !tensors.contains(id) {
                    tensors.push(*id);
                }
            });
        }
        for output in &content.outputs {
            number(*output);
            if text.last.get(output).is_some_and(|last| *last >= steps.end) {
                outputs.push(*output);
            }
        }
    }
    scope.values = values;
    for (number, id) in tensors.iter().enumerate() {
        scope.tensors.insert(*id, format!("t{number}"));
    }
    let frees = |value| made.contains(&value);
    let lines: Vec<String> = steps.clone().map(|position| text.line(&scope, position, frees)).collect();
    if outputs.is_empty() || lines.iter().filter(|line| !line.is_empty()).count() < FEWEST_LINES {
        return None;
    }
    let returned: Vec<&str> = outputs.iter().map(|value| scope.values[value].as_str()).collect();
    let key = format!("{}{}", lines.concat(), returned.join(", "));
    let path = path.to_string();
    Some((Block { path, ordinal, steps, inputs, tensors, has_device, outputs, kind: 0 }, key))
}

/// Returns a name for a class: its module's, if that means nothing else in a stage.
fn class_name(text: &Text<'_>, block: &Block) -> String {
    let modules = &text.writer.program.modules;
    let class = modules.iter().find(|module| module.path == block.path).map(|module| module.class.as_str());
    let own = identifier(class.and_then(|class| class.rsplit('.').next()).unwrap_or_default());
    if may_be_class(&own) { own } else { format!("Block{own}") }
}

/// Returns whether a class of a stage can have this name: no other object of the stage's code has it.
pub(crate) fn may_be_class(name: &str) -> bool {
    const OF_STAGES: [&str; 9] =
        ["PARAMETERS", "FROZEN", "BUFFERS", "CONSTANTS", "TIED", "CUTS", "WEIGHTS", "BLOCKS", "Shard"];
    name.starts_with(|c: char| c.is_ascii_uppercase())
        && !is_reserved(name)
        && !name.ends_with("Error")
        && !OF_STAGES.contains(&name)
}
