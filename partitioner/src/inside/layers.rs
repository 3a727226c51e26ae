//! A layer as OptCNN and FlexFlow split it: its result has samples, channels, height and width, and its sums have a
//! length.
//!
//! Parts are numbered with samples outermost and the parts of sums innermost; part `i` runs on device `i`. So the parts
//! that exchange most are on the same node.

/// The degrees of a layer: parts of each dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Degrees {
    /// Parts of samples, channels, height and width of the result.
    pub result: [usize; 4],
    /// Parts of the sums that make one element of the result.
    pub sums: usize,
}

impl Degrees {
    /// Nothing is split.
    pub const WHOLE: Self = Self { result: [1; 4], sums: 1 };

    /// Returns the split of samples only.
    pub fn samples(parts: usize) -> Self {
        Self { result: [parts, 1, 1, 1], sums: 1 }
    }

    /// Returns the number of parts, one per device.
    pub fn parts(&self) -> usize {
        self.tiles() * self.sums
    }

    /// Returns the number of parts of the result.
    pub fn tiles(&self) -> usize {
        self.result.iter().product()
    }

    /// Returns the number of parts that use the same part of the parameters.
    pub fn replicas(&self) -> usize {
        self.result[0] * self.result[2] * self.result[3]
    }

    /// Returns for each dimension the distance in devices between neighbouring parts; parts of sums are adjacent.
    pub(super) fn apart(&self) -> [usize; 4] {
        let [_, channels, height, width] = self.result;
        let pixels = self.sums * channels;
        [pixels * width * height, self.sums, pixels * width, pixels]
    }
}

/// The part of a dimension of a value that is read for a part of the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Need {
    /// All of it.
    All,
    /// The windows around the same part: element `i` reads from `i·stride − before` to `i·stride + after`.
    Window {
        /// Steps in the value per step in the result.
        stride: u64,
        /// Elements before.
        before: u64,
        /// Elements after.
        after: u64,
    },
    /// The same part of a concatenation, in which the value begins at this element.
    From(u64),
    /// The same part of a flattened image, with this many elements per channel.
    Flat(u64),
    /// The part of the sums.
    Sums,
}

impl Need {
    /// The same part.
    pub const SAME: Self = Self::Window { stride: 1, before: 0, after: 0 };
}

/// A value that a layer reads.
#[derive(Clone, Debug, PartialEq)]
pub struct Read {
    /// The layer that makes it; an earlier one.
    pub from: usize,
    /// The needed parts of its samples, channels, height and width.
    pub needs: [Need; 4],
    /// Whether a gradient flows back.
    pub has_gradient: bool,
}

/// A layer.
#[derive(Clone, Debug, PartialEq)]
pub struct Layer {
    /// Samples, channels, height and width of its result; 1 for absent ones.
    pub sizes: [u64; 4],
    /// Bytes of an element of its result.
    pub element: f64,
    /// The dimensions that may be split.
    pub splits: [bool; 4],
    /// Length of the sums of an element of the result, if they may be split.
    pub sums: Option<u64>,
    /// The values that it reads from other layers.
    pub reads: Vec<Read>,
    /// Bytes of its parameters.
    pub parameters: f64,
    /// Bytes of statistics over samples and pixels that all parts share.
    pub statistics: f64,
    /// Bytes of saved activations.
    pub saved: f64,
    /// The earlier layer whose split it must have.
    ///
    /// Invariant: its result has the same sizes.
    pub like: Option<usize>,
}

impl Layer {
    /// Returns the splits over a number of devices; the first is none. Degrees divide the number of devices, samples,
    /// channels and sums; rows and columns may be uneven by one.
    pub fn degrees(&self, devices: usize) -> Vec<Degrees> {
        let fits = |dimension: usize, parts: usize| {
            let size = self.sizes[dimension];
            match dimension {
                _ if parts == 1 => true,
                0 | 1 => self.splits[dimension] && size.is_multiple_of(parts as u64),
                _ => self.splits[dimension] && size >= parts as u64,
            }
        };
        let divisors: Vec<usize> = (1..=devices).filter(|parts| devices.is_multiple_of(*parts)).collect();
        let mut all = vec![Degrees::WHOLE];
        for dimension in 0..5 {
            let more = |degrees: &Degrees, parts: usize| {
                let mut degrees = *degrees;
                match dimension {
                    4 => degrees.sums = parts,
                    _ => degrees.result[dimension] = parts,
                }
                degrees
            };
            let is_possible = |parts: usize| match dimension {
                4 => parts == 1 || self.sums.is_some_and(|length| length.is_multiple_of(parts as u64)),
                _ => fits(dimension, parts),
            };
            all = all
                .iter()
                .flat_map(|degrees| divisors.iter().map(move |&parts| (degrees, parts)))
                .filter(|&(degrees, parts)| {
                    is_possible(parts) && devices.is_multiple_of(degrees.parts() * parts)
                })
                .map(|(degrees, parts)| more(degrees, parts))
                .collect();
        }
        all
    }
}

/// Returns a part of a dimension, from its first element to its end.
pub(super) fn part(size: u64, parts: usize, index: usize) -> (u64, u64) {
    let at = |index: usize| size * index as u64 / parts as u64;
    (at(index), at(index + 1))
}

impl Need {
    /// Returns the range that is read in a dimension of `size` elements.
    pub(super) fn range(self, size: u64, own: (u64, u64), sums: (u64, u64)) -> (u64, u64) {
        let (first, end) = match self {
            Self::All => (0, size),
            Self::Window { stride, before, after } => {
                ((own.0 * stride).saturating_sub(before), own.1.saturating_sub(1) * stride + after + 1)
            }
            Self::From(start) => (own.0.saturating_sub(start), own.1.saturating_sub(start)),
            Self::Flat(each) => (own.0 / each, own.1.div_ceil(each)),
            Self::Sums => sums,
        };
        (first.min(size), end.min(size))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_read_what_their_windows_reach() {
        let check = |need: Need, size: u64, own: (u64, u64), expected: (u64, u64)| {
            assert_eq!(need.range(size, own, (2, 4)), expected, "{need:?} of {size} for {own:?}");
        };
        let window = |stride, before, after| Need::Window { stride, before, after };
        check(Need::SAME, 8, (4, 8), (4, 8));
        // Windows of three with a padding of one; the first and the last part end with the image.
        check(window(1, 1, 1), 8, (0, 4), (0, 5));
        check(window(1, 1, 1), 8, (4, 8), (3, 8));
        // Pooling of two by two; a window of three with stride two.
        check(window(2, 0, 1), 8, (2, 4), (4, 8));
        check(window(2, 0, 2), 9, (0, 2), (0, 5));
        check(Need::All, 8, (4, 8), (0, 8));
        check(Need::Sums, 8, (4, 8), (2, 4));
        // A value that begins at element 6 of the concatenation.
        check(Need::From(6), 4, (4, 8), (0, 2));
        check(Need::From(6), 4, (0, 6), (0, 0));
        check(Need::Flat(4), 8, (6, 12), (1, 3));
    }
}
