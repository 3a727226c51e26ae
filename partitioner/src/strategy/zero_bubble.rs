//! 1F1B with weight gradients in the bubbles: ZB-H1 (Qi et al., ICLR 2024).

use simulator::order::Schedule;

use crate::{
    grid::shape::{Grid, GridSpace},
    strategy::row::{Row, Search},
};

pub(crate) const ROW: Row = Row {
    name: "zero-bubble",
    aliases: &["zb", "zb-h1"],
    search: Search::Grids(grids),
    schedule: Some(Schedule::InterleavedZeroBubble),
    has_replicas: true,
    ..Row::PLAIN
};

fn grids(space: &GridSpace) -> Result<Vec<Grid>, String> {
    Ok(space.pipelines(Schedule::InterleavedZeroBubble))
}
