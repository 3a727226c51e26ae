//! What is the model made of? A trace becomes blocks with shapes and costs.

mod model;
mod block;
mod fact;
mod build;
mod check;
mod stored;
mod recorded;
mod operand;
mod arguments;
mod error;
mod signature;
mod infer;
mod flow;
mod structure;
mod level;
mod cost;

pub use build::{BuildOptions, InputShape, build};
pub use cost::{OperatorCost, OperatorCosts, costs, parameters_by_block};
pub use error::{BuildError, BuildErrors};
pub use level::Quotient;
pub use block::{Block, BlockId, Item, Level};
pub use fact::{Dim, Fact, Number, Shape, StorageId, TensorFact, dtype_name, show_shape, size_of_dtype};
pub use model::{
    Argument, Disagreement, Flow, ModelGraph, Operator, OperatorClass, OperatorId, Origin, Storage,
    StoredTensor, UnknownOperator, Value,
};
pub use tracer::{CallId, DType, ModuleId, NodeId, Role, TensorId, ValueId};
pub use tracer::{Constant, Operand};
