//! What a stage costs, on any devices: the problem, the states between which stages lie, the rules of a schedule.
//!
//! `costs` applies it to a device run. It owns one memo table: the times of stages, O(Q²) for each kind of device run. Two are shared
//! between scorers: device runs by those on one machine, memory plans by those over one list of states.

use std::{cell::Cell, collections::HashMap, rc::Rc};

use crate::{
    Problem,
    dag::cut_states::States,
    stage::{
        block_bytes::BlockBytes,
        memo::Memo,
        memory_plan::MemoryPlans,
        place::{DeviceRuns, Place},
        rounds::Rounds,
        run::Run,
        score::Rules,
        time_table::TimeTable,
    },
};

/// The most states for which stage times are kept.
const STATES: usize = 2_048;

/// Scores stages of one problem over one list of states.
pub(crate) struct Scorer<'a> {
    pub(crate) problem: &'a Problem,
    pub(crate) states: &'a States,
    pub(crate) rules: Rules,
    pub(crate) bytes: Rc<BlockBytes>,
    pub(crate) runs: Rc<DeviceRuns>,
    pub(crate) memory_plans: Rc<MemoryPlans>,
    /// Times of stages by kind of device run: without a memory limit, and within memory for a number of micro-batches in flight.
    times: Memo<(usize, Option<Held>), Rc<TimeTable>>,
    /// Micro-batches of an offloaded block that are on the device at once: one if the device waits for copies.
    pub(crate) copies: usize,
    /// Whether memory is underestimated: a stage that does not fit then never fits.
    pub(crate) is_bound: bool,
    /// Whether a device's next pass waits for the sum of all of its gradients, and not of the last bucket alone.
    pub(crate) waits_for_sums: bool,
    /// What rounds take that end with sums of gradients, where that is counted.
    pub(crate) rounds: Option<Rc<Rounds>>,
    /// Replicas of the stage before, by a stage's first device, if known.
    pub(crate) before: HashMap<usize, usize>,
    /// Weight versions of a stage, by its first device; one for each micro-batch in flight if absent.
    pub(crate) versions: HashMap<usize, u32>,
    /// Whether replicas shard the optimizer's step.
    pub(crate) shares_updates: bool,
    /// Least micro-batches between two updates of a stage; the number of its replicas if that is larger.
    pub(crate) period: usize,
    /// Optimality gap of the recompute knapsack as a share of the stage's work: non-zero if its search hit the node limit.
    pub(crate) gap: Cell<f64>,
}

/// Micro-batches in flight, and those of them whose weights' gradients may wait.
pub(crate) type Held = (usize, usize);

impl<'a> Scorer<'a> {
    pub(crate) fn new(problem: &'a Problem, states: &'a States, rules: Rules) -> Self {
        Self::with(problem, states, rules, Rc::new(BlockBytes::of(problem)))
    }

    fn with(problem: &'a Problem, states: &'a States, rules: Rules, bytes: Rc<BlockBytes>) -> Self {
        Self {
            problem,
            states,
            rules,
            bytes,
            runs: Rc::default(),
            memory_plans: Rc::default(),
            times: Memo::default(),
            copies: 1,
            is_bound: false,
            waits_for_sums: false,
            rounds: None,
            before: HashMap::new(),
            versions: HashMap::new(),
            shares_updates: false,
            period: 1,
            gap: Cell::default(),
        }
    }

    /// Returns a scorer over other states of the same problem, on the same devices.
    pub(crate) fn over<'b>(&self, states: &'b States) -> Scorer<'b>
    where
        'a: 'b,
    {
        let mut other = Scorer::with(self.problem, states, self.rules, Rc::clone(&self.bytes));
        other.runs = Rc::clone(&self.runs);
        other
    }

    pub(crate) fn parameters(&self, start: usize, end: usize) -> f64 {
        let mut bytes = self.states.parameters[end] - self.states.parameters[start];
        for tie in &self.problem.ties {
            if tie.blocks.iter().any(|&block| self.states.has_block(start, end, block)) {
                bytes += tie.parameters.0 as f64;
            }
        }
        bytes
    }

    /// Bytes of tied parameters that other stages hold as well.
    pub(crate) fn shared(&self, start: usize, end: usize) -> f64 {
        let is_shared = |tie: &&crate::Tie| {
            let inside = tie.blocks.iter().filter(|&&block| self.states.has_block(start, end, block)).count();
            inside > 0 && inside < tie.blocks.len()
        };
        self.problem.ties.iter().filter(is_shared).map(|tie| tie.parameters.0 as f64).sum()
    }

    /// Returns the place of a device run.
    pub(crate) fn place(&self, run: Run) -> Rc<Place> {
        self.runs.place(&self.problem.machine, self.rules.neighbours, run)
    }

    /// Tells whether times of stages are kept.
    pub(crate) fn keeps_times(&self) -> bool {
        !self.rules.is_asynchronous && self.states.len() <= STATES
    }

    /// Returns the times of stages on devices like these, within memory if numbers of micro-batches in flight and waiting are given. `None` if
    /// the table would be too large, or the pipeline is asynchronous, where costs depend on the run's position.
    pub(crate) fn time_table(&self, place: &Rc<Place>, held: Option<Held>) -> Option<Rc<TimeTable>> {
        let n_states = self.states.len();
        if !self.keeps_times() {
            return None;
        }
        let kind = self.runs.kind(place);
        Some(self.times.get((kind, held), || Rc::new(TimeTable::new(n_states))))
    }
}
