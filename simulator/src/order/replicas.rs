//! Ranks that are several devices: which replica runs which micro-batch, and in what order.
//!
//! Equal replicas are whole pipelines side by side, each with the order of its own micro-batches; so `train.py` runs
//! them. Unequal replicas under 1F1B are PipeDream's (Narayanan et al., 2019): micro-batches are dealt round-robin, and
//! a replica in stage `s` warms up with `⌈(replicas in s and after) / (replicas in s)⌉`, as in its `runtime.py`.
//!
//! ```text
//! "2-1": stage 0 on two devices
//! device 0  F0 F2       B0 F4 …
//! device 1  F1 F3          B1 F5 …
//! device 2     F0 B0 F1 B1 F2 …
//! ```

use super::{Op, Order, OrderError, Schedule, one_f_one_b};

/// Makes the order of a schedule for ranks with replicas; `make` makes one pipeline's for as many
/// micro-batches as it is asked for.
///
/// # Errors
/// When the schedule cannot run this number of micro-batches.
pub fn for_replicas(
    schedule: Schedule,
    micro_batches: u32,
    replicas: &[u32],
    make: impl Fn(u32) -> Result<Order, OrderError>,
) -> Result<Order, OrderError> {
    let n = replicas.first().copied().unwrap_or(1).max(1);
    let is_equal = replicas.iter().all(|other| *other == n);
    if is_equal && n == 1 {
        return make(micro_batches);
    }
    if is_equal
        && micro_batches.is_multiple_of(n)
        && let Ok(pipeline) = make(micro_batches / n)
    {
        return Ok(side_by_side(&pipeline, n));
    }
    let order = make(micro_batches)?;
    let is_1f1b =
        matches!(schedule, Schedule::OneForwardOneBackward | Schedule::PipeDream | Schedule::PipeDream2Bw);
    if is_1f1b && order.chain as usize == replicas.len() {
        Ok(replicated(replicas, micro_batches))
    } else {
        Ok(round_robin(&order, replicas))
    }
}

/// Makes 1F1B for replicated stages: one program a device, stage by stage, replica by replica.
///
/// Micro-batch `b` runs on replica `b % replicas` of each stage.
pub fn replicated(replicas: &[u32], micro_batches: u32) -> Order {
    let total: u32 = replicas.iter().sum();
    let mut before = 0;
    let mut ranks = Vec::with_capacity(total as usize);
    for (stage, &n) in replicas.iter().enumerate() {
        // PipeDream's warm-up counts the forwards before the first 1F1B pair, which adds one.
        let warm_up = (total - 1 - before) / n.max(1) + 1;
        for replica in 0..n {
            let own: Vec<u32> = (replica..micro_batches).step_by(n as usize).collect();
            let program = one_f_one_b::with_warm_up(stage as u32, own.len() as u32, warm_up);
            ranks.push(
                program
                    .into_iter()
                    .map(|op| Op { micro_batch: own[op.micro_batch as usize], ..op })
                    .collect(),
            );
        }
        before += n;
    }
    Order { ranks, chain: replicas.len() as u32 }
}

/// Sets equal replicas of a whole pipeline side by side: replica `r` of `n` takes the micro-batches `r`, `n + r`, `2n + r` ….
fn side_by_side(pipeline: &Order, n: u32) -> Order {
    let copies = |ops: &Vec<Op>| -> Vec<Vec<Op>> {
        let copy =
            |replica| ops.iter().map(|op| Op { micro_batch: op.micro_batch * n + replica, ..*op }).collect();
        (0..n).map(copy).collect()
    };
    Order { ranks: pipeline.ranks.iter().flat_map(copies).collect(), chain: pipeline.chain }
}

/// Deals an order's micro-batches round-robin to the replicas of each rank.
///
/// Splitting a program over devices only removes waits: an order that runs still runs.
pub fn round_robin(order: &Order, replicas: &[u32]) -> Order {
    let mut ranks = Vec::new();
    for (ops, &n) in order.ranks.iter().zip(replicas) {
        for replica in 0..n {
            // A fused pair of micro-batches on different replicas comes apart.
            let mine = |op: &Op| op.micro_batch % n == replica;
            let program = ops.iter().enumerate().filter(|(_, op)| mine(op)).map(|(idx, op)| {
                let joined = op.joined && ops.get(idx + 1).is_some_and(mine);
                Op { joined, ..*op }
            });
            ranks.push(program.collect());
        }
    }
    Order { ranks, chain: order.chain }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Cost,
        order::{ALL, Shape, make_for_costs},
    };

    const COST: Cost = Cost { forward: 10, input_gradient: 11, weight_gradient: 7, hop: 1 };

    /// Each replica of each rank runs what it would run alone, whatever the schedule.
    #[test]
    fn equal_replicas_are_pipelines_side_by_side() {
        for schedule in ALL {
            let chunks = schedule.fixed_chunks().unwrap_or(1);
            let make =
                |micro_batches| make_for_costs(schedule, Shape { ranks: 4, chunks, micro_batches }, COST);
            // GEMS has one for each of its two copies.
            let n = if schedule == Schedule::Gems { 2 } else { 8 };
            let alone = make(n).unwrap_or_else(|error| panic!("{schedule:?}: {error}"));
            let both = for_replicas(schedule, 2 * n, &[2; 4], make).unwrap();
            assert_eq!(both.chain, alone.chain, "{schedule:?}");
            for (rank, ops) in both.ranks.iter().enumerate() {
                let own = |op: &Op| Op { micro_batch: op.micro_batch / 2, ..*op };
                assert!(ops.iter().all(|op| op.micro_batch as usize % 2 == rank % 2), "{schedule:?}");
                assert_eq!(ops.iter().map(own).collect::<Vec<_>>(), alone.ranks[rank / 2], "{schedule:?}");
            }
        }
    }

    #[test]
    fn what_does_not_divide_is_dealt() {
        let make = |micro_batches| {
            make_for_costs(Schedule::GPipe, Shape { ranks: 2, chunks: 1, micro_batches }, COST)
        };
        let order = for_replicas(Schedule::GPipe, 3, &[2, 2], make).unwrap();
        assert_eq!(order.ranks.iter().map(Vec::len).collect::<Vec<_>>(), [4, 2, 4, 2]);
        let unequal = for_replicas(Schedule::OneForwardOneBackward, 4, &[2, 1], |n| {
            make_for_costs(
                Schedule::OneForwardOneBackward,
                Shape { ranks: 2, chunks: 1, micro_batches: n },
                COST,
            )
        });
        assert_eq!(unequal.unwrap(), replicated(&[2, 1], 4));
    }
}
