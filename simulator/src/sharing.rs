//! Times of a graph whose tasks hinder each other: an event loop over flows of bytes and queues of messages.
//!
//! * A flow waits out its latency, then drains at the smallest of its equal shares of the ports it uses; when a flow
//!   comes or goes, the others on its ports go on at their new rates.
//! * A queued message waits for its group's link: one at a time, the smallest rank first, never interrupted.
//! * A device may compute slower while it takes part in a collective.
//!
//! Work is kept in floating point but ends are rounded up to whole nanoseconds and ties go by number, so a repetition
//! gives the same bits. Where no two flows meet on a port and nothing is queued or slowed, the longest path is the
//! answer already, and no event is made. O((tasks + waits)·log + Σ flows·neighbours).

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap},
};

use crate::{
    event_graph::{EventGraph, TaskId},
    machine::{Machine, Sharing},
    step::{StepGraph, Stream, Work},
};

const NONE: u32 = u32::MAX;

/// A task that moves bytes: the graph's duration is what it takes alone.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Flow {
    /// Its task.
    pub(crate) task: TaskId,
    /// Nanoseconds before the first byte.
    pub(crate) latency: u64,
    /// Nanoseconds that its bytes take alone.
    pub(crate) transfer: u64,
    /// First of its ports in the list of all flows' ports, and how many there are.
    pub(crate) first_port: u32,
    pub(crate) n_ports: u32,
}

/// A message that waits for its turn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Queued {
    /// Its task.
    pub(crate) task: TaskId,
    /// The link that it waits for.
    pub(crate) queue: u32,
    /// The smallest goes first; the first come among equals.
    pub(crate) rank: u64,
}

/// When tasks start and end.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Times {
    pub(crate) ends: Vec<u64>,
    /// Starts, where the graph alone does not tell them.
    pub(crate) starts: Option<Vec<u64>>,
    /// The message before each queued one on its link.
    pub(crate) before: BTreeMap<TaskId, TaskId>,
}

/// Returns when each task ends.
pub(crate) fn times(step: &StepGraph, machine: &Machine) -> Times {
    let shares = machine.sharing == Sharing::Fair && !step.flows.is_empty();
    let slows = machine.slowdown > 1.0 && step.labels.iter().any(|label| is_collective(&label.work));
    if step.queued.is_empty() && !slows {
        let ends = step.graph.ends();
        if !shares || !any_meet(step, &ends) {
            return Times { ends, ..Times::default() };
        }
    }
    Simulation::new(step, shares, if slows { machine.slowdown } else { 1.0 }).run()
}

fn is_collective(work: &Work) -> bool {
    matches!(work, Work::Reduce { .. } | Work::Gather { .. } | Work::AllReduce { .. })
}

/// Tells whether two flows use one port at once when each goes on as if it were alone.
fn any_meet(step: &StepGraph, ends: &[u64]) -> bool {
    let mut by_port: Vec<Vec<(u64, u64)>> = vec![Vec::new(); step.n_ports];
    for flow in step.flows.iter().filter(|flow| flow.transfer > 0) {
        let end = ends[flow.task as usize];
        for port in ports(step, flow) {
            by_port[*port as usize].push((end - flow.transfer, end));
        }
    }
    by_port.iter_mut().any(|uses| {
        // Nearly sorted already: a port's flows are made in about the order of their times.
        uses.sort_unstable();
        uses.windows(2).any(|pair| pair[1].0 < pair[0].1)
    })
}

fn ports<'a>(step: &'a StepGraph, flow: &Flow) -> &'a [u32] {
    &step.flow_ports[flow.first_port as usize..(flow.first_port + flow.n_ports) as usize]
}

/// Something whose rate changes while it runs: a flow's bytes, or kernels beside a collective.
#[derive(Clone, Copy, Default)]
struct Running {
    /// Nanoseconds at full rate.
    left: f64,
    rate: f64,
    since: u64,
    /// Which of its predicted ends is still true.
    version: u32,
}

impl Running {
    /// Goes on at another rate; returns the time from now until so much is left, and the prediction's version.
    fn go_on(&mut self, rate: f64, now: u64, until: f64) -> (u64, u32) {
        self.left = (self.left - self.rate * (now - self.since) as f64).max(0.0);
        self.since = now;
        self.rate = rate;
        self.version += 1;
        let time = ((self.left - until).max(0.0) / rate).ceil();
        // What would take centuries ends the simulation's clock, not the process.
        (if time < 9e18 { time as u64 } else { u64::MAX >> 2 }, self.version)
    }
}

/// What a program computes while collectives may slow it.
#[derive(Clone, Default)]
struct Kernels {
    running: Running,
    task: Option<TaskId>,
    /// Tasks that a part of the work is enough for: what may be left then, largest last.
    early: Vec<(u64, TaskId)>,
    /// Collectives that the program takes part in now.
    collectives: u32,
}

/// A group's link.
#[derive(Clone, Default)]
struct Queue {
    waiting: BinaryHeap<Reverse<(u64, u64, TaskId)>>,
    is_busy: bool,
    last: Option<TaskId>,
    n_came: u64,
}

/// What happens next; at one moment in this order, so that a free link sees all that came.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A flow may have drained.
    Drained { flow: u32, version: u32 },
    /// A program's kernels may have come so far.
    Computed { program: u32, version: u32 },
    /// A flow's latency is over.
    Flowing { flow: u32 },
    /// A task with a fixed duration ends.
    Ended { task: TaskId },
    /// A wait with a lag is over.
    Arrived { task: TaskId },
    /// A link may take its next message.
    Serve { queue: u32 },
}

struct Simulation<'a> {
    step: &'a StepGraph,
    graph: &'a EventGraph,
    shares: bool,
    slowdown: f64,
    flow_of: Vec<u32>,
    queued_of: Vec<u32>,
    open: Vec<u32>,
    first: Vec<u32>,
    successors: Vec<(TaskId, i64)>,
    ready_at: Vec<u64>,
    running: Vec<Running>,
    /// Flows on each port, in the order in which they came.
    ports: Vec<Vec<u32>>,
    kernels: Vec<Kernels>,
    queues: Vec<Queue>,
    /// Scratch: flows whose rate may have changed.
    affected: Vec<u32>,
    events: BinaryHeap<Reverse<(u64, Event)>>,
    times: Times,
}

impl<'a> Simulation<'a> {
    fn new(step: &'a StepGraph, shares: bool, slowdown: f64) -> Self {
        let graph = &step.graph;
        let n = graph.len();
        let mut flow_of = vec![NONE; n];
        for (idx, flow) in step.flows.iter().enumerate().filter(|(_, flow)| flow.transfer > 0) {
            flow_of[flow.task as usize] = idx as u32;
        }
        let mut queued_of = if step.queued.is_empty() { Vec::new() } else { vec![NONE; n] };
        for (idx, queued) in step.queued.iter().enumerate() {
            queued_of[queued.task as usize] = idx as u32;
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
        let n_programs = step.labels.iter().map(|label| label.program + 1).max().unwrap_or(0);
        Self {
            step,
            graph,
            shares,
            slowdown,
            flow_of,
            queued_of,
            open,
            first,
            successors,
            ready_at: vec![0; n],
            running: vec![Running::default(); step.flows.len()],
            ports: vec![Vec::new(); step.n_ports],
            kernels: vec![Kernels::default(); n_programs],
            queues: vec![Queue::default(); step.n_queues],
            affected: Vec::new(),
            events: BinaryHeap::new(),
            times: Times { ends: vec![0; n], ..Times::default() },
        }
    }

    fn run(mut self) -> Times {
        // Collected first: a start may release others at once.
        let roots: Vec<TaskId> =
            (0..self.graph.len() as TaskId).filter(|task| self.open[*task as usize] == 0).collect();
        for task in roots {
            self.arrive(task, 0);
        }
        while let Some(Reverse((now, event))) = self.events.pop() {
            self.handle(now, event);
        }
        self.times.starts = Some(self.ready_at);
        self.times
    }

    fn at(&mut self, time: u64, event: Event) {
        self.events.push(Reverse((time, event)));
    }

    fn handle(&mut self, now: u64, event: Event) {
        match event {
            Event::Ended { task } => self.finish(task, now),
            Event::Arrived { task } => self.arrive(task, now),
            Event::Serve { queue } => self.serve(queue, now),
            Event::Computed { program, version } => self.computed(program, version, now),
            Event::Flowing { flow } => {
                let spec = self.step.flows[flow as usize];
                let running = &mut self.running[flow as usize];
                (running.left, running.since) = (spec.transfer as f64, now);
                for port in ports(self.step, &spec) {
                    self.ports[*port as usize].push(flow);
                }
                self.share(flow, now);
            }
            Event::Drained { flow, version } if self.running[flow as usize].version == version => {
                let spec = self.step.flows[flow as usize];
                for port in ports(self.step, &spec) {
                    self.ports[*port as usize].retain(|other| *other != flow);
                }
                self.running[flow as usize].version += 1;
                self.share(flow, now);
                self.finish(spec.task, now);
            }
            Event::Drained { .. } => {}
        }
    }

    /// Gives every flow on a flow's ports its new rate.
    fn share(&mut self, flow: u32, now: u64) {
        let mut affected = std::mem::take(&mut self.affected);
        let step = self.step;
        for port in ports(step, &step.flows[flow as usize]) {
            affected.extend_from_slice(&self.ports[*port as usize]);
        }
        if !self.shares {
            affected.retain(|other| *other == flow);
        }
        // A flow on several ports is there several times; ties go by number.
        affected.sort_unstable();
        affected.dedup();
        for flow in affected.drain(..) {
            let crowd = |port: &u32| if self.shares { self.ports[*port as usize].len() } else { 1 };
            let most = ports(step, &step.flows[flow as usize]).iter().map(crowd).max().unwrap_or(1);
            let rate = 1.0 / most.max(1) as f64;
            let running = &mut self.running[flow as usize];
            if running.rate == rate && running.version > 0 {
                continue;
            }
            let (time, version) = running.go_on(rate, now, 0.0);
            self.at(now.saturating_add(time), Event::Drained { flow, version });
        }
        self.affected = affected;
    }

    /// A task has all that it waits for.
    fn arrive(&mut self, task: TaskId, now: u64) {
        match self.queued_of.get(task as usize).map(|idx| self.step.queued.get(*idx as usize)) {
            Some(Some(queued)) => {
                let queue = &mut self.queues[queued.queue as usize];
                queue.waiting.push(Reverse((queued.rank, queue.n_came, task)));
                queue.n_came += 1;
                self.at(now, Event::Serve { queue: queued.queue });
            }
            _ => self.start(task, now),
        }
    }

    fn serve(&mut self, queue: u32, now: u64) {
        let link = &mut self.queues[queue as usize];
        if link.is_busy {
            return;
        }
        let Some(Reverse((_, _, task))) = link.waiting.pop() else { return };
        link.is_busy = true;
        if let Some(before) = link.last.replace(task) {
            self.times.before.insert(task, before);
        }
        self.ready_at[task as usize] = now;
        self.start(task, now);
    }

    fn start(&mut self, task: TaskId, now: u64) {
        let flow = self.flow_of[task as usize];
        self.join(task, now, true);
        if flow != NONE {
            // A message may have waited for the one before it with a part of its latency already gone.
            let latency = self.step.flows[flow as usize].latency;
            let flowing = self.ready_at[task as usize].saturating_add(latency);
            self.at(flowing.max(now), Event::Flowing { flow });
            return;
        }
        let label = &self.step.labels[task as usize];
        let duration = self.graph.duration(task);
        if self.slowdown > 1.0
            && label.stream == Stream::Compute
            && matches!(label.work, Work::Compute { .. })
        {
            return self.start_kernels(label.program, task, duration, now);
        }
        // A pass that a part of others' work was enough for may have begun before they were known to end.
        let end = self.ready_at[task as usize].saturating_add(duration).max(now);
        self.at(end, Event::Ended { task });
        // A negative lag lets others start before the end: what they wait for is known now.
        self.release(task, end, now, true);
    }

    fn start_kernels(&mut self, program: usize, task: TaskId, duration: u64, now: u64) {
        let gone = now.saturating_sub(self.ready_at[task as usize]);
        let left = duration.saturating_sub(gone);
        let range = self.first[task as usize] as usize..self.first[task as usize + 1] as usize;
        let early = self.successors[range].iter().filter(|(_, lag)| *lag < 0);
        let mut early: Vec<(u64, TaskId)> =
            early.map(|(successor, lag)| (lag.unsigned_abs(), *successor)).collect();
        early.sort_unstable();
        let kernels = &mut self.kernels[program];
        kernels.early = early;
        kernels.task = Some(task);
        kernels.running.left = left as f64;
        (kernels.running.rate, kernels.running.since) = (0.0, now);
        self.compute_on(program, now);
    }

    /// Lets a program's kernels go on at the rate that its collectives leave.
    fn compute_on(&mut self, program: usize, now: u64) {
        let kernels = &mut self.kernels[program];
        let Some(task) = kernels.task else { return };
        let rate = if kernels.collectives > 0 { 1.0 / self.slowdown } else { 1.0 };
        kernels.running.go_on(rate, now, 0.0);
        // A fraction of a nanosecond may be left of what an event said is reached.
        let reached = |(left, _): &mut (u64, TaskId)| kernels.running.left < *left as f64 + 1e-6;
        if let Some((_, successor)) = kernels.early.pop_if(reached) {
            self.count_off(successor, now, now);
            // What was released may have joined a collective.
            return self.compute_on(program, now);
        }
        let kernels = &mut self.kernels[program];
        if kernels.running.left < 1e-6 {
            kernels.task = None;
            kernels.running.version += 1;
            return self.finish(task, now);
        }
        let until = kernels.early.last().map_or(0.0, |(left, _)| *left as f64);
        let (time, version) = kernels.running.go_on(rate, now, until);
        self.at(now.saturating_add(time), Event::Computed { program: program as u32, version });
    }

    fn computed(&mut self, program: u32, version: u32, now: u64) {
        if self.kernels[program as usize].running.version == version {
            self.compute_on(program as usize, now);
        }
    }

    /// Counts a collective in or out on its programs, and changes the rate of their kernels.
    fn join(&mut self, task: TaskId, now: u64, comes: bool) {
        if self.slowdown <= 1.0 || !is_collective(&self.step.labels[task as usize].work) {
            return;
        }
        let step = self.step;
        let others = step.members.get(&task).into_iter().flatten().copied();
        for program in others.chain([step.labels[task as usize].program]) {
            let kernels = &mut self.kernels[program];
            kernels.collectives = if comes { kernels.collectives + 1 } else { kernels.collectives - 1 };
            self.compute_on(program, now);
        }
    }

    fn finish(&mut self, task: TaskId, now: u64) {
        self.times.ends[task as usize] = now;
        self.join(task, now, false);
        if let Some(Some(queued)) =
            self.queued_of.get(task as usize).map(|idx| self.step.queued.get(*idx as usize))
        {
            self.queues[queued.queue as usize].is_busy = false;
            self.at(now, Event::Serve { queue: queued.queue });
        }
        if self.flow_of[task as usize] != NONE {
            self.release(task, now, now, true);
        }
        self.release(task, now, now, false);
    }

    /// Counts off the waits for a task; early ones have a negative lag.
    fn release(&mut self, task: TaskId, end: u64, now: u64, early: bool) {
        let range = self.first[task as usize] as usize..self.first[task as usize + 1] as usize;
        for at in range {
            let (successor, lag) = self.successors[at];
            if (lag < 0) == early {
                self.count_off(successor, end.saturating_add_signed(lag), now);
            }
        }
    }

    fn count_off(&mut self, successor: TaskId, there: u64, now: u64) {
        let idx = successor as usize;
        self.ready_at[idx] = self.ready_at[idx].max(there);
        self.open[idx] -= 1;
        if self.open[idx] == 0 {
            if self.ready_at[idx] > now {
                self.at(self.ready_at[idx], Event::Arrived { task: successor });
            } else {
                self.arrive(successor, now);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{order::Op, step::Label};

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
