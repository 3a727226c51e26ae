//! The parts of `models/NAME.json` that are read: the graph, its signature, and the sizes of every value.
//!
//! Unions are objects with one key. Unnamed fields are skipped; an unnamed key of a union is an error, for its meaning is
//! unknown. The order is that of torch's own `torch/_export/serde/schema.py`.

use std::collections::BTreeMap;

use indexmap::IndexMap;
use serde::{Deserialize, de::IgnoredAny};

/// Sizes of a tensor; torch's own limit.
pub(super) const MAX_DIMENSIONS: usize = 64;
/// A whole exported program.
#[derive(Deserialize)]
pub(super) struct Document {
    pub graph_module: GraphModule,
    pub schema_version: SchemaVersion,
    #[serde(default)]
    pub range_constraints: BTreeMap<String, Range>,
    #[serde(default)]
    pub verifiers: Vec<String>,
    #[serde(default)]
    pub torch_version: String,
}

#[derive(Deserialize)]
pub(super) struct SchemaVersion {
    pub major: u64,
    #[serde(default)]
    pub minor: u64,
}

/// The bounds of a size that is left open.
#[derive(Deserialize)]
pub(super) struct Range {
    pub min_val: Option<i64>,
    pub max_val: Option<i64>,
}

#[derive(Deserialize)]
pub(super) struct GraphModule {
    pub graph: Graph,
    pub signature: Signature,
    #[serde(default)]
    pub module_call_graph: Vec<ModuleCall>,
}

#[derive(Deserialize)]
pub(super) struct Graph {
    pub inputs: Vec<Argument>,
    pub outputs: Vec<Argument>,
    pub nodes: Vec<Node>,
    #[serde(default)]
    pub tensor_values: BTreeMap<String, TensorMeta>,
}

#[derive(Deserialize)]
pub(super) struct Node {
    pub target: String,
    pub inputs: Vec<NamedArgument>,
    pub outputs: Vec<Argument>,
    #[serde(default)]
    pub metadata: Metadata,
}

/// Of a node's metadata, the modules that it stands in.
#[derive(Default, Deserialize)]
pub(super) struct Metadata {
    pub nn_module_stack: Option<String>,
}

#[derive(Deserialize)]
pub(super) struct NamedArgument {
    pub name: String,
    pub arg: Argument,
    /// 1 where it is passed by its place, 2 by its name; torch 2.6 does not say.
    pub kind: Option<u8>,
}

/// An argument or a result.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(clippy::enum_variant_names)] // The names of the format.
pub(super) enum Argument {
    AsNone(IgnoredAny),
    AsTensor(Named),
    AsTensors(Vec<Named>),
    AsInt(i64),
    AsInts(Vec<i64>),
    AsFloat(Float),
    AsFloats(Vec<Float>),
    AsString(String),
    AsStrings(Vec<String>),
    AsSymInt(Symbolic),
    AsSymInts(Vec<Symbolic>),
    AsScalarType(u32),
    AsMemoryFormat(u32),
    AsLayout(u32),
    AsDevice(Device),
    AsBool(bool),
    AsBools(Vec<bool>),
    AsSymBool(Symbolic),
    AsSymBools(Vec<Symbolic>),
    AsGraph(GraphArgument),
    AsOptionalTensors(Vec<OptionalTensor>),
    AsCustomObj(IgnoredAny),
    AsOperator(IgnoredAny),
    AsSymFloat(Symbolic),
    AsSymFloats(Vec<Symbolic>),
    AsOptionalTensor(OptionalTensor),
    AsComplex(Complex),
    AsNestedTensors(Vec<Vec<Named>>),
    AsIntLists(Vec<Vec<i64>>),
    AsFloatLists(Vec<Vec<Float>>),
    AsStringToArgument(IgnoredAny),
}

#[derive(Deserialize)]
pub(super) struct Named {
    pub name: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum OptionalTensor {
    AsTensor(Named),
    AsNone(IgnoredAny),
}

/// A number that is written or computed.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(clippy::enum_variant_names)] // The names of the format.
pub(super) enum Symbolic {
    AsName(String),
    AsInt(i64),
    AsFloat(Float),
    AsBool(bool),
}

/// A float; those that JSON has no numbers for are words.
#[derive(Deserialize)]
#[serde(untagged)]
pub(super) enum Float {
    Number(f64),
    Word(String),
}

#[derive(Deserialize)]
pub(super) struct Complex {
    pub real: Float,
    pub imag: Float,
}

#[derive(Deserialize)]
pub(super) struct Device {
    #[serde(rename = "type")]
    pub type_: String,
    pub index: Option<i64>,
}

impl Device {
    /// Returns `cpu`, `cuda:1`.
    pub(super) fn shown(&self) -> String {
        match self.index {
            Some(index) => format!("{}:{index}", self.type_),
            None => self.type_.clone(),
        }
    }
}

#[derive(Deserialize)]
pub(super) struct GraphArgument {
    pub graph: Box<Graph>,
}

#[derive(Deserialize)]
pub(super) struct TensorMeta {
    pub dtype: u32,
    pub sizes: Vec<SymInt>,
    #[serde(default)]
    pub strides: Vec<SymInt>,
    pub storage_offset: Option<SymInt>,
    pub device: Device,
    pub layout: u32,
    #[serde(default)]
    pub requires_grad: bool,
}

/// A size.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum SymInt {
    AsInt(i64),
    AsExpr(Expression),
}

#[derive(Deserialize)]
pub(super) struct Expression {
    /// The expression as sympy prints it: `Mul(Integer(2), Symbol('s0', positive=True))`.
    pub expr_str: String,
    /// Its value in the example.
    pub hint: Option<Hint>,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(clippy::enum_variant_names)] // The names of the format.
pub(super) enum Hint {
    AsInt(i64),
    AsFloat(IgnoredAny),
    AsBool(IgnoredAny),
}

impl SymInt {
    /// Returns the size in the example.
    pub fn example(&self) -> Option<u64> {
        let value = match self {
            SymInt::AsInt(value) => *value,
            SymInt::AsExpr(Expression { hint: Some(Hint::AsInt(value)), .. }) => *value,
            SymInt::AsExpr(_) => return None,
        };
        u64::try_from(value).ok()
    }
}

#[derive(Deserialize)]
pub(super) struct Signature {
    pub input_specs: Vec<InputSpec>,
    pub output_specs: Vec<OutputSpec>,
}

/// The role of an input of the graph.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum InputSpec {
    UserInput { arg: Argument },
    Parameter { arg: Named, parameter_name: String },
    Buffer { arg: Named, buffer_name: String },
    TensorConstant { arg: Named, tensor_constant_name: String },
    CustomObj { custom_obj_name: String },
    Token(IgnoredAny),
    ConstantInput(IgnoredAny),
}

/// The role of an output of the graph.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum OutputSpec {
    UserOutput { arg: Argument },
    LossOutput(IgnoredAny),
    BufferMutation(IgnoredAny),
    GradientToParameter(IgnoredAny),
    GradientToUserInput(IgnoredAny),
    UserInputMutation { user_input_name: String },
    Token(IgnoredAny),
    ParameterMutation { parameter_name: String },
}

#[derive(Deserialize)]
pub(super) struct ModuleCall {
    pub fqn: String,
    pub signature: Option<CallSignature>,
}

#[derive(Deserialize)]
pub(super) struct CallSignature {
    #[serde(default)]
    pub out_spec: String,
}

/// `weights/NAME_weights_config.json`: where tensors lie.
#[derive(Deserialize)]
pub(super) struct Payloads {
    pub config: IndexMap<String, Payload>,
}

#[derive(Deserialize)]
pub(super) struct Payload {
    pub path_name: String,
    #[serde(default)]
    pub use_pickle: bool,
    pub tensor_meta: Option<TensorMeta>,
}

/// The structure of a result.
#[derive(Deserialize)]
pub(super) struct TreeSpec {
    #[serde(rename = "type")]
    pub type_: Option<String>,
    pub context: Option<String>,
    #[serde(default)]
    pub children_spec: Vec<TreeSpec>,
}
