//! Which arguments apply to which kind of model: the others are refused by name, so that nobody believes they were heard.

use schema::InferenceObjective;

use super::{
    Aim, Plan,
    arguments::{EffortArgument, Optimizer},
    input::Input,
};
use crate::failure::Failure;

/// What is planned, as far as arguments differ.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Traced,
    Profile,
    /// A profile by the released optimizer's objective.
    Released,
    Loads,
    Piper,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Traced => "a traced model",
            Self::Profile => "a profile graph",
            Self::Released => "--compat pipedream",
            Self::Loads => "a workload of dnn-partitioning",
            Self::Piper => "a workload of Piper",
        }
    }
}

/// Refuses arguments that this kind of model does not take.
pub fn check(plan: &Plan, input: &Input) -> Result<(), Failure> {
    use Kind::{Loads, Piper, Profile, Released, Traced};
    let kind = match (input, plan.compat) {
        (Input::Pipedream(_), Some(_)) => Released,
        (Input::Pipedream(_), None) => Profile,
        (Input::DnnPartitioning(_), _) => Loads,
        (Input::Piper(_), _) => Piper,
        (Input::Trace(_), _) => Traced,
    };
    let asking = &plan.asking;
    let planned: &[Kind] = &[Traced, Profile];
    let arguments: [(&str, bool, &[Kind]); 37] = [
        ("--input", !asking.input.is_empty(), &[Traced]),
        // A profile's own refusal says where its times and samples come from.
        ("--cost-model", !asking.cost_models.is_empty(), planned),
        ("--batch", asking.batch.is_some(), planned),
        // The released optimizer's own refusal says what it takes instead.
        ("--devices", asking.devices.is_some(), &[Traced, Profile, Released]),
        ("--cluster", asking.cluster.is_some(), &[Traced, Profile, Released]),
        ("--strategy", asking.strategy != "auto", planned),
        ("--stages", asking.stages.is_some(), planned),
        ("--micro-batches", asking.micro_batches.is_some(), &[Traced, Profile, Piper]),
        ("--optimizer", asking.optimizer != Optimizer::default(), planned),
        ("--keep-together", !asking.keep_together.is_empty(), &[Traced]),
        ("--cut-at", !asking.cut_at.is_empty(), &[Traced]),
        ("--layers", !asking.layers.is_empty(), &[Traced]),
        ("--pin", !asking.pin.is_empty(), &[Traced]),
        ("--recompute", !asking.recompute.is_empty(), &[Traced]),
        ("--constraints", asking.constraints.is_some(), &[Traced]),
        ("--from", asking.from.is_some(), planned),
        ("--effort", asking.effort != EffortArgument::default(), planned),
        ("--tf32", asking.rounding.tf32, &[Traced]),
        ("--fp8", asking.rounding.fp8, &[Traced]),
        ("--loss", asking.loss.is_some(), &[Traced]),
        ("--sharding", asking.sharding.is_some(), planned),
        ("--no-recompute", asking.no_recompute, &[Traced, Profile, Piper]),
        ("--offload", asking.offload, planned),
        ("--host-overhead", asking.host_overhead.is_some(), planned),
        ("--no-overlap", plan.no_overlap, planned),
        ("--compare", plan.compare, planned),
        ("--check", plan.check.is_some(), planned),
        ("--output", plan.output.is_some(), planned),
        ("--machines", !plan.machines.is_empty(), &[Profile, Released, Loads, Piper]),
        ("--bandwidth", !plan.bandwidth.is_empty(), &[Profile, Released, Piper]),
        ("--memory", plan.memory.is_some(), &[Profile, Loads, Piper]),
        ("--objective latency", plan.aim.is(Aim::Latency), &[Traced, Loads]),
        ("--micro-batch-size", plan.asking.micro_batch_size.is_some(), &[Traced]),
        ("--inference", plan.aim.is_inference(), &[Traced]),
        ("--kv-cache", plan.aim.has_cache(), &[Traced]),
        ("--objective throughput", plan.aim.is(Aim::Throughput), &[Traced, Profile, Loads, Piper]),
        ("--activation-transfer or --straight", plan.activation_transfer || plan.straight, &[Released]),
    ];
    let foreign: Vec<&str> = arguments
        .iter()
        .filter(|(_, is_given, kinds)| *is_given && !kinds.contains(&kind))
        .map(|(name, ..)| *name)
        .collect();
    if foreign.is_empty() && kind == Traced {
        forward_only(plan)?;
    }
    if foreign.is_empty() {
        return given(plan);
    }
    let failure = Failure::input(format!("{} takes no {}", kind.name(), foreign.join(", ")));
    Err(failure.with_hint(match kind {
        Traced => "describe machines with --devices or --cluster; --compat pipedream plans profile graphs",
        Profile => "--compat pipedream takes --activation-transfer and --straight",
        Released => "it takes --machines, --bandwidth, --activation-transfer and --straight; no plan is written",
        Loads => "it brings its objective and its devices; --machines K,L and --memory change them; no plan is written",
        Piper => {
            "it brings its objective and its devices; --machines, --bandwidth, --memory, --micro-batches and \
             --no-recompute change them; no plan is written"
        }
    }))
}

/// Refuses what is of training where the forward pass alone is planned.
fn forward_only(plan: &Plan) -> Result<(), Failure> {
    let Some(aim) = plan.aim.of_trace()? else { return Ok(()) };
    let asking = &plan.asking;
    let is_latency = aim.objective == InferenceObjective::Latency;
    let arguments = [
        ("--strategy", asking.strategy != "auto"),
        ("--optimizer", asking.optimizer != Optimizer::default()),
        ("--loss", asking.loss.is_some()),
        ("--sharding", asking.sharding.is_some()),
        ("--no-recompute", asking.no_recompute),
        ("--offload", asking.offload),
        ("--host-overhead", asking.host_overhead.is_some()),
        ("--compare", plan.compare),
        ("--from", asking.from.is_some()),
        ("--batch", is_latency && asking.batch.is_some()),
        ("--micro-batches", is_latency && asking.micro_batches.is_some()),
    ];
    let given: Vec<&str> =
        arguments.iter().filter(|(_, is_given)| *is_given).map(|(name, _)| *name).collect();
    if given.is_empty() {
        return Ok(());
    }
    let what = if is_latency { "one request's forward pass" } else { "a forward pass alone" };
    Err(Failure::input(format!("{what} takes no {}", given.join(", "))).with_hint(
        "stages, cuts, kept calls, devices and memory can be asked for; --batch says how many samples are on their way at once \
         where throughput is planned",
    ))
}

/// Refuses what would make another plan where one is given.
fn given(plan: &Plan) -> Result<(), Failure> {
    if plan.check.is_none() {
        return Ok(());
    }
    let asking = &plan.asking;
    let arguments = [
        ("--objective", plan.aim.is(Aim::Latency)),
        ("--micro-batch-size", plan.asking.micro_batch_size.is_some()),
        ("--inference", plan.aim.is_inference()),
        ("--kv-cache", plan.aim.has_cache()),
        ("--strategy", asking.strategy != "auto"),
        ("--batch", asking.batch.is_some()),
        ("--micro-batches", asking.micro_batches.is_some()),
        ("--stages", asking.stages.is_some()),
        ("--cut-at", !asking.cut_at.is_empty()),
        ("--layers", !asking.layers.is_empty()),
        ("--pin", !asking.pin.is_empty()),
        ("--recompute", !asking.recompute.is_empty()),
        ("--constraints", asking.constraints.is_some()),
        ("--from", asking.from.is_some()),
        ("--sharding", asking.sharding.is_some()),
        ("--no-recompute", asking.no_recompute),
        ("--offload", asking.offload),
    ];
    let idle: Vec<&str> = arguments.iter().filter(|(_, is_given)| *is_given).map(|(name, _)| *name).collect();
    if idle.is_empty() {
        Ok(())
    } else {
        let failure = Failure::input(format!("--check takes no {}", idle.join(", ")));
        Err(failure.with_hint("a plan is scored as it stands; edit the file, or plan without --check"))
    }
}
