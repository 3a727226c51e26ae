//! The bytes that move between the parts of a value as produced and as read: exact overlaps of boxes.

use std::collections::HashMap;

use super::layers::{Degrees, Layer, Need, Read, part};

/// The traffic between devices in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Volume {
    /// Number of participating devices: the first ones.
    pub devices: usize,
    /// Bytes that the device with most traffic sends.
    pub sent: f64,
    /// Bytes that the device with most traffic receives.
    pub received: f64,
    /// Bytes received by all devices.
    pub total: f64,
}

/// A value between two layers, for all splits of both.
///
/// The part of a dimension on each device follows one of few patterns, whatever the splits of the other dimensions.
/// Overlaps are computed once per two patterns, device by device; a pair of splits multiplies four such rows.
pub(super) struct Between<'a> {
    maker: &'a Layer,
    read: &'a Read,
    /// Blocks of devices.
    blocks: usize,
    makes: Vec<Side>,
    reads: Vec<Side>,
    axes: Vec<Axis>,
}

/// One side of a value under one split.
struct Side {
    /// Number of participating devices: the first ones.
    devices: usize,
    /// By dimension, the number of its pattern.
    patterns: [usize; 4],
    /// Number of devices with the same part.
    alike: f64,
    /// By device: one if it participates.
    present: Vec<Lanes>,
    /// By device: elements that it reads.
    elements: Vec<Lanes>,
}

/// Numbers of several devices, which a processor handles at once.
type Lanes = [f64; 4];

/// One dimension: rows of one number per device, by the producer's pattern, then the reader's.
struct Axis {
    readers: usize,
    /// Elements that the device makes and reads.
    both: Vec<Lanes>,
    /// Elements that the device makes and parts read, counted once per reading part.
    asked: Vec<Lanes>,
    /// By the reader's pattern only: elements that the device reads.
    read: Vec<Lanes>,
}

/// The part of a dimension on each participating device: device `i` has part `i / apart % parts`.
#[derive(Clone, Copy, PartialEq)]
struct Pattern {
    parts: usize,
    apart: usize,
}

impl Pattern {
    /// Returns the part of each device.
    fn places(self, devices: usize) -> Vec<usize> {
        (0..devices).map(|device| device / self.apart % self.parts).collect()
    }

    /// Returns the patterns of a value as produced.
    fn made(degrees: &Degrees) -> [Self; 4] {
        let apart = degrees.apart();
        std::array::from_fn(|axis| Self { parts: degrees.result[axis], apart: apart[axis] })
    }

    /// Returns the patterns of a value as it is read.
    fn read(degrees: &Degrees, read: &Read) -> [Self; 4] {
        let own = Self::made(degrees);
        std::array::from_fn(|axis| match read.needs[axis] {
            Need::All => Self { parts: 1, apart: 1 },
            Need::Sums => Self { parts: degrees.sums, apart: 1 },
            _ => own[axis],
        })
    }
}

impl<'a> Between<'a> {
    pub(super) fn new(
        (maker, made): (&'a Layer, &[Degrees]),
        (reader, taken): (&Layer, &[Degrees]),
        read: &'a Read,
        devices: usize,
    ) -> Self {
        let blocks = devices.div_ceil(4);
        let mut known: [[Vec<Pattern>; 2]; 4] = Default::default();
        let mut side = |degrees: &Degrees, patterns: [Pattern; 4], at: usize| Side {
            devices: degrees.parts(),
            patterns: std::array::from_fn(|axis| {
                let known = &mut known[axis][at];
                known.iter().position(|other| *other == patterns[axis]).unwrap_or_else(|| {
                    known.push(patterns[axis]);
                    known.len() - 1
                })
            }),
            alike: degrees.parts() as f64 / patterns.iter().map(|one| one.parts).product::<usize>() as f64,
            present: lanes((0..4 * blocks).map(|device| f64::from(u8::from(device < degrees.parts())))),
            elements: Vec::new(),
        };
        let makes = made.iter().map(|degrees| side(degrees, Pattern::made(degrees), 0)).collect();
        let mut reads: Vec<Side> =
            taken.iter().map(|degrees| side(degrees, Pattern::read(degrees, read), 1)).collect();
        let axes: Vec<Axis> =
            (0..4).map(|axis| Axis::new(axis, &known[axis], (maker, reader, read), blocks)).collect();
        for side in &mut reads {
            let row = |axis: usize| &axes[axis].read[side.patterns[axis] * blocks..][..blocks];
            let rows = [0, 1, 2, 3].map(row);
            side.elements =
                (0..blocks).map(|block| times(product(rows, block), side.present[block])).collect();
        }
        Self { maker, read, blocks, makes, reads, axes }
    }

    /// Returns the traffic of the forward and of the backward pass between two splits, by their numbers. O(devices).
    pub(super) fn volumes(&self, made: usize, taken: usize) -> [Volume; 2] {
        let (maker, reader) = (&self.makes[made], &self.reads[taken]);
        let devices = maker.devices.max(reader.devices);
        let rows = |of: fn(&Axis) -> &Vec<Lanes>| -> [&[Lanes]; 4] {
            std::array::from_fn(|axis| {
                let (makes, reads) = (maker.patterns[axis], reader.patterns[axis]);
                let at = (makes * self.axes[axis].readers + reads) * self.blocks;
                &of(&self.axes[axis])[at..at + self.blocks]
            })
        };
        let (both, asked) = (rows(|axis| &axis.both), rows(|axis| &axis.asked));
        // Most out, most in, all in, all out.
        let mut sums = [[0.0_f64; 4]; 4];
        for (block, elements) in reader.elements.iter().enumerate() {
            let (makes, reads) = (maker.present[block], reader.present[block]);
            let own = times(product(both, block), times(makes, reads));
            let asked = times(product(asked, block), makes);
            for lane in 0..4 {
                let (needed, asked) = (elements[lane] - own[lane], asked[lane] * reader.alike - own[lane]);
                sums[0][lane] = if asked > sums[0][lane] { asked } else { sums[0][lane] };
                sums[1][lane] = if needed > sums[1][lane] { needed } else { sums[1][lane] };
                sums[2][lane] += needed;
                sums[3][lane] += asked;
            }
        }
        let [most_out, most_in] = [sums[0], sums[1]].map(|lanes| lanes.into_iter().fold(0.0, f64::max));
        let [total_in, total_out] = [sums[2], sums[3]].map(|lanes| lanes.into_iter().sum::<f64>());
        let element = self.maker.element;
        let volume = |sent, received, total| Volume { devices, sent, received, total };
        // Parts of a sum hold the same result: they share the sending, and each receives the gradient.
        let forward = volume(most_out * element / maker.alike, most_in * element, total_in * element);
        let back = volume(most_in * element, most_out * element, total_out * element);
        [forward, if self.read.has_gradient { back } else { Volume { devices, ..Volume::default() } }]
    }
}

fn product([a, b, c, d]: [&[Lanes]; 4], block: usize) -> Lanes {
    times(times(a[block], b[block]), times(c[block], d[block]))
}

fn times(a: Lanes, b: Lanes) -> Lanes {
    std::array::from_fn(|lane| a[lane] * b[lane])
}

/// Groups numbers, one per device, into lanes.
fn lanes(numbers: impl Iterator<Item = f64>) -> Vec<Lanes> {
    let numbers: Vec<f64> = numbers.collect();
    numbers.chunks_exact(4).map(|four| [four[0], four[1], four[2], four[3]]).collect()
}

impl Axis {
    fn new(
        axis: usize,
        [makers, readers]: &[Vec<Pattern>; 2],
        (maker, reader, read): (&Layer, &Layer, &Read),
        blocks: usize,
    ) -> Self {
        let size = maker.sizes[axis];
        let made = |parts: usize| (0..parts).map(move |index| part(size, parts, index));
        let taken = |parts: usize| {
            (0..parts).map(move |index| {
                let own = part(reader.sizes[axis], parts, index);
                read.needs[axis].range(size, own, part(size, parts, index))
            })
        };
        let mut this = Self { readers: readers.len(), both: Vec::new(), asked: Vec::new(), read: Vec::new() };
        for pattern in readers {
            let lengths: Vec<f64> = taken(pattern.parts).map(|(first, end)| (end - first) as f64).collect();
            this.read.extend(lanes(pattern.places(4 * blocks).into_iter().map(|place| lengths[place])));
        }
        // Overlaps of parts, by the numbers of parts.
        let mut known: HashMap<(usize, usize), (Vec<f64>, Vec<f64>)> = HashMap::new();
        let places = |patterns: &[Pattern]| -> Vec<Vec<usize>> {
            patterns.iter().map(|pattern| pattern.places(4 * blocks)).collect()
        };
        let (maker_places, reader_places) = (places(makers), places(readers));
        for (makes, made_places) in makers.iter().zip(&maker_places) {
            for (reads, read_places) in readers.iter().zip(&reader_places) {
                let (common, asked) = known.entry((makes.parts, reads.parts)).or_insert_with(|| {
                    let common: Vec<f64> = made(makes.parts)
                        .flat_map(|a| taken(reads.parts).map(move |b| (a, b)))
                        .map(|(a, b)| a.1.min(b.1).saturating_sub(a.0.max(b.0)) as f64)
                        .collect();
                    let asked = common.chunks(reads.parts).map(|row| row.iter().sum()).collect();
                    (common, asked)
                });
                let both = made_places.iter().zip(read_places);
                this.both.extend(lanes(both.map(|(made, read)| common[made * reads.parts + read])));
                this.asked.extend(lanes(made_places.iter().map(|&made| asked[made])));
            }
        }
        this
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::oracle::random_problems::Dice;

    fn layer(sizes: [u64; 4], reads: Vec<Read>) -> Layer {
        Layer {
            sizes,
            element: 1.0,
            splits: [true; 4],
            sums: Some(4),
            reads,
            parameters: 0.0,
            statistics: 0.0,
            saved: 0.0,
            like: None,
        }
    }

    /// Returns the elements of a box.
    fn elements(ranges: [(u64, u64); 4]) -> BTreeSet<[u64; 4]> {
        let mut all = BTreeSet::from([[0; 4]]);
        for (axis, (first, end)) in ranges.into_iter().enumerate() {
            let with = |element: &[u64; 4], at: u64| {
                let mut element = *element;
                element[axis] = at;
                element
            };
            all = all.iter().flat_map(|element| (first..end).map(move |at| with(element, at))).collect();
        }
        all
    }

    /// Returns the elements that each device makes, and those that it reads.
    fn held(degrees: &Degrees, range: impl Fn(usize, usize, usize) -> (u64, u64)) -> Vec<BTreeSet<[u64; 4]>> {
        let apart = degrees.apart();
        let place = |device: usize, axis: usize| device / apart[axis] % degrees.result[axis];
        let ranges =
            |device: usize| [0, 1, 2, 3].map(|axis| range(axis, place(device, axis), device % degrees.sums));
        (0..degrees.parts()).map(|device| elements(ranges(device))).collect()
    }

    #[test]
    fn volumes_are_those_of_elements_counted_one_by_one() {
        let mut dice = Dice(41);
        let windows = [Need::SAME, Need::Window { stride: 2, before: 1, after: 1 }, Need::All];
        for case in 0..60 {
            let spatial = [windows[dice.below(3) as usize], windows[dice.below(3) as usize]];
            let channels =
                [Need::SAME, Need::All, Need::Sums, Need::From(2), Need::Flat(2)][dice.below(5) as usize];
            let read =
                Read { from: 0, needs: [Need::SAME, channels, spatial[0], spatial[1]], has_gradient: true };
            let maker = layer([4, 4, 5, 3], Vec::new());
            let size = |need: Need, size: u64| match need {
                Need::Window { stride: 2, .. } => size.div_ceil(2),
                Need::From(start) => size + start + 2,
                Need::Flat(each) => size * each,
                _ => size,
            };
            let sizes = std::array::from_fn(|axis| size(read.needs[axis], maker.sizes[axis]));
            let reader = layer(sizes, vec![read.clone()]);
            let (made, taken) = (maker.degrees(4), reader.degrees(4));
            let between = Between::new((&maker, &made), (&reader, &taken), &read, 4);
            for (row, makes) in made.iter().enumerate() {
                for (column, reads) in taken.iter().enumerate() {
                    let owned =
                        held(makes, |axis, place, _| part(maker.sizes[axis], makes.result[axis], place));
                    let needed = held(reads, |axis, place, sum| {
                        let own = part(reader.sizes[axis], reads.result[axis], place);
                        read.needs[axis].range(
                            maker.sizes[axis],
                            own,
                            part(maker.sizes[axis], reads.sums, sum),
                        )
                    });
                    let nothing = BTreeSet::new();
                    let of = |all: &[BTreeSet<[u64; 4]>], device: usize| {
                        all.get(device).unwrap_or(&nothing).clone()
                    };
                    let received =
                        |device: usize| of(&needed, device).difference(&of(&owned, device)).count() as f64;
                    let asked = |device: usize| {
                        let others = (0..4).filter(|&other| other != device);
                        others
                            .map(|other| of(&needed, other).intersection(&of(&owned, device)).count() as f64)
                            .sum::<f64>()
                    };
                    let most = |of: &dyn Fn(usize) -> f64| (0..4).map(of).fold(0.0, f64::max);
                    let [forward, back] = between.volumes(row, column);
                    let expected =
                        [most(&received), most(&asked) / makes.sums as f64, (0..4).map(received).sum()];
                    assert_eq!([forward.received, forward.sent, forward.total], expected, "case {case}");
                    let expected = [most(&asked), most(&received), (0..4).map(asked).sum::<f64>()];
                    assert_eq!([back.received, back.sent, back.total], expected, "case {case}");
                }
            }
        }
    }
}
