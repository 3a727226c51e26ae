//! What must hold whatever is simulated: replicas, sharding, tensor-parallel groups, offload, slowdown, shared ports.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use proptest::prelude::*;
use simulator::{
    Layer, Link, Machine, Offload, Part, Sends, Servers, Sharding, Sharing, Stage, StageMemory, Stream, Sync,
    SyncMode, TensorParallel, Timeline, Transfer, Work, Workload, build,
    collective::Algorithm,
    order::{self, Order},
    savings, simulate, split,
};

/// A chain of stages, replicas of each, and everything that can be switched on.
#[derive(Clone, Debug)]
struct Case {
    replicas: Vec<u32>,
    micro_batches: u32,
    /// Forward, backward, bytes between stages, kilobytes of parameters, by stage.
    stages: Vec<[u64; 4]>,
    sync: Sync,
    offload: Option<Offload>,
    /// Devices of each program: more than one is a tensor-parallel group.
    degree: usize,
    has_layers: bool,
    latency: u64,
    sharing: Sharing,
    sends: Sends,
    slowdown: f64,
}

fn cases() -> impl Strategy<Value = Case> {
    let sync = (
        prop::sample::select(vec![
            SyncMode::AfterBackward,
            SyncMode::Bucketed,
            SyncMode::Fifo { slice: None },
            SyncMode::Priority { slice: Some(3_000) },
        ]),
        prop::sample::select(vec![
            Algorithm::Fastest,
            Algorithm::Ring,
            Algorithm::Tree,
            Algorithm::Hierarchical,
            Algorithm::ParameterServer { servers: 2 },
        ]),
        prop::sample::select(vec![
            Sharding::Replicated,
            Sharding::Optimizer,
            Sharding::Gradients,
            Sharding::Parameters,
        ]),
        500_u64..20_000,
    );
    let offload = prop::sample::select(vec![
        None,
        Some(Offload::Naive),
        Some(Offload::Pinned),
        Some(Offload::Overlapped { depth: 1 }),
        Some(Offload::Overlapped { depth: 3 }),
    ]);
    let machine = (0_u64..200, any::<bool>(), any::<bool>(), prop::sample::select(vec![1.0, 1.0, 1.3, 2.0]));
    (
        prop::collection::vec(1_u32..4, 1..4),
        1_u32..10,
        prop::collection::vec([1_u64..3_000, 1_u64..6_000, 0_u64..4_000, 0_u64..30], 3),
        sync,
        (offload, 1_usize..3, any::<bool>()),
        machine,
    )
        .prop_map(|(replicas, micro_batches, stages, sync, features, machine)| {
            let (mode, algorithm, sharding, bucket) = sync;
            let (offload, degree, has_layers) = features;
            let (latency, is_fair, blocks, slowdown) = machine;
            let servers = if bucket % 2 == 0 { Servers::Among } else { Servers::Apart };
            // As plans are checked: shares are not sent to servers, nor layer by layer.
            let shares = sharding != Sharding::Replicated;
            let mode = if shares && mode.slice().is_some() { SyncMode::Bucketed } else { mode };
            let is_server = matches!(algorithm, Algorithm::ParameterServer { .. });
            let algorithm = if shares && is_server { Algorithm::Ring } else { algorithm };
            Case {
                replicas,
                micro_batches,
                stages,
                sync: Sync {
                    mode,
                    algorithm,
                    sharding,
                    sharding_group: (bucket % 3 == 0).then_some(2),
                    bucket,
                    first_bucket: bucket / 4 + 1,
                    servers,
                },
                offload,
                degree,
                has_layers,
                latency,
                sharing: if is_fair { Sharing::Fair } else { Sharing::Unlimited },
                sends: if blocks { Sends::Blocking } else { Sends::Overlapped },
                slowdown,
            }
        })
}

impl Case {
    fn build(&self) -> (Workload, Order, Machine) {
        let order = order::replicated(&self.replicas, self.micro_batches);
        let n_programs = order.ranks.len();
        let stage = |nth: usize| {
            let [forward, backward, _, kilobytes] = self.stages[nth];
            let parameters = 1_000 * kilobytes;
            let layers = [1, 2, 3].map(|part| Layer {
                forward: part,
                backward: 4 - part,
                gradients: parameters / 3 + if part == 1 { parameters % 3 } else { 0 },
            });
            Stage {
                forward,
                input_gradient: backward / 2,
                weight_gradient: backward - backward / 2,
                accumulation: 3 * kilobytes,
                optimizer_step: 7 * kilobytes,
                memory: StageMemory {
                    parameters,
                    gradients: parameters,
                    optimizer: 2 * parameters,
                    activations: 5_000,
                    workspace: 100,
                    offloaded: if self.offload.is_some() { 3_000 } else { 0 },
                    ..StageMemory::default()
                },
                tensor_parallel: (self.degree > 1).then_some(TensorParallel { bytes: 900, per_pass: 2 }),
                layers: if self.has_layers { layers.to_vec() } else { Vec::new() },
                ..Stage::default()
            }
        };
        let transfer = |to: usize| {
            let bytes = self.stages[to][2];
            Transfer { from: to - 1, to, forward: bytes, backward: bytes / 2 }
        };
        let n_stages = self.replicas.len();
        let group = |program: usize| (1..self.degree).map(|nth| program * self.degree + nth).collect();
        let mut workload = Workload {
            stages: (0..n_stages).map(stage).collect(),
            transfers: (1..n_stages).map(transfer).collect(),
            devices: (0..n_programs).map(|program| program * self.degree).collect(),
            peers: if self.degree > 1 { (0..n_programs).map(group).collect() } else { Vec::new() },
            sync: self.sync,
            ..Workload::default()
        };
        workload.offload = self.offload.unwrap_or_default();
        let link = Link { latency: self.latency, bandwidth: 2e9 };
        let mut machine = Machine::uniform(n_programs * self.degree, link);
        machine.levels.push(Link { latency: 3 * self.latency, bandwidth: 1e9 });
        for (idx, device) in machine.devices.iter_mut().enumerate() {
            device.place = vec![idx as u32 / 4];
            device.host_bandwidth = 3e9;
            device.host_overhead = 11;
            device.speed = 1.0 + 0.25 * (idx % 2) as f64;
        }
        (machine.sharing, machine.sends, machine.slowdown) = (self.sharing, self.sends, self.slowdown);
        (workload, order, machine)
    }

    /// Nothing depends on who comes first.
    fn is_fixed(&self) -> bool {
        self.sync.mode.slice().is_none() && self.slowdown == 1.0
    }
}

/// No stream does two things at once; a program that is not a message's sender waits for none of its own.
fn check_streams(case: &Case, timeline: &Timeline) {
    let mut streams: BTreeMap<(usize, Stream), Vec<(u64, u64)>> = BTreeMap::new();
    for (id, task) in timeline.tasks.iter().enumerate() {
        assert!(task.start <= task.end && task.end <= timeline.step);
        // Messages between stages overlap in their latency; slices wait for their link, which belongs to a group.
        let is_message = matches!(task.label.work, Work::Reduce { .. } | Work::Gather { op: None, .. });
        let is_slice = case.sync.mode.slice().is_some() && is_message;
        if task.label.stream == Stream::Network || is_slice {
            continue;
        }
        let others = timeline.members.get(&(id as u32)).into_iter().flatten();
        for program in others.chain([&task.label.program]) {
            streams.entry((*program, task.label.stream)).or_default().push((task.start, task.end));
        }
    }
    for (stream, spans) in &mut streams {
        spans.sort_unstable();
        assert!(spans.windows(2).all(|pair| pair[0].1 <= pair[1].0), "{stream:?} does two things at once");
    }
    // One message at a time on each group's link, each way.
    let mut links: BTreeMap<(u32, bool), Vec<(u64, u64)>> = BTreeMap::new();
    for task in timeline.tasks.iter().filter(|_| case.sync.mode.slice().is_some()) {
        match task.label.work {
            Work::Reduce { stage, .. } => {
                links.entry((stage, true)).or_default().push((task.start, task.end));
            }
            Work::Gather { stage, op: None } => {
                links.entry((stage, false)).or_default().push((task.start, task.end));
            }
            _ => {}
        }
    }
    for spans in links.values_mut() {
        spans.sort_unstable();
        assert!(spans.windows(2).all(|pair| pair[0].1 <= pair[1].0), "a link sends two messages at once");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]

    #[test]
    fn every_timeline_is_possible(case in cases()) {
        let (workload, order, machine) = case.build();
        let timeline = simulate(&workload, &order, &machine).unwrap();
        check_streams(&case, &timeline);
        // Nothing starts before what it needs. (A part of another's work may be enough: a negative lag.)
        let step = build(&workload, &order, &machine).unwrap();
        for (id, task) in timeline.tasks.iter().enumerate() {
            for (before, lag) in step.graph.waits(id as u32) {
                let there = timeline.tasks[before as usize].end.saturating_add_signed(lag);
                let is_part = lag < 0 && machine.slowdown > 1.0;
                prop_assert!(task.start >= there || is_part, "task {} starts before {}", id, before);
            }
        }
        // The critical path reaches from the start to the end of the step, without a gap.
        let path: Vec<_> = timeline.critical_path.iter().map(|id| timeline.tasks[*id as usize]).collect();
        prop_assert_eq!(path.first().unwrap().start, 0);
        prop_assert_eq!(path.last().unwrap().end, timeline.step);
        prop_assert!(path.windows(2).all(|pair| pair[1].start <= pair[0].end));
        // So it is as long as the step, which no device's work exceeds; a device's time divides without a rest.
        for time in &timeline.programs {
            let spent = time.busy() + time.collective + time.copy + time.host + time.optimizer;
            prop_assert!(spent <= timeline.step);
            prop_assert_eq!(spent + time.idle, timeline.step);
        }
        prop_assert!(timeline.longest_span <= timeline.step);
        for memory in &timeline.memory {
            prop_assert_eq!(memory.parts.iter().sum::<u64>(), memory.peak);
            prop_assert_eq!(memory.curve.iter().map(|(_, bytes)| *bytes).max().unwrap(), memory.peak);
            // What comes goes: at the end there is what was there all the time.
            prop_assert_eq!(memory.curve.last().unwrap().1, memory.parts[..4].iter().sum::<u64>());
        }
        prop_assert_eq!(&timeline, &simulate(&workload, &order, &machine).unwrap());
    }

    /// In a fixed order without contention.
    #[test]
    fn more_bandwidth_is_never_slower(case in cases(), part in 0_usize..3) {
        if !case.is_fixed() {
            return Ok(());
        }
        let (workload, order, machine) = case.build();
        let machine = Machine { sharing: Sharing::Unlimited, ..machine };
        let step = simulate(&workload, &order, &machine).unwrap().step;
        let mut faster = machine;
        match part {
            2 => faster.devices.iter_mut().for_each(|device| device.host_bandwidth *= 1.5),
            level => faster.levels[level].bandwidth *= 1.5,
        }
        prop_assert!(simulate(&workload, &order, &faster).unwrap().step <= step);
    }

    /// What 10 % more saves is what simulating with 10 % more says, and the parts of a step are the step.
    #[test]
    fn explanations_are_exact(case in cases()) {
        let (workload, order, machine) = case.build();
        let timeline = simulate(&workload, &order, &machine).unwrap();
        let parts = split(&workload, &order, &machine).unwrap();
        let sum = parts.compute + parts.imbalance + parts.bubble + parts.latency + parts.bandwidth + parts.host + parts.optimizer;
        prop_assert_eq!(sum, timeline.step as i64);
        if machine.sharing == Sharing::Unlimited && case.is_fixed() {
            prop_assert!(parts.compute >= 0 && parts.imbalance >= 0 && parts.bubble >= 0 && parts.optimizer >= 0);
            prop_assert!(parts.latency >= 0 && parts.bandwidth >= 0 && parts.host >= 0);
        }
        let savings = savings(&workload, &order, &machine, &timeline, usize::MAX).unwrap().unwrap();
        prop_assert!(savings.windows(2).all(|pair| pair[0].1 >= pair[1].1));
        for (part, saved) in savings {
            let mut faster = machine.clone();
            match part {
                Part::Device(device) => faster.devices[device].speed *= 1.1,
                Part::Devices => faster.devices.iter_mut().for_each(|device| device.speed *= 1.1),
                Part::Host(device) => faster.devices[device].host_bandwidth *= 1.1,
                Part::Level(level) => faster.levels[level].bandwidth *= 1.1,
                Part::Link(from, to) => {
                    let link = faster.link(from, to).unwrap();
                    faster.links.insert((from, to), Link { bandwidth: 1.1 * link.bandwidth, ..link });
                }
            }
            let step = simulate(&workload, &order, &faster).unwrap().step;
            prop_assert_eq!(saved, timeline.step as i64 - step as i64, "{:?}", part);
        }
    }
}

/// Under every schedule a program adds the gradients of all passes of a stage but the first to those before them.
#[test]
fn gradients_of_all_passes_but_the_first_are_added_up() {
    let cost = simulator::Cost { forward: 100, input_gradient: 90, weight_gradient: 80, hop: 0 };
    let mut n_schedules = 0;
    for schedule in order::ALL {
        let shape = |chunks| order::Shape { ranks: 4, chunks, micro_batches: 8 };
        let Some(order) =
            [1, 2].into_iter().find_map(|n| order::make_for_costs(schedule, shape(n), cost).ok())
        else {
            continue;
        };
        let mut workload = Workload::uniform(order.chain as usize, order.ranks.len(), &cost);
        workload.stages.iter_mut().for_each(|stage| stage.accumulation = 7);
        let machine = Machine::uniform(order.ranks.len(), Link { latency: 0, bandwidth: 1e9 });
        let timeline = simulate(&workload, &order, &machine).unwrap();
        for (program, ops) in order.ranks.iter().enumerate() {
            let mut passes: BTreeMap<u32, u64> = BTreeMap::new();
            for op in ops.iter().filter(|op| op.kind.frees_activations()) {
                *passes.entry(op.stage % order.chain).or_default() += 1;
            }
            let backward = passes.values().map(|n| n * (90 + 80) + (n - 1) * 7).sum::<u64>();
            assert_eq!(timeline.programs[program].backward, backward, "{schedule:?}, program {program}");
            assert_eq!(timeline.programs[program].collective, 0);
        }
        n_schedules += 1;
    }
    assert!(n_schedules > 12, "{n_schedules}");
}

/// What weights' gradients are made of is held from the gradient of a stage's inputs on until they are made, beside activations.
#[test]
fn what_weights_gradients_wait_with_is_held() {
    let cost = simulator::Cost { forward: 100, input_gradient: 100, weight_gradient: 100, hop: 0 };
    let (mut n_in_halves, mut n_whole) = (0, 0);
    for name in ["1f1b", "zero-bubble", "zbv", "dualpipev", "zb2p"] {
        let chunks = if matches!(name, "zbv" | "dualpipev") { 2 } else { 1 };
        let order = order::make(name, 4, chunks, 8).unwrap();
        let mut workload = Workload::uniform(order.chain as usize, order.ranks.len(), &cost);
        let memory = StageMemory { activations: 10, waiting: 1_000, ..StageMemory::default() };
        workload.stages.iter_mut().for_each(|stage| stage.memory = memory);
        let machine = Machine::uniform(order.ranks.len(), Link { latency: 0, bandwidth: 1e9 });
        let timeline = simulate(&workload, &order, &machine).unwrap();
        for (rank, ops) in order.ranks.iter().enumerate() {
            let (mut held, mut most) = (0_i64, 0);
            for op in ops {
                let (before, after) = match op.kind {
                    order::Kind::Forward => (10, 0),
                    order::Kind::InputGradient => (1_000, 0),
                    order::Kind::WeightGradient => (0, -1_010),
                    kind if kind.frees_activations() => (0, -10),
                    _ => (0, 0),
                };
                most = most.max(held + before);
                held += before + after;
            }
            assert_eq!(timeline.memory[rank].peak as i64, most, "{name}, rank {rank}");
            if most > 1_000 { n_in_halves += 1 } else { n_whole += 1 }
        }
    }
    assert_eq!((n_in_halves, n_whole), (16, 4));
}
