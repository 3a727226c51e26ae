//! Where it runs: devices, the levels of links that join them, and what a host adds.

use std::collections::{BTreeMap, BTreeSet};

use crate::order::{Kind, Op};

/// A cluster as numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct Machine {
    /// The devices.
    pub devices: Vec<Device>,
    /// What joins them, innermost first.
    pub levels: Vec<Link>,
    /// Links between two devices that differ from their level's.
    pub links: BTreeMap<(usize, usize), Link>,
    /// What happens when several transfers use a port.
    pub sharing: Sharing,
    /// Whether computation goes on while values are sent.
    pub sends: Sends,
    /// How much slower a device computes while it takes part in a collective: 1 for not at all. Kernels of
    /// collectives and of the model share processors and memory.
    pub slowdown: f64,
}

impl Default for Machine {
    fn default() -> Self {
        Self {
            devices: Vec::new(),
            levels: Vec::new(),
            links: BTreeMap::new(),
            sharing: Sharing::default(),
            sends: Sends::default(),
            slowdown: 1.0,
        }
    }
}

/// One device.
#[derive(Clone, Debug, PartialEq)]
pub struct Device {
    /// Speed of this device relative to the one that the costs are for.
    pub speed: f64,
    /// Memory that a process can use; `None` when there is no limit to check.
    pub memory: Option<u64>,
    /// Bytes a second to and from host memory, each way, pinned.
    pub host_bandwidth: f64,
    /// Share of the host bandwidth that pageable memory reaches.
    pub pageable: f64,
    /// What the host adds to each operation, in nanoseconds.
    pub host_overhead: u64,
    /// What it adds to each weight half of a backward pass besides, in nanoseconds.
    pub split_overhead: u64,
    /// Group at each level, innermost first.
    pub place: Vec<u32>,
}

impl Device {
    /// Returns the nanoseconds that the host adds to an operation.
    pub(crate) fn host_time(&self, op: Op) -> u64 {
        let halves = if op.kind == Kind::WeightGradient { self.split_overhead } else { 0 };
        self.host_overhead.saturating_add(halves)
    }
}

impl Default for Device {
    fn default() -> Self {
        Self {
            speed: 1.0,
            memory: None,
            host_bandwidth: schema::HOST_BANDWIDTH.0,
            pageable: 0.5,
            host_overhead: 0,
            split_overhead: 0,
            place: Vec::new(),
        }
    }
}

/// A link, or all links of a level: a port a device, each way.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// Nanoseconds before the first byte arrives.
    pub latency: u64,
    /// Bytes a second, each way.
    pub bandwidth: f64,
}

/// What happens when several transfers use a port at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sharing {
    /// Each gets the smallest of its equal shares along its way.
    #[default]
    Fair,
    /// Each has the port for itself: an optimist's bound, and the only mode that needs no event loop.
    Unlimited,
}

/// Whether computation goes on while values are sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sends {
    /// Sends run beside the computation.
    #[default]
    Overlapped,
    /// The sender waits until its values have arrived.
    Blocking,
}

impl Machine {
    /// Returns devices that are all joined by one link.
    pub fn uniform(n_devices: usize, link: Link) -> Self {
        Self { devices: vec![Device::default(); n_devices], levels: vec![link], ..Self::default() }
    }

    /// Returns the level that joins two devices: the innermost that holds both.
    pub fn level(&self, a: usize, b: usize) -> usize {
        schema::level_of(&self.devices[a].place, &self.devices[b].place, self.levels.len())
    }

    /// Returns the link between two devices; `None` where nothing joins them.
    pub fn link(&self, a: usize, b: usize) -> Option<Link> {
        let own = self.links.get(&(a, b)).or_else(|| self.links.get(&(b, a)));
        own.or_else(|| self.levels.get(self.level(a, b))).copied()
    }

    /// Returns each device once, in the order of a ring: devices of a node are adjacent, as are nodes of a rack; ties keep the
    /// given order. The result does not depend on the devices' numbers.
    pub(crate) fn around(&self, mut devices: Vec<usize>) -> Vec<usize> {
        let mut seen = BTreeSet::new();
        devices.retain(|device| seen.insert(*device));
        let place = |device: &usize| self.devices[*device].place.iter().rev();
        devices.sort_by(|a, b| place(a).cmp(place(b)));
        devices
    }

    /// Returns the slowest link among neighbours in a ring of devices: least bandwidth, most latency.
    pub fn ring(&self, devices: &[usize]) -> Option<Link> {
        let next = devices.iter().cycle().skip(1);
        devices.iter().zip(next).filter(|(a, b)| a != b).map(|(a, b)| self.link(*a, *b)).try_fold(
            Link { latency: 0, bandwidth: f64::INFINITY },
            |slowest, link| {
                let link = link?;
                Some(Link {
                    latency: slowest.latency.max(link.latency),
                    bandwidth: slowest.bandwidth.min(link.bandwidth),
                })
            },
        )
    }
}

/// A time above all others, for transfers that never end; it is refused before sums could overflow.
pub(crate) const NEVER: u64 = u64::MAX >> 2;

/// Returns the time to move bytes at a rate, rounded up to whole nanoseconds.
pub(crate) fn transfer_time(bytes: u64, bandwidth: f64) -> u64 {
    if bytes == 0 || bandwidth == f64::INFINITY {
        return 0;
    }
    let nanoseconds = (bytes as f64 * 1e9 / bandwidth).ceil();
    // A rate of zero would never end.
    if nanoseconds < NEVER as f64 { nanoseconds as u64 } else { NEVER }
}

/// Returns a time on a device of another speed.
pub(crate) fn scaled(nanoseconds: u64, speed: f64) -> u64 {
    if speed == 1.0 { nanoseconds } else { (nanoseconds as f64 / speed).round() as u64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_innermost_shared_level_joins() {
        let link = |latency| Link { latency, bandwidth: 1e9 };
        let device = |place: &[u32]| Device { place: place.to_vec(), ..Device::default() };
        let machine = Machine {
            devices: vec![device(&[0, 0]), device(&[0, 0]), device(&[1, 0]), device(&[0, 1])],
            levels: vec![link(1), link(2), link(3)],
            links: BTreeMap::from([((0, 2), link(9))]),
            ..Machine::default()
        };
        let check =
            |a, b, expected| assert_eq!(machine.link(a, b).map(|link| link.latency), expected, "{a} {b}");
        check(0, 1, Some(1));
        check(1, 2, Some(2));
        check(0, 2, Some(9));
        check(2, 0, Some(9));
        check(0, 3, Some(3));
        assert_eq!(machine.ring(&[0, 1, 2]).map(|link| link.latency), Some(9));
        assert_eq!(machine.ring(&[0, 1, 3]).map(|link| link.latency), Some(3));
        assert_eq!(machine.around(vec![3, 2, 1, 2, 0]), [1, 0, 2, 3]);
    }
}
