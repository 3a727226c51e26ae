//! Times of exchanges between the first devices of a machine. All are charged at the slowest link between the
//! participants.

use crate::{Machine, MachineLevel, stage::collective::Group};

use super::Volume;

/// The links of a machine's devices in their order.
pub struct Links<'a> {
    machine: &'a Machine,
    /// The slowest link among the first devices, by their number.
    slowest: Vec<Option<MachineLevel>>,
}

impl<'a> Links<'a> {
    /// Finds the slowest links of a machine.
    pub fn new(machine: &'a Machine) -> Self {
        let first = |count: usize| machine.slowest(&(0..count).collect::<Vec<_>>());
        Self { machine, slowest: (0..=machine.devices.len()).map(first).collect() }
    }

    /// Returns the seconds to move a volume, one way; each device has a port of its own, which sends and receives at
    /// once.
    pub fn exchange(&self, volume: &Volume) -> f64 {
        let Some(link) = self.slowest[volume.devices] else { return 0.0 };
        link.latency.0 + volume.sent.max(volume.received) / link.bandwidth.0
    }

    /// Returns the seconds of an all-reduce among a number of devices at equal distances.
    pub fn all_reduce(&self, devices: usize, apart: usize, bytes: f64) -> f64 {
        let members: Vec<usize> = (0..devices).map(|index| index * apart).collect();
        Group::of(self.machine, &members).map_or(0.0, |group| group.all_reduce(bytes))
    }
}
