//! torchtitan's `ParallelismConfig`: degrees, schedule, and `module_fqns_per_model_part`.
//!
//! It splits two kinds of models: its own, whose root has `tok_embeddings`, `layers` and further modules, and decoders
//! of Hugging Face through its backend, which renames their `model.embed_tokens`, `model.layers`, `model.norm` and
//! `lm_head` to its own names. Forward passes of other models cannot run in parts that lack modules, so nothing is
//! written for them.

use schema::ShardingLevel;

use super::{
    Export, Made, Subject, Terms, cut_notes, head,
    layers::{self, is_decoder},
    quoted,
    units::{Unit, titan_units},
};
use crate::names::comment;

/// Modules of a Hugging Face decoder, and torchtitan's names of them.
const HUGGING_FACE: &[(&str, &str)] =
    &[("model.embed_tokens", "tok_embeddings"), ("model.norm", "norm"), ("lm_head", "lm_head")];

/// The module that each part has a copy of.
const EVERYWHERE: &str = "model.rotary_emb";

/// Returns the configuration.
pub(super) fn torchtitan(subject: &Subject<'_>) -> Export {
    Export { path: "torchtitan.py", target: "torchtitan", made: configuration(subject) }
}

fn configuration(subject: &Subject<'_>) -> Result<Made, String> {
    let terms = subject.terms;
    let replicas = terms.replicas()?;
    terms.no_bands()?;
    let (parts, mut notes) = parts(subject)?;
    let mut lines = Vec::new();
    let mut set = |name: &str, value: String| lines.push(format!("    {name}={value},\n"));
    let (replicated, shared_out) = terms.degrees(replicas);
    set("data_parallel_replicate_degree", replicated.to_string());
    set("data_parallel_shard_degree", shared_out.to_string());
    if shared_out > 1 {
        // Below level 3, gathered parameters are kept until the backward pass.
        let is_again = terms.sharding == ShardingLevel::Zero3;
        set("fsdp_reshard_after_forward", quoted(if is_again { "always" } else { "never" }));
        if !is_again {
            notes.push(format!(
                "replicas also shard parameters between steps, in the plan {}",
                terms.sharding.name()
            ));
        }
    }
    let (tensor, context) = terms.tensor_and_context();
    set("tensor_parallel_degree", tensor.to_string());
    if context > 1 {
        set("context_parallel_degree", context.to_string());
    }
    set("pipeline_parallel_degree", terms.n_ranks().to_string());
    let mut has_csv = false;
    if terms.n_ranks() > 1 {
        let (name, needs_table) = schedule(terms)?;
        has_csv = needs_table;
        set("pipeline_parallel_schedule", quoted(name));
        if needs_table {
            set(
                "pipeline_parallel_schedule_csv",
                "str(Path(__file__).resolve().parent.parent / \"schedule.csv\")".into(),
            );
        }
        let lists = parts.iter().map(|part| {
            let names: Vec<String> = part.iter().map(|path| quoted(path)).collect();
            format!("        [{}],\n", names.join(", "))
        });
        set("module_fqns_per_model_part", format!("[\n{}    ]", lists.collect::<String>()));
    }
    let mut training = String::new();
    if let Some((micro_batches, samples)) = terms.micro_batches {
        if terms.n_ranks() > 1 {
            set("pipeline_parallel_microbatch_size", samples.to_string());
        }
        let local = match terms.n_ranks() {
            1 => samples,
            _ => samples * micro_batches as u64,
        };
        training = format!(
            "\ntraining = dict(\n    local_batch_size={local},\n    global_batch_size={},\n)\n",
            samples * (micro_batches * replicas) as u64
        );
    }
    let is_trained = !terms.is_inference && !terms.recomputed.is_empty();
    let again = if is_trained { activation_checkpoint(subject, &mut notes) } else { String::new() };
    let import = if has_csv { "\nfrom pathlib import Path\n" } else { "" };
    let text = format!(
        "\"\"\"The plan for torchtitan: ParallelismConfig(**parallelism), TrainingConfig(**training).\"\"\"\n{}{import}\nparallelism = dict(\n{})\n{training}{again}",
        head(&notes, "#"),
        lines.concat()
    );
    Ok(Made { notes, text })
}

/// Writes what is recomputed, `ActivationCheckpointConfig(**activation_checkpoint)`: torchtitan knows all layers, all but some of their
/// operators, or none.
fn activation_checkpoint(subject: &Subject<'_>, notes: &mut Vec<String>) -> String {
    let (layers, _) = layers::layers(&subject.units);
    let again: Vec<bool> = layers.iter().filter_map(|layer| subject.terms.is_again(layer)).collect();
    let (all, again, light) = (layers.len(), again.len(), again.iter().filter(|is_light| **is_light).count());
    let mode = match light {
        _ if again == 0 => return "\nactivation_checkpoint = dict(mode=\"none\")\n".into(),
        _ if light == again => "mode=\"selective\", selective_ac_option=\"op\"",
        _ => "mode=\"full\"",
    };
    let is_mixed = light > 0 && light < again;
    if again < all || is_mixed {
        let but =
            if light > 0 { format!(", {light} of these but for their products") } else { String::new() };
        notes.push(format!("all layers are recomputed, in the plan {again} of {all}{but}"));
    } else if light > 0 {
        notes.push("its `op` option keeps every second product's result, the plan all".into());
    }
    format!("\nactivation_checkpoint = dict({mode})\n")
}

/// Returns torch's name of a schedule, and whether `schedule.csv` has its order.
fn schedule(terms: &Terms<'_>) -> Result<(&'static str, bool), String> {
    let planned = terms.schedule.unwrap_or("1f1b");
    let is_single = terms.ranks.len() == terms.n_ranks();
    match planned {
        "1f1b" if is_single => return Ok(("1F1B", false)),
        "gpipe" if is_single => return Ok(("GPipe", false)),
        _ if !terms.has_table => return Err(format!("`{planned}` has no table that torch can run")),
        _ => {}
    }
    if terms.is_looped() {
        Ok(("PipelineScheduleMulti", true))
    } else if terms.is_v() {
        Ok(("ZBVZeroBubble", true))
    } else {
        Err("its stages are assigned to ranks in another order than torchtitan's".into())
    }
}

/// Returns the modules of each part, and the differences from the plan.
fn parts(subject: &Subject<'_>) -> Result<(Vec<Vec<String>>, Vec<String>), String> {
    let Subject { program, assignment, units, .. } = subject;
    let is_hugging_face = is_decoder(units);
    let (units, is_known) = if is_hugging_face {
        (units.clone(), true)
    } else {
        let units = titan_units(program, assignment);
        let has = |path: &str| units.iter().any(|unit| unit.path == path);
        let is_known = has("tok_embeddings") && has("layers.0");
        (units, is_known)
    };
    if !is_known {
        return Err("it splits only decoders: its own, which have `tok_embeddings` and `layers`, and Hugging Face's with \
                    `model.embed_tokens`, `model.layers`, `model.norm` and `lm_head`"
            .into());
    }
    let units: Vec<Unit> =
        units.into_iter().filter(|unit| !is_hugging_face || unit.path != EVERYWHERE).collect();
    if !units.iter().map(|unit| unit.stage).is_sorted() {
        return Err("modules do not run in the order of the stages".into());
    }
    let mut parts = vec![Vec::new(); assignment.stages()];
    for unit in &units {
        let name = if is_hugging_face {
            titan_name(&unit.path).ok_or_else(|| {
                format!("its backend does not support `{}` in a decoder", comment(&unit.path))
            })?
        } else {
            unit.path.clone()
        };
        parts[unit.stage as usize].push(name);
    }
    if let Some(empty) = parts.iter().position(Vec::is_empty) {
        return Err(format!("stage {empty} has no whole module"));
    }
    if is_hugging_face && program.modules.iter().any(|module| module.path == EVERYWHERE) {
        parts.iter_mut().for_each(|part| part.push("rotary_emb".into()));
    }
    Ok((parts, cut_notes(&units)))
}

fn titan_name(path: &str) -> Option<String> {
    if let Some((_, name)) = HUGGING_FACE.iter().find(|(from, _)| *from == path) {
        return Some((*name).to_string());
    }
    let number = path.strip_prefix("model.layers.")?;
    number.bytes().all(|byte| byte.is_ascii_digit()).then(|| format!("layers.{number}"))
}
