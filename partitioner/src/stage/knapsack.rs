//! One choice for each item, least time within a memory limit: the multiple-choice knapsack problem.
//!
//! Branch and bound with the Lagrangian bound (one multiplier, by bisection). Equal items are decided together by count, which
//! makes a model of equal layers easy, and the limit is rounded down to memory that choices can fill. Exponential at worst, so
//! the longer a search is, the larger a gap it accepts; it ends at a node limit and returns the lower bound that it has proven.

/// A choice of an item: its time and memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice {
    /// Seconds.
    pub time: f64,
    /// Bytes.
    pub memory: f64,
}

/// Items, each with its choices side by side.
#[derive(Clone, Debug, Default)]
pub struct Items {
    choices: Vec<Choice>,
    /// Where each item's choices end.
    ends: Vec<usize>,
}

impl Items {
    /// Makes room for a number of items of few choices.
    pub fn for_about(n_items: usize) -> Self {
        Self { choices: Vec::with_capacity(2 * n_items), ends: Vec::with_capacity(n_items) }
    }

    /// Adds an item.
    pub fn push(&mut self, choices: impl IntoIterator<Item = Choice>) {
        self.choices.extend(choices);
        self.ends.push(self.choices.len());
    }

    fn len(&self) -> usize {
        self.ends.len()
    }

    /// Returns the choices of each item.
    fn iter(&self) -> impl Iterator<Item = &[Choice]> {
        let mut start = 0;
        self.ends.iter().map(move |&end| &self.choices[std::mem::replace(&mut start, end)..end])
    }

    /// Picks of each item the choice with the least key; skips items without choices.
    fn least(&self, key: impl Fn(&Choice) -> (f64, f64)) -> Vec<usize> {
        let mut picked = Vec::with_capacity(self.len());
        picked.extend(self.iter().filter_map(|choices| least_of(choices, &key)));
        picked
    }

    /// Adds up what picks take.
    pub fn sum(&self, picked: &[usize], field: impl Fn(&Choice) -> f64) -> f64 {
        self.iter().zip(picked).map(|(choices, &choice)| field(&choices[choice])).sum()
    }

    /// Solves the relaxation: for each item, the choice with the least time plus memory at a price.
    fn relaxed(&self, price: f64) -> Vec<usize> {
        self.least(|choice| (choice.time + price * choice.memory, choice.memory))
    }

    /// Returns a function of the price: the memory that the relaxation takes.
    fn relaxed_memory(&self) -> impl Fn(f64) -> f64 {
        let is_open = |choices: &&[Choice]| choices.len() > 1;
        let decided: f64 =
            self.iter().filter(|choices| !is_open(choices)).map(|choices| choices[0].memory).sum();
        let open: Vec<&[Choice]> = self.iter().filter(is_open).collect();
        move |price| {
            let key = |choice: &Choice| (choice.time + price * choice.memory, choice.memory);
            let memory =
                |choices: &&[Choice]| least_of(choices, &key).map_or(0.0, |choice| choices[choice].memory);
            decided + open.iter().map(memory).sum::<f64>()
        }
    }

    /// Improves picks while memory is left, by the choice that saves most time for its memory first.
    fn fill(&self, picked: &mut [usize], limit: f64) {
        let mut left = limit - self.sum(picked, |choice| choice.memory);
        let mut faster: Vec<(f64, usize, usize)> = Vec::new();
        for (item, (choices, &own)) in self.iter().zip(picked.iter()).enumerate() {
            let own = choices[own];
            for (index, other) in choices.iter().enumerate().filter(|(_, other)| other.time < own.time) {
                let gain = (own.time - other.time) / (other.memory - own.memory).max(f64::MIN_POSITIVE);
                faster.push((gain, item, index));
            }
        }
        faster.sort_by(|a, b| b.0.total_cmp(&a.0).then((a.1, a.2).cmp(&(b.1, b.2))));
        let all: Vec<&[Choice]> = self.iter().collect();
        for (_, item, index) in faster {
            let (own, other) = (all[item][picked[item]], all[item][index]);
            if other.time < own.time && other.memory - own.memory <= left {
                left -= other.memory - own.memory;
                picked[item] = index;
            }
        }
    }
}

impl FromIterator<Vec<Choice>> for Items {
    fn from_iter<T: IntoIterator<Item = Vec<Choice>>>(items: T) -> Self {
        let mut all = Self::default();
        items.into_iter().for_each(|choices| all.push(choices));
        all
    }
}

/// The first choice with the least key.
fn least_of(choices: &[Choice], key: &impl Fn(&Choice) -> (f64, f64)) -> Option<usize> {
    let (first, others) = choices.split_first()?;
    let mut least = (key(first), 0);
    for (index, choice) in others.iter().enumerate() {
        let own = key(choice);
        if own < least.0 {
            least = (own, index + 1);
        }
    }
    Some(least.1)
}

/// The best choices.
#[derive(Clone, Debug, PartialEq)]
pub struct Picked {
    /// Time of all items.
    pub time: f64,
    /// Choice of each item.
    pub choices: Vec<usize>,
    /// Lower bound of the time over all choices.
    pub lower_bound: f64,
    /// Time that a byte of memory is worth: the Lagrange multiplier.
    pub price: f64,
}

/// Nodes after which the search accepts a gap of `near`, and then ten times as much.
const PATIENCE: [usize; 2] = [500, 4_000];

/// Picks for each item the choice that gives the least total time with memory within `limit`. A long search stops within `near`
/// seconds of the optimum, a very long one within ten times that. After `nodes` nodes the best found so far is returned.
pub fn pick(items: &Items, limit: f64, near: f64, nodes: usize) -> Option<Picked> {
    let smallest = items.least(|choice| (choice.memory, choice.time));
    if smallest.len() < items.len() || items.sum(&smallest, |choice| choice.memory) > limit {
        return None;
    }
    let fastest = items.least(|choice| (choice.time, choice.memory));
    let time = items.sum(&fastest, |choice| choice.time);
    if items.sum(&fastest, |choice| choice.memory) <= limit {
        return Some(Picked { time, choices: fastest, lower_bound: time, price: 0.0 });
    }

    // Bisect for the multiplier at which the relaxed picks begin to fit, in units of the average time of a byte.
    let (mut low, mut high) = (0.0, 1.0);
    let dearer = items.sum(&smallest, |choice| choice.time) - time;
    let saved = items.sum(&fastest, |choice| choice.memory) - items.sum(&smallest, |choice| choice.memory);
    let span = dearer.max(1e-300) / saved;
    let memory = items.relaxed_memory();
    for _ in 0..200 {
        if memory(high * span) <= limit {
            break;
        }
        low = high;
        high *= 4.0;
    }
    for _ in 0..16 {
        let middle = (low + high) / 2.0;
        if memory(middle * span) <= limit { high = middle } else { low = middle }
    }
    let price = high * span;
    let mut first = items.relaxed(price);
    if items.sum(&first, |choice| choice.memory) > limit {
        first = smallest;
    }
    items.fill(&mut first, limit);
    let time = items.sum(&first, |choice| choice.time);
    let mut best = Picked { time, choices: first, lower_bound: 0.0, price };

    let mut search = Search::new(items, limit, price);
    (search.near, search.most_nodes) = (near, nodes);
    let base = search.base;
    let root = search.bound_from(0, base.time, base.memory);
    search.best_time = best.time;
    search.go(0, base.time, base.memory);
    if let Some(picks) = search.best_picks.take() {
        for (kind, picks) in search.kinds.iter().zip(&picks) {
            for (item, &pick) in kind.items.iter().zip(picks) {
                best.choices[item.index] = search.numbers[item.at + pick];
            }
        }
        best.time = items.sum(&best.choices, |choice| choice.time);
    }
    let is_done = search.nodes < nodes;
    best.lower_bound = if is_done { root.max(best.time - search.slack()) } else { root }.min(best.time);
    Some(best)
}

/// Items that are decided together.
///
/// With two choices of equal memory, whatever the number of items on the smaller choice, it is those that lose least time. With
/// more choices, only items of equal times as well are put together.
struct Kind {
    /// Memory of each choice beyond the item's least, without dominated choices; fastest first.
    memory: Vec<f64>,
    items: Vec<Item>,
}

/// An item of a kind.
#[derive(Clone, Copy, Debug)]
struct Item {
    index: usize,
    /// Start of its choices in `numbers` and `times`; their number is its kind's.
    at: usize,
}

impl Kind {
    /// Least relaxed time and least memory of all items, beyond their base.
    fn rest(&self, times: &[f64], price: f64) -> (f64, f64) {
        let relaxed = |item: &Item| {
            let values =
                times[item.at..].iter().zip(&self.memory).map(|(time, memory)| time + price * memory);
            values.fold(f64::INFINITY, f64::min)
        };
        let memory = self.memory.last().copied().unwrap_or(0.0);
        (self.items.iter().map(relaxed).sum(), memory * self.items.len() as f64)
    }
}

/// Tells whether numbers are equal but for rounding.
fn is_near(a: &[f64], b: &[f64]) -> bool {
    a.iter().zip(b).all(|(a, b)| (a - b).abs() <= 1e-11 * a.abs().max(b.abs()))
}

/// Returns the greatest common divisor.
fn common(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { common(b, a % b) }
}

struct Search {
    kinds: Vec<Kind>,
    /// For each item, original numbers of the choices that are not dominated, and their times beyond the fastest.
    numbers: Vec<usize>,
    times: Vec<f64>,
    /// Time and memory that all items take at the least; kinds hold what choices add.
    base: Choice,
    limit: f64,
    price: f64,
    /// Accepted gap in seconds.
    near: f64,
    /// By devices left: parameters before the earliest position plus the shares of these devices, the least so far.
    rest: Vec<(f64, f64)>,
    picks: Vec<Vec<usize>>,
    best_picks: Option<Vec<Vec<usize>>>,
    best_time: f64,
    nodes: usize,
    most_nodes: usize,
}

impl Search {
    fn new(items: &Items, limit: f64, price: f64) -> Self {
        let mut kinds: Vec<Kind> = Vec::new();
        let n_choices = items.choices.len();
        let (mut numbers, mut times) = (Vec::with_capacity(n_choices), Vec::with_capacity(n_choices));
        let (mut order, mut memory): (Vec<usize>, Vec<f64>) = (Vec::new(), Vec::new());
        let mut base = Choice { time: 0.0, memory: 0.0 };
        for (index, choices) in items.iter().enumerate() {
            let at = numbers.len();
            let least =
                |field: &dyn Fn(&Choice) -> f64| choices.iter().map(field).fold(f64::INFINITY, f64::min);
            let least = Choice { time: least(&|choice| choice.time), memory: least(&|choice| choice.memory) };
            base.time += least.time;
            base.memory += least.memory;
            order.clear();
            order.extend(0..choices.len());
            order.sort_by(|&a, &b| {
                let (a, b) = (choices[a], choices[b]);
                a.time.total_cmp(&b.time).then(a.memory.total_cmp(&b.memory))
            });
            for &number in &order {
                let last = numbers[at..].last();
                if last.is_none_or(|&last: &usize| choices[number].memory < choices[last].memory) {
                    numbers.push(number);
                }
            }
            memory.clear();
            memory.extend(numbers[at..].iter().map(|&number| choices[number].memory - least.memory));
            times.extend(numbers[at..].iter().map(|&number| choices[number].time - least.time));
            let is_like = |kind: &&mut Kind| {
                kind.memory.len() == memory.len()
                    && is_near(&kind.memory, &memory)
                    && (memory.len() <= 2
                        || is_near(&times[kind.items[0].at..][..memory.len()], &times[at..]))
            };
            let item = Item { index, at };
            match kinds.iter_mut().find(is_like) {
                Some(kind) => kind.items.push(item),
                None => kinds.push(Kind { memory: memory.clone(), items: vec![item] }),
            }
        }
        for kind in kinds.iter_mut().filter(|kind| kind.memory.len() == 2) {
            kind.items.sort_by(|a, b| times[a.at + 1].total_cmp(&times[b.at + 1]));
        }
        // Decide the kinds with the widest range of times first.
        let spread =
            |kind: &Kind| kind.items.iter().map(|item| times[item.at + kind.memory.len() - 1]).sum::<f64>();
        kinds.sort_by(|a, b| spread(b).total_cmp(&spread(a)));
        let mut rest = vec![(0.0, 0.0); kinds.len() + 1];
        for (index, kind) in kinds.iter().enumerate().rev() {
            let (own, next) = (kind.rest(&times, price), rest[index + 1]);
            rest[index] = (own.0 + next.0, own.1 + next.1);
        }
        // All memory is a multiple of `step`: round the limit down to one.
        let bytes = || kinds.iter().flat_map(|kind| kind.memory.iter().copied());
        let step = bytes().fold(0, |step, bytes| common(step, bytes as u64)) as f64;
        let is_whole = step > 0.0 && bytes().all(|bytes| bytes.fract() == 0.0);
        let room = (limit - base.memory).max(0.0);
        let limit = if is_whole { base.memory + (room / step).floor() * step } else { limit };
        let picks = kinds.iter().map(|kind| vec![0; kind.items.len()]).collect();
        let (best_picks, best_time) = (None, f64::INFINITY);
        let (near, nodes, most_nodes) = (0.0, 0, usize::MAX);
        Self {
            kinds,
            numbers,
            times,
            base,
            limit,
            price,
            near,
            rest,
            picks,
            best_picks,
            best_time,
            nodes,
            most_nodes,
        }
    }

    fn bound_from(&self, kind: usize, time: f64, memory: f64) -> f64 {
        time + self.price * (memory - self.limit) + self.rest[kind].0
    }

    /// Prune: tells whether a lower bound of the time is not below the best by more than the accepted gap.
    fn is_hopeless(&self, bound: f64) -> bool {
        bound >= self.best_time * (1.0 - 1e-12) - self.slack()
    }

    /// Returns the accepted gap in seconds: it grows with the search.
    fn slack(&self) -> f64 {
        match self.nodes {
            nodes if nodes < PATIENCE[0] => 0.0,
            nodes if nodes < PATIENCE[1] => self.near,
            _ => 10.0 * self.near,
        }
    }

    fn go(&mut self, kind: usize, time: f64, memory: f64) {
        self.nodes += 1;
        let bound = self.bound_from(kind, time, memory).max(time);
        if self.nodes >= self.most_nodes
            || self.is_hopeless(bound)
            || memory + self.rest[kind].1 > self.limit * (1.0 + 1e-15)
        {
            return;
        }
        if kind == self.kinds.len() {
            if memory <= self.limit {
                self.best_time = time;
                self.best_picks = Some(self.picks.clone());
            }
            return;
        }
        if self.kinds[kind].memory.len() != 2 {
            self.spread(kind, 0, 0, time, memory);
            return;
        }
        let n_items = self.kinds[kind].items.len();
        let [large, small] = [self.kinds[kind].memory[0], self.kinds[kind].memory[1]];
        self.picks[kind].fill(0);
        let mut time = time;
        for n_small in 0..=n_items {
            let memory = memory + small * n_small as f64 + large * (n_items - n_small) as f64;
            self.go(kind + 1, time, memory);
            if n_small < n_items {
                self.picks[kind][n_small] = 1;
                time += self.times[self.kinds[kind].items[n_small].at + 1];
            }
        }
    }

    /// Gives items of a kind choices in rising order, from `item` and `choice` on: equal items need no other order.
    fn spread(&mut self, kind: usize, item: usize, choice: usize, time: f64, memory: f64) {
        self.nodes += 1;
        let n_items = self.kinds[kind].items.len();
        if item == n_items {
            self.go(kind + 1, time, memory);
            return;
        }
        // Lower bounds of the remaining items of the kind: their share of its sums, as all are equal.
        let behind = (n_items - item - 1) as f64 / n_items as f64;
        let (own, next) = (self.rest[kind], self.rest[kind + 1]);
        let (least_time, least_memory) = (behind * (own.0 - next.0), behind * (own.1 - next.1));
        for index in choice..self.kinds[kind].memory.len() {
            let time = time + self.times[self.kinds[kind].items[item].at + index];
            let memory = memory + self.kinds[kind].memory[index];
            let bound = (self.bound_from(kind + 1, time, memory) + least_time).max(time);
            let is_full = memory + least_memory + next.1 > self.limit * (1.0 + 1e-12);
            if self.nodes >= self.most_nodes || is_full || self.is_hopeless(bound) {
                continue;
            }
            self.picks[kind][item] = index;
            self.spread(kind, item + 1, index, time, memory);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choice_of(next: &mut impl FnMut(u64) -> u64) -> impl FnMut(usize) -> Choice {
        |_| Choice { time: next(20) as f64, memory: next(5) as f64 }
    }

    const NODES: usize = 20_000;

    #[test]
    fn equals_trying_everything() {
        let mut seed = 7_u64;
        let mut next = |below: u64| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 33) % below
        };
        for _ in 0..300 {
            let kinds: Vec<Vec<Choice>> =
                (0..3).map(|_| (0..2).map(choice_of(&mut next)).collect()).collect();
            let items: Vec<Vec<Choice>> = (0..7).map(|_| kinds[next(3) as usize].clone()).collect();
            let limit = next(100) as f64;
            let brute = (0..1 << items.len())
                .filter_map(|mask: usize| {
                    let pairs = items.iter().enumerate().map(|(item, choices)| choices[mask >> item & 1]);
                    let (time, memory) =
                        pairs.fold((0.0, 0.0), |(t, m), c: Choice| (t + c.time, m + c.memory));
                    (memory <= limit).then_some(time)
                })
                .min_by(f64::total_cmp);
            let picked = pick(&items.iter().cloned().collect(), limit, 0.0, NODES);
            assert_eq!(picked.as_ref().map(|picked| picked.time), brute);
            assert_eq!(picked.map(|picked| picked.lower_bound), brute);
            // The search ends with a gap and reports it.
            let many: Items = (0..40).map(|_| (0..3).map(choice_of(&mut next)).collect()).collect();
            let (exact, near) = (pick(&many, 3.0 * limit, 0.0, NODES), pick(&many, 3.0 * limit, 2.0, NODES));
            assert_eq!(exact.is_some(), near.is_some());
            if let (Some(exact), Some(near)) = (exact, near) {
                assert!(many.sum(&near.choices, |choice| choice.memory) <= 3.0 * limit);
                assert!(near.lower_bound <= exact.time && exact.lower_bound <= near.time);
                assert!(near.time <= near.lower_bound + 2.0 || exact.lower_bound < exact.time);
            }
        }
    }
}
