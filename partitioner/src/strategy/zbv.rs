//! Zero bubble over two chunks of each rank in a V: ZB-V (Qi et al., 2024, arXiv:2401.10241, §6).
//!
//! A rank holds a stage of each half of the model, so that all ranks hold as much, and the turn of the V sends nothing. Searched like
//! interleaved stages; `docs/bounds.md` says which bounds hold.

use simulator::order::Schedule;

use crate::{
    grid::shape::{Grid, GridSpace},
    strategy::row::{AskedStages, Row, Search},
};

pub(crate) const ROW: Row = Row {
    name: "zbv",
    aliases: &["zb-v", "zbvzerobubble"],
    search: Search::Grids(grids),
    schedule: Some(Schedule::Zbv),
    stages: AskedStages::None,
    has_replicas: true,
    is_slow: true,
    ..Row::PLAIN
};

fn grids(space: &GridSpace) -> Result<Vec<Grid>, String> {
    space.chunked(Schedule::Zbv, 2..=2)
}
