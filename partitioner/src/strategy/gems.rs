//! Two copies of the model in opposite directions, a pass of one behind a pass of the other: GEMS (Jain et al., SC 2020).

use simulator::order::Schedule;

use crate::strategy::row::{Row, Search};

pub(crate) const ROW: Row = Row {
    name: "gems-master",
    aliases: &["gems"],
    search: Search::TwoCopies(Schedule::GemsMaster),
    ..Row::PLAIN
};
