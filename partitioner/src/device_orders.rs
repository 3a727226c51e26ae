//! In which orders devices are given to stages: where they differ, the order decides which stage gets which.

use std::cmp::Ordering;

use crate::problem::{Machine, MachineDevice, Problem};

/// The most devices of which all orders may be tried.
const ALL_ORDERS: usize = 4;

/// Tells whether all orders of the devices are tried, so that a plan can be proven optimal.
pub(crate) fn tries_all_orders(problem: &Problem) -> bool {
    let machine = &problem.machine;
    !problem.has_device_pins() && (machine.is_uniform() || machine.devices.len() <= ALL_ORDERS)
}

/// Returns orders of devices other than the machine's own, and whether they are all distinct ones.
///
/// Of few devices all orders; else fast ones first or last and those with much memory first or last: devices of one kind keep
/// their order, so nodes stay together. None on large machines.
pub(crate) fn other_orders(machine: &Machine) -> (Vec<Vec<usize>>, bool) {
    const MOST: usize = 12;
    const SOME: usize = 64;
    let n_devices = machine.devices.len();
    let own: Vec<usize> = (0..n_devices).collect();
    let mut orders = vec![own.clone()];
    if machine.is_uniform() {
        return (Vec::new(), true);
    }
    if let Some(mut all) = permutations(machine, |_, _| true) {
        all.retain(|order| !is_same_row(machine, order, &own, &|_, _| true));
        if all.len() < MOST {
            return (all, true);
        }
    }
    let speed = |a: &usize, b: &usize| machine.devices[*a].speed.total_cmp(&machine.devices[*b].speed);
    let memory = |a: &usize, b: &usize| machine.devices[*a].memory.cmp(&machine.devices[*b].memory);
    let mut sorted = |by: &dyn Fn(&usize, &usize) -> Ordering| {
        let mut order = own.clone();
        order.sort_by(by);
        if !orders.contains(&order) {
            orders.push(order);
        }
    };
    if n_devices <= SOME {
        sorted(&|a, b| speed(b, a));
        sorted(&speed);
        sorted(&|a, b| memory(b, a));
        sorted(&memory);
    }
    (orders.split_off(1), false)
}

/// Returns all orders of few devices, without those that only swap devices, or whole nodes, which are alike in themselves and to
/// the caller.
pub(crate) fn permutations(
    machine: &Machine,
    is_same: impl Fn(usize, usize) -> bool,
) -> Option<Vec<Vec<usize>>> {
    let n_devices = machine.devices.len();
    if n_devices > ALL_ORDERS {
        return None;
    }
    let mut orders: Vec<Vec<usize>> = vec![(0..n_devices).collect()];
    for position in 0..n_devices {
        // Each device in turn goes to each later position.
        let swapped = orders.iter().flat_map(|order| {
            (position..n_devices).map(|other| {
                let mut order = order.clone();
                order.swap(position, other);
                order
            })
        });
        let mut all: Vec<Vec<usize>> = Vec::new();
        for order in swapped {
            if !all.iter().any(|known| is_same_row(machine, known, &order, &is_same)) {
                all.push(order);
            }
        }
        orders = all;
    }
    Some(orders)
}

/// Tells whether two orders of the same devices cannot be told apart: position by position the devices are alike, and position by
/// position as far from each other.
fn is_same_row(
    machine: &Machine,
    one: &[usize],
    other: &[usize],
    is_same: &impl Fn(usize, usize) -> bool,
) -> bool {
    if one == other {
        return true;
    }
    let is_like = |(a, b): (&usize, &usize)| {
        let (own, device) = (&machine.devices[*a], &machine.devices[*b]);
        let alike = MachineDevice { name: own.name.clone(), place: own.place.clone(), ..device.clone() };
        alike == *own && is_same(*a, *b)
    };
    let apart = |order: &[usize], a: usize, b: usize| machine.level_index(order[a], order[b]);
    let is_as_far = |a: usize| (0..a).all(|b| apart(one, a, b) == apart(other, a, b));
    machine.links.is_empty() && one.iter().zip(other).all(is_like) && (0..one.len()).all(is_as_far)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oracle::random_problems::{Dice, problem};

    /// Two nodes of two devices, the speed of each given.
    fn two_nodes(speeds: [f64; 4]) -> Machine {
        let mut machine = problem(&mut Dice(1), 2, 4, true, false).machine;
        let first = machine.devices[0].clone();
        for (index, (device, speed)) in machine.devices.iter_mut().zip(speeds).enumerate() {
            let name = device.name.clone();
            *device = MachineDevice { name, speed, place: vec![index as u32 / 2], ..first.clone() };
        }
        machine
    }

    #[test]
    fn nodes_that_are_alike_are_not_swapped() {
        let alike = two_nodes([1.0; 4]);
        // One by one from each node, or one node within the other.
        assert_eq!(other_orders(&alike), (vec![vec![0, 2, 1, 3], vec![0, 2, 3, 1]], true));
        // Of nodes that differ, either may come first.
        let (orders, is_all) = other_orders(&two_nodes([1.0, 1.0, 2.0, 2.0]));
        assert!(is_all && orders.len() == 5 && orders.contains(&vec![2, 3, 0, 1]), "{orders:?}");
        // A device that differs from its neighbour makes its node another one.
        let (orders, is_all) = other_orders(&two_nodes([1.0, 2.0, 1.0, 2.0]));
        assert!(is_all && orders.contains(&vec![1, 0, 3, 2]), "{orders:?}");
        assert!(!orders.contains(&vec![2, 3, 0, 1]), "{orders:?}");
    }
}
