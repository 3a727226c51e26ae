//! The picture that this project began with: times of a convolution over its channels, for kernels of 3, 5 and 7; what was
//! measured, a polynomial of the raw dimensions, and our curve.

use schema::{Phase, WorkSize};

use crate::{evaluate::shuffle, fit::fit, group::Group, raw::RawPolynomial, work::Work};

/// Times over channels.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkSweep {
    /// Images, and their side.
    pub images: (u64, u64),
    /// By kernel.
    pub kernels: Vec<SweptKernel>,
}

/// Channels and seconds of one kernel.
#[derive(Clone, Debug, PartialEq)]
pub struct SweptKernel {
    /// Its side.
    pub side: u64,
    /// Measurements of images of that size; where channels in and out differ, at their geometric mean.
    pub measured: Vec<(f64, f64)>,
    /// The polynomial, at as many channels in as out.
    pub raw: Vec<(f64, f64)>,
    /// The curve, likewise.
    pub curve: Vec<(f64, f64)>,
}

/// A dense convolution of square images that keep their size.
struct Square {
    batch: f64,
    side: f64,
    channels: f64,
    kernel: f64,
}

/// Channels of lines: where nothing is fixed by a grid, what models have.
const MOST_CHANNELS: f64 = 1024.0;
/// Images of a profile of random sizes.
const USUAL: (u64, u64) = (16, 28);
const STEPS: u32 = 64;

impl Square {
    fn of(size: &WorkSize) -> Option<Self> {
        match *size {
            WorkSize::Convolution {
                batch,
                in_channels,
                out_channels,
                groups: 1.0,
                input,
                output,
                kernel,
                ..
            } if input == output && input[1] == input[2] && kernel[1] == kernel[2] => {
                let channels = (in_channels * out_channels).sqrt();
                Some(Self { batch, side: input[2], channels, kernel: kernel[2] })
            }
            _ => None,
        }
    }
}

impl WorkSweep {
    /// Fits a group of convolutions and follows its times over channels; nothing for other groups.
    pub fn of(group: &Group) -> Option<Self> {
        let first = group.samples.first().filter(|_| group.phase == Phase::Forward)?;
        let WorkSize::Convolution { .. } = first.work.size else { return None };
        let mut samples = group.samples.clone();
        shuffle(&mut samples, 1);
        let (curve, _) = fit(&samples, &group.machine).ok()?;
        let raw = RawPolynomial::fit(&samples).ok()?;
        let squares: Vec<(Square, f64)> = samples
            .iter()
            .filter_map(|sample| Square::of(&sample.work.size).map(|square| (square, sample.seconds)))
            .collect();
        // A grid has images of one size alone.
        let size = |square: &Square| (square.batch as u64, square.side as u64);
        let grid = squares.first().map(|(square, _)| size(square));
        let grid =
            grid.filter(|one| squares.len() == samples.len() && squares.iter().all(|(s, _)| size(s) == *one));
        let images = grid.unwrap_or(USUAL);
        let most = squares.iter().map(|(square, _)| square.channels).fold(0.0, f64::max);
        let most = if grid.is_some() { 1.25 * most } else { MOST_CHANNELS };
        let work = |kernel: f64, channels: f64| {
            let image = [1.0, images.1 as f64, images.1 as f64];
            let size = WorkSize::Convolution {
                batch: images.0 as f64,
                in_channels: channels,
                out_channels: channels,
                groups: 1.0,
                input: image,
                output: image,
                kernel: [1.0, kernel, kernel],
                stride: [1.0; 3],
            };
            Work::of(size, Phase::Forward, group.machine.element)
        };
        let along = |seconds: &dyn Fn(f64) -> f64| {
            let places = (1..=STEPS).map(|step| (most * f64::from(step) / f64::from(STEPS)).round().max(1.0));
            places.map(|channels| (channels, seconds(channels))).collect()
        };
        let kernels = [3.0, 5.0, 7.0].into_iter().filter_map(|kernel| {
            let own = || squares.iter().filter(move |(square, _)| square.kernel == kernel);
            own().next()?;
            let mut measured: Vec<(f64, f64)> = own()
                .filter(|(square, _)| size(square) == images)
                .map(|(square, seconds)| (square.channels, *seconds))
                .collect();
            measured.sort_by(|one, other| one.0.total_cmp(&other.0).then(one.1.total_cmp(&other.1)));
            Some(SweptKernel {
                side: kernel as u64,
                measured,
                raw: along(&|channels| raw.predict(&work(kernel, channels)).seconds),
                curve: along(&|channels| curve.predict(&work(kernel, channels)).seconds),
            })
        });
        Some(Self { images, kernels: kernels.collect() })
    }
}
