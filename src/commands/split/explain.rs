//! The additions of `split --explain`: the bottleneck of each stage, all strategies, what would help.

use schema::{Bytes, Seconds};

use super::{Found, screen::compared};
use crate::{
    columns::{columns, table},
    commands::plan::but_for_products,
};

/// The most operations of the critical path that are listed.
const CRITICAL: usize = 12;

/// Everything that the screen leaves out.
pub fn text(found: &Found) -> String {
    let parts =
        [bounds(found), strategies(found), tried(found), help(found), devices(found), critical(found)];
    parts.concat()
}

fn bounds(found: &Found) -> String {
    let header =
        ["stage", "compute", "sync", "transfers", "bound by", "memory", "sends / sends back", "recomputed"];
    let mut rows = vec![header.map(String::from)];
    for (index, stage) in found.answer.stages.iter().enumerate() {
        rows.push([
            index.to_string(),
            Seconds(stage.compute_seconds).to_string(),
            Seconds(stage.sync_seconds).to_string(),
            Seconds(stage.transfer_seconds).to_string(),
            stage.bound_by.clone(),
            Bytes(stage.memory_bytes).to_string(),
            found
                .plan
                .transfers
                .iter()
                .filter(|transfer| transfer.from as usize == index)
                .map(|transfer| format!("{} / {}", transfer.forward, transfer.backward))
                .collect::<Vec<_>>()
                .join(", "),
            match stage.recompute.len() {
                0 => String::new(),
                n => format!(
                    "{n} of {} blocks{}",
                    stage.blocks.len(),
                    but_for_products(stage.recompute_light.len(), n)
                ),
            },
        ]);
    }
    format!(
        "\nwhat bounds each stage, per micro-batch\n{}",
        table(&rows, "  ", |column| [0, 1, 2, 3, 5].contains(&column))
    )
}

fn strategies(found: &Found) -> String {
    format!("\nevery strategy, simulated\n{}", compared(&found.compared.strategies))
}

fn tried(found: &Found) -> String {
    if found.tried.is_empty() {
        return String::new();
    }
    let row = |one: &schema::MicroBatchesTried| {
        let mark = if one.micro_batches == found.plan.micro_batches { "this plan" } else { "" };
        [one.micro_batches.to_string(), Seconds(one.seconds_each).to_string(), mark.to_string()]
    };
    let rows: Vec<[String; 3]> = found.tried.iter().map(row).collect();
    format!(
        "\nmicro-batches per step, and the time of each\n{}",
        columns(&rows, "  ", |column| [0, 1].contains(&column))
    )
}

fn help(found: &Found) -> String {
    let row = |change: &schema::WhatIf| {
        [change.change.clone(), format!("at least {:+.1} % throughput", 100.0 * change.gains)]
    };
    let mut rows: Vec<[String; 2]> = found.answer.what_if.iter().map(row).collect();
    let step = found.simulated.step_seconds.0.max(f64::MIN_POSITIVE);
    let savings = found.simulated.savings.iter().filter(|saving| saving.seconds.0 > 0.0).take(5);
    rows.extend(savings.map(|saving| {
        let share = 100.0 * saving.seconds.0 / step;
        [format!("10 % more of {}", saving.what), format!("saves {} ({share:.1} %)", saving.seconds)]
    }));
    if rows.is_empty() {
        String::new()
    } else {
        format!("\nwhat would help\n{}", columns(&rows, "  ", |_| false))
    }
}

fn devices(found: &Found) -> String {
    let header = ["device", "busy", "idle", "peak memory", "of", "most of it"].map(String::from);
    let devices = found.simulated.devices.iter().map(|device| {
        let most: Vec<String> =
            device.parts.iter().take(2).map(|part| format!("{} {}", part.name, part.bytes)).collect();
        [
            device.name.clone(),
            device.busy_seconds.to_string(),
            device.time_parts.idle.to_string(),
            device.peak_memory_bytes.to_string(),
            device.memory_limit_bytes.to_string(),
            most.join(", "),
        ]
    });
    let rows: Vec<[String; 6]> = std::iter::once(header).chain(devices).collect();
    format!("\nthe simulated step\n{}", table(&rows, "  ", |column| [1, 2, 3, 4].contains(&column)))
}

fn critical(found: &Found) -> String {
    let path = &found.simulated.critical_path;
    let row = |step: &schema::CriticalStep| [step.name.clone(), step.seconds.to_string(), step.place.clone()];
    let rows: Vec<[String; 3]> = path.iter().take(CRITICAL).map(row).collect();
    let mut text = format!("\ncritical path\n{}", columns(&rows, "  ", |column| [1].contains(&column)));
    if path.len() > CRITICAL {
        text.push_str(&format!("  … and {} more\n", path.len() - CRITICAL));
    }
    text
}
