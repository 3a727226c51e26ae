//! The cluster that the arguments of `plan` describe.

use std::path::Path;

use schema::{
    Bytes, BytesPerSecond, Cluster, ClusterError, Device, DeviceType, Level, Seconds, read_cluster,
    short_cluster,
};

use crate::{cost_models::CostModels, failure::Failure, files};

pub(super) fn cluster_failure(error: ClusterError) -> Failure {
    let hint = match &error {
        ClusterError::UnknownType(unknown) if !unknown.similar.is_empty() => {
            format!("did you mean {}?", unknown.similar.join(" or "))
        }
        ClusterError::UnknownType(unknown) if unknown.name.chars().all(|c| c.is_ascii_digit()) => {
            format!("name a type: {}xh100; `model-analyze devices` lists those known", unknown.name)
        }
        ClusterError::UnknownType(_) => {
            "`model-analyze devices` lists the known types; describe others under `types` in a cluster file"
                .to_string()
        }
        ClusterError::Short { .. } => "write 4xh100, 2x8xa100 or 4xa100+4xv100".to_string(),
        _ => return Failure::input(error),
    };
    Failure::input(error).with_hint(hint)
}

/// Returns the cluster of `--devices` or `--cluster`; device types of the user's cost models may be named too.
pub fn named(
    devices: Option<&str>,
    file: Option<&Path>,
    models: &CostModels,
) -> Result<Option<Cluster>, Failure> {
    if let Some(text) = devices {
        return short_cluster(text, &models.devices()).map(Some).map_err(cluster_failure);
    }
    let Some(path) = file else { return Ok(None) };
    let text = files::read_text(path)?;
    let name = path.display().to_string();
    let cluster = read_cluster(&text, &models.devices()).map_err(|error| match &error {
        ClusterError::Yaml(yaml) => {
            Failure::input(format!("{name}: {}", yaml.message)).at_line(&name, &text, yaml.place)
        }
        _ => cluster_failure(error).in_file(path),
    });
    cluster.map(Some)
}

/// Makes a cluster from `--machines`, `--bandwidth` and `--memory`.
pub fn machines(counts: &[u32], bandwidths: &[f64], memory: Option<f64>) -> Result<Cluster, Failure> {
    if counts.is_empty() {
        return Err(Failure::input("a plan needs a cluster: --devices 4xh100, or --cluster FILE")
            .with_hint("profile graphs also take --machines 8,2 --bandwidth 30e9,3.125e9"));
    }
    let bandwidths = if bandwidths.is_empty() { vec![1e9; counts.len()] } else { bandwidths.to_vec() };
    if bandwidths.len() != counts.len() {
        return Err(Failure::input(format!(
            "--machines has {} levels, --bandwidth {}; each level needs one of each",
            counts.len(),
            bandwidths.len()
        )));
    }
    let total: u64 = counts.iter().map(|&count| u64::from(count)).fold(1, u64::saturating_mul);
    if total == 0 || total > 100_000 {
        return Err(Failure::input(format!(
            "--machines describes {total} machines; 1 to 100000 are supported"
        )));
    }
    let type_ = DeviceType {
        memory: Bytes(memory.unwrap_or(16e9).clamp(1.0, 1e18) as u64),
        memory_bandwidth: BytesPerSecond(1e12),
        ..DeviceType::default()
    };
    let device = |index: u64| {
        let mut size = 1;
        let inner = counts[..counts.len() - 1].iter();
        let place = inner.map(|&count| {
            size *= u64::from(count);
            (index / size) as u32
        });
        Device { name: format!("machine{index}"), type_: "machine".to_string(), place: place.collect() }
    };
    let level = |(index, &bandwidth): (usize, &f64)| Level {
        name: format!("level{index}"),
        bandwidth: BytesPerSecond(bandwidth),
        latency: Seconds(0.0),
    };
    Ok(Cluster {
        types: [("machine".to_string(), type_)].into_iter().collect(),
        devices: (0..total).map(device).collect(),
        levels: bandwidths.iter().enumerate().map(level).collect(),
        links: Vec::new(),
    })
}
