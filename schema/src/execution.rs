//! How a plan is executed beyond its stages: gradient sums, sharding, offload. All fields are optional: PyTorch's
//! defaults apply to absent ones.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Bytes, Seconds};

/// Accesses to each byte of gradients in adding a micro-batch's to those before it: both are read, the sum is written. The first
/// micro-batch after an update adds to none: autograd keeps what it made.
pub const ACCUMULATION_ACCESSES: u64 = 3;

/// Default bytes of gradients that replicas sum at once: the bucket of PyTorch's DDP.
pub const BUCKET: Bytes = Bytes(25 << 20);

/// The execution of replicas and memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Execution {
    /// When gradients are sent; `bucketed` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sync: Option<SyncOrder>,
    /// The collective; the fastest when absent, a parameter server for `fifo` and `p3`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub collective: Option<CollectiveKind>,
    /// Parameter servers; one per replica when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub servers: Option<u32>,
    /// Whether servers are on separate machines, so that `fifo` and `p3` use both directions of their links at once;
    /// when absent they are on the replicas' machines, with one link for both.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub servers_apart: Option<bool>,
    /// Bytes per bucket; DDP's 25 MiB when absent, the first of 1 MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bucket: Option<Bytes>,
    /// Most bytes per message of `fifo` and `p3`; for `p3`, 160,000 when absent: the released P3's 40,000 parameters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slice: Option<Bytes>,
    /// State that replicas shard instead of each keeping a copy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sharding: Option<ShardingLevel>,
    /// Number of replicas that shard together, neighbours in a stage's list; each such group holds all state (hybrid
    /// sharding). All replicas of a stage when absent, and in stages whose replicas it does not divide.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sharding_group: Option<u32>,
    /// How offloaded activations are copied; `both` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offload: Option<OffloadMode>,
    /// Number of passes that offload copies may run ahead; 2 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefetch: Option<u32>,
    /// Factor by which kernels are slower while their device takes part in a collective; 1 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overlap_slowdown: Option<f64>,
    /// Whether all stages of a `pipedream` schedule use the weights that the first one had when the micro-batch
    /// entered, instead of their own newest (vertical sync).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vertical_sync: Option<bool>,
    /// Whether a stage blocks until its sends have arrived; it computes meanwhile when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocking_sends: Option<bool>,
}

/// When gradients are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum SyncOrder {
    /// After a replica's whole backward pass.
    AfterBackward,
    /// Each bucket as soon as its gradients exist (DDP, Horovod).
    Bucketed,
    /// Each layer as soon as its gradients exist, first come, first served.
    Fifo,
    /// In slices, first those of the layers that the next forward pass needs first (P3).
    P3,
}

/// The collective's algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum CollectiveKind {
    /// The fastest of ring, tree and hierarchical.
    Fastest,
    /// Neighbours in a ring.
    Ring,
    /// A binary tree, pipelined.
    Tree,
    /// Rings inside nodes and between them.
    Hierarchical,
    /// Servers sum and send back.
    ParameterServer,
}

/// ZeRO's levels, each of which shards the state of those before it, and more.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum ShardingLevel {
    /// Nothing.
    #[default]
    None,
    /// Optimizer state.
    Zero1,
    /// Optimizer state and gradients.
    Zero2,
    /// Optimizer state, gradients and parameters (FSDP).
    Zero3,
}

impl ShardingLevel {
    /// All of them, by increasing sharding.
    pub const ALL: [Self; 4] = [Self::None, Self::Zero1, Self::Zero2, Self::Zero3];

    /// Returns the name in files and of `--sharding`.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Zero1 => "zero1",
            Self::Zero2 => "zero2",
            Self::Zero3 => "zero3",
        }
    }

    /// Returns the level with this name; `ddp` and `fsdp` are those of PyTorch's modules, a number is ZeRO's stage.
    pub fn from_name(name: &str) -> Option<Self> {
        let name = name.to_ascii_lowercase();
        match name.as_str() {
            "ddp" | "0" => Some(Self::None),
            "1" | "zero-1" => Some(Self::Zero1),
            "2" | "zero-2" => Some(Self::Zero2),
            "fsdp" | "3" | "zero-3" => Some(Self::Zero3),
            name => Self::ALL.into_iter().find(|level| level.name() == name),
        }
    }
}

/// How offloaded activations are copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum OffloadMode {
    /// From pageable memory, computation waits.
    Naive,
    /// From pinned memory, computation waits.
    Pinned,
    /// By asynchronous calls on pageable memory, which the driver makes blocking.
    NonBlocking,
    /// From pinned memory on streams of their own.
    Both,
}

/// A stage whose layers are sharded over a group of devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TensorParallel {
    /// Devices of a group: neighbours in the stage's list. The stage's costs are those of one of them.
    pub degree: u32,
    /// Bytes of one all-reduce.
    pub all_reduce: Bytes,
    /// All-reduces in a forward pass, and the same number in a backward pass: two per transformer layer.
    pub per_pass: u32,
}

/// A layer's part of its stage, per micro-batch: when its gradient exists and when its parameters are needed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LayerCost {
    /// Forward pass.
    pub forward: Seconds,
    /// Backward pass.
    pub backward: Seconds,
    /// Bytes of its gradients; all layers' sum is the stage's parameters.
    pub gradients: Bytes,
    /// Bytes of its result for one micro-batch, which a tensor-parallel group would exchange.
    #[serde(default)]
    pub output: Bytes,
}

impl Execution {
    /// Returns these choices, with another's as the defaults.
    pub fn or(self, other: Self) -> Self {
        Self {
            sync: self.sync.or(other.sync),
            collective: self.collective.or(other.collective),
            servers: self.servers.or(other.servers),
            servers_apart: self.servers_apart.or(other.servers_apart),
            bucket: self.bucket.or(other.bucket),
            slice: self.slice.or(other.slice),
            sharding: self.sharding.or(other.sharding),
            sharding_group: self.sharding_group.or(other.sharding_group),
            offload: self.offload.or(other.offload),
            prefetch: self.prefetch.or(other.prefetch),
            overlap_slowdown: self.overlap_slowdown.or(other.overlap_slowdown),
            vertical_sync: self.vertical_sync.or(other.vertical_sync),
            blocking_sends: self.blocking_sends.or(other.blocking_sends),
        }
    }
}
