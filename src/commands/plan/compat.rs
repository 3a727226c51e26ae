//! `plan GRAPH.txt --compat pipedream`: the plan of the released optimizer.

use peers::{CompatPlan, CompatQuestion, compat_plan};
use schema::{BytesPerSecond, PipedreamProfile, PlanAnswer, StageAnswer};

use super::{
    Plan,
    answer::{self, Unit},
};
use crate::{failure::Failure, output::Output};

/// Answers with the released optimizer's objective.
pub fn run(plan: &Plan, profile: &PipedreamProfile, output: &mut Output) -> Result<(), Failure> {
    if plan.machines.is_empty() {
        return Err(Failure::input(
            "--compat pipedream needs --machines, such as --machines 4 or --machines 8,2",
        ));
    }
    // One bandwidth serves one level; the original's default is 1 GB/s.
    let bandwidths: Vec<f64> = match plan.bandwidth.as_slice() {
        [] => vec![1e9; plan.machines.len()],
        given => given.to_vec(),
    };
    let bandwidths: Vec<BytesPerSecond> = bandwidths.into_iter().map(BytesPerSecond).collect();
    let question = CompatQuestion {
        profile,
        machines: &plan.machines,
        bandwidths: &bandwidths,
        activation_transfer: plan.activation_transfer,
        straight: plan.straight,
    };
    let found = compat_plan(&question).map_err(|error| match error {
        peers::CompatError::TooManyStages { .. } | peers::CompatError::TooWide(_) => Failure::no(error),
        _ => Failure::input(error),
    })?;
    let answer = answer(plan, profile, &found);
    answer::print(plan, &answer, Unit::MicroBatch, &why(&found), output)
}

fn answer(plan: &Plan, profile: &PipedreamProfile, found: &CompatPlan) -> PlanAnswer {
    let mut first = 0;
    let stages = found.stages.iter().map(|stage| {
        let devices = (first..first + stage.replicas).map(|device| device.to_string()).collect();
        first += stage.replicas;
        let seconds = (stage.compute + stage.sync).max(stage.transfer);
        let bound_by = if stage.transfer > stage.compute + stage.sync {
            "transfer"
        } else if stage.sync > stage.compute {
            "sync"
        } else {
            "compute"
        };
        StageAnswer {
            blocks: stage.nodes.iter().map(|&node| profile.nodes[node].id.clone()).collect(),
            devices,
            replicas: stage.replicas,
            seconds,
            compute_seconds: stage.compute,
            sync_seconds: stage.sync,
            transfer_seconds: stage.transfer,
            memory_bytes: (stage.parameters + stage.activations) as u64,
            bound_by: bound_by.to_string(),
            ..StageAnswer::default()
        }
    });
    PlanAnswer {
        schema_version: answer::SCHEMA_VERSION,
        model: plan.model_name(),
        strategy: "pipedream (as released)".to_string(),
        schedule: Some("pipedream".to_string()),
        period_seconds: Some(found.period),
        data_parallel_seconds: Some(found.data_parallel),
        lower_bound_seconds: found.lower_bound,
        gap: if found.period > 0.0 { 1.0 - found.lower_bound / found.period } else { 0.0 },
        optimal: found.compressed.is_none(),
        stages: stages.collect(),
        ..PlanAnswer::default()
    }
}

fn why(found: &CompatPlan) -> String {
    let replicas: Vec<String> = found.stages.iter().map(|stage| stage.replicas.to_string()).collect();
    let compressed = match found.compressed {
        Some(n_nodes) => format!(
            " The graph is too wide for that optimizer: each branch was compressed to one node, which leaves {n_nodes} \
             nodes, as with the authors' tool."
        ),
        None => String::new(),
    };
    format!(
        "Configuration {}, {:.2} times as fast as data parallelism by the same objective. This is the released optimizer's \
         optimum over {} states, including its quirks; --strategy pipedream corrects them.{compressed}",
        replicas.join("-"),
        found.data_parallel / found.period,
        found.n_states
    )
}
