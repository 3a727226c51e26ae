//! What a run of devices gives each stage on it: speed, memory, links, the group that sums gradients.

use std::rc::Rc;

use crate::{
    problem::{Machine, MachineLevel},
    stage::{
        collective::Group,
        memo::{Memo, Numbers},
        run::Run,
    },
};

/// Which links join a stage to its neighbours, whose devices a solver does not know yet.
///
/// Where all links are alike, all answers are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Neighbours {
    /// Those between devices that stand next to each other.
    Adjacent,
    /// The slowest that a neighbour as large as the stage would need.
    Wide,
    /// The fastest of the machine: a bound from below.
    Fastest,
    /// Each replica's own, in a grid of equal stages.
    Paired,
}

/// Seconds a byte takes over what joins two devices, and the level whose ports it takes.
pub(crate) type Wire = (f64, usize);

/// What a run of devices brings to every stage on it: looked up once for the many that a solver tries there.
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
    /// Who adds up gradients.
    group: Option<Group>,
    /// What joins devices to those before and behind them, each pair that differs.
    pub(crate) wires: Vec<(Wire, Wire)>,
    /// The slowest of what joins each replica to its own of the stage before, and of the stage behind.
    pub(crate) slowest: (Option<MachineLevel>, Option<MachineLevel>),
}

impl Place {
    pub(crate) fn new(machine: &Machine, neighbours: Neighbours, run: Run) -> Self {
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
            group: Group::of(machine, &devices),
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

    /// Tells whether a stage takes the same on either.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        let numbers = |place: &Self| [place.speed, place.limit, place.host, place.memory_bandwidth];
        numbers(self) == numbers(other)
            && self.run.count == other.run.count
            && self.group == other.group
            && self.wires == other.wires
    }

    /// Seconds a byte takes at the least to what is behind, of each micro-batch.
    pub(crate) fn sending(&self) -> f64 {
        self.wires.iter().map(|(_, after)| after.0).fold(0.0, f64::max) / self.run.count as f64
    }

    /// Seconds of one all-reduce over the replicas.
    pub(crate) fn all_reduce(&self, bytes: f64) -> f64 {
        self.group.map_or(0.0, |group| group.all_reduce(bytes))
    }
}

/// What the runs of devices of one machine bring, for one kind of neighbours: a place for each run that is asked about.
#[derive(Default)]
pub(crate) struct DeviceRuns {
    places: Memo<Run, Rc<Place>>,
    kinds: Numbers<Rc<Place>>,
}

impl DeviceRuns {
    /// Returns what a run brings.
    pub(crate) fn place(&self, machine: &Machine, neighbours: Neighbours, run: Run) -> Rc<Place> {
        self.places.get(run, || Rc::new(Place::new(machine, neighbours, run)))
    }

    /// Returns a number that all places have on which stages take the same.
    pub(crate) fn kind(&self, place: &Rc<Place>) -> usize {
        self.kinds.of(|other| other.is_like(place), || Rc::clone(place))
    }
}

fn slowest(levels: impl Iterator<Item = MachineLevel>) -> Option<MachineLevel> {
    levels.min_by(|a, b| a.bandwidth.0.total_cmp(&b.bandwidth.0))
}

/// Returns what joins each device of a run to those before and behind it, once each.
fn wires(machine: &Machine, neighbours: Neighbours, run: Run) -> Vec<(Wire, Wire)> {
    let n_devices = machine.devices.len();
    // None between turns on one device.
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
            // On several levels, two neighbours may be joined by ports of their own.
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
