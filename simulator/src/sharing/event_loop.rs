//! The event loop: the next event, and the tasks that it releases.

mod kernels;

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap},
};

use self::kernels::Kernels;
use crate::{
    event_graph::{EventGraph, TaskId},
    step::{StepGraph, Stream, Work},
};

const NONE: u32 = u32::MAX;

/// When tasks start and end.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Times {
    pub(crate) ends: Vec<u64>,
    /// Starts, where the graph alone does not tell them.
    pub(crate) starts: Option<Vec<u64>>,
    /// The message before each queued one on its link.
    pub(crate) before: BTreeMap<TaskId, TaskId>,
}

/// Something whose rate changes while it runs: a flow's bytes, or kernels beside a collective.
#[derive(Clone, Copy, Default)]
struct Running {
    /// Nanoseconds at full rate.
    left: f64,
    rate: f64,
    since: u64,
    /// Number of the latest prediction of its end; events of earlier ones are void.
    version: u32,
}

impl Running {
    /// Changes the rate; returns the time from now until `until` is left, and the prediction's version.
    fn go_on(&mut self, rate: f64, now: u64, until: f64) -> (u64, u32) {
        self.left = (self.left - self.rate * (now - self.since) as f64).max(0.0);
        self.since = now;
        self.rate = rate;
        self.version += 1;
        let time = ((self.left - until).max(0.0) / rate).ceil();
        // A time of centuries saturates instead of overflowing.
        (if time < 9e18 { time as u64 } else { u64::MAX >> 2 }, self.version)
    }
}

/// A group's link.
#[derive(Clone, Default)]
struct Queue {
    waiting: BinaryHeap<Reverse<(u64, u64, TaskId)>>,
    is_busy: bool,
    last: Option<TaskId>,
    n_came: u64,
}

/// Events; those of one moment are handled in this order, so that a free link sees all messages that have come.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A flow may have drained.
    Drained { flow: u32, version: u32 },
    /// A program's kernels may have reached the work that another task waits for.
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

pub(super) struct Simulation<'a> {
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
    pub(super) fn new(step: &'a StepGraph, shares: bool, slowdown: f64) -> Self {
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

    pub(super) fn run(mut self) -> Times {
        // Collected first: the start of a task may release others at once.
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
                for port in self.step.ports(&spec) {
                    self.ports[*port as usize].push(flow);
                }
                self.share(flow, now);
            }
            Event::Drained { flow, version } if self.running[flow as usize].version == version => {
                let spec = self.step.flows[flow as usize];
                for port in self.step.ports(&spec) {
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
        for port in step.ports(&step.flows[flow as usize]) {
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
            let most = step.ports(&step.flows[flow as usize]).iter().map(crowd).max().unwrap_or(1);
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

    /// All waits of a task are over.
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
            // A message that waited for the one before it may have spent a part of its latency meanwhile.
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
        // A negative lag lets others start before the end, which is known now.
        self.release(task, end, now, true);
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
