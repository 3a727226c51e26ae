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
        all.retain(|order| !order.iter().zip(&own).all(|(a, b)| is_like(machine, *a, *b)));
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

/// Returns all orders of few devices, without those that only swap devices which are alike in themselves and to the caller.
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
            let is_like = |(a, b): (&usize, &usize)| is_like(machine, *a, *b) && is_same(*a, *b);
            if !all.iter().any(|known| known.iter().zip(&order).all(is_like)) {
                all.push(order);
            }
        }
        orders = all;
    }
    Some(orders)
}

fn is_like(machine: &Machine, one: usize, other: usize) -> bool {
    let (one, other) = (&machine.devices[one], &machine.devices[other]);
    let alike = MachineDevice { name: one.name.clone(), ..other.clone() };
    machine.links.is_empty() && alike == *one
}
