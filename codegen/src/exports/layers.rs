//! Targets that place whole layers: the model is one list of equal layers, with an embedding before and a head after
//! it.

use std::collections::BTreeMap;

use super::{Export, Made, Subject, cut_notes, head, schedule_note, units::Unit};
use crate::names::comment;

/// The modules of a Hugging Face decoder, by which torchtitan's backend and transformers' own pipelines recognise one.
pub(super) const DECODER: [&str; 4] = ["model.embed_tokens", "model.layers.0", "model.norm", "lm_head"];

/// Tells whether units are those of a Hugging Face decoder.
pub(super) fn is_decoder(units: &[Unit]) -> bool {
    DECODER.iter().all(|path| units.iter().any(|unit| unit.path == *path))
}

/// Layers by stage, and the differences from the plan.
pub(super) struct Layers {
    /// Layers per stage.
    pub counts: Vec<usize>,
    /// Layers per stage that are recomputed.
    pub again: Vec<usize>,
    /// Of these, layers of all stages that keep the results of their products.
    pub light: usize,
    /// Differences from the plan.
    pub notes: Vec<String>,
}

/// Megatron-LM's arguments.
pub(super) fn megatron(subject: &Subject<'_>) -> Export {
    let made = megatron_layout(subject).map(|Layout { fields, notes, .. }| {
        let mut arguments: Vec<String> = fields
            .iter()
            .map(|(name, value)| match value {
                Value::Number(number) => format!("--{} {number}", name.replace('_', "-")),
                Value::Text(text) => format!("--{} \"{text}\"", name.replace('_', "-")),
                Value::Set => format!("--{}", name.replace('_', "-")),
            })
            .collect();
        if let Some((micro_batches, samples)) = subject.terms.micro_batches {
            let replicas = subject.terms.replicas().unwrap_or(1);
            arguments.push(format!("--micro-batch-size {samples}"));
            arguments.push(format!("--global-batch-size {}", samples * (micro_batches * replicas) as u64));
        }
        if subject.terms.sharding == schema::ShardingLevel::Zero1 {
            arguments.push("--use-distributed-optimizer".into());
        }
        Made { text: format!("{}{}\n", head(&notes, "#"), arguments.join(" ")), notes }
    });
    Export { path: "megatron.txt", target: "Megatron-LM", made }
}

/// Fields of a model's configuration in Megatron-Bridge, which are those of Megatron Core's `TransformerConfig`.
pub(super) fn megatron_bridge(subject: &Subject<'_>) -> Export {
    let made = megatron_layout(subject).map(|Layout { fields, chunks, notes }| {
        let mut lines: Vec<String> = fields
            .iter()
            .map(|(name, value)| match value {
                Value::Number(number) => format!("    {name}={number},\n"),
                Value::Text(text) => format!("    {name}=\"{text}\",\n"),
                Value::Set => format!("    {name}=True,\n"),
            })
            .collect();
        if chunks > 1 {
            lines.push(format!("    virtual_pipeline_model_parallel_size={chunks},\n"));
        }
        let text = format!(
            "\"\"\"The plan for a model of Megatron-Bridge; set it before the model is built.\n\n    for name, value in PLAN.items():\n        setattr(recipe.model, name, value)\n\"\"\"\n{}\nPLAN = dict(\n{})\n",
            head(&notes, "#"),
            lines.concat()
        );
        Made { text, notes }
    });
    Export { path: "megatron_bridge.py", target: "Megatron-Bridge", made }
}

/// vLLM's `VLLM_PP_LAYER_PARTITION`.
pub(super) fn vllm(subject: &Subject<'_>) -> Export {
    let options = ["--pipeline-parallel-size", "--tensor-parallel-size", "--data-parallel-size"];
    let made = partition(subject, "vLLM", "VLLM_PP_LAYER_PARTITION", options);
    Export { path: "vllm.env", target: "vLLM", made }
}

/// SGLang's `SGLANG_PP_LAYER_PARTITION`, which its `get_pp_indices` reads as vLLM does.
pub(super) fn sglang(subject: &Subject<'_>) -> Export {
    let options = ["--pp-size", "--tp-size", "--dp-size"];
    let made = partition(subject, "SGLang", "SGLANG_PP_LAYER_PARTITION", options);
    Export { path: "sglang.env", target: "SGLang", made }
}

/// Writes the number of layers per rank as a variable; `options` are those for ranks, shards and replicas.
fn partition(
    subject: &Subject<'_>,
    target: &str,
    variable: &str,
    [ranks, shards, replicas]: [&str; 3],
) -> Result<Made, String> {
    placed(subject, target).and_then(|Layers { counts, notes, .. }| {
        let terms = subject.terms;
        terms.one_to_a_rank()?;
        if let Some(stage) = counts.iter().position(|count| *count == 0) {
            return Err(format!("stage {stage} has no layer"));
        }
        let mut options = format!("{ranks} {}", counts.len());
        terms.no_positions()?;
        for (option, count) in [(shards, terms.shards), (replicas, terms.replicas()?)] {
            if count > 1 {
                options.push_str(&format!(" {option} {count}"));
            }
        }
        let partition: Vec<String> = counts.iter().map(usize::to_string).collect();
        let text = format!("{}# With {options}.\n{variable}={}\n", head(&notes, "#"), partition.join(","));
        Ok(Made { notes, text })
    })
}

/// The layout for both Megatrons.
struct Layout {
    fields: Vec<(&'static str, Value)>,
    /// Stages on each rank.
    chunks: usize,
    notes: Vec<String>,
}

enum Value {
    Number(usize),
    Text(String),
    Set,
}

fn megatron_layout(subject: &Subject<'_>) -> Result<Layout, String> {
    let terms = subject.terms;
    let Layers { counts, again, light, mut notes } = placed(subject, "Megatron")?;
    if !terms.is_looped() {
        return Err("its stages are assigned to ranks in another order than Megatron's".into());
    }
    let last = counts.len() - 1;
    if let Some(stage) = (1..last).find(|stage| counts[*stage] == 0) {
        return Err(format!("stage {stage} has no layer"));
    }
    match terms.sharding {
        schema::ShardingLevel::None | schema::ShardingLevel::Zero1 => {}
        level => notes.push(format!("replicas shard nothing, in the plan {}", level.name())),
    }
    if terms.sharding == schema::ShardingLevel::Zero1 {
        notes.extend(terms.without_groups(terms.replicas()?));
    }
    let chunks = counts.len() / terms.n_ranks();
    notes.extend(schedule_note(terms, &["1f1b", "interleaved-1f1b", "vpp"], "1F1B"));
    let stages: Vec<String> = counts
        .iter()
        .enumerate()
        .map(|(stage, count)| {
            let first = if stage == 0 { "E" } else { "" };
            let end = if stage == last { "L" } else { "" };
            format!("{first}{}{end}", "t".repeat(*count))
        })
        .collect();
    let mut fields = vec![("pipeline_model_parallel_size", Value::Number(terms.n_ranks()))];
    // A single rank needs no layout.
    if terms.n_ranks() > 1 {
        fields.push(("pipeline_model_parallel_layout", Value::Text(stages.join("|"))));
    }
    let (tensor, context) = terms.tensor_and_context();
    for (name, count) in [("tensor_model_parallel_size", tensor), ("context_parallel_size", context)] {
        if count > 1 {
            fields.push((name, Value::Number(count)));
        }
    }
    if terms.sequence_parallel == Some(schema::SequenceParallel::On) {
        fields.push(("sequence_parallel", Value::Set));
    }
    if let Some(&most) = again.iter().max().filter(|most| **most > 0) {
        // Of each stage the first layers.
        fields.push(("recompute_granularity", Value::Text("full".into())));
        fields.push(("recompute_method", Value::Text("block".into())));
        fields.push(("recompute_num_layers", Value::Number(most)));
        let least = again.iter().min().copied().unwrap_or(0);
        if least < most {
            notes.push(format!("each stage recomputes {most} layers, in the plan {least} to {most}"));
        }
        if light > 0 {
            let of = if light == again.iter().sum::<usize>() { "these" } else { "some of these" };
            notes.push(format!("layers are recomputed whole, in the plan {of} but for their products"));
        }
    }
    Ok(Layout { fields, chunks, notes })
}

/// Returns the layers of each stage for a target that has the embedding in the first stage and the head in the last.
pub(super) fn placed(subject: &Subject<'_>, target: &str) -> Result<Layers, String> {
    let Subject { program, units, assignment, terms, .. } = subject;
    terms.replicas()?;
    terms.no_bands()?;
    let (layers, others) = layers(units);
    let (Some(first), Some(end)) = (layers.first(), layers.last()) else {
        return Err(format!(
            "no list of equal layers does most of the model's work, and {target} can only place such lists"
        ));
    };
    let of = |path: &str| program.modules.iter().find(|module| module.path == path);
    let is_deep = |unit: &&Unit| of(&unit.path).is_some_and(|module| !module.children.is_empty());
    if let Some(other) = others.into_iter().find(|list| list.iter().all(is_deep)) {
        let lists = [first, &other[0]].map(|unit| comment(unit.container.as_deref().unwrap_or_default()));
        return Err(format!("it has two lists of layers, `{}` and `{}`", lists[0], lists[1]));
    }
    let is_embedding = |module: &tracer::Module| {
        module.class.ends_with("Embedding") && !layers.iter().any(|layer| is_below(&module.path, &layer.path))
    };
    if !program.modules.iter().any(is_embedding) {
        return Err(format!("no embedding precedes its layers, which {target} requires"));
    }
    if !layers.iter().map(|layer| layer.stage).is_sorted() {
        return Err("layers do not run in the order of the stages".into());
    }
    let mut notes = cut_notes(layers.iter().copied());
    let last = assignment.stages() as u32 - 1;
    for unit in units.iter().filter(|unit| unit.container != first.container) {
        let home = if unit.first < first.first { 0 } else { last };
        let is_between = unit.first > first.first && unit.first < end.first;
        if !is_between && unit.stage != home {
            let path = comment(&unit.path);
            notes.push(format!("`{path}` is in stage {} of the plan, here in stage {home}", unit.stage));
        }
    }
    let counts = (0..=last).map(|stage| layers.iter().filter(|layer| layer.stage == stage).count()).collect();
    let again_in = |stage: u32| {
        layers.iter().filter(|layer| layer.stage == stage && terms.is_again(layer).is_some()).count()
    };
    let again = (0..=last).map(again_in).collect();
    let light = layers.iter().filter(|layer| terms.is_again(layer) == Some(true)).count();
    Ok(Layers { counts, again, light, notes })
}

fn is_below(path: &str, above: &str) -> bool {
    path.strip_prefix(above).is_some_and(|rest| rest.starts_with('.'))
}

/// Repeated layers: the longest list of modules of one class, if it does most of the model's work; then other such
/// lists.
pub(super) fn layers(units: &[Unit]) -> (Vec<&Unit>, Vec<Vec<&Unit>>) {
    let mut lists: BTreeMap<&str, Vec<&Unit>> = BTreeMap::new();
    for unit in units {
        if let Some(container) = &unit.container {
            lists.entry(container).or_default().push(unit);
        }
    }
    let nodes = |units: &mut dyn Iterator<Item = &Unit>| units.map(|unit| unit.nodes).sum::<usize>();
    let total = nodes(&mut units.iter());
    let mut equal: Vec<Vec<&Unit>> = lists
        .into_values()
        .filter(|members| members.len() > 1 && members.iter().all(|unit| unit.class == members[0].class))
        .collect();
    // Of lists of equal length the one that runs first.
    equal.sort_by_key(|members| (std::cmp::Reverse(members.len()), members[0].first));
    let has_most = |members: &Vec<&Unit>| nodes(&mut members.iter().copied()) * 2 >= total;
    match equal.iter().position(has_most) {
        Some(index) => (equal.remove(index), equal),
        None => (Vec::new(), Vec::new()),
    }
}
