//! Times of a graph whose tasks delay each other: an event loop over flows of bytes and queues of messages.
//!
//! * A flow waits out its latency, then drains at the smallest of its equal shares of the ports it uses; when a flow
//!   comes or goes, the others on its ports go on at their new rates.
//! * A queued message waits for its group's link: one at a time, the smallest rank first, never interrupted.
//! * A device may compute slower while it takes part in a collective.
//!
//! Work is kept in floating point but ends are rounded up to whole nanoseconds and ties go by number, so a repetition gives the
//! same bits. If no two flows meet on a port and nothing is queued or slowed, the longest path is exact and no event loop runs.
//! O((tasks + waits)·log + Σ flows·neighbours).

mod event_loop;

use self::event_loop::Simulation;
pub(crate) use self::event_loop::Times;
use crate::{
    machine::{Machine, Sharing},
    step::StepGraph,
};

/// Returns when each task ends.
pub(crate) fn times(step: &StepGraph, machine: &Machine) -> Times {
    let shares = machine.sharing == Sharing::Fair && !step.flows.is_empty();
    let slows = machine.slowdown > 1.0 && step.labels.iter().any(|label| label.work.is_collective());
    if step.queued.is_empty() && !slows {
        let ends = step.graph.ends();
        if !shares || !any_meet(step, &ends) {
            return Times { ends, ..Times::default() };
        }
    }
    Simulation::new(step, shares, if slows { machine.slowdown } else { 1.0 }).run()
}

/// Tells whether two flows use one port at once if each runs as if it were alone.
fn any_meet(step: &StepGraph, ends: &[u64]) -> bool {
    let mut by_port: Vec<Vec<(u64, u64)>> = vec![Vec::new(); step.n_ports];
    for flow in step.flows.iter().filter(|flow| flow.transfer > 0) {
        let end = ends[flow.task as usize];
        for port in step.ports(flow) {
            by_port[*port as usize].push((end - flow.transfer, end));
        }
    }
    by_port.iter_mut().any(|uses| {
        // Nearly sorted already: a port's flows are made in about the order of their times.
        uses.sort_unstable();
        uses.windows(2).any(|pair| pair[1].0 < pair[0].1)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        event_graph::TaskId,
        order::Op,
        step::{Flow, Label, Queued, Stream, Work},
    };

    const KERNEL: Work = Work::Optimizer;

    fn task(step: &mut StepGraph, work: Work, duration: u64, waits: &[(TaskId, i64)]) -> TaskId {
        let stream = if matches!(work, Work::Compute { .. }) { Stream::Compute } else { Stream::Network };
        step.labels.push(Label { program: 0, stream, work });
        step.graph.add(duration, waits.iter().copied())
    }

    fn flow(step: &mut StepGraph, bytes: u64, ports: [u32; 2], waits: &[(TaskId, i64)]) -> TaskId {
        let task = task(step, KERNEL, 10 + bytes, waits);
        let first_port = step.flow_ports.len() as u32;
        step.flow_ports.extend(ports);
        step.n_ports = 5;
        step.flows.push(Flow { task, latency: 10, transfer: bytes, first_port, n_ports: 2 });
        task
    }

    fn ends(step: &StepGraph) -> Vec<u64> {
        Simulation::new(step, true, 1.0).run().ends
    }

    #[test]
    fn flows_on_one_port_share_it() {
        let mut step = StepGraph::default();
        flow(&mut step, 100, [0, 1], &[]);
        flow(&mut step, 300, [0, 2], &[]);
        flow(&mut step, 100, [3, 4], &[]);
        // Both at half rate until the short one ends after 200, then 200 bytes alone.
        assert_eq!(ends(&step), [210, 410, 110]);
        assert!(any_meet(&step, &step.graph.ends()));
    }

    #[test]
    fn alone_it_is_the_longest_path() {
        let mut step = StepGraph::default();
        let a = task(&mut step, KERNEL, 7, &[]);
        let first = flow(&mut step, 50, [0, 1], &[(a, 0)]);
        let b = task(&mut step, KERNEL, 3, &[(first, 5), (a, -4)]);
        let c = task(&mut step, KERNEL, 2, &[(a, -4)]);
        flow(&mut step, 20, [0, 1], &[(b, 0), (c, 0)]);
        assert_eq!(ends(&step), step.graph.ends());
        assert!(!any_meet(&step, &step.graph.ends()));
    }

    #[test]
    fn a_link_takes_the_smallest_rank_that_is_there() {
        let mut step = StepGraph { n_queues: 1, ..StepGraph::default() };
        let made = task(&mut step, KERNEL, 5, &[]);
        for (rank, waits) in [(3, vec![]), (2, vec![]), (1, vec![(made, 0)])] {
            let task = task(&mut step, KERNEL, 4, &waits);
            step.queued.push(Queued { task, queue: 0, rank });
        }
        // Rank 2 goes first; rank 1 comes at 5, when rank 3 has begun: nothing is interrupted.
        let times = Simulation::new(&step, true, 1.0).run();
        assert_eq!(times.ends, [5, 8, 4, 12]);
        assert_eq!((times.starts.unwrap()[3], times.before[&3]), (8, 1));
    }

    #[test]
    fn a_collective_slows_its_devices() {
        let mut step = StepGraph::default();
        let kernels = |mb| Work::Compute { op: Op::forward(0, mb), partner: None };
        let first = task(&mut step, kernels(0), 100, &[]);
        // Begins when 60 of the work are left, takes 30; meanwhile kernels do 15 of their work.
        let reduce = task(&mut step, Work::Reduce { stage: 0, message: 0, bytes: 1 }, 30, &[(first, -60)]);
        let second = task(&mut step, kernels(1), 10, &[(first, 0)]);
        let times = Simulation::new(&step, true, 2.0).run();
        assert_eq!((times.ends[reduce as usize], times.ends[first as usize]), (70, 70 + 45));
        assert_eq!(times.ends[second as usize], 125);
        assert_eq!(Simulation::new(&step, true, 1.0).run().ends, step.graph.ends());
    }
}
