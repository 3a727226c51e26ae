//! Bytes of each block that decide what a stage holds: a table of five numbers a block, O(blocks log blocks + values).

use std::{cmp::Reverse, collections::HashMap};

use schema::{RecomputePolicy, ShardingLevel};

use crate::problem::{Block, Problem};

/// Bytes of blocks, in the order of the problem.
pub(crate) struct BlockBytes {
    /// Bytes of each block's inputs, plus those that it keeps beside them when recomputed.
    pub(crate) inputs: Vec<f64>,
    /// Bytes of the model's inputs that each block is the first to take, plus those that it keeps whatever is recomputed.
    pub(crate) stays: Vec<f64>,
    /// Blocks that are recomputed however much memory there is.
    pub(crate) always: Vec<usize>,
    /// Equal for blocks of equal costs and bytes, such as repeated layers.
    pub(crate) kinds: Vec<u32>,
    /// The largest workspace of any block.
    pub(crate) largest_workspace: f64,
    /// Blocks by falling parameters; empty if replicas do not gather parameters.
    pub(crate) by_parameters: Vec<usize>,
}

impl BlockBytes {
    pub(crate) fn of(problem: &Problem) -> Self {
        let kept = || problem.blocks.iter().map(|block| block.kept.0 as f64).collect();
        let (mut inputs, mut stays): (Vec<f64>, Vec<f64>) = (kept(), kept());
        for value in &problem.values {
            value.to.iter().for_each(|&to| inputs[to] += value.forward.0 as f64);
            if let (None, Some(&first)) = (value.from, value.to.iter().min()) {
                stays[first] += value.forward.0 as f64;
            }
        }
        let workspace = problem.blocks.iter().map(|block| block.workspace.0).max();
        let mut by_parameters = Vec::new();
        if problem.training.sharding >= ShardingLevel::Zero2 {
            by_parameters.extend(0..problem.blocks.len());
            by_parameters.sort_by_key(|&block| Reverse(problem.blocks[block].parameters.0));
        }
        let always = problem.blocks.iter().enumerate();
        let always = always.filter(|(_, block)| block.recompute.is_some_and(RecomputePolicy::is_again));
        let always = always.map(|(index, _)| index).collect();
        let mut numbers = HashMap::new();
        let kind = |((block, inputs), stays): ((&Block, &f64), &f64)| {
            let seconds =
                [block.forward.0, block.left_out.0, block.seconds(), *inputs, *stays].map(f64::to_bits);
            let bytes = [block.activations, block.kept, block.waiting, block.workspace];
            let light = block.light.map(|own| (own.forward.0.to_bits(), own.held.0, own.once_more.0));
            let next = numbers.len() as u32;
            *numbers
                .entry((seconds, bytes.map(|bytes| bytes.0), light, (block.is_operator, block.recompute)))
                .or_insert(next)
        };
        let kinds = problem.blocks.iter().zip(&inputs).zip(&stays).map(kind).collect();
        Self { inputs, stays, always, kinds, largest_workspace: workspace.unwrap_or(0) as f64, by_parameters }
    }
}
