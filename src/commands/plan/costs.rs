//! Seconds of operators on a device, from its data sheet: the larger of arithmetic and memory traffic.
//!
//! A roofline with the efficiencies that large kernels reach; no measurement is behind it. Only the balance between blocks
//! and between devices matters to a plan, and that depends on the efficiencies little.

use graph::{ModelGraph, OperatorCosts, OperatorId};
use partitioner::OperatorSeconds;
use schema::DeviceType;

/// Share of the peak rate that large products and convolutions reach.
const ARITHMETIC: f64 = 0.5;
/// Share of the memory bandwidth that large element-wise kernels reach.
const TRAFFIC: f64 = 0.75;
/// Time of the shortest kernel where the device does not say.
const LAUNCH: f64 = 4e-6;

/// Predicts seconds by operator.
pub fn seconds(graph: &ModelGraph, costs: &OperatorCosts, device: &DeviceType) -> Vec<OperatorSeconds> {
    // Training in 32 bits runs on tensor cores where there are any.
    let rate = ["tf32", "float32", "bfloat16", "float16"].iter().find_map(|name| device.peak.get(*name));
    let rate = rate.map_or(1e13, |rate| rate.0) * ARITHMETIC;
    let bandwidth = device.memory_bandwidth.0 * TRAFFIC;
    let launch = device.launch.map_or(LAUNCH, |time| time.0);
    let roofline = |flops: u64, bytes: u64| match flops == 0 && bytes == 0 {
        true => 0.0,
        false => (flops as f64 / rate).max(bytes as f64 / bandwidth) + launch,
    };
    (0..graph.operators.len() as u32)
        .map(|index| {
            let cost = costs.operator(OperatorId(index));
            let traffic = cost.read_bytes.saturating_add(cost.written_bytes);
            // A gradient reads what the forward pass wrote and writes what it read.
            let has_weight = cost.backward_flops_weight > 0;
            OperatorSeconds {
                forward: roofline(cost.forward_flops, traffic),
                input_gradient: roofline(cost.backward_flops_input, traffic),
                weight_gradient: if has_weight { roofline(cost.backward_flops_weight, traffic) } else { 0.0 },
            }
        })
        .collect()
}
