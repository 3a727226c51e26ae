//! The cost of a stage: its time for each micro-batch, and what bounds it.
//!
//! With `r` replicas each takes every r-th micro-batch, so compute is divided by `r`. The port of one device carries, each way, the
//! activations of one boundary and the gradients of the other: `max(f_out/b + g_in/b', f_in/b' + g_out/b)/r`. If transfers do not overlap
//! compute, sending takes the device's own time and receiving none. Replicas that synchronize after every round (asynchronous training) add an all-reduce and the
//! optimizer's step, once for r micro-batches. Overlapping machines take the largest of the three, others the sum: the last bucket of
//! gradients, which nothing hides, is the simulator's to time. O(ties) a stage; memory is in `recompute`.

use std::{
    cell::{Cell, OnceCell, RefCell},
    collections::HashMap,
    rc::Rc,
};

use schema::{RecomputePolicy, RecomputeUnit};

use crate::{
    Problem,
    dag::cut_states::States,
    stage::{
        in_flight::InFlight,
        memory_plan::{MemoryPlan, Saving},
        place::{Neighbours, Place, Wire},
        run::{Cut, Run},
        time_table::TimeTable,
    },
};

/// What bounds a stage's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum BoundBy {
    /// Computing.
    Compute,
    /// Synchronising replicas.
    Sync,
    /// Moving activations and gradients.
    Transfer,
    /// Recomputation and offload.
    Memory,
}

impl BoundBy {
    /// Returns the word for messages and files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Compute => "compute",
            Self::Sync => "sync",
            Self::Transfer => "transfer",
            Self::Memory => "memory",
        }
    }
}

/// What a stage costs.
#[derive(Clone, Debug, PartialEq)]
pub struct StageScore {
    /// Seconds for each micro-batch, all replicas together.
    pub seconds: f64,
    /// Seconds of computing, recomputation included, shared by the replicas.
    pub compute: f64,
    /// Of these, seconds of recomputation and of copies to the host.
    pub overhead: f64,
    /// Seconds of synchronising replicas.
    pub sync: f64,
    /// Seconds of the fuller direction of the port.
    pub transfer: f64,
    /// Bytes at the peak, on each device.
    pub memory: f64,
    /// Bytes of the smallest device.
    pub limit: f64,
    /// Blocks that are recomputed.
    pub recompute: Vec<usize>,
    /// What of them is computed again at a time.
    pub recompute_unit: RecomputeUnit,
    /// Blocks whose saved activations are offloaded.
    pub offload: Vec<usize>,
    /// What bounds it.
    pub bound_by: BoundBy,
}

impl StageScore {
    /// Adds its parts up, or takes the largest where the machine overlaps them.
    pub(crate) fn settle(&mut self, overlaps: bool) {
        self.seconds = total(overlaps, self.compute, self.sync, self.transfer);
        self.bound_by = match self.compute >= self.sync && self.compute >= self.transfer {
            true if self.overhead > 0.0 => BoundBy::Memory,
            true => BoundBy::Compute,
            false if self.sync >= self.transfer => BoundBy::Sync,
            false => BoundBy::Transfer,
        };
    }
}

fn total(overlaps: bool, compute: f64, sync: f64, transfer: f64) -> f64 {
    if overlaps { compute.max(sync).max(transfer) } else { compute + sync + transfer }
}

/// What the schedule means for stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Whether replicas synchronise after every round, and old versions of the parameters are kept.
    pub is_asynchronous: bool,
    /// Micro-batches in flight.
    pub in_flight: InFlight,
    /// Which links join a stage to its neighbours.
    pub neighbours: Neighbours,
}

/// Scores stages of one problem over one list of states.
pub(crate) struct Scorer<'a> {
    pub(crate) problem: &'a Problem,
    pub(crate) states: &'a States,
    pub(crate) rules: Rules,
    /// Bytes that each block takes in, and what it keeps beside them when it is computed again.
    pub(crate) inputs: Vec<f64>,
    /// Bytes of the model's inputs that each block is the first to take, and what it keeps whatever is computed again.
    pub(crate) stays: Vec<f64>,
    /// Blocks that are computed again however much memory there is.
    pub(crate) always: Vec<usize>,
    /// Bytes of the largest workspace of any block.
    pub(crate) largest_workspace: f64,
    /// Blocks, those with most parameters first.
    pub(crate) by_parameters: OnceCell<Vec<usize>>,
    /// What stages recompute, by all that decides it.
    pub(crate) memory_plans: Rc<MemoryPlans>,
    /// What recomputing and offloading blocks saves, by the place they are on.
    pub(crate) savings: RefCell<HashMap<SavingKey, Rc<Vec<Saving>>>>,
    /// Least bytes of activations before each state, whatever is recomputed, by micro-batches in flight.
    pub(crate) least_held: RefCell<HashMap<usize, Vec<f64>>>,
    /// What runs of devices bring, the same for all states on the same machine with the same neighbours.
    pub(crate) places: Rc<PlaceCache>,
    time_tables: RefCell<Vec<Rc<TimeTable>>>,
    /// Micro-batches of an offloaded block that are on the device at once: one where copies wait for each other.
    pub(crate) copies: usize,
    /// Whether memory is to be counted from below: a stage that does not fit then fits in no way.
    pub(crate) is_bound: bool,
    /// Whether a device's next pass waits for all of its gradients' sum, and not for the last bucket's alone.
    pub(crate) waits_for_sums: bool,
    /// Replicas of the stage before, by a stage's first device, where they are known.
    pub(crate) before: HashMap<usize, usize>,
    /// Versions of its weights that a stage keeps, by its first device, where they are not one for each micro-batch in flight.
    pub(crate) versions: HashMap<usize, u32>,
    /// Whether replicas share the optimizer's step out.
    pub(crate) shares_updates: bool,
    /// Micro-batches between two updates of a stage at the least; one of each replica where that is more.
    pub(crate) period: usize,
    /// Optimality gap of the recompute knapsack as a share of the stage's work: non-zero if its search hit the node limit.
    pub(crate) gap: Cell<f64>,
}

/// What stages over the same states recompute and offload, with the gap of the search; nothing where they do not fit.
pub(crate) type MemoryPlans = RefCell<HashMap<PlanKey, (Option<MemoryPlan>, f64)>>;

/// What runs of devices bring.
pub(crate) type PlaceCache = RefCell<HashMap<Run, Rc<Place>>>;

/// States; micro-batches in flight, whether they wait for the weights' gradients, whether memory is counted from below; and limit,
/// speed, fixed memory and host bandwidth to the bit.
type PlanKey = ((usize, usize), (usize, bool, bool), [u64; 4]);
/// Micro-batches in flight, and speed and host bandwidth to the bit.
type SavingKey = (usize, [u64; 2]);

impl<'a> Scorer<'a> {
    pub(crate) fn new(problem: &'a Problem, states: &'a States, rules: Rules) -> Self {
        let mut inputs: Vec<f64> = problem.blocks.iter().map(|block| block.kept.0 as f64).collect();
        for value in &problem.values {
            value.to.iter().for_each(|&to| inputs[to] += value.forward.0 as f64);
        }
        let mut stays: Vec<f64> = problem.blocks.iter().map(|block| block.kept.0 as f64).collect();
        for value in problem.values.iter().filter(|value| value.from.is_none()) {
            if let Some(&first) = value.to.iter().min() {
                stays[first] += value.forward.0 as f64;
            }
        }
        let workspace = problem.blocks.iter().map(|block| block.workspace.0).max();
        let always = problem.blocks.iter().enumerate();
        let always = always.filter(|(_, block)| block.recompute == Some(RecomputePolicy::Always));
        Self {
            always: always.map(|(index, _)| index).collect(),
            problem,
            states,
            rules,
            inputs,
            stays,
            largest_workspace: workspace.unwrap_or(0) as f64,
            by_parameters: OnceCell::new(),
            memory_plans: Rc::default(),
            savings: RefCell::default(),
            least_held: RefCell::default(),
            places: Rc::default(),
            time_tables: RefCell::default(),
            copies: 1,
            is_bound: false,
            waits_for_sums: false,
            before: HashMap::new(),
            versions: HashMap::new(),
            shares_updates: false,
            period: 1,
            gap: Cell::default(),
        }
    }

    /// Returns what scores stages over other states of the same problem, on the same devices.
    pub(crate) fn over<'b>(&self, states: &'b States) -> Scorer<'b>
    where
        'a: 'b,
    {
        let mut other = Scorer::new(self.problem, states, self.rules);
        other.places = Rc::clone(&self.places);
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

    /// Returns what a run of devices brings.
    pub(crate) fn place(&self, run: Run) -> Rc<Place> {
        let make = || Rc::new(Place::new(&self.problem.machine, self.rules.neighbours, run));
        Rc::clone(self.places.borrow_mut().entry(run).or_insert_with(make))
    }

    /// Returns the memo table of stage times for runs like this one, with so many micro-batches in flight if memory counts.
    pub(crate) fn time_table(&self, place: &Rc<Place>, in_flight: Option<usize>) -> Option<Rc<TimeTable>> {
        let mut all = self.time_tables.borrow_mut();
        let known = TimeTable::like(&all, self, place, in_flight)?;
        if !all.iter().any(|other| Rc::ptr_eq(other, &known)) {
            all.push(Rc::clone(&known));
        }
        Some(known)
    }

    /// Seconds of one all-reduce over the replicas.
    pub(crate) fn all_reduce(&self, start: usize, end: usize, place: &Place) -> f64 {
        let own = place.all_reduce(self.parameters(start, end));
        let shared = self.shared(start, end);
        if shared == 0.0 {
            return own;
        }
        // Who else holds them is not known yet: over the fastest link, as between two devices.
        own + shared * self.problem.machine.least_seconds_per_byte()
    }

    /// Seconds of the fuller direction of the port.
    fn transfer(&self, start: usize, end: usize, place: &Place) -> f64 {
        let states = self.states;
        let is_first = start == 0;
        let is_last = end + 1 == states.len();
        let (f_in, g_in) =
            if is_first { (0.0, 0.0) } else { (states.crossing[start], states.crossing_back[start]) };
        let (f_out, g_out) =
            if is_last { (0.0, 0.0) } else { (states.crossing[end], states.crossing_back[end]) };
        // Beside compute, the fullest direction of a port counts; in a device's own time, all that it sends.
        let port = |((before, inner), (after, outer)): (Wire, Wire)| {
            let sum = |a: f64, b: f64| if inner == outer { a + b } else { a.max(b) };
            match self.problem.machine.overlaps {
                true => sum(f_out * after, g_in * before).max(sum(f_in * before, g_out * after)),
                false => f_out * after + g_in * before,
            }
        };
        place.wires.iter().map(|wires| port(*wires)).fold(0.0, f64::max) / place.run.count as f64
    }

    /// Returns a lower bound of the seconds for each micro-batch, infinite if the stage cannot fit, and whether it is exact: the
    /// recompute knapsack is not solved.
    pub(crate) fn seconds_at_least(
        &self,
        start: usize,
        end: usize,
        place: &Place,
        behind: usize,
    ) -> (f64, bool) {
        match self.least_overhead(start, end, place, behind) {
            None => (f64::INFINITY, true),
            Some((again, is_all)) => (self.seconds_with(start, end, place, again), is_all),
        }
    }

    /// Seconds for each micro-batch, infinite where the stage does not fit; anything that is no less where they are not below `bound`:
    /// what must be thrown away is not looked for then.
    pub(crate) fn seconds_below(
        &self,
        start: usize,
        end: usize,
        place: &Place,
        behind: usize,
        bound: f64,
    ) -> f64 {
        let least = self.least(start, end, place);
        if least >= bound {
            return least;
        }
        match self.seconds_at_least(start, end, place, behind) {
            (least, is_all) if is_all || least >= bound => least,
            _ => self.seconds_within_memory(start, end, place, behind),
        }
    }

    /// Returns the seconds for each micro-batch of a stage that must recompute or offload, infinite if it does not fit.
    pub(crate) fn seconds_within_memory(
        &self,
        start: usize,
        end: usize,
        place: &Place,
        behind: usize,
    ) -> f64 {
        let again = self.memory_plan_within(&Cut { start, end, run: place.run, behind }, place.limit);
        again.map_or(f64::INFINITY, |again| self.seconds_with(start, end, place, again.seconds))
    }

    /// Returns the seconds for each micro-batch with so many spent on recomputation and offload.
    fn seconds_with(&self, start: usize, end: usize, place: &Place, again: f64) -> f64 {
        let (compute, sync, transfer) = self.parts(start, end, place, again);
        total(self.problem.machine.overlaps, compute, sync, transfer)
    }

    /// Returns the seconds for each micro-batch without a memory limit.
    pub(crate) fn least(&self, start: usize, end: usize, place: &Place) -> f64 {
        self.seconds_with(start, end, place, 0.0)
    }

    fn parts(&self, start: usize, end: usize, place: &Place, again: f64) -> (f64, f64, f64) {
        let replicas = place.run.count as f64;
        let work = self.states.work[end] - self.states.work[start];
        let (sync, update) = if self.rules.is_asynchronous {
            let every = place.run.count.max(self.period) as f64;
            let touched = self.parameters(start, end) * self.problem.training.touched();
            let sharers = if self.shares_updates { replicas } else { 1.0 };
            let update = touched / place.memory_bandwidth / sharers * (replicas / every);
            (self.all_reduce(start, end, place) / every, update)
        } else {
            (0.0, 0.0)
        };
        let compute = (work / place.speed + again + update) / replicas;
        let compute = if self.waits_for_sums { compute + sync } else { compute };
        (compute, sync, self.transfer(start, end, place))
    }

    /// Scores a stage; `None` where it does not fit.
    pub(crate) fn score(&self, start: usize, end: usize, run: Run, behind: usize) -> Option<StageScore> {
        let place = self.place(run);
        let cut = Cut { start, end, run, behind };
        let again = self.memory_plan_within(&cut, place.limit)?;
        Some(self.scored(&cut, again, place.limit))
    }

    /// Scores a stage with a given choice of what is recomputed and offloaded.
    pub(crate) fn scored(&self, cut: &Cut, again: MemoryPlan, limit: f64) -> StageScore {
        let place = self.place(cut.run);
        let (compute, sync, transfer) = self.parts(cut.start, cut.end, &place, again.seconds);
        let mut score = StageScore {
            seconds: 0.0,
            compute,
            overhead: again.seconds / cut.run.count as f64,
            sync,
            transfer,
            memory: again.memory,
            limit,
            recompute: again.recompute,
            recompute_unit: again.unit,
            offload: again.offload,
            bound_by: BoundBy::Compute,
        };
        score.settle(self.problem.machine.overlaps);
        score
    }
}
