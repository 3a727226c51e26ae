//! Predictions follow a device's figures without a jump, and do not know its name.

use cost_model::{CostModel, Costs, PredictOptions, predict};
use graph::{BlockId, BuildOptions, ModelGraph, OperatorCosts};
use schema::{Bytes, BytesPerSecond, DeviceType, FlopsPerSecond, Seconds, catalogue};

/// How far a figure moves at a time.
const STEP: f64 = 1.005;
/// How far a block's time may move with it.
const MOST: f64 = 1.01;

/// A figure of a device: its name, the range in which devices are found, and how it is set.
type Figure = (&'static str, [f64; 2], fn(&mut DeviceType, f64));

const FIGURES: [Figure; 14] = [
    ("memory", [1e9, 4e11], |device, figure| device.memory = Bytes(figure as u64)),
    ("memory_bandwidth", [1e10, 2e13], |device, figure| device.memory_bandwidth = BytesPerSecond(figure)),
    ("peak.float32", [1e11, 1e15], |device, figure| {
        device.peak.insert("float32".into(), FlopsPerSecond(figure));
    }),
    ("peak.tf32", [1e11, 1e15], |device, figure| {
        device.peak.insert("tf32".into(), FlopsPerSecond(figure));
    }),
    ("host_bandwidth", [1e9, 1e12], |device, figure| device.host_bandwidth = Some(BytesPerSecond(figure))),
    ("link_bandwidth", [1e9, 2e12], |device, figure| device.link_bandwidth = Some(BytesPerSecond(figure))),
    ("multiprocessors", [1e3, 1e4], |device, figure| device.multiprocessors = Some(figure as u32)),
    ("l2", [1e6, 1e9], |device, figure| device.l2 = Some(Bytes(figure as u64))),
    ("launch", [1e-7, 1e-4], |device, figure| device.launch = Some(Seconds(figure))),
    ("host_call", [1e-7, 1e-4], |device, figure| device.host_call = Some(Seconds(figure))),
    ("product_slowdown", [0.5, 5.0], |device, figure| device.product_slowdown = Some(figure)),
    ("copy_slowdown", [0.5, 5.0], |device, figure| device.copy_slowdown = Some(figure)),
    ("attention_slowdown", [0.5, 5.0], |device, figure| device.attention_slowdown = Some(figure)),
    ("sustained_slowdown", [0.5, 5.0], |device, figure| device.sustained_slowdown = Some(figure)),
];

struct Model {
    graph: ModelGraph,
    costs: OperatorCosts,
}

impl Model {
    fn read(name: &str) -> Self {
        let trace = std::fs::read(format!("../fixtures/traces/{name}.pt")).expect("a trace");
        let program = tracer::read_archive(&trace).expect("a program");
        let graph = graph::build(&program, &BuildOptions::default()).expect("a graph");
        let costs = graph::costs(&graph);
        Self { graph, costs }
    }

    fn predict(&self, name: &str, device: &DeviceType) -> Costs {
        let model = CostModel::shipped(device).unwrap_or_else(|| CostModel::of_data_sheet(name, device));
        predict(&self.graph, &self.costs, &model, &PredictOptions::default())
    }

    /// Returns the forward and backward seconds of every block.
    fn times(&self, device: &DeviceType) -> Vec<[f64; 2]> {
        let costs = self.predict("any", device);
        let blocks = (0..self.graph.blocks.len()).map(|index| self.graph.blocks[index].id);
        let time = |block: BlockId| {
            let block = costs.block(&self.graph, block);
            [block.forward.seconds, block.backward().seconds]
        };
        blocks.map(time).collect()
    }
}

#[track_caller]
fn assert_near(before: &[[f64; 2]], after: &[[f64; 2]], what: &str) {
    // Where a host begins to be slower than the device, calls that compute nothing begin to take a part of the whole.
    let whole = before[0];
    for (was, is) in before.iter().zip(after) {
        for pass in 0..2 {
            let (was, is) = (was[pass], is[pass]);
            let is_near = (1.0 / MOST..=MOST).contains(&(is / was)) || (is - was).abs() < 1e-3 * whole[pass];
            assert!(was == is || is_near, "{what}: from {was:e} s to {is:e}");
        }
    }
}

#[test]
fn no_figure_makes_a_time_jump() {
    let models = ["cnn_basic", "gpt2_tiny"].map(Model::read);
    for name in ["T4", "RTX-4090", "CPU-EPYC-ZEN4-2C"] {
        for (figure, [from, to], set) in FIGURES {
            let mut device = catalogue()[name].clone();
            let mut value = from;
            set(&mut device, value);
            let mut before: Vec<_> = models.iter().map(|model| model.times(&device)).collect();
            while value < to {
                value *= STEP;
                set(&mut device, value);
                let after: Vec<_> = models.iter().map(|model| model.times(&device)).collect();
                for (before, after) in before.iter().zip(&after) {
                    assert_near(before, after, &format!("{name}, {figure} of {value:e}"));
                }
                before = after;
            }
        }
    }
}

/// Convolutions of every sort, pools and norms on every device without measured curves.
#[test]
fn no_device_stands_at_a_jump() {
    let model = Model::read("amoebanet_6_small");
    for (name, device) in catalogue().iter().filter(|(_, device)| CostModel::shipped(device).is_none()) {
        let times = model.times(device);
        for factor in [STEP, 1.0 / STEP] {
            let mut near = device.clone();
            near.memory_bandwidth.0 *= factor;
            assert_near(&times, &model.times(&near), &format!("{name}, memory_bandwidth"));
            let mut near = device.clone();
            near.peak.values_mut().for_each(|rate| rate.0 *= factor);
            assert_near(&times, &model.times(&near), &format!("{name}, peak"));
        }
    }
}

/// A device of the user's own, in each architecture: what is not said is not guessed from its rates.
#[test]
fn no_architecture_makes_a_time_jump() {
    let model = Model::read("gpt2_tiny");
    for architecture in [None, Some("sm61"), Some("sm86"), Some("sm89"), Some("sm90"), Some("gfx1100")] {
        let device = |bandwidth: f64| DeviceType {
            memory_bandwidth: BytesPerSecond(bandwidth),
            peak: [("float32".to_string(), FlopsPerSecond(2e13))].into(),
            architecture: architecture.map(str::to_string),
            ..DeviceType::default()
        };
        let of_none = DeviceType { architecture: None, ..device(3.49e11) };
        assert_eq!(model.times(&device(3.49e11)), model.times(&of_none), "{architecture:?}");
        let (slow, fast) = (model.times(&device(3.49e11)), model.times(&device(3.51e11)));
        for (slow, fast) in slow.iter().flatten().zip(fast.iter().flatten()) {
            assert!(*fast <= slow * 1.0001 && *slow <= fast * MOST, "{architecture:?}: {slow:e}, {fast:e}");
        }
    }
}

#[test]
fn a_devices_name_changes_nothing() {
    let model = Model::read("unet_small");
    for (name, device) in catalogue() {
        for other in ["RTX-9090", "prototype", "CPU-EPYC-ZEN4-1T"] {
            assert_eq!(model.predict(name, device), model.predict(other, device), "{name} as {other}");
        }
    }
}
