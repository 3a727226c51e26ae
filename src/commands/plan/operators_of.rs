//! The operators of a block, by its name in plans.

use std::ops::Range;

use graph::ModelGraph;
use partitioner::Sliceable;

/// Returns the operators of a call, or an operator itself; `None` for other names.
pub(super) fn operators_of(name: &str, model: &Sliceable<'_>, graph: &ModelGraph) -> Range<u32> {
    let call = graph.blocks.iter().find(|block| block.path == name);
    let one = || model.first_operator(name).map(|operator| operator..operator + 1);
    call.map(|call| call.operators.clone()).or_else(one).unwrap_or_default()
}
