//! The loss: what training adds behind a model's outputs, in time and in memory.
//!
//! A trace ends with the outputs. What is counted here is what torch's own losses do with the first of them: cross-entropy in
//! float32, as transformers has it, keeps its logarithms (4 bytes a number) and makes two gradients of that size on the way back;
//! a mean of squares keeps output and target, and makes one gradient. Either way the output itself stays until then.

use clap::ValueEnum;
use graph::{LossMemory, ModelGraph, TensorFact};
use partitioner::Problem;
use schema::{Bytes, BytesPerSecond, Seconds};

/// Rows of two dimensions with more columns than that are over classes.
const CLASSES: u64 = 2;
/// Rows of three with as many columns are over a vocabulary: hidden states have fewer, but for very large models.
const WORDS: u64 = 8192;
/// Time of plain copies relative to what the memory bandwidth promises, where a device does not say.
const COPY_SLOWDOWN: f64 = 1.25;

/// A loss.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Loss {
    /// Nothing behind the outputs
    None,
    /// Classes or words: torch's cross_entropy of the outputs in float32
    CrossEntropy,
    /// The same in one kernel that writes the gradient over the outputs: flash-attn's, Liger's, Apex's
    FusedCrossEntropy,
    /// Numbers: torch's mse_loss
    Mse,
}

impl Loss {
    fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::CrossEntropy => "cross-entropy",
            Self::FusedCrossEntropy => "fused cross-entropy",
            Self::Mse => "mean of squares",
        }
    }
}

/// Returns what a loss behind a model's outputs holds beside them, and its name; the loss that goes with them where none is asked
/// for.
pub fn memory(graph: &ModelGraph, asked: Option<Loss>) -> Option<(LossMemory, String)> {
    let output = first_output(graph)?;
    let (own, numbers) = (output.bytes()?, output.elements()?);
    let loss = asked.or_else(|| guessed(output))?;
    let single = numbers.saturating_mul(4);
    let cast = if own == single { 0 } else { single };
    let memory = match loss {
        Loss::None => return None,
        // There: a copy in float32, the logarithms of which are kept. Back: their gradient, and that of the copy.
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
    let guess = if asked.is_none() { " (guessed from the outputs; --loss says another)" } else { "" };
    Some((memory, format!("{} of {}{guess}", loss.name(), graph::show_shape(output.shape.as_ref()?))))
}

fn first_output(graph: &ModelGraph) -> Option<&TensorFact> {
    let output = graph.outputs.first()?;
    graph.values[output.index()].fact.tensors().first().copied()
}

/// What a loss takes of one micro-batch.
#[derive(Clone)]
pub(super) struct LossCost {
    /// Its name, and what it is of.
    pub(super) words: String,
    /// Bytes from the forward pass to the backward pass, and more while the latter runs.
    kept: u64,
    workspace: u64,
    forward: Seconds,
    backward: Seconds,
}

impl LossCost {
    /// Counts a loss, or the one that goes with a model's outputs; nothing where these are of no known size.
    pub(super) fn of(
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
        let copied = |bytes: u64| bytes as f64 / bandwidth.0 * slowdown.unwrap_or(COPY_SLOWDOWN);
        let (kept, workspace, there, back) = match loss {
            Loss::None => return None,
            // There: a copy in float32, logarithms. Back: the loss's gradient is written, the logarithms' made of it, then cast.
            Loss::CrossEntropy => (own + single, 2 * single, own + 3 * single, 5 * single + own),
            Loss::FusedCrossEntropy => (own, 0, own, 2 * own),
            Loss::Mse => (2 * own, own, 2 * own, 3 * own),
        };
        let how = if asked.is_none() { ", guessed from the outputs (--loss)" } else { "" };
        let sizes = graph::show_shape(output.shape.as_ref()?);
        let words = format!("{} of {sizes}: {} kept{how}", loss.name(), Bytes(kept));
        let (forward, backward) = (Seconds(copied(there)), Seconds(copied(back)));
        Some(Self { words, kept, workspace, forward, backward })
    }

    /// Adds it to the block that makes the outputs.
    pub(super) fn add_to(&self, problem: &mut Problem) {
        let Some(last) = problem.blocks.last_mut() else { return };
        last.activations.0 = last.activations.0.saturating_add(self.kept);
        last.kept.0 = last.kept.0.saturating_add(self.kept);
        last.workspace.0 = last.workspace.0.max(self.workspace);
        last.forward.0 += self.forward.0;
        last.input_gradient.0 += self.backward.0;
    }

    /// Returns the bytes that it takes at the most.
    pub(super) fn bytes(&self) -> u64 {
        self.kept.saturating_add(self.workspace)
    }
}

/// The loss that goes with outputs: cross-entropy where rows are over classes or words, else a mean of squares.
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
