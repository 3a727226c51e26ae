//! The answer: stages with their costs, and how good it can be at best.

use schema::{Execution, InferenceObjective, ShardingLevel};
use simulator::order::Schedule;

use crate::{
    stage::{
        run::{Run, rank_of},
        score::StageScore,
    },
    strategy::Strategy,
};

/// A plan and how good it is.
#[derive(Clone, Debug, PartialEq)]
pub struct Solution {
    /// What made it.
    pub made_by: MadeBy,
    /// Schedule it runs under.
    pub schedule: Schedule,
    /// Micro-batches in a step.
    pub micro_batches: u32,
    /// Stages in the order of the model.
    pub stages: Vec<SolutionStage>,
    /// Execution options beyond the stages: how activations are offloaded, and options of a given plan that planning does not
    /// choose.
    pub execution: Execution,
    /// The value of the objective.
    pub objective: Objective,
    /// Lower bound of the objective over all plans of this family.
    pub lower_bound: f64,
    /// Share of device time spent idle, for a step.
    pub bubble: Option<f64>,
    /// The order in which the machine's devices were taken: runs of stages are positions in it; empty for the machine's own.
    pub order: Vec<usize>,
    /// Peak bytes of each device, in the order of the machine that the plan was made for; `None` unless it was simulated as it
    /// stands.
    pub(crate) peaks: Option<Vec<f64>>,
}

/// What made a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MadeBy {
    /// The search of a strategy.
    Strategy(Strategy),
    /// The search for inference, which asks no strategy.
    Inference(InferenceObjective),
    /// Given by a user and scored as it is.
    AsGiven,
}

impl MadeBy {
    /// Returns the name, as plans and answers have it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Strategy(strategy) => strategy.name(),
            Self::Inference(InferenceObjective::Throughput) => "throughput",
            Self::Inference(InferenceObjective::Latency) => "latency",
            Self::AsGiven => "as given",
        }
    }

    /// Returns the strategy, if it was one.
    pub fn strategy(self) -> Option<Strategy> {
        match self {
            Self::Strategy(strategy) => Some(strategy),
            Self::Inference(_) | Self::AsGiven => None,
        }
    }
}

/// The number that a solver minimizes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Objective {
    /// Seconds for each micro-batch in steady state.
    Period(f64),
    /// Seconds of a step of all micro-batches.
    Step(f64),
}

/// One stage.
#[derive(Clone, Debug, PartialEq)]
pub struct SolutionStage {
    /// Positions of its blocks.
    pub blocks: Vec<usize>,
    /// Its devices.
    pub run: Run,
    /// What it costs.
    pub score: StageScore,
}

impl Solution {
    /// Returns the objective's seconds.
    pub fn seconds(&self) -> f64 {
        match self.objective {
            Objective::Period(seconds) | Objective::Step(seconds) => seconds,
        }
    }

    /// Returns the devices of a stage, as positions in the machine.
    pub fn devices<'a>(&'a self, stage: &SolutionStage) -> impl Iterator<Item = usize> + 'a {
        stage.run.devices().map(|position| self.order.get(position).copied().unwrap_or(position))
    }

    /// Returns the number of chunks on each device.
    pub fn chunks(&self) -> usize {
        let first = self.stages.first().map(|stage| stage.run);
        self.stages.iter().filter(|stage| Some(stage.run) == first).count().max(1)
    }

    /// Returns the bytes that each device holds, all stages on it together.
    pub fn held(&self, n_devices: usize) -> Vec<f64> {
        let mut held = vec![0.0; n_devices];
        for stage in &self.stages {
            self.devices(stage).for_each(|device| held[device] += stage.score.memory);
        }
        held
    }

    /// Tells whether memory may limit the plan: something is recomputed or offloaded, or a device is at least half full.
    pub(crate) fn is_tight(&self) -> bool {
        let chunks = self.chunks() as f64;
        self.stages.iter().any(|stage| {
            let score = &stage.score;
            let is_thrown = !score.recompute.is_empty() || !score.offload.is_empty();
            is_thrown || 2.0 * chunks * score.memory > score.limit
        })
    }

    /// Returns the strategy's name, and what replicas share out.
    pub fn title(&self) -> String {
        match self.sharding() {
            ShardingLevel::None => self.made_by.name().to_string(),
            level => format!("{} + {}", self.made_by.name(), self.shared_out(level)),
        }
    }

    /// Returns a level's name, and among how many replicas where those are not all of a stage.
    fn shared_out(&self, level: ShardingLevel) -> String {
        let group = self.execution.sharding_group.map(|group| format!(" in groups of {group}"));
        format!("{}{}", level.name(), group.unwrap_or_default())
    }

    /// Returns what replicas share out, where they do, as people read it.
    pub fn sharing(&self) -> Option<String> {
        Some(self.sharding())
            .filter(|level| *level != ShardingLevel::None)
            .map(|level| self.shared_out(level))
    }

    /// Returns what replicas share out.
    pub fn sharding(&self) -> ShardingLevel {
        self.execution.sharding.unwrap_or_default()
    }

    /// Tells whether activations of any stage wait in host memory.
    pub fn offloads(&self) -> bool {
        self.stages.iter().any(|stage| !stage.score.offload.is_empty())
    }

    /// Returns the seconds for each micro-batch, by which plans of all kinds compare.
    pub fn seconds_each(&self) -> f64 {
        self.seconds() / self.micro_batches_of_objective()
    }

    /// Returns the micro-batches that the objective's seconds are for.
    pub(crate) fn micro_batches_of_objective(&self) -> f64 {
        match self.objective {
            Objective::Period(_) => 1.0,
            Objective::Step(_) => f64::from(self.micro_batches),
        }
    }

    /// Returns the lower bound in seconds for each micro-batch.
    pub fn lower_bound_each(&self) -> f64 {
        self.lower_bound / self.micro_batches_of_objective()
    }

    /// Lowers the bound to that of a larger family of plans, in seconds for each micro-batch.
    pub fn bound_by(&mut self, seconds_each: f64) {
        self.lower_bound = self.lower_bound.min(seconds_each * self.micro_batches_of_objective());
    }

    /// Tells whether activations are recomputed or offloaded, which is chosen block by block.
    pub fn saves_memory(&self) -> bool {
        self.stages.iter().any(|stage| !stage.score.recompute.is_empty() || !stage.score.offload.is_empty())
    }

    /// Returns the optimality gap: how much better a plan of the family could be at most, as a share.
    pub fn gap(&self) -> f64 {
        let seconds = self.seconds();
        if seconds > 0.0 { ((seconds - self.lower_bound) / seconds).max(0.0) } else { 0.0 }
    }

    /// Tells whether the plan is proven optimal, rounding aside.
    pub fn is_optimal(&self) -> bool {
        self.gap() < 1e-9
    }
}

/// Gives each stage the memory that the others of its rank leave; an error names a rank that needs more than it has.
pub(crate) fn share_memory(
    stages: &mut [SolutionStage],
    schedule: Schedule,
    n_ranks: usize,
) -> Result<(), usize> {
    let rank_of = |stage: usize| rank_of(schedule, stage, n_ranks);
    let mut held = vec![0.0; n_ranks];
    stages.iter().enumerate().for_each(|(index, stage)| held[rank_of(index)] += stage.score.memory);
    if let Some(rank) = (0..n_ranks).find(|&rank| held[rank] > stages[rank].score.limit) {
        return Err(rank);
    }
    for (index, stage) in stages.iter_mut().enumerate() {
        stage.score.limit -= held[rank_of(index)] - stage.score.memory;
    }
    Ok(())
}
