//! Refusals of other planners' questions in a command without the feature `peers`.

use schema::{DnnWorkload, PipedreamProfile, PiperWorkload};

use super::Plan;
use crate::{failure::Failure, output::Output};

fn refused(what: &str) -> Failure {
    let failure =
        Failure::input(format!("this command was built without other planners: it cannot plan {what}"));
    failure.with_hint("build it with the feature `peers`, which is on unless --no-default-features is given")
}

pub mod compat {
    use super::*;

    /// Refuses the released optimizer.
    pub fn run(_: &Plan, _: &PipedreamProfile, _: &mut Output) -> Result<(), Failure> {
        Err(refused("by --compat pipedream"))
    }
}

pub mod workload {
    use super::*;

    /// Refuses a workload of dnn-partitioning.
    pub fn run_loads(_: &Plan, _: &DnnWorkload, _: &mut Output) -> Result<(), Failure> {
        Err(refused("a workload of dnn-partitioning"))
    }

    /// Refuses the latency of such a workload.
    pub fn run_latency(_: &Plan, _: &DnnWorkload, _: &mut Output) -> Result<(), Failure> {
        Err(refused("a workload of dnn-partitioning"))
    }

    /// Refuses a workload of Piper.
    pub fn run_piper(_: &Plan, _: &PiperWorkload, _: &mut Output) -> Result<(), Failure> {
        Err(refused("a workload of Piper"))
    }
}
