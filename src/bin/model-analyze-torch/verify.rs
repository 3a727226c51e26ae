//! `verify`: TorchScript archives of stages against the whole model.

use libtorch::{exact_device, random, set_threads, verify};
use model_analyze::parts::{Compared, Failure, Form, Request, Stages};

use crate::in_torch::{failed, input, whole};

/// Compares outputs, gradients and losses.
pub fn compare(stages: &Stages, request: &Request<'_>) -> Result<Compared, Failure> {
    if let Some(threads) = request.threads {
        set_threads(threads);
    }
    let device = exact_device(request.device).map_err(failed)?;
    let mut inputs = Vec::new();
    for step in 0..i64::from(request.steps.max(1)) {
        let one = request.inputs.iter().enumerate().map(|(index, spec)| {
            let seed = request.seed + step * request.inputs.len() as i64 + index as i64;
            random(&input(spec), seed)
        });
        inputs.push(one.collect::<Result<Vec<_>, _>>().map_err(failed)?);
    }
    let archives = stages.archives()?;
    let (wiring, outputs) = (&stages.wiring, &stages.model_outputs);
    let (whole, trains) = (whole(request.whole), request.steps > 0);
    let found = verify(&whole, &archives, (wiring, outputs), &inputs, trains, device).map_err(failed)?;
    Ok(Compared {
        form: Form::Torchscript.name().to_string(),
        outputs: found.outputs,
        gradients: found.gradients,
        losses: found.losses,
        shards: None,
    })
}
