//! One more device, or a byte more of memory, makes no plan slower, whatever the strategy.

use schema::Bytes;

use crate::{
    MicroBatches, Problem, STRATEGIES, Strategy,
    oracle::random_problems::{Dice, cases, is_skipped, problem},
    plan_auto, plan_with,
};

/// Returns the seconds for each micro-batch of the best plan of a strategy, or of all; none where nothing fits.
fn seconds(problem: &Problem, strategy: Option<Strategy>) -> Option<f64> {
    match strategy {
        Some(strategy) => plan_with(problem, strategy).ok(),
        None => plan_auto(problem).ok().map(|found| found.0),
    }
    .map(|plan| plan.seconds_each())
}

/// Strategies whose plans are compared, all of them together, and what they are called.
///
/// Left out are cuts by a rule, which use all devices that there are, and training without a flush, whose candidates are told
/// apart by the simulator's waiting alone.
fn searched() -> impl Iterator<Item = (Option<Strategy>, &'static str)> {
    let is_asked = |strategy: &Strategy| !strategy.is_rule() && !strategy.is_asynchronous();
    let own = STRATEGIES.into_iter().filter(is_asked);
    std::iter::once((None, "auto")).chain(own.map(|strategy| (Some(strategy), strategy.name())))
}

/// A problem on equal devices; memory is short in some.
fn asked(dice: &mut Dice, n_blocks: usize, n_devices: usize) -> Problem {
    let is_chain = dice.below(3) > 0;
    let mut problem = problem(dice, n_blocks, n_devices, is_chain, true);
    if dice.flip() {
        let memory = 60 + dice.below(400);
        problem.machine.devices.iter_mut().for_each(|device| device.memory = Bytes(memory));
    }
    problem.training.offload = false;
    problem.training.micro_batches = MicroBatches::About(1 + dice.below(12) as u32);
    // As where strategies are asked for by name.
    problem.training.limits.replicated_chunks = true;
    problem
}

/// Compares plans of a problem with those of the same with more of something; notes how many were compared, and the slower ones.
fn compare(
    (less, more): (&Problem, &Problem),
    is_asked: impl Fn(Option<Strategy>) -> bool,
    (case, n_compared, slower): (usize, &mut usize, &mut Vec<String>),
) {
    for (strategy, name) in searched().filter(|(strategy, _)| is_asked(*strategy)) {
        let Some(before) = seconds(less, strategy) else { continue };
        *n_compared += 1;
        let after = seconds(more, strategy).unwrap_or(f64::INFINITY);
        if after > before * (1.0 + 1e-9) {
            let (own, others) = (less.machine.devices.len(), more.machine.devices.len());
            slower.push(format!("case {case}, {name} on {own} and {others} devices: {before}, then {after}"));
        }
    }
}

/// A pipeline has two stages where there are two devices, so who names one may have less of one device alone.
fn is_pipeline(strategy: Option<Strategy>) -> bool {
    !matches!(strategy, None | Some(Strategy::OneDevice))
}

#[test]
fn one_more_device_makes_no_plan_slower() {
    let mut dice = Dice(61);
    let (mut n_compared, mut slower) = (0, Vec::new());
    for case in 0..cases(40) {
        let (n_blocks, n_devices) = (1 + dice.below(9) as usize, 1 + dice.below(8) as usize);
        let less = asked(&mut dice, n_blocks, n_devices);
        if is_skipped(case) {
            continue;
        }
        let more = Problem { machine: less.machine.grown(n_devices + 1), ..less.clone() };
        let is_asked = |strategy| n_devices > 1 || !is_pipeline(strategy);
        compare((&less, &more), is_asked, (case, &mut n_compared, &mut slower));
    }
    assert!(slower.is_empty(), "{} of {n_compared}:\n{}", slower.len(), slower.join("\n"));
    assert!(is_skipped(0) || n_compared > 200, "{n_compared}");
}

#[test]
fn more_memory_makes_no_plan_slower() {
    let mut dice = Dice(63);
    let (mut n_compared, mut slower) = (0, Vec::new());
    for case in 0..cases(40) {
        let (n_blocks, n_devices) = (1 + dice.below(9) as usize, 1 + dice.below(6) as usize);
        let less = asked(&mut dice, n_blocks, n_devices);
        let more_bytes = if dice.flip() { 1 } else { 1 + dice.below(100) };
        if is_skipped(case) {
            continue;
        }
        let mut more = less.clone();
        more.machine.devices.iter_mut().for_each(|device| device.memory.0 += more_bytes);
        // How chunks divide a device's memory is tried in a few shares of it.
        let is_asked = |strategy: Option<Strategy>| strategy.is_none_or(|strategy| !strategy.makes_chunks());
        compare((&less, &more), is_asked, (case, &mut n_compared, &mut slower));
    }
    assert!(slower.is_empty(), "{} of {n_compared}:\n{}", slower.len(), slower.join("\n"));
    assert!(is_skipped(0) || n_compared > 200, "{n_compared}");
}
