//! Values between stages: one message after the other on each channel, over the ports of sender and receiver.

use super::{Builder, Channel, NONE};
use crate::{
    event_graph::TaskId,
    machine::{Sends, transfer_time},
    order::{Kind, Op},
    step::{Flow, Label, SimulateError, Stream, Work},
};

impl Builder<'_> {
    /// Sends what an operation makes to every stage that needs it.
    pub(super) fn send(&mut self, program: usize, op: Op, made: TaskId) -> Result<(), SimulateError> {
        let stage = self.model_stage(op.stage);
        let is_forward = op.kind == Kind::Forward;
        if op.kind == Kind::WeightGradient {
            return Ok(());
        }
        let n_edges = if is_forward { self.outgoing[stage].len() } else { self.incoming[stage].len() };
        for nth in 0..n_edges {
            let idx = if is_forward { self.outgoing[stage][nth] } else { self.incoming[stage][nth] };
            let edge = self.edges[idx];
            let (peer, bytes) = if is_forward { (edge.to, edge.forward) } else { (edge.from, edge.backward) };
            let peer_stage = op.stage - stage as u32 + peer as u32;
            let arrival = self.arrival(op, idx);
            let there = match self.home.get(self.cell(peer_stage, op.micro_batch)) {
                Some(&to) if to != u32::MAX && to as usize != program => {
                    self.transfer(program, to as usize, op, bytes, made)?
                }
                _ => made,
            };
            let table = if is_forward { &mut self.forward_there } else { &mut self.backward_there };
            table[arrival] = there;
        }
        Ok(())
    }

    fn transfer(
        &mut self,
        from: usize,
        to: usize,
        op: Op,
        bytes: u64,
        made: TaskId,
    ) -> Result<TaskId, SimulateError> {
        let (source, target) = (self.workload.devices[from], self.workload.devices[to]);
        if source == target {
            return Ok(made);
        }
        let nth = self.channel(from, to, source, target)?;
        let Channel { link, ports, last, .. } = self.channels[from][nth];
        let transfer = transfer_time(bytes, link.bandwidth);
        let duration = link.latency.saturating_add(transfer);
        let label = Label {
            program: from,
            stream: Stream::Network,
            work: Work::Transfer { op: Op { joined: false, ..op }, to, bytes },
        };
        // Messages do not overtake each other, but their latencies overlap.
        let behind = (last != NONE).then(|| (last, -i64::try_from(link.latency).unwrap_or(i64::MAX)));
        let waits = std::iter::once((made, 0)).chain(behind);
        let task = if self.machine.sends == Sends::Blocking {
            self.push(Label { stream: Stream::Compute, ..label }, duration, waits.collect())
        } else {
            let task = self.step.graph.add(duration, waits);
            self.step.labels.push(label);
            task
        };
        self.channels[from][nth].last = task;
        self.step.sent = self.step.sent.saturating_add(bytes.saturating_mul(self.alike(from)));
        self.flow(task, link.latency, transfer, &ports);
        Ok(task)
    }

    /// Returns the place of a channel among its sender's.
    fn channel(
        &mut self,
        from: usize,
        to: usize,
        source: usize,
        target: usize,
    ) -> Result<usize, SimulateError> {
        if let Some(nth) = self.channels[from].iter().position(|channel| channel.to == to) {
            return Ok(nth);
        }
        let link =
            self.machine.link(source, target).ok_or(SimulateError::NoLink { from: source, to: target })?;
        let level = self.machine.level(source, target);
        let ports = [self.port(source, level, true), self.port(target, level, false)];
        self.channels[from].push(Channel { to, link, ports, last: NONE });
        Ok(self.channels[from].len() - 1)
    }

    /// Lets a task share ports while its bytes move.
    pub(super) fn flow(&mut self, task: TaskId, latency: u64, transfer: u64, ports: &[u32]) {
        let first_port = self.step.flow_ports.len() as u32;
        self.step.flow_ports.extend_from_slice(ports);
        let n_ports = ports.len() as u32;
        self.step.flows.push(Flow { task, latency, transfer, first_port, n_ports });
    }

    pub(super) fn port(&mut self, device: usize, level: usize, is_out: bool) -> u32 {
        let next = self.ports.len() as u32;
        let port = *self.ports.entry((device, level, is_out)).or_insert(next);
        self.step.n_ports = self.ports.len();
        port
    }
}
