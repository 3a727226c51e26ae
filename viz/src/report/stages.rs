//! Stages as bars and as a table: time of one micro-batch, and peak memory of each device against its limit.
//!
//! Widths are attributes of SVG shapes, because the page's policy allows no style attributes.

use std::fmt::Write as _;

use schema::{Bytes, Plan, Seconds, SimulatedDevice, SimulatedPlan};

use super::{
    figures::{few, percent, stage_class},
    input::Planned,
    overview::loads,
};
use crate::svg::{Escaped, Number};

/// Rows beyond this are summarised.
const MOST_ROWS: usize = 256;

/// Appends the section.
pub(super) fn section(out: &mut String, planned: &Planned<'_>) {
    let Planned { plan, simulated, .. } = planned;
    out.push_str("<section id=\"stages\"><h2>Stages</h2>\n");
    let _ = writeln!(
        out,
        "<p class=\"note\">{} · <span id=\"circumstances\">{} · {} micro-batches</span>. Time is one micro-batch on one replica; memory is the peak of the simulated step.</p>",
        Escaped(&plan.strategy),
        Escaped(&simulated.schedule),
        simulated.micro_batches
    );
    stage_table(out, plan);
    device_table(out, simulated);
    for short in &simulated.out_of_memory {
        let causes: Vec<String> =
            short.causes.iter().map(|part| format!("{} {}", part.name, part.bytes)).collect();
        let text = format!(
            "{} runs out of memory after {}: it needs {} of {} — {}",
            short.device,
            short.at_seconds,
            short.needed,
            short.limit,
            causes.join(", ")
        );
        let _ = writeln!(out, "<p class=\"note bad\">{}</p>", Escaped(&text));
    }
    for note in &simulated.notes {
        let _ = writeln!(out, "<p class=\"note\">Note: {}</p>", Escaped(note));
    }
    out.push_str("</section>\n");
}

fn stage_table(out: &mut String, plan: &Plan) {
    let loads = loads(plan);
    let longest =
        |seconds: fn(&schema::PlanStage) -> f64| plan.stages.iter().map(seconds).fold(0.0, f64::max);
    let most =
        longest(|stage| (stage.cost.forward + stage.cost.input_gradient + stage.cost.weight_gradient).0);
    let total: f64 = loads.iter().map(|load| load.0).sum();
    out.push_str(
        "<div class=\"scroll\"><table class=\"sort bars\"><thead><tr><th>Stage<th>Blocks<th>Devices<th class=\"wide\" data-plain>Forward, backward<th class=\"n\">Time<th class=\"n\">Share<th class=\"n\">Parameters<th class=\"n\">Activations<th class=\"n\">Sends</tr></thead><tbody>\n",
    );
    for (index, stage) in plan.stages.iter().enumerate().take(MOST_ROWS) {
        let cost = &stage.cost;
        let time = cost.forward + cost.input_gradient + cost.weight_gradient;
        let sent: u64 = plan.transfers.iter().filter(|t| t.from as usize == index).map(|t| t.forward.0).sum();
        let blocks = few(&stage.blocks, 2);
        let _ = write!(
            out,
            "<tr data-stage=\"{index}\"><th scope=\"row\" data-v=\"{index}\"><i class=\"dot {}\"></i>Stage {index}<td data-v=\"{}\" title=\"{}\">{}<td>{}<td>",
            stage_class(index),
            stage.blocks.len(),
            Escaped(&first(&stage.blocks)),
            Escaped(&blocks),
            Escaped(&few(&stage.devices, 2)),
        );
        let parts = [
            (cost.forward, "forward"),
            (cost.input_gradient, "backward: input gradient"),
            (cost.weight_gradient, "backward: weight gradient"),
        ];
        time_bar(out, &parts, most, &stage_class(index));
        let share = loads[index].0 / total.max(f64::MIN_POSITIVE);
        let _ = writeln!(
            out,
            "<td class=\"n\" data-v=\"{}\">{time}<td class=\"n\" data-v=\"{share}\">{}<td class=\"n\" data-v=\"{}\">{}<td class=\"n\" data-v=\"{}\">{}<td class=\"n\" data-v=\"{sent}\">{}</tr>",
            time.0,
            percent(share),
            cost.parameters.0,
            cost.parameters,
            cost.activations.0,
            cost.activations,
            if sent == 0 { "–".to_string() } else { Bytes(sent).to_string() },
        );
    }
    out.push_str("</tbody></table></div>\n");
    more(out, plan.stages.len(), "stages");
}

/// Lists the first names of a stage, for the tool tip.
fn first(blocks: &[String]) -> String {
    const MOST: usize = 40;
    let mut text = blocks.iter().take(MOST).map(String::as_str).collect::<Vec<_>>().join(", ");
    if blocks.len() > MOST {
        let _ = write!(text, " … {} in all", blocks.len());
    }
    text
}

fn time_bar(out: &mut String, parts: &[(Seconds, &str)], most: f64, class: &str) {
    const WIDTH: f64 = 240.0;
    let _ = write!(
        out,
        "<svg class=\"bar {class}\" viewBox=\"0 0 {WIDTH} 14\" preserveAspectRatio=\"none\" role=\"img\" aria-label=\"time\">"
    );
    let mut x = 0.0;
    for (level, (seconds, name)) in parts.iter().enumerate() {
        let width = WIDTH * seconds.0.max(0.0) / most.max(f64::MIN_POSITIVE);
        if width > 0.0 {
            let _ = write!(
                out,
                "<rect class=\"l{level}\" x=\"{}\" width=\"{}\" height=\"14\"><title>{name} {seconds}</title></rect>",
                Number(x),
                Number(width)
            );
        }
        x += width;
    }
    out.push_str("</svg>");
}

fn device_table(out: &mut String, simulated: &SimulatedPlan) {
    // One scale for all devices, so that bars are comparable; the limit may be inside or outside.
    let most = simulated
        .devices
        .iter()
        .map(|device| device.peak_memory_bytes.0.max(device.memory_limit_bytes.0))
        .max()
        .unwrap_or(0);
    let step = simulated.step_seconds.0.max(f64::MIN_POSITIVE);
    let mut names: Vec<&str> = Vec::new();
    out.push_str(
        "<div class=\"tools js\"><output id=\"other\"></output><button class=\"planned\" hidden>Back to the plan</button></div>\n<div class=\"scroll\"><table class=\"sort bars\" id=\"devices\"><thead><tr><th>Device<th class=\"wide\" data-plain>Peak memory and limit<th class=\"n\">Peak<th class=\"n\">Limit<th class=\"n\">Used<th class=\"n\">Busy<th class=\"n\">Idle</tr></thead><tbody>\n",
    );
    for (index, device) in simulated.devices.iter().enumerate().take(MOST_ROWS) {
        let used = device.peak_memory_bytes.0 as f64 / device.memory_limit_bytes.0.max(1) as f64;
        let class = if used > 1.0 { " class=\"bad\"" } else { "" };
        let _ =
            write!(out, "<tr{class} data-device=\"{index}\"><th scope=\"row\">{}<td>", Escaped(&device.name));
        memory_bar(out, device, most, &mut names);
        let idle = device.time_parts.idle.0 / step;
        let busy = device.busy_seconds.0 / step;
        let _ = writeln!(
            out,
            "<td class=\"n\" data-v=\"{}\">{}<td class=\"n\" data-v=\"{}\">{}<td class=\"n\" data-v=\"{used}\">{}<td class=\"n\" data-v=\"{busy}\">{}<td class=\"n\" data-v=\"{idle}\">{}</tr>",
            device.peak_memory_bytes.0,
            device.peak_memory_bytes,
            device.memory_limit_bytes.0,
            device.memory_limit_bytes,
            percent(used),
            percent(busy),
            percent(idle),
        );
    }
    out.push_str("</tbody></table></div>\n");
    out.push_str("<p class=\"legend\">");
    for name in names {
        let _ = write!(out, "<span><i class=\"dot m-{}\"></i>{}</span>", slot(name), Escaped(name));
    }
    out.push_str("<span><i class=\"dot limit\"></i>limit</span></p>\n");
    more(out, simulated.devices.len(), "devices");
}

fn memory_bar<'a>(out: &mut String, device: &'a SimulatedDevice, most: u64, names: &mut Vec<&'a str>) {
    const WIDTH: f64 = 240.0;
    let scale = |bytes: u64| WIDTH * bytes as f64 / most.max(1) as f64;
    let _ = write!(
        out,
        "<svg class=\"bar\" viewBox=\"0 -2 {WIDTH} 18\" preserveAspectRatio=\"none\" role=\"img\" aria-label=\"memory\">"
    );
    let mut x = 0.0;
    for part in &device.parts {
        let width = scale(part.bytes.0);
        let _ = write!(
            out,
            "<rect class=\"m-{}\" x=\"{}\" width=\"{}\" height=\"14\"><title>{} {}</title></rect>",
            slot(&part.name),
            Number(x),
            Number(width),
            Escaped(&part.name),
            part.bytes
        );
        x += width;
        if !names.contains(&part.name.as_str()) {
            names.push(&part.name);
        }
    }
    let limit = Number(scale(device.memory_limit_bytes.0).min(WIDTH - 1.0));
    let _ = write!(out, "<path class=\"limit\" d=\"M{limit} -2V16\"/></svg>");
}

/// Returns a colour's number for a use of memory.
fn slot(name: &str) -> usize {
    const USES: [&str; 7] =
        ["parameters", "gradients", "optimizer", "weight versions", "activations", "workspace", "buffers"];
    USES.iter().position(|known| *known == name).unwrap_or(USES.len() - 1)
}

fn more(out: &mut String, total: usize, what: &str) {
    if total > MOST_ROWS {
        let _ = writeln!(out, "<p class=\"note\">The first {MOST_ROWS} of {total} {what} are shown.</p>");
    }
}
