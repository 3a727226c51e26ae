//! How many micro-batches a stage holds.

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
    Rounds(InRounds),
    /// As many as stages from here to the end, two on each rank and placed in a V, where the backward pass is split: ZB-V. At most this many.
    SplitUntilEnd(u32),
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
            Self::Rounds(rounds) => rounds.held(behind.div_ceil(replicas)),
            Self::SplitUntilEnd(most) => behind.div_ceil(replicas).min(most as usize),
            Self::DualPipeV(ranks) => {
                let behind = behind.div_ceil(replicas);
                if behind > ranks as usize + 1 { behind - 1 } else { behind }
            }
        }
        .max(1)
    }

    /// Tells whether weights' gradients have passes of their own, until which activations are kept.
    pub fn is_split(self) -> bool {
        match self {
            Self::UntilEnd(_) | Self::All(_) | Self::Depth(_) => false,
            Self::Rounds(rounds) => rounds.is_split,
            Self::Split(_) | Self::SplitUntilEnd(_) | Self::DualPipeV(_) | Self::SplitAtMost(_) => true,
        }
    }

    /// Tells whether stages may hold less.
    pub fn is_upper_bound(self) -> bool {
        matches!(self, Self::SplitAtMost(_))
    }
}

/// An interleaved order: each rank runs the micro-batches of a round through one of its chunks after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InRounds {
    /// Ranks.
    pub ranks: u32,
    /// Chunks of each rank.
    pub chunks: u32,
    /// Micro-batches of a step.
    pub micro_batches: u32,
    /// Micro-batches of a round.
    pub per_round: u32,
    /// Whether activations are kept until a weight gradient that has a pass of its own.
    pub is_split: bool,
}

impl InRounds {
    /// Returns the most micro-batches that a stage holds, `left` being the stages from it to the end.
    ///
    /// A rank frees what it held `ahead` forward passes ago, counted over all of its chunks: the last chunk first, while forward
    /// passes begin with the first. A chunk holds most when its part of a round ends; rounds are alike once the first is freed.
    fn held(self, left: usize) -> usize {
        let [p, v, m, own] = [self.ranks, self.chunks, self.micro_batches, self.per_round].map(i64::from);
        let index = (p * v - left as i64).max(0);
        let (chunk, rank) = (index / p, index % p);
        // Weight gradients wait for as many passes as there are ranks before.
        let ahead = (v - 1) * own + if self.is_split { p - 1 } else { 2 * (p - 1 - rank) };
        let round = own * v;
        let behind_first = (chunk + 1) * own - 1 - ahead;
        let freed = |passes: i64| match passes {
            ..1 => 0,
            _ => passes / round * own + (passes % round - (v - 1 - chunk) * own).clamp(0, own),
        };
        let held = |turn: i64| (turn + 1) * own - freed(turn * round + behind_first);
        let regular = (-behind_first).div_euclid(round) + 1;
        (regular - 1..=regular).filter(|turn| (0..m / own).contains(turn)).map(held).max().unwrap_or(m).min(m)
            as usize
    }
}
