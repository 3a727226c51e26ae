//! Lines between two rows: each net that must step sideways gets a track of its own.
//!
//! Channel routing as for circuit boards (Hashimoto, Stevens, "Wire routing by optimizing channel assignment within
//! large apertures", 1971). Lines run in the rows' own columns and in the channels between rows, so that none crosses a
//! box.

/// Distance between two tracks.
pub(crate) const TRACK: f64 = 8.0;
/// Space between the outermost track and the rows.
const MARGIN: f64 = 12.0;
/// Height of a channel where every line runs straight.
const STRAIGHT: f64 = 24.0;
/// A smaller offset is not a step.
const SAME: f64 = 0.5;

/// One net in a channel: from one place above to some below.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Crossing {
    pub from: f64,
    pub to: Vec<f64>,
}

/// Tracks of the nets in one channel.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Channel {
    /// Each crossing's distance from the channel's upper side; `None` where it runs straight.
    pub tracks: Vec<Option<f64>>,
    /// Distance from row to row.
    pub height: f64,
}

/// Assigns tracks. O(C²) for C crossings that step sideways in one channel.
pub(crate) fn assign(crossings: &[Crossing]) -> Channel {
    struct Step {
        crossing: usize,
        low: f64,
        high: f64,
        goes_right: bool,
    }
    let mut steps: Vec<Step> = Vec::new();
    for (crossing, Crossing { from, to }) in crossings.iter().enumerate() {
        let low = to.iter().copied().fold(*from, f64::min);
        let high = to.iter().copied().fold(*from, f64::max);
        if high - low > SAME {
            let mean = to.iter().sum::<f64>() / to.len() as f64;
            steps.push(Step { crossing, low, high, goes_right: mean > *from });
        }
    }
    // Of two lines to the right, the one further right steps first: they nest instead of crossing twice.
    steps.sort_by(|a, b| {
        let (from_a, from_b) = (crossings[a.crossing].from, crossings[b.crossing].from);
        b.goes_right.cmp(&a.goes_right).then(if a.goes_right {
            from_b.total_cmp(&from_a)
        } else {
            from_a.total_cmp(&from_b)
        })
    });
    let mut tracks: Vec<usize> = Vec::with_capacity(steps.len());
    for (index, step) in steps.iter().enumerate() {
        let below = steps[..index]
            .iter()
            .zip(&tracks)
            .filter(|(other, _)| other.low < step.high + TRACK && step.low < other.high + TRACK)
            .map(|(_, track)| track + 1)
            .max();
        tracks.push(below.unwrap_or(0));
    }
    // Where one line leaves and another arrives at the same place, the first must have stepped aside by then.
    for _ in 0..steps.len().min(8) {
        let mut has_changed = false;
        for leaving in 0..steps.len() {
            for arriving in 0..steps.len() {
                let from = crossings[steps[leaving].crossing].from;
                let meets = leaving != arriving
                    && tracks[arriving] <= tracks[leaving]
                    && crossings[steps[arriving].crossing].to.iter().any(|to| (to - from).abs() < 2.0);
                if meets {
                    tracks[arriving] = tracks[leaving] + 1;
                    has_changed = true;
                }
            }
        }
        if !has_changed {
            break;
        }
    }
    let mut used: Vec<usize> = tracks.clone();
    used.sort_unstable();
    used.dedup();
    let mut channel = Channel { tracks: vec![None; crossings.len()], height: STRAIGHT };
    for (step, track) in steps.iter().zip(&tracks) {
        let rank = used.binary_search(track).expect("every track is in use");
        channel.tracks[step.crossing] = Some(MARGIN + rank as f64 * TRACK);
    }
    if !used.is_empty() {
        channel.height = STRAIGHT.max(2.0 * MARGIN + (used.len() - 1) as f64 * TRACK + 4.0);
    }
    channel
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(crossings: &[(f64, &[f64])], expected: &[Option<f64>]) {
        let crossings: Vec<Crossing> =
            crossings.iter().map(|(from, to)| Crossing { from: *from, to: to.to_vec() }).collect();
        assert_eq!(assign(&crossings).tracks, expected);
    }

    #[test]
    fn lines_nest_instead_of_crossing() {
        check(&[(0.0, &[0.0])], &[None]);
        check(&[(0.0, &[50.0]), (20.0, &[90.0])], &[Some(20.0), Some(12.0)]);
        check(&[(50.0, &[0.0]), (90.0, &[20.0])], &[Some(12.0), Some(20.0)]);
        // Far from each other they share a track.
        check(&[(0.0, &[20.0]), (50.0, &[90.0])], &[Some(12.0), Some(12.0)]);
        // The second arrives where the first leaves.
        check(&[(50.0, &[0.0]), (100.0, &[50.0])], &[Some(12.0), Some(20.0)]);
    }
}
