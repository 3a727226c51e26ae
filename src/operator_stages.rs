//! Which stage an operator belongs to: the same answer for pictures, tables and what is emitted.

use std::collections::{HashMap, HashSet};

use graph::{BlockId, ModelGraph};
use schema::Plan;

use crate::failure::Failure;

/// Returns each operator's stage under a plan.
///
/// Stages name blocks, and operators that stand between a block's calls: `layer1.0/add_`. Where a block is named by its
/// parts, what stands between them goes with the operator before it, as the planner counts it and `emit` writes it.
/// Nothing else is without a stage but blocks that the plan does not name.
///
/// # Errors
/// When the model has no such block.
pub fn of_plan(name: &str, plan: &Plan, graph: &ModelGraph) -> Result<Vec<Option<u32>>, Failure> {
    let blocks = named_blocks(plan, graph).map_err(|(stage, block)| {
        Failure::input(format!("{name}: the model has no block `{block}`, which stage {stage} names"))
            .with_hint(format!("the plan was made for `{}`", plan.model.name))
    })?;
    Ok(blocks.iter().map(|block| block.map(|(stage, _)| stage)).collect())
}

/// Tells for each operator whether its stage computes it again in the backward pass.
pub fn again(plan: &Plan, graph: &ModelGraph) -> Vec<bool> {
    let Ok(blocks) = named_blocks(plan, graph) else { return vec![false; graph.operators.len()] };
    let is_again: Vec<HashSet<&str>> =
        plan.stages.iter().map(|stage| stage.recompute.iter().map(String::as_str).collect()).collect();
    let one = |block: &Option<(u32, &str)>| {
        block.is_some_and(|(stage, path)| is_again[stage as usize].contains(path))
    };
    blocks.iter().map(one).collect()
}

/// For each operator, its stage and the block of the plan that it is counted with.
type Named<'p> = Vec<Option<(u32, &'p str)>>;

/// Follows a plan's names; or returns the stage and the name of a block that the model lacks.
fn named_blocks<'p>(plan: &'p Plan, graph: &ModelGraph) -> Result<Named<'p>, (usize, &'p str)> {
    let paths = Paths::new(graph);
    let mut stages = vec![None; graph.operators.len()];
    for (index, stage) in plan.stages.iter().enumerate() {
        for block in &stage.blocks {
            let operators = paths.find(block).ok_or((index, block.as_str()))?;
            stages[operators].fill(Some((index as u32, block.as_str())));
        }
    }
    fill(graph, &mut stages);
    Ok(stages)
}

/// Gives what stands between named blocks to the stage before it.
fn fill<T: Copy>(graph: &ModelGraph, stages: &mut [Option<T>]) {
    // A block is opened when something in it is named by itself.
    let is_opened: Vec<bool> = graph
        .blocks
        .iter()
        .map(|block| {
            let run = block.operators.start as usize..block.operators.end as usize;
            stages[run].iter().any(Option::is_some)
        })
        .collect();
    let mut before = stages.iter().flatten().next().copied();
    for (operator, stage) in graph.operators.iter().zip(stages) {
        match stage {
            Some(stage) => before = Some(*stage),
            None if is_opened[operator.block.index()] => *stage = before,
            None => {}
        }
    }
}

/// Paths of a model.
struct Paths<'g> {
    blocks: HashMap<&'g str, BlockId>,
    graph: &'g ModelGraph,
    operators: std::cell::OnceCell<HashMap<String, usize>>,
}

impl<'g> Paths<'g> {
    fn new(graph: &'g ModelGraph) -> Self {
        let blocks = graph.blocks.iter().map(|block| (block.path.as_str(), block.id)).collect();
        Self { blocks, graph, operators: std::cell::OnceCell::new() }
    }

    fn find(&self, path: &str) -> Option<std::ops::Range<usize>> {
        if let Some(id) = self.blocks.get(path) {
            let run = &self.graph.block(*id).operators;
            return Some(run.start as usize..run.end as usize);
        }
        let operator = *self.operators().get(path)?;
        Some(operator..operator + 1)
    }

    /// Returns all operators by path; O(operators).
    fn operators(&self) -> &HashMap<String, usize> {
        self.operators.get_or_init(|| {
            let mut counts: HashMap<(BlockId, &str), usize> = HashMap::new();
            let operators = self.graph.operators.iter().enumerate();
            let named = operators.map(|(index, operator)| {
                let count = counts.entry((operator.block, &operator.name)).or_insert(0);
                *count += 1;
                let block = &self.graph.block(operator.block).path;
                let name = operator.name.rsplit("::").next().unwrap_or(&operator.name);
                let path = match *count {
                    1 => format!("{block}/{name}"),
                    n => format!("{block}/{name} ({n})"),
                };
                (path, index)
            });
            named.collect()
        })
    }
}
