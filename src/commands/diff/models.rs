//! The differences of two models, operator by operator. O(operators).

use std::{collections::HashMap, path::Path};

use graph::{ModelGraph, Operand, Operator, OperatorClass};
use indexmap::IndexMap;
use schema::{ANSWER_VERSION, Bytes, DifferentBlock, Flops, ModelDiffAnswer, ModelDiffSide};

use super::run_of;
use crate::{
    columns::columns,
    commands::{
        graph::{self as pictures, tell_notes},
        inspect::grouped,
    },
    failure::Failure,
    workspace::Workspace,
};

/// Runs of blocks that the text shows at most.
const MOST_RUNS: usize = 24;

/// Two models, the operators of each that the other lacks, and the answer.
pub(super) struct Compared {
    sides: [Side; 2],
    pub(super) answer: ModelDiffAnswer,
}

struct Side {
    workspace: Workspace,
    /// For each operator, whether the other model lacks it.
    is_different: Vec<bool>,
}

/// Compares two models.
pub(super) fn compare(paths: [&Path; 2], inputs: &[String]) -> Result<Compared, Failure> {
    let read = |path: &Path| Workspace::read(path, inputs).inspect(tell_notes);
    let [before, after] = [read(paths[0])?, read(paths[1])?];
    let [lost, new] = [missing(&before.graph, &after.graph), missing(&after.graph, &before.graph)];
    let sides =
        [Side { workspace: before, is_different: lost }, Side { workspace: after, is_different: new }];
    let [before, after] = &sides;
    let answer = ModelDiffAnswer {
        schema_version: ANSWER_VERSION,
        before: side(paths[0], before),
        after: side(paths[1], after),
        blocks: blocks(before, after),
    };
    Ok(Compared { sides, answer })
}

/// Draws both, coloured by the operators that the other lacks.
pub(super) fn draw(compared: &Compared, depth: Option<u32>) -> Result<Vec<String>, Failure> {
    let draw = |side: &Side| {
        let values: Vec<f64> = side.is_different.iter().map(|is| f64::from(u8::from(*is))).collect();
        let name = "operators that the other model lacks";
        pictures::coloured(&side.workspace, (name, &values, &|number| format!("{number:.0} differ")), depth)
    };
    compared.sides.iter().map(draw).collect()
}

/// Returns for each operator of a model whether another lacks it.
fn missing(graph: &ModelGraph, other: &ModelGraph) -> Vec<bool> {
    let mut there: HashMap<Key<'_>, usize> = HashMap::new();
    for operator in computing(other) {
        *there.entry(key(other, operator)).or_default() += 1;
    }
    let mut is_different = vec![false; graph.operators.len()];
    for operator in computing(graph) {
        match there.get_mut(&key(graph, operator)) {
            Some(left @ 1..) => *left -= 1,
            _ => is_different[operator.id.index()] = true,
        }
    }
    is_different
}

/// Operators that compute with tensors: arithmetic on sizes differs wherever sizes do.
fn computing(graph: &ModelGraph) -> impl Iterator<Item = &Operator> {
    graph.operators.iter().filter(|operator| operator.class != OperatorClass::Plumbing)
}

/// The properties that equal operators share: block, name, sizes of parameters, constants, results.
type Key<'a> = (&'a str, &'a str, Vec<Vec<u64>>, Vec<String>, Vec<String>);

fn key<'a>(graph: &'a ModelGraph, operator: &'a Operator) -> Key<'a> {
    let parameter = |id: &graph::TensorId| graph.tensor(*id).shape.clone();
    let result = |id: &graph::ValueId| graph.value(*id).fact.to_string();
    (
        &graph.block(operator.block).path,
        &operator.name,
        operator.tensors.iter().map(parameter).collect(),
        operator.arguments.iter().map(|argument| constants(&argument.operand)).collect(),
        operator.outputs.iter().map(result).collect(),
    )
}

/// Writes the constants of an argument; a computed value is a dash.
fn constants(operand: &Operand) -> String {
    match operand {
        Operand::Constant(constant) => format!("{constant:?}"),
        Operand::List(items) | Operand::Tuple(items) => {
            items.iter().map(constants).collect::<Vec<_>>().join(",")
        }
        _ => "-".to_string(),
    }
}

fn side(path: &Path, side: &Side) -> ModelDiffSide {
    let Workspace { graph, costs, .. } = &side.workspace;
    let total = costs.total();
    ModelDiffSide {
        file: path.display().to_string(),
        parameters: graph.parameters(),
        forward_flops: Flops(total.forward_flops),
        backward_flops: Flops(total.backward_flops_input.saturating_add(total.backward_flops_weight)),
        saved_bytes: Bytes(total.saved_bytes),
        operators: computing(graph).count() as u64,
        different: side.is_different.iter().filter(|is| **is).count() as u64,
    }
}

fn blocks(before: &Side, after: &Side) -> Vec<DifferentBlock> {
    let mut blocks: IndexMap<&str, [u64; 2]> = IndexMap::new();
    for (which, side) in [before, after].into_iter().enumerate() {
        let graph = &side.workspace.graph;
        for operator in graph.operators.iter().filter(|operator| side.is_different[operator.id.index()]) {
            blocks.entry(graph.block(operator.block).path.as_str()).or_default()[which] += 1;
        }
    }
    let block = |(block, [before, after]): (&str, [u64; 2])| DifferentBlock {
        block: block.to_string(),
        before,
        after,
    };
    blocks.into_iter().map(block).collect()
}

/// Returns the answer for people.
pub(super) fn text(answer: &ModelDiffAnswer) -> String {
    let ModelDiffAnswer { before, after, blocks, .. } = answer;
    let mut rows = vec![["".to_string(), before.file.clone(), after.file.clone(), String::new()]];
    let mut row = |name: &str, show: &dyn Fn(u64) -> String, old: u64, new: u64| {
        let change = if old == new || old == 0 {
            String::new()
        } else {
            format!("{:+.1} %", 100.0 * (new as f64 / old as f64 - 1.0))
        };
        rows.push([name.to_string(), show(old), show(new), change]);
    };
    let flops = |number| Flops(number).to_string();
    row("parameters", &grouped, before.parameters, after.parameters);
    row("forward", &flops, before.forward_flops.0, after.forward_flops.0);
    row("backward", &flops, before.backward_flops.0, after.backward_flops.0);
    row("saved activations", &|bytes| Bytes(bytes).to_string(), before.saved_bytes.0, after.saved_bytes.0);
    row("operators", &grouped, before.operators, after.operators);
    rows.push([
        "not in the other".to_string(),
        grouped(before.different),
        grouped(after.different),
        String::new(),
    ]);
    let mut text = columns(&rows, "", |_| false);
    if blocks.is_empty() {
        text.push_str("\nevery operator is in both, in the same block and with the same sizes\n");
        return text;
    }
    text.push('\n');
    let how = |block: &DifferentBlock| match (block.before, block.after) {
        (_, 0) => "only before",
        (0, _) => "only after",
        _ => "changed",
    };
    let runs: Vec<&[DifferentBlock]> = blocks.chunk_by(|a, b| how(a) == how(b)).collect();
    for run in runs.iter().take(MOST_RUNS) {
        let names =
            run.iter().map(|block| if block.block.is_empty() { "(root)" } else { block.block.as_str() });
        let names = run_of(names);
        let sum = |of: fn(&DifferentBlock) -> u64| run.iter().map(of).sum::<u64>();
        let count = match (sum(|block| block.before), sum(|block| block.after)) {
            (1, 0) | (0, 1) => "1 operator".to_string(),
            (n, 0) | (0, n) => format!("{n} operators"),
            (before, after) => format!("operators {before} → {after}"),
        };
        text.push_str(&format!("{:<11}  {names}: {count}\n", how(&run[0])));
    }
    if runs.len() > MOST_RUNS {
        text.push_str(&format!("and {} more like these (--format json lists all)\n", runs.len() - MOST_RUNS));
    }
    text
}
