//! Files next to the stages: the plan, its schedule in torch's format, the training script, exports.

use std::collections::{BTreeMap, BTreeSet};

use codegen::{
    Assignment, Content, Defaults, File, Launcher, Pipeline, Prediction, Ranks, Recomputed, Terms,
};
use cost_model::Rounding;
use schema::{CollectiveKind, OffloadMode, Plan, Predicted, Seconds, ShardingLevel, SyncOrder};
use tracer::Program;

use crate::{
    commands::plan::{CARRIED_OUT_SHARED, costs::is_without_flush},
    cost_models::rounding_of,
    kinds,
};

/// Returns all files outside `stages/`, and notes about files that could not be written. Launchers start `shards` ranks
/// per replica of a stage, which may each have a part of the samples and of the experts; `untrainable` says what no backward
/// pass gets through.
pub fn extras(
    program: &Program,
    assignment: &Assignment,
    pipeline: &Pipeline,
    plan: Option<&Plan>,
    (launchers, shards, expert_parallel): (&[Launcher], usize, usize),
    has_python: bool,
    untrainable: Option<&str>,
) -> (Vec<File>, Vec<String>) {
    let mut notes = Vec::new();
    let ranks_of = plan.map_or_else(|| (0..pipeline.stages.len()).collect(), Plan::ranks);
    let groups = replicas_of_ranks(plan, &ranks_of);
    let mut files = Vec::new();
    let equal = groups.windows(2).all(|pair| pair[0] == pair[1]);
    let is_endless = plan.is_some_and(|plan| is_without_flush(&plan.schedule));
    let drains = plan
        .filter(|_| is_endless)
        .and_then(|plan| needs_a_flush(plan, shares_parameters(pipeline), &groups, has_python));
    if let Some(plan) = plan {
        if let Some(reason) = drains {
            notes.push(format!(
                "train.py cannot run this {}, which keeps several weight versions and has no flush, because \
                 {reason}: it runs 1F1B with a flush after each step; gradients are exact, times differ from the plan's",
                plan.schedule
            ));
        }
        notes.extend(unexecuted(plan));
        notes.extend(refused_beside_a_copy(plan));
        notes.extend(refused_beside_shards(plan));
        if !has_python && slices(plan).is_some() {
            notes.push(
                "train.py does not send gradients of archives in slices: they go in buckets, as they are ready; times differ from the plan's"
                    .into(),
            );
        }
        files.push(File { path: "plan.yaml".into(), content: Content::text(schema::to_yaml(plan)) });
        match schedule(plan, &groups) {
            // A table cannot express steps without a flush.
            _ if is_endless && drains.is_none() => {}
            Ok(table) => files.push(File { path: "schedule.csv".into(), content: Content::text(table) }),
            Err(reason) => notes.push(format!("no schedule.csv: {reason}")),
        }
    }
    let has_table = files.iter().any(|file: &File| file.path == "schedule.csv");
    // Micro-batches are those of one pipeline; replicas and copies of the model divide the plan's among them.
    let pipelines = pipelines(&groups, plan);
    let micro_batches = plan.map(|plan| (plan.micro_batches / pipelines.max(1) as u32).max(1));
    let samples = plan.and_then(|plan| plan.micro_batch_size).or_else(|| samples(program));
    files.extend(codegen::exports(
        program,
        assignment,
        pipeline,
        &Terms {
            ranks: &ranks_of,
            replicas: &groups,
            shards,
            cuts: plan
                .iter()
                .flat_map(|plan| plan.cuts.iter().map(|(name, cut)| (name.as_str(), *cut)))
                .collect(),
            context_parallel: plan.and_then(|plan| plan.context_parallel).unwrap_or(1) as usize,
            expert_parallel,
            splits_operators: plan.is_some_and(|plan| !plan.operators.is_empty()),
            sequence_parallel: plan.and_then(|plan| plan.sequence_parallel),
            sharding: plan.and_then(|plan| plan.execution?.sharding).unwrap_or_default(),
            sharding_group: plan.and_then(|plan| plan.execution?.sharding_group).map(|count| count as usize),
            schedule: plan.map(|plan| plan.schedule.as_str()),
            has_table,
            micro_batches: micro_batches.map(|count| count as usize).zip(samples),
            is_inference: plan.is_some_and(|plan| plan.inference.is_some()),
            recomputed: plan.map(|plan| plan.stages.iter().map(recomputed).collect()).unwrap_or_default(),
        },
    ));
    let replicas = if groups.is_empty() || (equal && groups[0] == 1) { Vec::new() } else { groups.clone() };
    // Noted only for schedules that the script runs.
    let is_whole = |plan: &&Plan| {
        let is_sent = has_python || slices(plan).is_none();
        (plan.micro_batches as usize).is_multiple_of(pipelines.max(1))
            && unexecuted(plan).is_empty()
            && is_sent
    };
    let places = plan.and_then(|plan| placed(plan, &groups, &ranks_of));
    let (places, others) = places.into_iter().partition::<Vec<_>, _>(|table| ascends(table, pipelines));
    if !others.is_empty() {
        notes.push(
            "train.py numbers ranks replica by replica, which puts stages on other machines than the plan: times differ from the \
             plan's"
                .into(),
        );
    }
    files.extend(codegen::train_parts());
    files.push(codegen::train_script(&Defaults {
        micro_batches,
        micro_batch_size: plan.and_then(|plan| plan.micro_batch_size),
        replicas: &replicas,
        ranks: places.first().map_or(&[], Vec::as_slice),
        schedule: plan.map(|plan| if drains.is_some() { "1f1b" } else { plan.schedule.as_str() }),
        planned: plan.filter(|_| drains.is_some()).map(|plan| plan.schedule.as_str()),
        vertical_sync: plan.and_then(|plan| plan.execution?.vertical_sync).unwrap_or(false),
        sharding: plan.and_then(|plan| plan.execution?.sharding),
        sharding_group: plan.and_then(|plan| plan.execution?.sharding_group),
        sync: plan.and_then(slices).filter(|_| has_python),
        collective: plan.and_then(collective),
        offload: plan.and_then(offload),
        prediction: plan.filter(is_whole).and_then(prediction),
        untrainable,
        without_gradient: pipeline.stages.iter().map(codegen::Stage::without_gradient).collect(),
    }));
    let ranks = ranks(plan, groups.iter().sum::<usize>() * shards);
    files.extend(launchers.iter().map(|launcher| codegen::launch(*launcher, ranks)));
    (files, notes)
}

/// Returns the samples of the traced inputs: the first dimension of the first input that has one.
fn samples(program: &Program) -> Option<u64> {
    let recorded = program.recorded.as_ref()?;
    recorded.inputs.iter().find_map(|input| input.type_.shape.as_ref()?.first().copied())
}

/// Returns the replicas of each rank of a pipeline.
fn replicas_of_ranks(plan: Option<&Plan>, ranks_of: &[usize]) -> Vec<usize> {
    let mut groups = vec![1; ranks_of.iter().max().map_or(0, |last| last + 1)];
    for (stage, rank) in plan.iter().flat_map(|plan| &plan.stages).zip(ranks_of) {
        groups[*rank] = stage.replicas();
    }
    groups
}

/// Returns the rank of each replica of each pipeline rank, if the plan has them on other machines than numbering
/// replica by replica gives: launchers number ranks machine by machine.
fn placed(plan: &Plan, groups: &[usize], ranks_of: &[usize]) -> Option<Vec<Vec<usize>>> {
    let machine_of = |name: &String| {
        let device = plan.cluster.devices.iter().find(|device| device.name == *name);
        device.and_then(|device| device.place.first().copied()).unwrap_or(0)
    };
    let places: Vec<&Vec<String>> = (0..groups.len())
        .filter_map(|place| ranks_of.iter().position(|rank| *rank == place))
        .map(|stage| &plan.stages[stage].devices)
        .collect();
    let in_plan: BTreeSet<&String> = places.iter().copied().flatten().collect();
    let has_own = places.iter().zip(groups).all(|(devices, count)| devices.len() == *count);
    if places.len() != groups.len() || !has_own || in_plan.len() != groups.iter().sum::<usize>() {
        return None; // devices that share a stage, or have several places
    }
    let names = plan.cluster.devices.iter().map(|device| &device.name);
    let mut used: Vec<&String> = names.filter(|name| in_plan.contains(name)).collect();
    used.sort_by_key(|name| machine_of(name));
    let table: Vec<Vec<usize>> = places
        .iter()
        .map(|devices| devices.iter().filter_map(|name| used.iter().position(|one| *one == name)).collect())
        .collect();
    let is_equal = groups.windows(2).all(|pair| pair[0] == pair[1]);
    let counted = |place: usize, replica: usize| {
        if is_equal {
            replica * groups.len() + place
        } else {
            groups[..place].iter().sum::<usize>() + replica
        }
    };
    let is_counted = table.iter().enumerate().all(|(place, row)| {
        let same = |(replica, rank): (usize, &usize)| {
            machine_of(used[*rank]) == machine_of(used[counted(place, replica)])
        };
        row.iter().enumerate().all(same)
    });
    (!is_counted).then_some(table)
}

/// Tells whether every pipeline passes through its ranks in ascending order, as torch's stages do.
fn ascends(table: &[Vec<usize>], pipelines: usize) -> bool {
    (0..pipelines).all(|pipeline| {
        let ranks: Vec<usize> = table.iter().map(|row| row[pipeline % row.len()]).collect();
        ranks.windows(2).all(|pair| pair[0] < pair[1])
    })
}

/// Returns how many copies of the model a plan's schedule runs.
fn copies(plan: &Plan) -> usize {
    simulator::order::Schedule::from_name(&plan.schedule).map_or(1, |schedule| schedule.copies() as usize)
}

/// Reports the part of a plan that train.py refuses when a second copy of the model runs.
fn refused_beside_a_copy(plan: &Plan) -> Option<String> {
    let sharding = sharding(plan);
    let what = match () {
        () if copies(plan) == 1 => return None,
        () if sharding != ShardingLevel::None => "sharding",
        () if plan.stages.iter().any(|stage| stage.tensor_parallel.is_some()) => "shared layers",
        () => return None,
    };
    Some(format!("train.py refuses {what} under {}, which runs two copies of the model", plan.schedule))
}

/// Reports the sharding level of a plan that train.py refuses where devices share layers.
fn refused_beside_shards(plan: &Plan) -> Option<String> {
    let (level, is_on_first) = (sharding(plan), plan.cuts.values().any(|cut| cut.on_first));
    if !plan.stages.iter().any(|stage| stage.tensor_parallel.is_some()) || level == ShardingLevel::None {
        return None;
    }
    let place = match () {
        () if level > CARRIED_OUT_SHARED => "where devices share layers",
        () if is_on_first => "where the first device has parameters alone",
        () => return None,
    };
    Some(format!("train.py refuses {} {place}", level.name()))
}

/// Returns what a plan's replicas share out.
fn sharding(plan: &Plan) -> ShardingLevel {
    plan.execution.and_then(|execution| execution.sharding).unwrap_or_default()
}

/// Returns the number of parallel pipelines: replicas of each rank, and copies of the model in opposite directions.
fn pipelines(groups: &[usize], plan: Option<&Plan>) -> usize {
    groups.iter().fold(1, |a, b| lcm(a, *b)) * plan.map_or(1, copies)
}

/// Tells whether stages share a trained parameter.
fn shares_parameters(pipeline: &Pipeline) -> bool {
    pipeline
        .tied
        .iter()
        .any(|tied| tied.requires_grad && tied.holders.iter().any(|(stage, _)| *stage != tied.holders[0].0))
}

/// Returns why train.py cannot keep several weight versions of a plan.
fn needs_a_flush(plan: &Plan, is_tied: bool, groups: &[usize], has_python: bool) -> Option<&'static str> {
    let ranks = groups.len();
    let sharding = sharding(plan);
    let is_in_step = plan.execution.and_then(|execution| execution.vertical_sync) == Some(true);
    if is_tied {
        Some("stages with updates at different times share a parameter")
    } else if is_in_step && groups.windows(2).any(|pair| pair[0] != pair[1]) {
        Some("its stages have unequal replicas, whose updates differ from the first stage's")
    } else if plan.stages.len() != ranks {
        Some("several stages are on one rank")
    } else if sharding != ShardingLevel::None {
        Some("replicas shard their state")
    } else if !has_python {
        Some("archives keep one version of their weights")
    } else {
        None
    }
}

/// Returns why train.py cannot run a plan as it is; empty if it can.
pub fn not_carried_out(plan: &Plan) -> Vec<String> {
    let groups = replicas_of_ranks(Some(plan), &plan.ranks());
    let mut reasons = unexecuted(plan);
    reasons.extend(refused_beside_a_copy(plan));
    reasons.extend(refused_beside_shards(plan));
    if is_without_flush(&plan.schedule) {
        // Whether stages share a parameter is known only when they are written.
        let reason = needs_a_flush(plan, false, &groups, true);
        reasons.extend(
            reason.map(|reason| format!("train.py runs {} as 1F1B, because {reason}", plan.schedule)),
        );
    } else if !codegen::has_schedule(&plan.schedule)
        && let Err(reason) = schedule(plan, &groups)
    {
        reasons.push(format!("train.py cannot run {}: {reason}", plan.schedule));
    }
    let pipelines = pipelines(&groups, Some(plan));
    if !(plan.micro_batches as usize).is_multiple_of(pipelines.max(1)) {
        reasons.push(format!(
            "train.py runs equal numbers of micro-batches on {pipelines} pipelines, which {} cannot be divided into",
            plan.micro_batches
        ));
    }
    let is_shared = plan.stages.iter().any(|stage| stage.tensor_parallel.is_some());
    if is_shared && groups.windows(2).any(|pair| pair[0] != pair[1]) {
        reasons.push("train.py needs the same number of replicas for every shared stage".into());
    }
    reasons
}

/// Lists the plan's choices that train.py changes or refuses.
fn unexecuted(plan: &Plan) -> Vec<String> {
    let execution = plan.execution.unwrap_or_default();
    let mut notes = Vec::new();
    let mut otherwise = |what: &str, instead: &str| {
        notes.push(format!("train.py cannot run {what} yet: {instead}; times differ from the plan's"));
    };
    if execution.sync == Some(SyncOrder::AfterBackward) {
        otherwise("`sync: after-backward`", "gradients go in buckets, as they are ready");
    }
    match plan.predicted.times.as_ref().map_or(Rounding::Own, rounding_of) {
        Rounding::Own => {}
        Rounding::Tf32 => otherwise("products in TF32", "a task may call torch.set_float32_matmul_precision"),
        Rounding::Float8 => otherwise("linear layers in float8", "they run in the model's own type"),
    }
    // Slices go through parameter servers unless the plan names another collective.
    let is_sliced = matches!(execution.sync, Some(SyncOrder::P3 | SyncOrder::Fifo));
    let is_served = execution.collective.is_none() && is_sliced;
    if is_sliced && slices(plan).is_none() {
        otherwise("slices of gradients", "the plan's other choices need buckets");
    }
    if is_served || (is_sliced && execution.collective == Some(CollectiveKind::ParameterServer)) {
        otherwise("slices over parameter servers", "replicas sum them directly");
    } else if execution.collective == Some(CollectiveKind::ParameterServer) {
        if collective(plan).is_none() {
            otherwise("a parameter server together with the plan's other choices", "replicas sum directly");
        } else if execution.servers.is_some() || execution.servers_apart == Some(true) {
            otherwise(
                "parameter servers in another number or on machines of their own",
                "each replica is one",
            );
        }
    }
    notes
}

/// Returns the order in which a plan's replicas send slices of gradients, if train.py sends slices.
fn slices(plan: &Plan) -> Option<(SyncOrder, Option<u64>)> {
    let execution = plan.execution?;
    let sync = execution.sync.filter(|sync| matches!(sync, SyncOrder::P3 | SyncOrder::Fifo))?;
    let counts: BTreeSet<usize> = plan.stages.iter().map(schema::PlanStage::replicas).collect();
    let refused = copies(plan) > 1
        || is_without_flush(&plan.schedule)
        || execution.sharding.is_some_and(|level| level != ShardingLevel::None)
        || counts.len() > 1
        || plan.ties.iter().any(|tie| tie.stages.len() > 1)
        || plan.stages.iter().any(|stage| stage.tensor_parallel.is_some());
    // Whole layers, unless slices are requested.
    let slice = execution.slice.map(|bytes| bytes.0).or((sync == SyncOrder::Fifo).then_some(1 << 40));
    (!refused).then_some((sync, slice))
}

/// Returns how a plan's replicas sum gradients, if train.py can sum them so.
fn collective(plan: &Plan) -> Option<CollectiveKind> {
    let execution = plan.execution?;
    let kind = execution
        .collective
        .filter(|kind| matches!(kind, CollectiveKind::Hierarchical | CollectiveKind::ParameterServer))?;
    let refused = copies(plan) > 1
        || is_without_flush(&plan.schedule)
        || matches!(execution.sync, Some(SyncOrder::P3 | SyncOrder::Fifo))
        || execution.sharding.is_some_and(|level| level != ShardingLevel::None)
        || plan.stages.iter().any(|stage| stage.tensor_parallel.is_some());
    (!refused).then_some(kind)
}

/// Returns what a stage computes again.
fn recomputed(stage: &schema::PlanStage) -> Recomputed<'_> {
    Recomputed {
        blocks: &stage.recompute,
        light: &stage.recompute_light,
        is_whole: !stage.recompute_unit.is_block() && !stage.recompute.is_empty(),
    }
}

/// Returns how activations of a plan's offloaded blocks are copied, if there are such blocks.
fn offload(plan: &Plan) -> Option<OffloadMode> {
    let has_blocks = plan.stages.iter().any(|stage| !stage.offload.is_empty());
    has_blocks.then(|| plan.execution.and_then(|execution| execution.offload).unwrap_or(OffloadMode::Both))
}

/// Returns the plan's prediction of a step, with the number and types of its devices.
fn prediction(plan: &Plan) -> Option<Prediction> {
    let used: BTreeSet<&String> = plan.stages.iter().flat_map(|stage| &stage.devices).collect();
    let counts = kinds::by_type(plan.cluster.devices.iter().filter(|device| used.contains(&device.name)));
    let names = counts.keys().flat_map(|kind| schema::plain_names(kind, &plan.cluster.types)).collect();
    let Predicted { step, band, .. } = &plan.predicted;
    let peak = (used.len(), peaks(plan, &used));
    let host = under_host_overhead(plan).unwrap_or_default();
    let (devices, charged) = (kinds::counted(&counts), plan.cluster.host_overhead());
    Some(Prediction { step: (*step)?, band: *band, devices, names, peak, charged, host })
}

/// Returns the simulated step times for several host overheads per pass, if a step ends with a flush.
fn under_host_overhead(plan: &Plan) -> Option<Vec<(Seconds, Seconds)>> {
    const LARGE: usize = 100_000; // operations, which take a tenth of a second
    if is_without_flush(&plan.schedule) {
        return None;
    }
    let simulated = |microseconds: &f64| {
        let host_overhead = Seconds(microseconds * 1e-6);
        let options = simulator::PlanOptions {
            host_overhead: Some(host_overhead),
            ..simulator::PlanOptions::default()
        };
        let step = simulator::from_plan(plan, &options).ok()?;
        if step.order.n_ops() > LARGE {
            return None;
        }
        let timeline = simulator::simulate(&step.workload, &step.order, &step.machine).ok()?;
        Some((host_overhead, Seconds(timeline.step as f64 * 1e-9)))
    };
    [0.0, 100.0, 200.0, 300.0, 500.0, 1000.0, 2000.0, 5000.0].iter().map(simulated).collect()
}

/// Returns the peak operations per second of all devices together, for the data types that all of them have.
fn peaks(plan: &Plan, used: &BTreeSet<&String>) -> BTreeMap<String, f64> {
    let devices = plan.cluster.devices.iter().filter(|device| used.contains(&device.name));
    let types: Vec<_> = devices.filter_map(|device| plan.cluster.types.get(&device.type_)).collect();
    let Some(first) = types.first() else { return BTreeMap::new() };
    let sum = |dtype: &String| types.iter().map(|type_| Some(type_.peak.get(dtype)?.0)).sum::<Option<f64>>();
    first.peak.keys().filter_map(|dtype| Some((dtype.clone(), sum(dtype)?))).collect()
}

/// Writes the table of one pipeline.
fn schedule(plan: &Plan, groups: &[usize]) -> Result<String, String> {
    let replicas = groups.first().copied().unwrap_or(1);
    if groups.iter().any(|other| *other != replicas) {
        return Err("stages have unequal replicas, which a table of one pipeline cannot express".into());
    }
    let ranks = groups.len() as u32;
    let stages = plan.stages.len() as u32;
    let replicas = replicas as u32;
    if !stages.is_multiple_of(ranks) || !plan.micro_batches.is_multiple_of(replicas) {
        return Err("stages or micro-batches do not spread evenly over the ranks".into());
    }
    let copies = copies(plan) as u32;
    if !(plan.micro_batches / replicas).is_multiple_of(copies) {
        return Err(format!(
            "`{}` needs equal numbers of micro-batches for its copies of the model",
            plan.schedule
        ));
    }
    let order = simulator::order::make(&plan.schedule, ranks, stages / ranks, plan.micro_batches / replicas)
        .map_err(|error| error.to_string())?;
    let each = plan.micro_batches / replicas / copies;
    if order.n_stages() as u32 != copies * stages || order.n_micro_batches() as u32 != each {
        return Err(format!("`{}` does not run the plan's stages", plan.schedule));
    }
    let mut owner = BTreeMap::new();
    for (rank, operations) in order.ranks.iter().enumerate() {
        for operation in operations {
            if *owner.entry(operation.stage).or_insert(rank) != rank {
                return Err("one stage runs on several ranks".into());
            }
        }
    }
    Ok(simulator::order::to_csv(&order))
}

/// Returns the machines of the plan's devices.
fn ranks(plan: Option<&Plan>, world: usize) -> Ranks {
    let mut nodes: BTreeMap<u32, usize> = BTreeMap::new();
    for device in plan.iter().flat_map(|plan| &plan.cluster.devices) {
        let is_used =
            plan.is_some_and(|plan| plan.stages.iter().any(|stage| stage.devices.contains(&device.name)));
        if is_used {
            *nodes.entry(device.place.first().copied().unwrap_or(0)).or_insert(0) += 1;
        }
    }
    let per_node = nodes.values().copied().max().unwrap_or(world);
    // torchrun starts the same number of ranks on each machine.
    if nodes.len() * per_node == world && !nodes.is_empty() {
        Ranks { nodes: nodes.len(), per_node }
    } else {
        Ranks { nodes: 1, per_node: world }
    }
}

fn lcm(a: usize, b: usize) -> usize {
    let (mut x, mut y) = (a, b);
    while y != 0 {
        (x, y) = (y, x % y);
    }
    a / x.max(1) * b
}
