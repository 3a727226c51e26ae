//! A step as a graph of tasks with labels, and what can be wrong with it.

use std::collections::BTreeMap;

use thiserror::Error;

use crate::{
    event_graph::{EventGraph, TaskId},
    order::{Op, OrderError},
};

/// Why a step cannot be simulated.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SimulateError {
    /// The order names a stage that the workload does not have.
    #[error("the order runs stage {stage}, the workload has stages 0 to {last}")]
    Stage {
        /// The stage of the order.
        stage: u32,
        /// The last stage of the workload.
        last: usize,
    },
    /// The numbers of programs and devices differ.
    #[error("the order has {programs} programs, the workload {devices} devices to run them on")]
    Programs {
        /// Programs of the order.
        programs: usize,
        /// Devices of the workload.
        devices: usize,
    },
    /// A device that the machine does not have.
    #[error("program {program} runs on device {device}, the machine has {n_devices}")]
    Device {
        /// The program.
        program: usize,
        /// Its device.
        device: usize,
        /// Devices of the machine.
        n_devices: usize,
    },
    /// A program of several stages where weights change while micro-batches are on their way.
    #[error("program {program} runs several stages: without a flush, each program has one")]
    Mixed {
        /// The program.
        program: usize,
    },
    /// Two devices that must talk but are not joined.
    #[error("devices {from} and {to} must exchange values but no link joins them")]
    NoLink {
        /// One device.
        from: usize,
        /// The other.
        to: usize,
    },
    /// A transfer that goes nowhere, or backwards.
    #[error("a transfer goes from stage {from} to stage {to}; it must go to a later stage of {n_stages}")]
    Transfer {
        /// Where it comes from.
        from: usize,
        /// Where it goes.
        to: usize,
        /// Stages of the workload.
        n_stages: usize,
    },
    /// A speed, rate or share that is not above zero.
    #[error("{what} must be a number above zero")]
    NotPositive {
        /// Which number.
        what: String,
    },
    /// Programs that wait for each other.
    #[error("the order deadlocks: program {rank} waits at position {position} (`{op}`)")]
    Deadlock {
        /// The first program that cannot go on.
        rank: usize,
        /// Where it stands.
        position: usize,
        /// The operation that cannot run.
        op: Op,
    },
    /// Stages and micro-batches that the operations cannot cover.
    #[error("the order has {n_ops} operations, too few for its stages and micro-batches")]
    Incomplete {
        /// Operations of the order.
        n_ops: usize,
    },
    /// More tasks than we are ready to hold.
    #[error("{n_ops} operations and what they exchange are too many to simulate")]
    TooLarge {
        /// Operations of all steps.
        n_ops: usize,
    },
    /// An order that cannot be made for as many micro-batches as several steps have.
    #[error(transparent)]
    Order(#[from] OrderError),
    /// Times that do not fit.
    #[error("the step takes longer than 2^62 nanoseconds")]
    Overflow,
}

/// Which queue of a device a task is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stream {
    /// Kernels.
    Compute,
    /// Sends to other devices.
    Network,
    /// Collective operations.
    Collective,
    /// Copies to host memory.
    CopyOut,
    /// Copies from host memory.
    CopyIn,
}

/// What a task does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// An operation of the order; `partner` runs joined with it.
    Compute {
        /// The operation.
        op: Op,
        /// The other half of a fused pair.
        partner: Option<Op>,
    },
    /// Values on their way to a device.
    Transfer {
        /// The operation that made them.
        op: Op,
        /// Where they go.
        to: usize,
        /// How many bytes.
        bytes: u64,
    },
    /// Gradients of a stage, one bucket, layer or slice.
    Reduce {
        /// The stage.
        stage: u32,
        /// Which of the stage's messages.
        message: u32,
        /// How many bytes.
        bytes: u64,
    },
    /// The all-reduces inside a pass of a tensor-parallel stage.
    AllReduce {
        /// The pass, and the one fused with it.
        op: Op,
        /// How many.
        count: u32,
        /// Bytes of all of them.
        bytes: u64,
    },
    /// Parameters of a stage brought together: before a pass, or after the optimizer's step.
    Gather {
        /// The stage.
        stage: u32,
        /// The pass that waits for them.
        op: Option<Op>,
    },
    /// Reduce-scatter of one micro-batch's gradients of a stage, whose replicas keep a shard each.
    Scatter {
        /// The pass that made them.
        op: Op,
    },
    /// Activations to or from host memory.
    Copy {
        /// The operation that made or needs them.
        op: Op,
        /// How many bytes.
        bytes: u64,
    },
    /// The optimizer's step.
    Optimizer,
}

impl Work {
    /// Tells whether several devices do it together.
    pub(crate) fn is_collective(&self) -> bool {
        matches!(
            self,
            Self::Reduce { .. } | Self::Gather { .. } | Self::Scatter { .. } | Self::AllReduce { .. }
        )
    }
}

/// A task's label: what is known of it beside its times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Label {
    /// The program that it belongs to.
    pub program: usize,
    /// Its stream on that program's device.
    pub stream: Stream,
    /// What it does.
    pub work: Work,
}

/// A task that moves bytes: its duration in the graph is the time it takes alone.
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

/// A graph with labels: everything that is needed to time a step again.
#[derive(Clone, Debug, Default)]
pub struct StepGraph {
    /// Tasks and waits.
    pub graph: EventGraph,
    /// By task.
    pub labels: Vec<Label>,
    /// Programs that take part in a collective beside the one of its label, by task.
    pub members: BTreeMap<TaskId, Vec<usize>>,
    pub(crate) flows: Vec<Flow>,
    /// Ports of the flows, one flow's after the other's.
    pub(crate) flow_ports: Vec<u32>,
    pub(crate) n_ports: usize,
    /// Messages that wait for their turn on a group's link.
    pub(crate) queued: Vec<Queued>,
    pub(crate) n_queues: usize,
    /// Which task consumes what a transfer brings.
    pub(crate) consumers: Vec<(TaskId, TaskId)>,
    /// Bytes that leave devices for others; copies to host memory are none.
    pub(crate) sent: u64,
}

impl StepGraph {
    /// Returns the ports that a flow uses.
    pub(crate) fn ports(&self, flow: &Flow) -> &[u32] {
        &self.flow_ports[flow.first_port as usize..(flow.first_port + flow.n_ports) as usize]
    }
}
