//! What is the model made of? A trace becomes blocks with shapes and costs.
//!
//! ```
//! let text = "graph(%x : Float(2, 3, strides=[3, 1], requires_grad=1, device=cpu),
//!       %w : Float(4, 3, strides=[3, 1], requires_grad=1, device=cpu)):
//!   %none : NoneType = prim::Constant()
//!   %y : Tensor = aten::linear(%x, %w, %none)
//!   return (%y)
//! ";
//! let program = tracer::ir::read_ir(text)?;
//! let graph = graph::build(&program, &graph::BuildOptions::default())?;
//! // Twelve multiplications and as many additions for each of two rows.
//! assert_eq!(graph::costs(&graph).total().forward_flops, 2 * 2 * 12);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![cfg_attr(not(test), warn(clippy::too_many_lines, clippy::excessive_nesting))]

mod arguments;
mod attention_caches;
mod block;
mod build;
mod check;
mod cost;
mod document;
mod error;
mod fact;
mod flow;
mod forward_memory;
mod infer;
pub mod layout;
mod level;
mod liveness;
mod model;
mod operand;
mod own;
mod positions;
mod recorded;
mod sizes;
mod step_memory;
mod stored;
mod structure;
mod unknown_sizes;
mod validate;

pub use attention_caches::{AttentionCache, attention_caches};
pub use block::{Block, BlockId, Item, Level};
pub use build::{BuildOptions, InputShape, build};
pub use cost::{
    DearBytes, OperatorCost, OperatorCosts, costs, differentiated, parameters_by_block, without_derivative,
};
pub use document::{document, named_tensor};
pub use error::{BuildError, BuildErrors};
pub use fact::{Dim, Fact, Number, Shape, StorageId, TensorFact, dtype_name, show_shape};
pub use forward_memory::forward_memory;
pub use level::Quotient;
pub use liveness::{Lifetime, Liveness, liveness};
pub use model::{
    Argument, Disagreement, Flow, ModelGraph, Operator, OperatorId, Origin, Storage, StoredTensor,
    UnknownOperator, Value,
};
pub use operators::OperatorClass;
pub use step_memory::{LossMemory, Moment, StepMemory, StepOptions, step_memory};
pub use tracer::{CallId, DType, ModuleId, NodeId, Role, TensorId, ValueId};
pub use tracer::{Constant, Operand};
pub use unknown_sizes::{LostSizes, lost_sizes};
