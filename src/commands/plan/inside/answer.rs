//! What the papers' searches find: a line per run of operators with equal splits.

use partitioner::inside::{Degrees, Limits, Space, Split, Walked};
use schema::{Bytes, InsideAnswer, OperatorSplit, Seconds};

use super::{super::answer::span, layers::Layers};
use crate::{columns::table, workspace::Workspace};

/// The result of a search.
pub struct Inside<'a> {
    pub workspace: &'a Workspace,
    pub layers: &'a Layers,
    pub space: &'a Space,
    pub limits: Limits,
    pub found: &'a Split,
    /// The result of the random search, if there was one.
    pub walked: Option<&'a Walked>,
    /// Data parallelism.
    pub even: &'a [usize],
}

impl Inside<'_> {
    /// Returns the answer.
    pub fn answer(&self) -> InsideAnswer {
        let (picks, totals, step) = match self.walked {
            Some(walked) => (&walked.picks, walked.totals, walked.step),
            None => (&self.found.picks, self.found.totals, self.found.step),
        };
        let graph = &self.workspace.graph;
        let operators = self.layers.operators.iter().enumerate().map(|(layer, &id)| {
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
        });
        let even = self.space.choices.totals(self.even);
        let fits = even.bytes <= self.limits.bytes;
        InsideAnswer {
            operators: operators.collect(),
            step_seconds: step,
            lower_bound_seconds: self.found.bound.min(step),
            sync_seconds: totals.hidden,
            memory_bytes: totals.bytes as u64,
            data_parallel_seconds: fits.then(|| even.step(self.limits.exposed)),
            random_gain: self.walked.map(|walked| self.found.step / walked.step - 1.0),
            not_carried_out: None,
        }
    }
}

/// Describes it, beside the seconds of a micro-batch of what is written.
pub fn text(inside: &InsideAnswer, written: Option<f64>) -> String {
    let (step, bound) = (inside.step_seconds, inside.lower_bound_seconds);
    let proof = if step <= bound * (1.0 + 1e-6) {
        "no split of the operators is faster".to_string()
    } else {
        format!(
            "at most {:.1} % from optimal (no split of the operators is faster than {})",
            (100.0 * (step / bound - 1.0)).max(0.1),
            Seconds(bound)
        )
    };
    let even = match inside.data_parallel_seconds {
        Some(even) => {
            format!("data parallelism: {}, {:+.1} %", Seconds(even), 100.0 * (even / step - 1.0))
        }
        None => "data parallelism does not fit".to_string(),
    };
    let random = inside.random_gain.map_or_else(String::new, |gain| {
        format!("random changes (MCMC) of it and of data parallelism gained {:.2} %\n", 100.0 * gain.max(0.0))
    });
    let written = written.map_or_else(String::new, |each| {
        format!("; of what can be run here: {} (this is written)", Seconds(each))
    });
    let carried_out = match &inside.not_carried_out {
        Some(reason) => format!("not carried out: {reason}\n"),
        None => String::new(),
    };
    format!(
        "as the paper searches, with several dimensions of an operator at once and with some of the devices: {} per step of the \
         model's inputs, {proof} (predicted){written}\n{even}\n{random}{} of gradient sync beside it; {} on a device, the loss \
         not counted\n{carried_out}\n{}\n",
        Seconds(step),
        Seconds(inside.sync_seconds),
        Bytes(inside.memory_bytes),
        operators(&inside.operators),
    )
}

fn operators(operators: &[OperatorSplit]) -> String {
    let head = ["operators", "", "samples", "channels", "height", "width", "sums", "devices"];
    let mut rows = vec![head.map(String::from).to_vec()];
    let degrees = |one: &OperatorSplit| [one.samples, one.channels, one.height, one.width, one.sums];
    for alike in operators.chunk_by(|a, b| degrees(a) == degrees(b)) {
        let span = span(alike, |one| (&one.block, &one.operator));
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
