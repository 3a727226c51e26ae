//! A plan's cluster as a machine.

use std::collections::BTreeMap;

use schema::{BytesPerSecond, Plan, Seconds};

use super::{
    PlanError, PlanOptions,
    numbers::{nanoseconds, rate},
};
use crate::machine::{Device, Link, Machine};

pub(super) fn machine(
    plan: &Plan,
    options: &PlanOptions,
    notes: &mut Vec<String>,
) -> Result<Machine, PlanError> {
    let cluster = &plan.cluster;
    let overhead = nanoseconds(options.host_overhead, || "the host overhead".to_string())?;
    let mut devices = Vec::new();
    let mut positions = BTreeMap::new();
    for (idx, device) in cluster.devices.iter().enumerate() {
        let type_ = cluster.types.get(&device.type_).ok_or_else(|| PlanError::UnknownType {
            device: device.name.clone(),
            type_: device.type_.clone(),
        })?;
        let speed = type_.speed.unwrap_or(1.0);
        if !(speed > 0.0 && speed.is_finite()) {
            return Err(PlanError::Rate { what: format!("the speed of `{}`", device.type_), value: speed });
        }
        let host = type_
            .host_bandwidth
            .map(|host| rate(host, || format!("the host bandwidth of `{}`", device.type_)));
        let base = Device::default();
        devices.push(Device {
            speed,
            memory: Some(type_.usable().0),
            host_bandwidth: host.transpose()?.unwrap_or(base.host_bandwidth),
            host_overhead: overhead,
            place: device.place.clone(),
            ..base
        });
        positions.insert(device.name.as_str(), idx);
    }
    let offloads = plan.stages.iter().any(|stage| stage.cost.offloaded.0 > 0);
    if offloads && cluster.types.values().any(|type_| type_.host_bandwidth.is_none()) {
        notes.push("the host link is taken as 12 GB/s where the cluster does not say".to_string());
    }
    let link = |bandwidth: BytesPerSecond, latency: Seconds, name: &str| {
        Ok::<Link, PlanError>(Link {
            latency: nanoseconds(latency, || format!("the latency of {name}"))?,
            bandwidth: rate(bandwidth, || format!("the bandwidth of {name}"))?,
        })
    };
    let levels =
        cluster.levels.iter().map(|level| link(level.bandwidth, level.latency, &format!("`{}`", level.name)));
    let mut links = BTreeMap::new();
    for own in &cluster.links {
        let ends = (positions.get(own.from.as_str()), positions.get(own.to.as_str()));
        let (Some(from), Some(to)) = ends else {
            return Err(PlanError::UnknownLink { from: own.from.clone(), to: own.to.clone() });
        };
        let name = format!("the link `{}` to `{}`", own.from, own.to);
        links.insert((*from, *to), link(own.bandwidth, own.latency, &name)?);
    }
    let levels = levels.collect::<Result<_, _>>()?;
    Ok(Machine { devices, levels, links, sharing: options.sharing, ..Machine::default() })
}
