//! Modules and calls, found again from `GetAttr` chains and the scopes of nodes.
//!
//! A scope names the stack of modules that were being called: `__module.layer1/__module.layer1.0`. A new stack
//! means a new call. The same stack may also mean a second call of the same module right after the first; then
//! the second call's code fetches the module's attributes again, which a single call never does.

use std::collections::{HashMap, HashSet};

use indexmap::IndexMap;

use crate::{Call, CallId, Module, ModuleId, Operand};

/// The module tree as far as it is known.
pub struct Modules {
    modules: Vec<Module>,
    by_path: HashMap<String, ModuleId>,
}

impl Modules {
    /// Starts with the root.
    pub fn new(class: String) -> Self {
        let mut modules = Self { modules: Vec::new(), by_path: HashMap::new() };
        modules.push(String::new(), class, None);
        modules
    }

    fn push(&mut self, path: String, class: String, parent: Option<ModuleId>) -> ModuleId {
        let id = ModuleId(self.modules.len() as u32);
        self.by_path.insert(path.clone(), id);
        self.modules.push(Module {
            path,
            class,
            parent,
            children: IndexMap::new(),
            parameters: IndexMap::new(),
            buffers: IndexMap::new(),
            attributes: IndexMap::new(),
        });
        id
    }

    /// Returns the child of a module, making it where it is new.
    pub fn child(&mut self, parent: ModuleId, name: &str, class: &str) -> ModuleId {
        let path = self.path_of(parent, name);
        let id = match self.by_path.get(&path) {
            Some(id) => *id,
            None => {
                let id = self.push(path, String::new(), Some(parent));
                self.modules[parent.index()].children.insert(name.to_owned(), id);
                id
            }
        };
        let known = &mut self.modules[id.index()].class;
        if known.is_empty() {
            class.clone_into(known);
        }
        id
    }

    /// Returns the path of an attribute of a module.
    pub fn path_of(&self, parent: ModuleId, name: &str) -> String {
        match self.modules[parent.index()].path.as_str() {
            "" => name.to_owned(),
            path => format!("{path}.{name}"),
        }
    }

    /// Returns the module at a path, making it and its parents where they are new.
    fn at_path(&mut self, path: &str) -> ModuleId {
        if let Some(id) = self.by_path.get(path) {
            return *id;
        }
        path.split('.').fold(ModuleId(0), |parent, name| self.child(parent, name, ""))
    }

    /// Returns the module, to add attributes to.
    pub fn get_mut(&mut self, id: ModuleId) -> &mut Module {
        &mut self.modules[id.index()]
    }

    /// Returns the list.
    pub fn into_list(self) -> Vec<Module> {
        self.modules
    }

    /// Returns the modules of a scope from the outermost to the innermost, without the root.
    ///
    /// Three spellings are known: `__module.a/__module.a.b` (tracing), `Class::/Class::a/Class::a.b` (ONNX export)
    /// and `Class/Class[a]/Class[b]` (before torch 1.6, where names are relative).
    pub fn of_scope(&mut self, scope: &str) -> Vec<ModuleId> {
        let mut stack: Vec<ModuleId> = Vec::new();
        for part in scope_parts(scope) {
            let module = match part {
                ScopePart::Absolute("") => continue,
                ScopePart::Absolute(path) => self.at_path(path),
                ScopePart::Relative(name) => {
                    let parent = stack.last().copied().unwrap_or(ModuleId(0));
                    self.child(parent, name, "")
                }
            };
            stack.push(module);
        }
        stack
    }
}

enum ScopePart<'a> {
    Absolute(&'a str),
    Relative(&'a str),
}

/// Splits a scope; a `/` inside a module's name is told from one between modules by what follows it.
fn scope_parts(scope: &str) -> Vec<ScopePart<'_>> {
    if scope.is_empty() {
        return Vec::new();
    }
    if let Some(first) = scope.strip_prefix("__module") {
        let paths = first.split("/__module");
        return paths.map(|path| ScopePart::Absolute(path.strip_prefix('.').unwrap_or(path))).collect();
    }
    let part = |text| match str::rsplit_once(text, "::") {
        Some((_, path)) => Some(ScopePart::Absolute(path)),
        None => {
            let (_, name) = text.split_once('[')?;
            Some(ScopePart::Relative(name.strip_suffix(']').unwrap_or(name)))
        }
    };
    scope.split('/').filter_map(part).collect()
}

/// Calls as the nodes go by.
pub struct Calls {
    calls: Vec<Call>,
    /// Calls that are open, the root's first.
    open: Vec<Open>,
    ordinals: HashMap<ModuleId, u32>,
    /// Attributes fetched from a module since its last beginning.
    fetched: HashMap<ModuleId, HashSet<String>>,
    /// How often a module's code began again.
    generations: HashMap<ModuleId, u32>,
}

struct Open {
    call: CallId,
    module: ModuleId,
    generation: u32,
}

impl Calls {
    /// Opens the root's call.
    pub fn new() -> Self {
        let mut calls = Self {
            calls: Vec::new(),
            open: Vec::new(),
            ordinals: HashMap::new(),
            fetched: HashMap::new(),
            generations: HashMap::new(),
        };
        calls.open(ModuleId(0), None, 0);
        calls
    }

    /// Notes that the code of `module` fetches one of its attributes.
    pub fn fetch(&mut self, module: ModuleId, name: &str) {
        let fetched = self.fetched.entry(module).or_default();
        if !fetched.insert(name.to_owned()) {
            fetched.clear();
            fetched.insert(name.to_owned());
            *self.generations.entry(module).or_default() += 1;
        }
    }

    fn generation(&self, module: ModuleId) -> u32 {
        self.generations.get(&module).copied().unwrap_or_default()
    }

    /// Returns the call that the next node belongs to, given the modules of its scope.
    pub fn enter(&mut self, stack: &[ModuleId], node: u32) -> CallId {
        let same = self.open[1..]
            .iter()
            .zip(stack)
            .take_while(|(open, module)| {
                open.module == **module && open.generation == self.generation(**module)
            })
            .count();
        self.close_to(same + 1, node);
        for module in &stack[same..] {
            self.open(*module, None, node);
        }
        self.innermost()
    }

    /// Opens a call that its code names, below the innermost one.
    pub fn enter_method(&mut self, module: ModuleId, method: &str, node: u32) -> CallId {
        self.open(module, Some(method), node);
        self.innermost()
    }

    /// Closes the innermost call.
    pub fn leave(&mut self, node: u32) {
        let depth = self.open.len();
        self.close_to(depth.saturating_sub(1).max(1), node);
    }

    /// Returns the call that is open.
    pub fn innermost(&self) -> CallId {
        self.open.last().expect("the root's call stays open").call
    }

    fn open(&mut self, module: ModuleId, method: Option<&str>, node: u32) {
        let call = CallId(self.calls.len() as u32);
        let ordinal = self.ordinals.entry(module).and_modify(|count| *count += 1).or_insert(1);
        // The tracer names methods so: forward, forward1, forward2.
        let numbered = match *ordinal {
            1 => "forward".to_owned(),
            ordinal => format!("forward{}", ordinal - 1),
        };
        self.calls.push(Call {
            module,
            method: method.map_or(numbered, str::to_owned),
            parent: self.open.last().map(|open| open.call),
            ordinal: *ordinal,
            nodes: node..node,
            arguments: Vec::new(),
            output: Operand::default(),
        });
        let generation = self.generation(module);
        self.open.push(Open { call, module, generation });
    }

    fn close_to(&mut self, depth: usize, node: u32) {
        for open in self.open.drain(depth..) {
            self.calls[open.call.index()].nodes.end = node;
        }
    }

    /// Closes every call and returns them.
    pub fn finish(mut self, nodes: u32) -> Vec<Call> {
        self.close_to(0, nodes);
        self.calls
    }

    /// Returns a call, to add what it takes and gives.
    pub fn get_mut(&mut self, call: CallId) -> &mut Call {
        &mut self.calls[call.index()]
    }
}
