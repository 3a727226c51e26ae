//! One choice for each item, least time within a memory limit: exact, by branch and bound.
//!
//! The multiple-choice knapsack problem. Bound: Lagrange's, with one multiplier found by bisection; items alike are decided
//! together by count, which is what makes a model of equal layers easy. Exponential in the worst case, so the search
//! stops after a number of steps and says so.

/// A choice: what it takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Choice {
    pub(crate) time: f64,
    pub(crate) memory: f64,
}

/// The best choices.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Picked {
    /// Time of all items.
    pub(crate) time: f64,
    /// Choice of each item.
    pub(crate) choices: Vec<usize>,
    /// No choices take less time.
    pub(crate) lower_bound: f64,
}

/// Steps after which the best found so far is good enough.
const STEPS: usize = 200_000;

/// Picks for each item the choice that gives the least time in all, memory within `limit`.
pub(crate) fn pick(items: &[Vec<Choice>], limit: f64) -> Option<Picked> {
    let least = |key: &dyn Fn(&Choice) -> (f64, f64)| -> Vec<usize> {
        let best = |choices: &Vec<Choice>| {
            let order = |a: &usize, b: &usize| {
                let (a, b) = (key(&choices[*a]), key(&choices[*b]));
                a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1))
            };
            (0..choices.len()).min_by(order)
        };
        items.iter().filter_map(best).collect()
    };
    let sum = |picked: &[usize], field: &dyn Fn(&Choice) -> f64| -> f64 {
        items.iter().zip(picked).map(|(choices, &choice)| field(&choices[choice])).sum()
    };
    let fastest = least(&|choice| (choice.time, choice.memory));
    let smallest = least(&|choice| (choice.memory, choice.time));
    if fastest.len() < items.len() || sum(&smallest, &|choice| choice.memory) > limit {
        return None;
    }
    let time = sum(&fastest, &|choice| choice.time);
    if sum(&fastest, &|choice| choice.memory) <= limit {
        return Some(Picked { time, choices: fastest, lower_bound: time });
    }

    // The multiplier at which the relaxed picks begin to fit.
    let relaxed = |price: f64| least(&|choice| (choice.time + price * choice.memory, choice.memory));
    let (mut low, mut high) = (0.0, 1.0);
    let span = time.max(1e-300) / limit.max(1e-300);
    for _ in 0..200 {
        if sum(&relaxed(high * span), &|choice| choice.memory) <= limit {
            break;
        }
        low = high;
        high *= 4.0;
    }
    for _ in 0..16 {
        let middle = (low + high) / 2.0;
        let fits = sum(&relaxed(middle * span), &|choice| choice.memory) <= limit;
        if fits { high = middle } else { low = middle }
    }
    let price = high * span;
    let mut first = relaxed(price);
    if sum(&first, &|choice| choice.memory) > limit {
        first = smallest;
    }
    let mut best = Picked { time: sum(&first, &|choice| choice.time), choices: first, lower_bound: 0.0 };

    let mut search = Search::new(items, limit, price);
    let base = search.base;
    let root = search.bound_from(0, base.time, base.memory);
    search.best_time = best.time;
    search.go(0, base.time, base.memory);
    if let Some(picks) = search.best_picks.take() {
        let mut choices = vec![0; items.len()];
        for (kind, picks) in search.kinds.iter().zip(&picks) {
            for (item, &pick) in kind.items.iter().zip(picks) {
                choices[item.index] = item.numbers[pick];
            }
        }
        best = Picked { time: sum(&choices, &|choice| choice.time), choices, lower_bound: 0.0 };
    }
    best.lower_bound = if search.steps < STEPS { best.time } else { root.min(best.time) };
    Some(best)
}

/// Items that are decided together.
///
/// Two choices with the same memory between them: whatever the count on the smaller choice, those that lose
/// least time go first. More choices: only items equal in time too are put together.
struct Kind {
    /// Memory of each choice beyond the item's least, dominated choices left out; fastest first.
    memory: Vec<f64>,
    items: Vec<Item>,
}

struct Item {
    index: usize,
    /// Original numbers of the choices that are left.
    numbers: Vec<usize>,
    /// Time of each choice beyond the fastest.
    times: Vec<f64>,
}

impl Kind {
    fn new(index: usize, choices: &[Choice]) -> (Self, Choice) {
        let least = |field: &dyn Fn(&Choice) -> f64| choices.iter().map(field).fold(f64::INFINITY, f64::min);
        let base = Choice { time: least(&|choice| choice.time), memory: least(&|choice| choice.memory) };
        let mut order: Vec<usize> = (0..choices.len()).collect();
        order.sort_by(|&a, &b| {
            let (a, b) = (choices[a], choices[b]);
            a.time.total_cmp(&b.time).then(a.memory.total_cmp(&b.memory))
        });
        let mut numbers: Vec<usize> = Vec::new();
        for number in order {
            if numbers.last().is_none_or(|&last| choices[number].memory < choices[last].memory) {
                numbers.push(number);
            }
        }
        let memory = numbers.iter().map(|&number| choices[number].memory - base.memory).collect();
        let times = numbers.iter().map(|&number| choices[number].time - base.time).collect();
        (Self { memory, items: vec![Item { index, numbers, times }] }, base)
    }

    /// Tells whether items can be decided together; sums that differ by rounding are the same.
    fn is_like(&self, other: &Self) -> bool {
        let near = |a: &[f64], b: &[f64]| {
            a.iter().zip(b).all(|(a, b)| (a - b).abs() <= 1e-11 * a.abs().max(b.abs()))
        };
        self.memory.len() == other.memory.len()
            && near(&self.memory, &other.memory)
            && (self.memory.len() <= 2 || near(&self.items[0].times, &other.items[0].times))
    }

    /// Least relaxed time and least memory of all items, beyond their base.
    fn rest(&self, price: f64) -> (f64, f64) {
        let relaxed = |item: &Item| {
            let values = item.times.iter().zip(&self.memory).map(|(time, memory)| time + price * memory);
            values.fold(f64::INFINITY, f64::min)
        };
        let memory = self.memory.last().copied().unwrap_or(0.0);
        (self.items.iter().map(relaxed).sum(), memory * self.items.len() as f64)
    }
}

struct Search {
    kinds: Vec<Kind>,
    /// Least time and memory of all items, which the kinds' choices add to.
    base: Choice,
    limit: f64,
    price: f64,
    /// Least relaxed time of the kinds from here on, and least memory, beyond the base.
    rest: Vec<(f64, f64)>,
    picks: Vec<Vec<usize>>,
    best_picks: Option<Vec<Vec<usize>>>,
    best_time: f64,
    steps: usize,
}

impl Search {
    fn new(items: &[Vec<Choice>], limit: f64, price: f64) -> Self {
        let mut kinds: Vec<Kind> = Vec::new();
        let mut base = Choice { time: 0.0, memory: 0.0 };
        for (item, choices) in items.iter().enumerate() {
            let (kind, least) = Kind::new(item, choices);
            base.time += least.time;
            base.memory += least.memory;
            match kinds.iter_mut().find(|known| known.is_like(&kind)) {
                Some(known) => known.items.extend(kind.items),
                None => kinds.push(kind),
            }
        }
        for kind in kinds.iter_mut().filter(|kind| kind.memory.len() == 2) {
            kind.items.sort_by(|a, b| a.times[1].total_cmp(&b.times[1]));
        }
        // Decide first what matters most.
        let spread = |kind: &Kind| {
            kind.items.iter().map(|item| item.times.last().copied().unwrap_or(0.0)).sum::<f64>()
        };
        kinds.sort_by(|a, b| spread(b).total_cmp(&spread(a)));
        let mut rest = vec![(0.0, 0.0); kinds.len() + 1];
        for (index, kind) in kinds.iter().enumerate().rev() {
            let (own, next) = (kind.rest(price), rest[index + 1]);
            rest[index] = (own.0 + next.0, own.1 + next.1);
        }
        let picks = kinds.iter().map(|kind| vec![0; kind.items.len()]).collect();
        Self { kinds, base, limit, price, rest, picks, best_picks: None, best_time: f64::INFINITY, steps: 0 }
    }

    fn bound_from(&self, kind: usize, time: f64, memory: f64) -> f64 {
        time + self.price * (memory - self.limit) + self.rest[kind].0
    }

    fn go(&mut self, kind: usize, time: f64, memory: f64) {
        self.steps += 1;
        let bound = self.bound_from(kind, time, memory).max(time);
        let is_hopeless = bound >= self.best_time * (1.0 - 1e-12);
        if self.steps >= STEPS || is_hopeless || memory + self.rest[kind].1 > self.limit * (1.0 + 1e-15) {
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
                time += self.kinds[kind].items[n_small].times[1];
            }
        }
    }

    /// Gives the items of a kind from `item` on a choice not before `choice`: alike items need no other order.
    fn spread(&mut self, kind: usize, item: usize, choice: usize, time: f64, memory: f64) {
        self.steps += 1;
        if item == self.kinds[kind].items.len() {
            self.go(kind + 1, time, memory);
            return;
        }
        for index in choice..self.kinds[kind].memory.len() {
            let more = (self.kinds[kind].items[item].times[index], self.kinds[kind].memory[index]);
            if self.steps >= STEPS || time + more.0 >= self.best_time {
                continue;
            }
            self.picks[kind][item] = index;
            self.spread(kind, item + 1, index, time + more.0, memory + more.1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equals_trying_everything() {
        let mut seed = 7_u64;
        let mut next = |below: u64| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 33) % below
        };
        for _ in 0..300 {
            let kinds: Vec<Vec<Choice>> = (0..3)
                .map(|_| {
                    let choice = |_| Choice { time: next(20) as f64, memory: next(5) as f64 };
                    (0..2).map(choice).collect()
                })
                .collect();
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
            let picked = pick(&items, limit);
            assert_eq!(picked.as_ref().map(|picked| picked.time), brute);
            assert_eq!(picked.map(|picked| picked.lower_bound), brute);
        }
    }
}
