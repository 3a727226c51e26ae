//! FlexFlow's search (Jia et al. 2019): a random operator gets a random strategy, and worse steps are occasionally
//! accepted.
//!
//! A step that is longer by a share `Δ` of the current one is accepted with probability `exp(−α·Δ)`. FlexFlow's `α` is
//! per millisecond, so its effect depends on the model; here it is relative. As in FlexFlow, proposals are compared
//! with the current strategies, not the best, and the search returns to the best after every hundredth of its budget.
//!
//! Nodes that only follow from others, such as the layout in which a value is handed on, are not proposed: they take
//! their cheapest strategy whenever a neighbour changes.

use super::{Choices, Limits, Totals};

/// The settings of a search.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Walk {
    /// Proposals per start.
    pub budget: usize,
    /// How rarely worse steps are accepted: at 100, a step longer by 1 % is in 37 % of cases.
    pub alpha: f64,
    /// Seed of the random numbers.
    pub seed: u64,
}

/// The best strategies found.
#[derive(Clone, Debug, PartialEq)]
pub struct Walked {
    /// A strategy for each operator.
    pub picks: Vec<usize>,
    /// Their cost.
    pub totals: Totals,
    /// Seconds of a step.
    pub step: f64,
}

/// The most proposals between two returns to the best.
const RETURN: usize = 1000;

/// Searches from each start; `None` if none of them fits. The first `n_proposed` nodes are proposed, the others follow.
///
/// Invariant: nodes that follow are not joined to each other.
pub fn walk(
    choices: &Choices,
    limits: Limits,
    starts: &[Vec<usize>],
    walk: Walk,
    n_proposed: usize,
) -> Option<Walked> {
    let touching = choices.touching();
    let mut random = Random(walk.seed);
    let free: Vec<usize> = (0..n_proposed).filter(|&node| choices.nodes[node].len() > 1).collect();
    let near: Vec<Near> =
        (0..n_proposed).map(|node| Near::of(choices, &touching, node, n_proposed)).collect();
    let mut best: Option<Walked> = None;
    for start in starts {
        let totals = choices.totals(start);
        let step = totals.step(limits.exposed);
        if !step.is_finite() || totals.bytes > limits.bytes {
            continue;
        }
        let mut own = Walked { picks: start.clone(), totals, step };
        let mut current = own.clone();
        for proposal in 0..if free.is_empty() { 0 } else { walk.budget } {
            if proposal % (walk.budget / 100).clamp(1, RETURN) == 0 {
                current.clone_from(&own);
                // Recomputed: sums updated by many changes accumulate rounding errors.
                current.totals = choices.totals(&current.picks);
                current.step = current.totals.step(limits.exposed);
            }
            let node = free[random.below(free.len())];
            let pick = random.below(choices.nodes[node].len());
            let old = near[node].picks(node, &current.picks);
            let before = near[node].totals(choices, node, &current.picks);
            current.picks[node] = pick;
            for &follower in &near[node].followers {
                current.picks[follower] = cheapest(choices, &touching[follower], follower, &current.picks);
            }
            let after = near[node].totals(choices, node, &current.picks);
            let totals = Totals {
                seconds: current.totals.seconds + (after.seconds - before.seconds),
                hidden: current.totals.hidden + (after.hidden - before.hidden),
                bytes: current.totals.bytes + (after.bytes - before.bytes),
            };
            let step = totals.step(limits.exposed);
            if totals.bytes <= limits.bytes
                && step.is_finite()
                && accepts(walk.alpha, current.step, step, &mut random)
            {
                (current.totals, current.step) = (totals, step);
                if step < own.step {
                    own.clone_from(&current);
                }
            } else {
                old.into_iter().for_each(|(node, pick)| current.picks[node] = pick);
            }
        }
        own.totals = choices.totals(&own.picks);
        own.step = own.totals.step(limits.exposed);
        if best.as_ref().is_none_or(|best| own.step < best.step) {
            best = Some(own);
        }
    }
    best
}

/// What changes with a node.
struct Near {
    /// Its neighbours that follow.
    followers: Vec<usize>,
    /// Edges of the node and of these.
    edges: Vec<usize>,
}

impl Near {
    fn of(choices: &Choices, touching: &[Vec<usize>], node: usize, n_proposed: usize) -> Self {
        let other = |edge: &usize| {
            let (a, b, _) = choices.edges[*edge];
            if a == node { b } else { a }
        };
        let mut followers: Vec<usize> =
            touching[node].iter().map(other).filter(|&other| other >= n_proposed).collect();
        followers.sort_unstable();
        followers.dedup();
        let all = std::iter::once(&node).chain(&followers);
        let mut edges: Vec<usize> = all.flat_map(|node| touching[*node].iter().copied()).collect();
        edges.sort_unstable();
        edges.dedup();
        Self { followers, edges }
    }

    fn picks(&self, node: usize, picks: &[usize]) -> Vec<(usize, usize)> {
        std::iter::once(&node).chain(&self.followers).map(|node| (*node, picks[*node])).collect()
    }

    /// Returns the cost of the node and of what follows it, with their edges.
    fn totals(&self, choices: &Choices, node: usize, picks: &[usize]) -> Totals {
        let mut totals = Totals::default();
        for &own in std::iter::once(&node).chain(&self.followers) {
            totals.add(&choices.nodes[own][picks[own]]);
        }
        let seconds = |&edge: &usize| {
            let (a, b, matrix) = &choices.edges[edge];
            matrix.at(picks[*a], picks[*b])
        };
        totals.seconds += self.edges.iter().map(seconds).sum::<f64>();
        totals
    }
}

/// Returns the cheapest strategy of a node among its neighbours' strategies.
fn cheapest(choices: &Choices, edges: &[usize], node: usize, picks: &[usize]) -> usize {
    let seconds =
        |pick: &usize| choices.nodes[node][*pick].seconds + choices.around(edges, node, *pick, picks);
    let all = 0..choices.nodes[node].len();
    all.min_by(|a, b| seconds(a).total_cmp(&seconds(b))).unwrap_or(picks[node])
}

/// Tells whether a proposal is accepted.
fn accepts(alpha: f64, current: f64, proposed: f64, random: &mut Random) -> bool {
    proposed <= current || random.share() < (-alpha * (proposed - current) / current).exp()
}

/// SplitMix64 (Steele et al. 2014): equal seeds give equal numbers.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, limit: usize) -> usize {
        ((u128::from(self.next()) * limit as u128) >> 64) as usize
    }

    /// Returns a number in [0, 1).
    fn share(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{agreement, split},
        *,
    };
    use crate::oracle::random_problems::Dice;

    #[test]
    fn worse_is_accepted_as_often_as_said() {
        let n = 100_000;
        for (alpha, longer) in [(1.2, 0.5), (100.0, 0.01), (100.0, 0.03), (5.0, 0.001)] {
            let expected = f64::exp(-alpha * longer);
            let mut random = Random(7);
            let accepted = (0..n).filter(|_| accepts(alpha, 2.0, 2.0 * (1.0 + longer), &mut random)).count();
            let sigma = (expected * (1.0 - expected) * f64::from(n)).sqrt();
            let difference = (accepted as f64 - expected * f64::from(n)).abs();
            assert!(difference <= 3.0 * sigma, "{alpha}, {longer}: {accepted} of {n}, expected {expected}");
        }
        assert!(accepts(1e9, 2.0, 1.9, &mut Random(7)) && !accepts(1e9, 2.0, 2.1, &mut Random(7)));
    }

    #[test]
    fn walks_find_what_is_optimal_and_never_beat_the_bound() {
        let mut dice = Dice(42);
        let limits = Limits { exposed: 0.3, bytes: f64::INFINITY };
        let (mut n_walked, mut n_optimal) = (0, 0);
        for case in 0..200 {
            let choices = agreement::graph(&mut dice, 6, 4);
            let Ok(found) = split(&choices, limits, &[]) else { continue };
            let walked = walk(
                &choices,
                limits,
                std::slice::from_ref(&found.picks),
                Walk { budget: 2000, alpha: 5.0, seed: case },
                choices.nodes.len(),
            );
            let walked = walked.expect("the start fits");
            assert!(
                walked.step >= found.bound && walked.step <= found.step,
                "case {case}: {walked:?}, {found:?}"
            );
            // From any other start, too.
            let mut start = Vec::new();
            agreement::each(&choices, |picks, totals| {
                if totals.seconds.is_finite() {
                    start = picks.to_vec();
                }
            });
            let settings = Walk { budget: 2000, alpha: 5.0, seed: case };
            let other = walk(&choices, limits, &[start], settings, choices.nodes.len());
            let other = other.expect("the start is finite");
            assert!(other.step >= found.bound, "case {case}");
            assert_eq!(other.step, choices.totals(&other.picks).step(limits.exposed), "case {case}");
            n_walked += 1;
            n_optimal += usize::from(other.step <= found.step * (1.0 + 1e-9));
        }
        assert!(n_optimal * 10 >= n_walked * 9 && n_walked > 100, "{n_optimal} of {n_walked} walks");
    }
}
