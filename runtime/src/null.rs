//! `Null`: a backend that computes nothing and only keeps time.
//!
//! With durations it sleeps as long as each operation would take, so that the order, waits and overheads of the real
//! pipeline can be measured without a model; without them it returns at once.

use std::time::Duration;

use simulator::order::Kind;

use crate::{Backend, BackendError};

/// A backend whose stages sleep.
#[derive(Clone, Debug, Default)]
pub struct Null {
    /// Number of outputs of each stage.
    pub n_outputs: Vec<usize>,
    /// Durations of forward, input gradient and weight gradient by stage; empty for none.
    pub durations: Vec<[Duration; 3]>,
}

/// A stage that counts its operations.
#[derive(Debug)]
pub struct NullStage {
    index: usize,
    n_inputs: usize,
}

impl Null {
    fn sleep(&self, stage: &NullStage, kind: Kind) {
        if let Some([forward, input_gradient, weight_gradient]) = self.durations.get(stage.index) {
            std::thread::sleep(match kind {
                Kind::Forward => *forward,
                Kind::InputGradient => *input_gradient,
                Kind::WeightGradient => *weight_gradient,
                Kind::Backward => *input_gradient + *weight_gradient,
            });
        }
    }
}

impl Backend for Null {
    type Value = ();
    type Stage = NullStage;

    fn load(&self, stage: usize, _device: usize) -> Result<NullStage, BackendError> {
        if stage >= self.n_outputs.len() {
            return Err(BackendError(format!("there is no stage {stage}")));
        }
        Ok(NullStage { index: stage, n_inputs: 0 })
    }

    fn input(&self, _step: usize, _micro_batch: u32, _index: usize) -> Result<(), BackendError> {
        Ok(())
    }

    fn share(&self, _value: &()) {}

    fn add(&self, _left: (), _right: ()) -> Result<(), BackendError> {
        Ok(())
    }

    fn forward(
        &self,
        stage: &mut NullStage,
        _micro_batch: u32,
        inputs: Vec<()>,
    ) -> Result<Vec<()>, BackendError> {
        self.sleep(stage, Kind::Forward);
        stage.n_inputs = inputs.len();
        Ok(vec![(); self.n_outputs[stage.index]])
    }

    fn backward(
        &self,
        stage: &mut NullStage,
        kind: Kind,
        _micro_batch: u32,
        _output_gradients: Vec<Option<()>>,
    ) -> Result<Vec<Option<()>>, BackendError> {
        self.sleep(stage, kind);
        Ok(vec![Some(()); stage.n_inputs])
    }

    fn gradients(&self, _stage: &mut NullStage) -> Result<Vec<()>, BackendError> {
        Ok(Vec::new())
    }

    fn set_gradients(&self, _stage: &mut NullStage, _gradients: Vec<()>) -> Result<(), BackendError> {
        Ok(())
    }

    fn update(&self, _stage: &mut NullStage) -> Result<(), BackendError> {
        Ok(())
    }
}
