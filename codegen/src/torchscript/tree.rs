//! Holders of a stage's tensors as classes: holders of the same shape share a class.

use std::{collections::HashMap, hash::Hash};

use indexmap::IndexMap;
use tracer::{Program, Role, TensorId};

use super::{Storages, pickle::Pickle};
use crate::{
    error::CutError,
    names::{identifier, is_identifier, quoted},
    pipeline::Stage,
};

/// The deepest nesting of modules.
const MAX_DEPTH: usize = 200;

/// The holders of one stage.
pub(crate) struct Tree {
    nodes: Vec<Holder>,
    /// Class definitions without methods, except the root's.
    classes: Vec<String>,
    class_of: Vec<String>,
}

#[derive(Default)]
struct Holder {
    children: IndexMap<String, usize>,
    tensors: IndexMap<String, TensorId>,
    path: String,
}

impl Tree {
    pub fn new(program: &Program, stage: &Stage, space: &str) -> Result<Self, CutError> {
        let mut nodes = vec![Holder::default()];
        for &id in &stage.tensors {
            let path = &program.tensors[id.index()].path;
            let fault = |reason: &str| CutError::Tensor { tensor: path.clone(), reason: reason.into() };
            let parts: Vec<&str> = path.split('.').collect();
            let (last, holders) = parts.split_last().expect("splitting gives one part at least");
            if holders.len() > MAX_DEPTH {
                return Err(fault("it is nested too deeply"));
            }
            let mut at = 0;
            for part in holders {
                if nodes[at].tensors.contains_key(*part) {
                    return Err(fault("a module and a tensor have one name"));
                }
                at = match nodes[at].children.get(*part) {
                    Some(child) => *child,
                    None => {
                        let path = if nodes[at].path.is_empty() {
                            (*part).to_string()
                        } else {
                            format!("{}.{part}", nodes[at].path)
                        };
                        nodes.push(Holder { path, ..Holder::default() });
                        let child = nodes.len() - 1;
                        nodes[at].children.insert((*part).to_string(), child);
                        child
                    }
                };
            }
            let is_taken =
                nodes[at].children.contains_key(*last) || *last == "training" || *last == "forward";
            if is_taken || nodes[at].tensors.insert((*last).to_string(), id).is_some() {
                return Err(fault("a module and a tensor have one name"));
            }
        }
        let mut tree = Self { class_of: vec![String::new(); nodes.len()], nodes, classes: Vec::new() };
        tree.name_classes(program, space);
        Ok(tree)
    }

    /// Children follow their parents in the list: in reverse order, each child is named before its parent.
    fn name_classes(&mut self, program: &Program, space: &str) {
        let originals: HashMap<&str, &str> =
            program.modules.iter().map(|module| (module.path.as_str(), module.class.as_str())).collect();
        let mut known: HashMap<String, String> = HashMap::new();
        let mut used: HashMap<String, u32> = HashMap::new();
        for index in (1..self.nodes.len()).rev() {
            let body = self.attributes(program, index);
            let original = originals.get(self.nodes[index].path.as_str()).copied().unwrap_or("Holder");
            let wanted = identifier(original.rsplit('.').next().unwrap_or("Holder"));
            let key = format!("{wanted}\n{body}");
            let class = known.entry(key).or_insert_with(|| {
                let count = used.entry(wanted.clone()).or_insert(0);
                *count += 1;
                let name = if *count == 1 { wanted.clone() } else { format!("{wanted}__{count}") };
                self.classes.push(format!("class {name}(Module):\n{body}"));
                format!("{space}.{name}")
            });
            self.class_of[index] = class.clone();
        }
        self.class_of[0] = format!("{space}.Stage");
    }

    fn attributes(&self, program: &Program, index: usize) -> String {
        let holder = &self.nodes[index];
        let list = |role: Role| -> String {
            let names = holder.tensors.iter().filter(|(_, id)| program.tensors[id.index()].role == role);
            names.map(|(name, _)| format!("{}, ", quoted(name))).collect()
        };
        let mut out = format!(
            "  __parameters__ = [{}]\n  __buffers__ = [{}]\n",
            list(Role::Parameter),
            list(Role::Buffer)
        );
        let mut attribute = |name: &str, type_: &str| {
            if is_identifier(name) {
                out.push_str(&format!("  {name} : {type_}\n"));
            } else {
                out.push_str(&format!("  __annotations__[{}] = {type_}\n", quoted(name)));
            }
        };
        for name in holder.tensors.keys() {
            attribute(name, "Tensor");
        }
        attribute("training", "bool");
        for (name, child) in &holder.children {
            attribute(name, &self.class_of[*child]);
        }
        out
    }

    /// Returns all classes except the root's.
    pub fn holders(&self) -> &[String] {
        &self.classes
    }

    /// Returns the head of the root's class.
    pub fn root(&self, program: &Program) -> String {
        format!("class Stage(Module):\n{}", self.attributes(program, 0))
    }

    /// Returns the root's class by its qualified name.
    pub fn root_class(&self) -> &str {
        &self.class_of[0]
    }

    /// Writes the objects.
    pub fn pickle(&self, out: &mut Pickle, program: &Program, storages: &Storages, training: bool) {
        let mut names: HashMap<_, usize> = HashMap::new();
        for id in self.nodes.iter().flat_map(|holder| holder.tensors.values()) {
            *names.entry(identity(program, *id)).or_default() += 1;
        }
        let is_shared = |id: TensorId| names.get(&identity(program, id)).is_some_and(|&count| count > 1);
        self.pickle_node(0, out, program, storages, training, &is_shared);
    }

    // The depth was bounded when the tree was made.
    fn pickle_node(
        &self,
        index: usize,
        out: &mut Pickle,
        program: &Program,
        storages: &Storages,
        training: bool,
        is_shared: &dyn Fn(TensorId) -> bool,
    ) {
        let holder = &self.nodes[index];
        out.open_object(&self.class_of[index]);
        for (name, id) in &holder.tensors {
            let tensor = &program.tensors[id.index()];
            out.text(name);
            let place = storages.place(program, *id);
            if is_shared(*id) {
                out.shared_tensor(tensor.dtype, &place, &tensor.shape, &tensor.strides, tensor.requires_grad);
            } else {
                out.tensor(tensor.dtype, &place, &tensor.shape, &tensor.strides, tensor.requires_grad);
            }
        }
        out.text("training");
        out.bool(training);
        for (name, child) in &holder.children {
            out.text(name);
            self.pickle_node(*child, out, program, storages, training, is_shared);
        }
        out.close_object();
    }
}

/// Returns the properties that two names of one tensor share.
fn identity(program: &Program, id: TensorId) -> impl Eq + Hash {
    let tensor = &program.tensors[id.index()];
    (tensor.place(), tensor.dtype, tensor.requires_grad)
}
