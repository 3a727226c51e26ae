//! The original project's picture: time of a convolution over its channels, for kernels of 3, 5 and 7.

use schema::{Phase, WorkSize};

use crate::{evaluate::shuffle, fit::fit, group::Group, work::Work};

/// Times over channels.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkSweep {
    /// By kernel: channels and seconds.
    pub lines: Vec<(u32, Vec<(f64, f64)>)>,
}

impl WorkSweep {
    /// Fits a group of convolutions and follows its times over channels; nothing for other groups.
    pub fn of(group: &Group) -> Option<Self> {
        let first = group.samples.first().filter(|_| group.phase == Phase::Forward)?;
        let WorkSize::Convolution { .. } = first.work.size else { return None };
        let mut samples = group.samples.clone();
        shuffle(&mut samples, 1);
        let (curve, _) = fit(&samples, &group.machine).ok()?;
        let has_kernel = |kernel: f64| {
            samples.iter().any(|sample| {
                matches!(sample.work.size, WorkSize::Convolution { kernel: own, .. } if own[2] == kernel)
            })
        };
        let line = |kernel: f64| {
            let times = (1..=64).map(|step| {
                let channels = 16.0 * f64::from(step);
                let size = WorkSize::Convolution {
                    batch: 16.0,
                    in_channels: channels,
                    out_channels: channels,
                    groups: 1.0,
                    input: [1.0, 28.0, 28.0],
                    output: [1.0, 28.0, 28.0],
                    kernel: [1.0, kernel, kernel],
                    stride: [1.0; 3],
                };
                let work = Work::of(size, Phase::Forward, group.machine.element);
                (channels, curve.predict(&work).seconds)
            });
            (kernel as u32, times.collect())
        };
        Some(Self {
            lines: [3.0, 5.0, 7.0].into_iter().filter(|kernel| has_kernel(*kernel)).map(line).collect(),
        })
    }
}
