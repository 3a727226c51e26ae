//! Which devices make up which rank of the pipeline, and whether the schedule wants its stages there.

use std::collections::BTreeMap;

use schema::Plan;

use super::PlanError;
use crate::order::Schedule;

/// Returns the positions of each stage's devices in the cluster.
pub(super) fn stage_devices(plan: &Plan) -> Result<Vec<Vec<usize>>, PlanError> {
    let positions: BTreeMap<&str, usize> =
        plan.cluster.devices.iter().enumerate().map(|(idx, device)| (device.name.as_str(), idx)).collect();
    let mut all = Vec::with_capacity(plan.stages.len());
    for (stage, planned) in plan.stages.iter().enumerate() {
        if planned.devices.is_empty() {
            return Err(PlanError::NoDevice { stage });
        }
        let mut devices = Vec::with_capacity(planned.devices.len());
        for name in &planned.devices {
            let device = *positions
                .get(name.as_str())
                .ok_or_else(|| PlanError::UnknownDevice { stage, device: name.clone() })?;
            if devices.contains(&device) {
                return Err(PlanError::DeviceTwice { stage, device: name.clone() });
            }
            devices.push(device);
        }
        all.push(devices);
    }
    Ok(all)
}

/// Returns the groups of devices in the order of their first stage, and each stage's group.
pub(super) fn ranks(
    plan: &Plan,
    stage_devices: &[Vec<usize>],
) -> Result<(Vec<Vec<usize>>, Vec<usize>), PlanError> {
    let mut groups: Vec<Vec<usize>> = Vec::new();
    let mut rank_of = Vec::with_capacity(stage_devices.len());
    // First stage and rank of each device.
    let mut owner: BTreeMap<usize, (usize, usize)> = BTreeMap::new();
    for (stage, devices) in stage_devices.iter().enumerate() {
        let mut sorted = devices.clone();
        sorted.sort_unstable();
        let rank = match owner.get(&sorted[0]) {
            Some((_, rank)) => *rank,
            None => groups.len(),
        };
        let same = groups.get(rank).is_some_and(|group| {
            let mut group = group.clone();
            group.sort_unstable();
            group == sorted
        });
        if !same {
            if let Some((device, (first, _))) =
                sorted.iter().find_map(|device| owner.get(device).map(|owner| (*device, *owner)))
            {
                let device = plan.cluster.devices[device].name.clone();
                return Err(PlanError::Overlap { first, second: stage, device });
            }
            groups.push(devices.clone());
            owner.extend(sorted.iter().map(|device| (*device, (stage, rank))));
        }
        rank_of.push(rank);
    }
    Ok((groups, rank_of))
}

pub(super) fn check_placement(
    plan: &Plan,
    schedule: Schedule,
    rank_devices: &[Vec<usize>],
    rank_of: &[usize],
) -> Result<(), PlanError> {
    for (stage, &found) in rank_of.iter().enumerate() {
        let expected = schedule.rank_of(stage as u32, rank_devices.len() as u32) as usize;
        if expected != found {
            let name = |rank: usize| {
                let device = rank_devices.get(rank).and_then(|devices| devices.first());
                device.map_or_else(
                    || format!("rank {rank}"),
                    |device| plan.cluster.devices[*device].name.clone(),
                )
            };
            return Err(PlanError::Placement {
                schedule,
                stage,
                expected: name(expected),
                found: name(found),
            });
        }
    }
    Ok(())
}
