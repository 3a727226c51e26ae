//! The differences of two plans, and their effect.
//!
//! Times and memory of both come from the simulator, so that they are comparable whoever wrote the files.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use schema::{
    ANSWER_VERSION, Bytes, DiffAnswer, DiffDevice, DiffSide, KeptOtherwise, MovedBlock, Plan, SimulatedPlan,
    Timeline,
};

use super::run_of;
use crate::{columns::columns, commands::simulate, failure::Failure, plan_file};

/// Compares two plans, and returns their simulated steps.
pub(super) fn compare(paths: [&Path; 2]) -> Result<(DiffAnswer, [Timeline; 2]), Failure> {
    let [before, after] = [plan_file::read(paths[0])?, plan_file::read(paths[1])?];
    let simulate = |path: &Path, plan: &Plan| simulate::simulated(&path.display().to_string(), plan);
    let (old, new) = (simulate(paths[0], &before)?, simulate(paths[1], &after)?);
    let times = (old.0, new.0);
    let answer = DiffAnswer {
        schema_version: ANSWER_VERSION,
        before: side(paths[0], &before, &times.0),
        after: side(paths[1], &after, &times.1),
        is_same_model: before.model.digest == after.model.digest,
        is_same_cluster: before.cluster == after.cluster,
        time_change: each(&times.1) / each(&times.0) - 1.0,
        bubble_change: times.1.bubble - times.0.bubble,
        moved: moved(&before, &after),
        kept_otherwise: kept_otherwise(&before, &after),
        devices: devices(&times.0, &times.1),
    };
    Ok((answer, [old.1, new.1]))
}

/// Seconds per micro-batch: plans with different numbers of them do different work in a step.
fn each(simulated: &SimulatedPlan) -> f64 {
    simulated.step_seconds.0.max(f64::MIN_POSITIVE) / f64::from(simulated.micro_batches.max(1))
}

fn side(path: &Path, plan: &Plan, simulated: &SimulatedPlan) -> DiffSide {
    DiffSide {
        file: path.display().to_string(),
        model: plan.model.name.clone(),
        strategy: plan.strategy.clone(),
        schedule: plan.schedule.clone(),
        micro_batches: plan.micro_batches,
        stages: plan.stages.iter().map(|stage| stage.devices.clone()).collect(),
        step_seconds: simulated.step_seconds,
        micro_batch_seconds: schema::Seconds(each(simulated)),
        bubble: simulated.bubble,
    }
}

/// The stages of blocks, by the names of one plan.
struct Stages<'a>(BTreeMap<&'a str, u32>);

impl<'a> Stages<'a> {
    fn new(plan: &'a Plan) -> Self {
        let stages = plan.stages.iter().enumerate();
        Self(stages.flat_map(|(index, s)| s.blocks.iter().map(move |b| (b.as_str(), index as u32))).collect())
    }

    /// Returns the stage of a block, or of the block around it: plans may cut at different depths.
    fn of(&self, block: &str) -> Option<u32> {
        let mut path = block;
        loop {
            if let Some(stage) = self.0.get(path) {
                return Some(*stage);
            }
            path = &path[..path.rfind(['.', '/'])?];
        }
    }
}

/// Returns the blocks whose stage changes: the finest that either plan names, in the order of the model.
fn moved(before: &Plan, after: &Plan) -> Vec<MovedBlock> {
    let (old, new) = (Stages::new(before), Stages::new(after));
    let around: BTreeSet<&str> = old
        .0
        .keys()
        .chain(new.0.keys())
        .flat_map(|path| path.match_indices(['.', '/']).map(|(at, _)| &path[..at]))
        .collect();
    let mut seen = BTreeSet::new();
    let all = |plan: &'_ Plan| -> Vec<String> {
        plan.stages.iter().flat_map(|stage| stage.blocks.clone()).collect()
    };
    let mut moved = Vec::new();
    let mut last = (None, None);
    for block in all(before).into_iter().chain(all(after)) {
        // A block that the other plan divides is compared part by part.
        if around.contains(block.as_str()) || !seen.insert(block.clone()) {
            continue;
        }
        // An operator between calls that a plan does not name belongs to the stage of the preceding one.
        let is_loose = block.contains('/');
        let (before, after) = match (old.of(&block), new.of(&block)) {
            (before, after) if is_loose => (before.or(last.0), after.or(last.1)),
            both => both,
        };
        last = (before, after);
        if before != after {
            moved.push(MovedBlock { block, before, after });
        }
    }
    moved
}

fn kept_otherwise(before: &Plan, after: &Plan) -> Vec<KeptOtherwise> {
    let how = |plan: &Plan| -> BTreeMap<String, &'static str> {
        let again =
            plan.stages.iter().flat_map(|stage| &stage.recompute).map(|b| (b.clone(), "computed again"));
        let light = plan.stages.iter().flat_map(|stage| &stage.recompute_light);
        let light = light.map(|b| (b.clone(), "computed again but for products"));
        let host = plan.stages.iter().flat_map(|stage| &stage.offload).map(|b| (b.clone(), "in host memory"));
        again.chain(light).chain(host).collect()
    };
    let (old, new) = (how(before), how(after));
    let blocks: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    let of = |plan: &BTreeMap<String, &'static str>, block: &String| {
        plan.get(block).copied().unwrap_or("kept").to_string()
    };
    let changed = blocks.into_iter().map(|block| KeptOtherwise {
        block: block.clone(),
        before: of(&old, block),
        after: of(&new, block),
    });
    changed.filter(|kept| kept.before != kept.after).collect()
}

fn devices(before: &SimulatedPlan, after: &SimulatedPlan) -> Vec<DiffDevice> {
    let peaks = |simulated: &SimulatedPlan| -> BTreeMap<String, Bytes> {
        simulated.devices.iter().map(|device| (device.name.clone(), device.peak_memory_bytes)).collect()
    };
    let (old, new) = (peaks(before), peaks(after));
    let names: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    let device = |name: &String| DiffDevice {
        name: name.clone(),
        before: old.get(name).copied(),
        after: new.get(name).copied(),
    };
    names.into_iter().map(device).collect()
}

/// Returns the answer for people.
pub(super) fn text(answer: &DiffAnswer) -> String {
    let DiffAnswer { before, after, .. } = answer;
    let mut rows = vec![["".to_string(), before.file.clone(), after.file.clone(), String::new()]];
    let mut row = |name: &str, old: String, new: String, change: String| {
        rows.push([name.to_string(), old, new, change]);
    };
    row("strategy", before.strategy.clone(), after.strategy.clone(), String::new());
    row("schedule", before.schedule.clone(), after.schedule.clone(), String::new());
    row("stages", before.stages.len().to_string(), after.stages.len().to_string(), String::new());
    row("micro-batches", before.micro_batches.to_string(), after.micro_batches.to_string(), String::new());
    let share =
        |change: f64| if change.abs() < 5e-4 { String::new() } else { format!("{:+.1} %", 100.0 * change) };
    let ratio = after.step_seconds.0 / before.step_seconds.0.max(f64::MIN_POSITIVE) - 1.0;
    row("step", before.step_seconds.to_string(), after.step_seconds.to_string(), share(ratio));
    if before.micro_batches != after.micro_batches {
        row(
            "a micro-batch",
            before.micro_batch_seconds.to_string(),
            after.micro_batch_seconds.to_string(),
            share(answer.time_change),
        );
    }
    let percent = |share: f64| format!("{:.1} %", 100.0 * share);
    let points = if answer.bubble_change.abs() < 5e-4 {
        String::new()
    } else {
        format!("{:+.1} points", 100.0 * answer.bubble_change)
    };
    row("bubble", percent(before.bubble), percent(after.bubble), points);
    let shown = |bytes: Option<Bytes>| bytes.map_or_else(|| "–".to_string(), |bytes| bytes.to_string());
    for device in &answer.devices {
        let change = match (device.before, device.after) {
            (Some(old), Some(new)) if old.0 > 0 => share(new.0 as f64 / old.0 as f64 - 1.0),
            _ => String::new(),
        };
        row(&format!("memory of {}", device.name), shown(device.before), shown(device.after), change);
    }
    let mut text = columns(&rows, "", |_| false);
    if !answer.is_same_model {
        text.push_str(&format!(
            "\nnote: the plans are for different traces, `{}` and `{}`\n",
            before.model, after.model
        ));
    }
    if !answer.is_same_cluster {
        text.push_str("\nnote: the plans are for different clusters\n");
    }
    text.push_str(&moves(answer));
    text
}

/// Lists the blocks that move, neighbours with the same move on one line.
fn moves(answer: &DiffAnswer) -> String {
    if answer.moved.is_empty() && answer.kept_otherwise.is_empty() {
        return if answer.before.stages == answer.after.stages {
            "\nno block moves, and every stage has the same devices\n".to_string()
        } else {
            "\nno block moves between stages, but stages have other devices\n".to_string()
        };
    }
    let stage =
        |stage: Option<u32>| stage.map_or_else(|| "nowhere".to_string(), |stage| format!("stage {stage}"));
    let mut text = String::new();
    if !answer.moved.is_empty() {
        text.push_str("\nmoved\n");
    }
    for run in answer.moved.chunk_by(|a, b| (a.before, a.after) == (b.before, b.after)) {
        let names = run_of(run.iter().map(|moved| moved.block.as_str()));
        text.push_str(&format!("  {} → {}  {names}\n", stage(run[0].before), stage(run[0].after)));
    }
    if !answer.kept_otherwise.is_empty() {
        text.push_str("\nactivations\n");
    }
    for run in answer.kept_otherwise.chunk_by(|a, b| (&a.before, &a.after) == (&b.before, &b.after)) {
        let names = run_of(run.iter().map(|kept| kept.block.as_str()));
        text.push_str(&format!("  {} → {}  {names}\n", run[0].before, run[0].after));
    }
    text
}
