//! From the graph of an exported program to ours: one walk over its nodes.
//!
//! Names are those of the file, each made once. Numbers that sizes are computed with become TorchScript's operators; a list of
//! results is made by one node and unpacked by the next, as in a trace. Bodies of `torch.no_grad()` and of autocast regions stand in
//! the file as graphs of their own and are written out here.

use std::collections::{BTreeMap, HashMap, HashSet};

use indexmap::IndexMap;
use operators::{
    Default as SignatureDefault, Signature, exported_number_operator, find, is_exported_check, overloads,
};

use super::{
    codes::{self, STRIDED},
    document::{
        Argument as Given, Document, Float, Graph, InputSpec, MAX_DIMENSIONS, Named, NamedArgument,
        Node as GivenNode, OptionalTensor, OutputSpec, Symbolic, TensorMeta,
    },
    generation::export,
    output::output,
    scopes::frames,
    sizes::OpenSizes,
    text,
    weights::{StoredTensor, Weights, described},
};
use crate::{
    error::TraceError,
    program::{
        Archive, ArchiveKind, Argument, Call, CallId, Constant, Module, ModuleId, Node, NodeId, Operand,
        Program, Recorded, RecordedInput, RecordedNode, Role, Tensor, TensorId, TensorType, TraceNote, Type,
        Value, ValueId,
    },
};

/// Limits as of traced archives.
const MAX_NODES: usize = 1_000_000;
const MAX_CALLS: usize = 500_000;
/// Letters of a name that messages show.
const MAX_SHOWN: usize = 80;
/// Graphs inside graphs.
const MAX_DEPTH: usize = 16;
/// Longest path of a module.
const MAX_PATH: usize = 4096;
/// The dialect of `torch.export.export`: the operators that the model calls, in place where it calls them so.
const TRAINING: &str = "TRAINING";
/// Largest bound that is one: torch writes its largest integers where there is none.
const UNBOUNDED: i64 = 1 << 40;

/// The kind of an argument that is passed by its name.
const KEYWORD: u8 = 2;

/// Names of a graph and what they stand for.
type Names<'d> = HashMap<&'d str, Operand>;

/// Reads a program.
pub(super) fn read(document: &Document, weights: &Weights, archive: Archive) -> Result<Program, TraceError> {
    let graph = &document.graph_module.graph;
    let mut reader = Reader::new(document);
    reader.program.name.clone_from(&archive.folder);
    reader.program.archive = Some(archive);
    let mut names = Names::new();
    for (name, tensor) in tensors(document, weights)? {
        let id = TensorId(reader.program.tensors.len() as u32);
        reader.place(&tensor, id)?;
        reader.program.tensors.push(tensor);
        reader.define(&mut names, name, Operand::Tensor(id))?;
    }
    reader.root();
    reader.inputs(document, &mut names)?;
    reader.graph(graph, &mut names, 0)?;
    reader.output(document, &names)?;
    reader.finish(document, weights)
}

/// Returns the stored tensors in the order of the graph's inputs, by the names that the graph has for them.
pub(super) fn tensors<'d>(
    document: &'d Document,
    weights: &Weights,
) -> Result<Vec<(&'d str, Tensor)>, TraceError> {
    let graph = &document.graph_module.graph;
    let mut tensors = Vec::new();
    for spec in &document.graph_module.signature.input_specs {
        let (arg, path, role) = match spec {
            InputSpec::Parameter { arg, parameter_name } => (arg, parameter_name.clone(), Role::Parameter),
            InputSpec::Buffer { arg, buffer_name } => (arg, buffer_name.clone(), Role::Buffer),
            InputSpec::TensorConstant { arg, tensor_constant_name } => {
                (arg, format!("CONSTANTS.{tensor_constant_name}"), Role::Constant)
            }
            _ => continue,
        };
        if path.is_empty() || path.len() > MAX_PATH {
            return Err(export(format!("`{}` is stored under a name of {} bytes", arg.name, path.len())));
        }
        let meta = meta(graph, &arg.name)?;
        let (dtype, shape, device) = described(&path, meta)?;
        let name = path.strip_prefix("CONSTANTS.").filter(|_| role == Role::Constant).unwrap_or(&path);
        // Buffers that the state dict leaves out lie among the constants.
        let place = weights.parameters.get(name).or_else(|| weights.constants.get(name));
        let is_pickled = weights.pickled.iter().any(|pickled| pickled == name);
        let tensor = match place {
            Some(place) if place.shape != shape || place.dtype != dtype => {
                return Err(export(format!(
                    "`{path}` is {} {shape:?} in the graph and {} {:?} where it is stored",
                    dtype.name(),
                    place.dtype.name(),
                    place.shape
                )));
            }
            Some(StoredTensor { strides, storage, .. }) => (strides.clone(), Some(storage.clone())),
            None if is_pickled => absent(&path, dtype, &shape),
            None => return Err(export(format!("`{path}` is stored nowhere in it"))),
        };
        let (strides, storage) = tensor;
        let requires_grad = meta.requires_grad && role == Role::Parameter;
        let tensor = Tensor { path, dtype, shape, strides, storage, requires_grad, role, device };
        tensors.push((arg.name.as_str(), tensor));
    }
    Ok(tensors)
}

/// Returns the strides and the place of a tensor whose numbers are not there.
fn absent(
    path: &str,
    dtype: crate::program::DType,
    shape: &[u64],
) -> (Vec<u64>, Option<crate::program::Storage>) {
    let elements = shape.iter().fold(1_u64, |product, size| product.saturating_mul(*size));
    let storage = crate::program::Storage {
        record: format!("pickled@{path}"),
        offset: 0,
        elements,
        position: None,
        bytes: elements.saturating_mul(dtype.bytes()),
        checksum: None,
    };
    (crate::program::dense_strides(shape), Some(storage))
}

fn meta<'d>(graph: &'d Graph, name: &str) -> Result<&'d TensorMeta, TraceError> {
    let meta = graph
        .tensor_values
        .get(name)
        .ok_or_else(|| export(format!("it does not say the sizes of `{name}`")))?;
    if meta.sizes.len() > MAX_DIMENSIONS {
        return Err(TraceError::Limit { what: "dimensions of a tensor", limit: MAX_DIMENSIONS });
    }
    Ok(meta)
}

/// A module call that is open.
struct Open<'d> {
    key: &'d str,
    call: CallId,
}

struct Reader<'d> {
    program: Program,
    recorded: Vec<RecordedNode>,
    modules: HashMap<String, ModuleId>,
    /// Paths of all modules.
    known: HashSet<&'d str>,
    open: Vec<Open<'d>>,
    ordinals: HashMap<ModuleId, u32>,
    /// The number of uses of each name.
    used: HashMap<String, u32>,
    signatures: HashMap<&'d str, Option<Signature>>,
    /// Modules whose operators say that they train, and that they do not.
    trains: BTreeMap<ModuleId, [bool; 2]>,
    /// Why no stages can be cut from it.
    obstacle: Option<String>,
    /// Set inside `torch.no_grad()`.
    is_without_gradient: bool,
    open_sizes: OpenSizes,
}

impl<'d> Reader<'d> {
    fn new(document: &'d Document) -> Self {
        let calls = &document.graph_module.module_call_graph;
        let known = calls.iter().map(|call| call.fqn.as_str()).chain(std::iter::once("")).collect();
        let mut reader = Self {
            program: Program::default(),
            recorded: Vec::new(),
            modules: HashMap::new(),
            known,
            open: Vec::new(),
            ordinals: HashMap::new(),
            used: HashMap::new(),
            signatures: HashMap::new(),
            trains: BTreeMap::new(),
            obstacle: None,
            is_without_gradient: false,
            open_sizes: OpenSizes::default(),
        };
        reader.module("");
        for call in calls {
            if call.fqn.len() <= MAX_PATH {
                reader.module(&call.fqn);
            }
        }
        reader
    }

    /// Returns the module at a path; it is made with all that hold it.
    fn module(&mut self, path: &str) -> ModuleId {
        if let Some(id) = self.modules.get(path) {
            return *id;
        }
        let mut parent = (!path.is_empty()).then(|| self.modules.get("").copied()).flatten();
        let dots = path.match_indices('.').map(|(at, _)| at).chain(std::iter::once(path.len()));
        let mut id = ModuleId(0);
        for end in dots {
            let path = &path[..end];
            id = match self.modules.get(path) {
                Some(id) => *id,
                None => {
                    let id = ModuleId(self.program.modules.len() as u32);
                    self.program.modules.push(Module {
                        path: path.to_owned(),
                        class: String::new(),
                        parent,
                        children: IndexMap::new(),
                        parameters: IndexMap::new(),
                        buffers: IndexMap::new(),
                        attributes: IndexMap::new(),
                    });
                    if let Some(parent) = parent {
                        let name = path.rsplit('.').next().unwrap_or(path).to_owned();
                        self.program.modules[parent.index()].children.insert(name, id);
                    }
                    self.modules.insert(path.to_owned(), id);
                    id
                }
            };
            parent = Some(id);
        }
        id
    }

    /// Gives a stored tensor to its module.
    fn place(&mut self, tensor: &Tensor, id: TensorId) -> Result<(), TraceError> {
        if tensor.role == Role::Constant {
            return Ok(());
        }
        let (path, name) = tensor.path.rsplit_once('.').unwrap_or(("", &tensor.path));
        let module = self.module(path);
        let module = &mut self.program.modules[module.index()];
        let of = if tensor.role == Role::Parameter { &mut module.parameters } else { &mut module.buffers };
        match of.insert(name.to_owned(), id) {
            None => Ok(()),
            Some(_) => Err(export(format!("`{}` is stored twice", tensor.path))),
        }
    }

    fn root(&mut self) {
        self.program.calls.push(Call {
            module: ModuleId(0),
            method: "forward".to_owned(),
            parent: None,
            ordinal: 1,
            nodes: 0..0,
            arguments: Vec::new(),
            output: Operand::default(),
        });
    }

    /// Makes the model's inputs.
    fn inputs(&mut self, document: &'d Document, names: &mut Names<'d>) -> Result<(), TraceError> {
        let graph = &document.graph_module.graph;
        let mut metas = Vec::new();
        let mut recorded = Vec::new();
        for spec in &document.graph_module.signature.input_specs {
            let arg = match spec {
                InputSpec::UserInput { arg } => arg,
                InputSpec::CustomObj { custom_obj_name } => {
                    return Err(export(format!(
                        "`{custom_obj_name}` is an object of a C++ class, and only tensors are read"
                    )));
                }
                InputSpec::Token(_) => {
                    return Err(export("it orders its effects by tokens, which are not read".to_owned()));
                }
                _ => continue,
            };
            let (name, type_, known) = match arg {
                Given::AsTensor(named) => {
                    let meta = meta(graph, &named.name)?;
                    metas.push(Some(meta));
                    (named.name.as_str(), Type::Tensor(TensorType::default()), tensor_type(meta))
                }
                Given::AsSymInt(Symbolic::AsName(name)) => (name.as_str(), Type::Int, TensorType::default()),
                Given::AsSymFloat(Symbolic::AsName(name)) => {
                    (name.as_str(), Type::Float, TensorType::default())
                }
                Given::AsSymBool(Symbolic::AsName(name)) => {
                    (name.as_str(), Type::Bool, TensorType::default())
                }
                // A constant that the graph does not read.
                _ => continue,
            };
            if !matches!(type_, Type::Tensor(_)) {
                metas.push(None);
            }
            let value = self.value(name, type_, None);
            self.program.inputs.push(value);
            recorded.push(RecordedInput {
                name: self.program.values[value.index()].name.clone(),
                type_: known,
                range: None,
                values: None,
            });
            self.define(names, name, Operand::Value(value))?;
        }
        let ranges = &document.range_constraints;
        let range = |name: &str| {
            let bound = |value: Option<i64>| {
                value.filter(|value| *value < UNBOUNDED).and_then(|v| u64::try_from(v).ok())
            };
            ranges.get(name).map_or((None, None), |range| (bound(range.min_val), bound(range.max_val)))
        };
        self.open_sizes = OpenSizes::read(metas.into_iter(), &range);
        self.program.recorded = Some(Recorded { inputs: recorded, ..Recorded::default() });
        Ok(())
    }

    /// Binds a name that nothing else may have.
    fn define(&self, names: &mut Names<'d>, name: &'d str, operand: Operand) -> Result<(), TraceError> {
        match names.insert(name, operand) {
            None => Ok(()),
            Some(_) => Err(export(format!("`{name}` is made twice"))),
        }
    }

    fn value(&mut self, name: &str, type_: Type, producer: Option<NodeId>) -> ValueId {
        let id = ValueId(self.program.values.len() as u32);
        let name = match self.used.get_mut(name) {
            None => {
                self.used.insert(name.to_owned(), 0);
                name.to_owned()
            }
            Some(count) => {
                *count += 1;
                format!("{name}.{count}")
            }
        };
        self.program.values.push(Value { name, type_, producer, span: Default::default() });
        id
    }

    /// Adds the nodes of a graph.
    fn graph(&mut self, graph: &'d Graph, names: &mut Names<'d>, depth: usize) -> Result<(), TraceError> {
        if depth > MAX_DEPTH {
            return Err(TraceError::Limit { what: "graphs inside one another", limit: MAX_DEPTH });
        }
        for node in &graph.nodes {
            self.enter(node)?;
            match node.target.strip_prefix("torch.ops.higher_order.") {
                Some("wrap_with_set_grad_enabled") => self.gradient_region(node, names, depth)?,
                Some("wrap_with_autocast") => self.autocast_region(node, names, depth)?,
                Some(name) => {
                    let name = name.split('.').next().unwrap_or(name);
                    return Err(export(format!(
                        "`{name}` in {} holds graphs of its own, which are not read; export the model without it, or trace it",
                        self.shown_place()
                    )));
                }
                None if is_exported_check(&node.target) => {}
                None => self.node(graph, node, names)?,
            }
        }
        Ok(())
    }

    /// Says where the walk is.
    fn shown_place(&self) -> String {
        let call = self.open.last().map_or(CallId(0), |open| open.call);
        let path = &self.program.modules[self.program.calls[call.index()].module.index()].path;
        if path.is_empty() { "the root".to_owned() } else { format!("`{path}`") }
    }

    /// Opens and closes calls until the open ones are those of a node's stack.
    fn enter(&mut self, node: &'d GivenNode) -> Result<(), TraceError> {
        let stack = node.metadata.nn_module_stack.as_deref();
        let Some(mut frames) = stack.and_then(|stack| frames(stack, &self.known)) else {
            // A write-back at the end belongs to no call; arithmetic on sizes stays in the open one.
            if stack.is_none() && node.target.starts_with("torch.ops.aten.copy_.") {
                self.close(0);
            }
            return Ok(());
        };
        if frames.first().is_some_and(|frame| frame.path.is_empty()) {
            let root = frames.remove(0);
            let module = &mut self.program.modules[0];
            if module.class.is_empty() {
                root.class.clone_into(&mut module.class);
            }
        }
        let is_open = |(open, frame): &(&Open<'_>, &super::scopes::Frame<'_>)| {
            let call = &self.program.calls[open.call.index()];
            open.key == frame.key && self.program.modules[call.module.index()].path == frame.path
        };
        let same = self.open.iter().zip(&frames).take_while(is_open).count();
        self.close(same);
        for frame in &frames[same..] {
            if self.program.calls.len() >= MAX_CALLS {
                return Err(TraceError::Limit { what: "module calls", limit: MAX_CALLS });
            }
            let module = self.module(frame.path);
            let class = &mut self.program.modules[module.index()].class;
            if class.is_empty() {
                frame.class.clone_into(class);
            }
            let ordinal = self.ordinals.entry(module).or_insert(0);
            *ordinal += 1;
            let call = CallId(self.program.calls.len() as u32);
            let at = self.program.nodes.len() as u32;
            self.program.calls.push(Call {
                module,
                method: "forward".to_owned(),
                parent: Some(self.open.last().map_or(CallId(0), |open| open.call)),
                ordinal: *ordinal,
                nodes: at..at,
                arguments: Vec::new(),
                output: Operand::default(),
            });
            self.open.push(Open { key: frame.key, call });
        }
        Ok(())
    }

    /// Closes calls until the given number is open.
    fn close(&mut self, remaining: usize) {
        let end = self.program.nodes.len() as u32;
        for open in self.open.drain(remaining..) {
            self.program.calls[open.call.index()].nodes.end = end;
        }
    }

    /// Inlines the region under `torch.no_grad()`: its inputs carry no gradient.
    fn gradient_region(
        &mut self,
        node: &'d GivenNode,
        names: &mut Names<'d>,
        depth: usize,
    ) -> Result<(), TraceError> {
        let [
            NamedArgument { arg: Given::AsBool(enabled), .. },
            NamedArgument { arg: Given::AsGraph(body), .. },
            rest @ ..,
        ] = node.inputs.as_slice()
        else {
            return Err(export(
                "`wrap_with_set_grad_enabled` has other arguments than torch gives it".to_owned(),
            ));
        };
        if *enabled && self.is_without_gradient {
            return Err(export(format!(
                "gradients are switched on again inside torch.no_grad() in {}, which is not read",
                self.shown_place()
            )));
        }
        let before = self.is_without_gradient;
        self.is_without_gradient |= !*enabled;
        let mut operands = Vec::with_capacity(rest.len());
        for argument in rest {
            let operand = self.operand(&argument.arg, names)?;
            let is_cut = self.is_without_gradient && !before && self.may_carry_gradient(&operand);
            operands.push(if is_cut { self.detached(operand)? } else { operand });
        }
        self.body(node, &body.graph, operands, names, depth)?;
        self.is_without_gradient = before;
        Ok(())
    }

    /// Tells whether gradients may flow through an operand.
    fn may_carry_gradient(&self, operand: &Operand) -> bool {
        match operand {
            Operand::Tensor(tensor) => self.program.tensors[tensor.index()].requires_grad,
            Operand::Value(id) => {
                let value = &self.program.values[id.index()];
                let dtype = self.recorded_of(*id).and_then(|known| known.dtype);
                // Inputs are data.
                matches!(value.type_, Type::Tensor(_))
                    && value.producer.is_some()
                    && dtype.is_none_or(|dtype| dtype.is_float() || dtype.is_complex())
            }
            _ => false,
        }
    }

    fn detached(&mut self, operand: Operand) -> Result<Operand, TraceError> {
        let known = match &operand {
            Operand::Tensor(tensor) => {
                let tensor = &self.program.tensors[tensor.index()];
                TensorType {
                    dtype: Some(tensor.dtype),
                    shape: Some(tensor.shape.clone()),
                    strides: Some(tensor.strides.clone()),
                    requires_grad: None,
                    device: None,
                }
            }
            Operand::Value(value) => self.recorded_of(*value).unwrap_or_default(),
            _ => TensorType::default(),
        };
        let argument = Argument { name: None, operand };
        let node = self.push("aten::detach".to_owned(), vec![argument])?;
        let output = self.output_of(node, "detached", Type::Tensor(TensorType::default()), Some(known));
        Ok(Operand::Value(output))
    }

    /// Returns the recorded type of a value.
    fn recorded_of(&self, value: ValueId) -> Option<TensorType> {
        let producer = self.program.values[value.index()].producer?;
        let at = self.program.nodes[producer.index()].outputs.iter().position(|output| *output == value)?;
        self.recorded[producer.index()].outputs.get(at)?.clone()
    }

    /// Inlines the region under autocast, if autocast is switched off in it.
    fn autocast_region(
        &mut self,
        node: &'d GivenNode,
        names: &mut Names<'d>,
        depth: usize,
    ) -> Result<(), TraceError> {
        let at = node.inputs.iter().position(|input| matches!(input.arg, Given::AsGraph(_)));
        let (Some(at), Some(Given::AsBool(enabled))) = (at, node.inputs.get(2).map(|input| &input.arg))
        else {
            return Err(export("`wrap_with_autocast` has other arguments than torch gives it".to_owned()));
        };
        let Given::AsGraph(body) = &node.inputs[at].arg else { unreachable!("found above") };
        if *enabled {
            return Err(export(format!(
                "{} runs under autocast, which the graph does not write out as casts; export the model in the type itself, or \
                 trace it with `model-analyze trace --autocast`",
                self.shown_place()
            )));
        }
        let rest = node.inputs[at + 1..].iter();
        let operands = rest.map(|argument| self.operand(&argument.arg, names)).collect::<Result<_, _>>()?;
        self.body(node, &body.graph, operands, names, depth)
    }

    /// Adds the nodes of a graph that is called with operands, and binds what it returns.
    fn body(
        &mut self,
        node: &'d GivenNode,
        body: &'d Graph,
        operands: Vec<Operand>,
        names: &mut Names<'d>,
        depth: usize,
    ) -> Result<(), TraceError> {
        let wrong = || export(format!("`{}` passes on other values than its graph takes", node.target));
        let mut inner = Names::new();
        if operands.len() != body.inputs.len() {
            return Err(wrong());
        }
        for (input, operand) in body.inputs.iter().zip(operands) {
            let name = match input {
                Given::AsTensor(named) => &named.name,
                Given::AsSymInt(Symbolic::AsName(name))
                | Given::AsSymFloat(Symbolic::AsName(name))
                | Given::AsSymBool(Symbolic::AsName(name)) => name,
                Given::AsNone(_) => continue,
                _ => return Err(wrong()),
            };
            self.define(&mut inner, name, operand)?;
        }
        self.graph(body, &mut inner, depth + 1)?;
        let results = flat_names(&node.outputs);
        let returned: Vec<&Given> = body.outputs.iter().collect();
        if results.len() != returned.len() {
            return Err(wrong());
        }
        for (result, returned) in results.into_iter().zip(returned) {
            let operand = self.operand(returned, &inner)?;
            if let Some(name) = result {
                self.define(names, name, operand)?;
            }
        }
        Ok(())
    }

    /// Adds one operator.
    fn node(
        &mut self,
        graph: &'d Graph,
        node: &'d GivenNode,
        names: &mut Names<'d>,
    ) -> Result<(), TraceError> {
        let (operator, arguments) = self.called(node, names)?;
        self.note_training(node);
        let id = self.push(operator, arguments)?;
        let mut lists = Vec::new();
        for (position, output) in node.outputs.iter().enumerate() {
            let (name, type_, known) = match output {
                Given::AsTensor(named) => {
                    let known = tensor_type(meta(graph, &named.name)?);
                    (named.name.as_str(), Type::Tensor(TensorType::default()), Some(known))
                }
                Given::AsTensors(items) => {
                    let list = Type::List(Box::new(Type::Tensor(TensorType::default())));
                    let name = node.target.rsplit('.').nth(1).unwrap_or("list");
                    let value = self.output_of(id, name, list, None);
                    lists.push((value, items));
                    continue;
                }
                Given::AsSymInt(Symbolic::AsName(name)) => (name.as_str(), Type::Int, None),
                Given::AsSymFloat(Symbolic::AsName(name)) => (name.as_str(), Type::Float, None),
                Given::AsSymBool(Symbolic::AsName(name)) => (name.as_str(), Type::Bool, None),
                Given::AsNone(_) => continue,
                _ => {
                    return Err(export(format!(
                        "result {position} of `{}` is of no kind that is read",
                        node.target
                    )));
                }
            };
            // torch's own meta kernel gives the last states of a recurrent layer a dimension too many.
            let known = known.filter(|_| position == 0 || !is_recurrent(&node.target));
            let value = self.output_of(id, name, type_, known);
            self.define(names, name, Operand::Value(value))?;
        }
        for (list, items) in lists {
            let argument = Argument { name: None, operand: Operand::Value(list) };
            let unpacking = self.push("prim::ListUnpack".to_owned(), vec![argument])?;
            for Named { name } in items {
                let known = tensor_type(meta(graph, name)?);
                let tensor = Type::Tensor(TensorType::default());
                let value = self.output_of(unpacking, name, tensor, Some(known));
                self.define(names, name, Operand::Value(value))?;
            }
        }
        Ok(())
    }

    fn push(&mut self, operator: String, arguments: Vec<Argument>) -> Result<NodeId, TraceError> {
        if self.program.nodes.len() >= MAX_NODES {
            return Err(TraceError::Limit { what: "operators", limit: MAX_NODES });
        }
        let id = NodeId(self.program.nodes.len() as u32);
        self.recorded.push(RecordedNode { operator: operator.clone(), outputs: Vec::new() });
        let call = self.open.last().map_or(CallId(0), |open| open.call);
        let (outputs, changes, span) = (Vec::new(), Vec::new(), Default::default());
        self.program.nodes.push(Node { operator, arguments, outputs, changes, call, span });
        Ok(id)
    }

    fn output_of(&mut self, node: NodeId, name: &str, type_: Type, known: Option<TensorType>) -> ValueId {
        let value = self.value(name, type_, Some(node));
        self.program.nodes[node.index()].outputs.push(value);
        self.recorded[node.index()].outputs.push(known);
        value
    }

    /// Returns an operator's name and arguments as TorchScript has them.
    fn called(
        &mut self,
        node: &'d GivenNode,
        names: &Names<'d>,
    ) -> Result<(String, Vec<Argument>), TraceError> {
        let target = node.target.as_str();
        if let Some(operator) = exported_number_operator(target) {
            let positional = node
                .inputs
                .iter()
                .map(|input| Ok(Argument { name: None, operand: self.operand(&input.arg, names)? }));
            return Ok((operator.to_owned(), positional.collect::<Result<_, TraceError>>()?));
        }
        let parts = target.strip_prefix("torch.ops.").map(|name| name.split('.').collect::<Vec<_>>());
        let Some([space, name, overload]) = parts.as_deref() else {
            let target: String = target.chars().take(MAX_SHOWN).collect();
            return Err(export(format!("it calls `{target}`, which is not an operator that is read")));
        };
        let operator = format!("{space}::{name}");
        let signature = self.signatures.entry(target).or_insert_with(|| {
            let overload = if *overload == "default" { "" } else { overload };
            overloads(&operator).into_iter().find(|signature| signature.overload == overload)
        });
        let signature = signature.clone();
        let mut arguments = Vec::with_capacity(node.inputs.len());
        let mut is_in_order = true;
        for input in &node.inputs {
            let operand = self.operand(&input.arg, names)?;
            let Some(signature) = &signature else {
                let is_named = input.kind == Some(KEYWORD) && !input.name.is_empty();
                let name = is_named.then(|| input.name.clone());
                arguments.push(Argument { name, operand });
                continue;
            };
            let Some(at) = signature.parameters.iter().position(|parameter| parameter.name == input.name)
            else {
                return Err(export(format!("`{target}` is given `{}`, which it does not take", input.name)));
            };
            // What is left out between two that are given is its default.
            let skipped = if is_in_order && arguments.len() < at {
                &signature.parameters[arguments.len()..at]
            } else {
                &[]
            };
            for parameter in skipped {
                match parameter.default.as_ref().and_then(default).filter(|_| !parameter.is_keyword_only) {
                    Some(operand) => arguments.push(Argument { name: None, operand }),
                    None => is_in_order = false,
                }
            }
            is_in_order &= arguments.len() == at && !signature.parameters[at].is_keyword_only;
            let name = (!is_in_order).then(|| input.name.clone());
            arguments.push(Argument { name, operand });
        }
        Ok((operator, arguments))
    }

    /// Records the training mode of an operator's module, if the operator has a flag for it.
    fn note_training(&mut self, node: &GivenNode) {
        let flag = node.inputs.iter().find_map(|input| match (input.name.as_str(), &input.arg) {
            ("training" | "train", Given::AsBool(flag)) => Some(*flag),
            _ => None,
        });
        if let Some(flag) = flag {
            let call = self.open.last().map_or(CallId(0), |open| open.call);
            let module = self.program.calls[call.index()].module;
            self.trains.entry(module).or_default()[usize::from(flag)] = true;
        }
    }

    /// Returns the operand of an argument.
    fn operand(&self, given: &Given, names: &Names<'d>) -> Result<Operand, TraceError> {
        let named = |name: &str| {
            names
                .get(name)
                .cloned()
                .ok_or_else(|| export(format!("`{name}` is used before anything makes it")))
        };
        let tensor = |item: &Named| named(&item.name);
        let symbolic = |item: &Symbolic| match item {
            Symbolic::AsName(name) => named(name),
            Symbolic::AsInt(value) => Ok(Operand::Constant(Constant::Int(*value))),
            Symbolic::AsFloat(value) => Ok(Operand::Constant(Constant::Float(float(value)?))),
            Symbolic::AsBool(value) => Ok(Operand::Constant(Constant::Bool(*value))),
        };
        let optional = |item: &OptionalTensor| match item {
            OptionalTensor::AsTensor(item) => named(&item.name),
            OptionalTensor::AsNone(_) => Ok(Operand::default()),
        };
        let int = |value: &i64| Operand::Constant(Constant::Int(*value));
        let code = |code: Option<i64>, what: &str, given: u32| {
            code.map(|code| Operand::Constant(Constant::Int(code)))
                .ok_or_else(|| export(format!("{what} {given} is not known")))
        };
        fn list<'a, T: 'a>(
            items: &'a [T],
            of: impl FnMut(&'a T) -> Result<Operand, TraceError>,
        ) -> Result<Operand, TraceError> {
            items.iter().map(of).collect::<Result<_, _>>().map(Operand::List)
        }
        Ok(match given {
            Given::AsNone(_) => Operand::default(),
            Given::AsTensor(item) => tensor(item)?,
            Given::AsTensors(items) => list(items, tensor)?,
            Given::AsNestedTensors(items) => list(items, |items| list(items, tensor))?,
            Given::AsOptionalTensor(item) => optional(item)?,
            Given::AsOptionalTensors(items) => list(items, optional)?,
            Given::AsInt(value) => int(value),
            Given::AsInts(items) => list(items, |item| Ok(int(item)))?,
            Given::AsIntLists(items) => list(items, |items| list(items, |item| Ok(int(item))))?,
            Given::AsFloat(value) => Operand::Constant(Constant::Float(float(value)?)),
            Given::AsFloats(items) => {
                list(items, |item| Ok(Operand::Constant(Constant::Float(float(item)?))))?
            }
            Given::AsFloatLists(items) => {
                list(items, |items| list(items, |item| Ok(Operand::Constant(Constant::Float(float(item)?)))))?
            }
            Given::AsBool(value) => Operand::Constant(Constant::Bool(*value)),
            Given::AsBools(items) => list(items, |item| Ok(Operand::Constant(Constant::Bool(*item))))?,
            Given::AsString(text) => Operand::Constant(Constant::Str(text.clone())),
            Given::AsStrings(items) => {
                list(items, |item| Ok(Operand::Constant(Constant::Str(item.clone()))))?
            }
            Given::AsComplex(value) => {
                Operand::Constant(Constant::Complex(float(&value.real)?, float(&value.imag)?))
            }
            Given::AsSymInt(item) | Given::AsSymFloat(item) | Given::AsSymBool(item) => symbolic(item)?,
            Given::AsSymInts(items) | Given::AsSymFloats(items) | Given::AsSymBools(items) => {
                list(items, symbolic)?
            }
            Given::AsScalarType(given) => code(codes::scalar_type(*given), "element type", *given)?,
            Given::AsLayout(given) => code(codes::layout(*given), "layout", *given)?,
            Given::AsMemoryFormat(given) => code(codes::memory_format(*given), "memory format", *given)?,
            Given::AsDevice(device) => Operand::Constant(Constant::Device(device.shown())),
            Given::AsGraph(_) => {
                return Err(export("a graph is passed to an operator that takes none".to_owned()));
            }
            Given::AsCustomObj(_) => return Err(export("it passes on an object of a C++ class".to_owned())),
            Given::AsOperator(_) => return Err(export("it passes on an operator as a value".to_owned())),
            Given::AsStringToArgument(_) => {
                return Err(export("it passes on a dictionary of arguments".to_owned()));
            }
        })
    }

    /// Builds what the model returns.
    fn output(&mut self, document: &Document, names: &Names<'d>) -> Result<(), TraceError> {
        let mut results = Vec::new();
        for spec in &document.graph_module.signature.output_specs {
            match spec {
                OutputSpec::UserOutput { arg } => results.push(self.operand(arg, names)?),
                OutputSpec::BufferMutation(_) => {
                    self.obstacle =
                        Some("its buffers are results that somebody has to write back".to_owned());
                }
                OutputSpec::UserInputMutation { user_input_name: name }
                | OutputSpec::ParameterMutation { parameter_name: name } => {
                    self.obstacle =
                        Some(format!("it writes to `{name}`, and that is a result to be written back"));
                }
                OutputSpec::LossOutput(_)
                | OutputSpec::GradientToParameter(_)
                | OutputSpec::GradientToUserInput(_) => {
                    return Err(export(
                        "its graph holds the backward pass as well; export the model's forward pass alone"
                            .to_owned(),
                    ));
                }
                OutputSpec::Token(_) => {
                    return Err(export("it orders its effects by tokens, which are not read".to_owned()));
                }
            }
        }
        let root = document.graph_module.module_call_graph.iter().find(|call| call.fqn.is_empty());
        let spec =
            root.and_then(|root| root.signature.as_ref()).map_or("", |signature| signature.out_spec.as_str());
        self.program.output = output(results, spec);
        Ok(())
    }

    fn finish(mut self, document: &Document, weights: &Weights) -> Result<Program, TraceError> {
        self.close(0);
        self.program.calls[0].nodes = 0..self.program.nodes.len() as u32;
        self.program.calls[0].arguments = self.program.inputs.iter().map(|id| Operand::Value(*id)).collect();
        self.program.calls[0].output = self.program.output.clone();
        self.wires();
        for (module, [is_off, is_on]) in &self.trains {
            // A module that says both says nothing.
            if is_off != is_on {
                let flag = Constant::Bool(*is_on);
                self.program.modules[module.index()].attributes.insert("training".to_owned(), flag);
            }
        }
        let count = |mode: usize| self.trains.values().filter(|found| found[mode]).count();
        let training = count(1) > count(0);
        let mut notes = self.size_notes();
        if !document.verifiers.is_empty() && !document.verifiers.iter().any(|dialect| dialect == TRAINING) {
            notes.push(
                "the exported program is decomposed: its operators are not those that the model calls, which changes times and memory"
                    .to_owned(),
            );
            self.obstacle = Some("it is decomposed, and does not train as the model does".to_owned());
        }
        let is_absent = |tensor: &Tensor| tensor.first_byte().is_none();
        if !self.program.tensors.is_empty() && self.program.tensors.iter().all(is_absent) {
            notes.push("exported without its weights: a parameter with two names counts as two".to_owned());
        }
        if let Some(first) = weights.pickled.first() {
            notes.push(format!(
                "`{first}` is stored as a Python object, which is not opened: its numbers are not there"
            ));
        }
        let note = |text| TraceNote { place: None, text };
        let mut recorded = self.program.recorded.take().unwrap_or_default();
        recorded.about.insert("torch".to_owned(), document.torch_version.clone());
        recorded.training = training;
        recorded.nodes = self.recorded;
        recorded.notes = notes.into_iter().map(note).collect();
        let mut program = self.program;
        program.recorded = Some(recorded);
        program.open_sizes = Some(self.open_sizes);
        if let Some(Archive { kind: ArchiveKind::Export { obstacle }, .. }) = &mut program.archive {
            *obstacle = self.obstacle;
        }
        text::write(&mut program);
        Ok(program)
    }

    /// Says which sizes are left open.
    fn size_notes(&self) -> Vec<String> {
        let name = |input: usize| &self.program.values[self.program.inputs[input].index()].name;
        let open = self.open_sizes.symbols.iter().map(|symbol| {
            let (input, dimension) = symbol.place;
            let example = symbol.example.map_or(String::new(), |size| format!(" ({size} in the example)"));
            format!("dimension {dimension} of `{}` may be {}{example}", name(input), symbol.range())
        });
        let open: Vec<String> = open.collect();
        if open.is_empty() {
            Vec::new()
        } else {
            vec![format!("{}; --input decides, else the example", open.join(", "))]
        }
    }

    /// Finds the inputs and outputs of calls: values made outside and read inside, and the other way round.
    fn wires(&mut self) {
        let program = &self.program;
        let n_calls = program.calls.len();
        let mut arguments: Vec<Vec<ValueId>> = vec![Vec::new(); n_calls];
        let mut last_use: Vec<u32> = vec![0; program.values.len()];
        let mut given: HashSet<(CallId, ValueId)> = HashSet::new();
        for (index, node) in program.nodes.iter().enumerate() {
            for argument in &node.arguments {
                values_of(&argument.operand, &mut |value| {
                    last_use[value.index()] = index as u32;
                    let producer = program.values[value.index()].producer;
                    let mut at = Some(node.call);
                    while let Some(call) = at.filter(|call| call.0 != 0) {
                        let nodes = &program.calls[call.index()].nodes;
                        if producer.is_some_and(|producer| nodes.contains(&producer.0))
                            || !given.insert((call, value))
                        {
                            break;
                        }
                        arguments[call.index()].push(value);
                        at = program.calls[call.index()].parent;
                    }
                });
            }
        }
        values_of(&program.output, &mut |value| last_use[value.index()] = u32::MAX);
        let mut results: Vec<Vec<ValueId>> = vec![Vec::new(); n_calls];
        for (index, node) in program.nodes.iter().enumerate() {
            for &output in &node.outputs {
                let mut at = Some(node.call);
                while let Some(call) = at.filter(|call| call.0 != 0) {
                    let nodes = &program.calls[call.index()].nodes;
                    debug_assert!(nodes.contains(&(index as u32)), "a node lies in its calls");
                    if last_use[output.index()] < nodes.end {
                        break;
                    }
                    results[call.index()].push(output);
                    at = program.calls[call.index()].parent;
                }
            }
        }
        let operands =
            |values: Vec<ValueId>| -> Vec<Operand> { values.into_iter().map(Operand::Value).collect() };
        for (call, (arguments, results)) in
            self.program.calls.iter_mut().zip(arguments.into_iter().zip(results)).skip(1)
        {
            call.arguments = operands(arguments);
            // A module's own result is mostly what it makes last; the order of all is not in the file.
            let last = results.last().and_then(|value| self.program.values[value.index()].producer);
            let is_last = |value: &ValueId| self.program.values[value.index()].producer == last;
            let (mut ordered, others): (Vec<ValueId>, Vec<ValueId>) = results.into_iter().partition(is_last);
            ordered.extend(others);
            let mut results = operands(ordered);
            call.output = match results.len() {
                0 => Operand::default(),
                1 => results.swap_remove(0),
                _ => Operand::Tuple(results),
            };
        }
    }
}

fn is_recurrent(target: &str) -> bool {
    let name = target.strip_prefix("torch.ops.aten.").and_then(|name| name.split('.').next());
    name.and_then(find).is_some_and(|row| row.shape.is_recurrent_layer())
}

fn values_of(operand: &Operand, visit: &mut dyn FnMut(ValueId)) {
    match operand {
        Operand::Value(value) => visit(*value),
        Operand::List(items) | Operand::Tuple(items) => items.iter().for_each(|item| values_of(item, visit)),
        Operand::Dict(pairs) => pairs.iter().for_each(|(key, value)| {
            values_of(key, visit);
            values_of(value, visit);
        }),
        Operand::Tensor(_) | Operand::Constant(_) => {}
    }
}

/// Lists the names of results; `None` for those without one.
fn flat_names(outputs: &[Given]) -> Vec<Option<&str>> {
    let mut names = Vec::new();
    for output in outputs {
        match output {
            Given::AsTensor(named) => names.push(Some(named.name.as_str())),
            Given::AsTensors(items) => names.extend(items.iter().map(|named| Some(named.name.as_str()))),
            Given::AsSymInt(Symbolic::AsName(name))
            | Given::AsSymFloat(Symbolic::AsName(name))
            | Given::AsSymBool(Symbolic::AsName(name)) => names.push(Some(name.as_str())),
            _ => names.push(None),
        }
    }
    names
}

/// Returns the types of a value in the example; sizes that values decide are not known.
fn tensor_type(meta: &TensorMeta) -> TensorType {
    let sizes =
        |sizes: &[super::document::SymInt]| sizes.iter().map(super::document::SymInt::example).collect();
    TensorType {
        dtype: codes::dtype(meta.dtype),
        shape: sizes(&meta.sizes),
        strides: if meta.layout == STRIDED { sizes(&meta.strides) } else { None },
        requires_grad: None,
        device: Some(meta.device.shown()),
    }
}

fn float(float: &Float) -> Result<f64, TraceError> {
    match float {
        Float::Number(value) => Ok(*value),
        Float::Word(word) => match word.as_str() {
            "Infinity" => Ok(f64::INFINITY),
            "-Infinity" => Ok(f64::NEG_INFINITY),
            "NaN" => Ok(f64::NAN),
            other => Err(export(format!("`{}` is not a number", other.chars().take(40).collect::<String>()))),
        },
    }
}

/// Returns the default of a parameter as an operand.
fn default(default: &SignatureDefault) -> Option<Operand> {
    Some(Operand::Constant(match default {
        SignatureDefault::None => Constant::None,
        SignatureDefault::Bool(value) => Constant::Bool(*value),
        SignatureDefault::Int(value) => Constant::Int(*value),
        SignatureDefault::Float(value) => Constant::Float(*value),
        SignatureDefault::Str(_) => return None,
        SignatureDefault::Integers(items) => {
            return Some(Operand::List(
                items.iter().map(|item| Operand::Constant(Constant::Int(*item))).collect(),
            ));
        }
    }))
}
