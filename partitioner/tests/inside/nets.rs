//! Networks as plain numbers, and devices with one rate each: 32-bit elements, two operations for a multiply-add.

use partitioner::inside::{Degrees, Layer, Need, Prices, Read, Volume};

/// Bytes of an element.
const ELEMENT: f64 = 4.0;

/// A network, layer by layer.
pub struct Net {
    pub layers: Vec<Layer>,
    /// By layer: operations of the forward pass.
    flops: Vec<f64>,
    has_sums: bool,
}

impl Net {
    /// Begins with images; their layer costs nothing.
    pub fn of_images(batch: u64, size: u64, has_sums: bool) -> Self {
        let mut net = Self { layers: Vec::new(), flops: Vec::new(), has_sums };
        net.push([batch, 3, size, size], Vec::new(), 0.0, 0.0, None);
        net
    }

    fn push(
        &mut self,
        sizes: [u64; 4],
        reads: Vec<Read>,
        flops: f64,
        weights: f64,
        sums: Option<u64>,
    ) -> usize {
        let saved = sizes.iter().product::<u64>() as f64 * ELEMENT;
        self.layers.push(Layer {
            sizes,
            element: ELEMENT,
            splits: [true; 4],
            sums: sums.filter(|_| self.has_sums),
            reads,
            parameters: weights * ELEMENT,
            statistics: 0.0,
            saved,
            like: None,
        });
        self.flops.push(flops);
        self.layers.len() - 1
    }

    /// Returns what a window of an image reads, and the size of what it makes.
    fn window(&self, from: usize, kernel: [u64; 2], stride: u64, pad: [u64; 2]) -> ([u64; 2], [Need; 2]) {
        let image = &self.layers[from].sizes[2..];
        let size = std::array::from_fn(|axis| (image[axis] + 2 * pad[axis] - kernel[axis]) / stride + 1);
        let need =
            |axis: usize| Need::Window { stride, before: pad[axis], after: kernel[axis] - 1 - pad[axis] };
        (size, std::array::from_fn(need))
    }

    pub fn convolution(
        &mut self,
        from: usize,
        channels: u64,
        kernel: [u64; 2],
        stride: u64,
        pad: [u64; 2],
    ) -> usize {
        let ([height, width], [rows, columns]) = self.window(from, kernel, stride, pad);
        let [batch, inputs, ..] = self.layers[from].sizes;
        let each = (inputs * kernel[0] * kernel[1]) as f64;
        let channels_read = if self.has_sums { Need::Sums } else { Need::All };
        let read = Read { from, needs: [Need::SAME, channels_read, rows, columns], has_gradient: from > 0 };
        let flops = 2.0 * (batch * channels * height * width) as f64 * each;
        self.push(
            [batch, channels, height, width],
            vec![read],
            flops,
            channels as f64 * (each + 1.0),
            Some(inputs),
        )
    }

    pub fn pool(&mut self, from: usize, kernel: u64, stride: u64, pad: u64) -> usize {
        let ([height, width], [rows, columns]) = self.window(from, [kernel; 2], stride, [pad; 2]);
        let [batch, channels, ..] = self.layers[from].sizes;
        let read = Read { from, needs: [Need::SAME, Need::SAME, rows, columns], has_gradient: true };
        self.push([batch, channels, height, width], vec![read], 0.0, 0.0, None)
    }

    pub fn concat(&mut self, branches: &[usize]) -> usize {
        let mut channels = 0;
        let mut reads = Vec::new();
        for &from in branches {
            reads.push(Read {
                from,
                needs: [Need::SAME, Need::From(channels), Need::SAME, Need::SAME],
                has_gradient: true,
            });
            channels += self.layers[from].sizes[1];
        }
        let [batch, _, height, width] = self.layers[branches[0]].sizes;
        self.push([batch, channels, height, width], reads, 0.0, 0.0, None)
    }

    pub fn linear(&mut self, from: usize, outputs: u64) -> usize {
        let [batch, channels, height, width] = self.layers[from].sizes;
        let inputs = channels * height * width;
        // A part of the sums is a part of the channels.
        let read = if self.has_sums { Need::Sums } else { Need::All };
        let read = Read { from, needs: [Need::SAME, read, Need::All, Need::All], has_gradient: true };
        let flops = 2.0 * (batch * outputs * inputs) as f64;
        self.push([batch, outputs, 1, 1], vec![read], flops, (outputs * (inputs + 1)) as f64, Some(channels))
    }

    pub fn softmax(&mut self, from: usize) -> usize {
        let sizes = self.layers[from].sizes;
        let read = Read { from, needs: [Need::SAME, Need::All, Need::SAME, Need::SAME], has_gradient: true };
        let layer = self.push(sizes, vec![read], 0.0, 0.0, None);
        self.layers[layer].splits[1] = false;
        layer
    }
}

pub fn alexnet(batch: u64, has_sums: bool) -> Net {
    let mut net = Net::of_images(batch, 224, has_sums);
    let mut at = 0;
    for (channels, kernel, stride, pad, is_pooled) in [
        (64, 11, 4, 2, true),
        (192, 5, 1, 2, true),
        (384, 3, 1, 1, false),
        (256, 3, 1, 1, false),
        (256, 3, 1, 1, true),
    ] {
        at = net.convolution(at, channels, [kernel; 2], stride, [pad; 2]);
        at = if is_pooled { net.pool(at, 3, 2, 0) } else { at };
    }
    for outputs in [4096, 4096, 1000] {
        at = net.linear(at, outputs);
    }
    net.softmax(at);
    net
}

pub fn vgg16(batch: u64, has_sums: bool) -> Net {
    let mut net = Net::of_images(batch, 224, has_sums);
    let mut at = 0;
    for (channels, number) in [(64, 2), (128, 2), (256, 3), (512, 3), (512, 3)] {
        for _ in 0..number {
            at = net.convolution(at, channels, [3; 2], 1, [1; 2]);
        }
        at = net.pool(at, 2, 2, 0);
    }
    for outputs in [4096, 4096, 1000] {
        at = net.linear(at, outputs);
    }
    net.softmax(at);
    net
}

/// Inception-v3 for images of 299 × 299.
pub fn inception_v3(batch: u64, has_sums: bool) -> Net {
    let mut net = Net::of_images(batch, 299, has_sums);
    let mut at = net.convolution(0, 32, [3; 2], 2, [0; 2]);
    at = net.convolution(at, 32, [3; 2], 1, [0; 2]);
    at = net.convolution(at, 64, [3; 2], 1, [1; 2]);
    at = net.pool(at, 3, 2, 0);
    at = net.convolution(at, 80, [1; 2], 1, [0; 2]);
    at = net.convolution(at, 192, [3; 2], 1, [0; 2]);
    at = net.pool(at, 3, 2, 0);
    let one = |net: &mut Net, from, channels| net.convolution(from, channels, [1; 2], 1, [0; 2]);
    let three = |net: &mut Net, from, channels| net.convolution(from, channels, [3; 2], 1, [1; 2]);
    let reduce = |net: &mut Net, from, channels| net.convolution(from, channels, [3; 2], 2, [0; 2]);
    let tall = |net: &mut Net, from, channels, size: u64| {
        net.convolution(from, channels, [size, 1], 1, [size / 2, 0])
    };
    let wide = |net: &mut Net, from, channels, size: u64| {
        net.convolution(from, channels, [1, size], 1, [0, size / 2])
    };
    for pooled in [32, 64, 64] {
        let a = one(&mut net, at, 64);
        let b = one(&mut net, at, 48);
        let b = net.convolution(b, 64, [5; 2], 1, [2; 2]);
        let c = one(&mut net, at, 64);
        let c = three(&mut net, c, 96);
        let c = three(&mut net, c, 96);
        let d = net.pool(at, 3, 1, 1);
        let d = one(&mut net, d, pooled);
        at = net.concat(&[a, b, c, d]);
    }
    let a = reduce(&mut net, at, 384);
    let b = one(&mut net, at, 64);
    let b = three(&mut net, b, 96);
    let b = reduce(&mut net, b, 96);
    let c = net.pool(at, 3, 2, 0);
    at = net.concat(&[a, b, c]);
    for inner in [128, 160, 160, 192] {
        let a = one(&mut net, at, 192);
        let b = one(&mut net, at, inner);
        let b = wide(&mut net, b, inner, 7);
        let b = tall(&mut net, b, 192, 7);
        let mut c = one(&mut net, at, inner);
        for _ in 0..2 {
            c = tall(&mut net, c, inner, 7);
            c = wide(&mut net, c, inner, 7);
        }
        let d = net.pool(at, 3, 1, 1);
        let d = one(&mut net, d, 192);
        at = net.concat(&[a, b, c, d]);
    }
    let a = one(&mut net, at, 192);
    let a = reduce(&mut net, a, 320);
    let b = one(&mut net, at, 192);
    let b = wide(&mut net, b, 192, 7);
    let b = tall(&mut net, b, 192, 7);
    let b = reduce(&mut net, b, 192);
    let c = net.pool(at, 3, 2, 0);
    at = net.concat(&[a, b, c]);
    for _ in 0..2 {
        let a = one(&mut net, at, 320);
        let b = one(&mut net, at, 384);
        let (b1, b2) = (wide(&mut net, b, 384, 3), tall(&mut net, b, 384, 3));
        let c = one(&mut net, at, 448);
        let c = three(&mut net, c, 384);
        let (c1, c2) = (wide(&mut net, c, 384, 3), tall(&mut net, c, 384, 3));
        let d = net.pool(at, 3, 1, 1);
        let d = one(&mut net, d, 192);
        at = net.concat(&[a, b1, b2, c1, c2, d]);
    }
    at = net.pool(at, 8, 1, 0);
    at = net.linear(at, 1000);
    net.softmax(at);
    net
}

/// Devices that all compute at one rate, and what joins them.
pub struct Devices<'a> {
    pub net: &'a Net,
    /// Operations a second.
    pub peak: f64,
    /// Bytes a second of memory.
    pub memory: f64,
    /// Bytes a second between devices.
    pub link: f64,
    /// Seconds before a message.
    pub latency: f64,
    /// Whether all devices share one link, one message at a time; else each has a port of its own, each way.
    pub is_bus: bool,
}

impl Prices for Devices<'_> {
    fn compute(&self, index: usize, degrees: &Degrees) -> f64 {
        let layer = &self.net.layers[index];
        let [samples, channels, height, width] = degrees.result.map(|parts| parts as f64);
        let elements = |sizes: [u64; 4]| sizes.iter().product::<u64>() as f64;
        let read = layer.reads.iter().map(|read| {
            let split = match read.needs[1] {
                Need::All => 1.0,
                Need::Sums => degrees.sums as f64,
                _ => channels,
            };
            elements(self.net.layers[read.from].sizes) / (samples * height * width * split)
        });
        let read: f64 = read.sum();
        if read == 0.0 {
            return 0.0;
        }
        let own = elements(layer.sizes) / degrees.tiles() as f64;
        let bytes = (read + own) * ELEMENT + layer.parameters / (channels * degrees.sums as f64);
        let flops = self.net.flops[index] / degrees.parts() as f64;
        // Two products on the way back for each on the way forward.
        let passes = if flops > 0.0 { 3.0 } else { 2.0 };
        passes * (flops / self.peak).max(bytes / self.memory)
    }

    fn exchange(&self, volume: &Volume) -> f64 {
        let bytes = if self.is_bus { volume.total } else { volume.sent.max(volume.received) };
        self.latency + bytes / self.link
    }

    fn all_reduce(&self, devices: usize, _: usize, bytes: f64) -> f64 {
        let n = devices as f64;
        2.0 * (n - 1.0) * self.latency + 2.0 * (n - 1.0) / n * bytes / self.link
    }

    fn copies(&self) -> f64 {
        4.0
    }
}
