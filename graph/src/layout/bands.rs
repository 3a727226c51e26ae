//! Bands of images: each device holds consecutive rows, and receives a halo of its neighbours' rows.
//!
//! Of `size` rows, device `r` of `n` holds those from `⌈size·r/n⌉` to `⌈size·(r+1)/n⌉`: as even as possible, and no device has more
//! than the first. The operand rows that a band of results needs reach beyond the device's own band (the halo) or fall short of it;
//! both follow from the sizes, so devices need not ask each other. `codegen/src/python/shards.py` does the same arithmetic.

/// A dimension in bands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bands {
    /// The dimension.
    pub dim: usize,
    /// Its size in the whole.
    pub size: u64,
}

/// The rows of a banded operand from which a band of results is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rows {
    /// The bands of the operand.
    pub from: Bands,
    /// Rows of the results, over all devices.
    pub results: u64,
    /// The rows of the operand that a row of results reads.
    pub take: Take,
}

/// The rows of an operand that a row of results reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Take {
    /// A window that begins at row `row · stride − padding`, for convolutions and pools. Rows beyond the image are filled.
    Window {
        /// The rows that a window reads.
        window: Window,
        /// The value of positions outside the image, as bits.
        fill: u64,
    },
    /// The reverse: row `i` of the operand adds to the rows of results from `i · stride − padding` on. For transposed
    /// convolutions.
    Spread(Window),
    /// Resampling: the nearest row, or an interpolation of two neighbouring rows.
    Stretch(Stretch),
}

/// Windows over rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Window {
    /// Rows that a window spans, from its first to its last.
    pub extent: u64,
    /// Rows from the begin of one window to the next.
    pub stride: u64,
    /// Rows by which the first window begins before the image; negative if it begins inside.
    pub padding: i64,
}

/// The interpolation of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stretch {
    /// The mode of interpolation.
    pub by: Resampling,
    /// The corners of both images coincide.
    pub align_corners: bool,
    /// The requested factor, as bits; `None` if the sizes give it.
    pub scale: Option<u64>,
}

/// The mode of resampling.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Resampling {
    /// The nearest row, as torch's `nearest` rounds.
    Nearest,
    /// The nearest row.
    NearestExact,
    /// Interpolates two rows.
    Linear,
}

/// The rows that bands receive from each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// Over all devices.
    pub total: u64,
    /// On the device that receives most.
    pub most: u64,
    /// The most devices from which one device receives rows.
    pub messages: u64,
}

impl Bands {
    /// Returns the number of rows of the first device, which is the largest of all devices.
    pub fn most(self, degree: u64) -> u64 {
        self.size.div_ceil(degree)
    }

    /// Returns the first row of a device, and the end of its last.
    pub fn band(self, rank: u64, degree: u64) -> (u64, u64) {
        ((self.size * rank).div_ceil(degree), (self.size * (rank + 1)).div_ceil(degree))
    }

    /// Tells whether each device gets a row.
    pub fn fits(self, degree: u64) -> bool {
        self.size >= degree
    }
}

impl Rows {
    /// Returns the rows that a device reads; rows outside the image are filled.
    pub fn taken(self, rank: u64, degree: u64) -> (i64, i64) {
        let (first, last) = Bands { dim: 0, size: self.results }.band(rank, degree);
        let (first, last) = (first as i64, last as i64);
        match self.take {
            Take::Window { window, .. } => window.taken(first, last),
            Take::Spread(window) => window.spread(first, last),
            Take::Stretch(stretch) => {
                let at = |row: i64| stretch.place(row, self.from.size, self.results);
                let beside = i64::from(stretch.by == Resampling::Linear);
                let end = (at(last - 1).floor() as i64 + 1 + beside).min(self.from.size as i64);
                (at(first).floor() as i64, end)
            }
        }
    }

    /// Tells whether each row of results reads only the same row.
    pub fn are_own(self) -> bool {
        let own = Window { extent: 1, stride: 1, padding: 0 };
        matches!(self.take, Take::Window { window, .. } if window == own) && self.results == self.from.size
    }

    /// Returns the rows that devices receive from each other.
    pub fn moved(self, degree: u64) -> Moved {
        let size = self.from.size as i64;
        let mut moved = Moved::default();
        for rank in 0..degree {
            let (first, last) = self.taken(rank, degree);
            let (first, last) = (first.clamp(0, size), last.clamp(0, size));
            let of = |peer: u64| {
                let (own, end) = self.from.band(peer, degree);
                (last.min(end as i64) - first.max(own as i64)).max(0) as u64
            };
            let others = (0..degree).filter(|peer| *peer != rank).map(of);
            let got: Vec<u64> = others.filter(|rows| *rows > 0).collect();
            let sum: u64 = got.iter().sum();
            moved.total += sum;
            moved.most = moved.most.max(sum);
            moved.messages = moved.messages.max(got.len() as u64);
        }
        moved
    }
}

impl Window {
    /// Returns the rows that the windows of some rows of results read.
    fn taken(self, first: i64, last: i64) -> (i64, i64) {
        let at = |row: i64| row * self.stride as i64 - self.padding;
        (at(first), at(last - 1) + self.extent as i64)
    }

    /// Returns the rows that contribute to some rows of results, plus one row on either side if there are gaps.
    fn spread(self, first: i64, last: i64) -> (i64, i64) {
        let (stride, reach) = (self.stride as i64, self.extent as i64 - 1);
        let down = |row: i64| (row + self.padding).div_euclid(stride);
        let up = |row: i64| -(reach - row - self.padding).div_euclid(stride);
        (up(first).min(down(first)), down(last - 1).max(up(last - 1)) + 1)
    }
}

impl Stretch {
    /// Returns the position from which a row of results is taken.
    fn place(self, row: i64, size: u64, results: u64) -> f64 {
        let row = row as f64;
        let ratio = match self.scale.map(f64::from_bits) {
            Some(scale) if scale > 0.0 => 1.0 / scale,
            _ => size as f64 / results as f64,
        };
        let last = size.saturating_sub(1) as f64;
        let place = match self.by {
            Resampling::Nearest => (row * ratio).floor(),
            Resampling::NearestExact => ((row + 0.5) * ratio).floor(),
            Resampling::Linear if self.align_corners => {
                if results > 1 {
                    row * last / (results - 1) as f64
                } else {
                    0.0
                }
            }
            Resampling::Linear => (row + 0.5) * ratio - 0.5,
        };
        place.clamp(0.0, last)
    }

    /// Returns torch's name of the mode.
    pub fn mode(self) -> &'static str {
        match self.by {
            Resampling::Nearest => "nearest",
            Resampling::NearestExact => "nearest-exact",
            Resampling::Linear => "linear",
        }
    }
}
