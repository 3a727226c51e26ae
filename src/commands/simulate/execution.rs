//! Flags of gradient sums, sharding, offload and tensor parallelism: they override the plan.

use clap::{Args, ValueEnum};
use schema::{Bytes, CollectiveKind, Execution, OffloadMode, ShardingLevel, SyncOrder};

/// How a plan is executed, in addition to its stages.
#[derive(Args)]
#[command(next_help_heading = "Execution, instead of the plan's")]
pub(super) struct ExecutionArguments {
    /// When replicas send gradients [default: bucketed]
    #[arg(long, value_enum, value_name = "WHEN", conflicts_with_all = ["csv", "ranks"])]
    sync: Option<SyncName>,
    /// Collective of replicas and tensor-parallel groups [default: fastest; with fifo and p3 a parameter server]
    #[arg(long, value_enum, value_name = "HOW", conflicts_with_all = ["csv", "ranks"])]
    collective: Option<CollectiveName>,
    /// Parameter servers [default: one per replica]
    #[arg(long, value_name = "N", conflicts_with_all = ["csv", "ranks"])]
    servers: Option<u32>,
    /// Parameter servers are on separate machines: fifo and p3 use both directions of their links at once
    #[arg(long, conflicts_with_all = ["csv", "ranks"])]
    servers_apart: bool,
    /// Bytes per bucket [default: 26214400, the first 1048576]
    #[arg(long, value_name = "BYTES", conflicts_with_all = ["csv", "ranks"])]
    bucket: Option<u64>,
    /// Most bytes per message of fifo and p3 [default with p3: 160000]
    #[arg(long, value_name = "BYTES", conflicts_with_all = ["csv", "ranks"])]
    slice: Option<u64>,
    /// State that replicas shard instead of each keeping a copy [default: none]
    #[arg(long, visible_alias = "zero", value_enum, value_name = "LEVEL", conflicts_with_all = ["csv", "ranks"])]
    sharding: Option<ShardingName>,
    /// Replicas that shard together, 8 for a node of eight; each such group holds all state [default: all replicas]
    #[arg(long, value_name = "N")]
    sharding_group: Option<u32>,
    /// How offloaded activations are copied [default: both]
    #[arg(long, value_enum, value_name = "MODE", conflicts_with_all = ["csv", "ranks"])]
    offload: Option<OffloadName>,
    /// Number of passes that offload copies may run ahead [default: 2]
    #[arg(long, value_name = "N", conflicts_with_all = ["csv", "ranks"])]
    prefetch: Option<u32>,
    /// Share of every stage's activations that moves to host memory, from 0 to 1
    #[arg(long, value_name = "SHARE", conflicts_with_all = ["csv", "ranks"])]
    offload_share: Option<f64>,
    /// Estimate the plan with every stage's layers sharded over groups of this many of its devices
    #[arg(long, value_name = "N", conflicts_with_all = ["csv", "ranks"])]
    tensor_parallel: Option<u32>,
    /// Factor by which kernels are slower while a collective runs on their device [default: 1]
    #[arg(long, value_name = "FACTOR", conflicts_with_all = ["csv", "ranks"])]
    overlap_slowdown: Option<f64>,
    /// All stages of a pipedream schedule use the weights that the first one had when the micro-batch entered
    #[arg(long, conflicts_with = "csv")]
    vertical_sync: bool,
    /// Senders wait until their values have arrived
    #[arg(long, conflicts_with_all = ["csv", "ranks"])]
    blocking_sends: bool,
}

/// When gradients are sent.
#[derive(Clone, Copy, ValueEnum)]
enum SyncName {
    /// After a replica's whole backward pass
    AfterBackward,
    /// Each bucket as soon as its gradients exist, as DDP and Horovod do
    Bucketed,
    /// Each layer as soon as its gradients exist, first come, first served
    Fifo,
    /// In slices, first those of the layers that the next forward pass needs first
    P3,
}

/// The collective's algorithm.
#[derive(Clone, Copy, ValueEnum)]
enum CollectiveName {
    /// The fastest of ring, tree and hierarchical
    Fastest,
    /// Neighbours in a ring
    Ring,
    /// A binary tree, pipelined
    Tree,
    /// Rings inside nodes and between them
    Hierarchical,
    /// Servers sum and send back
    ParameterServer,
}

/// The sharding level.
#[derive(Clone, Copy, ValueEnum)]
enum ShardingName {
    /// Nothing
    None,
    /// Optimizer state
    Zero1,
    /// Optimizer state and gradients
    Zero2,
    /// Optimizer state, gradients and parameters (FSDP)
    Zero3,
}

/// How offloaded activations are copied.
#[derive(Clone, Copy, ValueEnum)]
enum OffloadName {
    /// From pageable memory, computation waits
    Naive,
    /// From pinned memory, computation waits
    Pinned,
    /// By asynchronous calls on pageable memory, which the driver makes blocking
    NonBlocking,
    /// From pinned memory on streams of their own
    Both,
}

impl ExecutionArguments {
    /// Returns the flags' choices.
    pub(super) fn execution(&self) -> Execution {
        Execution {
            sync: self.sync.map(|name| match name {
                SyncName::AfterBackward => SyncOrder::AfterBackward,
                SyncName::Bucketed => SyncOrder::Bucketed,
                SyncName::Fifo => SyncOrder::Fifo,
                SyncName::P3 => SyncOrder::P3,
            }),
            collective: self.collective.map(|name| match name {
                CollectiveName::Fastest => CollectiveKind::Fastest,
                CollectiveName::Ring => CollectiveKind::Ring,
                CollectiveName::Tree => CollectiveKind::Tree,
                CollectiveName::Hierarchical => CollectiveKind::Hierarchical,
                CollectiveName::ParameterServer => CollectiveKind::ParameterServer,
            }),
            servers: self.servers,
            servers_apart: self.servers_apart.then_some(true),
            bucket: self.bucket.map(Bytes),
            slice: self.slice.map(Bytes),
            sharding: self.sharding.map(|name| match name {
                ShardingName::None => ShardingLevel::None,
                ShardingName::Zero1 => ShardingLevel::Zero1,
                ShardingName::Zero2 => ShardingLevel::Zero2,
                ShardingName::Zero3 => ShardingLevel::Zero3,
            }),
            sharding_group: self.sharding_group,
            offload: self.offload.map(|name| match name {
                OffloadName::Naive => OffloadMode::Naive,
                OffloadName::Pinned => OffloadMode::Pinned,
                OffloadName::NonBlocking => OffloadMode::NonBlocking,
                OffloadName::Both => OffloadMode::Both,
            }),
            prefetch: self.prefetch,
            overlap_slowdown: self.overlap_slowdown,
            vertical_sync: self.vertical_sync.then_some(true),
            blocking_sends: self.blocking_sends.then_some(true),
        }
    }

    /// Tells whether all stages use the first one's weights.
    pub(super) fn vertical_sync(&self) -> bool {
        self.vertical_sync
    }

    /// Returns the share of the activations that moves to host memory.
    pub(super) fn offloaded(&self) -> Option<f64> {
        self.offload_share
    }

    /// Returns the devices of a tensor-parallel group.
    pub(super) fn tensor_parallel(&self) -> Option<u32> {
        self.tensor_parallel
    }
}
