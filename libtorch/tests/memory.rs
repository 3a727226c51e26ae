//! Once a device is opened for measuring, freed memory stays with the process.
//!
//! glibc gives threads heaps of their own, and it is the first thread that measures; so this is a program, not a function.

#![allow(clippy::print_stdout)]

use libtorch::Bench;
use tch::{Device, Kind, Tensor};

#[path = "../../tests/needs/mod.rs"]
mod needs;

/// Page faults of this process so far.
fn faults() -> u64 {
    let text = std::fs::read_to_string("/proc/self/stat").expect("Linux");
    // The name before may contain blanks; after it the minor faults are the eighth field.
    let rest = text.rsplit(')').next().expect("a name");
    rest.split_whitespace().nth(7).and_then(|faults| faults.parse().ok()).expect("a number")
}

/// Pages that four pieces of 64 MiB take, one after the other.
fn cleared() -> u64 {
    let round = || {
        let before = faults();
        (0..4).for_each(|_| drop(Tensor::ones([16 << 20], (Kind::Float, Device::Cpu))));
        faults() - before
    };
    // The bytes that glibc 2.36 cuts off to align a piece stay in the thread's cache, up to seven of each size, and
    // keep the piece from merging with the heap's end, and memory for counting may lie in a hole that a piece would
    // have fitted in: the heap grows in the first rounds, and then no more.
    for _ in 0..8 {
        round();
    }
    round()
}

fn main() {
    if !cfg!(all(target_os = "linux", target_env = "gnu")) {
        needs::skip(needs::Need::Glibc);
        return;
    }
    let before = cleared();
    assert!(before >= 4 * (64 << 20) / 65_536, "{before} pages: glibc maps large pieces anew");
    let bench = Bench::open(Device::Cpu, Some(1)).expect("a processor");
    let after = cleared();
    assert!(after < before / 64, "{after} pages for {before} before");
    println!("test freed_memory_is_not_cleared_again ({}) ... ok", bench.name());
}
