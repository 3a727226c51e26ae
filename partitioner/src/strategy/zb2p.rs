//! Zero bubble by search, with up to twice 1F1B's activations: ZB-2p (Qi et al., 2024, arXiv:2401.10241, §3.2).
//!
//! The order is searched for the average stage of a plan; formulas know only how many micro-batches a stage holds at the most.

use simulator::order::Schedule;

use crate::{
    grid::shape::{Grid, GridSpace},
    strategy::row::{Row, Search},
};

pub(crate) const ROW: Row = Row {
    name: "zb2p",
    aliases: &["zb-2p"],
    search: Search::Grids(grids),
    schedule: Some(Schedule::Zb2p),
    has_replicas: true,
    ..Row::PLAIN
};

fn grids(space: &GridSpace) -> Result<Vec<Grid>, String> {
    Ok(space.pipelines(Schedule::Zb2p))
}
