//! An operator of which a device computes a part: its own sizes, not the whole's time divided.

use schema::WorkSize;

/// In how many parts an operator is split; samples are a matter of the batch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Parts {
    /// Of the result's channels, or the last axis of what is no image.
    pub channels: f64,
    /// Of its rows, or the positions of a sequence.
    pub height: f64,
    /// Of its columns.
    pub width: f64,
    /// Of the sums that make an element.
    pub sums: f64,
}

impl Default for Parts {
    fn default() -> Self {
        Self { channels: 1.0, height: 1.0, width: 1.0, sums: 1.0 }
    }
}

impl Parts {
    /// Returns how many parts there are.
    pub(crate) fn all(self) -> f64 {
        self.channels * self.pixels() * self.sums
    }

    fn pixels(self) -> f64 {
        self.height * self.width
    }

    /// Returns the size of the largest part.
    pub(crate) fn of(self, size: WorkSize, is_image: bool) -> WorkSize {
        let part = |size: f64, parts: f64| if parts == 1.0 { size } else { (size / parts).ceil().max(1.0) };
        let axes = |axes: [f64; 3]| [axes[0], part(axes[1], self.height), part(axes[2], self.width)];
        let mut size = size;
        match &mut size {
            WorkSize::Product { m, n, k, .. } => {
                (*m, *n, *k) = (part(*m, self.pixels()), part(*n, self.channels), part(*k, self.sums));
            }
            WorkSize::Convolution { in_channels, out_channels, groups, input, output, .. } => {
                (*input, *output) = (axes(*input), axes(*output));
                // Channels of a depthwise convolution are split together with their results.
                let is_depthwise = *groups > 1.0 && groups == in_channels;
                let sums = if is_depthwise { self.channels } else { self.sums };
                *groups = if is_depthwise { part(*groups, sums) } else { *groups };
                *in_channels = part(*in_channels, sums);
                *out_channels = part(*out_channels, self.channels);
            }
            WorkSize::Attention { heads, kv_heads, .. } => {
                (*heads, *kv_heads) = (part(*heads, self.channels), part(*kv_heads, self.channels));
            }
            WorkSize::Channels { channels, pixels, .. } => {
                (*channels, *pixels) = (part(*channels, self.channels), part(*pixels, self.pixels()));
            }
            WorkSize::Rows { rows, cols, .. } if is_image => {
                (*rows, *cols) = (part(*rows, self.channels), part(*cols, self.pixels()));
            }
            WorkSize::Rows { rows, cols, .. } | WorkSize::Table { rows, cols, .. } => {
                (*rows, *cols) = (part(*rows, self.pixels()), part(*cols, self.channels));
            }
        }
        size
    }

    /// Returns the bytes that a part moves, of what is read of other operators, of stored tensors and of what is written.
    pub(crate) fn traffic(self, is_product: bool, read: f64, stored: f64, written: f64) -> f64 {
        let read_parts = if is_product { self.sums } else { self.channels };
        read / (read_parts * self.pixels())
            + stored / (self.channels * self.sums)
            + written / (self.channels * self.pixels())
    }
}
