//! Times of a graph whose transfers share ports: an event loop over flows of bytes.
//!
//! A flow waits out its latency, then drains at the smallest of its equal shares of the ports it uses; when a flow
//! comes or goes, the others on its ports go on at their new rates. Bytes are kept in floating point but ends are
//! rounded up to whole nanoseconds and ties go by number, so a repetition gives the same bits.
//! O((tasks + waits)·log + Σ flows·neighbours).

use std::{cmp::Reverse, collections::BinaryHeap};

use crate::event_graph::{EventGraph, TaskId};

/// A task that moves bytes: the graph's duration is what it takes alone.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Flow {
    /// Its task.
    pub(crate) task: TaskId,
    /// Nanoseconds before the first byte.
    pub(crate) latency: u64,
    /// Bytes to move.
    pub(crate) bytes: u64,
    /// Ports that it uses, by number.
    pub(crate) ports: [u32; 2],
    /// Bytes a second it could have alone.
    pub(crate) bandwidth: f64,
}

#[derive(Clone, Copy)]
struct Running {
    left: f64,
    rate: f64,
    since: u64,
    /// Which of its predicted ends is still true.
    version: u32,
}

/// What happens next.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A flow may have drained.
    Drained { flow: u32, version: u32 },
    /// A flow's latency is over.
    Flowing { flow: u32 },
    /// A task with a fixed duration ends.
    Ended { task: TaskId },
    /// A wait with a positive lag is over.
    Arrived { task: TaskId },
}

/// Returns when each task ends, flows sharing their ports; `capacity` is each port's bytes a second.
pub(crate) fn ends(graph: &EventGraph, flows: &[Flow], n_ports: usize) -> Vec<u64> {
    let n = graph.len();
    let mut flow_of = vec![u32::MAX; n];
    for (idx, flow) in flows.iter().enumerate() {
        flow_of[flow.task as usize] = idx as u32;
    }
    // Successors, and how many waits each task still has.
    let mut open = vec![0_u32; n];
    let mut first = vec![0_u32; n + 1];
    for task in 0..n as TaskId {
        for (before, _) in graph.waits(task) {
            open[task as usize] += 1;
            first[before as usize + 1] += 1;
        }
    }
    for task in 0..n {
        first[task + 1] += first[task];
    }
    let mut next = first.clone();
    let mut successors = vec![(0, 0_i64); first[n] as usize];
    for task in 0..n as TaskId {
        for (before, lag) in graph.waits(task) {
            successors[next[before as usize] as usize] = (task, lag);
            next[before as usize] += 1;
        }
    }
    let mut simulation = Simulation {
        graph,
        flows,
        flow_of,
        open,
        first,
        successors,
        ready_at: vec![0; n],
        ends: vec![0; n],
        running: vec![Running { left: 0.0, rate: 0.0, since: 0, version: 0 }; flows.len()],
        ports: vec![Vec::new(); n_ports],
        affected: Vec::new(),
        events: BinaryHeap::new(),
    };
    // Collected first: a start may release others at once.
    let roots: Vec<TaskId> = (0..n as TaskId).filter(|task| simulation.open[*task as usize] == 0).collect();
    for task in roots {
        simulation.start(task, 0);
    }
    while let Some(Reverse((now, event))) = simulation.events.pop() {
        simulation.handle(now, event);
    }
    simulation.ends
}

struct Simulation<'a> {
    graph: &'a EventGraph,
    flows: &'a [Flow],
    flow_of: Vec<u32>,
    open: Vec<u32>,
    first: Vec<u32>,
    successors: Vec<(TaskId, i64)>,
    ready_at: Vec<u64>,
    ends: Vec<u64>,
    running: Vec<Running>,
    /// Flows on each port, in the order in which they came.
    ports: Vec<Vec<u32>>,
    /// Scratch: flows whose rate may have changed.
    affected: Vec<u32>,
    events: BinaryHeap<Reverse<(u64, Event)>>,
}

impl Simulation<'_> {
    fn handle(&mut self, now: u64, event: Event) {
        match event {
            Event::Ended { task } => self.finish(task, now),
            Event::Arrived { task } => self.start(task, now),
            Event::Flowing { flow } => {
                let spec = &self.flows[flow as usize];
                self.running[flow as usize].left = spec.bytes as f64;
                self.running[flow as usize].since = now;
                for port in spec.ports {
                    self.ports[port as usize].push(flow);
                }
                self.share(flow, now);
            }
            Event::Drained { flow, version } if self.running[flow as usize].version == version => {
                for port in self.flows[flow as usize].ports {
                    self.ports[port as usize].retain(|other| *other != flow);
                }
                self.running[flow as usize].version += 1;
                self.share(flow, now);
                self.finish(self.flows[flow as usize].task, now);
            }
            Event::Drained { .. } => {}
        }
    }

    /// Gives every flow on a flow's ports its new rate.
    fn share(&mut self, flow: u32, now: u64) {
        let mut affected = std::mem::take(&mut self.affected);
        for port in self.flows[flow as usize].ports {
            affected.extend_from_slice(&self.ports[port as usize]);
        }
        // A flow on both ports is there twice; ties go by number.
        affected.sort_unstable();
        affected.dedup();
        for flow in affected.drain(..) {
            let spec = &self.flows[flow as usize];
            let crowd = spec.ports.iter().map(|port| self.ports[*port as usize].len()).max().unwrap_or(1);
            // Bytes a nanosecond.
            let rate = spec.bandwidth / crowd.max(1) as f64 / 1e9;
            let running = &mut self.running[flow as usize];
            if running.rate == rate && running.version > 0 {
                continue;
            }
            running.left = (running.left - running.rate * (now - running.since) as f64).max(0.0);
            running.since = now;
            running.rate = rate;
            running.version += 1;
            let time = (running.left / rate).ceil();
            // A flow that would take centuries ends the simulation's clock, not the process.
            let time = if time < 9e18 { time as u64 } else { u64::MAX >> 2 };
            let event = Event::Drained { flow, version: running.version };
            self.events.push(Reverse((now.saturating_add(time), event)));
        }
        self.affected = affected;
    }

    fn start(&mut self, task: TaskId, now: u64) {
        let flow = self.flow_of[task as usize];
        if flow != u32::MAX && self.flows[flow as usize].bytes > 0 {
            // A message may have waited for the one before it with a part of its latency already gone.
            let flowing = self.ready_at[task as usize].saturating_add(self.flows[flow as usize].latency);
            self.events.push(Reverse((flowing.max(now), Event::Flowing { flow })));
            return;
        }
        self.events.push(Reverse((now.saturating_add(self.graph.duration(task)), Event::Ended { task })));
        // A negative lag lets others start before the end: what they wait for is known now.
        let end = now.saturating_add(self.graph.duration(task));
        self.release(task, end, now, true);
    }

    fn finish(&mut self, task: TaskId, now: u64) {
        self.ends[task as usize] = now;
        let is_flow = self.flow_of[task as usize] != u32::MAX;
        if is_flow && self.flows[self.flow_of[task as usize] as usize].bytes > 0 {
            self.release(task, now, now, true);
        }
        self.release(task, now, now, false);
    }

    /// Counts off the waits for a task; early ones have a negative lag.
    fn release(&mut self, task: TaskId, end: u64, now: u64, early: bool) {
        let range = self.first[task as usize] as usize..self.first[task as usize + 1] as usize;
        for at in range {
            let (successor, lag) = self.successors[at];
            if (lag < 0) != early {
                continue;
            }
            let there = end.saturating_add_signed(lag);
            let successor_idx = successor as usize;
            self.ready_at[successor_idx] = self.ready_at[successor_idx].max(there);
            self.open[successor_idx] -= 1;
            if self.open[successor_idx] == 0 {
                if self.ready_at[successor_idx] > now {
                    self.events
                        .push(Reverse((self.ready_at[successor_idx], Event::Arrived { task: successor })));
                } else {
                    self.start(successor, now);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(graph: &mut EventGraph, bytes: u64, ports: [u32; 2], waits: &[(TaskId, i64)]) -> Flow {
        let task = graph.add(10 + bytes, waits.iter().copied());
        Flow { task, latency: 10, bytes, ports, bandwidth: 1e9 }
    }

    #[test]
    fn flows_on_one_port_share_it() {
        let mut graph = EventGraph::default();
        let flows = [
            flow(&mut graph, 100, [0, 1], &[]),
            flow(&mut graph, 300, [0, 2], &[]),
            flow(&mut graph, 100, [3, 4], &[]),
        ];
        // Both at half rate until the short one ends after 200, then 200 bytes alone.
        assert_eq!(ends(&graph, &flows, 5), [210, 410, 110]);
    }

    #[test]
    fn alone_it_is_the_longest_path() {
        let mut graph = EventGraph::default();
        let a = graph.add(7, []);
        let first = flow(&mut graph, 50, [0, 1], &[(a, 0)]);
        let b = graph.add(3, [(first.task, 5), (a, -4)]);
        let c = graph.add(2, [(a, -4)]);
        let second = flow(&mut graph, 20, [0, 1], &[(b, 0), (c, 0)]);
        assert_eq!(ends(&graph, &[first, second], 2), graph.ends());
    }
}
