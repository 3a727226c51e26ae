//! Every plan that a user could write by hand, scored as `plan --check` scores it: what strategies claim, against all of them.
//!
//! All chains of ideals, all ways to give devices to stages, all replicas and chunks, all blocks recomputed or offloaded. A plan
//! said to be optimal is as fast as the fastest of them; none is faster than the bound; and none fits if a strategy says so.

use schema::{
    Bytes, BytesPerSecond, Execution, OffloadMode, RecomputePolicy, RecomputeUnit, Seconds, ShardingLevel,
};
use simulator::order::{OrderError, Schedule, Shape};

use crate::{
    MachineLevel, MicroBatches, Pin, PinnedTo, PlanError, Problem, Solution, Strategy,
    grid::stage_times::shared_out,
    oracle::random_problems::{Dice, cases, is_skipped, problem},
    plan_auto,
    plan_file::{placed::GivenStage, score::score_placed},
    plan_model, plan_with,
    stage::run::{of_rank, rank_of},
    strategy::candidates,
};

/// How the stages of a plan share the devices.
struct Form {
    schedule: Schedule,
    /// Devices of each rank, and ranks taken in turns by so many chunks.
    replicas: Vec<usize>,
    chunks: usize,
}

/// All forms of a strategy.
fn forms(problem: &Problem, strategy: Strategy) -> Vec<Form> {
    let (n_blocks, n_devices) = (problem.blocks.len(), problem.machine.devices.len());
    let mut forms = Vec::new();
    let mut add = |schedule, replicas, chunks| forms.push(Form { schedule, replicas, chunks });
    // One stage in a row is a pipeline only where there cannot be two.
    let wanted = problem.training.stages.map(|stages| stages as usize);
    let ranks = |most: usize| match wanted {
        Some(stages) => stages..=stages.min(most),
        None => 2.min(most).max(1)..=most,
    };
    let schedule = strategy.row().schedule.unwrap_or(Schedule::OneForwardOneBackward);
    match strategy {
        Strategy::OneDevice | Strategy::DataParallel if wanted.is_some_and(|stages| stages > 1) => {}
        Strategy::OneDevice => add(schedule, vec![1], 1),
        Strategy::DataParallel => {
            (2.min(n_devices)..=n_devices).for_each(|count| add(schedule, vec![count], 1));
        }
        Strategy::Hybrid => {
            for n_ranks in (2..=n_blocks).filter(|&ranks| wanted.is_none_or(|stages| ranks == stages)) {
                (2..=n_devices / n_ranks).for_each(|count| add(schedule, vec![count; n_ranks], 1));
            }
        }
        _ if strategy.makes_chunks() => {
            for chunks in 2..=schedule.fixed_chunks().map_or(8, |chunks| chunks as usize) {
                let ranks = ranks(n_devices.min(n_blocks / chunks)).filter(|&n| n > 1);
                let most = |n: usize| {
                    if problem.training.limits.replicated_chunks || wanted.is_some() || schedule.is_in_v() {
                        n_devices / n
                    } else {
                        1
                    }
                };
                ranks.for_each(|n| (1..=most(n)).for_each(|count| add(schedule, vec![count; n], chunks)));
            }
        }
        // The strategy chooses the number of stages itself.
        Strategy::PipeDream if wanted.is_some() => {}
        Strategy::PipeDream => {
            // All lists of counts.
            let mut open = vec![Vec::new()];
            while let Some(list) = open.pop() {
                let left = n_devices - list.iter().sum::<usize>();
                for count in 1..=left {
                    let longer = [list.as_slice(), &[count]].concat();
                    if longer.len() <= n_blocks {
                        open.push(longer.clone());
                        add(schedule, longer, 1);
                    }
                }
            }
        }
        _ => ranks(n_devices.min(n_blocks)).for_each(|n| {
            // One stage of replicas is data parallelism.
            let most = if strategy.row().has_replicas && n > 1 { n_devices / n } else { 1 };
            (1..=most).for_each(|count| add(schedule, vec![count; n], 1));
        }),
    }
    forms
}

/// Returns all cuts of the blocks into `n_parts` parts in topological order.
pub(crate) fn chains(problem: &Problem, n_parts: usize) -> Vec<Vec<Vec<usize>>> {
    let n_blocks = problem.blocks.len();
    let mut needs = vec![0_u32; n_blocks];
    for value in &problem.values {
        value.to.iter().for_each(|&to| needs[to] |= value.from.map_or(0, |from| 1 << from));
    }
    let all = (1_u32 << n_blocks) - 1;
    let is_ideal = |set: u32| (0..n_blocks).all(|block| set >> block & 1 == 0 || needs[block] & !set == 0);
    let ideals: Vec<u32> = (0..=all).filter(|&set| is_ideal(set)).collect();
    let mut open = vec![(0_u32, Vec::new())];
    for part in 1..=n_parts {
        let mut longer = Vec::new();
        for (before, parts) in open {
            for &set in ideals.iter().filter(|&&set| set != before && set & before == before) {
                if part < n_parts || set == all {
                    let own = (0..n_blocks).filter(|block| (set & !before) >> block & 1 == 1).collect();
                    longer.push((set, [parts.as_slice(), &[own]].concat()));
                }
            }
        }
        open = longer;
    }
    open.into_iter().map(|(_, parts)| parts).collect()
}

/// All ordered choices of so many devices; the first ones where all are alike.
fn assignments(problem: &Problem, count: usize) -> Vec<Vec<usize>> {
    let n_devices = problem.machine.devices.len();
    let mut lists = vec![Vec::new()];
    for position in 0..count {
        let is_uniform = problem.machine.is_uniform() && !problem.has_device_pins();
        let devices = if is_uniform { position..position + 1 } else { 0..n_devices };
        lists = lists
            .iter()
            .flat_map(|list: &Vec<usize>| {
                let free = devices.clone().filter(|device| !list.contains(device));
                free.map(|device| [list.as_slice(), &[device]].concat()).collect::<Vec<_>>()
            })
            .collect();
    }
    lists
}

/// What each block does, from all kept to all changed: 0 keeps, 1 recomputes, 2 offloads, 3 recomputes but for dear results.
fn choices(problem: &Problem) -> Vec<Vec<u8>> {
    let mut kinds = vec![0];
    kinds.extend(problem.training.recompute.then_some(1));
    kinds.extend(problem.training.offload.then_some(2));
    let mut lists = vec![Vec::new()];
    for block in &problem.blocks {
        let light = block.light.filter(|_| problem.training.recompute).map(|_| 3);
        let kinds: Vec<u8> = match block.recompute {
            Some(RecomputePolicy::Always) => vec![1],
            Some(RecomputePolicy::Light) => vec![light.unwrap_or(1)],
            Some(RecomputePolicy::Never) => kinds.iter().copied().filter(|kind| *kind != 1).collect(),
            None => kinds.iter().copied().chain(light).collect(),
        };
        let longer = lists
            .iter()
            .flat_map(|list: &Vec<u8>| kinds.iter().map(|&kind| [list.as_slice(), &[kind]].concat()));
        lists = longer.collect();
    }
    lists.sort_by_key(|list| list.iter().filter(|&&kind| kind > 0).count());
    lists
}

/// Seconds that a block takes with a choice.
fn work(block: &crate::Block, choice: u8) -> f64 {
    let is_again = choice == 1 || choice == 3;
    block.seconds() + if is_again { block.again(choice == 3).forward.0 } else { 0.0 }
}

/// Micro-batches of a step under a form; none where they cannot be shared.
fn micro_batches(problem: &Problem, form: &Form) -> Option<u32> {
    let wanted = problem.training.wanted(&problem.machine);
    if form.schedule == Schedule::PipeDream {
        return Some(wanted);
    }
    let is_exact = matches!(problem.training.micro_batches, MicroBatches::Exactly(_));
    let replicas = form.replicas[0] as u32;
    let mut each = wanted.div_ceil(replicas);
    let shape = |micro_batches| Shape {
        ranks: form.replicas.len() as u32,
        chunks: form.chunks as u32,
        micro_batches,
    };
    if let Err(OrderError::MicroBatches { smallest, .. }) = form.schedule.check(shape(each)) {
        each = smallest?;
    }
    (!is_exact || each * replicas == wanted).then_some(each * replicas)
}

/// Returns the fastest of all plans; `None` if none fits.
fn fastest(problem: &Problem, strategy: Strategy) -> Option<Solution> {
    let mut best: Option<Solution> = None;
    let choices = choices(problem);
    for form in forms(problem, strategy) {
        let Some(micro_batches) = micro_batches(problem, &form) else { continue };
        let n_ranks = form.replicas.len();
        let chains = chains(problem, n_ranks * form.chunks);
        for devices in assignments(problem, form.replicas.iter().sum()) {
            let mut rest = devices.as_slice();
            let groups: Vec<Vec<usize>> = form
                .replicas
                .iter()
                .map(|&count| {
                    let (own, left) = rest.split_at(count);
                    rest = left;
                    own.to_vec()
                })
                .collect();
            let is_kept = |parts: &&Vec<Vec<usize>>| keeps_pins(problem, form.schedule, parts, &groups);
            for parts in chains.iter().filter(is_kept) {
                for mode in [OffloadMode::Pinned, OffloadMode::Both] {
                    let mut fitting: Vec<&[u8]> = Vec::new();
                    for choice in &choices {
                        let offloads = choice.contains(&2);
                        // To change more blocks than is enough only costs time.
                        let is_enough = |known: &&[u8]| {
                            known.iter().zip(choice).all(|(known, own)| *known == 0 || known == own)
                        };
                        if !offloads && mode == OffloadMode::Both || fitting.iter().any(is_enough) {
                            continue;
                        }
                        // What each rank computes bounds a plan from below.
                        let busy = (0..n_ranks).map(|rank| {
                            let blocks = of_rank(parts, form.schedule, n_ranks, rank).flatten();
                            let work = blocks.map(|&block| work(&problem.blocks[block], choice[block]));
                            let speed = groups[rank].iter().map(|&d| problem.machine.devices[d].speed);
                            let speed = speed.fold(f64::INFINITY, f64::min);
                            work.sum::<f64>() / speed / groups[rank].len() as f64
                        });
                        if best.as_ref().is_some_and(|best| busy.fold(0.0, f64::max) >= best.seconds_each()) {
                            continue;
                        }
                        // A stage that is the unit is recomputed whole or not at all.
                        let unit = problem.training.recompute_unit;
                        let is_some = |part: &Vec<usize>| part.iter().any(|&block| choice[block] == 1);
                        let is_all = |part: &Vec<usize>| part.iter().all(|&block| choice[block] == 1);
                        let is_part = |part: &Vec<usize>| is_some(part) && !is_all(part);
                        if unit == RecomputeUnit::Stage && parts.iter().any(is_part) {
                            continue;
                        }
                        let of = |part: &Vec<usize>, kinds: &[u8]| {
                            part.iter().copied().filter(|&block| kinds.contains(&choice[block])).collect()
                        };
                        let placed = parts.iter().enumerate().map(|(index, part)| GivenStage {
                            blocks: part.clone(),
                            devices: groups[rank_of(form.schedule, index, n_ranks)].clone(),
                            recompute: of(part, &[1, 3]),
                            light: of(part, &[3]),
                            unit: if is_some(part) { unit } else { RecomputeUnit::Block },
                            offload: of(part, &[2]),
                        });
                        let placed: Vec<GivenStage> = placed.collect();
                        let shared = shared_out(problem, groups[0].len());
                        let execution = Execution { offload: Some(mode), ..shared };
                        let scored =
                            score_placed(problem, &placed, n_ranks, form.schedule, micro_batches, execution);
                        match scored {
                            Ok(scored) => {
                                fitting.push(choice);
                                if best
                                    .as_ref()
                                    .is_none_or(|best| scored.seconds_each() < best.seconds_each())
                                {
                                    best = Some(scored);
                                }
                            }
                            Err(PlanError::Memory { .. }) => {}
                            Err(error) => panic!("{error}"),
                        }
                    }
                }
            }
        }
    }
    best
}

/// Tells whether every pinned block is where it is to be.
fn keeps_pins(problem: &Problem, schedule: Schedule, parts: &[Vec<usize>], groups: &[Vec<usize>]) -> bool {
    let is_there = |pin: &Pin, stage: usize| match &pin.to {
        PinnedTo::Stage(own) => stage == *own,
        PinnedTo::LastStage => stage + 1 == parts.len(),
        PinnedTo::Devices(names) => {
            let devices = &groups[rank_of(schedule, stage, groups.len())];
            devices.iter().all(|&device| names.contains(&problem.machine.devices[device].name))
        }
    };
    let is_kept = |pin: &Pin| {
        let own = |part: &Vec<usize>| part.iter().any(|block| pin.blocks.contains(block));
        parts.iter().enumerate().all(|(stage, part)| !own(part) || is_there(pin, stage))
    };
    problem.pins.iter().all(is_kept)
}

#[test]
fn strategies_say_the_truth_about_all_plans() {
    all_plans(&mut Dice(41), 60, RecomputeUnit::Block, [0.98, 0.75, 0.95], |_, _| true);
}

#[test]
fn strategies_say_the_truth_where_stages_are_computed_again_whole() {
    all_plans(&mut Dice(43), 60, RecomputeUnit::Stage, [0.95, 0.75, 0.95], |_, _| true);
}

/// Some blocks are always computed again, others never.
#[test]
fn strategies_say_the_truth_about_all_plans_that_keep_policies() {
    all_plans(&mut Dice(45), 40, RecomputeUnit::Block, [0.97, 0.7, 0.94], |problem, dice| {
        problem.training.recompute = true;
        for block in &mut problem.blocks {
            block.recompute = match dice.below(4) {
                0 => Some(RecomputePolicy::Always),
                1 => Some(RecomputePolicy::Never),
                _ => None,
            };
        }
        true
    });
}

/// Blocks may be computed again in part, at any price in between; some always are.
#[test]
fn strategies_say_the_truth_about_all_plans_that_keep_dear_results() {
    let bars = [0.95, 0.7, 0.9];
    let lights = all_plans(&mut Dice(46), 40, RecomputeUnit::Block, bars, |problem, dice| {
        problem.training.recompute = true;
        problem.training.offload = false;
        for block in &mut problem.blocks {
            let saved = 1 + dice.below(20);
            block.activations.0 = 20 + saved;
            block.light = (dice.below(3) > 0).then(|| crate::problem::Again {
                forward: Seconds(block.forward.0 * dice.below(8) as f64 / 10.0),
                held: Bytes(dice.below(20)),
                once_more: Bytes(saved),
            });
            block.recompute = (dice.below(8) == 0).then_some(RecomputePolicy::Light);
            // Where gradients are made in halves, it may be more than what is kept.
            block.waiting = Bytes(dice.below(50));
        }
        true
    });
    assert!(lights > 20, "{lights} plans keep dear results");
}

/// Pins blocks to stages and devices; what is pinned before what it needs is refused.
#[test]
fn strategies_say_the_truth_about_all_plans_that_keep_pins() {
    all_plans(&mut Dice(44), 60, RecomputeUnit::Block, [0.95, 0.6, 0.95], |problem, dice| {
        for _ in 0..1 + dice.below(2) {
            let block = dice.below(problem.blocks.len() as u64) as usize;
            let n_devices = problem.machine.devices.len() as u64;
            let to = match dice.below(4) {
                0 => PinnedTo::LastStage,
                1 => PinnedTo::Devices(vec![format!("d{}", dice.below(n_devices))]),
                _ => PinnedTo::Stage(dice.below(3.min(n_devices)) as usize),
            };
            problem.pins.push(Pin { name: format!("b{block}"), blocks: vec![block], to });
        }
        problem.validate().is_ok()
    });
}

/// Compares strategies with every plan there is on random problems; at least the given shares of their plans must be the fastest,
/// and be proven so.
///
/// `change` modifies the problems; invalid ones are skipped.
fn all_plans(
    dice: &mut Dice,
    n_cases: usize,
    unit: RecomputeUnit,
    [share_equal, share_said, near]: [f64; 3],
    change: impl Fn(&mut Problem, &mut Dice) -> bool,
) -> usize {
    let mut faults = Vec::new();
    let (mut n_plans, mut n_optimal, mut n_equal, mut n_none) = (0, 0, 0, 0);
    let mut n_light = 0;
    let mut bounds = 0.0;
    for case in 0..cases(n_cases) {
        // The more differs, the more plans there are.
        let (is_uniform, is_tight) = (dice.flip(), dice.flip() || unit == RecomputeUnit::Stage);
        let (blocks, devices) = match (is_uniform, is_tight) {
            (true, false) => (7, 4),
            (true, true) => (5, 4),
            (false, _) => (4, 3),
        };
        let (n_blocks, n_devices) = (1 + dice.below(blocks) as usize, 1 + dice.below(devices) as usize);
        let is_chain = dice.flip();
        let mut problem = problem(dice, n_blocks, n_devices, is_chain, is_uniform);
        if is_uniform && dice.below(3) == 0 {
            // A device in each node.
            problem
                .machine
                .levels
                .insert(0, MachineLevel { bandwidth: BytesPerSecond(100.0), latency: Seconds(0.0) });
            problem
                .machine
                .devices
                .iter_mut()
                .enumerate()
                .for_each(|(node, device)| device.place = vec![node as u32]);
        }
        if is_tight {
            let memory = 60 + dice.below(300);
            for device in &mut problem.machine.devices {
                device.memory = Bytes(memory + if is_uniform { 0 } else { dice.below(100) });
            }
        }
        problem.training.offload = is_tight && dice.below(3) == 0;
        if unit == RecomputeUnit::Stage {
            let training = &mut problem.training;
            (training.recompute, training.recompute_unit, training.offload) = (true, unit, false);
        }
        problem.training.limits.replicated_chunks = case % 3 > 0;
        problem.machine.overlaps = dice.below(3) > 0;
        let count = 1 + dice.below(7) as u32;
        problem.training.micro_batches =
            if dice.flip() { MicroBatches::About(count) } else { MicroBatches::Exactly(count) };
        if dice.below(4) == 0 {
            problem.training.stages = Some(1 + dice.below(n_devices.min(n_blocks) as u64) as u32);
        }
        if !change(&mut problem, dice) || is_skipped(case) {
            continue;
        }
        let mut fastest_of_all = f64::INFINITY;
        // Those with two copies have an oracle of their own.
        let is_asked = |strategy: &Strategy| {
            let is_pinned = strategy.is_asynchronous() && !problem.pins.is_empty();
            !strategy.is_rule() && strategy.two_copies().is_none() && !is_pinned
        };
        for strategy in crate::STRATEGIES.into_iter().filter(is_asked) {
            let fastest = fastest(&problem, strategy);
            let is_candidate = candidates(&problem).any(|candidate| candidate == strategy);
            if let Some(best) = fastest.as_ref().filter(|_| is_candidate) {
                fastest_of_all = fastest_of_all.min(best.seconds_each());
            }
            let mut wrong = |what: String| {
                // One problem is enough to read.
                let asked = if faults.is_empty() { format!("\n{problem:?}") } else { String::new() };
                faults.push(format!("case {case}, {}: {what}{asked}", strategy.name()));
            };
            match (plan_with(&problem, strategy), fastest) {
                (Ok(plan), Some(best)) => {
                    let fastest = best.seconds_each();
                    let ours = plan.seconds_each();
                    let bound = plan.lower_bound * ours / plan.seconds();
                    let is_equal = ours <= fastest * (1.0 + 1e-6);
                    if ours < fastest * (1.0 - 1e-6) {
                        wrong(format!("{ours}, but of all plans the fastest takes {fastest}"));
                    }
                    if bound > fastest * (1.0 + 1e-6) {
                        wrong(format!(
                            "bound {bound} of {ours}, but {} exists; ours {}",
                            told(&best),
                            told(&plan)
                        ));
                    } else if plan.is_optimal() && !is_equal {
                        wrong(format!("{ours} is not an optimum, {fastest} is"));
                    }
                    n_plans += 1;
                    n_light += usize::from(plan.stages.iter().any(|stage| !stage.score.light.is_empty()));
                    n_equal += u32::from(is_equal);
                    n_optimal += u32::from(plan.is_optimal());
                    bounds += bound / fastest;
                }
                (Err(_), None) => n_none += 1,
                (Ok(plan), None) => wrong(format!("nothing fits, but here is a plan: {plan:?}")),
                (Err(error), Some(best)) => wrong(format!("{error}; but {}", told(&best))),
            }
        }
        if let Ok((best, ..)) = plan_auto(&problem) {
            let bound = best.lower_bound * best.seconds_each() / best.seconds();
            if bound > fastest_of_all * (1.0 + 1e-6) {
                faults.push(format!("case {case}, all: bound {bound}, but {fastest_of_all} exists"));
            }
        }
    }
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults[..faults.len().min(40)].join("\n"));
    if is_skipped(0) {
        return usize::MAX;
    }
    // A planner that promises nothing is never wrong: ask for a share of proven plans, and for bounds that are near.
    let (n, equal, said) = (f64::from(n_plans), f64::from(n_equal), f64::from(n_optimal));
    assert!(
        equal > share_equal * n && said > share_said * n && bounds > near * n && n_none < 2 * n_plans,
        "of {n_plans} plans, {n_equal} are the fastest and {n_optimal} said so; bounds come to {}; {n_none} none",
        bounds / n
    );
    n_light
}

#[test]
fn what_replicas_share_out_is_as_fast_as_all_plans_allow() {
    let mut dice = Dice(47);
    let (mut n_found, mut n_equal, mut n_chosen) = (0, 0, 0);
    for case in 0..cases(60) {
        let (n_blocks, n_devices) = (1 + dice.below(4) as usize, 2 + dice.below(3) as usize);
        let mut problem = problem(&mut dice, n_blocks, n_devices, true, true);
        let memory = 60 + dice.below(400);
        problem.machine.devices.iter_mut().for_each(|device| device.memory = Bytes(memory));
        problem.training.micro_batches = MicroBatches::About(1 + dice.below(6) as u32);
        if is_skipped(case) {
            continue;
        }
        let mut fastest_of_all = f64::INFINITY;
        for level in ShardingLevel::ALL {
            problem.training.sharding = level;
            problem.training.sharding_group = if dice.flip() { Some(2) } else { None };
            for strategy in [Strategy::DataParallel, Strategy::Hybrid] {
                let Some(best) = fastest(&problem, strategy) else { continue };
                // On a single level the planner forms no groups of its own.
                if problem.training.sharding_group.is_none() {
                    fastest_of_all = fastest_of_all.min(best.seconds_each());
                }
                let Ok(plan) = plan_with(&problem, strategy) else {
                    panic!("case {case}, {level:?}: no plan, but {}\n{problem:?}", told(&best));
                };
                let bound = plan.lower_bound * plan.seconds_each() / plan.seconds();
                assert!(
                    bound <= best.seconds_each() * (1.0 + 1e-6),
                    "case {case}, {level:?}: {}",
                    told(&best)
                );
                assert!(plan.seconds_each() >= best.seconds_each() * (1.0 - 1e-6), "case {case}, {level:?}");
                n_found += 1;
                n_equal += u32::from(plan.seconds_each() <= best.seconds_each() * (1.0 + 1e-6));
            }
        }
        problem.training.sharding = ShardingLevel::None;
        problem.training.sharding_group = None;
        problem.training.sharding_up_to = ShardingLevel::Zero3;
        if let Ok(planned) = plan_model(&mut problem, None, None) {
            // Others may be faster still: those are compared by the test above.
            let seconds = planned.best.seconds_each();
            let bound = planned.best.lower_bound * seconds / planned.best.seconds();
            assert!(
                bound <= fastest_of_all * (1.0 + 1e-6),
                "case {case}: bound {bound}, {fastest_of_all} exists"
            );
            n_chosen += u32::from(planned.best.sharding() > ShardingLevel::None);
        } else {
            assert_eq!(fastest_of_all, f64::INFINITY, "case {case}: nothing fits?\n{problem:?}");
        }
    }
    if is_skipped(0) {
        return;
    }
    assert!(f64::from(n_equal) > 0.95 * f64::from(n_found), "{n_equal} of {n_found} are the fastest");
    assert!(n_chosen > 2, "{n_chosen} plans share anything out");
}

/// Stages in a line: blocks, devices, and what is recomputed or offloaded.
fn told(solution: &Solution) -> String {
    let stage = |stage: &crate::SolutionStage| {
        let devices: Vec<usize> = solution.devices(stage).collect();
        let score = &stage.score;
        format!("{:?} on {devices:?} again {:?} offloaded {:?}", stage.blocks, score.recompute, score.offload)
    };
    let stages: Vec<String> = solution.stages.iter().map(stage).collect();
    format!("{} {}: {}", solution.schedule.name(), solution.seconds_each(), stages.join("; "))
}
