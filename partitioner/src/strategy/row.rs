//! A row of the table of strategies: names, search, properties.

use simulator::order::Schedule;

use crate::{
    grid::shape::{Grid, GridSpace},
    problem::Problem,
};

/// A strategy.
pub(crate) struct Row {
    /// The name that `--strategy` takes.
    pub(crate) name: &'static str,
    /// Names that it goes by elsewhere, in lower case.
    pub(crate) aliases: &'static [&'static str],
    pub(crate) search: Search,
    /// The schedule that its search alone plans stages for; two copies name theirs there.
    pub(crate) schedule: Option<Schedule>,
    /// Which numbers of stages may be asked for if `auto` is to try it.
    pub(crate) stages: AskedStages,
    /// Whether stages have replicas that can share out what each would keep whole.
    pub(crate) has_replicas: bool,
    /// Whether cuts by every rule are tried as well.
    pub(crate) tries_rules: bool,
    /// Whether one micro-batch is in flight, however many a step has.
    pub(crate) is_serial: bool,
    /// Whether its search takes so long that it is left out where only a hint is asked for.
    pub(crate) is_slow: bool,
}

impl Row {
    /// What rows begin from.
    pub(crate) const PLAIN: Self = Self {
        name: "",
        aliases: &[],
        search: Search::Asynchronous,
        schedule: None,
        stages: AskedStages::Any,
        has_replicas: false,
        tries_rules: false,
        is_serial: false,
        is_slow: false,
    };
}

/// How a strategy is searched.
#[derive(Clone, Copy)]
pub(crate) enum Search {
    /// The best cut of each of these grids; an error says why there is none.
    Grids(fn(&GridSpace) -> Result<Vec<Grid>, String>),
    /// A cut by a rule that people use by hand, into as many stages: where each begins, and the number of blocks.
    Rule(fn(&Problem, usize) -> Vec<usize>),
    /// Two copies of the model from both ends of the devices.
    TwoCopies(Schedule),
    /// Training without a flush: the slowest stage decides.
    Asynchronous,
}

/// Which numbers of stages a user may ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AskedStages {
    Any,
    /// The whole model is one stage.
    One,
    /// It makes more parts than there are stages in a row.
    None,
}
