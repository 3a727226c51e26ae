//! Offloaded activations: copies to host memory after a forward, back before the backward.

use super::Builder;
use crate::{
    event_graph::TaskId,
    machine::transfer_time,
    order::{Kind, Op},
    step::{Label, Stream, Work},
    workload::Offload,
};

impl Builder<'_> {
    /// Rate of copies to host memory, and whether the computation waits for them.
    fn copy_rate(&self, program: usize) -> (f64, Option<u32>) {
        let device = self.device(program);
        match self.workload.offload {
            Offload::Naive | Offload::NonBlocking => (device.host_bandwidth * device.pageable, None),
            Offload::Pinned => (device.host_bandwidth, None),
            Offload::Overlapped { depth } => (device.host_bandwidth, Some(depth.max(1))),
        }
    }

    /// Brings offloaded activations back before a backward; before a forward, waits for a free buffer.
    pub(super) fn copies_before(&mut self, program: usize, op: Op, waits: &mut Vec<(TaskId, i64)>) {
        let bytes = self.workload.stages[self.model_stage(op.stage)].memory.offloaded;
        if bytes == 0 {
            return;
        }
        let (rate, depth) = self.copy_rate(program);
        match op.kind {
            Kind::Forward => {
                if let Some(depth) = depth {
                    let copies = &self.copies_out[program];
                    let buffer = copies.len().checked_sub(depth as usize).map(|idx| (copies[idx], 0));
                    waits.extend(buffer);
                }
            }
            Kind::InputGradient | Kind::Backward => {
                let mut before = vec![(self.copied_out[self.cell(op.stage, op.micro_batch)], 0)];
                let stream = if let Some(depth) = depth {
                    // With `depth` buffers the copy may run beside the passes that use the others.
                    let done = &self.computed[program];
                    before.extend(done.len().checked_sub(depth as usize).map(|idx| (done[idx], 0)));
                    Stream::CopyIn
                } else {
                    // The stream of a blocking copy takes over its waits.
                    before.append(waits);
                    Stream::Compute
                };
                let work = Work::Copy { op: Op { joined: false, ..op }, bytes };
                let copy = self.push(Label { program, stream, work }, transfer_time(bytes, rate), before);
                waits.push((copy, 0));
            }
            Kind::WeightGradient => {}
        }
    }

    pub(super) fn copy_after(&mut self, program: usize, op: Op, made: TaskId) {
        let bytes = self.workload.stages[self.model_stage(op.stage)].memory.offloaded;
        if bytes == 0 || op.kind != Kind::Forward {
            return;
        }
        let (rate, depth) = self.copy_rate(program);
        let stream = if depth.is_some() { Stream::CopyOut } else { Stream::Compute };
        let work = Work::Copy { op: Op { joined: false, ..op }, bytes };
        let copy = self.push(Label { program, stream, work }, transfer_time(bytes, rate), vec![(made, 0)]);
        self.copies_out[program].push(copy);
        let cell = self.cell(op.stage, op.micro_batch);
        self.copied_out[cell] = copy;
    }
}
