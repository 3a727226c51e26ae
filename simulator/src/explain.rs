//! Why a step takes as long as it does: what it divides into, and what a faster part would save.
//!
//! The split comes from simulating again with one cause of delay less each time: host overhead, bandwidth, latency, optimizer.
//! What remains is the order on free links; the busiest device's work is not bubble, and its excess over the average is
//! imbalance. The parts sum to the step. With shared ports the step without a delay can, rarely, be longer (a flow goes first
//! that should have waited): a part may then be negative.

use std::collections::BTreeSet;

use crate::{
    build::build,
    machine::{Link, Machine},
    order::Order,
    step::{SimulateError, Work},
    timeline::{Timeline, step_time},
    workload::Workload,
};

/// What a step divides into, in nanoseconds; the parts sum to the step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Split {
    /// Average computing time of a device.
    pub compute: i64,
    /// The busiest device's excess over the average.
    pub imbalance: i64,
    /// Waiting due to the order, even with free communication.
    pub bubble: i64,
    /// What latency adds.
    pub latency: i64,
    /// What limited bandwidth adds.
    pub bandwidth: i64,
    /// What host overhead adds.
    pub host: i64,
    /// What the optimizer's step adds.
    pub optimizer: i64,
}

/// Divides a step.
///
/// # Errors
/// As [`crate::simulate`].
pub fn split(workload: &Workload, order: &Order, machine: &Machine) -> Result<Split, SimulateError> {
    let time = |workload: &Workload, machine: &Machine| -> Result<i64, SimulateError> {
        Ok(step_time(workload, order, machine)? as i64)
    };
    let full = time(workload, machine)?;
    let mut machine = machine.clone();
    for device in &mut machine.devices {
        (device.host_overhead, device.split_overhead) = (0, 0);
    }
    let no_host = time(workload, &machine)?;
    let links = |machine: &mut Machine, change: fn(&mut Link)| {
        machine.levels.iter_mut().chain(machine.links.values_mut()).for_each(change);
    };
    links(&mut machine, |link| link.bandwidth = f64::INFINITY);
    machine.devices.iter_mut().for_each(|device| device.host_bandwidth = f64::INFINITY);
    let no_bandwidth = time(workload, &machine)?;
    links(&mut machine, |link| link.latency = 0);
    let no_latency = time(workload, &machine)?;
    let mut workload = workload.clone();
    workload.stages.iter_mut().for_each(|stage| stage.optimizer_step = 0);
    let timeline = crate::timeline::simulate(&workload, order, &machine)?;
    let bare = timeline.step as i64;
    let busy: Vec<i64> =
        timeline.programs.iter().map(|time| (time.busy() + time.collective) as i64).collect();
    let busiest = busy.iter().copied().max().unwrap_or(0);
    let average = if busy.is_empty() { 0 } else { busy.iter().sum::<i64>() / busy.len() as i64 };
    Ok(Split {
        compute: average,
        imbalance: busiest - average,
        bubble: bare - busiest,
        latency: no_bandwidth - no_latency,
        bandwidth: no_host - no_bandwidth,
        host: full - no_host,
        optimizer: no_latency - bare,
    })
}

/// A part of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// A device.
    Device(usize),
    /// The link between two devices.
    Link(usize, usize),
    /// All links of a level, for collectives.
    Level(usize),
    /// The link between a device and host memory.
    Host(usize),
    /// All devices at once: where they wait for each other, one alone saves nothing.
    Devices,
}

/// Returns what 10 % more speed or bandwidth of each part would save, in nanoseconds, largest first.
///
/// Each part is simulated by itself; `None` when that would take more than `max_tasks` tasks in all.
///
/// # Errors
/// As [`crate::simulate`].
pub fn savings(
    workload: &Workload,
    order: &Order,
    machine: &Machine,
    timeline: &Timeline,
    max_tasks: usize,
) -> Result<Option<Vec<(Part, i64)>>, SimulateError> {
    let mut parts: BTreeSet<Part> = BTreeSet::new();
    for task in &timeline.tasks {
        let device = workload.devices[task.label.program];
        match task.label.work {
            Work::Compute { .. } | Work::Optimizer => {
                parts.insert(Part::Device(device));
            }
            Work::Transfer { to, .. } => {
                let to = workload.devices[to];
                parts.insert(Part::Link(device.min(to), device.max(to)));
            }
            Work::Reduce { .. } | Work::Gather { .. } | Work::Scatter { .. } | Work::AllReduce { .. } => {
                parts.extend((0..machine.levels.len()).map(Part::Level));
            }
            Work::Copy { .. } => {
                parts.insert(Part::Host(device));
            }
        }
    }
    if parts.iter().filter(|part| matches!(part, Part::Device(_))).count() > 1 {
        parts.insert(Part::Devices);
    }
    if parts.len().saturating_mul(timeline.tasks.len()) > max_tasks {
        return Ok(None);
    }
    const FASTER: f64 = 1.1;
    let mut savings = Vec::new();
    for part in parts {
        let mut machine = machine.clone();
        match part {
            Part::Device(device) => machine.devices[device].speed *= FASTER,
            Part::Link(a, b) => {
                let Some(mut link) = machine.link(a, b) else { continue };
                link.bandwidth *= FASTER;
                machine.links.remove(&(b, a));
                machine.links.insert((a, b), link);
            }
            Part::Level(level) => machine.levels[level].bandwidth *= FASTER,
            Part::Host(device) => machine.devices[device].host_bandwidth *= FASTER,
            Part::Devices => machine.devices.iter_mut().for_each(|device| device.speed *= FASTER),
        }
        let faster = build(workload, order, &machine)?.time(&machine);
        savings.push((part, timeline.step as i64 - faster as i64));
    }
    savings.sort_by_key(|(part, saved)| (std::cmp::Reverse(*saved), *part));
    Ok(Some(savings))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Cost, machine::Sharing, order::make, timeline::simulate, workload::Transfer};

    fn case() -> (Workload, Order, Machine) {
        let cost = Cost { forward: 100, input_gradient: 100, weight_gradient: 100, hop: 0 };
        let mut workload = Workload::uniform(4, 4, &cost);
        workload.stages[2].forward = 180;
        workload.transfers =
            (1..4).map(|to| Transfer { from: to - 1, to, forward: 40, backward: 40 }).collect();
        workload.stages.iter_mut().for_each(|stage| stage.optimizer_step = 50);
        let mut machine = Machine::uniform(4, Link { latency: 7, bandwidth: 1e9 });
        machine.devices.iter_mut().for_each(|device| device.host_overhead = 3);
        (workload, make("1f1b", 4, 1, 8).unwrap(), machine)
    }

    #[test]
    fn the_parts_sum_to_the_step() {
        let (workload, order, machine) = case();
        for sharing in [Sharing::Fair, Sharing::Unlimited] {
            let machine = Machine { sharing, ..machine.clone() };
            let step = simulate(&workload, &order, &machine).unwrap().step as i64;
            let Split { compute, imbalance, bubble, latency, bandwidth, host, optimizer } =
                split(&workload, &order, &machine).unwrap();
            assert_eq!(compute + imbalance + bubble + latency + bandwidth + host + optimizer, step);
            assert_eq!((compute, imbalance, optimizer), (8 * 320, 8 * 60, 50));
            assert!(bubble > 0 && latency > 0 && bandwidth > 0 && host > 0);
        }
    }

    #[test]
    fn the_slowest_device_is_worth_most() {
        let (workload, order, machine) = case();
        let timeline = simulate(&workload, &order, &machine).unwrap();
        let savings = savings(&workload, &order, &machine, &timeline, 1_000_000).unwrap().unwrap();
        let [(all, of_all), (slowest, of_slowest), ..] = savings[..] else { panic!("{savings:?}") };
        assert_eq!((all, slowest), (Part::Devices, Part::Device(2)));
        assert!(of_all > of_slowest && of_slowest > 0);
        assert_eq!(savings.len(), 4 + 3 + 1);
        assert_eq!(super::savings(&workload, &order, &machine, &timeline, 10).unwrap(), None);
    }
}
