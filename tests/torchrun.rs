//! `train.py` in several processes: every schedule, replicas, a rank that dies, one state dict at the end.
#![cfg(feature = "torch")]
#![allow(clippy::print_stdout, missing_docs)]

mod oracle;

/// The cases stand in `tests/oracle/torchrun.py`.
#[test]
fn several_processes_train_as_one() {
    oracle::run("torchrun");
}

/// The cases stand in `tests/oracle/trainer.py`. It takes longest, with `runs`, and tests begin in the order of their names.
#[test]
fn a_task_is_trained_as_a_plain_loop_trains() {
    oracle::run("trainer");
}

/// The cases stand in `tests/oracle/runs.py`: what is saved, resumed, validated, told, and what ends a run.
#[test]
fn a_run_goes_on_as_if_nothing_had_ended_it() {
    oracle::run("runs");
}

/// The cases, the faults that they find, and a GPU of pretence stand in `tests/oracle/offload.py`.
#[test]
fn activations_that_wait_in_host_memory_change_nothing() {
    oracle::run("offload");
}

/// The cases, and the faults that they find, stand in `tests/oracle/without_flush.py`.
#[test]
fn pipelines_without_a_flush_apply_the_stale_gradients_of_a_plain_loop() {
    oracle::run("without_flush");
}

/// The cases stand in `tests/oracle/priority.py`; `make zoo-priority` runs more.
#[test]
fn slices_of_gradients_by_priority_change_nothing() {
    oracle::run("priority");
}

/// The cases, and the faults that they find, stand in `tests/oracle/two_way.py`; `make zoo-two-way` runs more.
#[test]
fn two_copies_in_opposite_directions_train_as_one_model() {
    oracle::run("two_way");
}

/// The cases, and the faults that they find, stand in `tests/oracle/fp16.py`.
#[test]
fn half_precision_scales_losses_as_one_process_does() {
    oracle::run("fp16");
}

/// The cases stand in `tests/oracle/schedules.py`.
#[test]
fn every_schedule_gives_the_gradients_of_one_process() {
    oracle::run("schedules");
}

/// The cases, and the faults that they find, stand in `tests/oracle/shard_operators.py`.
#[test]
fn exchanges_between_shards_are_those_of_whole_tensors() {
    oracle::run("shard_operators");
}

/// The cases, and the faults that they find, stand in `tests/oracle/shard_training.py`.
#[test]
fn stages_that_are_cut_inside_operators_train_as_one_model() {
    oracle::run("shard_training");
}

/// The cases, and the faults that they find, stand in `tests/oracle/host_optimizer.py`; `make zoo-host-optimizer` runs more.
#[test]
fn an_optimizer_on_the_host_changes_nothing() {
    oracle::run("host_optimizer");
}

/// The cases stand in `tests/oracle/stragglers.py`; `make zoo-stragglers` runs more. Ranks that hang or fail are in `runs.py`, too.
#[test]
fn slow_ranks_are_named() {
    oracle::run("stragglers");
}

/// The cases, and the faults that they find, stand in `tests/oracle/hybrid.py`; `make zoo-hybrid` runs more.
#[test]
fn replicas_that_share_out_in_groups_train_as_one_model() {
    oracle::run("hybrid");
}
