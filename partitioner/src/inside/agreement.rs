//! Compares the searches with each other and with exhaustive search, on small random graphs; on larger ones with an integer program.

use std::sync::Arc;

use crate::oracle::random_problems::{Dice, cases, is_skipped};

use super::{
    Choices, Cost, Limits, Matrix, NoSplit, Repeated, Totals, dead_ends::Alive, eliminate,
    eliminate::eliminate_within, integer_program::solved, split,
};

/// Returns a graph of a few operators with a few strategies, some of which are incompatible; sometimes the graph is
/// disconnected.
pub(super) fn graph(dice: &mut Dice, most_nodes: u64, most_strategies: u64) -> Choices {
    let n_nodes = 1 + dice.below(most_nodes) as usize;
    let number = |dice: &mut Dice| dice.below(20) as f64;
    let node = |dice: &mut Dice| {
        let cost =
            |dice: &mut Dice| Cost { seconds: number(dice), hidden: number(dice) / 2.0, bytes: number(dice) };
        (0..1 + dice.below(most_strategies)).map(|_| cost(dice)).collect::<Vec<_>>()
    };
    let nodes: Vec<Vec<Cost>> = (0..n_nodes).map(|_| node(dice)).collect();
    let mut edges = Vec::new();
    for a in 0..n_nodes {
        for b in 0..n_nodes {
            if a != b && dice.below(4) == 0 {
                let mut cell = |_, _| if dice.below(12) == 0 { f64::INFINITY } else { dice.below(20) as f64 };
                let matrix = Matrix::from_fn(nodes[a].len(), nodes[b].len(), &mut cell);
                edges.push((a, b, Arc::new(matrix)));
            }
        }
    }
    Choices { nodes, edges }
}

/// Calls a function with every choice of strategies.
pub(super) fn each(choices: &Choices, mut call: impl FnMut(&[usize], Totals)) {
    let mut picks = vec![0; choices.nodes.len()];
    loop {
        call(&picks, choices.totals(&picks));
        let Some(node) = (0..picks.len()).rev().find(|&node| picks[node] + 1 < choices.nodes[node].len())
        else {
            return;
        };
        picks[node] += 1;
        picks[node + 1..].fill(0);
    }
}

/// Returns the minimum of a function over every choice of strategies.
fn least(choices: &Choices, mut value: impl FnMut(Totals) -> f64) -> f64 {
    let mut least = f64::INFINITY;
    each(choices, |_, totals| least = least.min(value(totals)));
    least
}

#[test]
fn elimination_equals_trying_everything() {
    let mut dice = Dice(36);
    let mut n_impossible = 0;
    for case in 0..cases(1000) {
        let choices = graph(&mut dice, 7, 4);
        if is_skipped(case) {
            continue;
        }
        let found = eliminate(&choices, |cost| cost.seconds);
        let best = least(&choices, |totals| totals.seconds);
        assert_eq!((found.value, found.bound), (best, best), "case {case}: {choices:?}");
        n_impossible += usize::from(best == f64::INFINITY);
    }
    assert!(n_impossible < cases(1000) / 4, "{n_impossible} graphs have no compatible strategies");
}

#[test]
fn dead_ends_are_in_no_cheapest_choice() {
    let mut dice = Dice(43);
    let (mut n_left_out, mut n_all) = (0, 0);
    for case in 0..cases(1000) {
        let choices = graph(&mut dice, 6, 4);
        if is_skipped(case) {
            continue;
        }
        let prices: Vec<Vec<f64>> =
            choices.nodes.iter().map(|node| node.iter().map(|cost| cost.seconds).collect()).collect();
        let alive = Alive::of(&prices, &choices);
        let best = least(&choices, |totals| totals.seconds);
        each(&choices, |picks, totals| {
            let is_left = picks.iter().enumerate().all(|(node, pick)| alive.strategies[node].contains(pick));
            let is_cheapest = totals.seconds == best && best < f64::INFINITY;
            assert!(is_left || !is_cheapest, "case {case}: {picks:?} of {choices:?}");
        });
        n_all += choices.nodes.iter().map(Vec::len).sum::<usize>();
        n_left_out += choices
            .nodes
            .iter()
            .zip(&alive.strategies)
            .map(|(node, left)| node.len() - left.len())
            .sum::<usize>();
    }
    assert!(n_left_out * 5 > n_all, "{n_left_out} of {n_all} strategies are left out");
}

#[test]
fn small_tables_bound_what_they_do_not_find() {
    let mut dice = Dice(37);
    let mut n_inexact = 0;
    for case in 0..cases(1000) {
        let choices = graph(&mut dice, 7, 4);
        if is_skipped(case) {
            continue;
        }
        let found = eliminate_within(&choices, |cost| cost.seconds, 4);
        let best = least(&choices, |totals| totals.seconds);
        assert!(found.bound <= best && best <= found.value, "case {case}: {found:?} and {best}");
        assert_eq!(found.value, choices.totals(&found.picks).seconds, "case {case}");
        n_inexact += usize::from(found.bound < found.value);
    }
    assert!(n_inexact > 0, "the limit was never met");
}

#[test]
fn a_split_fits_and_its_bound_holds() {
    let mut dice = Dice(38);
    let (mut n_limited, mut n_closed) = (0, 0);
    for case in 0..cases(1000) {
        let choices = graph(&mut dice, 6, 4);
        let limits = Limits {
            exposed: [0.0, 0.3, 1.0][dice.below(3) as usize],
            bytes: [f64::INFINITY, 20.0, 35.0][dice.below(3) as usize],
        };
        if is_skipped(case) {
            continue;
        }
        let fits = |totals: Totals| totals.bytes <= limits.bytes;
        let best =
            least(&choices, |totals| if fits(totals) { totals.step(limits.exposed) } else { f64::INFINITY });
        match split(&choices, limits, &[]) {
            Ok(found) => {
                let totals = choices.totals(&found.picks);
                assert!(fits(totals), "case {case}: {found:?}");
                assert_eq!(found.step, totals.step(limits.exposed), "case {case}");
                assert!(found.bound <= best * (1.0 + 1e-9), "case {case}: {found:?}, best {best}");
                assert!(best <= found.step, "case {case}: {found:?}, best {best}");
                n_limited += usize::from(limits.bytes.is_finite());
                n_closed += usize::from(found.step <= best * (1.0 + 1e-9));
            }
            Err(NoSplit::Contradiction) => {
                assert_eq!(least(&choices, |totals| totals.seconds), f64::INFINITY, "case {case}");
            }
            Err(NoSplit::Memory { needed, .. }) => {
                let smallest =
                    least(
                        &choices,
                        |totals| {
                            if totals.seconds.is_finite() { totals.bytes } else { f64::INFINITY }
                        },
                    );
                assert!(needed == smallest && needed > limits.bytes, "case {case}: {needed}, {smallest}");
            }
        }
    }
    assert!(n_limited > cases(1000) / 10, "memory limits {n_limited} graphs");
    assert!(n_closed > cases(1000) / 2, "{n_closed} splits are the fastest");
}

#[test]
fn without_sync_and_limits_a_split_is_proven_optimal() {
    let mut dice = Dice(39);
    for case in 0..cases(200) {
        let choices = graph(&mut dice, 7, 4);
        let limits = Limits { exposed: 1.0, bytes: f64::INFINITY };
        if let (Ok(found), false) = (split(&choices, limits, &[]), is_skipped(case)) {
            // All gradient sync is exposed: the step is a sum, which one elimination minimises.
            let best = least(&choices, |totals| totals.step(1.0));
            assert!((found.step - best).abs() < 1e-9 && found.gap() < 1e-6, "case {case}: {found:?}, {best}");
        }
    }
}

#[test]
fn folded_layers_equal_unfolded() {
    let mut dice = Dice(40);
    let mut n_possible = 0;
    for case in 0..cases(300) {
        let mut layer = graph(&mut dice, 4, 3);
        let size = layer.nodes[0].len();
        let exit = layer.nodes.len();
        let number = |dice: &mut Dice| dice.below(20) as f64;
        layer.nodes.push((0..size).map(|_| Cost { seconds: number(&mut dice), ..Cost::default() }).collect());
        for node in 0..exit {
            // Other operators may depend on the entry only.
            if node > 0 && dice.flip() {
                continue;
            }
            let rows = layer.nodes[node].len();
            let matrix = Matrix::from_fn(rows, size, |_, _| number(&mut dice));
            layer.edges.push((node, exit, matrix.into()));
        }
        let times = 1 + dice.below(6) as usize;
        if is_skipped(case) {
            continue;
        }
        // Unfolded: the exit of one copy is the entry of the next.
        let mut all = Choices { nodes: vec![vec![Cost::default(); size]], edges: Vec::new() };
        let mut number_of = vec![Vec::new(); times];
        let mut entry = 0;
        for numbers in &mut number_of {
            *numbers =
                (0..=exit).map(|node| if node == 0 { entry } else { all.nodes.len() + node - 1 }).collect();
            all.nodes.extend(layer.nodes[1..].iter().cloned());
            let edges = layer.edges.iter().map(|(a, b, matrix)| (numbers[*a], numbers[*b], matrix.clone()));
            all.edges.extend(edges);
            entry = numbers[exit];
        }
        let folded = Repeated::new(&layer, 0, exit, times, |cost| cost.seconds);
        for before in 0..size {
            for behind in 0..size {
                let mut pinned = all.clone();
                for (node, pick) in [(0, before), (entry, behind)] {
                    let strategies = pinned.nodes[node].iter_mut().enumerate();
                    strategies
                        .filter(|(at, _)| *at != pick)
                        .for_each(|(_, cost)| cost.seconds = f64::INFINITY);
                }
                let best = eliminate(&pinned, |cost| cost.seconds).value;
                assert_eq!(folded.matrix().at(before, behind), best, "case {case}");
                if best == f64::INFINITY {
                    continue;
                }
                n_possible += 1;
                let mut picks = vec![0; all.nodes.len()];
                for (numbers, inside) in number_of.iter().zip(folded.picks(before, behind)) {
                    numbers.iter().zip(&inside).for_each(|(&node, &pick)| picks[node] = pick);
                }
                assert_eq!((picks[0], picks[entry]), (before, behind), "case {case}");
                assert_eq!(all.totals(&picks).seconds, best, "case {case}");
            }
        }
    }
    assert!(n_possible > 100);
}

#[test]
fn elimination_equals_an_integer_program() {
    let mut dice = Dice(41);
    let mut largest = 0;
    for case in 0..cases(300) {
        let choices = graph(&mut dice, 14, 6);
        if is_skipped(case) {
            continue;
        }
        let found = eliminate(&choices, |cost| cost.seconds);
        let best = solved(&choices, |cost| cost.seconds, f64::INFINITY).unwrap_or(f64::INFINITY);
        assert!(found.value == best || (found.value - best).abs() < 1e-4, "case {case}: {found:?}, {best}");
        largest = largest.max(choices.nodes.len());
    }
    assert_eq!(largest, 14, "all graphs are small");
}

#[test]
fn a_bound_under_a_memory_limit_holds_against_an_integer_program() {
    let mut dice = Dice(42);
    let (mut n_limited, mut n_closed) = (0, 0);
    for case in 0..cases(300) {
        let choices = graph(&mut dice, 10, 5);
        let limits = Limits { exposed: 1.0, bytes: 8.0 * choices.nodes.len() as f64 };
        if is_skipped(case) {
            continue;
        }
        // All sync is exposed: a step is a sum of costs.
        let best = solved(&choices, |cost| cost.seconds + cost.hidden, limits.bytes);
        match (split(&choices, limits, &[]), best) {
            (Ok(found), Some(best)) => {
                assert!(
                    found.bound <= best + 1e-4 && best <= found.step + 1e-4,
                    "case {case}: {found:?}, {best}"
                );
                n_limited += 1;
                n_closed += usize::from(found.step <= best + 1e-4);
            }
            (Err(NoSplit::Contradiction | NoSplit::Memory { .. }), None) => {}
            (split, best) => panic!("case {case}: {split:?}, {best:?}"),
        }
    }
    assert!(
        n_closed * 2 > n_limited && n_limited > cases(300) / 4,
        "{n_closed} of {n_limited} splits are the fastest"
    );
}
