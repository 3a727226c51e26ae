//! Data with a known truth: what was put in must come out, and nothing must come out that cannot be.

use cost_model::{
    CostModel, Curve, Features, Machine, Sample, Split, Work, cross_validate, fit, group, shuffle, split,
};
use schema::{Phase, WorkSize, catalogue};

/// Numbers between 0 and 1, the same in every run.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Log-uniform whole numbers.
    fn size(&mut self, low: f64, high: f64) -> f64 {
        (low.ln() + self.next() * (high / low).ln()).exp().round().max(1.0)
    }
}

fn machine() -> Machine {
    Machine::of(&catalogue()["A100-SXM4-80GB"], "bfloat16")
}

/// A device with a launch of 5 µs, 60 % of the peak and 80 % of the bandwidth, and 5 % of noise.
fn products(n: usize, noise: f64, seed: u64) -> Vec<Sample> {
    let machine = machine();
    let mut numbers = Numbers(seed);
    (0..n)
        .map(|_| {
            let (m, n) = (numbers.size(16.0, 16384.0), numbers.size(16.0, 16384.0));
            let size = WorkSize::Product { batch: 1.0, m, n, k: numbers.size(16.0, 16384.0) };
            let work = Work::of(size, Phase::Forward, machine.element);
            let truth = 5e-6 + work.flops / (0.6 * machine.peak) + work.bytes() / (0.8 * machine.bandwidth);
            Sample { work, seconds: truth * (noise * (2.0 * numbers.next() - 1.0)).exp() }
        })
        .collect()
}

fn mape(curve: &Curve, samples: &[Sample]) -> f64 {
    let errors = samples.iter().map(|one| (curve.predict(&one.work).seconds / one.seconds - 1.0).abs());
    100.0 * errors.sum::<f64>() / samples.len() as f64
}

#[test]
fn a_plain_truth_is_found_from_few_rows() {
    let test = products(500, 0.0, 99);
    for (rows, most) in [(40, 3.0), (300, 1.0)] {
        let (curve, _) = fit(&products(rows, 0.0, 1), &machine()).expect("enough rows");
        let error = mape(&curve, &test);
        assert!(error < most, "{rows} rows: {error} %");
    }
}

#[test]
fn it_reaches_beyond_what_was_fitted() {
    let (train, test) = split(&products(600, 0.05, 2), &machine(), Split::Extrapolate, 400, 1);
    let (curve, _) = fit(&train, &machine()).expect("enough rows");
    let error = mape(&curve, &test);
    assert!(error < 5.0, "{error} %");
    // Far outside, the time still grows with the work, and nothing overflows.
    let mut last = 0.0;
    for power in 4..40 {
        let side = f64::from(power).exp2();
        let work = Work::of(WorkSize::Product { batch: 1.0, m: side, n: side, k: side }, Phase::Forward, 2.0);
        let own = curve.predict(&work);
        assert!(
            own.seconds.is_finite() && own.seconds > 0.0 && own.p10 > 0.0 && own.p90 >= own.p10,
            "{own:?}"
        );
        if power > 14 {
            assert!(own.seconds > last, "2^{power}: {} after {last}", own.seconds);
        }
        last = own.seconds;
    }
}

#[test]
fn bands_hold_four_of_five() {
    let (curve, _) = fit(&products(500, 0.1, 3), &machine()).expect("enough rows");
    let test = products(2000, 0.1, 4);
    let inside = test
        .iter()
        .filter(|one| {
            let own = curve.predict(&one.work);
            own.p10 <= one.seconds && one.seconds <= own.p90
        })
        .count();
    let share = inside as f64 / test.len() as f64;
    assert!((0.75..=0.86).contains(&share), "{share}");
}

/// The same device with sums that slow down as they grow long, to so much of the rate at 65,536.
fn slowed(n: usize, left: f64, seed: u64) -> Vec<Sample> {
    let mut samples = products(n, 0.03, seed);
    for sample in &mut samples {
        let long = (sample.work.k / 65_536.0).min(1.0);
        sample.seconds *= 1.0 + (1.0 / left - 1.0) * long.sqrt();
    }
    samples
}

#[test]
fn long_sums_are_a_term_where_rows_ask_for_it_and_files_tell_which() {
    let has_term = |samples: &[Sample]| {
        let (curve, _) = fit(samples, &machine()).expect("enough rows");
        let mut model = CostModel::of_data_sheet("A100-SXM4-80GB", &catalogue()["A100-SXM4-80GB"]);
        let size = samples[0].work.size;
        model.insert("linear", "bfloat16", Phase::Forward, &size, curve.clone(), Default::default());
        let file = model.to_file();
        // A file without the term, as those before it are, says the same as the curve.
        let read = CostModel::from_file(&file).expect("a file of ours");
        let read = read.curve("linear", "bfloat16", Phase::Forward, &size).expect("a curve");
        for sample in samples {
            let (own, again) = (curve.predict(&sample.work), read.predict(&sample.work));
            assert!((own.seconds / again.seconds - 1.0).abs() < 0.01, "{own:?} {again:?}");
        }
        let terms = &file.curves[0].terms;
        assert!(!terms.contains_key("batch_8"), "the rows have one batch");
        terms.contains_key("k_16384")
    };
    for seed in 0..3 {
        assert!(!has_term(&products(400, 0.05, seed)));
        assert!(has_term(&slowed(400, 0.3, seed)), "{seed}");
    }
}

#[test]
fn an_outlier_does_not_bend_the_curve() {
    let mut train = products(300, 0.02, 5);
    for sample in train.iter_mut().step_by(20) {
        sample.seconds *= 8.0;
    }
    shuffle(&mut train, 1);
    let (curve, validation) = fit(&train, &machine()).expect("enough rows");
    let error = mape(&curve, &products(300, 0.0, 6));
    assert!(error < 6.0, "{error} %");
    assert!((15..=20).contains(&validation.outliers), "{}", validation.outliers);
}

#[test]
fn the_same_rows_give_the_same_curve() {
    let train = products(150, 0.05, 7);
    assert_eq!(fit(&train, &machine()), fit(&train, &machine()));
}

#[test]
fn degenerate_rows_are_no_trouble() {
    let same = vec![products(1, 0.0, 8)[0]; 40];
    let (curve, _) = fit(&same, &machine()).expect("enough rows");
    let own = curve.predict(&same[0].work).seconds;
    assert!((own / same[0].seconds - 1.0).abs() < 1e-6, "{own}");
    assert!(fit(&same[..5], &machine()).is_err());
}

#[test]
fn blocks_and_whole_models_make_no_curve() {
    let text = "kind,dtype,device,phase,rows,cols,seconds\n\
        softmax,float32,T4,forward,8,16,1e-5\n\
        block,float32,T4,forward,8,16,2e-3\n\
        model,float32,T4,forward,8,16,3e-3\n";
    let profile = schema::read_own_profile(text).expect("a profile");
    assert_eq!(profile.rows.len(), 3);
    let groups = group(&profile, &Default::default()).expect("a known device");
    let kinds: Vec<&str> = groups.iter().map(|group| group.kind.as_str()).collect();
    assert_eq!(kinds, ["softmax"]);
}

#[test]
fn what_libtorch_convolves_by_itself_is_a_kind_of_its_own_where_it_is_enough() {
    let kinds = |device: &str, pointwise: usize, others: usize| {
        let mut text = "kind,dtype,device,phase,batch,in_channels,out_channels,height,width,kernel,seconds\n"
            .to_string();
        for (n, kernel) in [(pointwise, 1), (others, 3)] {
            for channels in 1..=n {
                text +=
                    &format!("convolution,float32,{device},forward,2,{channels},64,28,28,{kernel},1e-3\n");
            }
        }
        let profile = schema::read_own_profile(&text).expect("a profile");
        let groups = group(&profile, &indexmap::IndexMap::new()).expect("a device of the catalogue");
        groups.into_iter().map(|group| (group.kind, group.samples.len())).collect::<Vec<_>>()
    };
    let of = |kind: &str, n| (kind.to_string(), n);
    assert_eq!(kinds("cpu", 40, 50), [of("native_convolution", 40), of("convolution", 50)]);
    assert_eq!(kinds("cpu", 39, 50), [of("convolution", 89)]);
    assert_eq!(kinds("cpu", 60, 0), [of("convolution", 60)]);
    assert_eq!(kinds("A100", 40, 50), [of("convolution", 90)]);
}

#[test]
fn what_empty_caches_cost_is_learned_where_enough_was_measured() {
    let figures = &catalogue()["CPU-EPYC-ZEN5-1T"];
    let last_cache = figures.l2.expect("a cache").0 as f64;
    let (call, byte) = (2e-5, 4e-11);
    let found = |n_flushed: usize| {
        let mut text = "kind,dtype,device,phase,rows,cols,inputs,seconds,flushed_seconds\n".to_string();
        for row in 0..60 {
            let cols = 1_000 * (row + 1) * (row + 1);
            let bytes = 8.0 * cols as f64;
            let seconds = 1e-6 + bytes * 1e-10;
            let held = bytes * (1.0 - bytes / last_cache).max(0.0);
            let flushed =
                if row < n_flushed { format!("{:e}", seconds + call + byte * held) } else { String::new() };
            text += &format!("relu,float32,CPU-EPYC-ZEN5-1T,forward,1,{cols},1,{seconds:e},{flushed}\n");
        }
        let profile = schema::read_own_profile(&text).expect("a profile");
        let groups = group(&profile, &Default::default()).expect("a device of the catalogue");
        let (_, curve) = cross_validate(&groups[0], Features::Physical, 0).expect("enough rows");
        let mut model = CostModel::of_data_sheet("CPU-EPYC-ZEN5-1T", figures);
        let size = groups[0].samples[0].work.size;
        model.insert("relu", "float32", Phase::Forward, &size, curve.expect("a curve"), Default::default());
        model.to_file().curves[0].flushed
    };
    assert_eq!(found(4), None);
    for n_flushed in [8, 60] {
        let found = found(n_flushed).expect("enough");
        assert!((found.call / call - 1.0).abs() < 1e-2, "{found:?}");
        assert!((found.byte / byte - 1.0).abs() < 1e-2, "{found:?}");
    }
}
