//! What does a trace say? Archives and IR text become a syntax tree.
//!
//! ```
//! let text = "graph(%x : Float(2, 3, strides=[3, 1], requires_grad=0, device=cpu)):
//!   %y : Tensor = aten::relu(%x)
//!   return (%y)
//! ";
//! let program = tracer::ir::read_ir(text)?;
//! assert_eq!(program.nodes[0].operator, "aten::relu");
//! # Ok::<(), tracer::ir::IrError>(())
//! ```

#![cfg_attr(not(test), warn(clippy::too_many_lines, clippy::excessive_nesting))]

mod archive;
mod bytes;
mod code;
mod constant_folding;
mod digest;
mod error;
mod export;
mod flatten;
pub mod ir;
mod program;

pub use archive::{is_archive, read_archive, read_archive_at, read_tensors, read_tensors_at, role_by_name};
pub use bytes::Bytes;
pub use digest::digest;
pub use error::{PickleFault, SourceRange, TraceError};
pub use export::{OpenSizes, Size, SizeFault, Symbol};
pub use program::*;

/// Doors for the fuzz targets, which want the inner readers without the zip around them.
#[doc(hidden)]
pub mod fuzz {
    use crate::{Source, archive::pickle::Pickle, code};

    /// Reads a pickle and forgets it.
    pub fn pickle(bytes: &[u8]) -> bool {
        Pickle::read("fuzz.pkl", bytes).is_ok()
    }

    /// Parses a file of code with all bodies and forgets it.
    pub fn code(text: &str) -> bool {
        let source = Source { name: "fuzz.py".to_owned(), text: text.to_owned() };
        let Ok(file) = code::parse_file(&source) else { return false };
        let methods = file.classes.values().flat_map(|class| class.methods.values());
        methods.chain(file.functions.values()).all(|function| code::parse_body(&source, function).is_ok())
    }
}
