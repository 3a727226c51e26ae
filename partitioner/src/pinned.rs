//! Constraints of pins on a search: which blocks may be in which stage, and orders of devices that satisfy them.
//!
//! A block is in one stage, so a pin forbids it in all others: the solvers leave out stages that hold a block which may not be there,
//! O(1) for each after a running count of such blocks over the states. Pins take plans away and add none, so lower bounds of plans
//! without pins hold.

use crate::{
    dag::cut_states::States,
    device_orders::permutations,
    pin::{Pin, PinnedTo},
    problem::{Machine, Problem},
    stage::run::Run,
};

/// Tells whether a pin's blocks may be in a stage of so many.
fn allows(pin: &Pin, (stage, n_stages): (usize, usize), run: Run, machine: &Machine) -> bool {
    match &pin.to {
        PinnedTo::Stage(own) => stage == *own,
        PinnedTo::LastStage => stage + 1 == n_stages,
        PinnedTo::Devices(names) => run.devices().all(|device| names.contains(&machine.devices[device].name)),
    }
}

/// Returns why a pinned block may be in none of these stages, if there is such a block.
pub(crate) fn unplaced(problem: &Problem, runs: &[Run]) -> Option<String> {
    let is_placed = |pin: &&Pin| {
        let mut stages = runs.iter().enumerate();
        stages.any(|(stage, run)| allows(pin, (stage, runs.len()), *run, &problem.machine))
    };
    let pin = problem.pins.iter().find(|pin| !is_placed(pin))?;
    Some(match &pin.to {
        PinnedTo::Stage(stage) => {
            format!(
                "`{}` is pinned to stage {stage}, and of {} the last is {}",
                pin.name,
                runs.len(),
                runs.len() - 1
            )
        }
        _ => format!("no stage stands on the devices that `{}` is pinned to, and on no others", pin.name),
    })
}

/// Which stages may begin and end at which states, given the pins.
pub(crate) struct Pinned {
    /// For each stage the number of blocks before each state that it must not hold; `None` if all are allowed.
    forbidden: Vec<Option<Vec<f64>>>,
}

impl Pinned {
    /// Counts for stages on these devices, the first first.
    pub(crate) fn new(
        problem: &Problem,
        states: &States,
        places: impl ExactSizeIterator<Item = Run>,
    ) -> Self {
        let n_stages = places.len();
        let forbidden = places.enumerate().map(|(stage, run)| {
            let others =
                problem.pins.iter().filter(|pin| !allows(pin, (stage, n_stages), run, &problem.machine));
            let others: Vec<usize> = others.flat_map(|pin| pin.blocks.iter().copied()).collect();
            (!others.is_empty()).then(|| states.sums(|block| if others.contains(&block) { 1.0 } else { 0.0 }))
        });
        Self { forbidden: forbidden.collect() }
    }

    /// Tells whether all blocks between two states may be in a stage.
    pub(crate) fn allows(&self, stage: usize, start: usize, end: usize) -> bool {
        let forbidden = self.forbidden.get(stage).and_then(Option::as_ref);
        forbidden.is_none_or(|before| before[end] - before[start] < 0.5)
    }

    /// Tells whether `n_stages` stages can be cut at all from the first state to the last. O(Q²) a stage.
    pub(crate) fn has_chain(&self, states: &States, n_stages: usize) -> bool {
        let mut reached = vec![0];
        for stage in 0..n_stages {
            let is_reached = |end: &usize| {
                let from = |&start: &usize| {
                    start < *end && states.is_before(start, *end) && self.allows(stage, start, *end)
                };
                reached.iter().any(from)
            };
            reached = (0..states.len()).filter(is_reached).collect();
        }
        reached.last() == Some(&(states.len() - 1))
    }
}

/// The most orders of devices that are tried for pins.
const ORDERS: usize = 64;

/// Returns orders of devices that may satisfy the pins: all orders of few devices; else the pins' devices in the order of the
/// pinned blocks, with the others before, between and behind them.
pub(crate) fn pinned_orders(problem: &Problem) -> Vec<Vec<usize>> {
    let devices = &problem.machine.devices;
    let own: Vec<usize> = (0..devices.len()).collect();
    let to_devices = problem.pins.iter().filter(|pin| pin.is_to_devices());
    let mut pins: Vec<&Pin> = to_devices.collect();
    pins.sort_by_key(|pin| pin.blocks.iter().min());
    let is_named = |pin: &Pin, device: usize| match &pin.to {
        PinnedTo::Devices(names) => names.contains(&devices[device].name),
        _ => false,
    };
    if let Some(mut all) = permutations(&problem.machine, |one, other| {
        pins.iter().all(|pin| is_named(pin, one) == is_named(pin, other))
    }) {
        all.retain(|order| *order != own);
        return all;
    }
    let group = |device: &usize| pins.iter().position(|pin| is_named(pin, *device));
    let groups: Vec<Vec<usize>> = (0..pins.len())
        .map(|index| own.iter().copied().filter(|device| group(device) == Some(index)).collect())
        .collect();
    let free: Vec<usize> = own.iter().copied().filter(|device| group(device).is_none()).collect();
    // With many devices, only counts near the ends and the middle.
    let counts = |most: usize| {
        let near = |count: &usize| most <= 16 || *count <= 2 || most - count <= 2 || *count == most / 2;
        (0..=most).filter(near).collect::<Vec<usize>>()
    };
    let mut orders: Vec<Vec<usize>> = Vec::new();
    for before in counts(free.len()) {
        for behind in counts(free.len() - before) {
            let (first, rest) = free.split_at(before);
            let (between, last) = rest.split_at(rest.len() - behind);
            let mut order = first.to_vec();
            for (index, group) in groups.iter().enumerate() {
                order.extend(group);
                if index == 0 {
                    order.extend(between);
                }
            }
            order.extend(last);
            if order != own && !orders.contains(&order) && orders.len() < ORDERS {
                orders.push(order);
            }
        }
    }
    orders
}
