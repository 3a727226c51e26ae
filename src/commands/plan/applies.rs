//! Which arguments apply to which kind of model: the others are refused by name, so that none is silently ignored.

use schema::InferenceObjective;

use super::{Aim, Plan, arguments::EffortArgument, input::Input};
use crate::failure::Failure;

/// The kinds of input that take different arguments.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Traced,
    Profile,
    /// A profile, planned by the released optimizer's objective.
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
    let arguments: [(&str, bool, &[Kind]); 39] = [
        ("--input", !asking.input.is_empty(), &[Traced]),
        // The message about a profile says where its times and samples come from.
        ("--cost-model", !asking.cost_models.is_empty(), planned),
        ("--batch", asking.batch.is_some(), planned),
        // The message about the released optimizer says which arguments it takes instead.
        ("--devices", asking.devices.is_some(), &[Traced, Profile, Released]),
        ("--cluster", asking.cluster.is_some(), &[Traced, Profile, Released]),
        ("--strategy", asking.strategy != "auto", planned),
        ("--stages", asking.stages.is_some(), planned),
        ("--micro-batches", asking.micro_batches.is_some(), &[Traced, Profile, Piper]),
        ("--optimizer", asking.optimizer.is_some(), planned),
        ("--master-weights", asking.master_weights, &[Traced]),
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
        ("--split-overhead", asking.split_overhead.is_some(), planned),
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
    let failure = Failure::input(format!("{} does not take {}", kind.name(), foreign.join(", ")));
    Err(failure.with_hint(match kind {
        Traced => "describe machines with --devices or --cluster; --compat pipedream plans profile graphs",
        Profile => "--compat pipedream takes --activation-transfer and --straight",
        Released => "use --machines, --bandwidth, --activation-transfer and --straight; no plan is written",
        Loads => "the file sets the objective and the devices; --machines K,L and --memory change them; no plan is written",
        Piper => {
            "the file sets the objective and the devices; --machines, --bandwidth, --memory, --micro-batches and \
             --no-recompute change them; no plan is written"
        }
    }))
}

/// Refuses training arguments if only the forward pass is planned.
fn forward_only(plan: &Plan) -> Result<(), Failure> {
    let Some(aim) = plan.aim.of_trace()? else { return Ok(()) };
    let asking = &plan.asking;
    let is_latency = aim.objective == InferenceObjective::Latency;
    let arguments = [
        ("--strategy", asking.strategy != "auto"),
        ("--optimizer", asking.optimizer.is_some()),
        ("--master-weights", asking.master_weights),
        ("--loss", asking.loss.is_some()),
        ("--sharding", asking.sharding.is_some()),
        ("--no-recompute", asking.no_recompute),
        ("--offload", asking.offload),
        ("--host-overhead", asking.host_overhead.is_some()),
        ("--split-overhead", asking.split_overhead.is_some()),
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
    let what = if is_latency { "one request's forward pass" } else { "a forward pass" };
    Err(Failure::input(format!("{what} does not take {}", given.join(", "))).with_hint(
        "stages, cuts, calls kept together, devices and memory can be set; --batch is the number of samples in flight \
         when planning for throughput",
    ))
}

/// Refuses arguments that would change a plan that is only checked.
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
        ("--tensor-parallel", asking.tensor_parallel.is_some()),
        ("--sequence-parallel", asking.sequence_parallel.is_some()),
        ("--spatial", asking.spatial.is_some()),
        ("--context-parallel", asking.context_parallel.is_some()),
        ("--expert-parallel", asking.expert_parallel.is_some()),
        ("--on-first", !asking.on_first.is_empty()),
        ("--effort", asking.effort != EffortArgument::default()),
    ];
    let idle: Vec<&str> = arguments.iter().filter(|(_, is_given)| *is_given).map(|(name, _)| *name).collect();
    if idle.is_empty() {
        Ok(())
    } else {
        let failure = Failure::input(format!("--check does not take {}", idle.join(", ")));
        Err(failure.with_hint("a plan is scored as it stands; edit the file, or plan without --check"))
    }
}
