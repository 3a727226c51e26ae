//! The size of one operator, and its work: operations, bytes moved, bytes saved for the backward pass.
//!
//! Bytes are a lower bound: each input once, each output once. Saved bytes are those that autograd saves, without
//! parameters.

use operators::{AttentionSize, CAUSAL_SHARE, ConvolutionSize, ProductSize};
use schema::Phase;

use super::{DType, Kind};

/// Sizes of an operator's tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // The names are those of the columns.
pub enum Size {
    /// `batch` products of m × k and k × n.
    Product { batch: u64, m: u64, n: u64, k: u64 },
    /// A square kernel over images; pools are convolutions of as many groups as channels.
    Convolution {
        batch: u64,
        in_channels: u64,
        out_channels: u64,
        groups: u64,
        height: u64,
        width: u64,
        kernel: u64,
        stride: u64,
        padding: u64,
    },
    /// Attention of `heads` heads.
    Attention { batch: u64, heads: u64, seq: u64, kv_seq: u64, head_dim: u64, causal: bool },
    /// A contiguous matrix.
    Rows { rows: u64, cols: u64 },
    /// Images whose channels are split into groups.
    Images { batch: u64, channels: u64, groups: u64, height: u64, width: u64 },
    /// Look-ups in a table.
    Table { rows: u64, cols: u64, vocabulary: u64 },
    /// Vectors of heads.
    Heads { batch: u64, heads: u64, seq: u64, head_dim: u64 },
}

/// The work of an operator.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Work {
    /// Operations of the forward pass, one multiply-add as two.
    pub flops: f64,
    /// Least bytes that the forward pass reads and writes.
    pub bytes: f64,
    /// Bytes of the result.
    pub output_bytes: f64,
    /// Bytes that autograd saves for the backward pass, without parameters.
    pub saved_bytes: f64,
}

impl Size {
    /// Returns the output size of a kernel over an axis.
    pub fn reach(input: u64, kernel: u64, stride: u64, padding: u64) -> u64 {
        (input + 2 * padding).saturating_sub(kernel) / stride + 1
    }

    /// Returns rows and columns of the operator as a matrix; `None` for products and attention.
    pub fn matrix(self, kind: Kind) -> Option<(u64, u64)> {
        Some(match self {
            Size::Rows { rows, cols } | Size::Table { rows, cols, .. } => (rows, cols),
            Size::Images { batch, channels, groups, height, width } if kind == Kind::GroupNorm => {
                (batch * groups, channels / groups * height * width)
            }
            Size::Images { batch, channels, height, width, .. } => match kind {
                Kind::UpsampleNearest | Kind::UpsampleBilinear => (batch * channels, 4 * height * width),
                _ => (batch * channels, height * width),
            },
            Size::Heads { batch, heads, seq, head_dim } => (batch * seq * heads, head_dim),
            Size::Convolution { batch, in_channels, height, width, .. }
                if matches!(kind.plain(), Kind::MaxPool | Kind::AvgPool) =>
            {
                (batch * in_channels, height * width)
            }
            _ => return None,
        })
    }

    /// Returns how many tensors of the matrix's size are read.
    pub fn inputs(self, kind: Kind) -> f64 {
        match kind {
            Kind::Add | Kind::Mul => 2.0,
            Kind::UpsampleNearest | Kind::UpsampleBilinear => 0.25,
            _ => 1.0,
        }
    }

    /// Returns the work of a kind of this size.
    pub fn work(self, kind: Kind, dtype: DType) -> Work {
        let kind = kind.plain();
        let e = dtype.bytes();
        match self {
            Size::Product { batch, m, n, k } => {
                let [batch, m, n, k] = [batch, m, n, k].map(|size| size as f64);
                let count = ProductSize { batch, m, n, k };
                let (a, b, c) = (count.left(), count.right(), count.result());
                let saved = if kind == Kind::Bmm { a + b } else { a };
                Work {
                    flops: count.flops(),
                    bytes: e * (a + b + c),
                    output_bytes: e * c,
                    saved_bytes: e * saved,
                }
            }
            Size::Convolution {
                batch,
                in_channels,
                out_channels,
                groups,
                height,
                width,
                kernel,
                stride,
                padding,
            } => {
                let reach = |input| Self::reach(input, kernel, stride, padding);
                let count = ConvolutionSize {
                    batch: batch as f64,
                    in_channels: in_channels as f64,
                    in_group: in_channels as f64 / groups as f64,
                    out_channels: out_channels as f64,
                    input: product(&[height, width]),
                    output: product(&[reach(height), reach(width)]),
                    kernel: product(&[kernel, kernel]),
                };
                of_convolution(kind, &count, e)
            }
            Size::Attention { batch, heads, seq, kv_seq, head_dim, causal } => {
                let [batch, heads, seq, kv_seq, width] =
                    [batch, heads, seq, kv_seq, head_dim].map(|size| size as f64);
                let count =
                    AttentionSize { batch, heads, kv_heads: heads, seq, kv_seq, width, value_width: width };
                let share = if causal { CAUSAL_SHARE } else { 1.0 };
                let all = count.query() + count.key_and_value() + count.result();
                Work {
                    flops: share * count.flops(),
                    bytes: e * all,
                    output_bytes: e * count.result(),
                    // Query, key, value, result, and the logarithm of each row's sum.
                    saved_bytes: e * all + 4.0 * batch * heads * seq,
                }
            }
            Size::Table { rows, cols, .. } => {
                let y = product(&[rows, cols]);
                let indices = 8.0 * rows as f64;
                Work { flops: 0.0, bytes: 2.0 * e * y + indices, output_bytes: e * y, saved_bytes: indices }
            }
            Size::Rows { .. } | Size::Images { .. } | Size::Heads { .. } => self.elements(kind, e),
        }
    }

    /// Returns the work of an elementwise pass over a matrix with elements of `e` bytes.
    fn elements(self, kind: Kind, e: f64) -> Work {
        let (rows, cols) = self.matrix(kind).expect("these have a matrix");
        let elements = product(&[rows, cols]);
        let read = self.inputs(kind) * elements;
        let written = if kind == Kind::GlobalAvgPool { rows as f64 } else { elements };
        let statistics = 2.0 * 4.0 * self.statistics(kind);
        let saved = match kind {
            Kind::LayerNorm | Kind::GroupNorm | Kind::BatchNorm | Kind::BatchNormEval => {
                e * elements + statistics
            }
            Kind::Softmax | Kind::Relu | Kind::Gelu | Kind::Silu | Kind::Sigmoid | Kind::Tanh => e * elements,
            Kind::Mul => 2.0 * e * elements,
            Kind::Dropout => elements,
            _ => 0.0,
        };
        Work {
            flops: operations(kind) * elements,
            bytes: e * (read + written),
            output_bytes: e * written,
            saved_bytes: saved,
        }
    }

    /// Returns how many means a norm computes.
    fn statistics(self, kind: Kind) -> f64 {
        match (self, kind) {
            (Size::Images { channels, .. }, Kind::BatchNorm) => channels as f64,
            (Size::Images { batch, groups, .. }, Kind::GroupNorm) => (batch * groups) as f64,
            (Size::Rows { rows, .. }, Kind::LayerNorm) => rows as f64,
            _ => 0.0,
        }
    }
}

/// Returns the work of a convolution or of a pool with elements of `e` bytes.
fn of_convolution(kind: Kind, count: &ConvolutionSize<f64>, e: f64) -> Work {
    let (x, y, w) = (count.images(), count.result(), count.weights());
    match kind {
        // One comparison or addition for each element of the window; a maximum saves its indices.
        Kind::MaxPool | Kind::AvgPool => Work {
            flops: y * count.kernel,
            bytes: e * (x + y),
            output_bytes: e * y,
            saved_bytes: if kind == Kind::MaxPool { e * x + 8.0 * y } else { e * x },
        },
        Kind::TransposedConvolution => {
            Work { flops: count.flops(), bytes: e * (x + y + w), output_bytes: e * x, saved_bytes: e * y }
        }
        _ => Work { flops: count.flops(), bytes: e * (x + y + w), output_bytes: e * y, saved_bytes: e * x },
    }
}

fn product(sizes: &[u64]) -> f64 {
    sizes.iter().map(|&size| size as f64).product()
}

/// Operations per element, in the round numbers that FLOP counters use.
fn operations(kind: Kind) -> f64 {
    match kind {
        Kind::Cat | Kind::Copy | Kind::Permute | Kind::UpsampleNearest => 0.0,
        Kind::Relu | Kind::Add | Kind::Mul | Kind::GlobalAvgPool => 1.0,
        Kind::BatchNormEval | Kind::Dropout => 2.0,
        Kind::Silu | Kind::Sigmoid | Kind::Tanh => 4.0,
        Kind::Softmax | Kind::BatchNorm | Kind::LayerNorm | Kind::GroupNorm => 5.0,
        Kind::Gelu | Kind::UpsampleBilinear => 8.0,
        _ => 0.0,
    }
}

impl Kind {
    /// Returns the phases with a cost: a sum passes its gradient on unchanged, a table has no input to differentiate.
    pub fn phases(self) -> &'static [Phase] {
        match self.plain() {
            Kind::Linear
            | Kind::Convolution
            | Kind::GroupedConvolution
            | Kind::DepthwiseConvolution
            | Kind::TransposedConvolution => &[Phase::Forward, Phase::InputGradient, Phase::WeightGradient],
            Kind::LayerNorm | Kind::BatchNorm | Kind::BatchNormEval | Kind::GroupNorm => {
                &[Phase::Forward, Phase::InputGradient, Phase::WeightGradient]
            }
            Kind::Embedding => &[Phase::Forward, Phase::WeightGradient],
            Kind::Add | Kind::Cat | Kind::Copy | Kind::Permute => &[Phase::Forward],
            _ => &[Phase::Forward, Phase::InputGradient],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_of_known_layers() {
        // The first layer of ResNet at batch 1: 118 million multiply-adds.
        let first = Size::Convolution {
            batch: 1,
            in_channels: 3,
            out_channels: 64,
            groups: 1,
            height: 224,
            width: 224,
            kernel: 7,
            stride: 2,
            padding: 3,
        };
        let work = first.work(Kind::Convolution, DType::Float32);
        assert_eq!(work.flops, 2.0 * 118_013_952.0);
        assert_eq!(work.output_bytes, 4.0 * 64.0 * 112.0 * 112.0);
        assert_eq!(work.saved_bytes, 4.0 * 3.0 * 224.0 * 224.0);

        let linear = Size::Product { batch: 1, m: 2, n: 3, k: 5 }.work(Kind::Linear, DType::BFloat16);
        assert_eq!((linear.flops, linear.bytes, linear.saved_bytes), (60.0, 2.0 * 31.0, 20.0));

        let causal = Size::Attention { batch: 1, heads: 2, seq: 4, kv_seq: 4, head_dim: 8, causal: true };
        assert_eq!(causal.work(Kind::Attention, DType::Float32).flops, 4.0 * 0.5 * 2.0 * 16.0 * 8.0);

        let upsampled = Size::Images { batch: 1, channels: 2, groups: 1, height: 3, width: 3 };
        assert_eq!(upsampled.work(Kind::UpsampleNearest, DType::Float32).bytes, 4.0 * (18.0 + 72.0));
    }
}
