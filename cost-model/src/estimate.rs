//! A predicted time with its band, and sums of such times.

/// Correlation of the errors of two operators in one model, which share the device and the kernels' authors: 0 if errors depend
/// on the shape alone, 1 if all operators are off alike.
const CORRELATION: f64 = 0.5;

/// A predicted time with its band.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// The time that is most likely.
    pub seconds: f64,
    /// One of ten measured times is shorter.
    pub p10: f64,
    /// One of ten measured times is longer.
    pub p90: f64,
    /// Trust in the correction: 1 inside the fitted range, towards 0 outside.
    pub trust: f64,
}

impl Estimate {
    /// Makes an estimate without a band.
    pub fn exact(seconds: f64) -> Self {
        Self { seconds, p10: seconds, p90: seconds, trust: 1.0 }
    }

    /// Makes an estimate with a band relative to it, as for a size inside the fitted range.
    pub(crate) fn about(seconds: f64, band: (f64, f64)) -> Self {
        Self { seconds, p10: seconds * band.0, p90: seconds * band.1, trust: 1.0 }
    }

    /// Widens the band by the variation between sessions, and between a model and a single operator: clocks, allocations and
    /// neighbours differ, which rows of one session do not show.
    ///
    /// (NeuSight's products and sums on P100, V100, T4 and A100, those of random sizes against those of models: whole sets
    /// differ by −8 to +11 %. The same operators in its models differ by 6 to 20 % from those by themselves.)
    #[must_use]
    pub fn in_a_model(self) -> Self {
        const APART: f64 = 0.12;
        let width = |own: f64| (own * own + (APART * self.seconds).powi(2)).sqrt();
        Self {
            p10: (self.seconds - width((self.seconds - self.p10).max(0.0))).max(0.0),
            p90: self.seconds + width((self.p90 - self.seconds).max(0.0)),
            ..self
        }
    }

    /// Scales the estimate and its band.
    pub(crate) fn times(self, factor: f64) -> Self {
        let Self { seconds, p10, p90, trust } = self;
        Self { seconds: seconds * factor, p10: p10 * factor, p90: p90 * factor, trust }
    }

    /// Returns by how much all gradients of a kernel in one pass take longer than the input gradient, given the time of the
    /// others alone.
    pub(crate) fn beside(self, input: Self) -> Self {
        let left = (1.0 - input.seconds / self.seconds.max(f64::MIN_POSITIVE)).max(0.0);
        Self { seconds: self.seconds * left, p10: self.p10 * left, p90: self.p90 * left, ..self }
    }
}

/// Adds estimates; half of the variance of their errors is common.
pub fn combine(parts: impl Iterator<Item = Estimate>) -> Estimate {
    let mut sum = Estimate { seconds: 0.0, p10: 0.0, p90: 0.0, trust: 0.0 };
    let (mut below, mut above) = ((0.0, 0.0), (0.0, 0.0));
    for part in parts {
        sum.seconds += part.seconds;
        sum.trust += part.trust * part.seconds;
        // A curve's most likely time may lie a little outside its own quantiles.
        for (width, total) in [
            ((part.seconds - part.p10).max(0.0), &mut below),
            ((part.p90 - part.seconds).max(0.0), &mut above),
        ] {
            total.0 += width;
            total.1 += width * width;
        }
    }
    let width = |(sum, squares): (f64, f64)| (CORRELATION * sum * sum + (1.0 - CORRELATION) * squares).sqrt();
    sum.p10 = (sum.seconds - width(below)).max(0.0);
    sum.p90 = sum.seconds + width(above);
    sum.trust = if sum.seconds > 0.0 { sum.trust / sum.seconds } else { 1.0 };
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_is_another_session() {
        let wide = |low: f64, high: f64| Estimate::about(2.0, (low, high)).in_a_model();
        let (exact, open) = (wide(1.0, 1.0), wide(0.8, 1.36));
        assert!((exact.p10 - 1.76).abs() < 1e-12 && (exact.p90 - 2.24).abs() < 1e-12, "{exact:?}");
        assert!((open.p10 - 1.534).abs() < 1e-3 && (open.p90 - 2.759).abs() < 1e-3, "{open:?}");
        assert!(wide(0.01, 1.0).p10 >= 0.0);
    }

    #[test]
    fn one_pass_takes_as_long_as_its_longest_part() {
        let of = |seconds: f64| Estimate::about(seconds, (0.5, 2.0));
        for (alone, input) in [(0.5, 1.0), (1.5, 1.0), (1.0, 1.0), (1.0, 0.0), (0.0, 1.0), (0.0, 0.0)] {
            let own = of(alone).beside(of(input));
            let both = input + own.seconds;
            assert!((both - alone.max(input)).abs() < 1e-12, "{alone} {input}: {own:?}");
            assert!(own.p10 <= own.seconds && own.seconds <= own.p90, "{own:?}");
        }
    }
}
