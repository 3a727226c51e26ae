//! What a stage costs: its time for each micro-batch, what bounds that time, and its memory.
//!
//! With r replicas, each takes every r-th micro-batch, so compute is shared by r. The port of one device carries, each way,
//! the activations of one border and the gradients of the other: `max(f_out/b + g_in/b', f_in/b' + g_out/b)/r`.
//! Where transfers are not beside compute, sending takes the device's own time and receiving none.
//! Replicas that synchronise after every round (asynchronous training) add an all-reduce and the optimizer's step, once for r micro-batches. Overlapping machines take the largest of the three, others the sum:
//! the last bucket of gradients, behind which nothing hides, is the simulator's to time.
//!
//! Memory is in `again`.

use std::{
    cell::{Cell, RefCell},
    collections::HashMap,
    rc::Rc,
};

use schema::RecomputeUnit;

use crate::{
    Machine, Problem,
    again::{Again, Gain},
    collective::Group,
    known::Known,
    pipeline::Cut,
    states::States,
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
    /// Computing again, or moving to the host, what memory could not hold.
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
    /// Seconds of computing, again what was thrown away included, shared by the replicas.
    pub compute: f64,
    /// Seconds of computing again and of moving to the host.
    pub again: f64,
    /// Seconds of synchronising replicas.
    pub sync: f64,
    /// Seconds of the fuller direction of the port.
    pub transfer: f64,
    /// Bytes at the peak, on each device.
    pub memory: f64,
    /// Bytes of the smallest device.
    pub limit: f64,
    /// Blocks that are computed again.
    pub recompute: Vec<usize>,
    /// What of them is computed again at a time.
    pub recompute_unit: RecomputeUnit,
    /// Blocks whose activations wait in host memory.
    pub offload: Vec<usize>,
    /// What bounds it.
    pub bound_by: BoundBy,
}

impl StageScore {
    /// Adds its parts up, or takes the largest where the machine overlaps them.
    pub(crate) fn settle(&mut self, overlaps: bool) {
        self.seconds = total(overlaps, self.compute, self.sync, self.transfer);
        self.bound_by = match self.compute >= self.sync && self.compute >= self.transfer {
            true if self.again > 0.0 => BoundBy::Memory,
            true => BoundBy::Compute,
            false if self.sync >= self.transfer => BoundBy::Sync,
            false => BoundBy::Transfer,
        };
    }
}

fn total(overlaps: bool, compute: f64, sync: f64, transfer: f64) -> f64 {
    match overlaps {
        true => compute.max(sync).max(transfer),
        false => compute + sync + transfer,
    }
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

/// Which links join a stage to its neighbours, whose devices a solver does not know yet.
///
/// Where all links are alike, all answers are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Neighbours {
    /// Those between devices that stand next to each other.
    Adjacent,
    /// The slowest that a neighbour as large as the stage would need.
    Wide,
    /// The fastest of the machine: a bound from below.
    Fastest,
    /// Each replica's own, in a grid of equal stages.
    Paired,
}

/// Micro-batches whose activations a stage holds.
///
/// The peaks of the usual schedules; Narayanan et al. 2019 and 2021, Qi et al. 2024.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InFlight {
    /// As many as devices from here to the end share: 1F1B. At most this many.
    UntilEnd(u32),
    /// All of a step: GPipe.
    All(u32),
    /// As many wherever the stage is: chunks of interleaved schedules.
    Depth(u32),
    /// The same where the backward pass is split: zero-bubble keeps activations until the weight gradient.
    Split(u32),
}

impl InFlight {
    /// Returns the number for a stage of `replicas` with `behind` devices from it to the end.
    pub fn count(self, replicas: usize, behind: usize) -> usize {
        match self {
            Self::UntilEnd(most) => behind.div_ceil(replicas).min((most as usize).div_ceil(replicas)),
            Self::All(all) => (all as usize).div_ceil(replicas),
            Self::Depth(depth) | Self::Split(depth) => depth as usize,
        }
        .max(1)
    }
}

/// A run of devices in the order of the machine, or every `stride`-th of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Run {
    /// The first device.
    pub first: usize,
    /// How many.
    pub count: usize,
    /// Step from one to the next.
    pub stride: usize,
}

impl Run {
    /// Returns the distance to the same replica's device of the next stage, in a grid.
    pub fn step(self) -> usize {
        if self.stride == 1 { self.count } else { 1 }
    }

    /// Returns the devices.
    pub fn devices(self) -> impl Iterator<Item = usize> {
        (0..self.count).map(move |index| self.first + index * self.stride)
    }
}

/// Seconds a byte takes over what joins two devices, and the level whose ports it takes.
type Wire = (f64, usize);

/// What a run of devices brings to every stage on it: looked up once for the many that a solver tries there.
pub(crate) struct Place {
    pub(crate) run: Run,
    /// Speed of the slowest device.
    pub(crate) speed: f64,
    /// Bytes of the smallest device.
    pub(crate) limit: f64,
    /// Bytes a second to host memory, of the slowest device.
    pub(crate) host: f64,
    /// Bytes a second of the first device's memory.
    memory_bandwidth: f64,
    /// Who adds up gradients.
    group: Option<Group>,
    /// What joins devices to those before and behind them, each pair that differs.
    wires: Vec<(Wire, Wire)>,
}

impl Place {
    fn new(machine: &Machine, neighbours: Neighbours, run: Run) -> Self {
        let devices: Vec<usize> = run.devices().collect();
        let least = |field: &dyn Fn(&crate::MachineDevice) -> f64| {
            devices.iter().map(|&device| field(&machine.devices[device])).fold(f64::INFINITY, f64::min)
        };
        Self {
            run,
            speed: least(&|device| device.speed),
            limit: least(&|device| device.memory.0 as f64),
            host: least(&|device| device.host_bandwidth.0),
            memory_bandwidth: machine.devices[run.first].memory_bandwidth.0,
            group: Group::of(machine, &devices),
            wires: wires(machine, neighbours, run),
        }
    }

    /// Tells whether a stage takes the same on either.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        let numbers = |place: &Self| [place.speed, place.limit, place.host, place.memory_bandwidth];
        numbers(self) == numbers(other)
            && self.run.count == other.run.count
            && self.group == other.group
            && self.wires == other.wires
    }

    /// Seconds a byte takes at the least to what is behind, of each micro-batch.
    pub(crate) fn sending(&self) -> f64 {
        self.wires.iter().map(|(_, after)| after.0).fold(0.0, f64::max) / self.run.count as f64
    }

    /// Seconds of one all-reduce of so many bytes over the replicas.
    pub(crate) fn all_reduce(&self, bytes: f64) -> f64 {
        self.group.map_or(0.0, |group| group.all_reduce(bytes))
    }
}

/// Returns what joins each device of a run to those before and behind it, once each.
fn wires(machine: &Machine, neighbours: Neighbours, run: Run) -> Vec<(Wire, Wire)> {
    let n_devices = machine.devices.len();
    // None between turns on one device.
    let wire = |one: Option<usize>, other: Option<usize>| match (one, other) {
        (Some(one), Some(other))
            if one < n_devices
                && other < n_devices
                && machine.devices[one].name != machine.devices[other].name =>
        {
            let rate = machine.level(one, other).map_or(0.0, |level| 1.0 / level.bandwidth.0);
            (rate, machine.level_index(one, other))
        }
        _ => (0.0, 0),
    };
    let slowest = |wires: &mut dyn Iterator<Item = Wire>| {
        wires.fold((0.0, 0), |most, wire| if wire.0 > most.0 { wire } else { most })
    };
    let (first, last) = (run.first, run.first + run.count - 1);
    match neighbours {
        Neighbours::Adjacent => {
            vec![(wire(first.checked_sub(1), Some(first)), wire(Some(last), Some(last + 1)))]
        }
        Neighbours::Wide => vec![(
            slowest(&mut run.devices().map(|device| wire(first.checked_sub(1), Some(device)))),
            slowest(&mut (1..=run.count).map(|step| wire(Some(last), Some(last + step)))),
        )],
        Neighbours::Fastest => {
            let fastest = machine.least_seconds_per_byte();
            // On several levels, two neighbours may be joined by ports of their own.
            vec![((fastest, 0), (fastest, usize::from(machine.levels.len() > 1)))]
        }
        Neighbours::Paired => {
            let step = run.step();
            let mut pairs = Vec::new();
            for device in run.devices() {
                let pair =
                    (wire(device.checked_sub(step), Some(device)), wire(Some(device), Some(device + step)));
                if !pairs.contains(&pair) {
                    pairs.push(pair);
                }
            }
            pairs
        }
    }
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
    /// Bytes of the largest workspace of any block.
    pub(crate) largest_workspace: f64,
    /// Twice the bytes of the parameters of the block that has most, between two states.
    pub(crate) gathered: RefCell<HashMap<(usize, usize), f64>>,
    pub(crate) picks: RefCell<HashMap<PickKey, Option<Again>>>,
    /// What throwing blocks away brings.
    pub(crate) gains: RefCell<HashMap<GainKey, Rc<Vec<Gain>>>>,
    /// Bytes of activations before each state that are there whatever is thrown away, by micro-batches in flight.
    pub(crate) least_held: RefCell<HashMap<usize, Vec<f64>>>,
    places: RefCell<HashMap<Run, Rc<Place>>>,
    known: RefCell<Vec<Rc<Known>>>,
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
    /// By which share of its work a stage might be faster, for what it throws away was not looked through to the end.
    pub(crate) doubt: Cell<f64>,
}

/// States, micro-batches in flight, and limit, speed, fixed memory and host bandwidth to the bit.
type PickKey = (usize, usize, usize, [u64; 4]);
/// Micro-batches in flight, and speed and host bandwidth to the bit.
type GainKey = (usize, [u64; 2]);

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
        Self {
            problem,
            states,
            rules,
            inputs,
            stays,
            largest_workspace: workspace.unwrap_or(0) as f64,
            gathered: RefCell::default(),
            picks: RefCell::default(),
            gains: RefCell::default(),
            least_held: RefCell::default(),
            places: RefCell::default(),
            known: RefCell::default(),
            copies: 1,
            is_bound: false,
            waits_for_sums: false,
            before: HashMap::new(),
            versions: HashMap::new(),
            shares_updates: false,
            period: 1,
            doubt: Cell::default(),
        }
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

    /// Returns what is known of stages on a run like this one, with so many micro-batches in flight where memory counts.
    pub(crate) fn known(&self, place: &Rc<Place>, in_flight: Option<usize>) -> Option<Rc<Known>> {
        let mut all = self.known.borrow_mut();
        let known = Known::like(&all, self, place, in_flight)?;
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

    /// Seconds for each micro-batch at the least, infinite where the stage cannot fit, and whether that is what it takes: what must
    /// be thrown away is not looked for.
    pub(crate) fn seconds_at_least(
        &self,
        start: usize,
        end: usize,
        place: &Place,
        behind: usize,
    ) -> (f64, bool) {
        match self.again_at_least(start, end, place, behind) {
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
            _ => self.looked_for(start, end, place, behind),
        }
    }

    /// Seconds for each micro-batch of a stage that must throw something away, infinite where it does not fit.
    pub(crate) fn looked_for(&self, start: usize, end: usize, place: &Place, behind: usize) -> f64 {
        let again = self.again_within(&Cut { start, end, run: place.run, behind }, place.limit);
        again.map_or(f64::INFINITY, |again| self.seconds_with(start, end, place, again.seconds))
    }

    /// Seconds for each micro-batch where so many are spent on what was thrown away.
    fn seconds_with(&self, start: usize, end: usize, place: &Place, again: f64) -> f64 {
        let (compute, sync, transfer) = self.parts(start, end, place, again);
        total(self.problem.machine.overlaps, compute, sync, transfer)
    }

    /// Seconds for each micro-batch if memory were no matter.
    pub(crate) fn least(&self, start: usize, end: usize, place: &Place) -> f64 {
        self.seconds_with(start, end, place, 0.0)
    }

    fn parts(&self, start: usize, end: usize, place: &Place, again: f64) -> (f64, f64, f64) {
        let replicas = place.run.count as f64;
        let work = self.states.work[end] - self.states.work[start];
        let (sync, update) = match self.rules.is_asynchronous {
            true => {
                let every = place.run.count.max(self.period) as f64;
                let touched = self.parameters(start, end) * self.problem.training.touched();
                let sharers = if self.shares_updates { replicas } else { 1.0 };
                let update = touched / place.memory_bandwidth / sharers * (replicas / every);
                (self.all_reduce(start, end, place) / every, update)
            }
            false => (0.0, 0.0),
        };
        let compute = (work / place.speed + again + update) / replicas;
        let compute = if self.waits_for_sums { compute + sync } else { compute };
        (compute, sync, self.transfer(start, end, place))
    }

    /// Scores a stage; `None` where it does not fit.
    pub(crate) fn score(&self, start: usize, end: usize, run: Run, behind: usize) -> Option<StageScore> {
        let place = self.place(run);
        let cut = Cut { start, end, run, behind };
        let again = self.again_within(&cut, place.limit)?;
        Some(self.scored(&cut, again, place.limit))
    }

    /// Makes the score of a stage of which it is known what is computed again.
    pub(crate) fn scored(&self, cut: &Cut, again: Again, limit: f64) -> StageScore {
        let place = self.place(cut.run);
        let (compute, sync, transfer) = self.parts(cut.start, cut.end, &place, again.seconds);
        let mut score = StageScore {
            seconds: 0.0,
            compute,
            again: again.seconds / cut.run.count as f64,
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
