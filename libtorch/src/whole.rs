//! The whole model, beside which its stages or blocks run.

use std::path::PathBuf;

use tch::Tensor;

/// An archive, and how its ends are those of the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WholeModel {
    /// The archive.
    pub archive: PathBuf,
    /// The model's inputs that its `forward` takes, in order.
    ///
    /// Invariant: each is one of those that it is run on.
    pub inputs: Vec<usize>,
    /// Which of its results the model returns, in order; nothing where they are as they come.
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
