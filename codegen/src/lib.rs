//! How does a stage become a program of its own?
//!
//! A [`tracer::Program`] and an assignment of its nodes to stages go in; stage programs, and files to hold them,
//! come out. Nothing here touches a disk: weights are written as ranges of the archive they stand in.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod alias;
mod content;
mod error;
mod names;
mod operators;
mod pipeline;
mod python;
mod safetensors;
mod slice;
mod torchscript;
mod zip;

pub use content::{Content, File, Gather, Piece, ReadAt, Record};
pub use error::CutError;
pub use names::Names;
pub use operators::Kind;
pub use pipeline::{
    Assignment, Carried, CutOptions, Form, Pipeline, Port, Skips, Source, Stage, Step, Tied, TiedTensor,
};
pub use slice::cut;
