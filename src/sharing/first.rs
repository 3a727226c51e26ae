//! `--on-first`: calls that only the first device of a group runs, as FlexFlow places the dense layers of AlexNet.

use std::collections::BTreeMap;

use graph::{
    ModelGraph, OperatorClass, StoredTensor, TensorId,
    layout::{Exchange, Layout, Sharded},
};
use tracer::{Operand, Role};

use crate::{failure::Failure, nearest};

/// Tells whether dense layers are to be on the first device if that is faster.
pub fn is_auto(calls: &[String]) -> bool {
    calls == ["auto"]
}

/// Returns the layouts of weights: those of the calls on the first device, all others whole. Free ones are absent.
///
/// # Errors
/// If there are no such calls, or they have no weights.
pub fn given(graph: &ModelGraph, calls: &[String]) -> Result<BTreeMap<TensorId, Layout>, Failure> {
    let mut found: BTreeMap<TensorId, Layout> =
        graph.tensors.iter().map(|tensor| (tensor.id, Layout::Whole)).collect();
    if is_auto(calls) {
        let dense = graph.operators.iter().filter(|operator| operator.class == OperatorClass::Matmul);
        dense.flat_map(|operator| &operator.tensors).for_each(|id| {
            found.remove(id);
        });
        return Ok(found);
    }
    for call in calls {
        let is_in = |path: &str| path.strip_prefix(call.as_str()).is_some_and(|rest| rest.starts_with('.'));
        let own = || graph.tensors.iter().filter(|one| one.role == Role::Parameter && is_in(&one.path));
        if own().next().is_none() {
            let paths = graph.blocks.iter().map(|block| block.path.as_str());
            let meant = nearest::meant(call, paths.clone().filter(|path| !path.is_empty()), 3);
            return Err(Failure::input(if paths.clone().any(|path| path == call) {
                format!("--on-first {call}: the call has no weights that could be on one device")
            } else {
                format!("--on-first {call}: the model has no such call{meant}")
            }));
        }
        for tensor in own() {
            found.insert(tensor.id, layout(tensor)?);
        }
    }
    Ok(found)
}

/// Returns the layout of a weight on the first device.
///
/// # Errors
/// If it is a tensor without rows.
pub fn layout(tensor: &StoredTensor) -> Result<Layout, Failure> {
    match tensor.shape.first() {
        Some(rows) if tensor.role == Role::Parameter => Ok(Layout::First(*rows)),
        _ => Err(Failure::input(format!(
            "`{}` cannot be on the first device only: it is not a parameter with dimensions",
            tensor.path
        ))),
    }
}

/// Refuses programs that would send weights of the first device to the others.
///
/// # Errors
/// If an operator cannot be computed on the first device alone.
pub fn check(made: &Sharded, graph: &ModelGraph) -> Result<(), Failure> {
    for (node, exchange) in &made.exchanges {
        let node = &made.program.nodes[node.index()];
        let Some(Operand::Tensor(id)) = node.arguments.first().map(|argument| &argument.operand) else {
            continue;
        };
        if made.on_first.contains_key(id) && !matches!(exchange, Exchange::Lend(_)) {
            return Err(Failure::no(format!(
                "`{}` cannot be on the first device only: an operator that takes it does not compute rows of samples \
                 independently, {} of them at a time",
                graph.tensor(*id).path,
                made.degree
            ))
            .with_hint("--on-first takes linear layers, convolutions and norms over features"));
        }
    }
    Ok(())
}
