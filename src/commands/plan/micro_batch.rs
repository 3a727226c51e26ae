//! How many samples a micro-batch has: `--micro-batch-size`.
//!
//! Sizes of the whole model are inferred anew for each number of samples, as `--input` does, and each is planned: operators of
//! small sizes are bound by launches, large micro-batches by memory and by how few of them fill a pipeline.

use graph::InputShape;
use partitioner::Planned;
use schema::MicroBatchSizeTried;

use super::{
    asked::Asked, no_plan::Unplanned, request::PlanRequest, search::attempt, sizes::Sizes,
    step_size::StepSize, subject::Subject,
};
use crate::{failure::Failure, progress, workspace::Workspace};

/// Share by which another size must be faster: times are no surer than that.
const GAIN: f64 = 1e-4;

/// Returns a model whose micro-batches have so many samples.
///
/// # Errors
/// Why its sizes do not follow from those of its inputs.
pub fn resized(workspace: &Workspace, samples: u64) -> Result<Workspace, String> {
    let graph = &workspace.graph;
    let sizes =
        |graph: &graph::ModelGraph, value| -> Option<Vec<u64>> { graph.value(value).fact.tensor()?.sizes() };
    let first = graph.inputs.first().and_then(|input| sizes(graph, *input));
    let own =
        first.and_then(|sizes| sizes.first().copied()).ok_or("the sizes of its inputs are not known")?;
    if own == samples {
        return Ok(workspace.clone());
    }
    let input = |value: &graph::ValueId| {
        let value = graph.value(*value);
        let tensor = value.fact.tensor()?;
        let mut shape = tensor.sizes()?;
        let first = shape.first_mut().filter(|first| **first == own)?;
        *first = samples;
        Some(InputShape { name: Some(value.name.clone()), shape, dtype: tensor.dtype })
    };
    let inputs: Vec<InputShape> = graph.inputs.iter().filter_map(input).collect();
    let other = workspace.with_inputs(inputs)?;
    let lost = graph::lost_sizes(&other.graph);
    if let Some(lost) = lost.first().filter(|_| lost.len() > graph::lost_sizes(graph).len()) {
        return Err(format!("sizes behind `{}` are not known then", lost.name));
    }
    // What the trace has fixed as a number shows here at the latest.
    for (before, after) in graph.outputs.iter().zip(&other.graph.outputs) {
        let (Some(before), Some(after)) = (sizes(graph, *before), sizes(&other.graph, *after)) else {
            continue;
        };
        let (Some(from), Some(to)) = (before.first(), after.first()) else { continue };
        if from.is_multiple_of(own) && *to != from / own * samples {
            return Err(format!("the trace has fixed the number of samples: an output would have {to}"));
        }
    }
    Ok(other)
}

/// Plans a model with each size of a micro-batch that may be taken, and keeps the fastest for each sample.
pub fn planned(
    workspace: &Workspace,
    request: &PlanRequest,
    sizes: Sizes,
) -> Result<(Asked, Planned), Failure> {
    let mut best: Option<(f64, u64, (Asked, Planned))> = None;
    let mut tried: Vec<MicroBatchSizeTried> = Vec::new();
    let mut none: Option<Unplanned> = None;
    let of_batch = sizes.of_batch(request.batch)?;
    for &samples in &of_batch {
        progress::at(format!("micro-batches of {samples}"));
        let found = match resized(workspace, samples) {
            Ok(model) => attempt(Subject::Model(&model), request),
            Err(reason) if of_batch.len() == 1 => return Err(not_followed(workspace, samples, &reason)),
            Err(reason) => {
                let fails = Some(format!("sizes cannot be inferred: {reason}"));
                tried.push(MicroBatchSizeTried { samples, sample_seconds: None, fails });
                continue;
            }
        };
        match found {
            Ok(found) => {
                let seconds = found.1.best.seconds_each() / samples as f64;
                tried.push(MicroBatchSizeTried { samples, sample_seconds: Some(seconds), fails: None });
                if best.as_ref().is_none_or(|(least, ..)| seconds < least * (1.0 - GAIN)) {
                    best = Some((seconds, samples, found));
                }
            }
            Err(reason) => {
                let fails = Some(reason.reason());
                tried.push(MicroBatchSizeTried { samples, sample_seconds: None, fails });
                let is_full = reason.is_no();
                none.get_or_insert(reason);
                // Larger ones need no less memory.
                if is_full && best.is_some() {
                    break;
                }
            }
        }
    }
    let traced = StepSize::of(workspace).samples;
    match (best, none) {
        (Some((_, samples, (asked, solved))), _) => {
            let own = Some(samples).filter(|samples| Some(*samples) != traced);
            Ok((asked.of_size(own, tried), solved))
        }
        (None, Some(reason)) => Err(reason.into()),
        (None, None) => {
            let reason = tried.into_iter().find_map(|one| one.fails).unwrap_or_default();
            Err(not_followed(workspace, of_batch[0], &reason))
        }
    }
}

/// Says that a model has no other micro-batches than those that it was traced with.
pub fn not_followed(workspace: &Workspace, samples: u64, reason: &str) -> Failure {
    Failure::input(format!("micro-batches of {samples} samples: {reason}"))
        .in_file(workspace.file.path())
        .with_hint("trace the model with inputs of that size, or plan with those that it was traced with")
}
