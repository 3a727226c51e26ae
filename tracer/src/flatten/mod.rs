//! From calls to one list: the root's `forward` is walked, every module call followed.
//!
//! Names stand for operands, never for nodes: tuples, lists and modules are passed on symbolically, and only
//! operators leave a node behind.

mod call;
mod expression;
mod inferred_types;
mod lists;
mod opaque;
mod operators;
mod statement;
mod types;

use std::{
    collections::{HashMap, HashSet},
    ops::Range,
};

use crate::{
    archive::{Library, Modules, zip::Records},
    code::ast::{Definition, Function},
    constant_folding::WrittenOut,
    error::TraceError,
    program::{
        Argument, Call, CallId, Constant, ModuleId, Node, NodeId, Note, Operand, Program, Span, TensorId,
        Type, Value, ValueId,
    },
};

/// Calls and brackets inside one another.
const MAX_DEPTH: usize = 100;
/// Calls alone: they take most of the stack, 20 KB each without optimisation. Real models stay below 20.
const MAX_CALL_DEPTH: usize = 60;
/// Nodes of the flattened program; NASNet-Large has 7,801.
const MAX_NODES: usize = 1_000_000;
const MAX_CALLS: usize = 500_000;
/// Elements of all operands together: lists of lists of one name can double at every line.
const MAX_OPERANDS: usize = 8_000_000;
/// Lists inside one another.
const MAX_NESTING: usize = 32;

/// The binding of a name.
#[derive(Clone, Debug)]
enum Bound {
    Operand(Operand),
    Module(ModuleId),
    /// A named tuple, by its mangled class.
    Named(String, Operand),
    /// A free function or class by its qualified name: `_0 = __torch__.f`.
    Global(String),
}

/// Names of one function call.
struct Frame<'a> {
    names: HashMap<&'a str, Bound>,
    /// Index of the file that the function stands in.
    source: usize,
    /// Functions that the function defines itself, to be forked.
    functions: HashMap<&'a str, usize>,
    /// Types of lists and dictionaries, where the code tells them: an empty one says nothing itself.
    declared: HashMap<&'a str, Type>,
}

struct Flattener<'l, 'a, 'p, 'b, 'r, 'z> {
    code: &'l Library<'a>,
    modules: Modules<'p, 'b>,
    records: &'r mut Records<'z>,
    values: Vec<Value>,
    nodes: Vec<Node>,
    calls: Vec<Call>,
    notes: Vec<Note>,
    /// Call that new nodes belong to.
    current: CallId,
    /// Calls of each module so far.
    ordinals: HashMap<ModuleId, u32>,
    /// The number of uses of each name.
    used: HashMap<String, u32>,
    /// Functions that functions define themselves; a frame knows their names.
    functions: Vec<&'l Definition<'a>>,
    /// Functions being walked: recursion is refused.
    active: HashSet<(Option<ModuleId>, *const u8)>,
    depth: usize,
    spent: usize,
    /// Nodes of statements that were decided while reading, in order and none inside another.
    settled: Vec<Range<u32>>,
    written_out: WrittenOut,
}

/// Walks the root's `forward`.
///
/// Also returns the nodes of each `if` and `for` that constants decided: torch keeps such a statement as one node.
pub(crate) fn flatten(
    library: &Library<'_>,
    modules: Modules<'_, '_>,
    records: &mut Records<'_>,
) -> Result<(Program, Vec<Range<u32>>), TraceError> {
    let mut flattener = Flattener {
        code: library,
        modules,
        records,
        values: Vec::new(),
        nodes: Vec::new(),
        calls: Vec::new(),
        notes: Vec::new(),
        current: CallId(0),
        ordinals: HashMap::new(),
        used: HashMap::new(),
        functions: Vec::new(),
        active: HashSet::new(),
        depth: 0,
        spent: 0,
        settled: Vec::new(),
        written_out: WrittenOut::default(),
    };
    let (inputs, output) = flattener.root()?;
    let program = Program {
        modules: flattener.modules.modules,
        tensors: flattener.modules.tensors,
        values: flattener.values,
        nodes: flattener.nodes,
        calls: flattener.calls,
        inputs,
        output,
        notes: flattener.notes,
        ..Program::default()
    };
    Ok((program, flattener.settled))
}

impl<'l, 'a> Flattener<'l, 'a, '_, '_, '_, '_> {
    fn root(&mut self) -> Result<(Vec<ValueId>, Operand), TraceError> {
        let class = self.modules.classes[0].clone();
        let missing = |what: &str| TraceError::Object {
            path: String::new(),
            reason: format!("class `{class}` {what}"),
        };
        let (source, found) = self.code.class(&class)?.ok_or_else(|| missing("has no code"))?;
        // Scripted overloads are `forward__0`, `forward__1`, …
        let function = found.methods.get("forward").or_else(|| found.methods.get("forward__0"));
        let function = function.ok_or_else(|| {
            let methods: Vec<String> = found.methods.keys().map(|name| format!("`{name}`")).collect();
            if methods.is_empty() {
                return missing("has no method `forward`");
            }
            TraceError::NoForward { methods: methods.join(", ") }
        })?;
        let definition = self.definition(source, function)?;
        let mut inputs = Vec::new();
        let mut bound = Vec::new();
        for parameter in definition.parameters.iter().skip(1) {
            let type_ = parameter.type_.as_ref().map_or(Type::Tensor(Default::default()), types::read);
            let span = self.code.span(source, parameter.name);
            let value = self.value(parameter.name, type_, None, span);
            inputs.push(value);
            bound.push((None, Bound::Operand(Operand::Value(value))));
        }
        let output = self.method(ModuleId(0), function.name, bound, (source, function.text))?;
        let output = self.operand(output, (source, function.text))?;
        Ok((inputs, output))
    }

    fn definition(
        &self,
        source: usize,
        function: &'l Function<'a>,
    ) -> Result<&'l Definition<'a>, TraceError> {
        crate::code::parse_body(&self.code.sources[source], function)
    }

    fn value(&mut self, name: &str, type_: Type, producer: Option<NodeId>, span: Span) -> ValueId {
        let id = ValueId(self.values.len() as u32);
        let name = self.unique(name);
        self.values.push(Value { name, type_, producer, span });
        id
    }

    /// Returns `x`, then `x.1`, `x.2`, … as IR text does.
    fn unique(&mut self, name: &str) -> String {
        match self.used.get_mut(name) {
            None => {
                self.used.insert(name.to_owned(), 0);
                name.to_owned()
            }
            Some(count) => {
                *count += 1;
                // A dot is not a part of a source's name: no clash.
                format!("{name}.{count}")
            }
        }
    }

    fn node(&mut self, operator: String, arguments: Vec<Argument>, span: Span) -> Result<NodeId, TraceError> {
        if self.nodes.len() >= MAX_NODES {
            return Err(TraceError::Limit { what: "operators", limit: MAX_NODES });
        }
        let id = NodeId(self.nodes.len() as u32);
        let (outputs, changes) = (Vec::new(), Vec::new());
        self.nodes.push(Node { operator, arguments, outputs, changes, call: self.current, span });
        Ok(id)
    }

    fn output(&mut self, node: NodeId, name: &str, type_: Type, span: Span) -> ValueId {
        let value = self.value(name, type_, Some(node), span);
        self.nodes[node.index()].outputs.push(value);
        value
    }

    fn note(&mut self, text: String, span: Span, node: Option<NodeId>) {
        let path = self
            .calls
            .get(self.current.index())
            .map_or_else(String::new, |call| self.modules.modules[call.module.index()].path.clone());
        self.notes.push(Note { text, path, span, node });
    }

    /// Returns the operand that a bound name stands for.
    fn operand(&mut self, bound: Bound, place: (usize, &str)) -> Result<Operand, TraceError> {
        match bound {
            Bound::Operand(operand) | Bound::Named(_, operand) => Ok(operand),
            // A class or function can be called or passed on; here it is passed on.
            Bound::Global(name) => Ok(Operand::Constant(Constant::Str(name))),
            Bound::Module(module) => {
                let path = &self.modules.modules[module.index()].path;
                Err(self.wrong(place, format!("module `{path}` is used as a value")))
            }
        }
    }

    fn wrong(&self, (source, text): (usize, &str), reason: String) -> TraceError {
        TraceError::Code { place: self.code.place(source, text), reason }
    }

    fn too_deep(&self, (source, text): (usize, &str), what: &'static str, limit: usize) -> TraceError {
        TraceError::TooDeep { place: self.code.place(source, text), what, limit }
    }

    /// Charges for an operand that is copied or built.
    fn spend(&mut self, operand: &Operand) -> Result<(), TraceError> {
        let size = measure(operand, 0)?;
        self.spent += size;
        if self.spent > MAX_OPERANDS {
            return Err(TraceError::Limit { what: "elements of lists", limit: MAX_OPERANDS });
        }
        Ok(())
    }

    fn enter(&mut self, place: (usize, &str)) -> Result<(), TraceError> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(self.too_deep(place, "calls and brackets", MAX_DEPTH));
        }
        Ok(())
    }

    fn leave(&mut self) {
        self.depth -= 1;
    }

    /// Lists the tensors of a module and of all below it.
    fn tensors_below(&self, module: ModuleId, tensors: &mut Vec<TensorId>, seen: &mut HashSet<ModuleId>) {
        let mut open = vec![module];
        while let Some(module) = open.pop() {
            if !seen.insert(module) {
                continue;
            }
            let module = &self.modules.modules[module.index()];
            tensors.extend(module.parameters.values().chain(module.buffers.values()));
            open.extend(module.children.values().rev());
        }
    }
}

/// Counts an operand's elements; refuses what is nested too deep.
fn measure(operand: &Operand, depth: usize) -> Result<usize, TraceError> {
    if depth > MAX_NESTING {
        return Err(TraceError::Limit { what: "lists inside one another", limit: MAX_NESTING });
    }
    let mut size = 1;
    match operand {
        Operand::List(items) | Operand::Tuple(items) => {
            for item in items {
                size += measure(item, depth + 1)?;
            }
        }
        Operand::Dict(pairs) => {
            for (key, value) in pairs {
                size += measure(key, depth + 1)? + measure(value, depth + 1)?;
            }
        }
        Operand::Value(_) | Operand::Tensor(_) | Operand::Constant(_) => {}
    }
    Ok(size)
}
