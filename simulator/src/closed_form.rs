//! Step times as formulas, where a schedule has an exact one.
//!
//! Written with `p` ranks, `v` chunks a rank, `m` micro-batches, `F`, `I`, `W` of one stage, `B = I + W`, hop latency
//! `C`. A formula is exact only under its condition; outside it the answer is `None`, never an approximation.

use crate::{
    cost::Cost,
    order::{Schedule, Shape},
};

/// Returns the exact makespan of a step, where a closed form is known for these costs.
///
/// ```
/// use simulator::{Cost, closed_form, order::{Schedule, Shape}};
///
/// let shape = Shape { ranks: 4, chunks: 1, micro_batches: 8 };
/// assert_eq!(closed_form::makespan(Schedule::GPipe, shape, &Cost::EQUAL), Some((8 + 4 - 1) * 3));
/// ```
pub fn makespan(schedule: Schedule, shape: Shape, cost: &Cost) -> Option<u64> {
    schedule.check(shape).ok()?;
    let [p, v, m] = [shape.ranks, shape.chunks, shape.micro_batches].map(i128::from);
    let Cost { forward, input_gradient, weight_gradient, hop } = *cost;
    let [f, i, w, c] = [forward, input_gradient, weight_gradient, hop].map(i128::from);
    let b = i + w;
    let no_latency = c == 0;
    let time = match schedule {
        // A hop to the next stage each way; with several chunks the last rank's next stage is on the first.
        Schedule::LayerParallel => {
            let hops = if p == 1 { 0 } else { p * v - 1 };
            m * (p * v * (f + b) + 2 * hops * c)
        }
        Schedule::GPipe => (m + p - 1) * (f + b) + 2 * (p - 1) * c,
        // Latency is paid almost once for each micro-batch: unlike GPipe's, the waits do not overlap.
        Schedule::OneForwardOneBackward => {
            let hops =
                if p == 1 { 0 } else { (m + p - 2) - (m - 1).div_euclid(p) - i128::from((m - 1) % p != 0) };
            (m + p - 1) * (f + b) + 2 * c * hops
        }
        Schedule::Interleaved1F1B | Schedule::Vpp | Schedule::LoopedBfs if no_latency => {
            (v * m.max(p) + m.min(p) - 1) * (f + b)
        }
        Schedule::InterleavedZeroBubble if no_latency && m >= p => {
            m * v * (f + b) + (p - 1) * f.max(i).max(f + i - w)
        }
        Schedule::Zbv if no_latency && m >= 2 * p - 1 && w <= f && f <= i => {
            2 * m * (f + b) + (p - 1) * i.max(2 * (i - w))
        }
        // A fused pair takes as long as its parts: no gain from overlap is assumed.
        Schedule::DualPipe if no_latency && f == i && i >= w => {
            m * (f + b) + (p / 2 - 1) * (f + b + b - 3 * w)
        }
        Schedule::DualPipeV if no_latency && f == i && i >= w => {
            2 * m * (f + b) + (p - 1) * (f + b + b - 3 * w)
        }
        Schedule::Chimera if no_latency && m % p == 0 => {
            m * (f + b) + (p - 2) * (f.max(b) + (m / p - 1) * (b - f).abs())
        }
        Schedule::Gems | Schedule::GemsMaster if no_latency => {
            p * (f + b) + (m - 1) * (p * f.max(b) + f.min(b))
        }
        _ => return None,
    };
    u64::try_from(time).ok()
}

/// Returns the share of device time that is idle: bubble over makespan.
pub fn bubble(makespan: u64, busy: &[u64]) -> f64 {
    let total = makespan as f64 * busy.len() as f64;
    if total == 0.0 {
        return 0.0;
    }
    1.0 - busy.iter().map(|busy| *busy as f64).sum::<f64>() / total
}
