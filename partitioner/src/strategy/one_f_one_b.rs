//! 1F1B with a flush at the end of the step: PipeDream-Flush (Narayanan et al., ICML 2021), Megatron's default.
//!
//! Cuts by every rule are tried as well: solvers go by formulas, and a plan is never worse than what people cut by hand.

use simulator::order::Schedule;

use crate::{
    grid::shape::{Grid, GridSpace},
    strategy::row::{Row, Search},
};

pub(crate) const ROW: Row = Row {
    name: "1f1b",
    aliases: &["pipedream-flush", "pp", "pipeline"],
    search: Search::Grids(grids),
    schedule: Some(Schedule::OneForwardOneBackward),
    tries_rules: true,
    ..Row::PLAIN
};

fn grids(space: &GridSpace) -> Result<Vec<Grid>, String> {
    Ok(space.straight(Schedule::OneForwardOneBackward, 1))
}
