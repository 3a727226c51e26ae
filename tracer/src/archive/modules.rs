//! The module tree that `data.pkl` holds: objects become modules, tensors and plain attributes.

use std::collections::HashMap;

use indexmap::IndexMap;

use super::{
    files::{Library, unmangle},
    pickle::{Object, ObjectId, Pickle},
    tensor::{self, Extents},
    zip::Records,
};
use crate::{
    error::TraceError,
    program::{Constant, Module, ModuleId, Operand, Role, Tensor, TensorId},
};

/// Modules inside modules. Real models stay below 30.
const MAX_DEPTH: usize = 100;
/// Lists inside lists among the attributes.
const MAX_VALUE_DEPTH: usize = 32;
/// Elements of all list attributes that code asks for.
const MAX_VALUES: usize = 10_000_000;

/// Which pickle an object stands in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Book {
    Data,
    Constants,
}

/// The module tree with what code may ask of it.
pub(crate) struct Modules<'p, 'b> {
    pub(crate) modules: Vec<Module>,
    pub(crate) tensors: Vec<Tensor>,
    /// Mangled class name of each module.
    pub(crate) classes: Vec<String>,
    /// Attributes that are lists, dictionaries and foreign objects.
    others: HashMap<(ModuleId, String), ObjectId>,
    /// Objects of `constants.pkl`.
    constants: Vec<ObjectId>,
    data: &'p Pickle<'b>,
    constants_book: &'p Pickle<'b>,
    extents: Extents,
    met: HashMap<ObjectId, Met>,
    tensor_of: HashMap<(Book, ObjectId), TensorId>,
    converted: usize,
}

enum Met {
    Open,
    Done(ModuleId),
}

/// The value of `self.name`.
pub(crate) enum Attribute {
    Module(ModuleId),
    Operand(Operand),
    /// An object of a class that is not a module.
    Object(String),
}

impl<'p, 'b> Modules<'p, 'b> {
    pub(crate) fn read(
        data: &'p Pickle<'b>,
        constants: &'p Pickle<'b>,
        library: &Library<'_>,
        records: &mut Records<'_>,
    ) -> Result<Self, TraceError> {
        let mut modules = Modules {
            modules: Vec::new(),
            tensors: Vec::new(),
            classes: Vec::new(),
            others: HashMap::new(),
            constants: Vec::new(),
            data,
            constants_book: constants,
            extents: Extents::default(),
            met: HashMap::new(),
            tensor_of: HashMap::new(),
            converted: 0,
        };
        match data.get(data.root) {
            Object::Instance { .. } => modules.module(data.root, String::new(), None, 0, library, records)?,
            _ => {
                return Err(TraceError::NotArchive {
                    found: "an archive whose root is not a module",
                    advice: "save the traced module itself with torch.jit.save",
                });
            }
        };
        if let Object::Tuple(items) | Object::List(items) = constants.get(constants.root) {
            modules.constants.clone_from(items);
        }
        for index in 0..modules.constants.len() {
            let id = modules.constants[index];
            let path = format!("CONSTANTS.c{index}");
            modules.stored(Book::Constants, id, (&path, Role::Constant), records)?;
        }
        Ok(modules)
    }

    fn module(
        &mut self,
        id: ObjectId,
        path: String,
        parent: Option<ModuleId>,
        depth: usize,
        library: &Library<'_>,
        records: &mut Records<'_>,
    ) -> Result<ModuleId, TraceError> {
        match self.met.get(&id) {
            Some(Met::Done(module)) => return Ok(*module),
            Some(Met::Open) => {
                return Err(TraceError::Object { path, reason: "the module contains itself".to_owned() });
            }
            None => {}
        }
        if depth > MAX_DEPTH {
            return Err(TraceError::Limit { what: "modules inside one another", limit: MAX_DEPTH });
        }
        self.met.insert(id, Met::Open);
        let data = self.data;
        let Object::Instance { class, state } = data.get(id) else {
            return Err(TraceError::Object { path, reason: "it is not a module".to_owned() });
        };
        let Object::Class(space, name) = data.get(*class) else {
            return Err(TraceError::Object { path, reason: "it has no class".to_owned() });
        };
        let class = format!("{space}.{name}");
        let this = ModuleId(self.modules.len() as u32);
        let declared = library.class(&class)?.map(|(_, class)| class);
        self.modules.push(Module {
            path: path.clone(),
            class: unmangle(&class),
            parent,
            children: IndexMap::new(),
            parameters: IndexMap::new(),
            buffers: IndexMap::new(),
            attributes: IndexMap::new(),
        });
        self.classes.push(class);
        let fields: &[(ObjectId, ObjectId)] = match state.map(|state| data.get(state)) {
            Some(Object::Dict(fields)) => fields,
            _ => &[],
        };
        for (key, value) in fields {
            let Object::Str(key) = data.get(*key) else {
                return Err(TraceError::Object {
                    path,
                    reason: "an attribute's name is not a string".to_owned(),
                });
            };
            let inner = if path.is_empty() { (*key).to_owned() } else { format!("{path}.{key}") };
            match data.get(*value) {
                Object::Instance { class, .. } if is_module(data, *class, library)? => {
                    let child = self.module(*value, inner, Some(this), depth + 1, library, records)?;
                    self.modules[this.index()].children.insert((*key).to_owned(), child);
                }
                Object::Tensor { requires_grad, .. } => {
                    let role = match declared {
                        Some(class) if class.parameters.iter().any(|name| name == key) => Role::Parameter,
                        None if *requires_grad => Role::Parameter,
                        _ => Role::Buffer,
                    };
                    let tensor = self.fresh(Book::Data, *value, (&inner, role), records)?;
                    let module = &mut self.modules[this.index()];
                    let map =
                        if role == Role::Parameter { &mut module.parameters } else { &mut module.buffers };
                    map.insert((*key).to_owned(), tensor);
                }
                plain => match constant(plain) {
                    Some(constant) => {
                        self.modules[this.index()].attributes.insert((*key).to_owned(), constant);
                    }
                    None => {
                        self.others.insert((this, (*key).to_owned()), *value);
                    }
                },
            }
        }
        self.met.insert(id, Met::Done(this));
        Ok(this)
    }

    /// Looks up `module.name`.
    pub(crate) fn attribute(
        &mut self,
        module: ModuleId,
        name: &str,
        records: &mut Records<'_>,
    ) -> Result<Option<Attribute>, TraceError> {
        let owner = &self.modules[module.index()];
        if let Some(child) = owner.children.get(name) {
            return Ok(Some(Attribute::Module(*child)));
        }
        if let Some(tensor) = owner.parameters.get(name).or_else(|| owner.buffers.get(name)) {
            return Ok(Some(Attribute::Operand(Operand::Tensor(*tensor))));
        }
        if let Some(constant) = owner.attributes.get(name) {
            return Ok(Some(Attribute::Operand(Operand::Constant(constant.clone()))));
        }
        let Some(&id) = self.others.get(&(module, name.to_owned())) else { return Ok(None) };
        let path = if owner.path.is_empty() { name.to_owned() } else { format!("{}.{name}", owner.path) };
        self.value(Book::Data, id, (&path, Role::Buffer), 0, records).map(Some)
    }

    /// Looks up `CONSTANTS.cN`.
    pub(crate) fn constant(
        &mut self,
        name: &str,
        records: &mut Records<'_>,
    ) -> Result<Option<Attribute>, TraceError> {
        let index = name.strip_prefix('c').and_then(|digits| digits.parse::<usize>().ok());
        let Some(id) = index.and_then(|index| self.constants.get(index)).copied() else { return Ok(None) };
        self.value(Book::Constants, id, (&format!("CONSTANTS.{name}"), Role::Constant), 0, records).map(Some)
    }

    fn value(
        &mut self,
        book: Book,
        id: ObjectId,
        (path, role): (&str, Role),
        depth: usize,
        records: &mut Records<'_>,
    ) -> Result<Attribute, TraceError> {
        self.converted += 1;
        if self.converted > MAX_VALUES {
            return Err(TraceError::Limit { what: "values in attributes", limit: MAX_VALUES });
        }
        if depth > MAX_VALUE_DEPTH {
            return Err(TraceError::Object {
                path: path.to_owned(),
                reason: "lists are nested too deep".to_owned(),
            });
        }
        let pickle = match book {
            Book::Data => self.data,
            Book::Constants => self.constants_book,
        };
        if let Some(tensor) = self.stored(book, id, (path, role), records)? {
            return Ok(Attribute::Operand(Operand::Tensor(tensor)));
        }
        let mut inner = |this: &mut Self, id: ObjectId, name: String| {
            let path = format!("{path}.{name}");
            match this.value(book, id, (&path, role), depth + 1, records)? {
                Attribute::Operand(operand) => Ok(operand),
                _ => Err(TraceError::Object { path, reason: "an object inside a list".to_owned() }),
            }
        };
        let operand = match pickle.get(id) {
            Object::Tuple(items) => Operand::Tuple(
                items
                    .iter()
                    .enumerate()
                    .map(|(i, id)| inner(self, *id, i.to_string()))
                    .collect::<Result<_, _>>()?,
            ),
            Object::List(items) => Operand::List(
                items
                    .iter()
                    .enumerate()
                    .map(|(i, id)| inner(self, *id, i.to_string()))
                    .collect::<Result<_, _>>()?,
            ),
            Object::Dict(pairs) => Operand::Dict(
                pairs
                    .iter()
                    .enumerate()
                    .map(|(i, (key, value))| {
                        Ok((inner(self, *key, i.to_string())?, inner(self, *value, i.to_string())?))
                    })
                    .collect::<Result<_, TraceError>>()?,
            ),
            Object::Instance { class, .. } => {
                if let Some(Met::Done(module)) = self.met.get(&id).filter(|_| book == Book::Data) {
                    return Ok(Attribute::Module(*module));
                }
                return Ok(Attribute::Object(class_name(pickle, *class)));
            }
            plain => match constant(plain) {
                Some(constant) => Operand::Constant(constant),
                None => return Ok(Attribute::Object("a class".to_owned())),
            },
        };
        Ok(Attribute::Operand(operand))
    }

    /// A tensor that is not a module's own is listed once however often it is met.
    fn stored(
        &mut self,
        book: Book,
        id: ObjectId,
        place: (&str, Role),
        records: &mut Records<'_>,
    ) -> Result<Option<TensorId>, TraceError> {
        let pickle = match book {
            Book::Data => self.data,
            Book::Constants => self.constants_book,
        };
        if !matches!(pickle.get(id), Object::Tensor { .. }) {
            return Ok(None);
        }
        if let Some(tensor) = self.tensor_of.get(&(book, id)) {
            return Ok(Some(*tensor));
        }
        self.fresh(book, id, place, records).map(Some)
    }

    fn fresh(
        &mut self,
        book: Book,
        id: ObjectId,
        (path, role): (&str, Role),
        records: &mut Records<'_>,
    ) -> Result<TensorId, TraceError> {
        let (pickle, folder) = match book {
            Book::Data => (self.data, "data"),
            Book::Constants => (self.constants_book, "constants"),
        };
        let tensor = tensor::tensor(pickle, id, (folder, path, role), &mut self.extents, records)?
            .expect("callers have seen that it is a tensor");
        let fresh = TensorId(self.tensors.len() as u32);
        self.tensors.push(tensor);
        self.tensor_of.insert((book, id), fresh);
        Ok(fresh)
    }
}

/// Scripted classes that are not modules say so; torch's own C++ classes have no code.
fn is_module(pickle: &Pickle<'_>, class: ObjectId, library: &Library<'_>) -> Result<bool, TraceError> {
    let name = class_name(pickle, class);
    if name.starts_with("__torch__.torch.classes.") {
        return Ok(false);
    }
    Ok(library
        .class(&name)?
        .is_none_or(|(_, class)| matches!(class.base, Some("Module") | Some("ModuleType"))))
}

fn class_name(pickle: &Pickle<'_>, class: ObjectId) -> String {
    match pickle.get(class) {
        Object::Class(space, name) => format!("{space}.{name}"),
        _ => String::new(),
    }
}

fn constant(object: &Object<'_>) -> Option<Constant> {
    Some(match object {
        Object::None => Constant::None,
        Object::Bool(value) => Constant::Bool(*value),
        Object::Int(value) => Constant::Int(*value),
        Object::Float(value) => Constant::Float(*value),
        Object::Str(text) => Constant::Str((*text).to_owned()),
        Object::Device(name) => Constant::Device((*name).to_owned()),
        _ => return None,
    })
}
