//! Models whose layers devices share, beside the whole models.
#![cfg(feature = "torch")]
#![allow(clippy::print_stdout, missing_docs)]

mod oracle;

/// `tests/oracle/sharded.py` says what is compared; `make zoo-shards` takes all models, on two and four devices.
#[test]
fn devices_that_share_layers_give_what_one_gives() {
    let said = oracle::run("sharded");
    assert!(said.trim_end().ends_with("0 failed"), "{said}");
    assert!(said.matches("the same").count() >= 5, "{said}");
    assert!(said.matches("100.0% of FLOPs shared").count() >= 4, "{said}");
}

/// The operators stand in `tests/oracle/layouts.py`; what its rules say of each is followed by hand.
#[test]
fn each_strategy_of_each_operator_gives_what_one_device_gives() {
    let said = oracle::run("layouts");
    let strategies: u32 =
        said.lines().last().and_then(|line| line.split(' ').next()?.parse().ok()).expect("a sum");
    assert!(strategies > 1_000 && said.trim_end().ends_with(" 0 differences"), "{said}");
}
