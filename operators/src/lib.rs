//! The facts of torch's operators: one row each, for all other crates.
//!
//! ```
//! let gelu = operators::find("gelu").expect("torch has it");
//! assert_eq!(gelu.class, operators::OperatorClass::Elementwise);
//! assert_eq!(gelu.keeps, operators::Keeps::Operand);
//! assert_eq!(operators::plain("gelu_"), ("gelu", true));
//! ```
//!
//! A row holds facts, never code: the rule for the sizes of the result, the saved activations, the count of operations,
//! how devices can share the work. The rules are functions of the crates that need them, chosen by a `match` over the
//! row's value without a wildcard: a new value without its function does not compile, nor does a row without a column,
//! nor a name with two rows. `docs/add-an-operator.md` has an example.
//!
//! There are two further lists, printed by torch itself: its signatures, and the names that stages may call.

#![cfg_attr(not(test), warn(clippy::too_many_lines, clippy::excessive_nesting))]

mod arithmetic;
mod counts;
mod dialect;
mod exported;
mod flops;
mod gives;
mod keeps;
mod kernel;
mod names;
mod operator;
mod python;
mod rows;
mod shape_rule;
mod signature;
mod split;
mod table;

pub use arithmetic::{Arithmetic, signed};
pub use counts::{AttentionSize, CAUSAL_SHARE, ConvolutionSize, Number, ProductSize};
pub use dialect::{built_in, changes_container, implicit_conversion, may_give_none};
pub use exported::{exported_number_operator, is_exported_check};
pub use flops::Flops;
pub use gives::Gives;
pub use keeps::Keeps;
pub use kernel::Kernel;
pub use names::{argument_names, refusal};
pub use operator::{InPlace, Mark, Memory, Operator, OperatorClass, Python, plain};
pub use python::{NEGATION, SLICE, is_dtype_position, keyword_only, python_attribute, python_function};
pub use shape_rule::ShapeRule;
pub use signature::{Default, Parameter, Signature, overloads};
pub use split::Split;
pub use table::{all, find, has, is_in_place};
