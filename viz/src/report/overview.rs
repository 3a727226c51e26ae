//! The cards at the top: the summary.

use schema::{Bytes, Flops, Plan, Saving, Seconds, SimulatedPlan};

use super::{
    figures::{card, few, percent, plural},
    input::{Planned, Report},
};
use crate::from_graph::count;

/// The least share of a step that one part of the machine must save to be listed.
const WORTH_NAMING: f64 = 0.01;

/// A gap that comes only from rounding.
const PROVEN: f64 = 1e-9;

/// Most cards in one row.
const ROW: usize = 6;

/// Appends the cards.
pub(super) fn cards(out: &mut String, report: &Report<'_>) {
    let mut cards = String::new();
    if let Some(planned) = &report.planned {
        plan_cards(&mut cards, planned);
    }
    model_cards(&mut cards, report);
    // One row, or two of the same length if the window is wide enough.
    let n = cards.matches("<dt>").count();
    let wide = if n > ROW { n.div_ceil(2) } else { n };
    out.push_str(&format!("<dl class=\"cards wide{wide}\">{cards}</dl>\n"));
}

fn model_cards(out: &mut String, report: &Report<'_>) {
    let total = report.costs.total();
    let graph = report.graph;
    let bytes: u64 = graph.tensors.iter().filter(|t| t.is_first_parameter()).map(|t| t.bytes).sum();
    card(out, "", "Parameters", &count(graph.parameters()), &Bytes(bytes).to_string());
    card(
        out,
        "",
        "Forward",
        &Flops(total.forward_flops).to_string(),
        &format!("backward {}", Flops(total.backward_flops())),
    );
    // With a plan the devices' peaks are more informative.
    if report.planned.is_none() {
        card(
            out,
            "",
            "Saved activations",
            &Bytes(total.saved_bytes).to_string(),
            &format!("in {}", plural(graph.operators.len(), "operator")),
        );
        let heaviest = graph.blocks.iter().filter(|block| block.children.is_empty()).map(|block| {
            (report.costs.block(graph, block.id).forward_flops, std::cmp::Reverse(block.path.as_str()))
        });
        if let Some((flops, path)) = heaviest.max().filter(|(flops, _)| *flops > 0) {
            let share = flops as f64 / total.forward_flops.max(1) as f64;
            card(out, "", "Heaviest layer", path.0, &format!("{} of the forward pass", percent(share)));
        }
    }
    let unknown: usize = graph.unknown.values().map(|unknown| unknown.operators.len()).sum();
    if unknown > 0 {
        let names: Vec<String> = graph.unknown.keys().cloned().collect();
        card(out, "bad", "Unknown operators", &unknown.to_string(), &few(&names, 3));
    }
}

fn plan_cards(out: &mut String, planned: &Planned<'_>) {
    let Planned { plan, simulated, .. } = planned;
    fit_card(out, simulated);
    let per_micro_batch = simulated.step_seconds / f64::from(simulated.micro_batches.max(1));
    card(
        out,
        "",
        "Predicted step",
        &simulated.step_seconds.to_string(),
        &format!("{per_micro_batch} per micro-batch, {} of them", simulated.micro_batches),
    );
    let idle = simulated.split.bubble.0 / simulated.step_seconds.0.max(f64::MIN_POSITIVE);
    card(
        out,
        "",
        "Bubble",
        &percent(simulated.bubble),
        &format!("of device time is idle, {} from the order of operations alone", percent(idle.max(0.0))),
    );
    let loads = loads(plan);
    let slowest = (0..loads.len()).max_by(|a, b| loads[*a].0.total_cmp(&loads[*b].0).then(b.cmp(a)));
    if let Some(stage) = slowest {
        let mean = loads.iter().map(|load| load.0).sum::<f64>() / loads.len() as f64;
        let planned = &plan.stages[stage];
        let note = format!("{} per micro-batch on {}", loads[stage], few(&planned.devices, 2));
        card(out, "", "Bottleneck", &format!("Stage {stage}"), &note);
        if loads.len() > 1 && mean > 0.0 {
            card(
                out,
                "",
                "Imbalance",
                &percent(loads[stage].0 / mean - 1.0),
                "slowest stage over the average",
            );
        }
    }
    let share = |saving: &Saving| saving.seconds.0 / simulated.step_seconds.0.max(f64::MIN_POSITIVE);
    let is_all = |saving: &&Saving| saving.what == Saving::ALL_DEVICES;
    let single = simulated.savings.iter().find(|saving| !is_all(saving) && share(saving) >= WORTH_NAMING);
    let best = single.or_else(|| simulated.savings.iter().find(is_all));
    if let Some(saving) = best.filter(|saving| share(saving) > 0.0) {
        let title = if is_all(&saving) { "Would help" } else { "Best single upgrade" };
        let note = format!("10 % more of it saves {} ({})", saving.seconds, percent(share(saving)));
        card(out, "", title, &saving.what, &note);
    }
    if let (Some(bound), Some(step)) =
        (plan.predicted.lower_bound, plan.predicted.step.or(plan.predicted.period))
        && bound.0 > 0.0
    {
        let gap = (1.0 - bound.0 / step.0).max(0.0);
        let of = plan.predicted.bound_of.as_deref();
        let (figure, note) = match of {
            None if gap < PROVEN => ("0 %".to_string(), "proven, by the planner's objective".to_string()),
            Some(of) if gap < PROVEN => ("0 %".to_string(), format!("no {of} is faster")),
            // Rounded up, so that the bound holds as shown.
            of => (
                format!("≤ {}", percent((1e3 * gap).ceil() / 1e3)),
                format!("no {} is faster than {bound}", of.unwrap_or("plan")),
            ),
        };
        card(out, "", "Optimality gap", &figure, &note);
    }
}

fn fit_card(out: &mut String, simulated: &SimulatedPlan) {
    let share = |used: Bytes, limit: Bytes| used.0 as f64 / limit.0.max(1) as f64;
    if let Some(short) = simulated.out_of_memory.first() {
        let note = format!("{} needs {} of {}", short.device, short.needed, short.limit);
        return card(out, "bad", "Memory", "Does not fit", &note);
    }
    let fullest = simulated.devices.iter().max_by(|a, b| {
        let full = |d: &schema::SimulatedDevice| share(d.peak_memory_bytes, d.memory_limit_bytes);
        full(a).total_cmp(&full(b))
    });
    let note = fullest.map_or(String::new(), |device| {
        let full = share(device.peak_memory_bytes, device.memory_limit_bytes);
        format!("{} is fullest: {} of {}", device.name, percent(full), device.memory_limit_bytes)
    });
    card(out, "good", "Memory", "Fits", &note);
}

/// Returns what each stage adds to each micro-batch: its cost over its replicas.
pub(super) fn loads(plan: &Plan) -> Vec<Seconds> {
    let load = |stage: &schema::PlanStage| {
        let cost = &stage.cost;
        let all = cost.forward + cost.input_gradient + cost.weight_gradient;
        all / stage.replicas() as f64
    };
    plan.stages.iter().map(load).collect()
}
