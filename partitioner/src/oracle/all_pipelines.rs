//! The oracle of tests: every chain of ideals and every way to share the devices, on problems small enough.

use simulator::order::InFlight;

use crate::{
    Problem, Strategy,
    dag::cut_states::States,
    oracle::random_problems::{Dice, cases, is_skipped, problem},
    pipeline::{
        best::{Sharing, best_pipeline},
        long_chain::{best_chain, can_walk},
    },
    plan_with,
    stage::{place::Neighbours, run::Run, score::Rules, scorer::Scorer},
};

/// The fastest slowest stage over all chains that begin at `start` with the last `left` devices.
fn fastest(scorer: &Scorer, start: usize, left: usize) -> f64 {
    let last = scorer.states.len() - 1;
    if start == last {
        return if left == 0 { 0.0 } else { f64::INFINITY };
    }
    let n_devices = scorer.problem.machine.devices.len();
    let mut best = f64::INFINITY;
    for end in start + 1..=last {
        if !scorer.states.is_before(start, end) {
            continue;
        }
        for count in 1..=left {
            let run = Run { first: n_devices - left, count, stride: 1 };
            // A score and its quick form must agree.
            let costs = scorer.on(run, left);
            let quick = costs.below(start, end, f64::INFINITY);
            let scored = costs.score(start, end).map_or(f64::INFINITY, |score| score.seconds);
            assert!(quick == scored || (quick - scored).abs() < 1e-9 * scored, "{quick} is not {scored}");
            best = best.min(quick.max(fastest(scorer, end, left - count)));
        }
    }
    best
}

fn near(a: f64, b: f64) -> bool {
    a == b || (a - b).abs() <= 1e-9 * a.abs().max(b.abs())
}

#[test]
fn pipelines_over_ideals_equal_trying_everything() {
    let mut dice = Dice(1);
    for case in 0..cases(3000) {
        let (n_blocks, n_devices) = (1 + dice.below(6) as usize, 1 + dice.below(4) as usize);
        let problem = problem(&mut dice, n_blocks, n_devices, case % 3 == 0, case % 2 == 0);
        let rules = match dice.below(3) {
            0 => Rules {
                is_asynchronous: true,
                in_flight: InFlight::UntilEnd(u32::MAX),
                neighbours: Neighbours::Adjacent,
            },
            1 => Rules {
                is_asynchronous: false,
                in_flight: InFlight::All(4),
                neighbours: Neighbours::Adjacent,
            },
            _ => Rules {
                is_asynchronous: false,
                in_flight: InFlight::UntilEnd(3),
                neighbours: Neighbours::Adjacent,
            },
        };
        if is_skipped(case) {
            continue;
        }
        let states = States::ideals(&problem, 1000).unwrap();
        let scorer = Scorer::new(&problem, &states, rules);
        let brute = (1..=n_devices).map(|left| fastest(&scorer, 0, left)).fold(f64::INFINITY, f64::min);
        let found = best_pipeline(&scorer, Sharing::Free, f64::INFINITY);
        let ours = found.as_ref().map_or(f64::INFINITY, |found| found.0);
        assert!(near(ours, brute), "case {case}: {ours} is not {brute}");
        if let Some((_, cuts)) = found {
            let mut blocks: Vec<usize> =
                cuts.iter().flat_map(|cut| states.blocks(cut.start, cut.end)).collect();
            blocks.sort_unstable();
            assert_eq!(blocks, (0..n_blocks).collect::<Vec<_>>(), "every block is in one stage");
        }
    }
}

#[test]
fn walking_a_chain_equals_the_table() {
    let mut dice = Dice(2);
    for case in 0..cases(1000) {
        let (n_blocks, n_devices) = (2 + dice.below(20) as usize, 1 + dice.below(20) as usize);
        let mut problem = problem(&mut dice, n_blocks, n_devices, true, true);
        // From links that nothing can be replicated over to those over which everything can.
        let scale = [0.02, 0.2, 1.0, 20.0][dice.below(4) as usize];
        problem.machine.levels.iter_mut().for_each(|level| level.bandwidth.0 *= scale);
        if is_skipped(case) {
            continue;
        }
        let states = States::line(&problem, (0..n_blocks).collect());
        for is_asynchronous in [true, false] {
            let rules = Rules {
                is_asynchronous,
                in_flight: InFlight::UntilEnd(u32::MAX),
                neighbours: Neighbours::Adjacent,
            };
            let scorer = Scorer::new(&problem, &states, rules);
            assert!(can_walk(&scorer));
            let walked = best_chain(&scorer).unwrap().0;
            let table = best_pipeline(&scorer, Sharing::Free, f64::INFINITY).unwrap().0;
            assert!(near(walked, table), "case {case}: {walked} is not {table}");
        }
    }
}

#[test]
fn more_bandwidth_or_memory_is_never_worse() {
    let mut dice = Dice(3);
    for case in 0..cases(200) {
        let (n_blocks, n_devices) = (2 + dice.below(5) as usize, 1 + dice.below(4) as usize);
        let is_chain = dice.flip();
        let problem = problem(&mut dice, n_blocks, n_devices, is_chain, false);
        if is_skipped(case) {
            continue;
        }
        // By formula: an order of operations can lose by gaining, as Graham showed, and the simulator times orders.
        let time = |problem: &Problem| {
            let states = States::ideals(problem, 1000).unwrap();
            let in_flight = InFlight::UntilEnd(u32::MAX);
            let rules = Rules { is_asynchronous: true, in_flight, neighbours: Neighbours::Adjacent };
            let scorer = Scorer::new(problem, &states, rules);
            best_pipeline(&scorer, Sharing::Free, f64::INFINITY).map_or(f64::INFINITY, |found| found.0)
        };
        let before = time(&problem);
        let mut faster = problem.clone();
        faster.machine.levels.iter_mut().for_each(|level| level.bandwidth.0 *= 2.0);
        let mut roomier = problem.clone();
        roomier.machine.devices.iter_mut().for_each(|device| device.memory.0 *= 2);
        assert!(time(&faster) <= before * (1.0 + 1e-9) && time(&roomier) <= before * (1.0 + 1e-9));
        if let Ok(plan) = plan_with(&problem, Strategy::PipeDream) {
            assert!(plan.lower_bound <= plan.seconds());
            assert!(plan.stages.iter().all(|stage| stage.score.memory <= stage.score.limit));
        }
    }
}

#[test]
fn every_strategy_keeps_its_promises() {
    let mut dice = Dice(4);
    for case in 0..cases(50) {
        let (n_blocks, n_devices) = (2 + dice.below(7) as usize, 1 + dice.below(4) as usize);
        let (is_chain, is_uniform) = (dice.flip(), dice.flip());
        let problem = problem(&mut dice, n_blocks, n_devices, is_chain, is_uniform);
        if is_skipped(case) {
            continue;
        }
        for strategy in crate::STRATEGIES {
            let Ok(plan) = plan_with(&problem, strategy) else { continue };
            let mut stage_of = vec![usize::MAX; n_blocks];
            for (index, stage) in plan.stages.iter().enumerate() {
                for &block in &stage.blocks {
                    assert_eq!(std::mem::replace(&mut stage_of[block], index), usize::MAX);
                }
            }
            assert!(stage_of.iter().all(|&stage| stage != usize::MAX), "{strategy:?}");
            for value in &problem.values {
                for &to in &value.to {
                    assert!(value.from.is_none_or(|from| stage_of[from] <= stage_of[to]), "{strategy:?}");
                }
            }
            assert!(plan.lower_bound <= plan.seconds() * (1.0 + 1e-12), "{strategy:?}");
            assert!(plan.stages.iter().all(|stage| stage.score.memory <= stage.score.limit), "{strategy:?}");
        }
    }
}
