//! Between solutions and `plan.yaml`: writes one, and scores one that somebody edited.

use std::collections::{HashMap, HashSet};

use schema::{
    Bytes, Cluster, DeviceMemory, Execution, LayerCost, ModelReference, PLAN_VERSION, Plan, PlanStage,
    PlanTie, Predicted, RecomputeUnit, Seconds, StageCost, Transfer,
};
use simulator::order::Schedule;

use crate::{
    Objective, Problem, Solution, SolutionStage,
    placed::{Placed, score_placed},
    serving,
    stage::Run,
    states::States,
    strategy::PlanError,
};

/// Why a plan does not go with a model and a cluster.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum CheckError {
    /// A block of another model.
    #[error("stage {stage}: the model has no block `{block}`")]
    UnknownBlock {
        /// The stage.
        stage: usize,
        /// The block.
        block: String,
    },
    /// A block in two stages.
    #[error("stage {stage}: block `{block}` is in an earlier stage already")]
    Twice {
        /// The stage.
        stage: usize,
        /// The block.
        block: String,
    },
    /// Blocks in no stage.
    #[error("{} of the model's blocks are in no stage: {}", .0.len(), .0.join(", "))]
    Missing(Vec<String>),
    /// A stage that needs a later one.
    #[error("stage {stage}: block `{block}` needs `{needs}`, which is in stage {later}")]
    Backwards {
        /// The stage.
        stage: usize,
        /// The block.
        block: String,
        /// What it needs.
        needs: String,
        /// Where that is.
        later: usize,
    },
    /// A stage without blocks or devices.
    #[error("stage {stage} has no {what}")]
    Empty {
        /// The stage.
        stage: usize,
        /// `blocks` or `devices`.
        what: &'static str,
    },
    /// A device of another cluster.
    #[error("stage {stage}: the cluster has no device `{device}`")]
    UnknownDevice {
        /// The stage.
        stage: usize,
        /// The device.
        device: String,
    },
    /// A block computed again or offloaded where it is not.
    #[error(
        "stage {stage}: `{block}` is to be computed again or offloaded, but is none of the stage's blocks"
    )]
    NotInStage {
        /// The stage.
        stage: usize,
        /// The block.
        block: String,
    },
    /// A block that is thrown away and kept.
    #[error("stage {stage}: block `{block}` is to be both computed again and offloaded")]
    Both {
        /// The stage.
        stage: usize,
        /// The block.
        block: String,
    },
    /// A stage whose layers are cut across devices, which no cost of a block tells.
    #[error("stage {stage} is tensor parallel; costs of blocks do not tell what that takes")]
    TensorParallel {
        /// The stage.
        stage: usize,
    },
    /// A stage that is computed again as one, but for some of it.
    #[error(
        "stage {stage}: recompute_unit `stage` needs all of its blocks under `recompute`, and none under `offload`"
    )]
    PartOfUnit {
        /// The stage.
        stage: usize,
    },
    /// Stages that share devices in a way no schedule of ours runs.
    #[error("stage {stage}: its devices are shared with other stages in part, or with stages out of turn")]
    Sharing {
        /// The stage.
        stage: usize,
    },
    /// A schedule that we do not know.
    #[error("{0}")]
    Schedule(String),
    /// Scored, and it does not fit.
    #[error(transparent)]
    Plan(#[from] PlanError),
}

/// Makes the file of a solution.
pub fn to_plan(
    problem: &Problem,
    solution: &Solution,
    cluster: &Cluster,
    model: ModelReference,
    written_by: &str,
) -> Plan {
    let paths = |&block: &usize| problem.blocks[block].paths().cloned();
    let device = |device: usize| problem.machine.devices[device].name.clone();
    let order: Vec<usize> = solution.stages.iter().flat_map(|stage| stage.blocks.iter().copied()).collect();
    let states = States::line(problem, order);
    // A stage is as fast as the slowest of its devices.
    let slowest = |stage: &SolutionStage| {
        let speeds = solution.devices(stage).map(|device| problem.machine.devices[device].speed);
        speeds.fold(f64::INFINITY, f64::min)
    };
    let mut cuts = vec![0];
    for stage in &solution.stages {
        cuts.push(cuts[cuts.len() - 1] + stage.blocks.len());
    }
    let flow = Flow::new(problem);
    let stages = solution.stages.iter().map(|stage| PlanStage {
        blocks: stage.blocks.iter().flat_map(paths).collect(),
        devices: solution.devices(stage).map(device).collect(),
        recompute: stage.score.recompute.iter().flat_map(paths).collect(),
        recompute_unit: stage.score.recompute_unit,
        offload: stage.score.offload.iter().flat_map(paths).collect(),
        tensor_parallel: None,
        layers: layers(problem, &flow, stage, slowest(stage)),
        cost: stage_cost(problem, &flow, stage, slowest(stage)),
        band: None,
    });
    // A skip is handed on by every stage that it crosses.
    let transfers = (1..solution.stages.len()).map(|stage| Transfer {
        from: stage as u32 - 1,
        to: stage as u32,
        forward: Bytes(states.crossing[cuts[stage]] as u64),
        backward: Bytes(states.crossing_back[cuts[stage]] as u64),
    });
    let ties = problem.ties.iter().filter_map(|tie| {
        let holds = |stage: &SolutionStage| tie.blocks.iter().any(|block| stage.blocks.contains(block));
        let stages = (0..solution.stages.len()).filter(|&stage| holds(&solution.stages[stage]));
        let stages: Vec<u32> = stages.map(|stage| stage as u32).collect();
        (stages.len() > 1).then_some(PlanTie { stages, parameters: tie.parameters })
    });
    let peaks = solution.held(problem.machine.devices.len());
    let memory = problem.machine.devices.iter().zip(&peaks).map(|(device, &peak)| DeviceMemory {
        device: device.name.clone(),
        peak: Bytes(peak.round() as u64),
        limit: device.memory,
    });
    let offload = solution.execution.offload.filter(|_| solution.offloads());
    let blocking_sends = (!problem.machine.overlaps).then_some(true);
    let execution = Execution { offload, blocking_sends, ..solution.execution };
    let (step, period) = match solution.objective {
        Objective::Step(seconds) => (Some(Seconds(seconds)), None),
        Objective::Period(seconds) => (None, Some(Seconds(seconds))),
    };
    Plan {
        kind: "plan".to_string(),
        version: PLAN_VERSION,
        written_by: written_by.to_string(),
        model,
        cluster: cluster.clone(),
        strategy: solution.strategy.to_string(),
        schedule: solution.schedule.to_string(),
        micro_batches: solution.micro_batches,
        micro_batch_size: None,
        stages: stages.collect(),
        transfers: transfers.collect(),
        cuts: indexmap::IndexMap::new(),
        inference: problem.training.inference,
        constraints: None,
        ties: ties.collect(),
        execution: (execution != Execution::default()).then_some(execution),
        predicted: Predicted {
            step,
            period,
            lower_bound: Some(Seconds(solution.lower_bound)),
            bubble: solution.bubble,
            memory: memory.collect(),
            ..Predicted::default()
        },
    }
}

/// Bytes of one micro-batch by block: what it makes for others to be trained by, and all that it takes.
struct Flow {
    made: Vec<u64>,
    taken: Vec<u64>,
}

impl Flow {
    fn new(problem: &Problem) -> Self {
        let n_blocks = problem.blocks.len();
        let mut flow = Self { made: vec![0; n_blocks], taken: vec![0; n_blocks] };
        for value in &problem.values {
            if let Some(from) = value.from.filter(|_| value.backward.0 > 0) {
                flow.made[from] = flow.made[from].saturating_add(value.forward.0);
            }
            value.to.iter().for_each(|&to| flow.taken[to] = flow.taken[to].saturating_add(value.forward.0));
        }
        flow
    }
}

/// The layers of a stage on several devices: when each block's gradients exist, and what it makes.
///
/// Parameters of several blocks are with the first of them. A stage on one device has nobody to exchange with, and one that is not
/// trained nothing.
fn layers(problem: &Problem, flow: &Flow, stage: &SolutionStage, speed: f64) -> Vec<LayerCost> {
    if stage.run.count < 2 || problem.training.inference.is_some() {
        return Vec::new();
    }
    let mut tied: HashMap<usize, u64> = HashMap::new();
    for tie in &problem.ties {
        if let Some(first) = stage.blocks.iter().find(|block| tie.blocks.contains(block)) {
            *tied.entry(*first).or_default() += tie.parameters.0;
        }
    }
    let recomputed: HashSet<usize> = stage.score.recompute.iter().copied().collect();
    let layer = |&index: &usize| {
        let block = &problem.blocks[index];
        let again = if recomputed.contains(&index) { block.forward.0 } else { 0.0 };
        LayerCost {
            forward: Seconds(block.forward.0 / speed),
            backward: Seconds((block.input_gradient.0 + block.weight_gradient.0 + again) / speed),
            gradients: Bytes(block.parameters.0 + tied.get(&index).copied().unwrap_or(0)),
            output: Bytes(flow.made[index]),
        }
    };
    stage.blocks.iter().map(layer).collect()
}

/// Costs of one micro-batch on one replica.
fn stage_cost(problem: &Problem, flow: &Flow, stage: &SolutionStage, speed: f64) -> StageCost {
    let sum = |field: &dyn Fn(&crate::Block) -> f64| {
        stage.blocks.iter().map(|&block| field(&problem.blocks[block])).sum::<f64>()
    };
    let bytes = |field: &dyn Fn(&crate::Block) -> u64| {
        Bytes(stage.blocks.iter().map(|&block| field(&problem.blocks[block])).sum())
    };
    let forward_again: f64 = stage.score.recompute.iter().map(|&block| problem.blocks[block].forward.0).sum();
    let gone: HashSet<usize> = stage.score.recompute.iter().chain(&stage.score.offload).copied().collect();
    let offloaded: u64 = stage.score.offload.iter().map(|&block| problem.blocks[block].activations.0).sum();
    let held = stage.blocks.iter().filter(|block| !gone.contains(block));
    let ties: u64 = problem
        .ties
        .iter()
        .filter(|tie| tie.blocks.iter().any(|block| stage.blocks.contains(block)))
        .map(|tie| tie.parameters.0)
        .sum();
    let parameters = bytes(&|block| block.parameters.0) + Bytes(ties);
    let inputs = stage.score.recompute.iter().map(|&block| flow.taken[block] + problem.blocks[block].kept.0);
    let again = || stage.score.recompute.iter().map(|&block| problem.blocks[block].activations.0);
    let (inputs, recomputed): (u64, u64) = match stage.score.recompute_unit {
        RecomputeUnit::Block => (inputs.sum(), again().max().unwrap_or(0)),
        RecomputeUnit::Stage => (given(problem, stage), again().sum()),
    };
    StageCost {
        forward: Seconds(sum(&|block| block.forward.0) / speed),
        input_gradient: Seconds((sum(&|block| block.input_gradient.0) + forward_again) / speed),
        weight_gradient: Seconds(sum(&|block| block.weight_gradient.0) / speed),
        parameters,
        optimizer: Bytes((parameters.0 as f64 * problem.training.optimizer_factor) as u64),
        activations: Bytes(
            held.map(|&block| problem.blocks[block].activations.0).sum::<u64>() + inputs + offloaded,
        ),
        workspace: Bytes(
            stage.blocks.iter().map(|&block| problem.blocks[block].workspace.0).max().unwrap_or(0),
        ),
        recomputed: Bytes(recomputed),
        offloaded: Bytes(offloaded),
    }
}

/// Bytes of one micro-batch that a stage is given, each value once, and that its blocks keep whatever is computed again.
fn given(problem: &Problem, stage: &SolutionStage) -> u64 {
    let own: HashSet<usize> = stage.blocks.iter().copied().collect();
    let is_given = |value: &&crate::Value| {
        value.from.is_none_or(|from| !own.contains(&from)) && value.to.iter().any(|to| own.contains(to))
    };
    let values: u64 = problem.values.iter().filter(is_given).map(|value| value.forward.0).sum();
    values + stage.blocks.iter().map(|&block| problem.blocks[block].kept.0).sum::<u64>()
}

/// Scores a plan as it stands in a file, by the objective that planning uses.
///
/// Blocks, devices, what is computed again or offloaded, and how the plan is carried out are taken as the file has them.
///
/// # Errors
/// When blocks or devices do not go with the problem, a stage needs a later one, or a stage does not fit.
pub fn check_plan(problem: &Problem, plan: &Plan) -> Result<Solution, CheckError> {
    let all = problem.blocks.iter().enumerate();
    let blocks: HashMap<&str, usize> =
        all.flat_map(|(index, block)| block.paths().map(move |path| (path.as_str(), index))).collect();
    let devices: HashMap<&str, usize> = problem
        .machine
        .devices
        .iter()
        .enumerate()
        .map(|(index, device)| (device.name.as_str(), index))
        .collect();
    let mut stage_of = vec![None; problem.blocks.len()];
    let mut named = HashSet::new();
    let mut placed = Vec::with_capacity(plan.stages.len());
    for (index, stage) in plan.stages.iter().enumerate() {
        if stage.blocks.is_empty() || stage.devices.is_empty() {
            let what = if stage.blocks.is_empty() { "blocks" } else { "devices" };
            return Err(CheckError::Empty { stage: index, what });
        }
        if stage.tensor_parallel.is_some() {
            return Err(CheckError::TensorParallel { stage: index });
        }
        let mut own = Vec::with_capacity(stage.blocks.len());
        for block in &stage.blocks {
            let unknown = || CheckError::UnknownBlock { stage: index, block: block.clone() };
            let position = *blocks.get(block.as_str()).ok_or_else(unknown)?;
            let is_twice = !named.insert(block);
            let is_parted = stage_of[position].replace(index).is_some_and(|before| before != index);
            if is_twice || is_parted {
                return Err(CheckError::Twice { stage: index, block: block.clone() });
            }
            own.push(position);
        }
        own.sort_unstable();
        own.dedup();
        let find = |device: &String| {
            let unknown = || CheckError::UnknownDevice { stage: index, device: device.clone() };
            devices.get(device.as_str()).copied().ok_or_else(unknown)
        };
        let devices = stage.devices.iter().map(find).collect::<Result<Vec<usize>, _>>()?;
        let own_blocks = |named: &[String]| {
            let of = |block: &String| {
                let position = blocks.get(block.as_str()).copied().filter(|block| own.contains(block));
                position.ok_or_else(|| CheckError::NotInStage { stage: index, block: block.clone() })
            };
            // Blocks that are one for the planner are listed one by one.
            let all = named.iter().map(of).collect::<Result<Vec<usize>, CheckError>>();
            all.map(|mut all| {
                all.dedup();
                all
            })
        };
        let recompute = own_blocks(&stage.recompute)?;
        let offload = own_blocks(&stage.offload)?;
        if let Some(&both) = recompute.iter().find(|block| offload.contains(block)) {
            return Err(CheckError::Both { stage: index, block: problem.blocks[both].path.clone() });
        }
        let unit = stage.recompute_unit;
        let all = own.iter().all(|block| recompute.contains(block));
        if unit == RecomputeUnit::Stage && !(all && offload.is_empty()) {
            return Err(CheckError::PartOfUnit { stage: index });
        }
        placed.push(Placed { blocks: own, devices, recompute, unit, offload });
    }
    let missing: Vec<String> = (0..stage_of.len())
        .filter(|&block| stage_of[block].is_none())
        .map(|block| problem.blocks[block].path.clone())
        .collect();
    if !missing.is_empty() {
        return Err(CheckError::Missing(missing));
    }
    for value in &problem.values {
        let Some(from) = value.from else { continue };
        for &to in &value.to {
            if let (Some(later), Some(stage)) = (stage_of[from], stage_of[to])
                && later > stage
            {
                let path = |block: usize| problem.blocks[block].path.clone();
                return Err(CheckError::Backwards { stage, block: path(to), needs: path(from), later });
            }
        }
    }
    // Stages share devices in turns: stage s runs where stage s-p does, or all run on their own.
    let n_ranks = placed.iter().skip(1).position(|stage| stage.devices == placed[0].devices);
    let n_ranks = n_ranks.map_or(placed.len(), |position| position + 1);
    let mut seen = vec![false; problem.machine.devices.len()];
    for (index, stage) in placed.iter().enumerate() {
        let in_turn = match index.checked_sub(n_ranks) {
            Some(before) => placed[before].devices == stage.devices,
            None => stage.devices.iter().all(|&device| !std::mem::replace(&mut seen[device], true)),
        };
        let is_even = placed.len() % n_ranks == 0
            && (n_ranks == placed.len() || stage.devices.len() == placed[0].devices.len());
        if !in_turn || !is_even {
            return Err(CheckError::Sharing { stage: index });
        }
    }
    if let Some(aim) = problem.training.inference {
        let solution = serving::score_placed(problem, &placed, n_ranks, plan.micro_batches, aim)?;
        return Ok(solution);
    }
    let schedule =
        Schedule::from_name(&plan.schedule).map_err(|error| CheckError::Schedule(error.to_string()))?;
    let execution = plan.execution.unwrap_or_default();
    let mut solution = score_placed(problem, &placed, n_ranks, schedule, plan.micro_batches, execution)?;
    // Devices as the file has them, one run after the other; further turns are on those of the first.
    let ranks = &placed[..n_ranks];
    solution.order = ranks.iter().flat_map(|stage| stage.devices.iter().copied()).collect();
    let mut first = 0;
    for (stage, placed) in solution.stages.iter_mut().zip(&placed) {
        stage.run = Run { first, count: placed.devices.len(), stride: 1 };
        first = (first + placed.devices.len()) % solution.order.len();
    }
    Ok(solution)
}
