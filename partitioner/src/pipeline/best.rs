//! The best pipeline over a list of states: stages take runs of devices, and the slowest stage is as fast as can be.
//!
//! The dynamic program of Narayanan et al. (PipeDream, SOSP 2019) with the formulas of `stage::score`, from the end of the model
//! to its beginning: then the devices behind a stage, and with them its micro-batches in flight, are known.
//! `A(i, m) = min over j, r of max(stage(i..j, r devices), A(j, m-r))`.
//!
//! Cost: O(Q²·M²) stages at worst. An upper bound U prunes: of the ends j remain those where neither side has more work than its
//! devices do in U or needs more memory than they have, and whose transfers take at most U. U is guessed from below and grows
//! until a plan is found, so it is tight: first without a memory limit, then from the time that this takes.

use std::{cell::OnceCell, cmp::Reverse, collections::BinaryHeap};

use crate::{
    pinned::Pinned,
    pipeline::reach::{Reach, Stages},
    solution::SolutionStage,
    stage::{
        costs::StageCosts,
        run::{Cut, Run},
        scorer::Scorer,
    },
};

/// How devices may be given to stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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

/// The largest guess, as a multiple of the time without a memory limit.
const FAR: f64 = 4.0;

/// Whether memory limits stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Memory {
    Counts,
    /// As far as can be told without knapsacks: what a stage recomputes may be a fraction of a block.
    Relaxed,
    Free,
}

/// Finds the pipeline whose slowest stage is fastest, below `bound`.
///
/// Ties: fewer devices, then fewer replicas for the earlier stage, then the earliest cut.
pub(crate) fn best_pipeline(scorer: &Scorer, sharing: Sharing, bound: f64) -> Option<(f64, Vec<Cut>)> {
    let roomy = best_without_limit(scorer, sharing, bound)?;
    if scorer.is_roomy() {
        return Some(roomy);
    }
    best_within_memory(scorer, sharing, roomy.0, bound)
}

/// The same with a lower bound of what stages recompute: no knapsack is solved, and a stage may not fit.
pub(crate) fn relaxed_pipeline(scorer: &Scorer, sharing: Sharing, bound: f64) -> Option<(f64, Vec<Cut>)> {
    let roomy = best_without_limit(scorer, sharing, bound)?;
    if scorer.is_roomy() {
        return Some(roomy);
    }
    grow(scorer, sharing, (roomy.0, FAR), bound, Memory::Relaxed)
}

/// The same without a memory limit.
pub(crate) fn best_without_limit(scorer: &Scorer, sharing: Sharing, bound: f64) -> Option<(f64, Vec<Cut>)> {
    let machine = &scorer.problem.machine;
    let total = *scorer.states.work.last().expect("states are not empty");
    let speed = match sharing {
        Sharing::Free => machine.total_speed(),
        Sharing::Equal { stages, replicas, .. } => {
            machine.devices.iter().take(stages * replicas).map(|device| device.speed).sum()
        }
    };
    // Far above the shared work transfers take long, and few boundaries are narrow enough: the limit still prunes.
    grow(scorer, sharing, (total / speed, f64::INFINITY), bound, Memory::Free)
}

/// The same, given a lower bound of the slowest stage: its time without a memory limit, say.
pub(crate) fn best_within_memory(
    scorer: &Scorer,
    sharing: Sharing,
    least: f64,
    bound: f64,
) -> Option<(f64, Vec<Cut>)> {
    // What can be told without knapsacks leaves few stages to solve them for.
    let least = match sharing {
        Sharing::Equal { .. } if scorer.keeps_times() => {
            grow(scorer, sharing, (least, FAR), bound, Memory::Relaxed)?.0
        }
        _ => least,
    };
    // Farther above, memory is the limit: one search without a time limit decides.
    grow(scorer, sharing, (least, FAR), bound, Memory::Counts)
}

/// Raises the limit from a lower bound until a pipeline is found; beyond `far` times the bound, searches without a limit.
fn grow(
    scorer: &Scorer,
    sharing: Sharing,
    (least, far): (f64, f64),
    bound: f64,
    memory: Memory,
) -> Option<(f64, Vec<Cut>)> {
    let far = far.min(1e6);
    let layers = Layers::new(scorer, sharing);
    let stages = layers.stages(memory);
    let least = match &stages {
        Some(stages) if least > 0.0 => stages.least(least, bound)?,
        _ => least,
    };
    // Where states are told apart without knapsacks, a limit that is too low costs little.
    let (first, further) = match (&stages, memory) {
        (Some(_), _) => (1.01, 2.0),
        (None, Memory::Free) => (1.02, 3.0),
        (None, _) => (1.02, 10.0),
    };
    let mut guess = least * first;
    loop {
        let limit = if guess > least * far || guess == 0.0 { f64::INFINITY } else { guess.min(bound) };
        // Without a chain by costs that are too low there is none by the real ones.
        let reach = stages.as_ref().map(|stages| stages.reach(limit.min(bound)));
        if !matches!(reach, Some(None))
            && let Some(found) = solve(scorer, sharing, limit.min(bound), (memory, reach.flatten()))
        {
            return Some(found);
        }
        if limit >= bound || limit == f64::INFINITY {
            return None;
        }
        guess = least + (guess - least) * further;
    }
}

/// Tells whether [`best_with_before`] is quick.
pub(crate) fn has_few_with_before(scorer: &Scorer) -> bool {
    let (n_states, n_devices) = (scorer.states.len() as f64, scorer.problem.machine.devices.len() as f64);
    let most = scorer.problem.training.limits.sizes.chained_stages;
    n_states.powi(2) * n_devices.powi(3) / 12.0 <= most as f64
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
            // Only the first stage has no stage before it.
            for start in if before == 0 { 0..1 } else { 1..last } {
                let own = at(layer, start, before);
                for size in 1..=layer {
                    let costs = scorer.on(Run { first, count: size, stride: 1 }, layer);
                    for end in start + 1..n_states {
                        let is_empty = states.work[end] <= states.work[start] && total > 0.0;
                        let after = best[at(layer - size, end, size)];
                        if is_empty || after >= best[own] || !states.is_before(start, end) {
                            continue;
                        }
                        let time = after.max(costs.below(start, end, best[own]));
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

/// The device runs that stages may use, by layers: devices, or stages, from there to the end.
struct Layers<'a> {
    scorer: &'a Scorer<'a>,
    sharing: Sharing,
    count: usize,
    /// Devices that a stage may take, in layers.
    sizes: Vec<usize>,
    /// Work that the devices of the last layers do in one second.
    power: Vec<f64>,
    /// Bytes of memory of these devices.
    room: Vec<f64>,
}

impl<'a> Layers<'a> {
    fn new(scorer: &'a Scorer<'a>, sharing: Sharing) -> Self {
        let machine = &scorer.problem.machine;
        let (count, sizes): (usize, Vec<usize>) = match sharing {
            Sharing::Free => (machine.devices.len(), (1..=machine.devices.len()).collect()),
            Sharing::Equal { stages, .. } => (stages, vec![1]),
        };
        let mut layers = Self { scorer, sharing, count, sizes, power: vec![0.0], room: vec![0.0] };
        for layer in 1..=count {
            let run = layers.run(layer, 1);
            let power: f64 = run.devices().map(|device| machine.devices[device].speed).sum();
            // Replicas hold the same: the smallest counts.
            let room = run.devices().map(|device| machine.devices[device].memory.0);
            layers.power.push(layers.power[layer - 1] + power);
            layers.room.push(layers.room[layer - 1] + room.min().unwrap_or(0) as f64);
        }
        layers
    }

    fn run(&self, layer: usize, size: usize) -> Run {
        match self.sharing {
            Sharing::Free => Run { first: self.count - layer, count: size, stride: 1 },
            Sharing::Equal { stages, replicas, replicas_together: true } => {
                Run { first: (stages - layer) * replicas, count: replicas, stride: 1 }
            }
            Sharing::Equal { stages, replicas, .. } => {
                Run { first: stages - layer, count: replicas, stride: stages }
            }
        }
    }

    /// Returns what tells how far stages reach, if their number is known and states are those of one order.
    fn stages(&self, memory: Memory) -> Option<Stages<'a>> {
        let is_known = self.sharing != Sharing::Free
            && self.scorer.states.is_line()
            && !self.scorer.rules.is_asynchronous;
        let on = |layer: usize| self.scorer.on(self.run(layer, 1), self.behind(layer));
        let stages = || Stages::new((1..=self.count).map(on).collect(), memory != Memory::Free);
        is_known.then(stages).flatten()
    }

    /// Returns the number of devices from a layer to the end.
    fn behind(&self, layer: usize) -> usize {
        match self.sharing {
            Sharing::Free => layer,
            Sharing::Equal { replicas, .. } => layer * replicas,
        }
    }

    /// Returns the micro-batches in flight at a layer; if the number of devices is open, of all of them together.
    fn in_flight(&self, layer: usize) -> usize {
        let replicas = match self.sharing {
            Sharing::Free => 1,
            Sharing::Equal { replicas, .. } => replicas,
        };
        self.scorer.rules.in_flight.count(replicas, self.behind(layer))
    }

    /// Returns the states at which a stage may end if it takes at most `limit`: their transfers must fit.
    fn borders(&self, limit: f64) -> Vec<usize> {
        let states = self.scorer.states;
        let machine = &self.scorer.problem.machine;
        let rate = match self.sharing {
            Sharing::Free => machine.least_seconds_per_byte() / self.count as f64,
            Sharing::Equal { .. } => {
                let rates = (2..=self.count).map(|layer| self.scorer.place(self.run(layer, 1)).sending());
                rates.fold(f64::INFINITY, f64::min)
            }
        };
        let last = states.len() - 1;
        let bytes = |state: usize| {
            if machine.overlaps {
                states.crossing[state].max(states.crossing_back[state])
            } else {
                states.crossing[state]
            }
        };
        let is_narrow =
            |state: &usize| *state == 0 || *state == last || bytes(*state) * rate <= limit * (1.0 + 1e-9);
        (0..=last).filter(is_narrow).collect()
    }
}

/// Lower bound of the bytes between two states, whatever is recomputed or offloaded.
pub(crate) fn least_between(scorer: &Scorer, start: usize, end: usize, in_flight: usize) -> f64 {
    let (problem, parameters) = (scorer.problem, &scorer.states.parameters);
    let copies = problem.training.copies(problem.machine.devices.len());
    (parameters[end] - parameters[start]) * copies + scorer.least_held(start, end, in_flight)
}

/// Finds the best pipeline whose slowest stage takes at most `limit`; `within` bounds where its stages begin, if that is known.
fn solve(
    scorer: &Scorer,
    sharing: Sharing,
    limit: f64,
    within: (Memory, Option<Reach>),
) -> Option<(f64, Vec<Cut>)> {
    let (memory, reach) = within;
    let mut program = Program::new(scorer, sharing, limit, (memory, reach.clone()));
    // Costs that are too low tell which states no chain within the limit goes through, before knapsacks are solved.
    if memory == Memory::Counts && sharing != Sharing::Free && scorer.keeps_times() {
        let mut relaxed = Program::new(scorer, sharing, limit, (Memory::Relaxed, reach));
        (1..=relaxed.layers.count).for_each(|layer| relaxed.fill_layer(layer));
        relaxed.found()?;
        program.useful = Some(relaxed.useful());
    }
    for layer in 1..=program.layers.count {
        program.fill_layer(layer);
    }
    program.found()
}

/// The table of the dynamic program, by layers and states.
struct Program<'a> {
    scorer: &'a Scorer<'a>,
    layers: Layers<'a>,
    limit: f64,
    memory: Memory,
    /// States at which stages may begin and end, and the work before each.
    borders: Vec<usize>,
    work_at: Vec<f64>,
    /// Seconds of the slowest stage from a state to the end, and the end and devices of the first of these stages.
    best: Vec<f64>,
    came: Vec<(u32, u32)>,
    /// Which blocks may be in which stage, if blocks are pinned.
    pinned: Option<Pinned>,
    /// Where stages may begin, by costs that only grow with a stage.
    reach: Option<Reach>,
    /// Whether stages of a chain may begin at a state, by layers and states.
    useful: Option<Vec<bool>>,
    /// Ends of a stage with a lower bound of its time: positive floats sort as their bits.
    open: BinaryHeap<Reverse<(u64, usize)>>,
}

/// Sums are rounded.
const SLACK: f64 = 1.0 + 1e-9;

impl<'a> Program<'a> {
    fn new(
        scorer: &'a Scorer<'a>,
        sharing: Sharing,
        limit: f64,
        (memory, reach): (Memory, Option<Reach>),
    ) -> Self {
        let layers = Layers::new(scorer, sharing);
        let borders = layers.borders(limit);
        let work_at = borders.iter().map(|&state| scorer.states.work[state]).collect();
        let n_entries = (layers.count + 1) * scorer.states.len();
        let mut best = vec![f64::INFINITY; n_entries];
        best[scorer.states.len() - 1] = 0.0;
        let (came, open) = (vec![(NONE, 0_u32); n_entries], BinaryHeap::new());
        let problem = scorer.problem;
        let pinned = (!problem.pins.is_empty() && sharing != Sharing::Free).then(|| {
            let runs = (0..layers.count).map(|stage| layers.run(layers.count - stage, 1));
            Pinned::new(problem, scorer.states, runs)
        });
        Self {
            scorer,
            layers,
            limit,
            memory,
            borders,
            work_at,
            best,
            came,
            pinned,
            reach,
            useful: None,
            open,
        }
    }

    fn last(&self) -> usize {
        self.scorer.states.len() - 1
    }

    fn total(&self) -> f64 {
        self.scorer.states.work[self.last()]
    }

    /// Tells whether the blocks between two states may be in the stage of a layer.
    fn may_stand(&self, layer: usize, start: usize, end: usize) -> bool {
        let stage = self.layers.count - layer;
        self.pinned.as_ref().is_none_or(|pinned| pinned.allows(stage, start, end))
    }

    fn at(&self, layer: usize, state: usize) -> usize {
        layer * self.scorer.states.len() + state
    }

    /// Finds the best first stage from each state to the end on the devices of the last layers.
    fn fill_layer(&mut self, layer: usize) {
        let behind = self.layers.behind(layer);
        let scorer = self.scorer;
        let counts_memory = self.memory != Memory::Free;
        let costs_on = |layers: &Layers, size: usize| match layers.sharing {
            Sharing::Free => scorer.on(layers.run(layer, size), behind),
            Sharing::Equal { .. } => scorer.on(layers.run(layer, size), behind).with_tables(counts_memory),
        };
        // Filled for the first stage that is scored on a run: most runs have none.
        let all_costs: Vec<OnceCell<StageCosts>> =
            self.layers.sizes.iter().map(|_| OnceCell::new()).collect();
        for nth in (0..self.borders.len()).rev() {
            let start = self.borders[nth];
            if start == self.last() || self.is_out_of_reach(layer, start) {
                continue;
            }
            let mut smallest = self.limit * (1.0 + 1e-12);
            for (index, costs) in all_costs.iter().enumerate() {
                let size = self.layers.sizes[index];
                if size > layer {
                    break;
                }
                let costs = || costs.get_or_init(|| costs_on(&self.layers, size));
                let mut open = std::mem::take(&mut self.open);
                let chosen = self.best_end((layer, size, nth), &costs, &mut smallest, &mut open);
                self.open = open;
                if let Some(end) = chosen {
                    let at = self.at(layer, start);
                    self.best[at] = smallest;
                    self.came[at] = (end as u32, size as u32);
                }
            }
        }
    }

    /// Prunes a start of a stage: tells whether the blocks before it do not fit the remaining devices, or those from it on the
    /// devices from the layer to the end, within the limit.
    fn is_out_of_reach(&self, layer: usize, start: usize) -> bool {
        let (layers, limit, total) = (&self.layers, self.limit, self.total());
        let work = self.scorer.states.work[start];
        let n_layers = layers.count;
        let ahead = layers.power[n_layers] - layers.power[layer];
        let only_last = matches!(layers.sharing, Sharing::Free) || layer < n_layers || start == 0;
        if !only_last
            || self.useful.as_ref().is_some_and(|useful| !useful[self.at(layer, start)])
            || work > limit * ahead * SLACK + 1e-12 * total
            || total - work > limit * layers.power[layer] * SLACK + 1e-12 * total
        {
            return true;
        }
        if let Some(reach) = &self.reach {
            let (first, last) = reach.begins(layer);
            return start < first || start > last;
        }
        if self.memory == Memory::Free {
            return false;
        }
        let room_ahead = layers.room[n_layers] - layers.room[layer];
        let too_large_before = layer < n_layers
            && least_between(self.scorer, 0, start, layers.in_flight(layer + 1)) > room_ahead * SLACK;
        let rest = least_between(self.scorer, start, self.last(), layers.in_flight(1));
        too_large_before || rest > layers.room[layer] * SLACK
    }

    /// Tells by layers and states, once all layers are filled, whether a chain within the limit has a stage that begins there.
    fn useful(&self) -> Vec<bool> {
        let (states, total, limit) = (self.scorer.states, self.total(), self.limit * (1.0 + 1e-12));
        // Seconds of the slowest stage before a state.
        let mut before = vec![f64::INFINITY; self.best.len()];
        before[self.at(self.layers.count, 0)] = 0.0;
        for layer in (1..=self.layers.count).rev() {
            let costs = OnceCell::new();
            let costs = || {
                let on = || self.scorer.on(self.layers.run(layer, 1), self.layers.behind(layer));
                costs.get_or_init(|| on().with_tables(true))
            };
            let most = self.limit * (self.layers.power[layer] - self.layers.power[layer - 1]) * SLACK;
            for (nth, &start) in self.borders.iter().enumerate() {
                let (at, work) = (self.at(layer, start), states.work[start]);
                if before[at].max(self.best[at]) == f64::INFINITY {
                    continue;
                }
                for &end in &self.borders[nth + 1..] {
                    let next = self.at(layer - 1, end);
                    if states.work[end] - work > most + 1e-12 * total {
                        break;
                    }
                    let is_empty = states.work[end] <= work && total > 0.0;
                    if is_empty
                        || self.best[next] == f64::INFINITY
                        || before[next] <= before[at]
                        || !self.may_stand(layer, start, end)
                    {
                        continue;
                    }
                    let time = before[at].max(costs().at_least(start, end).0);
                    if time <= limit {
                        before[next] = before[next].min(time);
                    }
                }
            }
        }
        before.iter().zip(&self.best).map(|(before, rest)| before.max(*rest) < f64::INFINITY).collect()
    }

    /// Returns the best end of the stage that begins at a border on `size` devices, if it takes less than `smallest`; lowers
    /// `smallest` to its time.
    fn best_end<'t>(
        &self,
        (layer, size, nth): (usize, usize, usize),
        costs: &dyn Fn() -> &'t StageCosts<'t>,
        smallest: &mut f64,
        open: &mut BinaryHeap<Reverse<(u64, usize)>>,
    ) -> Option<usize> {
        let (states, total, rest) = (self.scorer.states, self.total(), layer - size);
        let start = self.borders[nth];
        let work = states.work[start];
        let own = self.layers.power[layer] - self.layers.power[rest];
        // Prune to the ends at which neither side has more work than it can do within the bound.
        let low = work.max(total - *smallest * self.layers.power[rest] * SLACK - 1e-12 * total);
        let first = self.work_at.partition_point(|&value| value < low).max(nth + 1);
        let (earliest, latest) = self.reach.as_ref().map_or((0, self.last()), |reach| reach.begins(rest));
        let first = first.max(self.borders.partition_point(|&border| border < earliest));
        open.clear();
        let mut chosen = None;
        for &end in &self.borders[first.min(self.borders.len())..] {
            if end > latest || states.work[end] - work > *smallest * own * SLACK + 1e-12 * total {
                break;
            }
            // A stage without work would only pass values on.
            if states.work[end] <= work && total > 0.0 {
                continue;
            }
            let after = self.best[self.at(rest, end)];
            if after >= *smallest || !self.may_stand(layer, start, end) {
                continue;
            }
            let least = after.max(costs().least(start, end));
            let (time, is_all) = match self.memory {
                Memory::Counts if least < *smallest => costs().at_least(start, end),
                Memory::Relaxed if least < *smallest => (costs().at_least(start, end).0, true),
                _ => (least, true),
            };
            let time = after.max(time);
            if time < *smallest && is_all {
                (*smallest, chosen) = (time, Some(end));
            } else if time < *smallest {
                open.push(Reverse((time.to_bits(), end)));
            }
        }
        // Knapsacks are solved only for ends that may be the best, the least lower bound first.
        while let Some(Reverse((least, end))) = open.pop() {
            if f64::from_bits(least) > *smallest {
                break;
            }
            let time = self.best[self.at(rest, end)].max(costs().within_memory(start, end));
            if time < *smallest || time == *smallest && chosen.is_some_and(|chosen| end < chosen) {
                (*smallest, chosen) = (time, Some(end));
            }
        }
        chosen
    }

    /// Returns the best pipeline of the table.
    fn found(&self) -> Option<(f64, Vec<Cut>)> {
        let layers = &self.layers;
        let firsts = match layers.sharing {
            Sharing::Free => 1..=layers.count,
            Sharing::Equal { .. } => layers.count..=layers.count,
        };
        let of = |layer: usize| self.best[self.at(layer, 0)];
        let found = firsts.min_by(|&a, &b| of(a).total_cmp(&of(b)))?;
        if of(found) == f64::INFINITY {
            return None;
        }
        let mut cuts = Vec::new();
        let (mut layer, mut start) = (found, 0);
        while start != self.last() {
            let (end, size) = self.came[self.at(layer, start)];
            let (end, size) = (end as usize, size as usize);
            cuts.push(Cut { start, end, run: layers.run(layer, size), behind: layers.behind(layer) });
            start = end;
            layer -= size;
        }
        Some((of(found), cuts))
    }
}

/// Scores cuts.
pub(crate) fn stages_of(scorer: &Scorer, cuts: &[Cut]) -> Vec<SolutionStage> {
    let stage = |cut: &Cut| {
        let score = scorer.on(cut.run, cut.behind).score(cut.start, cut.end)?;
        Some(SolutionStage { blocks: scorer.states.blocks(cut.start, cut.end), run: cut.run, score })
    };
    cuts.iter().filter_map(stage).collect()
}

#[cfg(test)]
mod tests {
    use schema::Bytes;
    use simulator::order::InFlight;

    use super::*;
    use crate::{
        dag::cut_states::States,
        oracle::random_problems::{Dice, cases, is_skipped, problem},
        stage::{place::Neighbours, score::Rules},
    };

    /// Costs that are too low leave out no chain that is as fast as the best.
    #[test]
    fn what_is_left_out_is_no_faster() {
        let mut dice = Dice(71);
        let (mut n_found, mut n_pruned) = (0, 0);
        for case in 0..cases(400) {
            let (n_blocks, stages) = (3 + dice.below(8) as usize, 2 + dice.below(3) as usize);
            let is_uniform = dice.flip();
            let mut problem = problem(&mut dice, n_blocks, stages, false, is_uniform);
            problem.training.recompute = dice.flip();
            let memory = 80 + dice.below(400);
            problem.machine.devices.iter_mut().for_each(|device| device.memory = Bytes(memory));
            if is_skipped(case) {
                continue;
            }
            let all = States::line(&problem, (0..n_blocks).collect());
            let in_flight = if case % 2 == 0 { InFlight::Split(2) } else { InFlight::Depth(4) };
            let rules = Rules { is_asynchronous: false, in_flight, neighbours: Neighbours::Paired };
            let sharing = Sharing::Equal { stages, replicas: 1, replicas_together: true };
            let scorer = Scorer::new(&problem, &all, rules);
            let mut whole = Program::new(&scorer, sharing, f64::INFINITY, (Memory::Counts, None));
            (1..=whole.layers.count).for_each(|layer| whole.fill_layer(layer));
            let whole = whole.found();
            let seconds = |found: &Option<(f64, Vec<Cut>)>| found.as_ref().map(|found| found.0);
            let again = Scorer::new(&problem, &all, rules);
            let pruned = best_pipeline(&again, sharing, f64::INFINITY);
            assert_eq!(seconds(&pruned), seconds(&whole), "case {case}: {pruned:?} {whole:?}");
            let stages = Layers::new(&again, sharing).stages(Memory::Counts).unwrap();
            let Some((slowest, cuts)) = whole else { continue };
            n_found += 1;
            let reach = stages.reach(slowest).unwrap();
            for (nth, cut) in cuts.iter().enumerate() {
                let (first, last) = reach.begins(cuts.len() - nth);
                assert!((first..=last).contains(&cut.start), "case {case}: {cut:?} {first} {last}");
                n_pruned += usize::from(last - first + 1 < n_blocks);
            }
        }
        assert!(is_skipped(0) || n_found.min(n_pruned) > 50, "{n_found} {n_pruned}");
    }
}
