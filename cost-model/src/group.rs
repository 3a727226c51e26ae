//! Rows of a profile that one curve describes: the same kind, data type, phase and device.
//!
//! On a processor libtorch computes some convolutions itself instead of calling oneDNN, on some processors at half the rate. They
//! are a kind of their own here, if there are enough rows of both.

use std::collections::HashMap;

use indexmap::IndexMap;
use schema::{DeviceType, Phase, Profile, ProfileRow, UnknownDevice, find_device};

use crate::{
    curve::Beside,
    fit::Sample,
    host::is_native,
    shape::{Key, flat, kernel_of_kind, key},
    work::{Machine, Work},
};

/// The kind of convolutions that are not depthwise, in profiles.
pub(crate) const CONVOLUTION: &str = "convolution";
/// The kind of convolutions that libtorch computes without oneDNN.
pub(crate) const NATIVE: &str = "native_convolution";
/// Rows of either that two curves need.
const ENOUGH: usize = 40;

/// Measurements of one kind.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// Kind of operator.
    pub kind: String,
    /// Data type.
    pub dtype: String,
    /// Part of the training step.
    pub phase: Phase,
    /// Name of the device in the catalogue.
    pub device: String,
    /// Figures of the device, from the catalogue or the user's file.
    pub figures: DeviceType,
    /// Its figures for the data type.
    pub machine: Machine,
    /// Measurements, each shape once, in the order of the profile.
    pub samples: Vec<Sample>,
    /// Measurements with warm caches, too.
    pub warm: Vec<Beside>,
    /// Measurements with flushed caches, too.
    pub flushed: Vec<Beside>,
    /// Measurements of a shape that had one already; their median was taken.
    pub n_duplicates: usize,
}

/// Groups a profile, in order of first appearance.
///
/// # Errors
/// When a device is neither in `own` nor in the catalogue.
pub fn group(profile: &Profile, own: &IndexMap<String, DeviceType>) -> Result<Vec<Group>, UnknownDevice> {
    /// Kind, data type, phase and device.
    type Named<'a> = (&'a str, &'a str, Phase, &'a str);
    let mut devices: IndexMap<&str, (&str, &DeviceType)> = IndexMap::new();
    type Shapes = IndexMap<Key, (Work, Vec<f64>)>;
    let mut rows: Vec<(&ProfileRow, Named<'_>, Machine, Work, bool)> = Vec::new();
    // Of convolutions: how many are oneDNN's, and how many libtorch's own.
    let mut parts: HashMap<Named<'_>, [usize; 2]> = HashMap::new();
    // Blocks and whole models are for checking: no curve is made of them.
    for row in profile.rows.iter().filter(|row| !row.is_block()) {
        let (device, figures) = match devices.get(row.device.as_str()) {
            Some(found) => *found,
            None => {
                let found = find_device(&row.device, own)?;
                devices.insert(&row.device, found);
                found
            }
        };
        let machine = Machine::of(figures, &row.dtype);
        let size = if !machine.is_processor() {
            flat(kernel_of_kind(&row.kind), row.size)
        } else {
            row.size.as_rows()
        };
        let work = Work::of(size, row.phase, machine.element);
        let named = (row.kind.as_str(), row.dtype.as_str(), row.phase, device);
        let is_native = row.kind == CONVOLUTION && is_native(&work, &machine);
        if row.kind == CONVOLUTION {
            parts.entry(named).or_default()[usize::from(is_native)] += 1;
        }
        rows.push((row, named, machine, work, is_native));
    }
    let figures: HashMap<&str, &DeviceType> = devices.into_values().collect();
    let mut groups: IndexMap<Named<'_>, (Machine, Shapes, [Vec<Beside>; 2])> = IndexMap::new();
    for (row, mut named, machine, work, is_native) in rows {
        if is_native && parts[&named].iter().all(|n| *n >= ENOUGH) {
            named.0 = NATIVE;
        }
        let (_, shapes, beside) =
            groups.entry(named).or_insert_with(|| (machine, IndexMap::new(), Default::default()));
        for (pairs, other) in beside.iter_mut().zip([row.warm_seconds, row.flushed_seconds]) {
            pairs.extend(other.map(|other| Beside { work, seconds: row.seconds, other }));
        }
        shapes.entry(key(&work.size)).or_insert_with(|| (work, Vec::new())).1.push(row.seconds);
    }
    Ok(groups
        .into_iter()
        .map(|((kind, dtype, phase, device), (machine, shapes, [warm, flushed]))| {
            let n_rows: usize = shapes.values().map(|(_, times)| times.len()).sum();
            let n_duplicates = n_rows - shapes.len();
            let median = |mut times: Vec<f64>| {
                times.sort_by(f64::total_cmp);
                crate::evaluate::quantile(&times, 0.5)
            };
            Group {
                kind: kind.to_string(),
                dtype: dtype.to_string(),
                phase,
                device: device.to_string(),
                figures: figures[device].clone(),
                machine,
                samples: shapes
                    .into_values()
                    .map(|(work, times)| Sample { work, seconds: median(times) })
                    .collect(),
                warm,
                flushed,
                n_duplicates,
            }
        })
        .collect())
}
