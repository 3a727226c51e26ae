//! What is the model made of? A trace becomes blocks with shapes and costs.

mod block;
mod fact;
mod model;

pub use block::{Block, BlockId, Item, Level};
pub use fact::{Dim, Fact, Number, Shape, StorageId, TensorFact, dtype_name, show_shape, size_of_dtype};
pub use model::{
    Argument, Disagreement, Flow, ModelGraph, Operator, OperatorClass, OperatorId, Origin, Storage,
    StoredTensor, UnknownOperator, Value,
};
pub use tracer::{CallId, DType, ModuleId, NodeId, Role, TensorId, ValueId};
pub use tracer::{Constant, Operand};
