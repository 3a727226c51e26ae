//! How many micro-batches a stage holds.

use super::interleaved::Rounds;

/// Micro-batches whose activations a stage holds.
///
/// The peaks of the usual schedules; Narayanan et al. 2019 and 2021, Qi et al. 2024.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InFlight {
    /// As many as the devices from here to the end share: 1F1B. At most this many.
    UntilEnd(u32),
    /// All of a step: GPipe.
    All(u32),
    /// The same number at every stage.
    Depth(u32),
    /// The same where the backward pass is split: zero-bubble keeps activations until the weight gradient.
    Split(u32),
    /// Those of a chunk whose rank runs micro-batches in rounds over its chunks: the interleaved schedules.
    Rounds(Rounds),
    /// The same where the backward pass is split.
    SplitRounds(Rounds),
    /// As many as stages from here to the end, two on each of `ranks` and placed in a V, where the backward pass is split: ZB-V. At
    /// most `most`.
    SplitUntilEnd {
        /// Ranks of the V.
        ranks: u32,
        /// Micro-batches of a step.
        most: u32,
    },
    /// The same in the order of DualPipeV on so many ranks: one less for those on the way to the last rank.
    DualPipeV(u32),
    /// At most this number, for searched orders, which have no formula.
    SplitAtMost(u32),
}

impl InFlight {
    /// Returns the number for a stage of `replicas` with `behind` devices from it to the end.
    pub fn count(self, replicas: usize, behind: usize) -> usize {
        match self {
            Self::UntilEnd(most) => behind.div_ceil(replicas).min((most as usize).div_ceil(replicas)),
            Self::All(all) => (all as usize).div_ceil(replicas),
            Self::Depth(depth) | Self::Split(depth) | Self::SplitAtMost(depth) => depth as usize,
            Self::Rounds(rounds) => rounds.held(behind.div_ceil(replicas), false),
            Self::SplitRounds(rounds) => rounds.held(behind.div_ceil(replicas), true),
            Self::SplitUntilEnd { most, .. } => behind.div_ceil(replicas).min(most as usize),
            Self::DualPipeV(ranks) => {
                let behind = behind.div_ceil(replicas);
                if behind > ranks as usize + 1 { behind - 1 } else { behind }
            }
        }
        .max(1)
    }

    /// Returns the most micro-batches of these whose weights' gradients are still to be made, though those of the inputs are
    /// made or under way: where none of the schedule's formulas says it, all.
    ///
    /// The further a rank is from the first, the longer it may put them off.
    pub fn waiting(self, replicas: usize, behind: usize) -> usize {
        let stage_from_end = behind.div_ceil(replicas);
        let in_v = |ranks: u32| {
            let ranks = ranks as usize;
            if stage_from_end > ranks {
                2 * ranks - stage_from_end.min(2 * ranks)
            } else {
                stage_from_end - 1
            }
        };
        let rank = match self {
            Self::UntilEnd(_) | Self::All(_) | Self::Depth(_) | Self::Rounds(_) => return 0,
            Self::Split(_) | Self::SplitAtMost(_) => usize::MAX - 1,
            Self::SplitRounds(rounds) => rounds.rank(stage_from_end),
            Self::SplitUntilEnd { ranks, .. } | Self::DualPipeV(ranks) => in_v(ranks),
        };
        self.count(replicas, behind).min(rank + 1)
    }

    /// Tells whether weights' gradients have passes of their own, until which activations are kept.
    pub fn is_split(self) -> bool {
        match self {
            Self::UntilEnd(_) | Self::All(_) | Self::Depth(_) | Self::Rounds(_) => false,
            Self::Split(_)
            | Self::SplitRounds(_)
            | Self::SplitUntilEnd { .. }
            | Self::DualPipeV(_)
            | Self::SplitAtMost(_) => true,
        }
    }

    /// Tells whether stages may hold less.
    pub fn is_upper_bound(self) -> bool {
        matches!(self, Self::SplitAtMost(_))
    }
}
