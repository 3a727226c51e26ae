//! The memory of a training step over time: forward pass, loss, backward pass.
//!
//! ```text
//!           forward                     loss            backward
//! saved     ▁▂▃▄▅▆▇█                    █               █▇▆▅▄▃▂▁      what autograd keeps
//! passing   ▂▁▂▁▂▁▂▁                    ▃               ▂▃▂▃▂▃▂▃      results and gradients that are still read
//! gradients                                             ▁▂▃▄▅▆▇█      of parameters
//! ```
//!
//! The backward pass runs operators in reverse order, as autograd's engine does; an operator's saved activations are
//! freed with it. A sum and a view pass their gradient on without a copy. A gradient is added to another in place if
//! nothing else reads it. Scratch memory inside kernels is not counted. Linear in operands.

use std::{collections::HashMap, ops::Range};

use operators::{Kernel, OperatorClass};

use crate::{
    OperatorCosts,
    fact::{Fact, StorageId},
    model::{ModelGraph, Operator, OperatorId, Origin, Value},
};

/// Options of a simulated step.
#[derive(Clone, Copy, Debug, Default)]
pub struct StepOptions<'a> {
    /// Bytes of the loss after the outputs.
    pub loss: LossMemory,
    /// Runs of operators that are recomputed in the backward pass, in order.
    pub recomputed: &'a [Range<u32>],
    /// Whether gradients of earlier micro-batches exist from the start.
    pub accumulates: bool,
    /// Whether saved activations are moved to host memory, with one operator's at a time on the device.
    pub offloads: bool,
    /// Devices that shard the gradients of parameters.
    pub sharers: u32,
}

/// Bytes of a loss.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LossMemory {
    /// From its forward to its backward pass.
    pub kept: u64,
    /// Additional bytes during its forward pass.
    pub forward: u64,
    /// Additional bytes during its backward pass.
    pub backward: u64,
    /// Whether the gradient of the outputs overwrites them.
    pub in_place: bool,
}

/// Memory at one moment, without parameters, inputs and the optimizer's state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moment {
    /// Saved for the backward pass.
    pub saved: u64,
    /// Results and gradients that are still read, including the model's outputs.
    pub passing: u64,
    /// The loss.
    pub loss: u64,
    /// Gradients of parameters.
    pub gradients: u64,
    /// The running operator; `None` in the loss.
    pub operator: Option<OperatorId>,
    /// Whether its backward pass runs.
    pub is_backward: bool,
}

impl Moment {
    /// Returns all bytes.
    pub fn total(&self) -> u64 {
        [self.passing, self.loss, self.gradients].into_iter().fold(self.saved, u64::saturating_add)
    }
}

/// A step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepMemory {
    /// The moment of the largest memory.
    pub peak: Moment,
    /// Memory when the optimizer steps: gradients, and outputs that the caller holds.
    pub end: Moment,
}

/// Computes the memory of a training step. Unknown sizes count nothing.
pub fn step_memory(graph: &ModelGraph, costs: &OperatorCosts, options: &StepOptions<'_>) -> StepMemory {
    let mut step = Step::new(graph, costs, options);
    graph.operators.iter().for_each(|operator| step.forward(operator));
    step.loss();
    graph.operators.iter().rev().for_each(|operator| step.backward(operator));
    StepMemory { peak: step.peak, end: step.now }
}

/// A gradient in memory, and its number of holders.
struct Gradient {
    bytes: u64,
    holders: u32,
}

struct Step<'a> {
    graph: &'a ModelGraph,
    costs: &'a OperatorCosts,
    options: &'a StepOptions<'a>,
    /// By storage, the first operator that saves it.
    keepers: Vec<Option<OperatorId>>,
    /// By storage, the last operator that reads it in the forward pass; `u32::MAX` if the caller holds it.
    last_reads: Vec<u32>,
    /// By operator, storages that are freed after its forward pass, and those that are freed after its backward pass.
    freed: Vec<Vec<StorageId>>,
    released: Vec<Vec<StorageId>>,
    gradients: Vec<Gradient>,
    /// Gradients of values, by value; several for a list.
    of_values: HashMap<usize, Vec<usize>>,
    has_gradient: Vec<bool>,
    now: Moment,
    peak: Moment,
}

impl<'a> Step<'a> {
    fn new(graph: &'a ModelGraph, costs: &'a OperatorCosts, options: &'a StepOptions<'a>) -> Self {
        let n_operators = graph.operators.len();
        let mut step = Self {
            graph,
            costs,
            options,
            keepers: (0..graph.storages.len()).map(|index| costs.keeper(StorageId(index as u32))).collect(),
            last_reads: last_reads(graph),
            freed: vec![Vec::new(); n_operators],
            released: vec![Vec::new(); n_operators],
            gradients: Vec::new(),
            of_values: HashMap::new(),
            has_gradient: vec![false; graph.storages.len()],
            now: Moment::default(),
            peak: Moment::default(),
        };
        options.recomputed.iter().for_each(|run| step.keep_inputs(run));
        for index in 0..graph.storages.len() {
            let storage = StorageId(index as u32);
            let Some(made) = step.maker(storage) else { continue };
            let is_the_callers = step.last_reads[index] == u32::MAX;
            if let Some(keeper) = step.keepers[index].filter(|_| !is_the_callers) {
                step.released[keeper.index()].push(storage);
            }
            if !step.is_held(storage) {
                let last = step.last_reads[index].max(made.0);
                step.freed.get_mut(last as usize).into_iter().for_each(|freed| freed.push(storage));
            }
        }
        if options.accumulates {
            let parameters = graph.tensors.iter().filter(|tensor| tensor.is_first_parameter());
            for tensor in parameters.filter(|tensor| tensor.requires_grad) {
                step.add_parameter(tensor.storage, tensor.bytes);
            }
        }
        step
    }

    /// The inputs of a recomputed segment are kept until then.
    fn keep_inputs(&mut self, run: &Range<u32>) {
        for operator in self.graph.operators_of(run) {
            for storage in storages(self.graph, operator) {
                if self.maker(storage).is_some_and(|made| made.0 < run.start) {
                    let keeper = &mut self.keepers[storage.index()];
                    *keeper = Some(OperatorId(keeper.map_or(run.start, |keeper| keeper.0.min(run.start))));
                }
            }
        }
    }

    fn maker(&self, storage: StorageId) -> Option<OperatorId> {
        match self.graph.storage(storage).origin {
            Origin::Made(operator) => Some(operator),
            Origin::Stored(_) | Origin::Input(_) => None,
        }
    }

    fn bytes(&self, storage: StorageId) -> u64 {
        self.graph.storage(storage).bytes.unwrap_or(0)
    }

    /// Returns the recomputed run that contains an operator.
    fn run_of(&self, operator: OperatorId) -> Option<&'a Range<u32>> {
        let behind = self.options.recomputed.partition_point(|run| run.end <= operator.0);
        self.options.recomputed.get(behind).filter(|run| run.contains(&operator.0))
    }

    /// Tells whether a storage is kept from the forward pass to the backward pass.
    fn is_held(&self, storage: StorageId) -> bool {
        let is_kept = self.keepers[storage.index()].is_some() && !self.options.offloads;
        is_kept && !self.is_made_again(storage)
    }

    /// Tells whether a storage is recomputed: nothing outside its segment reads it.
    fn is_made_again(&self, storage: StorageId) -> bool {
        let run = self.maker(storage).and_then(|made| self.run_of(made));
        let keeper = self.keepers[storage.index()];
        run.zip(keeper).is_some_and(|(run, keeper)| {
            run.contains(&keeper.0) && self.last_reads[storage.index()] < run.end
        })
    }

    /// Returns the bytes that an operator saves in addition to tensors that others see.
    fn private(&self, operator: OperatorId) -> u64 {
        self.costs.operator(operator).saved_bytes.saturating_sub(self.costs.shared_saved_bytes(operator))
    }

    fn look(&mut self, operator: Option<OperatorId>, is_backward: bool) {
        if self.now.total() > self.peak.total() {
            self.peak = Moment { operator, is_backward, ..self.now };
        }
    }

    fn forward(&mut self, operator: &Operator) {
        for storage in made_by(self.graph, operator) {
            let bytes = self.bytes(storage);
            let is_held = self.is_held(storage) && self.last_reads[storage.index()] != u32::MAX;
            add(if is_held { &mut self.now.saved } else { &mut self.now.passing }, bytes);
        }
        let private = self.private(operator.id);
        add(&mut self.now.saved, private);
        self.look(Some(operator.id), false);
        if self.options.offloads || self.run_of(operator.id).is_some() {
            self.now.saved = self.now.saved.saturating_sub(private);
        }
        for storage in std::mem::take(&mut self.freed[operator.id.index()]) {
            self.now.passing = self.now.passing.saturating_sub(self.bytes(storage));
        }
    }

    fn loss(&mut self) {
        let LossMemory { kept, forward, backward, in_place } = self.options.loss;
        for more in [forward, backward] {
            self.now.loss = kept.saturating_add(more);
            self.look(None, more == backward);
        }
        self.now.loss = 0;
        for output in &self.graph.outputs {
            let value = self.graph.value(*output);
            let bytes = gradient_bytes(value);
            if bytes > 0 {
                let gradient = self.fresh(if in_place { 0 } else { bytes });
                self.of_values.entry(value.id.index()).or_default().push(gradient);
            }
        }
        self.look(None, true);
    }

    fn backward(&mut self, operator: &Operator) {
        let released = self.released[operator.id.index()].iter().map(|storage| self.bytes(*storage));
        let released = sum(released);
        let kept = self.private(operator.id).saturating_add(released);
        match self.run_of(operator.id) {
            _ if self.options.offloads => add(&mut self.now.saved, kept),
            Some(run) if run.end == operator.id.0 + 1 => {
                let recomputed = self.made_again(run);
                add(&mut self.now.saved, recomputed);
            }
            _ => {}
        }
        let outputs = operator.outputs.iter();
        let given: Vec<usize> =
            outputs.filter_map(|value| self.of_values.remove(&value.index())).flatten().collect();
        let mut met = Vec::new();
        if !given.is_empty() {
            for value in &operator.inputs {
                let value = self.graph.value(*value);
                if gradient_bytes(value) > 0 {
                    let made = self.made_for(operator, value, &given);
                    met.extend(self.hand_on(value, made));
                }
            }
            for tensor in &operator.tensors {
                let tensor = self.graph.tensor(*tensor);
                if tensor.requires_grad && !self.add_parameter(tensor.storage, tensor.bytes) {
                    met.push(self.fresh(tensor.bytes));
                }
            }
        }
        let scratch = if given.is_empty() { 0 } else { self.costs.backward_scratch(operator.id) };
        add(&mut self.now.passing, scratch);
        self.look(Some(operator.id), true);
        self.now.passing = self.now.passing.saturating_sub(scratch);
        met.into_iter().chain(given).for_each(|gradient| self.let_go(gradient));
        self.now.saved = self.now.saved.saturating_sub(kept);
    }

    /// Returns the bytes that recomputing a run adds for its backward pass.
    fn made_again(&self, run: &Range<u32>) -> u64 {
        let mut bytes = 0;
        for operator in self.graph.operators_of(run) {
            let dropped = made_by(self.graph, operator).filter(|storage| self.is_made_again(*storage));
            add(&mut bytes, sum(dropped.map(|storage| self.bytes(storage))));
            add(&mut bytes, self.private(operator.id));
        }
        bytes
    }

    /// Returns the gradients that an operator makes for one of its operands, or passes on.
    fn made_for(&mut self, operator: &Operator, value: &Value, given: &[usize]) -> Vec<usize> {
        let bytes = gradient_bytes(value);
        let is_same = sum(given.iter().map(|&gradient| self.gradients[gradient].bytes)) == bytes;
        let row = operators::find(operators::plain(operator.short_name()).0);
        let is_handed_on = match operator.class {
            OperatorClass::Plumbing => true,
            OperatorClass::View => is_same && given.len() == 1,
            _ => row.is_some_and(|row| match row.kernel {
                Kernel::Add | Kernel::Reorder => is_same,
                Kernel::Cat => true,
                _ => is_same && made_by(self.graph, operator).next().is_none() && !operator.is_writing,
            }),
        };
        if !is_handed_on {
            return vec![self.fresh(bytes)];
        }
        given.iter().for_each(|&gradient| self.gradients[gradient].holders += 1);
        given.to_vec()
    }

    /// Adds gradients to a value; returns those that are freed because they are added to others.
    fn hand_on(&mut self, value: &Value, made: Vec<usize>) -> Vec<usize> {
        let mut there = self.of_values.remove(&value.id.index()).unwrap_or_default();
        let is_met = !there.is_empty() && matches!(value.fact, Fact::Tensor(_));
        let (kept, met) = if !is_met {
            there.extend(made);
            (there, Vec::new())
        } else if there.iter().all(|&gradient| self.gradients[gradient].holders == 1) {
            (there, made)
        } else {
            (vec![self.fresh(gradient_bytes(value))], [there, made].concat())
        };
        self.of_values.insert(value.id.index(), kept);
        met
    }

    fn fresh(&mut self, bytes: u64) -> usize {
        add(&mut self.now.passing, bytes);
        self.gradients.push(Gradient { bytes, holders: 1 });
        self.gradients.len() - 1
    }

    fn let_go(&mut self, gradient: usize) {
        let gradient = &mut self.gradients[gradient];
        gradient.holders -= 1;
        if gradient.holders == 0 {
            self.now.passing = self.now.passing.saturating_sub(gradient.bytes);
        }
    }

    /// Adds a parameter's gradient, or this device's share of it; false if it exists already.
    fn add_parameter(&mut self, storage: StorageId, bytes: u64) -> bool {
        let is_new = !std::mem::replace(&mut self.has_gradient[storage.index()], true);
        if is_new {
            add(&mut self.now.gradients, bytes.div_ceil(u64::from(self.options.sharers.max(1))));
        }
        is_new
    }
}

/// Adds bytes, saturating.
fn add(total: &mut u64, bytes: u64) {
    *total = total.saturating_add(bytes);
}

fn sum(bytes: impl Iterator<Item = u64>) -> u64 {
    bytes.fold(0, u64::saturating_add)
}

/// Bytes of a value's gradient; zero for integers and masks.
fn gradient_bytes(value: &Value) -> u64 {
    let tensors = value.fact.tensors();
    sum(tensors.iter().filter(|tensor| tensor.requires_grad).filter_map(|tensor| tensor.bytes()))
}

/// Storages that an operator allocates.
fn made_by<'a>(graph: &'a ModelGraph, operator: &'a Operator) -> impl Iterator<Item = StorageId> + 'a {
    let tensors = operator.outputs.iter().flat_map(|value| graph.value(*value).fact.tensors());
    let mut seen: Vec<StorageId> = Vec::new();
    tensors.filter_map(|tensor| tensor.storage).filter(move |storage| {
        let is_new = graph.storage(*storage).origin == Origin::Made(operator.id) && !seen.contains(storage);
        seen.push(*storage);
        is_new
    })
}

/// Storages that an operator reads.
fn storages<'a>(graph: &'a ModelGraph, operator: &'a Operator) -> impl Iterator<Item = StorageId> + 'a {
    let tensors = operator.inputs.iter().flat_map(|value| graph.value(*value).fact.tensors());
    tensors.filter_map(|tensor| tensor.storage)
}

/// By storage, the last operator that reads it in the forward pass; `u32::MAX` if the caller holds it.
pub(crate) fn last_reads(graph: &ModelGraph) -> Vec<u32> {
    let mut last = vec![0; graph.storages.len()];
    for operator in &graph.operators {
        storages(graph, operator).for_each(|storage| last[storage.index()] = operator.id.0);
    }
    for tensor in graph.outputs.iter().flat_map(|output| graph.value(*output).fact.tensors()) {
        tensor.storage.iter().for_each(|storage| last[storage.index()] = u32::MAX);
    }
    last
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two products with a ReLU between them: 32 bytes, 32 bytes and 40 bytes; parameters of 48 and 80 bytes.
    fn step(options: &StepOptions<'_>) -> StepMemory {
        let text = "graph(%self : __torch__.Model,
      %x : Float(2, 3, strides=[3, 1], requires_grad=0, device=cpu)):
  %v : Float(4, 3, strides=[3, 1], requires_grad=1, device=cpu) = prim::GetAttr[name=\"v\"](%self)
  %w : Float(5, 4, strides=[4, 1], requires_grad=1, device=cpu) = prim::GetAttr[name=\"w\"](%self)
  %none : NoneType = prim::Constant()
  %a : Tensor = aten::linear(%x, %v, %none)
  %b : Tensor = aten::relu(%a)
  %c : Tensor = aten::linear(%b, %w, %none)
  return (%c)
";
        let program = tracer::ir::read_ir(text).expect("a graph");
        let graph = crate::build(&program, &crate::BuildOptions::default()).expect("it fits together");
        step_memory(&graph, &crate::costs(&graph), options)
    }

    #[test]
    fn gradients_come_while_activations_go() {
        let peak = step(&StepOptions::default()).peak;
        // The ReLU's result; outputs, their gradient and that of the ReLU's result; the gradient of the last parameter.
        let parts = (peak.saved, peak.passing, peak.gradients, peak.is_backward);
        assert_eq!(parts, (32, 40 + 40 + 32, 80, true));
        assert_eq!(peak.operator.map(|operator| operator.0), Some(2));
    }

    #[test]
    fn all_gradients_are_there_in_the_end() {
        let end = step(&StepOptions::default()).end;
        assert_eq!((end.saved, end.passing, end.gradients), (0, 40, 48 + 80));
        let shared = StepOptions { sharers: 4, ..StepOptions::default() };
        assert_eq!(step(&shared).end.gradients, 12 + 20);
    }

    #[test]
    fn gradients_of_earlier_micro_batches_are_there_from_the_start() {
        let options = StepOptions { accumulates: true, ..StepOptions::default() };
        // An added gradient is first made as a whole.
        let peak = step(&options).peak;
        assert_eq!((peak.gradients, peak.passing), (48 + 80, 40 + 40 + 32 + 80));
    }

    #[test]
    fn a_loss_counts_behind_the_outputs() {
        let loss = LossMemory { kept: 1000, forward: 1, backward: 2, in_place: false };
        let peak = step(&StepOptions { loss, ..StepOptions::default() }).peak;
        assert_eq!((peak.loss, peak.operator), (1002, None));
    }

    #[test]
    fn a_loss_in_the_trace_makes_two_gradients() {
        let text = "graph(%self : __torch__.Model,
      %x : Float(2, 3, strides=[3, 1], requires_grad=0, device=cpu),
      %t : Long(2, strides=[1], requires_grad=0, device=cpu)):
  %v : Float(4, 3, strides=[3, 1], requires_grad=1, device=cpu) = prim::GetAttr[name=\"v\"](%self)
  %none : NoneType = prim::Constant()
  %mean : int = prim::Constant[value=1]()
  %ignored : int = prim::Constant[value=-100]()
  %smooth : float = prim::Constant[value=0.]()
  %a : Tensor = aten::linear(%x, %v, %none)
  %l : Tensor = aten::cross_entropy_loss(%a, %t, %none, %mean, %ignored, %smooth)
  return (%l)
";
        let program = tracer::ir::read_ir(text).expect("a graph");
        let graph = crate::build(&program, &crate::BuildOptions::default()).expect("it fits together");
        let peak = step_memory(&graph, &crate::costs(&graph), &StepOptions::default()).peak;
        // The logarithms and the weights' sum; the loss, its gradient, that of the logarithms and that of the scores.
        assert_eq!((peak.saved, peak.passing, peak.is_backward), (32 + 4, 4 + 4 + 32 + 32, true));
        assert_eq!(peak.operator.map(|operator| operator.0), Some(1));
    }

    #[test]
    fn what_is_computed_again_comes_back_behind_the_loss() {
        let held = |recomputed: &[Range<u32>]| {
            let loss = LossMemory { kept: 1000, ..LossMemory::default() };
            step(&StepOptions { loss, recomputed, ..StepOptions::default() }).peak.saved
        };
        // The ReLU's result is the last product's operand: it stays, unless it is recomputed with the product.
        assert_eq!(held(&[]), 32);
        assert_eq!(held(std::slice::from_ref(&(0..2))), 32);
        assert_eq!(held(std::slice::from_ref(&(0..3))), 0);
    }

    #[test]
    fn what_waits_in_host_memory_is_on_the_device_with_its_operator() {
        let loss = LossMemory { kept: 1000, ..LossMemory::default() };
        let peak = step(&StepOptions { loss, offloads: true, ..StepOptions::default() }).peak;
        assert_eq!(peak.saved, 0);
    }
}
