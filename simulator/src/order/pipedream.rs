//! PipeDream (Narayanan et al., 2019): 1F1B without a flush, replicated stages, micro-batches dealt round-robin.
//!
//! ```text
//! straight, three stages                  "2-1": stage 0 on two devices
//! rank 0  F0 F1 F2    B0 F3    B1 …       device 0  F0 F2       B0 F4 …
//! rank 1     F0 F1    B0 F2 B1 …          device 1  F1 F3          B1 F5 …
//! rank 2        F0 B0 F1 B1 F2 …          device 2     F0 B0 F1 B1 F2 …
//! ```
//!
//! Over one step the order equals 1F1B's; what differs is what follows: the next step's micro-batches enter at once,
//! so the pipeline drains only at the end of training, and each backward uses the weights its forward used. Stage `s`
//! of a straight pipeline keeps `p − s` weight versions (stashing), 2BW keeps two. Warm-up of a replica in stage `s`:
//! `⌈(replicas in s and after) / (replicas in s)⌉` as in PipeDream's `runtime.py`.

use super::{Op, Order, one_f_one_b};

/// Makes the order of one step of a straight pipeline.
pub(super) fn order(ranks: u32, micro_batches: u32) -> Order {
    one_f_one_b::order(ranks, micro_batches)
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
