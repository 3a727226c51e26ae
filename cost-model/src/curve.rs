//! A fitted curve: `time = anchor × exp(correction)`, with a band.
//!
//! The anchor is a sum of physical terms with coefficients that are not negative. The correction is a polynomial of
//! degree two at most in terms that saturate. A gate closes as a shape leaves the fitted range: first the quadratic part goes,
//! then the linear one; the rest is the anchor times the median residual of operators of that length, which grows like the
//! roofline.

use std::ops::Range;

use ndarray::{Array1, Array2};

use crate::{
    dense::dot,
    estimate::Estimate,
    nnls::nnls,
    ridge::Linear,
    terms::{self, MICRO, Terms},
    work::{Machine, Work},
};

/// An operator that was measured in two cache states.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Beside {
    /// The work of the operator.
    pub work: Work,
    /// Seconds with operands in no cache.
    pub seconds: f64,
    /// Seconds with warm caches, or with flushed ones.
    pub other: f64,
}

/// Seconds saved for each byte that is read from a cache.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Warm {
    /// In the device's cache by its figures.
    pub near: f64,
    /// In a processor's last cache, if that is another.
    pub far: f64,
}

/// Seconds that flushed caches add to a call: for its result, its scratch memory and its code.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Flushed {
    /// Seconds of any call.
    pub call: f64,
    /// Seconds of each byte that a cache could hold.
    pub byte: f64,
}

/// Fewer measurements with empty caches say little.
const MIN_FLUSHED: usize = 5;

/// The fitted times of operators of one kind.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    /// Figures of the device and data type that terms are made with.
    pub(crate) machine: Machine,
    /// Coefficients of [`terms::anchor`].
    pub(crate) anchor: Vec<f64>,
    /// Lower bound of every prediction.
    pub(crate) least: f64,
    /// Launch time behind which shorter work hides; 0 if launch and work add.
    pub(crate) hidden: f64,
    /// The shortest time that occurs: what launching costs.
    pub(crate) floor: f64,
    /// The correction of the anchor.
    pub(crate) correction: Correction,
    /// Widths of the band.
    pub(crate) band: Band,
    /// Savings with warm caches.
    pub(crate) warm: Warm,
    /// Costs of flushed caches, if they were measured.
    pub(crate) flushed: Option<Flushed>,
}

/// No cache saves more than this share of a time.
const MOST_SAVED: f64 = 0.7;

/// The correction: a model of the logarithm of measured over anchor time.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Correction {
    /// Means of the bounded terms.
    pub means: Vec<f64>,
    /// Their standard deviations.
    pub scales: Vec<f64>,
    /// The least and largest standardised value met in fitting.
    pub ranges: Vec<(f64, f64)>,
    /// The median correction by length.
    pub usual: Usual,
    /// Degree one; no coefficients when there were too few rows.
    pub linear: Linear,
    /// Degree two, in the order of [`expand`]; no coefficients when degree one was as good.
    pub quadratic: Linear,
    /// When to trust them.
    pub gate: Option<Gate>,
    /// Limits of the correction.
    pub clip: (f64, f64),
}

/// The median correction by length: the logarithm of the anchor's time, and the median correction of rows near it; sorted.
///
/// Past its ends it is constant: an operator that is longer than all that were fitted is like the longest of them, not
/// like their mean.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Usual(pub Vec<(f64, f64)>);

impl Usual {
    pub fn at(&self, log_anchor: f64) -> f64 {
        let Some((before, after, share)) = between(&self.0, |knot| knot.0, log_anchor) else { return 0.0 };
        before.1 + share * (after.1 - before.1)
    }
}

/// Returns the knots on both sides of a place, and the place's share of the way between them; beyond the last knot, that one.
fn between<T>(knots: &[T], at: impl Fn(&T) -> f64, place: f64) -> Option<(&T, &T, f64)> {
    let after = knots.partition_point(|knot| at(knot) < place);
    let (low, high) = (knots.get(after.saturating_sub(1))?, &knots[after.min(knots.len() - 1)]);
    let share = (place - at(low)) / (at(high) - at(low)).max(1e-12);
    Some((low, high, share.clamp(0.0, 1.0)))
}

/// Leverage: the distance of a shape from the fitted ones.
///
/// The leverage of `x` is `|L⁻¹(x − mean)|²` with the lower factor `L` of `XᵀX + λI`, where `x` are the logarithms of the
/// sizes and their products. Sizes are unbounded, so a shape outside the fitted range is far in them at once. The terms of the
/// correction would tell the same with forty times the numbers.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Gate {
    /// Mean and deviation of the logarithm of each size.
    pub sizes: Vec<(f64, f64)>,
    /// `L⁻¹`, row by row up to the diagonal, followed by the centre that each row takes off.
    pub rows: Vec<(Vec<f64>, f64)>,
    /// The leverage that one of a hundred fitted rows exceeds.
    pub h99: f64,
    /// Logarithm of the anchor's time that one of a hundred fitted rows exceeds.
    pub reach: f64,
}

impl Gate {
    pub fn leverage(&self, logs: &[f64]) -> f64 {
        let x = gate_terms(logs, &self.sizes);
        self.rows.iter().map(|(row, centre)| (dot(row, &x[..row.len()]) - centre).powi(2)).sum()
    }
}

/// Returns the terms of the leverage.
pub(crate) fn gate_terms(logs: &[f64], sizes: &[(f64, f64)]) -> Vec<f64> {
    let z: Vec<f64> = logs.iter().zip(sizes).map(|(log, (mean, scale))| (log - mean) / scale).collect();
    let mut x = Vec::new();
    expand(&z, &mut x);
    x
}

/// Quantiles of the curve's error, as logarithms, by predicted time.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Band {
    /// Logarithm of a predicted time, and the 10 % and 90 % quantiles near it; sorted.
    pub knots: Vec<(f64, f64, f64)>,
    /// The same where the gate is closed.
    pub outside: (f64, f64),
}

impl Band {
    pub fn at(&self, log_seconds: f64, trust: f64) -> (f64, f64) {
        let Some((a, b, share)) = between(&self.knots, |knot| knot.0, log_seconds) else {
            return self.outside;
        };
        let inside = (a.1 + share * (b.1 - a.1), a.2 + share * (b.2 - a.2));
        let mix = |inside: f64, outside: f64| inside * trust + outside * (1.0 - trust);
        (mix(inside.0, self.outside.0.min(inside.0)), mix(inside.1, self.outside.1.max(inside.1)))
    }
}

impl Curve {
    /// Predicts the time of an operator.
    pub fn predict(&self, work: &Work) -> Estimate {
        let (anchor, kernel) = self.times(work);
        let (correction, trust) = self.correct(work, kernel, anchor.ln());
        let seconds = anchor * correction.exp();
        let (low, high) = self.band.at(seconds.ln(), trust);
        Estimate { seconds, p10: seconds * low.exp(), p90: seconds * high.exp(), trust }
    }

    /// Predicts an accelerator's own time for a call in a queue, without the wait of a single call for its host.
    ///
    /// Published profiles time single calls: any shorter than a launch from Python takes as long as that, 25 to 100 µs. Near that
    /// floor the prediction is the anchor without its launch, from twice the floor on it is the measured time; in between, a
    /// mixture.
    pub(crate) fn predict_queued(&self, work: &Work) -> Estimate {
        let (anchor, kernel) = self.times(work);
        let (correction, trust) = self.correct(work, kernel, anchor.ln());
        let single = anchor * correction.exp();
        let host = self.anchor.first().map_or(0.0, |launch| launch * MICRO);
        let launch = self.machine.launch;
        let long = (single - (host - launch).max(0.0)).max(launch);
        let short = (launch + (kernel - host).max(work.roofline(&self.machine))).min(long);
        let share = (single / self.floor - 1.0).clamp(0.0, 1.0);
        let seconds = share * long + (1.0 - share) * short;
        // Work below the floor was not measured.
        let hidden = 1.0 - short / long;
        let trust = trust * (1.0 - hidden * (1.0 - share));
        let (low, high) = self.band.at(single.ln(), trust);
        Estimate { seconds, p10: seconds * low.exp(), p90: seconds * high.exp(), trust }
    }

    /// Predicts the time of an operator, given the shares of its operands in the near and the last cache.
    pub(crate) fn predict_warm(&self, work: &Work, [near, far]: [f64; 2]) -> Estimate {
        let cold = if self.machine.is_processor() {
            self.predict(work)
        } else {
            self.predict_queued(work).in_a_model()
        };
        let saved =
            (self.warm.near * near + self.warm.far * (far - near).max(0.0)) * (work.read_a + work.read_b);
        let left = 1.0 - (saved / cold.seconds).min(MOST_SAVED);
        Estimate { seconds: cold.seconds * left, p10: cold.p10 * left, p90: cold.p90 * left, ..cold }
    }

    /// Returns the seconds added to a call if the caches lost these shares of its code and of the memory it is given; `None` if
    /// that was not measured.
    pub(crate) fn flushed(&self, work: &Work, code: f64, memory: f64) -> Option<f64> {
        self.flushed.map(|flushed| flushed.call * code + flushed.byte * self.held(work) * memory)
    }

    /// Returns how many of the bytes moved a cache can hold: of more than its size, the first are evicted before the call ends.
    fn held(&self, work: &Work) -> f64 {
        let bytes = work.bytes();
        bytes * (1.0 - bytes / self.machine.last_cache).max(0.0)
    }

    /// Returns the seconds that a byte of fresh memory costs, if found: clearing a page takes no less than writing it, and a
    /// smaller coefficient is a residue of other terms.
    pub(crate) fn fresh(&self) -> Option<f64> {
        let found = self.anchor.get(terms::FRESH).filter(|_| self.machine.is_processor()).copied();
        let found = found.filter(|coefficient| *coefficient >= 1.0);
        found.map(|coefficient| coefficient / self.machine.bandwidth)
    }

    /// Summarizes the fit.
    pub fn describe(&self) -> String {
        format!(
            "{} anchor terms, {} + {} coefficients, warm {:.2e} and {:.2e} s/B{}",
            self.anchor.iter().filter(|value| **value > 0.0).count(),
            self.correction.linear.coefficients.len(),
            self.correction.quadratic.coefficients.len(),
            self.warm.near,
            self.warm.far,
            self.flushed.map_or(String::new(), |flushed| {
                format!(", flushed {:.2e} s + {:.2e} s/B", flushed.call, flushed.byte)
            }),
        )
    }

    /// Fits the savings of warm caches: least squares of the relative difference between cold and warm times of operators that fit
    /// into the near cache, and of those that fit into the last one only.
    pub fn with_warm(mut self, pairs: &[Beside]) -> Self {
        let saved = |sizes: Range<f64>| {
            let (mut above, mut below) = (0.0, 0.0);
            for Beside { work, seconds, other } in pairs {
                if sizes.contains(&work.bytes()) {
                    let read = (work.read_a + work.read_b) / seconds;
                    // Beyond the limit of the share, rows tell no more.
                    above += read * ((seconds - other) / seconds).clamp(0.0, MOST_SAVED);
                    below += read * read;
                }
            }
            if below > 0.0 { above / below } else { 0.0 }
        };
        let Machine { l2, last_cache, .. } = self.machine;
        self.warm = Warm { near: saved(0.0..l2), far: saved(l2..last_cache) };
        self
    }

    /// Fits the costs of flushed caches: non-negative least squares of the difference relative to the
    /// longer time, so that the shortest calls do not decide alone.
    pub fn with_flushed(mut self, pairs: &[Beside]) -> Self {
        let last = self.machine.last_cache;
        let pairs: Vec<&Beside> = pairs.iter().filter(|pair| pair.work.bytes() < last).collect();
        if pairs.len() < MIN_FLUSHED {
            return self;
        }
        let whole = |pair: &Beside| pair.other.max(pair.seconds);
        let terms = Array2::from_shape_fn((pairs.len(), 2), |(row, column)| match column {
            0 => MICRO / whole(pairs[row]),
            _ => MICRO * self.held(&pairs[row].work) / whole(pairs[row]),
        });
        let added = pairs.iter().map(|pair| 1.0 - pair.seconds / whole(pair)).collect();
        let found = nnls(terms.view(), Array1::from_vec(added).view());
        self.flushed = Some(Flushed { call: found[0] * MICRO, byte: found[1] * MICRO });
        self
    }

    /// Returns the physical part with the launch, and without.
    fn times(&self, work: &Work) -> (f64, f64) {
        let mut terms = Terms::default();
        terms::anchor(work, &self.machine, &mut terms);
        let whole = anchor_time(&self.anchor, &terms.values, self.least, self.hidden, work, &self.machine);
        (whole, dot(&self.anchor, &terms.values))
    }

    fn correct(&self, work: &Work, kernel: f64, log_anchor: f64) -> (f64, f64) {
        let mut terms = Terms::default();
        terms::bounded(work, &self.machine, self.floor, kernel, &mut terms);
        self.correction.at(&terms.values, &terms::sizes(work), log_anchor)
    }
}

impl Correction {
    /// Returns the correction and how much it is trusted.
    pub fn at(&self, bounded: &[f64], sizes: &[f64], log_anchor: f64) -> (f64, f64) {
        let usual = self.usual.at(log_anchor);
        let Some(gate) = &self.gate else { return (usual, 1.0) };
        let z = self.standardise(bounded);
        let linear = self.linear.at(&z);
        let quadratic = if self.quadratic.coefficients.is_empty() {
            linear
        } else {
            let mut whole = Vec::new();
            expand(&z, &mut whole);
            self.quadratic.at(&whole)
        };
        let leverage = gate.leverage(sizes) / gate.h99;
        let (own, trust) = mixed(quadratic, linear, usual, leverage, log_anchor - gate.reach);
        (own.clamp(self.clip.0, self.clip.1), trust)
    }

    /// Brings terms to mean 0 and deviation 1, within the fitted range.
    pub fn standardise(&self, bounded: &[f64]) -> Vec<f64> {
        bounded
            .iter()
            .enumerate()
            .map(|(i, x)| ((x - self.means[i]) / self.scales[i]).clamp(self.ranges[i].0, self.ranges[i].1))
            .collect()
    }
}

/// Mixes corrections by how far a shape is outside, in units of the leverage from which trust falls, and by how far the logarithm
/// of its time is beyond the reach; returns the trust as well.
pub(crate) fn mixed(quadratic: f64, linear: f64, usual: f64, leverage: f64, beyond: f64) -> (f64, f64) {
    // Twice the reach leaves half of the trust.
    let trust = (-(leverage - 1.0).max(0.0) - beyond.max(0.0)).exp();
    (trust * quadratic + (1.0 - trust) * (trust * linear + (1.0 - trust) * usual), trust)
}

/// Writes all terms of degree one, then all of degree two.
pub(crate) fn expand(z: &[f64], out: &mut Vec<f64>) {
    out.clear();
    out.extend_from_slice(z);
    for (i, a) in z.iter().enumerate() {
        out.extend(z[i..].iter().map(|b| a * b));
    }
}

/// Sums the anchor's terms; no less than the shortest time of a kernel.
pub(crate) fn anchor_time(
    coefficients: &[f64],
    terms: &[f64],
    least: f64,
    hidden: f64,
    work: &Work,
    machine: &Machine,
) -> f64 {
    let beyond_l2 = (work.bytes() - machine.l2).max(0.0) / machine.bandwidth;
    dot(coefficients, terms).max(least).max(hidden).max(beyond_l2)
}

#[cfg(test)]
mod tests {
    use schema::{Phase, WorkSize, catalogue};

    use crate::{CostModel, Machine, Work};

    /// Single calls of next to nothing took NeuSight 25 µs and more; on the card itself they are launches. Long ones are
    /// what they are, and between the two nothing jumps.
    #[test]
    fn what_a_single_call_waits_is_not_the_devices() {
        for device in ["V100-PCIE-32GB", "T4", "A100-PCIE-40GB", "P100-PCIE-16GB"] {
            let figures = &catalogue()[device];
            let model = CostModel::shipped(figures).unwrap();
            let machine = Machine::of(figures, "float32");
            for kind in ["relu", "add", "linear", "softmax"] {
                let size = |elements: f64| match kind {
                    "linear" => WorkSize::Product { batch: 1.0, m: elements / 512.0, n: 1024.0, k: 1024.0 },
                    _ => WorkSize::Rows { rows: elements / 1024.0, cols: 1024.0, inputs: 1.0 },
                };
                let curve = model.curve(kind, "float32", Phase::Forward, &size(1024.0)).unwrap();
                let time = |elements: f64| {
                    let work = Work::of(size(elements), Phase::Forward, machine.element);
                    (curve.predict(&work).seconds, curve.predict_queued(&work))
                };
                let (single, queued) = time(1024.0);
                assert!(queued.seconds < 0.8 * single, "{device} {kind}: {single:e} {queued:?}");
                assert!(queued.seconds >= machine.launch, "{device} {kind}");
                let (single, queued) = time(67_108_864.0);
                assert!(
                    (queued.seconds / single - 1.0).abs() < 0.08,
                    "{device} {kind}: {single:e} {queued:?}"
                );
                let mut before = 0.0;
                // Tiles of products make steps of their own.
                for step in 0..if kind == "linear" { 0 } else { 200 } {
                    let now = time(1024.0 * 1.06_f64.powi(step)).1.seconds;
                    assert!(
                        before == 0.0 || now / before < 1.25,
                        "{device} {kind} {step}: {before:e} {now:e}"
                    );
                    before = now;
                }
            }
        }
    }
}
