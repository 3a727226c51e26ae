//! The pipeline over the `Null` backend and over a small backend of numbers.
#![allow(clippy::unwrap_used)]

use std::{collections::HashMap, sync::Mutex};

use runtime::{Backend, BackendError, Measured, Null, RunError, Source, StageWiring, Wiring, run};
use simulator::order::{self, Kind, Order};

fn chain(n_stages: usize) -> Wiring {
    let source = |stage: usize| match stage.checked_sub(1) {
        Some(stage) => Source::Stage { stage, output: 0 },
        None => Source::Input(0),
    };
    let stages = (0..n_stages).map(|stage| StageWiring { inputs: vec![source(stage)], n_outputs: 1 });
    Wiring { stages: stages.collect(), n_inputs: 1 }
}

fn null(n_stages: usize) -> Null {
    Null { n_outputs: vec![1; n_stages], durations: Vec::new() }
}

/// Every operation starts after everything it needs has ended.
fn check_dependencies(measured: &Measured, n_stages: usize) {
    let mut ends = HashMap::new();
    for op in measured.devices.iter().flatten() {
        if let Some(run) = op.op {
            ends.insert((op.step, run.stage, run.micro_batch, run.kind), op.end);
        }
    }
    let end = |step, stage, micro_batch, kinds: &[Kind]| {
        kinds.iter().find_map(|&kind| ends.get(&(step, stage, micro_batch, kind)).copied())
    };
    for op in measured.devices.iter().flatten() {
        let Some(run) = op.op else { continue };
        let needs = match run.kind {
            Kind::Forward if run.stage == 0 => None,
            Kind::Forward => end(op.step, run.stage - 1, run.micro_batch, &[Kind::Forward]),
            Kind::WeightGradient => end(op.step, run.stage, run.micro_batch, &[Kind::InputGradient]),
            _ if run.stage as usize + 1 == n_stages => {
                end(op.step, run.stage, run.micro_batch, &[Kind::Forward])
            }
            _ => end(op.step, run.stage + 1, run.micro_batch, &[Kind::Backward, Kind::InputGradient]),
        };
        assert!(needs.is_none_or(|end| end <= op.start), "{run:?} starts at {} before {needs:?}", op.start);
    }
}

#[test]
fn every_schedule_with_one_copy_of_the_model_runs() {
    for (name, ranks, chunks, micro_batches) in [
        ("gpipe", 4, 1, 6),
        ("1f1b", 4, 1, 6),
        ("interleaved-1f1b", 2, 2, 4),
        ("looped-bfs", 2, 3, 4),
        ("interleaved-zero-bubble", 2, 2, 4),
        ("zbv", 2, 2, 6),
        ("dualpipe-v", 2, 2, 6),
    ] {
        let order = order::make(name, ranks, chunks, micro_batches).unwrap();
        let n_stages = order.n_stages();
        let measured = run(&null(n_stages), &chain(n_stages), &order, 2).unwrap();
        assert_eq!(measured.steps.len(), 2, "{name}");
        let ran: usize = measured.devices.iter().map(Vec::len).sum();
        assert_eq!(ran, 2 * (order.n_ops() + order.ranks.len()), "{name}");
        check_dependencies(&measured, n_stages);
    }
}

#[test]
fn an_order_for_other_stages_is_refused() {
    let order = order::make("1f1b", 3, 1, 3).unwrap();
    let error = run(&null(2), &chain(2), &order, 1).unwrap_err();
    assert_eq!(error, RunError::NoSuchStage { stage: 2, n_stages: 2 });
    let order = order::make("1f1b", 2, 1, 3).unwrap();
    let error = run(&null(3), &chain(3), &order, 1).unwrap_err();
    assert_eq!(error.to_string(), "no device runs stage 2 for micro-batch 0");
}

/// Stages that multiply by their weight: `y = w·x`, loss `y`; gradients are known by hand.
#[derive(Default)]
struct Numbers {
    fail_at: Option<(usize, u32)>,
    gradients: Mutex<Vec<(usize, usize, f64)>>,
}

struct NumberStage {
    index: usize,
    device: usize,
    weight: f64,
    gradient: f64,
    inputs: HashMap<u32, Vec<f64>>,
}

impl Backend for Numbers {
    type Value = f64;
    type Stage = NumberStage;

    fn load(&self, stage: usize, device: usize) -> Result<NumberStage, BackendError> {
        let weight = stage as f64 + 2.0;
        Ok(NumberStage { index: stage, device, weight, gradient: 0.0, inputs: HashMap::new() })
    }

    fn input(&self, _step: usize, micro_batch: u32, _index: usize) -> Result<f64, BackendError> {
        Ok(f64::from(micro_batch) + 1.0)
    }

    fn share(&self, value: &f64) -> f64 {
        *value
    }

    fn add(&self, left: f64, right: f64) -> Result<f64, BackendError> {
        Ok(left + right)
    }

    fn forward(
        &self,
        stage: &mut NumberStage,
        micro_batch: u32,
        inputs: Vec<f64>,
    ) -> Result<Vec<f64>, BackendError> {
        if self.fail_at == Some((stage.index, micro_batch)) {
            return Err(BackendError("out of memory".to_string()));
        }
        let output = stage.weight * inputs.iter().sum::<f64>();
        stage.inputs.insert(micro_batch, inputs);
        Ok(vec![output])
    }

    fn backward(
        &self,
        stage: &mut NumberStage,
        _kind: Kind,
        micro_batch: u32,
        output_gradients: Vec<Option<f64>>,
    ) -> Result<Vec<Option<f64>>, BackendError> {
        let gradient = output_gradients[0].unwrap_or(1.0);
        let inputs = stage.inputs.remove(&micro_batch).expect("forward came first");
        stage.gradient += gradient * inputs.iter().sum::<f64>();
        Ok(inputs.iter().map(|_| Some(gradient * stage.weight)).collect())
    }

    fn gradients(&self, stage: &mut NumberStage) -> Result<Vec<f64>, BackendError> {
        Ok(vec![stage.gradient])
    }

    fn set_gradients(&self, stage: &mut NumberStage, gradients: Vec<f64>) -> Result<(), BackendError> {
        stage.gradient = gradients[0];
        Ok(())
    }

    fn update(&self, stage: &mut NumberStage) -> Result<(), BackendError> {
        self.gradients.lock().unwrap().push((stage.index, stage.device, stage.gradient));
        stage.gradient = 0.0;
        Ok(())
    }
}

fn gradients(wiring: &Wiring, order: &Order) -> Vec<(usize, usize, f64)> {
    let backend = Numbers::default();
    run(&backend, wiring, order, 1).unwrap();
    let mut gradients = backend.gradients.into_inner().unwrap();
    gradients.sort_by_key(|&(stage, device, _)| (stage, device));
    gradients
}

#[test]
fn gradients_are_those_of_the_chain_rule() {
    // y = 4·3·2·x with x = 1 … 4: dy/dw is the product of the others times Σx = 10.
    let order = order::make("1f1b", 3, 1, 4).unwrap();
    assert_eq!(gradients(&chain(3), &order), [(0, 0, 120.0), (1, 1, 80.0), (2, 2, 60.0)]);
}

#[test]
fn a_skip_adds_the_gradients_of_both_consumers() {
    // s0: a = 2x; s1: b = 3a; s2: y = 4(a + b), so dy/dw0 = 4(1 + 3)·Σx = 160 and dy/dw2 = Σ(a + b) = 80.
    let mut wiring = chain(3);
    wiring.stages[2].inputs.push(Source::Stage { stage: 0, output: 0 });
    let order = order::make("gpipe", 3, 1, 4).unwrap();
    assert_eq!(gradients(&wiring, &order), [(0, 0, 160.0), (1, 1, 80.0), (2, 2, 80.0)]);
}

#[test]
fn unequal_replicas_end_with_the_gradient_of_the_whole_batch() {
    let order = order::replicated(&[2, 1], 4);
    // y = 3·2·x: both replicas of stage 0 hold 3·Σx = 30, stage 1 holds 2·Σx = 20.
    assert_eq!(gradients(&chain(2), &order), [(0, 0, 30.0), (0, 1, 30.0), (1, 2, 20.0)]);
}

#[test]
fn one_failure_stops_all_and_is_the_one_reported() {
    let backend = Numbers { fail_at: Some((1, 2)), ..Numbers::default() };
    let order = order::make("1f1b", 3, 1, 4).unwrap();
    let error = run(&backend, &chain(3), &order, 1).unwrap_err();
    assert_eq!(error.to_string(), "device 1 failed in 1F2: out of memory");
}
