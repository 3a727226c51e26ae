//! From a trace to a graph: one walk in execution order that names arguments, infers facts and tracks memory.
//!
//! Linear in operators, operands and the blocks' depth.

use std::collections::HashMap;

use operators::{Mark, OperatorClass, ShapeRule, Signature, has, overloads};
use tracer::{Constant, Node, Operand, Program, TensorType, Type, ValueId};

use crate::{
    BlockId,
    arguments::{choose, normalise},
    check::check,
    error::{BuildError, BuildErrors},
    fact::{Fact, Number, Shape, StorageId, TensorFact},
    flow,
    infer::{Call, Rule, Scope, Stop, fresh, rule},
    model::{Disagreement, ModelGraph, Operator, OperatorId, Origin, Storage, UnknownOperator, Value},
    operand::{collect, unique},
    positions::missing_rows,
    recorded::{adopt, align, compare, in_layout, plain, recorded_input, sized},
    stored::place_tensors,
    structure,
};

/// Options for building a graph.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BuildOptions {
    /// Types of the model's inputs; those left out are taken from the recorded ones.
    pub inputs: Vec<InputShape>,
}

/// The type of one input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InputShape {
    /// The input's name; by position if absent.
    pub name: Option<String>,
    /// Its sizes.
    pub shape: Vec<u64>,
    /// Its dtype; the recorded one, or `float32`, when left out.
    pub dtype: Option<tracer::DType>,
}

/// Builds the graph of a trace.
///
/// Recorded types take precedence over inferred ones for the recorded inputs; for other inputs everything is inferred.
///
/// # Errors
///
/// Every problem found: inputs without a shape, operators that reject their operands, an inconsistent program.
pub fn build(program: &Program, options: &BuildOptions) -> Result<ModelGraph, BuildErrors> {
    let mut builder = Builder::new(program)?;
    builder.place_inputs(options)?;
    let nodes = 0..program.nodes.len();
    for index in nodes {
        builder.add(index);
    }
    builder.finish()
}

/// Describes an input that takes no shape; `None` for a tensor.
fn no_tensor(type_: &Type) -> Option<&'static str> {
    Some(match type_ {
        Type::Tensor(_) => return None,
        Type::Optional(inner) => return no_tensor(inner),
        Type::Int | Type::Float | Type::Number => "a number",
        Type::Bool => "a boolean",
        Type::Str => "a text",
        Type::Device => "a device",
        Type::None => "None",
        Type::List(_) => "a list",
        Type::Tuple(_) => "a tuple",
        Type::Dict(..) => "a dictionary",
        Type::Class(_) => "an object",
    })
}

/// The graph under construction.
struct Builder<'p> {
    program: &'p Program,
    facts: Vec<Fact>,
    tensor_facts: Vec<Fact>,
    /// Values in a storage into which no gradient has been written.
    held: HashMap<StorageId, Vec<ValueId>>,
    graph: ModelGraph,
    signatures: HashMap<&'p str, (Vec<Signature>, Option<Rule>)>,
    /// Recorded types of each node's outputs; empty if the inputs differ from the recorded ones.
    recorded: Vec<Option<&'p [Option<TensorType>]>>,
    uses_declared: bool,
    errors: Vec<BuildError>,
}

impl<'p> Builder<'p> {
    fn new(program: &'p Program) -> Result<Self, BuildErrors> {
        check(program)?;
        let mut graph = ModelGraph { name: program.name.clone(), ..ModelGraph::default() };
        place_tensors(program, &mut graph);
        let tensor_facts = graph.tensors.iter().map(|tensor| {
            let number =
                program.literals.get(&tensor.id).and_then(literal).filter(|_| tensor.shape.is_empty());
            // Such a constant was a plain number in Python, and a plain number does not widen other dtypes.
            let is_wrapped_number = number.is_some() && tensor.role == tracer::Role::Constant;
            Fact::Tensor(TensorFact { number, is_wrapped_number, ..tensor.fact() })
        });
        let tensor_facts = tensor_facts.collect();
        graph.blocks = structure::blocks(program);
        Ok(Self {
            program,
            facts: vec![Fact::Unknown; program.values.len()],
            tensor_facts,
            held: HashMap::new(),
            graph,
            signatures: HashMap::new(),
            recorded: Vec::new(),
            uses_declared: false,
            errors: Vec::new(),
        })
    }

    /// Gives every input a type and decides whether recorded types apply.
    fn place_inputs(&mut self, options: &BuildOptions) -> Result<(), BuildErrors> {
        let inputs = &self.program.inputs;
        let name = |id: &ValueId| self.program.values[id.index()].name.clone();
        let names: Vec<String> = inputs.iter().map(name).collect();
        let mut given: Vec<Option<&InputShape>> = vec![None; inputs.len()];
        let mut next = 0;
        // Inputs that take no shape (a flag, `None`) are skipped when shapes are given by position.
        let no_tensor = |at: usize| no_tensor(&self.program.values[inputs[at].index()].type_);
        let takes_shape = |at: usize| no_tensor(at).is_none();
        for input in &options.inputs {
            let place = match &input.name {
                Some(name) => names.iter().position(|other| other == name || plain(other) == name),
                None => {
                    while next < inputs.len() && (given[next].is_some() || !takes_shape(next)) {
                        next += 1;
                    }
                    (next < inputs.len()).then_some(next)
                }
            };
            match (place, &input.name) {
                (Some(place), _) if given[place].is_none() => match no_tensor(place) {
                    Some(kind) => {
                        self.errors.push(BuildError::NoTensor { name: names[place].clone(), kind });
                    }
                    None => given[place] = Some(input),
                },
                (Some(_), Some(name)) => self.errors.push(BuildError::InputTwice { name: name.clone() }),
                (None, Some(name)) => {
                    self.errors.push(BuildError::NoSuchInput { name: name.clone(), inputs: names.clone() });
                }
                _ => {
                    let all = || names.iter().cloned().enumerate();
                    self.errors.push(BuildError::TooManyInputs {
                        n_given: options.inputs.len(),
                        inputs: all().filter(|(at, _)| takes_shape(*at)).map(|(_, name)| name).collect(),
                        others: all().filter_map(|(at, name)| Some((name, no_tensor(at)?))).collect(),
                    });
                    break;
                }
            }
        }
        let shapes: Vec<Option<&[u64]>> =
            given.iter().map(|input| input.map(|input| input.shape.as_slice())).collect();
        // Inputs of an exported program that share a size take the given one.
        let followed = match self.program.open_sizes.as_ref().map(|open| open.resolve(&names, &shapes)) {
            Some(Ok(sizes)) => sizes,
            Some(Err(fault)) => {
                self.errors.push(BuildError::Size { fault });
                Vec::new()
            }
            None => Vec::new(),
        };
        let recorded = self.program.recorded.as_ref();
        let mut is_recorded = true;
        let mut missing = Vec::new();
        for (at, id) in inputs.iter().enumerate() {
            let value = &self.program.values[id.index()];
            let known = recorded.and_then(|recorded| recorded_input(&recorded.inputs, at, &value.name));
            let declared = match &value.type_ {
                Type::Tensor(type_) => Some(type_),
                _ => None,
            };
            let known = known.or(declared.filter(|type_| type_.shape.is_some()));
            let fact = match (given[at], known) {
                (Some(input), known) => {
                    let dtype = input.dtype.or(known.and_then(|k| k.dtype)).unwrap_or(tracer::DType::Float32);
                    is_recorded &= known.is_some_and(|known| {
                        known.shape.as_ref() == Some(&input.shape) && known.dtype.is_none_or(|d| d == dtype)
                    });
                    self.tensor_input(*id, &input.shape, Some(dtype), false)
                }
                (None, Some(TensorType { shape: Some(shape), dtype, requires_grad, .. })) => {
                    let sizes = followed.get(at).and_then(Option::as_ref).unwrap_or(shape);
                    is_recorded &= sizes == shape;
                    self.tensor_input(*id, sizes, *dtype, requires_grad.unwrap_or(false))
                }
                _ if matches!(value.type_, Type::Tensor(_)) => {
                    missing.push(value.name.clone());
                    continue;
                }
                _ => self.structured_input(*id, &value.type_),
            };
            let fact = match known {
                Some(known) => in_layout(fact, known),
                None => fact,
            };
            self.hold(*id, fact);
        }
        if !missing.is_empty() {
            let dtypes = inputs.iter().map(|id| match &self.program.values[id.index()].type_ {
                Type::Tensor(type_) => type_.dtype,
                _ => None,
            });
            self.errors.push(BuildError::NoShape { missing, inputs: names, dtypes: dtypes.collect() });
        }
        if !self.errors.is_empty() {
            return Err(BuildErrors(std::mem::take(&mut self.errors)));
        }
        if let (true, Some(recorded)) = (is_recorded, recorded) {
            self.recorded = align(self.program, &recorded.nodes);
        }
        self.uses_declared = is_recorded;
        Ok(())
    }

    fn tensor_input(
        &mut self,
        id: ValueId,
        shape: &[u64],
        dtype: Option<tracer::DType>,
        requires_grad: bool,
    ) -> Fact {
        let shape: Shape = shape.iter().map(|size| Some(*size)).collect();
        let mut tensor = fresh(dtype, shape);
        tensor.storage = Some(self.allocate(Origin::Input(id), tensor.bytes()));
        tensor.requires_grad = requires_grad;
        Fact::Tensor(tensor)
    }

    /// Inputs other than tensors: numbers stay unknown; lists and tuples of tensors have unknown shapes.
    fn structured_input(&mut self, id: ValueId, type_: &Type) -> Fact {
        match type_ {
            Type::Int => Fact::Int(None),
            Type::Float => Fact::Float(None),
            Type::Bool => Fact::Bool(None),
            Type::None => Fact::None,
            Type::Tuple(items) => {
                Fact::List(items.iter().map(|item| self.structured_input(id, item)).collect())
            }
            Type::Tensor(TensorType { shape: Some(shape), dtype, requires_grad, .. }) => {
                self.tensor_input(id, shape, *dtype, requires_grad.unwrap_or(false))
            }
            Type::Tensor(_) => {
                let storage = Some(self.allocate(Origin::Input(id), None));
                Fact::Tensor(TensorFact { storage, ..TensorFact::default() })
            }
            _ => Fact::Unknown,
        }
    }

    fn allocate(&mut self, origin: Origin, bytes: Option<u64>) -> StorageId {
        self.graph.storages.push(Storage { origin, bytes });
        StorageId((self.graph.storages.len() - 1) as u32)
    }

    /// Adds one operator.
    fn add(&mut self, index: usize) {
        let program = self.program;
        let node = &program.nodes[index];
        let id = OperatorId(index as u32);
        let (signatures, rule) = self.signatures.entry(&node.operator).or_insert_with(|| {
            let short = node.operator.rsplit("::").next().unwrap_or(&node.operator);
            // Another library's `linear` may be anything.
            let is_ours = ["aten::", "prim::", "torchvision::", "shard::", "outer::"]
                .iter()
                .any(|ns| node.operator.starts_with(ns));
            let rule = if is_ours { rule(operators::plain(short).0) } else { None };
            (overloads(&node.operator), rule)
        });
        let scope = Scope { values: &self.facts, tensors: &self.tensor_facts };
        let signature = choose(signatures, node, &scope, program);
        let arguments = normalise(node, signature);
        let is_writing = signature.is_some_and(|s| s.parameters.iter().any(|p| p.is_written))
            || signature.is_none() && node.operator.ends_with('_') && !node.operator.ends_with("__");
        let rule = *rule;
        let call = Call::new(&node.operator, &arguments, node.outputs.len(), &scope);
        let inferred = match rule {
            Some(rule) => (rule.infer)(&call),
            None => Err(Stop::Unknown),
        };
        let needs_gradient = !has(call.name, Mark::StopsGradient)
            && if has(call.name, Mark::FirstGradient) {
                call.at(0).tensor().is_some_and(|t| t.requires_grad)
            } else {
                call.tensors().iter().any(|t| t.requires_grad)
            };
        let written = call.at(0).tensor().filter(|_| is_writing).cloned();
        let recorded = self.recorded.get(index).copied().flatten();
        let result = match (inferred, recorded.and_then(sized)) {
            (Ok(fact), _) => fact,
            (Err(Stop::Unknown), _) => Fact::Unknown,
            // The operator has run on inputs of exactly these sizes: the rule is wrong, not the trace.
            (Err(Stop::Rejected(inferred)), Some(recorded)) => {
                self.graph.disagreements.push(Disagreement { operator: id, inferred, recorded });
                Fact::Unknown
            }
            (Err(Stop::Rejected(reason)), None) => {
                let shapes = call.tensors().iter().map(|t| t.to_string()).collect();
                self.errors.push(BuildError::Rejected {
                    operator: id,
                    name: node.operator.clone(),
                    path: self.graph.blocks[node.call.index()].path.clone(),
                    shapes,
                    reason,
                    span: node.span,
                });
                Fact::Unknown
            }
        };
        let results = spread(result, node.outputs.len());
        let mut class = rule.map_or(OperatorClass::Unknown, |rule| rule.class);
        if class != OperatorClass::Unknown && call.tensors().is_empty() && !has_tensor(&results) {
            class = OperatorClass::Plumbing;
        }
        if node.operator == "prim::Opaque" {
            class = OperatorClass::Unknown;
        }
        drop(call);
        let is_complete = self.make(id, node, results, (class, needs_gradient), written.as_ref());
        if let (Some(written), Some(operand)) = (&written, arguments.first()) {
            self.write(written, &operand.operand, needs_gradient);
        }
        if class == OperatorClass::Unknown {
            let entry = self
                .graph
                .unknown
                .entry(node.operator.clone())
                .or_insert_with(|| UnknownOperator { operators: Vec::new(), is_recorded: true });
            entry.operators.push(id);
            entry.is_recorded &= is_complete;
        }
        let mut inputs = Vec::new();
        let mut tensors = Vec::new();
        for argument in &arguments {
            collect(&argument.operand, &mut inputs, &mut tensors);
        }
        self.graph.operators.push(Operator {
            id,
            name: node.operator.clone(),
            class,
            arguments,
            outputs: node.outputs.clone(),
            inputs: unique(inputs),
            tensors: unique(tensors),
            block: BlockId(node.call.0),
            is_writing,
            span: node.span,
        });
    }

    /// Gives an operator's outputs their facts, corrected by the recorded types; false if sizes stay unknown.
    fn make(
        &mut self,
        id: OperatorId,
        node: &Node,
        results: Vec<Fact>,
        (class, needs_gradient): (OperatorClass, bool),
        written: Option<&TensorFact>,
    ) -> bool {
        let program = self.program;
        let recorded = self.recorded.get(id.index()).copied().flatten();
        let mut is_complete = true;
        for (position, (value, mut fact)) in node.outputs.iter().zip(results).enumerate() {
            if let Fact::Unknown = fact {
                fact = by_type(&program.values[value.index()].type_);
            }
            // In-place views such as `squeeze_` change the sizes.
            let is_rewritten = class != OperatorClass::View;
            if let (Some(written), 0, Fact::Tensor(_), true) = (written, position, &fact, is_rewritten) {
                fact = Fact::Tensor(TensorFact { number: None, ..written.clone() });
            }
            let declared = match &program.values[value.index()].type_ {
                Type::Tensor(type_) if self.uses_declared && type_.shape.is_some() => Some(type_),
                _ => None,
            };
            let recorded =
                recorded.and_then(|types| types.get(position)).and_then(Option::as_ref).or(declared);
            if let (Some(type_), Fact::Tensor(tensor)) = (recorded, &mut fact) {
                self.graph.disagreements.extend(compare(id, tensor, type_));
                adopt(tensor, type_);
                // A part of a list was made before its sizes were known.
                if let Some(storage) = tensor.storage.filter(|_| class == OperatorClass::Plumbing) {
                    let room = &mut self.graph.storages[storage.index()].bytes;
                    *room = room.or(tensor.bytes());
                }
            }
            self.own(&mut fact, id, needs_gradient);
            is_complete &= fact.tensors().iter().all(|tensor| tensor.shape.is_some());
            self.hold(*value, fact);
        }
        is_complete
    }

    /// Replaces an operand by another tensor from here on: later readers see the written values.
    fn write(&mut self, written: &TensorFact, operand: &Operand, needs_gradient: bool) {
        if let Operand::Value(value) = operand
            && let Fact::Tensor(tensor) = &mut self.facts[value.index()]
        {
            tensor.number = None;
            tensor.requires_grad |= needs_gradient && written.dtype.is_none_or(differentiable);
        }
        if let Some(storage) = written.storage.filter(|_| needs_gradient) {
            self.carry_gradient(storage);
        }
    }

    fn hold(&mut self, value: ValueId, fact: Fact) {
        if let Fact::Tensor(TensorFact { storage: Some(storage), .. }) = &fact {
            self.held.entry(*storage).or_default().push(value);
        }
        self.facts[value.index()] = fact;
    }

    /// A write to a view is visible through all aliases of its storage.
    fn carry_gradient(&mut self, storage: StorageId) {
        for value in self.held.remove(&storage).unwrap_or_default() {
            if let Fact::Tensor(tensor) = &mut self.facts[value.index()] {
                tensor.requires_grad |= tensor.dtype.is_none_or(differentiable);
            }
        }
    }

    /// Gives every fresh tensor in a fact its memory, and marks where gradients flow.
    fn own(&mut self, fact: &mut Fact, operator: OperatorId, needs_gradient: bool) {
        match fact {
            Fact::Tensor(tensor) => {
                if tensor.storage.is_none() {
                    let least = self.least_room(operator);
                    let bytes = tensor.bytes().map(|bytes| bytes.max(least));
                    tensor.storage = Some(self.allocate(Origin::Made(operator), bytes));
                    tensor.requires_grad = false;
                }
                tensor.requires_grad = needs_gradient && tensor.dtype.is_none_or(differentiable);
            }
            Fact::List(items) => items.iter_mut().for_each(|item| self.own(item, operator, needs_gradient)),
            Fact::Dict(items) => {
                items.iter_mut().for_each(|(_, item)| self.own(item, operator, needs_gradient));
            }
            _ => {}
        }
    }

    /// Returns the least bytes of an operator's result: torch first allocates those of `fold` and `unfold` as large as
    /// their input, and frees nothing.
    fn least_room(&self, operator: OperatorId) -> u64 {
        let node = &self.program.nodes[operator.index()];
        let folds = matches!(
            operators::find(schema::short_name(&node.operator)).map(|row| row.shape),
            Some(ShapeRule::Col2Im | ShapeRule::Im2Col)
        );
        let input = match node.arguments.first().map(|argument| &argument.operand) {
            Some(Operand::Value(value)) if folds => self.facts[value.index()].tensor(),
            _ => None,
        };
        input.and_then(TensorFact::bytes).unwrap_or(0)
    }

    fn finish(mut self) -> Result<ModelGraph, BuildErrors> {
        if !self.errors.is_empty() {
            return Err(BuildErrors(self.errors));
        }
        let program = self.program;
        let mut graph = std::mem::take(&mut self.graph);
        graph.values = std::mem::take(&mut self.facts)
            .into_iter()
            .zip(&program.values)
            .enumerate()
            .map(|(index, (fact, value))| Value {
                id: ValueId(index as u32),
                name: value.name.clone(),
                fact,
                producer: value.producer.map(|node| OperatorId(node.0)),
                consumers: Vec::new(),
                span: value.span,
            })
            .collect();
        for operator in &graph.operators {
            for value in &operator.inputs {
                graph.values[value.index()].consumers.push(operator.id);
            }
            for tensor in &operator.tensors {
                graph.tensors[tensor.index()].consumers.push(operator.id);
            }
        }
        graph.inputs.clone_from(&program.inputs);
        graph.output = program.output.clone();
        collect(&program.output, &mut graph.outputs, &mut Vec::new());
        graph.outputs = unique(graph.outputs);
        graph.flow = flow::edges(&graph);
        let missing = missing_rows(&graph, program);
        if !missing.is_empty() {
            return Err(BuildErrors(missing));
        }
        structure::hash(&mut graph);
        Ok(graph)
    }
}

fn literal(constant: &Constant) -> Option<Number> {
    match constant {
        Constant::Int(value) => Some(Number::Int(*value)),
        Constant::Float(value) => Some(Number::Float(*value)),
        Constant::Bool(value) => Some(Number::Bool(*value)),
        _ => None,
    }
}

fn has_tensor(facts: &[Fact]) -> bool {
    facts.iter().any(|fact| match fact {
        Fact::Tensor(_) => true,
        Fact::List(items) => has_tensor(items),
        _ => false,
    })
}

fn differentiable(dtype: tracer::DType) -> bool {
    dtype.is_float() || dtype.is_complex()
}

/// Distributes the facts of an operator over its outputs.
fn spread(fact: Fact, n_outputs: usize) -> Vec<Fact> {
    match (fact, n_outputs) {
        (fact, 1) => vec![fact],
        (Fact::List(mut items), n) => {
            items.resize(n, Fact::Unknown);
            items
        }
        (fact @ Fact::Tensor(_), n) if n > 1 => {
            let mut items = vec![Fact::Unknown; n];
            items[0] = fact;
            items
        }
        (_, n) => vec![Fact::Unknown; n],
    }
}

/// Returns the fact of a declared type.
fn by_type(type_: &Type) -> Fact {
    match type_ {
        Type::Tensor(_) => Fact::Tensor(TensorFact::default()),
        Type::Int => Fact::Int(None),
        Type::Float => Fact::Float(None),
        Type::Bool => Fact::Bool(None),
        Type::None => Fact::None,
        Type::Tuple(items) => Fact::List(items.iter().map(by_type).collect()),
        _ => Fact::Unknown,
    }
}
