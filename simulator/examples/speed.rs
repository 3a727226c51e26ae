//! How fast is it? Ratios and counts of the simulator's own ways, side by side in one run.
//!
//! `cargo run --release -p model-analyze-simulator --example speed`
#![allow(clippy::print_stdout)]

use std::{
    hint::black_box,
    time::{Duration, Instant},
};

use simulator::{
    Cost, EventGraph, Link, Machine, Sharing, Transfer, Workload, build, clock,
    order::{Program, Regular, Schedule, Shape, make_for_costs},
    simulate,
};

const COST: Cost = Cost { forward: 10, input_gradient: 11, weight_gradient: 7, hop: 1 };

fn main() {
    implicit();
    explicit();
    plan();
}

/// The fastest of a few runs, and what the last one gave.
fn fastest<T>(runs: u32, mut work: impl FnMut() -> T) -> (Duration, T) {
    let mut best = Duration::MAX;
    let mut result = None;
    for _ in 0..runs {
        let start = Instant::now();
        result = Some(black_box(work()));
        best = best.min(start.elapsed());
    }
    (best, result.expect("at least one run"))
}

/// 1,024 devices × 10,000 tasks by arithmetic programs.
fn implicit() {
    let program = Regular::OneForwardOneBackward { ranks: 1024, micro_batches: 5000 };
    let n_tasks: usize = (0..program.n_ranks()).map(|rank| program.len(rank)).sum();
    let (time, result) = fastest(3, || clock(&program, &COST));
    let makespan = result.map(|clock| clock.makespan).unwrap_or_default();
    report("1,024 devices × 10,000 tasks, arithmetic programs", n_tasks, time, makespan);
}

/// The same as a graph of tasks and waits: built, and timed.
fn explicit() {
    let (ranks, micro_batches) = (1024_u32, 5000_u32);
    let program = Regular::OneForwardOneBackward { ranks, micro_batches };
    let n_tasks = 2 * ranks as usize * micro_batches as usize;
    let (built, graph) = fastest(1, || graph(&program));
    report("the same as a graph: building it", n_tasks, built, 0);
    let (timed, ends) = fastest(2, || graph.ends());
    report("the same as a graph: timing it", n_tasks, timed, ends.into_iter().max().unwrap_or(0));
}

/// Turns a program into a graph, in an order in which each task waits only for earlier ones.
fn graph(program: &Regular) -> EventGraph {
    let (n_ranks, m) = (program.n_ranks(), program.n_micro_batches());
    let n_tasks: usize = (0..n_ranks).map(|rank| program.len(rank)).sum();
    let mut graph = EventGraph::with_capacity(n_tasks);
    let mut position = vec![0; n_ranks];
    let mut tail = vec![u32::MAX; n_ranks];
    let mut done = [vec![u32::MAX; n_ranks * m], vec![u32::MAX; n_ranks * m]];
    let mut runnable: Vec<usize> = (0..n_ranks).collect();
    while let Some(rank) = runnable.pop() {
        while position[rank] < program.len(rank) {
            let op = program.op(rank, position[rank]);
            let at = op.stage as usize * m + op.micro_batch as usize;
            let is_forward = op.kind == simulator::order::Kind::Forward;
            let needed = match is_forward {
                true if op.stage == 0 => None,
                true => Some(done[0][at - m]),
                false if op.stage as usize + 1 == n_ranks => Some(done[0][at]),
                false => Some(done[1][at + m]),
            };
            if needed == Some(u32::MAX) {
                break;
            }
            let before = (tail[rank] != u32::MAX).then_some((tail[rank], 0));
            let waits = needed.map(|task| (task, COST.hop as i64)).into_iter().chain(before);
            let task = graph.add(COST.of(op.kind), waits);
            done[usize::from(!is_forward)][at] = task;
            tail[rank] = task;
            position[rank] += 1;
            // Whoever waits for this is a neighbour.
            let peer = if is_forward { rank + 1 } else { rank.wrapping_sub(1) };
            if peer < n_ranks {
                runnable.push(peer);
            }
        }
    }
    graph
}

/// An 8-device plan of 10,000 operations: full simulation, times alone, and again after one stage changed.
fn plan() {
    let shape = Shape { ranks: 8, chunks: 1, micro_batches: 625 };
    let order = make_for_costs(Schedule::OneForwardOneBackward, shape, COST).expect("a legal shape");
    let mut workload = Workload::uniform(8, 8, &COST);
    workload.transfers =
        (1..8).map(|to| Transfer { from: to - 1, to, forward: 1000, backward: 1000 }).collect();
    let link = Link { latency: 3, bandwidth: 1e9 };
    let fair = Machine::uniform(8, link);
    let unlimited = Machine { sharing: Sharing::Unlimited, ..fair.clone() };
    let n = order.n_ops();
    let (exact, _) = fastest(20, || clock(&order, &COST));
    report("8 devices, 10,000 operations: exact clock", n, exact, 0);
    let (times, step) =
        fastest(20, || simulator::step_time(&workload, &order, &unlimited).expect("a plan that runs"));
    report("8 devices, 10,000 operations: graph with transfers", n, times, step);
    let (shared, step) =
        fastest(5, || simulator::step_time(&workload, &order, &fair).expect("a plan that runs"));
    report("8 devices, 10,000 operations: ports shared fairly", n, shared, step);
    let (full, _) = fastest(5, || simulate(&workload, &order, &fair).expect("a plan that runs"));
    report("8 devices, 10,000 operations: with memory and critical path", n, full, 0);
    let mut step = build(&workload, &order, &unlimited).expect("a plan that runs");
    let mut ends = step.graph.ends();
    let mut longer = 0;
    let (again, _) = fastest(20, || {
        longer = 1 - longer;
        let changes = step.stage_changes(3, |op, _| COST.of(op.kind) + longer);
        step.graph.retime(&changes, &mut ends);
    });
    report(
        "8 devices, 10,000 operations: one stage changed",
        n,
        again,
        ends.iter().copied().max().unwrap_or(0),
    );
    println!(
        "one changed stage is {:.1} × faster than from the plan",
        times.as_secs_f64() / again.as_secs_f64()
    );
}

fn report(what: &str, n_tasks: usize, time: Duration, makespan: u64) {
    let each = time.as_nanos() as f64 / n_tasks as f64;
    println!("{what:62} {:>9.3} ms  {each:>6.1} ns a task  (makespan {makespan})", time.as_secs_f64() * 1e3);
}
