//! How many samples a micro-batch has: `--micro-batch-size`.
//!
//! Sizes of the whole model are inferred anew for each number of samples, as `--input` does, and each is planned: operators of
//! small sizes are bound by launches, large micro-batches by memory and by how few of them fill a pipeline.

use graph::InputShape;
use partitioner::Planned;
use schema::MicroBatchSizeTried;

use super::{PlanRequest, StepSize, Subject, asked::Asked, model::attempt, no_plan::Unplanned};
use crate::{failure::Failure, progress, workspace::Workspace};

/// The most sizes that are planned.
const MOST: usize = 16;
/// Share by which another size must be faster: times are no surer than that.
const GAIN: f64 = 1e-4;

/// Numbers of samples that a micro-batch may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    least: u64,
    most: u64,
}

impl Sizes {
    /// Reads `8`, `auto`, `2..16`, `2..` or `..16`.
    pub fn from_text(text: &str) -> Result<Self, String> {
        let wrong = || "a number of samples, `auto`, or the smallest and the largest: 2..16".to_string();
        let number = |text: &str, otherwise: u64| match text.trim() {
            "" => Ok(otherwise),
            text => text.parse::<u64>().map_err(|_| wrong()),
        };
        let (least, most) = match text.split_once("..") {
            Some((least, most)) => (number(least, 1)?, number(most, u64::MAX)?),
            None if text.eq_ignore_ascii_case("auto") => (1, u64::MAX),
            None => {
                let own = text.trim().parse().map_err(|_| wrong())?;
                (own, own)
            }
        };
        match least {
            0 => Err("a micro-batch has one sample at least".into()),
            _ if least > most => Err(format!("{least} is more than {most}")),
            _ => Ok(Self { least, most }),
        }
    }

    fn has(self, samples: u64) -> bool {
        (self.least..=self.most).contains(&samples)
    }

    /// Returns the sizes that share a batch out, those next to powers of two where there are many.
    fn of_batch(self, batch: Option<u64>) -> Result<Vec<u64>, Failure> {
        let Some(batch) = batch else {
            if self.least == self.most {
                return Ok(vec![self.least]);
            }
            return Err(Failure::input(
                "--micro-batch-size chooses by how a batch is shared out, and none is given",
            )
            .with_hint("--batch N says how many samples a step has; --micro-batch-size N takes one size"));
        };
        let all = divisors(batch);
        let mut own: Vec<u64> = all.iter().copied().filter(|size| self.has(*size)).collect();
        if own.is_empty() {
            let below = all.iter().rev().find(|size| **size < self.least);
            let above = all.iter().find(|size| **size > self.most);
            let near: Vec<String> = [below, above].into_iter().flatten().map(u64::to_string).collect();
            return Err(Failure::input(format!(
                "no micro-batch as large as --micro-batch-size allows divides a batch of {batch}"
            ))
            .with_hint(format!("micro-batches of {} samples do", near.join(" or "))));
        }
        if own.len() > MOST {
            let powers = (0..64).map(|power| 1_u64 << power).take_while(|power| *power <= batch);
            let nearest = |power: u64| own.iter().copied().min_by_key(|size| size.abs_diff(power));
            let mut few: Vec<u64> = powers.filter_map(nearest).collect();
            few.dedup();
            own = few;
        }
        Ok(own)
    }
}

fn divisors(number: u64) -> Vec<u64> {
    let small = (1..).take_while(|divisor| divisor * divisor <= number).filter(|d| number.is_multiple_of(*d));
    let small: Vec<u64> = small.collect();
    let large = small.iter().rev().map(|divisor| number / divisor).filter(|large| large * large > number);
    small.iter().copied().chain(large).collect()
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_numbers_ranges_or_auto() {
        let check = |text: &str, expected: Option<(u64, u64)>| {
            let found = Sizes::from_text(text).ok().map(|sizes| (sizes.least, sizes.most));
            assert_eq!(found, expected, "{text}");
        };
        check("8", Some((8, 8)));
        check("auto", Some((1, u64::MAX)));
        check("2..16", Some((2, 16)));
        check("..16", Some((1, 16)));
        check("4..", Some((4, u64::MAX)));
        for wrong in ["0", "-1", "", "8..2", "many", "1..x"] {
            check(wrong, None);
        }
    }

    #[test]
    fn sizes_share_a_batch_out() {
        let of = |text: &str, batch: u64| Sizes::from_text(text).expect("sizes").of_batch(Some(batch)).ok();
        assert_eq!(of("auto", 12), Some(vec![1, 2, 3, 4, 6, 12]));
        assert_eq!(of("2..4", 12), Some(vec![2, 3, 4]));
        assert_eq!(of("5", 12), None);
        assert_eq!(divisors(36), [1, 2, 3, 4, 6, 9, 12, 18, 36]);
        // 5,040 has 60 divisors.
        let few = of("auto", 5040).expect("some divide it");
        assert!(few.len() <= MOST && few.iter().all(|size| 5040 % size == 0), "{few:?}");
    }
}
