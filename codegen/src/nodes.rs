//! Properties of nodes for cutting: which write in place, which are cheap and exact to recompute.
//!
//! Unknown operators are assumed to carry gradients and to be expensive.

use operators::{Arithmetic, InPlace, Mark, Memory, ShapeRule, find, has, plain};
use tracer::{Constant, Node, Operand, Program, Type, Value, ValueId};

/// Splits `aten::conv2d` into name space and name.
pub fn split(operator: &str) -> (&str, &str) {
    operator.split_once("::").unwrap_or(("", operator))
}

/// Tells whether an operator draws random numbers.
pub fn draws(node: &Node) -> bool {
    let (space, name) = split(&node.operator);
    let in_evaluation = || {
        let flag = node.arguments.get(2).map(|argument| &argument.operand);
        is_dropout(name) && matches!(flag, Some(Operand::Constant(Constant::Bool(false))))
    };
    space == "aten" && has(name, Mark::Random) && !in_evaluation()
}

/// Tells whether a name is a dropout's.
fn is_dropout(name: &str) -> bool {
    matches!(rule_of(name), ShapeRule::Dropout | ShapeRule::NativeDropout)
}

/// Returns the shape rule of an operator of this name.
pub(crate) fn rule_of(name: &str) -> ShapeRule {
    find(name).map_or(ShapeRule::Unknown, |row| row.shape)
}

/// Tells whether an operator of this name changes the elements of its first argument.
pub fn is_in_place(name: &str) -> bool {
    operators::is_in_place(name) || has(name, Mark::Changes)
}

/// Returns the positions of the arguments that a node writes to.
pub fn mutated_arguments(node: &Node) -> Vec<usize> {
    let (space, name) = split(&node.operator);
    if space == "prim" {
        return node.changes.iter().map(|index| *index as usize).collect();
    }
    let mut mutated = Vec::new();
    if is_in_place(name) {
        mutated.push(0);
    }
    for (index, argument) in node.arguments.iter().enumerate() {
        if argument.name.as_deref() == Some("out") {
            mutated.push(index);
        }
    }
    let is_true = |index: usize| {
        let operand = node.arguments.get(index).map(|a| &a.operand);
        operand == Some(&Operand::Constant(Constant::Bool(true)))
    };
    // (input, weight, bias, running_mean, running_var, training, …)
    if has(name, Mark::MovesStatistics) && is_true(5) {
        mutated.extend([3, 4]);
    }
    mutated.retain(|&index| index < node.arguments.len());
    mutated
}

/// Returns the out-of-place form of an in-place operator, if there is one with the same arguments.
pub fn out_of_place(operator: &str) -> Option<String> {
    let (space, name) = split(operator);
    let (plain, is_in_place) = plain(name);
    let has_form = is_in_place && find(plain).is_some_and(|row| row.in_place == InPlace::Same);
    (space == "aten" && has_form).then(|| format!("{space}::{plain}"))
}

/// The name spaces of operators on shared layers: of the devices of a group, and of groups that share further inside.
pub const INNER: &str = "shard";
/// See [`INNER`].
pub const OUTER: &str = "outer";

/// Tells whether a name space is one of operators on shared layers.
pub fn is_exchange(space: &str) -> bool {
    matches!(space, INNER | OUTER)
}

/// Tells whether a node may be recomputed in another stage instead of sending its result.
pub fn is_cheap(node: &Node) -> bool {
    let (space, name) = split(&node.operator);
    let Some(row) = find(name).filter(|_| matches!(space, "aten" | "prim" | INNER | OUTER)) else {
        return false;
    };
    (row.has(Mark::Cheap) || row.has(Mark::NoGradient) || row.memory != Memory::Fresh)
        && !row.has(Mark::Random)
        && !row.has(Mark::Unset)
        && mutated_arguments(node).is_empty()
}

/// Tells whether a node only makes a view of its first argument, or unpacks it.
pub fn is_plumbing(node: &Node) -> bool {
    let (_, name) = split(&node.operator);
    has(name, Mark::GivesParts)
        || Arithmetic::of(name) == Arithmetic::ToNumberImplicitly
        || is_unpacking(node)
}

/// Tells whether a node takes a list, tuple or dictionary apart.
pub fn is_unpacking(node: &Node) -> bool {
    let (_, name) = split(&node.operator);
    has(name, Mark::Unpacks)
}

/// Tells whether an operator only converts numbers to tensors and back, or unpacks lists: a cut adds and removes such
/// steps.
pub fn is_detour(operator: &str) -> bool {
    let (space, name) = split(operator);
    // `aten::device` parses text, `prim::device` returns a tensor's device.
    matches!(space, "aten" | "prim") && has(name, Mark::Detour) && operator != "aten::device"
}

/// Tells whether the results never carry a gradient.
pub fn cuts_gradient(node: &Node) -> bool {
    let (_, name) = split(&node.operator);
    has(name, Mark::NoGradient)
}

/// The kind of a value, which decides how it is sent.
#[derive(Clone, Debug, PartialEq)]
pub enum Kind {
    /// A tensor: sent as it is.
    Tensor,
    /// A number: sent as a tensor without dimensions.
    Int,
    /// A number.
    Float,
    /// A boolean.
    Bool,
    /// A list of integers: sent as a tensor with one dimension.
    IntList,
    /// Cannot be sent.
    Other(String),
}

impl Kind {
    /// Tells whether a value of this kind can be sent from one stage to another.
    pub fn can_be_sent(&self) -> bool {
        !matches!(self, Kind::Other(_))
    }

    /// Tells whether it must be converted to a tensor to be sent.
    pub fn is_boxed(&self) -> bool {
        matches!(self, Kind::Int | Kind::Float | Kind::Bool | Kind::IntList)
    }
}

/// Returns the kind of each value.
pub fn kinds(program: &Program) -> Vec<Kind> {
    let mut kinds: Vec<Kind> = program.values.iter().map(|value| declared(&value.type_)).collect();
    for node in &program.nodes {
        for &output in &node.outputs {
            // The declared type decides unless it is the default.
            let slot = output.index();
            if slot < kinds.len() && kinds[slot] == Kind::Tensor {
                kinds[slot] = made(node, &kinds, &program.values);
            }
        }
    }
    kinds
}

fn declared(type_: &Type) -> Kind {
    match type_ {
        Type::Tensor(_) => Kind::Tensor,
        Type::Int => Kind::Int,
        Type::Float => Kind::Float,
        Type::Bool => Kind::Bool,
        Type::List(item) if **item == Type::Int => Kind::IntList,
        Type::Optional(inner) if matches!(**inner, Type::Tensor(_)) => Kind::Tensor,
        Type::Number => Kind::Other("a number that is an integer or a float".into()),
        Type::List(_) => Kind::Other("a list".into()),
        Type::Tuple(_) => Kind::Other("a tuple".into()),
        Type::Dict(..) => Kind::Other("a dictionary".into()),
        Type::Str => Kind::Other("a string".into()),
        Type::Device => Kind::Other("a device".into()),
        Type::None => Kind::Other("None".into()),
        Type::Optional(_) => Kind::Other("an optional".into()),
        Type::Class(_) => Kind::Other("an object".into()),
    }
}

fn made(node: &Node, kinds: &[Kind], values: &[Value]) -> Kind {
    let (_, name) = split(&node.operator);
    let is_number = |operand: &Operand| match operand {
        Operand::Constant(Constant::Int(_) | Constant::Float(_) | Constant::Bool(_)) => true,
        Operand::Value(value) => {
            matches!(kinds.get(value.index()), Some(Kind::Int | Kind::Float | Kind::Bool))
        }
        _ => false,
    };
    let one = node.outputs.len() == 1;
    match (rule_of(name), Arithmetic::of(name)) {
        (ShapeRule::Size, _) if node.arguments.len() == 1 && one => Kind::IntList,
        (
            ShapeRule::Size
            | ShapeRule::Rank
            | ShapeRule::Elements
            | ShapeRule::Length
            | ShapeRule::ToInt
            | ShapeRule::TypeOf
            | ShapeRule::LayoutOf,
            _,
        ) => Kind::Int,
        (ShapeRule::StrideOf, _) if node.arguments.len() == 1 => Kind::IntList,
        (ShapeRule::ToFloat, _) => Kind::Float,
        (ShapeRule::ToBool | ShapeRule::IsFloatingPoint | ShapeRule::Is | ShapeRule::IsNot, _)
        | (_, Arithmetic::Not) => Kind::Bool,
        (ShapeRule::Convert, _) => Kind::Other("a number that is an integer or a float".into()),
        (ShapeRule::DeviceOf, _) => Kind::Other("a device".into()),
        (
            ShapeRule::Split
            | ShapeRule::HSplit
            | ShapeRule::VSplit
            | ShapeRule::DSplit
            | ShapeRule::Unbind
            | ShapeRule::Meshgrid
            | ShapeRule::BroadcastTensors,
            _,
        ) if one => Kind::Other("a list".into()),
        (
            _,
            Arithmetic::Add
            | Arithmetic::Subtract
            | Arithmetic::Multiply
            | Arithmetic::FloorDivideNumbers
            | Arithmetic::Remainder
            | Arithmetic::Negate,
        ) if !node.arguments.is_empty() && node.arguments.iter().all(|a| is_number(&a.operand)) => {
            let is_float = |operand: &Operand| match operand {
                Operand::Constant(Constant::Float(_)) => true,
                Operand::Value(value) => kinds.get(value.index()) == Some(&Kind::Float),
                _ => false,
            };
            if node.arguments.iter().any(|a| is_float(&a.operand)) { Kind::Float } else { Kind::Int }
        }
        (ShapeRule::Unpack, _) => match node.arguments.first().map(|a| &a.operand) {
            Some(Operand::Value(list)) if kinds.get(list.index()) == Some(&Kind::IntList) => Kind::Int,
            _ => Kind::Tensor,
        },
        (ShapeRule::Item, _) => match node.arguments.first().map(|a| &a.operand) {
            Some(Operand::Value(list)) if kinds.get(list.index()) == Some(&Kind::IntList) => Kind::Int,
            Some(Operand::Value(list)) => match values.get(list.index()).map(|v| &v.type_) {
                Some(Type::List(item)) => declared(item),
                Some(Type::Dict(_, item)) => declared(item),
                _ => Kind::Tensor,
            },
            _ => Kind::Tensor,
        },
        _ => Kind::Tensor,
    }
}

/// Calls `visit` for every leaf of an operand.
pub fn leaves<'p>(operand: &'p Operand, visit: &mut dyn FnMut(&'p Operand)) {
    let mut stack = vec![operand];
    while let Some(operand) = stack.pop() {
        match operand {
            Operand::List(items) | Operand::Tuple(items) => stack.extend(items.iter().rev()),
            Operand::Dict(items) => {
                for (key, value) in items.iter().rev() {
                    stack.push(value);
                    stack.push(key);
                }
            }
            leaf => visit(leaf),
        }
    }
}

/// Returns the values that an operand reads, in order, repeats included.
pub fn values_of(operand: &Operand) -> Vec<ValueId> {
    let mut values = Vec::new();
    leaves(operand, &mut |leaf| {
        if let Operand::Value(value) = leaf {
            values.push(*value);
        }
    });
    values
}
