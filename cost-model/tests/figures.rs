//! Figures of devices that no catalogue has, from rows whose truth is known.

use cost_model::figures;
use schema::{Hardware, Phase, Profile, ProfileRow, WorkSize};

const PEAK: f64 = 1e11;
const BANDWIDTH: f64 = 2e10;

/// Rows of a device whose products reach 90 % of the peak and whose copies and sums 95 % of the bandwidth at best.
fn profile(hardware: Hardware) -> Profile {
    let row = |kind: &str, size: WorkSize, seconds: f64| ProfileRow {
        line: 1,
        kind: kind.into(),
        dtype: "float32".into(),
        device: "own".into(),
        phase: Phase::Forward,
        size,
        seconds,
        warm_seconds: None,
        flushed_seconds: None,
        path: String::new(),
    };
    let mut rows = Vec::new();
    for i in 0..200 {
        let share = 0.3 + 0.6 * f64::from(i) / 199.0;
        let (m, k) = (64.0 + f64::from(i), 256.0);
        let product = WorkSize::Product { batch: 1.0, m, n: 128.0, k };
        rows.push(row("linear", product, 2.0 * m * 128.0 * k / (share * PEAK)));
        // Elements beyond the cache, and within it, where they are faster than memory.
        for (elements, factor) in [(1e7, 1.0 + share / 18.0), (1e4, 4.0)] {
            let size = WorkSize::Rows { rows: 1.0, cols: elements, inputs: 1.0 };
            rows.push(row("copy", size, 8.0 * elements / (0.905 * factor * BANDWIDTH)));
        }
        // A convolution that does with a quarter of the operations.
        let image = WorkSize::Convolution {
            batch: 1.0,
            in_channels: 64.0,
            out_channels: 64.0,
            groups: 1.0,
            input: [1.0, 28.0, 28.0],
            output: [1.0, 28.0, 28.0],
            kernel: [1.0, 3.0, 3.0],
            stride: [1.0; 3],
        };
        rows.push(row("convolution", image, 2.0 * 784.0 * 64.0 * 576.0 / (4.0 * share * PEAK)));
    }
    Profile { rows, hardware, threads: Some(3), ..Profile::default() }
}

#[test]
fn they_are_what_the_rows_reach() {
    let processor = Hardware {
        architecture: Some("x86-64-avx2".into()),
        core_cache: Some(1 << 20),
        last_cache: Some(480 << 20),
        memory: Some(1 << 34),
    };
    let profile = profile(processor);
    let own = figures(&profile, "own").expect("it has rows");
    let near =
        |found: f64, expected: f64| assert!((found / expected - 1.0).abs() < 0.02, "{found:e} {expected:e}");
    near(own.peak["float32"].0, 0.9 * PEAK);
    near(own.memory_bandwidth.0, 0.95 * BANDWIDTH);
    // A last cache of that size is not one core's.
    assert_eq!((own.l2.expect("a cache").0, own.memory.0, own.multiprocessors), (1 << 20, 1 << 34, Some(3)));
    near(own.launch.expect("a launch").0, 8.0 * 1e4 / (4.0 * 0.905 * BANDWIDTH));
    assert_eq!(figures(&profile, "other"), None);
    // Times that are no seconds.
    let mut odd = profile;
    odd.rows.iter_mut().for_each(|row| row.seconds *= 1e-20);
    assert_eq!(figures(&odd, "own"), None);
}

#[test]
fn what_rows_do_not_tell_is_left_out() {
    let own = figures(&profile(Hardware::default()), "own").expect("it has rows");
    // Threads are those of the processor beside a GPU.
    assert_eq!((own.l2, own.multiprocessors, own.architecture), (None, None, None));
    let largest = 8e7;
    assert_eq!(own.memory.0, largest as u64);
    assert!(own.sources["memory"].starts_with("at least"), "{:?}", own.sources);
}
