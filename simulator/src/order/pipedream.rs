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

use super::{one_f_one_b, row::Row};
use crate::versions::Updates;

pub(super) const ROW: Row = Row {
    updates: Some(|_| Updates::Stashing),
    vertical_sync: Ok(Updates::VerticalSync),
    ..Row::new("pipedream", one_f_one_b::ROW.order)
};

pub(super) const DOUBLE_BUFFERED: Row = Row {
    aliases: &["2bw"],
    updates: Some(|micro_batches| Updates::DoubleBuffered { period: micro_batches }),
    vertical_sync: Err("micro-batches of one period take the same weights in every stage already"),
    needs: one_f_one_b::fills_all_ranks,
    ..Row::new("pipedream-2bw", one_f_one_b::ROW.order)
};
