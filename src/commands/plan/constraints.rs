//! Given cuts: `--cut-at`, `--layers`, and the `constraints` of a plan.

use graph::{BlockId, Item, Level, ModelGraph};
use indexmap::IndexMap;
use partitioner::Sliceable;
use schema::{Constraints, Plan};

use super::{
    PlanRequest,
    arguments::{is_meant, matches},
    pins, recomputed,
    sizes::Sizes,
};
use crate::{failure::Failure, nearest::meant};

/// Returns the first operators of the second and later stages, if cuts are given.
pub(super) fn starts(
    model: &Sliceable<'_>,
    graph: &ModelGraph,
    asked: &Constraints,
) -> Result<Option<Vec<u32>>, Failure> {
    if !(asked.layers.is_empty() || asked.cut_at.is_empty()) {
        return Err(Failure::input(
            "the constraints have both `cut_at` and `layers`; only one of them may set the cuts",
        ));
    }
    if !asked.layers.is_empty() {
        return by_layers(graph, &asked.layers).map(Some);
    }
    if asked.cut_at.is_empty() {
        return Ok(None);
    }
    let mut found: Vec<(u32, &String)> = Vec::new();
    for name in &asked.cut_at {
        let Some(start) = model.first_operator(name) else {
            let meant = meant(name, graph.blocks.iter().map(|block| block.path.as_str()), 3);
            return Err(Failure::input(format!("--cut-at: the model has no call `{name}`{meant}"))
                .with_hint(
                    "`model-analyze inspect` lists calls; operators are named as `plan -o` writes them",
                ));
        };
        found.push((start, name));
    }
    found.sort_by_key(|(start, _)| *start);
    let first = std::iter::once((0, None));
    let places: Vec<(usize, Option<&String>)> =
        first.chain(found.iter().map(|(start, name)| (model.working_before(*start), Some(*name)))).collect();
    for pair in places.windows(2) {
        let ((before, earlier), (place, name)) = (pair[0], pair[1]);
        let name = name.map_or("", String::as_str);
        if before == place {
            return Err(Failure::input(match earlier {
                None => format!("--cut-at: nothing is computed before `{name}`, so no stage can end there"),
                Some(earlier) => format!("--cut-at: nothing is computed between `{earlier}` and `{name}`"),
            }));
        }
    }
    let last = found.last().filter(|(start, _)| model.working_before(*start) == model.n_working());
    if let Some((_, name)) = last {
        return Err(Failure::input(format!("--cut-at: nothing is computed from `{name}` on")));
    }
    Ok(Some(found.into_iter().map(|(start, _)| start).collect()))
}

/// Returns the first operators of stages with the given numbers of the model's repeated blocks.
fn by_layers(graph: &ModelGraph, layers: &[u32]) -> Result<Vec<u32>, Failure> {
    if layers.contains(&0) {
        return Err(Failure::input("--layers: a stage has at least one block"));
    }
    let mut by_class: IndexMap<&str, Vec<BlockId>> = IndexMap::new();
    for item in graph.level(Level::Block) {
        if let Item::Block(block) = item {
            by_class.entry(&graph.block(block).class).or_default().push(block);
        }
    }
    // The model may have as many embeddings as layers; choose the blocks that do most of the work.
    let operators =
        |blocks: &Vec<BlockId>| blocks.iter().map(|&block| graph.block(block).operators.len()).sum::<usize>();
    let repeated = by_class.into_values().filter(|blocks| blocks.len() > 1).max_by_key(operators);
    let Some(repeated) = repeated else {
        return Err(Failure::input("--layers: the model repeats no block")
            .with_hint("--cut-at names the calls that stages begin with"));
    };
    let kind = &graph.block(repeated[0]).kind;
    let sum: u64 = layers.iter().map(|&count| u64::from(count)).sum();
    if sum != repeated.len() as u64 {
        let message = format!("--layers sums to {sum}, the model has {} blocks of {kind}", repeated.len());
        let failure = Failure::input(message);
        return Err(match shared(repeated.len(), layers.len()) {
            Some(near) => failure.with_hint(format!("--layers {near} fits")),
            None => failure.with_hint(format!("at most {} stages have one each", repeated.len())),
        });
    }
    let mut before = 0;
    let ends = layers[..layers.len() - 1].iter().map(|&count| {
        before += count as usize;
        graph.block(repeated[before]).operators.start
    });
    Ok(ends.collect())
}

/// Shares blocks out as evenly as possible; `None` if there are fewer blocks than stages.
fn shared(blocks: usize, stages: usize) -> Option<String> {
    if stages > blocks {
        return None;
    }
    let counts = (0..stages).map(|stage| (stage + 1) * blocks / stages - stage * blocks / stages);
    Some(counts.map(|count| count.to_string()).collect::<Vec<_>>().join(","))
}

/// Explains why no stage can begin at an operator.
pub(super) fn no_boundary(request: &PlanRequest, graph: &ModelGraph, start: u32) -> Failure {
    let kept = graph.blocks.iter().find(|block| {
        let is_kept = request.constraints.keep_together.iter().any(|pattern| is_meant(pattern, block));
        is_kept && block.operators.contains(&start) && block.operators.start < start
    });
    let is_again = |block: &&graph::Block| {
        let own = &block.operators;
        own.contains(&start) && own.start < start
    };
    for own in request.constraints.recompute.iter().filter(|own| own.policy.is_again()) {
        let mut calls = graph.blocks.iter().filter(|block| is_meant(&own.calls, block));
        if let Some(call) = calls.find(is_again) {
            return Failure::input(format!(
                "a stage is to begin inside `{}`, which --recompute {own} recomputes as one unit",
                call.path
            ))
            .with_hint(format!("--cut-at {} cuts before it", call.path));
        }
    }
    let operator = &graph.operators[start as usize];
    let inside = &graph.block(operator.block).path;
    match kept {
        Some(kept) => Failure::input(format!(
            "a stage is to begin inside `{}`, which --keep-together keeps whole",
            kept.path
        ))
        .with_hint(format!("--cut-at {} cuts before it", kept.path)),
        None => Failure::input(format!("no stage can begin at `{}` of `{inside}`", operator.name)),
    }
}

/// Checks a plan against its own constraints: an edit may break them.
///
/// `samples` is the size of its micro-batches, if the model tells it.
pub(super) fn check(
    model: &Sliceable<'_>,
    graph: &ModelGraph,
    plan: &Plan,
    samples: Option<u64>,
) -> Result<(), Failure> {
    let Some(constraints) = &plan.constraints else { return Ok(()) };
    let wrong = |message: String| {
        Err(Failure::input(message).with_hint("change the stages or the plan's `constraints`"))
    };
    if let (Some(allowed), Some(samples)) = (constraints.micro_batch_size, samples) {
        match Sizes::of_constraint(allowed) {
            Err(reason) => return wrong(format!("`micro_batch_size`: {reason}")),
            Ok(sizes) if sizes.has(samples) => {}
            Ok(sizes) => {
                return wrong(format!(
                    "a micro-batch has {samples} samples, which `micro_batch_size: {sizes}` does not allow"
                ));
            }
        }
    }
    for device in plan.stages.iter().flat_map(|stage| &stage.devices) {
        if let Some(pattern) = constraints.leave_out.iter().find(|pattern| matches(pattern, device)) {
            return wrong(format!("a stage is on {device}, which `leave_out: {pattern}` excludes"));
        }
    }
    pins::check_kept(model, graph, plan)?;
    recomputed::check_kept(model, graph, plan)?;
    let begins = plan.stages.iter().skip(1).map(|stage| {
        stage.blocks.iter().filter_map(|block| model.first_operator(block)).min().unwrap_or_default()
    });
    let begins: Vec<u32> = begins.collect();
    for (index, &start) in begins.iter().enumerate() {
        let is_inside = |block: &&graph::Block| {
            let own = &block.operators;
            own.contains(&start) && model.working_before(own.start) < model.working_before(start)
        };
        for pattern in &constraints.keep_together {
            let mut kept =
                graph.blocks.iter().filter(|block| block.parent.is_some() && is_meant(pattern, block));
            if let Some(block) = kept.find(is_inside) {
                return wrong(format!(
                    "stage {} begins inside `{}`, which `keep_together: {pattern}` keeps whole",
                    index + 1,
                    block.path
                ));
            }
        }
    }
    let Some(given) = starts(model, graph, constraints)? else { return Ok(()) };
    if given.len() != begins.len() {
        return wrong(format!(
            "the plan has {} stages, its constraints ask for {}",
            begins.len() + 1,
            given.len() + 1
        ));
    }
    let place = |start: &u32| model.working_before(*start);
    match given.iter().zip(&begins).position(|(given, own)| place(given) != place(own)) {
        None => Ok(()),
        Some(index) => {
            let name = |start: u32| graph.block(graph.operators[start as usize].block).path.clone();
            wrong(format!(
                "stage {} begins in `{}`, the constraints begin it in `{}`",
                index + 1,
                name(begins[index]),
                name(given[index])
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_shared_out_evenly() {
        assert_eq!(shared(32, 4).as_deref(), Some("8,8,8,8"));
        assert_eq!(shared(7, 3).as_deref(), Some("2,2,3"));
        assert_eq!(shared(2, 3), None);
    }
}
