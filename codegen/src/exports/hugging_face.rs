//! Hugging Face's `DistributedConfig`: a `tp_plan` from the plan's cuts of weights, and pipelines by its own even rule.

use std::collections::BTreeMap;

use indexmap::IndexMap;
use schema::ShardingLevel;
use tracer::{Node, Operand, Program, ValueId};

use super::{Export, Made, Subject, head, layers, quoted};
use crate::{
    names::{comment, starred},
    nodes::leaves,
};

/// Returns the configuration.
pub(super) fn hugging_face(subject: &Subject<'_>) -> Export {
    Export { path: "hugging_face.py", target: "Hugging Face transformers", made: configuration(subject) }
}

fn configuration(subject: &Subject<'_>) -> Result<Made, String> {
    let Subject { program, terms, .. } = subject;
    let class = program.modules.first().map_or("", |root| root.class.as_str());
    if !class.starts_with("transformers.") {
        return Err(format!("`{}` is not one of its models", comment(class)));
    }
    terms.no_bands()?;
    terms.no_positions()?;
    let replicas = terms.replicas()?;
    let mut notes: Vec<String> = terms.recompute_note().into_iter().collect();
    let stages = pipeline(subject)?;
    if terms.shards < 2 && stages < 2 {
        return Err(
            "neither layers nor the model is cut: its Trainer runs replicas without a configuration".into()
        );
    }
    let (replicated, shared_out) = terms.degrees(replicas);
    if !matches!(terms.sharding, ShardingLevel::None | ShardingLevel::Zero3) {
        notes.push(format!(
            "replicas also shard parameters between steps, in the plan {}",
            terms.sharding.name()
        ));
    }
    let mut lines = Vec::new();
    for (name, count) in [
        ("tp_size", terms.shards),
        ("pp_size", stages),
        ("dp_replicate_size", replicated),
        ("fsdp_size", shared_out),
    ] {
        if count > 1 {
            lines.push(format!("    {name}={count},\n"));
        }
    }
    if terms.shards > 1 {
        let entries: Vec<String> = tp_plan(program, terms)?
            .iter()
            .map(|(path, style)| format!("        {}: {},\n", quoted(path), quoted(style)))
            .collect();
        lines.push(format!("    tp_plan={{\n{}    }},\n", entries.concat()));
    }
    let text = format!(
        "\"\"\"The plan for Hugging Face: AutoModel….from_pretrained(…, distributed_config=distributed_config).\n\nRules of the model's own tp_plan are kept for modules that are not listed here.\n\"\"\"\n{}\nfrom transformers.distributed import DistributedConfig\n\ndistributed_config = DistributedConfig(\n{})\n",
        head(&notes, "#"),
        lines.concat()
    );
    Ok(Made { notes, text })
}

/// Returns the number of stages if they are those of transformers' rule: equal numbers of layers, the remainder in the
/// last, the embedding in the first, the head in the last.
fn pipeline(subject: &Subject<'_>) -> Result<usize, String> {
    let terms = subject.terms;
    if subject.assignment.stages() < 2 {
        return Ok(1);
    }
    if terms.schedule.is_some() && !terms.is_inference {
        return Err("its pipelines run only forward passes".into());
    }
    terms.one_to_a_rank()?;
    if !layers::is_decoder(&subject.units) {
        return Err(format!(
            "its pipelines support only decoders, which have {}",
            layers::DECODER.join(", ")
        ));
    }
    let layers::Layers { counts, notes, .. } = layers::placed(subject, "its pipeline")?;
    let ranks = counts.len();
    let even = counts.iter().sum::<usize>() / ranks;
    if !notes.is_empty() || counts[..ranks - 1].iter().any(|count| *count != even) {
        let told: Vec<String> = counts.iter().map(usize::to_string).collect();
        return Err(format!(
            "its pipelines have {even} layers on each rank and the rest on the last, the plan has other boundaries ({} layers)",
            told.join(", ")
        ));
    }
    Ok(ranks)
}

/// Returns a style for each module whose weight is cut, by names with a star for layer numbers.
fn tp_plan(program: &Program, terms: &super::Terms<'_>) -> Result<IndexMap<String, &'static str>, String> {
    let mut plan = IndexMap::new();
    for (name, cut) in &terms.cuts {
        let Some((path, attribute)) = name.rsplit_once('.') else {
            return Err(format!("`{}` does not belong to a module", comment(name)));
        };
        // A bias is cut with its weight.
        if attribute == "bias" {
            continue;
        }
        let alike: Vec<&tracer::Module> =
            program.modules.iter().filter(|module| starred(&module.path) == path).collect();
        let class = alike.first().map_or("", |module| module.class.rsplit('.').next().unwrap_or(""));
        let exchange = exchanges(program, path);
        let style = match (class, attribute, cut.dim, cut.blocks) {
            ("Linear", "weight", 0, 1) if exchange.gathers => "colwise_gather_output",
            ("Linear", "weight", 0, 1) => "colwise",
            ("Linear", "weight", 0, _) if !exchange.gathers => "packed_colwise",
            ("Linear", "weight", 1, 1) if exchange.scatters => "rowwise_split_input",
            ("Linear", "weight", 1, 1) => "rowwise",
            ("Embedding", "weight", 0, 1) => "embedding_rowwise",
            ("Embedding", "weight", 1, 1) => "embedding_colwise",
            _ => {
                return Err(format!(
                    "no style of its tp_plan cuts `{}` of a {} along dimension {}{}",
                    comment(name),
                    comment(class),
                    cut.dim,
                    if cut.blocks > 1 { format!(" in {} blocks", cut.blocks) } else { String::new() }
                ));
            }
        };
        plan.insert(path.to_string(), style);
    }
    if plan.is_empty() {
        return Err("no weight is cut".into());
    }
    Ok(plan)
}

/// Exchanges around a module's matrix product.
#[derive(Default)]
struct Exchanges {
    /// Its result is gathered at once.
    gathers: bool,
    /// Its input is each device's slice of a whole value.
    scatters: bool,
}

/// Examines the products of all modules under a starred path.
fn exchanges(program: &Program, path: &str) -> Exchanges {
    let mut maker: BTreeMap<ValueId, &Node> = BTreeMap::new();
    for node in &program.nodes {
        maker.extend(node.outputs.iter().map(|output| (*output, node)));
    }
    let of = |node: &Node| {
        starred(&program.modules[program.calls[node.call.index()].module.index()].path) == path
            && !node.operator.starts_with("shard::")
    };
    let mut found = Exchanges::default();
    for node in &program.nodes {
        for value in operands(node) {
            let Some(made_by) = maker.get(&value) else { continue };
            found.gathers |= node.operator.starts_with("shard::shard_gather") && of(made_by);
            found.scatters |= made_by.operator.starts_with("shard::shard_scatter") && of(node);
        }
    }
    found
}

fn operands(node: &Node) -> Vec<ValueId> {
    let mut values = Vec::new();
    for argument in &node.arguments {
        leaves(&argument.operand, &mut |leaf| {
            if let Operand::Value(value) = leaf {
                values.push(*value);
            }
        });
    }
    values
}
