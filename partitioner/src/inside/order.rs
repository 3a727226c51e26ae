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
    let mut graph = Joined::of(sizes, edges);
    let mut added: Vec<Added> = (0..sizes.len()).map(|node| graph.added(node)).collect();
    let mut queue: BTreeSet<(Added, usize)> =
        (0..sizes.len()).filter(|node| !keep.contains(node)).map(|node| (added[node], node)).collect();
    let mut order = Vec::with_capacity(queue.len());
    while let Some((_, node)) = queue.pop_first() {
        order.push(node);
        // What an operator adds depends on which of its neighbours are joined.
        let joined = graph.eliminate(node);
        let few = joined.iter().map(|other| &graph.neighbours[*other]).filter(|around| around.len() <= MANY);
        let changed: BTreeSet<usize> = few.flatten().chain(&joined).copied().collect();
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

impl<'a> Joined<'a> {
    fn of(sizes: &'a [usize], edges: &[Edge]) -> Self {
        let mut neighbours = vec![BTreeSet::new(); sizes.len()];
        for (a, b, _) in edges {
            neighbours[*a].insert(*b);
            neighbours[*b].insert(*a);
        }
        Self { sizes, neighbours }
    }

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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::inside::Matrix;

    /// Layers in a row that all take the same two values: each table has the next layer and these two, however many layers there
    /// are.
    #[test]
    fn values_that_each_layer_takes_go_last() {
        const LAYERS: usize = 100;
        let sizes = [vec![4; LAYERS], vec![14, 14]].concat();
        let edge = |a: usize, b: usize| -> Edge {
            let cells = vec![0.0; sizes[a] * sizes[b]];
            (a, b, Arc::new(Matrix::new(sizes[a], sizes[b], cells)))
        };
        let mut edges: Vec<Edge> = (1..LAYERS).map(|layer| edge(layer - 1, layer)).collect();
        edges.extend((0..LAYERS).map(|layer| edge(layer, LAYERS + layer % 2)));
        let found = order(&sizes, &edges, &[]);
        let mut each = found.clone();
        each.sort_unstable();
        assert_eq!(each, (0..sizes.len()).collect::<Vec<_>>());
        let mut graph = Joined::of(&sizes, &edges);
        let cells = |node: &usize| {
            let (_, _, cells) = graph.added(*node);
            graph.eliminate(*node);
            cells
        };
        let most = found.iter().map(cells).max();
        assert!(most <= Some(4 * 4 * 14 * 14), "{most:?} cells");
        let kept = order(&sizes, &edges, &[0, LAYERS]);
        assert!(kept.len() == LAYERS && !kept.contains(&0) && !kept.contains(&LAYERS), "{kept:?}");
    }
}
