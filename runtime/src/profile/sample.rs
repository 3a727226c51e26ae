//! Random sizes of a kind.
//!
//! Dimensions are log-uniform and mostly round, as in real models: 60 % multiples of 64, 25 % of 8, 15 % free.

use super::{Kind, Size, random::Random};

/// Draws a size.
pub(super) fn draw(kind: Kind, random: &mut Random) -> Size {
    let kind = kind.plain();
    match kind {
        Kind::Linear => Size::Product {
            batch: 1,
            m: dimension(random, 1.0, 65536.0),
            n: dimension(random, 8.0, 32768.0),
            k: dimension(random, 8.0, 32768.0),
        },
        Kind::Bmm => Size::Product {
            batch: batch(random, 1024.0),
            m: dimension(random, 8.0, 4096.0),
            n: dimension(random, 8.0, 4096.0),
            k: dimension(random, 8.0, 4096.0),
        },
        Kind::Convolution
        | Kind::GroupedConvolution
        | Kind::DepthwiseConvolution
        | Kind::TransposedConvolution => convolution(kind, random),
        Kind::MaxPool | Kind::AvgPool => {
            let channels = dimension(random, 3.0, 2048.0);
            let (kernel, stride) = random.choose(&[(2, 2), (2, 2), (3, 2), (3, 1), (3, 3)]);
            let size = image(random).max(kernel);
            Size::Convolution {
                batch: batch(random, 128.0),
                in_channels: channels,
                out_channels: channels,
                groups: channels,
                height: size,
                width: size,
                kernel,
                stride,
                padding: kernel / 3,
            }
        }
        Kind::Attention => {
            let seq = dimension(random, 16.0, 8192.0);
            let causal = random.unit() < 0.5;
            // One in six attends to another sequence, or decodes a few tokens.
            let kv_seq =
                if !causal && random.unit() < 1.0 / 3.0 { dimension(random, 16.0, 8192.0) } else { seq };
            Size::Attention {
                batch: batch(random, 128.0),
                heads: random.choose(&[1, 2, 4, 8, 12, 16, 20, 32, 40]),
                seq,
                kv_seq,
                head_dim: random.choose(&[16, 32, 40, 64, 64, 64, 80, 96, 128, 128]),
                causal,
            }
        }
        Kind::Embedding => Size::Table {
            rows: dimension(random, 8.0, 65536.0),
            cols: dimension(random, 16.0, 8192.0),
            vocabulary: random.log_uniform(64.0, 262_144.0) as u64,
        },
        Kind::BatchNorm
        | Kind::BatchNormEval
        | Kind::GroupNorm
        | Kind::GlobalAvgPool
        | Kind::UpsampleNearest
        | Kind::UpsampleBilinear => {
            let groups = if kind == Kind::GroupNorm { random.choose(&[1, 4, 8, 16, 32, 32]) } else { 1 };
            let channels = dimension(random, 3.0, 2048.0).div_ceil(groups) * groups;
            let size = image(random);
            Size::Images { batch: batch(random, 128.0), channels, groups, height: size, width: size }
        }
        // A single head is already in order.
        Kind::Permute => Size::Heads {
            batch: batch(random, 64.0),
            heads: random.choose(&[2, 4, 8, 12, 16, 20, 32, 40]),
            seq: dimension(random, 16.0, 8192.0),
            head_dim: random.choose(&[16, 32, 40, 64, 64, 64, 80, 96, 128, 128]),
        },
        _ => {
            // A result of two halves needs an even number of columns.
            let even = if kind == Kind::Cat { 2 } else { 1 };
            Size::Rows {
                rows: dimension(random, 1.0, 262_144.0),
                cols: dimension(random, 16.0, 32768.0).div_ceil(even) * even,
            }
        }
    }
}

fn convolution(kind: Kind, random: &mut Random) -> Size {
    let kernels: &[u64] = match kind {
        Kind::TransposedConvolution => &[2, 2, 3, 4],
        Kind::GroupedConvolution => &[1, 3, 3, 3, 3, 5],
        Kind::DepthwiseConvolution => &[3, 3, 3, 5, 7],
        _ => &[1, 1, 1, 3, 3, 3, 3, 5, 7],
    };
    let kernel = random.choose(kernels);
    let stride = match kind {
        Kind::TransposedConvolution => 2,
        _ => random.choose(&[1, 1, 1, 2]),
    };
    // Half of them keep the size or halve it, as nearly all in models do; larger patches are not padded.
    let padding = if kernel % 2 == 1 && random.unit() < 0.9 { kernel / 2 } else { 0 };
    let padding = if kind == Kind::TransposedConvolution && kernel == 4 { 1 } else { padding };
    let size = image(random).max(kernel);
    let size = if kind == Kind::TransposedConvolution { size.next_multiple_of(2) } else { size };
    // Channels per group: ResNeXt has 4 to 32, RegNet 8 to 232.
    let width = match kind {
        Kind::GroupedConvolution => random.choose(&[2, 4, 4, 4, 8, 8, 8, 8, 16, 16, 16, 24, 32, 40, 64, 112]),
        _ => 1,
    };
    let in_channels = match kind {
        // The first layer of a model is one of a few dozen, and unlike the others.
        Kind::Convolution if random.unit() < 0.06 => random.choose(&[1, 3, 3, 4]),
        Kind::GroupedConvolution => width * (dimension(random, 16.0, 2048.0) / width).max(2),
        _ => dimension(random, 3.0, 2048.0),
    };
    let groups = match kind {
        Kind::DepthwiseConvolution => in_channels,
        Kind::GroupedConvolution => in_channels / width,
        _ => 1,
    };
    let out_channels = match kind {
        Kind::DepthwiseConvolution => in_channels,
        // Nearly all keep the number of channels.
        Kind::GroupedConvolution => match random.unit() {
            few if few < 0.08 => in_channels / 2,
            many if many > 0.92 => in_channels * 2,
            _ => in_channels,
        },
        _ => dimension(random, 8.0, 2048.0),
    };
    let out_channels = out_channels.next_multiple_of(groups);
    Size::Convolution {
        batch: batch(random, 128.0),
        in_channels,
        out_channels,
        groups,
        height: size,
        width: size,
        kernel,
        stride,
        padding,
    }
}

/// Draws a dimension between the two.
pub(super) fn dimension(random: &mut Random, low: f64, high: f64) -> u64 {
    let free = random.log_uniform(low, high + 1.0);
    let choice = random.unit();
    let multiple = if choice < 0.60 {
        64
    } else if choice < 0.85 {
        8
    } else {
        1
    };
    // A small dimension is rounded to a smaller power of two: 24 stays 24 or 32, it does not become 64.
    let multiple = (1..=multiple).rev().find(|m| multiple % m == 0 && *m as f64 <= free).unwrap_or(1);
    let rounded = (free / multiple as f64).round() as u64 * multiple;
    let most = high as u64;
    if rounded > most { most / multiple * multiple } else { rounded.max(low as u64) }
}

/// Draws a number of samples: mostly a power of two.
fn batch(random: &mut Random, high: f64) -> u64 {
    let free = random.log_uniform(1.0, high + 1.0);
    if random.unit() < 0.7 {
        1 << (free.log2().round() as u32).min(high.log2() as u32)
    } else {
        (free as u64).max(1)
    }
}

/// Draws the size of an image: half of them are sizes that pooling 224 or 256 pixels leads to.
fn image(random: &mut Random) -> u64 {
    if random.unit() < 0.5 {
        random.choose(&[7, 8, 14, 16, 28, 32, 56, 64, 112, 128, 224])
    } else {
        random.log_uniform(4.0, 257.0) as u64
    }
}
