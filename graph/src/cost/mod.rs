//! FLOPs and bytes of every operator, as a side table by [`OperatorId`].
//!
//! Costs are independent of devices; seconds are derived elsewhere.

mod chain;
mod dear;
mod einsum;
mod flops;
pub(crate) mod keep;
mod linalg;
mod lookup;
mod needed;
mod operator_cost;
mod product;
mod recurrent;
mod saved;
mod times;
mod unusual;
mod waiting;

use std::ops::Range;

pub(crate) use self::times::times;
pub use self::{
    dear::DearBytes,
    needed::{differentiated, without_derivative},
    operator_cost::OperatorCost,
};
use crate::{BlockId, OperatorId, StorageId, model::ModelGraph};

/// Costs of every operator.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OperatorCosts {
    operators: Vec<OperatorCost>,
    /// `sums[i]` is the cost of the operators before `i`.
    sums: Vec<OperatorCost>,
    /// By storage, the first operator that saves it for the backward pass.
    keepers: Vec<Option<OperatorId>>,
    /// By operator, the part of its saved activations that others share.
    shared: Vec<u64>,
    /// By operator, bytes that its backward pass makes beside the gradients of its operands.
    scratch: Vec<u64>,
    /// By operator, what its result takes if it is kept while the rest is computed again; `None` if it is not dear.
    dear: Vec<Option<dear::Dear>>,
    /// By operator, what it saves for its backward pass.
    saves: Vec<saved::Saves>,
    /// By operator, what the gradient of its weights is made of.
    waits: Vec<Option<waiting::Waits>>,
}

/// Computes the cost of every operator. Linear in operands.
pub fn costs(graph: &ModelGraph) -> OperatorCosts {
    let lookup = lookup::Lookup::new(graph);
    let differentiated = differentiated(graph);
    let mut saved = keep::Saved::new(graph);
    let mut seen = vec![false; graph.storages.len()];
    let mut operators = Vec::with_capacity(graph.operators.len());
    let mut scratch = Vec::with_capacity(graph.operators.len());
    let mut saves = Vec::with_capacity(graph.operators.len());
    let mut waits = Vec::with_capacity(graph.operators.len());
    let mut sums = Vec::with_capacity(graph.operators.len() + 1);
    let mut sum = OperatorCost::default();
    for operator in &graph.operators {
        let call = lookup.call(operator);
        let mut cost = flops::count(&lookup, operator, &call);
        // Tensors without a gradient are freed with their results: a detached extremum, for example.
        let mut own = saved::Saves::Nothing;
        if differentiated[operator.id.index()] {
            let (bytes, is_all, what) = saved::count(&mut saved, &lookup, operator, &call);
            (cost.saved_bytes, cost.unmeasured, own) = (bytes, u32::from(!is_all), what);
        }
        saves.push(own);
        waits.push(waiting::of(&lookup, operator, &call).filter(|_| differentiated[operator.id.index()]));
        if !differentiated[operator.id.index()] {
            (cost.backward_flops_input, cost.backward_flops_weight) = (0, 0);
        }
        lookup::add_bytes(graph, operator, &mut seen, &mut cost);
        scratch.push(if differentiated[operator.id.index()] { saved::scratch(&call) } else { 0 });
        operators.push(cost);
        sums.push(sum);
        sum += cost;
    }
    sums.push(sum);
    let keepers = saved.keepers;
    let mut shared = vec![0_u64; graph.operators.len()];
    for (keeper, storage) in keepers.iter().zip(&graph.storages) {
        if let Some(keeper) = keeper {
            shared[keeper.index()] = shared[keeper.index()].saturating_add(storage.bytes.unwrap_or(0));
        }
    }
    let dear = dear::results(&lookup, &operators, &keepers);
    OperatorCosts { operators, sums, keepers, shared, scratch, dear, saves, waits }
}

impl OperatorCosts {
    /// Returns the cost of one operator.
    pub fn operator(&self, id: OperatorId) -> OperatorCost {
        self.operators[id.index()]
    }

    /// Returns the first operator that saves a storage for its gradient.
    pub fn keeper(&self, storage: StorageId) -> Option<OperatorId> {
        self.keepers[storage.index()]
    }

    /// Returns the bytes of the storages that an operator is the first to save.
    pub(crate) fn shared_saved_bytes(&self, id: OperatorId) -> u64 {
        self.shared[id.index()]
    }

    /// Returns the bytes that an operator's backward pass makes beside the gradients of its operands, and frees.
    pub fn backward_scratch(&self, id: OperatorId) -> u64 {
        self.scratch[id.index()]
    }

    /// Tells whether an operator's result is dear to compute and small to keep.
    pub fn is_dear(&self, id: OperatorId) -> bool {
        self.dear[id.index()].is_some()
    }

    /// Returns the operators of a run that computing it again runs: torch stops at the last tensor that the backward pass
    /// needs, and a product saves its operands before it computes.
    pub fn computed_again(&self, range: &Range<u32>) -> Range<u32> {
        let saves = &self.saves[range.start as usize..range.end as usize];
        let end = saves
            .iter()
            .rposition(|saves| *saves != saved::Saves::Nothing)
            .map_or(0, |last| last as u32 + u32::from(saves[last] == saved::Saves::Results));
        range.start..range.start + end
    }

    /// Returns the bytes that a run keeps between the gradients of its inputs and those of its weights, if these are made
    /// later: operands of its products, each once, and the gradients of their results.
    pub fn waiting_bytes(&self, range: &Range<u32>) -> u64 {
        waiting::sum(&self.waits[range.start as usize..range.end as usize])
    }

    /// Adds up the dear results of a run of operators.
    pub fn dear_results(&self, range: &Range<u32>) -> DearBytes {
        dear::sum(&self.dear, range)
    }

    /// Returns the cost of a run of operators, in constant time.
    pub fn run(&self, range: &Range<u32>) -> OperatorCost {
        let (from, to) = (&self.sums[range.start as usize], &self.sums[range.end as usize]);
        OperatorCost {
            forward_flops: to.forward_flops - from.forward_flops,
            backward_flops_input: to.backward_flops_input - from.backward_flops_input,
            backward_flops_weight: to.backward_flops_weight - from.backward_flops_weight,
            fused_flops: to.fused_flops - from.fused_flops,
            parameter_bytes: to.parameter_bytes - from.parameter_bytes,
            saved_bytes: to.saved_bytes - from.saved_bytes,
            output_bytes: to.output_bytes - from.output_bytes,
            read_bytes: to.read_bytes - from.read_bytes,
            written_bytes: to.written_bytes - from.written_bytes,
            uncounted: to.uncounted - from.uncounted,
            unmeasured: to.unmeasured - from.unmeasured,
        }
    }

    /// Returns the cost of a block.
    pub fn block(&self, graph: &ModelGraph, block: BlockId) -> OperatorCost {
        self.run(&graph.block(block).operators)
    }

    /// Returns the cost of the whole model.
    pub fn total(&self) -> OperatorCost {
        self.sums.last().copied().unwrap_or_default()
    }
}

/// Returns the trained elements that each block reads, tied ones once in each block. O(reads · depth).
pub fn parameters_by_block(graph: &ModelGraph) -> Vec<u64> {
    let mut result = vec![0; graph.blocks.len()];
    let mut mark: Vec<u32> = vec![u32::MAX; graph.blocks.len()];
    // All names of one tensor are handled together: the first name's elements, every name's readers.
    let mut readers: Vec<Vec<OperatorId>> = vec![Vec::new(); graph.tensors.len()];
    for tensor in graph.tensors.iter().filter(|tensor| tensor.role == tracer::Role::Parameter) {
        readers[tensor.first.index()].extend(&tensor.consumers);
    }
    for (index, readers) in readers.iter().enumerate() {
        for reader in readers {
            let mut block = Some(graph.operator(*reader).block);
            while let Some(id) = block {
                if mark[id.index()] == index as u32 {
                    break;
                }
                mark[id.index()] = index as u32;
                result[id.index()] += graph.tensors[index].elements();
                block = graph.block(id).parent;
            }
        }
    }
    result
}
