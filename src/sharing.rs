//! Devices that share layers: the strategy of each operator, and the workspace of one such device.
//!
//! Strategies and exchanges come from `graph`, the search from `partitioner`, seconds from the cost model and the
//! links. Times of strategies are parts of the whole operator's time; after the choice, the program of one device is
//! predicted at its own sizes.

mod choice;
mod experts;
mod first;
mod links;
mod model;
mod operators;
mod words;

#[cfg(test)]
mod agreement;

use crate::failure::Failure;

pub use experts::has_experts;
pub use links::{grouped, links, sizes_to_try, smallest_node};
pub use model::{Around, OperatorSearch, SharedModel, Subject, Way, proved, proved_text};
pub use operators::recorded;

/// Chooses how devices of a cluster share a model.
///
/// # Errors
/// If the devices cannot be grouped so, or the model cannot be shared.
pub fn shared_by(subject: &Subject<'_>, way: Way<'_>) -> Result<SharedModel, Failure> {
    match way {
        Way::Operators(search) => operators::searched(subject, search),
        Way::Given(splits, cuts) => operators::given(subject, splits, cuts),
        way => model::shared_by_parts(subject, way),
    }
}
