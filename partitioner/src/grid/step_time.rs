//! Time of one step: the simulator's order of operations over stages that differ.
//!
//! A longest path in the graph of passes and transfers, O(operations). Operations of a rank run in program order; a forward pass waits for the stage before, a backward pass for the
//! stage behind. Between ranks a value takes its bytes over the link, one value at a time each way, plus the latency; compute
//! does not wait for sending where the machine overlaps, and does where it does not. Replicas are one rank here: they run
//! side by side and meet in an all-reduce when the stage's last gradient is there.

use simulator::order::{Kind, Order};

/// What one stage takes for one micro-batch on one replica.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct StageTimes {
    pub(crate) forward: f64,
    pub(crate) input_gradient: f64,
    pub(crate) weight_gradient: f64,
    /// Seconds of sending its outputs to the next stage, and the latency before they arrive.
    pub(crate) send: (f64, f64),
    /// The same for gradients to the stage before.
    pub(crate) send_back: (f64, f64),
    /// Buckets of gradients that are synchronised at the end of the step, and the seconds of each.
    pub(crate) buckets: (usize, f64),
}

/// When a step is done, and how much of the devices' time was idle.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct StepTime {
    pub(crate) seconds: f64,
    pub(crate) bubble: f64,
}

/// Times an order; `None` when it deadlocks, which orders made by the simulator never do.
pub(crate) fn step_time(order: &Order, stages: &[StageTimes], overlaps: bool) -> Option<StepTime> {
    let n_micro_batches = order.n_micro_batches();
    let slot = |stage: usize, micro_batch: u32| stage * n_micro_batches + micro_batch as usize;
    let mut rank_of = vec![usize::MAX; stages.len()];
    for (rank, ops) in order.ranks.iter().enumerate() {
        ops.iter().for_each(|op| rank_of[op.stage as usize] = rank);
    }
    // When values are there to be used.
    let mut forward = vec![f64::INFINITY; stages.len() * n_micro_batches];
    let mut backward = vec![f64::INFINITY; stages.len() * n_micro_batches];
    forward[..n_micro_batches].fill(0.0);
    backward[(stages.len() - 1) * n_micro_batches..].fill(0.0);
    let mut own_forward = vec![f64::INFINITY; stages.len() * n_micro_batches];
    let mut clock = vec![0.0_f64; order.ranks.len()];
    let mut busy = vec![0.0_f64; order.ranks.len()];
    // When the link from one rank to another is free again.
    let mut link = vec![0.0_f64; order.ranks.len() * order.ranks.len()];
    let mut done = vec![0.0_f64; stages.len()];
    let mut last = vec![0.0_f64; stages.len()];
    let mut next = vec![0_usize; order.ranks.len()];
    let mut ready: Vec<usize> = (0..order.ranks.len()).rev().collect();
    let mut n_left: usize = order.ranks.iter().map(Vec::len).sum();
    while let Some(rank) = ready.pop() {
        while let Some(op) = order.ranks[rank].get(next[rank]) {
            let stage = op.stage as usize;
            let times = &stages[stage];
            let at = slot(stage, op.micro_batch);
            let (needed, time) = match op.kind {
                Kind::Forward => (forward[at], times.forward),
                Kind::Backward => {
                    (backward[at].max(own_forward[at]), times.input_gradient + times.weight_gradient)
                }
                Kind::InputGradient => (backward[at].max(own_forward[at]), times.input_gradient),
                Kind::WeightGradient => (0.0, times.weight_gradient),
            };
            if needed == f64::INFINITY {
                break;
            }
            next[rank] += 1;
            n_left -= 1;
            let end = clock[rank].max(needed) + time;
            busy[rank] += time;
            clock[rank] = end;
            done[stage] = done[stage].max(end);
            last[stage] = time;
            let (other, way, (seconds, latency)) = match op.kind {
                Kind::Forward => (stage + 1, 0, times.send),
                Kind::Backward | Kind::InputGradient => (stage.wrapping_sub(1), 1, times.send_back),
                Kind::WeightGradient => continue,
            };
            if op.kind == Kind::Forward {
                own_forward[at] = end;
            }
            if other >= stages.len() {
                continue;
            }
            let arrival = if rank_of[other] == rank {
                end
            } else {
                let free = &mut link[rank * order.ranks.len() + rank_of[other]];
                let sent = end.max(*free) + seconds;
                *free = sent;
                if !overlaps {
                    clock[rank] = sent;
                }
                sent + latency
            };
            let there = slot(other, op.micro_batch);
            if way == 0 {
                forward[there] = arrival;
            } else {
                backward[there] = arrival;
            }
            if rank_of[other] != rank {
                ready.push(rank_of[other]);
            }
        }
    }
    if n_left > 0 {
        return None;
    }
    let computed = clock.iter().copied().fold(0.0, f64::max);
    // Gradients appear evenly over the last backward pass; a bucket goes when it is full and the one before is through.
    let synchronised = stages.iter().enumerate().map(|(stage, times)| {
        let (n_buckets, seconds) = times.buckets;
        (0..n_buckets).fold(0.0_f64, |before, bucket| {
            let early = last[stage] / n_buckets as f64 * (n_buckets - 1 - bucket) as f64;
            before.max(done[stage] - early) + seconds
        })
    });
    let synchronised = synchronised.fold(0.0, f64::max);
    let seconds = computed.max(synchronised);
    let used: f64 = busy.iter().sum();
    let bubble = if seconds > 0.0 { 1.0 - used / (seconds * busy.len() as f64) } else { 0.0 };
    Some(StepTime { seconds, bubble })
}

#[cfg(test)]
mod tests {
    use simulator::{
        Cost, closed_form,
        order::{Schedule, Shape, make_for_costs},
    };

    use super::*;

    #[test]
    fn equal_stages_give_the_closed_forms() {
        let times = StageTimes {
            forward: 1.0,
            input_gradient: 1.0,
            weight_gradient: 1.0,
            send: (0.0, 0.0),
            send_back: (0.0, 0.0),
            buckets: (0, 0.0),
        };
        for schedule in [Schedule::GPipe, Schedule::OneForwardOneBackward, Schedule::InterleavedZeroBubble] {
            for (ranks, micro_batches) in [(1, 4), (2, 4), (4, 8), (8, 8)] {
                let shape = Shape { ranks, chunks: 1, micro_batches };
                let order = make_for_costs(schedule, shape, Cost::EQUAL).unwrap();
                let time = step_time(&order, &vec![times; ranks as usize], true).unwrap();
                let exact = closed_form::makespan(schedule, shape, &Cost::EQUAL).unwrap();
                assert_eq!(time.seconds, exact as f64, "{schedule:?} {shape:?}");
            }
        }
    }
}
