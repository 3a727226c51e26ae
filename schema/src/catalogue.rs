//! The catalogue of devices: figures of data sheets, and names that people type.
//!
//! The facts are in `devices.yaml`, next to this file; a user's file of the same form extends or overrides them. Names
//! match regardless of case, punctuation and vendor: `a100`, `NVIDIA A100-SXM4-80GB` and `A100 SXM4 80GB` are one
//! device.

use std::sync::LazyLock;

use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Bytes, DeviceType, YamlError, from_yaml};

/// Newest supported version of the device file.
const VERSION: u32 = 1;

/// The range of figures; beyond it times would overflow.
pub(crate) const FIGURES: std::ops::RangeInclusive<f64> = 1e-30..=1e30;

/// A file of devices, in the form of the catalogue.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DeviceFile {
    /// `devices`.
    pub kind: String,
    /// 1.
    pub version: u32,
    /// Share of the memory reserved for everything but tensors, for devices that do not set it; zero when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserve: Option<f64>,
    /// Devices by name.
    pub devices: IndexMap<String, DeviceType>,
}

/// Why a file of devices is refused.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum DeviceFileError {
    /// Not YAML, or not of this shape.
    #[error(transparent)]
    Yaml(#[from] YamlError),
    /// Another kind of file.
    #[error("this is a `{0}` file, not a `devices` file")]
    Kind(String),
    /// Written for a later release.
    #[error("device file version {0} is not supported, the newest supported is {VERSION}")]
    Version(u32),
    /// A share that leaves no memory, or exceeds it.
    #[error("`reserve` is {0}; it must be a share of the memory, at least 0 and less than 1")]
    Reserve(f64),
    /// A figure out of range.
    #[error("device `{device}`: {field} must be a positive number, {start:e} to {end:e}", start = FIGURES.start(), end = FIGURES.end())]
    Figure {
        /// Name of the device.
        device: String,
        /// Name of the field.
        field: String,
    },
}

/// A name that is in no catalogue.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no device is called `{name}`")]
pub struct UnknownDevice {
    /// The requested name.
    pub name: String,
    /// The nearest names, best first.
    pub similar: Vec<String>,
}

/// Returns the devices known from their data sheets, oldest first.
pub fn catalogue() -> &'static IndexMap<String, DeviceType> {
    static CATALOGUE: LazyLock<IndexMap<String, DeviceType>> =
        LazyLock::new(|| read_devices(include_str!("devices.yaml")).expect("the shipped catalogue is valid"));
    &CATALOGUE
}

/// Reads a file of devices.
///
/// # Errors
/// If it is no such file, or a figure is zero, negative or not finite.
pub fn read_devices(text: &str) -> Result<IndexMap<String, DeviceType>, DeviceFileError> {
    let mut file: DeviceFile = from_yaml(text)?;
    if file.kind != "devices" {
        return Err(DeviceFileError::Kind(file.kind));
    }
    if file.version != VERSION {
        return Err(DeviceFileError::Version(file.version));
    }
    if let Some(share) = file.reserve.filter(|share| !(0.0..1.0).contains(share)) {
        return Err(DeviceFileError::Reserve(share));
    }
    for (name, device) in &mut file.devices {
        check_figures(name, device)?;
        let share = file.reserve.map(|share| Bytes((device.memory.0 as f64 * share) as u64));
        device.reserve = device.reserve.or(share);
    }
    Ok(file.devices)
}

/// Refuses figures that are zero, negative, not finite or out of range.
pub(crate) fn check_figures(name: &str, device: &DeviceType) -> Result<(), DeviceFileError> {
    let figures = [
        ("memory", Some(device.memory.0 as f64)),
        // The reserve must leave some memory.
        ("memory without its reserve", device.reserve.map(|_| device.usable().0 as f64)),
        ("memory_bandwidth", Some(device.memory_bandwidth.0)),
        ("host_bandwidth", device.host_bandwidth.map(|rate| rate.0)),
        ("link_bandwidth", device.link_bandwidth.map(|rate| rate.0)),
        ("launch", device.launch.map(|time| time.0)),
        ("host_call", device.host_call.map(|time| time.0)),
        ("host_overhead", device.host_overhead.map(|time| time.0).filter(|time| *time != 0.0)),
        ("split_overhead", device.split_overhead.map(|time| time.0).filter(|time| *time != 0.0)),
        ("product_slowdown", device.product_slowdown),
        ("copy_slowdown", device.copy_slowdown),
        ("attention_slowdown", device.attention_slowdown),
        ("sustained_slowdown", device.sustained_slowdown),
        ("speed", device.speed),
        ("multiprocessors", device.multiprocessors.map(f64::from)),
    ];
    let wrong = |value: &f64| !FIGURES.contains(value);
    let figure = figures.into_iter().find(|(_, value)| value.as_ref().is_some_and(wrong));
    let rate = device.peak.iter().find(|(_, rate)| wrong(&rate.0));
    let field = figure.map(|(field, _)| field.to_string()).or(rate.map(|(dtype, _)| format!("peak.{dtype}")));
    match field {
        None => Ok(()),
        Some(field) => Err(DeviceFileError::Figure { device: name.to_string(), field }),
    }
}

/// Finds a device by name or alias; `own` devices come before the catalogue's.
///
/// # Errors
/// If there is none; the error has the nearest names.
pub fn find_device<'a>(
    name: &str,
    own: &'a IndexMap<String, DeviceType>,
) -> Result<(&'a str, &'a DeviceType), UnknownDevice> {
    find_among(name, &[own, catalogue()])
}

/// Returns the normalised names of a device: lower-case letters and digits, without the vendor's words. The driver's
/// name is one of them if it is normalised in the same way.
pub fn plain_names(name: &str, own: &IndexMap<String, DeviceType>) -> Vec<String> {
    let Ok((key, device)) = find_device(name, own) else { return vec![plain(name)] };
    // A cluster's file repeats the catalogue's figures, and may omit its names.
    let known = catalogue().get(key).map(|device| device.aliases.as_slice()).unwrap_or_default();
    let names = std::iter::once(key).chain(device.aliases.iter().chain(known).map(String::as_str));
    names.map(plain).collect::<std::collections::BTreeSet<_>>().into_iter().collect()
}

/// Searches several lists, in order of precedence.
pub(crate) fn find_among<'a>(
    name: &str,
    lists: &[&'a IndexMap<String, DeviceType>],
) -> Result<(&'a str, &'a DeviceType), UnknownDevice> {
    let wanted = plain(name);
    for devices in lists {
        let by_name = devices.iter().find(|(key, _)| plain(key) == wanted);
        let by_alias =
            || devices.iter().find(|(_, device)| device.aliases.iter().any(|alias| plain(alias) == wanted));
        if let Some((key, device)) = by_name.or_else(by_alias) {
            return Ok((key, device));
        }
    }
    Err(UnknownDevice { name: name.to_string(), similar: similar(&wanted, lists) })
}

/// Returns up to three similar names.
fn similar(wanted: &str, lists: &[&IndexMap<String, DeviceType>]) -> Vec<String> {
    let mut near: Vec<(f64, &str)> = Vec::new();
    for (key, device) in lists.iter().copied().flatten() {
        let names = std::iter::once(key.as_str()).chain(device.aliases.iter().map(String::as_str));
        let (score, name) = names
            .map(|name| {
                let candidate = plain(name);
                // A substring is a better guess than a few equal letters: `a100 pcie`. One letter is a substring of
                // half the names.
                let contains =
                    wanted.len() > 1 && (candidate.contains(wanted) || wanted.contains(&candidate));
                (
                    if contains { 0.9 } else { strsim::normalized_damerau_levenshtein(wanted, &candidate) },
                    name,
                )
            })
            .fold((0.0, ""), |best, candidate| if candidate.0 > best.0 { candidate } else { best });
        if score >= 0.5 && wanted.len() > 1 {
            near.push((score, name));
        }
    }
    near.sort_by(|a, b| b.0.total_cmp(&a.0));
    near.into_iter().take(3).map(|(_, name)| name.to_string()).collect()
}

/// Returns the lower-case letters and digits, without the vendor's words.
fn plain(name: &str) -> String {
    const VENDORS: [&str; 6] = ["nvidia", "tesla", "geforce", "amd", "instinct", "intel"];
    let words = name.split(|c: char| !c.is_alphanumeric()).map(str::to_lowercase);
    let kept: String = words.filter(|word| !VENDORS.contains(&word.as_str())).collect();
    if kept.is_empty() { name.to_lowercase() } else { kept }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_however_written() {
        let check = |name: &str, expected: &str| {
            assert_eq!(find_device(name, &IndexMap::new()).map(|found| found.0), Ok(expected), "{name}");
        };
        check("a100", "A100-SXM4-80GB");
        check("NVIDIA A100-SXM4-80GB", "A100-SXM4-80GB");
        check("NVIDIA A100 80GB PCIe", "A100-PCIE-80GB");
        check("Tesla V100-PCIE-32GB", "V100-PCIE-32GB");
        check("NVIDIA H100 80GB HBM3", "H100-SXM5-80GB");
        check("NVIDIA GeForce RTX 4090", "RTX-4090");
        check("rtx4090", "RTX-4090");
        check("NVIDIA H200", "H200-SXM-141GB");
        check("NVIDIA B300 SXM6 AC", "B300-SXM-270GB");
        check("NVIDIA GB200", "GB200-186GB");
        check("gb300", "GB300-279GB");
        check("Tesla P100-PCIE-16GB", "P100-PCIE-16GB");
        check("v100_sxm2_16gb", "V100-SXM2-16GB");
        check("cpu", "CPU-EPYC-ZEN4-1T");
        check("AMD EPYC (1 thread)", "CPU-EPYC-ZEN4-1T");
        check("AMD EPYC family 25 model 17 (1 thread)", "CPU-EPYC-ZEN4-1T");
        check("Intel Xeon Processor (1 thread)", "CPU-XEON-AMX-1T");
        for name in ["P100", "V100", "T4", "A100", "L4", "L40S", "RTX 4090", "H100", "H200", "B200", "MI300X"]
        {
            assert!(find_device(name, &IndexMap::new()).is_ok(), "{name}");
        }
    }

    #[test]
    fn a_device_goes_by_several_names() {
        let names = plain_names("H100-SXM5-80GB", &IndexMap::new());
        assert_eq!(names, ["h100", "h10080gb", "h10080gbhbm3", "h100sxm", "h100sxm580gb"]);
        assert_eq!(plain_names("NVIDIA GH200 480GB", &IndexMap::new()), ["gh200480gb"]);
    }

    #[test]
    fn a_wrong_name_gets_a_guess() {
        let check = |name: &str, first: Option<&str>| {
            let error = find_device(name, &IndexMap::new()).expect_err(name);
            assert_eq!(error.similar.first().map(String::as_str), first, "{error:?}");
        };
        check("H20O", Some("H200"));
        check("A100 SXM5 80GB", Some("A100-SXM4-80GB"));
        check("RTX 4080", Some("RTX-3080"));
        check("t4x2", Some("T4"));
        check("banana", None);
        check("e", None);
        check("4", None);
        check("", None);
    }

    #[test]
    fn names_and_aliases_are_distinct_and_sourced() {
        let mut seen = IndexMap::new();
        for (name, device) in catalogue() {
            for key in std::iter::once(name).chain(&device.aliases) {
                assert_eq!(seen.insert(plain(key), name), None, "{key}");
            }
            assert!(device.sources.contains_key("peak"), "{name}");
            assert!(device.sources.contains_key("memory_bandwidth"), "{name}");
            let slowdowns = [
                ("product_slowdown", device.product_slowdown),
                ("copy_slowdown", device.copy_slowdown),
                ("attention_slowdown", device.attention_slowdown),
                ("sustained_slowdown", device.sustained_slowdown),
            ];
            for (field, figure) in slowdowns {
                assert_eq!(device.sources.contains_key(field), figure.is_some(), "{name}: {field}");
            }
            assert!(
                device.peak.contains_key("float32")
                    && device.multiprocessors.is_some()
                    && device.l2.is_some()
            );
        }
    }

    #[test]
    fn a_users_file_comes_first_and_is_checked() {
        let own = "kind: devices\nversion: 1\ndevices:\n  A100:\n    memory: 1000\n    memory_bandwidth: 1.0e9\n    peak: {float32: RATE}\n";
        let devices = read_devices(&own.replace("RATE", "2.0e9")).expect("valid");
        assert_eq!(find_device("a100", &devices).map(|found| found.1.memory.0), Ok(1000));
        let check = |text: &str, expected: &str| {
            assert_eq!(read_devices(text).map_err(|error| error.to_string()), Err(expected.to_string()));
        };
        check(
            &own.replace("RATE", "-1.0"),
            "device `A100`: peak.float32 must be a positive number, 1e-30 to 1e30",
        );
        check(
            &own.replace("RATE", "1.0").replace("    peak", "    copy_slowdown: 0.0\n    peak"),
            "device `A100`: copy_slowdown must be a positive number, 1e-30 to 1e30",
        );
        check(
            &own.replace("RATE", ".nan"),
            "device `A100`: peak.float32 must be a positive number, 1e-30 to 1e30",
        );
        check(
            &own.replace("version: 1", "version: 9").replace("RATE", "1.0"),
            "device file version 9 is not supported, the newest supported is 1",
        );
        check(
            &own.replace("kind: devices", "kind: plan").replace("RATE", "1.0"),
            "this is a `plan` file, not a `devices` file",
        );
    }
}
