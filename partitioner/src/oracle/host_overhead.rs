//! The script's passes cost the host time: what is charged decides between whole and halved backward passes.

use schema::{Bytes, BytesPerSecond, Seconds};
use simulator::{PlanOptions, from_plan, order::Schedule, simulate};

use crate::{
    Block, Machine, MicroBatches, Problem, Strategy, Training, Value, oracle::random_problems::cluster,
    plan_auto, plan_file::write::to_plan, plan_with,
};

/// What messages, sums of gradients and the optimizer's step take at most.
const BESIDE: f64 = 1.5e-3;

/// Eight equal blocks in a row for four devices; replicas would send more than stages do.
fn row(host_overhead: Seconds, memory: Bytes) -> Problem {
    let block = |index: usize| Block {
        path: format!("b{index}"),
        forward: Seconds(1e-3),
        input_gradient: Seconds(1e-3),
        weight_gradient: Seconds(1e-3),
        parameters: Bytes(1 << 24),
        activations: Bytes(1 << 28),
        ..Block::default()
    };
    let value =
        |from: usize| Value { from: Some(from), to: vec![from + 1], forward: Bytes(8), backward: Bytes(8) };
    Problem {
        blocks: (0..8).map(block).collect(),
        values: (0..7).map(value).collect(),
        ties: Vec::new(),
        machine: Machine::flat(4, memory, BytesPerSecond(1e8)),
        training: Training {
            micro_batches: MicroBatches::Exactly(8),
            recompute: false,
            host_overhead,
            ..Training::default()
        },
        begins: None,
        pins: Vec::new(),
    }
}

#[test]
fn halves_of_backward_passes_are_chosen_where_they_win_with_the_host() {
    // Room for the activations of four micro-batches in two blocks, not of all eight, as GPipe keeps them.
    let chosen = |microseconds: f64, of_halves: f64| {
        let mut problem = row(Seconds(microseconds * 1e-6), Bytes(3 << 30));
        problem.training.split_overhead = Seconds(of_halves * 1e-6);
        let best = plan_auto(&problem).unwrap().0;
        let seconds = |strategy| plan_with(&problem, strategy).unwrap().seconds();
        let by_name = [seconds(Strategy::OneForwardOneBackward), seconds(Strategy::ZeroBubble)];
        assert!(best.seconds() <= by_name[0].min(by_name[1]) * (1.0 + 1e-9));
        assert!(best.lower_bound <= best.seconds());
        (best.schedule, by_name)
    };
    // A step of four stages has 8 + 3 forward and backward passes on its longest way as 1F1B. Halves save 3 · 2 ms of it, and take
    // the host for each of a rank's 8 micro-batches once more.
    let (free, [plain, halves]) = chosen(0.0, 0.0);
    let is_in_halves = |schedule: Schedule| schedule.in_flight(4, 1, 8, 1).is_split();
    assert!(is_in_halves(free), "{free:?}");
    assert!((plain - 11.0 * 6e-3).abs() < BESIDE && halves < plain, "{plain} {halves}");
    let (charged, [plain, halves]) = chosen(3000.0, 0.0);
    assert_eq!(charged, Schedule::OneForwardOneBackward);
    assert!((plain - 11.0 * (6e-3 + 2.0 * 3e-3)).abs() < BESIDE && plain < halves, "{plain} {halves}");
    // Whole backward passes cost what they did; each of a rank's 8 split ones costs 3 ms more, of which bubbles hide a part.
    let (_, [plain, with_split]) = chosen(0.0, 3000.0);
    assert!((plain - 11.0 * 6e-3).abs() < BESIDE && plain < with_split, "{plain} {with_split}");
}

#[test]
fn chunks_are_chosen_where_they_win_with_the_host() {
    let interleaved = |microseconds: f64| {
        let problem = row(Seconds(microseconds * 1e-6), Bytes(1 << 40));
        let seconds = |strategy| plan_with(&problem, strategy).unwrap().seconds();
        seconds(Strategy::Interleaved) < seconds(Strategy::OneForwardOneBackward)
    };
    assert!(interleaved(0.0) && !interleaved(3000.0));
}

/// A plan says itself what it was charged, and is simulated so.
#[test]
fn a_plan_keeps_what_it_was_charged() {
    let problem = row(Seconds(5e-4), Bytes(1 << 40));
    for strategy in [Strategy::GPipe, Strategy::ZeroBubble, Strategy::Chimera, Strategy::DualPipeV] {
        let solution = plan_with(&problem, strategy).unwrap();
        let model = schema::ModelReference { name: String::new(), digest: String::new() };
        let plan = to_plan(&problem, &solution, &cluster(&problem.machine), model, "");
        assert_eq!(plan.cluster.host_overhead(), Seconds(5e-4));
        let step = |host_overhead| {
            let step = from_plan(&plan, &PlanOptions { host_overhead, ..PlanOptions::default() }).unwrap();
            simulate(&step.workload, &step.order, &step.machine).unwrap().step as f64 * 1e-9
        };
        let (own, free) = (step(None), step(Some(Seconds(0.0))));
        assert!((own - solution.seconds()).abs() < 1e-6, "{strategy:?}: {own}");
        // At the least two passes of each of eight micro-batches, on each rank.
        assert!(own > free + 8.0 * 2.0 * 5e-4 * 0.99, "{strategy:?}: {own} {free}");
    }
}
