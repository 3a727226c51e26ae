//! Strategies that no cheapest choice has, left out before operators are eliminated.
//!
//! A strategy is a dead end if another one of its operator is cheaper whatever the neighbours choose: by its price and, edge by
//! edge, by the least that it gains over the neighbour's strategies (Goldstein 1994; "dead-end elimination"). Rounds go on while
//! they find some: what one operator loses, its neighbours need not provide for. What remains has all cheapest choices, and tables
//! over operators that many others use become small. O(edges · strategies³) a round.

use std::{collections::HashMap, sync::Arc};

use super::{Choices, Matrix, choices::Edge};

/// Rounds over all operators.
const ROUNDS: usize = 4;

/// Share of a price by which another strategy must be cheaper: sums are rounded.
const SURELY: f64 = 1e-9;

/// Matrices with some of their rows and columns, by the whole ones.
type Smaller<'a> = HashMap<(*const Matrix, &'a [usize], &'a [usize]), Arc<Matrix>>;

/// A graph with the strategies that may be chosen.
pub(super) struct Alive {
    /// The numbers of these strategies for each operator, ascending.
    pub(super) strategies: Vec<Vec<usize>>,
    /// Edges whose matrices have these strategies only; equal ones share a matrix.
    pub(super) edges: Vec<Edge>,
}

impl Alive {
    /// Leaves out dead ends; each operator has a strategy.
    pub(super) fn of(prices: &[Vec<f64>], choices: &Choices) -> Self {
        let mut strategies: Vec<Vec<usize>> =
            prices.iter().map(|prices| (0..prices.len()).collect()).collect();
        let touching = choices.touching();
        let mut changed = vec![true; prices.len()];
        for _ in 0..ROUNDS {
            let mut now = vec![false; prices.len()];
            for node in 0..prices.len() {
                let edges = || touching[node].iter().map(|&edge| &choices.edges[edge]);
                let is_open = changed[node] || edges().any(|(a, b, _)| changed[*a] || changed[*b]);
                if strategies[node].len() < 2 || !is_open {
                    continue;
                }
                let alive = without_dead_ends(node, &prices[node], edges(), &strategies);
                if alive.len() < strategies[node].len() {
                    now[node] = true;
                    strategies[node] = alive;
                }
            }
            if !now.contains(&true) {
                break;
            }
            changed = now;
        }
        let edges = smaller(choices, &strategies);
        Self { strategies, edges }
    }

    /// Returns what belongs to the strategies that are left.
    pub(super) fn kept(&self, prices: &[Vec<f64>]) -> Vec<Vec<f64>> {
        let own =
            |(prices, alive): (&Vec<f64>, &Vec<usize>)| alive.iter().map(|&pick| prices[pick]).collect();
        prices.iter().zip(&self.strategies).map(own).collect()
    }

    /// From positions among the strategies that are left to strategies.
    pub(super) fn named(&self, picks: &[usize]) -> Vec<usize> {
        self.strategies.iter().zip(picks).map(|(alive, &pick)| alive[pick]).collect()
    }
}

/// Returns the strategies of an operator that are cheapest for some choice of its neighbours, as far as edges by themselves tell.
fn without_dead_ends<'a>(
    node: usize,
    prices: &[f64],
    edges: impl Iterator<Item = &'a Edge>,
    strategies: &[Vec<usize>],
) -> Vec<usize> {
    let edges: Vec<_> = edges.collect();
    let mut alive = strategies[node].clone();
    for &own in &strategies[node] {
        let is_dead = |&other: &usize| {
            let enough = SURELY * (prices[own].abs() + prices[other].abs());
            other != own && gain(node, (own, other), (prices, &edges), strategies) > enough
        };
        if alive.iter().any(is_dead) {
            alive.retain(|&pick| pick != own);
        }
    }
    alive
}

/// Returns the least by which one strategy is dearer than another.
fn gain(
    node: usize,
    (own, other): (usize, usize),
    (prices, edges): (&[f64], &[&Edge]),
    strategies: &[Vec<usize>],
) -> f64 {
    let minus = |a: f64, b: f64| if a == f64::INFINITY && b == f64::INFINITY { f64::INFINITY } else { a - b };
    let mut gained =
        if prices[other] == f64::INFINITY { return f64::NEG_INFINITY } else { prices[own] - prices[other] };
    for (a, b, matrix) in edges {
        let (neighbour, at): (usize, &dyn Fn(usize, usize) -> f64) = if *a == node {
            (*b, &|pick, its| matrix.at(pick, its))
        } else {
            (*a, &|pick, its| matrix.at(its, pick))
        };
        let gains = strategies[neighbour].iter().map(|&its| minus(at(own, its), at(other, its)));
        gained += gains.fold(f64::INFINITY, f64::min);
        if gained == f64::NEG_INFINITY {
            break;
        }
    }
    gained
}

/// Returns the edges without the strategies that are left out.
fn smaller(choices: &Choices, strategies: &[Vec<usize>]) -> Vec<Edge> {
    let mut made: Smaller = HashMap::new();
    let edge = |(a, b, matrix): &Edge| {
        let (rows, columns) = (strategies[*a].as_slice(), strategies[*b].as_slice());
        if rows.len() == matrix.rows() && columns.len() == matrix.columns() {
            return (*a, *b, Arc::clone(matrix));
        }
        let make = || {
            let cell = |row: usize, column: usize| matrix.at(rows[row], columns[column]);
            Arc::new(Matrix::from_fn(rows.len(), columns.len(), cell))
        };
        (*a, *b, Arc::clone(made.entry((Arc::as_ptr(matrix), rows, columns)).or_insert_with(make)))
    };
    choices.edges.iter().map(edge).collect()
}
