//! Shapes and dtypes without running anything: one rule per family of operators.
//!
//! A rule takes a [`Call`] (arguments as facts) and returns the results. A result whose `storage` is `None` is fresh
//! memory; one with an operand's storage is a view of it.

pub(crate) mod call;
mod convolution;
mod copied;
mod copy;
mod elementwise;
mod linalg;
mod matmul;
mod norm;
mod number;
mod recurrent;
mod reduce;
mod rules;
mod shared;
mod table;
mod unusual;
mod view;

pub(crate) use call::{Call, Scope, Stop, contiguous_strides, fresh};
pub(crate) use convolution::laid_out;
pub(crate) use elementwise::{broadcast, complex_of, like, promote_pair, real_of};
pub(crate) use matmul::{Einsum, attention_by_parts};
pub(crate) use recurrent::{Factor, Recurrence, recurrence};
pub(crate) use reduce::widened;
pub(crate) use table::{Rule, is_sized_by_values, rule};
pub(crate) use view::{is_dropout_idle, viewed_strides};
