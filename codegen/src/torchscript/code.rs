//! The code of a stage's archive, in the dialect of `torch.jit.save`.
//!
//! Operators are called as the trace calls them, so that the reader resolves the same overloads. Types that the dialect
//! cannot infer are annotated: those of empty lists, and of lists with optional items.

use std::collections::{BTreeSet, HashMap, HashSet};

use operators::{Arithmetic, ShapeRule};
use tracer::{Constant, Node, NodeId, Operand, Program, Role, TensorId, Type, ValueId};

use super::tree::Tree;
use crate::{
    error::CutError,
    fold::Folded,
    names::{Names, is_identifier, quoted},
    nodes::{Kind, draws, kinds, leaves, mutated_arguments, out_of_place, rule_of, split, values_of},
    opaque::{Function, functions, written},
    operands::Operands,
    pipeline::{Carried, Form, Source, Stage, Step},
    python::{follows_device, on_host},
};

/// Writes all classes of a stage.
pub(crate) fn module(
    program: &Program,
    names: &Names,
    stage: &Stage,
    tree: &Tree,
    spaces: &[String],
) -> Result<String, CutError> {
    let constants = stage.constants.iter().enumerate().map(|(key, id)| (*id, key)).collect();
    let kinds = kinds(program);
    let on_host = on_host(program);
    let folded = Folded::new(program, stage, &kinds);
    let space = tree.root_class().trim_end_matches(".Stage").to_string();
    let functions = functions(program, stage, &space, None, spaces)?;
    let mut unread = Vec::new();
    let mut writer = Writer {
        space,
        functions: functions
            .own
            .iter()
            .map(|(node, name, function)| (*node, (name.as_str(), function)))
            .collect(),
        program,
        names,
        kinds: &kinds,
        constants,
        on_host: &on_host,
        folded: &folded,
    };
    let mut out = tree.holders().concat();
    unread.extend(unread_random(program, stage).into_iter().map(|node| writer.function(node)));
    out.push_str(&functions.called);
    functions.own.iter().chain(&unread).for_each(|(_, _, function)| out.push_str(&function.code));
    writer.functions.extend(unread.iter().map(|(node, name, function)| (*node, (name.as_str(), function))));
    out.push_str(&tree.root(program));
    writer.forward(&mut out, stage, tree.root_class());
    Ok(out)
}

struct Writer<'p> {
    program: &'p Program,
    names: &'p Names,
    kinds: &'p [Kind],
    constants: HashMap<TensorId, usize>,
    on_host: &'p HashSet<ValueId>,
    folded: &'p Folded,
    /// Name space of the stage's file.
    space: String,
    functions: HashMap<NodeId, (&'p str, &'p Function)>,
}

impl Writer<'_> {
    fn forward(&self, out: &mut String, stage: &Stage, class: &str) {
        let mut parameters = format!("self: {class}");
        for port in &stage.inputs {
            let type_ = match (port.source, port.carried) {
                (Source::Model(_), Carried::Value(value)) => {
                    written(&self.program.values[value.index()].type_)
                }
                _ => "Tensor".to_string(),
            };
            parameters.push_str(&format!(",\n    {}: {type_}", port.name));
        }
        let returned = match stage.outputs.len() {
            0 => "Tuple[()]".to_string(),
            1 => "Tensor".to_string(),
            n => format!("Tuple[{}]", vec!["Tensor"; n].join(", ")),
        };
        out.push_str(&format!("  def forward({parameters}) -> {returned}:\n"));
        let device = self.device(stage);
        if let Some(device) = &device {
            out.push_str(&format!("    device = ops.prim.device({device})\n"));
        }
        for step in &stage.steps {
            let line = match step {
                Step::Clone(value) => {
                    let name = self.names.get(*value);
                    format!("{name} = torch.clone({name})")
                }
                Step::Unbox(value) => {
                    let name = self.names.get(*value);
                    match self.kinds[value.index()] {
                        Kind::IntList => format!("{name} = annotate(List[int], {name}__boxed.tolist())"),
                        Kind::Float => format!("{name} = float({name}__boxed)"),
                        Kind::Bool => format!("{name} = bool({name}__boxed)"),
                        _ => format!("{name} = int({name}__boxed)"),
                    }
                }
                Step::Run { node, .. } if self.folded.skips(*node) => continue,
                Step::Run { node, .. } if self.functions.contains_key(node) => self.opaque(*node),
                Step::Run { node, form, .. } => {
                    self.line(&self.program.nodes[node.index()], *form, device.is_some())
                }
            };
            out.push_str(&format!("    {line}\n"));
        }
        let outputs: Vec<String> = stage
            .outputs
            .iter()
            .map(|port| match port.carried {
                Carried::Tensor(tensor) => self.tensor(tensor),
                Carried::Value(value) => {
                    let name = self.names.get(value);
                    match port.kind {
                        Kind::Int | Kind::IntList => format!("torch.tensor({name}, dtype=4)"),
                        Kind::Float => format!("torch.tensor({name}, dtype=7)"),
                        Kind::Bool => format!("torch.tensor({name}, dtype=11)"),
                        _ => name.to_string(),
                    }
                }
            })
            .collect();
        match outputs.as_slice() {
            [] => out.push_str("    return ()\n"),
            [only] => out.push_str(&format!("    return {only}\n")),
            all => out.push_str(&format!("    return ({})\n", all.join(", "))),
        }
    }

    /// Returns a value on the stage's device, for operators that need the device.
    fn device(&self, stage: &Stage) -> Option<String> {
        let asks = stage.steps.iter().any(|step| {
            let Step::Run { node, .. } = step else { return false };
            let node = &self.program.nodes[node.index()];
            let mut found = false;
            for argument in &node.arguments {
                leaves(&argument.operand, &mut |leaf| {
                    found |= matches!(leaf, Operand::Constant(Constant::Device(_)));
                });
            }
            found && follows_device(node, self.on_host)
        });
        if !asks {
            return None;
        }
        let input = stage.inputs.iter().find(|port| match (port.source, port.carried) {
            (Source::Model(_), Carried::Value(v)) => {
                matches!(self.program.values[v.index()].type_, Type::Tensor(_))
            }
            _ => !port.kind.is_boxed(),
        });
        match (input, stage.tensors.first()) {
            (Some(port), _) => Some(port.name.clone()),
            (None, Some(tensor)) => Some(self.tensor(*tensor)),
            (None, None) => None,
        }
    }

    /// Writes a function of one operator, see [`unread_random`].
    fn function(&self, id: NodeId) -> (NodeId, String, Function) {
        let node = &self.program.nodes[id.index()];
        let name = format!("unread_{}", id.0);
        let values: BTreeSet<ValueId> =
            node.arguments.iter().flat_map(|argument| values_of(&argument.operand)).collect();
        let arguments: Vec<Operand> = values.into_iter().map(Operand::Value).collect();
        let parameters: Vec<String> =
            arguments.iter().map(|value| format!("{}: Tensor", self.operand(value))).collect();
        let call = self.call(node, Form::AsWritten, false);
        let code = format!("def {name}({}) -> Tensor:\n  return {call}\n", parameters.join(", "));
        (id, name, Function { code, arguments, outputs: node.outputs.to_vec() })
    }

    fn opaque(&self, node: NodeId) -> String {
        let (name, function) = &self.functions[&node];
        let arguments: Vec<String> = function.arguments.iter().map(|operand| self.operand(operand)).collect();
        let outputs: Vec<&str> = function.outputs.iter().map(|value| self.names.get(*value)).collect();
        let left = if outputs.is_empty() { String::new() } else { format!("{} = ", outputs.join(", ")) };
        format!("{left}{}.{name}({})", self.space, arguments.join(", "))
    }

    fn line(&self, node: &Node, form: Form, has_device: bool) -> String {
        let left: Vec<&str> = node.outputs.iter().map(|value| self.names.get(*value)).collect();
        let call = self.call(node, form, has_device);
        match left.as_slice() {
            [] => call,
            all if node.operator == "prim::ListUnpack" => format!("{}, = {call}", all.join(", ")),
            [only] if node.operator == "prim::TupleUnpack" => format!("{only}, = {call}"),
            all => format!("{} = {call}", all.join(", ")),
        }
    }

    fn call(&self, node: &Node, form: Form, has_device: bool) -> String {
        let operator = match form {
            Form::OutOfPlace => out_of_place(&node.operator).unwrap_or_else(|| node.operator.clone()),
            Form::AsWritten => node.operator.clone(),
        };
        let (space, name) = split(&operator);
        let device = has_device && follows_device(node, self.on_host);
        let argument = |index: usize| {
            let operand = &node.arguments[index].operand;
            match operand {
                Operand::Constant(Constant::Device(_)) if device => "device".to_string(),
                _ => self.argument(space, name, index, operand),
            }
        };
        let first_output = node.outputs.first().map(|value| &self.program.values[value.index()].type_);
        match (space, Arithmetic::of(name), node.arguments.len()) {
            ("aten", Arithmetic::ToInt, 1) => return format!("int({})", argument(0)),
            ("aten", Arithmetic::ToFloat, 1) => return format!("float({})", argument(0)),
            ("aten", Arithmetic::ToBool, 1) => return format!("bool({})", argument(0)),
            ("aten", Arithmetic::ToComplex, 1) => return format!("complex({})", argument(0)),
            ("aten", Arithmetic::ToText, 1) => return format!("str({})", argument(0)),
            ("aten", Arithmetic::ToNumberImplicitly, 1) => {
                return format!("annotate(number, {})", argument(0));
            }
            ("aten", Arithmetic::ToIntImplicitly, 1) => return format!("annotate(int, {})", argument(0)),
            ("aten", Arithmetic::ToFloatImplicitly, 1) => {
                return format!("annotate(float, {})", argument(0));
            }
            _ => {}
        }
        match (space, rule_of(name), node.arguments.len()) {
            ("prim", ShapeRule::Unpack, 1) => return argument(0),
            ("prim", ShapeRule::List | ShapeRule::Dictionary, 1) => {
                return match first_output {
                    Some(type_) => {
                        format!("annotate({}, {})", written(type_), self.operand(&node.arguments[0].operand))
                    }
                    None => argument(0),
                };
            }
            (_, ShapeRule::Item, 2) => return format!("({})[{}]", argument(0), argument(1)),
            ("prim", _, 1) if name == "tolist" => {
                let type_ = first_output.map_or_else(|| "List[int]".to_string(), written);
                return format!("annotate({type_}, ({}).tolist())", argument(0));
            }
            _ => {}
        }
        let arguments: Vec<String> = node
            .arguments
            .iter()
            .enumerate()
            .map(|(index, content)| match &content.name {
                Some(name) => format!("{name}={}", argument(index)),
                None => argument(index),
            })
            .collect();
        let arguments = arguments.join(", ");
        match space {
            "aten" => format!("torch.{name}({arguments})"),
            _ => format!("ops.{space}.{name}({arguments})"),
        }
    }

    /// Writes an argument, with its type if the dialect needs it.
    fn argument(&self, space: &str, name: &str, index: usize, operand: &Operand) -> String {
        let Operand::List(items) = operand else { return self.operand(operand) };
        let text = self.operand(operand);
        let has_hole = items.contains(&Operand::Constant(Constant::None));
        let is_taken = |type_: &str| {
            let takes = |signature: operators::Signature| {
                signature.parameters.get(index).is_some_and(|parameter| parameter.type_ == type_)
            };
            operators::overloads(&format!("{space}::{name}")).into_iter().any(takes)
        };
        if has_hole || is_taken("Tensor?[]") {
            format!("annotate(List[Optional[Tensor]], {text})")
        } else if !items.is_empty() {
            text
        } else if is_taken("Tensor[]") {
            format!("annotate(List[Tensor], {text})")
        } else {
            format!("annotate(List[int], {text})")
        }
    }
}

impl Operands for Writer<'_> {
    const NOT_FINITE: [&'static str; 2] = ["inf", "nan"];

    fn value(&self, value: ValueId) -> String {
        self.names.get(self.folded.get(value)).to_string()
    }

    fn tensor(&self, id: TensorId) -> String {
        let tensor = &self.program.tensors[id.index()];
        if tensor.role == Role::Constant {
            return match self.constants.get(&id) {
                Some(key) => format!("CONSTANTS.c{key}"),
                None => "CONSTANTS.missing".into(),
            };
        }
        let mut text = "self".to_string();
        for part in tensor.path.split('.') {
            text = if is_identifier(part) {
                format!("{text}.{part}")
            } else {
                format!("getattr({text}, {})", quoted(part))
            };
        }
        text
    }

    fn quoted(text: &str) -> String {
        quoted(text)
    }

    /// In torch's notation; infinities and NaN have no literal.
    fn complex(real: f64, imaginary: f64) -> String {
        if real.is_finite() && imaginary.is_finite() {
            format!("({real:?}{imaginary:+?}j)")
        } else {
            format!("complex({}, {})", Self::float(real), Self::float(imaginary))
        }
    }
}

/// Finds operators that draw unused random numbers.
///
/// A trace has them if a module returns an unused value. The model still draws the numbers; in the single `forward` of
/// a stage torch's dead-code elimination would remove the operator, and all later random numbers would differ. A call
/// of a function is kept.
fn unread_random(program: &Program, stage: &Stage) -> BTreeSet<NodeId> {
    let mut is_read = HashSet::new();
    for port in &stage.outputs {
        if let Carried::Value(value) = port.carried {
            is_read.insert(value);
        }
    }
    let mut unread = BTreeSet::new();
    for step in stage.steps.iter().rev() {
        let Step::Run { node: id, form, .. } = step else { continue };
        let node = &program.nodes[id.index()];
        let is_left_out = !node.outputs.iter().any(|output| is_read.contains(output))
            && split(&node.operator).0 == "aten"
            && mutated_arguments(node).is_empty();
        if is_left_out {
            if !(draws(node) && *form == Form::AsWritten && can_be_function(program, node)) {
                continue;
            }
            unread.insert(*id);
        }
        is_read.extend(node.arguments.iter().flat_map(|argument| values_of(&argument.operand)));
    }
    unread
}

/// Tells whether an operator takes only tensors and constants and returns one tensor.
fn can_be_function(program: &Program, node: &Node) -> bool {
    let is_tensor = |value: &ValueId| matches!(program.values[value.index()].type_, Type::Tensor(_));
    let mut can = node.outputs.len() == 1 && node.outputs.iter().all(is_tensor);
    for argument in &node.arguments {
        leaves(&argument.operand, &mut |leaf| {
            can &= match leaf {
                Operand::Value(value) => is_tensor(value),
                Operand::Tensor(_) | Operand::Constant(Constant::Device(_)) => false,
                _ => true,
            };
        });
    }
    can
}
