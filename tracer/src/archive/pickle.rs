//! A pickle machine that builds values and does nothing else.
//!
//! The opcodes and classes are those that `torch.jit.save` writes (protocol 2); any other is refused by name.
//! Objects live in one list and refer to each other by index, so that sharing stays visible and a cycle
//! cannot leak or overflow. Each opcode makes at most one object: memory is linear in the record's length.

use crate::error::{PickleFault, TraceError};

/// Torch's own limit.
const MAX_DIMENSIONS: usize = 64;

/// Index into [`Pickle::objects`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ObjectId(pub(crate) u32);

/// A read pickle.
#[derive(Debug)]
pub(crate) struct Pickle<'a> {
    pub(crate) objects: Vec<Object<'a>>,
    pub(crate) root: ObjectId,
}

/// One object.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Object<'a> {
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Str(&'a str),
    Tuple(Vec<ObjectId>),
    List(Vec<ObjectId>),
    Dict(Vec<(ObjectId, ObjectId)>),
    /// A class, by module and name.
    Class(&'a str, &'a str),
    /// A class that stands for one of torch's own constructors.
    Maker(Maker),
    /// An element type: `torch.FloatStorage`.
    StorageClass(&'a str),
    /// `__torch__.*` object with what `BUILD` gave it.
    Instance {
        class: ObjectId,
        state: Option<ObjectId>,
    },
    /// A persistent id.
    Storage {
        dtype: &'a str,
        key: &'a str,
        device: &'a str,
        elements: u64,
    },
    Tensor {
        storage: ObjectId,
        offset: u64,
        shape: Vec<u64>,
        strides: Vec<u64>,
        requires_grad: bool,
    },
    /// `torch.device("cpu")` and other things kept only by their arguments.
    Device(&'a str),
}

/// Torch's constructors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Maker {
    RebuildTensor,
    RebuildParameter,
    OrderedDict,
    RestoreTypeTag,
    BuildList,
    Device,
}

impl<'a> Pickle<'a> {
    pub(crate) fn get(&self, id: ObjectId) -> &Object<'a> {
        &self.objects[id.0 as usize]
    }

    /// Reads a pickle; `record` names it in errors.
    pub(crate) fn read(record: &str, bytes: &'a [u8]) -> Result<Self, TraceError> {
        let mut machine = Machine {
            bytes,
            at: 0,
            objects: Vec::new(),
            stack: Vec::new(),
            marks: Vec::new(),
            memo: Vec::new(),
        };
        loop {
            let offset = machine.at;
            match machine.step() {
                Ok(None) => {}
                Ok(Some(root)) => return Ok(Pickle { objects: machine.objects, root }),
                Err(fault) => return Err(TraceError::Pickle { record: record.to_owned(), offset, fault }),
            }
        }
    }
}

struct Machine<'a> {
    bytes: &'a [u8],
    at: usize,
    objects: Vec<Object<'a>>,
    stack: Vec<ObjectId>,
    /// Heights of the stack at each open `MARK`.
    marks: Vec<usize>,
    memo: Vec<Option<ObjectId>>,
}

type Step<T> = Result<T, PickleFault>;

fn malformed<T>(reason: &str) -> Step<T> {
    Err(PickleFault::Malformed(reason.to_owned()))
}

impl<'a> Machine<'a> {
    /// Runs one opcode; returns the result at `STOP`.
    fn step(&mut self) -> Step<Option<ObjectId>> {
        let code = self.byte()?;
        match code {
            0x80 => {
                let protocol = self.byte()?;
                if protocol > 5 {
                    return malformed(&format!("unknown protocol {protocol}"));
                }
            }
            b'.' => {
                let root = self.pop()?;
                return if self.stack.is_empty() {
                    Ok(Some(root))
                } else {
                    malformed("objects are left on the stack")
                };
            }
            b'(' => self.marks.push(self.stack.len()),
            b'N' => self.push(Object::None)?,
            0x88 => self.push(Object::Bool(true))?,
            0x89 => self.push(Object::Bool(false))?,
            b'J' | b'K' | b'M' | 0x8a | b'G' | b'X' => {
                let object = self.scalar(code)?;
                self.push(object)?;
            }
            b')' => self.push(Object::Tuple(Vec::new()))?,
            b']' => self.push(Object::List(Vec::new()))?,
            b'}' => self.push(Object::Dict(Vec::new()))?,
            b't' => {
                let items = self.pop_mark()?;
                self.push(Object::Tuple(items))?;
            }
            0x85..=0x87 => {
                let n = usize::from(code - 0x84);
                let items = self.pop_n(n)?;
                self.push(Object::Tuple(items))?;
            }
            b'a' => {
                let item = self.pop()?;
                self.append(&[item])?;
            }
            b'e' => {
                let items = self.pop_mark()?;
                self.append(&items)?;
            }
            b's' => {
                let items = self.pop_n(2)?;
                self.set_items(&items)?;
            }
            b'u' => {
                let items = self.pop_mark()?;
                self.set_items(&items)?;
            }
            b'q' => {
                let slot = self.byte()?;
                self.put(slot.into())?;
            }
            b'r' => {
                let slot = u32::from_le_bytes(self.array()?);
                self.put(slot as usize)?;
            }
            b'h' => {
                let slot = self.byte()?;
                self.recall(slot.into())?;
            }
            b'j' => {
                let slot = u32::from_le_bytes(self.array()?);
                self.recall(slot as usize)?;
            }
            b'c' | b'Q' | 0x81 | b'R' | b'b' => self.construct(code)?,
            _ => return Err(PickleFault::ForeignOpcode { name: opcode_name(code), code }),
        }
        Ok(None)
    }

    /// Reads a number or a text.
    fn scalar(&mut self, code: u8) -> Step<Object<'a>> {
        Ok(match code {
            b'J' => Object::Int(i32::from_le_bytes(self.array()?).into()),
            b'K' => Object::Int(self.byte()?.into()),
            b'M' => Object::Int(u16::from_le_bytes(self.array()?).into()),
            0x8a => Object::Int(self.long()?),
            b'G' => Object::Float(f64::from_be_bytes(self.array()?)),
            _ => {
                let length = u32::from_le_bytes(self.array()?);
                Object::Str(self.text(length as usize)?)
            }
        })
    }

    /// Runs an opcode that names a class or makes an object of one.
    fn construct(&mut self, code: u8) -> Step<()> {
        match code {
            b'c' => {
                let module = self.line()?;
                let name = self.line()?;
                let class = global(module, name)?;
                self.push(class)?;
            }
            b'Q' => {
                let id = self.pop()?;
                let storage = self.persistent(id)?;
                self.push(storage)?;
            }
            0x81 => {
                let _arguments = self.pop()?;
                let class = self.pop()?;
                if !matches!(self.object(class), Object::Class(..)) {
                    return malformed("NEWOBJ of something that is not a class");
                }
                self.push(Object::Instance { class, state: None })?;
            }
            b'R' => {
                let arguments = self.pop()?;
                let callee = self.pop()?;
                let made = self.reduce(callee, arguments)?;
                match made {
                    Made::Object(object) => self.push(object)?,
                    Made::Same(id) => self.stack.push(id),
                }
            }
            _ => {
                let given = self.pop()?;
                let target = self.top()?;
                match &mut self.objects[target.0 as usize] {
                    Object::Instance { state, .. } if state.is_none() => *state = Some(given),
                    // A state dict's `_metadata`, which says nothing about the weights.
                    Object::Dict(_) => {}
                    _ => return malformed("BUILD of something that is not a new object"),
                }
            }
        }
        Ok(())
    }

    fn reduce(&mut self, callee: ObjectId, arguments: ObjectId) -> Step<Made<'a>> {
        let Object::Maker(maker) = *self.object(callee) else {
            return malformed("REDUCE of something that is not a constructor");
        };
        let Object::Tuple(arguments) = self.object(arguments) else {
            return malformed("REDUCE without a tuple of arguments");
        };
        match (maker, arguments.as_slice()) {
            (Maker::OrderedDict, []) => Ok(Made::Object(Object::Dict(Vec::new()))),
            (Maker::RestoreTypeTag, [value, _]) | (Maker::BuildList, [value]) => Ok(Made::Same(*value)),
            (Maker::RebuildParameter, [value, _requires_grad, _hooks]) => Ok(Made::Same(*value)),
            (Maker::Device, [name]) => match self.object(*name) {
                Object::Str(name) => Ok(Made::Object(Object::Device(name))),
                _ => malformed("a device without a name"),
            },
            (Maker::RebuildTensor, [storage, offset, shape, strides, requires_grad, _hooks, ..]) => {
                if !matches!(self.object(*storage), Object::Storage { .. }) {
                    return malformed("a tensor without a storage");
                }
                let offset = self.natural(*offset)?;
                let (shape, strides) = (self.naturals(*shape)?, self.naturals(*strides)?);
                if shape.len() != strides.len() {
                    return malformed("a tensor with more sizes than strides, or fewer");
                }
                let requires_grad = matches!(self.object(*requires_grad), Object::Bool(true));
                Ok(Made::Object(Object::Tensor { storage: *storage, offset, shape, strides, requires_grad }))
            }
            _ => malformed(&format!("{maker:?} with {} arguments", arguments.len())),
        }
    }

    fn persistent(&self, id: ObjectId) -> Step<Object<'a>> {
        let Object::Tuple(parts) = self.object(id) else {
            return malformed("a persistent id that is not a tuple");
        };
        let [kind, class, key, device, elements] = parts[..] else {
            return malformed("a persistent id that has not five parts");
        };
        match (self.object(kind), self.object(class), self.object(key), self.object(device)) {
            (Object::Str("storage"), Object::StorageClass(dtype), Object::Str(key), Object::Str(device)) => {
                Ok(Object::Storage { dtype, key, device, elements: self.natural(elements)? })
            }
            _ => malformed("a persistent id that names no storage"),
        }
    }

    fn naturals(&self, id: ObjectId) -> Step<Vec<u64>> {
        match self.object(id) {
            Object::Tuple(items) | Object::List(items) if items.len() > MAX_DIMENSIONS => {
                malformed(&format!("a tensor of {} dimensions", items.len()))
            }
            Object::Tuple(items) | Object::List(items) => {
                items.iter().map(|item| self.natural(*item)).collect()
            }
            _ => malformed("sizes that are not a tuple"),
        }
    }

    fn natural(&self, id: ObjectId) -> Step<u64> {
        match self.object(id) {
            Object::Int(value) => {
                u64::try_from(*value).or_else(|_| malformed(&format!("a size or offset of {value}")))
            }
            _ => malformed("a size or offset that is not an integer"),
        }
    }

    fn append(&mut self, items: &[ObjectId]) -> Step<()> {
        let target = self.top()?;
        match &mut self.objects[target.0 as usize] {
            Object::List(list) => {
                list.extend_from_slice(items);
                Ok(())
            }
            _ => malformed("APPEND to something that is not a list"),
        }
    }

    fn set_items(&mut self, items: &[ObjectId]) -> Step<()> {
        if !items.len().is_multiple_of(2) {
            return malformed("SETITEMS with a key but no value");
        }
        let target = self.top()?;
        match &mut self.objects[target.0 as usize] {
            Object::Dict(dict) => {
                dict.extend(items.chunks_exact(2).map(|pair| (pair[0], pair[1])));
                Ok(())
            }
            _ => malformed("SETITEM on something that is not a dictionary"),
        }
    }

    fn put(&mut self, slot: usize) -> Step<()> {
        // Each PUT takes two bytes at least, so an honest slot is below the record's length.
        if slot > self.bytes.len() {
            return malformed(&format!("memo slot {slot} in a record of {} bytes", self.bytes.len()));
        }
        let top = self.top()?;
        if slot >= self.memo.len() {
            self.memo.resize(slot + 1, None);
        }
        self.memo[slot] = Some(top);
        Ok(())
    }

    fn recall(&mut self, slot: usize) -> Step<()> {
        match self.memo.get(slot) {
            Some(Some(id)) => {
                self.stack.push(*id);
                Ok(())
            }
            _ => malformed(&format!("memo slot {slot} is empty")),
        }
    }

    fn object(&self, id: ObjectId) -> &Object<'a> {
        &self.objects[id.0 as usize]
    }

    fn push(&mut self, object: Object<'a>) -> Step<()> {
        let id = u32::try_from(self.objects.len()).or_else(|_| malformed("more than 4 billion objects"))?;
        self.objects.push(object);
        self.stack.push(ObjectId(id));
        Ok(())
    }

    /// The stack above the last mark is what an opcode may take.
    fn floor(&self) -> usize {
        self.marks.last().copied().unwrap_or(0)
    }

    fn top(&self) -> Step<ObjectId> {
        match self.stack.last() {
            Some(top) if self.stack.len() > self.floor() => Ok(*top),
            _ => malformed("the stack is empty"),
        }
    }

    fn pop(&mut self) -> Step<ObjectId> {
        let top = self.top()?;
        self.stack.pop();
        Ok(top)
    }

    fn pop_n(&mut self, n: usize) -> Step<Vec<ObjectId>> {
        if self.stack.len() < self.floor() + n {
            return malformed("the stack is empty");
        }
        Ok(self.stack.split_off(self.stack.len() - n))
    }

    fn pop_mark(&mut self) -> Step<Vec<ObjectId>> {
        match self.marks.pop() {
            Some(mark) => Ok(self.stack.split_off(mark)),
            None => malformed("there is no MARK"),
        }
    }

    fn byte(&mut self) -> Step<u8> {
        let byte = *self.bytes.get(self.at).ok_or(PickleFault::Truncated)?;
        self.at += 1;
        Ok(byte)
    }

    fn take(&mut self, n: usize) -> Step<&'a [u8]> {
        let end = self.at.checked_add(n).ok_or(PickleFault::Truncated)?;
        let taken = self.bytes.get(self.at..end).ok_or(PickleFault::Truncated)?;
        self.at = end;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Step<[u8; N]> {
        Ok(self.take(N)?.try_into().expect("take returns N bytes"))
    }

    fn text(&mut self, n: usize) -> Step<&'a str> {
        std::str::from_utf8(self.take(n)?).or_else(|_| malformed("text that is not UTF-8"))
    }

    fn line(&mut self) -> Step<&'a str> {
        let rest = &self.bytes[self.at..];
        let end = rest.iter().position(|byte| *byte == b'\n').ok_or(PickleFault::Truncated)?;
        let line = self.text(end)?;
        self.at += 1;
        Ok(line)
    }

    /// `LONG1`: a length byte, then two's complement, little end first.
    fn long(&mut self) -> Step<i64> {
        let n = usize::from(self.byte()?);
        let bytes = self.take(n)?;
        if n > 8 {
            return malformed(&format!("an integer of {n} bytes"));
        }
        let fill = if bytes.last().is_some_and(|byte| byte & 0x80 != 0) { 0xff } else { 0 };
        let mut whole = [fill; 8];
        whole[..n].copy_from_slice(bytes);
        Ok(i64::from_le_bytes(whole))
    }
}

enum Made<'a> {
    Object(Object<'a>),
    Same(ObjectId),
}

/// The classes that are let in.
fn global<'a>(module: &'a str, name: &'a str) -> Step<Object<'a>> {
    Ok(match (module, name) {
        ("torch._utils", "_rebuild_tensor_v2") => Object::Maker(Maker::RebuildTensor),
        ("torch._utils", "_rebuild_parameter") => Object::Maker(Maker::RebuildParameter),
        ("collections", "OrderedDict") => Object::Maker(Maker::OrderedDict),
        ("torch", "device") => Object::Maker(Maker::Device),
        ("torch.jit._pickle", "restore_type_tag") => Object::Maker(Maker::RestoreTypeTag),
        (
            "torch.jit._pickle",
            "build_intlist" | "build_tensorlist" | "build_doublelist" | "build_boollist",
        ) => Object::Maker(Maker::BuildList),
        ("torch", storage) if storage.ends_with("Storage") => Object::StorageClass(storage),
        ("torch._utils", "_rebuild_qtensor") => return Err(PickleFault::TensorKind { kind: "quantized" }),
        ("torch._utils", "_rebuild_sparse_tensor") => return Err(PickleFault::TensorKind { kind: "sparse" }),
        (module, name) if module == "__torch__" || module.starts_with("__torch__.") => {
            Object::Class(module, name)
        }
        (module, name) => return Err(PickleFault::ForeignClass(format!("{module}.{name}"))),
    })
}

/// Names of the opcodes that are refused; the rest has no name.
fn opcode_name(code: u8) -> &'static str {
    match code {
        b'0' => "POP",
        b'1' => "POP_MARK",
        b'2' => "DUP",
        b'F' => "FLOAT",
        b'I' => "INT",
        b'L' => "LONG",
        b'P' => "PERSID",
        b'S' => "STRING",
        b'T' => "BINSTRING",
        b'U' => "SHORT_BINSTRING",
        b'V' => "UNICODE",
        b'd' => "DICT",
        b'g' => "GET",
        b'i' => "INST",
        b'l' => "LIST",
        b'o' => "OBJ",
        b'p' => "PUT",
        b'B' => "BINBYTES",
        b'C' => "SHORT_BINBYTES",
        0x82 => "EXT1",
        0x83 => "EXT2",
        0x84 => "EXT4",
        0x8b => "LONG4",
        0x8c => "SHORT_BINUNICODE",
        0x8d => "BINUNICODE8",
        0x8e => "BINBYTES8",
        0x8f => "EMPTY_SET",
        0x90 => "ADDITEMS",
        0x91 => "FROZENSET",
        0x92 => "NEWOBJ_EX",
        0x93 => "STACK_GLOBAL",
        0x94 => "MEMOIZE",
        0x95 => "FRAME",
        0x96 => "BYTEARRAY8",
        0x97 => "NEXT_BUFFER",
        0x98 => "READONLY_BUFFER",
        _ => "that does not exist",
    }
}
