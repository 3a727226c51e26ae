//! 1F1B over several chunks of each rank: Megatron's interleaved schedule (Narayanan et al., SC 2021).

use simulator::order::Schedule;

use crate::{
    grid::shape::{Grid, GridSpace},
    strategy::row::{AskedStages, Row, Search},
};

pub(crate) const ROW: Row = Row {
    name: "interleaved",
    aliases: &[],
    search: Search::Grids(grids),
    schedule: Some(Schedule::Interleaved1F1B),
    stages: AskedStages::None,
    has_replicas: true,
    is_slow: true,
    ..Row::PLAIN
};

/// The most chunks of a device.
const MOST_CHUNKS: usize = 8;

fn grids(space: &GridSpace) -> Result<Vec<Grid>, String> {
    space.chunked(Schedule::Interleaved1F1B, 2..=MOST_CHUNKS)
}
