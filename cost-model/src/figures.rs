//! Figures of a device that is not in the catalogue, estimated from its profile.
//!
//! A curve's coefficients are shares of a device's rates, so any scale will do in place of the data sheet's: the best rates among
//! the rows. If rows do not tell, the profile's header does, or the figure is left out.

use indexmap::IndexMap;
use schema::{
    Bytes, BytesPerSecond, DeviceType, FlopsPerSecond, Profile, ProfileRow, Seconds, UnknownDevice, WorkSize,
    find_device, kinds,
};

use crate::{
    evaluate::quantile,
    host,
    work::{Work, element_bytes},
};

/// Quantile of the rates that counts as the best: a few times are always too short.
const BEST: f64 = 0.99;
/// With fewer rows of one sort, other sorts count as well.
const ENOUGH: usize = 20;
/// Kinds that do little but move what they read and write, each byte once.
const PLAIN: [&str; 4] = [kinds::COPY, kinds::ADD, kinds::MUL, kinds::RELU];
/// A larger last cache is that of many cores together, and slow: a core's own is what counts.
const LARGEST_CACHE: u64 = 64 << 20;

/// Rates beyond are of no device: such times are not in seconds.
const POSSIBLE: std::ops::RangeInclusive<f64> = 1.0..=1e24;

/// Estimates the figures of a device from its rows; `None` if there are none, or if their rates are impossible.
pub fn figures(profile: &Profile, device: &str) -> Option<DeviceType> {
    let rows = || profile.rows.iter().filter(|row| row.device == device && !row.is_block());
    let hardware = &profile.hardware;
    let is_processor = host::is_processor(hardware.architecture.as_deref());
    let l2 = match hardware.last_cache.filter(|size| *size <= LARGEST_CACHE) {
        None => hardware.core_cache,
        last => last,
    };
    let mut dtypes: Vec<&str> = Vec::new();
    for row in rows() {
        if !dtypes.contains(&row.dtype.as_str()) {
            dtypes.push(&row.dtype);
        }
    }
    let peak = dtypes.into_iter().filter_map(|dtype| {
        let of_type = || rows().filter(|row| row.dtype == dtype);
        // Some convolution algorithms need fewer operations than are counted.
        let products = of_type().filter(|row| matches!(row.size, WorkSize::Product { .. })).map(flops_rate);
        let dense = of_type().filter(|row| {
            !matches!(row.size, WorkSize::Rows { .. } | WorkSize::Channels { .. } | WorkSize::Table { .. })
        });
        let rate = best(products, ENOUGH).or_else(|| best(dense.map(flops_rate), 1))?;
        Some((dtype.to_string(), FlopsPerSecond(rate)))
    });
    let cache = l2.unwrap_or(LARGEST_CACHE) as f64;
    let is_large = |row: &&ProfileRow| work(row).bytes() > 2.0 * cache;
    let is_plain = |row: &&ProfileRow| PLAIN.contains(&row.kind.as_str());
    let streamed = best(rows().filter(is_plain).filter(is_large).map(bytes_rate), ENOUGH);
    let flat =
        || best(rows().filter(|row| matches!(row.size, WorkSize::Rows { .. })).map(bytes_rate), ENOUGH);
    let bandwidth = streamed.or_else(flat).or_else(|| best(rows().map(bytes_rate), 1))?;
    let peak: IndexMap<String, FlopsPerSecond> = peak.collect();
    if !peak.values().map(|rate| rate.0).chain([bandwidth]).all(|rate| POSSIBLE.contains(&rate)) {
        return None;
    }
    let shortest = rows().map(|row| row.seconds).fold(f64::INFINITY, f64::min);
    let launch = profile.overhead.map_or(shortest, |overhead| overhead.call).max(1e-9);
    let largest = rows().map(|row| work(row).bytes()).fold(0.0, f64::max);
    let (memory, memory_source) = match hardware.memory {
        Some(memory) => (memory, "the machine's, by the profile's header"),
        None => (largest as u64, "at least: the largest operator that was measured"),
    };
    let sources = [
        ("peak", "the fastest products of a profile, or other dense operators"),
        (
            "memory_bandwidth",
            "the fastest copies and sums of a profile that no cache holds, or else what moves the most",
        ),
        ("memory", memory_source),
        ("launch", "a call of next to nothing, or the shortest operator of a profile"),
    ];
    Some(DeviceType {
        memory: Bytes(memory),
        reserve: None,
        memory_bandwidth: BytesPerSecond(bandwidth),
        peak,
        host_bandwidth: None,
        speed: None,
        aliases: Vec::new(),
        architecture: hardware.architecture.clone(),
        multiprocessors: profile.threads.filter(|_| is_processor),
        l2: l2.map(Bytes),
        last_cache: hardware.last_cache.filter(|size| *size > LARGEST_CACHE).map(Bytes),
        link_bandwidth: None,
        launch: Some(Seconds(launch)),
        host_call: None,
        host_overhead: None,
        split_overhead: None,
        product_slowdown: None,
        copy_slowdown: None,
        attention_slowdown: None,
        sustained_slowdown: None,
        sources: sources.map(|(field, source)| (field.to_string(), source.to_string())).into(),
    })
}

/// Adds the unknown devices of a profile, with figures estimated from its rows; returns their names, with similar names of known
/// devices.
pub fn add_measured(profile: &Profile, own: &mut IndexMap<String, DeviceType>) -> Vec<UnknownDevice> {
    let mut added = Vec::new();
    let mut last = "";
    for row in profile.rows.iter().filter(|row| !row.is_block()) {
        if row.device == last {
            continue;
        }
        last = &row.device;
        let Err(unknown) = find_device(last, own) else { continue };
        let Some(figures) = figures(profile, last) else { continue };
        own.insert(last.to_string(), figures);
        added.push(unknown);
    }
    added
}

fn work(row: &ProfileRow) -> Work {
    Work::of(row.size, row.phase, element_bytes(&row.dtype))
}

fn flops_rate(row: &ProfileRow) -> f64 {
    work(row).flops / row.seconds
}

fn bytes_rate(row: &ProfileRow) -> f64 {
    work(row).bytes() / row.seconds
}

/// Returns the best rate, if there are at least `enough` rates.
fn best(rates: impl Iterator<Item = f64>, enough: usize) -> Option<f64> {
    let mut rates: Vec<f64> = rates.collect();
    rates.sort_by(f64::total_cmp);
    (rates.len() >= enough).then(|| quantile(&rates, BEST))
}
