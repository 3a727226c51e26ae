//! The least time of one request: stages one after the other; devices that do not help are left out.
//!
//! Compute and transfers of all stages add up: `L(k, j) = min over i, k' of L(k', i) + hop(k', k) + stage(i..j)`, in O(k·Q²)
//! stages, and fewer: prunes those that cannot beat the best known.

use crate::{
    error::PlanError,
    problem::Machine,
    serving::stages::{FEW_DEVICES, Room, Solver},
    solution::{Objective, Solution},
    stage::run::Run,
};

impl Solver<'_> {
    /// The least time of one request.
    pub(crate) fn latency(&self) -> Result<Solution, PlanError> {
        let wanted = match self.stages()?[..] {
            [only] if self.problem.begins.is_some() || self.problem.training.stages.is_some() => Some(only),
            _ => None,
        };
        let machine = &self.problem.machine;
        let (borders, last) = (&self.borders, self.states.len() - 1);
        let n_devices = machine.devices.len();
        let fastest = machine.devices.iter().map(|device| device.speed).fold(0.0, f64::max);
        let befores = befores(machine);
        // With a given number of stages, the table also counts them.
        let most = wanted.unwrap_or(1);
        let at =
            |device: usize, used: usize, border: usize| (device * (most + 1) + used) * borders.len() + border;
        let mut least = vec![f64::INFINITY; at(n_devices, 0, 0)];
        let mut came = vec![(u32::MAX, u32::MAX, u32::MAX); least.len()];
        let mut best: (f64, usize) = (f64::INFINITY, usize::MAX);
        // From the start every kind of device may be the first.
        let entries: Vec<usize> = entries(machine);
        for (device, befores) in befores.iter().enumerate() {
            let speed = machine.devices[device].speed;
            let room = Room { memory: machine.devices[device].memory.0 as f64, in_flight: 1.0 };
            for used in 1..=most {
                // The best start of the stage on this device, and the entry of the table it continues.
                let mut begin = vec![(f64::INFINITY, u32::MAX, u32::MAX); borders.len()];
                if entries.contains(&device) && (wanted.is_none() || used == 1) {
                    begin[0] = (0.0, u32::MAX, u32::MAX);
                }
                let before = if wanted.is_some() { used - 1 } else { used };
                for &earlier in befores {
                    if before == 0 {
                        break;
                    }
                    for (border, begin) in begin.iter_mut().enumerate() {
                        let there = least[at(earlier, before, border)];
                        let there =
                            there + hop(machine, earlier, device, self.states.crossing[borders[border]]);
                        if there < begin.0 {
                            *begin = (there, earlier as u32, before as u32);
                        }
                    }
                }
                for i in 0..borders.len() {
                    let (there, ..) = begin[i];
                    let start = borders[i];
                    if there + self.work(start, last) / fastest >= best.0 {
                        continue;
                    }
                    for (j, &end) in borders.iter().enumerate().skip(i + 1) {
                        let seconds = there + self.work(start, end) / speed;
                        let own = at(device, used, j);
                        if seconds >= least[own]
                            || seconds + self.work(end, last) / fastest >= best.0
                            || !self.is_stage(start, end)
                            || !self.fits(start, end, room)
                        {
                            continue;
                        }
                        least[own] = seconds;
                        came[own] = (begin[i].1, begin[i].2, i as u32);
                        if end == last && wanted.is_none_or(|wanted| wanted == used) {
                            best = (seconds, own);
                        }
                    }
                }
            }
        }
        if best.1 == usize::MAX {
            return Err(PlanError::NothingFits);
        }
        let mut cuts = Vec::new();
        let mut own = best.1;
        loop {
            let device = own / ((most + 1) * borders.len());
            let end = own % borders.len();
            let (earlier, used, start) = came[own];
            let run = Run { first: device, count: 1, stride: 1 };
            cuts.push((borders[start as usize], borders[end], run));
            if earlier == u32::MAX {
                break;
            }
            own = at(earlier as usize, used as usize, start as usize);
        }
        cuts.reverse();
        Ok(self.one_after_the_other(&cuts))
    }

    /// Makes a plan of the stages of one request: each computes and sends its output on.
    pub(crate) fn one_after_the_other(&self, cuts: &[(usize, usize, Run)]) -> Solution {
        let mut found = self.solution(cuts, 1, Objective::Step(0.0), 1);
        for (index, stage) in found.stages.iter_mut().enumerate() {
            let next = cuts.get(index + 1);
            let sends = |&(start, _, run): &(usize, usize, Run)| {
                hop(&self.problem.machine, stage.run.first, run.first, self.states.crossing[start])
            };
            stage.score.transfer = next.map_or(0.0, sends);
            stage.score.settle(false);
        }
        let seconds = found.stages.iter().map(|stage| stage.score.seconds).sum();
        (found.objective, found.lower_bound) = (Objective::Step(seconds), seconds);
        found
    }
}

/// Seconds of a transfer from one device to another.
fn hop(machine: &Machine, from: usize, to: usize, bytes: f64) -> f64 {
    machine.level(from, to).map_or(0.0, |level| level.latency.0 + bytes / level.bandwidth.0)
}

/// Returns the devices that a request may come from to each one.
///
/// All earlier devices if they are few. If not, of equal devices at the same distance only the last one before the device: a plan
/// that skips it gains nothing.
fn befores(machine: &Machine) -> Vec<Vec<usize>> {
    let devices = &machine.devices;
    let of = |device: usize| -> Vec<usize> {
        if devices.len() <= FEW_DEVICES && !machine.is_uniform() {
            return (0..device).collect();
        }
        let mut found: Vec<usize> = Vec::new();
        for earlier in (0..device).rev() {
            let kind = |other: usize| {
                let one = &devices[other];
                (one.speed.to_bits(), one.memory, machine.level_index(other, device))
            };
            if !found.iter().any(|&known| kind(known) == kind(earlier)) {
                found.push(earlier);
            }
        }
        found
    };
    (0..devices.len()).map(of).collect()
}

/// Returns the devices that a request may begin at: the first of each kind.
fn entries(machine: &Machine) -> Vec<usize> {
    let kind = |device: usize| (machine.devices[device].speed.to_bits(), machine.devices[device].memory);
    let is_first = |device: &usize| {
        !machine.links.is_empty() || (0..*device).all(|earlier| kind(earlier) != kind(*device))
    };
    (0..machine.devices.len())
        .filter(|device| machine.devices.len() <= FEW_DEVICES && !machine.is_uniform() || is_first(device))
        .collect()
}
