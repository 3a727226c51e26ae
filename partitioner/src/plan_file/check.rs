//! Scores a `plan.yaml`, perhaps edited, by the objective that planning uses.

use std::collections::{HashMap, HashSet};

use schema::{Plan, PlanStage, RecomputeUnit};
use simulator::order::Schedule;

use crate::{
    Problem, Solution,
    error::PlanError,
    plan_file::{placed::GivenStage, score::score_placed},
    serving,
    stage::run::{Run, rank_of},
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
    /// A block recomputed or offloaded where it is not.
    #[error(
        "stage {stage}: `{block}` is to be computed again or offloaded, but is none of the stage's blocks"
    )]
    NotInStage {
        /// The stage.
        stage: usize,
        /// The block.
        block: String,
    },
    /// A block that is both recomputed and offloaded.
    #[error("stage {stage}: block `{block}` is to be both computed again and offloaded")]
    Both {
        /// The stage.
        stage: usize,
        /// The block.
        block: String,
    },
    /// A stage with tensor parallelism, which the costs of blocks do not tell.
    #[error("stage {stage} is tensor parallel; costs of blocks do not tell what that takes")]
    TensorParallel {
        /// The stage.
        stage: usize,
    },
    /// A stage with `recompute_unit: stage` of which some blocks are not recomputed, or are offloaded.
    #[error(
        "stage {stage}: recompute_unit `stage` needs all of its blocks under `recompute`, and none under `offload`"
    )]
    PartOfUnit {
        /// The stage.
        stage: usize,
    },
    /// A block that is to keep its dear results, and is not recomputed or has none.
    #[error(
        "stage {stage}: recompute_light names `{block}`, which is not under `recompute` or has no product whose result could be kept"
    )]
    NothingLight {
        /// The stage.
        stage: usize,
        /// The block.
        block: String,
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
    /// The plan does not fit, or cannot be scored.
    #[error(transparent)]
    Plan(#[from] PlanError),
}

/// Scores a plan as it stands in a file, by the objective that planning uses.
///
/// Blocks, devices, what is recomputed or offloaded, and how the plan is carried out are taken as the file has them.
///
/// # Errors
/// When blocks or devices do not go with the problem, a stage needs a later one, or a stage does not fit.
pub fn check_plan(problem: &Problem, plan: &Plan) -> Result<Solution, CheckError> {
    let placed = placed_stages(problem, plan)?;
    check_order(problem, &placed)?;
    if let Some(aim) = problem.training.inference {
        let n_ranks = ranks(problem, &placed, Schedule::OneForwardOneBackward)?;
        let solution = serving::score::score_placed(problem, &placed, n_ranks, plan.micro_batches, aim)?;
        return Ok(solution);
    }
    let schedule =
        Schedule::from_name(&plan.schedule).map_err(|error| CheckError::Schedule(error.to_string()))?;
    let n_ranks = ranks(problem, &placed, schedule)?;
    let execution = plan.execution.unwrap_or_default();
    let mut solution = score_placed(problem, &placed, n_ranks, schedule, plan.micro_batches, execution)?;
    // Device runs in the order of the stages; further chunks are on the same devices.
    let ranks = &placed[..n_ranks];
    solution.order = ranks.iter().flat_map(|stage| stage.devices.iter().copied()).collect();
    let mut first = 0;
    let run = |stage: &GivenStage| {
        let run = Run { first, count: stage.devices.len(), stride: 1 };
        first += run.count;
        run
    };
    let runs: Vec<Run> = ranks.iter().map(run).collect();
    for (index, stage) in solution.stages.iter_mut().enumerate() {
        stage.run = runs[rank_of(schedule, index, n_ranks)];
    }
    Ok(solution)
}

/// Finds the blocks and devices of each stage, each block in one of them.
fn placed_stages(problem: &Problem, plan: &Plan) -> Result<Vec<GivenStage>, CheckError> {
    let names = Names::of(problem);
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
            let position = *names.blocks.get(block.as_str()).ok_or_else(unknown)?;
            let is_twice = !named.insert(block);
            let is_parted = stage_of[position].replace(index).is_some_and(|before| before != index);
            if is_twice || is_parted {
                return Err(CheckError::Twice { stage: index, block: block.clone() });
            }
            own.push(position);
        }
        own.sort_unstable();
        own.dedup();
        placed.push(names.given(problem, (index, stage), own)?);
    }
    let missing: Vec<String> = (0..stage_of.len())
        .filter(|&block| stage_of[block].is_none())
        .map(|block| problem.blocks[block].path.clone())
        .collect();
    if missing.is_empty() { Ok(placed) } else { Err(CheckError::Missing(missing)) }
}

/// Positions of a problem's blocks and devices by name.
struct Names<'a> {
    blocks: HashMap<&'a str, usize>,
    devices: HashMap<&'a str, usize>,
}

impl<'a> Names<'a> {
    fn of(problem: &'a Problem) -> Self {
        let blocks = problem.blocks.iter().enumerate();
        let blocks = blocks.flat_map(|(index, block)| block.paths().map(move |path| (path.as_str(), index)));
        let devices = problem.machine.devices.iter().enumerate();
        Self {
            blocks: blocks.collect(),
            devices: devices.map(|(index, device)| (device.name.as_str(), index)).collect(),
        }
    }

    /// Returns a stage of these blocks: its devices, and what of it is recomputed and offloaded.
    fn given(
        &self,
        problem: &Problem,
        (index, stage): (usize, &PlanStage),
        own: Vec<usize>,
    ) -> Result<GivenStage, CheckError> {
        let find = |device: &String| {
            let unknown = || CheckError::UnknownDevice { stage: index, device: device.clone() };
            self.devices.get(device.as_str()).copied().ok_or_else(unknown)
        };
        let devices = stage.devices.iter().map(find).collect::<Result<Vec<usize>, _>>()?;
        let own_blocks = |named: &[String]| {
            let of = |block: &String| {
                let position = self.blocks.get(block.as_str()).copied().filter(|block| own.contains(block));
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
        let light = own_blocks(&stage.recompute_light)?;
        let has_rest = |block: &usize| recompute.contains(block) && problem.blocks[*block].light.is_some();
        if let Some(&other) = light.iter().find(|block| !has_rest(block)) {
            let block = problem.blocks[other].path.clone();
            return Err(CheckError::NothingLight { stage: index, block });
        }
        let unit = stage.recompute_unit;
        let all = own.iter().all(|block| recompute.contains(block));
        if unit == RecomputeUnit::Stage && !(all && offload.is_empty() && light.is_empty()) {
            return Err(CheckError::PartOfUnit { stage: index });
        }
        Ok(GivenStage { blocks: own, devices, recompute, light, unit, offload })
    }
}

/// Refuses a block that takes a value of a later stage.
fn check_order(problem: &Problem, placed: &[GivenStage]) -> Result<(), CheckError> {
    let mut stage_of = vec![0; problem.blocks.len()];
    for (index, stage) in placed.iter().enumerate() {
        stage.blocks.iter().for_each(|&block| stage_of[block] = index);
    }
    for value in &problem.values {
        let Some(from) = value.from else { continue };
        for &to in &value.to {
            let (later, stage) = (stage_of[from], stage_of[to]);
            if later > stage {
                let path = |block: usize| problem.blocks[block].path.clone();
                return Err(CheckError::Backwards { stage, block: path(to), needs: path(from), later });
            }
        }
    }
    Ok(())
}

/// Returns the number of ranks, as the schedule places chunks on them.
fn ranks(problem: &Problem, placed: &[GivenStage], schedule: Schedule) -> Result<usize, CheckError> {
    let last = placed.len() - 1;
    let n_ranks = if schedule.is_in_v() && last > 0 && placed[last].devices == placed[0].devices {
        placed.len().div_ceil(2)
    } else {
        let again = placed.iter().skip(1).position(|stage| stage.devices == placed[0].devices);
        again.map_or(placed.len(), |position| position + 1)
    };
    let is_even = placed.len().is_multiple_of(n_ranks);
    let mut seen = vec![false; problem.machine.devices.len()];
    for (index, stage) in placed.iter().enumerate() {
        let in_turn = match rank_of(schedule, index, n_ranks) {
            rank if rank < index => placed[rank].devices == stage.devices,
            _ => stage.devices.iter().all(|&device| !std::mem::replace(&mut seen[device], true)),
        };
        let is_alike = n_ranks == placed.len() || stage.devices.len() == placed[0].devices.len();
        if !in_turn || !is_even || !is_alike {
            return Err(CheckError::Sharing { stage: index });
        }
    }
    Ok(n_ranks)
}
