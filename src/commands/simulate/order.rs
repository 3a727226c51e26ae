//! Orders without a plan: read or made, checked, and timed exactly with uniform costs.

use schema::{LintFinding, LintedOrder, SimulatedOrder, TIMELINE_VERSION, Timeline};
use simulator::{
    Clock, Cost, KeptVersions, Report, Severity,
    order::{CsvError, Order, Program, Schedule, Shape, from_csv, make_for_costs},
};

use super::{order_failure, picture, plan};
use crate::{
    failure::Failure,
    output::{Format, Output},
};

/// Reads `F,I,W,C`.
pub(super) fn read_cost(text: &str) -> Result<Cost, String> {
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
        return Err("at least one of F, I and W must be above 0".to_string());
    }
    Ok(cost)
}

/// Reads an order from a CSV.
pub(super) fn read(name: &str, text: &str, chain: Option<u32>) -> Result<Order, Failure> {
    from_csv(text, chain).map_err(|error| {
        let failure = Failure::input(format!("{name}: {error}"));
        match error {
            CsvError::Cell { span, .. } => failure.at(name, text, span, "here").with_hint(
                "a cell is `<stage><F|I|W|B><micro-batch>` or `(0F3;3B1)OVERLAP_F_B`; empty cells are idle",
            ),
            CsvError::Communication { span, .. } => failure
                .at(name, text, span, "here")
                .with_hint("write the schedule with format=\"compute_only\""),
            CsvError::Chain { .. } => failure
                .with_hint("--chain is the number of stages in one copy of the model; leave it out for one"),
            CsvError::Empty | CsvError::TooLong { .. } | CsvError::Number { .. } => failure,
        }
    })
}

/// Returns a schedule and its shape.
pub(super) fn shape(
    name: &str,
    ranks: u32,
    chunks: Option<u32>,
    micro_batches: u32,
) -> Result<(Schedule, Shape), Failure> {
    let schedule = Schedule::from_name(name).map_err(order_failure)?;
    let chunks = chunks.or(schedule.fixed_chunks()).unwrap_or(1);
    Ok((schedule, Shape { ranks, chunks, micro_batches }))
}

/// Makes the order of a schedule.
pub(super) fn make(schedule: Schedule, shape: Shape, cost: Cost) -> Result<Order, Failure> {
    make_for_costs(schedule, shape, cost).map_err(order_failure)
}

/// Returns the weight versions of each stage of a pipeline without a flush; `None` for schedules with one.
pub(super) fn versions(
    schedule: Schedule,
    ranks: u32,
    micro_batches: u32,
    vertical_sync: bool,
) -> Result<Vec<KeptVersions>, Failure> {
    let updates = if vertical_sync {
        let refuse = |reason| {
            Failure::input(format!("vertical sync cannot be combined with {}: {reason}", schedule.name()))
        };
        Some(schedule.vertical_sync().map_err(refuse)?)
    } else {
        schedule.updates(micro_batches)
    };
    Ok(updates.map_or_else(Vec::new, |updates| simulator::kept_versions(&vec![1; ranks as usize], updates)))
}

/// Times an order with a known lint result; the timeline is made only on demand.
pub(super) fn simulate(
    name: &str,
    (order, report): (&Order, Report),
    cost: &Cost,
    as_torch: bool,
    wants_timeline: bool,
) -> Result<(SimulatedOrder, Option<Timeline>), Failure> {
    if let Some(first) = report.errors().next() {
        let more = report.errors().count() - 1;
        let more = if more > 0 { format!(" (and {more} more)") } else { String::new() };
        return Err(Failure::no(format!("{name}: {first}{more}")).with_hint(match copies(order) {
            Some(chain) => {
                format!("this is a valid order of two copies of {chain} stages: add --chain {chain}")
            }
            None => "--lint lists every problem".to_string(),
        }));
    }
    let warnings = report.findings.iter().map(ToString::to_string).collect();
    if wants_timeline {
        let in_order = |error| Failure::input(format!("{name}: {error}"));
        let (clock, spans) = simulator::clock_spans(order, cost).map_err(in_order)?;
        let timeline = picture::of_order(name, order, &clock, &spans);
        return Ok((answer(order, clock, warnings), Some(timeline)));
    }
    Ok((timed(name, order, cost, as_torch, warnings)?, None))
}

/// Times a program.
pub(super) fn timed<P: Program>(
    name: &str,
    program: &P,
    cost: &Cost,
    as_torch: bool,
    warnings: Vec<String>,
) -> Result<SimulatedOrder, Failure> {
    let clock =
        if as_torch { simulator::clock_as_torch(program, cost) } else { simulator::clock(program, cost) };
    let clock = clock.map_err(|error| Failure::input(format!("{name}: {error}")))?;
    Ok(answer(program, clock, warnings))
}

fn answer<P: Program>(program: &P, clock: Clock, warnings: Vec<String>) -> SimulatedOrder {
    SimulatedOrder {
        schema_version: TIMELINE_VERSION,
        makespan: clock.makespan,
        longest_span: clock.longest_span,
        bubble: clock.bubble(),
        busy: clock.busy,
        peak_activations: clock.peak_activations,
        peak_until_input_gradient: clock.peak_until_input_gradient,
        ranks: program.n_ranks(),
        stages: program.n_stages(),
        operations: (0..program.n_ranks()).map(|rank| program.len(rank)).sum(),
        versions: Vec::new(),
        warnings,
    }
}

/// Prints the answer.
pub(super) fn print<P: Program>(
    answer: &SimulatedOrder,
    program: &P,
    format: Format,
    output: &mut Output,
) -> Result<(), Failure> {
    match format {
        Format::Json => output.json(&serde_json::to_value(answer).map_err(Failure::input)?),
        Format::Text => output.text(&text(answer, program)),
    }
}

/// Returns the stages of a copy if a wrong order is valid for two copies of the model.
fn copies(order: &Order) -> Option<u32> {
    let chain = order.chain / 2;
    let halves = Order { chain, ..order.clone() };
    // A pipeline of two stages is not two copies of one.
    let fits = order.chain > 2
        && order.chain.is_multiple_of(2)
        && simulator::lint(&halves).errors().next().is_none();
    fits.then_some(chain)
}

/// Prints what the linter found.
pub(super) fn print_lint(report: &Report, format: Format, output: &mut Output) -> Result<(), Failure> {
    let n_errors = report.errors().count();
    let severity = |severity| match severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
    };
    match format {
        Format::Json => {
            let findings = report.findings.iter().map(|finding| LintFinding {
                severity: severity(finding.severity).to_string(),
                rank: Some(finding.place.rank),
                position: Some(finding.place.position),
                message: finding.to_string(),
            });
            let answer = LintedOrder {
                schema_version: TIMELINE_VERSION,
                ok: n_errors == 0,
                findings: findings.collect(),
                peak_activations: report.peak_activations.clone(),
            };
            output.json(&serde_json::to_value(&answer).map_err(Failure::input)?)?;
        }
        Format::Text => {
            let line = |finding: &simulator::Finding| format!("{}: {finding}\n", severity(finding.severity));
            let mut text: String = report.findings.iter().map(line).collect();
            if let Some(peaks) = &report.peak_activations {
                text.push_str(&format!("peak activations by rank: {}\n", list(peaks)));
            }
            if n_errors == 0 {
                text.push_str("the order is complete and runs\n");
            }
            output.text(&text)?;
        }
    }
    match n_errors {
        0 => Ok(()),
        1 => Err(Failure::no("the order has a problem")),
        n => Err(Failure::no(format!("the order has {n} problems"))),
    }
}

/// Writes the answer for people.
fn text<P: Program>(answer: &SimulatedOrder, program: &P) -> String {
    let mut text = format!(
        "{} operations of {} stages on {} ranks, {} micro-batches\n\n",
        answer.operations,
        answer.stages,
        answer.ranks,
        program.n_micro_batches() * (answer.stages / program.chain().max(1) as usize).max(1),
    );
    text.push_str(&format!("makespan          {}\n", answer.makespan));
    text.push_str(&format!("longest span      {}\n", answer.longest_span));
    text.push_str(&format!("bubble            {:.1} %\n", 100.0 * answer.bubble));
    text.push_str(&format!("busy              {}\n", list(&answer.busy)));
    text.push_str(&format!("peak activations  {}\n", list(&answer.peak_activations)));
    text.push_str(&plan::versions_text(&answer.versions, 18));
    for warning in &answer.warnings {
        text.push_str(&format!("warning: {warning}\n"));
    }
    text
}

pub(super) fn list<T: ToString>(values: &[T]) -> String {
    const SHOWN: usize = 32;
    let mut text = values.iter().take(SHOWN).map(T::to_string).collect::<Vec<_>>().join(" ");
    if values.len() > SHOWN {
        text.push_str(&format!(" … ({} in all)", values.len()));
    }
    text
}
