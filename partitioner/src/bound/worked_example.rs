//! The worked example of `docs/bounds.md`: the numbers of its tables are what the code says.

use std::rc::Rc;

use schema::{Bytes, BytesPerSecond, Seconds};
use simulator::order::{InFlight, Schedule};

use crate::{
    Block, Machine, MicroBatches, Problem, Strategy, Training, Value,
    bound::{
        crossing::{CrossingBound, Question},
        grid::GridBounds,
        min_cut::{Closures, Window},
        work::Steps,
    },
    cut_space::CutSpace,
    grid::shape::Grid,
    plan_with,
    stage::{place::Neighbours, rounds::Rounds, run::Run, score::Rules, scorer::Scorer},
};

const PAGE: &str = include_str!("../../../docs/bounds.md");

/// The numbers of the row that begins with a name.
fn row(name: &str) -> Vec<f64> {
    let line = PAGE.lines().find(|line| line.starts_with(&format!("| {name} |"))).expect(name);
    line.split('|').skip(2).filter_map(|cell| cell.trim().parse().ok()).collect()
}

fn assert_near(found: f64, name: &str, column: usize, tolerance: f64) {
    let expected = row(name)[column];
    // Searches end a little below what they look for, never above.
    let range = expected * (1.0 - tolerance)..=expected * (1.0 + 1e-9);
    assert!(range.contains(&found), "{name}, column {column}: {found}, the page says {expected}");
}

/// Three blocks in a row on two devices: work of 3, 3 and 6 s in equal thirds, 10 bytes each way at 10 bytes a second.
fn example(parameters: [u64; 3], memory: u64) -> Problem {
    let block = |(path, third, parameters): (&str, f64, u64)| Block {
        path: path.into(),
        forward: Seconds(third),
        input_gradient: Seconds(third),
        weight_gradient: Seconds(third),
        parameters: Bytes(parameters),
        ..Block::default()
    };
    let [a, b, c] = parameters;
    let value =
        |from| Value { from: Some(from), to: vec![from + 1], forward: Bytes(10), backward: Bytes(10) };
    Problem {
        blocks: [("a", 1.0, a), ("b", 1.0, b), ("c", 2.0, c)].map(block).to_vec(),
        values: (0..2).map(value).collect(),
        ties: Vec::new(),
        machine: Machine::flat(2, Bytes(memory), BytesPerSecond(10.0)),
        training: Training {
            micro_batches: MicroBatches::Exactly(4),
            stages: Some(2),
            ..Training::default()
        },
        begins: None,
        pins: Vec::new(),
    }
}

const SCHEDULES: [(Schedule, Strategy); 3] = [
    (Schedule::GPipe, Strategy::GPipe),
    (Schedule::OneForwardOneBackward, Strategy::OneForwardOneBackward),
    (Schedule::InterleavedZeroBubble, Strategy::ZeroBubble),
];

#[test]
fn the_steps_of_the_page_are_those_of_the_code() {
    let problem = example([0; 3], 1000);
    let cut_space = CutSpace::of(&problem);
    for (column, (schedule, strategy)) in SCHEDULES.into_iter().enumerate() {
        assert_near(4.0 * problem.seconds() / problem.machine.total_speed(), "work", column, 1e-9);
        let states = cut_space.states.work_and_forward(&problem, 1.0, 0.0);
        let steps = Steps { schedule, ranks: 2, micro_batches: 4, states: &states, total: 12.0, host: 0.0 };
        assert_near(steps.least_step(), "order of passes", column, 1e-9);
        let bounds = GridBounds::new(&problem, &cut_space, (&cut_space.states, true), strategy);
        let grid = Grid { schedule, ranks: 2, chunks: 1, replicas: 1, replicas_together: true };
        // As near as it is looked for where all cuts are known.
        assert_near(bounds.least_step(grid, 4, f64::INFINITY), "transfers", column, 0.004);
        let plan = plan_with(&problem, strategy).unwrap();
        assert_near(plan.seconds(), "fastest plan", column, 1e-9);
        assert!(plan.lower_bound <= plan.seconds() * (1.0 + 1e-9));
    }
}

#[test]
fn what_does_not_fit_bounds_the_step() {
    let problem = example([30, 10, 10], 155);
    let states = CutSpace::of(&problem).states;
    let crossing = CrossingBound::of_all(&problem, &states);
    let (schedule, strategy) = SCHEDULES[1];
    let question = Question {
        schedule,
        speed: 1.0,
        rate: 0.1,
        ranks: 2,
        chunks: 1,
        micro_batches: 4,
        shares_ports: true,
        limit: 155.0,
        copies: problem.training.copies(1),
        in_flight: schedule.in_flight(2, 1, 4, 1),
        least: 30.0,
    };
    assert_near(crossing.step(&question, f64::INFINITY), "memory", 0, 0.004);
    assert_near(plan_with(&problem, strategy).unwrap().seconds(), "memory", 1, 1e-9);
}

#[test]
fn the_narrowest_cut_in_the_middle_of_a_diamond() {
    let block = |path: &str| Block { path: path.into(), forward: Seconds(1.0), ..Block::default() };
    let value = |(from, to, bytes): (usize, &[usize], u64)| Value {
        from: Some(from),
        to: to.to_vec(),
        forward: Bytes(bytes),
        backward: Bytes(0),
    };
    let problem = Problem {
        blocks: ["a", "b", "c", "d"].map(block).to_vec(),
        values: [(0, &[1, 2][..], 8), (1, &[3], 2), (2, &[3], 4)].map(value).to_vec(),
        ..example([0; 3], 1000)
    };
    let closures = Closures::new(&problem);
    let mut window = Window::new(&closures, 2.0, 2.0);
    assert_near(window.bytes().unwrap() as f64, "minimum cut", 0, 0.0);
    while !window.is_closed() {
        window.branch(&closures);
    }
    assert_near(window.bytes().unwrap() as f64, "minimum cut", 1, 0.0);
}

#[test]
fn sums_of_gradients_bound_rounds() {
    const MIB: u64 = 1 << 20;
    let mut problem = example([40 * MIB, 0, 60 * MIB], 1 << 40);
    problem.training.stages = None;
    let machine = &mut problem.machine;
    machine.levels.iter_mut().for_each(|level| level.bandwidth.0 = 10.0 * MIB as f64);
    machine.devices.iter_mut().for_each(|device| device.memory_bandwidth.0 = 1e30);
    for value in &mut problem.values {
        (value.forward, value.backward) = (Bytes(1000 * MIB), Bytes(1000 * MIB));
    }
    let states = CutSpace::of(&problem).states;
    let in_flight = InFlight::UntilEnd(u32::MAX);
    let rules = Rules { is_asynchronous: true, in_flight, neighbours: Neighbours::Fastest };
    let mut scorer = Scorer::new(&problem, &states, rules);
    let least =
        |scorer: &Scorer| scorer.on(Run { first: 0, count: 2, stride: 1 }, 2).least(0, states.len() - 1);
    assert_near(least(&scorer), "two replicas", 0, 1e-9);
    scorer.rounds = Some(Rc::new(Rounds::of(&problem, &states)));
    assert_near(least(&scorer), "two replicas", 1, 1e-9);
    let plan = plan_with(&problem, Strategy::PipeDream).unwrap();
    assert_near(plan.seconds(), "two replicas", 2, 1e-9);
    assert!(plan.is_optimal(), "{} {}", plan.lower_bound, plan.seconds());
}
