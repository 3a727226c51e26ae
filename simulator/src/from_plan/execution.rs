//! A plan's execution as numbers: gradient sync, sharding, offload, tensor parallelism. Notes its assumptions, and refuses to
//! guess.

use schema::{CollectiveKind, Execution, OffloadMode, ShardingLevel, SyncOrder};

use super::{PlanError, PlanOptions, parts::PlanParts};
use crate::{
    collective::Algorithm,
    data_parallel::P3_SLICE,
    versions::Updates,
    workload::{Layer, Offload, Servers, Sharding, Stage, Sync, SyncMode, TensorParallel},
};

/// Bytes of a parameter where slices are counted in parameters.
const FLOAT: u64 = 4;

pub(super) fn slowdown(choices: &Execution) -> Result<f64, PlanError> {
    let slowdown = choices.overlap_slowdown.unwrap_or(1.0);
    if (1.0..=100.0).contains(&slowdown) {
        Ok(slowdown)
    } else {
        let rule = "a number from 1 to 100";
        Err(PlanError::Execution { what: "the slowdown beside collectives", value: slowdown, rule })
    }
}

pub(super) fn offload(choices: &Execution) -> Result<Offload, PlanError> {
    let depth = choices.prefetch.unwrap_or(2);
    if !(1..=1024).contains(&depth) {
        let rule = "a whole number from 1 to 1024";
        return Err(PlanError::Execution { what: "the prefetch depth", value: depth.into(), rule });
    }
    Ok(match choices.offload.unwrap_or(OffloadMode::Both) {
        OffloadMode::Naive => Offload::Naive,
        OffloadMode::Pinned => Offload::Pinned,
        OffloadMode::NonBlocking => Offload::NonBlocking,
        OffloadMode::Both => Offload::Overlapped { depth },
    })
}

/// Notes that a second copy of the model takes the times of the first, if its stages are on devices of another type.
pub(super) fn note_second_copy(parts: &PlanParts, notes: &mut Vec<String>) {
    let type_of = |device: &usize| parts.devices[*device].type_;
    let types: Vec<_> = parts.stages.iter().map(|stage| stage.devices.first().map(type_of)).collect();
    if types.iter().ne(types.iter().rev()) {
        notes.push(
            "stages of the second copy take the times of the first one's, though they stand on devices of another type".into(),
        );
    }
}

/// Returns when weights change while micro-batches are in flight.
pub(super) fn updates(
    parts: &PlanParts,
    options: &PlanOptions,
    notes: &mut Vec<String>,
) -> Result<Option<Updates>, PlanError> {
    let PlanParts { schedule, micro_batches, .. } = *parts;
    let asked = options.execution.vertical_sync;
    let of_plan = parts.execution.vertical_sync;
    if !asked.or(of_plan).unwrap_or(false) {
        return Ok(schedule.updates(micro_batches));
    }
    match schedule.vertical_sync() {
        Ok(updates) => Ok(Some(updates)),
        Err(reason) if asked == Some(true) => {
            Err(PlanError::Combination { one: "vertical sync", other: schedule.name(), reason })
        }
        Err(reason) => {
            notes.push(format!("vertical sync is left out: {reason}"));
            Ok(schedule.updates(micro_batches))
        }
    }
}

pub(super) fn sync(
    choices: &Execution,
    asked: &Execution,
    most_replicas: u32,
    notes: &mut Vec<String>,
) -> Result<Sync, PlanError> {
    let positive = |what, value: Option<u64>| match value {
        Some(0) => Err(PlanError::Execution { what, value: 0.0, rule: "above 0" }),
        value => Ok(value),
    };
    let bucket = positive("the bucket", choices.bucket.map(|bytes| bytes.0))?;
    let slice = positive("the slice", choices.slice.map(|bytes| bytes.0))?;
    let servers = positive("the number of parameter servers", choices.servers.map(u64::from))?;
    let servers = servers.map_or(most_replicas, |servers| servers as u32);
    let places = if choices.servers_apart.unwrap_or(false) { Servers::Apart } else { Servers::Among };
    let mode = match choices.sync.unwrap_or(SyncOrder::Bucketed) {
        SyncOrder::AfterBackward => SyncMode::AfterBackward,
        SyncOrder::Bucketed => SyncMode::Bucketed,
        SyncOrder::Fifo => SyncMode::Fifo { slice },
        SyncOrder::P3 => SyncMode::Priority { slice: Some(slice.unwrap_or(P3_SLICE * FLOAT)) },
    };
    let by_layer = mode.slice().is_some();
    let sharding = match choices.sharding.unwrap_or(ShardingLevel::None) {
        ShardingLevel::None => Sharding::Replicated,
        ShardingLevel::Zero1 => Sharding::Optimizer,
        ShardingLevel::Zero2 => Sharding::Gradients,
        ShardingLevel::Zero3 => Sharding::Parameters,
    };
    let sharding_group = positive("the sharding group", choices.sharding_group.map(u64::from))?;
    let sharding_group = sharding_group.map(|group| group as usize);
    let algorithm = match choices.collective {
        None if by_layer => Algorithm::ParameterServer { servers },
        None | Some(CollectiveKind::Fastest) => Algorithm::Fastest,
        Some(CollectiveKind::Ring) => Algorithm::Ring,
        Some(CollectiveKind::Tree) => Algorithm::Tree,
        Some(CollectiveKind::Hierarchical) => Algorithm::Hierarchical,
        Some(CollectiveKind::ParameterServer) => Algorithm::ParameterServer { servers },
    };
    if sharding != Sharding::Replicated {
        let refuse = |other, reason| Err(PlanError::Combination { one: "sharding", other, reason });
        if by_layer {
            return refuse("`fifo` and `p3`", "they send whole sums back to every replica");
        }
        if matches!(algorithm, Algorithm::ParameterServer { .. }) {
            return refuse("a parameter server", "replicas that share out gather from each other");
        }
    }
    if by_layer && most_replicas > 1 {
        let parts = match algorithm {
            Algorithm::ParameterServer { servers } => match places {
                Servers::Among => format!("{servers} parameter servers on the replicas' machines"),
                Servers::Apart => format!("{servers} parameter servers on machines of their own"),
            },
            _ => "an all-reduce".to_string(),
        };
        notes.push(format!(
            "gradients go layer by layer through {parts}, which update the parameters beside the sends: that time is not counted"
        ));
    }
    note_idle(asked, (mode, algorithm, sharding), most_replicas, notes);
    let default = Sync::default();
    let bucket = bucket.unwrap_or(default.bucket);
    let first_bucket = default.first_bucket.min(bucket);
    Ok(Sync { mode, first_bucket, bucket, algorithm, sharding, sharding_group, servers: places })
}

/// Notes choices that were asked for and change nothing beside the others. A plan's own may be overridden.
fn note_idle(
    asked: &Execution,
    (mode, algorithm, sharding): (SyncMode, Algorithm, Sharding),
    most_replicas: u32,
    notes: &mut Vec<String>,
) {
    let by_layer = mode.slice().is_some();
    let has_servers = matches!(algorithm, Algorithm::ParameterServer { .. });
    let no_servers = (!has_servers).then_some("replicas sum without parameter servers");
    let whole = "only `fifo` and `p3` send slices";
    let idle = [
        ("the number of parameter servers", asked.servers.and(no_servers)),
        ("that parameter servers stand apart", asked.servers_apart.filter(|apart| *apart).and(no_servers)),
        ("the slice", asked.slice.and((!by_layer).then_some(whole))),
        ("the bucket", asked.bucket.and(by_layer.then_some("gradients go layer by layer"))),
        (
            "the sharding group",
            asked.sharding_group.and((sharding == Sharding::Replicated).then_some("nothing is shared out")),
        ),
    ];
    let idle = idle.into_iter().filter_map(|(what, why)| Some(format!("{what} changes nothing: {}", why?)));
    notes.extend(idle);
    let group = asked.sharding_group.filter(|_| sharding != Sharding::Replicated);
    if let Some(group) = group.filter(|group| !most_replicas.is_multiple_of(*group)) {
        notes.push(format!(
            "{most_replicas} replicas do not make groups of {group}: all of them share out together"
        ));
    }
}

/// Sets the share of the activations that waits in host memory.
pub(super) fn offloaded(
    options: &PlanOptions,
    stages: &mut [Stage],
    notes: &mut Vec<String>,
) -> Result<(), PlanError> {
    let Some(share) = options.offloaded else { return Ok(()) };
    if !(0.0..=1.0).contains(&share) {
        let rule = "a share from 0 to 1";
        return Err(PlanError::Execution { what: "the offloaded share", value: share, rule });
    }
    for stage in stages {
        stage.memory.offloaded = (stage.memory.activations as f64 * share) as u64;
    }
    notes.push(format!("{:.0} % of every stage's activations wait in host memory", 100.0 * share));
    Ok(())
}

/// Checks that messages by layer have layers; makes equal ones where the plan names only blocks.
pub(super) fn layers(
    parts: &PlanParts,
    sync: Sync,
    rank_devices: &[Vec<usize>],
    rank_of: &[usize],
    stages: &mut [Stage],
    notes: &mut Vec<String>,
) -> Result<(), PlanError> {
    if sync.mode.slice().is_none() {
        return Ok(());
    }
    let mut equal = Vec::new();
    for (idx, stage) in stages.iter_mut().enumerate() {
        if rank_devices[rank_of[idx]].len() < 2 || !stage.layers.is_empty() {
            continue;
        }
        let n = parts.stages[idx].n_blocks.max(1) as u64;
        let gradients = stage.memory.gradients;
        let layer = Layer { forward: 1, backward: 1, gradients: gradients / n };
        stage.layers = vec![layer; n as usize];
        stage.layers[0].gradients += gradients % n;
        equal.push(idx.to_string());
    }
    if !equal.is_empty() {
        notes.push(format!(
            "the plan does not tell the layers of stage {} apart: its blocks are taken as equal",
            equal.join(", ")
        ));
    }
    Ok(())
}

/// Leaders of each rank's replicas, and the other devices of each program.
type Groups = (Vec<Vec<usize>>, Vec<Vec<usize>>);

/// Groups each rank's devices into replicas whose members cut every layer among them.
pub(super) fn tensor_parallel(
    parts: &PlanParts,
    options: &PlanOptions,
    ranks: &[Vec<usize>],
    rank_of: &[usize],
    stages: &mut [Stage],
    notes: &mut Vec<String>,
) -> Result<Groups, PlanError> {
    let mut degrees: Vec<Option<u32>> = vec![None; ranks.len()];
    for (idx, stage) in stages.iter_mut().enumerate() {
        let refuse = |reason: String| Err(PlanError::TensorParallel { stage: idx, reason });
        let own = parts.stages[idx].tensor_parallel;
        let degree = match (own, options.tensor_parallel) {
            (Some(own), None) => {
                stage.tensor_parallel =
                    Some(TensorParallel { bytes: own.all_reduce.0, per_pass: own.per_pass });
                own.degree
            }
            (Some(_), Some(_)) => return refuse("the plan says already which devices cut it".to_string()),
            (None, Some(degree)) => {
                estimate(parts, idx, degree.max(1), stage);
                degree
            }
            (None, None) => 1,
        };
        let devices = &ranks[rank_of[idx]];
        if degree == 0 || !devices.len().is_multiple_of(degree as usize) {
            let n = devices.len();
            return refuse(format!("its {n} devices do not make groups of {degree}"));
        }
        let type_of = |device: &usize| parts.devices[*device].type_;
        let mixed = devices
            .chunks(degree as usize)
            .any(|group| group.iter().any(|d| type_of(d) != type_of(&group[0])));
        if mixed {
            return refuse("a group's devices must be of one type".to_string());
        }
        let of_rank = degrees[rank_of[idx]].get_or_insert(degree);
        if *of_rank != degree {
            return refuse(format!("another stage on its devices has groups of {of_rank}, not {degree}"));
        }
    }
    if let Some(degree) = options.tensor_parallel.filter(|degree| *degree > 1) {
        notes.push(format!(
            "tensor parallelism is estimated: each of {degree} devices takes an equal part of every stage's time, parameters \
             and optimizer state, and all of its activations; every block with parameters exchanges what it makes twice each way"
        ));
        let unknown = parts.stages.iter().enumerate().filter(|(_, stage)| stage.layers.is_empty());
        let unknown: Vec<String> = unknown.map(|(idx, _)| idx.to_string()).collect();
        if !unknown.is_empty() {
            notes.push(format!(
                "the plan does not say what the blocks of stage {} make: each is taken to have parameters and to make \
                 what enters or leaves its stage",
                unknown.join(", ")
            ));
        }
    }
    let degree = |rank: usize| degrees[rank].unwrap_or(1) as usize;
    let groups = |rank: usize| ranks[rank].chunks(degree(rank));
    let leaders = (0..ranks.len()).map(|rank| groups(rank).map(|group| group[0]).collect()).collect();
    let peers: Vec<Vec<usize>> = (0..ranks.len()).flat_map(groups).map(|group| group[1..].to_vec()).collect();
    Ok((leaders, if peers.iter().all(Vec::is_empty) { Vec::new() } else { peers }))
}

/// Cuts a stage's costs among a group.
fn estimate(parts: &PlanParts, idx: usize, degree: u32, stage: &mut Stage) {
    if degree < 2 {
        return;
    }
    let n = u64::from(degree);
    for time in [
        &mut stage.forward,
        &mut stage.input_gradient,
        &mut stage.weight_gradient,
        &mut stage.accumulation,
        &mut stage.recompute,
        &mut stage.optimizer_step,
        &mut stage.memory.parameters,
        &mut stage.memory.gradients,
        &mut stage.memory.optimizer,
    ] {
        *time = time.div_ceil(n);
    }
    for layer in &mut stage.layers {
        layer.gradients = layer.gradients.div_ceil(n);
    }
    stage.tensor_parallel = Some(exchange(parts, idx));
}

/// Returns the exchange of a group in a pass: Megatron's two all-reduces for each block with parameters.
fn exchange(parts: &PlanParts, idx: usize) -> TensorParallel {
    let layers = &parts.stages[idx].layers;
    if layers.is_empty() {
        let near = parts.transfers.iter().filter(|transfer| transfer.from == idx || transfer.to == idx);
        let bytes = near.map(|transfer| transfer.forward).max().unwrap_or(0);
        let blocks = parts.stages[idx].n_blocks as u32;
        return TensorParallel { bytes, per_pass: blocks.saturating_mul(2) };
    }
    let cut = layers.iter().filter(|layer| layer.gradients.0 > 0);
    let (n, bytes) =
        cut.fold((0_u32, 0_u64), |(n, bytes), layer| (n + 1, bytes.saturating_add(layer.output.0)));
    TensorParallel { bytes: bytes.div_ceil(u64::from(n.max(1))), per_pass: n.saturating_mul(2) }
}
