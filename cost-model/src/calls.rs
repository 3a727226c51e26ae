//! Host overhead: the time that the host of an accelerator takes to call its operators.
//!
//! Calls are queued: a pass takes as long as its kernels, or as long as the host needs to call them, whichever is longer, and not
//! their sum. This is decided for a whole pass: a queue that ran full behind long kernels hides many short calls. If the host is
//! slower, the excess is distributed over its calls, so that blocks still add up.
//!
//! The time of a call is from the profile, or else from the catalogue: that of PyTorch in eager mode in published measurements,
//! Python included.

use graph::{ModelGraph, Operator, OperatorCosts};

use crate::{
    estimate::{Estimate, combine},
    host,
    model::CostModel,
    predict::{Prediction, TimeSource},
};

/// Seconds of a call if neither a profile nor the device's figures tell. That of the A100's host in the catalogue: no table of
/// newer hosts is known, and this is rather too slow for them than too fast.
const UNKNOWN: f64 = 29e-6;
/// Time of a view relative to a call that computes: it allocates and launches nothing.
const VIEW: f64 = 0.25;
/// Time of a call in a model relative to a profile's, which is C++: Python's wrappers and modules come on top. Eager training
/// steps on the H200 took 26 µs a call (the half of fixtures/profiles/whole-h200 that set it; 24.5 the other). Two profiles on
/// hosts of the same kind, with equal Python calls, give 10.8 and 6.5 µs: this is the middle of the two ratios.
const PYTHON: f64 = 3.1;
/// Time of the backward pass through a recorded call, relative to the call: no Python, but more kernels, sums and casts. Of the
/// same half: 0.84 to 1.5; of the other 1.0 to 1.5.
const GRADIENT: f64 = 1.2;
/// Other hosts are faster and slower.
const BAND: (f64, f64) = (0.4, 1.5);

/// Host overhead of one call, forward and backward.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Calls {
    forward: f64,
    gradient: f64,
}

impl Calls {
    fn of(model: &CostModel) -> Self {
        if let Some(overhead) = model.overhead {
            return Self::python(PYTHON * (overhead.call + overhead.recording));
        }
        Self::python(model.figures.host_call.map_or(UNKNOWN, |call| call.0))
    }

    fn python(forward: f64) -> Self {
        Self { forward, gradient: GRADIENT * forward }
    }
}

/// Makes the passes of a model at least as long as the host needs for them.
pub(crate) fn bound(
    graph: &ModelGraph,
    costs: &OperatorCosts,
    model: &CostModel,
    has_work: impl Fn(&Operator) -> bool,
    wants_gradient: impl Fn(&Operator) -> bool,
    predictions: &mut [Prediction],
) {
    if host::is_processor(model.figures.architecture.as_deref()) {
        return;
    }
    // Without any known kernel the calls alone give no estimate.
    if predictions.iter().all(|one| one.forward.seconds <= 0.0) {
        return;
    }
    let calls = Calls::of(model);
    let share = |operator: &Operator| -> f64 {
        let cost = costs.operator(operator.id);
        let is_view = cost.read_bytes + cost.written_bytes + cost.forward_flops == 0;
        if !has_work(operator) {
            0.0
        } else if is_view {
            VIEW
        } else {
            1.0
        }
    };
    let shares: Vec<f64> = graph.operators.iter().map(share).collect();
    let total = |part: fn(&Prediction) -> f64, of: &[Prediction]| of.iter().map(part).sum::<f64>();
    let host = calls.forward * shares.iter().sum::<f64>();
    let left = left_over(host, total(|one| one.forward.seconds, predictions));
    for (own, share) in predictions.iter_mut().zip(&shares) {
        let waits = calls.forward * share * left;
        if waits > own.forward.seconds {
            own.source = TimeSource::Host;
            own.is_launch_bound = true;
        }
        own.forward = longer(own.forward, waits);
    }
    let asked: Vec<f64> = graph
        .operators
        .iter()
        .zip(&shares)
        .map(|(operator, share)| if wants_gradient(operator) { *share } else { 0.0 })
        .collect();
    let host = calls.gradient * asked.iter().sum::<f64>();
    let left =
        left_over(host, total(|one| one.input_gradient.seconds + one.weight_gradient.seconds, predictions));
    for (own, share) in predictions.iter_mut().zip(asked) {
        let is_of_weights = own.input_gradient.seconds == 0.0 && own.weight_gradient.seconds > 0.0;
        let way = if is_of_weights { &mut own.weight_gradient } else { &mut own.input_gradient };
        *way = longer(*way, calls.gradient * share * left);
    }
}

/// Returns the host's excess over the device, as a share of the host's time.
fn left_over(host: f64, device: f64) -> f64 {
    if host > device { 1.0 - device / host } else { 0.0 }
}

fn longer(own: Estimate, waits: f64) -> Estimate {
    if waits > 0.0 { combine([own, Estimate::about(waits, BAND)].into_iter()) } else { own }
}
