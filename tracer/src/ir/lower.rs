//! From the tree to a [`Program`]: constants, lists, tuples and attribute fetches become operands.

use std::collections::{HashMap, HashSet};

use super::{
    IrError,
    meaning::{class_name, literal_operand, lower_type, tensor_type},
    scopes::{Calls, Modules},
    tree::{Block, Graph, IrTensorType, IrType, Literal, Node as IrNode, Use},
};
use crate::{
    Argument, CallId, Constant, DType, ModuleId, Node, NodeId, Operand, Program, Role, Span, Tensor,
    TensorId, TensorType, Value, ValueId,
    constant_folding::{WrittenOut, is_mark, only_asks, settled},
};

/// Lists and tuples inside one another.
const MAX_DEPTH: usize = 64;
/// Names in a module's path.
const MAX_PATH: usize = 256;
/// Elements of one operand when written out: lists of lists of lists can square a text's length.
const MAX_ELEMENTS: usize = 1 << 20;
/// Elements of all operands together. A list is copied to each of its uses, so a short text could ask for much.
const MAX_COPIED: usize = 1 << 23;

/// The binding of a name.
#[derive(Clone)]
pub(super) enum Bound {
    Operand(Operand, Weight),
    Module(ModuleId, usize),
    Function(String),
}

/// The size of an operand, so that it can be bounded before it is copied.
#[derive(Clone, Copy, Default)]
pub(super) struct Weight {
    depth: usize,
    elements: usize,
}

/// Turns a tree into a program. O(text), each operand being copied where it is used.
pub fn lower(graph: &Graph) -> Result<Program, IrError> {
    let root = graph.inputs.first().and_then(|input| class_name(&input.type_));
    let mut lowering = Lowering {
        program: Program {
            name: last_part(root.as_deref().unwrap_or("graph")).to_owned(),
            ..Program::default()
        },
        modules: Modules::new(root.clone().unwrap_or_default()),
        calls: Calls::new(),
        bound: HashMap::new(),
        tensors: HashMap::new(),
        scopes: HashMap::new(),
        constants: 0,
        copied: 0,
        lists: HashMap::new(),
        written_out: WrittenOut::default(),
        repeats: 0,
        repeat: None,
    };
    for (index, input) in graph.inputs.iter().enumerate() {
        if index == 0 && root.is_some() {
            lowering.bound.insert(input.name.clone(), Bound::Module(ModuleId(0), 0));
        } else {
            let value = lowering.value(&input.name, &input.type_, None, input.span)?;
            lowering.program.inputs.push(value);
        }
    }
    for node in &graph.nodes {
        lowering.node(node)?;
    }
    let mut outputs = Vec::new();
    for output in &graph.outputs {
        outputs.push(lowering.operand(output)?.0);
    }
    lowering.program.output = one_or_tuple(outputs);
    Ok(lowering.finish())
}

pub(super) struct Lowering {
    pub(super) program: Program,
    pub(super) modules: Modules,
    pub(super) calls: Calls,
    pub(super) bound: HashMap<String, Bound>,
    tensors: HashMap<String, TensorId>,
    scopes: HashMap<String, Vec<ModuleId>>,
    constants: usize,
    copied: usize,
    /// Types of lists, which an empty one does not say itself.
    pub(super) lists: HashMap<String, IrType>,
    pub(super) written_out: WrittenOut,
    /// Rounds of loops after their first.
    pub(super) repeats: usize,
    /// The round being written out, other than a loop's first.
    pub(super) repeat: Option<usize>,
}

impl Lowering {
    fn finish(self) -> Program {
        let nodes = self.program.nodes.len() as u32;
        let mut program = self.program;
        program.modules = self.modules.into_list();
        program.calls = self.calls.finish(nodes);
        super::boundaries::fill(&mut program);
        program
    }

    pub(super) fn node(&mut self, node: &IrNode) -> Result<(), IrError> {
        match node.kind.as_str() {
            "prim::Constant" => self.constant(node),
            "prim::GetAttr" => self.get_attribute(node),
            "prim::ListConstruct" => {
                self.lists.extend(node.outputs.first().map(|list| (list.name.clone(), list.type_.clone())));
                self.construct(node, Operand::List)
            }
            "aten::append" => self.append(node),
            "prim::unchecked_cast" => self.cast(node),
            "prim::TupleConstruct" => self.construct(node, Operand::Tuple),
            "prim::DictConstruct" => self.dict(node),
            "prim::TupleUnpack" | "prim::ListUnpack" => self.unpack(node),
            "prim::CallMethod" => self.call_method(node),
            kind if is_mark(kind) => self.mark(node),
            _ if !node.blocks.is_empty() => self.control(node),
            _ => self.operator(node),
        }
    }

    fn constant(&mut self, node: &IrNode) -> Result<(), IrError> {
        let output = only_output(node)?;
        let literal = node.attributes.iter().find(|(name, _)| name == "value").map(|(_, literal)| literal);
        if let Some((_, Literal::Str(name))) = node.attributes.iter().find(|(name, _)| name == "name") {
            return self.bind(&output.name, Bound::Function(name.clone()), output.span);
        }
        if let IrType::Tensor(tensor) = &output.type_ {
            let id = self.constant_tensor(tensor);
            if let Some(Literal::Boxed(text)) = literal {
                self.program.literals.extend(boxed(text, tensor_type(tensor).dtype).map(|value| (id, value)));
            }
            let operand = Operand::Tensor(id);
            return self.bind(&output.name, Bound::Operand(operand, Weight::default()), output.span);
        }
        let operand = match literal {
            None => Operand::Constant(Constant::None),
            Some(literal) => literal_operand(literal, Some(&output.type_)),
        };
        let weight = weigh(&operand);
        self.bind(&output.name, Bound::Operand(operand, weight), output.span)
    }

    /// Operators for profilers are left out.
    fn mark(&mut self, node: &IrNode) -> Result<(), IrError> {
        let nothing = || Bound::Operand(Operand::default(), Weight::default());
        node.outputs.iter().try_for_each(|output| self.bind(&output.name, nothing(), output.span))
    }

    fn constant_tensor(&mut self, type_: &IrTensorType) -> TensorId {
        let known = tensor_type(type_);
        let path = format!("CONSTANTS.c{}", self.constants);
        self.constants += 1;
        self.push_tensor(path, known, Role::Constant)
    }

    fn push_tensor(&mut self, path: String, known: TensorType, role: Role) -> TensorId {
        let id = TensorId(self.program.tensors.len() as u32);
        self.program.tensors.push(Tensor {
            path,
            dtype: known.dtype.unwrap_or(DType::Float32),
            shape: known.shape.unwrap_or_default(),
            strides: known.strides.unwrap_or_default(),
            storage: None,
            requires_grad: known.requires_grad.unwrap_or(role == Role::Parameter),
            role,
            device: known.device.unwrap_or_else(|| "cpu".to_owned()),
        });
        id
    }

    fn get_attribute(&mut self, node: &IrNode) -> Result<(), IrError> {
        let output = only_output(node)?;
        let [base] = node.inputs.as_slice() else {
            return Err(arity(node, "one input", node.inputs.len()));
        };
        let Some((_, Literal::Str(name))) = node.attributes.iter().find(|(name, _)| name == "name") else {
            return Err(arity(node, "the attribute name=\"…\"", node.attributes.len()));
        };
        let Some(Bound::Module(module, depth)) = self.bound.get(&base.name).cloned() else {
            // An attribute of something that is not a module: keep it as an operator.
            return self.operator(node);
        };
        // Only the first round of a loop counts: later ones fetch again an attribute that the code fetches once.
        if self.repeat.is_none() {
            self.calls.fetch(module, name);
        }
        let bound = match &output.type_ {
            IrType::Tensor(type_) => {
                let tensor = self.attribute_tensor(module, name, type_);
                Bound::Operand(Operand::Tensor(tensor), Weight::default())
            }
            type_ => match class_name(type_) {
                Some(class) => {
                    if depth >= MAX_PATH {
                        let what = "names in a module's path".to_owned();
                        return Err(IrError::TooMuch { what, limit: MAX_PATH, span: node.span });
                    }
                    Bound::Module(self.modules.child(module, name, &class), depth + 1)
                }
                None => return self.plain_attribute(node, module, name),
            },
        };
        self.bind(&output.name, bound, output.span)
    }

    fn attribute_tensor(&mut self, module: ModuleId, name: &str, type_: &IrTensorType) -> TensorId {
        let path = self.modules.path_of(module, name);
        if let Some(id) = self.tensors.get(&path) {
            return *id;
        }
        let known = tensor_type(type_);
        // The text does not tell parameters from buffers; these names are batch norm's.
        let is_buffer = matches!(name, "running_mean" | "running_var" | "num_batches_tracked")
            || known.requires_grad == Some(false);
        let role = if is_buffer { Role::Buffer } else { Role::Parameter };
        let id = self.push_tensor(path.clone(), known, role);
        self.tensors.insert(path, id);
        let module = self.modules.get_mut(module);
        let attributes = if is_buffer { &mut module.buffers } else { &mut module.parameters };
        attributes.insert(name.to_owned(), id);
        id
    }

    /// `%training : bool = prim::GetAttr[name="training"](%self)`: its value is not in the text.
    fn plain_attribute(&mut self, node: &IrNode, module: ModuleId, name: &str) -> Result<(), IrError> {
        let path = self.modules.path_of(module, name);
        let arguments = vec![Operand::Constant(Constant::Str(path))];
        self.push_node(node, "prim::GetAttr", arguments).map(drop)
    }

    fn construct(&mut self, node: &IrNode, make: fn(Vec<Operand>) -> Operand) -> Result<(), IrError> {
        let output = only_output(node)?;
        let (items, weight) = self.operands(&node.inputs, node.span)?;
        self.bind(&output.name, Bound::Operand(make(items), weight), output.span)
    }

    /// A cast only tells a type.
    fn cast(&mut self, node: &IrNode) -> Result<(), IrError> {
        let ([input], [output]) = (node.inputs.as_slice(), node.outputs.as_slice()) else {
            return self.operator(node);
        };
        let (operand, weight) = self.operand(input)?;
        self.bind(&output.name, Bound::Operand(operand, weight), output.span)
    }

    fn dict(&mut self, node: &IrNode) -> Result<(), IrError> {
        let output = only_output(node)?;
        if !node.inputs.len().is_multiple_of(2) {
            return Err(arity(node, "keys and values in pairs", node.inputs.len()));
        }
        let (items, weight) = self.operands(&node.inputs, node.span)?;
        let mut items = items.into_iter();
        let mut pairs = Vec::new();
        while let (Some(key), Some(value)) = (items.next(), items.next()) {
            pairs.push((key, value));
        }
        self.bind(&output.name, Bound::Operand(Operand::Dict(pairs), weight), output.span)
    }

    fn unpack(&mut self, node: &IrNode) -> Result<(), IrError> {
        let [input] = node.inputs.as_slice() else {
            return Err(arity(node, "one input", node.inputs.len()));
        };
        let (operand, _) = self.operand(input)?;
        let (Operand::Tuple(parts) | Operand::List(parts)) = operand else {
            return self.operator(node);
        };
        if parts.len() != node.outputs.len() {
            return Err(arity(node, &format!("{} outputs", parts.len()), node.outputs.len()));
        }
        for (part, output) in parts.into_iter().zip(&node.outputs) {
            let weight = weigh(&part);
            self.bind(&output.name, Bound::Operand(part, weight), output.span)?;
        }
        Ok(())
    }

    /// A call that the graph does not show the inside of: one node in a call of its own.
    fn call_method(&mut self, node: &IrNode) -> Result<(), IrError> {
        let Some((_, Literal::Str(method))) = node.attributes.iter().find(|(name, _)| name == "name") else {
            return Err(arity(node, "the attribute name=\"…\"", node.attributes.len()));
        };
        let module = node.inputs.first().and_then(|input| self.bound.get(&input.name)).cloned();
        let Some(Bound::Module(module, _)) = module else {
            return self.operator(node);
        };
        let (arguments, _) = self.operands(&node.inputs[1..], node.span)?;
        self.enter_scope(node)?;
        let first = self.program.nodes.len() as u32;
        let call = self.calls.enter_method(module, method, first);
        let operator = Node {
            operator: "prim::CallMethod".to_owned(),
            arguments: arguments.iter().cloned().map(positional).collect(),
            outputs: Vec::new(),
            changes: Vec::new(),
            call,
            span: node.span,
        };
        let outputs = self.push(operator, node)?;
        self.calls.leave(first + 1);
        let call = self.calls.get_mut(call);
        call.arguments = arguments;
        call.output = one_or_tuple(outputs.into_iter().map(Operand::Value).collect());
        Ok(())
    }

    pub(super) fn operator(&mut self, node: &IrNode) -> Result<(), IrError> {
        let (arguments, _) = self.operands(&node.inputs, node.span)?;
        if let ([output], true) = (node.outputs.as_slice(), only_asks(&node.kind)) {
            let asked: Vec<Argument> = arguments.iter().cloned().map(positional).collect();
            let program = &self.program;
            if let Some(constant) = settled(&node.kind, &asked, &program.values, &program.nodes) {
                let bound = Bound::Operand(Operand::Constant(constant), Weight { depth: 0, elements: 1 });
                return self.bind(&output.name, bound, output.span);
            }
        }
        self.push_node(node, &node.kind, arguments).map(drop)
    }

    pub(super) fn push_node(
        &mut self,
        node: &IrNode,
        operator: &str,
        arguments: Vec<Operand>,
    ) -> Result<NodeId, IrError> {
        let call = self.enter_scope(node)?;
        let id = NodeId(self.program.nodes.len() as u32);
        let operator = Node {
            operator: operator.to_owned(),
            arguments: arguments.into_iter().map(positional).collect(),
            outputs: Vec::new(),
            changes: Vec::new(),
            call,
            span: node.span,
        };
        self.push(operator, node)?;
        Ok(id)
    }

    fn push(&mut self, mut operator: Node, node: &IrNode) -> Result<Vec<ValueId>, IrError> {
        let id = NodeId(self.program.nodes.len() as u32);
        for output in &node.outputs {
            operator.outputs.push(self.value(&output.name, &output.type_, Some(id), output.span)?);
        }
        let outputs = operator.outputs.clone();
        self.add(operator);
        Ok(outputs)
    }

    pub(super) fn add(&mut self, node: Node) -> NodeId {
        self.program.nodes.push(node);
        NodeId(self.program.nodes.len() as u32 - 1)
    }

    fn enter_scope(&mut self, node: &IrNode) -> Result<CallId, IrError> {
        let next = self.program.nodes.len() as u32;
        if node.scope.is_none() && is_scripted(node) {
            return Ok(self.calls.innermost());
        }
        let scope = node.scope.as_deref().unwrap_or_default();
        if !self.scopes.contains_key(scope) {
            let depth = scope.split(['/', '.']).count();
            if depth > MAX_PATH {
                let what = "names in a scope".to_owned();
                return Err(IrError::TooMuch { what, limit: MAX_PATH, span: node.span });
            }
            self.scopes.insert(scope.to_owned(), self.modules.of_scope(scope));
        }
        Ok(self.calls.enter(&self.scopes[scope], next))
    }

    pub(super) fn value(
        &mut self,
        name: &str,
        type_: &IrType,
        producer: Option<NodeId>,
        span: Span,
    ) -> Result<ValueId, IrError> {
        let id = ValueId(self.program.values.len() as u32);
        self.bind(name, Bound::Operand(Operand::Value(id), Weight { depth: 0, elements: 1 }), span)?;
        // A colon is not a part of a name in the text: no clash.
        let name = self.repeat.map_or_else(|| name.to_owned(), |round| format!("{name}:{round}"));
        self.program.values.push(Value { name, type_: lower_type(type_), producer, span });
        Ok(id)
    }

    pub(super) fn bind(&mut self, name: &str, bound: Bound, span: Span) -> Result<(), IrError> {
        match self.bound.insert(name.to_owned(), bound) {
            None => Ok(()),
            Some(_) => Err(IrError::Redefined { name: name.to_owned(), span }),
        }
    }

    pub(super) fn operand(&mut self, use_: &Use) -> Result<(Operand, Weight), IrError> {
        match self.bound.get(&use_.name) {
            Some(Bound::Operand(operand, weight)) => {
                self.copied += weight.elements;
                if self.copied > MAX_COPIED {
                    let what = "elements of lists and tuples, all uses together".to_owned();
                    return Err(IrError::TooMuch { what, limit: MAX_COPIED, span: use_.span });
                }
                Ok((operand.clone(), *weight))
            }
            Some(Bound::Function(name)) => {
                Ok((Operand::Constant(Constant::Str(name.clone())), Weight::default()))
            }
            // A module passed as a value; its path is all that is known.
            Some(Bound::Module(module, _)) => {
                let path = self.modules.path_of(*module, "");
                let path = path.trim_end_matches('.').to_owned();
                Ok((Operand::Constant(Constant::Str(path)), Weight::default()))
            }
            None => Err(IrError::Undefined { name: use_.name.clone(), span: use_.span }),
        }
    }

    fn operands(&mut self, uses: &[Use], span: Span) -> Result<(Vec<Operand>, Weight), IrError> {
        let mut operands = Vec::with_capacity(uses.len());
        let mut weight = Weight { depth: 1, elements: 1 };
        for use_ in uses {
            if let Some(Bound::Operand(_, part)) = self.bound.get(&use_.name) {
                weight.depth = weight.depth.max(part.depth + 1);
                weight.elements += part.elements.max(1);
            }
            if weight.depth > MAX_DEPTH {
                return Err(IrError::TooMuch {
                    what: "lists and tuples in one another".to_owned(),
                    limit: MAX_DEPTH,
                    span,
                });
            }
            if weight.elements > MAX_ELEMENTS {
                let what = "elements of a list or tuple".to_owned();
                return Err(IrError::TooMuch { what, limit: MAX_ELEMENTS, span });
            }
            operands.push(self.operand(use_)?.0);
        }
        Ok((operands, weight))
    }
}

/// The values that blocks read from outside, in order of first use.
#[derive(Default)]
pub(super) struct Reads<'a> {
    inner: HashSet<&'a str>,
    seen: HashSet<&'a str>,
    pub(super) outer: Vec<&'a Use>,
}

impl<'a> Reads<'a> {
    pub(super) fn uses(&mut self, uses: &'a [Use]) {
        for use_ in uses {
            if !self.inner.contains(use_.name.as_str()) && self.seen.insert(&use_.name) {
                self.outer.push(use_);
            }
        }
    }

    pub(super) fn block(&mut self, block: &'a Block) {
        self.inner.extend(block.inputs.iter().map(|input| input.name.as_str()));
        for node in &block.nodes {
            self.uses(&node.inputs);
            node.blocks.iter().for_each(|block| self.block(block));
            self.inner.extend(node.outputs.iter().map(|output| output.name.as_str()));
        }
        self.uses(&block.outputs);
    }
}

fn positional(operand: Operand) -> Argument {
    Argument { name: None, operand }
}

fn one_or_tuple(mut operands: Vec<Operand>) -> Operand {
    match operands.len() {
        0 => Operand::default(),
        1 => operands.remove(0),
        _ => Operand::Tuple(operands),
    }
}

/// Tells whether a node comes from a scripted function, whose nodes have lost the scope of the function's call.
///
/// The tracer knows lines only and writes column 0, the script compiler knows columns.
fn is_scripted(node: &IrNode) -> bool {
    let column = node.place.as_deref().and_then(|place| place.rsplit(':').next());
    column.is_some_and(|column| column != "0")
}

fn only_output(node: &IrNode) -> Result<&super::tree::Binding, IrError> {
    match node.outputs.as_slice() {
        [output] => Ok(output),
        outputs => Err(arity(node, "one output", outputs.len())),
    }
}

pub(super) fn arity(node: &IrNode, expected: &str, found: usize) -> IrError {
    let (kind, found) = (node.kind.clone(), found.to_string());
    IrError::Arity { kind, expected: expected.to_owned(), found, span: node.span }
}

pub(super) fn weigh(operand: &Operand) -> Weight {
    let parts: Vec<Weight> = match operand {
        Operand::List(items) | Operand::Tuple(items) => items.iter().map(weigh).collect(),
        Operand::Dict(pairs) => pairs.iter().flat_map(|(key, value)| [weigh(key), weigh(value)]).collect(),
        Operand::Value(_) | Operand::Tensor(_) | Operand::Constant(_) => {
            return Weight { depth: 0, elements: 1 };
        }
    };
    Weight {
        depth: 1 + parts.iter().map(|part| part.depth).max().unwrap_or_default(),
        elements: 1 + parts.iter().map(|part| part.elements).sum::<usize>(),
    }
}

fn last_part(class: &str) -> &str {
    class.rsplit('.').next().unwrap_or(class)
}

/// Reads the one element of a boxed tensor; torch prints floats without their fraction where they have none.
fn boxed(text: &str, dtype: Option<DType>) -> Option<Constant> {
    match dtype {
        Some(DType::Int64 | DType::Int32) => text.trim().parse().ok().map(Constant::Int),
        Some(DType::Float32 | DType::Float64) => text.trim().parse().ok().map(Constant::Float),
        Some(DType::Bool) => text.trim().parse::<i64>().ok().map(|value| Constant::Bool(value != 0)),
        _ => None,
    }
}
