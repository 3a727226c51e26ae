//! Costs of parts of operators: the cost model at the parts' sizes, the cluster's links, the optimizer's step.

use std::{cell::RefCell, collections::HashMap, rc::Rc};

use cost_model::{CostModel, Costs, Parts, PredictOptions, predict};
use partitioner::{
    Machine,
    inside::{Degrees, Links, Prices, Volume},
};

use super::layers::Layers;
use crate::workspace::Workspace;

/// Costs of a model's operators on the devices of one type.
pub struct Predicted<'a> {
    workspace: &'a Workspace,
    layers: &'a Layers,
    model: &'a CostModel,
    options: PredictOptions,
    links: Links<'a>,
    /// Bytes of optimizer state per byte of parameters.
    optimizer_factor: f64,
    /// Memory bandwidth of a device, in bytes per second.
    memory: f64,
    /// The whole model.
    whole: Costs,
    /// Costs of all operators, by their degrees.
    known: RefCell<HashMap<Degrees, Rc<Costs>>>,
}

impl<'a> Predicted<'a> {
    /// Predicts the whole model at once, and parts on demand.
    pub fn new(
        workspace: &'a Workspace,
        layers: &'a Layers,
        (model, options): (&'a CostModel, PredictOptions),
        machine: &'a Machine,
        optimizer_factor: f64,
    ) -> Self {
        let whole = predict(&workspace.graph, &workspace.costs, model, &options);
        Self {
            workspace,
            layers,
            model,
            options,
            links: Links::new(machine),
            optimizer_factor,
            memory: machine.devices.first().map_or(f64::INFINITY, |device| device.memory_bandwidth.0),
            whole,
            known: RefCell::default(),
        }
    }

    /// Returns the share of compute that is the forward pass.
    pub fn forward_share(&self) -> f64 {
        let total = self.whole.total();
        let (forward, backward) = (total.forward.seconds, total.backward().seconds);
        if forward > 0.0 { forward / (forward + backward) } else { 1.0 }
    }

    fn at(&self, degrees: &Degrees) -> Rc<Costs> {
        let predicted = || {
            let [samples, channels, height, width] = degrees.result.map(|parts| parts as f64);
            let parts = Parts { channels, height, width, sums: degrees.sums as f64 };
            let options = PredictOptions { batch_scale: 1.0 / samples, parts, ..self.options.clone() };
            Rc::new(predict(&self.workspace.graph, &self.workspace.costs, self.model, &options))
        };
        self.known.borrow_mut().entry(*degrees).or_insert_with(predicted).clone()
    }
}

impl Prices for Predicted<'_> {
    fn compute(&self, layer: usize, degrees: &Degrees) -> f64 {
        let own = &self.layers.layers[layer];
        // An operator without sums to split is computed in full by each part.
        let sums = if own.sums.is_some() { degrees.sums } else { 1 };
        let costs = self.at(&Degrees { sums, ..*degrees });
        let one = costs.operator(self.layers.operators[layer]);
        // The optimizer reads parameters, gradients and its state, and writes parameters and state.
        let touched =
            own.parameters / (degrees.result[1] * sums) as f64 * (3.0 + 2.0 * self.optimizer_factor);
        one.forward.seconds + one.backward().seconds + touched / self.memory
    }

    fn exchange(&self, volume: &Volume) -> f64 {
        self.links.exchange(volume)
    }

    fn all_reduce(&self, devices: usize, apart: usize, bytes: f64) -> f64 {
        self.links.all_reduce(devices, apart, bytes)
    }

    fn copies(&self) -> f64 {
        // Parameters, gradients, state.
        2.0 + self.optimizer_factor
    }
}
