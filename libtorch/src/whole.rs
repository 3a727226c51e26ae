//! The whole model, which the stages or blocks are compared with.

use std::path::PathBuf;

use tch::Tensor;

/// An archive, and how its inputs and outputs correspond to the model's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WholeModel {
    /// The archive.
    pub archive: PathBuf,
    /// The model's inputs that its `forward` takes, in order.
    ///
    /// Invariant: each is an index into the inputs that it is run on.
    pub inputs: Vec<usize>,
    /// Which of its results the model returns, in order; `None` if it returns all.
    pub outputs: Option<Vec<usize>>,
}

impl WholeModel {
    /// Returns what `forward` takes.
    pub(super) fn arguments(&self, inputs: &[Tensor]) -> Vec<Tensor> {
        self.inputs.iter().map(|index| inputs[*index].shallow_clone()).collect()
    }

    /// Returns what the model returns.
    pub(super) fn returned(&self, results: Vec<Tensor>) -> Vec<Tensor> {
        match &self.outputs {
            Some(outputs) => outputs.iter().map(|index| results[*index].shallow_clone()).collect(),
            None => results,
        }
    }
}
