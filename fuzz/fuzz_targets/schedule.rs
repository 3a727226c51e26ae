//! Any text as a schedule: it prints back to itself, is checked, and is timed.
#![no_main]

use simulator::{
    Cost, Link, Machine, Workload,
    order::{from_csv, to_csv},
};

libfuzzer_sys::fuzz_target!(|text: &str| {
    let Ok(order) = from_csv(text, None) else { return };
    let printed = to_csv(&order);
    assert_eq!(from_csv(&printed, None).as_ref(), Ok(&order));
    let report = simulator::lint(&order);
    let clock = simulator::clock(&order, &Cost::EQUAL);
    let _ = simulator::clock_as_torch(&order, &Cost::EQUAL);
    assert!(report.errors().next().is_some() || clock.is_ok(), "{:?}", clock.err());
    let n_devices = order.ranks.len();
    let workload = Workload::uniform(order.chain as usize, n_devices, &Cost::EQUAL);
    let machine = Machine::uniform(n_devices, Link { latency: 1, bandwidth: 1e9 });
    let _ = simulator::simulate(&workload, &order, &machine);
});
