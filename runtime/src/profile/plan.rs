//! Which operators are measured, in which order.
//!
//! A plan is an endless sequence: item `i` depends only on the seed and on `i`. Kinds come in shuffled rounds, each as
//! often as its share, so that every prefix is a sample of the same distribution as the whole: measuring may stop at
//! any item, and resume later with the next.

use super::{DType, Kind, Size, kind::UnknownName, random::Random, sample, size::Work};

/// One in this many items is measured a second time, to estimate noise and drift.
const REPEAT: u64 = 25;
/// Sizes drawn for each item; the one whose work is nearest to the target is taken.
const CANDIDATES: usize = 24;
/// One in this many products is longer than the rest, up to [`LONG`] times: models have such layers.
const LONG_SHARE: f64 = 1.0 / 20.0;
const LONG: f64 = 8.0;
/// Plans of another version draw other sizes: their files cannot be continued.
const VERSION: u32 = 3;

/// Limits on the size of operators: rounded rates of the device, and the longest call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scale {
    /// Operations a second.
    pub flops: Rates,
    /// Bytes a second.
    pub bytes: f64,
    /// Longest forward call at those rates, in seconds.
    pub longest: f64,
    /// Most bytes that an operator's tensors may have.
    pub largest: f64,
}

/// Operations per second by data type: tensor cores are ten times as fast with short types, and layers that use them
/// ten times as large.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates([f64; DType::ALL.len()]);

impl Rates {
    /// The same rate for all types.
    pub fn all(rate: f64) -> Self {
        Self([rate; DType::ALL.len()])
    }

    /// Sets the rate of one type.
    pub fn set(&mut self, dtype: DType, rate: f64) {
        self.0[dtype as usize] = rate;
    }

    /// Returns the rate of a type.
    pub fn of(&self, dtype: DType) -> f64 {
        self.0[dtype as usize]
    }

    /// Writes the rates of some types: `6.4e10`, or `float32:3.2e13,bfloat16:1e15`.
    fn text(&self, dtypes: &[DType]) -> String {
        let first = self.of(dtypes[0]);
        if dtypes.iter().all(|dtype| self.of(*dtype) == first) {
            return format!("{first:e}");
        }
        let each: Vec<String> =
            dtypes.iter().map(|dtype| format!("{}:{:e}", dtype.name(), self.of(*dtype))).collect();
        each.join(",")
    }

    /// Reads what [`Rates::text`] wrote.
    fn read(text: &str) -> Option<Self> {
        if !text.contains(':') {
            return rate(text).map(Self::all);
        }
        // Types that are not named are not measured.
        let mut rates = Self::all(1.0);
        for part in text.split(',') {
            let (name, number) = part.split_once(':')?;
            rates.set(DType::find(name).ok()?, rate(number)?);
        }
        Some(rates)
    }
}

/// Reads a positive number.
fn rate(text: &str) -> Option<f64> {
    text.parse::<f64>().ok().filter(|number| number.is_finite() && *number > 0.0)
}

/// A sampling plan.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Seed of all choices.
    pub seed: u64,
    /// Invariant: not empty.
    kinds: Vec<Kind>,
    /// Invariant: not empty.
    dtypes: Vec<DType>,
    /// The scale of operators.
    pub scale: Scale,
}

/// One operator to measure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Item {
    /// Position in the plan.
    pub index: u64,
    /// The kind.
    pub kind: Kind,
    /// The data type of elements.
    pub dtype: DType,
    /// The size.
    pub size: Size,
    /// Whether for fitting or for testing the fit.
    pub split: Split,
    /// The item that this one repeats.
    pub repeats: Option<u64>,
}

/// The use of an item's times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// Fitting.
    Train,
    /// Testing a fit: one in five, drawn at random.
    Test,
}

impl Item {
    /// Returns its work.
    pub fn work(&self) -> Work {
        self.size.work(self.kind, self.dtype)
    }
}

impl Plan {
    /// Makes a plan; without kinds, all of the usual layout.
    ///
    /// # Panics
    /// Without a data type.
    pub fn new(seed: u64, kinds: &[Kind], dtypes: &[DType], scale: Scale) -> Self {
        assert!(!dtypes.is_empty(), "a plan needs a data type");
        let chosen =
            |kind: &Kind| if kinds.is_empty() { !kind.is_channels_last() } else { kinds.contains(kind) };
        let mut dtypes = dtypes.to_vec();
        dtypes.sort();
        dtypes.dedup();
        Self { seed, kinds: Kind::all().filter(chosen).collect(), dtypes, scale }
    }

    /// Returns the item at a position.
    pub fn item(&self, index: u64) -> Item {
        if index % REPEAT == REPEAT - 1 {
            let half = index / 2;
            let first = if half % REPEAT == REPEAT - 1 { half - 1 } else { half };
            return Item { index, repeats: Some(first), ..self.item(first) };
        }
        let deck: Vec<Kind> =
            self.kinds.iter().flat_map(|kind| std::iter::repeat_n(*kind, kind.share())).collect();
        let (round, place) = (index / deck.len() as u64, index % deck.len() as u64);
        let mut shuffled = deck;
        Random::new(self.seed, round << 1).shuffle(&mut shuffled);
        let kind = shuffled[place as usize];
        let mut random = Random::new(self.seed, index << 1 | 1);
        let split = if random.unit() < 0.2 { Split::Test } else { Split::Train };
        let dtype = match random.choose(&self.dtypes) {
            DType::Tf32 if !kind.is_product() => DType::Float32,
            dtype => dtype,
        };
        let size = self.size(kind, dtype, &mut random);
        Item { index, kind, dtype, size, split, repeats: None }
    }

    /// Draws a size whose time at the scale's rates is log-uniform, within the sizes of the kind.
    fn size(&self, kind: Kind, dtype: DType, random: &mut Random) -> Size {
        let usual = self.scale.longest;
        let (shortest, longest) = if !kind.is_product() {
            // Bytes are moved at nearly the same speed from a few megabytes on.
            (usual * 5e-5, usual / 4.0)
        } else if random.unit() < LONG_SHARE {
            (usual, usual * LONG)
        } else {
            (usual * 2e-4, usual)
        };
        let wish = random.log_uniform(shortest, longest);
        let mut best: Option<(f64, Size)> = None;
        let mut smallest: Option<(f64, Size)> = None;
        for round in 0..40 {
            for _ in 0..CANDIDATES {
                let size = sample::draw(kind, random);
                let work = size.work(kind, dtype);
                let seconds = (work.flops / self.scale.flops.of(dtype)).max(work.bytes / self.scale.bytes);
                let footprint = work.bytes + work.saved_bytes + table(size, dtype);
                if smallest.is_none_or(|(least, _)| footprint < least) {
                    smallest = Some((footprint, size));
                }
                let distance = (seconds / wish).ln().abs();
                let fits = seconds <= longest && footprint <= self.scale.largest;
                if fits && best.is_none_or(|(least, _)| distance < least) {
                    best = Some((distance, size));
                }
            }
            if best.is_some() || round == 39 {
                break;
            }
        }
        best.or(smallest).expect("a size was drawn").1
    }

    /// Writes the plan as in the header of a profile.
    pub fn text(&self) -> String {
        let Scale { flops, bytes, longest, largest } = self.scale;
        let flops = flops.text(&self.dtypes);
        let kinds: Vec<&str> = self.kinds.iter().map(|kind| kind.name()).collect();
        // The word is older than the channels-last kinds, and existing files use it.
        let is_usual = self.kinds.iter().copied().eq(Kind::usual());
        let kinds = if is_usual { "all".to_string() } else { kinds.join(",") };
        let dtypes: Vec<&str> = self.dtypes.iter().map(|dtype| dtype.name()).collect();
        format!(
            "seed={} kinds={kinds} dtypes={} flops={flops} bytes={bytes:e} longest={longest:e} largest={largest:e} version={VERSION}",
            self.seed,
            dtypes.join(",")
        )
    }

    /// Reads what [`Plan::text`] wrote.
    pub fn read(text: &str) -> Option<Self> {
        let value =
            |key: &str| text.split_whitespace().find_map(|word| word.strip_prefix(key)?.strip_prefix('='));
        if value("version")?.parse() != Ok(VERSION) {
            return None;
        }
        let number = |key: &str| rate(value(key)?);
        let kinds: Result<Vec<Kind>, UnknownName> = match value("kinds")? {
            "all" => Ok(Vec::new()),
            names => names.split(',').map(Kind::find).collect(),
        };
        let dtypes: Result<Vec<DType>, UnknownName> = value("dtypes")?.split(',').map(DType::find).collect();
        let scale = Scale {
            flops: Rates::read(value("flops")?)?,
            bytes: number("bytes")?,
            longest: number("longest")?,
            largest: number("largest")?,
        };
        Some(Self::new(value("seed")?.parse().ok()?, &kinds.ok()?, &dtypes.ok()?, scale))
    }

    /// Returns whether two plans draw from the same kinds and types with the same seed.
    pub fn asks_the_same(&self, other: &Self) -> bool {
        (self.seed, &self.kinds, &self.dtypes) == (other.seed, &other.kinds, &other.dtypes)
    }
}

/// Returns the bytes of a table and its gradient, which no call reads as a whole but which must fit.
fn table(size: Size, dtype: DType) -> f64 {
    match size {
        Size::Table { cols, vocabulary, .. } => 2.0 * dtype.bytes() * cols as f64 * vocabulary as f64,
        _ => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    const SCALE: Scale = Scale { flops: Rates([6.4e10; 4]), bytes: 1.6e10, longest: 0.02, largest: 2.6e8 };

    fn plan() -> Plan {
        Plan::new(7, &[], &[DType::Float32], SCALE)
    }

    #[test]
    fn an_item_depends_on_seed_and_index_alone() {
        let items: Vec<Item> = (0..200).map(|index| plan().item(index)).collect();
        let backwards: Vec<Item> = (0..200).rev().map(|index| plan().item(index)).collect();
        assert!(items.iter().eq(backwards.iter().rev()));
        let other = Plan { seed: 8, ..plan() };
        assert!((0..50).any(|index| other.item(index) != plan().item(index)));
    }

    #[test]
    fn the_first_items_stay_as_they_are() {
        let shown: Vec<String> = (0..6)
            .map(|index| {
                let Item { kind, size, split, .. } = plan().item(index);
                format!("{} {size:?} {split:?}", kind.name())
            })
            .collect();
        // A run must resume with the plan that its file was started with: these lines change only with the version.
        assert_eq!(VERSION, 3);
        assert_eq!(shown.join("\n"), include_str!("plan_seed_7.txt").trim_end());
    }

    #[test]
    fn every_prefix_has_each_kind_by_its_share() {
        let total: usize = Kind::usual().map(Kind::share).sum();
        for rounds in [1, 3, 10] {
            let mut counts: BTreeMap<Kind, usize> = BTreeMap::new();
            for index in 0..(rounds * total) as u64 {
                *counts.entry(plan().item(index).kind).or_default() += 1;
            }
            for kind in Kind::usual() {
                let expected = rounds * kind.share();
                let found = counts.get(&kind).copied().unwrap_or(0);
                // Repeats take the place of one item in 25.
                assert!(
                    found.abs_diff(expected) <= 2 + expected / 5,
                    "{}: {found} of {expected}",
                    kind.name()
                );
            }
        }
    }

    #[test]
    fn sizes_stay_within_the_scale_and_span_it() {
        let mut times: BTreeMap<Kind, Vec<f64>> = BTreeMap::new();
        for index in 0..2000 {
            let item = plan().item(index);
            let work = item.work();
            let seconds = (work.flops / SCALE.flops.of(item.dtype)).max(work.bytes / SCALE.bytes);
            assert!(seconds <= SCALE.longest * LONG, "{item:?}");
            assert!(
                work.bytes + work.saved_bytes + table(item.size, item.dtype) <= SCALE.largest,
                "{item:?}"
            );
            times.entry(item.kind).or_default().push(seconds);
        }
        for (kind, times) in times {
            let (least, most) = times.iter().fold((f64::MAX, 0.0_f64), |(a, b), t| (a.min(*t), b.max(*t)));
            assert!(most / least > 30.0, "{}: from {least:e} to {most:e}", kind.name());
        }
    }

    #[test]
    fn products_are_as_large_as_their_type_is_fast() {
        let mut scale = Scale { flops: Rates::all(5e13), bytes: 4e12, longest: 0.012, largest: 8e9 };
        scale.flops.set(DType::BFloat16, 1e15);
        let plan = Plan::new(0, &[Kind::Linear], &[DType::Float32, DType::BFloat16], scale);
        let largest = |dtype: DType| {
            let of_type = (0..600).map(|index| plan.item(index)).filter(|item| item.dtype == dtype);
            of_type.map(|item| item.work().flops).fold(0.0, f64::max)
        };
        let (long, short) = (largest(DType::Float32), largest(DType::BFloat16));
        assert!(long <= 5e13 * 0.012 * LONG && short > 8.0 * long, "{long:e}, {short:e}");
    }

    #[test]
    fn most_dimensions_are_round() {
        let mut random = Random::new(1, 1);
        let drawn: Vec<u64> = (0..4000).map(|_| sample::dimension(&mut random, 64.0, 32768.0)).collect();
        let share = |multiple: u64| {
            drawn.iter().filter(|size| *size % multiple == 0).count() as f64 / drawn.len() as f64
        };
        assert!((0.58..0.70).contains(&share(64)), "{}", share(64));
        assert!((0.83..0.92).contains(&share(8)), "{}", share(8));
        assert!(drawn.iter().all(|size| (64..=32768).contains(size)));
    }

    #[test]
    fn splits_and_repeats() {
        let items: Vec<Item> = (0..2500).map(|index| plan().item(index)).collect();
        let test = items.iter().filter(|item| item.split == Split::Test).count();
        assert!((400..600).contains(&test), "{test}");
        let repeats: Vec<&Item> = items.iter().filter(|item| item.repeats.is_some()).collect();
        assert_eq!(repeats.len(), 100);
        for item in repeats {
            let first = items[item.repeats.unwrap() as usize];
            assert!(first.repeats.is_none() && first.index < item.index);
            assert_eq!((first.kind, first.size, first.split), (item.kind, item.size, item.split));
        }
    }

    #[test]
    fn a_plan_reads_what_it_wrote() {
        let some = Plan::new(3, &[Kind::Softmax, Kind::Linear], &[DType::Tf32, DType::BFloat16], SCALE);
        assert_eq!(
            some.text(),
            "seed=3 kinds=linear,softmax dtypes=tf32,bfloat16 flops=6.4e10 bytes=1.6e10 longest=2e-2 largest=2.6e8 version=3"
        );
        assert_eq!(Plan::read(&some.text()), Some(some.clone()));
        assert_eq!(Plan::read(&plan().text()), Some(plan()));
        assert_eq!(Plan::read("seed=3 kinds=all"), None);
        assert_eq!(Plan::read(&some.text().replace("version=3", "version=1")), None);
        assert_eq!(Plan::read(some.text().trim_end_matches(" version=3")), None);
        assert!(!some.asks_the_same(&plan()));
        let mut scale = SCALE;
        scale.flops.set(DType::BFloat16, 1e15);
        let fast = Plan { scale, ..some.clone() };
        assert!(fast.text().contains(" flops=tf32:6.4e10,bfloat16:1e15 "), "{}", fast.text());
        let read = Plan::read(&fast.text()).unwrap();
        assert_eq!((read.text(), read.item(11)), (fast.text(), fast.item(11)));
        assert_eq!(Plan::read(&fast.text().replace("tf32:6.4e10", "tf32:0")), None);
        let memory_bound = (0..40).map(|index| some.item(index)).filter(|item| item.kind == Kind::Softmax);
        assert!(memory_bound.clone().count() > 2);
        assert!(memory_bound.map(|item| item.dtype).all(|dtype| dtype != DType::Tf32));
    }
}
