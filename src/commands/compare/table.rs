//! The comparison for people: a table, notes below it, and a picture.

use schema::{CompareAnswer, Seconds, StrategyRow};
use viz::{Bar, BarsPlot, bars_plot};

use crate::{
    columns::table,
    commands::plan::{ABOVE_THE_PEAK, rounded},
    failure::Failure,
    terminal::EMPHASIS,
};

/// Marks the plan of `plan`.
const MARK: &str = "*";

/// Writes the table, and below it the plans that cannot be run, those that train with stale weights, and those left
/// out.
pub fn text(answer: &CompareAnswer) -> String {
    let unit = Unit::of(answer);
    let rate = unit.name();
    let head = [
        "", "strategy", "devices", "stages", "batch", "step", rate, "slower", "MFU", "memory", "of", "idle",
        "sent", "train.py",
    ];
    let mut cells = vec![head.map(String::from)];
    let percent = |share: Option<f64>, digits: usize| {
        share.map_or_else(|| "–".to_string(), |share| format!("{:.digits$} %", 100.0 * share))
    };
    for row in &answer.strategies {
        cells.push([
            if row.is_plan { MARK.to_string() } else { String::new() },
            title(row),
            row.devices.to_string(),
            stages(row),
            row.samples.unwrap_or(u64::from(row.micro_batches)).to_string(),
            Seconds(row.step_seconds).to_string(),
            rounded(unit.rate(row)),
            if row.slower < 5e-4 { String::new() } else { format!("{:+.1} %", 100.0 * row.slower) },
            percent(row.mfu, 1),
            row.memory_bytes.to_string(),
            row.memory_limit.to_string(),
            percent(row.idle, 0),
            row.sent_bytes.map_or_else(|| "–".to_string(), |bytes| bytes.to_string()),
            if row.not_carried_out.is_empty() { "runs it" } else { "not yet" }.to_string(),
        ]);
    }
    let mut lines = vec![
        format!("{} on {}: {}, the highest throughput first", answer.model, answer.devices, counted(answer)),
        String::new(),
    ];
    let table = table(&cells, " ", |column| (2..=12).contains(&column));
    let own = format!(" {MARK} ");
    lines.extend(
        table
            .lines()
            .map(|line| if line.starts_with(&own) { format!("{EMPHASIS}{line}") } else { line.to_string() }),
    );
    lines.push(String::new());
    if let Some(own) = answer.strategies.iter().find(|row| row.is_plan) {
        lines.push(format!("{MARK} the plan of `plan` without a strategy: {}", title(own)));
    }
    if answer.strategies.iter().any(|row| row.mfu.is_some_and(|share| share > 1.0)) {
        lines.push(format!("MFU {ABOVE_THE_PEAK}"));
    }
    let late: Vec<&str> = rows(answer, |row| !row.trains_as_one_device);
    if !late.is_empty() {
        lines.push(format!("{}: gradients are computed with stale weights", late.join(", ")));
    }
    let split = rows(answer, |row| row.schedule.is_none());
    if !split.is_empty() {
        lines.push(format!("{}: a step is one micro-batch, without the loss", split.join(", ")));
    }
    let mut reasons: indexmap::IndexMap<&str, Vec<&str>> = indexmap::IndexMap::new();
    for row in &answer.strategies {
        for reason in &row.not_carried_out {
            reasons.entry(reason).or_default().push(&row.name);
        }
    }
    lines.extend(reasons.iter().map(|(reason, names)| format!("{}: {reason}", names.join(", "))));
    if !answer.left_out.is_empty() {
        lines.extend([String::new(), "left out".to_string()]);
    }
    for left in &answer.left_out {
        let missing = left.missing_bytes.map(|bytes| format!("{bytes} more on each device would suffice: "));
        lines.push(format!("  {}: {}{}", left.name, missing.unwrap_or_default(), left.reason));
    }
    lines.join("\n") + "\n"
}

fn rows(answer: &CompareAnswer, is_wanted: impl Fn(&StrategyRow) -> bool) -> Vec<&str> {
    answer.strategies.iter().filter(|row| is_wanted(row)).map(|row| row.name.as_str()).collect()
}

/// A strategy's name, and the settings chosen for it.
fn title(row: &StrategyRow) -> String {
    let mut title = row.name.clone();
    if row.is_chosen {
        title.push_str(&format!(": {}", row.strategy));
    }
    if let Some(level) = row.sharding.as_ref().filter(|level| !row.name.ends_with(level.as_str())) {
        title.push_str(&format!(" + {level}"));
    }
    title
}

fn stages(row: &StrategyRow) -> String {
    match row.chunks {
        0 | 1 => row.stages.to_string(),
        chunks => format!("{} × {chunks}", row.stages / chunks),
    }
}

fn counted(answer: &CompareAnswer) -> String {
    let (found, left) = (answer.strategies.len(), answer.left_out.len());
    format!("{found} of {} strategies have a plan", found + left)
}

/// The unit of throughput.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Unit {
    Tokens,
    Samples,
    MicroBatches,
}

impl Unit {
    /// Returns a unit that all strategies have.
    fn of(answer: &CompareAnswer) -> Self {
        let all =
            |rate: fn(&StrategyRow) -> Option<f64>| answer.strategies.iter().all(|row| rate(row).is_some());
        if all(|row| row.tokens_per_second) {
            Self::Tokens
        } else if all(|row| row.samples_per_second) {
            Self::Samples
        } else {
            Self::MicroBatches
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Tokens => "tokens/s",
            Self::Samples => "samples/s",
            Self::MicroBatches => "micro-batches/s",
        }
    }

    fn rate(self, row: &StrategyRow) -> f64 {
        let rate = match self {
            Self::Tokens => row.tokens_per_second,
            Self::Samples => row.samples_per_second,
            Self::MicroBatches => Some(1.0 / row.micro_batch_seconds.max(f64::MIN_POSITIVE)),
        };
        rate.unwrap_or_default()
    }
}

/// Draws throughput and memory of each strategy.
pub fn picture(answer: &CompareAnswer) -> Result<String, Failure> {
    let unit = Unit::of(answer);
    let bar = |row: &StrategyRow| Bar {
        name: title(row),
        value: unit.rate(row),
        shown: rounded(unit.rate(row)),
        memory: row.memory_bytes,
        limit: row.memory_limit,
        is_marked: row.is_plan,
        is_dim: !row.not_carried_out.is_empty(),
    };
    let plot = BarsPlot {
        title: format!("{} on {}", answer.model, answer.devices),
        caption: "★ the plan of `plan` without a strategy; pale: train.py cannot run it as planned".into(),
        unit: unit.name().to_string(),
        bars: answer.strategies.iter().map(bar).collect(),
    };
    bars_plot(&plot).map_err(Failure::input)
}
