//! Experts of mixtures on different devices, each of which has a part of the samples or positions.

use std::collections::BTreeMap;

use ::operators::Split;
use graph::{
    ModelGraph, OperatorId, TensorId,
    layout::{Context, Layout, Slice},
};

use crate::failure::Failure;

/// A share of the experts.
const EXPERTS: Slice = Slice { dim: 0, blocks: 1 };

/// Tells whether a model has products of rows with the matrices of their experts.
pub fn has_experts(graph: &ModelGraph) -> bool {
    graph.operators.iter().filter_map(|operator| operator.row()).any(|row| row.split == Split::GroupedProduct)
}

/// Returns the layouts of stored tensors: experts are shared out, all else is whole.
pub(super) fn given(context: &Context<'_>) -> BTreeMap<TensorId, Layout> {
    let experts = context.expert_weights();
    let layout = |id: TensorId| if experts.contains(&id) { Layout::Even(EXPERTS) } else { Layout::Whole };
    context.graph.tensors.iter().map(|tensor| (tensor.id, layout(tensor.id))).collect()
}

/// Tells whether experts are cut, and nothing else.
pub(super) fn are_all(context: &Context<'_>, layouts: &BTreeMap<TensorId, Layout>) -> bool {
    let cut = |layout: &Layout| match layout {
        Layout::Even(slice) => Some(*slice),
        _ => None,
    };
    let is_plain = layouts.values().all(|layout| matches!(layout, Layout::Whole | Layout::Even(_)));
    is_plain
        && are_cut(context, &layouts.iter().filter_map(|(id, layout)| Some((*id, cut(layout)?))).collect())
}

/// The same of cuts.
pub(super) fn are_cut(context: &Context<'_>, cuts: &BTreeMap<TensorId, Slice>) -> bool {
    let experts = context.expert_weights();
    !cuts.is_empty() && cuts.iter().all(|(id, cut)| *cut == EXPERTS && experts.contains(id))
}

/// Tells whether devices share work beside that of experts.
pub(super) fn share_samples(context: &Context<'_>, is_split: &[bool]) -> bool {
    let is_beside = |at: usize| {
        let row = context.graph.operator(OperatorId(at as u32)).row();
        row.is_some_and(|row| matches!(row.split, Split::Linear | Split::Matmul | Split::Attention))
    };
    is_split.iter().enumerate().any(|(at, is_split)| *is_split && is_beside(at))
}

/// Refuses a model whose experts cannot be shared out.
pub(super) fn check(context: &Context<'_>, sharers: &str) -> Result<(), Failure> {
    if !context.expert_weights().is_empty() {
        return Ok(());
    }
    let degree = context.degree;
    let grouped = context.grouped();
    let Some((experts, rows)) = grouped.first().copied() else {
        return Err(Failure::no("the model has no experts whose matrices lie in one tensor, `[experts, inputs, outputs]`")
            .with_hint("transformers traces them so (experts_implementation `grouped_mm`); --tensor-parallel shares other layers"));
    };
    let fits =
        (2..=experts).filter(|n| grouped.iter().all(|(experts, rows)| experts % n == 0 && rows % n == 0));
    let fits: Vec<String> = fits.map(|n| n.to_string()).collect();
    let failure = Failure::no(format!(
        "{degree} {sharers} cannot share {experts} experts and the {rows} rows that are routed to them evenly"
    ));
    Err(if fits.is_empty() { failure } else { failure.with_hint(format!("{} could", fits.join(", "))) })
}
