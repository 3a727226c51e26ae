//! Kernels of accelerators that are bounded by instructions rather than by bytes: they take as long for numbers of 16 bits as for
//! those of 32, and as long beside faster memory.
//!
//! The figures are fitted to operators of at least 60 MB that this tool measured on an H100 and an H200 (`make instructions` fits
//! them again from fixtures/profiles): the chip is the same, the memory 1.43 times as fast, so two cards and two types tell bytes
//! from instructions. By bytes alone, copies in another order are 21 % off on average, gradients of max pools 25 %, of average
//! pools 27 %; with instructions 3, 6 and 7 %. Depthwise convolutions with windows of 3 take 34 to 41 instructions for a product and
//! a sum, in all types, on both cards.

use schema::{DeviceType, Phase, WorkSize, kinds};

/// What a kernel takes of a device: bytes and instructions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Instructions {
    /// Time of the bytes, relative to the forward pass's at the bandwidth.
    traffic: f64,
    /// Instructions for each element that the forward pass reads or writes.
    element: f64,
    /// Instructions for each operation of the forward pass: the elements of windows.
    operation: f64,
}

impl Instructions {
    /// Returns what a kind of a profile's rows takes in a phase; nothing where bytes alone tell.
    pub fn of(kind: &str, size: &WorkSize, dtype: &str, phase: Phase) -> Option<Self> {
        if kind == kinds::DEPTHWISE_CONVOLUTION {
            return Self::depthwise(size, dtype, phase);
        }
        let (forward, gradient) = match kind {
            kinds::PERMUTE => ((0.56, 37.0, 0.0), None),
            kinds::MAX_POOL => ((0.09, 16.5, 51.0), Some((0.82, 254.0, 0.0))),
            kinds::MAX_POOL_CHANNELS_LAST => ((0.56, 39.0, 41.0), Some((0.0, 98.0, 78.0))),
            kinds::AVG_POOL => ((0.14, 17.0, 39.0), Some((1.2, 460.0, 0.0))),
            kinds::GLOBAL_AVG_POOL => ((1.22, 1.2, 0.0), Some((1.01, 40.0, 0.0))),
            kinds::UPSAMPLE_NEAREST => ((0.69, 56.0, 0.0), Some((0.61, 30.0, 0.0))),
            kinds::UPSAMPLE_BILINEAR => ((2.9, 67.0, 0.0), Some((0.0, 260.0, 0.0))),
            kinds::BATCH_NORM => ((0.2, 69.0, 0.0), Some((1.78, 60.0, 0.0))),
            kinds::BATCH_NORM_CHANNELS_LAST => ((0.0, 78.0, 0.0), Some((2.15, 32.0, 0.0))),
            kinds::BATCH_NORM_EVAL => ((0.78, 25.6, 0.0), Some((0.0, 58.0, 0.0))),
            kinds::BATCH_NORM_EVAL_CHANNELS_LAST => ((1.28, 8.6, 0.0), Some((0.49, 119.0, 0.0))),
            kinds::GROUP_NORM => ((0.98, 61.0, 0.0), Some((1.49, 66.0, 0.0))),
            kinds::DROPOUT => ((1.22, 10.5, 0.0), Some((1.15, 4.7, 0.0))),
            _ => return None,
        };
        let (traffic, element, operation) = match phase {
            Phase::Forward => forward,
            Phase::InputGradient | Phase::Backward => gradient?,
            // Gradients of weights come with the input's.
            Phase::WeightGradient | Phase::Training => return None,
        };
        Some(Self { traffic, element, operation })
    }

    /// Depthwise convolutions in torch's own kernels, a thread for each element of the result. Windows of 3 have a kernel of
    /// their own, which is slower. In float16 cuDNN takes square windows of up to 5 (`use_cudnn_depthwise` in torch's
    /// Convolution.cpp), which was not measured.
    fn depthwise(size: &WorkSize, dtype: &str, phase: Phase) -> Option<Self> {
        let WorkSize::Convolution { kernel: [_, height, width], input, output, .. } = *size else {
            return None;
        };
        if dtype == "float16" && height == width && width <= 5.0 {
            return None;
        }
        let is_three = height == 3.0 && width == 3.0;
        let volume = |axes: [f64; 3]| axes.iter().product::<f64>();
        // Each element of the input looks at its whole window, whatever the stride.
        let windows = volume(input) / volume(output).max(1.0);
        // Instructions for each product and sum, which are two operations.
        let of_sum = match (phase, is_three) {
            (Phase::Forward, true) => 36.0,
            (Phase::Forward, false) => 22.5,
            (Phase::InputGradient, true) => 61.0 * windows,
            (Phase::InputGradient, false) => 27.0 * windows,
            (Phase::WeightGradient, _) => 46.0,
            (Phase::Backward | Phase::Training, _) => return None,
        };
        Some(Self { traffic: 0.0, element: 0.0, operation: of_sum / 2.0 })
    }

    /// Returns the seconds, given the elements and operations of the forward pass, the seconds that its bytes take by the
    /// bandwidth, and how many times longer plain copies take.
    pub fn seconds(&self, rate: f64, elements: f64, operations: f64, bytes: f64, copies: f64) -> f64 {
        let instructions = self.element * elements + self.operation * operations;
        instructions / rate + self.traffic * bytes * copies / COPIES
    }
}

/// Plain copies of the same rows, relative to the bandwidth: part of the traffic above.
const COPIES: f64 = 1.12;

/// Returns the instructions that a device begins each second, of all lanes; nothing where its clock is not told by its rates.
///
/// A multiprocessor begins one for 128 lanes in each clock, since Pascal; those of P100, Volta, Turing and the A100 have half
/// as many units for float32, so that their peak, two operations a unit, is counted with half of it (NVIDIA's whitepapers).
pub(crate) fn rate(device: &DeviceType) -> Option<f64> {
    let architecture = device.architecture.as_deref()?.strip_prefix("sm")?;
    let float32 = device.peak.get("float32")?.0;
    let has_half = matches!(architecture, "60" | "70" | "75" | "80");
    Some(if has_half { float32 } else { 0.5 * float32 })
}

#[cfg(test)]
mod tests {
    use schema::catalogue;

    use super::*;

    /// The same kernel takes the time of instructions on both cards, and more on the one whose memory is slower.
    #[test]
    fn instructions_bound_what_faster_memory_does_not_help() {
        let [h100, h200] = ["H100-SXM5-80GB", "H200-SXM-141GB"].map(|name| &catalogue()[name]);
        assert_eq!(rate(h100), rate(h200));
        let rate = rate(h100).expect("a rate");
        let size = WorkSize::Rows { rows: 1.0, cols: 1e8, inputs: 1.0 };
        let pool = Instructions::of(kinds::MAX_POOL, &size, "float32", Phase::Backward).expect("a pool");
        let time = |device: &DeviceType, element: f64| {
            pool.seconds(rate, 1e8, 0.0, 1e8 * element / device.memory_bandwidth.0, COPIES)
        };
        assert!(time(h100, 4.0) < 1.15 * time(h200, 4.0), "memory is 1.43 times as fast");
        assert!(time(h100, 4.0) < 1.15 * time(h100, 2.0), "bytes are twice as many");
        assert!(time(h100, 4.0) > time(h200, 4.0));
    }

    /// What cuDNN takes is not what torch's own kernels take.
    #[test]
    fn depthwise_kernels_are_those_that_torch_chooses() {
        let of = |dtype: &str, kernel: f64, stride: f64, phase| {
            let size = WorkSize::Convolution {
                batch: 8.0,
                in_channels: 64.0,
                out_channels: 64.0,
                groups: 64.0,
                input: [1.0, 28.0, 28.0],
                output: [1.0, 28.0 / stride, 28.0 / stride],
                kernel: [1.0, kernel, kernel],
                stride: [1.0, stride, stride],
            };
            Instructions::of(kinds::DEPTHWISE_CONVOLUTION, &size, dtype, phase)
                .map(|issue| 2.0 * issue.operation)
        };
        assert_eq!(of("float16", 3.0, 1.0, Phase::Forward), None);
        assert_eq!(of("float16", 7.0, 1.0, Phase::Forward), Some(22.5));
        assert_eq!(of("bfloat16", 3.0, 1.0, Phase::Forward), Some(36.0));
        assert_eq!(of("bfloat16", 5.0, 2.0, Phase::InputGradient), Some(4.0 * 27.0));
    }

    #[test]
    fn clocks_follow_from_rates() {
        for (name, clock) in [("A100-SXM4-80GB", 1.41e9), ("V100-SXM2-16GB", 1.53e9), ("RTX-3090", 1.70e9)] {
            let device = &catalogue()[name];
            let rate = rate(device).expect("a rate") / 128.0 / f64::from(device.multiprocessors.unwrap_or(1));
            assert!((rate / clock - 1.0).abs() < 0.01, "{name}: {rate:e}");
        }
        assert_eq!(rate(&catalogue()["MI300X"]), None);
    }
}
