//! The size of a step in samples, tokens and operations, and its default limit.

use std::collections::BTreeSet;

use graph::TensorFact;
use schema::Cluster;

use crate::{operations::operations, workspace::Workspace};

/// The most tokens per step: those of Llama 3 405B at the end of its training (arXiv 2407.21783, 3.4.1).
const TOKENS: u64 = 16 << 20;
/// The most samples per step: the largest batch that ImageNet was trained with without loss of accuracy (arXiv
/// 1706.02677).
const SAMPLES: u64 = 8192;

/// One micro-batch of a model.
#[derive(Clone)]
pub struct StepSize {
    /// Samples, if the model's inputs tell them.
    pub samples: Option<u64>,
    /// Tokens, if the model takes rows of them.
    tokens: Option<u64>,
    /// FLOPs of both passes, and the data type of most of them; `None` if some are not counted.
    operations: Option<(f64, String)>,
}

/// Throughput of a plan.
#[derive(Clone, Copy, Default)]
pub struct Rates {
    /// Samples per second, if the model's inputs tell them.
    pub samples: Option<f64>,
    /// Tokens per second, if the model takes rows of them.
    pub tokens: Option<f64>,
    /// Model FLOPs, as a share of the devices' peak.
    pub mfu: Option<f64>,
}

impl StepSize {
    /// Returns the size of one micro-batch of a model.
    pub fn of(workspace: &Workspace) -> Self {
        let graph = &workspace.graph;
        let input = graph.inputs.first().map(|input| &graph.values[input.index()].fact);
        let tensor = input.and_then(|fact| fact.tensors().first().copied());
        let sizes = tensor.and_then(sizes);
        let samples = sizes.as_ref().and_then(|sizes| sizes.first().copied());
        // Rows of integers are tokens.
        let is_text = tensor.is_some_and(|tensor| tensor.dtype.is_some_and(is_whole));
        let tokens = sizes.filter(|sizes| is_text && sizes.len() == 2).map(|sizes| sizes.iter().product());
        // For devices that share a model, the FLOPs are those of the whole model.
        let operations = workspace
            .shared
            .as_ref()
            .map_or_else(|| operations(graph, &workspace.costs), |shared| shared.operations.clone());
        Self { samples, tokens, operations }
    }

    /// Returns the same for the forward pass alone.
    pub(super) fn of_forward(workspace: &Workspace) -> Self {
        let forward = workspace.costs.total().forward_flops as f64;
        // The forward pass of a shared model has no separate count.
        let whole = operations(&workspace.graph, &workspace.costs).filter(|_| workspace.shared.is_none());
        Self { operations: whole.map(|(_, dtype)| (forward, dtype)), ..Self::of(workspace) }
    }

    /// Returns the most micro-batches per step, and the reason of the limit.
    pub(super) fn limit(&self) -> Option<(u32, String)> {
        let (most, each, what) = match (self.tokens, self.samples) {
            (Some(tokens), _) => (TOKENS, tokens, "tokens, as Llama 3 405B was trained with"),
            (None, Some(samples)) => {
                (SAMPLES, samples, "samples, the most that ImageNet was trained with without loss")
            }
            (None, None) => return None,
        };
        let count = u32::try_from((most / each.max(1)).max(1)).unwrap_or(u32::MAX);
        Some((count, format!("a step has at most {most} {what} (--batch and --micro-batches set others)")))
    }

    /// Returns the throughput of devices that take the given seconds per micro-batch.
    pub fn rates(&self, seconds_each: f64, cluster: &Cluster, devices: &BTreeSet<&str>) -> Rates {
        let rate = |count: Option<u64>| Some(count? as f64 / seconds_each).filter(|_| seconds_each > 0.0);
        let share = self.operations.as_ref().and_then(|(operations, dtype)| {
            let used = cluster.devices.iter().filter(|device| devices.contains(&device.name.as_str()));
            let peaks = used.map(|device| Some(cluster.types.get(&device.type_)?.peak.get(dtype)?.0));
            let peak: f64 = peaks.sum::<Option<f64>>()?;
            Some(operations / seconds_each / peak).filter(|share| share.is_finite())
        });
        Rates { samples: rate(self.samples), tokens: rate(self.tokens), mfu: share }
    }
}

fn sizes(tensor: &TensorFact) -> Option<Vec<u64>> {
    tensor.shape.as_ref()?.iter().copied().collect()
}

fn is_whole(dtype: tracer::DType) -> bool {
    matches!(graph::dtype_name(dtype), "int64" | "int32" | "int16" | "uint8")
}
