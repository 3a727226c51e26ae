//! The graph as a document for other programs.

use schema::{GRAPH_VERSION, GraphBlock, GraphDocument, GraphEdge, GraphOperator, GraphTensor, NamedTensor};
use tracer::{Role, ValueId};

use crate::{
    cost::OperatorCosts,
    fact::dtype_name,
    model::{Flow, ModelGraph, Operator},
};

/// Writes a graph as an adjacency list.
pub fn document(graph: &ModelGraph, costs: &OperatorCosts) -> GraphDocument {
    let named = |values: &[ValueId]| values.iter().map(|value| named_tensor(graph, *value)).collect();
    let mut edges: Vec<GraphEdge> = graph
        .flow
        .raw_edges()
        .iter()
        .map(|edge| GraphEdge {
            from: edge.source().index() as u32,
            to: edge.target().index() as u32,
            value: match edge.weight {
                Flow::Value(value) => Some(graph.value(value).name.clone()),
                Flow::Order(_) => None,
            },
        })
        .collect();
    edges.sort_by(|a, b| (a.from, a.to, &a.value).cmp(&(b.from, b.to, &b.value)));
    GraphDocument {
        schema_version: GRAPH_VERSION,
        model: graph.name.clone(),
        inputs: named(&graph.inputs),
        outputs: named(&graph.outputs),
        operators: graph.operators.iter().map(|operator| entry(graph, costs, operator)).collect(),
        edges,
        blocks: graph
            .blocks
            .iter()
            .map(|block| GraphBlock {
                path: block.path.clone(),
                kind: block.kind.clone(),
                parent: block.parent.map(|parent| graph.block(parent).path.clone()),
                first: block.operators.start,
                end: block.operators.end,
                structure: format!("{:016x}", block.structure),
            })
            .collect(),
        tensors: graph
            .tensors
            .iter()
            .map(|tensor| GraphTensor {
                path: tensor.path.clone(),
                role: match tensor.role {
                    Role::Parameter => "parameter",
                    Role::Buffer => "buffer",
                    Role::Constant => "constant",
                }
                .to_string(),
                dtype: dtype_name(tensor.dtype).to_string(),
                shape: tensor.shape.clone(),
                tied_to: (tensor.first != tensor.id).then(|| graph.tensor(tensor.first).path.clone()),
            })
            .collect(),
    }
}

/// Returns a value's name, sizes and dtype.
pub fn named_tensor(graph: &ModelGraph, value: ValueId) -> NamedTensor {
    let value = graph.value(value);
    let tensor = value.fact.tensor();
    NamedTensor {
        name: value.name.clone(),
        shape: tensor.and_then(|tensor| tensor.shape.as_ref()).map(|shape| shape.to_vec()),
        dtype: tensor.and_then(|tensor| tensor.dtype).map(|dtype| dtype_name(dtype).to_string()),
    }
}

fn entry(graph: &ModelGraph, costs: &OperatorCosts, operator: &Operator) -> GraphOperator {
    let cost = costs.operator(operator.id);
    GraphOperator {
        id: operator.id.0,
        name: operator.name.clone(),
        block: graph.block(operator.block).path.clone(),
        outputs: operator.outputs.iter().map(|value| named_tensor(graph, *value)).collect(),
        tensors: operator.tensors.iter().map(|tensor| graph.tensor(*tensor).path.clone()).collect(),
        flops: (cost.uncounted == 0).then_some(cost.forward_flops),
        activation_bytes: (cost.unmeasured == 0).then_some(cost.saved_bytes),
    }
}
