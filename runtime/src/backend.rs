//! `Backend`: the trait of everything that can run a stage.

use simulator::order::Kind;

/// Runs stages. A device's thread creates its stages itself and keeps them; only values are sent to other threads.
pub trait Backend: Sync {
    /// A tensor sent from stage to stage.
    type Value: Send;
    /// A loaded stage with everything saved between forward and backward.
    type Stage;

    /// Loads a stage onto a device.
    ///
    /// # Errors
    /// When the stage cannot be read or the device cannot hold it.
    fn load(&self, stage: usize, device: usize) -> Result<Self::Stage, BackendError>;

    /// Returns an input of the model.
    ///
    /// # Errors
    /// When it cannot be made.
    fn input(&self, step: usize, micro_batch: u32, index: usize) -> Result<Self::Value, BackendError>;

    /// Returns a second handle to a value, for an output with several consumers.
    fn share(&self, value: &Self::Value) -> Self::Value;

    /// Adds two gradients of one value.
    ///
    /// # Errors
    /// When their shapes differ.
    fn add(&self, left: Self::Value, right: Self::Value) -> Result<Self::Value, BackendError>;

    /// Runs the forward pass of a micro-batch and returns the stage's outputs.
    ///
    /// # Errors
    /// When the stage rejects its inputs.
    fn forward(
        &self,
        stage: &mut Self::Stage,
        micro_batch: u32,
        inputs: Vec<Self::Value>,
    ) -> Result<Vec<Self::Value>, BackendError>;

    /// Runs a part of the backward pass; outputs of the model get their gradient from the backend's loss.
    ///
    /// Returns the gradient of each input, or `None` when `kind` makes none.
    ///
    /// # Errors
    /// When autograd fails.
    fn backward(
        &self,
        stage: &mut Self::Stage,
        kind: Kind,
        micro_batch: u32,
        output_gradients: Vec<Option<Self::Value>>,
    ) -> Result<Vec<Option<Self::Value>>, BackendError>;

    /// Returns the gradients of the parameters, for replicas to sum.
    ///
    /// # Errors
    /// When they cannot be read.
    fn gradients(&self, stage: &mut Self::Stage) -> Result<Vec<Self::Value>, BackendError>;

    /// Replaces the gradients of the parameters.
    ///
    /// # Errors
    /// When their shapes differ.
    fn set_gradients(&self, stage: &mut Self::Stage, gradients: Vec<Self::Value>)
    -> Result<(), BackendError>;

    /// Ends a training step: updates the parameters.
    ///
    /// # Errors
    /// When the optimizer fails.
    fn update(&self, stage: &mut Self::Stage) -> Result<(), BackendError>;
}

/// Why a backend failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BackendError(pub String);
