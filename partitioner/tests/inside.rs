//! The search inside operators on the networks of the papers. Times are printed with `--nocapture`.

#![allow(clippy::print_stderr)]

mod inside {
    pub mod integer_program;
    pub mod nets;

    use partitioner::inside::{Choices, Cost};
}

use std::time::Instant;

use inside::{
    integer_program::solved,
    nets::{Devices, Net, alexnet, inception_v3, vgg16},
};
use partitioner::inside::{Choices, Cost, Limits, Matrix, Repeated, Space, eliminate, split};

fn devices(net: &Net, link: f64) -> Devices<'_> {
    Devices { net, peak: 8e12, memory: 350e9, link, latency: 10e-6, is_bus: false }
}

#[test]
fn the_dense_layers_of_alexnet_follow_the_link() {
    // FlexFlow's figure 10b at a slow link: convolutions on both devices, dense layers on one.
    let dense: [(f64, [[usize; 4]; 3]); 4] = [
        (3e9, [[1, 1, 1, 1], [1, 1, 1, 1], [1, 1, 1, 1]]),
        (6e9, [[1, 2, 1, 1], [1, 2, 1, 1], [1, 1, 1, 1]]),
        (12e9, [[1, 2, 1, 1], [1, 2, 1, 1], [1, 1, 1, 1]]),
        (24e9, [[1, 2, 1, 1], [1, 2, 1, 1], [1, 2, 1, 1]]),
    ];
    for (link, expected) in dense {
        let net = alexnet(64, false);
        let devices = Devices { is_bus: true, ..devices(&net, link) };
        let space = Space::new(&net.layers, 2, &devices);
        let found = eliminate(&space.choices, |cost| cost.seconds + cost.hidden);
        let each: Vec<[usize; 4]> =
            (0..net.layers.len()).map(|layer| space.of_layer(layer, &found.picks).result).collect();
        assert_eq!(each[..9], [[2, 1, 1, 1]; 9], "convolutions and pools at {link:e}");
        assert_eq!(each[9..12], expected, "dense layers at {link:e}");
    }
}

#[test]
fn networks_are_split_next_to_optimally() {
    let nets: [(&str, Net, usize); 7] = [
        ("AlexNet", alexnet(512, false), 4),
        ("AlexNet", alexnet(512, false), 16),
        ("VGG-16", vgg16(512, false), 4),
        ("VGG-16", vgg16(512, false), 16),
        ("Inception-v3", inception_v3(512, false), 4),
        ("Inception-v3", inception_v3(512, false), 16),
        ("Inception-v3 with sums split", inception_v3(128, true), 4),
    ];
    for (name, net, n_devices) in nets {
        let start = Instant::now();
        let space = Space::new(&net.layers, n_devices, &devices(&net, 12e9));
        let tables = start.elapsed();
        eliminate(&space.choices, |cost| cost.seconds + cost.hidden);
        let once = start.elapsed() - tables;
        let even = space.data_parallel();
        let limits = Limits { exposed: 1.0 / 3.0, bytes: f64::INFINITY };
        let found =
            split(&space.choices, limits, std::slice::from_ref(&even)).expect("nothing limits memory");
        let even = space.choices.totals(&even).step(limits.exposed);
        eprintln!(
            "{name} on {n_devices}: tables {tables:?}, one elimination {once:?}, {} in all",
            found.rounds
        );
        assert!(found.gap() <= 1e-3, "{name} on {n_devices}: {}", found.gap());
        assert!(found.bound <= found.step && found.step <= even, "{name} on {n_devices}: {found:?}, {even}");
        // Half of what the fastest split keeps forces another one.
        let tight = Limits { bytes: 0.5 * found.totals.bytes, ..limits };
        if let Ok(tight) = split(&space.choices, tight, &[]) {
            assert!(tight.totals.bytes <= 0.5 * found.totals.bytes && tight.step >= found.bound, "{name}");
            assert!(tight.gap() < 0.05, "{name} on {n_devices} in half of the memory: {}", tight.gap());
        }
    }
}

#[test]
fn a_transformer_is_folded() {
    // Norm, projections, attention, sum, norm, two products: each with five layouts, residuals around both halves.
    const LAYOUTS: usize = 5;
    const LAYERS: usize = 96;
    let mut state = 1_u64;
    let mut number = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f64 / 1024.0
    };
    let mut layer = Choices::default();
    for _ in 0..11 {
        let node = (0..LAYOUTS).map(|_| Cost { seconds: number().round(), ..Cost::default() });
        layer.nodes.push(node.collect());
    }
    for (a, b) in
        [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (0, 5), (5, 6), (6, 7), (7, 8), (8, 9), (5, 10), (9, 10)]
    {
        layer.edges.push((a, b, Matrix::from_fn(LAYOUTS, LAYOUTS, |_, _| number().round()).into()));
    }
    let start = Instant::now();
    let folded = Repeated::new(&layer, 0, 10, LAYERS, |cost| cost.seconds);
    let cells = folded.matrix().cells();
    let best = (0..cells.len()).min_by(|&a, &b| cells[a].total_cmp(&cells[b])).expect("there are layouts");
    let picks = folded.picks(best / LAYOUTS, best % LAYOUTS);
    eprintln!("{LAYERS} layers folded in {:?}", start.elapsed());

    let mut whole = Choices { nodes: vec![vec![Cost::default(); LAYOUTS]], edges: Vec::new() };
    let mut chosen = vec![picks[0][0]];
    for (index, inside) in picks.iter().enumerate() {
        let at = |node: usize| 10 * index + node;
        whole.nodes.extend(layer.nodes[1..].iter().cloned());
        whole.edges.extend(layer.edges.iter().map(|(a, b, matrix)| (at(*a), at(*b), matrix.clone())));
        chosen.extend(&inside[1..]);
    }
    let unfolded = eliminate(&whole, |cost| cost.seconds);
    assert_eq!((unfolded.value, unfolded.bound), (cells[best], cells[best]));
    assert_eq!(whole.totals(&chosen).seconds, cells[best]);
}

#[test]
fn networks_are_split_as_an_integer_program_says() {
    for (name, net, n_devices) in [
        ("AlexNet", alexnet(64, false), 2),
        ("VGG-16", vgg16(64, false), 2),
        ("Inception-v3", inception_v3(64, false), 4),
    ] {
        let space = Space::new(&net.layers, n_devices, &devices(&net, 12e9));
        let found = eliminate(&space.choices, |cost| cost.seconds + cost.hidden);
        let start = Instant::now();
        let best =
            solved(&space.choices, |cost| cost.seconds + cost.hidden, f64::INFINITY).unwrap_or(f64::INFINITY);
        eprintln!(
            "{name} on {n_devices}: {:.3} ms, the program in {:.1?}",
            1e3 * found.value,
            start.elapsed()
        );
        assert!((found.value / best - 1.0).abs() < 1e-5, "{name}: {} and {best}", found.value);
    }
}
