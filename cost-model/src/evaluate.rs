//! Accuracy of a model on held-out rows.

use crate::{estimate::Estimate, fit::Sample, work::Machine};

/// Error figures on held-out rows.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Accuracy {
    /// Held-out rows.
    pub rows: usize,
    /// Mean absolute relative error, in percent.
    pub mape: f64,
    /// Median absolute relative error, in percent.
    pub median: f64,
    /// The absolute relative error that one of ten rows exceeds, in percent.
    pub p90: f64,
    /// Sum of absolute errors over the sum of times, in percent.
    pub time_weighted: f64,
    /// Rank correlation.
    pub spearman: f64,
    /// Share of rows inside their band.
    pub coverage: f64,
    /// Predictions that are not positive.
    pub negative: usize,
}

impl Accuracy {
    /// Compares estimates with measurements.
    pub fn of(samples: &[Sample], estimates: &[Estimate]) -> Self {
        let n = samples.len();
        if n == 0 {
            return Self::default();
        }
        let pairs = || samples.iter().map(|sample| sample.seconds).zip(estimates);
        let mut errors: Vec<f64> =
            pairs().map(|(truth, own)| 100.0 * (own.seconds - truth).abs() / truth).collect();
        let mape = errors.iter().sum::<f64>() / n as f64;
        errors.sort_by(f64::total_cmp);
        let missed: f64 = pairs().map(|(truth, own)| (own.seconds - truth).abs()).sum();
        let inside = pairs().filter(|(truth, own)| own.p10 <= *truth && *truth <= own.p90).count();
        Self {
            rows: n,
            mape,
            median: quantile(&errors, 0.5),
            p90: quantile(&errors, 0.9),
            time_weighted: 100.0 * missed / pairs().map(|(truth, _)| truth).sum::<f64>(),
            spearman: spearman(
                &samples.iter().map(|sample| sample.seconds).collect::<Vec<_>>(),
                &estimates.iter().map(|own| own.seconds).collect::<Vec<_>>(),
            ),
            coverage: inside as f64 / n as f64,
            negative: pairs().filter(|(_, own)| own.seconds <= 0.0).count(),
        }
    }
}

/// Returns Spearman's rank correlation; ties get their mean rank.
pub fn spearman(a: &[f64], b: &[f64]) -> f64 {
    let (a, b) = (ranks(a), ranks(b));
    let n = a.len() as f64;
    let mean = (n + 1.0) / 2.0;
    let product: f64 = a.iter().zip(&b).map(|(a, b)| (a - mean) * (b - mean)).sum();
    let spread = |ranks: &[f64]| ranks.iter().map(|rank| (rank - mean).powi(2)).sum::<f64>().sqrt();
    let scale = spread(&a) * spread(&b);
    if scale > 0.0 { product / scale } else { 0.0 }
}

fn ranks(values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|i, j| values[*i].total_cmp(&values[*j]));
    let mut ranks = vec![0.0; values.len()];
    let mut start = 0;
    while start < order.len() {
        let tied = order[start..].iter().take_while(|i| values[**i] == values[order[start]]).count();
        for place in &order[start..start + tied] {
            ranks[*place] = start as f64 + (tied as f64 + 1.0) / 2.0;
        }
        start += tied;
    }
    ranks
}

/// Which rows are held out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// Any.
    Random,
    /// The largest three of ten; fitted on the smallest seven.
    Extrapolate,
}

/// Deals samples into those to fit on and those to test on.
pub fn split(
    samples: &[Sample],
    machine: &Machine,
    split: Split,
    train_rows: usize,
    seed: u64,
) -> (Vec<Sample>, Vec<Sample>) {
    let mut order: Vec<usize> = (0..samples.len()).collect();
    match split {
        Split::Random => {
            shuffle(&mut order, seed);
            let n = train_rows.min(samples.len() * 4 / 5);
            (
                order[..n].iter().map(|i| samples[*i]).collect(),
                order[n..].iter().map(|i| samples[*i]).collect(),
            )
        }
        Split::Extrapolate => {
            let size = |i: &usize| samples[*i].work.magnitude(machine);
            order.sort_by(|a, b| size(a).total_cmp(&size(b)));
            let n_small = samples.len() * 7 / 10;
            let mut small = order[..n_small].to_vec();
            shuffle(&mut small, seed);
            small.truncate(train_rows);
            (
                small.iter().map(|i| samples[*i]).collect(),
                order[n_small..].iter().map(|i| samples[*i]).collect(),
            )
        }
    }
}

/// Shuffles (Fisher and Yates) with the generator splitmix64.
pub fn shuffle<T>(items: &mut [T], seed: u64) {
    let mut state = seed;
    for last in (1..items.len()).rev() {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        items.swap(last, (z % (last as u64 + 1)) as usize);
    }
}

/// Returns a quantile of sorted numbers, between neighbours in proportion.
pub(crate) fn quantile(sorted: &[f64], share: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else { return f64::NAN };
    let place = share * last as f64;
    let below = sorted[place.floor() as usize];
    below + (sorted[place.ceil() as usize] - below) * place.fract()
}
