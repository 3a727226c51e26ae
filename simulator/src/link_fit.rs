//! From measured collectives to a link: latency α and bandwidth β.
//!
//! Each measured time is `hops · α + moved / β`, with hops and moved bytes of the ring or the tree, whichever is faster at
//! the present α and β; these are then found by least squares of the relative error, and so on until nothing changes. O(rows) a
//! round. Errors compare [`collective::time`] over the fitted link with the measured times.

use crate::{
    Link,
    collective::{self, Algorithm, Collective, Group},
};

/// A measured collective.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// What was exchanged.
    pub collective: Collective,
    /// Ranks that took part.
    pub ranks: u32,
    /// Bytes of the whole.
    pub bytes: u64,
    /// How long it took.
    pub nanoseconds: f64,
}

/// A link that explains measured collectives.
#[derive(Clone, Debug, PartialEq)]
pub struct FittedLink {
    /// The link.
    pub link: Link,
    /// Relative error of each measured row, in their order: predicted ÷ measured − 1.
    pub errors: Vec<f64>,
}

/// Rounds of choosing between ring and tree.
const ROUNDS: usize = 30;

/// Fits a link; nothing when no two rows tell latency from bandwidth.
pub fn fit_link(rows: &[Measured]) -> Option<FittedLink> {
    let usable = |row: &&Measured| {
        row.ranks > 1 && row.bytes > 0 && row.nanoseconds > 0.0 && row.nanoseconds.is_finite()
    };
    let rows: Vec<Measured> = rows.iter().filter(usable).copied().collect();
    let mut best: Option<FittedLink> = None;
    let mut choice = vec![Algorithm::Ring; rows.len()];
    for _ in 0..ROUNDS {
        let Some(link) = solve(&rows, &choice) else { break };
        let errors: Vec<f64> =
            rows.iter().map(|row| time(row, Algorithm::Fastest, link) / row.nanoseconds - 1.0).collect();
        let total = |errors: &[f64]| errors.iter().map(|error| error.abs()).sum::<f64>();
        if best.as_ref().is_none_or(|best| total(&errors) < total(&best.errors)) {
            best = Some(FittedLink { link, errors });
        }
        let faster = |row: &Measured| {
            if time(row, Algorithm::Tree, link) < time(row, Algorithm::Ring, link) {
                Algorithm::Tree
            } else {
                Algorithm::Ring
            }
        };
        let next: Vec<Algorithm> = rows.iter().map(faster).collect();
        if next == choice {
            break;
        }
        choice = next;
    }
    best
}

fn time(row: &Measured, algorithm: Algorithm, link: Link) -> f64 {
    collective::time(row.collective, algorithm, row.bytes, &Group::flat(row.ranks, link)) as f64
}

/// Least squares of the relative error in α and 1/β; neither may be negative.
fn solve(rows: &[Measured], choice: &[Algorithm]) -> Option<Link> {
    /// Nanoseconds, and bytes a nanosecond: what one hop and one byte are counted with.
    const UNIT: Link = Link { latency: 1, bandwidth: 1e9 };
    let (mut aa, mut ab, mut bb, mut a, mut b) = (0.0, 0.0, 0.0, 0.0, 0.0);
    for (row, algorithm) in rows.iter().zip(choice) {
        let parts = collective::parts(row.collective, *algorithm, row.bytes, &Group::flat(row.ranks, UNIT));
        let (hops, moved) = (parts.latency as f64 / row.nanoseconds, parts.transfer as f64 / row.nanoseconds);
        aa += hops * hops;
        ab += hops * moved;
        bb += moved * moved;
        a += hops;
        b += moved;
    }
    let determinant = aa * bb - ab * ab;
    if determinant <= 1e-9 * aa * bb {
        return None;
    }
    let (alpha, per_byte) = ((a * bb - b * ab) / determinant, (b * aa - a * ab) / determinant);
    let (alpha, per_byte) = match (alpha > 0.0, per_byte > 0.0) {
        (true, true) => (alpha, per_byte),
        (false, _) => (0.0, b / bb),
        // Larger messages take no longer: there is no bandwidth to be seen.
        (true, false) => return None,
    };
    Some(Link { latency: alpha.round() as u64, bandwidth: 1e9 / per_byte })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(collective: Collective, ranks: u32, link: Link) -> Vec<Measured> {
        let row = |power: u32| {
            let bytes = 1_u64 << power;
            let group = Group::flat(ranks, link);
            let nanoseconds = collective::time(collective, Algorithm::Fastest, bytes, &group) as f64;
            Measured { collective, ranks, bytes, nanoseconds }
        };
        (8..29).map(row).collect()
    }

    #[test]
    fn a_link_is_found_again() {
        let link = Link { latency: 2_900, bandwidth: 2.3e11 };
        for (collective, ranks) in
            [(Collective::AllReduce, 8), (Collective::AllReduce, 2), (Collective::AllGather, 4)]
        {
            let found = fit_link(&rows(collective, ranks, link)).expect("a link");
            assert!(found.link.latency.abs_diff(link.latency) <= 30, "{collective:?}: {found:?}");
            assert!((found.link.bandwidth / link.bandwidth - 1.0).abs() < 0.01, "{collective:?}: {found:?}");
            assert!(found.errors.iter().all(|error| error.abs() < 0.02), "{collective:?}: {found:?}");
        }
    }

    #[test]
    fn one_size_tells_nothing() {
        let link = Link { latency: 1_000, bandwidth: 1e10 };
        let all = rows(Collective::AllReduce, 4, link);
        assert_eq!(fit_link(&all[..1]), None);
        assert_eq!(fit_link(&[]), None);
        let same: Vec<Measured> = all.iter().map(|row| Measured { nanoseconds: 5e3, ..*row }).collect();
        let found = fit_link(&same[..4]);
        assert!(found.is_none_or(|found| found.link.bandwidth > 1e9), "sizes below a kilobyte");
    }
}
