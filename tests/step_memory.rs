//! Memory of a training step beside torch's own tracker; `make oracle` asks about all models.
#![cfg(feature = "torch")]
#![allow(clippy::print_stdout, missing_docs)]

mod oracle;

#[test]
fn a_step_holds_what_torch_tracks() {
    let printed = oracle::run_of("step_memory", &["shufflenet_v2_x1_0", "llama"]);
    assert_eq!(printed.matches('%').count(), 8, "two models, two optimizers:\n{printed}");
}
