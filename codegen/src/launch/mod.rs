//! Launch files for `train.py`: a shell script, a Slurm batch script, a Kubernetes TrainJob.

use minijinja::{Environment, context};

use crate::content::{Content, File};

/// How many ranks run where.
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

/// One file for the user, several for who reads it here.
const TRAIN: &str = concat!(
    include_str!("../train/head.py"),
    include_str!("../train/stages.py"),
    include_str!("../train/task.py"),
    include_str!("../train/layout.py"),
    include_str!("../train/pipelines.py"),
    include_str!("../train/dealt.py"),
    include_str!("../train/sync.py"),
    include_str!("../train/run.py"),
    include_str!("../train/commands.py"),
);

/// The training script, with the plan's numbers as its defaults.
pub fn train_script(micro_batches: Option<u32>, replicas: &[usize], schedule: Option<&str>) -> File {
    let replicas = match replicas {
        [] => "1".to_string(),
        [first, rest @ ..] if rest.iter().all(|other| other == first) => first.to_string(),
        all => all.iter().map(usize::to_string).collect::<Vec<_>>().join(","),
    };
    let micro_batches = micro_batches.map_or("None".into(), |count| count.to_string());
    let schedule = schedule.and_then(torch_name).map_or("None".into(), |name| format!("\"{name}\""));
    let defaults = format!(
        "DEFAULTS = {{\"micro_batches\": {micro_batches}, \"replicas\": \"{replicas}\", \"schedule\": {schedule}}}"
    );
    let text = TRAIN.replacen("DEFAULTS = {}", &defaults, 1);
    File { path: "train.py".into(), content: Content::text(text) }
}

/// Returns torch's name of a schedule that it has.
fn torch_name(schedule: &str) -> Option<&'static str> {
    Some(match schedule {
        "gpipe" => "GPipe",
        "1f1b" | "pipedream" | "pipedream-flush" => "1F1B",
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
        let text = text(&train_script(Some(8), &[2, 1], Some("gpipe")));
        assert!(
            text.contains(
                "DEFAULTS = {\"micro_batches\": 8, \"replicas\": \"2,1\", \"schedule\": \"GPipe\"}"
            )
        );
    }
}
