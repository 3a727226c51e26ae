//! The screen that `split` prints at the end.

use partitioner::Strategy;
use schema::{ANSWER_VERSION, ByHand, Bytes, Plan, PlanAnswer, Seconds, SplitAnswer};

use super::{super::plan, Found, compare::Row, explain};
use crate::{
    columns::{rate, table},
    shell::quoted,
    terminal,
    visible::cell,
};

/// On terminals narrower than this a comparison has fewer columns.
const NARROW: usize = 80;
/// The most stages that are all listed.
const STAGES: usize = 10;

/// All results in one JSON document; its parts are the answers of `plan` and `simulate`.
pub fn answer(found: &Found) -> SplitAnswer {
    let answers = |rows: &[Row]| rows.iter().map(|row| row.answer.clone()).collect::<Vec<_>>();
    let is_by_hand = |row: &&Row| Strategy::from_name(&row.answer.name).is_some_and(Strategy::is_rule);
    let by_hand = found.compared.strategies.iter().filter(is_by_hand).map(|row| ByHand {
        strategy: row.answer.name.clone(),
        step_seconds: row.answer.step_seconds,
        fails: row.answer.fails.clone(),
    });
    SplitAnswer {
        schema_version: ANSWER_VERSION,
        model: found.name.clone(),
        plan: found.answer.clone(),
        simulated: found.simulated.clone(),
        one_device_step_seconds: found.one_device.filter(|_| found.answer.shared.is_none()),
        samples_per_second: samples_per_second(found),
        by_hand: by_hand.collect(),
        compared: answers(&found.compared.families),
        strategies: answers(&found.compared.strategies),
        why: found.why.clone(),
        micro_batches_tried: found.tried.clone(),
    }
}

/// The screen for people.
pub fn text(found: &Found, written: &[String], explain: bool) -> String {
    let mut text = headline(found);
    text.push_str(&stages(&found.plan, found, explain));
    text.push_str(&figures(found));
    if let Some(shared) = found.answer.shared.as_ref().filter(|shared| !shared.operators.is_empty()) {
        text.push_str(&format!("\n{}", plan::splits(shared)));
    }
    let groups =
        found.answer.shared.as_ref().map(|shared| format!("; {} devices count as one", shared.degree));
    text.push_str(&format!("\ncompared, simulated{}\n", groups.unwrap_or_default()));
    text.push_str(&compared(&found.compared.families));
    if explain {
        text.push_str(&explain::text(found));
    }
    if let Some((folder, names)) = written.split_first() {
        text.push('\n');
        text.push_str(&labelled(&format!("wrote {folder}: "), &names.join(", "), 2));
        let mut next = vec![(
            format!("model-analyze verify {}", quoted(folder)),
            "checks that the stages reproduce the whole model (needs torch)",
        )];
        if names.iter().any(|name| name == "train.py") {
            let train = format!("python {}", quoted(&format!("{folder}/train.py")));
            next.push((format!("{train} --check"), "compares two steps of the schedule with one process"));
            next.push(if found.is_training {
                (train, "trains them, one process per device")
            } else {
                (format!("{train} --allow-eval"), "trains them as traced: in eval mode")
            });
        }
        text.push_str("\nnext\n");
        next.iter().for_each(|(command, why)| text.push_str(&format!("  {command}    {why}\n")));
        if !found.is_training {
            let (made, advice) = if found.is_exported {
                ("exported", "Export it after model.train()")
            } else {
                ("traced", "Trace it with --train")
            };
            text.push_str(&format!(
                "\nThe model was {made} in eval mode: training keeps dropout off and does not update the statistics of batch norms.\n\
                 {advice} to train normally.\n",
            ));
        }
        if found.plan.schedule == "pipedream" {
            text.push_str(
                "\ntrain.py updates the weights after each micro-batch, with gradients of older weights, unless a note says otherwise: its\n\
                 losses differ from those of one process. --schedule 1F1B has a flush after each step, and exact gradients.\n",
            );
        }
    }
    text
}

fn samples(found: &Found) -> Option<u64> {
    Some(found.batch? * u64::from(found.plan.micro_batches))
}

fn samples_per_second(found: &Found) -> Option<f64> {
    Some(samples(found)? as f64 / found.simulated.step_seconds.0)
}

fn headline(found: &Found) -> String {
    let plan = &found.plan;
    let replicas: Vec<String> = plan.stages.iter().map(|stage| stage.replicas().to_string()).collect();
    let shape = match plan.stages.len() {
        1 if plan.stages[0].replicas() > 1 => format!("{} replicas of the whole model", replicas[0]),
        1 if found.answer.shared.is_some() => "the whole model".to_string(),
        1 => "the whole model on one device".to_string(),
        n if n > found.plan.n_ranks() => {
            format!("{} stages of {} chunks each", found.plan.n_ranks(), n / found.plan.n_ranks())
        }
        n if replicas.iter().all(|count| count == "1") => format!("{n} stages"),
        n => format!("{n} stages, replicated {}", replicas.join("-")),
    };
    let shared = found.answer.shared.as_ref();
    let shared = shared.map(|shared| match shared.bands {
        Some(_) => format!(", images in {} bands", shared.degree),
        None if !shared.operators.is_empty() => {
            format!(", each operator over {} devices in its own way", shared.degree)
        }
        None if shared.whole_weights => format!(", samples or positions in {} parts", shared.degree),
        None if shared.by_expert && shared.expert_parallel.is_none() => {
            format!(", samples or positions, and experts, in {} parts", shared.degree)
        }
        None => {
            let groups = shared.context_parallel.or(shared.expert_parallel).unwrap_or(1);
            let parts = match (groups, shared.by_expert) {
                (1, _) => String::new(),
                (groups, true) => format!(" samples or positions, and experts, in {groups} parts,"),
                (groups, false) => format!(" samples or positions in {groups} parts,"),
            };
            format!(",{parts} each layer on {} devices", shared.degree / groups)
        }
    });
    let shared = shared.unwrap_or_default();
    // A schedule orders stages: with one stage there is no choice.
    let schedule = if plan.stages.len() > 1 { format!(" under {}", plan.schedule) } else { String::new() };
    let sharing =
        found.answer.sharding.as_ref().map(|level| format!(" sharded by {level}")).unwrap_or_default();
    let size = plan.micro_batch_size.map(|samples| format!(" of {samples} samples")).unwrap_or_default();
    format!(
        "{}: {shape}{shared}{sharing}{schedule}, {} micro-batches{size} per step\n\n",
        found.name, plan.micro_batches
    )
}

fn stages(plan: &Plan, found: &Found, every: bool) -> String {
    let time = |stage: &schema::PlanStage| {
        let cost = &stage.cost;
        cost.forward.0 + cost.input_gradient.0 + cost.weight_gradient.0
    };
    let total: f64 = plan.stages.iter().map(time).sum();
    let n = plan.stages.len();
    let slowest =
        (0..n).max_by(|&a, &b| time(&plan.stages[a]).total_cmp(&time(&plan.stages[b]))).unwrap_or(0);
    let is_shown = |index: usize| every || n <= STAGES || index < 3 || index + 3 >= n || index == slowest;
    let part = if n > found.plan.n_ranks() { "chunk" } else { "stage" };
    let header = [part, "blocks", "", "devices", "time", "share", "memory", "bound by", "sends"];
    let mut rows = vec![header.map(String::from)];
    if n == 1 {
        rows[0][8].clear();
    }
    let mut index = 0;
    while index < n {
        if !is_shown(index) {
            let end = (index..n).find(|&index| is_shown(index)).unwrap_or(n);
            let hidden = plan.stages[index..end].iter().map(time);
            let most = hidden.fold(0.0, f64::max);
            let mut row: [String; 9] = Default::default();
            row[0] = "…".to_string();
            row[2] = format!("{} stages", end - index);
            row[4] = format!("≤ {}", Seconds(most));
            rows.push(row);
            index = end;
            continue;
        }
        let stage = &plan.stages[index];
        let answer = found.answer.stages.get(index);
        let crossing = plan.transfers.iter().filter(|transfer| transfer.from as usize == index);
        rows.push([
            index.to_string(),
            stage.blocks.len().to_string(),
            ends(&stage.blocks),
            ends(&stage.devices),
            Seconds(time(stage)).to_string(),
            format!("{:.0} %", 100.0 * time(stage) / total.max(f64::MIN_POSITIVE)),
            answer.map(|stage| Bytes(stage.memory_bytes).to_string()).unwrap_or_default(),
            answer.map(|stage| stage.bound_by.clone()).unwrap_or_default(),
            crossing.map(|transfer| transfer.forward.to_string()).collect::<Vec<_>>().join(", "),
        ]);
        index += 1;
    }
    table(&rows, "  ", |column| [0, 1, 4, 5, 6].contains(&column))
}

/// The first and last of a list.
fn ends(names: &[String]) -> String {
    match names {
        [] => String::new(),
        [only] => cell(only).into_owned(),
        [first, .., last] => format!("{} … {}", cell(first), cell(last)),
    }
}

/// A label and text, wrapped with an indent.
pub fn labelled(label: &str, words: &str, indent: usize) -> String {
    let width = terminal::text_width();
    let mut text = label.to_string();
    let mut column = label.chars().count();
    for (index, word) in words.split(' ').enumerate() {
        let wide = word.chars().count();
        if index > 0 && column + 1 + wide > width {
            text.push_str(&format!("\n{}{word}", " ".repeat(indent)));
            column = indent + wide;
        } else {
            let space = if index > 0 { " " } else { "" };
            text.push_str(&format!("{space}{word}"));
            column += space.len() + wide;
        }
    }
    text.push('\n');
    text
}

fn figures(found: &Found) -> String {
    let simulated = &found.simulated;
    let step = simulated.step_seconds;
    let mut text = format!("\nstep        {step}{}", band(found));
    if let (Some(samples), Some(per_second)) = (samples(found), samples_per_second(found)) {
        text.push_str(&format!(", {samples} samples, {} samples/s", rate(per_second)));
    }
    let holder = plan::holder(&found.answer);
    let speed_up = match found.one_device {
        Some(one) => format!("{:.2} × one {holder} ({})", one / step.0, Seconds(one)),
        None => format!("the model does not fit one {holder}"),
    };
    text.push_str(&format!("\nspeed-up    {speed_up}\nbubble      {:.1} %\n", 100.0 * simulated.bubble));
    text.push_str(&chosen(found));
    let sizes = plan::sizes_tried(&found.answer);
    if !sizes.is_empty() {
        text.push_str(&labelled("sizes       ", &sizes, 12));
    }
    text.push_str(&times(found));
    let answer = &found.answer;
    if let Some(host) = plan::host(answer) {
        text.push_str(&labelled("host        ", &host, 12));
    }
    text.push_str(&labelled("optimal     ", &proof(answer), 12));
    if let Some(looked_at) = plan::looked_at(answer) {
        text.push_str(&format!("            {looked_at}\n"));
    }
    let slowest = plan::slowest(answer).and_then(|index| Some((index, answer.stages.get(index)?)));
    if let Some((index, stage)) = slowest.filter(|_| answer.stages.len() > 1) {
        let part = if answer.stages.len() > found.plan.n_ranks() { "chunk" } else { "stage" };
        text.push_str(&format!("bottleneck  {part} {index}, bound by {}\n", stage.bound_by));
    }
    if let Some(shared) = &answer.shared {
        text.push_str(&labelled("proved      ", &crate::sharing::proved_text(&shared.proved), 12));
        if !shared.operators.is_empty() {
            text.push_str(&labelled("splits      ", &plan::proof_of_splits(shared), 12));
        }
    }
    let best = answer.what_if.iter().max_by(|a, b| a.gains.total_cmp(&b.gains));
    if let Some(change) = best.filter(|change| change.gains > 0.001) {
        text.push_str(&format!(
            "would help  {} (at least {:+.1} % throughput)\n",
            change.change,
            100.0 * change.gains
        ));
    }
    for (index, reason) in found.why.iter().enumerate() {
        text.push_str(&labelled(if index == 0 { "why         " } else { "            " }, reason, 12));
    }
    for memory in &simulated.out_of_memory {
        text.push_str(&format!("warning     {} runs out of memory in the simulation\n", memory.device));
    }
    text
}

/// Says how good the plan is, and beside which others.
fn proof(answer: &PlanAnswer) -> String {
    match (answer.optimal, &answer.bound_of) {
        (true, None) => "proven for the planner's objective".to_string(),
        (true, Some(of)) => format!("no {of} is faster, by the planner's objective"),
        (false, of) => format!(
            "at most {:.1} % away: no {} is faster than {}",
            plan::at_most(answer.gap),
            of.as_deref().unwrap_or("plan"),
            Seconds(answer.lower_bound_seconds)
        ),
    }
}

/// Explains the number of micro-batches, if it was chosen here.
fn chosen(found: &Found) -> String {
    let Some(at) = found.tried.iter().position(|one| one.micro_batches == found.plan.micro_batches) else {
        return String::new();
    };
    let each = found.tried[at].seconds_each;
    let beside = |other: usize| {
        found.tried.get(other).map(|other| (other.micro_batches, other.seconds_each / each - 1.0))
    };
    let fewer = at.checked_sub(1).and_then(beside);
    let fewer = fewer.map(|(n, by)| format!("per sample, {n} are {:.0} % slower", 100.0 * by));
    let more = beside(at + 1).map(|(n, by)| {
        if by <= -0.001 {
            format!("{n} are {:.1} % faster", -100.0 * by)
        } else {
            format!("{n} are no faster")
        }
    });
    let reasons: Vec<String> = [fewer, more].into_iter().flatten().collect();
    if reasons.is_empty() {
        String::new()
    } else {
        format!(
            "chosen      {} micro-batches: {} (--batch sets the samples per step)\n",
            found.plan.micro_batches,
            reasons.join(", ")
        )
    }
}

/// The band of the step, in brackets. The plan's band belongs to its own prediction: it is shown if the simulated step
/// is the same.
fn band(found: &Found) -> String {
    let predicted = &found.plan.predicted;
    let is_same = |planned: Seconds| (planned.0 / found.simulated.step_seconds.0 - 1.0).abs() < 0.01;
    match (predicted.step.filter(|step| is_same(*step)), predicted.band) {
        (Some(_), Some(band)) => format!(" (p10–p90 {}–{})", band.p10, band.p90),
        _ => " (simulated)".to_string(),
    }
}

/// The source of the plan's times.
fn times(found: &Found) -> String {
    let Some(times) = &found.plan.predicted.times else { return String::new() };
    labelled("times       ", &times.to_string(), 12)
}

/// The number of stages, and of chunks of each if there are several.
fn parts(n_parts: u32, chunks: Option<u32>) -> String {
    match chunks {
        Some(chunks) => format!("{} stages of {chunks} chunks", n_parts / chunks),
        None => format!("{n_parts} stages"),
    }
}

/// Rows of plans, best first; those without a plan have the reason.
pub fn compared(rows: &[Row]) -> String {
    let name = |row: &Row| {
        let answer = &row.answer;
        match (answer.stages, &answer.schedule) {
            (Some(n), Some(schedule)) if n > 1 && *schedule != answer.name => {
                format!("{} ({}, {schedule})", answer.name, parts(n, answer.chunks))
            }
            (Some(n), _) if n > 1 => format!("{} ({})", answer.name, parts(n, answer.chunks)),
            _ => answer.name.clone(),
        }
    };
    // A narrow terminal has room only for names.
    let is_narrow = terminal::text_width() < NARROW;
    let names: Vec<String> =
        rows.iter().map(|row| if is_narrow { row.answer.name.clone() } else { name(row) }).collect();
    let width = names.iter().map(|name| name.chars().count()).max().unwrap_or(0);
    let mut text = String::new();
    for (row, name) in rows.iter().zip(&names) {
        let label = format!("  {name:<width$}  ");
        let (step, slower) = (row.answer.step_seconds, row.answer.slower);
        text.push_str(&match (step, slower) {
            (Some(step), _) if row.answer.is_chosen => {
                format!("{label}{:>9}  this plan\n", Seconds(step).to_string())
            }
            (Some(step), Some(slower)) => {
                format!("{label}{:>9}  {:+.1} %\n", Seconds(step).to_string(), 100.0 * slower)
            }
            _ => labelled(
                &label,
                &format!("no: {}", row.answer.fails.as_deref().unwrap_or("not possible")),
                (width + 8).min(terminal::text_width() / 3),
            ),
        });
    }
    text
}
