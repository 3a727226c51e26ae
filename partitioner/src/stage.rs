//! What a stage costs: its time for each micro-batch, what bounds that time, and its memory.
//!
//! With r replicas, each takes every r-th micro-batch, so compute is shared by r. The port of one device carries, each way,
//! the activations of one border and the gradients of the other: `max(f_out/b + g_in/b', f_in/b' + g_out/b)/r`.
//! Replicas that synchronise after every round (asynchronous training) add an all-reduce, once for r micro-batches. Overlapping machines take the largest of the three, others the sum.
//!
//! Memory: parameters with gradients and optimizer state, one more copy of the parameters for each older version in flight,
//! activations of the micro-batches in flight, the largest workspace, and a buffer for each border.

use std::{cell::RefCell, collections::HashMap};

use crate::{
    Problem,
    collective::Group,
    knapsack::{Choice, pick},
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
    /// As many as stages, wherever the stage is: zero-bubble keeps inputs until the weight gradient.
    Depth(u32),
}

impl InFlight {
    /// Returns the number for a stage of `replicas` with `behind` devices from it to the end.
    pub fn count(self, replicas: usize, behind: usize) -> usize {
        match self {
            Self::UntilEnd(most) => behind.div_ceil(replicas).min((most as usize).div_ceil(replicas)),
            Self::All(all) => (all as usize).div_ceil(replicas),
            Self::Depth(depth) => depth as usize,
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
    inputs: Vec<f64>,
    picks: RefCell<HashMap<PickKey, Option<Again>>>,
}

/// States, micro-batches in flight, and a mix of limit, speed and fixed memory.
type PickKey = (usize, usize, usize, u64);

/// What a stage throws away and computes or fetches again.
#[derive(Clone, Debug)]
struct Again {
    seconds: f64,
    memory: f64,
    recompute: Vec<usize>,
    offload: Vec<usize>,
}

impl<'a> Scorer<'a> {
    pub(crate) fn new(problem: &'a Problem, states: &'a States, rules: Rules) -> Self {
        let mut inputs = vec![0.0; problem.blocks.len()];
        for value in &problem.values {
            value.to.iter().for_each(|&to| inputs[to] += value.forward.0 as f64);
        }
        Self { problem, states, rules, inputs, picks: RefCell::default() }
    }

    fn parameters(&self, start: usize, end: usize) -> f64 {
        let mut bytes = self.states.parameters[end] - self.states.parameters[start];
        for tie in &self.problem.ties {
            if tie.blocks.iter().any(|&block| self.states.has_block(start, end, block)) {
                bytes += tie.parameters.0 as f64;
            }
        }
        bytes
    }

    /// Bytes of tied parameters that other stages hold as well.
    fn shared(&self, start: usize, end: usize) -> f64 {
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
        let all: Vec<usize> = (0..self.problem.machine.devices.len()).collect();
        own + self.problem.machine.slowest(&all).map_or(0.0, |level| shared / level.bandwidth.0)
    }

    /// Bytes of parameters that a replica synchronises.
    pub(crate) fn synchronised(&self, start: usize, end: usize) -> f64 {
        self.parameters(start, end)
    }

    /// Seconds of the fuller direction of the port.
    fn transfer(&self, start: usize, end: usize, run: Run) -> f64 {
        let (states, machine) = (self.states, &self.problem.machine);
        let n_devices = machine.devices.len();
        let link = |one: Option<usize>, other: Option<usize>| match (one, other) {
            (Some(one), Some(other)) if one < n_devices && other < n_devices => {
                machine.level(one, other).map_or(0.0, |level| 1.0 / level.bandwidth.0)
            }
            _ => 0.0,
        };
        let (first, last) = (run.first, run.first + run.count - 1);
        let slowest = |links: &mut dyn Iterator<Item = f64>| links.fold(0.0, f64::max);
        let (before, after) = match self.rules.neighbours {
            Neighbours::Adjacent => {
                (link(first.checked_sub(1), Some(first)), link(Some(last), Some(last + 1)))
            }
            Neighbours::Wide => (
                slowest(&mut run.devices().map(|device| link(first.checked_sub(1), Some(device)))),
                slowest(&mut (1..=run.count).map(|step| link(Some(last), Some(last + step)))),
            ),
            Neighbours::Fastest => {
                let fastest = machine.levels.iter().chain(machine.links.iter().map(|(.., level)| level));
                let fastest = fastest.map(|level| 1.0 / level.bandwidth.0).fold(f64::INFINITY, f64::min);
                if fastest.is_finite() { (fastest, fastest) } else { (0.0, 0.0) }
            }
            Neighbours::Paired => {
                let step = run.step();
                let before = |device: usize| link(device.checked_sub(step), Some(device));
                let after = |device: usize| link(Some(device), Some(device + step));
                (slowest(&mut run.devices().map(before)), slowest(&mut run.devices().map(after)))
            }
        };
        let is_first = start == 0;
        let is_last = end + 1 == states.len();
        let (f_in, g_in) =
            if is_first { (0.0, 0.0) } else { (states.crossing[start], states.crossing_back[start]) };
        let (f_out, g_out) =
            if is_last { (0.0, 0.0) } else { (states.crossing[end], states.crossing_back[end]) };
        let out = f_out * after + g_in * before;
        let into = f_in * before + g_out * after;
        out.max(into) / run.count as f64
    }

    /// Seconds for each micro-batch; infinite where the stage does not fit.
    pub(crate) fn seconds(&self, start: usize, end: usize, run: Run, behind: usize) -> f64 {
        let Some((_, seconds)) = self.again(start, end, run, behind) else { return f64::INFINITY };
        let (compute, sync, transfer) = self.parts(start, end, run, seconds);
        total(self.problem.machine.overlaps, compute, sync, transfer)
    }

    fn speed(&self, run: Run) -> f64 {
        run.devices().map(|device| self.problem.machine.devices[device].speed).fold(f64::INFINITY, f64::min)
    }

    fn parts(&self, start: usize, end: usize, run: Run, again: f64) -> (f64, f64, f64) {
        let replicas = run.count as f64;
        let work = self.states.work[end] - self.states.work[start];
        let compute = (work / self.speed(run) + again) / replicas;
        let sync = match self.rules.is_asynchronous {
            true => self.all_reduce(start, end, run) / replicas,
            false => 0.0,
        };
        (compute, sync, self.transfer(start, end, run))
    }

    /// Memory without activations, and the limit.
    fn fixed(&self, start: usize, end: usize, run: Run, in_flight: usize) -> (f64, f64) {
        let training = &self.problem.training;
        let parameters = self.parameters(start, end);
        let versions = if self.rules.is_asynchronous { in_flight as f64 - 1.0 } else { 0.0 };
        let copies = 1.0 + training.gradient_factor + training.optimizer_factor + versions;
        let borders = self.states.crossing[start] + self.states.crossing[end];
        let devices = run.devices().map(|device| self.problem.machine.devices[device].memory.0);
        (parameters * copies + borders, devices.min().unwrap_or(0) as f64)
    }

    /// Memory and seconds of what is computed again; `None` where nothing helps.
    fn again(&self, start: usize, end: usize, run: Run, behind: usize) -> Option<(f64, f64)> {
        let in_flight = self.rules.in_flight.count(run.count, behind);
        let (fixed, limit) = self.fixed(start, end, run, in_flight);
        let activations = (self.states.activations[end] - self.states.activations[start]) * in_flight as f64;
        // A bound that needs no list of blocks decides most stages.
        if fixed + activations + self.largest_workspace() <= limit {
            return Some((fixed + activations, 0.0));
        }
        if fixed > limit {
            return None;
        }
        let again = self.picked(start, end, run, in_flight)?;
        Some((again.memory, again.seconds))
    }

    fn largest_workspace(&self) -> f64 {
        self.problem.blocks.iter().map(|block| block.workspace.0).max().unwrap_or(0) as f64
    }

    fn picked(&self, start: usize, end: usize, run: Run, in_flight: usize) -> Option<Again> {
        let (fixed, limit) = self.fixed(start, end, run, in_flight);
        let speed = self.speed(run);
        let key = (
            start,
            end,
            in_flight,
            limit.to_bits() ^ speed.to_bits().rotate_left(7) ^ fixed.to_bits().rotate_left(17),
        );
        if let Some(known) = self.picks.borrow().get(&key) {
            return known.clone();
        }
        let again = self.pick_again(start, end, run, in_flight, fixed, limit, speed);
        self.picks.borrow_mut().insert(key, again.clone());
        again
    }

    #[allow(clippy::too_many_arguments)]
    fn pick_again(
        &self,
        start: usize,
        end: usize,
        run: Run,
        in_flight: usize,
        fixed: f64,
        limit: f64,
        speed: f64,
    ) -> Option<Again> {
        let training = &self.problem.training;
        let blocks = self.states.blocks(start, end);
        let flying = in_flight as f64;
        let workspace =
            blocks.iter().map(|&block| self.problem.blocks[block].workspace.0).max().unwrap_or(0) as f64;
        let all = blocks.iter().map(|&block| self.problem.blocks[block].activations.0 as f64).sum::<f64>();
        if fixed + workspace + all * flying <= limit {
            let memory = fixed + workspace + all * flying;
            return Some(Again { seconds: 0.0, memory, recompute: vec![], offload: vec![] });
        }
        let host = run.devices().map(|device| self.problem.machine.devices[device].host_bandwidth.0);
        let host = host.fold(f64::INFINITY, f64::min);
        // What is computed again exists once in full while its backward pass runs.
        let largest =
            blocks.iter().map(|&block| self.problem.blocks[block].activations.0).max().unwrap_or(0) as f64;
        let room = limit - fixed - workspace - largest;
        let mut kinds: Vec<Vec<u8>> = Vec::new();
        let items: Vec<Vec<Choice>> = blocks
            .iter()
            .map(|&index| {
                let block = &self.problem.blocks[index];
                let activations = block.activations.0 as f64;
                let mut choices = vec![Choice { time: 0.0, memory: activations * flying }];
                let mut kind = vec![0];
                if training.recompute && self.inputs[index] < activations {
                    choices
                        .push(Choice { time: block.forward.0 / speed, memory: self.inputs[index] * flying });
                    kind.push(1);
                }
                if training.offload && activations > 0.0 {
                    choices.push(Choice { time: 2.0 * activations / host, memory: 0.0 });
                    kind.push(2);
                }
                kinds.push(kind);
                choices
            })
            .collect();
        if room < 0.0 {
            return None;
        }
        let picked = pick(&items, room)?;
        let chosen = |wanted: u8| {
            let picks = blocks.iter().zip(&kinds).zip(&picked.choices);
            picks
                .filter(|((_, kind), choice)| kind[**choice] == wanted)
                .map(|((&block, _), _)| block)
                .collect()
        };
        let kept: f64 =
            items.iter().zip(&picked.choices).map(|(choices, &choice)| choices[choice].memory).sum();
        Some(Again {
            seconds: picked.time,
            memory: fixed + workspace + largest + kept,
            recompute: chosen(1),
            offload: chosen(2),
        })
    }

    /// Scores a stage; `None` where it does not fit.
    pub(crate) fn score(&self, start: usize, end: usize, run: Run, behind: usize) -> Option<StageScore> {
        let in_flight = self.rules.in_flight.count(run.count, behind);
        let (fixed, limit) = self.fixed(start, end, run, in_flight);
        let again = if fixed > limit { None } else { self.picked(start, end, run, in_flight) }?;
        let (compute, sync, transfer) = self.parts(start, end, run, again.seconds);
        let mut score = StageScore {
            seconds: 0.0,
            compute,
            again: again.seconds / run.count as f64,
            sync,
            transfer,
            memory: again.memory,
            limit,
            recompute: again.recompute,
            offload: again.offload,
            bound_by: BoundBy::Compute,
        };
        score.settle(self.problem.machine.overlaps);
        Some(score)
    }

    /// Returns the bytes a stage needs at the least, whatever is computed again.
    pub(crate) fn least_memory(&self, start: usize, end: usize, run: Run, behind: usize) -> f64 {
        let in_flight = self.rules.in_flight.count(run.count, behind);
        let (fixed, _) = self.fixed(start, end, run, in_flight);
        let blocks = self.states.blocks(start, end);
        let all: Vec<f64> =
            blocks.iter().map(|&block| self.problem.blocks[block].activations.0 as f64).collect();
        let workspace =
            blocks.iter().map(|&block| self.problem.blocks[block].workspace.0).max().unwrap_or(0) as f64;
        let whole = all.iter().sum::<f64>() * in_flight as f64;
        if !self.problem.training.recompute {
            return fixed + workspace + whole;
        }
        let kept = all.iter().zip(&blocks).map(|(all, &block)| all.min(self.inputs[block])).sum::<f64>();
        let largest = all.iter().copied().fold(0.0, f64::max);
        fixed + workspace + whole.min(kept * in_flight as f64 + largest)
    }
}
