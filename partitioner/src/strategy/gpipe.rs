//! All forward passes, then all backward passes: GPipe (Huang et al., NeurIPS 2019).

use simulator::order::Schedule;

use crate::{
    grid::shape::{Grid, GridSpace},
    strategy::row::{Row, Search},
};

pub(crate) const ROW: Row = Row {
    name: "gpipe",
    aliases: &[],
    search: Search::Grids(grids),
    schedule: Some(Schedule::GPipe),
    ..Row::PLAIN
};

fn grids(space: &GridSpace) -> Result<Vec<Grid>, String> {
    Ok(space.straight(Schedule::GPipe, 1))
}
