//! Pipelines without a flush, by hand: when replicas agree, when optimizers step, which weights are kept how long.
#![allow(clippy::unwrap_used)]

use proptest::prelude::*;
use simulator::{
    Link, Machine, Sends, SimulateError, Stage, StageMemory, Stream, Sync, SyncMode, Task, Tie, Updates,
    Work, Workload,
    collective::Algorithm,
    order::{self, Order},
    simulate, step_time,
};

/// A chain of stages, forward 10 ns, backward 20 ns, adding gradients to earlier ones 5 ns, optimizer 3 ns, 40 bytes of everything,
/// over links of a byte a nanosecond: a ring of two sums 40 bytes in 40 ns.
fn chain(replicas: &[u32], micro_batches: u32, updates: Updates) -> (Workload, Order, Machine) {
    let n: u32 = replicas.iter().sum();
    let memory = StageMemory { parameters: 40, gradients: 40, optimizer: 40, ..StageMemory::default() };
    let (accumulation, optimizer_step) = (5, 3);
    let stage =
        Stage { forward: 10, weight_gradient: 20, accumulation, optimizer_step, memory, ..Stage::default() };
    let workload = Workload {
        stages: vec![stage; replicas.len()],
        devices: (0..n as usize).collect(),
        sync: Sync { mode: SyncMode::AfterBackward, algorithm: Algorithm::Ring, ..Sync::default() },
        updates: Some(updates),
        ..Workload::default()
    };
    let order = order::replicated(replicas, micro_batches);
    (workload, order, Machine::uniform(n as usize, Link { latency: 0, bandwidth: 1e9 }))
}

fn check(replicas: &[u32], micro_batches: u32, updates: Updates, expected: u64) {
    let (workload, order, machine) = chain(replicas, micro_batches, updates);
    assert_eq!(step_time(&workload, &order, &machine).unwrap(), expected, "{replicas:?} {updates:?}");
}

#[test]
fn pipedream_agrees_and_steps_after_one_micro_batch_of_each_replica() {
    check(&[2], 6, Updates::Stashing, 3 * (30 + 40 + 3));
    // Which weights a pass takes is no matter of time.
    check(&[2], 6, Updates::VerticalSync, 3 * (30 + 40 + 3));
    // The last round has a micro-batch less: the replica without one waits for the sum all the same.
    check(&[2], 5, Updates::Stashing, 3 * (30 + 40 + 3));
    // Alone there is nobody to agree with.
    check(&[1], 5, Updates::Stashing, 5 * (30 + 3));
    // The replicas of the second stage begin at 10 and at 20, and agree when the later one is through, at 50.
    check(&[1, 2], 2, Updates::Stashing, 50 + 40 + 3);
}

#[test]
fn two_bw_agrees_and_steps_once_a_period() {
    let period = |period| Updates::DoubleBuffered { period };
    // Of a replica's micro-batches of a period, all but the first add their gradients to those before.
    check(&[2], 8, period(8), 4 * 30 + 3 * 5 + 40 + 3);
    check(&[2], 8, period(4), 2 * (2 * 30 + 5 + 40 + 3));
    check(&[2], 8, period(2), 4 * (30 + 40 + 3));
    check(&[1], 6, period(3), 6 * 30 + 4 * 5 + 2 * 3);
    check(&[1], 7, period(3), 7 * 30 + 4 * 5 + 3 * 3);
}

/// The first 10 bytes exist after a quarter of the backward pass, at 15, and are summed at 25; the other 30 exist at its
/// end, at 30, and are summed at 60. Where sends block, nothing is beside the backward pass.
#[test]
fn buckets_hide_behind_the_backward_pass_that_makes_them() {
    let (mut workload, order, mut machine) = chain(&[2], 6, Updates::Stashing);
    workload.sync = Sync { mode: SyncMode::Bucketed, first_bucket: 10, bucket: 30, ..workload.sync };
    assert_eq!(step_time(&workload, &order, &machine).unwrap(), 3 * (30 + 30 + 3));
    machine.sends = Sends::Blocking;
    assert_eq!(step_time(&workload, &order, &machine).unwrap(), 3 * (30 + 40 + 3));
}

/// ```text
/// stage 0  F0 F1      B0 (40–60) step F2 (63–73) B1 (73–93) step      B2 (106–126) step
/// stage 1     F0 B0 (20–40) step F1 (43–53) B1 (53–73) step F2 (76–86) B2 (86–106) step
/// ```
/// The first stage's old weights are kept from its first update, while 1 is on its way, to the end of 2, which takes those after
/// 0. The second stage keeps none, unless it has to do as the first: 1 takes the weights before 0, 2 those after 0.
#[test]
fn old_weights_come_and_go() {
    let curve = |updates, micro_batches, older: u64| {
        let (mut workload, order, machine) = chain(&[1, 1], micro_batches, updates);
        workload.stages[0].memory.older_versions = older;
        let timeline = simulate(&workload, &order, &machine).unwrap();
        (timeline.step, timeline.memory[0].curve.clone(), timeline.memory[1].curve.clone())
    };
    let (step, first, second) = curve(Updates::Stashing, 3, 0);
    assert_eq!(step, 129);
    assert_eq!(first, [(0, 120), (60, 160), (126, 120)]);
    assert_eq!(second, [(0, 120)]);
    let (step, first, second) = curve(Updates::VerticalSync, 3, 0);
    assert_eq!(step, 129);
    assert_eq!(first, [(0, 120), (60, 160), (126, 120)]);
    assert_eq!(second, [(0, 120), (40, 160), (106, 120)]);
    // A version that the order reaches is not counted twice; one that it does not is there from the start.
    assert_eq!(curve(Updates::Stashing, 3, 40).1, [(0, 120), (60, 160), (126, 120)]);
    assert_eq!(curve(Updates::Stashing, 1, 40).1, [(0, 160)]);
    // 2BW: the weights before the period's are kept until its end, and from the first update on by both stages.
    let (_, first, second) = curve(Updates::DoubleBuffered { period: 2 }, 4, 0);
    assert_eq!((first[1].1, second[1].1), (160, 160));
    assert!(first.iter().chain(&second).all(|(_, bytes)| *bytes <= 160));
}

/// Sums of tied parameters take 40 ns for each micro-batch, more than the 33 ns of a stage, and nobody waits for them.
#[test]
fn ties_are_added_up_beside_the_passes() {
    let time = |micro_batches| {
        let (mut workload, order, machine) = chain(&[1, 1], micro_batches, Updates::Stashing);
        workload.ties = vec![Tie { stages: vec![0, 1], bytes: 40 }];
        step_time(&workload, &order, &machine).unwrap()
    };
    assert_eq!(time(1), 10 + 10 + 20 + 20 + 40);
    assert_eq!(time(40) - time(30), 10 * 40);
}

/// Where sends block, each stage sends its part of those 40 ns in its own time, as often as it has gradients for it.
#[test]
fn ties_take_a_device_s_own_time_where_nothing_is_beside_it() {
    let each = |replicas: &[u32], updates| {
        let time = |micro_batches| {
            let (mut workload, order, mut machine) = chain(replicas, micro_batches, updates);
            workload.ties = vec![Tie { stages: vec![0, replicas.len() - 1], bytes: 40 }];
            machine.sends = Sends::Blocking;
            workload.stages.iter_mut().for_each(|stage| stage.accumulation = 0);
            step_time(&workload, &order, &machine).unwrap()
        };
        (time(48) - time(36)) as f64 / 12.0
    };
    assert_eq!(each(&[1, 1], Updates::Stashing), 30.0 + 3.0 + 40.0);
    assert_eq!(each(&[1, 1], Updates::DoubleBuffered { period: 4 }), 30.0 + (3.0 + 40.0) / 4.0);
    // One sum of three in a ring takes 4/3 of 40 ns: each of two replicas sends to every second, the stage behind them to each.
    let ring = (4.0_f64 / 3.0 * 40.0).ceil();
    assert_eq!(each(&[2, 1], Updates::Stashing), 30.0 + 3.0 + ring);
}

#[test]
fn programs_of_several_stages_are_refused() {
    let (workload, _, machine) = chain(&[1, 1], 4, Updates::Stashing);
    let workload = Workload { stages: vec![workload.stages[0].clone(); 4], ..workload };
    let order = order::make("interleaved-1f1b", 2, 2, 4).unwrap();
    let found = step_time(&workload, &order, &machine);
    assert_eq!(found.unwrap_err(), SimulateError::Mixed { program: 0 });
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]

    /// Whatever the replicas, nobody waits for ever, and every stage is updated as often as it should be.
    #[test]
    fn updates_never_deadlock(
        replicas in prop::collection::vec(1_u32..5, 1..5),
        micro_batches in 1_u32..40,
        period in prop::option::of(1_u32..9),
        is_tied in any::<bool>(),
    ) {
        let updates = period.map_or(Updates::Stashing, |period| Updates::DoubleBuffered { period });
        let (mut workload, order, machine) = chain(&replicas, micro_batches, updates);
        if is_tied && replicas.len() > 1 {
            workload.ties = vec![Tie { stages: vec![0, replicas.len() - 1], bytes: 7 }];
        }
        let timeline = simulate(&workload, &order, &machine).unwrap();
        let n_sums = |stage: usize, own: bool| {
            let is_sum = |task: &&Task| match task.label.work {
                Work::Reduce { stage: of, bytes, .. } => of as usize == stage && (bytes == 40) == own,
                _ => false,
            };
            timeline.tasks.iter().filter(is_sum).count() as u32
        };
        // A replica without a micro-batch takes no part.
        for (stage, &n) in replicas.iter().enumerate() {
            let updates = micro_batches.div_ceil(period.unwrap_or(1).max(n));
            prop_assert_eq!(n_sums(stage, true), if n.min(micro_batches) > 1 { updates } else { 0 });
        }
        if let Some(tie) = workload.ties.first() {
            let every = replicas[tie.stages[1]].min(replicas[0]).max(period.unwrap_or(1));
            prop_assert_eq!(n_sums(0, false), micro_batches.div_ceil(every));
        }
        // A program's passes and steps take turns on one stream.
        let own = |task: &&Task| task.label.program == 0 && task.label.stream == Stream::Compute;
        let spans: Vec<(u64, u64)> =
            timeline.tasks.iter().filter(own).map(|task| (task.start, task.end)).collect();
        prop_assert!(spans.windows(2).all(|pair| pair[0].1 <= pair[1].0));
    }

    /// No version is kept that is not counted, whatever the order of events.
    #[test]
    fn peaks_count_the_versions(replicas in prop::collection::vec(1_u32..4, 1..5), is_vertical in any::<bool>()) {
        let updates = if is_vertical { Updates::VerticalSync } else { Updates::Stashing };
        let (workload, order, machine) = chain(&replicas, 80, updates);
        let timeline = simulate(&workload, &order, &machine).unwrap();
        let kept = simulator::kept_versions(&replicas, updates);
        let mut first = 0;
        for (stage, &n) in replicas.iter().enumerate() {
            // Not every replica of a stage needs as many.
            let devices = &timeline.memory[first..first + n as usize];
            first += n as usize;
            let most = devices.iter().map(|memory| memory.peak).max().unwrap();
            let buffers = if n > 1 { 40 } else { 0 };
            let older = u64::from(kept[stage].versions - 1) * 40;
            prop_assert!(most >= 120 + older.max(buffers) && most <= 120 + older + buffers, "{} {:?}", most, kept);
        }
    }
}
