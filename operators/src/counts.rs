//! Operations and elements of products, convolutions and attention by their sizes: the only place of each formula.
//!
//! `graph` counts in integers that saturate at 2^64 - 1, because sizes come from a file; `cost-model` and `profile`
//! count in floating point, because a size may be a share of a batch. The same function serves both. Bytes are elements
//! times the width of the data type, which the caller knows.
//!
//! ```
//! use operators::ProductSize;
//! let of_numbers = ProductSize { batch: 1.0, m: 2.0, n: 3.0, k: 5.0 };
//! assert_eq!(of_numbers.flops(), 60.0);
//! ```

use std::{
    num::Saturating,
    ops::{Add, Mul},
};

/// A number type for sizes and counts.
pub trait Number: Copy + Add<Output = Self> + Mul<Output = Self> {
    /// Converts a small integer.
    fn whole(number: u32) -> Self;
}

impl Number for f64 {
    fn whole(number: u32) -> Self {
        Self::from(number)
    }
}

impl Number for Saturating<u64> {
    fn whole(number: u32) -> Self {
        Self(u64::from(number))
    }
}

/// `batch` products of m × k and k × n.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs)] // The names are those of the sizes above.
pub struct ProductSize<N> {
    pub batch: N,
    pub m: N,
    pub n: N,
    pub k: N,
}

impl<N: Number> ProductSize<N> {
    /// Returns the operations, two per multiply-add. Each of the two gradients takes as many.
    pub fn flops(self) -> N {
        N::whole(2) * self.batch * self.m * self.n * self.k
    }

    /// Returns the elements of all left factors.
    pub fn left(self) -> N {
        self.batch * self.m * self.k
    }

    /// Returns the elements of all right factors.
    pub fn right(self) -> N {
        self.batch * self.n * self.k
    }

    /// Returns the elements of all results.
    pub fn result(self) -> N {
        self.batch * self.m * self.n
    }
}

/// A convolution. A transposed one is counted as its inverse: `input` is its result.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ConvolutionSize<N> {
    /// Images.
    pub batch: N,
    /// Channels of an input image.
    pub in_channels: N,
    /// Input channels per output channel.
    pub in_group: N,
    /// Channels of an output image.
    pub out_channels: N,
    /// Positions of an input channel.
    pub input: N,
    /// Positions of an output channel.
    pub output: N,
    /// Positions of a kernel.
    pub kernel: N,
}

impl<N: Number> ConvolutionSize<N> {
    /// Returns the operations, two per multiply-add. Each of the two gradients takes as many.
    pub fn flops(self) -> N {
        N::whole(2) * self.pixels() * self.out_channels * self.window()
    }

    /// Returns the output positions of all images: rows of the equivalent matrix product.
    pub fn pixels(self) -> N {
        self.batch * self.output
    }

    /// Returns the elements that are summed into one output element.
    pub fn window(self) -> N {
        self.in_group * self.kernel
    }

    /// Returns the elements of all input images.
    pub fn images(self) -> N {
        self.batch * self.in_channels * self.input
    }

    /// Returns the elements of the weight.
    pub fn weights(self) -> N {
        self.out_channels * self.window()
    }

    /// Returns the elements of all output images.
    pub fn result(self) -> N {
        self.pixels() * self.out_channels
    }
}

/// Scaled dot-product attention. All scores are counted, as `torch.utils.flop_counter` counts them; causal kernels compute
/// [`CAUSAL_SHARE`] of them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionSize<N> {
    /// Samples; if they include the heads, `heads` is 1.
    pub batch: N,
    /// Heads of the query.
    pub heads: N,
    /// Heads of key and value.
    pub kv_heads: N,
    /// Positions of the query.
    pub seq: N,
    /// Positions of key and value.
    pub kv_seq: N,
    /// Width of query and key.
    pub width: N,
    /// Width of the value.
    pub value_width: N,
}

/// The share of all scores that kernels of causal attention compute.
pub const CAUSAL_SHARE: f64 = 0.5;

impl<N: Number> AttentionSize<N> {
    /// Returns the operations of the forward pass.
    pub fn flops(self) -> N {
        self.scores() + self.of_width(self.value_width)
    }

    /// Returns the operations of all gradients. `is_fused` kernels recompute the scores.
    pub fn backward_flops(self, is_fused: bool) -> N {
        let products = N::whole(2) * self.flops();
        if is_fused { products + self.scores() } else { products }
    }

    /// Returns the elements of the query.
    pub fn query(self) -> N {
        self.batch * self.heads * self.seq * self.width
    }

    /// Returns the elements of key and value.
    pub fn key_and_value(self) -> N {
        self.batch * self.kv_heads * self.kv_seq * (self.width + self.value_width)
    }

    /// Returns the elements of the result.
    pub fn result(self) -> N {
        self.batch * self.heads * self.seq * self.value_width
    }

    /// Returns the operations of query by key.
    fn scores(self) -> N {
        self.of_width(self.width)
    }

    fn of_width(self, width: N) -> N {
        N::whole(2) * self.batch * self.heads * self.seq * self.kv_seq * width
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first layer of ResNet at batch 1: 118,013,952 multiply-adds.
    #[test]
    fn a_layer_that_everybody_knows() {
        let of = |n: u64| Saturating(n);
        let first = ConvolutionSize {
            batch: of(1),
            in_channels: of(3),
            in_group: of(3),
            out_channels: of(64),
            input: of(224 * 224),
            output: of(112 * 112),
            kernel: of(49),
        };
        assert_eq!(first.flops(), of(2 * 118_013_952));
        assert_eq!(first.result(), of(64 * 112 * 112));
        assert_eq!(first.weights(), of(64 * 3 * 49));
    }

    #[test]
    fn whole_numbers_stop_where_64_bits_end() {
        let of = |n: u64| Saturating(n);
        let huge = ProductSize { batch: of(1), m: of(u64::MAX / 2), n: of(3), k: of(5) };
        assert_eq!(huge.flops(), of(u64::MAX));
        assert_eq!(ProductSize { k: of(0), ..huge }.flops(), of(0));
    }

    #[test]
    fn a_gradient_of_attention_is_two_and_a_half_passes() {
        let size = AttentionSize {
            batch: 2.0,
            heads: 3.0,
            kv_heads: 3.0,
            seq: 5.0,
            kv_seq: 7.0,
            width: 8.0,
            value_width: 8.0,
        };
        assert_eq!(size.flops(), 4.0 * 2.0 * 3.0 * 5.0 * 7.0 * 8.0);
        assert_eq!(size.backward_flops(true), 2.5 * size.flops());
        assert_eq!(size.backward_flops(false), 2.0 * size.flops());
        assert_eq!(AttentionSize { value_width: 0.0, ..size }.flops(), 0.5 * size.flops());
    }
}
