//! What is inferred of torch's operators, on the samples that torch tests them with.
#![cfg(feature = "torch")]
#![allow(clippy::print_stdout, missing_docs)]

mod oracle;

/// The samples come with torch; `tests/oracle/operators.py` says what is asked of each.
#[test]
fn sizes_and_types_are_those_that_torch_gives() {
    let said = oracle::run("operators");
    let tried: u32 =
        said.lines().last().and_then(|line| line.split(' ').next()?.parse().ok()).expect("a sum");
    assert!(tried > 2000, "{said}");
}
