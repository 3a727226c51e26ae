//! Whether a changed problem has a plan.

use partitioner::{Problem, Strategy};

/// Tells whether the requested strategy, or any if none is requested, has a plan that fits.
pub(super) fn fits(problem: &Problem, asked: Option<Strategy>) -> bool {
    match asked {
        Some(asked) => partitioner::fits(problem, asked),
        None => partitioner::candidates(problem).any(|strategy| partitioner::fits(problem, strategy)),
    }
}
