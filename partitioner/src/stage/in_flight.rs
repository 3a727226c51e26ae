//! How many micro-batches a stage holds.

use simulator::order::Schedule;

/// Micro-batches whose activations a stage holds.
///
/// The peaks of the usual schedules; Narayanan et al. 2019 and 2021, Qi et al. 2024.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InFlight {
    /// As many as devices from here to the end share: 1F1B. At most this many.
    UntilEnd(u32),
    /// All of a step: GPipe.
    All(u32),
    /// As many wherever the stage is: chunks of interleaved schedules.
    Depth(u32),
    /// The same where the backward pass is split: zero-bubble keeps activations until the weight gradient.
    Split(u32),
}

impl InFlight {
    /// Returns the number for a stage of `replicas` with `behind` devices from it to the end.
    pub fn count(self, replicas: usize, behind: usize) -> usize {
        match self {
            Self::UntilEnd(most) => behind.div_ceil(replicas).min((most as usize).div_ceil(replicas)),
            Self::All(all) => (all as usize).div_ceil(replicas),
            Self::Depth(depth) | Self::Split(depth) => depth as usize,
        }
        .max(1)
    }
}

/// Micro-batches that a stage holds under a schedule, `each` being those of one replica.
pub(crate) fn in_flight_of(
    schedule: Schedule,
    ranks: usize,
    chunks: usize,
    each: usize,
    replicas: usize,
) -> InFlight {
    match schedule {
        Schedule::GPipe | Schedule::LoopedBfs => InFlight::All((each * replicas) as u32),
        Schedule::LayerParallel => InFlight::UntilEnd(1),
        Schedule::OneForwardOneBackward => InFlight::UntilEnd((each * replicas) as u32),
        // A rank holds `(v-1)·p + 2(p-1-r) + 1` chunks at most; each of its chunks gets an equal part.
        Schedule::Interleaved1F1B | Schedule::Vpp => {
            InFlight::Depth(((chunks + 1) * ranks).div_ceil(chunks).min(each) as u32)
        }
        // Of one of two copies.
        Schedule::Gems | Schedule::GemsMaster => InFlight::Depth(1),
        Schedule::Chimera => InFlight::Depth(ranks.min(each.div_ceil(2)) as u32),
        Schedule::DualPipe => InFlight::Split((ranks + 1).min(each.div_ceil(2)) as u32),
        Schedule::InterleavedZeroBubble if chunks == 1 => InFlight::Split(ranks.min(each) as u32),
        _ => InFlight::Split((2 * ranks).min(each) as u32),
    }
}
