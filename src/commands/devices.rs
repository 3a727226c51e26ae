//! `model-analyze devices`: the catalogue, or all figures of one device.

use clap::Args;
use cost_model::CostModel;
use schema::{ANSWER_VERSION, DeviceAnswer, DeviceType, DevicesAnswer, catalogue, find_device};

use crate::{
    columns::{columns, rate, table},
    cost_models::unknown_device,
    failure::Failure,
    output::{Format, Output},
};

/// Data types of the table: those used in training.
const DTYPES: [&str; 5] = ["float32", "tf32", "bfloat16", "float16", "float8"];

/// Arguments of `devices`.
#[derive(Args)]
#[command(after_help = "Examples:
  model-analyze devices
  model-analyze devices h100
  model-analyze devices --format json

Peaks are dense, in TFLOP/s. `link` is the bandwidth of a device's port to the others of its node, each way; without one they communicate over
the host's. If a cost model ships, times come from measurements of the device or of another with the same chip; else from its data
sheet. A cluster file can describe other devices, or set other figures for these.")]
pub struct Devices {
    /// A device, by name or alias: shows all its figures with their sources
    name: Option<String>,
    /// Output format
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

impl Devices {
    /// Prints the table, or one device.
    pub fn run(self, output: &mut Output) -> Result<(), Failure> {
        let devices = match &self.name {
            None => catalogue().iter().map(|(name, figures)| answer(name, figures)).collect(),
            Some(name) => {
                let own = indexmap::IndexMap::new();
                let (name, figures) = find_device(name, &own).map_err(|error| unknown_device(&error))?;
                vec![answer(name, figures)]
            }
        };
        match (self.format, devices.as_slice()) {
            (Format::Json, _) => {
                let answer = DevicesAnswer { schema_version: ANSWER_VERSION, devices };
                output.json(&serde_json::to_value(&answer).map_err(Failure::input)?)
            }
            (Format::Text, [one]) if self.name.is_some() => output.text(&details(one)),
            (Format::Text, _) => output.text(&listed(&devices)),
        }
    }
}

fn answer(name: &str, figures: &DeviceType) -> DeviceAnswer {
    let shipped = CostModel::shipped(figures);
    let has_curves = shipped.is_some();
    let mut model = shipped.unwrap_or_else(|| CostModel::of_data_sheet(name, figures));
    model.device = name.to_string();
    DeviceAnswer { name: name.to_string(), figures: figures.clone(), has_curves, times: model.title() }
}

fn listed(devices: &[DeviceAnswer]) -> String {
    let head = ["device", "memory", "bandwidth"].into_iter().chain(DTYPES).chain(["link", "curves"]);
    let mut rows = vec![head.map(String::from).collect::<Vec<_>>()];
    for DeviceAnswer { name, figures, has_curves, .. } in devices {
        let mut row = vec![name.clone(), figures.memory.to_string(), figures.memory_bandwidth.to_string()];
        row.extend(
            DTYPES.map(|dtype| figures.peak.get(dtype).map_or("-".into(), |peak| rate(peak.0 / 1e12))),
        );
        row.push(figures.link_bandwidth.map_or("-".into(), |link| link.to_string()));
        row.push(if *has_curves { "yes" } else { "-" }.into());
        rows.push(row);
    }
    table(&rows, "", |column| (1..=DTYPES.len() + 3).contains(&column))
}

/// Every figure of a device with its source.
fn details(device: &DeviceAnswer) -> String {
    let figures = &device.figures;
    let mut rows: Vec<[String; 3]> = Vec::new();
    let mut add = |field: &str, name: String, value: Option<String>| {
        if let Some(value) = value {
            let source = figures.sources.get(field).cloned().unwrap_or_default();
            rows.push([name, value, source]);
        }
    };
    let usable = figures.usable();
    add("memory", "memory".into(), Some(format!("{}, {usable} for tensors", figures.memory)));
    add("memory_bandwidth", "memory bandwidth".into(), Some(figures.memory_bandwidth.to_string()));
    for (index, (dtype, peak)) in figures.peak.iter().enumerate() {
        // They have one source.
        add(if index == 0 { "peak" } else { "" }, format!("peak {dtype}"), Some(peak.to_string()));
    }
    add("link_bandwidth", "link".into(), figures.link_bandwidth.map(|rate| rate.to_string()));
    add("host_bandwidth", "host link".into(), figures.host_bandwidth.map(|rate| rate.to_string()));
    add("launch", "shortest operator".into(), figures.launch.map(|time| time.to_string()));
    add("host_call", "call by the host".into(), figures.host_call.map(|time| time.to_string()));
    add("host_overhead", "host at a pass".into(), figures.host_overhead.map(|time| time.to_string()));
    add("split_overhead", "host at halves".into(), figures.split_overhead.map(|time| time.to_string()));
    let times = |share: f64| format!("{share} × the peak's time");
    add("product_slowdown", "large products".into(), figures.product_slowdown.map(times));
    add("attention_slowdown", "attention".into(), figures.attention_slowdown.map(times));
    add("sustained_slowdown", "long work".into(), figures.sustained_slowdown.map(times));
    let times = |share: f64| format!("{share} × the bandwidth's time");
    add("copy_slowdown", "plain copies".into(), figures.copy_slowdown.map(times));
    add("architecture", "architecture".into(), figures.architecture.clone());
    add("multiprocessors", "multiprocessors".into(), figures.multiprocessors.map(|n| n.to_string()));
    add("l2", "shared cache".into(), figures.l2.map(|bytes| bytes.to_string()));
    add("last_cache", "cache behind it".into(), figures.last_cache.map(|bytes| bytes.to_string()));
    let aliases = match figures.aliases.as_slice() {
        [] => String::new(),
        known => format!(" ({})", known.join(", ")),
    };
    format!("{}{aliases}\n\n{}\ntimes: {}\n", device.name, columns(&rows, "", |_| false), device.times)
}
