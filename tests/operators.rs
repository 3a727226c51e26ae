//! The table of operators beside torch's registry, and what is inferred of them on the samples that torch tests them with.
#![cfg(feature = "torch")]
#![allow(clippy::print_stdout, missing_docs)]

mod oracle;

/// `tests/oracle/operator_table.py` says what is compared, and where a row says another thing than torch on purpose.
#[test]
fn the_table_says_what_torch_says() {
    let said = oracle::run("operator_table");
    assert!(said.trim_end().ends_with(" rows, 0 differences"), "{said}");
}

/// The samples come with torch; `tests/oracle/operators.py` says what is asked of each.
#[test]
fn sizes_and_types_are_those_that_torch_gives() {
    let said = oracle::run("operators");
    let tried: u32 =
        said.lines().last().and_then(|line| line.split(' ').next()?.parse().ok()).expect("a sum");
    assert!(tried > 2000, "{said}");
}

/// Some of the models; `make oracle` asks about all.
#[test]
fn a_training_step_holds_what_torch_tracks() {
    let said = oracle::run_of("step_memory", &["shufflenet_v2_x1_0", "llama"]);
    assert_eq!(said.matches("backward pass").count(), 4, "two models, two optimizers:\n{said}");
}
