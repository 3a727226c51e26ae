//! `model-analyze simulate`: how long a step takes under a plan or an order, and where time and memory go.

use std::path::{Path, PathBuf};

use clap::Args;
use schema::{LintFinding, LintedOrder, SimulatedOrder, TIMELINE_VERSION};
use simulator::{
    Cost,
    order::{CsvError, Order, from_csv},
};

use crate::{
    failure::Failure,
    files,
    output::{Format, Output},
};

/// Arguments of `simulate`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  model-analyze simulate plan.yaml
  model-analyze simulate plan.yaml --schedule zb2p --micro-batches 16 --timeline step.svg
  model-analyze simulate --csv order.csv --cost 10,11,7,0 --format json
  model-analyze simulate --csv order.csv --lint")]
pub struct Simulate {
    /// A compute-only schedule as torch.distributed.pipelining loads it
    #[arg(long, value_name = "ORDER.csv")]
    csv: Option<PathBuf>,
    /// Stages in one copy of the model, where the order runs several (GEMS, Chimera, DualPipe)
    #[arg(long, value_name = "N", requires = "csv")]
    chain: Option<u32>,
    /// Forward, input-gradient and weight-gradient time of every stage, and latency of every hop
    #[arg(long, value_name = "F,I,W,C", requires = "csv", default_value = "1,1,1,0", value_parser = read_cost)]
    cost: Cost,
    /// Only check the order: what is missing, doubled, out of order or deadlocked
    #[arg(long, requires = "csv")]
    lint: bool,
    /// How to print the answer
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

impl Simulate {
    /// Prints the answer.
    pub fn run(self, output: &mut Output) -> Result<(), Failure> {
        match &self.csv {
            Some(path) => self.run_csv(path, output),
            None => {
                Err(Failure::input("nothing to simulate").with_hint("give a plan, or an order with --csv"))
            }
        }
    }

    fn run_csv(&self, path: &Path, output: &mut Output) -> Result<(), Failure> {
        let name = path.display().to_string();
        let text = files::read_text(path)?;
        let order = from_csv(&text, self.chain).map_err(|error| csv_failure(&name, &text, error))?;
        let report = simulator::lint(&order);
        if self.lint {
            return print_lint(&report, self.format, output);
        }
        if let Some(first) = report.errors().next() {
            let more = report.errors().count() - 1;
            let more = if more > 0 { format!(" (and {more} more)") } else { String::new() };
            return Err(Failure::no(format!("{name}: {first}{more}"))
                .with_hint(format!("`model-analyze simulate --csv {name} --lint` lists every problem")));
        }
        let clock = simulator::clock(&order, &self.cost)
            .map_err(|error| Failure::input(format!("{name}: {error}")))?;
        let answer = SimulatedOrder {
            schema_version: TIMELINE_VERSION,
            makespan: clock.makespan,
            longest_span: clock.longest_span,
            bubble: simulator::closed_form::bubble(clock.makespan, &clock.busy),
            busy: clock.busy,
            peak_activations: clock.peak_activations,
            peak_until_input_gradient: clock.peak_until_input_gradient,
            ranks: order.ranks.len(),
            stages: order.n_stages(),
            operations: order.n_ops(),
            warnings: report.findings.iter().map(ToString::to_string).collect(),
        };
        match self.format {
            Format::Json => output.json(&serde_json::to_value(&answer).map_err(Failure::input)?),
            Format::Text => output.text(&order_text(&answer, &order)),
        }
    }
}

/// Reads `F,I,W,C`.
fn read_cost(text: &str) -> Result<Cost, String> {
    let parts: Vec<&str> = text.split(',').map(str::trim).collect();
    let [forward, input_gradient, weight_gradient, hop] = parts[..] else {
        return Err(
            "expected four numbers: forward, input gradient, weight gradient, hop latency".to_string()
        );
    };
    let number = |name: &str, value: &str| {
        value.parse::<u64>().map_err(|_| format!("{name} `{value}` is not a whole number of 0 or more"))
    };
    let cost = Cost {
        forward: number("forward time", forward)?,
        input_gradient: number("input-gradient time", input_gradient)?,
        weight_gradient: number("weight-gradient time", weight_gradient)?,
        hop: number("hop latency", hop)?,
    };
    if cost.forward == 0 && cost.backward() == 0 {
        return Err("all operations take no time: at least one of F, I and W must be above 0".to_string());
    }
    Ok(cost)
}

fn csv_failure(name: &str, text: &str, error: CsvError) -> Failure {
    let failure = Failure::input(format!("{name}: {error}"));
    match error {
        CsvError::Cell { span, .. } => failure.at(name, text, span, "here").with_hint(
            "a cell is `<stage><F|I|W|B><micro-batch>` or `(0F3;3B1)OVERLAP_F_B`; empty cells are idle",
        ),
        CsvError::Communication { span, .. } => {
            failure.at(name, text, span, "here").with_hint("write the schedule with format=\"compute_only\"")
        }
        CsvError::Chain { .. } => failure
            .with_hint("--chain is the number of stages in one copy of the model; leave it out for one copy"),
        CsvError::Empty | CsvError::TooLong { .. } | CsvError::Number { .. } => failure,
    }
}

fn print_lint(report: &simulator::Report, format: Format, output: &mut Output) -> Result<(), Failure> {
    let ok = report.errors().next().is_none();
    let severity = |severity| match severity {
        simulator::Severity::Error => "error",
        simulator::Severity::Warning => "warning",
    };
    match format {
        Format::Json => {
            let findings = report.findings.iter().map(|finding| LintFinding {
                severity: severity(finding.severity).to_string(),
                rank: finding.place.map(|place| place.rank),
                position: finding.place.map(|place| place.position),
                message: finding.to_string(),
            });
            let answer = LintedOrder {
                schema_version: TIMELINE_VERSION,
                ok,
                findings: findings.collect(),
                peak_activations: report.peak_activations.clone(),
            };
            output.json(&serde_json::to_value(&answer).map_err(Failure::input)?)?;
        }
        Format::Text => {
            let mut text: String = report
                .findings
                .iter()
                .map(|finding| format!("{}: {finding}\n", severity(finding.severity)))
                .collect();
            if let Some(peaks) = &report.peak_activations {
                text.push_str(&format!("peak activations by rank: {}\n", list(peaks)));
            }
            text.push_str(if ok { "the order is complete and runs\n" } else { "the order is wrong\n" });
            output.text(&text)?;
        }
    }
    if ok { Ok(()) } else { Err(Failure::no(format!("{} problems", report.errors().count()))) }
}

fn order_text(answer: &SimulatedOrder, order: &Order) -> String {
    let mut text = format!(
        "{} operations of {} stages on {} ranks, {} micro-batches\n\n",
        answer.operations,
        answer.stages,
        answer.ranks,
        order.n_micro_batches(),
    );
    text.push_str(&format!("makespan          {}\n", answer.makespan));
    text.push_str(&format!("longest span      {}\n", answer.longest_span));
    text.push_str(&format!("bubble            {:.1} %\n", 100.0 * answer.bubble));
    text.push_str(&format!("busy              {}\n", list(&answer.busy)));
    text.push_str(&format!("peak activations  {}\n", list(&answer.peak_activations)));
    for warning in &answer.warnings {
        text.push_str(&format!("warning: {warning}\n"));
    }
    text
}

fn list<T: ToString>(values: &[T]) -> String {
    const SHOWN: usize = 32;
    let mut text = values.iter().take(SHOWN).map(T::to_string).collect::<Vec<_>>().join(" ");
    if values.len() > SHOWN {
        text.push_str(&format!(" … ({} in all)", values.len()));
    }
    text
}
