//! Stages one after the other without pipelining: layer-wise model parallelism.

use simulator::order::Schedule;

use crate::{
    grid::shape::{Grid, GridSpace},
    strategy::row::{Row, Search},
};

pub(crate) const ROW: Row = Row {
    name: "layer",
    aliases: &["model-parallel"],
    search: Search::Grids(grids),
    schedule: Some(Schedule::LayerParallel),
    is_serial: true,
    ..Row::PLAIN
};

fn grids(space: &GridSpace) -> Result<Vec<Grid>, String> {
    // Nothing runs side by side: the fewer stages the better.
    let mut grids = space.straight(Schedule::LayerParallel, 1);
    grids.reverse();
    Ok(grids)
}
