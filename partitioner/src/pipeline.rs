//! The best pipeline over a list of states: stages take runs of devices, and the slowest stage is as fast as can be.
//!
//! The dynamic program of Narayanan et al. (PipeDream, SOSP 2019) with the formulas of `stage`, from the end of the model to its
//! beginning: then the devices behind a stage, and with them its micro-batches in flight, are known.
//! `A(i, m) = min over j, r of max(stage(i..j, r devices), A(j, m-r))`.
//!
//! Cost: O(Q²·M²) stages at worst; a bound U leaves only those j between which neither side has more work than its devices
//! do in U. U is guessed from below and doubled until a plan is found, so it is tight.

use crate::stage::{Run, Scorer};

/// A stage of a solution: states and devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cut {
    pub(crate) start: usize,
    pub(crate) end: usize,
    pub(crate) run: Run,
    /// Devices from this stage to the end.
    pub(crate) behind: usize,
}

/// How devices may be given to stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sharing {
    /// Any number to each stage.
    Free,
    /// The same number to each stage, in exactly this many stages.
    Equal {
        /// Stages.
        stages: usize,
        /// Devices of each.
        replicas: usize,
        /// Whether replicas sit side by side, or pipelines do.
        replicas_together: bool,
    },
}

const NONE: u32 = u32::MAX;

/// The most times the shared work that is guessed.
const FAR: f64 = 4.0;

/// Finds the pipeline whose slowest stage is fastest, below `bound`.
///
/// Ties: fewer devices, then fewer replicas for the earlier stage, then the earliest cut.
pub(crate) fn best_pipeline(scorer: &Scorer, sharing: Sharing, bound: f64) -> Option<(f64, Vec<Cut>)> {
    let machine = &scorer.problem.machine;
    let total = *scorer.states.work.last().expect("states are not empty");
    let speed = match sharing {
        Sharing::Free => machine.total_speed(),
        Sharing::Equal { stages, replicas, .. } => {
            machine.devices.iter().take(stages * replicas).map(|device| device.speed).sum()
        }
    };
    let floor = total / speed;
    let mut guess = floor * 1.02;
    loop {
        // Far above the shared work it is memory that stands in the way: one look without a limit tells.
        let limit = if guess > floor * FAR || guess == 0.0 { f64::INFINITY } else { guess.min(bound) };
        if let Some(found) = solve(scorer, sharing, limit.min(bound)) {
            return Some(found);
        }
        if limit >= bound || limit == f64::INFINITY {
            return None;
        }
        guess = floor + (guess - floor) * 3.0;
    }
}

/// The most stages that are scored where a stage's memory depends on the one before.
const SCORED: f64 = 3e6;

/// Tells whether [`best_with_before`] is quick.
pub(crate) fn has_few_with_before(scorer: &Scorer) -> bool {
    let (n_states, n_devices) = (scorer.states.len() as f64, scorer.problem.machine.devices.len() as f64);
    n_states.powi(2) * n_devices.powi(3) / 12.0 <= SCORED
}

/// Finds the pipeline whose slowest stage is fastest, every stage's memory counted for the replicas of the stage before it.
///
/// The same program as [`best_pipeline`] with one more dimension: O(Q²·M³).
pub(crate) fn best_with_before(scorer: &mut Scorer) -> Option<(f64, Vec<Cut>)> {
    let states = scorer.states;
    let n_devices = scorer.problem.machine.devices.len();
    let n_states = states.len();
    let last = n_states - 1;
    let total = states.work[last];
    let at =
        |layer: usize, start: usize, before: usize| (layer * n_states + start) * (n_devices + 1) + before;
    let mut best = vec![f64::INFINITY; at(n_devices + 1, 0, 0)];
    let mut came = vec![(NONE, 0_usize); best.len()];
    best[at(0, last, 0)..at(0, last, n_devices) + 1].fill(0.0);
    for layer in 1..=n_devices {
        let first = n_devices - layer;
        for before in 0..=first {
            scorer.before.insert(first, before);
            // Nothing stands before the first stage alone.
            for start in if before == 0 { 0..1 } else { 1..last } {
                let own = at(layer, start, before);
                for size in 1..=layer {
                    let place = scorer.place(Run { first, count: size, stride: 1 });
                    for end in start + 1..n_states {
                        let is_empty = states.work[end] <= states.work[start] && total > 0.0;
                        let after = best[at(layer - size, end, size)];
                        if is_empty || after >= best[own] || !states.is_before(start, end) {
                            continue;
                        }
                        let time = after.max(scorer.seconds_below(start, end, &place, layer, best[own]));
                        if time < best[own] {
                            best[own] = time;
                            came[own] = (end as u32, size);
                        }
                    }
                }
            }
        }
    }
    let found = (1..=n_devices).min_by(|&a, &b| best[at(a, 0, 0)].total_cmp(&best[at(b, 0, 0)]))?;
    let time = best[at(found, 0, 0)];
    if time == f64::INFINITY {
        return None;
    }
    let mut cuts = Vec::new();
    let (mut layer, mut start, mut before) = (found, 0, 0);
    while start != last {
        let (end, size) = came[at(layer, start, before)];
        let run = Run { first: n_devices - layer, count: size, stride: 1 };
        cuts.push(Cut { start, end: end as usize, run, behind: layer });
        (layer, start, before) = (layer - size, end as usize, size);
    }
    Some((time, cuts))
}

/// Finds the best pipeline whose slowest stage takes at most `limit`.
fn solve(scorer: &Scorer, sharing: Sharing, limit: f64) -> Option<(f64, Vec<Cut>)> {
    let states = scorer.states;
    let machine = &scorer.problem.machine;
    let n_states = states.len();
    let last = n_states - 1;
    // A layer is the devices, or the stages, from here to the end.
    let (n_layers, sizes): (usize, Vec<usize>) = match sharing {
        Sharing::Free => (machine.devices.len(), (1..=machine.devices.len()).collect()),
        Sharing::Equal { stages, .. } => (stages, vec![1]),
    };
    let run_of = |layer: usize, size: usize| match sharing {
        Sharing::Free => Run { first: machine.devices.len() - layer, count: size, stride: 1 },
        Sharing::Equal { stages, replicas, replicas_together: true } => {
            Run { first: (stages - layer) * replicas, count: replicas, stride: 1 }
        }
        Sharing::Equal { stages, replicas, .. } => {
            Run { first: stages - layer, count: replicas, stride: stages }
        }
    };
    let behind_of = |layer: usize| match sharing {
        Sharing::Free => layer,
        Sharing::Equal { replicas, .. } => layer * replicas,
    };
    // What the devices of the last layers do in one second, and of those before.
    let mut power = vec![0.0; n_layers + 1];
    for layer in 1..=n_layers {
        let run = run_of(layer, 1);
        let own: f64 = run.devices().map(|device| machine.devices[device].speed).sum();
        power[layer] = power[layer - 1] + own;
    }
    let slack = 1.0 + 1e-9;
    let total = states.work[last];
    let mut best = vec![f64::INFINITY; (n_layers + 1) * n_states];
    let mut came = vec![(NONE, 0_u32); (n_layers + 1) * n_states];
    best[last] = 0.0;
    for layer in 1..=n_layers {
        let ahead = power[n_layers] - power[layer];
        let behind = behind_of(layer);
        for start in (0..last).rev() {
            let work = states.work[start];
            // What lies before must fit the devices before, what lies behind those behind.
            let too_much_before = work > limit * ahead * slack + 1e-12 * total;
            let too_much_behind = total - work > limit * power[layer] * slack + 1e-12 * total;
            let only_last = matches!(sharing, Sharing::Free) || layer < n_layers || start == 0;
            if too_much_before || too_much_behind || !only_last {
                continue;
            }
            let at = layer * n_states + start;
            let mut smallest = limit * (1.0 + 1e-12);
            for &size in sizes.iter().take_while(|&&size| size <= layer) {
                let rest = layer - size;
                // Looked up for the first stage that is scored: most runs have none.
                let mut place = None;
                let own = power[layer] - power[rest];
                // Ends between which both sides can keep within the bound.
                let low = work.max(total - smallest * power[rest] * slack - 1e-12 * total);
                let first = states.work.partition_point(|&value| value < low).max(start + 1);
                for end in first..n_states {
                    if states.work[end] - work > smallest * own * slack + 1e-12 * total {
                        break;
                    }
                    // A stage that does nothing only hands on.
                    if states.work[end] <= work && total > 0.0 {
                        continue;
                    }
                    let after = best[rest * n_states + end];
                    if after >= smallest || !states.is_before(start, end) {
                        continue;
                    }
                    let place = place.get_or_insert_with(|| scorer.place(run_of(layer, size)));
                    let time = after.max(scorer.seconds_below(start, end, place, behind, smallest));
                    if time < smallest {
                        smallest = time;
                        best[at] = time;
                        came[at] = (end as u32, size as u32);
                    }
                }
            }
        }
    }
    let layers = match sharing {
        Sharing::Free => 1..=n_layers,
        Sharing::Equal { .. } => n_layers..=n_layers,
    };
    let found = layers.min_by(|&a, &b| best[a * n_states].total_cmp(&best[b * n_states]))?;
    let time = best[found * n_states];
    if time == f64::INFINITY {
        return None;
    }
    let mut cuts = Vec::new();
    let (mut layer, mut start) = (found, 0);
    while start != last {
        let (end, size) = came[layer * n_states + start];
        let (end, size) = (end as usize, size as usize);
        cuts.push(Cut { start, end, run: run_of(layer, size), behind: behind_of(layer) });
        start = end;
        layer -= size;
    }
    Some((time, cuts))
}
