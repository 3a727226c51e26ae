//! Long chains on many equal devices: parametric search instead of a table.
//!
//! Ask "can every stage keep within T?" and walk: with m devices used, keep the frontier of (position, bytes that cross there);
//! farther and fewer is better. A stage of r devices from a position reaches as far as its compute, its all-reduce and its port
//! allow; positions before that matter only where fewer bytes cross, and those are linked in a list. After Nicol, "Rectilinear
//! partitioning of irregular data parallel computations", 1994, with replication added.
//!
//! Before each walk a quicker one from the end, which ignores transfers, bounds for each m the earliest position from which m
//! devices suffice; a stage that does not reach it is pruned. A few replica counts give a first plan; all counts are then tried
//! just below its time, and the counts of a better plan are added to the few.
//!
//! From one position, more replicas must get farther than fewer: this prunes most counts at once.
//!
//! Cost: O(M²) comparisons at worst for a walk with all counts, of which there are two or three; O(M · few) for the others. Exact
//! to 1e-10; no table over positions.

use schema::{BytesPerSecond, Seconds};

use crate::{
    MachineLevel,
    stage::{
        collective::{depth, ring, tree},
        run::{Cut, Run},
        scorer::Scorer,
    },
};

/// A point of the frontier.
#[derive(Clone, Copy, Debug)]
struct Point {
    position: u32,
    /// Point before it, and the replicas of the stage between the two.
    came: u32,
    replicas: u32,
    devices: u32,
}

/// Tables of the chain for the walk.
struct Chain<'a> {
    /// Work before each position, with the optimizer's step of every round as work of the device.
    work: Vec<f64>,
    parameters: &'a [f64],
    crossing: &'a [f64],
    /// Host overhead of a stage's passes, as work of the device.
    host: f64,
    /// The nearest earlier position where fewer bytes cross.
    fewer: Vec<u32>,
    /// The nearest later one.
    fewer_later: Vec<u32>,
    n_devices: usize,
    speed: f64,
    bandwidth: f64,
    latency: f64,
    synchronises: bool,
}

/// Limits of a stage with some replicas within the time asked for.
struct Limits {
    count: usize,
    work: f64,
    parameters: f64,
    /// Most parameters for this count or any smaller one above 1.
    most_parameters: f64,
    bytes: f64,
}

/// Tells whether the walk can answer for this problem: equal devices, overlap, the same bytes both ways.
pub(crate) fn can_walk(scorer: &Scorer) -> bool {
    let machine = &scorer.problem.machine;
    machine.is_uniform()
        && machine.overlaps
        && scorer.problem.ties.is_empty()
        && scorer.states.crossing == scorer.states.crossing_back
        && scorer.states.blocks(0, 1).len() == 1
}

/// Finds the pipeline whose slowest stage is fastest, without a memory limit; exact for one order of the blocks.
pub(crate) fn best_chain(scorer: &Scorer) -> Option<(f64, Vec<Cut>)> {
    let machine = &scorer.problem.machine;
    let level = machine.slowest(&[0, machine.devices.len() - 1]);
    let crossing = &scorer.states.crossing;
    let mut fewer = vec![0_u32; crossing.len()];
    for position in 1..crossing.len() {
        let mut earlier = position - 1;
        while earlier > 0 && crossing[earlier] >= crossing[position] {
            earlier = fewer[earlier] as usize;
        }
        fewer[position] = earlier as u32;
    }
    let mut fewer_later = vec![0_u32; crossing.len()];
    for position in (0..crossing.len()).rev() {
        let mut later = position + 1;
        while later < crossing.len() && crossing[later] >= crossing[position] {
            later = fewer_later[later] as usize;
        }
        fewer_later[position] = later as u32;
    }
    let device = &machine.devices[0];
    // Without a flush each micro-batch updates; with one, each adds its gradients to those before it.
    let training = &scorer.problem.training;
    let touched = if scorer.rules.is_asynchronous { training.touched() } else { training.accumulated() };
    let in_memory = touched / device.memory_bandwidth.0 * device.speed;
    let sums = scorer.states.work.iter().zip(&scorer.states.parameters);
    let chain = Chain {
        work: sums.map(|(work, parameters)| work + parameters * in_memory).collect(),
        parameters: &scorer.states.parameters,
        crossing,
        host: scorer.problem.host_of_two() * device.speed,
        fewer,
        fewer_later,
        n_devices: machine.devices.len(),
        speed: device.speed,
        bandwidth: level.map_or(f64::INFINITY, |level| level.bandwidth.0),
        latency: level.map_or(0.0, |level| level.latency.0),
        synchronises: scorer.rules.is_asynchronous,
    };
    // First a few counts, then all.
    let mut few: Vec<usize> = (1..=4).collect();
    while few.last().is_some_and(|&last| last < chain.n_devices) {
        few.push(few[few.len() - 1] * 5 / 4 + 1);
    }
    few.retain(|&count| count <= chain.n_devices);
    if !few.contains(&chain.n_devices) {
        few.push(chain.n_devices);
    }
    let total = chain.work[chain.work.len() - 1];
    let by_work = total / (chain.n_devices as f64 * chain.speed) * (1.0 - 1e-12);
    // Raise the time from the shared work: infeasible times are refuted quickly. One device can do all within `alone`.
    let alone = (total + chain.host) / chain.speed * (1.0 + 1e-9) + f64::MIN_POSITIVE;
    let mut low = by_work;
    let mut share = 1e-3;
    let mut best = loop {
        let target = alone.min(by_work * (1.0 + share));
        match chain.within(target, &few) {
            Some(found) => break found,
            None if target >= alone => return None,
            None => low = target,
        }
        share = if by_work > 0.0 { share * 2.0 } else { f64::INFINITY };
    };
    chain.search(low, &mut best, &few);
    // A time that is infeasible for a few counts may be feasible for all.
    low = by_work;
    let all: Vec<usize> = (1..=chain.n_devices).collect();
    for round in 0.. {
        // Just below the best time; after six rounds, bisect.
        let target = if round < 6 { best.0 * (1.0 - 1e-11) } else { (low + best.0) / 2.0 };
        if target <= low || best.0 - low <= 1e-10 * best.0 {
            break;
        }
        let Some(better) = chain.within(target, &all) else {
            low = target;
            continue;
        };
        best = better;
        let n_few = few.len();
        few.extend(best.1.iter().map(|cut| cut.run.count));
        few.sort_unstable();
        few.dedup();
        if few.len() > n_few {
            let near = chain.near(low, &mut best, &few);
            chain.search(near, &mut best, &few);
        }
    }
    Some(best)
}

impl Chain<'_> {
    /// Bisects the time for these replica counts.
    fn search(&self, mut low: f64, best: &mut (f64, Vec<Cut>), counts: &[usize]) {
        // There are few distinct plans: close to `low`, test just below the best instead of the middle.
        let mut near = 1e-4;
        while best.0 - low > 1e-10 * best.0 {
            let middle = if best.0 > 4.0 * low { low.max(best.0 * 1e-3) * 2.0 } else { (low + best.0) / 2.0 };
            let below = best.0 * (1.0 - 1e-11);
            let target = if best.0 - low < near * best.0 { below } else { middle.min(below) };
            if target == below {
                near /= 16.0;
            }
            match self.within(target, counts) {
                Some(better) => *best = better,
                None => low = target,
            }
        }
    }

    /// Lowers the time in growing steps; returns a time that is infeasible for these counts.
    fn near(&self, low: f64, best: &mut (f64, Vec<Cut>), counts: &[usize]) -> f64 {
        let mut step = 1e-4;
        loop {
            let target = best.0 * (1.0 - step);
            if target <= low {
                return low;
            }
            match self.within(target, counts) {
                Some(better) => *best = better,
                None => return target,
            }
            step = f64::min(4.0 * step, 0.5);
        }
    }

    /// Returns the limits of stages with these replica counts within a time.
    fn limits(&self, time: f64, counts: &[usize]) -> Vec<Limits> {
        let slack = 1.0 + 1e-15;
        let mut most = 0.0_f64;
        let limits = counts.iter().map(|&count| {
            let replicas = count as f64;
            let parameters = self.parameters_within(time, replicas) * slack;
            most = if count > 1 { most.max(parameters) } else { most };
            Limits {
                count,
                work: time * replicas * self.speed * slack - self.host,
                parameters,
                most_parameters: most,
                bytes: time * self.bandwidth * replicas * slack,
            }
        });
        limits.collect()
    }

    /// Returns work and parameters that each device adds to a stage's limit, at the most: `n` devices take no more than `n + 2`
    /// shares.
    fn shares(&self, time: f64) -> (f64, f64) {
        let slack = 1.0 + 1e-12;
        (time * self.speed * slack, time * self.bandwidth / 2.0 * slack)
    }

    /// Returns, for each number of devices left, the earliest position from which they might suffice without transfers; `None` if
    /// all devices do not.
    ///
    /// The rest of the chain must fit the devices left; a stage reaches back as far as its work and parameters allow, and begins
    /// where its transfers fit.
    fn earliest(&self, time: f64, limits: &[Limits]) -> Option<Vec<u32>> {
        let last = self.work.len() - 1;
        // Sums are rounded: the bound must not prune a stage that the walk would accept.
        let slack = 1.0 + 1e-9;
        let mut by_work = last;
        let mut earliest = vec![last as u32; self.n_devices + 1];
        // By devices left: parameters before the earliest position plus the shares of these devices, the least so far.
        let (_, share) = self.shares(time);
        let rounding = 1e-12 * self.parameters[last];
        let mut least_parameters = vec![self.parameters[last]];
        for left in 1..=self.n_devices {
            let least = self.work[last] - time * left as f64 * self.speed * slack;
            by_work = back(&self.work, by_work, |&value| value >= least);
            let mut best = earliest[left - 1] as usize;
            for limits in limits.iter().take_while(|limits| limits.count <= left) {
                if best <= by_work {
                    break;
                }
                // Prune: no stage of this many replicas or more reaches back.
                let most = self.parameters[best - 1] + share * (left + 2) as f64 + rounding;
                if self.synchronises && limits.count > 1 && least_parameters[left - limits.count] > most {
                    break;
                }
                let end = earliest[left - limits.count] as usize;
                let work = self.work[end] - limits.work * slack;
                let parameters = self.parameters[end] - limits.parameters * slack;
                if self.work[best - 1] < work || self.parameters[best - 1] < parameters {
                    continue;
                }
                let start = back(&self.work, best - 1, |&value| value >= work);
                let mut start =
                    back(&self.parameters[start..], best - 1 - start, |&value| value >= parameters) + start;
                while start < best && self.crossing[start] > limits.bytes {
                    start = self.fewer_later[start] as usize;
                }
                best = best.min(start);
            }
            let begin = best.max(by_work);
            earliest[left] = begin as u32;
            least_parameters
                .push(least_parameters[left - 1].min(self.parameters[begin] + share * left as f64));
        }
        (earliest[self.n_devices] == 0).then_some(earliest)
    }

    /// Most parameters that `replicas` can synchronise within `time` each micro-batch.
    fn parameters_within(&self, time: f64, replicas: f64) -> f64 {
        if !self.synchronises || replicas == 1.0 {
            return f64::INFINITY;
        }
        // The slower of ring and tree.
        let left = time * replicas - 2.0 * (replicas - 1.0) * self.latency;
        let ring = left * self.bandwidth * replicas / (2.0 * (replicas - 1.0));
        let left = time * replicas - 2.0 * depth(replicas as usize) * self.latency;
        ring.max(left * self.bandwidth / 2.0)
    }

    /// Finds a pipeline whose stages take at most `time`, with these replica counts in ascending order.
    fn within(&self, time: f64, counts: &[usize]) -> Option<(f64, Vec<Cut>)> {
        let last = self.work.len() - 1;
        let limits = self.limits(time, counts);
        let earliest = self.earliest(time, &limits)?;
        let begins: Vec<(f64, f64)> =
            earliest.iter().map(|&at| (self.work[at as usize], self.parameters[at as usize])).collect();
        let within_reach = WithinReach::new(self, time, &begins);
        let mut points = vec![Point { position: 0, came: u32::MAX, replicas: 0, devices: 0 }];
        // New points by devices used, as lists through `next`; the frontier of all so far, by growing position and bytes.
        let mut next = vec![u32::MAX];
        let mut fresh = vec![u32::MAX; self.n_devices + 1];
        fresh[0] = 0;
        let mut frontier: Vec<(u32, f64)> = Vec::new();
        let mut reached = vec![0_usize; limits.len()];
        let mut ends = Vec::new();
        let mut ready = Vec::new();
        for devices in 0..self.n_devices {
            ready.clear();
            let mut index = fresh[devices];
            while index != u32::MAX {
                ready.push(index);
                index = next[index as usize];
            }
            let left = self.n_devices - devices;
            for &index in ready.iter().rev() {
                let point = points[index as usize];
                let position = point.position as usize;
                let is_late = point.position < earliest[left];
                if is_late || is_dominated(&frontier, point.position, self.crossing[position]) {
                    continue;
                }
                add(&mut frontier, point.position, self.crossing[position]);
                let own = (self.work[position], self.parameters[position]);
                // More replicas must get farther than fewer: a nearer position is reached with as few bytes.
                let mut farthest = position;
                let mut at_count = 0;
                while let Some(count) = limits.get(at_count).filter(|limits| limits.count <= left) {
                    let used = devices + count.count;
                    if !within_reach.is_any(own, devices, count.count) {
                        break;
                    }
                    let beyond = (self.work[farthest + 1], self.parameters[farthest + 1]);
                    if own.0 + count.work < beyond.0 || own.1 + count.parameters < beyond.1 {
                        let is_less = |limits: &Limits| {
                            own.0 + limits.work < beyond.0 || own.1 + limits.most_parameters < beyond.1
                        };
                        let rest = &limits[at_count + 1..];
                        at_count += 1 + rest.partition_point(is_less);
                        continue;
                    }
                    let reached = &mut reached[at_count];
                    at_count += 1;
                    let (work, parameters) = begins[self.n_devices - used];
                    if work - own.0 > count.work || parameters - own.1 > count.parameters {
                        continue;
                    }
                    let least = (earliest[self.n_devices - used] as usize).max(farthest + 1);
                    self.ends(position, count, least, reached, &mut ends);
                    farthest = ends.first().map_or(farthest, |&end| end);
                    for &end in &ends {
                        let (replicas, devices) = (count.count as u32, used as u32);
                        let found = Point { position: end as u32, came: index, replicas, devices };
                        if end == last {
                            return Some(self.cuts(&points, found));
                        }
                        if !is_dominated(&frontier, found.position, self.crossing[end]) {
                            next.push(std::mem::replace(&mut fresh[used], points.len() as u32));
                            points.push(found);
                        }
                    }
                }
            }
        }
        None
    }

    /// Finds the ends of a stage: the farthest, and before it those where fewer bytes cross.
    fn ends(
        &self,
        position: usize,
        limits: &Limits,
        least: usize,
        reached: &mut usize,
        ends: &mut Vec<usize>,
    ) {
        ends.clear();
        let last = self.work.len() - 1;
        let mut end = self.reach(&self.work, self.work[position] + limits.work, (*reached).max(position));
        *reached = end;
        if self.parameters[end] - self.parameters[position] > limits.parameters {
            let most = self.parameters[position] + limits.parameters;
            end = self.reach(&self.parameters[..=end], most, position);
        }
        let own = if position == 0 { 0.0 } else { self.crossing[position] };
        let room = limits.bytes - own;
        let mut fewest = f64::INFINITY;
        while end > position && end >= least {
            let crossing = if end == last { 0.0 } else { self.crossing[end] };
            if crossing <= room && crossing < fewest {
                fewest = crossing;
                ends.push(end);
            }
            end = if end == last { end - 1 } else { self.fewer[end] as usize };
        }
    }

    /// Returns the last position whose sum is at most `most`, searching on from `from`.
    fn reach(&self, sums: &[f64], most: f64, from: usize) -> usize {
        let last = sums.len() - 1;
        let mut low = from;
        if sums[low] > most {
            // An earlier walk went further: search from the beginning.
            return sums[..low].partition_point(|&value| value <= most).max(1) - 1;
        }
        let mut step = 1;
        while low + step <= last && sums[low + step] <= most {
            low += step;
            step *= 2;
        }
        let high = (low + step).min(last + 1);
        low + sums[low..high].partition_point(|&value| value <= most) - 1
    }

    /// Follows the points back to cuts, and times the slowest stage.
    fn cuts(&self, points: &[Point], end: Point) -> (f64, Vec<Cut>) {
        let mut cuts = Vec::new();
        let mut slowest = 0.0_f64;
        let used = end.devices as usize;
        let mut point = end;
        while point.came != u32::MAX {
            let before = points[point.came as usize];
            let (start, end) = (before.position as usize, point.position as usize);
            let replicas = f64::from(point.replicas);
            let compute = (self.work[end] - self.work[start] + self.host) / self.speed / replicas;
            let parameters = self.parameters[end] - self.parameters[start];
            let sync = if self.synchronises && replicas > 1.0 && parameters > 0.0 {
                let level = MachineLevel {
                    bandwidth: BytesPerSecond(self.bandwidth),
                    latency: Seconds(self.latency),
                };
                let count = replicas as usize;
                ring(parameters, count, level).min(tree(parameters, count, level)) / replicas
            } else {
                0.0
            };
            let last = self.work.len() - 1;
            let crossing = |position: usize| {
                if position == 0 || position == last { 0.0 } else { self.crossing[position] }
            };
            let transfer = (crossing(start) + crossing(end)) / self.bandwidth / replicas;
            slowest = slowest.max(compute).max(sync).max(transfer);
            let run = Run { first: before.devices as usize, count: point.replicas as usize, stride: 1 };
            cuts.push(Cut { start, end, run, behind: used - before.devices as usize });
            point = before;
        }
        cuts.reverse();
        (slowest, cuts)
    }
}

/// Prunes replica counts: whether some stage of at least so many replicas can get as far as needed.
struct WithinReach {
    /// Work and parameters of one device's share.
    share: (f64, f64),
    rounding: (f64, f64),
    /// By devices used: the least work and parameters that must be done by then, less the devices' shares, over this and all
    /// larger numbers.
    least: Vec<(f64, f64)>,
    synchronises: bool,
}

impl WithinReach {
    fn new(chain: &Chain, time: f64, begins: &[(f64, f64)]) -> Self {
        let share = chain.shares(time);
        let last = chain.work.len() - 1;
        let mut least = vec![(f64::INFINITY, f64::INFINITY); begins.len() + 1];
        for used in (0..begins.len()).rev() {
            let (work, parameters) = begins[begins.len() - 1 - used];
            let devices = used as f64;
            let (later_work, later_parameters) = least[used + 1];
            least[used] = (
                later_work.min(work - share.0 * devices),
                later_parameters.min(parameters - share.1 * devices),
            );
        }
        let rounding = (1e-12 * chain.work[last], 1e-12 * chain.parameters[last]);
        Self { share, rounding, least, synchronises: chain.synchronises && share.1.is_finite() }
    }

    /// Tells whether a stage of at least `count` replicas may suffice, if the `devices` before it have taken `own`.
    fn is_any(&self, own: (f64, f64), devices: usize, count: usize) -> bool {
        let least = self.least[devices + count];
        let before = devices as f64;
        let is_enough = least.0 <= own.0 - self.share.0 * before + self.rounding.0;
        let synchronised = own.1 - self.share.1 * (before - 2.0) + self.rounding.1;
        is_enough && (!self.synchronises || count == 1 || least.1 <= synchronised)
    }
}

/// Returns the first position of the run up to `from` in which all sums satisfy the condition; `from` does.
fn back(sums: &[f64], from: usize, is_wanted: impl Fn(&f64) -> bool) -> usize {
    let mut step = 1;
    while step <= from && is_wanted(&sums[from - step]) {
        step *= 2;
    }
    let low = from.saturating_sub(step);
    low + sums[low..=from].partition_point(|value| !is_wanted(value))
}

/// Tells whether a point of the frontier lies as far with as few bytes. The frontier grows in both.
fn is_dominated(frontier: &[(u32, f64)], position: u32, crossing: f64) -> bool {
    let index = frontier.partition_point(|&(other, _)| other < position);
    frontier.get(index).is_some_and(|&(_, bytes)| bytes <= crossing)
}

fn add(frontier: &mut Vec<(u32, f64)>, position: u32, crossing: f64) {
    let index = frontier.partition_point(|&(other, _)| other <= position);
    // Points no farther with as many bytes or more are dominated.
    let kept = frontier[..index].partition_point(|&(_, bytes)| bytes < crossing);
    frontier.splice(kept..index, [(position, crossing)]);
}
