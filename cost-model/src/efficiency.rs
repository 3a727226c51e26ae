//! Roofline times without a profile: the share of a data sheet's rates that each sort of kernel reaches.
//!
//! On accelerators `launch + arithmetic × FLOPs / peak + traffic × bytes / bandwidth`: where one part is long the other still
//! shows, as kernels load before they compute and write afterwards. (Figures fitted for the maximum leave as much: 10 % of whole
//! models by family, 8 to 11 for the sum.) On processors the longest part counts.
//!
//! The figures are medians over the large operators of public timings, rounded: NeuSight's (float32 on P100, V100, T4, P4, L4,
//! A100, H100: products, 3 × 3 convolutions, element-wise operators, softmax, layer norm), NVIDIA's aiconfigurator (bfloat16
//! products on A100, attention on H200), DeepBench (convolutions and their gradients on V100 and T4). What those are silent or
//! products on A100, attention on H200), DeepBench (convolutions and their gradients on V100 and T4). Where these have no rows or
//! disagree, whole models set the figures, those of `fixtures/published`: pools, batch norms, batched products, convolutions of 1
//! × 1, of groups and of single channels, gradients of convolutions. (A fit of all figures to whole models in five folds by
//! family is off by 8 to 11 % on families left out, these figures by 7 to 14.) Two figures in the catalogue are a device's own.
//! Bands are the 10 % and 90 % quantiles of measured over predicted over all those devices, so that they include the differences
//! between devices; sorts without such timings have the bands of the nearest sort.

use std::ops::RangeInclusive;

use graph::OperatorClass;
use operators::Kernel;
use schema::{DeviceType, Phase, WorkSize};

use crate::{
    estimate::{Estimate, combine},
    host,
    instructions::{self, Instructions},
    shape::kernel_of_kind,
    work::{Machine, Work},
};

/// Sorts of kernels that use a device's rates alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sort {
    Product,
    /// Products of activations, many small ones at a time.
    Batched,
    Attention,
    /// Kernels of 1 × 1.
    Pointwise,
    Convolution,
    Grouped,
    /// One channel a group: no unit for products serves them, whatever the data type.
    Depthwise,
    Elementwise,
    BatchNorm,
    Norm,
    Softmax,
    Reduce,
    Pool,
}

impl Sort {
    /// Sorts by class and kernel, and by shape where that is known.
    pub fn of(class: OperatorClass, kernel: Kernel, size: Option<&WorkSize>) -> Self {
        match class {
            OperatorClass::Convolution => match size {
                Some(WorkSize::Convolution { in_channels, groups, kernel, .. }) => match *groups {
                    1.0 if kernel.iter().product::<f64>() == 1.0 => Self::Pointwise,
                    1.0 => Self::Convolution,
                    groups if groups == *in_channels => Self::Depthwise,
                    _ => Self::Grouped,
                },
                _ => Self::Convolution,
            },
            OperatorClass::Matmul => match size {
                Some(WorkSize::Product { batch, .. }) if *batch > 1.0 => Self::Batched,
                _ => Self::Product,
            },
            OperatorClass::Recurrent => Self::Product,
            OperatorClass::Attention => Self::Attention,
            OperatorClass::Norm if kernel == Kernel::BatchNorm => Self::BatchNorm,
            OperatorClass::Norm => Self::Norm,
            OperatorClass::Reduce if matches!(kernel, Kernel::Softmax | Kernel::LogSoftmax) => Self::Softmax,
            OperatorClass::Reduce => Self::Reduce,
            OperatorClass::Pool => Self::Pool,
            _ => Self::Elementwise,
        }
    }

    /// Sorts a row of a profile, which has a kind and a size but no class.
    fn of_row(kind: &str, size: &WorkSize) -> Self {
        let class = match size {
            WorkSize::Product { .. } => OperatorClass::Matmul,
            WorkSize::Convolution { .. } if kind.contains("pool") => OperatorClass::Pool,
            WorkSize::Convolution { .. } => OperatorClass::Convolution,
            WorkSize::Attention { .. } => OperatorClass::Attention,
            WorkSize::Rows { .. } if kind.contains("norm") => OperatorClass::Norm,
            WorkSize::Channels { .. } => OperatorClass::Norm,
            WorkSize::Rows { .. } if kind.starts_with("upsample") => OperatorClass::Pool,
            WorkSize::Rows { .. } if kind.contains("softmax") || kind.contains("pool") => {
                OperatorClass::Reduce
            }
            WorkSize::Rows { .. } | WorkSize::Table { .. } => OperatorClass::Elementwise,
        };
        Self::of(class, kernel_of_kind(kind), Some(size))
    }

    /// Returns the peak rate that applies.
    pub fn peak(self, device: &DeviceType, machine: &Machine) -> f64 {
        match self {
            Self::Depthwise => Machine::of(device, "float32").peak,
            _ => machine.peak,
        }
    }

    /// Tells whether operations say how many passes a gradient takes.
    fn is_product(self) -> bool {
        matches!(
            self,
            Self::Product
                | Self::Batched
                | Self::Attention
                | Self::Pointwise
                | Self::Convolution
                | Self::Grouped
                | Self::Depthwise
        )
    }

    /// Returns the traffic of the input's gradient relative to the forward's.
    ///
    /// The gradient of most element-wise operators reads the output's gradient and what was saved, and writes one tensor:
    /// three for the forward's two. The others are what was measured on V100 and H100 (NeuSight's labels: softmax 2.6–3.0,
    /// dropout 2.4–2.8 times the forward).
    pub fn gradient_traffic(self, kernel: Kernel) -> f64 {
        match self {
            Self::Softmax => 2.7,
            Self::BatchNorm | Self::Norm => 2.0,
            Self::Elementwise if kernel == Kernel::Dropout => 2.5,
            Self::Elementwise | Self::Reduce => 1.5,
            _ => 1.0,
        }
    }
}

/// Returns how many times longer a sort of kernels takes in a training run than alone, by profiles and data sheets.
pub(crate) fn in_a_run(device: &DeviceType, sort: Sort, dtype: &str) -> f64 {
    let is_narrow = !matches!(dtype, "float64" | "float32");
    let is_on_tensor_cores = sort.is_product() && sort != Sort::Depthwise && is_narrow;
    let sustained = device.sustained_slowdown.filter(|_| is_on_tensor_cores).unwrap_or(1.0);
    let attention = device.attention_slowdown.filter(|_| sort == Sort::Attention).unwrap_or(1.0);
    sustained * attention
}

/// Estimates a row of a profile by the data sheet.
pub(crate) fn estimate(device: &DeviceType, kind: &str, work: &Work, machine: &Machine) -> Estimate {
    let sort = Sort::of_row(kind, &work.size);
    let rates = of(device, sort);
    let forward = Work::of(work.size, Phase::Forward, machine.element);
    let issued = |phase: Phase| {
        // Rows of 16 bits are taken for bfloat16: measured ones are nearly all.
        let dtype = if machine.element == 2.0 { "bfloat16" } else { "float32" };
        let instructions = Instructions::of(kind, &work.size, dtype, phase)?;
        by_instructions(device, instructions, machine, forward.bytes(), forward.flops)
    };
    let about = |phase: Phase, passes: f64| {
        if let Some(seconds) = issued(phase) {
            return Estimate::about(seconds, rates.band(phase));
        }
        let flops = passes * forward.flops / sort.peak(device, machine);
        let bytes = passes * forward.bytes() / machine.bandwidth;
        let seconds = rates.seconds(phase, flops, bytes, machine.launch);
        Estimate::about(seconds, rates.band(phase))
    };
    let both = if sort.is_product() { 2.0 } else { sort.gradient_traffic(kernel_of_kind(kind)) };
    match work.phase {
        Phase::Forward => about(Phase::Forward, 1.0),
        Phase::InputGradient | Phase::WeightGradient if sort.is_product() => about(work.phase, 1.0),
        Phase::InputGradient | Phase::WeightGradient | Phase::Backward => about(Phase::Backward, both),
        Phase::Training => combine([about(Phase::Forward, 1.0), about(Phase::Backward, both)].into_iter()),
    }
}

/// The efficiency of a sort of kernels on a device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Use {
    /// Seconds for each second by the peak rate.
    arithmetic: f64,
    /// Seconds for each second by the memory's bandwidth.
    traffic: f64,
    /// The same for each pass of a gradient, relative to the forward pass's traffic.
    gradient: f64,
    /// Ends of the band, relative to the time.
    pub band: (f64, f64),
    /// The same for gradients.
    pub gradient_band: (f64, f64),
    /// Whether the parts add up, or the longest counts.
    adds: bool,
}

impl Use {
    /// Makes a time of the seconds that peak and bandwidth promise, and of the launch.
    pub fn seconds(&self, phase: Phase, flops: f64, bytes: f64, launch: f64) -> f64 {
        let traffic = if phase == Phase::Forward { self.traffic } else { self.gradient };
        let (arithmetic, traffic) = (self.arithmetic * flops, traffic * bytes);
        if self.adds { launch + arithmetic + traffic } else { arithmetic.max(traffic).max(launch) }
    }

    /// Returns the band of a phase.
    pub fn band(&self, phase: Phase) -> (f64, f64) {
        if phase == Phase::Forward { self.band } else { self.gradient_band }
    }
}

/// Time of plain copies relative to the bandwidth, for GPUs without a figure: that of GPUs without stacked memory.
const COPIES: f64 = 1.25;
/// The same of processors.
const PROCESSOR_COPIES: f64 = 1.67;

/// Returns the time of plain copies relative to the bandwidth.
fn copies(device: &DeviceType) -> f64 {
    device.copy_slowdown.unwrap_or(COPIES)
}

/// Returns the seconds of a kernel that instructions bound, given the bytes and operations of its forward pass; nothing where the
/// device's rate of instructions is not known.
pub(crate) fn by_instructions(
    device: &DeviceType,
    instructions: Instructions,
    machine: &Machine,
    traffic: f64,
    operations: f64,
) -> Option<f64> {
    let rate = instructions::rate(device).filter(|_| !machine.is_processor())?;
    let (elements, bytes) = (traffic / machine.element, traffic / machine.bandwidth);
    Some(machine.launch + instructions.seconds(rate, elements, operations, bytes, copies(device)))
}

/// Returns how a device runs a sort of kernels.
pub(crate) fn of(device: &DeviceType, sort: Sort) -> Use {
    let products = device.product_slowdown.unwrap_or(1.0);
    if host::is_processor(device.architecture.as_deref()) {
        return of_processor(sort, products, device.copy_slowdown.unwrap_or(PROCESSOR_COPIES));
    }
    let copies = copies(device);
    // Traffic of a gradient's pass, beside what a pass moves: as much as forward, but of convolutions more.
    let (arithmetic, traffic, gradient, band, gradient_band) = match sort {
        Sort::Product => (1.1, 1.4, 1.4, 0.72..=1.45, 0.68..=1.6),
        Sort::Batched => (1.3, 1.6, 1.6, 0.65..=1.5, 0.65..=1.6),
        Sort::Attention => (1.7, 2.2, 2.2, 0.75..=1.4, 0.65..=1.6),
        Sort::Pointwise => (1.2, 1.25, 2.1, 0.67..=1.4, 0.65..=1.8),
        Sort::Convolution => (1.0, 2.75, 4.5, 0.6..=1.8, 0.5..=1.9),
        Sort::Grouped => (1.4, 2.7, 6.5, 0.55..=1.8, 0.5..=1.9),
        Sort::Depthwise => (4.2, 1.7, 5.5, 0.6..=1.8, 0.5..=2.0),
        Sort::Elementwise => (0.0, copies, copies, 0.85..=1.2, 0.75..=1.3),
        Sort::BatchNorm => (0.0, copies, copies, 0.7..=1.4, 0.7..=1.4),
        Sort::Norm => (0.0, 1.75, 1.75, 0.73..=1.4, 0.7..=1.5),
        Sort::Softmax => (0.0, 1.6, 1.6, 0.75..=1.5, 0.7..=1.5),
        Sort::Reduce => (0.0, copies, copies, 0.7..=1.5, 0.7..=1.5),
        Sort::Pool => (0.0, 1.6, 1.6, 0.65..=1.6, 0.6..=1.7),
    };
    let ends = |range: RangeInclusive<f64>| (*range.start(), *range.end());
    Use {
        arithmetic: arithmetic * products,
        traffic,
        gradient,
        band: ends(band),
        gradient_band: ends(gradient_band),
        adds: true,
    }
}

/// Processors: round figures, for those without a profile; a curve is better by far.
fn of_processor(sort: Sort, products: f64, copies: f64) -> Use {
    let (arithmetic, traffic) = match sort {
        Sort::Product | Sort::Batched => (1.25, 1.67),
        Sort::Attention => (2.0, 1.67),
        Sort::Pointwise | Sort::Convolution | Sort::Grouped | Sort::Depthwise => (1.67, 1.67),
        Sort::Elementwise | Sort::Softmax => (0.0, copies),
        Sort::BatchNorm | Sort::Norm | Sort::Reduce | Sort::Pool => (0.0, 2.0),
    };
    let band = (0.6, 1.9);
    Use {
        arithmetic: arithmetic * products,
        traffic,
        gradient: traffic,
        band,
        gradient_band: band,
        adds: false,
    }
}

#[cfg(test)]
mod tests {
    use schema::catalogue;

    use super::*;

    const ALL: [Sort; 13] = [
        Sort::Product,
        Sort::Batched,
        Sort::Attention,
        Sort::Pointwise,
        Sort::Convolution,
        Sort::Grouped,
        Sort::Depthwise,
        Sort::Elementwise,
        Sort::BatchNorm,
        Sort::Norm,
        Sort::Softmax,
        Sort::Reduce,
        Sort::Pool,
    ];

    fn convolution(in_channels: f64, groups: f64, kernel: f64) -> WorkSize {
        WorkSize::Convolution {
            batch: 8.0,
            in_channels,
            out_channels: in_channels,
            groups,
            input: [1.0, 28.0, 28.0],
            output: [1.0, 28.0, 28.0],
            kernel: [1.0, kernel, kernel],
            stride: [1.0; 3],
        }
    }

    #[test]
    fn kernels_are_sorted_by_what_serves_them() {
        let product = |batch| WorkSize::Product { batch, m: 64.0, n: 64.0, k: 64.0 };
        let rows = WorkSize::Rows { rows: 64.0, cols: 64.0, inputs: 1.0 };
        for (kind, size, expected) in [
            ("linear", product(1.0), Sort::Product),
            ("bmm", product(12.0), Sort::Batched),
            ("convolution", convolution(64.0, 1.0, 1.0), Sort::Pointwise),
            ("convolution", convolution(64.0, 1.0, 3.0), Sort::Convolution),
            ("grouped_convolution", convolution(64.0, 4.0, 3.0), Sort::Grouped),
            ("depthwise_convolution", convolution(64.0, 64.0, 3.0), Sort::Depthwise),
            ("max_pool", convolution(64.0, 64.0, 2.0), Sort::Pool),
            ("layer_norm", rows, Sort::Norm),
            ("batch_norm", rows, Sort::BatchNorm),
            ("softmax", rows, Sort::Softmax),
            ("gelu", rows, Sort::Elementwise),
            ("embedding", WorkSize::Table { rows: 64.0, cols: 64.0, vocabulary: 100.0 }, Sort::Elementwise),
        ] {
            assert_eq!(Sort::of_row(kind, &size), expected, "{kind}");
        }
    }

    #[test]
    fn more_work_takes_longer_on_every_device() {
        for (name, device) in catalogue() {
            for sort in ALL {
                let rates = of(device, sort);
                for phase in Phase::ALL.map(|(phase, _)| phase) {
                    let (low, high) = rates.band(phase);
                    assert!(0.0 < low && low < 1.0 && 1.0 < high, "{name} {sort:?}");
                    let time = |flops: f64, bytes: f64| rates.seconds(phase, flops, bytes, 1e-6);
                    assert!(time(0.0, 0.0) >= 1e-6, "{name} {sort:?}");
                    assert!(time(2e-3, 1e-3) >= time(1e-3, 1e-3), "{name} {sort:?}");
                    assert!(time(1e-3, 3e-3) > time(1e-3, 1e-3), "{name} {sort:?}");
                }
            }
        }
    }

    /// A step is the forward pass and both gradients; each of those is one product.
    #[test]
    fn a_step_is_the_sum_of_its_passes() {
        let device = &catalogue()["A100-SXM4-80GB"];
        let machine = Machine::of(device, "bfloat16");
        let size = WorkSize::Product { batch: 1.0, m: 4096.0, n: 4096.0, k: 4096.0 };
        let time = |phase| {
            let work = Work::of(size, phase, machine.element);
            estimate(device, "linear", &work, &machine)
        };
        let [forward, input, weight, both, step] =
            [Phase::Forward, Phase::InputGradient, Phase::WeightGradient, Phase::Backward, Phase::Training]
                .map(time);
        let launch = machine.launch;
        assert!((input.seconds + weight.seconds - both.seconds - launch).abs() < 1e-12);
        assert!((forward.seconds + both.seconds - step.seconds).abs() < 1e-12);
        assert!(step.p10 < step.seconds && step.seconds < step.p90);
    }

    /// What single channels compute is not what tensor cores do.
    #[test]
    fn depthwise_convolutions_run_at_the_plain_rate() {
        let device = &catalogue()["H100-SXM5-80GB"];
        let [half, single] = ["float16", "float32"].map(|dtype| Machine::of(device, dtype));
        assert_eq!(Sort::Depthwise.peak(device, &half), single.peak);
        assert_eq!(Sort::Grouped.peak(device, &half), half.peak);
    }
}
