//! The strategies of each operator of a group of devices, and their costs, by themselves and between two operators.

use std::sync::Arc;

/// The cost of one strategy of one operator.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// Seconds per step of compute and of blocking exchanges.
    pub seconds: f64,
    /// Seconds per step of gradient sync, which may overlap compute.
    pub hidden: f64,
    /// Bytes on a device.
    pub bytes: f64,
}

/// Seconds between the strategies of two operators; infinite if they are incompatible.
#[derive(Clone, Debug, PartialEq)]
pub struct Matrix {
    rows: usize,
    columns: usize,
    cells: Vec<f64>,
}

impl Matrix {
    /// Makes a matrix from its rows.
    ///
    /// # Panics
    /// If the number of cells is not rows times columns.
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

/// Two operators, and the costs between their strategies.
pub(super) type Edge = (usize, usize, Arc<Matrix>);

/// The strategies of a graph of operators.
///
/// Invariant: an edge joins two different nodes, and its matrix has a row per strategy of the first and a column per
/// strategy of the second.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Choices {
    /// Strategies of each operator.
    pub nodes: Vec<Vec<Cost>>,
    /// Pairs of operators with costs between their strategies; equal edges share a matrix.
    pub edges: Vec<(usize, usize, Arc<Matrix>)>,
}

/// The total cost of a choice of strategies.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Totals {
    /// Seconds of compute and of blocking exchanges.
    pub seconds: f64,
    /// Seconds of gradient sync.
    pub hidden: f64,
    /// Bytes on a device.
    pub bytes: f64,
}

impl Totals {
    /// Adds a strategy.
    pub fn add(&mut self, cost: &Cost) {
        self.seconds += cost.seconds;
        self.hidden += cost.hidden;
        self.bytes += cost.bytes;
    }

    /// Removes a strategy.
    pub fn remove(&mut self, cost: &Cost) {
        self.seconds -= cost.seconds;
        self.hidden -= cost.hidden;
        self.bytes -= cost.bytes;
    }

    /// Returns the step time: gradient sync overlaps compute except for the exposed share of it.
    pub fn step(&self, exposed: f64) -> f64 {
        self.seconds.max(exposed * self.seconds + self.hidden)
    }
}

impl Choices {
    /// Returns the total cost of one strategy per operator.
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

    /// Returns the seconds of an operator's edges under one of its strategies, with the others' strategies given.
    pub fn around(&self, edges: &[usize], node: usize, pick: usize, picks: &[usize]) -> f64 {
        let seconds = |&edge: &usize| {
            let (a, b, matrix) = &self.edges[edge];
            if *a == node { matrix.at(pick, picks[*b]) } else { matrix.at(picks[*a], pick) }
        };
        edges.iter().map(seconds).sum()
    }
}
