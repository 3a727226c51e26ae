//! Do the stages together do what the whole model does?
//!
//! Both run in this process on the same inputs: outputs once, then training steps whose gradients and losses are
//! compared. The stages run by their wiring, one after the other; schedules do not change the numbers.

use std::{collections::BTreeMap, path::PathBuf};

use simulator::order::Kind;
use tch::{Device, Tensor};

use super::{
    WholeModel,
    backend::loss,
    precision::{self, Tf32},
    seeded::Roots,
    stage::TorchStage,
};
use crate::{BackendError, Source, Wiring};

/// How far two tensors are apart.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// Output or parameter.
    pub name: String,
    /// Largest absolute difference.
    pub absolute: f64,
    /// That, divided by the largest absolute value of the whole model's tensor.
    pub relative: f64,
}

/// Learning rate of the steps.
const RATE: f64 = 0.01;

/// What was compared.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Verification {
    /// Outputs of the model in the first forward pass.
    pub outputs: Vec<Difference>,
    /// Gradients of the first step by parameter of the original model.
    pub gradients: Vec<Difference>,
    /// Losses of each step: whole model, stages.
    pub losses: Vec<(f64, f64)>,
}

/// Compares the stages with the whole model.
///
/// `model_outputs` tells, for each output of the model, the stage and the position it comes from; several stage
/// archives may hold one parameter (tied weights): their gradients are added and updated as one. Both sides run as they are
/// written: by itself torch merges equal operators, and adds gradients up in another order than stages do.
///
/// # Errors
/// When an archive cannot be loaded or run.
pub fn verify(
    whole: &WholeModel,
    archives: &[PathBuf],
    wiring: &Wiring,
    model_outputs: &[(usize, usize)],
    inputs: &[Vec<Tensor>],
    device: Device,
) -> Result<Verification, BackendError> {
    tch::jit::f_set_graph_executor_optimize(false)?;
    // Which of its kernels a library takes may depend on where memory lies; with TF32 they differ in the fourth digit.
    precision::set(Tf32::Forbidden)?;
    let compared = compare(whole, archives, wiring, model_outputs, inputs, device);
    precision::set(Tf32::InConvolutions)?;
    tch::jit::f_set_graph_executor_optimize(true)?;
    compared
}

fn compare(
    whole: &WholeModel,
    archives: &[PathBuf],
    wiring: &Wiring,
    model_outputs: &[(usize, usize)],
    inputs: &[Vec<Tensor>],
    device: Device,
) -> Result<Verification, BackendError> {
    let mut learning_rate = RATE;
    let mut model = TorchStage::load(&whole.archive, device)?;
    let mut stages = Vec::new();
    for archive in archives {
        stages.push(TorchStage::load(archive, device)?);
    }
    let copies = copies(&model, &stages);
    let mut verification = Verification::default();
    for (step, inputs) in inputs.iter().enumerate() {
        // Dropout in training mode draws the same numbers on both sides, where the order of operators is the same.
        tch::manual_seed(step as i64);
        let expected = whole.returned(model.forward(0, whole.arguments(inputs))?);
        let references: Vec<&Tensor> = expected.iter().collect();
        let whole_loss = loss(&references)?;
        tch::manual_seed(step as i64);
        let outputs = forward(&mut stages, wiring, inputs)?;
        let found: Vec<&Tensor> =
            model_outputs.iter().map(|&(stage, output)| &outputs[stage][output]).collect();
        let stages_loss = loss(&found)?;
        if step == 0 {
            if expected.len() != found.len() {
                let message =
                    format!("the model gives {} outputs, the stages {}", expected.len(), found.len());
                return Err(BackendError(message));
            }
            for (index, (expected, found)) in expected.iter().zip(&found).enumerate() {
                verification.outputs.push(difference(format!("output {index}"), expected, found)?);
            }
        }
        let (Some(whole_loss), Some(stages_loss)) = (whole_loss, stages_loss) else { break };
        verification.losses.push((whole_loss.f_double_value(&[])?, stages_loss.f_double_value(&[])?));
        if !whole_loss.requires_grad() {
            break;
        }
        let mut roots = Roots::default();
        roots.scalar(whole_loss)?;
        model.backward(Kind::Backward, 0, |_| Ok(roots))?;
        backward(&mut stages, wiring, model_outputs)?;
        tie(&mut stages, &copies)?;
        if step == 0 {
            verification.gradients = gradients(&model, &stages, &copies)?;
            learning_rate = rate(&model)?;
        }
        model.update(learning_rate)?;
        for stage in &mut stages {
            stage.update(learning_rate)?;
        }
    }
    Ok(verification)
}

/// Returns the learning rate, less where gradients are larger than weights: of numbers that grow beyond all bounds nothing
/// could be compared.
fn rate(model: &TorchStage) -> Result<f64, BackendError> {
    let (mut weights, mut gradients) = (0.0, 0.0);
    for (parameter, gradient) in model.parameters.iter().zip(&model.gradients) {
        let Some(gradient) = gradient else { continue };
        weights += parameter.tensor.f_norm()?.f_double_value(&[])?.powi(2);
        gradients += gradient.f_norm()?.f_double_value(&[])?.powi(2);
    }
    let share = (weights / gradients).sqrt();
    Ok(if share < 1.0 { RATE * share } else { RATE })
}

fn forward(
    stages: &mut [TorchStage],
    wiring: &Wiring,
    inputs: &[Tensor],
) -> Result<Vec<Vec<Tensor>>, BackendError> {
    let mut outputs: Vec<Vec<Tensor>> = Vec::new();
    for (stage, joints) in stages.iter_mut().zip(&wiring.stages) {
        let arguments = joints.inputs.iter().map(|source| match *source {
            Source::Input(index) => inputs[index].shallow_clone(),
            Source::Stage { stage, output } => outputs[stage][output].shallow_clone(),
        });
        let made = stage.forward(0, arguments.collect())?;
        if made.len() != joints.n_outputs {
            let message = format!(
                "stage {} gave {} outputs instead of {}",
                outputs.len(),
                made.len(),
                joints.n_outputs
            );
            return Err(BackendError(message));
        }
        outputs.push(made);
    }
    Ok(outputs)
}

fn backward(
    stages: &mut [TorchStage],
    wiring: &Wiring,
    model_outputs: &[(usize, usize)],
) -> Result<(), BackendError> {
    let mut arriving: BTreeMap<(usize, usize), Tensor> = BTreeMap::new();
    for (index, stage) in stages.iter_mut().enumerate().rev() {
        let roots = |outputs: &[Tensor]| {
            let here = model_outputs.iter().filter(|(stage, _)| *stage == index);
            let returned: Vec<&Tensor> = here.map(|&(_, output)| &outputs[output]).collect();
            let mut roots = Roots::default();
            if let Some(loss) = loss(&returned)? {
                roots.scalar(loss)?;
            }
            for (position, output) in outputs.iter().enumerate() {
                let Some(gradient) = arriving.get(&(index, position)) else { continue };
                roots.tensor(output.shallow_clone(), gradient.shallow_clone());
            }
            Ok(roots)
        };
        let input_gradients = stage.backward(Kind::Backward, 0, roots)?;
        for (source, gradient) in wiring.stages[index].inputs.iter().zip(input_gradients) {
            if let (&Source::Stage { stage, output }, Some(gradient)) = (source, gradient) {
                let sum = match arriving.remove(&(stage, output)) {
                    Some(sum) => sum.f_add(&gradient)?,
                    None => gradient,
                };
                arriving.insert((stage, output), sum);
            }
        }
    }
    Ok(())
}

/// Where the copies of each parameter of the model are: (stage, position) for every stage that holds one.
fn copies(model: &TorchStage, stages: &[TorchStage]) -> Vec<Vec<(usize, usize)>> {
    let mut owner: BTreeMap<&str, usize> = BTreeMap::new();
    for (index, parameter) in model.parameters.iter().enumerate() {
        owner.extend(parameter.names.iter().map(|name| (name.as_str(), index)));
    }
    let mut copies = vec![Vec::new(); model.parameters.len()];
    for (stage_idx, stage) in stages.iter().enumerate() {
        for (position, parameter) in stage.parameters.iter().enumerate() {
            if let Some(&index) = parameter.names.iter().find_map(|name| owner.get(name.as_str())) {
                copies[index].push((stage_idx, position));
            }
        }
    }
    copies
}

/// Gives every copy of a tied parameter the sum of all copies' gradients.
fn tie(stages: &mut [TorchStage], copies: &[Vec<(usize, usize)>]) -> Result<(), BackendError> {
    for copies in copies.iter().filter(|copies| copies.len() > 1) {
        let mut sum: Option<Tensor> = None;
        for &(stage, position) in copies {
            let Some(gradient) = &stages[stage].gradients[position] else { continue };
            sum = Some(match sum {
                Some(sum) => sum.f_add(gradient)?,
                None => gradient.shallow_clone(),
            });
        }
        for &(stage, position) in copies {
            stages[stage].gradients[position] = sum.as_ref().map(Tensor::shallow_clone);
        }
    }
    Ok(())
}

fn gradients(
    model: &TorchStage,
    stages: &[TorchStage],
    copies: &[Vec<(usize, usize)>],
) -> Result<Vec<Difference>, BackendError> {
    let mut differences = Vec::new();
    for ((parameter, gradient), copies) in model.parameters.iter().zip(&model.gradients).zip(copies) {
        let name = parameter.names[0].clone();
        let Some(&(stage, position)) = copies.first() else {
            // A parameter that nothing uses is in no stage; one that has a gradient must be.
            if gradient.is_some() {
                return Err(BackendError(format!("no stage holds parameter `{name}`")));
            }
            continue;
        };
        let zeros = parameter.tensor.f_zeros_like()?;
        let found = stages[stage].gradients[position].as_ref().unwrap_or(&zeros);
        differences.push(difference(name, gradient.as_ref().unwrap_or(&zeros), found)?);
    }
    Ok(differences)
}

fn difference(name: String, expected: &Tensor, found: &Tensor) -> Result<Difference, BackendError> {
    if expected.size() != found.size() {
        let message =
            format!("{name} has shape {:?} in the model, {:?} in the stages", expected.size(), found.size());
        return Err(BackendError(message));
    }
    if expected.numel() == 0 {
        return Ok(Difference { name, absolute: 0.0, relative: 0.0 });
    }
    let double = |tensor: &Tensor| tensor.f_detach()?.f_to_kind(tch::Kind::Double);
    let (expected, found) = (double(expected)?, double(found)?);
    let worst = expected.f_sub(&found)?.f_abs()?.f_max()?.f_double_value(&[])?;
    let scale = expected.f_abs()?.f_max()?.f_double_value(&[])?;
    // Both sides may hold the same infinity or NaN; their difference is then NaN, their bits agree.
    let same =
        expected.f_equal(&found)? || (worst.is_nan() && expected.f_isnan()?.f_equal(&found.f_isnan()?)?);
    let absolute = if same { 0.0 } else { worst };
    let relative = if absolute == 0.0 { 0.0 } else { absolute / scale.max(f64::MIN_POSITIVE) };
    Ok(Difference { name, absolute, relative })
}
