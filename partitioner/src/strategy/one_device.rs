//! The whole model on one device.

use crate::{
    grid::shape::{Grid, GridSpace},
    strategy::row::{AskedStages, Row, Search},
};

pub(crate) const ROW: Row = Row {
    name: "one-device",
    aliases: &["single"],
    search: Search::Grids(grids),
    stages: AskedStages::One,
    ..Row::PLAIN
};

fn grids(space: &GridSpace) -> Result<Vec<Grid>, String> {
    Ok(vec![space.whole_model(1)?])
}
