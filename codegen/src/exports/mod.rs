//! The plan for other frameworks, as far as each can express it.
//!
//! Each target cuts at its own granularity: modules, layers, or parameters. If a cut is inside a piece that a target
//! keeps whole, the file has the nearest possible cut, and notes that in its first lines. If more would differ (a part
//! would be empty, replicas are unequal, ranks hold stages in another way), no file is written. `exports/README.md`
//! reports both.

mod deepspeed;
mod device_map;
mod hugging_face;
mod layers;
mod ray;
mod torchtitan;
mod units;

use schema::{Cut, SequenceParallel, ShardingLevel};
use tracer::Program;

use crate::{
    content::{Content, File},
    names::{comment, python_quoted as quoted},
    pipeline::{Assignment, Pipeline},
};
use units::{Unit, module_at, nearest_module};

/// The plan's settings apart from its cut.
#[derive(Clone, Debug)]
pub struct Terms<'p> {
    /// The rank of a pipeline that runs each stage.
    pub ranks: &'p [usize],
    /// Replicas of each rank's stages: devices, or groups that share layers.
    pub replicas: &'p [usize],
    /// Devices that share each layer.
    pub shards: usize,
    /// Cuts of parameters, by names with a star for layer numbers.
    pub cuts: Vec<(&'p str, Cut)>,
    /// Groups of these devices that have a part of the samples or positions each, and share its layers; 1 without groups.
    pub context_parallel: usize,
    /// Parts of the samples and of the experts, each on a device or on a group of them that shares its layers; 1 if experts are
    /// not shared out so.
    pub expert_parallel: usize,
    /// Each operator is split in its own way.
    pub splits_operators: bool,
    /// Whether values between shared layers are in parts of the sequences, if the plan states it.
    pub sequence_parallel: Option<SequenceParallel>,
    /// Sharding level of replicas.
    pub sharding: ShardingLevel,
    /// Number of replicas that shard together; `None` for all, or if it does not divide them.
    pub sharding_group: Option<usize>,
    /// The schedule, if there is a plan.
    pub schedule: Option<&'p str>,
    /// Whether `schedule.csv` is written.
    pub has_table: bool,
    /// Micro-batches per step of one pipeline, and samples in each.
    pub micro_batches: Option<(usize, u64)>,
    /// True for an inference plan.
    pub is_inference: bool,
    /// What each stage recomputes in its backward pass; empty without a plan.
    pub recomputed: Vec<Recomputed<'p>>,
}

/// What a stage recomputes in its backward pass.
#[derive(Clone, Copy, Debug)]
pub struct Recomputed<'p> {
    /// Blocks, by path.
    pub blocks: &'p [String],
    /// Those of them that keep the results of their products.
    pub light: &'p [String],
    /// Whether the stage is recomputed at once.
    pub is_whole: bool,
}

impl Terms<'_> {
    /// Returns the ranks of a pipeline.
    fn n_ranks(&self) -> usize {
        self.ranks.iter().max().map_or(1, |last| last + 1)
    }

    /// Returns the number of groups of replicas that each hold all state, and the number of replicas that shard it in
    /// each.
    fn degrees(&self, replicas: usize) -> (usize, usize) {
        let group = self.sharding_group.filter(|group| *group > 0 && replicas.is_multiple_of(*group));
        match (self.sharding, group.unwrap_or(replicas)) {
            (ShardingLevel::None, _) => (replicas, 1),
            (_, sharers) => (replicas / sharers, sharers),
        }
    }

    /// Tells whether a module is recomputed, or a part of it, and whether all of that keeps the results of products.
    fn is_again(&self, unit: &Unit) -> Option<bool> {
        let stage = self.recomputed.get(unit.stage as usize)?;
        let is_own = |path: &&String| {
            path.strip_prefix(&unit.path).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        if stage.is_whole {
            return Some(false);
        }
        let mut own = stage.blocks.iter().filter(is_own).peekable();
        own.peek()?;
        Some(own.all(|path| stage.light.contains(path)))
    }

    /// A note that a target recomputes nothing by itself, if the plan does.
    fn recompute_note(&self) -> Option<String> {
        let again = |stage: &Recomputed<'_>| stage.is_whole || !stage.blocks.is_empty();
        let some = self.recomputed.iter().any(again);
        some.then(|| {
            "nothing is recomputed in the backward pass, in the plan blocks are (`recompute`)".into()
        })
    }

    /// A note that a framework shards over all replicas, if the plan has groups of them.
    fn without_groups(&self, replicas: usize) -> Option<String> {
        let (groups, sharers) = self.degrees(replicas);
        (self.sharding != ShardingLevel::None && groups > 1)
            .then(|| format!("all replicas shard together, in the plan groups of {sharers}"))
    }

    /// Returns the number of replicas of each rank.
    ///
    /// # Errors
    ///
    /// If ranks have unequal numbers of replicas, which no other framework supports.
    fn replicas(&self) -> Result<usize, String> {
        let first = self.replicas.first().copied().unwrap_or(1);
        if self.replicas.iter().all(|count| *count == first) {
            Ok(first)
        } else {
            Err("its stages have unequal numbers of replicas".into())
        }
    }

    /// Tells whether stages are assigned to ranks cyclically.
    fn is_looped(&self) -> bool {
        let n = self.n_ranks();
        self.ranks.len().is_multiple_of(n)
            && self.ranks.iter().enumerate().all(|(stage, rank)| stage % n == *rank)
    }

    /// Tells whether stages go down the ranks and up again.
    fn is_v(&self) -> bool {
        let n = self.n_ranks();
        self.ranks.len() == 2 * n
            && self.ranks.iter().enumerate().all(|(stage, rank)| *rank == stage.min(2 * n - 1 - stage))
    }

    /// Refuses plans with several stages per rank for targets with one.
    fn one_to_a_rank(&self) -> Result<(), String> {
        if self.ranks.len() == self.n_ranks() {
            Ok(())
        } else {
            Err(format!("several of its {} stages are on one rank", self.ranks.len()))
        }
    }

    /// Refuses plans with shared layers for targets without them.
    fn whole_layers(&self) -> Result<(), String> {
        self.one_way()?;
        match self.shards {
            0 | 1 => Ok(()),
            shards if self.has_positions() => {
                Err(format!("{shards} devices each have a part of every sequence"))
            }
            shards => Err(format!("{shards} devices share each layer")),
        }
    }

    /// Refuses parts of samples or positions for targets without them.
    fn no_positions(&self) -> Result<(), String> {
        match self.tensor_and_context() {
            (_, 1) => Ok(()),
            (1, parts) => Err(format!("{parts} devices each have a part of every sequence")),
            (_, parts) => Err(format!("{parts} groups of devices each have a part of every sequence")),
        }
    }

    /// Tells whether devices each have samples or positions, with whole weights: nothing is cut.
    fn has_positions(&self) -> bool {
        self.shards > 1 && (self.cuts.is_empty() || self.splits_operators)
    }

    /// Refuses splits of single operators, which no other framework is told of.
    fn one_way(&self) -> Result<(), String> {
        if self.splits_operators {
            return Err(format!("each operator is split over {} devices in its own way", self.shards));
        }
        match self.expert_parallel {
            0 | 1 => Ok(()),
            parts => {
                let groups = if parts < self.shards { "groups of devices" } else { "devices" };
                Err(format!("{parts} {groups} each have a part of the experts, and of the samples"))
            }
        }
    }

    /// Returns the number of devices with parts of weights, and the number with parts of sequences.
    fn tensor_and_context(&self) -> (usize, usize) {
        let shards = self.shards.max(1);
        let context = if self.has_positions() { shards } else { self.context_parallel.max(1) };
        (shards / context, context)
    }

    /// Refuses images in bands and weights on one device of several, which no other framework supports.
    fn no_bands(&self) -> Result<(), String> {
        self.one_way()?;
        if let Some((name, _)) = self.cuts.iter().find(|(_, cut)| cut.on_first) {
            return Err(format!("only the first of {} devices has `{name}`", self.shards));
        }
        if self.cuts.iter().any(|(_, cut)| cut.bands) {
            Err(format!("{} devices each have a band of every image", self.shards))
        } else {
            Ok(())
        }
    }
}

/// One export, written or refused.
struct Export {
    path: &'static str,
    target: &'static str,
    made: Result<Made, String>,
}

/// The content of an export.
struct Made {
    /// Differences from the plan; empty if there are none.
    notes: Vec<String>,
    text: String,
}

/// The source of every export.
struct Subject<'p> {
    program: &'p Program,
    assignment: &'p Assignment,
    pipeline: &'p Pipeline,
    terms: &'p Terms<'p>,
    /// Pieces that most targets keep whole.
    units: Vec<Unit>,
}

/// Returns the files below `exports/`.
pub fn exports(
    program: &Program,
    assignment: &Assignment,
    pipeline: &Pipeline,
    terms: &Terms<'_>,
) -> Vec<File> {
    let units = units::units(program, assignment);
    let subject = Subject { program, assignment, pipeline, terms, units };
    let all = [
        split_spec(&subject),
        torchtitan::torchtitan(&subject),
        layers::megatron(&subject),
        layers::megatron_bridge(&subject),
        deepspeed::deepspeed(&subject),
        device_map::device_map(&subject),
        hugging_face::hugging_face(&subject),
        layers::vllm(&subject),
        layers::sglang(&subject),
        ray::ray(&subject),
    ];
    let mut readme = String::from("# The same plan for other frameworks\n\n");
    let mut refused = String::new();
    let mut files = Vec::new();
    for Export { path, target, made } in all {
        match made {
            Ok(Made { notes, text }) => {
                let state = if notes.is_empty() { "as planned".to_string() } else { notes.join("; ") };
                readme.push_str(&format!("- `{path}` ({target}): {state}.\n"));
                files.push(File { path: format!("exports/{path}"), content: Content::text(text) });
            }
            Err(reason) => refused.push_str(&format!("- {target}: {reason}.\n")),
        }
    }
    if !refused.is_empty() {
        readme.push_str(&format!("\nNot written, because they cannot express the plan:\n\n{refused}"));
    }
    readme.push_str("\nThe stages in the parent folder have exactly the plan's cut.\n");
    files.push(File { path: "exports/README.md".into(), content: Content::text(readme) });
    files
}

fn head(notes: &[String], mark: &str) -> String {
    notes.iter().map(|note| format!("{mark} Differs from the plan: {}.\n", comment(note))).collect()
}

/// A note that a target runs another schedule than the plan's.
fn schedule_note(terms: &Terms<'_>, runs: &[&str], named: &str) -> Option<String> {
    let planned = terms.schedule.filter(|planned| terms.n_ranks() > 1 && !runs.contains(planned))?;
    Some(format!("it runs {named}, the plan has {planned}"))
}

/// Notes about units of a list that the plan cuts and the export keeps whole.
fn cut_notes<'u>(units: impl IntoIterator<Item = &'u Unit>) -> Vec<String> {
    let cut = units.into_iter().filter(|unit| !unit.is_whole);
    cut.map(|unit| {
        format!("`{}` is cut by the plan, here it is whole in stage {}", comment(&unit.path), unit.stage)
    })
    .collect()
}

/// `torch.distributed.pipelining.pipeline(split_spec=…)`.
fn split_spec(subject: &Subject<'_>) -> Export {
    Export {
        path: "torch_split_spec.py",
        target: "torch.distributed.pipelining",
        made: split_points(subject),
    }
}

fn split_points(Subject { program, assignment, terms, .. }: &Subject<'_>) -> Result<Made, String> {
    terms.whole_layers()?;
    if assignment.stages() < 2 {
        return Err("it has one stage: there is nothing to split".into());
    }
    if !assignment.stage_of.is_sorted() {
        return Err("its stages are not contiguous in the trace".into());
    }
    let mut notes: Vec<String> = terms.recompute_note().into_iter().collect();
    let mut lines = String::new();
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
            _ => {
                return Err(format!(
                    "no module begins near stage {stage}; only pipe_split() can split there"
                ));
            }
        }
    }
    let text = format!(
        "\"\"\"Where torch.distributed.pipelining.pipeline() splits the model.\n\n    pipe = pipeline(model, mb_args=(x,), split_spec=split_spec)\n\"\"\"\n{}\nfrom torch.distributed.pipelining import SplitPoint\n\nsplit_spec = {{\n{lines}}}\n",
        head(&notes, "#")
    );
    Ok(Made { notes, text })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Eight replicas in groups, in a number that does not divide them, and without groups.
    #[test]
    fn groups_of_replicas_are_two_degrees() {
        let terms = |sharding, sharding_group| Terms {
            ranks: &[0],
            replicas: &[8],
            shards: 1,
            context_parallel: 1,
            splits_operators: false,
            expert_parallel: 1,
            cuts: Vec::new(),
            sharding,
            sharding_group,
            schedule: None,
            has_table: false,
            micro_batches: None,
            is_inference: false,
            recomputed: Vec::new(),
            sequence_parallel: None,
        };
        assert_eq!(terms(ShardingLevel::Zero3, Some(4)).degrees(8), (2, 4));
        assert_eq!(terms(ShardingLevel::Zero3, Some(3)).degrees(8), (1, 8));
        assert_eq!(terms(ShardingLevel::Zero1, None).degrees(8), (1, 8));
        assert_eq!(terms(ShardingLevel::None, Some(4)).degrees(8), (8, 1));
        assert!(terms(ShardingLevel::Zero1, Some(4)).without_groups(8).is_some());
        assert_eq!(terms(ShardingLevel::Zero1, None).without_groups(8), None);
    }
}
