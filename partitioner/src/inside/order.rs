//! The order in which operators are eliminated.
//!
//! Eliminating an operator joins all its neighbours. The operator goes first that adds the least to the graph: the sum, over pairs of
//! neighbours that were not joined before, of the cells of a table of both (weighted minimum fill: Kjærulff 1990). Of equal ones
//! the one goes first whose own table is smallest. Operators with many neighbours, such as masks that each layer takes, go last:
//! if they went early, each table between would contain them.

use std::collections::BTreeSet;

use super::choices::Edge;

/// Operators with more neighbours are eliminated last, and their neighbours' neighbours are not asked again.
const MANY: usize = 48;

/// How much eliminating an operator adds to a graph, and the cells of its own table.
type Added = (bool, usize, usize);

/// Returns the operators but those to keep in the order of their elimination.
pub(super) fn order(sizes: &[usize], edges: &[Edge], keep: &[usize]) -> Vec<usize> {
    let mut graph = Joined { sizes, neighbours: vec![BTreeSet::new(); sizes.len()] };
    for (a, b, _) in edges {
        graph.neighbours[*a].insert(*b);
        graph.neighbours[*b].insert(*a);
    }
    let mut added: Vec<Added> = (0..sizes.len()).map(|node| graph.added(node)).collect();
    let mut queue: BTreeSet<(Added, usize)> =
        (0..sizes.len()).filter(|node| !keep.contains(node)).map(|node| (added[node], node)).collect();
    let mut order = Vec::with_capacity(queue.len());
    while let Some((_, node)) = queue.pop_first() {
        order.push(node);
        let mut changed = graph.eliminate(node);
        for other in changed.clone() {
            let around = &graph.neighbours[other];
            changed.extend(around.iter().filter(|_| around.len() <= MANY));
        }
        for other in changed {
            if queue.remove(&(added[other], other)) {
                added[other] = graph.added(other);
                queue.insert((added[other], other));
            }
        }
    }
    order
}

/// Which operators have a table together.
struct Joined<'a> {
    /// Strategies of each operator.
    sizes: &'a [usize],
    neighbours: Vec<BTreeSet<usize>>,
}

impl Joined<'_> {
    fn added(&self, node: usize) -> Added {
        let (own, sizes) = (&self.neighbours[node], self.sizes);
        let cells = own.iter().fold(1_usize, |cells, other| cells.saturating_mul(sizes[*other]));
        if own.len() > MANY {
            return (true, 0, cells);
        }
        let pairs = own.iter().flat_map(|one| own.range(one + 1..).map(move |other| (*one, *other)));
        let new = pairs.filter(|(one, other)| !self.neighbours[*one].contains(other));
        (false, new.map(|(one, other)| sizes[one] * sizes[other]).sum(), cells)
    }

    /// Takes an operator out, and joins its neighbours, which it returns.
    fn eliminate(&mut self, node: usize) -> BTreeSet<usize> {
        let around = std::mem::take(&mut self.neighbours[node]);
        for other in &around {
            let own = &mut self.neighbours[*other];
            own.extend(&around);
            own.remove(&node);
            own.remove(other);
        }
        around
    }
}
