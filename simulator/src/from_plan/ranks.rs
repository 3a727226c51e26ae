//! Which devices make up which rank of the pipeline, and whether the schedule wants its stages there.

use std::collections::BTreeMap;

use super::{PlanError, parts::PlanParts};

/// Returns the groups of devices in the order of their first stage, and each stage's group.
pub(super) fn ranks(parts: &PlanParts) -> Result<(Vec<Vec<usize>>, Vec<usize>), PlanError> {
    let mut groups: Vec<Vec<usize>> = Vec::new();
    let mut rank_of = Vec::with_capacity(parts.stages.len());
    // First stage and rank of each device.
    let mut owner: BTreeMap<usize, (usize, usize)> = BTreeMap::new();
    for (stage, part) in parts.stages.iter().enumerate() {
        let devices = &part.devices;
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
                let device = parts.devices[device].name.clone();
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
    parts: &PlanParts,
    rank_devices: &[Vec<usize>],
    rank_of: &[usize],
) -> Result<(), PlanError> {
    for (stage, &found) in rank_of.iter().enumerate() {
        let expected = parts.schedule.rank_of(stage as u32, rank_devices.len() as u32) as usize;
        if expected != found {
            let name = |rank: usize| {
                let device = rank_devices.get(rank).and_then(|devices| devices.first());
                device.map_or_else(|| format!("rank {rank}"), |device| parts.devices[*device].name.clone())
            };
            return Err(PlanError::Placement {
                schedule: parts.schedule,
                stage,
                expected: name(expected),
                found: name(found),
            });
        }
    }
    Ok(())
}
