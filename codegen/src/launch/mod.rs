//! Launch files for `train.py`: a shell script, a Slurm batch script, a Kubernetes TrainJob.

use std::collections::BTreeMap;

use minijinja::{Environment, context};
use schema::{Band, CollectiveKind, OffloadMode, Seconds, ShardingLevel, SyncOrder};

use crate::{
    content::{Content, File},
    names::python_quoted,
};

/// The machines of ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ranks {
    /// Machines.
    pub nodes: usize,
    /// Ranks of each machine.
    pub per_node: usize,
}

/// A launcher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Launcher {
    /// A shell script for torchrun.
    Torchrun,
    /// A batch script.
    Slurm,
    /// A TrainJob of Kubeflow.
    Kubernetes,
}

/// Returns the file of a launcher.
pub fn launch(launcher: Launcher, ranks: Ranks) -> File {
    let (path, template) = match launcher {
        Launcher::Torchrun => ("launch/torchrun.sh", include_str!("torchrun.sh.j2")),
        Launcher::Slurm => ("launch/train.sbatch", include_str!("train.sbatch.j2")),
        Launcher::Kubernetes => ("launch/trainjob.yaml", include_str!("trainjob.yaml.j2")),
    };
    let environment = Environment::new();
    let text = environment
        .render_str(template, context! { nodes => ranks.nodes, per_node => ranks.per_node })
        .expect("the templates are well formed and their variables given");
    File { path: path.into(), content: Content::text(text + "\n") }
}

/// The script that the user owns: the parts of a rank, and the loop over the steps.
const TRAIN: &str = include_str!("../train/train.py");

/// Modules that `train.py` imports, each of which can be read and changed by itself.
const PARTS: [(&str, &str); 35] = [
    ("train_parts/batch_norm.py", include_str!("../train/parts/batch_norm.py")),
    ("train_parts/check.py", include_str!("../train/parts/check.py")),
    ("train_parts/checkpoints.py", include_str!("../train/parts/checkpoints.py")),
    ("train_parts/counts.py", include_str!("../train/parts/counts.py")),
    ("train_parts/cuts.py", include_str!("../train/parts/cuts.py")),
    ("train_parts/data.py", include_str!("../train/parts/data.py")),
    ("train_parts/deferred.py", include_str!("../train/parts/deferred.py")),
    ("train_parts/executor.py", include_str!("../train/parts/executor.py")),
    ("train_parts/failures.py", include_str!("../train/parts/failures.py")),
    ("train_parts/fsdp.py", include_str!("../train/parts/fsdp.py")),
    ("train_parts/groups.py", include_str!("../train/parts/groups.py")),
    ("train_parts/hangs.py", include_str!("../train/parts/hangs.py")),
    ("train_parts/host_optimizer.py", include_str!("../train/parts/host_optimizer.py")),
    ("train_parts/host_trace.py", include_str!("../train/parts/host_trace.py")),
    ("train_parts/launch.py", include_str!("../train/parts/launch.py")),
    ("train_parts/layout.py", include_str!("../train/parts/layout.py")),
    ("train_parts/looks.py", include_str!("../train/parts/looks.py")),
    ("train_parts/offload.py", include_str!("../train/parts/offload.py")),
    ("train_parts/one_process.py", include_str!("../train/parts/one_process.py")),
    ("train_parts/options.py", include_str!("../train/parts/options.py")),
    ("train_parts/pipelines.py", include_str!("../train/parts/pipelines.py")),
    ("train_parts/priority.py", include_str!("../train/parts/priority.py")),
    ("train_parts/profile.py", include_str!("../train/parts/profile.py")),
    ("train_parts/progress.py", include_str!("../train/parts/progress.py")),
    ("train_parts/saved.py", include_str!("../train/parts/saved.py")),
    ("train_parts/stages.py", include_str!("../train/parts/stages.py")),
    ("train_parts/stragglers.py", include_str!("../train/parts/stragglers.py")),
    ("train_parts/sync.py", include_str!("../train/parts/sync.py")),
    ("train_parts/task.py", include_str!("../train/parts/task.py")),
    ("train_parts/update.py", include_str!("../train/parts/update.py")),
    ("train_parts/validation.py", include_str!("../train/parts/validation.py")),
    ("train_parts/versions.py", include_str!("../train/parts/versions.py")),
    ("train_parts/weights.py", include_str!("../train/parts/weights.py")),
    ("train_parts/without_flush.py", include_str!("../train/parts/without_flush.py")),
    ("train_parts/written.py", include_str!("../train/parts/written.py")),
];

/// The modules imported by the training script.
pub fn train_parts() -> impl Iterator<Item = File> {
    PARTS
        .iter()
        .map(|(path, text)| File { path: (*path).into(), content: Content::text((*text).to_string()) })
}

/// The plan's settings of a training run.
#[derive(Clone, Debug, Default)]
pub struct Defaults<'a> {
    /// Micro-batches of one pipeline.
    pub micro_batches: Option<u32>,
    /// Samples per micro-batch, if they are not those of the trace's inputs.
    pub micro_batch_size: Option<u64>,
    /// Replicas of each rank of a pipeline.
    pub replicas: &'a [usize],
    /// The ranks of these replicas, if ranks are not numbered replica by replica.
    pub ranks: &'a [Vec<usize>],
    /// The schedule, by its name here.
    pub schedule: Option<&'a str>,
    /// The schedule of the plan, if another one is run.
    pub planned: Option<&'a str>,
    /// Whether all stages use weights with the same number of updates, under a schedule without a flush.
    pub vertical_sync: bool,
    /// The sharding level of a stage's replicas.
    pub sharding: Option<ShardingLevel>,
    /// Number of replicas that shard together, if not all.
    pub sharding_group: Option<u32>,
    /// The order in which replicas send gradients, if not in buckets, and the bytes per slice.
    pub sync: Option<(SyncOrder, Option<u64>)>,
    /// How replicas sum gradients, if not by the backend's all-reduce.
    pub collective: Option<CollectiveKind>,
    /// How activations of the plan's offloaded blocks are copied to the host, if there are such blocks.
    pub offload: Option<OffloadMode>,
    /// The predicted step.
    pub prediction: Option<Prediction>,
    /// What of the model no backward pass gets through, in words.
    pub untrainable: Option<&'a str>,
    /// What each stage receives that no gradient reaches in the model.
    pub without_gradient: Vec<Vec<&'a str>>,
}

/// The plan's prediction of a step.
#[derive(Clone, Debug)]
pub struct Prediction {
    /// The step time.
    pub step: Seconds,
    /// The p10–p90 band.
    pub band: Option<Band>,
    /// The devices of the prediction, for people.
    pub devices: String,
    /// Normalised names of their types: lower-case letters and digits, without the vendor's words.
    pub names: Vec<String>,
    /// The number of devices, and their total peak of operations per second, by type.
    pub peak: (usize, BTreeMap<String, f64>),
    /// The part of it that is the script's host time, per pass.
    pub charged: Seconds,
    /// The step time for further host times per pass, ascending; empty if unknown.
    pub host: Vec<(Seconds, Seconds)>,
}

impl Prediction {
    fn to_python(&self) -> String {
        let band = self.band.map_or("None".into(), |band| format!("({}, {})", band.p10.0, band.p90.0));
        let devices = python_quoted(&self.devices);
        let names: Vec<String> = self.names.iter().map(|name| python_quoted(name)).collect();
        let names = names.join(", ");
        let (count, peaks) = &self.peak;
        let peaks: Vec<String> =
            peaks.iter().map(|(dtype, peak)| format!("{}: {peak:e}", python_quoted(dtype))).collect();
        let peaks = peaks.join(", ");
        let host: Vec<String> =
            self.host.iter().map(|(pass, step)| format!("({}, {})", pass.0, step.0)).collect();
        let host = host.join(", ");
        format!(
            "{{\"seconds\": {}, \"band\": {band}, \"devices\": {devices}, \"names\": [{names}], \"count\": {count}, \"peak\": {{{peaks}}}, \"charged\": {}, \"host\": [{host}]}}",
            self.step.0, self.charged.0
        )
    }
}

/// The training script, with the plan's numbers as its defaults.
pub fn train_script(defaults: &Defaults<'_>) -> File {
    let replicas = match defaults.replicas {
        [] => "1".to_string(),
        [first, rest @ ..] if rest.iter().all(|other| other == first) => first.to_string(),
        all => all.iter().map(usize::to_string).collect::<Vec<_>>().join(","),
    };
    let ranks = if defaults.ranks.is_empty() { "None".into() } else { format!("{:?}", defaults.ranks) };
    let micro_batches = defaults.micro_batches.map_or("None".into(), |count| count.to_string());
    let micro_batch_size = defaults.micro_batch_size.map_or("None".into(), |samples| samples.to_string());
    let schedule = defaults.schedule.and_then(torch_name).map_or("None".into(), |name| format!("\"{name}\""));
    let planned = defaults.planned.map_or("None".into(), python_quoted);
    let untrainable = defaults.untrainable.map_or("None".into(), python_quoted);
    let listed = defaults.without_gradient.iter().enumerate().filter(|(_, names)| !names.is_empty());
    let listed: Vec<String> = listed
        .map(|(stage, names)| {
            let names: Vec<String> = names.iter().map(|name| python_quoted(name)).collect();
            format!("{stage}: [{}]", names.join(", "))
        })
        .collect();
    let without_gradient = listed.join(", ");
    let vertical_sync = if defaults.vertical_sync { "True" } else { "False" };
    let sharding = match defaults.sharding {
        None | Some(ShardingLevel::None) => "None",
        Some(ShardingLevel::Zero1) => "\"zero1\"",
        Some(ShardingLevel::Zero2) => "\"zero2\"",
        Some(ShardingLevel::Zero3) => "\"zero3\"",
    };
    let sharding_group = defaults.sharding_group.map_or("None".into(), |count| count.to_string());
    let offload = match defaults.offload {
        None => "None",
        Some(OffloadMode::Naive) => "\"naive\"",
        Some(OffloadMode::Pinned) => "\"pinned\"",
        Some(OffloadMode::NonBlocking) => "\"non-blocking\"",
        Some(OffloadMode::Both) => "\"both\"",
    };
    let (sync, slice) = match defaults.sync {
        Some((SyncOrder::P3, slice)) => ("\"p3\"", slice),
        Some((SyncOrder::Fifo, slice)) => ("\"fifo\"", slice),
        _ => ("None", None),
    };
    let collective = match defaults.collective {
        Some(CollectiveKind::Hierarchical) => "\"hierarchical\"",
        Some(CollectiveKind::ParameterServer) => "\"parameter-server\"",
        _ => "None",
    };
    let slice = slice.map_or("None".into(), |bytes| bytes.to_string());
    let prediction = defaults.prediction.as_ref().map_or("None".into(), Prediction::to_python);
    let defaults = format!(
        "DEFAULTS = {{\"micro_batches\": {micro_batches}, \"micro_batch_size\": {micro_batch_size}, \"replicas\": \"{replicas}\", \"ranks\": {ranks}, \"schedule\": {schedule}, \
         \"vertical_sync\": {vertical_sync}, \
         \"sharding\": {sharding}, \"sharding_group\": {sharding_group}, \"sync\": {sync}, \"slice\": {slice}, \"collective\": {collective}, \"offload\": {offload}, \"prediction\": {prediction}, \"planned\": {planned}, \"untrainable\": {untrainable}, \"without_gradient\": {{{without_gradient}}}}}"
    );
    let text = TRAIN.replacen("DEFAULTS = {}", &defaults, 1);
    File { path: "train.py".into(), content: Content::text(text) }
}

/// Tells whether `train.py` knows a schedule of this name, so that it needs no table.
pub fn has_schedule(schedule: &str) -> bool {
    torch_name(schedule).is_some()
}

/// Returns the script's name of a schedule: torch's, if it has one.
fn torch_name(schedule: &str) -> Option<&'static str> {
    Some(match schedule {
        "gpipe" => "GPipe",
        "1f1b" | "pipedream-flush" => "1F1B",
        "pipedream" => "PipeDream",
        "pipedream-2bw" | "2bw" => "PipeDream-2BW",
        "interleaved-1f1b" | "interleaved" => "Interleaved1F1B",
        "looped-bfs" => "LoopedBFS",
        "interleaved-zero-bubble" => "InterleavedZeroBubble",
        "zbv" | "zbv-zero-bubble" => "ZBVZeroBubble",
        "dualpipev" | "dualpipe-v" => "DualPipeV",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(file: &File) -> String {
        let mut out = Vec::new();
        file.content.write(&mut &b""[..], &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn launchers_name_all_ranks() {
        for launcher in [Launcher::Torchrun, Launcher::Slurm, Launcher::Kubernetes] {
            let text = text(&launch(launcher, Ranks { nodes: 3, per_node: 4 }));
            assert!(text.contains('3') && text.contains('4') && !text.contains("{{"), "{text}");
        }
    }

    #[test]
    fn the_script_knows_the_plan() {
        let prediction = Prediction {
            step: Seconds(0.5),
            band: Some(Band { p10: Seconds(0.4), p90: Seconds(0.625) }),
            devices: "2 × \"t4\"".into(),
            names: vec!["t4".into(), "teslat4".into()],
            peak: (2, [("float32".to_string(), 1.62e13)].into()),
            charged: Seconds(2e-4),
            host: vec![(Seconds(0.0), Seconds(0.5)), (Seconds(1e-3), Seconds(0.75))],
        };
        let defaults = Defaults {
            micro_batches: Some(8),
            micro_batch_size: Some(4),
            replicas: &[2, 1],
            ranks: &[vec![0, 2], vec![1]],
            schedule: Some("gpipe"),
            planned: Some("pipedream"),
            vertical_sync: false,
            sharding: Some(ShardingLevel::Zero1),
            sharding_group: Some(4),
            sync: Some((SyncOrder::P3, Some(4096))),
            collective: Some(CollectiveKind::Hierarchical),
            offload: Some(OffloadMode::NonBlocking),
            prediction: Some(prediction),
            untrainable: Some("torch has no derivative of aten::heaviside"),
            without_gradient: vec![vec![], vec!["mask", "bins"]],
        };
        let text = text(&train_script(&defaults));
        let expected = "DEFAULTS = {\"micro_batches\": 8, \"micro_batch_size\": 4, \"replicas\": \"2,1\", \"ranks\": [[0, 2], [1]], \"schedule\": \"GPipe\", \
                        \"vertical_sync\": False, \"sharding\": \"zero1\", \"sharding_group\": 4, \"sync\": \"p3\", \"slice\": 4096, \"collective\": \"hierarchical\", \
                        \"offload\": \"non-blocking\", \"prediction\": {\"seconds\": 0.5, \"band\": (0.4, 0.625), \"devices\": ";
        let line = text.lines().find(|line| line.starts_with("DEFAULTS")).unwrap();
        assert!(line.starts_with(expected) && line.contains("\\\"t4\\\""), "{line}");
        assert!(
            line.contains("\"names\": [\"t4\", \"teslat4\"], \"count\": 2, \"peak\": {\"float32\": 1.62e13}, \"charged\": 0.0002, \"host\": [(0, 0.5), (0.001, 0.75)]")
                && line.ends_with("\"untrainable\": \"torch has no derivative of aten::heaviside\", \"without_gradient\": {1: [\"mask\", \"bins\"]}}"),
            "{line}"
        );
    }
}
