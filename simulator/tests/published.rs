//! Published numbers that the models must meet, within the bands that their sources allow.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::{collections::BTreeMap, fs, path::PathBuf};

use simulator::{
    Cost, Link, clock,
    collective::{self, Algorithm, Collective, Group, Protocol, Table, Transport},
    data_parallel::{Layer, buckets, step},
    order::{Schedule, Shape, make_for_costs},
};

/// GPipe, table 2: Transformer-48 on K accelerators, M = 32 micro-batches, throughput relative to K = 2.
#[test]
fn gpipes_transformer_scales_as_published() {
    let time = |accelerators: u32| {
        // 48 equal layers; the backward is twice the forward and runs it again.
        let layers = u64::from(48 / accelerators);
        let cost = Cost { forward: layers, input_gradient: 2 * layers, weight_gradient: layers, hop: 0 };
        let shape = Shape { ranks: accelerators, chunks: 1, micro_batches: 32 };
        clock(&make_for_costs(Schedule::GPipe, shape, cost).unwrap(), &cost).unwrap().makespan as f64
    };
    let check = |accelerators, published: f64| {
        let found = time(2) / time(accelerators);
        assert!(
            (found / published - 1.0).abs() < 0.05,
            "K = {accelerators}: {found:.3}, published {published:.3}"
        );
    };
    check(4, 3.4 / 1.8);
    check(8, 6.3 / 1.8);
}

/// Efficiency of `n_gpus` against one, gradients in 64 MiB fusion buffers, NCCL rings over 25 Gbit/s between servers.
fn horovod(layers: &[Layer], n_gpus: u32) -> f64 {
    let nodes = n_gpus / 4;
    // What RoCE carries of 25 Gbit/s, after headers and NCCL's simple protocol.
    let network = Link { latency: 0, bandwidth: 3.125e9 * 0.85 };
    let group = Group { nodes, per_node: 4, inner: Link { latency: 0, bandwidth: 10e9 }, outer: network };
    let latency = collective::nccl_ring_latency(Protocol::Simple, Transport::Pci, n_gpus, nodes);
    let all_reduce =
        |bytes| collective::time(Collective::AllReduce, Algorithm::Ring, bytes, &group) + latency;
    let alone: u64 = layers.iter().map(|layer| layer.forward + layer.backward).sum();
    alone as f64 / step(layers, &buckets(layers, 64 << 20, 64 << 20), all_reduce, 0) as f64
}

/// Horovod's benchmarks: 512 Pascal GPUs, 128 servers: 90 % for ResNet-101 and Inception, 68 % for VGG-16.
#[test]
fn horovod_scales_as_published() {
    let millisecond = 1_000_000;
    // 64 images at 147 a second; nine tenths of the parameters are in three layers that take little time.
    let convolutions = (0..13).map(|_| Layer {
        forward: 11 * millisecond,
        backward: 22 * millisecond,
        gradients: 4_530_000,
    });
    let dense = [411_000_000, 67_100_000, 16_400_000].map(|gradients| Layer {
        forward: millisecond,
        backward: 2 * millisecond,
        gradients,
    });
    let vgg: Vec<Layer> = convolutions.chain(dense).collect();
    // 64 images at 104 a second, the parameters spread over the depth.
    let resnet =
        vec![Layer { forward: 6 * millisecond, backward: 12 * millisecond, gradients: 5_240_000 }; 34];
    let (vgg, resnet) = (horovod(&vgg, 512), horovod(&resnet, 512));
    assert!((0.60..0.76).contains(&vgg), "VGG-16 {vgg:.3}");
    assert!((0.82..0.95).contains(&resnet), "ResNet-101 {resnet:.3}");
}

/// NCCL's link constants meet the measured bus bandwidths of whole NVLink systems.
#[test]
fn link_constants_meet_measured_bandwidth() {
    let check = |links: f64, each: f64, measured: f64, what: &str| {
        let model = links * each * 0.92;
        assert!((model / measured - 1.0).abs() < 0.025, "{what}: {model:.0} of {measured} GB/s");
    };
    check(12.0, 20.0, 222.0, "A100 all-reduce of 8");
    check(18.0, 20.6, 336.0, "H100 all-gather of 8");
}

/// Leave one out: a table without a point says what was measured there.
#[test]
fn tables_meet_measured_collectives() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../shared/data/collectives/nccl_measured_aiconfigurator.csv");
    let Ok(text) = fs::read_to_string(&path) else {
        println!("skipped: the measured collectives are not at {}", path.display());
        return;
    };
    let mut groups: BTreeMap<String, Vec<(f64, f64)>> = BTreeMap::new();
    for row in text.lines().skip(1) {
        let cells: Vec<&str> = row.split(',').collect();
        let (size, latency): (f64, f64) = (cells[5].parse().unwrap(), cells[6].parse().unwrap());
        groups.entry(cells[..5].join(",")).or_default().push((2.0 * size, latency * 1e6));
    }
    let mut errors = Vec::new();
    for points in groups.values() {
        for (nth, (bytes, time)) in points.iter().enumerate().skip(1).take(points.len().saturating_sub(2)) {
            let mut others = points.clone();
            others.remove(nth);
            let found = Table::new(&others).unwrap().time(*bytes);
            errors.push((found / time - 1.0).abs());
        }
    }
    errors.sort_by(f64::total_cmp);
    let (median, p90) = (errors[errors.len() / 2], errors[errors.len() * 9 / 10]);
    println!("{} points: median {:.1} %, 90th percentile {:.1} %", errors.len(), 100.0 * median, 100.0 * p90);
    assert!(median < 0.035 && p90 < 0.13, "median {median:.3}, 90th percentile {p90:.3}");
}
