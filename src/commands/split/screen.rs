//! The one screen that `split` ends with.

use std::collections::BTreeSet;

use schema::{ANSWER_VERSION, ByHand, Bytes, Plan, Seconds, SplitAnswer};

use super::Found;

/// Everything in one JSON document; the parts are the answers of `plan` and `simulate`.
pub fn answer(found: &Found) -> SplitAnswer {
    let by_hand = found.by_hand.iter().map(|(name, step)| ByHand {
        strategy: name.to_string(),
        step_seconds: step.as_ref().ok().copied(),
        fails: step.as_ref().err().cloned(),
    });
    SplitAnswer {
        schema_version: ANSWER_VERSION,
        model: found.name.clone(),
        plan: found.answer.clone(),
        simulated: found.simulated.clone(),
        one_device_step_seconds: found.one_device,
        samples_per_second: samples_per_second(found),
        by_hand: by_hand.collect(),
    }
}

/// The screen for people.
pub fn text(found: &Found, written: &[String], explain: bool) -> String {
    let mut text = headline(found);
    text.push_str(&stages(&found.plan, found));
    text.push_str(&figures(found));
    text.push_str(&compared(found, explain));
    if explain {
        text.push_str(&explained(found));
    }
    if let Some((folder, names)) = written.split_first() {
        text.push_str(&format!("\nwrote {}: {}\n", folder, names.join(", ")));
        text.push_str(&format!(
            "\nnext\n  model-analyze verify {folder}    the stages give what the whole model gives (needs libtorch)\n"
        ));
        if names.iter().any(|name| name == "train.py") {
            let devices: BTreeSet<_> = found.plan.stages.iter().flat_map(|stage| &stage.devices).collect();
            let processes = devices.len();
            text.push_str(&format!(
                "  torchrun --nproc-per-node {processes} {folder}/train.py    train them, one process a device\n"
            ));
        }
    }
    text
}

fn samples_per_second(found: &Found) -> Option<f64> {
    Some(found.samples? as f64 / found.simulated.step_seconds.0)
}

fn headline(found: &Found) -> String {
    let plan = &found.plan;
    let replicas: Vec<String> = plan.stages.iter().map(|stage| stage.devices.len().to_string()).collect();
    let shape = match plan.stages.len() {
        1 if plan.stages[0].devices.len() > 1 => format!("{} replicas of the whole model", replicas[0]),
        1 => "the whole model on one device".to_string(),
        n if replicas.iter().all(|count| count == "1") => format!("{n} stages"),
        n => format!("{n} stages, replicated {}", replicas.join("-")),
    };
    format!(
        "{}: {shape} under {}, {} micro-batches a step\n\n",
        found.name, plan.schedule, plan.micro_batches
    )
}

fn stages(plan: &Plan, found: &Found) -> String {
    let time = |stage: &schema::PlanStage| {
        let cost = &stage.cost;
        cost.forward.0 + cost.input_gradient.0 + cost.weight_gradient.0
    };
    let total: f64 = plan.stages.iter().map(time).sum();
    let mut rows =
        vec![["stage", "blocks", "", "devices", "time", "share", "memory", "bound by"].map(String::from)];
    for (index, stage) in plan.stages.iter().enumerate() {
        let answer = found.answer.stages.get(index);
        rows.push([
            index.to_string(),
            stage.blocks.len().to_string(),
            ends(&stage.blocks),
            ends(&stage.devices),
            Seconds(time(stage)).to_string(),
            format!("{:.0} %", 100.0 * time(stage) / total.max(f64::MIN_POSITIVE)),
            answer.map(|stage| Bytes(stage.memory_bytes).to_string()).unwrap_or_default(),
            answer.map(|stage| stage.bound_by.clone()).unwrap_or_default(),
        ]);
    }
    let mut text = aligned(&rows, &[0, 1, 4, 5, 6]);
    for transfer in &plan.transfers {
        text.push_str(&format!(
            "  stage {} → {}: {} a micro-batch, {} of gradients back\n",
            transfer.from, transfer.to, transfer.forward, transfer.backward
        ));
    }
    text
}

/// First and last of a list.
fn ends(names: &[String]) -> String {
    let short = |name: &str| match name.char_indices().nth(28) {
        Some(_) => {
            format!("…{}", name.chars().rev().take(27).collect::<Vec<_>>().iter().rev().collect::<String>())
        }
        None => name.to_string(),
    };
    match names {
        [] => String::new(),
        [only] => short(only),
        [first, .., last] => format!("{} … {}", short(first), short(last)),
    }
}

fn aligned(rows: &[[String; 8]], right: &[usize]) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..8).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().enumerate().map(|(column, cell)| match right.contains(&column) {
            true => format!("{cell:>width$}", width = widths[column]),
            false => format!("{cell:<width$}", width = widths[column]),
        });
        text.push_str(&format!("  {}\n", cells.collect::<Vec<_>>().join("  ").trim_end()));
    }
    text
}

fn figures(found: &Found) -> String {
    let simulated = &found.simulated;
    let step = simulated.step_seconds;
    let mut text = format!("\nstep        {step}{}", band(found));
    if let (Some(samples), Some(rate)) = (found.samples, samples_per_second(found)) {
        text.push_str(&format!(", {samples} samples, {} samples/s", grouped(rate)));
    }
    let speed_up = match found.one_device {
        Some(one) => format!("{:.2} × one device ({})", one / step.0, Seconds(one)),
        None => "the model does not fit one device".to_string(),
    };
    text.push_str(&format!("\nspeed-up    {speed_up}\nbubble      {:.1} %\n", 100.0 * simulated.bubble));
    text.push_str(&times(found));
    let answer = &found.answer;
    text.push_str(&match answer.optimal {
        true => "optimal     proven, by the planner's objective\n".to_string(),
        false => format!(
            "optimal     at most {:.1} % away: no plan is faster than {}\n",
            (100.0 * answer.gap).max(0.1),
            Seconds(answer.lower_bound_seconds)
        ),
    });
    let slowest = answer.stages.iter().enumerate().max_by(|a, b| a.1.seconds.total_cmp(&b.1.seconds));
    if let Some((index, stage)) = slowest.filter(|_| answer.stages.len() > 1) {
        text.push_str(&format!("bottleneck  stage {index}, bound by {}\n", stage.bound_by));
    }
    let best = answer.what_if.iter().max_by(|a, b| a.gains.total_cmp(&b.gains));
    if let Some(change) = best.filter(|change| change.gains > 0.001) {
        text.push_str(&format!(
            "would help  {} ({:+.1} % throughput)\n",
            change.change,
            100.0 * change.gains
        ));
    }
    for memory in &simulated.out_of_memory {
        text.push_str(&format!("warning     {} runs out of memory in the simulation\n", memory.device));
    }
    text
}

/// How sure the step is, in brackets. The plan's band is of its own prediction: shown where the simulator says the same.
fn band(found: &Found) -> String {
    let predicted = &found.plan.predicted;
    let is_same = |planned: Seconds| (planned.0 / found.simulated.step_seconds.0 - 1.0).abs() < 0.01;
    match (predicted.step.filter(|step| is_same(*step)), predicted.band) {
        (Some(_), Some(band)) => format!(" (p10–p90 {}–{})", band.p10, band.p90),
        _ => " (simulated)".to_string(),
    }
}

/// Whose times the plan believes.
fn times(found: &Found) -> String {
    let Some(times) = &found.plan.predicted.times else { return String::new() };
    let shares: Vec<String> =
        times.shares.iter().map(|(source, share)| format!("{:.0} % {source}", 100.0 * share)).collect();
    format!("times       {} ({})\n", times.cost_model, shares.join(", "))
}

/// A rate for people: thousands apart, no digits that mean nothing.
fn grouped(rate: f64) -> String {
    if rate < 100.0 {
        return format!("{rate:.1}");
    }
    let digits = format!("{rate:.0}");
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn compared(found: &Found, explain: bool) -> String {
    let answer = &found.answer;
    let micro_batches = f64::from(answer.micro_batches.unwrap_or(1));
    let ours = answer.step_seconds.or(answer.period_seconds.map(|period| period * micro_batches));
    let Some(ours) = ours else { return String::new() };
    let mut rows = vec![(format!("{} (this plan)", answer.strategy), Ok(ours))];
    for other in &answer.runners_up {
        let seconds = other.seconds.map(|seconds| seconds * micro_batches);
        rows.push((
            other.strategy.clone(),
            seconds.ok_or_else(|| other.fails.clone().unwrap_or_else(|| "not possible".to_string())),
        ));
    }
    for (name, step) in &found.by_hand {
        rows.push((format!("{name}, by hand"), step.clone()));
    }
    rows[1..].sort_by(|a, b| match (&a.1, &b.1) {
        (Ok(left), Ok(right)) => left.total_cmp(right),
        (left, right) => left.is_err().cmp(&right.is_err()),
    });
    let n = if explain { rows.len() } else { rows.len().min(9) };
    let width = rows[..n].iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    let mut text = "\ncompared, by the planner's objective\n".to_string();
    for (name, step) in &rows[..n] {
        text.push_str(&match step {
            Ok(seconds) if *seconds == ours => format!("  {name:<width$}  {}\n", Seconds(*seconds)),
            Ok(seconds) => {
                format!("  {name:<width$}  {}  {:+.1} %\n", Seconds(*seconds), 100.0 * (seconds / ours - 1.0))
            }
            Err(reason) => format!("  {name:<width$}  no: {reason}\n"),
        });
    }
    text
}

fn explained(found: &Found) -> String {
    let mut text = "\nthe simulated step\n".to_string();
    for device in &found.simulated.devices {
        text.push_str(&format!("  {}: busy {}\n", device.name, device.busy_seconds));
    }
    text.push_str("\ncritical path\n");
    let path = &found.simulated.critical_path;
    for step in path.iter().take(12) {
        text.push_str(&format!("  {:<10}  {:>9}  {}\n", step.name, step.seconds.to_string(), step.place));
    }
    if path.len() > 12 {
        text.push_str(&format!("  … and {} more\n", path.len() - 12));
    }
    text
}
