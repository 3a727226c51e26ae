//! The machine model against the clock, and what must hold on any machine.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::collections::BTreeMap;

use proptest::prelude::*;
use simulator::{
    Cost, Link, Machine, Sharing, Stage, StageMemory, Stream, Timeline, Transfer, Work, Workload, build,
    clock,
    order::{ALL, Order, Schedule, Shape, make_for_costs},
    simulate,
};

const FREE: f64 = f64::INFINITY;

/// A random shape that the schedule allows.
fn shape(schedule: Schedule, ranks: u32, chunks: u32, micro_batches: u32) -> Shape {
    let ranks = if matches!(schedule, Schedule::DualPipe | Schedule::Chimera) {
        2 * ranks.div_ceil(2)
    } else {
        ranks
    };
    let chunks = schedule.fixed_chunks().unwrap_or(chunks);
    let shape = Shape { ranks, chunks, micro_batches };
    match schedule.check(shape) {
        Err(simulator::order::OrderError::MicroBatches { smallest: Some(micro_batches), .. }) => {
            Shape { micro_batches, ..shape }
        }
        _ => shape,
    }
}

#[derive(Clone, Debug)]
struct Case {
    schedule: Schedule,
    shape: Shape,
    cost: Cost,
    stages: Vec<[u64; 3]>,
    bytes: u64,
    link: Link,
}

fn cases() -> impl Strategy<Value = Case> {
    (
        (prop::sample::select(ALL.to_vec()), 1_u32..6, 1_u32..4, 1_u32..12),
        (1_u64..50, 1_u64..50, 1_u64..50, 0_u64..9),
        prop::collection::vec([1_u64..50, 1_u64..50, 0_u64..50], 20),
        (0_u64..2_000, 0_u64..20, 1_u32..100),
    )
        .prop_map(|((schedule, ranks, chunks, m), (f, i, w, hop), stages, (bytes, latency, rate))| {
            Case {
                schedule,
                shape: shape(schedule, ranks, chunks, m),
                cost: Cost { forward: f, input_gradient: i, weight_gradient: w, hop },
                stages,
                bytes,
                link: Link { latency, bandwidth: f64::from(rate) * 1e9 },
            }
        })
}

impl Case {
    fn order(&self) -> Option<Order> {
        make_for_costs(self.schedule, self.shape, self.cost).ok()
    }

    /// Stages of different cost, with values between them.
    fn workload(&self, order: &Order) -> Workload {
        let stages = (0..order.chain as usize).map(|stage| {
            let [forward, input_gradient, weight_gradient] = self.stages[stage];
            let memory = StageMemory {
                parameters: 100,
                gradients: 100,
                optimizer: 200,
                activations: 10 + stage as u64,
                workspace: 3,
                ..StageMemory::default()
            };
            Stage { forward, input_gradient, weight_gradient, optimizer_step: 5, memory, ..Stage::default() }
        });
        let transfer =
            |to: usize| Transfer { from: to - 1, to, forward: self.bytes, backward: self.bytes / 2 };
        Workload {
            stages: stages.collect(),
            transfers: (1..order.chain as usize).map(transfer).collect(),
            devices: (0..order.ranks.len()).collect(),
            ..Workload::default()
        }
    }
}

/// No stream does two things at once, and nothing starts before what it needs.
fn check_timeline(order: &Order, timeline: &Timeline) {
    let mut streams: BTreeMap<(usize, Stream), Vec<(u64, u64)>> = BTreeMap::new();
    let mut ends: BTreeMap<(u32, u32, bool), u64> = BTreeMap::new();
    for task in &timeline.tasks {
        assert!(task.start <= task.end);
        if task.label.stream != Stream::Network {
            streams.entry((task.label.program, task.label.stream)).or_default().push((task.start, task.end));
        }
        if let Work::Compute { op, partner } = task.label.work {
            for op in std::iter::once(op).chain(partner) {
                let is_forward = op.kind == simulator::order::Kind::Forward;
                if is_forward || op.kind.makes_input_gradient() {
                    ends.insert((op.stage, op.micro_batch, is_forward), task.end);
                }
            }
        }
    }
    for spans in streams.values_mut() {
        spans.sort_unstable();
        assert!(spans.windows(2).all(|pair| pair[0].1 <= pair[1].0), "a stream does two things at once");
    }
    for task in &timeline.tasks {
        if let Work::Compute { op, partner } = task.label.work {
            for op in std::iter::once(op).chain(partner) {
                let (at, chain) = (op.stage % order.chain, order.chain);
                let needs = match op.kind {
                    simulator::order::Kind::Forward if at > 0 => Some((op.stage - 1, true)),
                    _ if op.kind.makes_input_gradient() && at + 1 < chain => Some((op.stage + 1, false)),
                    _ => None,
                };
                if let Some((stage, is_forward)) = needs {
                    assert!(
                        ends[&(stage, op.micro_batch, is_forward)] <= task.start,
                        "starts before what it needs"
                    );
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(150) })]

    /// With free links the machine shows what the clock shows.
    #[test]
    fn the_machine_agrees_with_the_clock(case in cases()) {
        let Some(order) = case.order() else { return Ok(()) };
        let workload = Workload::uniform(order.chain as usize, order.ranks.len(), &case.cost);
        let machine = Machine::uniform(order.ranks.len(), Link { latency: case.cost.hop, bandwidth: FREE });
        let timeline = simulate(&workload, &order, &machine).unwrap();
        let clock = clock(&order, &case.cost).unwrap();
        prop_assert_eq!(timeline.step, clock.makespan);
        let busy: Vec<u64> = timeline.programs.iter().map(|time| time.busy()).collect();
        prop_assert_eq!(busy, clock.busy);
        let peaks: Vec<u32> = timeline.memory.iter().map(|memory| memory.peak_activations).collect();
        prop_assert_eq!(peaks, clock.peak_activations);
    }

    #[test]
    fn timelines_are_possible(case in cases()) {
        let Some(order) = case.order() else { return Ok(()) };
        let workload = case.workload(&order);
        for sharing in [Sharing::Fair, Sharing::Unlimited] {
            let machine = Machine { sharing, ..Machine::uniform(order.ranks.len(), case.link) };
            let timeline = simulate(&workload, &order, &machine).unwrap();
            check_timeline(&order, &timeline);
            // Makespan ≥ critical path ≥ busiest device.
            let path: u64 = timeline.critical_path.iter().map(|task| {
                let task = timeline.tasks[*task as usize];
                task.end - task.start
            }).sum();
            let busiest = timeline.programs.iter().map(|time| time.busy() + time.optimizer).max().unwrap();
            prop_assert!(busiest <= timeline.step);
            prop_assert!(timeline.step <= path + timeline.critical_path.len() as u64 * case.link.latency);
            let sum = |time: &simulator::ProgramTime| {
                time.busy() + time.collective + time.copy + time.host + time.optimizer + time.idle
            };
            prop_assert!(timeline.programs.iter().all(|time| sum(time) == timeline.step));
        }
    }

    /// In a fixed order without contention more bandwidth is never slower, and no contention is never slower than some.
    #[test]
    fn more_bandwidth_is_never_slower(case in cases(), factor in 1_u32..5) {
        let Some(order) = case.order() else { return Ok(()) };
        let workload = case.workload(&order);
        let time = |bandwidth: f64| {
            let link = Link { bandwidth, ..case.link };
            let machine = Machine { sharing: Sharing::Unlimited, ..Machine::uniform(order.ranks.len(), link) };
            simulate(&workload, &order, &machine).unwrap().step
        };
        prop_assert!(time(case.link.bandwidth * f64::from(factor)) <= time(case.link.bandwidth));
    }

    /// A changed stage: timing again equals building again.
    #[test]
    fn retiming_equals_rebuilding(case in cases(), stage in 0_usize..20, longer in 0_u64..30) {
        let Some(order) = case.order() else { return Ok(()) };
        let mut workload = case.workload(&order);
        let machine = Machine { sharing: Sharing::Unlimited, ..Machine::uniform(order.ranks.len(), case.link) };
        let stage = stage % workload.stages.len();
        let mut step = build(&workload, &order, &machine).unwrap();
        let mut ends = step.graph.ends();
        workload.stages[stage].forward += longer;
        let changed = build(&workload, &order, &machine).unwrap();
        let copies = order.n_stages() / order.chain as usize;
        for copy in 0..copies as u32 {
            let changes = step.stage_changes(copy * order.chain + stage as u32, |op, old| match op.kind {
                simulator::order::Kind::Forward => old + longer,
                _ => old,
            });
            step.graph.retime(&changes, &mut ends);
        }
        // Fused pairs are not changed by stage_changes; orders without them must agree.
        if !order.ranks.iter().flatten().any(|op| op.joined) && step.labels.len() == changed.labels.len() && workload.sync.bucket > 100 && copies == 1 {
            prop_assert_eq!(ends, changed.graph.ends());
        }
    }
}
