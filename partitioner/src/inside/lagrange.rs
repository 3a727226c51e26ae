//! The fastest step when gradient sync overlaps compute and memory is limited, with a certified bound.
//!
//! With `A` seconds of compute and blocking exchanges, `S` of gradient sync, a share `c` of `A` that overlaps nothing
//! and `B` bytes of at most `M`, the step is `T = max(A, c·A + S)`. For any `λ` in 0…1 and `μ ≥ 0`,
//!
//! ```text
//! T  ≥  min over strategies of  (1 − λ)·A + λ·(c·A + S) + μ·(B/M − 1)
//! ```
//!
//! whenever `B ≤ M`, and each such minimum is one elimination. The right side is concave in the two multipliers; the
//! strategies found so far bound it by planes, and the next multipliers are at the maximum of those planes (Kelley's
//! cutting planes). A remaining gap is closed by branch and bound.

use super::{Choices, Cost, Found, Matrix, Totals, eliminate};

/// The most eliminations under one set of strategies.
const ROUNDS: usize = 40;
/// The approximate limit on the total number of eliminations.
const MOST_ROUNDS: usize = 200;
/// An optimality gap below this is accepted.
const ENOUGH: f64 = 1e-4;
/// Bounds within this are considered equal.
const CLOSE: f64 = 1e-9;

/// The share of exposed compute, and the memory limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// Share of compute, 0 to 1, that overlaps no gradient sync.
    pub exposed: f64,
    /// Bytes of a device; infinite if memory is not limited.
    pub bytes: f64,
}

/// Strategies, and their optimality gap.
#[derive(Clone, Debug, PartialEq)]
pub struct Split {
    /// A strategy for each operator.
    pub picks: Vec<usize>,
    /// Their cost.
    pub totals: Totals,
    /// Seconds of a step.
    pub step: f64,
    /// A lower bound on the seconds of a step.
    pub bound: f64,
    /// Number of eliminations.
    pub rounds: usize,
}

impl Split {
    /// Returns the optimality gap, as a share of the step.
    pub fn gap(&self) -> f64 {
        if self.step == self.bound { 0.0 } else { self.step / self.bound - 1.0 }
    }
}

/// Why there are no strategies.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum NoSplit {
    /// No strategies are compatible.
    #[error("no strategies of the operators are compatible")]
    Contradiction,
    /// No strategies fit the memory.
    #[error("every split needs {needed:.0} bytes per device, which has {limit:.0}")]
    Memory {
        /// Bytes of a device under the strategies that need least.
        needed: f64,
        /// Bytes of a device.
        limit: f64,
    },
}

/// Finds the fastest strategies that fit; `starts` are known strategies.
///
/// # Errors
/// If no strategies are compatible, or none fit.
pub fn split(choices: &Choices, limits: Limits, starts: &[Vec<usize>]) -> Result<Split, NoSplit> {
    let mut search = Search::new(choices, limits, None);
    let first = search.ask(0.0, 0.0);
    if first.bound == f64::INFINITY {
        return Err(NoSplit::Contradiction);
    }
    starts.iter().for_each(|start| search.meet(start));
    if search.best.is_none() {
        let smallest = smallest(choices);
        search.meet(&smallest.picks);
        if search.best.is_none() && smallest.value == f64::INFINITY {
            // Tables above the limit: incompatible strategies were found, and no others are known.
            return Err(NoSplit::Contradiction);
        }
        if search.best.is_none() {
            return Err(NoSplit::Memory { needed: smallest.value, limit: limits.bytes });
        }
    }
    search.converge();
    // A gap that multipliers cannot close is closed by halving the strategies of single operators: branch and bound,
    // lowest bound first.
    let (mut best, mut rounds) = (search.best.take(), search.rounds);
    let mut open = vec![(choices.clone(), search.dual, search.points)];
    let step = |best: &Option<(Vec<usize>, Totals)>| {
        best.as_ref().map_or(f64::INFINITY, |(_, totals)| totals.step(limits.exposed))
    };
    let bound = loop {
        let least = (0..open.len()).min_by(|&a, &b| open[a].1.total_cmp(&open[b].1));
        let Some(least) = least else { break step(&best) };
        let bound = open[least].1;
        if step(&best) <= bound * (1.0 + ENOUGH) || rounds >= MOST_ROUNDS {
            break bound;
        }
        let (whole, bound, points) = open.swap_remove(least);
        let Some(halves) = halves(&whole, &points) else { break bound };
        for half in halves {
            let mut search = Search::new(&half, limits, best.take());
            points
                .iter()
                .filter(|point| is_in(&half, &point.picks))
                .for_each(|point| search.meet(&point.picks));
            search.ask(0.0, 0.0);
            search.converge();
            rounds += search.rounds;
            best = search.best.take();
            let (dual, points) = (search.dual.max(bound), search.points);
            if dual < step(&best) {
                open.push((half, dual, points));
            }
        }
    };
    let (picks, totals) = best.expect("strategies that fit were found");
    let step = totals.step(limits.exposed);
    Ok(Split { picks, totals, step, bound: bound.min(step), rounds })
}

/// Halves the strategies of the operator in which the last two solutions differ most: by their sync, or else by their
/// bytes.
fn halves(choices: &Choices, points: &[Point]) -> Option<[Choices; 2]> {
    let [.., one, other] = points else { return None };
    let sum = |of: fn(&Cost) -> f64| {
        let nodes = choices.nodes.iter().zip(&one.picks);
        nodes.map(|(node, &pick)| of(&node[pick])).sum::<f64>().max(f64::MIN_POSITIVE)
    };
    let attributes: [fn(&Cost) -> f64; 3] = [|cost| cost.hidden, |cost| cost.bytes, |cost| cost.seconds];
    let apart = |node: usize| {
        let [a, b] = [one.picks[node], other.picks[node]].map(|pick| choices.nodes[node][pick]);
        attributes
            .into_iter()
            .map(move |of| (node, of, (of(&a) - of(&b)).abs() / sum(of), (of(&a) + of(&b)) / 2.0))
    };
    let most = (0..choices.nodes.len()).flat_map(apart).max_by(|a, b| a.2.total_cmp(&b.2))?;
    let (node, of, difference, middle) = most;
    let half = |is_low: bool| {
        let mut half = choices.clone();
        let others = half.nodes[node].iter_mut().filter(|cost| (of(cost) < middle) != is_low);
        others.for_each(|cost| cost.seconds = f64::INFINITY);
        half
    };
    (difference > 0.0).then(|| [half(true), half(false)])
}

fn is_in(choices: &Choices, picks: &[usize]) -> bool {
    choices.nodes.iter().zip(picks).all(|(node, &pick)| node[pick].seconds < f64::INFINITY)
}

/// Returns the strategies that need the least memory, with their bytes as value.
fn smallest(choices: &Choices) -> Found {
    let legal = |matrix: &Matrix| {
        let cell = |row, column| if matrix.at(row, column) == f64::INFINITY { f64::INFINITY } else { 0.0 };
        Matrix::from_fn(matrix.rows(), matrix.columns(), cell)
    };
    let edges = choices.edges.iter().map(|(a, b, matrix)| (*a, *b, legal(matrix).into())).collect();
    eliminate(&Choices { nodes: choices.nodes.clone(), edges }, |cost| cost.bytes)
}

struct Search<'a> {
    choices: &'a Choices,
    limits: Limits,
    points: Vec<Point>,
    best: Option<(Vec<usize>, Totals)>,
    /// The best lower bound so far.
    dual: f64,
    rounds: usize,
}

/// A solution, and the plane over the multipliers by which it bounds the lower bound from above.
struct Point {
    picks: Vec<usize>,
    height: f64,
    slopes: [f64; 2],
}

impl<'a> Search<'a> {
    fn new(choices: &'a Choices, limits: Limits, best: Option<(Vec<usize>, Totals)>) -> Self {
        Self { choices, limits, points: Vec::new(), best, dual: 0.0, rounds: 0 }
    }

    /// Raises the lower bound as far as multipliers can.
    fn converge(&mut self) {
        while self.rounds < ROUNDS && !self.points.is_empty() {
            let (lambda, mu, highest) = self.highest();
            if self.is_closed(highest) || self.is_closed(self.step()) {
                break;
            }
            self.ask(lambda, mu);
        }
    }

    fn step(&self) -> f64 {
        self.best.as_ref().map_or(f64::INFINITY, |(_, totals)| totals.step(self.limits.exposed))
    }

    fn is_closed(&self, seconds: f64) -> bool {
        seconds <= self.dual * (1.0 + CLOSE)
    }

    /// Returns the memory term at these bytes and a multiplier of one.
    fn excess(&self, bytes: f64) -> f64 {
        if self.limits.bytes.is_finite() { bytes / self.limits.bytes - 1.0 } else { 0.0 }
    }

    /// Runs an elimination under two multipliers.
    fn ask(&mut self, lambda: f64, mu: f64) -> Found {
        // Edges keep a weight of one: everything else is divided by the weight of edges.
        let weight = 1.0 - lambda + lambda * self.limits.exposed;
        let per_byte = if self.limits.bytes.is_finite() { mu / self.limits.bytes } else { 0.0 };
        let found = eliminate(self.choices, |cost| {
            cost.seconds + (lambda * cost.hidden + per_byte * cost.bytes) / weight
        });
        self.rounds += 1;
        self.dual = self.dual.max(weight * found.bound - mu);
        if found.value < f64::INFINITY {
            self.meet(&found.picks);
        }
        found
    }

    /// Records strategies, and those that single changes lead to.
    fn meet(&mut self, picks: &[usize]) {
        let totals = self.choices.totals(picks);
        if !totals.seconds.is_finite() {
            return;
        }
        let slope = (self.limits.exposed - 1.0) * totals.seconds + totals.hidden;
        let slopes = [slope, self.excess(totals.bytes)];
        self.points.push(Point { picks: picks.to_vec(), height: totals.seconds, slopes });
        if totals.bytes <= self.limits.bytes {
            let (picks, totals) = descend(self.choices, self.limits, picks.to_vec());
            if totals.step(self.limits.exposed) < self.step() {
                self.best = Some((picks, totals));
            }
        }
    }

    /// Returns the multipliers at the maximum of the planes, and the maximum.
    fn highest(&self) -> (f64, f64, f64) {
        // With a multiplier of one, edges would have no weight if all sync can overlap.
        let most = if self.limits.exposed > 0.0 { 1.0 } else { 1.0 - 1e-9 };
        let scale = 1e3 * self.points.iter().map(|point| point.height).fold(0.0, f64::max);
        let costly = if self.limits.bytes.is_finite() { scale } else { 0.0 };
        // Rows of `x·λ + y·μ + z·t ≤ right`.
        let mut rows = vec![
            [-1.0, 0.0, 0.0, 0.0],
            [1.0, 0.0, 0.0, most],
            [0.0, -1.0, 0.0, 0.0],
            [0.0, 1.0, 0.0, costly],
        ];
        rows.extend(self.points.iter().map(|point| [-point.slopes[0], -point.slopes[1], 1.0, point.height]));
        let mut highest = (0.0, 0.0, f64::NEG_INFINITY);
        for (i, first) in rows.iter().enumerate() {
            for (j, second) in rows[..i].iter().enumerate() {
                for third in &rows[..j] {
                    let Some([lambda, mu, height]) = meeting([first, second, third]) else { continue };
                    let is_inside = rows.iter().all(|[x, y, z, right]| {
                        let scale = (x * lambda).abs() + (y * mu).abs() + (z * height).abs() + right.abs();
                        x * lambda + y * mu + z * height <= right + 1e-9 * scale
                    });
                    if is_inside && height > highest.2 {
                        highest = (lambda.clamp(0.0, most), mu.clamp(0.0, costly), height);
                    }
                }
            }
        }
        highest
    }
}

/// Returns the intersection of three planes, by Cramer's rule.
fn meeting(planes: [&[f64; 4]; 3]) -> Option<[f64; 3]> {
    let determinant = |columns: [usize; 3]| {
        let [a, b, c] = planes.map(|plane| columns.map(|column| plane[column]));
        a[0] * (b[1] * c[2] - b[2] * c[1]) - a[1] * (b[0] * c[2] - b[2] * c[0])
            + a[2] * (b[0] * c[1] - b[1] * c[0])
    };
    let whole = determinant([0, 1, 2]);
    let point = [determinant([3, 1, 2]), determinant([0, 3, 2]), determinant([0, 1, 3])];
    (whole != 0.0).then(|| point.map(|part| part / whole)).filter(|point| point.iter().all(|x| x.is_finite()))
}

/// Changes one operator after the other as long as the step becomes shorter and still fits.
fn descend(choices: &Choices, limits: Limits, mut picks: Vec<usize>) -> (Vec<usize>, Totals) {
    let touching = choices.touching();
    let mut totals = choices.totals(&picks);
    loop {
        let before = totals.step(limits.exposed);
        for (node, edges) in touching.iter().enumerate() {
            let mut without = totals;
            without.remove(&choices.nodes[node][picks[node]]);
            without.seconds -= choices.around(edges, node, picks[node], &picks);
            for (pick, cost) in choices.nodes[node].iter().enumerate() {
                let mut with = without;
                with.add(cost);
                with.seconds += choices.around(edges, node, pick, &picks);
                let gains = with.step(limits.exposed) < totals.step(limits.exposed) * (1.0 - 1e-12);
                if gains && with.bytes <= limits.bytes {
                    (picks[node], totals) = (pick, with);
                }
            }
        }
        // Recomputed: sums updated by many changes accumulate rounding errors.
        totals = choices.totals(&picks);
        if totals.step(limits.exposed) >= before * (1.0 - 1e-12) {
            return (picks, totals);
        }
    }
}
