//! The memory bandwidth as a limit, for kinds that were only measured in caches.
//!
//! Times of small element-wise operators are launches and caches; an anchor fitted to them may promise any bandwidth beyond. If
//! it promises more than the data sheet, no row reached the memory: then operators many times as large are added to the rows, at
//! the bandwidth that such kernels reach. A processor's data sheet has the bandwidth of one core's copy, which is no such limit.

use super::{Sample, anchor_terms};
use crate::{
    dense::dot,
    evaluate::quantile,
    shape::scaled,
    work::{Machine, Work},
};

/// The share of the data sheet's bandwidth that large element-wise kernels reach, see [`crate::efficiency`].
const REACHED: f64 = 0.85;
/// The size of added operators relative to the largest row, or the cache.
const FAR: f64 = 16.0;
/// One added operator for this many rows.
const EVERY: usize = 10;

/// Operators far beyond the rows, with their anchor's terms; none for kinds that compute, and none on processors.
pub(super) fn far(samples: &[Sample], machine: &Machine) -> (Vec<Sample>, Vec<Vec<f64>>) {
    let is_asked = |sample: &&Sample| !machine.is_processor() && sample.work.matrix().is_some();
    let mut large: Vec<&Sample> = samples.iter().filter(is_asked).collect();
    large.sort_by(|a, b| b.work.bytes().total_cmp(&a.work.bytes()));
    large.truncate(samples.len().div_ceil(EVERY));
    let Some(most) = large.first().map(|sample| FAR * sample.work.bytes().max(machine.l2)) else {
        return (Vec::new(), Vec::new());
    };
    let far = large.into_iter().map(|sample| {
        let size = scaled(sample.work.size, most / sample.work.bytes());
        let work = Work::of(size, sample.work.phase, machine.element);
        Sample { work, seconds: work.bytes() / (REACHED * machine.bandwidth) }
    });
    let far: Vec<Sample> = far.collect();
    let terms = far.iter().map(|sample| anchor_terms(&sample.work, machine)).collect();
    (far, terms)
}

/// Tells whether an anchor promises more than the memory's bandwidth.
pub(super) fn is_impossible(coefficients: &[f64], far: &(Vec<Sample>, Vec<Vec<f64>>)) -> bool {
    let mut shares: Vec<f64> =
        far.0.iter().zip(&far.1).map(|(far, terms)| dot(coefficients, terms) / far.seconds).collect();
    shares.sort_by(f64::total_cmp);
    !shares.is_empty() && quantile(&shares, 0.5) < REACHED
}

#[cfg(test)]
mod tests {
    use schema::{Phase, WorkSize};

    use super::*;

    /// Fits operators of up to so many times the cache, with a memory of 1 TB/s behind a cache of 4 TB/s and a launch of
    /// 10 µs; returns the time predicted for 100 times the cache, relative to the true one, and the ends of its band.
    fn check_far(most: f64) -> [f64; 3] {
        let figures = &schema::catalogue()["A100-PCIE-40GB"];
        let machine = Machine { bandwidth: 1e12, l2: 32e6, ..Machine::of(figures, "float32") };
        let sample = |bytes: f64| {
            let size = WorkSize::Rows { rows: (bytes / 8.0 / 2048.0).ceil(), cols: 2048.0, inputs: 1.0 };
            let work = Work::of(size, Phase::Forward, 4.0);
            let beyond = (work.bytes() - machine.l2).max(0.0);
            Sample { work, seconds: (1e-5 + work.bytes().min(machine.l2) / 4e12 + beyond / 0.9e12).max(2e-5) }
        };
        let samples: Vec<Sample> = (0..120)
            .map(|i| sample(most * machine.l2 * (f64::from(i * 7 % 120 - 119) / 20.0).exp()))
            .collect();
        let (curve, _) = super::super::fit(&samples, &machine).expect("rows enough");
        let far = sample(100.0 * machine.l2);
        let own = curve.predict(&far.work);
        [own.seconds, own.p10, own.p90].map(|time| time / far.seconds)
    }

    #[test]
    fn nobody_beats_the_memory() {
        let [time, low, high] = check_far(0.9);
        assert!((0.9..1.2).contains(&time), "{time}");
        // No row was measured there, so the band is wide.
        assert!(low < 0.85 && high > 1.3, "{low} {high}");
    }

    #[test]
    fn what_was_measured_is_believed() {
        let [time, ..] = check_far(30.0);
        assert!((0.97..1.03).contains(&time), "{time}");
    }
}
