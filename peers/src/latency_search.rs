//! The dynamic program behind [`crate::latency_plan`]: placements of ideals that no other placement of the same ideal dominates.

use std::collections::HashMap;

use partitioner::Ideals;

use crate::latency_graph::LatencyGraph;

/// The most placements that are kept.
const LABELS: usize = 2_000_000;
/// A placement must be better by this share to count.
const GAIN: f64 = 1e-9;

/// The search, with tables of each ideal.
pub(crate) struct Search<'a> {
    graph: &'a LatencyGraph,
    ideals: &'a Ideals,
    /// By ideal: those with one group more, and which.
    larger: Vec<Vec<(u32, u32)>>,
    /// By ideal: values made in it with takers outside.
    wanted: Vec<Box<[u32]>>,
    /// By ideal, then wanted value: the least time from when it is ready to the end.
    rest: Vec<Box<[f64]>>,
    /// Least time to the end from the start of each group on an accelerator.
    whole: f64,
}

/// Which costs of groups to use.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Taken {
    /// Their values.
    Full,
    /// Their lower bounds.
    Least,
}

/// The result of a search.
pub(crate) struct Outcome {
    /// The best placement below the target.
    pub(crate) found: Option<Found>,
    /// No placement was left out: the search proves its result.
    pub(crate) is_complete: bool,
}

/// A placement of the whole model.
pub(crate) struct Found {
    pub(crate) latency: f64,
    pub(crate) steps: Vec<Step>,
}

/// What one accelerator does, or CPUs with one group.
#[derive(Clone, Copy)]
pub(crate) struct Step {
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) is_accelerator: bool,
}

/// A placement of an ideal.
struct Label {
    used: u32,
    /// When all of the ideal is done.
    latest: f64,
    /// When each wanted value is ready.
    ready: Box<[f64]>,
    /// Lower bound of the latency of all placements that extend it.
    least: f64,
    from: (u32, u32),
    is_accelerator: bool,
}

impl Label {
    fn is_as_good_as(&self, other: &Self) -> bool {
        self.used <= other.used
            && self.latest <= other.latest
            && self.ready.iter().zip(&other.ready).all(|(own, other)| own <= other)
    }
}

/// A piece between two ideals, independent of the placement before.
#[derive(Default)]
struct Piece {
    /// Wanted values of the first ideal that are its inputs.
    takes: Vec<usize>,
    /// For each wanted value of the second ideal: its index among those of the first; `None` for the piece's own.
    stays: Vec<Option<usize>>,
    /// When each of its own is ready, after its start.
    ready: Vec<f64>,
    /// Time to its end.
    time: f64,
}

impl<'a> Search<'a> {
    pub(crate) fn new(graph: &'a LatencyGraph, ideals: &'a Ideals) -> Self {
        let index: HashMap<&[u64], u32> =
            (0..ideals.len()).map(|ideal| (ideals.words(ideal), ideal as u32)).collect();
        let mut is_given = vec![false; graph.len()];
        let larger = (0..ideals.len()).map(|ideal| {
            let mut words = ideals.words(ideal).to_vec();
            let mut larger = Vec::new();
            is_given.fill(false);
            ideals.nodes(ideal).for_each(|group| is_given[group] = true);
            for group in (0..graph.len()).filter(|&group| !is_given[group]) {
                if graph.inputs[group].iter().all(|&input| is_given[input]) {
                    words[group / 64] ^= 1 << (group % 64);
                    larger.extend(index.get(&words[..]).map(|&next| (group as u32, next)));
                    words[group / 64] ^= 1 << (group % 64);
                }
            }
            larger
        });
        let larger: Vec<Vec<(u32, u32)>> = larger.collect();
        let is_wanted = |ideal: usize, value: &usize| {
            let value = &graph.values[*value];
            ideals.contains(ideal, value.from) && value.to.iter().any(|&taker| !ideals.contains(ideal, taker))
        };
        let wanted: Vec<Box<[u32]>> = (0..ideals.len())
            .map(|ideal| {
                let wanted = (0..graph.values.len()).filter(|value| is_wanted(ideal, value));
                wanted.map(|value| value as u32).collect()
            })
            .collect();
        let (started, on_cpus) = paths(graph);
        let rest = wanted.iter().enumerate().map(|(ideal, wanted)| {
            let of_value = |&value: &u32| {
                let value = &graph.values[value as usize];
                let left = value.to.iter().filter(|&&taker| !ideals.contains(ideal, taker));
                left.map(|&taker| on_cpus[taker].min(value.cost + started[taker])).fold(0.0, f64::max)
            };
            wanted.iter().map(of_value).collect()
        });
        let rest = rest.collect();
        let whole = (0..graph.len())
            .filter(|&group| graph.inputs[group].is_empty())
            .map(|group| started[group].min(on_cpus[group]))
            .fold(0.0, f64::max);
        Self { graph, ideals, larger, wanted, rest, whole }
    }

    /// The longest path, each group where it is fastest.
    pub(crate) fn path(&self) -> f64 {
        self.whole
    }

    /// Tells whether the search over all placements, with lower bounds for memory and time, finds none below a target.
    pub(crate) fn none_below(&self, target: f64, steps: u64) -> bool {
        let outcome = self.run(target, None, Taken::Least, steps);
        outcome.is_complete && outcome.found.is_none()
    }

    /// Finds a high target that no placement meets.
    pub(crate) fn bound(&self, mut low: f64, mut high: f64, targets: usize, steps: u64) -> f64 {
        for _ in 0..targets {
            if !high.is_finite() || high - low <= 1e-4 * high {
                break;
            }
            let middle = (low + high) / 2.0;
            if self.none_below(middle, steps) { low = middle } else { high = middle }
        }
        low
    }

    /// Finds the best placement below a target; with a beam, only the best placements of an ideal are kept.
    pub(crate) fn run(&self, mut target: f64, beam: Option<usize>, taken: Taken, steps: u64) -> Outcome {
        let (size, cpu) = match taken {
            Taken::Full => (&self.graph.size, &self.graph.cpu),
            Taken::Least => (&self.graph.least_size, &self.graph.least_cpu),
        };
        let n_ideals = self.ideals.len();
        let sums: Vec<[f64; 2]> = (0..n_ideals)
            .map(|ideal| {
                self.ideals.nodes(ideal).fold([0.0, 0.0], |[time, bytes], group| {
                    [time + self.graph.accelerator[group], bytes + size[group]]
                })
            })
            .collect();
        let mut labels: Vec<Vec<Label>> = (0..n_ideals).map(|_| Vec::new()).collect();
        labels[0].push(Label {
            used: 0,
            latest: 0.0,
            ready: Box::new([]),
            least: self.whole,
            from: (0, 0),
            is_accelerator: false,
        });
        let (mut n_steps, mut n_labels) = (0, 1);
        let mut stamps = vec![u32::MAX; n_ideals];
        let mut piece = Piece::default();
        for start in 0..n_ideals {
            let own = std::mem::take(&mut labels[start]);
            if own.is_empty() {
                continue;
            }
            let mut add = |end: usize, piece: &Piece, is_accelerator: bool| {
                for (index, label) in own.iter().enumerate() {
                    let from = (start as u32, index as u32);
                    let Some(next) = self.next(label, piece, end, is_accelerator, from) else { continue };
                    if next.least >= target * (1.0 - GAIN) {
                        continue;
                    }
                    if end + 1 == n_ideals {
                        target = next.latest;
                    }
                    n_labels += usize::from(keep(&mut labels[end], next, beam));
                }
                own.len() as u64
            };
            for &(group, end) in &self.larger[start] {
                if cpu[group as usize].is_finite() {
                    self.piece(start, end as usize, Some(taken), &mut piece);
                    piece.time = cpu[group as usize];
                    n_steps += add(end as usize, &piece, false);
                }
            }
            let mut open = vec![start as u32];
            while let Some(at) = open.pop() {
                for &(group, end) in &self.larger[at as usize] {
                    let end = end as usize;
                    let is_held = sums[end][1] - sums[start][1] <= self.graph.memory * (1.0 + 1e-12);
                    let is_barred = self.graph.accelerator[group as usize].is_infinite();
                    if stamps[end] == start as u32 || is_barred || !is_held {
                        continue;
                    }
                    stamps[end] = start as u32;
                    open.push(end as u32);
                    self.piece(start, end, None, &mut piece);
                    n_steps += 4 + add(end, &piece, true);
                }
            }
            labels[start] = own;
            if n_steps > steps || n_labels > LABELS {
                return Outcome { found: None, is_complete: false };
            }
        }
        let found = self.steps(&labels);
        Outcome { found, is_complete: beam.is_none() }
    }

    /// Fills in the inputs, outputs and time of a piece: one group on CPUs, or the groups of an accelerator.
    fn piece(&self, start: usize, end: usize, on_cpus: Option<Taken>, piece: &mut Piece) {
        let is_inside = |group: usize| self.ideals.is_between(start, end, group);
        piece.takes.clear();
        piece.stays.clear();
        piece.ready.clear();
        let mut moves = 0.0;
        for (index, &value) in self.wanted[start].iter().enumerate() {
            let value = &self.graph.values[value as usize];
            if value.to.iter().any(|&taker| is_inside(taker)) {
                piece.takes.push(index);
                moves += value.cost;
            }
        }
        let mut at = 0;
        for &value in &self.wanted[end] {
            let known = &self.wanted[start];
            while known.get(at).is_some_and(|&other| other < value) {
                at += 1;
            }
            let stays = known.get(at).is_some_and(|&other| other == value).then_some(at);
            let value = &self.graph.values[value as usize];
            if stays.is_none() {
                moves += value.cost;
            }
            piece.stays.push(stays);
            piece.ready.push(if on_cpus == Some(Taken::Least) { value.least_cpu } else { value.cpu });
        }
        if on_cpus.is_none() {
            let groups = self.ideals.between(start, end);
            piece.time = moves + groups.map(|group| self.graph.accelerator[group]).sum::<f64>();
            piece.ready.fill(piece.time);
        }
    }

    fn next(
        &self,
        label: &Label,
        piece: &Piece,
        end: usize,
        is_accelerator: bool,
        from: (u32, u32),
    ) -> Option<Label> {
        let used = label.used + u32::from(is_accelerator);
        if used > self.graph.n_accelerators {
            return None;
        }
        let start = piece.takes.iter().map(|&index| label.ready[index]).fold(0.0, f64::max);
        let finish = start + piece.time;
        let latest = label.latest.max(finish);
        let own = piece.ready.iter().map(|ready| start + ready);
        let ready: Box<[f64]> = piece
            .stays
            .iter()
            .zip(own)
            .map(|(stays, own)| stays.map_or(own, |index| label.ready[index]))
            .collect();
        let least =
            ready.iter().zip(&self.rest[end]).map(|(ready, rest)| ready + rest).fold(latest, f64::max);
        Some(Label { used, latest, ready, least, from, is_accelerator })
    }

    /// Follows the best placement of the whole model back.
    fn steps(&self, labels: &[Vec<Label>]) -> Option<Found> {
        let mut ideal = labels.len() - 1;
        let mut label = labels[ideal].iter().min_by(|a, b| a.latest.total_cmp(&b.latest))?;
        let latency = label.latest;
        let mut steps = Vec::new();
        while ideal != 0 {
            let (from, index) = label.from;
            steps.push(Step { from: from as usize, to: ideal, is_accelerator: label.is_accelerator });
            ideal = from as usize;
            label = &labels[ideal][index as usize];
        }
        steps.reverse();
        Some(Found { latency, steps })
    }
}

/// Adds a label unless another dominates it, and drops those that it dominates. Returns whether there are more now.
fn keep(labels: &mut Vec<Label>, next: Label, beam: Option<usize>) -> bool {
    if labels.iter().any(|label| label.is_as_good_as(&next)) {
        return false;
    }
    let before = labels.len();
    labels.retain(|label| !next.is_as_good_as(label));
    labels.push(next);
    if let Some(beam) = beam.filter(|&beam| labels.len() > beam) {
        labels.sort_by(|a, b| a.least.total_cmp(&b.least));
        labels.truncate(beam);
    }
    labels.len() > before
}

/// The least time to the end of all from the start of each group, on an accelerator and on CPUs.
fn paths(graph: &LatencyGraph) -> (Vec<f64>, Vec<f64>) {
    let (mut started, mut on_cpus) = (vec![0.0; graph.len()], vec![0.0; graph.len()]);
    for &group in graph.order().iter().rev() {
        let (mut inside, mut outside) = (0.0_f64, graph.least_cpu[group]);
        for &value in &graph.given[group] {
            let value = &graph.values[value];
            for &taker in &value.to {
                inside = inside.max((value.cost + on_cpus[taker]).min(started[taker]));
                outside = outside.max(value.least_cpu + on_cpus[taker].min(value.cost + started[taker]));
            }
        }
        started[group] = graph.accelerator[group] + inside;
        on_cpus[group] = outside;
    }
    (started, on_cpus)
}
