//! How fast is it? The simulator's own ways side by side in one run, beside what they must reach; exits with 1 if one
//! does not.
//!
//! `cargo run --release -p model-analyze-simulator --example speed`. Times are the process's own on a processor where
//! the system tells them (Linux), so that a busy machine does not count.
#![allow(clippy::print_stdout)]

use std::{hint::black_box, process::ExitCode, sync::OnceLock, time::Instant};

use simulator::{
    Cost, EventGraph, Link, Machine, Sharing, Transfer, Workload, build, clock,
    order::{Program, Regular, Schedule, Shape, make_for_costs},
    simulate,
};

const COST: Cost = Cost { forward: 10, input_gradient: 11, weight_gradient: 7, hop: 1 };

fn main() -> ExitCode {
    let implicit = implicit();
    let explicit = explicit();
    let (plan, delta) = plan();
    let peak = peak_memory();
    println!();
    let targets = [
        ("1,024 devices × 10,000 tasks, arithmetic programs", implicit, 2.0, "s"),
        ("the same as a graph, built and timed", explicit, 2.0, "s"),
        ("8 devices, 10,000 tasks, ports shared fairly", 1e3 * plan, 2.0, "ms"),
        ("peak memory of all", peak, 1.5, "GB"),
    ];
    let mut is_met = delta >= 5.0;
    for (what, found, most, unit) in targets {
        println!("{what:62} {found:>9.3} {unit}, at most {most} {unit}");
        is_met &= found <= most;
    }
    println!("{:62} {delta:>9.1} ×, at least 5 ×", "one changed stage, against the whole plan again");
    ExitCode::from(u8::from(!is_met))
}

/// Seconds that this process has had a processor; those on the clock where the system does not tell.
fn seconds() -> f64 {
    static START: OnceLock<Instant> = OnceLock::new();
    let clock = START.get_or_init(Instant::now).elapsed().as_secs_f64();
    let spent = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    let nanoseconds = spent.and_then(|text| text.split(' ').next()?.parse::<f64>().ok());
    nanoseconds.map_or(clock, |nanoseconds| nanoseconds / 1e9)
}

/// Most memory that this process has held, in GB; 0 where the system does not tell.
fn peak_memory() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kilobytes = line.and_then(|line| line.trim().trim_end_matches(" kB").trim().parse::<f64>().ok());
    kilobytes.unwrap_or_default() * 1024.0 / 1e9
}

/// Seconds of a run, as the mean of so many of them that the system's clock ticks often; and what the last one gave.
fn mean<T>(mut work: impl FnMut() -> T) -> (f64, T) {
    const ENOUGH: f64 = 0.25;
    let start = seconds();
    let mut n = 0;
    loop {
        let result = black_box(work());
        n += 1;
        let spent = seconds() - start;
        if spent >= ENOUGH {
            return (spent / f64::from(n), result);
        }
    }
}

/// 1,024 devices × 10,000 tasks by arithmetic programs.
fn implicit() -> f64 {
    let program = Regular::OneForwardOneBackward { ranks: 1024, micro_batches: 5000 };
    let n_tasks: usize = (0..program.n_ranks()).map(|rank| program.len(rank)).sum();
    let (time, result) = mean(|| clock(&program, &COST));
    let makespan = result.map(|clock| clock.makespan).unwrap_or_default();
    report("1,024 devices × 10,000 tasks, arithmetic programs", n_tasks, time, makespan);
    time
}

/// The same as a graph of tasks and waits: built, and timed.
fn explicit() -> f64 {
    let (ranks, micro_batches) = (1024_u32, 5000_u32);
    let program = Regular::OneForwardOneBackward { ranks, micro_batches };
    let n_tasks = 2 * ranks as usize * micro_batches as usize;
    let (built, graph) = mean(|| graph(&program));
    report("the same as a graph: building it", n_tasks, built, 0);
    let (timed, ends) = mean(|| graph.ends());
    report("the same as a graph: timing it", n_tasks, timed, ends.into_iter().max().unwrap_or(0));
    built + timed
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
            let needed = if is_forward {
                (op.stage > 0).then(|| done[0][at - m])
            } else if op.stage as usize + 1 == n_ranks {
                Some(done[0][at])
            } else {
                Some(done[1][at + m])
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

/// An 8-device plan of 10,000 tasks, operations and transfers: full simulation, times alone, and again after one stage changed.
///
/// Returns the seconds of its step's time, and how many times as fast a changed stage is.
fn plan() -> (f64, f64) {
    let shape = Shape { ranks: 8, chunks: 1, micro_batches: 333 };
    let order = make_for_costs(Schedule::OneForwardOneBackward, shape, COST).expect("a legal shape");
    // Transfers of a microsecond between passes of some 10 µs; and the same when the passes are a thousandth of that.
    let of = |scale: u64| {
        let cost = Cost {
            forward: scale * COST.forward,
            input_gradient: scale * COST.input_gradient,
            weight_gradient: scale * COST.weight_gradient,
            hop: 0,
        };
        let transfer = |to: usize| Transfer { from: to - 1, to, forward: 1000, backward: 1000 };
        Workload { transfers: (1..8).map(transfer).collect(), ..Workload::uniform(8, 8, &cost) }
    };
    let (workload, crowded) = (of(1000), of(1));
    let link = Link { latency: 3, bandwidth: 1e9 };
    let fair = Machine::uniform(8, link);
    let unlimited = Machine { sharing: Sharing::Unlimited, ..fair.clone() };
    let n = build(&workload, &order, &fair).expect("a plan that runs").labels.len();
    let (exact, _) = mean(|| clock(&order, &COST));
    report("8 devices, 10,000 tasks: exact clock", n, exact, 0);
    let (times, step) =
        mean(|| simulator::step_time(&workload, &order, &unlimited).expect("a plan that runs"));
    report("8 devices, 10,000 tasks: graph with transfers", n, times, step);
    let (shared, step) = mean(|| simulator::step_time(&workload, &order, &fair).expect("a plan that runs"));
    report("8 devices, 10,000 tasks: ports shared fairly", n, shared, step);
    let (jam, step_of_jam) =
        mean(|| simulator::step_time(&crowded, &order, &fair).expect("a plan that runs"));
    report("8 devices, 10,000 tasks: every port crowded all the time", n, jam, step_of_jam);
    let (full, _) = mean(|| simulate(&workload, &order, &fair).expect("a plan that runs"));
    report("8 devices, 10,000 tasks: with memory and critical path", n, full, 0);
    let mut step = build(&workload, &order, &unlimited).expect("a plan that runs");
    let mut ends = step.graph.ends();
    let mut longer = 0;
    let (again, _) = mean(|| {
        longer = 1 - longer;
        let changes = step.stage_changes(3, |op, _| 1000 * COST.of(op.kind) + longer);
        step.graph.retime(&changes, &mut ends);
    });
    report("8 devices, 10,000 tasks: one stage changed", n, again, ends.iter().copied().max().unwrap_or(0));
    (shared, times / again)
}

fn report(what: &str, n_tasks: usize, time: f64, makespan: u64) {
    let each = 1e9 * time / n_tasks as f64;
    println!("{what:62} {:>9.3} ms  {each:>6.1} ns a task  (makespan {makespan})", 1e3 * time);
}
