//! The what-if grid of a report: the same stages, simulated again for each schedule, number of micro-batches and
//! link speed.
//!
//! Steps at the plan's link speeds are also drawn, within a limit on the page's size.

use schema::{Bytes, Plan, ReportWhatIf, SimulatedPlan, Timeline, WhatIfCell, WhatIfDevice};
use simulator::{PlanOptions, PlannedStep, USES, order::Schedule};

use crate::commands::simulate::{self, picture};

/// Schedules with a row, in addition to the plan's own, simplest first.
const SCHEDULES: [Schedule; 9] = [
    Schedule::GPipe,
    Schedule::OneForwardOneBackward,
    Schedule::Interleaved1F1B,
    Schedule::InterleavedZeroBubble,
    Schedule::Zb1p,
    Schedule::Zb2p,
    Schedule::Zbv,
    Schedule::VHalf,
    Schedule::DualPipeV,
];
const LINKS: [f64; 3] = [0.5, 1.0, 2.0];
const AS_PLANNED: usize = 1;
/// Factors on the plan's micro-batches, in quarters.
const QUARTERS: [u32; 5] = [1, 2, 4, 8, 16];
/// The most operations of all simulations; cells beyond it stay empty.
const MOST_OPS: usize = 1_500_000;
/// The most operations of a searched order: the search is not linear.
const MOST_SEARCHED_OPS: u64 = 6_000;
/// The most operations of a drawn step, and of all drawn steps: each takes some two bytes of the page.
const MOST_DRAWN_OPS: usize = 2_000;
const MOST_DRAWN_OPS_IN_ALL: usize = 5_000;
/// The most rows of devices in all cells: each takes some ten bytes of the page.
const MOST_DEVICES_IN_ALL: usize = 4_000;

/// Simulates the grid. A cell that cannot run has a reason; a schedule that never can has no row.
///
/// Also returns the drawn steps, by the number of their cell, and the devices of each cell.
pub fn grid(plan: &Plan, simulated: &SimulatedPlan) -> Grid {
    let mut counts: Vec<u32> = QUARTERS
        .iter()
        .filter_map(|quarters| plan.micro_batches.checked_mul(*quarters))
        .map(|m| m / 4)
        .collect();
    counts.push(plan.micro_batches);
    counts.retain(|count| *count > 0);
    counts.sort_unstable();
    counts.dedup();
    let own = Schedule::from_name(&simulated.schedule).ok();
    // A schedule orders stages: with one stage all are the same.
    let mut schedules: Vec<Schedule> = if plan.stages.len() > 1 { SCHEDULES.to_vec() } else { Vec::new() };
    if let Some(own) = own.filter(|own| !schedules.contains(own)) {
        schedules.insert(0, own);
    }
    let n_cells = LINKS.len() * schedules.len() * counts.len();
    let mut left = Left {
        simulated: MOST_OPS,
        drawn: MOST_DRAWN_OPS_IN_ALL,
        has_devices: n_cells * simulated.devices.len() <= MOST_DEVICES_IN_ALL,
    };
    let mut kept = Vec::new();
    for schedule in schedules {
        let mut cells: Vec<Vec<Cell>> = vec![Vec::new(); LINKS.len()];
        for count in &counts {
            for (cells, cell) in cells.iter_mut().zip(column(plan, schedule, *count, &mut left)) {
                cells.push(cell);
            }
        }
        let runs = cells.iter().flatten().any(|cell| cell.answer.step.is_some());
        if runs || Some(schedule) == own {
            kept.push((schedule, cells));
        }
    }
    let position = |of: Option<usize>| of.unwrap_or(0);
    let mut cells = Vec::new();
    let mut steps = Vec::new();
    let mut devices = Vec::new();
    for cell in (0..LINKS.len()).flat_map(|link| kept.iter().flat_map(move |(_, all)| all[link].clone())) {
        steps.extend(cell.step.map(|step| (cells.len(), step)));
        cells.push(cell.answer);
        devices.push(cell.devices);
    }
    if !left.has_devices {
        devices.clear();
    }
    let grid = ReportWhatIf {
        planned: (
            AS_PLANNED,
            position(kept.iter().position(|(schedule, _)| Some(*schedule) == own)),
            position(counts.iter().position(|count| *count == plan.micro_batches)),
        ),
        micro_batches: counts,
        schedules: kept.iter().map(|(schedule, _)| schedule.name().to_string()).collect(),
        // Other schedules may be faster, but stages cannot be written for them.
        is_planned: kept
            .iter()
            .map(|(schedule, _)| {
                Some(*schedule) == own || partitioner::Strategy::of_schedule(*schedule).is_some()
            })
            .collect(),
        summaries: kept.iter().map(|(schedule, _)| schedule.summary().to_string()).collect(),
        links: LINKS.to_vec(),
        uses: USES.iter().map(|used_for| used_for.name().to_string()).collect(),
        cells,
    };
    Grid { grid, steps, devices }
}

/// The grid, and the parts that are stored apart in a page.
pub struct Grid {
    /// The answers.
    pub grid: ReportWhatIf,
    /// Drawn steps, by the number of their cell.
    pub steps: Vec<(usize, Timeline)>,
    /// Devices by cell.
    pub devices: Vec<Vec<WhatIfDevice>>,
}

/// What may still be simulated and drawn, and whether cells have their devices.
struct Left {
    simulated: usize,
    drawn: usize,
    has_devices: bool,
}

/// An answer, its step if drawn, and its devices.
#[derive(Clone, Default)]
struct Cell {
    answer: WhatIfCell,
    step: Option<Timeline>,
    devices: Vec<WhatIfDevice>,
}

/// Simulates one schedule and number of micro-batches at every link speed; the order is made once.
fn column(plan: &Plan, schedule: Schedule, micro_batches: u32, left: &mut Left) -> Vec<Cell> {
    let no = |reason: String| {
        let answer = WhatIfCell { reason: Some(reason), ..WhatIfCell::default() };
        vec![Cell { answer, ..Cell::default() }; LINKS.len()]
    };
    let ops = 3 * plan.stages.len() as u64 * u64::from(micro_batches);
    if ops > left.simulated as u64 || (schedule.depends_on_costs() && ops > MOST_SEARCHED_OPS) {
        return no("too large to simulate for a report; use `model-analyze simulate`".to_string());
    }
    let options = PlanOptions {
        schedule: Some(schedule.name().to_string()),
        micro_batches: Some(micro_batches),
        ..PlanOptions::default()
    };
    let step = match simulator::from_plan(plan, &options) {
        Ok(step) => step,
        Err(error) => return no(error.to_string()),
    };
    let n_ops = step.order.n_ops();
    left.simulated = left.simulated.saturating_sub(LINKS.len() * n_ops);
    let is_drawn = n_ops <= MOST_DRAWN_OPS.min(left.drawn);
    if is_drawn {
        left.drawn -= n_ops;
    }
    let cell = |(link, factor): (usize, &f64)| {
        let (answer, timeline) = answer(&step, *factor);
        let of_devices = timeline.as_ref().filter(|_| left.has_devices);
        let devices = of_devices.map_or_else(Vec::new, |timeline| devices(plan, &step, timeline));
        let drawn = timeline.filter(|_| is_drawn && link == AS_PLANNED);
        Cell { answer, step: drawn.map(|timeline| picture::of_step(plan, &step, &timeline)), devices }
    };
    LINKS.iter().enumerate().map(cell).collect()
}

/// Simulates one cell.
fn answer(step: &PlannedStep, factor: f64) -> (WhatIfCell, Option<simulator::Timeline>) {
    let mut machine = step.machine.clone();
    for link in machine.levels.iter_mut().chain(machine.links.values_mut()) {
        link.bandwidth *= factor;
    }
    match simulator::simulate(&step.workload, &step.order, &machine) {
        Ok(timeline) => {
            let full = machine.devices.iter().zip(&timeline.memory).filter_map(|(device, memory)| {
                let limit = device.memory.filter(|limit| *limit > 0)?;
                Some(memory.peak as f64 / limit as f64)
            });
            let cell = WhatIfCell {
                step: Some(schema::Seconds(timeline.step as f64 / 1e9)),
                bubble: Some(timeline.bubble()),
                memory: full.reduce(f64::max),
                ..WhatIfCell::default()
            };
            (cell, Some(timeline))
        }
        Err(error) => (WhatIfCell { reason: Some(error.to_string()), ..WhatIfCell::default() }, None),
    }
}

fn devices(plan: &Plan, step: &PlannedStep, timeline: &simulator::Timeline) -> Vec<WhatIfDevice> {
    let device = |device: schema::SimulatedDevice| WhatIfDevice {
        peak: device.peak_memory_bytes,
        parts: USES
            .iter()
            .map(|used_for| device.parts.iter().find(|part| part.name == used_for.name()))
            .map(|part| part.map_or(Bytes(0), |part| part.bytes))
            .collect(),
        busy: device.busy_seconds,
        idle: device.time_parts.idle,
    };
    simulate::devices(plan, step, timeline).into_iter().map(device).collect()
}
