//! Peak activations by rank as formulas: how many micro-batches of its chunks a rank holds at once.
//!
//! Exact where `Some`; the rest depend on costs or have no formula.

use simulator::order::{Schedule, Shape};

/// Returns the most activations (of one chunk and micro-batch) that a rank holds, freed with the weight gradient.
pub fn activations(schedule: Schedule, shape: Shape, rank: u32) -> Option<u32> {
    schedule.check(shape).ok()?;
    let Shape { ranks: p, chunks: v, micro_batches: m } = shape;
    if rank >= p {
        return None;
    }
    let all = m.saturating_mul(v);
    let per_round = m / (m / p).max(1);
    Some(match schedule {
        Schedule::LayerParallel => v,
        Schedule::GPipe | Schedule::LoopedBfs => all,
        Schedule::OneForwardOneBackward | Schedule::PipeDream | Schedule::PipeDream2Bw => m.min(p - rank),
        Schedule::Interleaved1F1B | Schedule::Vpp => all.min((v - 1) * per_round + 2 * (p - 1 - rank) + 1),
        Schedule::InterleavedZeroBubble => all.min((v - 1) * per_round + p),
        Schedule::Zbv if m >= 2 * p - 1 => 2 * p,
        Schedule::DualPipeV => 2 * p + 1,
        Schedule::DualPipe => p + 1,
        Schedule::Gems | Schedule::GemsMaster => 1,
        _ => return None,
    })
}

/// Returns the same if activations were freed with the input gradient already.
pub fn until_input_gradient(schedule: Schedule, shape: Shape, rank: u32) -> Option<u32> {
    let held = activations(schedule, shape, rank)?;
    match schedule {
        Schedule::InterleavedZeroBubble => {
            let Shape { ranks: p, chunks: v, micro_batches: m } = shape;
            let per_round = m / (m / p).max(1);
            Some((m * v).min((v - 1) * per_round + p - rank))
        }
        Schedule::Zbv | Schedule::DualPipe | Schedule::DualPipeV => None,
        _ => Some(held),
    }
}
