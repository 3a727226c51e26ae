//! Checks that every graph format needs: no cycles, one component.

/// Returns the nodes in topological order (smallest index first among the ready ones), or one cycle.
///
/// Kahn's algorithm, O((n + e) log n).
pub(crate) fn topological_order(n_nodes: usize, edges: &[(usize, usize)]) -> Result<Vec<usize>, Vec<usize>> {
    let mut n_inputs = vec![0_usize; n_nodes];
    let mut consumers = vec![Vec::new(); n_nodes];
    for &(from, to) in edges {
        n_inputs[to] += 1;
        consumers[from].push(to);
    }
    let mut ready: std::collections::BinaryHeap<std::cmp::Reverse<usize>> =
        (0..n_nodes).filter(|&node| n_inputs[node] == 0).map(std::cmp::Reverse).collect();
    let mut order = Vec::with_capacity(n_nodes);
    while let Some(std::cmp::Reverse(node)) = ready.pop() {
        order.push(node);
        for &consumer in &consumers[node] {
            n_inputs[consumer] -= 1;
            if n_inputs[consumer] == 0 {
                ready.push(std::cmp::Reverse(consumer));
            }
        }
    }
    if order.len() == n_nodes { Ok(order) } else { Err(cycle(&n_inputs, edges)) }
}

/// Walks backwards among nodes that never became ready; each has such a predecessor, so the walk must close.
fn cycle(n_inputs: &[usize], edges: &[(usize, usize)]) -> Vec<usize> {
    let mut producer = vec![None; n_inputs.len()];
    for &(from, to) in edges {
        if n_inputs[from] > 0 && n_inputs[to] > 0 {
            producer[to] = Some(from);
        }
    }
    let mut seen_at = vec![None; n_inputs.len()];
    let mut walk = Vec::new();
    let mut node = (0..n_inputs.len()).find(|&node| n_inputs[node] > 0 && producer[node].is_some());
    while let Some(at) = node {
        if let Some(start) = seen_at[at] {
            let mut found: Vec<usize> = walk[start..].to_vec();
            found.push(at);
            found.reverse();
            return found;
        }
        seen_at[at] = Some(walk.len());
        walk.push(at);
        node = producer[at];
    }
    walk
}

/// Returns two nodes that no path of edges connects, if there are any.
pub(crate) fn disconnected(n_nodes: usize, edges: &[(usize, usize)]) -> Option<(usize, usize)> {
    let mut neighbours = vec![Vec::new(); n_nodes];
    for &(from, to) in edges {
        neighbours[from].push(to);
        neighbours[to].push(from);
    }
    let mut is_reached = vec![false; n_nodes];
    let mut stack = vec![0];
    while let Some(node) = stack.pop() {
        if node < n_nodes && !std::mem::replace(&mut is_reached[node], true) {
            stack.extend(neighbours[node].iter().copied().filter(|&other| !is_reached[other]));
        }
    }
    is_reached.iter().position(|reached| !reached).map(|other| (0, other))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_cycle_and_components_are_found() {
        assert_eq!(topological_order(3, &[(2, 0), (0, 1)]), Ok(vec![2, 0, 1]));
        let found = topological_order(4, &[(0, 1), (1, 2), (2, 3), (3, 1)]).unwrap_err();
        assert_eq!(found.first(), found.last());
        assert_eq!(found.len(), 4);
        assert_eq!(disconnected(4, &[(0, 1), (2, 3)]), Some((0, 2)));
        assert_eq!(disconnected(2, &[(1, 0)]), None);
    }
}
