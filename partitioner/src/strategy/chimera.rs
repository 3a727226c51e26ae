//! Two copies of the model in opposite directions, merged slot by slot: Chimera (Li and Hoefler, SC 2021).

use simulator::order::Schedule;

use crate::strategy::row::{Row, Search};

pub(crate) const ROW: Row =
    Row { name: "chimera", aliases: &[], search: Search::TwoCopies(Schedule::Chimera), ..Row::PLAIN };
