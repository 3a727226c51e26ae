//! The share of a data sheet's rates that kernels reach.
//!
//! The shares are medians over the large operators of public timings (NeuSight for float32 on P100, V100, T4, P4, L4, A100 and H100,
//! NVIDIA's aiconfigurator for bfloat16 on A100 and H200): products 0.73–0.83 of the peak on A100, H100 and V100,
//! 0.60 on P100, 0.30–0.40 on T4, P4 and L4, whose power limit keeps them from their boost clock; element-wise kernels
//! 0.84–0.90 of the bandwidth on A100 and V100, 0.73–0.78 elsewhere; softmax and layer norm 0.4–0.6 of it; attention
//! 0.5 of the peak on H200. Convolutions count the operations of the plain algorithm, which Winograd kernels undercut.
//! Devices that none of these was measured on take the figures of the nearest sort.

use graph::OperatorClass;
use schema::DeviceType;

/// Shares of the peak rates.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Efficiency {
    product: f64,
    convolution: f64,
    attention: f64,
    elementwise: f64,
    rows: f64,
}

impl Efficiency {
    /// Returns the share of the arithmetic rate that a class of operators reaches.
    pub fn arithmetic(&self, class: OperatorClass) -> f64 {
        match class {
            OperatorClass::Convolution => self.convolution,
            OperatorClass::Attention => self.attention,
            _ => self.product,
        }
    }

    /// Returns the share of the memory bandwidth that a class of operators reaches.
    pub fn traffic(&self, class: OperatorClass) -> f64 {
        match class {
            OperatorClass::Norm | OperatorClass::Reduce | OperatorClass::Pool => self.rows,
            _ => self.elementwise,
        }
    }
}

/// Chooses by architecture.
pub(crate) fn of(device: &DeviceType) -> Efficiency {
    match device.architecture.as_deref() {
        Some("sm70" | "sm80" | "sm90" | "sm100") => {
            Efficiency { product: 0.75, convolution: 0.7, attention: 0.5, elementwise: 0.85, rows: 0.6 }
        }
        Some("sm60" | "sm61" | "sm75" | "sm86" | "sm89") if is_small(device) => {
            Efficiency { product: 0.35, convolution: 0.6, attention: 0.3, elementwise: 0.75, rows: 0.55 }
        }
        Some(name) if name.starts_with("x86") || name.starts_with("arm") => {
            Efficiency { product: 0.8, convolution: 0.6, attention: 0.5, elementwise: 0.6, rows: 0.5 }
        }
        _ => Efficiency { product: 0.6, convolution: 0.6, attention: 0.4, elementwise: 0.75, rows: 0.5 },
    }
}

/// Cards of 75 W have little memory bandwidth.
fn is_small(device: &DeviceType) -> bool {
    device.memory_bandwidth.0 < 350e9
}
