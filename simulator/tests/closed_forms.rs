//! Every closed form against the clock, on random shapes and costs.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use proptest::prelude::*;
use simulator::{
    Cost, clock,
    order::{ALL, Kind, Order, Schedule, Shape, make_for_costs},
};

#[path = "formulas/in_flight.rs"]
mod in_flight;

/// Checks one shape and cost; returns whether there was a formula to check.
fn check(schedule: Schedule, shape: Shape, cost: Cost) -> bool {
    let Ok(order) = make_for_costs(schedule, shape, cost) else { return false };
    let found =
        clock(&order, &cost).unwrap_or_else(|error| panic!("{schedule:?} {shape:?} {cost:?}: {error}"));
    let formula = schedule.makespan(shape, &cost);
    if let Some(makespan) = formula {
        assert_eq!(makespan, found.makespan, "{schedule:?} {shape:?} {cost:?}");
    }
    for rank in 0..shape.ranks {
        let peak = found.peak_activations[rank as usize];
        if let Some(formula) = in_flight::activations(schedule, shape, rank) {
            assert_eq!(formula, peak, "{schedule:?} {shape:?} rank {rank}");
        }
        let peak = found.peak_until_input_gradient[rank as usize];
        if let Some(formula) = in_flight::until_input_gradient(schedule, shape, rank) {
            assert_eq!(formula, peak, "until the input gradient: {schedule:?} {shape:?} rank {rank}");
        }
    }
    // Nobody computes longer than the step lasts, and everybody computes all of its work.
    let stages = |rank: u32| order.ranks[rank as usize].iter().map(|op| cost.of(op.kind)).sum::<u64>();
    for rank in 0..shape.ranks {
        assert_eq!(found.busy[rank as usize], stages(rank));
        assert!(found.busy[rank as usize] <= found.longest_span && found.longest_span <= found.makespan);
    }
    formula.is_some()
}

/// Shapes whose costs meet a formula's condition often: latency absent, or F = I ≥ W, or W ≤ F ≤ I.
fn costs() -> impl Strategy<Value = Cost> {
    (1_u64..1000, 1_u64..1000, 1_u64..1000, prop_oneof![Just(0_u64), 0_u64..50], 0..4).prop_map(
        |(a, b, c, hop, kind)| {
            let mut sorted = [a, b, c];
            sorted.sort_unstable();
            let [low, middle, high] = sorted;
            let (forward, input_gradient, weight_gradient) = match kind {
                0 => (a, b, c),
                1 => (high, high, low),
                2 => (middle, high, low),
                _ => (a, a, a),
            };
            Cost { forward, input_gradient, weight_gradient, hop }
        },
    )
}

/// The most micro-batches that each stage holds, counted along its rank's operations.
fn held(order: &Order) -> Vec<usize> {
    let mut most = vec![0; order.chain as usize];
    for ops in &order.ranks {
        let is_split = ops.iter().any(|op| op.kind == Kind::WeightGradient);
        let mut now = vec![0_usize; most.len()];
        for op in ops {
            let stage = op.stage as usize;
            match op.kind {
                Kind::Forward => now[stage] += 1,
                Kind::InputGradient if is_split => {}
                _ => now[stage] -= 1,
            }
            most[stage] = most[stage].max(now[stage]);
        }
    }
    most
}

/// Plans count the memory of each stage by what it holds.
#[test]
fn each_chunk_of_an_interleaved_schedule_holds_what_is_counted() {
    let interleaved = [Schedule::Interleaved1F1B, Schedule::Vpp, Schedule::InterleavedZeroBubble];
    let mut n_checked = 0;
    for (schedule, ranks) in interleaved.into_iter().flat_map(|one| (1..9).map(move |ranks| (one, ranks))) {
        for (chunks, micro_batches) in (1..6).flat_map(|chunks| (1..40).map(move |count| (chunks, count))) {
            let shape = Shape { ranks, chunks, micro_batches };
            let Ok(order) = make_for_costs(schedule, shape, Cost::EQUAL) else { continue };
            let [p, v, each] = [ranks, chunks, micro_batches].map(|count| count as usize);
            for replicas in [1, 3] {
                let counted = schedule.in_flight(p, v, each, replicas);
                let counts = (0..p * v).map(|stage| counted.count(replicas, (p * v - stage) * replicas));
                assert_eq!(counts.collect::<Vec<_>>(), held(&order), "{schedule:?} {shape:?}");
            }
            n_checked += 1;
        }
    }
    assert!(n_checked > 1000, "{n_checked}");
}

/// Returns the most micro-batches of each stage whose weights' gradients wait, though those of the inputs have begun.
fn waiting(order: &Order) -> Vec<usize> {
    let mut now = vec![0_usize; order.chain as usize];
    let mut most = now.clone();
    for op in order.ranks.iter().flatten() {
        let stage = op.stage as usize;
        match op.kind {
            Kind::InputGradient => now[stage] += 1,
            Kind::WeightGradient => now[stage] -= 1,
            _ => {}
        }
        most[stage] = most[stage].max(now[stage]);
    }
    most
}

/// Plans count the memory of what waits for its weights' gradients: never too little, and on the first rank not too much.
#[test]
fn no_more_weights_gradients_wait_than_are_counted() {
    let (mut n_checked, mut n_equal) = (0, 0);
    for (schedule, ranks) in ALL.into_iter().flat_map(|one| (1..9).map(move |ranks| (one, ranks))) {
        for (chunks, micro_batches) in (1..4).flat_map(|chunks| (1..30).map(move |count| (chunks, count))) {
            if schedule.copies() > 1 || schedule.fixed_chunks().is_some_and(|fixed| fixed != chunks) {
                continue;
            }
            let shape = Shape { ranks, chunks, micro_batches };
            let Ok(order) = make_for_costs(schedule, shape, Cost::EQUAL) else { continue };
            let [p, v, each] = [ranks, chunks, micro_batches].map(|count| count as usize);
            let counted = schedule.in_flight(p, v, each, 1);
            let counts = |stage: usize| counted.waiting(1, p * v - stage);
            for (stage, found) in waiting(&order).into_iter().enumerate() {
                assert!(found <= counts(stage), "{schedule:?} {shape:?}: {found} of stage {stage}");
                n_checked += usize::from(found > 0);
                n_equal += usize::from(found > 0 && found == counts(stage));
            }
        }
    }
    assert!(n_checked > 10_000 && n_equal * 3 > n_checked, "{n_checked} checked, {n_equal} equal");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(400) })]

    #[test]
    fn formulas_equal_the_clock(
        schedule in prop::sample::select(ALL.to_vec()),
        ranks in 1_u32..7,
        chunks in 1_u32..4,
        micro_batches in 1_u32..20,
        cost in costs(),
    ) {
        let chunks = schedule.fixed_chunks().unwrap_or(chunks);
        // Move to the next shape that the schedule allows, so that few cases are lost.
        let ranks = if matches!(schedule, Schedule::DualPipe | Schedule::Chimera) { 2 * ranks.div_ceil(2) } else { ranks };
        let shape = Shape { ranks, chunks, micro_batches };
        let micro_batches = match schedule.check(shape) {
            Err(simulator::order::OrderError::MicroBatches { smallest: Some(smallest), .. }) => smallest,
            _ => micro_batches,
        };
        check(schedule, Shape { ranks, chunks, micro_batches }, cost);
    }
}

#[test]
fn formulas_equal_the_clock_on_small_shapes() {
    let mut checked = std::collections::BTreeMap::new();
    for schedule in ALL {
        for ranks in 1..7 {
            for chunks in 1..4 {
                for micro_batches in 1..14 {
                    for (f, i, w, c) in
                        [(1, 1, 1, 0), (10, 11, 7, 0), (4, 4, 1, 0), (5, 9, 3, 2), (7, 2, 6, 0)]
                    {
                        let cost = Cost { forward: f, input_gradient: i, weight_gradient: w, hop: c };
                        let shape = Shape { ranks, chunks, micro_batches };
                        *checked.entry(schedule.name()).or_insert(0) +=
                            u32::from(check(schedule, shape, cost));
                    }
                }
            }
        }
    }
    println!("formulas checked: {checked:?}");
    let with_formula = checked.values().filter(|n| **n > 0).count();
    assert_eq!(with_formula, 13);
}
