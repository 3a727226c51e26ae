//! What a device run gives each stage on it: speed, memory, links, the group that sums gradients.

use std::{cell::OnceCell, rc::Rc};

use crate::{
    problem::{Machine, MachineLevel},
    stage::{
        collective::Group,
        memo::{Memo, Numbers},
        run::Run,
    },
};

/// Which links are assumed between a stage and its neighbours, whose devices a solver does not know yet.
///
/// If all links are alike, so are all variants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Neighbours {
    /// Links between adjacent devices.
    Adjacent,
    /// The slowest link that a neighbour as large as the stage would need.
    Wide,
    /// The fastest link of the machine: gives a lower bound.
    Fastest,
    /// Each replica's own link, in a grid of equal stages.
    Paired,
}

/// Seconds for each byte over a link, and the level whose ports it uses.
pub(crate) type Wire = (f64, usize);

/// What a device run gives every stage on it: computed once for the many stages that a solver tries there.
pub(crate) struct Place {
    pub(crate) run: Run,
    /// Speed of the slowest device.
    pub(crate) speed: f64,
    /// Bytes of the smallest device.
    pub(crate) limit: f64,
    /// Bytes a second to host memory, of the slowest device.
    pub(crate) host: f64,
    /// Bytes a second of the first device's memory.
    pub(crate) memory_bandwidth: f64,
    /// The group that sums gradients; where that is not known, those of which the fastest does.
    groups: Vec<Group>,
    /// Distinct pairs of links of a device: to the device before and to the one behind.
    pub(crate) wires: Vec<(Wire, Wire)>,
    /// The slowest link from a replica to its counterpart in the stage before, and in the stage behind.
    pub(crate) slowest: (Option<MachineLevel>, Option<MachineLevel>),
}

impl Place {
    /// `fastest` gives the groups of which the fastest sums gradients, if the neighbours are not known.
    fn new(
        machine: &Machine,
        neighbours: Neighbours,
        run: Run,
        fastest: impl FnOnce() -> Vec<Group>,
    ) -> Self {
        let devices: Vec<usize> = run.devices().collect();
        let least = |field: &dyn Fn(&crate::MachineDevice) -> f64| {
            devices.iter().map(|&device| field(&machine.devices[device])).fold(f64::INFINITY, f64::min)
        };
        Self {
            run,
            speed: least(&|device| device.speed),
            limit: least(&|device| device.memory.0 as f64),
            host: least(&|device| device.host_bandwidth.0),
            memory_bandwidth: machine.devices[run.first].memory_bandwidth.0,
            groups: match neighbours {
                Neighbours::Fastest => fastest(),
                _ => Group::of(machine, &devices).into_iter().collect(),
            },
            wires: wires(machine, neighbours, run),
            slowest: (
                slowest(
                    run.devices().filter_map(|device| machine.level(device.checked_sub(run.step())?, device)),
                ),
                slowest(run.devices().filter_map(|device| {
                    let behind = device + run.step();
                    if behind < machine.devices.len() { machine.level(device, behind) } else { None }
                })),
            ),
        }
    }

    /// Tells whether every stage costs the same on both.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        let numbers = |place: &Self| [place.speed, place.limit, place.host, place.memory_bandwidth];
        numbers(self) == numbers(other)
            && self.run.count == other.run.count
            && self.groups == other.groups
            && self.wires == other.wires
    }

    /// Least seconds of a micro-batch for each byte sent to the stage behind.
    pub(crate) fn sending(&self) -> f64 {
        self.wires.iter().map(|(_, after)| after.0).fold(0.0, f64::max) / self.run.count as f64
    }

    /// Seconds of one reduce-scatter, or all-gather, over the replicas.
    pub(crate) fn half(&self, bytes: f64) -> f64 {
        self.groups.iter().map(|group| group.half(bytes)).reduce(f64::min).unwrap_or(0.0)
    }

    /// Seconds of one all-reduce over the replicas.
    pub(crate) fn all_reduce(&self, bytes: f64) -> f64 {
        self.groups.iter().map(|group| group.all_reduce(bytes)).reduce(f64::min).unwrap_or(0.0)
    }
}

/// Memo table of the device runs of one machine, for one kind of neighbours.
#[derive(Default)]
pub(crate) struct DeviceRuns {
    places: Memo<Run, Rc<Place>>,
    /// The fastest groups of as many devices: each takes a look at all nodes.
    fastest: Memo<usize, Vec<Group>>,
    kinds: Numbers<Rc<Place>>,
    /// Numbers of the machine without its memory, and with it: thousands of devices take long to compare.
    machine: OnceCell<[usize; 2]>,
}

impl DeviceRuns {
    /// Returns the place of a device run.
    pub(crate) fn place(&self, machine: &Machine, neighbours: Neighbours, run: Run) -> Rc<Place> {
        let fastest = || self.fastest.get(run.count, || Group::fastest(machine, run.count));
        self.places.get(run, || Rc::new(Place::new(machine, neighbours, run, fastest)))
    }

    /// Returns the numbers of the machine without its memory, and with it, among those that were asked about.
    pub(crate) fn machine(&self, number: impl Fn(bool) -> usize) -> [usize; 2] {
        *self.machine.get_or_init(|| [false, true].map(number))
    }

    /// Returns a number that is equal for places on which every stage costs the same.
    pub(crate) fn kind(&self, place: &Rc<Place>) -> usize {
        self.kinds.of(|other| other.is_like(place), || Rc::clone(place))
    }
}

fn slowest(levels: impl Iterator<Item = MachineLevel>) -> Option<MachineLevel> {
    levels.min_by(|a, b| a.bandwidth.0.total_cmp(&b.bandwidth.0))
}

/// Returns the distinct pairs of links from a device of a run to those before and behind it.
fn wires(machine: &Machine, neighbours: Neighbours, run: Run) -> Vec<(Wire, Wire)> {
    let n_devices = machine.devices.len();
    // No link between chunks on one device.
    let wire = |one: Option<usize>, other: Option<usize>| match (one, other) {
        (Some(one), Some(other))
            if one < n_devices
                && other < n_devices
                && machine.devices[one].name != machine.devices[other].name =>
        {
            let rate = machine.level(one, other).map_or(0.0, |level| 1.0 / level.bandwidth.0);
            (rate, machine.level_index(one, other))
        }
        _ => (0.0, 0),
    };
    let slowest = |wires: &mut dyn Iterator<Item = Wire>| {
        wires.fold((0.0, 0), |most, wire| if wire.0 > most.0 { wire } else { most })
    };
    let (first, last) = (run.first, run.first + run.count - 1);
    match neighbours {
        Neighbours::Adjacent => {
            vec![(wire(first.checked_sub(1), Some(first)), wire(Some(last), Some(last + 1)))]
        }
        Neighbours::Wide => vec![(
            slowest(&mut run.devices().map(|device| wire(first.checked_sub(1), Some(device)))),
            slowest(&mut (1..=run.count).map(|step| wire(Some(last), Some(last + step)))),
        )],
        Neighbours::Fastest => {
            let fastest = machine.least_seconds_per_byte();
            // With several levels, the two neighbours may be behind different ports.
            vec![((fastest, 0), (fastest, usize::from(machine.levels.len() > 1)))]
        }
        Neighbours::Paired => {
            let step = run.step();
            let mut pairs = Vec::new();
            for device in run.devices() {
                let pair =
                    (wire(device.checked_sub(step), Some(device)), wire(Some(device), Some(device + step)));
                if !pairs.contains(&pair) {
                    pairs.push(pair);
                }
            }
            pairs
        }
    }
}
