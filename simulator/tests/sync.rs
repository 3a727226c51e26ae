//! How replicas agree on gradients, simulated step after step: P3's toy, and the queue against its recurrence.
#![allow(clippy::unwrap_used)]

use proptest::prelude::*;
use simulator::{
    Layer, Link, Machine, Stage, StageMemory, Sync, SyncMode, Workload,
    collective::Algorithm,
    data_parallel::{self, Discipline},
    order::{self, Order},
    period,
};

/// Two replicas of one stage, a micro-batch each, whose servers together take a nanosecond for a byte.
fn replicas(layers: &[Layer], mode: SyncMode) -> (Workload, Order, Machine) {
    let sum = |field: fn(&Layer) -> u64| layers.iter().map(field).sum::<u64>();
    let stage = Stage {
        forward: sum(|layer| layer.forward),
        weight_gradient: sum(|layer| layer.backward),
        memory: StageMemory { gradients: sum(|layer| layer.gradients), ..StageMemory::default() },
        layers: layers.to_vec(),
        ..Stage::default()
    };
    let algorithm = Algorithm::ParameterServer { servers: 4 };
    let sync = Sync { mode, algorithm, ..Sync::default() };
    let workload = Workload { stages: vec![stage], devices: vec![0, 1], sync, ..Workload::default() };
    (workload, order::replicated(&[2], 2), Machine::uniform(2, Link { latency: 0, bandwidth: 1e9 }))
}

fn period_of(layers: &[Layer], mode: SyncMode) -> u64 {
    let (workload, order, machine) = replicas(layers, mode);
    period(&workload, &order, &machine).unwrap()
}

/// P3's toy (arXiv:1905.03960, figure 4): two layers, the second with four times the gradients.
#[test]
fn p3s_toy() {
    let layers =
        [Layer { forward: 1, backward: 1, gradients: 1 }, Layer { forward: 1, backward: 1, gradients: 4 }];
    let check = |mode, expected| assert_eq!(period_of(&layers, mode), expected, "{mode:?}");
    check(SyncMode::AfterBackward, 9);
    check(SyncMode::Bucketed, 9);
    check(SyncMode::Fifo { slice: None }, 8);
    check(SyncMode::Fifo { slice: Some(1) }, 8);
    check(SyncMode::Priority { slice: None }, 8);
    check(SyncMode::Priority { slice: Some(1) }, 7);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]

    /// The event loop's queue says what the recurrence says.
    #[test]
    fn queues_equal_the_recurrence(
        layers in prop::collection::vec((1_u64..20, 1_u64..20, 1_u64..60), 1..6),
        slice in prop::option::of(1_u64..30),
        is_priority in any::<bool>(),
    ) {
        let layers: Vec<Layer> =
            layers.into_iter().map(|(forward, backward, gradients)| Layer { forward, backward, gradients }).collect();
        let plain = layers.clone();
        let (mode, discipline) = match is_priority {
            true => (SyncMode::Priority { slice }, Discipline::Priority),
            false => (SyncMode::Fifo { slice }, Discipline::Fifo),
        };
        let expected = data_parallel::parameter_server_period(&plain, discipline, slice, |bytes| bytes);
        let found = period_of(&layers, mode);
        prop_assert!(found.abs_diff(expected) <= 1, "{found} {expected}");
    }
}
