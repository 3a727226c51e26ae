//! Do the stages together compute what the whole model computes?
//!
//! Both run in this process on the same inputs: outputs once, then training steps whose gradients and losses are
//! compared. The stages run one after the other in the order of their wiring; schedules do not change the numbers.
//! Parameters of zeros get random numbers after the first step: behind a head of zeros every gradient is zero, and
//! nothing would be compared.

use std::{collections::BTreeMap, path::PathBuf};

use simulator::order::Kind;
use tch::{Device, Tensor};

use runtime::{Difference, GradientDifference, Source, Wiring};

use crate::{
    WholeModel,
    error::TorchError,
    functional::{as_real, functional},
    precision::{self, Tf32},
    seeded::Roots,
    stage::TorchStage,
};

/// Learning rate of the steps.
const RATE: f64 = 0.01;

/// Steps whose gradients are compared: several, because zeros become non-zero layer by layer. Later, rounding errors
/// would grow.
const COMPARED_STEPS: usize = 4;

/// Standard deviation of the numbers that replace parameters of zeros after the first step.
const DEVIATION: f64 = 0.02;

/// Below this share of the model's largest gradient, a parameter's own gradient is noise around zero.
const NOISE: f64 = 1e-3;

/// The result of the comparison.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Verification {
    /// Outputs of the model in the first forward pass.
    pub outputs: Vec<Difference>,
    /// Gradients of the first steps by parameter of the original model.
    pub gradients: Vec<GradientDifference>,
    /// Losses of each step: whole model, stages.
    pub losses: Vec<(f64, f64)>,
}

/// Compares the stages with the whole model.
///
/// `model_outputs` gives, for each output of the model, the stage and the position that it comes from; several stage
/// archives may hold one parameter (tied weights): their gradients are summed and they are updated as one. Both sides
/// run unoptimised: by default torch merges equal operators, and sums gradients in another order than stages do. Outputs
/// alone are compared unless it `trains`.
///
/// # Errors
/// When an archive cannot be loaded or run.
pub fn verify(
    whole: &WholeModel,
    archives: &[PathBuf],
    (wiring, model_outputs): (&Wiring, &[(usize, usize)]),
    inputs: &[Vec<Tensor>],
    trains: bool,
    device: Device,
) -> Result<Verification, TorchError> {
    tch::jit::f_set_graph_executor_optimize(false)?;
    // A library's choice of kernel may depend on the address of the memory; with TF32 the kernels differ in the fourth
    // digit.
    precision::set(Tf32::Forbidden)?;
    precision::set_repeatable(true);
    let compared = compare(whole, archives, (wiring, model_outputs), inputs, trains, device);
    precision::set(Tf32::InConvolutions)?;
    precision::set_repeatable(false);
    tch::jit::f_set_graph_executor_optimize(true)?;
    compared
}

fn compare(
    whole: &WholeModel,
    archives: &[PathBuf],
    (wiring, model_outputs): (&Wiring, &[(usize, usize)]),
    inputs: &[Vec<Tensor>],
    trains: bool,
    device: Device,
) -> Result<Verification, TorchError> {
    let mut learning_rate = RATE;
    let mut model = TorchStage::load(&whole.archive, device)?;
    let mut stages = Vec::new();
    for archive in archives {
        stages.push(TorchStage::load(archive, device)?);
    }
    let copies = copies(&model, &stages);
    let zeros = zeros(&model)?;
    let mut verification = Verification::default();
    for (step, inputs) in inputs.iter().enumerate() {
        // Dropout in training mode draws the same numbers on both sides, where the order of operators is the same.
        tch::manual_seed(step as i64);
        let expected = whole.returned(model.forward(0, whole.arguments(inputs))?);
        let references: Vec<(usize, &Tensor)> = expected.iter().enumerate().collect();
        let whole_loss = functional(&references, step as i64)?;
        tch::manual_seed(step as i64);
        let outputs = forward(&mut stages, wiring, inputs)?;
        let found: Vec<&Tensor> =
            model_outputs.iter().map(|&(stage, output)| &outputs[stage][output]).collect();
        let returned: Vec<(usize, &Tensor)> = found.iter().copied().enumerate().collect();
        let stages_loss = functional(&returned, step as i64)?;
        if step == 0 {
            if expected.len() != found.len() {
                let message =
                    format!("the model gives {} outputs, the stages {}", expected.len(), found.len());
                return Err(TorchError(message));
            }
            for (index, (expected, found)) in expected.iter().zip(&found).enumerate() {
                verification.outputs.push(difference(format!("output {index}"), expected, found, 0.0)?);
            }
        }
        if !trains {
            break;
        }
        let (Some(whole_loss), Some(stages_loss)) = (whole_loss, stages_loss) else { break };
        verification.losses.push((whole_loss.f_double_value(&[])?, stages_loss.f_double_value(&[])?));
        if !whole_loss.requires_grad() {
            break;
        }
        let mut roots = Roots::default();
        roots.scalar(whole_loss)?;
        model.backward(Kind::Backward, 0, |_| Ok(roots))?;
        backward(&mut stages, wiring, model_outputs, step as i64)?;
        tie(&mut stages, &copies)?;
        if step < COMPARED_STEPS {
            let found = gradients(&model, &stages, &copies)?;
            verification.gradients = worse(std::mem::take(&mut verification.gradients), found);
        }
        if step == 0 {
            learning_rate = rate(&model)?;
        }
        model.update(learning_rate)?;
        for stage in &mut stages {
            stage.update(learning_rate)?;
        }
        if step == 0 {
            wake(&mut model, &mut stages, &copies, &zeros)?;
        }
    }
    Ok(verification)
}

/// Returns the learning rate, lowered where gradients are larger than weights: diverging numbers could not be compared.
fn rate(model: &TorchStage) -> Result<f64, TorchError> {
    let (mut weights, mut gradients) = (0.0, 0.0);
    for (parameter, gradient) in model.parameters.iter().zip(&model.gradients) {
        let Some(gradient) = gradient else { continue };
        weights += parameter.tensor.f_norm()?.f_double_value(&[])?.powi(2);
        gradients += gradient.f_norm()?.f_double_value(&[])?.powi(2);
    }
    let share = (weights / gradients).sqrt();
    Ok(if share < 1.0 { RATE * share } else { RATE })
}

/// Lists the parameters that are all zero.
fn zeros(model: &TorchStage) -> Result<Vec<usize>, TorchError> {
    let mut zeros = Vec::new();
    for (index, parameter) in model.parameters.iter().enumerate() {
        if tch::no_grad(|| parameter.tensor.f_any())?.f_int64_value(&[])? == 0 {
            zeros.push(index);
        }
    }
    Ok(zeros)
}

/// Adds the same random numbers to parameters of the model and to their copies in the stages.
fn wake(
    model: &mut TorchStage,
    stages: &mut [TorchStage],
    copies: &[Vec<(usize, usize)>],
    zeros: &[usize],
) -> Result<(), TorchError> {
    for &index in zeros {
        let own = &mut model.parameters[index].tensor;
        tch::manual_seed(index as i64);
        let noise = tch::no_grad(|| {
            let noise =
                Tensor::f_randn(own.size(), (tch::Kind::Float, Device::Cpu))?.f_mul_scalar(DEVIATION)?;
            noise.f_to_device(own.device())?.f_to_kind(own.kind())
        })?;
        let add = |tensor: &mut Tensor| tch::no_grad(|| tensor.f_add_(&noise).map(drop));
        add(own)?;
        for &(stage, position) in &copies[index] {
            add(&mut stages[stage].parameters[position].tensor)?;
        }
    }
    Ok(())
}

fn forward(
    stages: &mut [TorchStage],
    wiring: &Wiring,
    inputs: &[Tensor],
) -> Result<Vec<Vec<Tensor>>, TorchError> {
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
            return Err(TorchError(message));
        }
        outputs.push(made);
    }
    Ok(outputs)
}

fn backward(
    stages: &mut [TorchStage],
    wiring: &Wiring,
    model_outputs: &[(usize, usize)],
    seed: i64,
) -> Result<(), TorchError> {
    let mut arriving: BTreeMap<(usize, usize), Tensor> = BTreeMap::new();
    for (index, stage) in stages.iter_mut().enumerate().rev() {
        let roots = |outputs: &[Tensor]| {
            let here = model_outputs.iter().enumerate().filter(|(_, (stage, _))| *stage == index);
            let returned: Vec<(usize, &Tensor)> =
                here.map(|(position, &(_, output))| (position, &outputs[output])).collect();
            let mut roots = Roots::default();
            if let Some(loss) = functional(&returned, seed)? {
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

/// The copies of each parameter of the model: (stage, position) for every stage that holds one.
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
fn tie(stages: &mut [TorchStage], copies: &[Vec<(usize, usize)>]) -> Result<(), TorchError> {
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
) -> Result<Vec<GradientDifference>, TorchError> {
    let mut largest = 0.0_f64;
    for gradient in model.gradients.iter().flatten() {
        largest = largest.max(largest_of(gradient)?);
    }
    let mut differences = Vec::new();
    for ((parameter, gradient), copies) in model.parameters.iter().zip(&model.gradients).zip(copies) {
        let name = parameter.names[0].clone();
        let Some(&(stage, position)) = copies.first() else {
            // A parameter that is not used is in no stage; one that has a gradient must be in one.
            if gradient.is_some() {
                return Err(TorchError(format!("no stage holds parameter `{name}`")));
            }
            continue;
        };
        let zeros = parameter.tensor.f_zeros_like()?;
        let expected = gradient.as_ref().unwrap_or(&zeros);
        let found = stages[stage].gradients[position].as_ref().unwrap_or(&zeros);
        let difference = difference(name, expected, found, NOISE * largest)?;
        let is_zero = largest_of(expected)? == 0.0 && largest_of(found)? == 0.0;
        differences.push(GradientDifference { difference, stage: stage as u32, is_zero });
    }
    Ok(differences)
}

/// Merges the results of two steps; parameters are the same, in the same order.
fn worse(before: Vec<GradientDifference>, found: Vec<GradientDifference>) -> Vec<GradientDifference> {
    if before.is_empty() {
        return found;
    }
    let both = before.into_iter().zip(found);
    let one = |(a, b): (GradientDifference, GradientDifference)| {
        let is_zero = a.is_zero && b.is_zero;
        // NaN is the worst of all.
        let is_second = b.difference.relative.is_nan() || b.difference.relative > a.difference.relative;
        let difference = if is_second { b.difference } else { a.difference };
        GradientDifference { difference, stage: a.stage, is_zero }
    };
    both.map(one).collect()
}

/// Returns the largest absolute value of a tensor.
fn largest_of(tensor: &Tensor) -> Result<f64, TorchError> {
    if tensor.numel() == 0 {
        return Ok(0.0);
    }
    Ok(as_real(&tensor.detach())?.f_to_kind(tch::Kind::Double)?.f_abs()?.f_max()?.f_double_value(&[])?)
}

/// Compares two tensors; a scale below `least` counts as `least`.
fn difference(name: String, expected: &Tensor, found: &Tensor, least: f64) -> Result<Difference, TorchError> {
    if expected.size() != found.size() {
        let message =
            format!("{name} has shape {:?} in the model, {:?} in the stages", expected.size(), found.size());
        return Err(TorchError(message));
    }
    if expected.kind() != found.kind() {
        let message =
            format!("{name} is {:?} in the model, {:?} in the stages", expected.kind(), found.kind());
        return Err(TorchError(message));
    }
    if expected.numel() == 0 {
        return Ok(Difference { name, absolute: 0.0, relative: 0.0 });
    }
    let double =
        |tensor: &Tensor| Ok::<_, TorchError>(as_real(&tensor.f_detach()?)?.f_to_kind(tch::Kind::Double)?);
    let (expected, found) = (double(expected)?, double(found)?);
    // Both sides may hold the same infinity or NaN, whose difference is NaN.
    let is_nan = expected.f_isnan()?.f_logical_and(&found.f_isnan()?)?;
    let is_same = expected.f_eq_tensor(&found)?.f_logical_or(&is_nan)?;
    let apart = expected.f_sub(&found)?.f_abs()?.f_masked_fill(&is_same, 0.0)?;
    let absolute = apart.f_max()?.f_double_value(&[])?;
    let scale = expected.f_nan_to_num(0.0, 0.0, 0.0)?.f_abs()?.f_max()?.f_double_value(&[])?.max(least);
    let relative = if absolute == 0.0 { 0.0 } else { absolute / scale.max(f64::MIN_POSITIVE) };
    Ok(Difference { name, absolute, relative })
}
