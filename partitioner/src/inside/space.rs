//! The tables of a model whose layers are split by samples, channels, height, width and sums: the space of OptCNN (Jia et al.
//! 2018) and, with every split on its first devices, of FlexFlow (Jia et al. 2019).

use std::{collections::HashMap, sync::Arc};

use super::{
    Choices, Cost, Matrix,
    layers::{Degrees, Layer, Need, Read, part},
    volumes::{Between, Volume},
};

/// Times of layers and exchanges on some devices.
pub trait Prices {
    /// Returns the seconds of forward and backward pass of one part of a layer, at its own sizes.
    fn compute(&self, layer: usize, degrees: &Degrees) -> f64;
    /// Returns the seconds to move a volume, one way; zero for an empty volume.
    fn exchange(&self, volume: &Volume) -> f64;
    /// Returns the seconds of an all-reduce among a number of devices at equal distances.
    fn all_reduce(&self, devices: usize, apart: usize, bytes: f64) -> f64;
    /// Returns the bytes on a device per byte of parameters: the parameters, gradients, state of the optimizer.
    fn copies(&self) -> f64;
}

/// The splits of each layer of a model.
pub struct Space {
    /// By node, the degrees of each strategy, in the order of the node's costs.
    pub degrees: Vec<Vec<Degrees>>,
    /// By layer, its node. Layers with the split of another share its node.
    pub node: Vec<usize>,
    /// Their costs.
    pub choices: Choices,
}

impl Space {
    /// Prices every split of each layer.
    ///
    /// # Panics
    /// If a layer reads a later one, or is split like one of another size.
    pub fn new(layers: &[Layer], devices: usize, prices: &impl Prices) -> Self {
        let mut node: Vec<usize> = Vec::with_capacity(layers.len());
        let mut degrees: Vec<Vec<Degrees>> = Vec::new();
        for (index, layer) in layers.iter().enumerate() {
            match layer.like {
                Some(other) => {
                    assert!(
                        other < index && layers[other].sizes == layer.sizes,
                        "layer {index} is like {other}"
                    );
                    let own = node[other];
                    // Only splits that all of them support.
                    let able = |degrees: &Degrees| {
                        (0..4).all(|dimension| degrees.result[dimension] == 1 || layer.splits[dimension])
                    };
                    degrees[own].retain(able);
                    node.push(own);
                }
                None => {
                    node.push(degrees.len());
                    degrees.push(layer.degrees(devices));
                }
            }
        }
        let mut nodes: Vec<Vec<Cost>> = degrees.iter().map(|own| vec![Cost::default(); own.len()]).collect();
        for (index, &own) in node.iter().enumerate() {
            for (cost, degrees) in nodes[own].iter_mut().zip(&degrees[own]) {
                let one = cost_of(layers, index, degrees, devices, prices);
                cost.seconds += one.seconds;
                cost.hidden += one.hidden;
                cost.bytes += one.bytes;
            }
        }
        let edges = edges(layers, devices, &node, &degrees, prices);
        Self { degrees, node, choices: Choices { nodes, edges } }
    }

    /// Returns the strategies that split only samples, as far as each node can.
    pub fn data_parallel(&self) -> Vec<usize> {
        let most = |degrees: &Vec<Degrees>| {
            let only = degrees.iter().enumerate().filter(|(_, one)| one.parts() == one.result[0]);
            only.max_by_key(|(_, one)| one.parts()).map_or(0, |(index, _)| index)
        };
        self.degrees.iter().map(most).collect()
    }

    /// Returns the degrees of a layer under some strategies.
    pub fn of_layer(&self, layer: usize, picks: &[usize]) -> Degrees {
        let node = self.node[layer];
        self.degrees[node][picks[node]]
    }
}

/// Returns the cost of a layer under some degrees, without exchanges with others.
fn cost_of(layers: &[Layer], index: usize, degrees: &Degrees, devices: usize, prices: &impl Prices) -> Cost {
    let layer = &layers[index];
    let (tiles, replicas) = (degrees.tiles() as f64, degrees.replicas());
    // A layer that is split like another has no sums of its own to split.
    let sums = if layer.sums.is_some() { degrees.sums } else { 1 };
    let elements = layer.sizes.iter().product::<u64>() as f64 / tiles;
    let inner = degrees.result[1] * degrees.sums;
    let parameters = layer.parameters / (degrees.result[1] * sums) as f64;
    let all_reduce = |devices: usize, apart: usize, bytes: f64| {
        if devices > 1 && bytes > 0.0 { prices.all_reduce(devices, apart, bytes) } else { 0.0 }
    };
    Cost {
        // Statistics are summed in the forward and in the backward pass.
        seconds: prices.compute(index, degrees)
            + all_reduce(sums, 1, elements * layer.element)
            + 2.0 * all_reduce(replicas, inner, layer.statistics / degrees.result[1] as f64),
        hidden: all_reduce(replicas, inner, parameters),
        bytes: parameters * prices.copies()
            + layer.saved / (tiles * sums as f64)
            + layer
                .reads
                .iter()
                .map(|read| gathered(&layers[read.from], layer, read, degrees, devices))
                .sum::<f64>(),
    }
}

/// Returns the bytes of a value that a part reads and that may have to be sent: all except an even share of the value.
/// An upper bound, because the producer may have more of it on the same device.
fn gathered(maker: &Layer, reader: &Layer, read: &Read, degrees: &Degrees, devices: usize) -> f64 {
    if !read.has_gradient {
        return 0.0;
    }
    let length = |axis: usize| {
        let (size, parts) = (maker.sizes[axis], degrees.result[axis]);
        let own = part(reader.sizes[axis], parts, parts / 2);
        let (first, end) = read.needs[axis].range(size, own, part(size, degrees.sums, degrees.sums / 2));
        (end - first) as f64
    };
    let all = maker.sizes.iter().product::<u64>() as f64;
    ((0..4).map(length).product::<f64>() - all / devices as f64).max(0.0) * maker.element
}

/// Prices the exchanges of layers of different nodes; equal edges share a table.
fn edges(
    layers: &[Layer],
    devices: usize,
    node: &[usize],
    degrees: &[Vec<Degrees>],
    prices: &impl Prices,
) -> Vec<(usize, usize, Arc<Matrix>)> {
    type Alike<'a> = ([u64; 4], u64, [u64; 4], [Need; 4], bool, &'a [Degrees], &'a [Degrees]);
    let mut known: HashMap<Alike<'_>, Arc<Matrix>> = HashMap::new();
    let mut edges = Vec::new();
    for (index, layer) in layers.iter().enumerate() {
        for read in &layer.reads {
            let (from, to) = (node[read.from], node[index]);
            assert!(read.from < index, "layer {index} reads {}", read.from);
            if from == to {
                continue;
            }
            let maker = &layers[read.from];
            let (made, taken) = (&degrees[from][..], &degrees[to][..]);
            let alike = (
                maker.sizes,
                maker.element.to_bits(),
                layer.sizes,
                read.needs,
                read.has_gradient,
                made,
                taken,
            );
            let table = known.entry(alike).or_insert_with(|| {
                let between = Between::new((maker, made), (layer, taken), read, devices);
                let seconds =
                    |volume: &Volume| if volume.total > 0.0 { prices.exchange(volume) } else { 0.0 };
                let cell = |row: usize, column: usize| between.volumes(row, column).iter().map(seconds).sum();
                Arc::new(Matrix::from_fn(made.len(), taken.len(), cell))
            });
            edges.push((from, to, table.clone()));
        }
    }
    edges
}
