//! What is the model made of? A trace becomes blocks with shapes and costs.

mod arguments;
mod block;
mod build;
mod check;
mod cost;
mod document;
mod error;
mod fact;
mod flow;
mod infer;
mod level;
mod liveness;
mod lost;
mod model;
mod operand;
mod recorded;
mod sizes;
mod stored;
mod structure;
mod validate;

pub use block::{Block, BlockId, Item, Level};
pub use build::{BuildOptions, InputShape, build};
pub use cost::{OperatorCost, OperatorCosts, costs, parameters_by_block};
pub use document::{document, named_tensor};
pub use error::{BuildError, BuildErrors};
pub use fact::{Dim, Fact, Number, Shape, StorageId, TensorFact, dtype_name, show_shape};
pub use level::Quotient;
pub use liveness::{Lifetime, Liveness, liveness};
pub use lost::{LostSizes, lost_sizes};
pub use model::{
    Argument, Disagreement, Flow, ModelGraph, Operator, OperatorId, Origin, Storage, StoredTensor,
    UnknownOperator, Value,
};
pub use operators::OperatorClass;
pub use tracer::{CallId, DType, ModuleId, NodeId, Role, TensorId, ValueId};
pub use tracer::{Constant, Operand};
