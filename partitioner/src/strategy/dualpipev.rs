//! DualPipe folded into a V, with one copy of the model: DualPipeV (Qi, Wan et al., 2025, "Cut-in-half").

use simulator::order::Schedule;

use crate::{
    grid::shape::{Grid, GridSpace},
    strategy::row::{AskedStages, Row, Search},
};

pub(crate) const ROW: Row = Row {
    name: "dualpipev",
    aliases: &["dualpipe-v"],
    search: Search::Grids(grids),
    schedule: Some(Schedule::DualPipeV),
    stages: AskedStages::None,
    has_replicas: true,
    is_slow: true,
    ..Row::PLAIN
};

fn grids(space: &GridSpace) -> Result<Vec<Grid>, String> {
    space.chunked(Schedule::DualPipeV, 2..=2)
}
