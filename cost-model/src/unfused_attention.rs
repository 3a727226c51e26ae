//! Attention on a GPU that no fused kernel takes: two products with a softmax between, whose scores lie in memory.
//!
//! Since version 2.5 PyTorch computes it in float32 where its operands have 16 bits, casts in front and behind
//! (`_scaled_dot_product_attention_math`; nest_tiny of timm became half as fast again with it). Fused kernels take four dimensions.

use graph::OperatorCost;
use schema::{DeviceType, Phase};

use crate::{
    efficiency::{Sort, of},
    work::Machine,
};

/// One attention.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unfused {
    /// Operations of the two products, and of the four of their gradients.
    flops: [f64; 2],
    /// Elements of query, key, value and result.
    operands: f64,
    /// A number for each pair of positions.
    scores: f64,
    has_mask: bool,
    /// Bytes of an element of the operands, and of what is computed with.
    element: f64,
    wide: f64,
}

impl Unfused {
    /// Returns an attention; nothing for what runs in a fused kernel.
    pub fn of(cost: &OperatorCost, scale: f64, element: f64, widths: f64, has_mask: bool) -> Option<Self> {
        let is_unfused = cost.fused_flops == 0 && cost.forward_flops > 0;
        let forward = cost.forward_flops as f64 * scale;
        let bytes = (cost.read_bytes + cost.written_bytes) as f64 * scale;
        is_unfused.then_some(Self {
            flops: [forward, cost.backward_flops_input as f64 * scale],
            operands: bytes / element,
            scores: forward / (2.0 * widths.max(1.0)),
            has_mask,
            element,
            wide: element.max(4.0),
        })
    }

    /// Returns the seconds of a phase; none where nothing is computed in it.
    pub fn seconds(&self, figures: &DeviceType, wide: &Machine, phase: Phase) -> f64 {
        let casts = if self.element < self.wide { self.operands * (self.element + self.wide) } else { 0.0 };
        let scores = self.scores * self.wide;
        let mask = if self.has_mask { 2.0 * scores } else { 0.0 };
        // Both products move the scores once; query and key are scaled by copies.
        let (flops, of_products, softmax, copies) = match phase {
            Phase::Forward => {
                let operands = self.operands * self.wide;
                (self.flops[0], operands + 2.0 * scores, 2.0 * scores, operands + mask + casts)
            }
            Phase::InputGradient if self.flops[1] > 0.0 => {
                let operands = 2.0 * self.operands * self.wide;
                (self.flops[1], operands + 4.0 * scores, 3.0 * scores, operands + mask + casts)
            }
            _ => return 0.0,
        };
        let time = |sort: Sort, flops: f64, bytes: f64| {
            of(figures, sort).seconds(Phase::Forward, flops / wide.peak, bytes / wide.bandwidth, wide.launch)
        };
        time(Sort::Batched, flops, of_products)
            + time(Sort::Softmax, 0.0, softmax)
            + time(Sort::Elementwise, 0.0, copies)
    }
}
