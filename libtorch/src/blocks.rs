//! Measures the blocks of a model in place, and the whole model.
//!
//! Each block is a stage archive. A round runs all of them one after the other on the tensors they really pass on, with
//! the caches as the previous block left them; then backward. The whole model runs beside them in each round, so that
//! drift affects both.

use std::{
    path::{Path, PathBuf},
    time::Instant,
};

use tch::{CModule, Device, IValue, Tensor};

use runtime::{Source, Wiring, profile::Statistics};

use crate::{
    WholeModel,
    error::TorchError,
    kinds::carries_gradient,
    memory,
    precision::{self, Tf32},
    stage::flatten,
    timer::{Timer, Watch},
};

/// Rounds before those that count: the third step finds memory in the state of all later ones. GPT-2 (124 M parameters)
/// took 1.5, 1.1, 1.0, 0.9, 0.9 s.
const WARM_UP: usize = 2;
/// Fewest and most rounds that count.
const ROUNDS: (usize, usize) = (3, 30);

/// Times of a block or of the whole model.
#[derive(Clone, Debug, Default)]
pub struct BlockTimes {
    /// Forward, without recording.
    pub forward: Statistics,
    /// What a training step takes on top of that: recording and the backward pass.
    pub backward: Statistics,
    /// Sizes of the first result.
    pub output: Vec<i64>,
    /// Element type of the first result, as tch names it.
    pub element: Option<tch::Kind>,
    /// Bytes of all results.
    pub output_bytes: u64,
}

struct Block {
    module: CModule,
    parameters: Vec<Tensor>,
    times: BlockTimes,
}

/// What one training pass leaves for the backward pass.
struct Recorded {
    leaves: Vec<Tensor>,
    outputs: Vec<Tensor>,
}

/// Measures blocks and the whole model, for at most `seconds` after the fewest rounds. Returns the times of the blocks
/// and of the model.
///
/// # Errors
/// When an archive cannot be loaded or run.
pub fn measure_blocks(
    whole: &WholeModel,
    archives: &[PathBuf],
    wiring: &Wiring,
    inputs: &[Tensor],
    device: Device,
    seconds: f64,
    progress: &mut dyn FnMut(usize),
) -> Result<(Vec<BlockTimes>, BlockTimes), TorchError> {
    let timer = Timer::new(device)?;
    if device.is_cuda() {
        precision::set(Tf32::InConvolutions)?;
    } else {
        memory::keep()?;
    }
    let inputs: Vec<Tensor> =
        inputs.iter().map(|input| input.f_to_device(device)).collect::<Result<_, _>>()?;
    let mut model = Block::load(&whole.archive, device)?;
    let arguments = whole.arguments(&inputs);
    let mut blocks: Vec<Block> =
        archives.iter().map(|path| Block::load(path, device)).collect::<Result<_, _>>()?;
    let start = Instant::now();
    for round in 0..WARM_UP + ROUNDS.1 {
        let counts = round >= WARM_UP;
        let alone = tch::no_grad(|| model.forward(&arguments, &timer, counts))?.1;
        let forward = tch::no_grad(|| pass(&mut blocks, wiring, &inputs, &timer, counts))?;
        let made = vec![false; arguments.len()];
        let (recorded, there) = model.record(&arguments, &made, &timer)?;
        let back = model.back(recorded, &timer)?;
        if counts {
            model.times.backward.add((there + back - alone).max(1e-7));
        }
        training(&mut blocks, wiring, &inputs, &timer, counts.then_some(&forward))?;
        let counted = (round + 1).saturating_sub(WARM_UP);
        progress(counted);
        if counted >= ROUNDS.0 && start.elapsed().as_secs_f64() > seconds {
            break;
        }
    }
    Ok((blocks.into_iter().map(|block| block.times).collect(), model.times))
}

/// Runs all blocks forward; returns each one's seconds.
fn pass(
    blocks: &mut [Block],
    wiring: &Wiring,
    inputs: &[Tensor],
    timer: &Timer,
    counts: bool,
) -> Result<Vec<f64>, TorchError> {
    let mut outputs: Vec<Vec<Tensor>> = Vec::new();
    let mut seconds = Vec::new();
    for (block, joints) in blocks.iter_mut().zip(&wiring.stages) {
        let arguments: Vec<Tensor> = joints
            .inputs
            .iter()
            .map(|source| argument(*source, inputs, &outputs))
            .collect::<Result<_, _>>()?;
        let (made, time) = block.forward(&arguments, timer, counts)?;
        outputs.push(made);
        seconds.push(time);
    }
    Ok(seconds)
}

/// Runs a training step over all blocks: forward, then backward in reverse order.
fn training(
    blocks: &mut [Block],
    wiring: &Wiring,
    inputs: &[Tensor],
    timer: &Timer,
    forward: Option<&Vec<f64>>,
) -> Result<(), TorchError> {
    let mut outputs: Vec<Vec<Tensor>> = Vec::new();
    let mut passes = Vec::new();
    for (block, joints) in blocks.iter().zip(&wiring.stages) {
        let arguments: Vec<Tensor> = joints
            .inputs
            .iter()
            .map(|source| argument(*source, inputs, &outputs))
            .collect::<Result<_, _>>()?;
        // Inputs of the model need no gradient; outputs of an earlier block do where training flows through it.
        let made: Vec<bool> = joints
            .inputs
            .iter()
            .zip(&arguments)
            .map(|(source, argument)| matches!(source, Source::Stage { .. }) && argument.requires_grad())
            .collect();
        let (recorded, seconds) = block.record(&arguments, &made, timer)?;
        outputs.push(recorded.outputs.iter().map(Tensor::shallow_clone).collect());
        passes.push((recorded, seconds));
    }
    drop(outputs);
    for (index, (recorded, there)) in passes.into_iter().enumerate().rev() {
        let back = blocks[index].back(recorded, timer)?;
        if let Some(forward) = forward {
            blocks[index].times.backward.add((there + back - forward[index]).max(1e-7));
        }
    }
    Ok(())
}

fn argument(source: Source, inputs: &[Tensor], outputs: &[Vec<Tensor>]) -> Result<Tensor, TorchError> {
    let found = match source {
        Source::Input(index) => inputs.get(index),
        Source::Stage { stage, output } => outputs.get(stage).and_then(|made| made.get(output)),
    };
    found.map(Tensor::shallow_clone).ok_or_else(|| TorchError("a block lacks an input".to_string()))
}

impl Block {
    fn load(path: &Path, device: Device) -> Result<Self, TorchError> {
        // As in a stage: the executor's optimiser would replace parts of autograd.
        tch::jit::f_set_graph_executor_optimize(false)?;
        let module = CModule::load_on_device(path, device)?;
        let mut parameters: Vec<Tensor> = Vec::new();
        for (_, tensor) in module.named_parameters()? {
            let is_tied = parameters.iter().any(|known| known.data_ptr() == tensor.data_ptr());
            if tensor.requires_grad() && !is_tied {
                parameters.push(tensor);
            }
        }
        Ok(Self { module, parameters, times: BlockTimes::default() })
    }

    fn run(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, TorchError> {
        let arguments: Vec<IValue> =
            inputs.iter().map(|input| IValue::Tensor(input.shallow_clone())).collect();
        let mut outputs = Vec::new();
        flatten(self.module.forward_is(&arguments)?, &mut outputs)?;
        Ok(outputs)
    }

    fn forward(
        &mut self,
        inputs: &[Tensor],
        timer: &Timer,
        counts: bool,
    ) -> Result<(Vec<Tensor>, f64), TorchError> {
        timer.synchronize();
        let watch = Watch::start();
        let outputs = self.run(inputs)?;
        timer.synchronize();
        let seconds = watch.seconds();
        if counts {
            self.times.forward.add(seconds);
        } else {
            self.times.output = outputs.first().map(Tensor::size).unwrap_or_default();
            self.times.element = outputs.first().map(Tensor::kind);
            let bytes = |tensor: &Tensor| (tensor.numel() * tensor.kind().elt_size_in_bytes()) as u64;
            self.times.output_bytes = outputs.iter().map(bytes).sum();
        }
        Ok((outputs, seconds))
    }

    /// Runs forward with recording. `made` says which inputs gradients flow back to.
    fn record(&self, inputs: &[Tensor], made: &[bool], timer: &Timer) -> Result<(Recorded, f64), TorchError> {
        let mut leaves = Vec::new();
        let mut arguments = Vec::new();
        for (input, made) in inputs.iter().zip(made) {
            let argument = input.f_detach()?;
            let argument = if *made && carries_gradient(argument.kind()) {
                let leaf = argument.f_set_requires_grad(true)?;
                leaves.push(leaf.shallow_clone());
                leaf
            } else {
                argument
            };
            arguments.push(argument);
        }
        timer.synchronize();
        let watch = Watch::start();
        let outputs = self.run(&arguments)?;
        timer.synchronize();
        let seconds = watch.seconds();
        leaves.extend(self.parameters.iter().map(Tensor::shallow_clone));
        Ok((Recorded { leaves, outputs }, seconds))
    }

    /// Runs backward from gradients of ones; returns the seconds without making those.
    fn back(&self, recorded: Recorded, timer: &Timer) -> Result<f64, TorchError> {
        let Recorded { leaves, outputs } = recorded;
        let roots: Vec<&Tensor> = outputs
            .iter()
            .filter(|output| carries_gradient(output.kind()) && output.requires_grad())
            .collect();
        if roots.is_empty() || leaves.is_empty() {
            return Ok(0.0);
        }
        timer.synchronize();
        let watch = Watch::start();
        for root in &roots {
            drop(root.f_ones_like()?);
        }
        timer.synchronize();
        let ones = watch.seconds();
        let watch = Watch::start();
        Tensor::f_run_backward(&roots, &leaves, false, false)?;
        timer.synchronize();
        Ok((watch.seconds() - ones).max(0.0))
    }
}
