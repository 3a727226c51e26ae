//! DeepSpeed's `PipelineModule`, made of the stages: one per rank, so every model runs as it is cut.

use schema::ShardingLevel;

use super::{Export, Made, Subject, head, schedule_note};

/// The file, without the plan's values.
const PAGE: &str = include_str!("deepspeed.py");

/// Returns the module.
pub(super) fn deepspeed(subject: &Subject<'_>) -> Export {
    Export { path: "deepspeed_pipeline.py", target: "DeepSpeed", made: module(subject) }
}

fn module(Subject { terms, .. }: &Subject<'_>) -> Result<Made, String> {
    terms.whole_layers()?;
    terms.one_to_a_rank()?;
    let replicas = terms.replicas()?;
    let mut notes: Vec<String> = schedule_note(terms, &["1f1b"], "1F1B").into_iter().collect();
    notes.extend(terms.without_groups(replicas));
    let level = match terms.sharding {
        ShardingLevel::None => 0,
        ShardingLevel::Zero1 => 1,
        // DeepSpeed: "ZeRO-2 and ZeRO-3 are incompatible with pipeline parallelism".
        level => {
            notes.push(format!("replicas shard only the optimizer's state, in the plan {}", level.name()));
            1
        }
    };
    let mut config = format!("    \"zero_optimization\": {{\"stage\": {level}}},\n");
    if let Some((micro_batches, samples)) = terms.micro_batches {
        config.push_str(&format!(
            "    \"train_micro_batch_size_per_gpu\": {samples},\n    \"gradient_accumulation_steps\": {micro_batches},\n"
        ));
    }
    let text = PAGE.replace("# DIFFERENCES\n", &head(&notes, "#")).replace("    # CONFIG\n", &config);
    Ok(Made { notes, text })
}
