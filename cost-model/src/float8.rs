//! Linear layers in float8, as torchao's `convert_to_float8_training` runs them with a scale for each tensor under torch.compile.
//!
//! Each operand of the three products is cast before: its largest magnitude is read, then it is read and written in float8, both
//! ways round where the backward pass wants it the other way. (Traffic of those kernels: torchao's `roofline_utils`, recipe
//! "tensorwise"; it has products of both widths at the same share of their peak, 0.78 on an H100.) What a profile says of products
//! of 16 bits is scaled by what the data sheet says of the two; no public rows are of float8. torch's kernel wants rows and sums
//! of a multiple of 16, and the last layer, whose results decide the loss, stays as it is.

use schema::{DeviceType, Phase, WorkSize};

use crate::{
    efficiency::{self, Sort},
    estimate::Estimate,
    work::{Machine, Work},
};

/// How far the truth may be from a product that was scaled, and from its casts.
const BAND: (f64, f64) = (0.8, 1.4);
/// torch's kernel takes rows and sums of a multiple of so many.
const MULTIPLE: f64 = 16.0;

/// A linear layer whose products run in float8.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Float8 {
    size: WorkSize,
    /// Elements of input, weight and result.
    elements: [f64; 3],
    wide: Machine,
    narrow: Machine,
}

impl Float8 {
    /// Takes a layer of this size on a device, for the data type that the model has; nothing where it stays in that.
    pub fn of(device: &DeviceType, size: WorkSize, wide: Machine) -> Option<Self> {
        let WorkSize::Product { batch: 1.0, m, n, k } = size else { return None };
        let is_fit = [n, k].iter().all(|size| size % MULTIPLE == 0.0);
        let can = wide.element == 2.0 && device.peak.contains_key("float8");
        let narrow = Machine::of(device, "float8");
        (is_fit && can).then_some(Self { size, elements: [m * k, n * k, m * n], wide, narrow })
    }

    /// Returns the time of a pass, given that of its product in 16 bits. The gradient that comes in is cast for the input's
    /// gradient, or for the weight's where that is alone.
    pub fn time(&self, device: &DeviceType, product: Estimate, phase: Phase, is_alone: bool) -> Estimate {
        if product.seconds == 0.0 {
            return product;
        }
        let [input, weight, result] = self.elements;
        let copies = efficiency::of(device, Sort::Elementwise);
        let Machine { bandwidth, launch, .. } = self.narrow;
        let cast = |bytes: f64, kernels: f64| {
            copies.seconds(Phase::Forward, 0.0, bytes / bandwidth, kernels * launch)
        };
        let casts = match phase {
            Phase::Forward => cast(6.0 * input + 5.0 * weight, 4.0),
            Phase::InputGradient => cast(6.0 * result + 3.0 * weight, 3.0),
            _ if is_alone => cast(6.0 * result, 2.0),
            _ => 0.0,
        };
        let seconds = product.seconds * self.ratio(device, phase) + casts;
        Estimate { trust: product.trust, ..Estimate::about(seconds, BAND) }
    }

    /// Returns the time of a product in float8, relative to that in 16 bits, by the data sheet.
    fn ratio(&self, device: &DeviceType, phase: Phase) -> f64 {
        let rates = efficiency::of(device, Sort::Product);
        let seconds = |machine: &Machine, element: f64| {
            let work = Work::of(self.size, phase, element);
            let bytes = work.read_a + work.read_b + work.written * self.wide.element / element;
            rates.seconds(phase, work.flops / machine.peak, bytes / machine.bandwidth, machine.launch)
        };
        seconds(&self.narrow, self.narrow.element) / seconds(&self.wide, self.wide.element)
    }
}
