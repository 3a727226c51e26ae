//! Why there is no plan, and which changes would allow one.

use std::{
    cell::OnceCell,
    path::{Path, PathBuf},
};

use partitioner::{MicroBatches, PlanError, Problem, ProblemError, Training, shortage};
use schema::{Bytes, ShardingLevel};

use super::{PlanRequest, fits::fits, pins, refine::NoPlan};
use crate::failure::Failure;

/// Why there is no plan.
pub enum Unplanned {
    /// The search found none.
    NotFound(Box<NotFound>),
    /// No split of the operators fits a device.
    Inside {
        /// Bytes that a device needs at least.
        needed: Bytes,
        /// Bytes that it has.
        limit: Bytes,
    },
    /// A wrong request, or a wrong model or cluster.
    Wrong(Failure),
}

/// A search without a result.
pub struct NotFound {
    /// The request.
    request: PlanRequest,
    model: PathBuf,
    /// The blocks that were searched, each with the reason why there is no plan of them.
    failed: Vec<NoPlan>,
    /// Why some cuts cannot be written, if so.
    reason: Option<String>,
    /// Of the blocks that were searched, those that come nearest to a plan, and what they lack: searched for where it is told.
    nearest: OnceCell<NoPlan>,
}

impl NotFound {
    /// Records the blocks that were searched. Invariant: there are some.
    pub(super) fn new(
        request: PlanRequest,
        model: PathBuf,
        failed: Vec<NoPlan>,
        reason: Option<String>,
    ) -> Self {
        Self { request, model, failed, reason, nearest: OnceCell::new() }
    }

    /// Returns the blocks that come nearest to a plan, which have the best hint, and why there is none of them.
    fn nearest(&self) -> &NoPlan {
        let explained = |(problem, error): &NoPlan| {
            let mut problem = problem.clone();
            let error = shortage(&mut problem, self.request.strategy, error.clone());
            (problem, error)
        };
        let needed = |(_, error): &NoPlan| match error {
            PlanError::Memory { needed, .. } => *needed,
            _ => u64::MAX,
        };
        let find = || self.failed.iter().map(explained).min_by_key(needed);
        self.nearest.get_or_init(|| find().expect("what has no plan says why"))
    }
}

impl Unplanned {
    /// Tells whether the request was valid and the answer is no.
    pub(super) fn is_no(&self) -> bool {
        match self {
            Self::NotFound(found) => {
                let is_full =
                    |(_, error): &NoPlan| matches!(error, PlanError::Memory { .. } | PlanError::NothingFits);
                found.failed.iter().any(is_full)
            }
            Self::Inside { .. } => true,
            Self::Wrong(failure) => failure.is_no(),
        }
    }

    /// Returns the reason in a few words.
    pub fn reason(&self) -> String {
        match self {
            Self::NotFound(found) => match &found.nearest().1 {
                PlanError::Schedule { reason, .. } => reason.clone(),
                error => error.to_string(),
            },
            Self::Wrong(failure) => failure.to_string(),
            Self::Inside { needed, limit } => {
                format!("no split of the operators fits: a device needs at least {needed} and has {limit}")
            }
        }
    }

    /// Returns the memory that each device lacks, if a plan would fit with it.
    pub fn missing(&self) -> Option<Bytes> {
        match self {
            Self::NotFound(found) => match &found.nearest().1 {
                PlanError::Memory { needed, limit, .. } => {
                    Some(rounded_up(Bytes(needed.saturating_sub(*limit))))
                }
                _ => None,
            },
            Self::Inside { needed, limit } => Some(rounded_up(Bytes(needed.0.saturating_sub(limit.0)))),
            Self::Wrong(_) => None,
        }
    }
}

impl From<Failure> for Unplanned {
    fn from(failure: Failure) -> Self {
        Self::Wrong(failure)
    }
}

impl From<Unplanned> for Failure {
    fn from(reason: Unplanned) -> Self {
        match reason {
            Unplanned::NotFound(found) => {
                let (problem, error) = found.nearest();
                let failure = no_plan(&found.request, &found.model, problem, error.clone());
                match found.reason {
                    Some(reason) => failure.with_hint(format!("some cuts cannot be written: {reason}")),
                    None => failure,
                }
            }
            Unplanned::Inside { .. } => Failure::no(reason.reason()),
            Unplanned::Wrong(failure) => failure,
        }
    }
}

/// Returns the failure: why there is no plan, in which file, and which changes would allow one.
fn no_plan(request: &PlanRequest, model: &Path, problem: &Problem, error: PlanError) -> Failure {
    match (&error, &request.cluster_file) {
        (PlanError::Problem(ProblemError::NoBlocks | ProblemError::BadNumber { .. }), _) => {
            changes(request, problem, error).in_file(model)
        }
        (
            PlanError::TooManyStages { .. }
            | PlanError::TooManyWorking { .. }
            | PlanError::TooFewDevices { .. }
            | PlanError::Pinned { .. },
            _,
        ) => changes(request, problem, error).in_file(model),
        (PlanError::Problem(_), Some(cluster)) => changes(request, problem, error).in_file(cluster),
        _ => changes(request, problem, error),
    }
}

/// Lists changes of which each alone suffices, as a trial has shown.
fn changes(request: &PlanRequest, problem: &Problem, error: PlanError) -> Failure {
    match &error {
        PlanError::Memory { needed, limit, .. } => {
            let (needed, limit) = (Bytes(*needed), Bytes(*limit));
            let short = rounded_up(Bytes(needed.0.saturating_sub(limit.0)));
            let needed = rounded_up(needed);
            let mut changes = vec![format!("{short} more on each device ({needed} instead of {limit})")];
            changes.extend(smaller_changes(problem, request));
            let kept = kept_clear(request).map(|kept| format!(" ({kept})")).unwrap_or_default();
            Failure::no(&error).with_hint(format!("one of these suffices: {}{kept}", changes.join("; ")))
        }
        PlanError::NothingFits => Failure::no(error),
        PlanError::TooManyStages { .. } | PlanError::TooManyWorking { .. } => {
            Failure::input(error).with_hint("ask for fewer stages")
        }
        PlanError::TooFewDevices { .. } => Failure::input(error).with_hint(
            "a stage has devices of its own; --strategy interleaved splits each into several chunks",
        ),
        PlanError::Pinned { .. } => match pins::nearest(problem, request.alternatives) {
            Some(near) => Failure::input(error).with_hint(near),
            None => Failure::input(error),
        },
        PlanError::Schedule { .. } | PlanError::Problem(_) => Failure::input(error),
    }
}

/// Reports the memory of devices that is kept clear, if any.
fn kept_clear(request: &PlanRequest) -> Option<String> {
    let reserves =
        request.cluster.types.values().map(|type_| (type_.reserve.unwrap_or_default(), type_.memory));
    let (reserve, memory) = reserves.filter(|(reserve, _)| reserve.0 > 0).max()?;
    Some(format!(
        "{reserve} of {memory} are reserved for everything but tensors: --memory-fraction, --reserve"
    ))
}

/// Rounds up to the three digits that are shown, so that adding the shown number is enough.
fn rounded_up(bytes: Bytes) -> Bytes {
    let mut unit = 1.0;
    while bytes.0 as f64 / unit >= 1000.0 {
        unit *= 1024.0;
    }
    let step = match bytes.0 as f64 / unit {
        value if value < 10.0 => unit / 100.0,
        value if value < 100.0 => unit / 10.0,
        _ => unit,
    };
    // Bytes are whole.
    Bytes(((bytes.0 as f64 / step.max(1.0)).ceil() * step.max(1.0)).ceil() as u64)
}

/// Tries more devices and the options that save memory, for the requested strategy or for all; large problems are
/// skipped.
fn smaller_changes(problem: &Problem, request: &PlanRequest) -> Vec<String> {
    const SMALL: usize = 4000;
    let n_devices = problem.machine.devices.len();
    if problem.blocks.len() * n_devices > SMALL {
        return Vec::new();
    }
    let asked = request.alternatives;
    let fits = |problem: &Problem| fits(problem, asked);
    let mut changes = Vec::new();
    let with_devices = |count: usize| Problem { machine: problem.machine.grown(count), ..problem.clone() };
    if !problem.machine.levels.is_empty() {
        // More devices never fit less: search between by halving.
        let (mut few, mut enough) = (n_devices, 4 * n_devices.max(2));
        if fits(&with_devices(enough)) {
            while enough - few > 1 {
                let middle = (few + enough) / 2;
                if fits(&with_devices(middle)) { enough = middle } else { few = middle }
            }
            changes.push(format!("{enough} devices instead of {n_devices}"));
        }
    }
    let training = &problem.training;
    let few = match training.micro_batches {
        MicroBatches::Exactly(count) => count,
        _ => 1,
    };
    let mut fewer =
        std::iter::successors(Some(few / 2), |count| Some(count / 2)).take_while(|&count| count > 0);
    let with = |count: u32| {
        let training = Training { micro_batches: MicroBatches::Exactly(count), ..problem.training };
        Problem { training, ..problem.clone() }
    };
    let enough = fewer.find(|&count| fits(&with(count)));
    changes.extend(enough.map(|count| format!("--micro-batches {count}")));
    let mut option = |is_open: bool, words: &str, change: &dyn Fn(&mut Training)| {
        let mut changed = problem.clone();
        change(&mut changed.training);
        let is_enough = is_open && fits(&changed);
        if is_enough {
            changes.push(words.to_string());
        }
        is_enough
    };
    option(!training.recompute, "recomputing activations (without --no-recompute)", &|training| {
        training.recompute = true;
    });
    option(!training.offload, "--offload", &|training| training.offload = true);
    ShardingLevel::ALL.into_iter().filter(|level| *level > training.sharding_up_to).find(|level| {
        option(true, &format!("--sharding {}", level.name()), &|training| training.sharding = *level)
    });
    // Copies of parameters in float32 are state that another optimizer needs, too.
    let plain = !request.assumed.master_weights;
    option(plain && training.optimizer_factor > 1.0, "--optimizer momentum", &|training| {
        training.optimizer_factor = 1.0;
    });
    option(plain && training.optimizer_factor > 0.0, "--optimizer sgd", &|training| {
        training.optimizer_factor = 0.0;
    });
    changes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_is_enough() {
        let check = |bytes: u64, expected: &str| {
            let up = rounded_up(Bytes(bytes));
            assert!(up.0 >= bytes && up.0 as f64 <= bytes as f64 * 1.011 + 1.0, "{bytes}: {}", up.0);
            assert_eq!(up.to_string(), expected);
        };
        check(0, "0 B");
        check(43, "43 B");
        check(111_400_000, "107 MiB");
        check(1_868_000_000, "1.74 GiB");
        check(106 << 20, "106 MiB");
        check((106 << 20) + 1, "107 MiB");
        check(15_938_355, "15.2 MiB");
        check(15_938_356, "15.3 MiB");
    }
}
