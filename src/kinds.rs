//! Devices counted by type.

use indexmap::IndexMap;
use schema::Device;

/// Counts devices by type, in order of first occurrence.
pub fn by_type<'a>(devices: impl IntoIterator<Item = &'a Device>) -> IndexMap<&'a str, usize> {
    let mut counts = IndexMap::new();
    for device in devices {
        *counts.entry(device.type_.as_str()).or_default() += 1;
    }
    counts
}

/// Writes such counts: `2 × T4 + 1 × L4`.
pub fn counted(counts: &IndexMap<&str, usize>) -> String {
    counts.iter().map(|(name, count)| format!("{count} × {name}")).collect::<Vec<_>>().join(" + ")
}
