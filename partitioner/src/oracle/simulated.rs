//! What is planned is what is simulated: tests over random models and machines, every strategy.

use schema::{Execution, Plan, ShardingLevel};
use simulator::{PlanOptions, from_plan, simulate};

use crate::{
    Objective, Problem, STRATEGIES, Solution, Strategy, check_plan,
    oracle::random_problems::{Dice, cases, cluster, is_skipped, problem},
    plan_auto,
    plan_file::write::to_plan,
    plan_with,
    simulate::planned,
};

/// Random problems with recompute, offload, ties, skips, replicas, several levels and devices that differ.
fn solutions(seed: u64, n_cases: usize, mut visit: impl FnMut(&str, &Problem, &Solution)) -> usize {
    let mut dice = Dice(seed);
    let mut n_solutions = 0;
    for case in 0..n_cases {
        let (n_blocks, n_devices) = (1 + dice.below(7) as usize, 1 + dice.below(5) as usize);
        let (is_chain, is_uniform) = (dice.flip(), dice.below(3) == 0);
        let mut problem = problem(&mut dice, n_blocks, n_devices, is_chain, is_uniform);
        // The optimizer's step would hide the passes: problems have few bytes.
        problem.machine.devices.iter_mut().for_each(|device| device.memory.0 = 100 + dice.below(400));
        problem.training.offload = dice.flip();
        problem.machine.overlaps = dice.below(3) > 0;
        if case % 3 == 0 {
            problem.blocks.iter_mut().for_each(|block| block.once.0 = dice.below(8) as f64 / 4.0);
        }
        if is_skipped(case) {
            continue;
        }
        for strategy in STRATEGIES {
            let Ok(solution) = plan_with(&problem, strategy) else { continue };
            n_solutions += 1;
            visit(&format!("case {case}, {}", strategy.name()), &problem, &solution);
        }
    }
    n_solutions
}

/// A plan keeps given cuts, and does not beat the bound for all cuts into as many stages.
#[test]
fn given_cuts_are_kept() {
    let mut dice = Dice(41);
    let (mut n_given, mut slower) = (0, 0);
    for case in 0..cases(300) {
        let (n_blocks, n_devices) = (2 + dice.below(6) as usize, 2 + dice.below(4) as usize);
        let (is_chain, is_uniform) = (dice.flip(), dice.flip());
        let mut free = problem(&mut dice, n_blocks, n_devices, is_chain, is_uniform);
        let begins: Vec<usize> = (1..n_blocks).filter(|_| dice.below(3) == 0).take(n_devices - 1).collect();
        if is_skipped(case) {
            continue;
        }
        free.training.stages = Some(begins.len() as u32 + 1);
        let given = Problem { begins: Some(begins.clone()), ..free.clone() };
        for strategy in STRATEGIES {
            let Ok(kept) = plan_with(&given, strategy) else { continue };
            let name = format!("case {case}, {}", strategy.name());
            let ends = begins.iter().copied().chain([n_blocks]);
            let blocks = std::iter::once(0).chain(begins.iter().copied()).zip(ends);
            let expected: Vec<Vec<usize>> = blocks.map(|(start, end)| (start..end).collect()).collect();
            let own: Vec<Vec<usize>> = kept.stages.iter().map(|stage| stage.blocks.clone()).collect();
            assert_eq!(own, expected, "{name}");
            let best = plan_with(&free, strategy).unwrap_or_else(|error| panic!("{name}: {error}"));
            let bound = best.lower_bound / f64::from(best.micro_batches);
            assert!(kept.seconds_each() >= bound * (1.0 - 1e-9), "{name}: {} {bound}", kept.seconds_each());
            n_given += 1;
            slower += usize::from(kept.seconds_each() > best.seconds_each() * (1.0 + 1e-9));
        }
    }
    assert!(n_given > 200 && slower > n_given / 4, "{n_given} plans with given cuts, {slower} slower");
}

#[test]
fn objectives_are_what_the_simulator_says() {
    let (mut offloaded, mut again, mut replicated, mut tied, mut short) = (0, 0, 0, 0, 0);
    let n = solutions(7, cases(50), |name, problem, solution| {
        let model = schema::ModelReference { name: String::new(), digest: String::new() };
        let plan = to_plan(problem, solution, &cluster(&problem.machine), model, "");
        let Ok(step) = from_plan(&plan, &PlanOptions::default()) else {
            // A stage without work is not simulated.
            assert!(solution.stages.iter().any(|stage| stage.score.compute == 0.0), "{name}");
            assert!(planned(problem, solution).is_none(), "{name}");
            return;
        };
        // Searches simulate exactly the plan that the file describes.
        let own = planned(problem, solution).unwrap_or_else(|| panic!("{name}: the file is simulated"));
        assert_eq!((&own.workload, &own.machine), (&step.workload, &step.machine), "{name}");
        assert_eq!((&own.order, &own.kept), (&step.order, &step.kept), "{name}");
        let timeline = simulate(&step.workload, &step.order, &step.machine).unwrap();
        let (ours, theirs) = match solution.objective {
            Objective::Step(seconds) => (seconds, timeline.step as f64 * 1e-9),
            Objective::Period(seconds) => {
                (seconds, step.period().unwrap() as f64 * 1e-9 / f64::from(solution.micro_batches))
            }
        };
        assert!((ours - theirs).abs() <= 0.01 * theirs, "{name}: planned {ours}, simulated {theirs}");
        assert!(solution.lower_bound <= theirs * (1.0 + 1e-6), "{name}: {} {theirs}", solution.lower_bound);
        // A stage's own passes never exceed the step.
        for stage in &solution.stages {
            let least = match solution.objective {
                Objective::Period(_) => stage.score.seconds,
                Objective::Step(_) => stage.score.compute * f64::from(solution.micro_batches),
            };
            assert!(least <= theirs * (1.0 + 1e-6), "{name}: a stage takes {least} of {theirs}");
        }
        // A stage's memory in the plan is the simulated peak of its fullest replica.
        let mut peaks = vec![0; plan.predicted.memory.len()];
        for stage in &solution.stages {
            let devices: Vec<usize> = solution.devices(stage).collect();
            let most = devices.iter().map(|&device| timeline.memory[device].peak).max().unwrap();
            devices.iter().for_each(|&device| peaks[device] = most.max(peaks[device]));
        }
        for (said, peak) in plan.predicted.memory.iter().zip(&peaks) {
            assert_eq!(said.peak.0, *peak, "{name}: {}", said.device);
        }
        let is_short = timeline.memory.iter().any(|memory| memory.exceeded.is_some());
        short += usize::from(is_short);
        offloaded += usize::from(solution.offloads());
        again += usize::from(solution.stages.iter().any(|stage| !stage.score.recompute.is_empty()));
        replicated += usize::from(solution.stages.iter().any(|stage| stage.run.count > 1));
        tied += usize::from(!plan.ties.is_empty());
    });
    assert_eq!(short, 0, "of {n} plans run out of memory in the simulation");
    assert!(
        is_skipped(0) || n > 150 && offloaded > 3 && again > 6 && replicated > 15 && tied > 6,
        "{n} {offloaded} {again} {replicated} {tied}"
    );
}

#[test]
fn a_plan_checked_is_the_plan_that_was_made() {
    let mut n_checked = 0;
    solutions(8, cases(30), |name, problem, solution| {
        if planned(problem, solution).is_none() {
            return;
        }
        let model = schema::ModelReference { name: String::new(), digest: String::new() };
        let plan = to_plan(problem, solution, &cluster(&problem.machine), model, "");
        let checked = check_plan(problem, &plan).unwrap_or_else(|error| panic!("{name}: {error}"));
        let (a, b) = (solution.seconds(), checked.seconds());
        assert!((a - b).abs() <= 1e-6 * a, "{name}: made {a}, checked {b}");
        for (made, checked) in solution.stages.iter().zip(&checked.stages) {
            assert_eq!(made.score.recompute, checked.score.recompute, "{name}");
            assert_eq!(made.score.offload, checked.score.offload, "{name}");
        }
        n_checked += 1;
    });
    assert!(is_skipped(0) || n_checked > 80, "{n_checked}");
}

/// Plans that somebody edits: weight versions and gradient sync count as they do in the simulator.
#[test]
fn edited_plans_are_scored_as_they_are_simulated() {
    let mut dice = Dice(12);
    let (mut n_checked, mut fewer, mut more, mut sharded) = (0, 0, 0, 0);
    for case in 0..cases(60) {
        let (n_blocks, n_devices) = (1 + dice.below(7) as usize, 2 + dice.below(4) as usize);
        let (is_chain, is_uniform) = (dice.flip(), dice.flip());
        let mut problem = problem(&mut dice, n_blocks, n_devices, is_chain, is_uniform);
        problem.machine.devices.iter_mut().for_each(|device| device.memory.0 = 1 << 30);
        if is_skipped(case) {
            continue;
        }
        let Ok(solution) = plan_with(&problem, Strategy::PipeDream) else { continue };
        let model = schema::ModelReference { name: String::new(), digest: String::new() };
        let made = to_plan(&problem, &solution, &cluster(&problem.machine), model, "");
        let mut check = |schedule: &str, execution: Execution| {
            let plan = Plan { schedule: schedule.to_string(), execution: Some(execution), ..made.clone() };
            let step = from_plan(&plan, &PlanOptions::default()).ok()?;
            let timeline = simulate(&step.workload, &step.order, &step.machine).unwrap();
            let checked = check_plan(&problem, &plan).unwrap();
            let name = format!("case {case}, {schedule}, {execution:?}");
            let theirs = step.period().unwrap() as f64 * 1e-9 / f64::from(plan.micro_batches);
            let ours = checked.seconds();
            assert!((ours - theirs).abs() <= 0.01 * theirs, "{name}: checked {ours}, simulated {theirs}");
            for (stage, planned) in checked.stages.iter().zip(&plan.stages) {
                let devices: Vec<usize> = checked.devices(stage).collect();
                let names: Vec<&str> =
                    devices.iter().map(|&d| plan.cluster.devices[d].name.as_str()).collect();
                assert_eq!(names, planned.devices, "{name}");
                let peak = devices.iter().map(|&device| timeline.memory[device].peak).max().unwrap() as f64;
                assert!((stage.score.memory - peak).abs() < 1.0, "{name}: {} {peak}", stage.score.memory);
                assert!(stage.score.seconds <= theirs * (1.0 + 1e-6), "{name}: {:?} {theirs}", stage.score);
            }
            n_checked += 1;
            let versions = step.kept.iter().map(|kept| kept.versions).collect::<Vec<u32>>();
            let memory = checked.stages.iter().map(|stage| stage.score.memory).collect::<Vec<f64>>();
            Some((versions, memory))
        };
        let plain = made.execution.unwrap_or_default();
        let Some((stashed, memory)) = check("pipedream", plain) else { continue };
        let vertical = Execution { vertical_sync: Some(true), ..plain };
        let others = [check("pipedream", vertical), check("pipedream-2bw", plain)];
        for (versions, other) in others.into_iter().flatten() {
            for index in 0..made.stages.len() {
                let count = i64::from(versions[index]) - i64::from(stashed[index]);
                fewer += usize::from(count < 0 && other[index] < memory[index]);
                more += usize::from(count > 0 && other[index] > memory[index]);
            }
        }
        let zero = Execution { sharding: Some(ShardingLevel::Zero1), ..plain };
        if let Some((_, other)) = check("pipedream", zero) {
            sharded += other.iter().zip(&memory).filter(|(other, own)| **other < 0.9 * **own).count();
        }
    }
    let is_varied = n_checked > 100 && fewer > 5 && more > 5 && sharded > 5;
    assert!(is_skipped(0) || is_varied, "{n_checked} {fewer} {more} {sharded}");
}

#[test]
fn the_best_of_all_is_never_worse_than_cuts_by_a_rule() {
    let mut dice = Dice(9);
    let mut n_compared = 0;
    for case in 0..cases(30) {
        let (n_blocks, n_devices) = (1 + dice.below(8) as usize, 1 + dice.below(5) as usize);
        let (is_chain, is_uniform) = (dice.flip(), dice.flip());
        let mut problem = problem(&mut dice, n_blocks, n_devices, is_chain, is_uniform);
        problem.training.offload = dice.below(4) == 0;
        problem.machine.overlaps = dice.below(4) > 0;
        if is_skipped(case) {
            continue;
        }
        let rules: Vec<Solution> = STRATEGIES
            .into_iter()
            .filter(|strategy| strategy.is_rule())
            .filter_map(|strategy| plan_with(&problem, strategy).ok())
            .collect();
        let Ok((best, others, _)) = plan_auto(&problem) else {
            assert!(rules.is_empty(), "case {case}: a rule finds a plan where the planner finds none");
            continue;
        };
        assert!(best.lower_bound <= best.seconds(), "case {case}");
        for other in rules.iter().chain(&others) {
            let (ours, theirs) = (best.seconds_each(), other.seconds_each());
            assert!(ours <= theirs * (1.0 + 1e-9), "case {case}: {ours} {}: {theirs}", other.made_by.name());
            n_compared += 1;
        }
    }
    assert!(is_skipped(0) || n_compared > 60, "{n_compared}");
}
