//! Random problems for tests, the same in every run.

use indexmap::IndexMap;
use schema::{Bytes, BytesPerSecond, Cluster, Device, DeviceType, Level, Link, Seconds};

use crate::{Block, Machine, MachineDevice, MachineLevel, Problem, Tie, Training, Value};

#[path = "../../../tests/dice/mod.rs"]
mod numbers;
pub(crate) use numbers::{Dice, cases, is_skipped};

/// A problem with small numbers: uniform machines have one level and room, others differ in everything.
pub(crate) fn problem(
    dice: &mut Dice,
    n_blocks: usize,
    n_devices: usize,
    is_chain: bool,
    is_uniform: bool,
) -> Problem {
    let block = |index: usize, dice: &mut Dice| Block {
        path: format!("b{index}"),
        joined: Vec::new(),
        forward: Seconds(dice.below(20) as f64 / 2.0),
        input_gradient: Seconds(dice.below(10) as f64),
        weight_gradient: Seconds(1.0 + dice.below(10) as f64),
        once: Seconds(0.0),
        parameters: Bytes(dice.below(40)),
        activations: Bytes(dice.below(20)),
        kept: Bytes(0),
        left_out: Seconds(0.0),
        light: None,
        waiting: Bytes(0),
        workspace: Bytes(dice.below(5)),
        is_operator: false,
        recompute: None,
    };
    let blocks = (0..n_blocks).map(|index| block(index, dice)).collect();
    let mut values = Vec::new();
    for from in 0..n_blocks {
        let to: Vec<usize> = if is_chain {
            (from + 1..n_blocks.min(from + 2)).collect()
        } else {
            (from + 1..n_blocks).filter(|_| dice.below(3) == 0).collect()
        };
        if !to.is_empty() {
            let forward = Bytes(dice.below(30));
            let backward = if is_uniform || dice.flip() { forward } else { Bytes(0) };
            values.push(Value { from: Some(from), to, forward, backward });
        }
    }
    let ties = if !is_uniform && dice.below(4) == 0 && n_blocks > 2 {
        vec![Tie { blocks: vec![0, n_blocks - 1], parameters: Bytes(dice.below(30)) }]
    } else {
        Vec::new()
    };
    let device = |index: usize, dice: &mut Dice| MachineDevice {
        name: format!("d{index}"),
        speed: if is_uniform { 1.0 } else { 1.0 + dice.below(2) as f64 },
        memory: Bytes(if is_uniform { 1_000_000 } else { 150 + dice.below(500) }),
        // In some problems gradients take as long to add up as a small block does.
        memory_bandwidth: BytesPerSecond(if n_blocks.is_multiple_of(3) { 50.0 } else { 1e3 }),
        host_bandwidth: BytesPerSecond(4.0),
        place: if is_uniform { vec![] } else { vec![(index / 2) as u32] },
    };
    let devices = (0..n_devices).map(|index| device(index, dice)).collect();
    let level = |dice: &mut Dice| MachineLevel {
        bandwidth: BytesPerSecond(1.0 + dice.below(20) as f64),
        latency: Seconds(dice.below(2) as f64 / 10.0),
    };
    let levels = if is_uniform { vec![level(dice)] } else { vec![level(dice), level(dice)] };
    // The script's passes cost as much as a small block does; nothing, in a half of the problems.
    let host_overhead = Seconds(if n_blocks.is_multiple_of(2) { 0.0 } else { 1.5 });
    let (recompute, offload) = (dice.flip(), dice.below(4) == 0);
    let training = Training { recompute, offload, host_overhead, ..Training::default() };
    Problem {
        blocks,
        values,
        ties,
        machine: Machine { devices, levels, links: Vec::new(), overlaps: is_uniform || dice.flip() },
        training,
        begins: None,
        pins: Vec::new(),
    }
}

/// The machine as a cluster; speeds are in the stages' costs already.
pub(crate) fn cluster(machine: &Machine) -> Cluster {
    let mut types = IndexMap::new();
    let mut devices: IndexMap<&str, Device> = IndexMap::new();
    for device in &machine.devices {
        let type_ = format!("{} {} {}", device.memory.0, device.host_bandwidth.0, device.memory_bandwidth.0);
        types.entry(type_.clone()).or_insert_with(|| DeviceType {
            memory: device.memory,
            memory_bandwidth: device.memory_bandwidth,
            host_bandwidth: Some(device.host_bandwidth),
            ..DeviceType::default()
        });
        let place = device.place.clone();
        devices.entry(&device.name).or_insert_with(|| Device { name: device.name.clone(), type_, place });
    }
    let levels = machine.levels.iter().enumerate().map(|(index, level)| Level {
        name: index.to_string(),
        bandwidth: level.bandwidth,
        latency: level.latency,
    });
    let links = machine.links.iter().map(|(from, to, level)| Link {
        from: from.clone(),
        to: to.clone(),
        bandwidth: level.bandwidth,
        latency: level.latency,
    });
    Cluster {
        types,
        devices: devices.into_values().collect(),
        levels: levels.collect(),
        links: links.collect(),
    }
}
