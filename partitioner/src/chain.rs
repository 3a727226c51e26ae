//! Long chains on many equal devices: parametric search instead of a table.
//!
//! Ask "can every stage keep within T?" and walk: with m devices used, keep the frontier of (position, bytes that cross
//! there); farther and fewer is better. A stage of r devices from a position reaches as far as its compute, its
//! all-reduce and its port allow; positions before that matter only where fewer bytes cross, and those are linked in a list.
//! After Nicol, "Rectilinear partitioning of irregular data parallel computations", 1994, with replication added.
//!
//! Cost: O(M²) stages a question, each a short walk from where the last search for r ended. A few replica counts alone give a
//! first plan; the full question is then asked just below it, and only if the answer is yes again.
//! Exact to 1e-10; no table over positions, so 100,000 blocks on 4,096 devices take under a second.

use schema::{BytesPerSecond, Seconds};

use crate::{
    MachineLevel,
    collective::{depth, ring, tree},
    pipeline::Cut,
    stage::{Run, Scorer},
};

/// A point of the frontier.
#[derive(Clone, Copy, Debug)]
struct Point {
    position: u32,
    /// Point it came from, and the replicas of the stage between.
    came: u32,
    replicas: u32,
    devices: u32,
}

/// Numbers of the chain that the walk needs.
struct Chain<'a> {
    work: &'a [f64],
    parameters: &'a [f64],
    crossing: &'a [f64],
    /// The nearest earlier position where fewer bytes cross.
    fewer: Vec<u32>,
    n_devices: usize,
    speed: f64,
    bandwidth: f64,
    latency: f64,
    synchronises: bool,
}

/// What a stage of some replicas can take within the time that is asked for.
struct Limits {
    count: usize,
    work: f64,
    parameters: f64,
    bytes: f64,
}

/// Puts replica counts together that differ by an eighth at most, with the most parameters any of them can take.
fn groups(limits: &[Limits]) -> Vec<(std::ops::Range<usize>, f64)> {
    let mut groups: Vec<(std::ops::Range<usize>, f64)> = Vec::new();
    for (index, own) in limits.iter().enumerate() {
        match groups.last_mut() {
            Some((members, most)) if own.count * 8 <= limits[members.start].count * 9 => {
                members.end = index + 1;
                *most = most.max(own.parameters);
            }
            _ => groups.push((index..index + 1, own.parameters)),
        }
    }
    groups
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

/// Finds the pipeline whose slowest stage is fastest, memory left aside; exact for one order of the blocks.
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
    let chain = Chain {
        work: &scorer.states.work,
        parameters: &scorer.states.parameters,
        crossing,
        fewer,
        n_devices: machine.devices.len(),
        speed: machine.devices[0].speed,
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
    let floor = total / (chain.n_devices as f64 * chain.speed);
    // One device can always do it all.
    let mut best = chain.within(total / chain.speed * (1.0 + 1e-9) + f64::MIN_POSITIVE, &few)?;
    let mut low = floor * (1.0 - 1e-12);
    while best.0 - low > 1e-10 * best.0 {
        let middle = if best.0 > 4.0 * low { low.max(floor) * 2.0 } else { (low + best.0) / 2.0 };
        match chain.within(middle, &few) {
            Some(better) => best = better,
            None => low = middle,
        }
    }
    let all: Vec<usize> = (1..=chain.n_devices).collect();
    let mut low = floor * (1.0 - 1e-12);
    let mut is_first = true;
    while best.0 - low > 1e-10 * best.0 {
        let target = if is_first { best.0 * (1.0 - 1e-11) } else { (low + best.0) / 2.0 };
        is_first = false;
        match chain.within(target, &all) {
            Some(better) => {
                best = better;
                // Most of the time a little below what was found is enough to know.
                is_first = best.0 - low < 1e-6 * best.0;
            }
            None => low = target,
        }
    }
    Some(best)
}

impl Chain<'_> {
    /// Most parameters that `replicas` can synchronise within `time` each micro-batch.
    fn parameters_within(&self, time: f64, replicas: f64) -> f64 {
        if !self.synchronises || replicas == 1.0 {
            return f64::INFINITY;
        }
        // Whichever of ring and tree takes more.
        let left = time * replicas - 2.0 * (replicas - 1.0) * self.latency;
        let ring = left * self.bandwidth * replicas / (2.0 * (replicas - 1.0));
        let left = time * replicas - 2.0 * depth(replicas as usize) * self.latency;
        ring.max(left * self.bandwidth / 2.0)
    }

    /// Finds a pipeline whose stages take at most `time`, with these replica counts.
    fn within(&self, time: f64, counts: &[usize]) -> Option<(f64, Vec<Cut>)> {
        let last = self.work.len() - 1;
        let total = self.work[last];
        let slack = 1.0 + 1e-15;
        let mut points = vec![Point { position: 0, came: u32::MAX, replicas: 0, devices: 0 }];
        // New points by devices used; the frontier of all so far, by growing position and bytes.
        let mut fresh: Vec<Vec<u32>> = vec![Vec::new(); self.n_devices + 1];
        fresh[0].push(0);
        let mut frontier: Vec<(u32, f64)> = Vec::new();
        let mut reached = vec![0_usize; self.n_devices + 1];
        let limits: Vec<Limits> = counts
            .iter()
            .map(|&count| {
                let replicas = count as f64;
                Limits {
                    count,
                    work: time * replicas * self.speed * slack,
                    parameters: self.parameters_within(time, replicas) * slack,
                    bytes: time * self.bandwidth * replicas * slack,
                }
            })
            .collect();
        let groups = groups(&limits);
        let mut hints = vec![0_usize; groups.len()];
        let mut ends = Vec::new();
        for devices in 0..self.n_devices {
            let ready = std::mem::take(&mut fresh[devices]);
            for index in ready {
                let point = points[index as usize];
                let position = point.position as usize;
                // What is left must fit the devices that are left, and no earlier point may be as good.
                let left = time * (self.n_devices - devices) as f64 * self.speed * slack;
                let spare = left - (total - self.work[position]);
                if spare < 0.0 || is_dominated(&frontier, point.position, self.crossing[position]) {
                    continue;
                }
                add(&mut frontier, point.position, self.crossing[position]);
                for ((members, most), hint) in groups.iter().zip(&mut hints) {
                    // The least that these stages must do may hold more than any of them can synchronise.
                    let least = self.work[position] + limits[members.start].work - spare;
                    if least > self.work[position] {
                        *hint = self.reach(self.work, least, (*hint).max(position));
                        if self.parameters[*hint] - self.parameters[position] > *most {
                            continue;
                        }
                    }
                    for limits in &limits[members.clone()] {
                        let used = devices + limits.count;
                        if used > self.n_devices {
                            break;
                        }
                        let rest = (self.n_devices - used) as f64 * self.speed;
                        let least = total - time * rest * slack;
                        self.ends(position, limits, least, &mut reached[limits.count], &mut ends);
                        for &end in &ends {
                            let (replicas, devices) = (limits.count as u32, used as u32);
                            let next = Point { position: end as u32, came: index, replicas, devices };
                            if end == last {
                                return Some(self.cuts(&points, next));
                            }
                            if !is_dominated(&frontier, next.position, self.crossing[end]) {
                                fresh[used].push(points.len() as u32);
                                points.push(next);
                            }
                        }
                    }
                }
            }
        }
        None
    }

    /// Finds where a stage can end: as far as it reaches, and before that wherever fewer bytes cross.
    fn ends(&self, position: usize, limits: &Limits, least: f64, reached: &mut usize, ends: &mut Vec<usize>) {
        ends.clear();
        let last = self.work.len() - 1;
        let mut end = self.reach(self.work, self.work[position] + limits.work, (*reached).max(position));
        *reached = end;
        if self.parameters[end] - self.parameters[position] > limits.parameters {
            let most = self.parameters[position] + limits.parameters;
            end = self.parameters[..=end].partition_point(|&value| value <= most).max(1) - 1;
        }
        let own = if position == 0 { 0.0 } else { self.crossing[position] };
        let room = limits.bytes - own;
        let mut fewest = f64::INFINITY;
        while end > position && self.work[end] >= least {
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

    /// Follows a point back, and times its slowest stage.
    fn cuts(&self, points: &[Point], end: Point) -> (f64, Vec<Cut>) {
        let mut cuts = Vec::new();
        let mut slowest = 0.0_f64;
        let used = end.devices as usize;
        let mut point = end;
        while point.came != u32::MAX {
            let before = points[point.came as usize];
            let (start, end) = (before.position as usize, point.position as usize);
            let replicas = f64::from(point.replicas);
            let compute = (self.work[end] - self.work[start]) / self.speed / replicas;
            let parameters = self.parameters[end] - self.parameters[start];
            let sync = match self.synchronises {
                true if replicas > 1.0 && parameters > 0.0 => {
                    let level = MachineLevel {
                        bandwidth: BytesPerSecond(self.bandwidth),
                        latency: Seconds(self.latency),
                    };
                    let count = replicas as usize;
                    ring(parameters, count, level).min(tree(parameters, count, level)) / replicas
                }
                _ => 0.0,
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

/// Tells whether a point of the frontier lies as far with as few bytes. The frontier grows in both.
fn is_dominated(frontier: &[(u32, f64)], position: u32, crossing: f64) -> bool {
    let index = frontier.partition_point(|&(other, _)| other < position);
    frontier.get(index).is_some_and(|&(_, bytes)| bytes <= crossing)
}

fn add(frontier: &mut Vec<(u32, f64)>, position: u32, crossing: f64) {
    let index = frontier.partition_point(|&(other, _)| other <= position);
    // Those not as far with as many bytes or more are of no more use.
    let kept = frontier[..index].partition_point(|&(_, bytes)| bytes < crossing);
    frontier.splice(kept..index, [(position, crossing)]);
}
