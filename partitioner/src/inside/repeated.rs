//! Equal layers, folded: the table of `N` of them is the `N`-th power of one's in the (min, +) semiring.
//!
//! A layer is a graph of operators with an entry and an exit that are split equally: the exit of one is the entry of
//! the next. Its table has the least cost for each strategy of both. With `K` strategies of the entry, folding takes
//! `O(K³ log N)`, and `O(K² N)` to recover the strategies of each layer.

use super::{
    Choices, Cost, Matrix,
    eliminate::{Elimination, whole},
};

/// A layer and the number of its repetitions.
pub struct Repeated {
    elimination: Elimination,
    entry: usize,
    exit: usize,
    times: usize,
    one: Matrix,
    all: Matrix,
}

impl Repeated {
    /// Folds layers; the prices of the entry belong to the layer before and are not counted.
    ///
    /// # Panics
    /// If the entry is the exit or has other strategies, or an operator has none.
    pub fn new(
        layer: &Choices,
        entry: usize,
        exit: usize,
        times: usize,
        price: impl Fn(&Cost) -> f64,
    ) -> Self {
        let size = layer.nodes[entry].len();
        assert!(entry != exit && size == layer.nodes[exit].len(), "exits are split as entries are");
        let mut prices: Vec<Vec<f64>> =
            layer.nodes.iter().map(|node| node.iter().map(&price).collect()).collect();
        assert!(prices.iter().all(|node| !node.is_empty()), "operators have a strategy");
        prices[entry].fill(0.0);
        let elimination = whole(prices, layer, &[entry, exit]);
        let between = elimination.between(entry, exit);
        let (first, last) = (elimination.prices(entry), elimination.prices(exit));
        let one = Matrix::from_fn(size, size, |a, b| between[a * size + b] + first[a] + last[b]);
        let all = power(&one, times);
        Self { elimination, entry, exit, times, one, all }
    }

    /// Returns the cost of all layers for each strategy before the first and after the last.
    pub fn matrix(&self) -> &Matrix {
        &self.all
    }

    /// Returns the strategies of each layer between two strategies; of equal costs the lower index.
    pub fn picks(&self, before: usize, behind: usize) -> Vec<Vec<usize>> {
        let size = self.one.rows();
        // The remaining cost from each strategy on, for increasing numbers of layers.
        let mut to_go = vec![vec![f64::INFINITY; size]];
        to_go[0][behind] = 0.0;
        let onward = |from: usize, next: &[f64]| {
            let costs = (0..size).map(|to| self.one.at(from, to) + next[to]);
            costs.enumerate().min_by(|a, b| a.1.total_cmp(&b.1)).expect("an entry has a strategy")
        };
        for layer in 0..self.times.saturating_sub(1) {
            let row = (0..size).map(|from| onward(from, &to_go[layer]).1).collect();
            to_go.push(row);
        }
        let mut from = before;
        let mut layers = Vec::with_capacity(self.times);
        for next in to_go.iter().rev().take(self.times) {
            let mut picks = vec![0; self.elimination.n_operators()];
            let (to, _) = onward(from, next);
            (picks[self.entry], picks[self.exit]) = (from, to);
            self.elimination.choose(&mut picks);
            layers.push(picks);
            from = to;
        }
        layers
    }
}

/// Returns a power in (min, +), by squaring.
fn power(one: &Matrix, times: usize) -> Matrix {
    let mut all = Matrix::from_fn(one.rows(), one.rows(), |a, b| if a == b { 0.0 } else { f64::INFINITY });
    let (mut square, mut left) = (one.clone(), times);
    while left > 0 {
        if left % 2 == 1 {
            all = product(&all, &square);
        }
        left /= 2;
        if left > 0 {
            square = product(&square, &square);
        }
    }
    all
}

/// Returns a product in (min, +).
fn product(one: &Matrix, other: &Matrix) -> Matrix {
    let width = other.columns();
    let mut cells = vec![f64::INFINITY; one.rows() * width];
    for (out, row) in cells.chunks_mut(width).zip(one.cells().chunks(one.columns())) {
        for (base, row) in row.iter().zip(other.cells().chunks(width)).filter(|(base, _)| base.is_finite()) {
            out.iter_mut()
                .zip(row)
                .for_each(|(out, cell)| *out = if base + cell < *out { base + cell } else { *out });
        }
    }
    Matrix::new(one.rows(), width, cells)
}
