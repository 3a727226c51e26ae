//! Times, rates and sizes of a plan in whole nanoseconds and bytes, within 64 bits together.

use schema::{BytesPerSecond, Seconds};

use super::PlanError;
use crate::workload::{Stage, StageMemory, Tie, Transfer};

/// The most that the times of a plan may add up to, a century in nanoseconds, and its sizes, an exbibyte.
const MOST_TIME: u64 = 36_525 * 86_400 * 1_000_000_000;
const MOST_BYTES: u64 = 1 << 60;

/// Checks that what is added up of a plan's numbers stays within 64 bits.
pub(super) fn check_sums(stages: &[Stage], transfers: &[Transfer], ties: &[Tie]) -> Result<(), PlanError> {
    let (mut time, mut bytes) = (0_u64, 0_u64);
    let mut add = |times: &[u64], sizes: &[u64], place: &dyn Fn() -> String| {
        time = times.iter().copied().fold(time, u64::saturating_add);
        bytes = sizes.iter().copied().fold(bytes, u64::saturating_add);
        match (time > MOST_TIME, bytes > MOST_BYTES) {
            (true, _) => Err(PlanError::Sum { what: "times", limit: "a century", place: place() }),
            (_, true) => Err(PlanError::Sum { what: "sizes", limit: "2^60 bytes", place: place() }),
            _ => Ok(()),
        }
    };
    for (idx, stage) in stages.iter().enumerate() {
        let place = || format!("stage {idx}");
        let StageMemory { parameters, gradients, optimizer, activations, workspace, .. } = stage.memory;
        let Stage { forward, input_gradient, weight_gradient, accumulation, optimizer_step, .. } = *stage;
        let times = [forward, input_gradient, weight_gradient, accumulation, optimizer_step];
        add(&times, &[parameters, gradients, optimizer, activations, workspace], &place)?;
        for layer in &stage.layers {
            add(&[layer.forward, layer.backward], &[], &place)?;
        }
    }
    for transfer in transfers {
        let place = || format!("the transfer from stage {} to stage {}", transfer.from, transfer.to);
        add(&[], &[transfer.forward, transfer.backward], &place)?;
    }
    ties.iter().try_for_each(|tie| add(&[], &[tie.bytes], &|| "tied parameters".to_string()))
}

pub(super) fn nanoseconds(seconds: Seconds, what: impl FnOnce() -> String) -> Result<u64, PlanError> {
    // A century at most fits in 64 bits.
    let is_cost = seconds.0 >= 0.0 && seconds.0 * 1e9 <= MOST_TIME as f64;
    if is_cost {
        Ok((seconds.0 * 1e9).round() as u64)
    } else {
        Err(PlanError::Cost { what: what(), value: seconds.0 })
    }
}

pub(super) fn rate(rate: BytesPerSecond, what: impl FnOnce() -> String) -> Result<f64, PlanError> {
    if rate.0 > 0.0 { Ok(rate.0) } else { Err(PlanError::Rate { what: what(), value: rate.0 }) }
}
