//! Memo tables of stage times by start and end state, for solvers that ask for the same stage many times.
//!
//! In a grid of equal stages most device runs are alike: a stage's time there depends on its states and the micro-batches in flight alone.
//! One table for each kind of run, filled on demand: O(Q²) memory at worst, a row for each start that is asked about.

use std::{cell::RefCell, rc::Rc};

use crate::stage::{in_flight::InFlight, place::Place, score::Scorer};

/// The most states of which tables are kept, and where all stages have as many micro-batches in flight.
const STATES: [usize; 2] = [512, 1024];

/// Seconds by start and end; none where nobody asked. Solvers ask for few starts: each has a row when one does.
struct Table(RefCell<Vec<Vec<f64>>>);

impl Table {
    fn new(n_states: usize) -> Self {
        Self(RefCell::new(vec![Vec::new(); n_states]))
    }

    /// Returns what is known; 0 where nothing is.
    fn get(&self, start: usize, end: usize) -> f64 {
        self.0.borrow()[start].get(end - start).copied().unwrap_or(0.0)
    }

    fn set(&self, start: usize, end: usize, seconds: f64) {
        let rows = &mut *self.0.borrow_mut();
        let row = &mut rows[start];
        if row.len() <= end - start {
            row.resize(end - start + 1, 0.0);
        }
        row[end - start] = seconds;
    }
}

/// Times of stages on one kind of device run.
pub(crate) struct TimeTable {
    place: Rc<Place>,
    /// Seconds without a memory limit; infinite where there is no stage.
    least: Rc<Table>,
    /// The same within memory, for a number of micro-batches in flight.
    within: Option<(usize, Table)>,
}

impl TimeTable {
    /// Returns a memo table for this device run, which shares the compute-only half with an equivalent run if there is one. `None` if the
    /// table would be too large, or the pipeline is asynchronous, where costs depend on the run's position.
    pub(crate) fn like(
        others: &[Rc<Self>],
        scorer: &Scorer,
        place: &Rc<Place>,
        in_flight: Option<usize>,
    ) -> Option<Rc<Self>> {
        let n_states = scorer.states.len();
        let is_level = !matches!(scorer.rules.in_flight, InFlight::UntilEnd(_));
        if scorer.rules.is_asynchronous || n_states > STATES[usize::from(is_level)] {
            return None;
        }
        let alike = || others.iter().filter(|other| other.place.is_like(place));
        if let Some(same) = alike().find(|other| other.in_flight() == in_flight || in_flight.is_none()) {
            return Some(Rc::clone(same));
        }
        let unknown = || Table::new(n_states);
        let least = alike().next().map_or_else(|| Rc::new(unknown()), |other| Rc::clone(&other.least));
        let within = in_flight.map(|in_flight| (in_flight, unknown()));
        Some(Rc::new(Self { place: Rc::clone(place), least, within }))
    }

    fn in_flight(&self) -> Option<usize> {
        self.within.as_ref().map(|within| within.0)
    }

    /// Returns the seconds for each micro-batch without a memory limit; infinite if no stage lies between the states.
    pub(crate) fn least(&self, scorer: &Scorer, start: usize, end: usize) -> f64 {
        let known = self.least.get(start, end);
        if known != 0.0 {
            return known;
        }
        let is_stage = scorer.states.is_before(start, end);
        let seconds = if is_stage { scorer.least(start, end, &self.place) } else { f64::INFINITY };
        self.least.set(start, end, seconds);
        seconds
    }

    /// Returns a lower bound of the seconds within memory, and whether it is exact.
    pub(crate) fn at_least(
        &self,
        scorer: &Scorer,
        (start, end): (usize, usize),
        behind: usize,
    ) -> (f64, bool) {
        let least = self.least(scorer, start, end);
        let Some((_, within)) = self.within.as_ref().filter(|_| least < f64::INFINITY) else {
            return (least, true);
        };
        let known = within.get(start, end);
        // A negative entry is a lower bound, a positive one is exact.
        if known != 0.0 {
            return (known.abs(), known > 0.0);
        }
        let (seconds, is_all) = scorer.seconds_at_least(start, end, &self.place, behind);
        within.set(start, end, if is_all { seconds } else { -seconds });
        (seconds, is_all)
    }

    /// Returns the seconds of a stage that must recompute or offload to fit its memory.
    pub(crate) fn seconds_within_memory(
        &self,
        scorer: &Scorer,
        (start, end): (usize, usize),
        behind: usize,
    ) -> f64 {
        let seconds = scorer.seconds_within_memory(start, end, &self.place, behind);
        if let Some((_, within)) = &self.within {
            within.set(start, end, seconds);
        }
        seconds
    }
}

/// Times of stages on one device run, from a table if there is one.
pub(crate) struct RunTimes<'a> {
    pub(crate) scorer: &'a Scorer<'a>,
    pub(crate) place: Rc<Place>,
    pub(crate) table: Option<Rc<TimeTable>>,
    /// Devices from the run to the end.
    pub(crate) behind: usize,
}

impl RunTimes<'_> {
    /// Returns the seconds for each micro-batch without a memory limit; infinite if no stage lies between the states.
    pub(crate) fn least(&self, start: usize, end: usize) -> f64 {
        match &self.table {
            Some(table) => table.least(self.scorer, start, end),
            None if self.scorer.states.is_before(start, end) => self.scorer.least(start, end, &self.place),
            None => f64::INFINITY,
        }
    }

    /// Returns a lower bound of the seconds within memory, and whether it is exact.
    pub(crate) fn at_least(&self, start: usize, end: usize) -> (f64, bool) {
        match &self.table {
            Some(table) => table.at_least(self.scorer, (start, end), self.behind),
            None => self.scorer.seconds_at_least(start, end, &self.place, self.behind),
        }
    }

    /// Returns the seconds of a stage that must recompute or offload to fit its memory.
    pub(crate) fn seconds_within_memory(&self, start: usize, end: usize) -> f64 {
        match &self.table {
            Some(table) => table.seconds_within_memory(self.scorer, (start, end), self.behind),
            None => self.scorer.seconds_within_memory(start, end, &self.place, self.behind),
        }
    }
}
