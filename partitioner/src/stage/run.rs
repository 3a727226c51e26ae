//! Where a stage lies: between which states, on which devices.

use simulator::order::Schedule;

/// Returns the rank that holds a stage under a schedule.
pub(crate) fn rank_of(schedule: Schedule, stage: usize, n_ranks: usize) -> usize {
    schedule.rank_of(stage as u32, n_ranks as u32) as usize
}

/// Returns the items of the stages that a rank holds.
pub(crate) fn of_rank<T>(
    stages: &[T],
    schedule: Schedule,
    n_ranks: usize,
    rank: usize,
) -> impl Iterator<Item = &T> {
    let is_own = move |stage: usize| rank_of(schedule, stage, n_ranks) == rank;
    stages.iter().enumerate().filter(move |(stage, _)| is_own(*stage)).map(|(_, stage)| stage)
}

/// A run of devices in the order of the machine, or every `stride`-th of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Run {
    /// The first device.
    pub first: usize,
    /// How many.
    pub count: usize,
    /// Step from one to the next.
    pub stride: usize,
}

impl Run {
    /// Returns the distance to the same replica's device of the next stage, in a grid.
    pub fn step(self) -> usize {
        if self.stride == 1 { self.count } else { 1 }
    }

    /// Returns the devices.
    pub fn devices(self) -> impl Iterator<Item = usize> {
        (0..self.count).map(move |index| self.first + index * self.stride)
    }
}

/// A stage of a solution: states and devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cut {
    pub(crate) start: usize,
    pub(crate) end: usize,
    pub(crate) run: Run,
    /// Devices from this stage to the end.
    pub(crate) behind: usize,
}
