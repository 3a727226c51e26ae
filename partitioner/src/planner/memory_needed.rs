//! If no plan fits: the smallest memory with which one does, by bisection: about ten searches of a strategy.

use crate::{Problem, Solution, error::PlanError, simulate::raise_memory};

/// Finds plans of a problem with more memory.
pub(crate) type Make<'a> = &'a dyn Fn(&Problem) -> Option<Solution>;

/// Finds how much more memory on each device would do, and the device that is shortest of it in the plan that fits then.
///
/// Each of `makes` after the first is asked only whether a tenth less memory would do.
pub(crate) fn nearest(problem: &Problem, makes: &[Make]) -> PlanError {
    let with = |make: Make, more: f64| {
        let mut roomier = problem.clone();
        let devices = roomier.machine.devices.iter_mut();
        devices.for_each(|device| device.memory.0 = device.memory.0.saturating_add(more as u64));
        make(&roomier)
    };
    let devices = &problem.machine.devices;
    let largest = devices.iter().map(|device| device.memory.0).max().unwrap_or(0).max(1) as f64;
    let mut nearest: Option<(Solution, f64, Make)> = None;
    for &make in makes {
        let (mut low, mut high) = (0.0, nearest.as_ref().map_or(largest, |(_, more, _)| 0.9 * more));
        let mut found = with(make, high);
        while nearest.is_none() && found.is_none() && high < (largest * 1e12).min(1e18) {
            (low, high) = (high, high * 4.0);
            found = with(make, high);
        }
        let Some(mut plan) = found else { continue };
        for _ in 0..8 {
            let middle = (low + high) / 2.0;
            match with(make, middle) {
                Some(tighter) => (plan, high) = (tighter, middle),
                None => low = middle,
            }
        }
        nearest = Some((plan, high, make));
    }
    let Some((mut plan, high, make)) = nearest else { return PlanError::NothingFits };
    raise_memory(problem, &mut plan);
    let held = plan.held(devices.len());
    let short: Vec<f64> =
        held.iter().zip(devices).map(|(held, device)| held - device.memory.0 as f64).collect();
    let used = plan.stages.iter().flat_map(|stage| plan.devices(stage));
    let fullest = used.max_by(|&a, &b| short[a].total_cmp(&short[b])).expect("a plan has stages");
    // Chunks that fit their device together may not fit its equal shares: report the memory that was tried.
    let own = short[fullest].ceil();
    let more = if own > 0.0 && own < high && with(make, own).is_some() { own } else { high };
    let weight = |block: usize| {
        let block = &problem.blocks[block];
        block.parameters.0 as f64 * 4.0 + block.activations.0 as f64
    };
    let on_it = plan.stages.iter().filter(|stage| plan.devices(stage).any(|device| device == fullest));
    let blocks = on_it.flat_map(|stage| stage.blocks.iter().copied());
    let block = blocks.max_by(|&a, &b| weight(a).total_cmp(&weight(b)));
    let limit = devices[fullest].memory.0;
    PlanError::Memory {
        block: block.map_or_else(String::new, |block| problem.blocks[block].path.clone()),
        needed: limit.saturating_add(more.ceil() as u64),
        device: devices[fullest].name.clone(),
        limit,
    }
}
