//! Whether a question with something changed has a plan.

use partitioner::{Problem, Strategy};

/// Tells whether a strategy has a plan that fits, the one that was asked for or any that serves.
pub(super) fn fits(problem: &Problem, asked: Option<Strategy>) -> bool {
    match asked {
        Some(asked) => partitioner::fits(problem, asked),
        None => partitioner::candidates(problem).any(|strategy| partitioner::fits(problem, strategy)),
    }
}
