//! Transfer times of a pipeline whose stages have their devices.
//!
//! Micro-batch `k` goes from replica `k mod r` of a stage to replica `k mod r'` of the next, over the link between the two; a device's
//! port carries all of its own transfers. A solver that fixes one stage at a time can only guess this if links differ.
//! O(Σ r·r'), with a limit for each pair of stages.

use crate::{Problem, dag::cut_states::States, solution::SolutionStage};

/// Rounds of micro-batches after which the pairs repeat are counted one by one up to here.
const ROUNDS: usize = 4096;

/// Scores the transfers of a whole pipeline; stages follow each other without gaps.
pub(crate) fn settle_transfers(problem: &Problem, stages: &mut [SolutionStage]) {
    let machine = &problem.machine;
    let order: Vec<usize> = stages.iter().flat_map(|stage| stage.blocks.iter().copied()).collect();
    let states = States::line(problem, order);
    let n_levels = machine.levels.len().max(1);
    let n_ports = machine.devices.len() * n_levels;
    // Seconds of each port, out and in, for each micro-batch: one a device and level.
    let (mut out, mut into) = (vec![0.0_f64; n_ports], vec![0.0_f64; n_ports]);
    let mut cut = 0;
    for pair in stages.windows(2) {
        cut += pair[0].blocks.len();
        let (senders, takers): (Vec<usize>, Vec<usize>) =
            (pair[0].run.devices().collect(), pair[1].run.devices().collect());
        let rounds = (senders.len() * takers.len()).min(ROUNDS);
        let share = 1.0 / rounds as f64;
        for round in 0..rounds {
            let (sender, taker) = (senders[round % senders.len()], takers[round % takers.len()]);
            let Some(level) = machine.level(sender, taker) else { continue };
            let forward = states.crossing[cut] / level.bandwidth.0 * share;
            let backward = states.crossing_back[cut] / level.bandwidth.0 * share;
            let at = machine.level_index(sender, taker);
            let (sender, taker) = (sender * n_levels + at, taker * n_levels + at);
            out[sender] += forward;
            into[taker] += forward;
            out[taker] += backward;
            into[sender] += backward;
        }
    }
    for stage in stages {
        let ports = stage.run.devices().map(|device| {
            let ports = device * n_levels..(device + 1) * n_levels;
            if machine.overlaps {
                ports.map(|port| out[port].max(into[port])).fold(0.0, f64::max)
            } else {
                // Receiving takes no compute time of a device.
                out[ports].iter().sum()
            }
        });
        stage.score.transfer = ports.fold(0.0, f64::max);
        stage.score.settle(machine.overlaps);
    }
}
