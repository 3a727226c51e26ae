//! The loss: the time and memory that training adds after a model's outputs.
//!
//! A trace ends with the outputs. The costs here are those of torch's own losses on the first of them: cross-entropy in
//! float32, as transformers has it, saves its logarithms (4 bytes a number) and makes two gradients of that size in the
//! backward pass; a mean of squares saves output and target, and makes one gradient. The output itself is also kept
//! until then.

use std::ops::Range;

use clap::ValueEnum;
use graph::{LossMemory, ModelGraph, OperatorCosts, OperatorId, Origin, TensorFact};
use partitioner::{Problem, workspace};
use schema::{Bytes, BytesPerSecond, PlannedLoss, Seconds};

/// Rows of two-dimensional outputs with more columns than this are over classes.
const CLASSES: u64 = 2;
/// Rows of three-dimensional outputs with at least this many columns are over a vocabulary: hidden states have fewer,
/// except in very large models.
const WORDS: u64 = 8192;
/// Time of plain copies relative to the data sheet's memory bandwidth, for devices that do not state it.
const COPY_SLOWDOWN: f64 = 1.25;

/// A loss.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Loss {
    /// No loss
    None,
    /// Classes or words: torch's cross_entropy of the outputs in float32
    CrossEntropy,
    /// The same in one kernel that writes the gradient over the outputs: flash-attn's, Liger's, Apex's
    FusedCrossEntropy,
    /// Numbers: torch's mse_loss
    Mse,
}

impl Loss {
    /// Returns the loss as plans have it.
    pub(super) fn planned(self) -> PlannedLoss {
        match self {
            Self::None => PlannedLoss::None,
            Self::CrossEntropy => PlannedLoss::CrossEntropy,
            Self::FusedCrossEntropy => PlannedLoss::FusedCrossEntropy,
            Self::Mse => PlannedLoss::Mse,
        }
    }

    /// Returns the loss of a plan.
    pub(super) fn of_plan(planned: PlannedLoss) -> Self {
        match planned {
            PlannedLoss::None => Self::None,
            PlannedLoss::CrossEntropy => Self::CrossEntropy,
            PlannedLoss::FusedCrossEntropy => Self::FusedCrossEntropy,
            PlannedLoss::Mse => Self::Mse,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::CrossEntropy => "cross-entropy",
            Self::FusedCrossEntropy => "fused cross-entropy",
            Self::Mse => "mean of squares",
        }
    }
}

/// Returns the memory of a loss in addition to the outputs, and its name; if none is requested, of the loss that suits
/// the outputs.
pub fn memory(graph: &ModelGraph, asked: Option<Loss>) -> Option<(LossMemory, String)> {
    let output = first_output(graph)?;
    let (own, numbers) = (output.bytes()?, output.elements()?);
    let loss = asked.or_else(|| guessed(output))?;
    let single = numbers.saturating_mul(4);
    let cast = if own == single { 0 } else { single };
    let memory = match loss {
        Loss::None => return None,
        // Forward: a copy in float32, whose logarithms are saved. Backward: their gradient, and that of the copy.
        Loss::CrossEntropy => LossMemory {
            kept: single,
            forward: cast,
            backward: single.saturating_mul(2),
            ..LossMemory::default()
        },
        // The gradient takes the outputs' place.
        Loss::FusedCrossEntropy => LossMemory { in_place: true, ..LossMemory::default() },
        // The target is as large as the output.
        Loss::Mse => LossMemory { kept: own, ..LossMemory::default() },
    };
    let guess = if asked.is_none() { " (guessed from the outputs; --loss sets another)" } else { "" };
    Some((memory, format!("{} of {}{guess}", loss.name(), graph::show_shape(output.shape.as_ref()?))))
}

fn first_output(graph: &ModelGraph) -> Option<&TensorFact> {
    let output = graph.outputs.first()?;
    graph.values[output.index()].fact.tensors().first().copied()
}

/// Costs of a loss per micro-batch.
#[derive(Clone)]
pub(crate) struct LossCost {
    /// Its name, and the sizes of the outputs.
    pub(super) words: String,
    /// Bytes from the forward pass to the backward pass, and those added while the latter runs.
    kept: u64,
    workspace: u64,
    /// Whether the gradient of the outputs overwrites them.
    in_place: bool,
    forward: Seconds,
    backward: Seconds,
}

impl LossCost {
    /// Computes the cost of a loss, or of the one that suits a model's outputs; `None` if their sizes are unknown.
    pub(crate) fn of(
        graph: &ModelGraph,
        asked: Option<Loss>,
        bandwidth: BytesPerSecond,
        slowdown: Option<f64>,
    ) -> Option<Self> {
        let output = first_output(graph)?;
        let own = output.bytes()?;
        let numbers = output.elements()?;
        let loss = asked.or_else(|| guessed(output))?;
        let single = numbers.saturating_mul(4);
        let cast = if own == single { 0 } else { own + single };
        let copied = |bytes: u64| bytes as f64 / bandwidth.0 * slowdown.unwrap_or(COPY_SLOWDOWN);
        let (kept, workspace, there, back) = match loss {
            Loss::None => return None,
            // Forward: a copy in float32, whose rows are read for their largest, for their sum, and for the
            // logarithms that are written. Backward: the loss's gradient is written, read for its sum, and read with
            // the logarithms for theirs, which is cast.
            Loss::CrossEntropy => (own + single, 2 * single, cast + 4 * single, 5 * single + cast),
            Loss::FusedCrossEntropy => (own, 0, own, 2 * own),
            Loss::Mse => (2 * own, own, 2 * own, 3 * own),
        };
        let how = if asked.is_none() { ", guessed from the outputs (--loss)" } else { "" };
        let sizes = graph::show_shape(output.shape.as_ref()?);
        let words = format!("{} of {sizes}: {} kept{how}", loss.name(), Bytes(kept));
        let (forward, backward) = (Seconds(copied(there)), Seconds(copied(back)));
        let in_place = loss == Loss::FusedCrossEntropy;
        Some(Self { words, kept, workspace, in_place, forward, backward })
    }

    /// Returns its times, forward and backward.
    pub(crate) fn times(&self) -> [Seconds; 2] {
        [self.forward, self.backward]
    }

    /// Adds it to the block that makes the outputs, whose operators are looked up.
    pub(super) fn add_to(
        &self,
        problem: &mut Problem,
        graph: &ModelGraph,
        costs: &OperatorCosts,
        operators: impl FnOnce() -> Range<u32>,
    ) {
        let Some(last) = problem.blocks.last_mut() else { return };
        if self.in_place {
            // The outputs are kept, and their gradient needs no memory of its own.
            let maker = first_output(graph).and_then(|output| output.storage);
            let maker = maker.map(|storage| graph.storage(storage).origin);
            let others = operators().map(OperatorId).filter(|own| maker != Some(Origin::Made(*own)));
            last.workspace = workspace(graph, costs, others);
        }
        last.activations.0 = last.activations.0.saturating_add(self.kept);
        last.kept.0 = last.kept.0.saturating_add(self.kept);
        last.workspace.0 = last.workspace.0.max(self.workspace);
        // It stands outside of what is computed again.
        last.forward.0 += self.forward.0;
        last.left_out.0 += self.forward.0;
        last.input_gradient.0 += self.backward.0;
    }

    /// Returns its largest memory in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.kept.saturating_add(self.workspace)
    }
}

/// The loss that suits outputs: cross-entropy if rows are over classes or words, else a mean of squares.
fn guessed(output: &TensorFact) -> Option<Loss> {
    let is_float = output.dtype.is_some_and(|dtype| graph::dtype_name(dtype).contains("float"));
    let sizes = output.shape.as_ref()?;
    let columns = sizes.last().copied().flatten()?;
    match (is_float, sizes.len()) {
        (false, _) => None,
        (true, 2) if columns > CLASSES => Some(Loss::CrossEntropy),
        (true, 3) if columns >= WORDS => Some(Loss::CrossEntropy),
        _ => Some(Loss::Mse),
    }
}
