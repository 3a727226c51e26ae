//! One model, two forms: the archive and the inlined IR text give the same operators, scopes and calls.
//!
//! `inlined_graph` is not quite the model: torch simplifies each module's graph before it inlines it. Numbers made
//! tensors and back are skipped, and a `cat` within a `cat` is merged. Both forms are simplified so here first. What the
//! text cannot tell is left out: shapes of parameters, names of anonymous constants. The code leaves out arguments
//! that have their default value, and names some; the text has them all in order.

#![allow(clippy::unwrap_used, clippy::print_stdout, missing_docs)]

use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
};

use tracer::{Constant, Operand, Program, Role, TensorType, Type, ValueId, ir, read_archive};

#[path = "../../tests/needs/mod.rs"]
mod needs;

/// Archives with their dumps: committed ones, then those that `make zoo` leaves in `out/zoo`.
fn pairs() -> Vec<(PathBuf, PathBuf)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut found = Vec::new();
    for (archives, dumps) in [("fixtures/traces", "fixtures/ir"), ("out/zoo", "out/zoo")] {
        let Ok(entries) = fs::read_dir(root.join(archives)) else {
            needs::shorten(needs::Need::Zoo);
            continue;
        };
        for archive in entries.map(|entry| entry.unwrap().path()) {
            let name = archive.file_stem().unwrap().to_string_lossy().into_owned();
            let dump = root.join(dumps).join(format!("{name}.inlined.txt"));
            if archive.extension() == Some("pt".as_ref()) && dump.exists() {
                found.push((archive, dump));
            }
        }
    }
    found.sort();
    found
}

#[test]
fn archive_and_text_agree() {
    let pairs = pairs();
    assert!(pairs.len() >= 4);
    let mut differences = Vec::new();
    for (archive, dump) in pairs {
        let name = archive.file_stem().unwrap().to_string_lossy().into_owned();
        let from_archive = read_archive(&fs::read(&archive).unwrap()).unwrap();
        let from_text = ir::read_ir(&fs::read_to_string(&dump).unwrap()).unwrap();
        let (archive, text) = (Simple::new(&from_archive), Simple::new(&from_text));
        if let Some(difference) = node_difference(&archive.nodes(), &text.nodes()) {
            differences.push(format!("{name}: nodes {difference}"));
        }
        if let Some(difference) = first_difference(&archive.calls(), &text.calls()) {
            differences.push(format!("{name}: calls {difference}"));
        }
        if let Some(difference) = recorded_difference(&from_archive, &from_text) {
            differences.push(format!("{name}: recorded {difference}"));
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

fn first_difference(archive: &[String], text: &[String]) -> Option<String> {
    let at = (0..archive.len().max(text.len())).find(|at| archive.get(*at) != text.get(*at))?;
    Some(format!("{at}:\n  archive {:?}\n  text    {:?}", archive.get(at), text.get(at)))
}

/// One operator, shown.
struct Line {
    head: String,
    arguments: Vec<(Option<String>, String)>,
}

fn node_difference(archive: &[Line], text: &[Line]) -> Option<String> {
    let heads = |lines: &[Line]| lines.iter().map(|line| line.head.clone()).collect::<Vec<_>>();
    if let Some(difference) = first_difference(&heads(archive), &heads(text)) {
        return Some(difference);
    }
    let differs = |(archive, text): &(&Line, &Line)| {
        let mut rest = text.arguments.iter().map(|(_, shown)| shown);
        // By position first; the named ones follow in order, with gaps where a default stands.
        !archive.arguments.iter().all(|(name, shown)| match name {
            None => rest.next() == Some(shown),
            Some(_) => rest.any(|other| other == shown),
        })
    };
    let (archive, text) = archive.iter().zip(text).find(differs)?;
    Some(format!("{}\n  archive {:?}\n  text    {:?}", archive.head, archive.arguments, text.arguments))
}

/// The program as torch's simplification leaves it.
struct Simple<'a> {
    program: &'a Program,
    /// What a skipped node's output stands for.
    aliases: HashMap<ValueId, Vec<Operand>>,
    /// New positions of the nodes that stay; the last entry is their number.
    positions: Vec<u32>,
}

const CONVERSIONS: [&str; 5] =
    ["aten::Int", "prim::NumToTensor", "aten::ScalarImplicit", "aten::IntImplicit", "aten::FloatImplicit"];

impl<'a> Simple<'a> {
    fn new(program: &'a Program) -> Self {
        let mut simple = Self { program, aliases: HashMap::new(), positions: Vec::new() };
        let mut position = 0;
        for (index, node) in program.nodes.iter().enumerate() {
            simple.positions.push(position);
            match simple.alias(index) {
                Some(operands) => drop(simple.aliases.insert(node.outputs[0], operands)),
                None => position += 1,
            }
        }
        simple.positions.push(position);
        simple
    }

    fn alias(&self, index: usize) -> Option<Vec<Operand>> {
        let node = &self.program.nodes[index];
        if CONVERSIONS.contains(&node.operator.as_str()) {
            return Some(vec![node.arguments[0].operand.clone()]);
        }
        let [list, dim] = node.arguments.as_slice() else { return None };
        let Operand::List(items) = &list.operand else { return None };
        let output = Operand::Value(node.outputs[0]);
        let is_use =
            |user: &&tracer::Node| user.arguments.iter().any(|argument| holds(&argument.operand, &output));
        let users: Vec<&tracer::Node> = self.program.nodes[index..].iter().filter(is_use).collect();
        let [user] = users.as_slice() else { return None };
        let is_cat = |node: &tracer::Node| node.operator == "aten::cat";
        let is_same = is_cat(node)
            && is_cat(user)
            && user.arguments[1].operand == dim.operand
            // The root's own graph is not simplified.
            && user.call.index() != 0;
        is_same.then(|| items.clone())
    }

    fn nodes(&self) -> Vec<Line> {
        let program = self.program;
        let line = |(index, node): (usize, &tracer::Node)| {
            if self.positions[index] == self.positions[index + 1] {
                return None;
            }
            let call = &program.calls[node.call.index()];
            let path = &program.modules[call.module.index()].path;
            // What control flow reads and writes is named differently.
            let is_opaque = node.operator == "prim::Opaque";
            let arguments = node.arguments.iter().filter(|_| !is_opaque);
            let outputs = if is_opaque { 0 } else { node.outputs.len() };
            Some(Line {
                head: format!(
                    "{} {path}#{} {} -> {outputs}",
                    self.positions[index], call.ordinal, node.operator
                ),
                arguments: arguments.map(|a| (a.name.clone(), self.show(&a.operand))).collect(),
            })
        };
        program.nodes.iter().enumerate().filter_map(line).collect()
    }

    fn calls(&self) -> Vec<String> {
        let program = self.program;
        let line = |call: &tracer::Call| {
            let module = &program.modules[call.module.index()];
            let parent = call.parent.map(|parent| {
                let parent = &program.calls[parent.index()];
                format!("{}#{}", program.modules[parent.module.index()].path, parent.ordinal)
            });
            let [start, end] = [call.nodes.start, call.nodes.end].map(|node| self.positions[node as usize]);
            // A call without a node leaves no trace in the text.
            let shown =
                format!("{}#{} {} {start}..{end} in {parent:?}", module.path, call.ordinal, call.method);
            (start < end).then_some(shown)
        };
        program.calls.iter().filter_map(line).collect()
    }

    /// Values by who makes them, not by name.
    fn show(&self, operand: &Operand) -> String {
        let program = self.program;
        let list =
            |items: &[Operand]| items.iter().map(|item| self.show(item)).collect::<Vec<_>>().join(", ");
        match operand {
            Operand::Value(value) => match self.aliases.get(value) {
                Some(operands) => list(operands),
                None => self.show_value(*value),
            },
            Operand::Tensor(tensor) => match &program.tensors[tensor.index()] {
                tensor if tensor.role == Role::Constant => format!("constant {:?}", tensor.dtype),
                tensor => tensor.path.clone(),
            },
            Operand::Constant(Constant::Float(float)) => format!("{float:e}"),
            Operand::Constant(constant) => format!("{constant:?}"),
            Operand::List(items) => format!("[{}]", list(items)),
            Operand::Tuple(items) => format!("({})", list(items)),
            Operand::Dict(pairs) => {
                let pair =
                    |(key, value): &(Operand, Operand)| format!("{}: {}", self.show(key), self.show(value));
                format!("{{{}}}", pairs.iter().map(pair).collect::<Vec<_>>().join(", "))
            }
        }
    }

    fn show_value(&self, value: ValueId) -> String {
        let program = self.program;
        match program.values[value.index()].producer {
            Some(producer) if program.nodes[producer.index()].operator == "prim::Opaque" => {
                format!("%{}", self.positions[producer.index()])
            }
            Some(producer) => {
                let outputs = &program.nodes[producer.index()].outputs;
                let output = outputs.iter().position(|output| *output == value).unwrap();
                format!("%{}.{output}", self.positions[producer.index()])
            }
            None => format!("%input{}", program.inputs.iter().position(|input| *input == value).unwrap()),
        }
    }
}

fn holds(operand: &Operand, value: &Operand) -> bool {
    match operand {
        Operand::List(items) | Operand::Tuple(items) => items.iter().any(|item| holds(item, value)),
        other => other == value,
    }
}

/// The types in the archive's extra file must be those of the text, and have one entry for each node.
fn recorded_difference(archive: &Program, text: &Program) -> Option<String> {
    let recorded = archive.recorded.as_ref()?;
    let is_simple = |operator: &str| CONVERSIONS.contains(&operator) || operator == "aten::cat";
    let nodes = archive.nodes.iter().zip(&recorded.nodes);
    if let Some((node, recorded)) = nodes.clone().find(|(node, recorded)| node.operator != recorded.operator)
    {
        return Some(format!("{} stands for {}", recorded.operator, node.operator));
    }
    let recorded = nodes.map(|(_, recorded)| recorded).filter(|node| !is_simple(&node.operator));
    let is_known = |node: &&tracer::Node| !is_simple(&node.operator) && node.operator != "prim::Opaque";
    let recorded = recorded.filter(|node| node.operator != "prim::Opaque");
    for (node, recorded) in text.nodes.iter().filter(is_known).zip(recorded) {
        for (output, recorded) in node.outputs.iter().zip(&recorded.outputs) {
            let type_ = &text.values[output.index()].type_;
            let same = match (type_, recorded) {
                // The text has `requires_grad=0` for convolutions whose weights train.
                (Type::Tensor(type_), Some(recorded)) => {
                    let without_grad =
                        |type_: &TensorType| TensorType { requires_grad: None, ..type_.clone() };
                    without_grad(type_) == without_grad(recorded)
                }
                (type_, recorded) => !matches!(type_, Type::Tensor(_)) && recorded.is_none(),
            };
            if !same {
                return Some(format!("{}: {recorded:?}, {type_:?} in the text", node.operator));
            }
        }
    }
    None
}
