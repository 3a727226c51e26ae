//! One stage archive in libtorch: the forward pass, and both halves of the backward pass.
//!
//! The graph executor's optimiser is off in every thread that runs a stage: it replaces parts of autograd by its own
//! formulas, and a stage must give the gradients of eager PyTorch, bit for bit where possible.

use std::{collections::HashMap, path::Path};

use simulator::order::Kind;
use tch::{CModule, Device, IValue, Tensor};

use crate::{
    error::TorchError,
    seeded::{Grad, Roots},
};

/// A loaded stage.
pub struct TorchStage {
    module: CModule,
    pub(super) device: Device,
    /// Parameters that train.
    pub(super) parameters: Vec<Parameter>,
    /// Their gradients, summed over micro-batches.
    pub(super) gradients: Vec<Option<Tensor>>,
    kept: HashMap<u32, Kept>,
    grad: Grad,
}

/// A parameter; tied ones have several names in the archive but one place in memory.
pub(super) struct Parameter {
    pub(super) names: Vec<String>,
    pub(super) tensor: Tensor,
}

/// What a micro-batch saves for its backward pass.
struct Kept {
    inputs: Vec<Tensor>,
    outputs: Vec<Tensor>,
    /// The tensors to differentiate; set by the first half of a split backward pass.
    roots: Option<Roots>,
}

impl TorchStage {
    /// Loads an archive.
    pub(super) fn load(path: &Path, device: Device) -> Result<Self, TorchError> {
        tch::jit::f_set_graph_executor_optimize(false)?;
        let module = CModule::load_on_device(path, device)?;
        let mut parameters: Vec<Parameter> = Vec::new();
        for (name, tensor) in module.named_parameters()? {
            let place = (tensor.data_ptr(), tensor.size());
            let is_same = |known: &&mut Parameter| (known.tensor.data_ptr(), known.tensor.size()) == place;
            match parameters.iter_mut().find(is_same) {
                Some(known) if tensor.numel() > 0 => known.names.push(name),
                _ if tensor.requires_grad() => parameters.push(Parameter { names: vec![name], tensor }),
                _ => {}
            }
        }
        let gradients = parameters.iter().map(|_| None).collect();
        Ok(Self { module, device, parameters, gradients, kept: HashMap::new(), grad: Grad::new()? })
    }

    /// Runs the forward pass; returns the outputs, still attached to their graph. Inputs that require a gradient get one.
    pub(super) fn forward(
        &mut self,
        micro_batch: u32,
        inputs: Vec<Tensor>,
    ) -> Result<Vec<Tensor>, TorchError> {
        let mut leaves = Vec::new();
        for input in inputs {
            let leaf = input.f_detach()?.f_to_device(self.device)?;
            // What another stage made is cloned by a stage that writes to it. A model may write to its own inputs, which
            // are the caller's: it gets a copy, and no leaf, which may not be written to.
            leaves.push(if input.requires_grad() {
                leaf.f_set_requires_grad(true)?
            } else {
                leaf.f_to_dtype(leaf.kind(), false, true)?
            });
        }
        let arguments: Vec<_> = leaves.iter().map(|leaf| IValue::Tensor(leaf.shallow_clone())).collect();
        let mut outputs = Vec::new();
        flatten(self.module.forward_is(&arguments)?, &mut outputs)?;
        let copies = outputs.iter().map(Tensor::shallow_clone).collect();
        self.kept.insert(micro_batch, Kept { inputs: leaves, outputs, roots: None });
        Ok(copies)
    }

    /// Runs a part of the backward pass. `roots` selects what to differentiate, given the outputs.
    pub(super) fn backward(
        &mut self,
        kind: Kind,
        micro_batch: u32,
        roots: impl FnOnce(&[Tensor]) -> Result<Roots, TorchError>,
    ) -> Result<Vec<Option<Tensor>>, TorchError> {
        let missing = || TorchError(format!("micro-batch {micro_batch} had no forward pass"));
        let mut kept = self.kept.remove(&micro_batch).ok_or_else(missing)?;
        if kept.roots.is_none() {
            kept.roots = Some(roots(&kept.outputs)?);
        }
        let input_gradients = self.gradients_of(kind, &kept)?;
        // The weight half comes later, even if the input half had nothing to do.
        if !kind.frees_activations() {
            self.kept.insert(micro_batch, kept);
        }
        Ok(input_gradients)
    }

    /// Differentiates; adds to the parameters' gradients, returns those of the inputs.
    fn gradients_of(&mut self, kind: Kind, kept: &Kept) -> Result<Vec<Option<Tensor>>, TorchError> {
        let mut input_gradients: Vec<Option<Tensor>> = kept.inputs.iter().map(|_| None).collect();
        let Some(roots) = kept.roots.as_ref().filter(|roots| !roots.is_empty()) else {
            return Ok(input_gradients);
        };
        let n_inputs = if kind.makes_input_gradient() { kept.inputs.len() } else { 0 };
        let differentiable: Vec<usize> =
            (0..n_inputs).filter(|&index| kept.inputs[index].requires_grad()).collect();
        let mut leaves: Vec<&Tensor> = differentiable.iter().map(|&index| &kept.inputs[index]).collect();
        let n_leaf_inputs = leaves.len();
        if kind.frees_activations() {
            leaves.extend(self.parameters.iter().map(|parameter| &parameter.tensor));
        }
        if leaves.is_empty() {
            return Ok(input_gradients);
        }
        let gradients = self.grad.of(roots, &leaves, !kind.frees_activations())?;
        for (position, gradient) in gradients.into_iter().enumerate() {
            let Some(gradient) = gradient else { continue };
            match position.checked_sub(n_leaf_inputs) {
                None => input_gradients[differentiable[position]] = Some(gradient),
                Some(parameter) => {
                    let sum = &mut self.gradients[parameter];
                    *sum = Some(match sum.take() {
                        Some(sum) => sum.f_add(&gradient)?,
                        None => gradient,
                    });
                }
            }
        }
        Ok(input_gradients)
    }

    /// Waits until the device is done: a GPU works asynchronously, and each measurement shall count its own work alone.
    pub(super) fn finish(&self) {
        if let Device::Cuda(index) = self.device {
            tch::Cuda::synchronize(index as i64);
        }
    }

    /// Takes one step of plain gradient descent and clears the gradients.
    pub(super) fn update(&mut self, learning_rate: f64) -> Result<(), TorchError> {
        for (parameter, gradient) in self.parameters.iter_mut().zip(&mut self.gradients) {
            if let Some(gradient) = gradient.take() {
                let step = gradient.f_mul_scalar(learning_rate)?;
                let _ = tch::no_grad(|| parameter.tensor.f_sub_(&step))?;
            }
        }
        Ok(())
    }
}

/// Lists the tensors of a module's result in order.
pub(super) fn flatten(value: IValue, tensors: &mut Vec<Tensor>) -> Result<(), TorchError> {
    match value {
        IValue::Tensor(tensor) => tensors.push(tensor),
        IValue::TensorList(list) => tensors.extend(list),
        IValue::Tuple(values) | IValue::GenericList(values) => {
            for value in values {
                flatten(value, tensors)?;
            }
        }
        IValue::GenericDict(pairs) => {
            for (_, value) in pairs {
                flatten(value, tensors)?;
            }
        }
        IValue::None => {}
        other => return Err(TorchError(format!("a module returned {other:?}, which is not a tensor"))),
    }
    Ok(())
}
