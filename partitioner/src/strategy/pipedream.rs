//! Asynchronous 1F1B, stages replicated as each needs: PipeDream (Narayanan et al., SOSP 2019).

use simulator::order::Schedule;

use crate::strategy::row::{Row, Search};

pub(crate) const ROW: Row = Row {
    name: "pipedream",
    aliases: &[],
    search: Search::Asynchronous,
    schedule: Some(Schedule::PipeDream),
    ..Row::PLAIN
};
