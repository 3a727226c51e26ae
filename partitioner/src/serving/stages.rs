//! Stages of the forward pass alone: their memory, their time, and plans of them.
//!
//! Memory: parameters, keys and values of all micro-batches in flight (`Block::activations` holds nothing else here), the tensors
//! alive while the fullest operator runs (`Block::workspace`), values in transfer. All micro-batches may wait in front of one
//! stage, so each stage has room for the inputs of all.

use schema::{Execution, InferenceObjective};
use simulator::order::{InFlight, Schedule};

use crate::{
    dag::cut_states::States,
    error::PlanError,
    problem::{MicroBatches, Problem},
    solution::{MadeBy, Objective, Solution, SolutionStage},
    stage::{
        memory_plan::MemoryPlan,
        place::Neighbours,
        run::Run,
        score::{Rules, StageScore},
        scorer::Scorer,
    },
};

/// Share by which a plan must be faster to replace another.
pub(crate) const ROUNDING: f64 = 1e-12;

/// Devices up to which copies that leave some of them out are tried where devices differ.
pub(crate) const FEW_DEVICES: usize = 64;

pub(crate) struct Solver<'a> {
    pub(crate) problem: &'a Problem,
    pub(crate) states: &'a States,
    /// States at which stages may begin and end.
    pub(crate) borders: Vec<usize>,
    /// Most bytes that a link takes in before the first of them arrives.
    pub(crate) on_wires: f64,
    pub(crate) scorer: Scorer<'a>,
}

/// The memory of a stage's devices, and the micro-batches that it has to hold.
#[derive(Clone, Copy)]
pub(crate) struct Room {
    pub(crate) memory: f64,
    /// Micro-batches whose keys and values it holds.
    pub(crate) in_flight: f64,
}

impl<'a> Solver<'a> {
    pub(crate) fn new(problem: &'a Problem, states: &'a States) -> Self {
        let rules = Rules {
            is_asynchronous: false,
            in_flight: InFlight::UntilEnd(1),
            neighbours: Neighbours::Paired,
        };
        let last = states.len() - 1;
        let borders = match &problem.begins {
            Some(begins) => std::iter::once(0).chain(begins.iter().copied()).chain([last]).collect(),
            None => (0..=last).collect(),
        };
        let machine = &problem.machine;
        let levels = machine.levels.iter().chain(machine.links.iter().map(|(.., level)| level));
        let on_wires = levels.map(|level| level.latency.0 * level.bandwidth.0).fold(0.0, f64::max);
        Self { problem, states, borders, on_wires, scorer: Scorer::new(problem, states, rules) }
    }

    /// Returns the largest number of stages.
    pub(crate) fn most_stages(&self) -> usize {
        let working = self.problem.blocks.iter().filter(|block| block.forward.0 > 0.0).count().max(1);
        self.problem.machine.devices.len().min(working)
    }

    /// Returns the numbers of stages to try.
    pub(crate) fn stages(&self) -> Result<Vec<usize>, PlanError> {
        let wanted = self.problem.begins.as_ref().map(|begins| begins.len() + 1);
        let wanted = wanted.or(self.problem.training.stages.map(|stages| stages as usize));
        let (devices, blocks) = (self.problem.machine.devices.len(), self.problem.blocks.len());
        match wanted {
            None => Ok((1..=self.most_stages()).collect()),
            Some(stages) if stages > devices => Err(PlanError::TooFewDevices { stages, devices }),
            Some(stages) if stages > blocks => Err(PlanError::TooManyStages { stages, blocks }),
            Some(stages) => Ok(vec![stages]),
        }
    }

    /// Bytes of a stage at its fullest moment.
    pub(crate) fn memory(&self, start: usize, end: usize, in_flight: f64) -> f64 {
        let blocks = self.states.blocks(start, end);
        let workspace = blocks.iter().map(|&block| self.problem.blocks[block].workspace.0).max();
        self.resident(start, end, in_flight) + workspace.unwrap_or(0) as f64
    }

    /// The same without the tensors alive while an operator runs.
    pub(crate) fn resident(&self, start: usize, end: usize, in_flight: f64) -> f64 {
        let states = self.states;
        let caches = states.activations[end] - states.activations[start];
        let waiting = states.crossing[start] + caches;
        // One value is sent while the one before is still in transfer.
        let out = states.crossing[end];
        let sent = (2.0 * out + self.on_wires).min(in_flight * out);
        self.scorer.parameters(start, end) + waiting * in_flight + sent
    }

    pub(crate) fn fits(&self, start: usize, end: usize, room: Room) -> bool {
        let resident = self.resident(start, end, room.in_flight);
        resident <= room.memory
            && (resident + self.scorer.bytes.largest_workspace <= room.memory
                || self.memory(start, end, room.in_flight) <= room.memory)
    }

    /// Returns the latency that a stage waits for each micro-batch it sends, beside the transfer itself.
    pub(crate) fn sending(&self, run: Run) -> f64 {
        let machine = &self.problem.machine;
        if machine.overlaps {
            return 0.0;
        }
        let latency = |device: usize| {
            let next = Some(device + run.step()).filter(|next| *next < machine.devices.len());
            next.and_then(|next| machine.level(device, next)).map_or(0.0, |level| level.latency.0)
        };
        run.devices().map(latency).fold(0.0, f64::max) / run.count as f64
    }

    pub(crate) fn work(&self, start: usize, end: usize) -> f64 {
        self.states.work[end] - self.states.work[start]
    }

    /// Tells whether there is work between two states, or none in the whole model.
    pub(crate) fn is_stage(&self, start: usize, end: usize) -> bool {
        let total = self.states.work[self.states.len() - 1];
        (self.work(start, end) > 0.0 || total == 0.0 || self.problem.begins.is_some())
            && self.states.is_before(start, end)
    }

    /// Makes a plan of cuts.
    pub(crate) fn solution(
        &self,
        cuts: &[(usize, usize, Run)],
        in_flight: usize,
        objective: Objective,
        micro_batches: usize,
    ) -> Solution {
        let stage = |&(start, end, run): &(usize, usize, Run)| {
            let blocks = self.states.blocks(start, end);
            SolutionStage { blocks, run, score: self.score(start, end, run, in_flight) }
        };
        let stages: Vec<SolutionStage> = cuts.iter().map(stage).collect();
        solution(stages, objective, micro_batches)
    }

    pub(crate) fn score(&self, start: usize, end: usize, run: Run, in_flight: usize) -> StageScore {
        let costs = self.scorer.on(run, 0);
        let plan = MemoryPlan::nothing(self.memory(start, end, in_flight as f64));
        let mut score = costs.scored(start, end, plan, costs.place.limit);
        if end + 1 < self.states.len() {
            score.transfer += self.sending(run);
            score.settle(self.problem.machine.overlaps);
        }
        score
    }
}

/// Returns the given number of micro-batches in flight, of all copies together.
pub(crate) fn given(problem: &Problem) -> Option<usize> {
    match problem.training.micro_batches {
        MicroBatches::Enough => None,
        MicroBatches::About(count) | MicroBatches::Exactly(count) => Some(count as usize),
    }
}

pub(crate) fn solution(stages: Vec<SolutionStage>, objective: Objective, micro_batches: usize) -> Solution {
    let (aim, schedule) = match objective {
        Objective::Period(_) => (InferenceObjective::Throughput, Schedule::GPipe),
        Objective::Step(_) => (InferenceObjective::Latency, Schedule::LayerParallel),
    };
    let mut solution = Solution {
        made_by: MadeBy::Inference(aim),
        schedule,
        micro_batches: micro_batches as u32,
        stages,
        execution: Execution::default(),
        objective,
        lower_bound: 0.0,
        bubble: None,
        order: Vec::new(),
        peaks: None,
    };
    solution.lower_bound = solution.seconds();
    let devices = solution.stages.iter().map(|stage| stage.run.count).sum::<usize>() as f64;
    let busy = solution.stages.iter().map(|stage| stage.score.compute * stage.run.count as f64).sum::<f64>();
    let all = solution.seconds() * devices;
    if matches!(objective, Objective::Period(_)) && all > 0.0 {
        solution.bubble = Some((1.0 - busy / all).clamp(0.0, 1.0));
    }
    solution
}
