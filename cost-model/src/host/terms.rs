//! Terms of operators on a processor: blocks of channels, fresh memory, products of few rows.

use schema::{Phase, WorkSize};

use crate::work::{Machine, Work, volume};

/// Most rows that libraries of a processor multiply one by one, reading all of the other operand for each. (Timed of libtorch
/// with MKL on an EPYC: 1 to 4 rows of 9,216 by 4,096 take 7, 13, 18, 18 ms, and 8 take 24.)
const BY_ROW: f64 = 4.0;
/// Longest sums for which each result costs more than its share of a tile, but for sums of one. (Timed there: 1,000 by 4,096
/// results of 1, 2, 8, 16 products take 0.9, 3.2, 2.3, 2.1 ms.)
const SHORT_SUMS: f64 = 8.0;

/// Most channels of an image: oneDNN's gradient of such weights reads it as it lies, where more channels are padded to a
/// register. (Timed on an EPYC with AVX-512: 3 channels at 100–180, 4 at 35 GFLOP/s.)
const IMAGE: f64 = 3.0;

/// Takes the name and the value of a term.
type Push<'a> = &'a mut dyn FnMut(&'static str, f64);

/// Adds the terms of the anchor that stand behind the launch: fresh memory, and channels beyond the last of a register.
pub(crate) fn anchor(work: &Work, machine: &Machine, push: Push<'_>) {
    let Some(host) = machine.host else { return };
    push("fresh", fresh(work, host.mapped) / machine.bandwidth);
    let f = work.flops / machine.peak;
    if let WorkSize::Convolution { in_channels, out_channels, groups, .. } = work.size {
        let [in_channels, out_channels] =
            [in_channels, out_channels].map(|channels| together(channels, in_channels, groups));
        push("flops_padded_in", f / fill_in(work.phase, in_channels, host.lanes));
        push("flops_padded_out", f / fill(out_channels, host.lanes));
        // Channels beyond the last: what is read and written in blocks of a register.
        push("read_padded", work.read_a / fill_in(work.phase, in_channels, host.lanes) / machine.bandwidth);
        push("written_padded", work.written / fill(out_channels, host.lanes) / machine.bandwidth);
    }
}

/// Adds the terms of the anchor of a product: few rows, short sums.
pub(crate) fn short_products(work: &Work, machine: &Machine, push: Push<'_>) {
    let passes = if work.m <= BY_ROW { work.m } else { 0.0 };
    push("read_by_row", passes * work.read_b / machine.bandwidth);
    let is_short = work.k > 1.0 && work.k <= SHORT_SUMS;
    push("written_short_sums", if is_short { work.written / machine.bandwidth } else { 0.0 });
}

/// Adds the bounded terms of a convolution.
pub(crate) fn bounded(work: &Work, machine: &Machine, push: Push<'_>) {
    if let (Some(host), WorkSize::Convolution { in_channels, out_channels, groups, .. }) =
        (machine.host, work.size)
    {
        let [in_channels, out_channels] =
            [in_channels, out_channels].map(|channels| together(channels, in_channels, groups));
        push("fill_in", fill_in(work.phase, in_channels, host.lanes));
        push("fill_out", fill(out_channels, host.lanes));
        push("is_fresh", if fresh(work, host.mapped) > 0.0 { 1.0 } else { 0.0 });
    }
}

/// Tells whether libtorch computes a convolution on a processor by itself, image by image as products of matrices,
/// instead of calling oneDNN. (`ConvParams::use_mkldnn`, ATen/native/Convolution.cpp, read; its names seen in a trace of
/// libtorch 2.11. Dilated kernels of 1 × 1, which are none, are left out.)
pub(crate) fn is_native(work: &Work, machine: &Machine) -> bool {
    /// Elements of a lone image, and images of a batch, that go to oneDNN.
    const LARGE: (f64, f64) = (20_480.0, 16.0);
    let WorkSize::Convolution { batch, in_channels, groups, input, kernel, stride, .. } = work.size else {
        return false;
    };
    let is_pointwise = kernel[1] * kernel[2] == 1.0 && volume(stride) == 1.0;
    let is_alone = groups == 1.0 && batch == 1.0 && !(kernel[1] > 3.0 && kernel[2] > 3.0);
    machine.is_processor()
        && (machine.element == 8.0
            || machine.element == 4.0
                && (is_pointwise && batch < LARGE.1 && machine.multiprocessors == 1.0
                    || is_alone && in_channels * volume(input) <= LARGE.0))
}

/// Returns how full the registers are that hold input channels.
fn fill_in(phase: Phase, channels: f64, lanes: f64) -> f64 {
    match phase {
        Phase::WeightGradient if channels <= IMAGE => 1.0,
        _ => fill(channels, lanes),
    }
}

/// Returns the bytes of fresh memory that a call takes: its result, when that is too large to be given out again.
///
/// A convolution computes on operands in blocks of channels: each is copied into them, and the result back into rows.
/// (Counted as page faults of oneDNN's convolutions in libtorch 2.11: input, weights, and the result twice.)
fn fresh(work: &Work, mapped: f64) -> f64 {
    let large = |bytes: f64| if bytes > mapped { bytes } else { 0.0 };
    match work.size {
        WorkSize::Convolution { .. } => large(work.read_a) + large(work.read_b) + 2.0 * large(work.written),
        _ => large(work.written),
    }
}

/// Returns the channels that registers are filled with: those of a group, but all where each channel is one.
fn together(channels: f64, in_channels: f64, groups: f64) -> f64 {
    if groups == in_channels { channels } else { (channels / groups).max(1.0) }
}

/// Returns the used share of channels that come in blocks.
fn fill(channels: f64, lanes: f64) -> f64 {
    channels / ((channels / lanes).ceil() * lanes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As traces of libtorch 2.11 name the kernels, on one thread.
    #[test]
    fn libtorch_computes_small_and_pointwise_convolutions_by_itself() {
        let named = |name: &str| Machine::of(&schema::catalogue()[name], "float32");
        let thread = named("CPU-EPYC-ZEN4-1T");
        let is_native = |machine: &Machine, batch, channels, groups, size: f64, kernel, stride: f64| {
            let size = WorkSize::Convolution {
                batch,
                in_channels: channels,
                out_channels: channels,
                groups,
                input: [1.0, size, size],
                output: [1.0, (size / stride).ceil(), (size / stride).ceil()],
                kernel: [1.0, kernel, kernel],
                stride: [1.0, stride, stride],
            };
            Phase::ALL.map(|(phase, _)| is_native(&Work::of(size, phase, machine.element), machine))
        };
        for (batch, channels, groups, size, kernel, stride, expected) in [
            (1.0, 8.0, 1.0, 16.0, 1.0, 1.0, true),
            (1.0, 8.0, 1.0, 16.0, 3.0, 1.0, true),
            (1.0, 8.0, 8.0, 16.0, 3.0, 1.0, false),
            (2.0, 8.0, 8.0, 16.0, 1.0, 1.0, true),
            (2.0, 8.0, 1.0, 16.0, 1.0, 1.0, true),
            (2.0, 8.0, 1.0, 16.0, 3.0, 1.0, false),
            (16.0, 8.0, 1.0, 16.0, 1.0, 1.0, false),
            // Those of ResNet-50, three images of 224 × 224.
            (3.0, 256.0, 1.0, 14.0, 1.0, 1.0, true),
            (3.0, 512.0, 1.0, 28.0, 1.0, 2.0, false),
            (3.0, 64.0, 1.0, 56.0, 3.0, 1.0, false),
            // A lone image is small up to 20,480 elements; kernels of 4 × 4 and more are always oneDNN's.
            (1.0, 64.0, 1.0, 56.0, 3.0, 1.0, false),
            (1.0, 8.0, 1.0, 16.0, 4.0, 1.0, false),
        ] {
            let found = is_native(&thread, batch, channels, groups, size, kernel, stride);
            assert_eq!(
                found, [expected; 5],
                "{batch} × {channels} × {size}², kernel {kernel}, stride {stride}"
            );
        }
        let two = named("CPU-EPYC-ZEN4-2C");
        assert!(is_native(&two, 2.0, 8.0, 1.0, 16.0, 1.0, 1.0).iter().all(|is| !is));
        assert!(is_native(&two, 1.0, 8.0, 1.0, 16.0, 1.0, 1.0).iter().all(|is| *is));
        assert!(is_native(&named("A100-SXM4-80GB"), 1.0, 8.0, 1.0, 16.0, 1.0, 1.0).iter().all(|is| !is));
    }
}
