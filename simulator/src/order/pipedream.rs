//! PipeDream (Narayanan et al., 2019): 1F1B without a flush. Its replicated stages are [`super::replicas`]'.
//!
//! ```text
//! rank 0  F0 F1 F2    B0 F3    B1 …
//! rank 1     F0 F1    B0 F2 B1 …
//! rank 2        F0 B0 F1 B1 F2 …
//! ```
//!
//! Over one step the order equals 1F1B's; what differs is what follows: the next step's micro-batches enter at once,
//! so the pipeline drains only at the end of training, and each backward uses the weights its forward used. Stages
//! update after each micro-batch, those of 2BW (Narayanan et al., 2021) after each step, which is at least as long as the
//! pipeline; how many weights they keep is [`crate::versions`]'s to say.

use super::{Order, one_f_one_b};

/// Makes the order of one step of a straight pipeline.
pub(super) fn order(ranks: u32, micro_batches: u32) -> Order {
    one_f_one_b::order(ranks, micro_batches)
}
