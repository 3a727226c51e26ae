//! Two copies of the model in opposite directions, backward passes split: DualPipe (DeepSeek-V3, arXiv:2412.19437).

use simulator::order::Schedule;

use crate::strategy::row::{Row, Search};

pub(crate) const ROW: Row =
    Row { name: "dualpipe", aliases: &[], search: Search::TwoCopies(Schedule::DualPipe), ..Row::PLAIN };
