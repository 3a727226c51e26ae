//! Prints a plan: a table of stages and one paragraph of reasons.

use partitioner::ENOUGH;
use schema::{Bytes, InferenceObjective, LossAnswer, PlanAnswer, Seconds, SharedAnswer};

use super::Plan;
use crate::{
    columns::table,
    failure::Failure,
    output::{Format, Output},
    terminal::text_width,
    visible::cell,
};

/// Version of the JSON answer.
pub const SCHEMA_VERSION: u32 = 1;

/// The unit of an answer's times.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Seconds per micro-batch.
    MicroBatch,
    /// Seconds per sample.
    Sample,
    /// The file's own unit.
    OfFile,
}

impl Unit {
    fn shown(self, time: f64) -> String {
        match self {
            Self::MicroBatch | Self::Sample => Seconds(time).to_string(),
            Self::OfFile => format!("{time:.6}"),
        }
    }
}

/// Prints an answer.
pub fn print(
    plan: &Plan,
    answer: &PlanAnswer,
    unit: Unit,
    why: &str,
    output: &mut Output,
) -> Result<(), Failure> {
    match plan.format {
        Format::Json => {
            let value = serde_json::to_value(answer).map_err(Failure::input)?;
            output.json(&value)
        }
        Format::Text if plan.compare => {
            output.text(&format!("{}\n{}\n", text(answer, unit, why), compared(answer)))
        }
        Format::Text => output.text(&text(answer, unit, why)),
    }
}

/// Prints how operators are split: what is written, and, in words, what the paper's search finds.
pub fn print_operators(
    plan: &Plan,
    answer: &PlanAnswer,
    (why, predicted): (&str, &str),
    output: &mut Output,
) -> Result<(), Failure> {
    if let Format::Json = plan.format {
        return output.json(&serde_json::to_value(answer).map_err(Failure::input)?);
    }
    let written = match &answer.shared {
        Some(shared) => format!("{}\n{}\n", text(answer, Unit::MicroBatch, why), splits(shared)),
        None => format!("{}: strategy {}\n", answer.model, answer.strategy),
    };
    output.text(&format!("{written}{predicted}"))
}

/// Lists how operators are split: a line per run of operators with equal splits.
pub fn splits(shared: &SharedAnswer) -> String {
    let mut rows = vec![["operators", "", "each device has"].map(String::from)];
    for alike in shared.operators.chunk_by(|a, b| a.split == b.split) {
        let span = span(alike, |one| (&one.block, &one.operator));
        rows.push([alike.len().to_string(), span, part_of(&alike[0].split)]);
    }
    table(&rows, " ", |column| column == 0)
}

/// Names a run of operators by its first and last, given the call and the name of each.
pub(super) fn span<T>(run: &[T], names: impl Fn(&T) -> (&String, &String)) -> String {
    let name = |one: &T| match names(one) {
        (block, operator) if block.is_empty() => operator.clone(),
        (block, operator) => format!("{} {operator}", cell(block)),
    };
    match run {
        [first, .., last] => format!("{} … {}", name(first), name(last)),
        [one] => name(one),
        [] => String::new(),
    }
}

/// Returns a gap in per cent, rounded up: what a plan is at most away from the best.
pub fn at_most(gap: f64) -> f64 {
    ((1e3 * gap - 1e-6).ceil() / 10.0).max(0.1)
}

/// Says how good the splits of operators are.
pub fn proof_of_splits(shared: &SharedAnswer) -> String {
    if let Some(alone) = shared.alone_seconds {
        format!("one device alone is faster than any of them: {} per micro-batch", Seconds(alone))
    } else if shared.gap < 1e-4 {
        "none that can be written is faster, by the times of operators and exchanges".into()
    } else {
        format!("at most {:.1} % from optimal, by the times of operators and exchanges", at_most(shared.gap))
    }
}

/// Says what each device has of an operator's results.
fn part_of(split: &str) -> String {
    match split {
        "whole" => "all of it".into(),
        "first device" => "all of it on the first device, nothing on the others".into(),
        "sums" => "a term of each sum".into(),
        other => format!("a part of the {other}"),
    }
}

fn text(answer: &PlanAnswer, unit: Unit, why: &str) -> String {
    let chunks = answer.chunks();
    let part = if chunks > 1 { "chunk" } else { "stage" };
    let mut rows = vec![[part, "blocks", "", "devices", "time", "memory", "bound by"].map(String::from)];
    for (index, stage) in answer.stages.iter().enumerate() {
        let span = match stage.blocks.as_slice() {
            [] => String::new(),
            [only] => cell(only).into_owned(),
            [first, .., last] => format!("{} … {}", cell(first), cell(last)),
        };
        let devices = match stage.devices.as_slice() {
            [first, .., last] if stage.devices.len() > 2 => format!("{first} … {last}"),
            few => few.join(" "),
        };
        rows.push([
            index.to_string(),
            stage.blocks.len().to_string(),
            span,
            match stage.replicas {
                1 => devices,
                replicas => format!("{devices} ({replicas} replicas)"),
            },
            unit.shown(stage.seconds),
            Bytes(stage.memory_bytes).to_string(),
            stage.bound_by.clone(),
        ]);
    }
    let inference = answer.inference.as_ref();
    let is_latency = inference.is_some_and(|own| own.objective == InferenceObjective::Latency);
    let objective = match (answer.period_seconds, answer.step_seconds, answer.micro_batches) {
        (_, Some(step), _) if is_latency => {
            let samples = answer.samples.filter(|samples| *samples > 1);
            let samples = samples.map_or_else(String::new, |samples| format!(" of {samples} samples"));
            format!("{} a request{samples}", Seconds(step))
        }
        (_, Some(step), Some(count)) => {
            let each = Seconds(step / f64::from(count));
            let samples = answer.samples.map_or_else(String::new, |samples| {
                format!(", {samples} {}", if samples == 1 { "sample" } else { "samples" })
            });
            let batches = if count == 1 { "micro-batch" } else { "micro-batches" };
            format!("{} per step of {count} {batches} ({each} each{samples})", Seconds(step))
        }
        (Some(period), ..) => match unit {
            Unit::MicroBatch => format!("{} per micro-batch", Seconds(period)),
            Unit::Sample => format!("{} per sample", Seconds(period)),
            Unit::OfFile => format!("largest load {}", unit.shown(period)),
        },
        _ => String::new(),
    };
    let proof = match (answer.optimal, &answer.bound_of) {
        (true, None) => "proven optimal".to_string(),
        (true, Some(of)) => format!("no {of} is faster"),
        (false, of) => format!(
            "at most {:.1} % from optimal (no {} is faster than {})",
            at_most(answer.gap),
            of.as_deref().unwrap_or("plan"),
            unit.shown(answer.lower_bound_seconds)
        ),
    };
    let looked_at = looked_at(answer).map(|words| format!("; {words}")).unwrap_or_default();
    let chosen = chosen(answer);
    let schedule = answer
        .schedule
        .as_ref()
        .filter(|_| inference.is_none())
        .map(|name| format!(", schedule {name}"))
        .unwrap_or_default();
    let schedule = match chunks {
        1 => schedule,
        chunks => format!("{schedule}, {} stages of {chunks} chunks each", answer.stages.len() / chunks),
    };
    let bubble = answer.bubble.map(|share| format!(", {:.0} % idle", share * 100.0)).unwrap_or_default();
    let times = answer.times.as_ref().map(|times| {
        let band = answer.band.map(|band| format!("{} to {} in eight of ten cases; ", band.p10, band.p90));
        format!("times: {}{times}\n", band.unwrap_or_default())
    });
    let host = host(answer).map(|words| format!("host: {words}\n"));
    let times = times.unwrap_or_default() + &host.unwrap_or_default();
    let rates = rates(answer) + &shared(answer) + &forward_only(answer);
    let is_strategy = unit == Unit::MicroBatch && inference.is_none();
    let made_by = if is_strategy { "strategy" } else { "objective" };
    format!(
        "{}: {objective}{bubble}, {proof}{looked_at}\n{made_by} {}{schedule}\n{rates}{chosen}{times}\n{}\n{}\n",
        answer.model,
        titled(&answer.strategy, answer.sharding.as_deref()),
        table(&rows, " ", |column| [0, 1, 4, 5].contains(&column)),
        wrapped(why, text_width())
    )
}

/// Says that nothing is trained, and how many keys and values attentions keep.
fn forward_only(answer: &PlanAnswer) -> String {
    let Some(inference) = &answer.inference else { return String::new() };
    let Some(cache) = &inference.kv_cache else {
        return "forward pass only, without keys and values\n".into();
    };
    let sequences =
        cache.sequences.map_or_else(String::new, |count| format!(" for {count} concurrent sequences"));
    let on_each = if answer.shared.is_some() { " on each device" } else { "" };
    let most = match cache.most_tokens {
        Some(most) => format!("; these stages have room for {most} tokens"),
        None => String::new(),
    };
    format!(
        "forward pass only, with keys and values of {} tokens{sequences}: {} per token and sequence{on_each} in {} {}{most}; times include reading only as many of them as the trace reads\n",
        cache.tokens,
        cache.bytes_per_token,
        cache.attentions,
        if cache.attentions == 1 { "attention" } else { "attentions" }
    )
}

/// Names what a stage of one replica runs on: devices that share layers count as one.
pub fn holder(answer: &PlanAnswer) -> String {
    match &answer.shared {
        Some(shared) => format!("group of {} devices", shared.degree),
        None => "device".to_string(),
    }
}

/// Describes how devices share each layer.
pub fn shared(answer: &PlanAnswer) -> String {
    let Some(shared) = &answer.shared else { return String::new() };
    let how = match shared.bands {
        Some(2) => format!("images in {} bands of rows, one per device", shared.degree),
        Some(3) => format!("images in {} bands of columns, one per device", shared.degree),
        Some(dim) => format!("images in {} bands along dimension {dim}, one per device", shared.degree),
        None if !shared.operators.is_empty() => {
            format!("each operator over {} devices in its own way", shared.degree)
        }
        None if shared.whole_weights => {
            let weights = match &shared.on_first[..] {
                [] => String::new(),
                [one] => format!(" (`{one}` on the first device only)"),
                [one, rest @ ..] => format!(" (`{one}` and {} more on the first device only)", rest.len()),
            };
            format!(
                "samples or positions in {} parts, one per device, each with all weights{weights}",
                shared.degree
            )
        }
        None if shared.by_expert && shared.expert_parallel.is_none() => format!(
            "samples or positions in {degree} parts, one per device, each with one of {degree} parts of the experts and all other weights",
            degree = shared.degree
        ),
        None => match (shared.context_parallel, shared.expert_parallel) {
            (Some(groups), _) => format!(
                "samples or positions in {groups} parts, each layer of a part on {} devices",
                shared.degree / groups
            ),
            (None, Some(groups)) => format!(
                "samples or positions in {groups} parts, each with one of {groups} parts of the experts and each layer on {} devices",
                shared.degree / groups
            ),
            (None, None) => format!("each layer on {} devices", shared.degree),
        },
    };
    let mut text = format!(
        "{how}, which share {:.1} % of the model's FLOPs; {} exchanges take {} per micro-batch\n",
        100.0 * shared.split_flops,
        shared.exchanges,
        Seconds(shared.exchange_seconds)
    );
    text.push_str(&format!("proved: {}\n", crate::sharing::proved_text(&shared.proved)));
    if !shared.operators.is_empty() {
        text.push_str(&format!("splits: {}\n", proof_of_splits(shared)));
    }
    let tried: Vec<String> = shared
        .tried
        .iter()
        .map(|one| {
            let found = match (one.seconds_each, one.at_least) {
                (Some(seconds), _) if one.micro_batches == answer.micro_batches => {
                    Seconds(seconds).to_string()
                }
                (Some(seconds), _) => {
                    let count = one.micro_batches.map(|count| format!(" in steps of {count} micro-batches"));
                    format!("{}{}", Seconds(seconds), count.unwrap_or_default())
                }
                (None, Some(least)) => format!("at least {}", Seconds(least)),
                (None, None) => "no plan".to_string(),
            };
            let by_experts = match (one.by_expert, one.groups) {
                (true, Some(groups)) => format!(" by experts in {groups} parts"),
                (true, None) => " by experts".to_string(),
                (false, _) => String::new(),
            };
            format!("{}{by_experts} {found}", one.degree)
        })
        .collect();
    if !tried.is_empty() {
        text.push_str(&format!(
            "devices per layer tried, with the time per micro-batch: {}\n",
            tried.join(", ")
        ));
    }
    text
}

/// Reports the host time of the script, if it was charged.
pub fn host(answer: &PlanAnswer) -> Option<String> {
    let of_pass = answer.host_overhead_seconds.map(|seconds| format!("{} per pass", Seconds(seconds)));
    let of_halves = answer
        .split_overhead_seconds
        .map(|seconds| format!("{} per backward pass split into halves", Seconds(seconds)));
    let all: Vec<String> = of_pass.into_iter().chain(of_halves).collect();
    (!all.is_empty()).then(|| format!("{} for the script, in addition to the stage", all.join(" and ")))
}

/// Reports the number of blocks between which cuts were searched, if the model has operators to cut between.
pub fn looked_at(answer: &PlanAnswer) -> Option<String> {
    let effort = answer.effort.as_ref().map(|effort| format!("effort: {effort}"));
    let (Some(blocks), Some(operators)) = (answer.blocks, answer.operators) else { return effort };
    let effort = effort.map(|effort| format!(" ({effort})")).unwrap_or_default();
    Some(if blocks < operators {
        format!("cuts searched between {blocks} blocks of {operators} operators{effort}")
    } else {
        format!("cuts searched between all {operators} operators{effort}")
    })
}

/// A strategy's name and its sharding level.
pub fn titled(strategy: &str, sharding: Option<&str>) -> String {
    sharding.map_or_else(|| strategy.to_string(), |level| format!("{strategy} + {level}"))
}

/// Explains a utilisation above 100 %.
pub const ABOVE_THE_PEAK: &str = "above 100 %: Winograd convolutions need fewer multiplications than are counted, or TF32 kernels beat the float32 peak";

/// Throughput, and the share of the devices' peak that it uses.
fn rates(answer: &PlanAnswer) -> String {
    let rate =
        |value: Option<f64>, what: &str| value.map(|value| format!("{} {what} a second", rounded(value)));
    let used = answer.mfu.map(|share| {
        let above = if share > 1.0 { format!("; {ABOVE_THE_PEAK}") } else { String::new() };
        format!("{} % of the devices' peak (MFU{above})", rounded(100.0 * share))
    });
    let said = [rate(answer.samples_per_second, "samples"), rate(answer.tokens_per_second, "tokens"), used];
    let said: Vec<String> = said.into_iter().flatten().collect();
    let mut lines = if said.is_empty() { String::new() } else { format!("{}\n", said.join(", ")) };
    // A loss that takes a negligible share is in the JSON only.
    let limit = answer.stages.iter().filter_map(|stage| stage.memory_usable).min();
    let is_large = |loss: &&LossAnswer| limit.is_some_and(|limit| loss.bytes.0 >= limit.0 / 100);
    if let Some(loss) = answer.loss.as_ref().filter(is_large) {
        lines.push_str(&format!("loss: {}\n", loss.what));
    }
    lines
}

/// Rounds to three digits, with commas between thousands.
pub fn rounded(value: f64) -> String {
    if value < 999.5 {
        let digits = (2 - value.max(1e-9).log10().floor() as i32).clamp(0, 9) as usize;
        return format!("{value:.digits$}");
    }
    let unit = 10_f64.powi(value.log10().floor() as i32 - 2);
    let digits = format!("{:.0}", (value / unit).round() * unit);
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// The times per sample of the other micro-batch sizes that were tried.
pub fn sizes_tried(answer: &PlanAnswer) -> String {
    let tried = &answer.micro_batch_sizes_tried;
    let least = tried.iter().filter_map(|one| one.sample_seconds).fold(f64::INFINITY, f64::min);
    let chosen =
        tried.iter().position(|one| one.sample_seconds.is_some_and(|own| own * (1.0 - 1e-4) <= least));
    let said: Vec<String> = tried
        .iter()
        .enumerate()
        .map(|(index, one)| match (one.sample_seconds, &one.fails) {
            (Some(seconds), _) if Some(index) == chosen => {
                format!("{} (chosen) {}", one.samples, Seconds(seconds))
            }
            (Some(seconds), _) => format!("{} {}", one.samples, Seconds(seconds)),
            (None, fails) => format!("{} none ({})", one.samples, fails.as_deref().unwrap_or_default()),
        })
        .collect();
    if said.is_empty() {
        return String::new();
    }
    format!("samples per micro-batch tried, with the time per sample: {}", said.join(", "))
}

/// The times of the other micro-batch counts that were tried.
fn chosen(answer: &PlanAnswer) -> String {
    let limit = answer.step_limit.as_ref().map(|limit| format!("{limit}\n")).unwrap_or_default();
    let sizes = sizes_tried(answer);
    let limit = if sizes.is_empty() { limit } else { format!("{limit}{sizes}\n") };
    let Some(own) = answer.micro_batches.filter(|_| answer.micro_batches_tried.len() > 1) else {
        return limit;
    };
    let tried: Vec<String> = answer
        .micro_batches_tried
        .iter()
        .map(|one| {
            if one.micro_batches == own {
                format!("{own} (chosen) {}", Seconds(one.seconds_each))
            } else {
                format!("{} {}", one.micro_batches, Seconds(one.seconds_each))
            }
        })
        .collect();
    format!(
        "micro-batches tried, with the time of each; the fewest within {:.0} % of the best are used (--batch sets the samples per step): {}\n{limit}",
        100.0 * (ENOUGH - 1.0),
        tried.join(", ")
    )
}

/// Every strategy next to the plan: its schedule, time, memory, and how much slower it is.
pub fn compared(answer: &PlanAnswer) -> String {
    let head = ["strategy", "schedule", "stages", "micro-batch", "against", "memory"];
    let mut rows = vec![head.map(String::from)];
    let micro_batches = f64::from(answer.micro_batches.unwrap_or(1));
    let each = answer.period_seconds.or(answer.step_seconds.map(|step| step / micro_batches));
    rows.push([
        titled(&answer.strategy, answer.sharding.as_deref()),
        answer.schedule.clone().unwrap_or_default(),
        match answer.chunks() {
            1 => answer.stages.len().to_string(),
            chunks => format!("{} × {chunks}", answer.stages.len() / chunks),
        },
        each.map(|each| Seconds(each).to_string()).unwrap_or_default(),
        "this plan".to_string(),
        answer.memory_bytes.map(|bytes| Bytes(bytes).to_string()).unwrap_or_default(),
    ]);
    for other in answer.runners_up.iter().filter(|other| other.fails.is_none()) {
        rows.push([
            titled(&other.strategy, other.sharding.as_deref()),
            other.schedule.clone().unwrap_or_default(),
            match (other.stages, other.chunks) {
                (Some(parts), Some(chunks)) => format!("{} × {chunks}", parts / chunks),
                (stages, _) => stages.map(|stages| stages.to_string()).unwrap_or_default(),
            },
            other.seconds.map(|seconds| Seconds(seconds).to_string()).unwrap_or_default(),
            other.loses.map(|loses| format!("{:+.1} %", 100.0 * loses)).unwrap_or_default(),
            other.memory_bytes.map(|bytes| Bytes(bytes).to_string()).unwrap_or_default(),
        ]);
    }
    let table = table(&rows, " ", |column| column >= 2);
    let mut lines: Vec<String> = table.lines().map(String::from).collect();
    for other in &answer.runners_up {
        let title = titled(&other.strategy, other.sharding.as_deref());
        lines.extend(other.fails.iter().map(|why| format!(" {title}: {why}")));
    }
    lines.join("\n")
}

/// Breaks lines at spaces.
fn wrapped(text: &str, width: usize) -> String {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let line = lines.last_mut().expect("begins with one line");
        if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > width {
            lines.push(word.to_string());
        } else {
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
    }
    lines.join("\n")
}
