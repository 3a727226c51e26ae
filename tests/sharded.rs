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
