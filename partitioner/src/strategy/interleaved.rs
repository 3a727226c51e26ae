//! 1F1B over several chunks of each rank: Megatron's interleaved schedule (Narayanan et al., SC 2021).

use simulator::order::Schedule;

use crate::{
    grid::shape::{FEW_DEVICES, Grid, GridSpace},
    strategy::row::{AskedStages, Row, Search},
};

pub(crate) const ROW: Row = Row {
    name: "interleaved",
    aliases: &[],
    search: Search::Grids(grids),
    stages: AskedStages::None,
    has_replicas: true,
    is_slow: true,
    ..Row::PLAIN
};

/// The most chunks of a device.
const MOST_CHUNKS: usize = 8;

fn grids(space: &GridSpace) -> Result<Vec<Grid>, String> {
    if space.is_given {
        return Err("it makes several parts of each stage, and all cuts are given".into());
    }
    let schedule = Schedule::Interleaved1F1B;
    // On many devices those that use all of them.
    let is_full = |grid: &Grid| {
        space.n_devices <= FEW_DEVICES || space.wanted.is_some() || space.n_devices.is_multiple_of(grid.ranks)
    };
    let replicated = |chunks: usize| {
        let all = if space.replicated_chunks { space.replicated(schedule, chunks) } else { Vec::new() };
        all.into_iter().filter(is_full)
    };
    let grids = (2..=MOST_CHUNKS)
        .flat_map(|chunks| space.straight(schedule, chunks).into_iter().chain(replicated(chunks)));
    let grids: Vec<Grid> = grids.filter(|grid| grid.ranks > 1).collect();
    if grids.is_empty() {
        return Err("two chunks on each of two devices need four blocks".into());
    }
    Ok(grids)
}
