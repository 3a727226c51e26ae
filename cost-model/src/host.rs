//! Terms that only processors need: registers that channels are padded to, code and memory that caches lose between two calls,
//! memory that the kernel clears, and calls that nothing runs beside.
//!
//! The other files of the crate use this one alone; its parts are private, and `tests/layers.rs` holds that none of the others looks
//! into a [`Host`]. The caches of operands are not here: accelerators have them, too.

mod cold_caches;
mod registers;
mod terms;
mod times;

pub use registers::Host;
pub(crate) use registers::is_processor;
pub(crate) use terms::{anchor, bounded, is_native, short_products};
pub(crate) use times::{CallTimes, HostTimes};
