//! The number of samples in a micro-batch: `--micro-batch-size`.
//!
//! Sizes of the whole model are inferred again for each number of samples, as for `--input`, and each is planned: small
//! operators are bound by launch overhead, large micro-batches by memory and by how few of them fill a pipeline.

use partitioner::Planned;
use schema::MicroBatchSizeTried;

use super::{
    asked::Asked, no_plan::Unplanned, request::PlanRequest, sizes::Sizes, step_size::StepSize,
    subject::Subject,
};
use crate::{progress, workspace::Workspace};

/// Share by which another size must be faster: times are no more precise than that.
const GAIN: f64 = 1e-4;

/// Plans a model with each allowed micro-batch size, and keeps the plan with the least time per sample; `attempt` plans
/// one size.
pub fn of_best_size(
    workspace: &Workspace,
    request: &PlanRequest,
    sizes: Sizes,
    attempt: impl Fn(Subject<'_>, &PlanRequest) -> Result<(Asked, Planned), Unplanned>,
) -> Result<(Asked, Planned), Unplanned> {
    let mut best: Option<(f64, Workspace, (Asked, Planned))> = None;
    let mut tried: Vec<MicroBatchSizeTried> = Vec::new();
    let mut none: Option<Unplanned> = None;
    let of_batch = sizes.of_batch(request.batch)?;
    for &samples in &of_batch {
        progress::at(format!("micro-batches of {samples}"));
        let model = match workspace.with_samples(samples) {
            Ok(model) => model,
            Err(reason) if of_batch.len() == 1 => {
                return Err(workspace.not_followed(samples, &reason).into());
            }
            Err(reason) => {
                let fails = Some(format!("sizes cannot be inferred: {reason}"));
                tried.push(MicroBatchSizeTried { samples, sample_seconds: None, fails });
                continue;
            }
        };
        match attempt(Subject::Model(&model), request) {
            Ok(found) => {
                let seconds = found.1.best.seconds_each() / samples as f64;
                tried.push(MicroBatchSizeTried { samples, sample_seconds: Some(seconds), fails: None });
                if best.as_ref().is_none_or(|(least, ..)| seconds < least * (1.0 - GAIN)) {
                    best = Some((seconds, model, found));
                }
            }
            Err(reason) => {
                let fails = Some(reason.reason());
                tried.push(MicroBatchSizeTried { samples, sample_seconds: None, fails });
                let is_full = reason.is_no();
                none.get_or_insert(reason);
                // Larger ones need at least as much memory.
                if is_full && best.is_some() {
                    break;
                }
            }
        }
    }
    let traced = StepSize::of(workspace).samples;
    match (best, none) {
        (Some((_, model, (asked, solved))), _) => {
            let other = (StepSize::of(&model).samples != traced).then_some(model);
            Ok((asked.of_size(other, tried), solved))
        }
        (None, Some(reason)) => Err(reason),
        (None, None) => {
            let reason = tried.into_iter().find_map(|one| one.fails).unwrap_or_default();
            Err(workspace.not_followed(of_batch[0], &reason).into())
        }
    }
}
