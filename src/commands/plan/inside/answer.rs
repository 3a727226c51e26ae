//! Prints how operators are split: one line per run of operators with equal splits.

use partitioner::inside::{Degrees, Limits, Space, Split, Walked};
use schema::{Bytes, InsideAnswer, OperatorSplit, PlanAnswer, Seconds, StageAnswer, TimesFrom};

use super::{super::PlanRequest, Method, layers::Layers};
use crate::{
    columns::table,
    commands::plan::{Plan, answer::SCHEMA_VERSION},
    failure::Failure,
    output::{Format, Output},
    visible::cell,
    workspace::Workspace,
};

/// The result of a search.
pub struct Inside<'a> {
    pub method: Method,
    pub workspace: &'a Workspace,
    pub layers: &'a Layers,
    pub space: &'a Space,
    pub limits: Limits,
    pub found: &'a Split,
    /// The result of the random search, if there was one.
    pub walked: Option<&'a Walked>,
    /// Data parallelism.
    pub even: &'a [usize],
    pub request: &'a PlanRequest,
    pub times: TimesFrom,
}

/// Prints an answer.
pub fn print(plan: &Plan, answer: &PlanAnswer, output: &mut Output) -> Result<(), Failure> {
    match plan.format {
        Format::Json => output.json(&serde_json::to_value(answer).map_err(Failure::input)?),
        Format::Text => output.text(&text(answer)),
    }
}

impl Inside<'_> {
    /// Returns the answer about a model of this name.
    pub fn answer(&self, model: &str) -> PlanAnswer {
        let (picks, totals, step) = match self.walked {
            Some(walked) => (&walked.picks, walked.totals, walked.step),
            None => (&self.found.picks, self.found.totals, self.found.step),
        };
        let graph = &self.workspace.graph;
        let operators: Vec<OperatorSplit> = self
            .layers
            .operators
            .iter()
            .enumerate()
            .map(|(layer, &id)| {
                let operator = graph.operator(id);
                let Degrees { result: [samples, channels, height, width], sums } =
                    self.space.of_layer(layer, picks);
                OperatorSplit {
                    block: graph.block(operator.block).path.clone(),
                    operator: operator.short_name().to_string(),
                    samples: samples as u32,
                    channels: channels as u32,
                    height: height as u32,
                    width: width as u32,
                    sums: sums as u32,
                }
            })
            .collect();
        let devices: Vec<String> =
            self.request.cluster.devices.iter().map(|device| device.name.clone()).collect();
        let mut blocks: Vec<String> = operators.iter().map(|operator| operator.block.clone()).collect();
        blocks.dedup();
        let even = self.space.choices.totals(self.even);
        let fits = even.bytes <= self.limits.bytes;
        let bound = self.found.bound.min(step);
        let stage = StageAnswer {
            blocks,
            devices,
            replicas: 1,
            seconds: step,
            compute_seconds: totals.seconds,
            sync_seconds: totals.hidden,
            memory_bytes: totals.bytes as u64,
            bound_by: if totals.step(0.0) > totals.seconds { "sync" } else { "compute" }.to_string(),
            memory_usable: Some(Bytes(self.limits.bytes as u64)),
            ..StageAnswer::default()
        };
        PlanAnswer {
            schema_version: SCHEMA_VERSION,
            model: model.to_string(),
            strategy: self.method.name().to_string(),
            micro_batches: Some(1),
            step_seconds: Some(step),
            data_parallel_seconds: fits.then(|| even.step(self.limits.exposed)),
            lower_bound_seconds: bound,
            gap: if step > bound { step / bound - 1.0 } else { 0.0 },
            optimal: step <= bound * (1.0 + 1e-6),
            times: Some(self.times.clone()),
            memory_bytes: Some(totals.bytes as u64),
            stages: vec![stage],
            inside: Some(InsideAnswer {
                operators,
                random_gain: self.walked.map(|walked| self.found.step / walked.step - 1.0),
                not_carried_out: "no stages can be written of split operators; train.py cannot run it".into(),
            }),
            ..PlanAnswer::default()
        }
    }
}

fn text(answer: &PlanAnswer) -> String {
    let (Some(inside), [stage]) = (&answer.inside, answer.stages.as_slice()) else { return String::new() };
    let step = stage.seconds;
    let proof = if answer.optimal {
        "no split of the operators is faster".to_string()
    } else {
        format!(
            "at most {:.1} % from optimal (no split of the operators is faster than {})",
            (answer.gap * 100.0).max(0.1),
            Seconds(answer.lower_bound_seconds)
        )
    };
    let even = match answer.data_parallel_seconds {
        Some(even) => {
            format!("data parallelism: {}, {:+.1} %", Seconds(even), 100.0 * (even / step - 1.0))
        }
        None => "data parallelism does not fit".to_string(),
    };
    let random = inside.random_gain.map_or_else(String::new, |gain| {
        format!("random changes (MCMC) of it and of data parallelism gained {:.2} %\n", 100.0 * gain.max(0.0))
    });
    let times = answer.times.as_ref().map(|times| format!("times: {times}\n")).unwrap_or_default();
    format!(
        "{}: {} per step of the model's inputs on {} devices, {proof}\nstrategy {}; {even}\n{random}{} of compute and exchanges it \
         waits for, {} of gradient sync beside it; {} of {} on a device, the loss not counted\n{times}\n{}\n\nnot carried out: {}\n",
        answer.model,
        Seconds(step),
        stage.devices.len(),
        answer.strategy,
        Seconds(stage.compute_seconds),
        Seconds(stage.sync_seconds),
        Bytes(stage.memory_bytes),
        stage.memory_usable.unwrap_or_default(),
        operators(&inside.operators),
        inside.not_carried_out,
    )
}

fn operators(operators: &[OperatorSplit]) -> String {
    let head = ["operators", "", "samples", "channels", "height", "width", "sums", "devices"];
    let mut rows = vec![head.map(String::from).to_vec()];
    let degrees = |one: &OperatorSplit| [one.samples, one.channels, one.height, one.width, one.sums];
    for alike in operators.chunk_by(|a, b| degrees(a) == degrees(b)) {
        let name = |one: &OperatorSplit| {
            if one.block.is_empty() {
                one.operator.clone()
            } else {
                format!("{} {}", cell(&one.block), one.operator)
            }
        };
        let span = match alike {
            [first, .., last] => format!("{} … {}", name(first), name(last)),
            _ => name(&alike[0]),
        };
        let own = degrees(&alike[0]);
        let devices = own.iter().product();
        let numbers = own.into_iter().chain([devices]).map(|parts| match parts {
            1 => "·".to_string(),
            parts => parts.to_string(),
        });
        rows.push([alike.len().to_string(), span].into_iter().chain(numbers).collect());
    }
    table(&rows, " ", |column| column != 1).trim_end().to_string()
}
