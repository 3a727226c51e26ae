//! Runs the forward and backward pass of one stage for each line on standard input, for `benches/stages.py`.
//!
//! `stage ARCHIVE INPUTS.safetensors`, with the inputs in the order of their names. A line is answered with the seconds
//! that the passes took.

#![allow(clippy::print_stdout)]

use std::{error::Error, io::Write, path::PathBuf, time::Instant};

use libtorch::{TorchBackend, TorchSetup};
use runtime::Backend;
use simulator::order::Kind;
use tch::{Device, Tensor};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let archive = PathBuf::from(arguments.next().ok_or("an archive is missing")?);
    let mut inputs = Tensor::read_safetensors(arguments.next().ok_or("the inputs are missing")?)?;
    inputs.sort_by(|a, b| a.0.cmp(&b.0));
    tch::set_num_threads(1);
    let backend = TorchBackend::new(TorchSetup {
        archives: vec![archive],
        model_outputs: vec![vec![false; 64]],
        devices: vec![Device::Cpu],
        inputs: vec![Vec::new()],
        learning_rate: 0.0,
    });
    let mut stage = backend.load(0, 0)?;
    let mut gradients: Option<Vec<Option<Tensor>>> = None;
    for line in std::io::stdin().lines() {
        line?;
        let values = inputs.iter().map(|(_, input)| input.shallow_clone()).collect();
        let start = Instant::now();
        let outputs = backend.forward(&mut stage, 0, values)?;
        // Made once, in the first pass, which warms up.
        let ones = gradients.get_or_insert_with(|| {
            let is_float = |output: &Tensor| output.requires_grad();
            outputs.iter().map(|output| is_float(output).then(|| output.detach().ones_like())).collect()
        });
        let ones = ones.iter().map(|one| one.as_ref().map(Tensor::shallow_clone)).collect();
        drop(outputs);
        backend.backward(&mut stage, Kind::Backward, 0, ones)?;
        let seconds = start.elapsed().as_secs_f64();
        drop(backend.gradients(&mut stage)?);
        println!("{seconds}");
        std::io::stdout().flush()?;
    }
    Ok(())
}
