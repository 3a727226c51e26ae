//! `run`: stages as a pipeline in libtorch.

use libtorch::{TorchBackend, TorchSetup, card_name, device, random};
use model_analyze::parts::{Failure, Job, Measurement, Run, libraries};

use crate::in_torch::{failed, input};

/// Runs the pipeline for a number of steps.
pub fn execute(arguments: &Run, job: &Job, n_steps: usize) -> Result<Measurement, Failure> {
    let given = &arguments.devices;
    let names = if given.is_empty() { vec!["cpu".to_string()] } else { given.clone() };
    let devices = names.iter().map(|name| device(name)).collect::<Result<Vec<_>, _>>();
    let program = job.stages.model(arguments.model.as_deref())?.program;
    if let Some(library) = libraries(&program).first() {
        return Err(Failure::input(format!(
            "the stages call operators of {library}, which libtorch has only in Python"
        ))
        .with_hint("run train.py of the folder with torchrun"));
    }
    let specs = job.stages.input_specs(&program)?;
    let mut inputs = Vec::new();
    for micro_batch in 0..i64::from(job.micro_batches) {
        let seeds = micro_batch * specs.len() as i64..;
        let one = specs.iter().zip(seeds).map(|(spec, seed)| random(&input(spec), seed));
        inputs.push(one.collect::<Result<Vec<_>, _>>().map_err(failed)?);
    }
    let wiring = &job.stages.wiring;
    let is_returned = |stage: usize, output| job.stages.model_outputs.contains(&(stage, output));
    let model_outputs = wiring.stages.iter().enumerate();
    let model_outputs = model_outputs
        .map(|(stage, joints)| (0..joints.n_outputs).map(|output| is_returned(stage, output)).collect());
    let devices = devices.map_err(failed)?;
    let cards = devices.iter().filter_map(|&device| card_name(device)).collect();
    let backend = TorchBackend::new(TorchSetup {
        archives: job.stages.archives()?,
        model_outputs: model_outputs.collect(),
        devices,
        inputs,
        learning_rate: 0.01,
    });
    let measured = runtime::run(&backend, wiring, &job.order, n_steps).map_err(Failure::input)?;
    // Every micro-batch of a step has one loss, already divided by their number.
    let all = backend.losses();
    let losses = all.chunks(job.micro_batches as usize).skip(1);
    let losses = losses.map(|step| step.iter().map(|(_, loss)| loss).sum()).collect();
    Ok(Measurement { measured, losses, names, cards })
}
