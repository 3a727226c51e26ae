//! The input of a simulation: stages, transfers between them, and gradient sync. Nanoseconds and bytes.

use crate::versions::Updates;

/// A training step as numbers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Workload {
    /// Stages of one copy of the model, in its order.
    pub stages: Vec<Stage>,
    /// Values between stages. A stage without an incoming entry follows the one before it.
    pub transfers: Vec<Transfer>,
    /// Device of each program of the order.
    pub devices: Vec<usize>,
    /// Further devices of a program that do the same with their part of each layer: its tensor-parallel group. Empty
    /// where every program has one device.
    pub peers: Vec<Vec<usize>>,
    /// Parameters that several stages hold, whose gradients are added up across them.
    pub ties: Vec<Tie>,
    /// How copies and replicas of a stage agree on gradients.
    pub sync: Sync,
    /// How offloaded activations travel.
    pub offload: Offload,
    /// When weights change while micro-batches are on their way; once, at the end of the order, when absent. Each program
    /// then runs one stage.
    pub updates: Option<Updates>,
}

/// Parameters that several stages hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tie {
    /// The stages.
    pub stages: Vec<usize>,
    /// Bytes of their gradients.
    pub bytes: u64,
}

/// One stage, for one micro-batch where it matters.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stage {
    /// Time of the forward pass.
    pub forward: u64,
    /// Time of the inputs' gradient.
    pub input_gradient: u64,
    /// Time of the parameters' gradient.
    pub weight_gradient: u64,
    /// Time of adding a micro-batch's gradients to those before it: on a program, in each pass that makes gradients of the stage's
    /// parameters but the first of an update.
    pub accumulation: u64,
    /// Time of recomputation in the backward pass.
    pub recompute: u64,
    /// Time of the optimizer's step, once a step.
    pub optimizer_step: u64,
    /// Memory.
    pub memory: StageMemory,
    /// What its tensor-parallel group exchanges, if it has one.
    pub tensor_parallel: Option<TensorParallel>,
    /// Its layers, first to last, where they are known: when each gradient exists and each parameter is needed.
    pub layers: Vec<Layer>,
}

impl Stage {
    /// Bytes of sharded parameters that are gathered at once: twice the largest layer's, for it and the next one, or all if
    /// layers are not known.
    pub fn gathered(&self) -> u64 {
        let largest = self.layers.iter().map(|layer| layer.gradients).max();
        largest.map_or(self.memory.parameters, |bytes| self.memory.parameters.min(bytes.saturating_mul(2)))
    }
}

/// A layer's part of its stage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Layer {
    /// Share of the forward pass, in any unit that the stage's layers have in common.
    pub forward: u64,
    /// Share of the backward pass, likewise.
    pub backward: u64,
    /// Bytes of its gradients; the stage's gradients where the layers are known.
    pub gradients: u64,
}

/// Bytes of a stage on one device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StageMemory {
    /// Parameters.
    pub parameters: u64,
    /// Gradients of the parameters.
    pub gradients: u64,
    /// Optimizer state.
    pub optimizer: u64,
    /// Weight versions beside the newest, in the steady state: those that the order is too short to reach are held from its
    /// start.
    pub older_versions: u64,
    /// What autograd keeps for one micro-batch from its forward to its backward.
    pub activations: u64,
    /// What the backward needs on top of that while it runs: recomputed activations.
    pub recomputed: u64,
    /// What a micro-batch needs on top of its activations from its input gradient to its weight gradient, if these are two
    /// operations: operands of products and the gradients of their results.
    pub waiting: u64,
    /// Scratch memory of any operation while it runs.
    pub workspace: u64,
    /// The part of the activations that waits in host memory.
    pub offloaded: u64,
}

/// Collectives inside a stage: Megatron's all-reduces, which the pass waits in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorParallel {
    /// Bytes of one all-reduce.
    pub bytes: u64,
    /// All-reduces in each forward pass, and as many in each backward.
    pub per_pass: u32,
}

/// Values from a stage to a later one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// Stage that makes them.
    pub from: usize,
    /// Stage that gets them.
    pub to: usize,
    /// Bytes of one micro-batch forward.
    pub forward: u64,
    /// Bytes of their gradients.
    pub backward: u64,
}

/// How copies and replicas of a stage agree on gradients at the end of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sync {
    /// When gradients are sent, and in which order.
    pub mode: SyncMode,
    /// Bytes of the first bucket, so that sending starts early.
    pub first_bucket: u64,
    /// Bytes of a bucket; the sync of a bucket starts when its gradients exist.
    pub bucket: u64,
    /// Which collective.
    pub algorithm: crate::collective::Algorithm,
    /// What is kept once for the group instead of once a replica.
    pub sharding: Sharding,
    /// Programs of a stage that share out together; all when absent.
    pub sharding_group: Option<usize>,
    /// Where parameter servers are, which decides what their links carry at once.
    pub servers: Servers,
}

impl Default for Sync {
    /// PyTorch DDP's 25 MiB buckets, the first of 1 MiB.
    fn default() -> Self {
        Self {
            mode: SyncMode::Bucketed,
            first_bucket: 1 << 20,
            bucket: schema::BUCKET.0,
            algorithm: crate::collective::Algorithm::Fastest,
            sharding: Sharding::Replicated,
            sharding_group: None,
            servers: Servers::default(),
        }
    }
}

impl Sync {
    /// Returns the number of a stage's programs that share out together: the inverse of the part that each holds.
    pub fn sharers(&self, members: usize) -> usize {
        let group = self.sharding_group.filter(|group| *group > 0 && members.is_multiple_of(*group));
        group.unwrap_or(members).max(1)
    }
}

/// Where parameter servers are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Servers {
    /// On the replicas' machines: what they send back leaves over the link over which replicas push.
    #[default]
    Among,
    /// On machines of their own: pushes use one direction of their links, what they send back the other.
    Apart,
}

/// When gradients are sent, and in which order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SyncMode {
    /// When a replica's whole backward is over, in buckets.
    AfterBackward,
    /// A bucket as soon as its gradients exist, behind the backward that makes the others (DDP, Horovod).
    #[default]
    Bucketed,
    /// Every layer as soon as its gradients exist, first come, first served; the next forward pass waits layer by layer.
    Fifo {
        /// Most bytes of a message.
        slice: Option<u64>,
    },
    /// The same, but the layers that the next forward pass needs first go first (P3).
    Priority {
        /// Most bytes of a message: what is being sent is not interrupted.
        slice: Option<u64>,
    },
}

impl SyncMode {
    /// Returns the most bytes of a message where layers are sent by themselves.
    pub fn slice(self) -> Option<Option<u64>> {
        match self {
            SyncMode::Fifo { slice } | SyncMode::Priority { slice } => Some(slice),
            SyncMode::AfterBackward | SyncMode::Bucketed => None,
        }
    }
}

/// ZeRO's stages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Sharding {
    /// Everything on every replica.
    #[default]
    Replicated,
    /// Optimizer state shared out: gradients are reduced and scattered, parameters gathered after the step.
    Optimizer,
    /// Gradients as well.
    Gradients,
    /// Parameters as well (FSDP): gathered before each pass.
    Parameters,
}

/// How activations travel to host memory and back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offload {
    /// The computation waits for each copy; pageable memory.
    Naive,
    /// The computation waits for each copy; pinned memory is faster.
    Pinned,
    /// Asynchronous calls on pageable memory: the driver stages them, so the computation waits all the same.
    NonBlocking,
    /// Asynchronous copies of pinned memory on streams of their own, `depth` passes ahead.
    Overlapped {
        /// Buffers: copies may run this many passes behind the forward and ahead of the backward.
        depth: u32,
    },
}

impl Default for Offload {
    fn default() -> Self {
        Offload::Overlapped { depth: 2 }
    }
}

impl Workload {
    /// Returns stages of equal cost that follow each other, one a device: what the closed forms speak about.
    pub fn uniform(n_stages: usize, n_devices: usize, cost: &crate::Cost) -> Self {
        let stage = Stage {
            forward: cost.forward,
            input_gradient: cost.input_gradient,
            weight_gradient: cost.weight_gradient,
            ..Stage::default()
        };
        Self { stages: vec![stage; n_stages], devices: (0..n_devices).collect(), ..Self::default() }
    }
}
