//! A traced model as a problem: its calls become blocks, with the operators between them.
//!
//! A block of the plan is a call and the loose operators behind it, which is how stages are cut when they are written: an
//! operator that nobody names goes with the one before it. What writes in place keeps its order, so no stage takes a
//! reader away from between two writers.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
};

use graph::{Flow, Item, Level, ModelGraph, OperatorCosts, Role};
use petgraph::visit::EdgeRef;
use schema::{Bytes, OperatorPaths, Seconds};

use crate::{Block, Machine, Problem, Tie, Training, Value};

/// Seconds of one operator.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct OperatorSeconds {
    /// Forward pass.
    pub forward: f64,
    /// Gradient of the inputs.
    pub input_gradient: f64,
    /// Gradient of the parameters.
    pub weight_gradient: f64,
}

/// Makes a problem of a traced model; `seconds` are by operator, on a device of speed 1.
///
/// Blocks are the units that the model repeats where there are enough of them for `wanted` stages, single layers where not.
/// Those whose path is among `joined` go with the one before them.
pub fn from_graph(
    graph: &ModelGraph,
    costs: &OperatorCosts,
    seconds: &[OperatorSeconds],
    machine: Machine,
    training: Training,
    wanted: usize,
    joined: &BTreeSet<String>,
) -> Problem {
    let runs_at = |level| join(runs(graph, &graph.level(level)), joined);
    let runs = [Level::Block, Level::Layer, Level::Operator]
        .into_iter()
        .map(runs_at)
        .find(|runs| runs.len() >= wanted)
        .unwrap_or_else(|| runs_at(Level::Operator));
    let mut run_of = vec![0; graph.operators.len()];
    for (index, Run { operators, .. }) in runs.iter().enumerate() {
        operators.clone().for_each(|operator| run_of[operator as usize] = index);
    }
    let mut blocks: Vec<Block> = runs
        .iter()
        .map(|Run { paths, operators }| {
            let of = |field: &dyn Fn(&OperatorSeconds) -> f64| {
                Seconds(operators.clone().map(|operator| field(&seconds[operator as usize])).sum())
            };
            let widest = operators.clone().map(|operator| costs.run(&(operator..operator + 1)).written_bytes);
            Block {
                path: paths[0].clone(),
                joined: paths[1..].to_vec(),
                forward: of(&|time| time.forward),
                input_gradient: of(&|time| time.input_gradient),
                weight_gradient: of(&|time| time.weight_gradient),
                parameters: Bytes(0),
                activations: Bytes(costs.run(operators).saved_bytes),
                workspace: Bytes(widest.max().unwrap_or(0)),
            }
        })
        .collect();
    let ties = parameters(graph, &run_of, &mut blocks);
    Problem { blocks, values: values(graph, &run_of), ties, machine, training }
}

/// Operators in a row.
struct Run {
    /// What stands for them, first to last.
    ///
    /// Invariant: at least one.
    paths: Vec<String>,
    operators: Range<u32>,
}

/// Puts the runs of these paths to the ones before them.
fn join(all: Vec<(String, Range<u32>)>, joined: &BTreeSet<String>) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::with_capacity(all.len());
    for (path, operators) in all {
        match runs.last_mut().filter(|_| joined.contains(&path)) {
            Some(before) => {
                before.paths.push(path);
                before.operators.end = operators.end;
            }
            None => runs.push(Run { paths: vec![path], operators }),
        }
    }
    runs
}

/// Runs of operators with the path that stands for each.
fn runs(graph: &ModelGraph, items: &[Item]) -> Vec<(String, Range<u32>)> {
    let has_blocks = items.iter().any(|item| matches!(item, Item::Block(_)));
    let mut paths = OperatorPaths::default();
    let mut runs: Vec<(String, Range<u32>)> = Vec::new();
    for &item in items {
        let operators = item.operators(graph);
        if operators.is_empty() {
            continue;
        }
        match item {
            Item::Block(block) => runs.push((graph.block(block).path.clone(), operators)),
            Item::Operator(_) if has_blocks => match runs.last_mut() {
                Some((_, before)) => before.end = operators.end,
                None => runs.push((String::new(), operators)),
            },
            // Without blocks every operator is an item, so that all are counted.
            Item::Operator(id) => {
                let operator = graph.operator(id);
                let path = &graph.block(operator.block).path;
                runs.push((paths.next(operator.block.0, path, &operator.name), operators));
            }
        }
    }
    // What stands before the first call goes with it.
    if runs.len() > 1 && runs[0].0.is_empty() {
        let (_, first) = runs.remove(0);
        runs[0].1.start = first.start;
    }
    runs
}

/// Values between runs, and the order that writing in place imposes.
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
