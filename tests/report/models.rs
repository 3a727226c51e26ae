//! Models and plans that the tests of the report make up.

use std::fmt::Write;

/// Two stages of the small U-Net.
pub const UNET_PLAN: &str = "\
kind: plan
version: 1
written_by: model-analyze 0.1.0
model: {name: unet_small, digest: \"00\"}
cluster:
  types:
    small: {memory: 1073741824, memory_bandwidth: 1.0e11, peak: {float32: 1.0e12}}
  devices:
  - {name: gpu0, type: small, place: [0]}
  - {name: gpu1, type: small, place: [0]}
  levels:
  - {name: pcie, bandwidth: 1.0e10, latency: 1.0e-5}
strategy: even-layers
schedule: 1f1b
micro_batches: 4
stages:
- blocks: [stem, pool, down.0]
  devices: [gpu0]
  cost: {forward: 0.01, input_gradient: 0.01, weight_gradient: 0.01, parameters: 1000000, optimizer: 2000000, activations: 40000000, workspace: 1000000}
- blocks: [pool (call 2), down.1]
  devices: [gpu1]
  cost: {forward: 0.012, input_gradient: 0.01, weight_gradient: 0.01, parameters: 2000000, optimizer: 4000000, activations: 20000000, workspace: 1000000}
transfers:
- {from: 0, to: 1, forward: 1000000, backward: 1000000}
predicted: {}
";

/// A run of that plan.
pub const MEASURED: &str = r#"{"kind":"timeline","version":1,"name":"run","unit":"ns","devices":["gpu0","gpu1"],"end":120000000,"tracks":[
{"device":0,"stream":"compute","spans":[{"name":"0F0","kind":"forward","stage":0,"micro_batch":0,"start":0,"end":11000000},{"name":"0F1","kind":"forward","stage":0,"micro_batch":1,"start":11000000,"end":23000000},{"name":"0B0","kind":"backward","stage":0,"micro_batch":0,"start":60000000,"end":82000000}]},
{"device":1,"stream":"compute","spans":[{"name":"1F0","kind":"forward","stage":1,"micro_batch":0,"start":12000000,"end":24000000},{"name":"1B0","kind":"backward","stage":1,"micro_batch":0,"start":24000000,"end":50000000}]}]}"#;

/// Writes a model of layers with attention and a multi-layer perceptron, twenty operators each, and a mask that all share.
pub fn large(layers: usize) -> String {
    let mut model = Model::new();
    let mut at = "x.1".to_string();
    for layer in 0..layers {
        let outer = format!("__module.layers/__module.layers.{layer}");
        let attention = format!("{outer}/__module.layers.{layer}.attn");
        let inner = format!("{outer}/__module.layers.{layer}.mlp");
        let parts = ["relu", "tanh", "sigmoid"].map(|name| model.add(name, &[&at], &attention));
        let mut value = model.add("mul", &[&parts[0], &parts[1]], &attention);
        value = model.add("add", &[&value, "mask.1", "50"], &attention);
        value = model.add("mul", &[&value, &parts[2]], &attention);
        value = model.add("exp", &[&value], &attention);
        let skip = model.add("add", &[&at, &value, "50"], &outer);
        value = skip.clone();
        for step in 0..11 {
            // Layers differ, so that few of them fold.
            let name =
                ["relu", "tanh", "sigmoid", "abs", "neg"][(step + layer * 7 + (layer >> (step % 8))) % 5];
            value = model.add(name, &[&value], &inner);
        }
        at = model.add("add", &[&skip, &value, "50"], &outer);
    }
    model.finish(&at)
}

/// Writes a model whose modules are named to be run.
pub fn hostile() -> String {
    let names = [
        "<img src=x onerror=alert(1)>",
        "</script><script>alert(2)</script>",
        "\"onload=\"alert(3)",
        "<!--<script>",
        "'-alert(4)-'",
        "constructor",
        "${alert(5)}",
    ];
    let mut model = Model::new();
    let mut at = "x.1".to_string();
    for name in names {
        let outer = format!("__module.{name}");
        for operator in ["relu", "tanh"] {
            at = model.add(operator, &[&at], &outer);
        }
    }
    model.finish(&at)
}

/// IR text while it is written.
struct Model {
    text: String,
    values: u32,
}

const TENSOR: &str = "Float(8, 64, strides=[64, 1], requires_grad=0, device=cpu)";

impl Model {
    fn new() -> Self {
        let text = format!(
            "graph(%self.1 : __torch__.Net,\n      %x.1 : {TENSOR},\n      %mask.1 : {TENSOR}):\n  %50 : int = prim::Constant[value=1]()\n"
        );
        Self { text, values: 100 }
    }

    fn add(&mut self, name: &str, inputs: &[&str], scope: &str) -> String {
        self.values += 1;
        let inputs: Vec<String> = inputs.iter().map(|input| format!("%{input}")).collect();
        let (value, inputs) = (self.values, inputs.join(", "));
        writeln!(self.text, "  %{value} : {TENSOR} = aten::{name}({inputs}), scope: {scope}").unwrap();
        value.to_string()
    }

    fn finish(mut self, output: &str) -> String {
        writeln!(self.text, "  return (%{output})").unwrap();
        self.text
    }
}
