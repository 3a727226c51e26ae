//! The allowed numbers of samples in a micro-batch: `--micro-batch-size`.

use std::fmt;

use schema::MicroBatchSize;

use crate::failure::Failure;

/// The most sizes that are planned.
const MOST: usize = 16;

/// Numbers of samples that a micro-batch may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    least: u64,
    most: u64,
}

impl Sizes {
    /// Reads `8`, `auto`, `2..16`, `2..` or `..16`.
    pub fn from_text(text: &str) -> Result<Self, String> {
        let wrong =
            || "expected a number of samples, `auto`, or the smallest and the largest: 2..16".to_string();
        let number = |text: &str, otherwise: u64| match text.trim() {
            "" => Ok(otherwise),
            text => text.parse::<u64>().map_err(|_| wrong()),
        };
        let (least, most) = match text.split_once("..") {
            Some((least, most)) => (number(least, 1)?, number(most, u64::MAX)?),
            None if text.eq_ignore_ascii_case("auto") => (1, u64::MAX),
            None => {
                let own = text.trim().parse().map_err(|_| wrong())?;
                (own, own)
            }
        };
        match least {
            0 => Err("a micro-batch has at least one sample".into()),
            _ if least > most => Err(format!("{least} is more than {most}")),
            _ => Ok(Self { least, most }),
        }
    }

    /// Returns the constraint of a plan; `None` if any size is allowed.
    pub(super) fn constraint(self) -> Option<MicroBatchSize> {
        let least = Some(self.least).filter(|least| *least > 1);
        let most = Some(self.most).filter(|most| *most < u64::MAX);
        (least.is_some() || most.is_some()).then_some(MicroBatchSize { least, most })
    }

    /// Returns the sizes that a plan allows.
    pub(super) fn of_constraint(constraint: MicroBatchSize) -> Result<Self, String> {
        match (constraint.least.unwrap_or(1), constraint.most.unwrap_or(u64::MAX)) {
            (0, _) => Err("a micro-batch has at least one sample".into()),
            (least, most) if least > most => Err(format!("{least} is more than {most}")),
            (least, most) => Ok(Self { least, most }),
        }
    }

    /// Returns the sizes that both allow.
    pub(super) fn within(self, other: Self) -> Option<Self> {
        let both = Self { least: self.least.max(other.least), most: self.most.min(other.most) };
        (both.least <= both.most).then_some(both)
    }

    /// Tells whether micro-batches may have this many samples.
    pub fn has(self, samples: u64) -> bool {
        (self.least..=self.most).contains(&samples)
    }

    /// Returns the sizes that divide a batch; of many, those next to powers of two.
    pub(super) fn of_batch(self, batch: Option<u64>) -> Result<Vec<u64>, Failure> {
        let Some(batch) = batch else {
            if self.least == self.most {
                return Ok(vec![self.least]);
            }
            return Err(Failure::input("--micro-batch-size with several sizes needs a batch to divide")
                .with_hint("--batch N sets the samples per step; --micro-batch-size N takes one size"));
        };
        let all = divisors(batch);
        let mut own: Vec<u64> = all.iter().copied().filter(|size| self.has(*size)).collect();
        if own.is_empty() {
            let below = all.iter().rev().find(|size| **size < self.least);
            let above = all.iter().find(|size| **size > self.most);
            let near: Vec<String> = [below, above].into_iter().flatten().map(u64::to_string).collect();
            return Err(Failure::input(format!(
                "no micro-batch size that --micro-batch-size allows divides a batch of {batch}"
            ))
            .with_hint(format!("micro-batches of {} samples divide it", near.join(" or "))));
        }
        if own.len() > MOST {
            let powers = (0..64).map(|power| 1_u64 << power).take_while(|power| *power <= batch);
            let nearest = |power: u64| own.iter().copied().min_by_key(|size| size.abs_diff(power));
            let mut few: Vec<u64> = powers.filter_map(nearest).collect();
            few.dedup();
            own = few;
        }
        Ok(own)
    }
}

impl fmt::Display for Sizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.least, self.most) {
            (1, u64::MAX) => write!(f, "auto"),
            (least, most) if least == most => write!(f, "{least}"),
            (least, u64::MAX) => write!(f, "{least}.."),
            (1, most) => write!(f, "..{most}"),
            (least, most) => write!(f, "{least}..{most}"),
        }
    }
}

fn divisors(number: u64) -> Vec<u64> {
    let small = (1..).take_while(|divisor| divisor * divisor <= number).filter(|d| number.is_multiple_of(*d));
    let small: Vec<u64> = small.collect();
    let large = small.iter().rev().map(|divisor| number / divisor).filter(|large| large * large > number);
    small.iter().copied().chain(large).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_numbers_ranges_or_auto() {
        let check = |text: &str, expected: Option<(u64, u64)>| {
            let found = Sizes::from_text(text).ok().map(|sizes| (sizes.least, sizes.most));
            assert_eq!(found, expected, "{text}");
        };
        check("8", Some((8, 8)));
        check("auto", Some((1, u64::MAX)));
        check("2..16", Some((2, 16)));
        check("..16", Some((1, 16)));
        check("4..", Some((4, u64::MAX)));
        for wrong in ["0", "-1", "", "8..2", "many", "1..x"] {
            check(wrong, None);
        }
    }

    #[test]
    fn sizes_share_a_batch_out() {
        let of = |text: &str, batch: u64| Sizes::from_text(text).expect("sizes").of_batch(Some(batch)).ok();
        assert_eq!(of("auto", 12), Some(vec![1, 2, 3, 4, 6, 12]));
        assert_eq!(of("2..4", 12), Some(vec![2, 3, 4]));
        assert_eq!(of("5", 12), None);
        assert_eq!(divisors(36), [1, 2, 3, 4, 6, 9, 12, 18, 36]);
        // 5,040 has 60 divisors.
        let few = of("auto", 5040).expect("some divide it");
        assert!(few.len() <= MOST && few.iter().all(|size| 5040 % size == 0), "{few:?}");
    }
}
