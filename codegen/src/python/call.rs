//! One operator as one line of Python.

use operators::{Arithmetic, Kernel, Mark, ShapeRule, find, has, is_dtype_position, plain};
use tracer::{Constant, Node, Operand, Program, Role, TensorId};

use super::{
    arguments::{MEMORY_FORMAT, keyword},
    scope::Scope,
    spelling::{Spelling, dtype_of_code, memory_format, operator, spelling},
};
use crate::{
    fold::Folded,
    names::{Names, is_identifier, python_quoted as quoted},
    nodes::{Kind, OUTER, is_exchange, out_of_place, rule_of, split},
    operands::Operands,
    pipeline::Form,
};

/// Writes operands and calls of one stage.
#[derive(Clone, Copy)]
pub(super) struct Writer<'p> {
    pub program: &'p Program,
    pub names: &'p Names,
    pub kinds: &'p [Kind],
    /// Attribute with the trace's constants.
    pub constants: &'p str,
    /// Whether the root was traced in training mode.
    pub training: bool,
    /// Values that the packing of a recurrent layer reads: their device must not change.
    pub on_host: &'p std::collections::HashSet<tracer::ValueId>,
    /// Values that replace others.
    pub folded: &'p Folded,
    /// What this part of the stage calls things.
    pub scope: &'p Scope,
}

// Names of arguments that describe a new tensor.
const DTYPE: &str = "dtype";
const LAYOUT: &str = "layout";
const PIN_MEMORY: &str = "pin_memory";
const OF_TENSORS: [&str; 5] = [DTYPE, LAYOUT, PIN_MEMORY, MEMORY_FORMAT, "device"];

/// A method of tensors that is not a function.
const TO_LIST: &str = "tolist";

fn bool_text(value: bool) -> &'static str {
    if value { "True" } else { "False" }
}

/// Returns the position of the flag by which a lookup's gradient has only the rows that were looked up.
fn sparse_flag(name: &str) -> Option<usize> {
    match rule_of(name) {
        ShapeRule::Embedding => Some(4),
        ShapeRule::EmbeddingBag => Some(5),
        _ => None,
    }
}

/// Tells whether an operator's device follows the stage's device instead of the trace's.
pub(crate) fn follows_device(node: &Node, on_host: &std::collections::HashSet<tracer::ValueId>) -> bool {
    let (space, name) = split(&node.operator);
    space == "aten"
        && has(name, Mark::OnDevice)
        && !node.outputs.iter().any(|output| on_host.contains(output))
}

impl<'p> Writer<'p> {
    /// Returns the same for another part of the stage.
    pub fn within<'s>(&self, scope: &'s Scope) -> Writer<'s>
    where
        'p: 's,
    {
        Writer { scope, ..*self }
    }

    /// Returns the name of a value, whatever stands for it.
    pub fn own_name(&self, value: tracer::ValueId) -> &str {
        self.scope.values.get(&value).map_or_else(|| self.names.get(value), String::as_str)
    }

    /// Writes the way to a module.
    pub fn module(&self, path: &str) -> String {
        let steps: String = self.scope.inside(path).split('.').map(step).collect();
        format!("self{steps}")
    }

    /// Returns the right side of the line.
    pub fn call(&self, node: &Node, form: Form) -> String {
        let operator = match form {
            Form::OutOfPlace => out_of_place(&node.operator).unwrap_or_else(|| node.operator.clone()),
            Form::AsWritten => node.operator.clone(),
        };
        let (space, name) = split(&operator);
        let position =
            |index: usize| node.arguments.get(index).map(|a| self.operand(&a.operand)).unwrap_or_default();
        let first = || self.primary(node.arguments.first().map(|a| &a.operand));
        if is_exchange(space) {
            return self.shared(node, name);
        }
        let numbers = Arithmetic::of(name);
        if let Some(sign) = numbers.sign().filter(|_| space == "aten" && self.is_signed(node, numbers)) {
            let second = self.primary(node.arguments.get(1).map(|a| &a.operand));
            return format!("{} {sign} {second}", first());
        }
        match (space, numbers, node.arguments.len()) {
            ("prim", Arithmetic::ToTensor, 1) => return format!("torch.tensor({})", position(0)),
            ("aten", Arithmetic::ToInt | Arithmetic::ToIntImplicitly, 1) => {
                return format!("int({})", position(0));
            }
            ("aten", Arithmetic::ToFloat | Arithmetic::ToFloatImplicitly, 1) => {
                return format!("float({})", position(0));
            }
            ("aten", Arithmetic::ToBool, 1) => return format!("bool({})", position(0)),
            ("aten", Arithmetic::ToNumberImplicitly | Arithmetic::Item, 1) => {
                return format!("{}.item()", first());
            }
            ("aten", Arithmetic::Size, 2) => return format!("{}.size({})", first(), position(1)),
            ("aten", Arithmetic::Size, 1) => return format!("list({}.size())", first()),
            ("aten", Arithmetic::Length, 1) => return format!("len({})", position(0)),
            ("aten", Arithmetic::Negate, _) if node.arguments.iter().all(|a| self.is_number(&a.operand)) => {
                return format!("-{}", first());
            }
            ("aten", Arithmetic::Power, 2) if node.arguments.iter().all(|a| self.is_number(&a.operand)) => {
                // Also for a float of whole value, which Python's operator would not return.
                let overload =
                    match (self.kind(&node.arguments[0].operand), self.kind(&node.arguments[1].operand)) {
                        (Kind::Int, Kind::Int) => "int",
                        (Kind::Int, Kind::Float) => "int_float",
                        (Kind::Float, Kind::Int) => "float_int",
                        (Kind::Float, Kind::Float) => "float",
                        _ => "Scalar_Scalar",
                    };
                return format!("torch.ops.aten.pow.{overload}({}, {})", position(0), position(1));
            }
            ("aten", Arithmetic::Sum | Arithmetic::Any | Arithmetic::All, 1)
                if self.is_plain(&node.arguments[0].operand) =>
            {
                return format!("{name}({})", position(0));
            }
            ("prim", Arithmetic::Absolute, 1) => return format!("abs({})", position(0)),
            _ => {}
        }
        match (space, rule_of(name), node.arguments.len()) {
            ("prim", ShapeRule::Unpack | ShapeRule::List | ShapeRule::Dictionary, 1) => return position(0),
            (_, ShapeRule::Item, 2) => return format!("{}[{}]", first(), position(1)),
            ("prim", ShapeRule::TypeOf | ShapeRule::DeviceOf | ShapeRule::LayoutOf, 1) => {
                return format!("{}.{name}", first());
            }
            ("aten", ShapeRule::Slice, _) => {
                if let Some(call) = self.slice(node) {
                    return call;
                }
            }
            ("aten", ShapeRule::AnyConvolution, 9..) => {
                if let Some(call) = self.convolution(node) {
                    return call;
                }
            }
            // Methods of lists and tensors that `torch.ops` does not have.
            ("aten", ShapeRule::Same, 2) if has(name, Mark::Changes) => {
                return format!("{}.{name}({})", first(), position(1));
            }
            ("prim", _, 1) if name == TO_LIST => return format!("{}.{name}()", first()),
            _ => {}
        }
        self.plain(node, space, name)
    }

    /// An operator on a shared layer. Its last operand, the number of devices, is known to the stage.
    fn shared(&self, node: &Node, name: &str) -> String {
        let mut given: Vec<String> = node.arguments.iter().map(|a| self.operand(&a.operand)).collect();
        match name {
            "shard_dropout" | "shard_dropout_bands" | "shard_dropout_first" | "shard_batch_norm" => {
                let at = if name == "shard_batch_norm" { 5 } else { 2 };
                if let Some(train) = given.get_mut(at).filter(|train| *train == bool_text(self.training)) {
                    *train = "self.training".to_string();
                }
            }
            "shard_embedding"
            | "shard_group_norm"
            | "shard_cross_entropy"
            | "shard_attention"
            | "shard_grouped_mm" => {}
            _ => {
                given.pop();
            }
        }
        // One block is the default.
        let left_out: &[&str] = match name {
            "shard_scatter"
            | "shard_gather"
            | "shard_gather_split"
            | "shard_reduce_scatter"
            | "shard_dropout" => &["1"],
            "shard_window" => &["0.0"],
            "shard_stretch" => &["None", "False"],
            "shard_attention" => &["False", "None"],
            _ => &[],
        };
        for usual in left_out {
            if given.last().is_some_and(|last| last != usual) {
                break;
            }
            given.pop();
        }
        let whose = if split(&node.operator).0 == OUTER { "shard.outer" } else { "shard" };
        format!("self.{whose}.{}({})", name.trim_start_matches("shard_"), given.join(", "))
    }

    /// `conv2d` and similar functions, recorded as `aten::_convolution`.
    fn convolution(&self, node: &Node) -> Option<String> {
        let operand = |index: usize| &node.arguments[index].operand;
        let length = match operand(3) {
            Operand::List(items) => items.len(),
            _ => return None,
        };
        if !(1..=3).contains(&length) {
            return None;
        }
        let given = |places: [usize; 7]| places.map(|place| self.operand(operand(place))).join(", ");
        let zero = |operand: &Operand| {
            matches!(operand, Operand::List(items)
            if items.iter().all(|item| *item == Operand::Constant(Constant::Int(0))))
        };
        match operand(6) {
            Operand::Constant(Constant::Bool(false)) if zero(operand(7)) => {
                Some(format!("torch.conv{length}d({})", given([0, 1, 2, 3, 4, 5, 8])))
            }
            Operand::Constant(Constant::Bool(true)) => {
                let dilation = self.operand(operand(5));
                Some(format!("torch.conv_transpose{length}d({}, {dilation})", given([0, 1, 2, 3, 4, 7, 8])))
            }
            _ => None,
        }
    }

    fn plain(&self, node: &Node, space: &str, name: &str) -> String {
        let device = follows_device(node, self.on_host);
        let flag = self.training_flag(node, name);
        let mut positional = Vec::new();
        let mut named = Vec::new();
        let mut is_public = true;
        for (index, argument) in node.arguments.iter().enumerate() {
            let constant = match &argument.operand {
                Operand::Constant(constant) => Some(constant),
                _ => None,
            };
            let keyword = keyword(name, index, argument);
            let is_dtype = match argument.name.as_deref().or(keyword.filter(|name| *name != MEMORY_FORMAT)) {
                Some(name) => name == DTYPE,
                None => is_dtype_position(name, index, |at| {
                    let operand = node.arguments.get(at).map(|argument| &argument.operand);
                    matches!(operand, Some(Operand::Constant(Constant::Int(_))))
                }),
            };
            let mut text = match constant {
                _ if flag == Some(index) => "self.training".to_string(),
                // The same gradient with all rows, which is what stages sum up, send and step with.
                Some(Constant::Bool(true)) if Some(index) == sparse_flag(name) => {
                    bool_text(false).to_string()
                }
                Some(Constant::Device(_)) if device => "device".to_string(),
                Some(Constant::Int(code)) if is_dtype => match dtype_of_code(*code) {
                    Some(dtype) => dtype.to_string(),
                    None => {
                        is_public = false;
                        code.to_string()
                    }
                },
                _ => self.operand(&argument.operand),
            };
            let Some(keyword) = keyword else {
                positional.push(text);
                continue;
            };
            match (keyword, constant) {
                (keyword, Some(Constant::None)) if OF_TENSORS.contains(&keyword) => continue,
                (PIN_MEMORY, Some(Constant::Bool(false))) | (LAYOUT, Some(Constant::Int(0))) => continue,
                (MEMORY_FORMAT, Some(Constant::Int(code))) => match memory_format(*code) {
                    Some(format) => text = format.to_string(),
                    None => is_public = false,
                },
                (LAYOUT, Some(_)) => is_public = false,
                _ => {}
            }
            named.push((keyword, text));
        }
        let named = named.into_iter().map(|(name, text)| format!("{name}={text}"));
        // Python's functions take tensors; those of the dispatcher also take and return numbers.
        let is_of_numbers = !node.arguments.is_empty()
            && !has(name, Mark::OnDevice)
            && node.arguments.iter().all(|a| self.is_number(&a.operand));
        let spelling = if is_public && !is_of_numbers {
            spelling(space, name)
        } else {
            Spelling::Operator(operator(space, name))
        };
        let (callee, skip) = match spelling {
            Spelling::Method(method) if !positional.is_empty() => {
                (format!("{}.{method}", self.primary(node.arguments.first().map(|a| &a.operand))), 1)
            }
            Spelling::Method(method) => (format!("torch.ops.aten.{method}"), 0),
            Spelling::Torch(callee) | Spelling::Functional(callee) | Spelling::Operator(callee) => {
                (callee, 0)
            }
        };
        let arguments: Vec<String> = positional.into_iter().skip(skip).chain(named).collect();
        format!("{callee}({})", arguments.join(", "))
    }

    /// Tells whether an operator is written with Python's symbol: not if an operand is a tensor, whose operator has
    /// more arguments.
    fn is_signed(&self, node: &Node, numbers: Arithmetic) -> bool {
        let is_pair = node.arguments.len() == 2;
        let all = |is: fn(&Self, &Operand) -> bool| node.arguments.iter().all(|a| is(self, &a.operand));
        match numbers {
            Arithmetic::And | Arithmetic::Or | Arithmetic::Xor | Arithmetic::FloorDivideNumbers => is_pair,
            Arithmetic::Add if is_pair && self.is_list(&node.arguments[0].operand) => true,
            _ if numbers.compares() => is_pair && all(Self::is_plain),
            _ => all(Self::is_number),
        }
    }

    /// Returns the argument with a layer's training flag, if it is the module's own flag and not a constant.
    ///
    /// A flag is the module's own if it equals the module's and the root's mode at tracing; other flags stay as traced.
    fn training_flag(&self, node: &Node, name: &str) -> Option<usize> {
        let row = find(plain(name).0)?;
        let is_batch_norm = row.kernel == Kernel::BatchNorm;
        let index = match row.shape {
            _ if is_batch_norm => 5,
            ShapeRule::Dropout => 2,
            rule if rule.is_recurrent_layer() => {
                // The packed form has one more argument in front and none at the end.
                match &node.arguments.get(1)?.operand {
                    Operand::List(_) => 6,
                    _ => node.arguments.len().checked_sub(2)?,
                }
            }
            _ => return None,
        };
        if is_batch_norm {
            // Without statistics there are none to use in evaluation mode.
            let statistics = &node.arguments.get(3)?.operand;
            if !matches!(statistics, Operand::Tensor(id) if self.program.tensors[id.index()].role == Role::Buffer)
            {
                return None;
            }
        }
        let Operand::Constant(Constant::Bool(flag)) = node.arguments.get(index)?.operand else { return None };
        let module = self.program.calls[node.call.index()].module;
        let mode = self.program.modules[module.index()].attributes.get("training")?;
        (*mode == Constant::Bool(flag) && flag == self.training).then_some(index)
    }

    fn kind(&self, operand: &Operand) -> Kind {
        match operand {
            Operand::Value(value) => self.kinds[value.index()].clone(),
            Operand::Constant(Constant::Int(_)) => Kind::Int,
            Operand::Constant(Constant::Float(_)) => Kind::Float,
            Operand::Constant(Constant::Bool(_)) => Kind::Bool,
            _ => Kind::Tensor,
        }
    }

    fn is_number(&self, operand: &Operand) -> bool {
        let is_either =
            |value: &tracer::ValueId| self.program.values[value.index()].type_ == tracer::Type::Number;
        matches!(self.kind(operand), Kind::Int | Kind::Float | Kind::Bool)
            || matches!(operand, Operand::Value(value) if is_either(value))
    }

    /// Tells whether a value is a Python value without tensors in it.
    fn is_plain(&self, operand: &Operand) -> bool {
        match operand {
            Operand::Value(value) => {
                let type_ = &self.program.values[value.index()].type_;
                !matches!(type_, tracer::Type::List(item) if matches!(**item, tracer::Type::Tensor(_)))
                    && self.kinds[value.index()] != Kind::Tensor
            }
            Operand::Constant(_) => true,
            Operand::List(items) | Operand::Tuple(items) => items.iter().all(|item| self.is_plain(item)),
            Operand::Tensor(_) | Operand::Dict(_) => false,
        }
    }

    fn is_list(&self, operand: &Operand) -> bool {
        match operand {
            Operand::List(_) => true,
            Operand::Value(value) => self.kinds[value.index()] == Kind::IntList,
            _ => false,
        }
    }

    /// Returns the name of a value in the stage's code.
    pub fn name(&self, value: tracer::ValueId) -> &str {
        self.own_name(self.folded.get(value))
    }

    /// `x[:, 2:5]` for the common forms of `aten::slice`.
    fn slice(&self, node: &Node) -> Option<String> {
        let operand = |index: usize| node.arguments.get(index).map(|a| &a.operand);
        let Some(Operand::Constant(Constant::Int(dim @ 0..=8))) = operand(1) else { return None };
        let bound = |index: usize| match operand(index) {
            None | Some(Operand::Constant(Constant::None)) => Some(String::new()),
            Some(Operand::Constant(Constant::Int(i64::MAX))) if index == 3 => Some(String::new()),
            Some(Operand::Constant(Constant::Int(0))) if index == 2 => Some(String::new()),
            Some(Operand::Constant(Constant::Int(value))) => Some(value.to_string()),
            Some(Operand::Value(value)) if self.kinds[self.folded.get(*value).index()] == Kind::Int => {
                Some(self.name(*value).to_string())
            }
            _ => None,
        };
        if !matches!(operand(4), None | Some(Operand::Constant(Constant::Int(1)))) || node.arguments.len() < 3
        {
            return None;
        }
        let all = ":, ".repeat(*dim as usize);
        Some(format!("{}[{all}{}:{}]", self.primary(operand(0)), bound(2)?, bound(3)?))
    }

    /// Writes an operand so that a dot can follow.
    fn primary(&self, operand: Option<&Operand>) -> String {
        match operand {
            None => String::new(),
            Some(Operand::Constant(constant)) => format!("({})", Self::constant(constant)),
            Some(operand) => self.operand(operand),
        }
    }
}

impl Operands for Writer<'_> {
    const NOT_FINITE: [&'static str; 2] = ["torch.inf", "torch.nan"];

    fn value(&self, value: tracer::ValueId) -> String {
        self.name(value).to_string()
    }

    fn tensor(&self, id: TensorId) -> String {
        let tensor = &self.program.tensors[id.index()];
        match self.scope.tensors.get(&id) {
            Some(name) => name.clone(),
            None if tensor.role == Role::Constant => {
                format!("self.{}.{}", self.constants, constant_name(self.program, id))
            }
            None => self.module(&tensor.path),
        }
    }

    fn quoted(text: &str) -> String {
        quoted(text)
    }
}

/// Attributes of every `nn.Module`: a child of that name is not accessible after a dot.
const OF_MODULES: &[&str] = &[
    "T_destination",
    "add_module",
    "apply",
    "bfloat16",
    "buffers",
    "call_super_init",
    "children",
    "compile",
    "cpu",
    "cuda",
    "double",
    "dump_patches",
    "eval",
    "extra_repr",
    "float",
    "forward",
    "get_buffer",
    "get_extra_state",
    "get_parameter",
    "get_submodule",
    "half",
    "ipu",
    "load_state_dict",
    "modules",
    "mtia",
    "named_buffers",
    "named_children",
    "named_modules",
    "named_parameters",
    "parameters",
    "register_backward_hook",
    "register_buffer",
    "register_forward_hook",
    "register_forward_pre_hook",
    "register_full_backward_hook",
    "register_full_backward_pre_hook",
    "register_load_state_dict_post_hook",
    "register_load_state_dict_pre_hook",
    "register_module",
    "register_parameter",
    "register_state_dict_post_hook",
    "register_state_dict_pre_hook",
    "requires_grad_",
    "set_extra_state",
    "set_submodule",
    "share_memory",
    "state_dict",
    "to",
    "to_empty",
    "train",
    "training",
    "type",
    "xpu",
    "zero_grad",
];

/// Tells whether a name behind a dot is that of a module's child, and of nothing that modules have themselves.
pub(crate) fn is_child(name: &str) -> bool {
    is_identifier(name) && !OF_MODULES.contains(&name)
}

/// Writes one step of an attribute path: `.conv1`, `[0]`, `["block1-0"]`.
fn step(name: &str) -> String {
    let is_index = !name.is_empty()
        && name.len() < 10
        && name.bytes().all(|b| b.is_ascii_digit())
        && (name == "0" || !name.starts_with('0'));
    match name {
        _ if is_child(name) => format!(".{name}"),
        _ if is_index => format!("[{name}]"),
        _ => format!("[{}]", quoted(name)),
    }
}

/// Returns an identifier for a constant of the trace, the same in each stage.
pub(crate) fn constant_name(program: &Program, id: TensorId) -> String {
    let path = &program.tensors[id.index()].path;
    match path.strip_prefix("CONSTANTS.") {
        Some(name) if is_identifier(name) => name.to_string(),
        _ => format!("k{}", id.0),
    }
}
