//! A grid of convolutions instead of random sizes: a polynomial of channels and kernel is fitted to it, and drawn over
//! it.

use super::{DType, Item, Kind, Plan, Size, Split};

/// Channels in and out.
const CHANNELS: [u64; 3] = [32, 64, 128];
/// Sides of the kernel.
const KERNELS: [u64; 3] = [3, 5, 7];
/// Height and width of the images, which keep their size.
const SIDE: u64 = 256;

/// Convolutions of a grid, in every requested type.
#[derive(Clone, Debug, PartialEq)]
pub struct Sweep {
    batch: u64,
    dtypes: Vec<DType>,
}

/// Which operators are measured.
#[derive(Clone, Debug, PartialEq)]
pub enum Operators {
    /// Random sizes of many kinds, without end.
    Random(Plan),
    /// A grid.
    Sweep(Sweep),
}

impl Sweep {
    /// Makes a grid over images of this batch.
    ///
    /// # Panics
    /// Without a data type.
    pub fn new(batch: u64, dtypes: &[DType]) -> Self {
        assert!(!dtypes.is_empty(), "a sweep needs a data type");
        let mut dtypes = dtypes.to_vec();
        dtypes.sort();
        dtypes.dedup();
        Self { batch, dtypes }
    }

    fn item(&self, index: u64) -> Option<Item> {
        let digit = |place: u64| (index / 3_u64.pow(place as u32) % 3) as usize;
        let dtype = *self.dtypes.get((index / 27) as usize)?;
        let kernel = KERNELS[digit(0)];
        let size = Size::Convolution {
            batch: self.batch,
            in_channels: CHANNELS[digit(1)],
            out_channels: CHANNELS[digit(2)],
            groups: 1,
            height: SIDE,
            width: SIDE,
            kernel,
            stride: 1,
            padding: kernel / 2,
        };
        Some(Item { index, kind: Kind::Convolution, dtype, size, split: Split::Train, repeats: None })
    }

    fn text(&self) -> String {
        let dtypes: Vec<&str> = self.dtypes.iter().map(|dtype| dtype.name()).collect();
        format!("sweep batch={} dtypes={}", self.batch, dtypes.join(","))
    }

    fn read(text: &str) -> Option<Self> {
        let (batch, dtypes) = text.strip_prefix("sweep batch=")?.split_once(" dtypes=")?;
        let dtypes: Vec<DType> = dtypes
            .split(',')
            .map(DType::find)
            .collect::<Result<_, _>>()
            .ok()
            .filter(|all: &Vec<_>| !all.is_empty())?;
        Some(Self::new(batch.parse().ok().filter(|batch| *batch > 0)?, &dtypes))
    }
}

impl Operators {
    /// Returns the item at a position; `None` past the last.
    pub fn item(&self, index: u64) -> Option<Item> {
        match self {
            Self::Random(plan) => Some(plan.item(index)),
            Self::Sweep(sweep) => sweep.item(index),
        }
    }

    /// Writes them as in the header of a profile.
    pub fn text(&self) -> String {
        match self {
            Self::Random(plan) => plan.text(),
            Self::Sweep(sweep) => sweep.text(),
        }
    }

    /// Reads what [`Operators::text`] wrote.
    pub fn read(text: &str) -> Option<Self> {
        Sweep::read(text).map(Self::Sweep).or_else(|| Plan::read(text).map(Self::Random))
    }

    /// Returns whether both draw from the same, in the same order.
    pub fn asks_the_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Random(one), Self::Random(other)) => one.asks_the_same(other),
            _ => self == other,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_point_of_the_grid_once_a_type() {
        let grid = Operators::Sweep(Sweep::new(8, &[DType::BFloat16, DType::Float32]));
        let items: Vec<Item> = (0..).map_while(|index| grid.item(index)).collect();
        let seen: BTreeSet<_> = items
            .iter()
            .filter_map(|item| match item.size {
                Size::Convolution { batch: 8, in_channels, out_channels, kernel, padding, .. } => {
                    assert_eq!(padding, kernel / 2);
                    Some((item.dtype, in_channels, out_channels, kernel))
                }
                _ => None,
            })
            .collect();
        assert_eq!((items.len(), seen.len()), (54, 54));
        assert_eq!(items[0].dtype, DType::Float32);
    }

    #[test]
    fn a_sweep_reads_what_it_wrote() {
        let grid = Operators::Sweep(Sweep::new(8, &[DType::Float32, DType::BFloat16]));
        assert_eq!(grid.text(), "sweep batch=8 dtypes=float32,bfloat16");
        assert_eq!(Operators::read(&grid.text()), Some(grid.clone()));
        assert!(!grid.asks_the_same(&Operators::Sweep(Sweep::new(1, &[DType::Float32]))));
        for wrong in
            ["sweep batch=0 dtypes=float32", "sweep batch=8 dtypes=", "sweep batch=8 dtypes=float33", "sweep"]
        {
            assert_eq!(Operators::read(wrong), None, "{wrong}");
        }
    }
}
