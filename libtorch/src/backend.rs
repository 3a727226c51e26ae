//! `TorchBackend`: stage archives on CPU or CUDA devices.

use std::{path::PathBuf, sync::Mutex};

use simulator::order::Kind;
use tch::{Device, Tensor};

use crate::{error::TorchError, kinds::is_float, seeded::Roots, stage::TorchStage};
use runtime::{Backend, BackendError};

/// What a backend is built from.
pub struct TorchSetup {
    /// Archive of each stage.
    pub archives: Vec<PathBuf>,
    /// Which outputs of each stage the model returns.
    pub model_outputs: Vec<Vec<bool>>,
    /// Device of each rank.
    pub devices: Vec<Device>,
    /// Inputs of the model by micro-batch; every step gets the same ones.
    pub inputs: Vec<Vec<Tensor>>,
    /// Learning rate of plain gradient descent.
    pub learning_rate: f64,
}

/// Runs stages in libtorch.
pub struct TorchBackend {
    archives: Vec<PathBuf>,
    model_outputs: Vec<Vec<bool>>,
    devices: Vec<Device>,
    /// A tensor may move between threads but not be shared by two.
    inputs: Mutex<Vec<Vec<Tensor>>>,
    n_micro_batches: usize,
    learning_rate: f64,
    losses: Mutex<Vec<(u32, f64)>>,
}

impl TorchBackend {
    /// Makes a backend.
    pub fn new(setup: TorchSetup) -> Self {
        Self {
            archives: setup.archives,
            model_outputs: setup.model_outputs,
            devices: setup.devices,
            n_micro_batches: setup.inputs.len(),
            inputs: Mutex::new(setup.inputs),
            learning_rate: setup.learning_rate,
            losses: Mutex::default(),
        }
    }

    /// Returns the loss of every micro-batch so far, as (micro-batch, loss) in the order they were made.
    pub fn losses(&self) -> Vec<(u32, f64)> {
        self.losses.lock().expect("no thread panics while it holds the losses").clone()
    }
}

/// Returns a loss for training: the mean square of every floating-point output, summed.
pub(super) fn loss(outputs: &[&Tensor]) -> Result<Option<Tensor>, TorchError> {
    let mut sum: Option<Tensor> = None;
    for output in outputs.iter().filter(|output| is_float(output.kind())) {
        let term = output.f_to_kind(tch::Kind::Float)?.f_square()?.f_mean(tch::Kind::Float)?;
        sum = Some(match sum {
            Some(sum) => sum.f_add(&term)?,
            None => term,
        });
    }
    Ok(sum)
}

/// A loaded stage with its number.
pub struct LoadedStage {
    index: usize,
    stage: TorchStage,
}

impl Backend for TorchBackend {
    type Value = Tensor;
    type Stage = LoadedStage;

    fn load(&self, stage: usize, device: usize) -> Result<LoadedStage, BackendError> {
        let device = self.devices[device % self.devices.len()];
        Ok(LoadedStage { index: stage, stage: TorchStage::load(&self.archives[stage], device)? })
    }

    fn input(&self, _step: usize, micro_batch: u32, index: usize) -> Result<Tensor, BackendError> {
        let inputs = self.inputs.lock().expect("no thread panics while it holds the inputs");
        let missing = || BackendError(format!("micro-batch {micro_batch} has no input {index}"));
        let input = inputs.get(micro_batch as usize).and_then(|inputs| inputs.get(index));
        Ok(input.ok_or_else(missing)?.shallow_clone())
    }

    fn share(&self, value: &Tensor) -> Tensor {
        value.detach().set_requires_grad(value.requires_grad())
    }

    fn add(&self, left: Tensor, right: Tensor) -> Result<Tensor, BackendError> {
        let sum = right.f_to_device(left.device()).and_then(|right| left.f_add(&right));
        Ok(sum.map_err(TorchError::from)?)
    }

    fn forward(
        &self,
        stage: &mut LoadedStage,
        micro_batch: u32,
        inputs: Vec<Tensor>,
    ) -> Result<Vec<Tensor>, BackendError> {
        let outputs = stage.stage.forward(micro_batch, inputs)?;
        stage.stage.finish();
        Ok(outputs)
    }

    fn backward(
        &self,
        stage: &mut LoadedStage,
        kind: Kind,
        micro_batch: u32,
        output_gradients: Vec<Option<Tensor>>,
    ) -> Result<Vec<Option<Tensor>>, BackendError> {
        let is_model_output = &self.model_outputs[stage.index];
        let device = stage.stage.device;
        let gradients = stage.stage.backward(kind, micro_batch, |outputs| {
            let returned: Vec<_> = outputs
                .iter()
                .zip(is_model_output)
                .filter(|(_, is)| **is)
                .map(|(output, _)| output)
                .collect();
            let mut roots = Roots::default();
            if let Some(loss) = loss(&returned)? {
                let loss = loss.f_div_scalar(self.n_micro_batches as f64)?;
                let value = loss.f_double_value(&[])?;
                self.losses.lock().expect("losses are only pushed").push((micro_batch, value));
                roots.scalar(loss)?;
            }
            for (output, gradient) in outputs.iter().zip(output_gradients) {
                let Some(gradient) = gradient else { continue };
                roots.tensor(output.shallow_clone(), gradient.f_to_device(device)?.f_detach()?);
            }
            Ok(roots)
        })?;
        stage.stage.finish();
        Ok(gradients)
    }

    fn gradients(&self, stage: &mut LoadedStage) -> Result<Vec<Tensor>, BackendError> {
        let stage = &mut stage.stage;
        let gradients = stage.parameters.iter().zip(&mut stage.gradients);
        gradients
            .map(|(parameter, gradient)| match gradient.take() {
                Some(gradient) => Ok(gradient),
                None => Ok(parameter.tensor.f_zeros_like().map_err(TorchError::from)?),
            })
            .collect()
    }

    fn set_gradients(&self, stage: &mut LoadedStage, gradients: Vec<Tensor>) -> Result<(), BackendError> {
        let device = stage.stage.device;
        let local: Result<Vec<_>, _> = gradients.iter().map(|g| g.f_to_device(device).map(Some)).collect();
        stage.stage.gradients = local.map_err(TorchError::from)?;
        Ok(())
    }

    fn update(&self, stage: &mut LoadedStage) -> Result<(), BackendError> {
        stage.stage.update(self.learning_rate)?;
        stage.stage.finish();
        Ok(())
    }
}
