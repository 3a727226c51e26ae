//! `Program`: what a trace says, flattened.
//!
//! One SSA list of nodes in execution order, whatever the input was (archive or IR text). Calls between
//! modules are followed, not kept as nodes: each call is a contiguous run of `nodes`, and the calls form a
//! tree. A call is *not* a module: one `ReLU` used three times is one `Module` and three `Call`s.
//!
//! Constants, lists and tuples stand inline as [`Operand`]s, so a node is always an operator.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
};

use indexmap::IndexMap;

use crate::export::OpenSizes;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u32);

        impl $name {
            /// Returns the position in the program's list.
            pub fn index(self) -> usize {
                self.0 as usize
            }
        }
    };
}

id!(
    /// Index into [`Program::modules`].
    ModuleId
);
id!(
    /// Index into [`Program::tensors`].
    TensorId
);
id!(
    /// Index into [`Program::values`].
    ValueId
);
id!(
    /// Index into [`Program::nodes`].
    NodeId
);
id!(
    /// Index into [`Program::calls`].
    CallId
);

/// A whole traced model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Program {
    /// Name of the archive's top folder or of the root class.
    pub name: String,
    /// Module instances; the root is first, parents stand before their children.
    pub modules: Vec<Module>,
    /// Parameters, buffers and constant tensors. Shared ones appear once per path with equal `storage`.
    pub tensors: Vec<Tensor>,
    /// SSA values: the model's inputs and every node's outputs.
    pub values: Vec<Value>,
    /// Operators in execution order.
    pub nodes: Vec<Node>,
    /// Module calls in order of entry; the call of the root's `forward` is first.
    pub calls: Vec<Call>,
    /// The model's inputs, in order, without `self`.
    pub inputs: Vec<ValueId>,
    /// The model's result; often one value or a tuple of values.
    pub output: Operand,
    /// Files that spans point into.
    pub sources: Vec<Source>,
    /// Shapes recorded by the `trace` command, when the archive carries them.
    pub recorded: Option<Recorded>,
    /// Metadata of the archive; `None` when read from IR text.
    pub archive: Option<Archive>,
    /// Constructs that could not be followed exactly, with their locations.
    pub notes: Vec<Note>,
    /// The values of constant tensors with one element, and of whole numbers among the buffers that nothing writes; sizes
    /// are computed from them.
    pub literals: BTreeMap<TensorId, Constant>,
    /// Sizes of inputs that an exported program leaves open, and those that it does not; `None` for traces, which do not say.
    pub open_sizes: Option<OpenSizes>,
}

/// Metadata of the archive that a writer of archives needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Archive {
    /// Top folder of every record.
    pub folder: String,
    /// The `version` record.
    pub version: u32,
    /// The `byteorder` record.
    pub byte_order: ByteOrder,
    /// Its writer.
    pub kind: ArchiveKind,
}

/// Kinds of archives.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ArchiveKind {
    /// `torch.jit.save`.
    #[default]
    TorchScript,
    /// `torch.export.save`.
    Export {
        /// Why no stages can be cut from it, where none can.
        obstacle: Option<String>,
    },
}

/// Order of bytes in stored elements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum ByteOrder {
    #[default]
    Little,
    Big,
}

/// Something that the flattening could not follow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// The construct: "`for` loop kept as one opaque operator".
    pub text: String,
    /// Path of the module it stands in.
    pub path: String,
    /// Its source location.
    pub span: Span,
    /// The node that stands for it, where there is one.
    pub node: Option<NodeId>,
}

/// One module instance.
#[derive(Clone, Debug, PartialEq)]
pub struct Module {
    /// Path from the root: `layer1.0.conv1`; empty for the root. The first path when shared under several.
    pub path: String,
    /// Original class without mangling: `torchvision.models.resnet.Bottleneck`.
    pub class: String,
    /// The module that holds this one; `None` for the root.
    pub parent: Option<ModuleId>,
    /// Direct children by attribute name.
    pub children: IndexMap<String, ModuleId>,
    /// Parameters by attribute name.
    pub parameters: IndexMap<String, TensorId>,
    /// Buffers (and other tensor attributes) by attribute name.
    pub buffers: IndexMap<String, TensorId>,
    /// Remaining attributes that are plain constants, `training` among them.
    pub attributes: IndexMap<String, Constant>,
}

/// A stored tensor. The bytes stay in the file.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    /// Path from the root: `layer1.0.conv1.weight`; `CONSTANTS.c0` for an anonymous constant.
    pub path: String,
    /// Element type.
    pub dtype: DType,
    /// Sizes.
    pub shape: Vec<u64>,
    /// Strides in elements.
    pub strides: Vec<u64>,
    /// The position of the elements; `None` when read from IR text, which holds no data.
    pub storage: Option<Storage>,
    /// True for parameters that train.
    pub requires_grad: bool,
    /// Parameter, buffer or constant.
    pub role: Role,
    /// Device written in the archive, `cpu` mostly.
    pub device: String,
}

/// The position of a tensor's elements in the archive.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Storage {
    /// Record name inside the archive, without the top folder: `data/12` or `constants/0`.
    pub record: String,
    /// First element of the tensor inside the record, in elements.
    pub offset: u64,
    /// Number of elements in the record.
    pub elements: u64,
    /// Absolute position of the record's first byte in the archive file (records are stored, not compressed); `None` where
    /// the model was traced without its weights.
    pub position: Option<u64>,
    /// Length of the record in bytes.
    pub bytes: u64,
    /// CRC-32 of the record by the directory of its archive, where that holds one.
    pub checksum: Option<u32>,
}

impl Tensor {
    /// Returns the position of its first element in the file; `None` where the file holds no data of it.
    pub fn first_byte(&self) -> Option<u64> {
        let storage = self.storage.as_ref()?;
        storage.position?.checked_add(storage.offset.checked_mul(self.dtype.bytes())?)
    }

    /// Returns its place in memory: tensors of one place are one tensor under several names. `None` without storage.
    pub fn place(&self) -> Option<(&str, u64, &[u64], &[u64])> {
        let storage = self.storage.as_ref()?;
        Some((&storage.record, storage.offset, &self.shape, &self.strides))
    }
}

/// Returns the strides of a tensor whose elements lie one behind the other.
pub fn dense_strides(shape: &[u64]) -> Vec<u64> {
    let mut strides = vec![1_u64; shape.len()];
    for dim in (1..strides.len()).rev() {
        strides[dim - 1] = strides[dim].saturating_mul(shape[dim].max(1));
    }
    strides
}

/// The role of a tensor in its module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Trained.
    Parameter,
    /// Kept in the state dict, not trained.
    Buffer,
    /// A literal of the trace.
    Constant,
}

/// Element types that torch writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)]
pub enum DType {
    Float64,
    Float32,
    Float16,
    BFloat16,
    Int64,
    Int32,
    Int16,
    Int8,
    UInt8,
    UInt16,
    UInt32,
    UInt64,
    Bool,
    Complex64,
    Complex128,
    Float8E4M3,
    Float8E5M2,
}

/// One SSA value.
#[derive(Clone, Debug, PartialEq)]
pub struct Value {
    /// Unique name, close to the one in the source.
    pub name: String,
    /// Declared type; for IR text with shape, strides and device where the dump has them.
    pub type_: Type,
    /// The node that makes it; `None` for an input of the model.
    pub producer: Option<NodeId>,
    /// Its source location.
    pub span: Span,
}

/// The type of a value.
#[derive(Clone, Debug, PartialEq)]
pub enum Type {
    /// A tensor; anything not known is `None`.
    Tensor(TensorType),
    /// `int`.
    Int,
    /// `float`.
    Float,
    /// `bool`.
    Bool,
    /// `str`.
    Str,
    /// `Device`.
    Device,
    /// `number` or `Scalar`.
    Number,
    /// `NoneType`.
    None,
    /// `Optional[T]`, `T?`.
    Optional(Box<Type>),
    /// `List[T]`, `T[]`.
    List(Box<Type>),
    /// `Tuple[T, U]`, `(T, U)`.
    Tuple(Vec<Type>),
    /// `Dict[K, V]`.
    Dict(Box<Type>, Box<Type>),
    /// A class by its qualified name, unmangled.
    Class(String),
}

/// The type of a tensor value, as far as it is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct TensorType {
    pub dtype: Option<DType>,
    pub shape: Option<Vec<u64>>,
    pub strides: Option<Vec<u64>>,
    pub requires_grad: Option<bool>,
    pub device: Option<String>,
}

/// One operator.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// Qualified name: `aten::conv2d`, `prim::NumToTensor`, `torchvision::nms`.
    /// `prim::Opaque` for a statement that cannot be flattened (control flow of scripted code):
    /// its inputs are the names it reads, its outputs the names it writes.
    pub operator: String,
    /// Arguments as written.
    pub arguments: Vec<Argument>,
    /// Values it makes.
    pub outputs: Vec<ValueId>,
    /// Arguments whose memory it may write to, where its name does not say so: of control flow that stays whole.
    pub changes: Vec<u32>,
    /// The innermost call it belongs to.
    pub call: CallId,
    /// Its source location.
    pub span: Span,
}

/// One argument of a node.
#[derive(Clone, Debug, PartialEq)]
pub struct Argument {
    /// Keyword, where the source gives one.
    pub name: Option<String>,
    /// The operand.
    pub operand: Operand,
}

/// An operand: a value, a stored tensor, a constant, or a structure of operands.
#[derive(Clone, Debug, PartialEq)]
pub enum Operand {
    /// An SSA value.
    Value(ValueId),
    /// A parameter, buffer or constant tensor.
    Tensor(TensorId),
    /// A literal.
    Constant(Constant),
    /// `[a, b]`.
    List(Vec<Operand>),
    /// `(a, b)`.
    Tuple(Vec<Operand>),
    /// `{k: v}`.
    Dict(Vec<(Operand, Operand)>),
}

impl Default for Operand {
    fn default() -> Self {
        Operand::Constant(Constant::None)
    }
}

/// A literal.
#[derive(Clone, Debug, PartialEq)]
pub enum Constant {
    /// `None`.
    None,
    /// `True`, `False`.
    Bool(bool),
    /// Integers, dtype and layout codes among them.
    Int(i64),
    /// Floats, `inf` and `nan` among them.
    Float(f64),
    /// Complex numbers.
    Complex(f64, f64),
    /// Text.
    Str(String),
    /// `torch.device("cpu")`.
    Device(String),
}

/// One call of a module's method.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    /// The module that is called; its path is the scope.
    pub module: ModuleId,
    /// `forward`, `forward1`, …
    pub method: String,
    /// The call it was made from; `None` for the root's `forward`.
    pub parent: Option<CallId>,
    /// 1 for the first call of this module in the program, 2 for the second, …
    pub ordinal: u32,
    /// The nodes made in it and in the calls below it.
    pub nodes: Range<u32>,
    /// The arguments, without `self`.
    pub arguments: Vec<Operand>,
    /// Its result.
    pub output: Operand,
}

/// A text that spans point into.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// Name as shown in messages: `code/__torch__/model.py`.
    pub name: String,
    /// The whole text.
    pub text: String,
}

impl Source {
    /// Returns the line of a byte, from 1; the last for one behind the end.
    pub fn line(&self, position: usize) -> usize {
        let before = self.text.as_bytes().get(..position).unwrap_or(self.text.as_bytes());
        before.iter().filter(|byte| **byte == b'\n').count() + 1
    }
}

/// A place in a source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span {
    /// Index into [`Program::sources`].
    pub source: u32,
    /// First byte.
    pub start: u32,
    /// One past the last byte.
    pub end: u32,
}

/// What the `trace` command adds to an archive (`extra/model_analyze.json`): the graph's shapes, which
/// `torch.jit.save` drops.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Recorded {
    /// Python target, torch version, and so on, as key and text.
    pub about: IndexMap<String, String>,
    /// `train` or `eval` mode at tracing.
    pub training: bool,
    /// Paths of the tensors that had no numbers when the model was traced.
    pub absent: BTreeSet<String>,
    /// Example inputs in the order of [`Program::inputs`].
    pub inputs: Vec<RecordedInput>,
    /// Types of the outputs of every tensor-valued node of the inlined graph, in execution order.
    pub nodes: Vec<RecordedNode>,
    /// Decisions that the trace has fixed and other inputs might change, and other findings of tracing.
    pub notes: Vec<TraceNote>,
    /// Whether the trace was compared with the model.
    pub comparison: Comparison,
    /// Names of the `torch.autograd.Function`s that were traced as their forward passes: their own gradients are lost.
    pub inlined_functions: Vec<String>,
}

/// Something that a trace does not say by itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TraceNote {
    /// File and line of the statement in the model's source, where one is known.
    pub place: Option<(String, u64)>,
    /// The statement's effect, and how it appears in the trace.
    pub text: String,
}

/// Whether a trace was compared with its model on an input that it was not traced with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Comparison {
    /// The archive does not say: it is an older one, or torch itself has written it.
    #[default]
    Unknown,
    /// Both gave the same.
    Same,
    /// It was not compared, and why.
    Skipped(String),
}

/// One example input.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RecordedInput {
    /// Its name in `forward`.
    pub name: String,
    /// Element type and sizes.
    pub type_: TensorType,
    /// The numbers between which it was drawn: from the first up to the second, which is excluded for whole numbers. Both
    /// are finite and in order. `None` where it was drawn from the normal distribution, or nothing is known.
    pub range: Option<(f64, f64)>,
    /// Its numbers, row by row, where the model takes no others of the range: where bags begin, lengths in order.
    pub values: Option<Vec<f64>>,
}

/// The recorded output types of one operator.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordedNode {
    /// Operator name, to check that both lists run in step.
    pub operator: String,
    /// One for each output; `None` where it is not a tensor.
    pub outputs: Vec<Option<TensorType>>,
}
