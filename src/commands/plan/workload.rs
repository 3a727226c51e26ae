//! `plan WORKLOAD.json`: dnn-partitioning's and Piper's own objectives.

use peers::{
    LatencyError, LatencyPlan, LoadDevice, LoadPlan, PiperOptions, PiperPlan, latency_plan, load_plan,
    piper_plan,
};
use schema::{DnnWorkload, PiperWorkload, PlanAnswer, StageAnswer};

use super::{
    Aim, Plan,
    answer::{self, Unit},
};
use crate::{failure::Failure, output::Output};

/// Returns the workload on the requested devices.
fn on_devices(plan: &Plan, workload: &DnnWorkload) -> Result<DnnWorkload, Failure> {
    let mut workload = workload.clone();
    if plan.machines.len() > 2 {
        return Err(Failure::input(format!(
            "--machines has {} numbers; a workload of dnn-partitioning has accelerators and CPUs: --machines 6,1",
            plan.machines.len()
        )));
    }
    if let [accelerators, rest @ ..] = plan.machines.as_slice() {
        workload.n_accelerators = *accelerators;
        workload.n_cpus = rest.first().copied().unwrap_or(workload.n_cpus);
    }
    if let Some(memory) = plan.memory {
        workload.accelerator_memory = memory;
    }
    if workload.n_accelerators + workload.n_cpus == 0 {
        return Err(Failure::input("there are no accelerators and no CPUs to plan for"));
    }
    Ok(workload)
}

/// Answers with the latency of one sample.
pub fn run_latency(plan: &Plan, workload: &DnnWorkload, output: &mut Output) -> Result<(), Failure> {
    let workload = on_devices(plan, workload)?;
    let found = latency_plan(&workload).map_err(|error| match error {
        LatencyError::Backward(_) | LatencyError::TooLarge(_) => Failure::input(error),
        LatencyError::Accelerators { .. } => Failure::no(error),
    })?;
    let answer = latency_answer(plan, &workload, &found);
    let bound = match found.n_ideals {
        Some(ideals) if answer.optimal => format!("Proven over all {ideals} ways to cut the graph."),
        Some(ideals) => format!(
            "Not all combinations of the {ideals} ways to cut the graph were searched: no placement takes less than {:.6}.",
            found.lower_bound
        ),
        None => format!(
            "The graph is too wide to search all its cuts; those along one order were searched; the longest path takes {:.6}.",
            found.lower_bound
        ),
    };
    let why = format!(
        "Latency {:.6} of one sample, in the unit of the file: a piece starts when all its inputs are there, and compute and \
         transfers of an accelerator add up, as its authors do. CPUs run ready nodes, one per CPU at a time. {bound}",
        found.latency
    );
    answer::print(plan, &answer, Unit::OfFile, &why, output)
}

/// Answers with the largest device load.
pub fn run_loads(plan: &Plan, workload: &DnnWorkload, output: &mut Output) -> Result<(), Failure> {
    let workload = on_devices(plan, workload)?;
    let found = load_plan(&workload).map_err(Failure::no)?;
    let answer = load_answer(plan, &workload, &found);
    let why = match found.n_ideals {
        Some(ideals) => format!(
            "Largest load {:.6}, in the unit of the file: compute and transfers added up, as its authors do. \
             Proven over all {ideals} ways to cut the graph.",
            found.load
        ),
        None => format!(
            "Largest load {:.6}, in the unit of the file. The graph is too wide to search all its cuts; the work that \
             must be shared bounds what is possible.",
            found.load
        ),
    };
    // A file does not state which of the two it is meant for.
    let is_inference = workload.nodes.iter().all(|node| !node.is_backward);
    let why = if plan.aim.is(Aim::Throughput) || !is_inference {
        why
    } else {
        format!("{why} The plan is for many samples; --objective latency plans for one.")
    };
    answer::print(plan, &answer, Unit::OfFile, &why, output)
}

fn load_answer(plan: &Plan, workload: &DnnWorkload, found: &LoadPlan) -> PlanAnswer {
    let strategy = "largest load (dnn-partitioning)";
    placed(plan, workload, strategy, &found.devices, [found.load, found.lower_bound])
}

fn latency_answer(plan: &Plan, workload: &DnnWorkload, found: &LatencyPlan) -> PlanAnswer {
    let strategy = "latency (dnn-partitioning)";
    let answer = placed(plan, workload, strategy, &found.devices, [found.latency, found.lower_bound]);
    PlanAnswer { period_seconds: None, step_seconds: Some(found.latency), ..answer }
}

/// Answers with a placement on accelerators and CPUs.
fn placed(
    plan: &Plan,
    workload: &DnnWorkload,
    strategy: &str,
    devices: &[LoadDevice],
    [found, lower_bound]: [f64; 2],
) -> PlanAnswer {
    let mut counts = [0; 2];
    let stages = devices.iter().map(|device| {
        let count = &mut counts[usize::from(device.is_accelerator)];
        let name = format!("{}:{count}", if device.is_accelerator { "accelerator" } else { "cpu" });
        *count += 1;
        let name_of = |&node: &usize| {
            let node = &workload.nodes[node];
            if node.name.is_empty() { node.id.to_string() } else { node.name.clone() }
        };
        StageAnswer {
            blocks: device.nodes.iter().map(name_of).collect(),
            devices: vec![name],
            replicas: 1,
            seconds: device.load(),
            compute_seconds: device.compute,
            sync_seconds: 0.0,
            transfer_seconds: device.transfer,
            memory_bytes: device.size as u64,
            bound_by: if device.transfer > device.compute { "transfer" } else { "compute" }.to_string(),
            ..StageAnswer::default()
        }
    });
    let gap = if found > 0.0 { (found - lower_bound) / found } else { 0.0 };
    PlanAnswer {
        schema_version: answer::SCHEMA_VERSION,
        model: plan.model_name(),
        strategy: strategy.to_string(),
        period_seconds: Some(found),
        lower_bound_seconds: lower_bound,
        gap,
        optimal: gap < 1e-9,
        stages: stages.collect(),
        ..PlanAnswer::default()
    }
}

/// Answers with Piper's time for each sample.
pub fn run_piper(plan: &Plan, workload: &PiperWorkload, output: &mut Output) -> Result<(), Failure> {
    let mut workload = workload.clone();
    if !plan.machines.is_empty() {
        let machines = plan.machines.iter().try_fold(1_u32, |product, &count| product.checked_mul(count));
        workload.n_devices = match machines {
            Some(machines @ 1..=100_000) => machines,
            _ => return Err(Failure::input("--machines must describe 1 to 100000 machines")),
        };
    }
    if plan.bandwidth.len() > 1 {
        return Err(Failure::input(format!(
            "--bandwidth has {} numbers; a workload of Piper has one link between all devices",
            plan.bandwidth.len()
        )));
    }
    if let Some(&bandwidth) = plan.bandwidth.first() {
        if !(bandwidth > 0.0 && bandwidth.is_finite()) {
            return Err(Failure::input(format!("--bandwidth is {bandwidth}; it must be positive")));
        }
        workload.bandwidth = bandwidth;
    }
    workload.memory = plan.memory.unwrap_or(workload.memory);
    workload.micro_batches = plan.asking.micro_batches.unwrap_or(workload.micro_batches);
    let options = PiperOptions { recompute: !plan.asking.no_recompute, ..PiperOptions::default() };
    let found = piper_plan(&workload, options).map_err(Failure::no)?;
    let answer = piper_answer(plan, &workload, &found);
    let why = format!(
        "Time per sample, in seconds if the file's times are: the slowest stage's compute and transfers, as its authors \
         add them up. {} over {} ways to cut the graph; implementations are picked exactly within each device's memory.",
        if found.stages.len() == 1 {
            "1 stage".to_string()
        } else {
            format!("{} stages", found.stages.len())
        },
        found.n_ideals
    );
    answer::print(plan, &answer, Unit::Sample, &why, output)
}

fn piper_answer(plan: &Plan, workload: &PiperWorkload, found: &PiperPlan) -> PlanAnswer {
    let mut first = 0;
    let stages = found.stages.iter().map(|stage| {
        let n_devices = stage.data_parallel * stage.tensor_parallel;
        let devices = (first..first + n_devices).map(|device| device.to_string()).collect();
        first += n_devices;
        let name_of = |&node: &usize| {
            let node = &workload.nodes[node];
            format!("{}.{}", if node.name.is_empty() { "node" } else { &node.name }, node.id)
        };
        let names: Vec<String> = stage.nodes.iter().map(name_of).collect();
        let again = names.iter().zip(&stage.implementations).filter(|(_, name)| *name == "activation recomp");
        StageAnswer {
            recompute: again.map(|(name, _)| name.clone()).collect(),
            blocks: names.clone(),
            devices,
            replicas: stage.data_parallel,
            seconds: stage.seconds,
            compute_seconds: stage.compute,
            sync_seconds: 0.0,
            transfer_seconds: stage.seconds - stage.compute,
            memory_bytes: stage.memory as u64,
            bound_by: if stage.compute * 2.0 >= stage.seconds { "compute" } else { "transfer" }.to_string(),
            ..StageAnswer::default()
        }
    });
    let gap = if found.period > 0.0 { (found.period - found.lower_bound) / found.period } else { 0.0 };
    PlanAnswer {
        schema_version: answer::SCHEMA_VERSION,
        model: plan.model_name(),
        strategy: "time per sample (Piper)".to_string(),
        micro_batches: Some(workload.micro_batches),
        period_seconds: Some(found.period),
        lower_bound_seconds: found.lower_bound,
        gap,
        optimal: gap < 1e-9,
        stages: stages.collect(),
        ..PlanAnswer::default()
    }
}
