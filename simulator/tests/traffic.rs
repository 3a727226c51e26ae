//! How many bytes a step moves between devices, counted by hand.
#![allow(clippy::unwrap_used)]

use simulator::{
    Link, Machine, Sharding, Stage, StageMemory, Sync, Transfer, Workload,
    collective::Algorithm,
    order::{self, Order},
    simulate,
};

/// Gradients, and parameters, of the stage.
const BYTES: u64 = 1200;

fn stage() -> Stage {
    let memory = StageMemory { parameters: BYTES, gradients: BYTES, ..StageMemory::default() };
    Stage { forward: 10, input_gradient: 10, weight_gradient: 10, memory, ..Stage::default() }
}

fn sent(workload: &Workload, order: &Order) -> u64 {
    let machine = Machine::uniform(workload.devices.len(), Link { latency: 1, bandwidth: 1e9 });
    simulate(workload, order, &machine).unwrap().sent
}

/// Four replicas of one stage, two micro-batches each.
#[test]
fn replicas_move_what_they_add_up_and_gather() {
    let check = |sync: Sync, expected: u64| {
        let workload =
            Workload { stages: vec![stage()], devices: vec![0, 1, 2, 3], sync, ..Workload::default() };
        assert_eq!(sent(&workload, &order::replicated(&[4], 8)), expected, "{sync:?}");
    };
    // Each byte is added up along three hops and handed back along three.
    let all_reduce = 2 * 3 * BYTES;
    let (scatter, gather) = (3 * BYTES, 3 * BYTES);
    let own = Sync::default();
    check(own, all_reduce);
    check(Sync { algorithm: Algorithm::Tree, ..own }, all_reduce);
    check(Sync { algorithm: Algorithm::ParameterServer { servers: 2 }, ..own }, 2 * 4 * BYTES);
    check(Sync { sharding: Sharding::Optimizer, ..own }, scatter + gather);
    check(Sync { sharding: Sharding::Gradients, ..own }, 2 * scatter + gather);
    check(Sync { sharding: Sharding::Parameters, ..own }, 2 * scatter + 2 * 2 * gather);
    // Two groups of two scatter and gather a byte each; what each of them keeps goes there and back between the groups.
    let grouped = Sync { sharding: Sharding::Optimizer, sharding_group: Some(2), ..own };
    check(grouped, 2 * BYTES + 2 * 2 * (BYTES / 2) + 2 * BYTES);
}

#[test]
fn stages_move_activations_and_their_gradients() {
    let transfers = vec![Transfer { from: 0, to: 1, forward: 10, backward: 4 }];
    let pipeline =
        Workload { stages: vec![stage(), stage()], transfers, devices: vec![0, 1], ..Workload::default() };
    let order = order::make("1f1b", 2, 1, 3).unwrap();
    assert_eq!(sent(&pipeline, &order), 3 * (10 + 4));
    // Each device of a group sends its part.
    let shared = Workload { devices: vec![0, 1], peers: vec![vec![2], vec![3]], ..pipeline };
    let machine = Machine::uniform(4, Link { latency: 1, bandwidth: 1e9 });
    assert_eq!(simulate(&shared, &order, &machine).unwrap().sent, 2 * 3 * (10 + 4));
}
