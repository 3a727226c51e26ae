//! When has a time been measured often enough?

/// Times of the same call, sorted.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Statistics {
    sorted: Vec<f64>,
}

impl Statistics {
    /// Adds a time.
    pub fn add(&mut self, seconds: f64) {
        let place = self.sorted.partition_point(|known| *known < seconds);
        self.sorted.insert(place, seconds);
    }

    /// Returns the number of times.
    pub fn count(&self) -> usize {
        self.sorted.len()
    }

    /// Returns a quantile, interpolated; zero without times.
    pub fn quantile(&self, share: f64) -> f64 {
        let Some(last) = self.sorted.len().checked_sub(1) else { return 0.0 };
        let place = share.clamp(0.0, 1.0) * last as f64;
        let below = place.floor() as usize;
        let above = (below + 1).min(last);
        self.sorted[below] + (self.sorted[above] - self.sorted[below]) * (place - below as f64)
    }

    /// Returns the median.
    pub fn median(&self) -> f64 {
        self.quantile(0.5)
    }

    /// Returns the shortest; zero without times.
    pub fn least(&self) -> f64 {
        self.sorted.first().copied().unwrap_or(0.0)
    }

    /// Returns the median's own error, as a share of it.
    ///
    /// The spread is taken from the quartiles, which interruptions do not move; 1.2533 is the ratio of a median's
    /// standard error to a mean's, 1.349 that of the quartiles' distance to the deviation, both of normal errors.
    pub fn error(&self) -> f64 {
        let deviation = (self.quantile(0.75) - self.quantile(0.25)) / 1.349;
        1.2533 * deviation / (self.sorted.len() as f64).sqrt() / self.median()
    }

    /// Returns whether the median is known within this share; fewer than `least` times never suffice.
    pub fn is_steady(&self, least: usize, share: f64) -> bool {
        self.count() >= least && self.error() <= share
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(times: &[f64]) -> Statistics {
        let mut statistics = Statistics::default();
        times.iter().for_each(|time| statistics.add(*time));
        statistics
    }

    #[test]
    fn quantiles() {
        let five = of(&[5.0, 1.0, 4.0, 2.0, 3.0]);
        assert_eq!((five.median(), five.least(), five.quantile(0.9)), (3.0, 1.0, 4.6));
        assert_eq!(of(&[1.0, 2.0]).median(), 1.5);
        assert_eq!(of(&[]).median(), 0.0);
    }

    #[test]
    fn an_interruption_does_not_move_the_median() {
        let calm = of(&[1.0, 1.001, 1.002, 1.001, 1.0]);
        assert!(calm.is_steady(5, 0.01));
        assert!(!calm.is_steady(6, 0.01), "too few");
        let interrupted = of(&[1.0, 1.001, 1.002, 1.001, 90.0]);
        assert!(interrupted.is_steady(5, 0.01));
        assert_eq!(interrupted.median(), 1.001);
        assert!(!of(&[1.0, 2.0, 3.0, 4.0, 5.0]).is_steady(5, 0.01));
        assert!(!of(&[]).is_steady(0, 0.01), "no times have no median");
    }
}
