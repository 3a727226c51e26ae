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
    /// As many as stages from here to the end, two on each rank and placed in a V, where the backward pass is split: ZB-V. At most this many.
    SplitUntilEnd(u32),
    /// The same in the order of DualPipeV on so many ranks: one less for those on the way to the last rank.
    DualPipeV(u32),
    /// No more than this, nobody knows by formula how many: orders that are searched for the costs.
    SplitAtMost(u32),
}

impl InFlight {
    /// Returns the number for a stage of `replicas` with `behind` devices from it to the end.
    pub fn count(self, replicas: usize, behind: usize) -> usize {
        match self {
            Self::UntilEnd(most) => behind.div_ceil(replicas).min((most as usize).div_ceil(replicas)),
            Self::All(all) => (all as usize).div_ceil(replicas),
            Self::Depth(depth) | Self::Split(depth) | Self::SplitAtMost(depth) => depth as usize,
            Self::SplitUntilEnd(most) => behind.div_ceil(replicas).min(most as usize),
            Self::DualPipeV(ranks) => {
                let behind = behind.div_ceil(replicas);
                if behind > ranks as usize + 1 { behind - 1 } else { behind }
            }
        }
        .max(1)
    }

    /// Tells whether weights' gradients have passes of their own, until which activations are kept.
    pub(crate) fn is_split(self) -> bool {
        match self {
            Self::UntilEnd(_) | Self::All(_) | Self::Depth(_) => false,
            Self::Split(_) | Self::SplitUntilEnd(_) | Self::DualPipeV(_) | Self::SplitAtMost(_) => true,
        }
    }

    /// Tells whether it is the same for all stages.
    pub(crate) fn is_level(self) -> bool {
        !matches!(self, Self::UntilEnd(_) | Self::SplitUntilEnd(_) | Self::DualPipeV(_))
    }

    /// Tells whether stages may hold less.
    pub(crate) fn is_upper_bound(self) -> bool {
        matches!(self, Self::SplitAtMost(_))
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
        Schedule::Zbv => InFlight::SplitUntilEnd(each as u32),
        Schedule::DualPipeV => InFlight::DualPipeV(ranks as u32),
        // The search counts an activation in halves, one for each of its gradients, and takes no more than `2·2p` of them.
        Schedule::Zb2p => InFlight::SplitAtMost((4 * ranks).min(each) as u32),
        _ => InFlight::Split((2 * ranks).min(each) as u32),
    }
}
