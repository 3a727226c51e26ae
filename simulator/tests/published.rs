//! Published numbers that the models must meet, within the bands that their sources allow.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::{collections::BTreeMap, fs};

use simulator::{
    Cost, Link, Machine, Measured, Offload, Stage, StageMemory, Sync, Workload, clock,
    collective::{self, Algorithm, Collective, Group, Table},
    data_parallel::{Layer, buckets, step},
    fit_link,
    order::{Schedule, Shape, make_for_costs, replicated},
    step_time,
};

#[path = "../../tests/needs/mod.rs"]
mod needs;

#[path = "formulas/nccl.rs"]
mod nccl;
#[path = "formulas/offload.rs"]
mod offload;

use nccl::{Protocol, Transport};
use offload::HostLink;

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
    let latency = nccl::ring_latency(Protocol::Simple, Transport::Pci, n_gpus, nodes);
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
    for path in needs::outside_sets("collectives/nccl_measured_aiconfigurator.csv") {
        let text = fs::read_to_string(path).unwrap();
        let mut groups: BTreeMap<String, Vec<(f64, f64)>> = BTreeMap::new();
        for row in text.lines().skip(1) {
            let cells: Vec<&str> = row.split(',').collect();
            let (size, latency): (f64, f64) = (cells[5].parse().unwrap(), cells[6].parse().unwrap());
            groups.entry(cells[..5].join(",")).or_default().push((2.0 * size, latency * 1e6));
        }
        let mut errors = Vec::new();
        for points in groups.values() {
            for (nth, (bytes, time)) in points.iter().enumerate().skip(1).take(points.len().saturating_sub(2))
            {
                let mut others = points.clone();
                others.remove(nth);
                let found = Table::new(&others).unwrap().time(*bytes);
                errors.push((found / time - 1.0).abs());
            }
        }
        errors.sort_by(f64::total_cmp);
        let (median, p90) = (errors[errors.len() / 2], errors[errors.len() * 9 / 10]);
        println!(
            "{} points: median {:.1} %, 90th percentile {:.1} %",
            errors.len(),
            100.0 * median,
            100.0 * p90
        );
        assert!(median < 0.035 && p90 < 0.13, "median {median:.3}, 90th percentile {p90:.3}");
    }
}

/// A link fitted to measured collectives is as far off as the best constants of such a model are.
#[test]
fn fitted_links_meet_measured_collectives() {
    for path in needs::outside_sets("collectives/nccl_measured_aiconfigurator.csv") {
        let text = fs::read_to_string(path).unwrap();
        let mut groups: BTreeMap<String, Vec<Measured>> = BTreeMap::new();
        for row in text.lines().skip(1).filter(|row| row.contains(",all_reduce,half,")) {
            let cells: Vec<&str> = row.split(',').collect();
            let (size, latency): (f64, f64) = (cells[5].parse().unwrap(), cells[6].parse().unwrap());
            groups.entry(cells[..5].join(",")).or_default().push(Measured {
                collective: Collective::AllReduce,
                ranks: cells[4].parse().unwrap(),
                bytes: (2.0 * size) as u64,
                nanoseconds: latency * 1e6,
            });
        }
        let mut means: Vec<f64> = groups
            .iter()
            .filter(|(_, rows)| rows.len() >= 10)
            .map(|(name, rows)| {
                let found = fit_link(rows).expect(name);
                let mean =
                    found.errors.iter().map(|error| error.abs()).sum::<f64>() / found.errors.len() as f64;
                println!("{name}: {:?}, {:.1} % off on average", found.link, 100.0 * mean);
                mean
            })
            .collect();
        means.sort_by(f64::total_cmp);
        assert!(means.len() > 10, "{} systems", means.len());
        let median = means[means.len() / 2];
        assert!(median < 0.2, "{:.1} % off on the median system", 100.0 * median);
    }
}

/// A model of one stage whose pass back takes twice its forward pass.
fn trained(step: u64, layers: Vec<Layer>) -> Stage {
    let gradients = layers.iter().map(|layer| layer.gradients).sum();
    Stage {
        forward: step / 3,
        weight_gradient: step - step / 3,
        memory: StageMemory { gradients, ..StageMemory::default() },
        layers,
        ..Stage::default()
    }
}

/// The same over the event loop: 512 replicas of one stage, the machine's levels, flat rings as Horovod makes them.
#[test]
fn horovod_scales_as_published_in_the_event_loop() {
    let efficiency = |images_a_second: u64, parameters: u64, front: u64| {
        // A few dense layers hold `front` per cent of the parameters in a tenth of the time, and are the last.
        let step = 64 * 1_000_000_000 / images_a_second;
        let dense = 4 * parameters * front / 100;
        let layer = |share: u64, gradients: u64| Layer { forward: share, backward: 2 * share, gradients };
        let rest = 4 * parameters - dense;
        let layers: Vec<Layer> = (0..18).map(|_| layer(1, rest / 18)).chain([layer(2, dense)]).collect();
        let fusion = 64 << 20;
        let sync =
            Sync { algorithm: Algorithm::Ring, bucket: fusion, first_bucket: fusion, ..Sync::default() };
        let workload = Workload {
            stages: vec![trained(step, layers)],
            devices: (0..512).collect(),
            sync,
            ..Workload::default()
        };
        // A port a GPU, each way: a ring crosses each server's network port once. NCCL's constants for PCI and network.
        let mut machine = Machine::uniform(512, Link { latency: 5_700, bandwidth: 10e9 });
        machine.levels.push(Link { latency: 14_000, bandwidth: 3.125e9 * 0.85 });
        machine.devices.iter_mut().enumerate().for_each(|(idx, device)| device.place = vec![idx as u32 / 4]);
        step as f64 / step_time(&workload, &replicated(&[512], 512), &machine).unwrap() as f64
    };
    // Single Pascal GPUs: 147 images a second for VGG-16, 104 for ResNet-101; 89 % of VGG's parameters are dense.
    let (vgg, resnet) = (efficiency(147, 138_357_544, 89), efficiency(104, 44_549_160, 5));
    println!("512 GPUs: VGG-16 {vgg:.3}, ResNet-101 {resnet:.3}");
    assert!((0.60..0.76).contains(&vgg), "VGG-16 {vgg:.3}");
    assert!((0.82..0.95).contains(&resnet), "ResNet-101 {resnet:.3}");
}

/// ImageNet in an hour (arXiv:1706.02677): ResNet-50, 32 images on each of 8 to 256 P100 in servers of 8, 50 Gbit/s
/// between them, about 90 % as fast a GPU. 90 epochs of 1,281,167 images in 3,600 s on 256 are 125 images a second on
/// each, so that 8 do 139. DDP's buckets behind the backward pass must allow that; what is missing to it is not sync.
#[test]
fn ddp_scales_as_published() {
    let step_on = |n_gpus: u32| {
        let step = 32 * 1_000_000_000 / 139_u64;
        // 25.6 million parameters, most of them in the last of 16 blocks of equal time.
        let layer =
            |quarters: u64| Layer { forward: 1, backward: 2, gradients: quarters * 4 * 25_600_000 / 64 };
        let layers: Vec<Layer> = (0..16).map(|block| layer([1, 2, 4, 9][block / 4])).collect();
        let devices = 0..n_gpus as usize;
        let sync = Sync { algorithm: Algorithm::Hierarchical, ..Sync::default() };
        let workload = Workload {
            stages: vec![trained(step, layers)],
            devices: devices.clone().collect(),
            sync,
            ..Workload::default()
        };
        let mut machine = Machine::uniform(n_gpus as usize, Link { latency: 5_700, bandwidth: 18e9 });
        machine.levels.push(Link { latency: 14_000, bandwidth: 6.25e9 / 8.0 });
        for device in devices {
            machine.devices[device].place = vec![device as u32 / 8];
        }
        step_time(&workload, &replicated(&[n_gpus], n_gpus), &machine).unwrap() as f64
    };
    let efficiency = step_on(8) / step_on(256);
    println!("256 GPUs: ResNet-50 {efficiency:.3} of 8");
    assert!((0.90..1.0).contains(&efficiency), "{efficiency:.3}");
}

/// torchgpipe's tables (Tesla P40): speed-ups that its balances, micro-batches and checkpoints allow.
///
/// The published balances are by layers, not by time, so a stage's time is known only as an average: the simulated
/// speed-up with equal stages is a ceiling, and what is published lies within so many per cent below it.
#[test]
fn torchgpipes_speed_ups_are_below_the_ceiling() {
    // Partitions and micro-batches of two experiments with checkpoints always, and their images a second.
    let check = |name: &str, [few, many]: [(u32, u32, f64); 2], most_below: f64| {
        let rate = |(ranks, micro_batches, _): (u32, u32, f64)| {
            // Forward, the forward again and the backward of one image, over equal stages; micro-batches equally large.
            let layers = u64::from(840 / ranks);
            let cost = Cost { forward: layers, input_gradient: 2 * layers, weight_gradient: layers, hop: 0 };
            let shape = Shape { ranks, chunks: 1, micro_batches };
            let order = make_for_costs(Schedule::GPipe, shape, cost).unwrap();
            f64::from(micro_batches) / clock(&order, &cost).unwrap().makespan as f64
        };
        let (ceiling, published) = (rate(many) / rate(few), many.2 / few.2);
        println!("{name}: published {published:.2}, at most {ceiling:.2}");
        let below = 1.0 - published / ceiling;
        assert!(
            (-0.15..most_below).contains(&below),
            "{name}: published {published:.2}, at most {ceiling:.2}"
        );
    };
    // ResNet-101: 370 layers; 2, 1,667, 256 and 150 micro-batches.
    check("ResNet-101, 2 to 1", [(1, 2, 81.796), (2, 1667, 135.539)], 0.20);
    check("ResNet-101, 4 to 1", [(1, 2, 81.796), (4, 256, 265.958)], 0.20);
    check("ResNet-101, 8 to 1", [(1, 2, 81.796), (8, 150, 411.662)], 0.40);
    // U-Net (5, 64).
    check("U-Net, 2 to 1", [(1, 2, 24.456), (2, 32, 35.502)], 0.35);
    check("U-Net, 4 to 1", [(1, 2, 24.456), (4, 16, 67.042)], 0.20);
    check("U-Net, 8 to 1", [(1, 2, 24.456), (8, 40, 88.497)], 0.50);
    // AmoebaNet-D (18, 256), relative to as many micro-batches on fewer partitions.
    check("AmoebaNet-D, 4 to 2", [(2, 32, 47.386), (4, 32, 72.412)], 0.20);
    check("AmoebaNet-D, 8 to 2", [(2, 32, 47.386), (8, 32, 132.413)], 0.20);
}

/// Out-of-core training of five models (20 epochs of 8 steps of 32, the first 5 left out): what is on the GPU, naive,
/// pinned, non-blocking, pinned and non-blocking; parameters.
const OFFLOADED: [(&str, [f64; 5], u64); 5] = [
    ("VGG19 (K80)", [94.4539, 179.9194, 194.5803, 179.8007, 190.4785], 139_578_434),
    ("VGG19 (V100)", [30.0673, 150.5116, 166.7242, 153.9791, 160.9983], 139_578_434),
    ("AlexNet (V100)", [24.1323, 42.2092, 47.4363, 41.5072, 47.5516], 57_012_034),
    ("ResNet50 (V100)", [26.1702, 113.5793, 110.0957, 113.6041, 109.3674], 23_512_130),
    ("InceptionV3 (V100)", [32.2195, 124.2807, 120.2433, 123.1403, 119.2649], 24_348_900),
];

/// Two rates of each column are fitted to its naive and pinned row; the other two rows follow within 15 %.
///
/// All four modes wait for their copies: asynchronous calls on the stream that computes hide nothing, so the last row
/// is the pinned one again and not the overlap that a copy stream would give.
#[test]
fn the_offload_table_follows_from_two_rates() {
    const STEPS: f64 = 155.0;
    for (name, [alone, naive, pinned, non_blocking, both], parameters) in OFFLOADED {
        // Parameters come in, gradients go out.
        let bytes = 4 * parameters;
        let rate = |total: f64| 2.0 * bytes as f64 / ((total - alone) / STEPS);
        let link = HostLink { out: rate(pinned), back: rate(pinned), pageable: rate(naive) / rate(pinned) };
        let compute = (alone / STEPS * 1e9) as u64;
        let layer = offload::Layer { forward: compute / 3, backward: compute - compute / 3, bytes };
        let time = |mode| STEPS * offload::step(&[layer], link, mode) as f64 / 1e9;
        let check = |mode, published: f64| {
            let found = time(mode);
            println!("{name}, {mode:?}: {found:.1} s, published {published:.1} s");
            assert!(
                (found / published - 1.0).abs() < 0.15,
                "{name}, {mode:?}: {found:.1}, published {published:.1}"
            );
        };
        check(Offload::Naive, naive);
        check(Offload::Pinned, pinned);
        check(Offload::NonBlocking, non_blocking);
        // One layer with one buffer: nothing to hide behind.
        check(Offload::Overlapped { depth: 1 }, both);
    }
}

/// The table's own copy times explain two of its five columns: elsewhere half a second of each step is something else.
#[test]
fn copies_alone_do_not_explain_the_offload_table() {
    // Seconds of copies to the GPU and back in a step.
    let copies = [0.1069 + 0.4836, 0.0678 + 0.2148, 0.0285 + 0.0762, 0.0250 + 0.0461, 0.0352 + 0.0555];
    let explained = |((_, [alone, naive, ..], _), copies): &((&str, [f64; 5], u64), f64)| {
        ((alone + 155.0 * copies) / naive - 1.0).abs() < 0.15
    };
    let columns: Vec<bool> = OFFLOADED.into_iter().zip(copies).map(|column| explained(&column)).collect();
    assert_eq!(columns, [true, false, true, false, false]);
    for (at, copies) in [(1, copies[1]), (3, copies[3]), (4, copies[4])] {
        let [alone, naive, ..] = OFFLOADED[at].1;
        let rest = (naive - alone) / 155.0 - copies;
        assert!((0.49..0.51).contains(&rest), "{}: {rest:.3} s", OFFLOADED[at].0);
    }
}
