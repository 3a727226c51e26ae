//! Terms: what a time is made of, in seconds (for the anchor), and bounded descriptions of a shape (for the correction).
//!
//! Anchor terms grow without end and enter with coefficients that are not negative, so the anchor extrapolates as
//! physics does: waves of tiles over multiprocessors, bytes over bandwidth, a launch. Bounded terms saturate, so a
//! polynomial in them cannot run away. Shapes and constants are those that kernels have: tiles of 32 to 256, caches.

use std::ops::Range;

use schema::{Phase, WorkSize};

use crate::{
    host,
    work::{Machine, Work, volume},
};

/// Collects terms, and their names when asked.
#[derive(Debug, Default)]
pub(crate) struct Terms {
    pub values: Vec<f64>,
    pub names: Option<Vec<&'static str>>,
}

impl Terms {
    pub fn named() -> Self {
        Self { values: Vec::new(), names: Some(Vec::new()) }
    }

    fn push(&mut self, name: &'static str, value: f64) {
        self.values.push(value);
        if let Some(names) = &mut self.names {
            names.push(name);
        }
    }
}

/// Tiles of matrix-product kernels, with the share of the peak that they reach (used only to choose among them).
const TILES: [(f64, f64, f64); 5] =
    [(128.0, 128.0, 1.0), (256.0, 128.0, 1.0), (64.0, 64.0, 0.7), (32.0, 32.0, 0.4), (128.0, 32.0, 0.55)];

/// The same as their names say them, rows by columns of the result, with the share that each reaches among many: libraries
/// compute the transposed result, so the long side of a tile lies along its columns. (Timed of cuBLAS in float32 on V100 and
/// A100.)
const MANY: [(f64, f64, f64, &str); 6] = [
    (64.0, 128.0, 0.82, "many_64x128"),
    (128.0, 128.0, 0.8, "many_128x128"),
    (32.0, 128.0, 0.73, "many_32x128"),
    (128.0, 32.0, 0.72, "many_128x32"),
    (32.0, 64.0, 0.64, "many_32x64"),
    (32.0, 32.0, 0.6, "many_32x32"),
];

/// A microsecond: terms that count something are scaled to it.
pub(crate) const MICRO: f64 = 1e-6;

/// The position of the term of fresh memory in the anchor of a processor.
pub(crate) const FRESH: usize = 1;

/// The positions of the terms of one tile among many in the anchor of a product on an accelerator.
pub(crate) const TILES_APART: Range<usize> = 3..9;

/// The position of the bounded term of very long sums, for products.
pub(crate) const LONG: usize = 3;

/// Bytes that divide the distance of a matrix's rows, at most 16: tensor cores are fed by copies of 16 bytes, and where rows
/// begin elsewhere by shorter ones. On an H200, products of bfloat16 took three times as long with rows of 4 or 8 bytes and
/// nine times with an odd number of elements; so do the heads of models with 50,257 words.
fn row_alignment(elements: f64, element: f64) -> f64 {
    let bytes = elements * element;
    [16.0, 8.0, 4.0].into_iter().find(|step| bytes % step == 0.0).unwrap_or(2.0)
}

/// Returns the terms of the anchor.
pub(crate) fn anchor(work: &Work, machine: &Machine, terms: &mut Terms) {
    terms.push("launch", MICRO);
    host::anchor(work, machine, &mut |name, value| terms.push(name, value));
    match work.matrix() {
        Some(matrix) => rows(work, machine, matrix, terms),
        None => products(work, machine, terms),
    }
}

/// Adds the terms of what passes over the rows of a matrix.
fn rows(work: &Work, machine: &Machine, (rows, cols): (f64, f64), terms: &mut Terms) {
    let f = work.flops / machine.peak;
    let b = work.bytes() / machine.bandwidth;
    let beyond_l2 = (work.bytes() - machine.l2).max(0.0) / machine.bandwidth;
    terms.push("bytes", b);
    terms.push("bytes_beyond_l2", beyond_l2);
    terms.push("bytes_beyond_quarter_l2", (work.bytes() - machine.l2 / 4.0).max(0.0) / machine.bandwidth);
    terms.push("bytes_short_rows", if cols <= 1024.0 { b } else { 0.0 });
    terms.push("bytes_unaligned", if cols % 4.0 == 0.0 { 0.0 } else { b });
    terms.push("bytes_next_power", b * cols.log2().ceil().exp2() / cols);
    terms.push("waves", (rows / (machine.multiprocessors * 4.0)).ceil() * MICRO);
    terms.push("waves_elements", (rows * cols / (machine.multiprocessors * 1024.0)).ceil() * MICRO);
    terms.push("row_waves_time", (rows / (machine.multiprocessors * 8.0)).ceil() * cols * 1e-9);
    terms.push("rows", rows * 1e-9);
    terms.push("cols", cols * 1e-9);
    if let WorkSize::Channels { batch, pixels, .. } = work.size {
        // A block a channel, which reads as fast as a multiprocessor can, however few there are.
        terms.push("elements", f);
        terms.push("channel_waves", (rows / machine.multiprocessors).ceil() * cols * 1e-9);
        terms.push("channel_half_waves", (rows / (machine.multiprocessors * 2.0)).ceil() * cols * 1e-9);
        // Samples of few pixels are short pieces of memory.
        let sectors = (pixels * machine.element / 32.0).ceil() * 32.0;
        terms.push("bytes_of_sectors", 2.0 * batch * rows * sectors / machine.bandwidth);
        terms.push("planes", batch * rows * 1e-9);
        terms.push("plane_waves", (batch * rows / (machine.multiprocessors * 4.0)).ceil() * MICRO);
        terms.push("bytes_short_planes", if pixels <= 1024.0 { b } else { 0.0 });
    }
}

/// Adds the terms of products, which are computed in tiles.
fn products(work: &Work, machine: &Machine, terms: &mut Terms) {
    let f = work.flops / machine.peak;
    let b = work.bytes() / machine.bandwidth;
    let beyond_l2 = (work.bytes() - machine.l2).max(0.0) / machine.bandwidth;
    terms.push("flops", f);
    terms.push("bytes", b);
    if !machine.is_processor() {
        let mut best = f64::INFINITY;
        for (tm, tn, share, name) in MANY {
            // Among many tiles, several of which are on a multiprocessor at a time, the ends of waves overlap.
            let whole = (work.m / tm).ceil() * tm * (work.n / tn).ceil() * tn * work.batch;
            let time = whole * 2.0 * work.k / machine.peak;
            terms.push(name, time);
            best = best.min(time / share);
        }
        terms.push("best_of_many", best);
    }
    const TILE_NAMES: [(&str, &str); 4] = [
        ("tiles_128x128", "waves_128x128"),
        ("tiles_256x128", "waves_256x128"),
        ("tiles_64x64", "waves_64x64"),
        ("tiles_32x32", "waves_32x32"),
    ];
    for ((tm, tn, _), (time_name, waves_name)) in TILES.into_iter().zip(TILE_NAMES) {
        let waves = waves(work, machine, tm, tn);
        terms.push(time_name, waves * machine.multiprocessors * tm * tn * 2.0 * work.k / machine.peak);
        terms.push(waves_name, waves * MICRO);
    }
    terms.push("written", work.written / machine.bandwidth);
    terms.push("read_a", work.read_a / machine.bandwidth);
    terms.push("read_b", work.read_b / machine.bandwidth);
    terms.push("bytes_beyond_l2", beyond_l2);
    terms.push("k", work.k * 1e-9);
    terms.push("root_flops_bytes", (f * b).sqrt());
    terms.push("root_outputs", (work.m * work.n * work.batch).sqrt() * 1e-9);
    terms.push("flops_unaligned_m", if work.m % 8.0 == 0.0 { 0.0 } else { f });
    terms.push("flops_unaligned_n", if work.n % 8.0 == 0.0 { 0.0 } else { f });
    terms.push("flops_unaligned_k", if work.k % 8.0 == 0.0 { 0.0 } else { f });
    terms.push("best_tile", best_tile(work, machine));
    match work.size {
        WorkSize::Product { n, k, .. } if !machine.is_processor() => {
            // The matrices' rows have k or n elements, in all three phases.
            let apart = row_alignment(n, machine.element).min(row_alignment(k, machine.element));
            terms.push("flops_rows_2_bytes", if apart < 4.0 { f } else { 0.0 });
            terms.push("flops_rows_8_bytes", if (4.0..16.0).contains(&apart) { f } else { 0.0 });
        }
        WorkSize::Product { .. } => {
            host::short_products(work, machine, &mut |name, value| terms.push(name, value));
        }
        WorkSize::Convolution { in_channels, input, kernel, stride, .. } => {
            if !machine.is_processor() {
                let outputs = if is_unserved(work, machine) { outputs(&work.size) } else { 0.0 };
                terms.push("outputs_unserved", outputs * 1e-12);
                terms.push("flops_unserved", if outputs > 0.0 { f } else { 0.0 });
            }
            let size = volume(input).sqrt().max(1.0);
            for (name, name_b, value) in [
                ("flops_log_in_channels", "bytes_log_in_channels", in_channels.ln_1p()),
                ("flops_log_size", "bytes_log_size", size.ln_1p()),
                ("flops_log_kernel", "bytes_log_kernel", volume(kernel).ln()),
                ("flops_log_stride", "bytes_log_stride", volume(stride).ln()),
            ] {
                terms.push(name, f * value);
                terms.push(name_b, b * value);
            }
        }
        WorkSize::Attention { seq, kv_seq, head_dim, .. } => {
            let padded = |value: f64, step: f64| (value / step).ceil() * step;
            let whole = work.batch * padded(seq, 128.0) * padded(kv_seq, 128.0);
            let depth = head_dim.log2().ceil().exp2().max(64.0);
            terms.push("padded_flops", 4.0 * whole * depth / machine.peak);
            // One exponential for each pair of query and key, on units of a sixteenth of the products' rate.
            terms.push("exponentials", work.batch * seq * kv_seq * 64.0 / machine.peak);
            let blocks = work.batch * (seq / 128.0).ceil();
            let waves = (blocks / machine.multiprocessors).ceil();
            let block = 4.0 * 128.0 * padded(kv_seq, 128.0) * depth * machine.multiprocessors / machine.peak;
            terms.push("query_blocks", waves * block);
            terms.push(
                "query_blocks_64",
                (work.batch * (seq / 64.0).ceil() / machine.multiprocessors).ceil() * block / 2.0,
            );
        }
        _ => {}
    }
}

/// Returns terms that lie between 0 and 1 for every shape, and logarithms, which the caller clips.
///
/// `floor` is the shortest time of the kind, `kernel` the anchor's time without it.
pub(crate) fn bounded(work: &Work, machine: &Machine, floor: f64, kernel: f64, terms: &mut Terms) {
    let f = work.flops / machine.peak;
    let b = work.bytes() / machine.bandwidth;
    let share = |x: f64, c: f64| x / (x + c);
    terms.push("floor_share", floor / (floor + f + b));
    // Where a launch hides the kernel, what matters is how near the two are; measured times bend there.
    let nearness = (kernel / floor).max(1e-30).ln();
    terms.push("anchor_share", floor / (floor + kernel));
    terms.push("near_floor", 1.0 / (1.0 + 4.0 * nearness * nearness));
    if let Some((rows, cols)) = work.matrix() {
        terms.push("bytes_share_l2", share(work.bytes(), machine.l2));
        terms.push("bytes_share_quarter_l2", share(work.bytes(), machine.l2 / 4.0));
        for (name, c) in [("rows_16", 16.0), ("rows_256", 256.0), ("rows_4096", 4096.0)] {
            terms.push(name, share(rows, c));
        }
        for (name, c) in
            [("cols_16", 16.0), ("cols_256", 256.0), ("cols_1024", 1024.0), ("cols_8192", 8192.0)]
        {
            terms.push(name, share(cols, c));
        }
        terms.push("is_unaligned", if cols % 4.0 == 0.0 { 0.0 } else { 1.0 });
        terms.push("power_fill", cols / cols.log2().ceil().exp2());
        terms.push("is_short_row", if cols <= 1024.0 { 1.0 } else { 0.0 });
        let waves = (rows / (machine.multiprocessors * 4.0)).ceil();
        terms.push("wave_fill", rows / (waves * machine.multiprocessors * 4.0));
        if let WorkSize::Channels { pixels, .. } = work.size {
            let waves = (rows / machine.multiprocessors).ceil();
            terms.push("channels_fill", rows / (waves * machine.multiprocessors));
            for (name, c) in
                [("pixels_16", 16.0), ("pixels_256", 256.0), ("pixels_1024", 1024.0), ("pixels_8192", 8192.0)]
            {
                terms.push(name, share(pixels, c));
            }
            terms.push("is_short_plane", if pixels <= 1024.0 { 1.0 } else { 0.0 });
            terms.push("planes_4096", share(work.m * work.n / pixels, 4096.0));
        }
        return;
    }
    terms.push("k_16384", share(work.k, 16384.0));
    terms.push("flops_share", f / (f + b));
    terms.push("bytes_share_l2", share(work.bytes(), machine.l2));
    let tiles = (work.m / 128.0).ceil() * (work.n / 128.0).ceil() * work.batch;
    terms.push("tile_fill", work.m * work.n * work.batch / (tiles * 128.0 * 128.0));
    terms.push("tiles_share", share(tiles, machine.multiprocessors));
    terms.push("wave_fill", tiles / ((tiles / machine.multiprocessors).ceil() * machine.multiprocessors));
    for (name, c) in [("m_16", 16.0), ("m_128", 128.0), ("m_1024", 1024.0)] {
        terms.push(name, share(work.m, c));
    }
    for (name, c) in [("n_16", 16.0), ("n_128", 128.0), ("n_1024", 1024.0)] {
        terms.push(name, share(work.n, c));
    }
    for (name, c) in [("k_32", 32.0), ("k_256", 256.0), ("k_2048", 2048.0)] {
        terms.push(name, share(work.k, c));
    }
    let small_tiles = (work.m / 64.0).ceil() * (work.n / 64.0).ceil() * work.batch;
    let tall_tiles = (work.m / 256.0).ceil() * (work.n / 128.0).ceil() * work.batch;
    let wave_fill = |tiles: f64| tiles / ((tiles / machine.multiprocessors).ceil() * machine.multiprocessors);
    terms.push("best_tile_share", f.max(b) / best_tile(work, machine));
    terms.push("tile_fill_64", work.m * work.n * work.batch / (small_tiles * 64.0 * 64.0));
    terms.push("wave_fill_64", wave_fill(small_tiles));
    terms.push("wave_fill_256", wave_fill(tall_tiles));
    host::bounded(work, machine, &mut |name, value| terms.push(name, value));
    if let WorkSize::Convolution { in_channels, input, output, kernel, stride, .. } = work.size {
        if !machine.is_processor() {
            let is_unserved = is_unserved(work, machine);
            terms.push("is_unserved", if is_unserved { 1.0 } else { 0.0 });
            let pixels = outputs(&work.size) / in_channels;
            terms.push("pixels_unserved", if is_unserved { share(pixels, 65_536.0) } else { 0.0 });
        }
        // Winograd kernels compute 4 × 4 or 2 × 2 outputs at a time, for kernels of 3 × 3 and stride 1.
        let is_winograd = kernel == [1.0, 3.0, 3.0] && volume(stride) == 1.0;
        let fill = |tile: f64| {
            if is_winograd {
                output[1] * output[2] / ((output[1] / tile).ceil() * (output[2] / tile).ceil() * tile * tile)
            } else {
                1.0
            }
        };
        terms.push("winograd_fill_4", fill(4.0));
        terms.push("winograd_fill_2", fill(2.0));
        terms.push("log_batch", (work.m / volume(output)).max(1.0).ln());
        terms.push("log_in_channels", in_channels.ln());
        terms.push("log_size", volume(input).sqrt().ln());
        terms.push("log_kernel", volume(kernel).ln());
        terms.push("log_stride", volume(stride).ln());
    } else {
        terms.push("batch_8", share(work.batch, 8.0));
        terms.push("batch_128", share(work.batch, 128.0));
    }
}

/// Tells whether a library's gradients of weights of one channel a group leave this convolution to others: they know kernels up
/// to 5 × 5, channels by eights, and tensors of less than 2 GiB. (On channels-last tensors, in float32 on an H100: 3 to 8 ps an
/// output in most that they know, 35 to 2,000 in all others.)
fn is_unserved(work: &Work, machine: &Machine) -> bool {
    const MOST_BYTES: f64 = 2_147_483_648.0;
    let WorkSize::Convolution { batch, in_channels, groups, input, kernel, .. } = work.size else {
        return false;
    };
    let is_depthwise = groups > 1.0 && groups == in_channels && work.phase == Phase::WeightGradient;
    let bytes = batch * in_channels * volume(input) * machine.element;
    is_depthwise && (kernel[1].max(kernel[2]) > 5.0 || in_channels % 8.0 != 0.0 || bytes >= MOST_BYTES)
}

fn outputs(size: &WorkSize) -> f64 {
    match *size {
        WorkSize::Convolution { batch, out_channels, output, .. } => batch * out_channels * volume(output),
        _ => 0.0,
    }
}

/// Returns the logarithms of the sizes.
pub(crate) fn sizes(work: &Work) -> Vec<f64> {
    let sizes = match work.size {
        WorkSize::Rows { rows, cols, .. } => vec![rows, cols],
        WorkSize::Channels { batch, channels, pixels } => vec![batch, channels, pixels],
        WorkSize::Table { rows, cols, vocabulary } => vec![rows, cols, vocabulary],
        WorkSize::Convolution { input, kernel, stride, .. } => {
            vec![work.m, work.n, work.k, work.batch, volume(input), volume(kernel), volume(stride)]
        }
        WorkSize::Product { .. } | WorkSize::Attention { .. } => vec![work.m, work.n, work.k, work.batch],
    };
    sizes.into_iter().map(|size| size.max(1.0).ln()).collect()
}

fn waves(work: &Work, machine: &Machine, tm: f64, tn: f64) -> f64 {
    ((work.m / tm).ceil() * (work.n / tn).ceil() * work.batch / machine.multiprocessors).ceil()
}

/// Returns the time of the best tile and number of parts that the sums are split into.
fn best_tile(work: &Work, machine: &Machine) -> f64 {
    let outputs = work.m * work.n * work.batch;
    let mut best = f64::INFINITY;
    for (tm, tn, share) in TILES {
        let tiles = (work.m / tm).ceil() * (work.n / tn).ceil() * work.batch;
        for parts in [1.0, 2.0, 4.0, 8.0, 16.0] {
            if parts > 1.0 && work.k < 64.0 * parts {
                break;
            }
            let waves = (tiles * parts / machine.multiprocessors).ceil();
            let product = waves * tm * tn * 2.0 * (work.k / parts).ceil() * machine.multiprocessors
                / machine.peak
                / share;
            let join = if parts > 1.0 { (parts + 1.0) * outputs * 4.0 / machine.bandwidth } else { 0.0 };
            best = best.min(product + join);
        }
    }
    best.max(work.bytes() / machine.bandwidth)
}

#[cfg(test)]
mod tests {
    use super::*;
    use schema::catalogue;

    #[test]
    fn places_are_those_of_their_terms() {
        let size = WorkSize::Product { batch: 1.0, m: 100.0, n: 300.0, k: 64.0 };
        let named = |device: &str| {
            let machine = Machine::of(&catalogue()[device], "float32");
            let work = Work::of(size, Phase::Forward, machine.element);
            let (mut terms, mut bounds) = (Terms::named(), Terms::named());
            anchor(&work, &machine, &mut terms);
            bounded(&work, &machine, 1.0, 1.0, &mut bounds);
            (terms.names.expect("named"), bounds.names.expect("named"), terms.values)
        };
        let (names, bounds, values) = named("T4");
        assert_eq!(names[TILES_APART], MANY.map(|tile| tile.3));
        assert_eq!(bounds[LONG], "k_16384");
        // 2 × 3 tiles of 64 × 128: 49,152 results for 30,000.
        let useful = 2.0 * 100.0 * 300.0 * 64.0 / catalogue()["T4"].peak["float32"].0;
        assert!((values[TILES_APART.start] / useful - 49_152.0 / 30_000.0).abs() < 1e-9, "{values:?}");
        assert_eq!(named("CPU-EPYC-ZEN5-1T").0[FRESH], "fresh");
    }

    #[test]
    fn a_processor_reads_weights_once_for_each_of_a_few_rows() {
        let term = |device: &str, wanted: &str, (m, k): (f64, f64)| {
            let machine = Machine::of(&catalogue()[device], "float32");
            let size = WorkSize::Product { batch: 1.0, m, n: 1000.0, k };
            let work = Work::of(size, Phase::Forward, machine.element);
            let mut terms = Terms::named();
            anchor(&work, &machine, &mut terms);
            let place = terms.names.expect("named").iter().position(|name| *name == wanted)?;
            Some(terms.values[place] * machine.bandwidth)
        };
        let passes =
            |m: f64| term("CPU-EPYC-ZEN4-1T", "read_by_row", (m, 512.0)).map(|read| read / 2_048_000.0);
        let about =
            |found: Option<f64>, expected: f64| assert!((found.expect("a term") - expected).abs() < 1e-9);
        about(passes(1.0), 1.0);
        about(passes(4.0), 4.0);
        about(passes(5.0), 0.0);
        let short =
            |k: f64| term("CPU-EPYC-ZEN4-1T", "written_short_sums", (100.0, k)).map(|w| w / 400_000.0);
        for (k, expected) in [(1.0, 0.0), (2.0, 1.0), (8.0, 1.0), (9.0, 0.0)] {
            about(short(k), expected);
        }
        assert_eq!(term("T4", "read_by_row", (1.0, 512.0)), None);
    }
}
