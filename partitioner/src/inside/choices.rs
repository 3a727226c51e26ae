//! The strategies of each operator of a group of devices, and what they cost, alone and between two operators.

use std::sync::Arc;

/// What one strategy of one operator costs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// Seconds of compute and of exchanges that compute waits for, in a step.
    pub seconds: f64,
    /// Seconds of gradient sync in a step, which may run beside compute.
    pub hidden: f64,
    /// Bytes that a device holds for it.
    pub bytes: f64,
}

/// Seconds between the strategies of two operators; infinite where they do not go together.
#[derive(Clone, Debug, PartialEq)]
pub struct Matrix {
    rows: usize,
    columns: usize,
    cells: Vec<f64>,
}

impl Matrix {
    /// Makes a matrix of rows one after the other.
    ///
    /// # Panics
    /// When there are more or fewer cells than rows and columns say.
    pub fn new(rows: usize, columns: usize, cells: Vec<f64>) -> Self {
        assert_eq!(cells.len(), rows * columns, "{rows} rows of {columns}");
        Self { rows, columns, cells }
    }

    /// Makes a matrix cell by cell.
    pub fn from_fn(rows: usize, columns: usize, mut cell: impl FnMut(usize, usize) -> f64) -> Self {
        let cells = (0..rows * columns).map(|at| cell(at / columns, at % columns)).collect();
        Self { rows, columns, cells }
    }

    /// Returns the number of rows: strategies of the first operator.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Returns the number of columns: strategies of the second operator.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Returns the seconds from one strategy to another.
    pub fn at(&self, row: usize, column: usize) -> f64 {
        self.cells[row * self.columns + column]
    }

    /// Returns all cells, row by row.
    pub fn cells(&self) -> &[f64] {
        &self.cells
    }
}

/// The strategies of a graph of operators.
///
/// Invariant: an edge joins two different nodes, and its matrix has as many rows and columns as they have strategies.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Choices {
    /// Strategies of each operator.
    pub nodes: Vec<Vec<Cost>>,
    /// Pairs of operators whose strategies cost something together; edges alike share a matrix.
    pub edges: Vec<(usize, usize, Arc<Matrix>)>,
}

/// What a choice of strategies costs in all.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Totals {
    /// Seconds of compute and of exchanges that it waits for.
    pub seconds: f64,
    /// Seconds of gradient sync.
    pub hidden: f64,
    /// Bytes that a device holds.
    pub bytes: f64,
}

impl Totals {
    /// Adds a strategy.
    pub fn add(&mut self, cost: &Cost) {
        self.seconds += cost.seconds;
        self.hidden += cost.hidden;
        self.bytes += cost.bytes;
    }

    /// Takes a strategy away.
    pub fn remove(&mut self, cost: &Cost) {
        self.seconds -= cost.seconds;
        self.hidden -= cost.hidden;
        self.bytes -= cost.bytes;
    }

    /// Returns the step: gradient sync hides behind compute but for a share of it.
    pub fn step(&self, exposed: f64) -> f64 {
        self.seconds.max(exposed * self.seconds + self.hidden)
    }
}

impl Choices {
    /// Returns what one strategy for each operator costs.
    pub fn totals(&self, picks: &[usize]) -> Totals {
        let mut totals = Totals::default();
        self.nodes.iter().zip(picks).for_each(|(node, &pick)| totals.add(&node[pick]));
        totals.seconds +=
            self.edges.iter().map(|(a, b, matrix)| matrix.at(picks[*a], picks[*b])).sum::<f64>();
        totals
    }

    /// Returns, for each operator, the edges that touch it.
    pub fn touching(&self) -> Vec<Vec<usize>> {
        let mut touching = vec![Vec::new(); self.nodes.len()];
        for (index, (a, b, _)) in self.edges.iter().enumerate() {
            touching[*a].push(index);
            touching[*b].push(index);
        }
        touching
    }

    /// Returns the seconds of an operator's edges under one of its strategies, the others' being given.
    pub fn around(&self, edges: &[usize], node: usize, pick: usize, picks: &[usize]) -> f64 {
        let seconds = |&edge: &usize| {
            let (a, b, matrix) = &self.edges[edge];
            if *a == node { matrix.at(pick, picks[*b]) } else { matrix.at(picks[*a], pick) }
        };
        edges.iter().map(seconds).sum()
    }
}
