//! How does a stage become a program of its own?
//!
//! The inputs are a [`tracer::Program`] and an assignment of its nodes to stages; the outputs are stage programs, and
//! the files that hold them. No function here accesses a disk: weights are written as ranges of their source files.
//!
//! ```
//! let text = "graph(%x : Float(2, 3, strides=[3, 1], requires_grad=1, device=cpu)):
//!   %y : Tensor = aten::relu(%x)
//!   %z : Tensor = aten::tanh(%y)
//!   return (%z)
//! ";
//! let program = tracer::ir::read_ir(text)?;
//! let assignment = codegen::even(&program, 2);
//! let names = codegen::Names::new(&program);
//! let pipeline = codegen::cut(&program, &assignment, &names, &codegen::CutOptions::default()).expect("it can be cut");
//! // One value crosses the boundary.
//! assert_eq!(pipeline.stages[1].inputs.len(), 1);
//! # Ok::<(), tracer::ir::IrError>(())
//! ```

#![cfg_attr(not(test), warn(clippy::too_many_lines, clippy::excessive_nesting))]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod alias;
mod allowed;
mod blocks;
mod check;
mod content;
mod emit;
mod error;
mod exports;
mod finite;
mod fold;
mod launch;
mod location;
mod manifest;
mod names;
mod nearest_cut;
mod nodes;
mod opaque;
mod operands;
mod origin;
mod overlap;
mod own_buffers;
mod pipeline;
mod python;
mod read_back;
mod safetensors;
mod saving;
mod scalars;
mod scripted_functions;
mod sizes;
mod slice;
mod source;
mod stale;
mod torchscript;
mod views;
mod weights;
mod zip;

pub use allowed::{check_operators, foreign_operators};
pub use blocks::{Owner, assign, call_path, cut_before, even, operator_path, owners, with_labels};
pub use check::{CheckError, check};
pub use content::{Checksum, Content, Copied, File, Filled, Gather, Piece, ReadAt, Record};
pub use emit::{Targets, know_weights, manifest_file, stages, weights_of};
pub use error::{CutError, OperatorFault};
pub use exports::{Recomputed, Terms, exports};
pub use launch::{Defaults, Launcher, Prediction, Ranks, has_schedule, launch, train_parts, train_script};
pub use manifest::{About, Cuts, Facts, Shards, facts, manifest, was_training};
pub use names::{Names, starred};
pub use nearest_cut::nearest;
pub use nodes::{Kind, is_detour};
pub use origin::sign;
pub use own_buffers::own_buffers;
pub use pipeline::{
    Assignment, Carried, CutOptions, Form, Pipeline, Port, Skips, Source, Stage, Step, Tied, TiedTensor,
};
pub use python::kept_activations;
pub use read_back::{Written, WrittenError, WrittenFault, check_written};
pub use scalars::{needs_scalars, with_scalars};
pub use sizes::cut_near;
pub use slice::cut;
pub use source::{Damaged, damaged, not_finite};
pub use weights::{Adopted, Prefix, WeightError, adopt};
