//! What a stage costs: its time for each micro-batch, what bounds that time, and its memory.
//!
//! With r replicas, each takes every r-th micro-batch, so compute is shared by r. The port of one device carries, each way,
//! the activations of one border and the gradients of the other: `max(f_out/b + g_in/b', f_in/b' + g_out/b)/r`.
//! Where transfers are not beside compute, sending takes the device's own time and receiving none.
//! Replicas that synchronise after every round (asynchronous training) add an all-reduce and the optimizer's step, once for r micro-batches. Overlapping machines take the largest of the three, others the sum:
//! the last bucket of gradients, behind which nothing hides, is the simulator's to time.
//!
//! Memory is in `again`.

use std::{cell::RefCell, collections::HashMap};

use crate::{Problem, again::Again, collective::Group, pipeline::Cut, states::States};

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

/// Scores stages of one problem over one list of states.
pub(crate) struct Scorer<'a> {
    pub(crate) problem: &'a Problem,
    pub(crate) states: &'a States,
    pub(crate) rules: Rules,
    /// Bytes that each block takes in.
    pub(crate) inputs: Vec<f64>,
    /// Bytes of the largest workspace of any block.
    pub(crate) largest_workspace: f64,
    pub(crate) picks: RefCell<HashMap<PickKey, Option<Again>>>,
    /// Micro-batches of an offloaded block that are on the device at once: one where copies wait for each other.
    pub(crate) copies: usize,
    /// Whether memory is to be counted from below: a stage that does not fit then fits in no way.
    pub(crate) is_bound: bool,
    /// Whether a device's next pass waits for all of its gradients' sum, and not for the last bucket's alone.
    pub(crate) waits_for_sums: bool,
    /// Replicas of the stage before, by a stage's first device, where they are known.
    pub(crate) before: HashMap<usize, usize>,
}

/// States, micro-batches in flight, and limit, speed, fixed memory and host bandwidth to the bit.
type PickKey = (usize, usize, usize, [u64; 4]);

impl<'a> Scorer<'a> {
    pub(crate) fn new(problem: &'a Problem, states: &'a States, rules: Rules) -> Self {
        let mut inputs = vec![0.0; problem.blocks.len()];
        for value in &problem.values {
            value.to.iter().for_each(|&to| inputs[to] += value.forward.0 as f64);
        }
        let workspace = problem.blocks.iter().map(|block| block.workspace.0).max();
        Self {
            problem,
            states,
            rules,
            inputs,
            largest_workspace: workspace.unwrap_or(0) as f64,
            picks: RefCell::default(),
            copies: 1,
            is_bound: false,
            waits_for_sums: false,
            before: HashMap::new(),
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

    /// Seconds of one all-reduce over the replicas.
    pub(crate) fn all_reduce(&self, start: usize, end: usize, run: Run) -> f64 {
        let devices: Vec<usize> = run.devices().collect();
        let group = Group::of(&self.problem.machine, &devices);
        let own = group.map_or(0.0, |group| group.all_reduce(self.parameters(start, end)));
        let shared = self.shared(start, end);
        if shared == 0.0 {
            return own;
        }
        // Who else holds them is not known yet: over the fastest link, as between two devices.
        own + shared * self.problem.machine.least_seconds_per_byte()
    }

    /// Seconds of the optimizer's step.
    fn update(&self, start: usize, end: usize, run: Run) -> f64 {
        let bandwidth = self.problem.machine.devices[run.first].memory_bandwidth.0;
        self.parameters(start, end) * self.problem.training.touched() / bandwidth
    }

    /// Bytes of parameters that a replica synchronises.
    pub(crate) fn synchronised(&self, start: usize, end: usize) -> f64 {
        self.parameters(start, end)
    }

    /// Seconds of the fuller direction of the port.
    fn transfer(&self, start: usize, end: usize, run: Run) -> f64 {
        let (states, machine) = (self.states, &self.problem.machine);
        let n_devices = machine.devices.len();
        // Seconds a byte and the level whose ports they take; none between turns on one device.
        let link = |one: Option<usize>, other: Option<usize>| match (one, other) {
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
        let (first, last) = (run.first, run.first + run.count - 1);
        let slowest = |links: &mut dyn Iterator<Item = (f64, usize)>| {
            links.fold((0.0, 0), |most, link| if link.0 > most.0 { link } else { most })
        };
        let is_first = start == 0;
        let is_last = end + 1 == states.len();
        let (f_in, g_in) =
            if is_first { (0.0, 0.0) } else { (states.crossing[start], states.crossing_back[start]) };
        let (f_out, g_out) =
            if is_last { (0.0, 0.0) } else { (states.crossing[end], states.crossing_back[end]) };
        // Beside compute, the fullest direction of a port counts; in a device's own time, all that it sends.
        let port = |(before, inner): (f64, usize), (after, outer): (f64, usize)| {
            let sum = |a: f64, b: f64| if inner == outer { a + b } else { a.max(b) };
            match machine.overlaps {
                true => sum(f_out * after, g_in * before).max(sum(f_in * before, g_out * after)),
                false => f_out * after + g_in * before,
            }
        };
        let seconds = match self.rules.neighbours {
            Neighbours::Adjacent => {
                port(link(first.checked_sub(1), Some(first)), link(Some(last), Some(last + 1)))
            }
            Neighbours::Wide => port(
                slowest(&mut run.devices().map(|device| link(first.checked_sub(1), Some(device)))),
                slowest(&mut (1..=run.count).map(|step| link(Some(last), Some(last + step)))),
            ),
            Neighbours::Fastest => {
                let fastest = machine.least_seconds_per_byte();
                // On several levels, two neighbours may be joined by ports of their own.
                let other = usize::from(machine.levels.len() > 1);
                port((fastest, 0), (fastest, other))
            }
            Neighbours::Paired => {
                let step = run.step();
                let of = |device: usize| {
                    port(
                        link(device.checked_sub(step), Some(device)),
                        link(Some(device), Some(device + step)),
                    )
                };
                run.devices().map(of).fold(0.0, f64::max)
            }
        };
        seconds / run.count as f64
    }

    /// Seconds for each micro-batch, infinite where the stage does not fit; anything that is no less where they are not below
    /// `bound`: what must be thrown away is not looked for then.
    pub(crate) fn seconds_below(&self, start: usize, end: usize, run: Run, behind: usize, bound: f64) -> f64 {
        let with = |again: f64| {
            let (compute, sync, transfer) = self.parts(start, end, run, again);
            total(self.problem.machine.overlaps, compute, sync, transfer)
        };
        let least = with(0.0);
        if least >= bound {
            return least;
        }
        match self.again(start, end, run, behind) {
            None => f64::INFINITY,
            Some((_, 0.0)) => least,
            Some((_, again)) => with(again),
        }
    }

    pub(crate) fn speed(&self, run: Run) -> f64 {
        run.devices().map(|device| self.problem.machine.devices[device].speed).fold(f64::INFINITY, f64::min)
    }

    fn parts(&self, start: usize, end: usize, run: Run, again: f64) -> (f64, f64, f64) {
        let replicas = run.count as f64;
        let work = self.states.work[end] - self.states.work[start];
        let (sync, update) = match self.rules.is_asynchronous {
            true => (self.all_reduce(start, end, run) / replicas, self.update(start, end, run)),
            false => (0.0, 0.0),
        };
        let compute = (work / self.speed(run) + again + update) / replicas;
        let compute = if self.waits_for_sums { compute + sync } else { compute };
        (compute, sync, self.transfer(start, end, run))
    }

    /// Scores a stage; `None` where it does not fit.
    pub(crate) fn score(&self, start: usize, end: usize, run: Run, behind: usize) -> Option<StageScore> {
        let in_flight = self.rules.in_flight.count(run.count, behind);
        let (fixed, limit) = self.fixed(start, end, run, in_flight);
        let cut = Cut { start, end, run, behind };
        let again = self.picked(&cut, (fixed, limit))?;
        Some(self.scored(&cut, again, limit))
    }

    /// Makes the score of a stage of which it is known what is computed again.
    pub(crate) fn scored(&self, cut: &Cut, again: Again, limit: f64) -> StageScore {
        let (compute, sync, transfer) = self.parts(cut.start, cut.end, cut.run, again.seconds);
        let mut score = StageScore {
            seconds: 0.0,
            compute,
            again: again.seconds / cut.run.count as f64,
            sync,
            transfer,
            memory: again.memory,
            limit,
            recompute: again.recompute,
            offload: again.offload,
            bound_by: BoundBy::Compute,
        };
        score.settle(self.problem.machine.overlaps);
        score
    }
}
