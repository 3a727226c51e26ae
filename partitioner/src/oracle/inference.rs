//! Plans for inference against all cuts, all copies and all orders of devices, and against the simulator.

use schema::{Bytes, Cluster, ModelReference, Seconds};
use schema::{Inference, InferenceObjective};
use simulator::{PlanOptions, from_plan, simulate, step_time};

use crate::{
    check_plan,
    cut_space::CutSpace,
    dag::ideals::Ideals,
    oracle::random_problems::{Dice, cases, cluster, problem},
    plan_model,
    problem::{MicroBatches, Problem},
    serving::{in_any_order, stages::given},
    to_plan,
};

fn aim(objective: InferenceObjective) -> Inference {
    Inference { objective, kv_cache: None }
}

/// A problem whose blocks run forward alone; activations are keys and values.
fn forward(dice: &mut Dice, case: usize) -> Problem {
    let (n_blocks, n_devices) = (1 + dice.below(5) as usize, 1 + dice.below(4) as usize);
    let mut problem = problem(dice, n_blocks, n_devices, case.is_multiple_of(3), case.is_multiple_of(2));
    for block in &mut problem.blocks {
        (block.input_gradient, block.weight_gradient) = (Seconds(0.0), Seconds(0.0));
        block.forward.0 += 0.5;
        block.kept = block.activations;
    }
    problem.values.iter_mut().for_each(|value| value.backward = Bytes(0));
    problem.training.host_overhead = Seconds(0.0);
    // Devices that are alike stay so.
    let (is_uniform, all) = (problem.machine.is_uniform(), 40 + dice.below(250));
    for device in &mut problem.machine.devices {
        device.memory = Bytes(if is_uniform { all } else { 40 + dice.below(250) });
    }
    if dice.flip() {
        problem.training.micro_batches = MicroBatches::Exactly(1 + dice.below(8) as u32);
    }
    problem
}

/// Returns all chains of ideals from the empty set to all blocks.
fn chains(problem: &Problem, stages: usize) -> Vec<Vec<Vec<usize>>> {
    let mut inputs = vec![Vec::new(); problem.blocks.len()];
    for value in &problem.values {
        value.to.iter().for_each(|&to| inputs[to].extend(value.from));
    }
    let ideals = Ideals::enumerate(&inputs, 10_000).unwrap();
    let all: Vec<Vec<usize>> = (0..ideals.len()).map(|ideal| ideals.nodes(ideal).collect()).collect();
    let mut found: Vec<Vec<Vec<usize>>> = vec![vec![Vec::new()]];
    for _ in 0..stages {
        let longer = found.iter().flat_map(|chain| {
            let last = &chain[chain.len() - 1];
            let is_more = move |set: &&Vec<usize>| {
                set.len() > last.len() && last.iter().all(|block| set.contains(block))
            };
            all.iter().filter(is_more).map(|set| [chain.clone(), vec![set.clone()]].concat())
        });
        found = longer.collect();
    }
    found.retain(|chain| chain[stages].len() == problem.blocks.len());
    found
}

/// What crosses behind a set.
fn crossing(problem: &Problem, set: &[usize]) -> f64 {
    let crosses = |value: &&crate::Value| {
        value.from.is_some_and(|from| set.contains(&from)) && value.to.iter().any(|to| !set.contains(to))
    };
    problem.values.iter().filter(crosses).map(|value| value.forward.0 as f64).sum()
}

/// Seconds of the work between two sets, and whether they fit a device with so many micro-batches in flight.
fn stage(problem: &Problem, before: &[usize], after: &[usize], in_flight: f64) -> (f64, f64) {
    let own: Vec<usize> = after.iter().copied().filter(|block| !before.contains(block)).collect();
    let sum = |field: &dyn Fn(&crate::Block) -> f64| -> f64 {
        own.iter().map(|&block| field(&problem.blocks[block])).sum()
    };
    let ties = problem.ties.iter().filter(|tie| tie.blocks.iter().any(|block| own.contains(block)));
    let ties: f64 = ties.map(|tie| tie.parameters.0 as f64).sum();
    let workspace = own.iter().map(|&block| problem.blocks[block].workspace.0).max().unwrap() as f64;
    let caches = sum(&|block| block.activations.0 as f64);
    let waiting = (caches + crossing(problem, before)) * in_flight;
    let memory = sum(&|block| block.parameters.0 as f64) + ties;
    let wires = problem.machine.levels.iter().map(|level| level.latency.0 * level.bandwidth.0);
    let out = crossing(problem, after);
    let sent = (2.0 * out + wires.fold(0.0, f64::max)).min(out * in_flight);
    (sum(&|block| block.forward.0), memory + waiting + workspace + sent)
}

fn orders(n_devices: usize) -> Vec<Vec<usize>> {
    let mut all = vec![Vec::new()];
    for _ in 0..n_devices {
        all = all
            .into_iter()
            .flat_map(|order: Vec<usize>| {
                let free = (0..n_devices).filter(|device| !order.contains(device)).collect::<Vec<_>>();
                free.into_iter().map(move |device| [order.clone(), vec![device]].concat())
            })
            .collect();
    }
    all
}

fn least_latency(problem: &Problem) -> f64 {
    let devices = &problem.machine.devices;
    let mut least = f64::INFINITY;
    for stages in 1..=devices.len().min(problem.blocks.len()) {
        for (chain, order) in chains(problem, stages)
            .iter()
            .flat_map(|chain| orders(devices.len()).into_iter().map(move |order| (chain, order)))
        {
            let mut seconds = 0.0;
            for (index, pair) in chain.windows(2).enumerate() {
                let device = &devices[order[index]];
                let (work, memory) = stage(problem, &pair[0], &pair[1], 1.0);
                let hops = index > 0;
                let way = hops.then(|| problem.machine.level(order[index - 1], order[index])).flatten();
                let bytes = crossing(problem, &pair[0]);
                let way = way.map_or(0.0, |level| level.latency.0 + bytes / level.bandwidth.0);
                let fits = memory <= device.memory.0 as f64;
                seconds += if fits { work / device.speed + way } else { f64::INFINITY };
            }
            least = least.min(seconds);
        }
    }
    least
}

/// The same for several copies on equal devices.
fn least_period(problem: &Problem) -> f64 {
    let n_devices = problem.machine.devices.len();
    let (memory, rate) =
        (problem.machine.devices[0].memory.0 as f64, 1.0 / problem.machine.levels[0].bandwidth.0);
    let mut least = f64::INFINITY;
    for stages in 1..=n_devices.min(problem.blocks.len()) {
        for copies in 1..=n_devices / stages {
            let in_flight = given(problem).map_or(stages, |count| count.div_ceil(copies));
            if given(problem).is_some_and(|count| count < stages * copies) {
                continue;
            }
            for chain in chains(problem, stages) {
                let one = |pair: &[Vec<usize>]| {
                    let (work, needed) = stage(problem, &pair[0], &pair[1], in_flight as f64);
                    let (into, out) = (crossing(problem, &pair[0]), crossing(problem, &pair[1]));
                    let seconds = if problem.machine.overlaps {
                        work.max(into * rate).max(out * rate)
                    } else {
                        work + out * rate
                    };
                    if needed <= memory { seconds / copies as f64 } else { f64::INFINITY }
                };
                least = least.min(chain.windows(2).map(one).fold(0.0, f64::max));
            }
        }
    }
    least
}

fn planned(problem: &Problem, objective: InferenceObjective) -> f64 {
    let mut asked = problem.clone();
    asked.training.inference = Some(aim(objective));
    plan_model(&mut asked, None, None).map_or(f64::INFINITY, |found| {
        assert!(found.best.lower_bound <= found.best.seconds());
        found.best.seconds()
    })
}

fn assert_near(found: f64, expected: f64, case: usize) {
    let is_near = found == expected || (found - expected).abs() <= 1e-9 * expected;
    assert!(is_near, "case {case}: {found} is not {expected}");
}

#[test]
fn the_least_latency_is_that_of_all_cuts_on_all_orders_of_devices() {
    let mut dice = Dice(35);
    for case in 0..cases(400) {
        let mut problem = forward(&mut dice, case);
        problem.training.micro_batches = MicroBatches::Enough;
        assert_near(planned(&problem, InferenceObjective::Latency), least_latency(&problem), case);
    }
}

#[test]
fn the_highest_throughput_is_that_of_all_cuts_and_copies() {
    let mut dice = Dice(36);
    for case in 0..cases(600) {
        let problem = forward(&mut dice, 2 * case);
        assert!(problem.machine.is_uniform());
        let found = planned(&problem, InferenceObjective::Throughput);
        assert_near(found, least_period(&problem), case);
    }
}

#[test]
fn the_simulator_finds_the_same_times_and_no_more_memory() {
    let mut dice = Dice(37);
    for case in 0..cases(400) {
        let mut problem = forward(&mut dice, case);
        let objective =
            if dice.flip() { InferenceObjective::Latency } else { InferenceObjective::Throughput };
        if objective == InferenceObjective::Latency {
            problem.training.micro_batches = MicroBatches::Enough;
        }
        problem.training.inference = Some(aim(objective));
        let cut_space = CutSpace::of(&problem);
        let Ok(found) = in_any_order(&problem, &cut_space, aim(objective)) else { continue };
        let cluster: Cluster = cluster(&problem.machine);
        let model = ModelReference { name: String::new(), digest: String::new() };
        let plan = to_plan(&problem, &found, &cluster, model, "");
        let step = from_plan(&plan, &PlanOptions::default()).unwrap();
        let seconds = |micro_batches: u32| {
            let order = step.order_for(micro_batches).unwrap();
            step_time(&step.workload, &order, &step.machine).unwrap() as f64 * 1e-9
        };
        match objective {
            InferenceObjective::Latency => {
                let whole = step_time(&step.workload, &step.order, &step.machine).unwrap();
                assert!((whole as f64 * 1e-9 - found.seconds()).abs() <= 1e-6, "case {case}");
            }
            InferenceObjective::Throughput => {
                let copies = found.stages[0].run.count as u32;
                let long = (seconds(40 * copies) - seconds(20 * copies)) / f64::from(20 * copies);
                let is_near = (long - found.seconds()).abs() <= 1e-6 * found.seconds();
                assert!(is_near, "case {case}: {long} is not {}", found.seconds());
            }
        }
        let timeline = simulate(&step.workload, &step.order, &step.machine).unwrap();
        for stage in &found.stages {
            for device in found.devices(stage) {
                let peak = timeline.memory[device].peak as f64;
                assert!(peak <= stage.score.memory + 1.0, "case {case}: {peak} of {}", stage.score.memory);
            }
        }
        // What is written is scored as it was planned.
        let checked = check_plan(&problem, &plan).unwrap();
        assert_near(checked.seconds(), found.seconds(), case);
    }
}
