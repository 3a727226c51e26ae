//! The cheapest strategies of a graph of operators, by eliminating one operator after the other.
//!
//! Eliminating an operator replaces the tables that contain it by one over its neighbours, with its least cost for each
//! of their strategies (bucket elimination: Dechter 1999). OptCNN's node and edge eliminations (Jia et al. 2018) are
//! the cases of one and two neighbours. `order` tells which operator goes first. Time and memory are those
//! of the largest table: strategies, without dead ends (`dead_ends`), to the power of the graph's width (chain 1,
//! Inception 2, a layer of a transformer 3).
//!
//! A table above a limit is not made: the tables that contain the operator are then eliminated in groups
//! (mini-buckets), each as if it could choose independently. That gives a lower bound, and the strategies found are
//! costed exactly. After as many costs as take some seconds, as where layers take all before them, the limit is lower.

use std::sync::Arc;

use super::{Choices, Cost, Matrix, choices::Edge, dead_ends::Alive, order::order};

/// The most cells of a table: 128 MiB.
const MAX_CELLS: usize = 1 << 24;

/// The same after this many costs, of which a processor compares some hundred million a second.
const FEW_CELLS: usize = 1 << 16;
/// See `FEW_CELLS`.
const MANY_COSTS: usize = 1 << 29;

/// The strategies found, and their optimality.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// A strategy for each operator.
    pub picks: Vec<usize>,
    /// Their cost; infinite if no compatible ones were found.
    pub value: f64,
    /// A lower bound on the cost of any strategies; equal to the cost if no table exceeded the limit.
    pub bound: f64,
}

/// Finds the strategies with the least sum of prices and edges.
pub fn eliminate(choices: &Choices, price: impl Fn(&Cost) -> f64) -> Found {
    eliminate_within(choices, price, MAX_CELLS)
}

/// Finds strategies with tables of at most `max_cells` cells.
pub(super) fn eliminate_within(choices: &Choices, price: impl Fn(&Cost) -> f64, max_cells: usize) -> Found {
    let prices: Vec<Vec<f64>> = choices.nodes.iter().map(|node| node.iter().map(&price).collect()).collect();
    if prices.iter().any(Vec::is_empty) {
        return Found { picks: vec![0; prices.len()], value: f64::INFINITY, bound: f64::INFINITY };
    }
    let alive = Alive::of(&prices, choices);
    let elimination = Elimination::of(alive.kept(&prices), &alive.edges, &[], max_cells);
    let mut picks = vec![0; prices.len()];
    elimination.choose(&mut picks);
    let picks = alive.named(&picks);
    let alone: f64 = prices.iter().zip(&picks).map(|(node, &pick)| node[pick]).sum();
    let between = choices.edges.iter().map(|(a, b, matrix)| matrix.at(picks[*a], picks[*b])).sum::<f64>();
    let value = alone + between;
    Found { picks, value, bound: elimination.constant.min(value) }
}

/// Eliminates all operators except some, without a limit on tables.
pub(super) fn whole(prices: Vec<Vec<f64>>, choices: &Choices, keep: &[usize]) -> Elimination {
    Elimination::of(prices, &choices.edges, keep, usize::MAX)
}

/// A table of costs over some operators, the last of which is the innermost dimension.
#[derive(Clone)]
struct Table {
    scope: Vec<usize>,
    cells: Cells,
}

/// Cells of an edge, shared with it, or of a table made by elimination.
#[derive(Clone)]
enum Cells {
    Edge(Arc<Matrix>),
    Own(Arc<Vec<f64>>),
}

impl Table {
    fn cells(&self) -> &[f64] {
        match &self.cells {
            Cells::Edge(matrix) => matrix.cells(),
            Cells::Own(cells) => cells,
        }
    }

    /// Returns the strides of each operator of the scope.
    fn strides(&self, sizes: &[usize]) -> Vec<usize> {
        let mut strides = vec![1; self.scope.len()];
        for axis in (1..self.scope.len()).rev() {
            strides[axis - 1] = strides[axis] * sizes[self.scope[axis]];
        }
        strides
    }

    /// Returns the same table with another operator last.
    fn with_last(self, last: usize, sizes: &[usize]) -> Self {
        if self.scope.last() == Some(&last) {
            return self;
        }
        let mut scope: Vec<usize> = self.scope.iter().copied().filter(|&node| node != last).collect();
        scope.push(last);
        let old = self.strides(sizes);
        let steps: Vec<usize> = scope
            .iter()
            .map(|node| old[self.scope.iter().position(|other| other == node).expect("the same operators")])
            .collect();
        let mut cells = Vec::with_capacity(self.cells().len());
        let mut walk = Walk::new(&scope, sizes, vec![steps]);
        loop {
            cells.push(self.cells()[walk.starts[0]]);
            if !walk.advance() {
                break;
            }
        }
        Self { scope, cells: Cells::Own(Arc::new(cells)) }
    }
}

/// How an eliminated operator is chosen once its neighbours are.
enum Chosen {
    /// By its cheapest strategy for each choice of theirs: a byte, instead of the cells that it was found from.
    Known { scope: Vec<usize>, picks: Vec<u8> },
    /// By the tables that contained it.
    Among(Vec<Table>),
}

/// A graph with some operators eliminated.
pub(super) struct Elimination {
    sizes: Vec<usize>,
    /// Prices of each operator, including those of eliminated neighbours; for an eliminated operator as of its
    /// elimination.
    prices: Vec<Vec<f64>>,
    /// Eliminated operators in order, and how each is chosen.
    eliminated: Vec<(usize, Chosen)>,
    /// Tables over operators that are kept.
    kept: Vec<Table>,
    /// Least cost of the components without a kept operator.
    constant: f64,
}

impl Elimination {
    /// Eliminates every operator except those to keep; each has at least one strategy.
    pub(super) fn of(prices: Vec<Vec<f64>>, edges: &[Edge], keep: &[usize], max_cells: usize) -> Self {
        let sizes: Vec<usize> = prices.iter().map(Vec::len).collect();
        let mut this = Self { sizes, prices, eliminated: Vec::new(), kept: Vec::new(), constant: 0.0 };
        let mut tables: Vec<Option<Table>> = Vec::new();
        let mut naming = vec![Vec::new(); this.sizes.len()];
        let add = |tables: &mut Vec<Option<Table>>, naming: &mut Vec<Vec<usize>>, table: Table| {
            table.scope.iter().for_each(|&node| naming[node].push(tables.len()));
            tables.push(Some(table));
        };
        for (a, b, matrix) in edges {
            add(&mut tables, &mut naming, Table { scope: vec![*a, *b], cells: Cells::Edge(matrix.clone()) });
        }
        let mut costs = 0_usize;
        for node in order(&this.sizes, edges, keep) {
            let mut named: Vec<Table> =
                naming[node].drain(..).filter_map(|index| tables[index].take()).collect();
            if named.is_empty() {
                this.constant += least(&this.prices[node]);
            }
            let is_late = costs > MANY_COSTS && max_cells < usize::MAX;
            let groups =
                this.groups(node, &mut named, if is_late { max_cells.min(FEW_CELLS) } else { max_cells });
            let is_one = groups.len() == 1 && this.sizes[node] <= 1 + usize::from(u8::MAX);
            let mut known = None;
            for (number, group) in groups.into_iter().enumerate() {
                let prices = if number > 0 { vec![0.0; this.sizes[node]] } else { this.prices[node].clone() };
                let (table, picks) = this.join(node, &prices, group, is_one);
                costs = costs.saturating_add(table.cells().len().saturating_mul(prices.len()));
                known = picks.map(|picks| Chosen::Known { scope: table.scope.clone(), picks });
                match table.scope.as_slice() {
                    [only] => {
                        let prices = &mut this.prices[*only];
                        prices.iter_mut().zip(table.cells()).for_each(|(price, cell)| *price += cell);
                    }
                    _ => add(&mut tables, &mut naming, table),
                }
            }
            this.eliminated.push((node, known.unwrap_or(Chosen::Among(named))));
        }
        this.kept = tables.into_iter().flatten().collect();
        this
    }

    /// Divides the tables that contain an operator into groups whose joint tables are within the limit: one group if
    /// possible.
    fn groups<'a>(&self, node: usize, named: &'a mut [Table], max_cells: usize) -> Vec<&'a [Table]> {
        // Large tables first: small ones fit in with them.
        named.sort_by_key(|table| std::cmp::Reverse(table.scope.len()));
        let named = &*named;
        let (mut groups, mut first) = (Vec::new(), 0);
        for end in 1..=named.len() {
            let scope = around(node, named[first..end].iter());
            let cells = scope.iter().fold(1_usize, |cells, &other| cells.saturating_mul(self.sizes[other]));
            if cells > max_cells && end - first > 1 {
                groups.push(&named[first..end - 1]);
                first = end - 1;
            }
        }
        if first < named.len() {
            groups.push(&named[first..]);
        }
        groups
    }

    /// Returns the least cost of an operator and these tables for each choice of its neighbours, and if asked its
    /// strategy there.
    fn join(
        &self,
        node: usize,
        prices: &[f64],
        tables: &[Table],
        keeps_picks: bool,
    ) -> (Table, Option<Vec<u8>>) {
        let sizes = &self.sizes;
        let mut scope = around(node, tables.iter());
        // The longest axis is the innermost loop.
        let last = (0..scope.len()).max_by_key(|&at| sizes[scope[at]]).map(|at| scope.remove(at));
        let last = last.expect("a table names two operators");
        let (rows, others): (Vec<&Table>, Vec<&Table>) =
            tables.iter().partition(|table| table.scope.contains(&last));
        let rows: Vec<Table> = rows.into_iter().map(|table| table.clone().with_last(last, sizes)).collect();
        // Strides of a table for each operator of the outer loops, and for the eliminated one.
        let steps = |table: &Table| {
            let strides = table.strides(sizes);
            let step = |node: usize| {
                table.scope.iter().position(|&other| other == node).map_or(0, |axis| strides[axis])
            };
            (scope.iter().map(|&node| step(node)).collect::<Vec<_>>(), step(node))
        };
        let tables = rows.iter().chain(others.iter().copied());
        let (outer_steps, own_steps): (Vec<Vec<usize>>, Vec<usize>) = tables.map(steps).unzip();
        let mut walk = Walk::new(&scope, sizes, outer_steps);
        let width = sizes[last];
        let outer: usize = scope.iter().map(|&node| sizes[node]).product();
        let mut cells = vec![f64::INFINITY; outer * width];
        let mut picks = vec![0; if keeps_picks { outer * width } else { 0 }];
        let mut sum = vec![0.0; width];
        let mut rows_of_picks = picks.chunks_exact_mut(width);
        // As wide as the costs, so that both are compared in one go.
        let mut picked = vec![0_u64; width];
        for out in cells.chunks_exact_mut(width) {
            picked.fill(0);
            for (pick, price) in prices.iter().enumerate() {
                let place = |at: usize| walk.starts[at] + pick * own_steps[at];
                let base = others
                    .iter()
                    .enumerate()
                    .fold(*price, |base, (at, table)| base + table.cells()[place(rows.len() + at)]);
                if base == f64::INFINITY {
                    continue;
                }
                let mut rows = rows.iter().enumerate().map(|(at, table)| {
                    let start = place(at);
                    &table.cells()[start..start + width]
                });
                let first = rows.next().expect("a table names the longest axis");
                let row = if rows.len() == 0 {
                    first
                } else {
                    sum.copy_from_slice(first);
                    for other in rows {
                        sum.iter_mut().zip(other).for_each(|(sum, cell)| *sum += cell);
                    }
                    &sum
                };
                for ((out, picked), cell) in out.iter_mut().zip(&mut picked).zip(row) {
                    let cell = base + cell;
                    let is_less = cell < *out;
                    *out = if is_less { cell } else { *out };
                    *picked = if is_less { pick as u64 } else { *picked };
                }
            }
            #[expect(clippy::cast_possible_truncation, reason = "they are kept of at most 256 strategies")]
            for (kept, pick) in rows_of_picks.next().unwrap_or_default().iter_mut().zip(&picked) {
                *kept = *pick as u8;
            }
            walk.advance();
        }
        scope.push(last);
        (Table { scope, cells: Cells::Own(Arc::new(cells)) }, keeps_picks.then_some(picks))
    }

    /// Returns the least cost for each choice of two kept operators, without their own prices.
    pub(super) fn between(&self, from: usize, to: usize) -> Vec<f64> {
        let (rows, columns) = (self.sizes[from], self.sizes[to]);
        let mut cells = vec![self.constant; rows * columns];
        for table in &self.kept {
            let table = table.clone().with_last(to, &self.sizes);
            cells.iter_mut().zip(table.cells()).for_each(|(sum, cell)| *sum += cell);
        }
        cells
    }

    /// Returns the number of operators.
    pub(super) fn n_operators(&self) -> usize {
        self.sizes.len()
    }

    /// Returns the prices of a kept operator, including those of eliminated neighbours.
    pub(super) fn prices(&self, node: usize) -> &[f64] {
        &self.prices[node]
    }

    /// Chooses a strategy for each eliminated operator, last first; of equal costs the lower index.
    pub(super) fn choose(&self, picks: &mut [usize]) {
        for (node, chosen) in self.eliminated.iter().rev() {
            let tables = match chosen {
                Chosen::Known { scope, picks: known } => {
                    let place =
                        scope.iter().fold(0, |place, &other| place * self.sizes[other] + picks[other]);
                    picks[*node] = known[place].into();
                    continue;
                }
                Chosen::Among(tables) => tables,
            };
            let mut prices = self.prices[*node].clone();
            for table in tables {
                let strides = table.strides(&self.sizes);
                let own = table.scope.iter().position(|other| other == node).expect("the table names it");
                let others = table.scope.iter().zip(&strides).filter(|(other, _)| *other != node);
                let start: usize = others.map(|(&other, stride)| picks[other] * stride).sum();
                for (pick, price) in prices.iter_mut().enumerate() {
                    *price += table.cells()[start + pick * strides[own]];
                }
            }
            let best = (0..prices.len()).min_by(|&a, &b| prices[a].total_cmp(&prices[b]));
            picks[*node] = best.expect("an operator has a strategy");
        }
    }
}

/// Returns the other operators that tables contain, in order.
fn around<'a>(node: usize, tables: impl Iterator<Item = &'a Table>) -> Vec<usize> {
    let mut scope: Vec<usize> =
        tables.flat_map(|table| table.scope.iter().copied()).filter(|&other| other != node).collect();
    scope.sort_unstable();
    scope.dedup();
    scope
}

fn least(prices: &[f64]) -> f64 {
    prices.iter().copied().fold(f64::INFINITY, f64::min)
}

/// All choices of some operators, one after the other, and where each table's cells of a choice are.
struct Walk {
    sizes: Vec<usize>,
    at: Vec<usize>,
    /// Of each table, the stride of each operator.
    steps: Vec<Vec<usize>>,
    starts: Vec<usize>,
}

impl Walk {
    fn new(scope: &[usize], sizes: &[usize], steps: Vec<Vec<usize>>) -> Self {
        Self {
            sizes: scope.iter().map(|node| sizes[*node]).collect(),
            at: vec![0; scope.len()],
            starts: vec![0; steps.len()],
            steps,
        }
    }

    /// Advances to the next choice; returns whether there was one.
    fn advance(&mut self) -> bool {
        for axis in (0..self.at.len()).rev() {
            let is_last = self.at[axis] + 1 == self.sizes[axis];
            for (start, steps) in self.starts.iter_mut().zip(&self.steps) {
                if is_last {
                    *start -= steps[axis] * self.at[axis];
                } else {
                    *start += steps[axis];
                }
            }
            if !is_last {
                self.at[axis] += 1;
                return true;
            }
            self.at[axis] = 0;
        }
        false
    }
}
