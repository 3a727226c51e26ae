//! Every device holds the whole model; replicas sum gradients.

use crate::{
    grid::shape::{Grid, GridSpace},
    strategy::row::{AskedStages, Row, Search},
};

pub(crate) const ROW: Row = Row {
    name: "data-parallel",
    aliases: &["dp", "ddp", "fsdp", "zero1", "zero2", "zero3"],
    search: Search::Grids(grids),
    stages: AskedStages::One,
    has_replicas: true,
    ..Row::PLAIN
};

fn grids(space: &GridSpace) -> Result<Vec<Grid>, String> {
    space.whole_models()
}
