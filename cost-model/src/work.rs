//! The work of an operator: FLOPs, bytes, and its equivalent matrix product.
//!
//! A convolution is seen as the product that implicit-GEMM kernels compute: rows are output pixels, columns output
//! channels, sums run over input channels and the kernel. The gradients are products of the same three sizes in
//! another order, which is why a phase changes the view and not the formulas.

use operators::{AttentionSize, CAUSAL_SHARE, ConvolutionSize, ProductSize};
use schema::{DeviceType, MOST_DRIVEN_OUT, Phase, WorkSize};

use crate::host::Host;

/// Figures of a device that features need, for one data type.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Machine {
    /// Peak FLOP/s.
    pub peak: f64,
    /// Memory bandwidth in bytes/s.
    pub bandwidth: f64,
    /// Multiprocessors or cores.
    pub multiprocessors: f64,
    /// Last cache in bytes, or a core's own where the last one is very large.
    pub l2: f64,
    /// Bytes after which no cache holds anything of what was there, as far as profiles tell.
    pub last_cache: f64,
    /// The shortest time of an operator.
    pub launch: f64,
    /// Bytes of one element.
    pub element: f64,
    /// Figures that only processors have; `None` for accelerators.
    pub(crate) host: Option<Host>,
}

impl Machine {
    /// Takes the figures for a data type; a type without a rate of its own runs at that of `float32`.
    pub fn of(device: &DeviceType, dtype: &str) -> Self {
        let rate = |name: &str| device.peak.get(name).map(|rate| rate.0);
        let slowest = || device.peak.values().map(|rate| rate.0).fold(f64::INFINITY, f64::min);
        let peak = rate(dtype).or_else(|| rate("float32")).unwrap_or_else(|| match slowest() {
            rate if rate.is_finite() => rate,
            // A device that says nothing of its rates: one operation for each byte it can move.
            _ => device.memory_bandwidth.0,
        });
        let l2 = device.l2.map_or(32e6, |bytes| bytes.0 as f64);
        Self {
            peak,
            bandwidth: device.memory_bandwidth.0,
            multiprocessors: f64::from(device.multiprocessors.unwrap_or(64)),
            l2,
            last_cache: device.last_cache.map_or(l2, |bytes| (bytes.0 as f64).min(MOST_DRIVEN_OUT)),
            launch: device.launch.map_or(3e-6, |time| time.0),
            element: element_bytes(dtype),
            host: Host::of(device.architecture.as_deref(), element_bytes(dtype)),
        }
    }

    /// Tells whether it is a processor, not an accelerator.
    pub fn is_processor(&self) -> bool {
        self.host.is_some()
    }
}

/// Returns the bytes of one element of a data type.
pub fn element_bytes(dtype: &str) -> f64 {
    match dtype {
        "float64" | "int64" | "complex64" => 8.0,
        "bfloat16" | "float16" | "int16" => 2.0,
        "int8" | "uint8" | "bool" => 1.0,
        name if name.starts_with("float8") => 1.0,
        _ => 4.0,
    }
}

/// The work of one execution of an operator.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Work {
    /// The size it was made from.
    pub size: WorkSize,
    /// Part of the training step.
    pub phase: Phase,
    /// Floating-point operations.
    pub flops: f64,
    /// Bytes of the first operand.
    pub read_a: f64,
    /// Bytes of the second operand: weights.
    pub read_b: f64,
    /// Bytes of the result.
    pub written: f64,
    /// Independent products.
    pub batch: f64,
    /// Rows of the result.
    pub m: f64,
    /// Columns of the result.
    pub n: f64,
    /// Length of the sums.
    pub k: f64,
}

impl Work {
    /// Works out what an operator of this size does in this phase.
    pub fn of(size: WorkSize, phase: Phase, element: f64) -> Self {
        let mut work = Self::forward(size, element);
        work.phase = phase;
        let Self { m, n, k, read_a, read_b, written, .. } = work;
        match (phase, size) {
            (Phase::Forward, _) => {}
            (Phase::InputGradient, WorkSize::Convolution { batch, in_channels, groups, input, .. }) => {
                work.m = batch * volume(input);
                work.n = in_channels / groups;
                work.k = work.flops / (2.0 * work.m * work.n * groups).max(1.0);
                (work.read_a, work.written) = (written, read_a);
            }
            (Phase::InputGradient, WorkSize::Product { .. }) => {
                (work.n, work.k) = (k, n);
                (work.read_a, work.written) = (written, read_a);
            }
            (Phase::WeightGradient, WorkSize::Product { .. } | WorkSize::Convolution { .. }) => {
                (work.m, work.n, work.k) = (n, k, m);
                (work.read_b, work.written) = (written, read_b);
            }
            // Both gradients read the output's gradient and the forward's operands.
            (
                Phase::Backward | Phase::InputGradient | Phase::WeightGradient,
                WorkSize::Attention { batch, heads, kv_heads, seq, kv_seq, head_dim, causal },
            ) => {
                let count = attention([batch, heads, kv_heads, seq, kv_seq, head_dim]);
                work.flops = count.backward_flops(true) * seen(causal);
                (work.read_a, work.written) = (2.0 * read_a + written, read_a + read_b);
            }
            (
                Phase::Backward | Phase::InputGradient | Phase::WeightGradient,
                WorkSize::Rows { .. } | WorkSize::Channels { .. },
            ) => {
                work.read_a += written;
            }
            // Most of the gradient are zeros, but they are written.
            (
                Phase::Backward | Phase::InputGradient | Phase::WeightGradient,
                WorkSize::Table { cols, vocabulary, .. },
            ) => {
                (work.read_a, work.written) = (written, vocabulary * cols * element);
            }
            (Phase::Backward, _) => {
                work.flops *= 2.0;
                (work.read_a, work.read_b) = (read_a + 2.0 * written, 2.0 * read_b);
                work.written = read_a + read_b;
            }
            (Phase::Training, _) => {
                work.flops *= 3.0;
                (work.read_a, work.read_b) = (2.0 * read_a + 2.0 * written, 4.0 * read_b);
                work.written = read_a + 2.0 * read_b + written;
            }
        }
        work
    }

    fn forward(size: WorkSize, element: f64) -> Self {
        let phase = Phase::Forward;
        match size {
            WorkSize::Product { batch, m, n, k } => {
                let count = ProductSize { batch, m, n, k };
                Self {
                    size,
                    phase,
                    flops: count.flops(),
                    read_a: count.left() * element,
                    read_b: count.right() * element,
                    written: count.result() * element,
                    batch,
                    m,
                    n,
                    k,
                }
            }
            WorkSize::Convolution {
                batch, in_channels, out_channels, groups, input, output, kernel, ..
            } => {
                let count = ConvolutionSize {
                    batch,
                    in_channels,
                    in_group: (in_channels / groups).max(1.0),
                    out_channels,
                    input: volume(input),
                    output: volume(output),
                    kernel: volume(kernel),
                };
                Self {
                    size,
                    phase,
                    flops: count.flops(),
                    read_a: count.images() * element,
                    read_b: count.weights() * element,
                    written: count.result() * element,
                    batch: groups,
                    m: count.pixels(),
                    n: (out_channels / groups).max(1.0),
                    k: count.window(),
                }
            }
            WorkSize::Attention { batch, heads, kv_heads, seq, kv_seq, head_dim, causal } => {
                let count = attention([batch, heads, kv_heads, seq, kv_seq, head_dim]);
                Self {
                    size,
                    phase,
                    flops: count.flops() * seen(causal),
                    read_a: count.query() * element,
                    read_b: count.key_and_value() * element,
                    written: count.result() * element,
                    batch: batch * heads,
                    m: seq,
                    n: head_dim,
                    k: kv_seq * seen(causal),
                }
            }
            WorkSize::Rows { rows, cols, inputs } => Self {
                size,
                phase,
                flops: rows * cols,
                read_a: inputs * rows * cols * element,
                read_b: 0.0,
                written: rows * cols * element,
                batch: 1.0,
                m: rows,
                n: cols,
                k: 1.0,
            },
            WorkSize::Channels { batch, channels, pixels } => Self {
                size,
                phase,
                flops: batch * channels * pixels,
                read_a: batch * channels * pixels * element,
                read_b: 0.0,
                written: batch * channels * pixels * element,
                batch: 1.0,
                m: channels,
                n: batch * pixels,
                k: 1.0,
            },
            WorkSize::Table { rows, cols, .. } => Self {
                size,
                phase,
                flops: rows * cols,
                read_a: rows * (cols * element + 8.0),
                read_b: 0.0,
                written: rows * cols * element,
                batch: 1.0,
                m: rows,
                n: cols,
                k: 1.0,
            },
        }
    }

    /// Returns rows and columns of work on the elements of a matrix.
    pub(crate) fn matrix(&self) -> Option<(f64, f64)> {
        match self.size {
            WorkSize::Rows { rows, cols, .. } | WorkSize::Table { rows, cols, .. } => Some((rows, cols)),
            WorkSize::Channels { .. } => Some((self.m, self.n)),
            _ => None,
        }
    }

    /// Returns all bytes read and written.
    pub fn bytes(&self) -> f64 {
        self.read_a + self.read_b + self.written
    }

    /// Returns the time of the roofline: the longer of arithmetic and memory, and never less than a launch.
    pub fn roofline(&self, machine: &Machine) -> f64 {
        (self.flops / machine.peak).max(self.bytes() / machine.bandwidth).max(machine.launch)
    }

    /// Returns a number to sort by size: the roofline without its floor.
    pub fn magnitude(&self, machine: &Machine) -> f64 {
        (self.flops / machine.peak).max(self.bytes() / machine.bandwidth)
    }
}

/// Returns how attention is counted, of the numbers of a size in their order.
fn attention([batch, heads, kv_heads, seq, kv_seq, head_dim]: [f64; 6]) -> AttentionSize<f64> {
    AttentionSize { batch, heads, kv_heads, seq, kv_seq, width: head_dim, value_width: head_dim }
}

/// Returns the share of the scores that are computed.
fn seen(causal: bool) -> f64 {
    if causal { CAUSAL_SHARE } else { 1.0 }
}

pub(crate) fn volume(sizes: [f64; 3]) -> f64 {
    sizes[0] * sizes[1] * sizes[2]
}
