//! The same plan for other frameworks, as near as each can come.
//!
//! Each target cuts on a grid of its own: modules, layers, or parameters. Where a cut is not on the grid, the file holds
//! the nearest that is, says so in its first lines, and `exports/README.md` lists it.

mod device_map;
mod units;

use std::collections::BTreeMap;

use tracer::Program;

use crate::{
    content::{Content, File},
    names::{comment, python_quoted as quoted},
    pipeline::{Assignment, Pipeline},
};
use units::{Unit, module_at, nearest_module, titan_units, units};

/// One export.
struct Export {
    path: &'static str,
    target: &'static str,
    /// What differs from the plan; empty when nothing does.
    notes: Vec<String>,
    text: String,
}

/// Returns the files below `exports/`. `ranks` tells for each stage which rank of a pipeline runs it.
pub fn exports(
    program: &Program,
    assignment: &Assignment,
    pipeline: &Pipeline,
    ranks: &[usize],
) -> Vec<File> {
    let units = units(program, assignment);
    let in_order = assignment.stage_of.is_sorted();
    let grid = titan_units(program, assignment);
    let all = [
        split_spec(program, assignment, in_order),
        torchtitan(&grid, assignment, ranks, true),
        torchtitan(&grid, assignment, ranks, false),
        megatron(&units, assignment, ranks),
        deepspeed(&units, assignment, ranks),
        device_map::device_map(program, assignment, pipeline, ranks),
        vllm(&units, assignment, ranks),
    ];
    let mut readme = String::from("# The same plan for other frameworks\n\n");
    let mut files = Vec::new();
    for export in all {
        let state = if export.notes.is_empty() { "as planned".to_string() } else { export.notes.join("; ") };
        readme.push_str(&format!("- `{}` ({}): {state}.\n", export.path, export.target));
        files.push(File { path: format!("exports/{}", export.path), content: Content::text(export.text) });
    }
    readme.push_str("\nThe stages beside this folder hold the cut exactly, wherever it is.\n");
    files.push(File { path: "exports/README.md".into(), content: Content::text(readme) });
    files
}

/// Returns the page that stands instead of exports where devices share layers.
pub fn no_exports(shards: usize) -> File {
    let text = format!(
        "# The same plan for other frameworks\n\nNone is written: {shards} devices share each layer of this plan, and files that hold \
         the cut into stages alone would say that each device has layers of its own. `cuts` in `../plan.yaml` lists what is shared.\n"
    );
    File { path: "exports/README.md".into(), content: Content::text(text) }
}

fn head(notes: &[String], mark: &str) -> String {
    notes.iter().map(|note| format!("{mark} Differs from the plan: {}.\n", comment(note))).collect()
}

/// Returns how many ranks a pipeline has.
fn n_ranks(ranks: &[usize]) -> usize {
    ranks.iter().max().map_or(1, |last| last + 1)
}

/// Says that several stages of a rank are not what the plan has; where `looped`, one after the other is.
fn rank_note(ranks: &[usize], is_looped_known: bool) -> Option<String> {
    let n = n_ranks(ranks);
    let is_looped = ranks.iter().enumerate().all(|(stage, rank)| stage % n == *rank);
    let is_told = ranks.len() == n || (is_looped_known && is_looped && ranks.len().is_multiple_of(n));
    let told = if is_looped_known { "dealt out in another order" } else { "several to a rank" };
    (!is_told).then(|| {
        format!("the plan's {} stages are {told} on {n} ranks, here each is a rank of its own", ranks.len())
    })
}

/// Returns the ranks that a target is told which deals stages out in turn, or has one for each.
fn told_ranks(ranks: &[usize], is_looped_known: bool) -> usize {
    if rank_note(ranks, is_looped_known).is_some() { ranks.len() } else { n_ranks(ranks) }
}

/// Notes for targets that keep units whole.
fn unit_notes(units: &[Unit], assignment: &Assignment) -> Vec<String> {
    let mut notes = Vec::new();
    for unit in units.iter().filter(|unit| !unit.is_whole) {
        notes.push(format!(
            "`{}` is cut by the plan, here it is whole in part {}",
            comment(&unit.path),
            unit.stage
        ));
    }
    if !units.iter().map(|unit| unit.stage).is_sorted() {
        notes.push("modules do not run in the order of the parts".into());
    }
    for stage in 0..assignment.stages() as u32 {
        if !units.iter().any(|unit| unit.stage == stage) {
            notes.push(format!("part {stage} holds no whole module and is empty"));
        }
    }
    notes
}

/// `torch.distributed.pipelining.pipeline(split_spec=…)`.
fn split_spec(program: &Program, assignment: &Assignment, in_order: bool) -> Export {
    let mut notes = Vec::new();
    let mut lines = String::new();
    if !in_order {
        notes.push("its stages are not one after the other in the trace".into());
    }
    let mut used = Vec::new();
    for stage in 1..assignment.stages() as u32 {
        let Some(node) = assignment.stage_of.iter().position(|owner| *owner == stage) else { continue };
        let path = module_at(program, node).or_else(|| {
            let nearest = nearest_module(program, node)?;
            notes.push(format!(
                "stage {stage} begins inside a module, the nearest split is before `{}`",
                comment(&nearest)
            ));
            Some(nearest)
        });
        match path {
            Some(path) if !used.contains(&path) => {
                lines.push_str(&format!("    {}: SplitPoint.BEGINNING,\n", quoted(&path)));
                used.push(path);
            }
            _ => notes.push(format!("no module begins near stage {stage}: call pipe_split() there instead")),
        }
    }
    let text = format!(
        "\"\"\"Where torch.distributed.pipelining.pipeline() splits the model.\n\n    pipe = pipeline(model, mb_args=(x,), split_spec=split_spec)\n\"\"\"\n{}\nfrom torch.distributed.pipelining import SplitPoint\n\nsplit_spec = {{\n{lines}}}\n",
        head(&notes, "#")
    );
    Export { path: "torch_split_spec.py", target: "torch.distributed.pipelining", notes, text }
}

fn parts(units: &[Unit], assignment: &Assignment) -> Vec<Vec<String>> {
    let stages = 0..assignment.stages() as u32;
    stages.map(|stage| units.iter().filter(|u| u.stage == stage).map(|u| u.path.clone()).collect()).collect()
}

/// torchtitan's `module_fqns_per_model_part`; TOML for releases before its configuration became Python.
fn torchtitan(units: &[Unit], assignment: &Assignment, ranks: &[usize], is_python: bool) -> Export {
    let mut notes = unit_notes(units, assignment);
    notes.extend(rank_note(ranks, true));
    let lists: String = parts(units, assignment)
        .iter()
        .map(|part| {
            format!("    [{}],\n", part.iter().map(|path| quoted(path)).collect::<Vec<_>>().join(", "))
        })
        .collect();
    let n = told_ranks(ranks, true);
    match is_python {
        true => Export {
            path: "torchtitan.py",
            target: "torchtitan",
            text: format!(
                "\"\"\"Parts of the model for torchtitan: config.parallelism.module_fqns_per_model_part.\"\"\"\n{}\npipeline_parallel_degree = {n}\nmodule_fqns_per_model_part = [\n{lists}]\n",
                head(&notes, "#")
            ),
            notes,
        },
        false => Export {
            path: "torchtitan.toml",
            target: "torchtitan releases with TOML",
            text: format!(
                "{}[parallelism]\npipeline_parallel_degree = {n}\nmodule_fqns_per_model_part = [\n{lists}]\n",
                head(&notes, "#")
            ),
            notes,
        },
    }
}

/// Layers that repeat: the longest list of modules of one class, where it does most of the model's work.
fn layers(units: &[Unit]) -> Vec<&Unit> {
    let mut lists: BTreeMap<&str, Vec<&Unit>> = BTreeMap::new();
    for unit in units {
        if let Some(container) = &unit.container {
            lists.entry(container).or_default().push(unit);
        }
    }
    let nodes = |units: &mut dyn Iterator<Item = &Unit>| units.map(|unit| unit.nodes).sum::<usize>();
    let total = nodes(&mut units.iter());
    let equal = lists.into_iter().filter(|(_, members)| {
        members.iter().all(|unit| unit.class == members[0].class)
            && nodes(&mut members.iter().copied()) * 2 >= total
    });
    let longest = equal.max_by_key(|(name, members)| (members.len(), std::cmp::Reverse(name.len())));
    longest.map(|(_, members)| members).unwrap_or_default()
}

fn layer_counts(layers: &[&Unit], assignment: &Assignment) -> Vec<usize> {
    (0..assignment.stages() as u32)
        .map(|stage| layers.iter().filter(|layer| layer.stage == stage).count())
        .collect()
}

/// Megatron's `--pipeline-model-parallel-layout`.
fn megatron(units: &[Unit], assignment: &Assignment, ranks: &[usize]) -> Export {
    let layers = layers(units);
    let mut notes: Vec<String> = layers
        .iter()
        .filter(|layer| !layer.is_whole)
        .map(|layer| {
            format!(
                "layer `{}` is cut by the plan, here it is whole in stage {}",
                comment(&layer.path),
                layer.stage
            )
        })
        .collect();
    let counts = layer_counts(&layers, assignment);
    if layers.is_empty() {
        notes.push(
            "no list of equal layers does most of the model's work, which is all that Megatron can place"
                .into(),
        );
    }
    if counts.contains(&0) && !layers.is_empty() {
        notes.push("a stage without layers can hang Megatron".into());
    }
    notes.extend(rank_note(ranks, true));
    let last = counts.len() - 1;
    let stages: Vec<String> = counts
        .iter()
        .enumerate()
        .map(|(stage, count)| {
            let first = if stage == 0 { "E" } else { "" };
            let end = if stage == last { "L" } else { "" };
            format!("{first}{}{end}", "t".repeat(*count))
        })
        .collect();
    let text = match layers.is_empty() {
        true => head(&notes, "#"),
        false => format!(
            "{}--pipeline-model-parallel-size {} --pipeline-model-parallel-layout \"{}\"\n",
            head(&notes, "#"),
            told_ranks(ranks, true),
            stages.join("|")
        ),
    };
    Export { path: "megatron.txt", target: "Megatron-LM", notes, text }
}

/// DeepSpeed takes no list of parts: a subclass of its `PipelineModule` sets them.
fn deepspeed(units: &[Unit], assignment: &Assignment, ranks: &[usize]) -> Export {
    let mut notes = unit_notes(units, assignment);
    notes.extend(rank_note(ranks, false));
    let mut bounds = vec![0_usize];
    for stage in 0..assignment.stages() as u32 {
        bounds.push(bounds[stage as usize] + units.iter().filter(|unit| unit.stage == stage).count());
    }
    notes.push("its layers must be a sequence: the model's own forward is not run".into());
    let layers: String =
        parts(units, assignment).concat().iter().map(|path| format!("    {},\n", quoted(path))).collect();
    let text = format!(
        "\"\"\"The plan's parts for DeepSpeed.\n\n    layers = [model.get_submodule(name) for name in LAYERS]\n    net = PlannedPipeline(layers=layers, num_stages={}, loss_fn=loss)\n\"\"\"\n{}\nfrom deepspeed.pipe import PipelineModule\n\nLAYERS = [\n{layers}]\nPARTS = {bounds:?}\n\n\nclass PlannedPipeline(PipelineModule):\n    def _partition_layers(self, method=\"uniform\"):\n        self.parts = PARTS\n        stage = self._topo.get_coord(self.global_rank).pipe\n        self._set_bounds(start=PARTS[stage], stop=PARTS[stage + 1])\n",
        assignment.stages(),
        head(&notes, "#")
    );
    Export { path: "deepspeed_parts.py", target: "DeepSpeed", notes, text }
}

/// vLLM's `VLLM_PP_LAYER_PARTITION`.
fn vllm(units: &[Unit], assignment: &Assignment, ranks: &[usize]) -> Export {
    let layers = layers(units);
    let counts = layer_counts(&layers, assignment);
    let mut notes: Vec<String> = layers
        .iter()
        .filter(|layer| !layer.is_whole)
        .map(|layer| {
            format!(
                "layer `{}` is cut by the plan, here it is whole in stage {}",
                comment(&layer.path),
                layer.stage
            )
        })
        .collect();
    if layers.is_empty() {
        notes.push(
            "no list of equal layers does most of the model's work, which is all that vLLM can place".into(),
        );
    }
    if counts.contains(&0) && !layers.is_empty() {
        notes.push("a stage holds no layer".into());
    }
    notes.extend(rank_note(ranks, false));
    let partition: Vec<String> = counts.iter().map(usize::to_string).collect();
    let text = match layers.is_empty() {
        true => head(&notes, "#"),
        false => format!(
            "{}# With --pipeline-parallel-size {}.\nVLLM_PP_LAYER_PARTITION={}\n",
            head(&notes, "#"),
            counts.len(),
            partition.join(",")
        ),
    };
    Export { path: "vllm.env", target: "vLLM", notes, text }
}
