//! A traced model as a problem: its calls become blocks, with the operators between them.
//!
//! A block is a call and the loose operators behind it, which is how stage files are cut: an operator outside all calls goes with
//! the one before it. In-place writes keep their order, so no boundary separates a reader from the writers around it.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
};

use graph::{Flow, ModelGraph, OperatorCosts, OperatorId, Role, TensorFact};
use petgraph::visit::EdgeRef;
use schema::{Bytes, Seconds};

use crate::{
    Block, Machine, Problem, Tie, Training, Value,
    grain::{Grain, OperatorSeconds, Run, Sliceable},
    problem::Again,
};

/// Makes a problem of a traced model taken apart at a grain; `seconds` are by operator, on a device of speed 1.
pub fn from_graph(
    model: &Sliceable<'_>,
    grain: &Grain,
    costs: &OperatorCosts,
    seconds: &[OperatorSeconds],
    machine: Machine,
    training: Training,
) -> Problem {
    let graph = model.graph;
    let runs = model.runs(grain);
    let mut run_of = vec![0; graph.operators.len()];
    for (index, Run { operators, .. }) in runs.iter().enumerate() {
        operators.clone().for_each(|operator| run_of[operator as usize] = index);
    }
    let mut blocks: Vec<Block> = runs
        .iter()
        .map(|run| {
            let Run { paths, operators, .. } = run;
            let of_operators = |operators: Range<u32>| {
                Seconds(operators.map(|operator| seconds[operator as usize].forward).sum())
            };
            let of = |field: &dyn Fn(&OperatorSeconds) -> f64| {
                Seconds(operators.clone().map(|operator| field(&seconds[operator as usize])).sum())
            };
            Block {
                path: paths[0].clone(),
                joined: paths[1..].to_vec(),
                forward: of(&|time| time.forward),
                input_gradient: of(&|time| time.input_gradient),
                weight_gradient: of(&|time| time.weight_gradient),
                once: of(&|time| time.once),
                parameters: Bytes(0),
                activations: Bytes(costs.run(operators).saved_bytes),
                kept: Bytes(0),
                left_out: of_operators(costs.computed_again(operators).end..operators.end),
                light: light(run, costs, seconds),
                waiting: Bytes(costs.waiting_bytes(operators)),
                workspace: workspace(graph, costs, operators.clone().map(OperatorId)),
                is_operator: model.is_operator(run),
                recompute: None,
            }
        })
        .collect();
    let ties = parameters(graph, &run_of, &mut blocks);
    Problem {
        blocks,
        values: values(graph, &run_of),
        ties,
        machine,
        training,
        begins: None,
        pins: Vec::new(),
    }
}

/// Returns what it takes to compute a block again but for its dear results; `None` if it has none.
fn light(run: &Run, costs: &OperatorCosts, seconds: &[OperatorSeconds]) -> Option<Again> {
    let own = costs.computed_again(&run.operators);
    let bytes = Some(costs.dear_results(&own)).filter(|bytes| bytes.all > 0)?;
    let again = own.filter(|operator| !costs.is_dear(OperatorId(*operator)));
    Some(Again {
        forward: Seconds(again.map(|operator| seconds[operator as usize].forward).sum()),
        held: Bytes(bytes.all),
        once_more: Bytes(costs.run(&run.operators).saved_bytes.saturating_sub(bytes.saved)),
    })
}

/// Returns the most bytes that one of some operators makes, in its forward pass or in its backward pass.
pub fn workspace(
    graph: &ModelGraph,
    costs: &OperatorCosts,
    operators: impl Iterator<Item = OperatorId>,
) -> Bytes {
    let made = operators.map(|operator| {
        let written = costs.operator(operator).written_bytes;
        match costs.backward_scratch(operator) {
            0 => written,
            scratch => written.max(scratch.saturating_add(gradients(graph, operator))),
        }
    });
    Bytes(made.max().unwrap_or(0))
}

/// Returns the bytes of the gradients of an operator's operands.
fn gradients(graph: &ModelGraph, operator: OperatorId) -> u64 {
    let inputs = graph.operator(operator).inputs.iter().flat_map(|value| graph.value(*value).fact.tensors());
    let trained = inputs.filter(|tensor| tensor.requires_grad).filter_map(TensorFact::bytes);
    trained.fold(0, u64::saturating_add)
}

/// What operators take where nothing is trained, by operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForwardOnly {
    /// Bytes that are alive while it runs.
    pub alive: Vec<u64>,
    /// Bytes of keys and values that it keeps of one micro-batch.
    pub caches: Vec<u64>,
}

/// Reduces the blocks of a problem to the costs of the forward pass alone.
pub fn forward_only(problem: &mut Problem, model: &Sliceable<'_>, grain: &Grain, of: &ForwardOnly) {
    for (block, run) in problem.blocks.iter_mut().zip(model.runs(grain)) {
        let own = run.operators.start as usize..run.operators.end as usize;
        let caches = of.caches[own.clone()].iter().copied().fold(0, u64::saturating_add);
        (block.input_gradient, block.weight_gradient) = (Seconds(0.0), Seconds(0.0));
        (block.once, block.left_out, block.light) = (Seconds(0.0), Seconds(0.0), None);
        block.waiting = Bytes(0);
        // Only keys and values are kept.
        (block.activations, block.kept) = (Bytes(caches), Bytes(caches));
        block.workspace = Bytes(of.alive[own].iter().copied().max().unwrap_or(0));
    }
    problem.values.iter_mut().for_each(|value| value.backward = Bytes(0));
}

/// Returns the values between runs, and the order that in-place writes impose.
fn values(graph: &ModelGraph, run_of: &[usize]) -> Vec<Value> {
    let mut values = Vec::new();
    for value in &graph.values {
        let from = value.producer.map(|producer| run_of[producer.index()]);
        let to: BTreeSet<usize> = value
            .consumers
            .iter()
            .map(|consumer| run_of[consumer.index()])
            .filter(|&to| from.is_none_or(|from| from < to))
            .collect();
        if to.is_empty() {
            continue;
        }
        let tensors = value.fact.tensors();
        let sum = |wanted: &dyn Fn(bool) -> bool| {
            let tensors = tensors.iter().filter(|tensor| wanted(tensor.requires_grad));
            Bytes(tensors.map(|tensor| tensor.bytes().unwrap_or(0)).fold(0, u64::saturating_add))
        };
        let to = to.into_iter().collect();
        values.push(Value {
            from,
            to,
            forward: sum(&|_| true),
            backward: sum(&|requires_grad| requires_grad),
        });
    }
    let mut order = BTreeSet::new();
    for edge in graph.flow.edge_references() {
        let (from, to) = (run_of[edge.source().index()], run_of[edge.target().index()]);
        if !matches!(edge.weight(), Flow::Value(_)) && from < to {
            order.insert((from, to));
        }
    }
    values.extend(order.into_iter().map(|(from, to)| Value {
        from: Some(from),
        to: vec![to],
        forward: Bytes(0),
        backward: Bytes(0),
    }));
    values
}

/// Gives parameters to the block that reads them; those of several blocks are ties.
fn parameters(graph: &ModelGraph, run_of: &[usize], blocks: &mut [Block]) -> Vec<Tie> {
    let mut readers: BTreeMap<usize, BTreeSet<usize>> = BTreeMap::new();
    for tensor in graph.tensors.iter().filter(|tensor| tensor.role == Role::Parameter) {
        let runs = tensor.consumers.iter().map(|consumer| run_of[consumer.index()]);
        readers.entry(tensor.first.index()).or_default().extend(runs);
    }
    let mut ties: BTreeMap<Vec<usize>, u64> = BTreeMap::new();
    for (tensor, runs) in readers {
        let bytes = graph.tensors[tensor].bytes;
        let runs: Vec<usize> = runs.into_iter().collect();
        match runs.as_slice() {
            [] => {}
            [run] => blocks[*run].parameters.0 += bytes,
            _ => *ties.entry(runs).or_default() += bytes,
        }
    }
    ties.into_iter().map(|(blocks, bytes)| Tie { blocks, parameters: Bytes(bytes) }).collect()
}
