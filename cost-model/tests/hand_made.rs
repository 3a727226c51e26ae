//! Cost models written by hand: a number that no fit gives is refused by name, or every prediction stays a time.

use cost_model::CostModel;
use schema::{CallOverhead, CostModelFile, FlushedFile, Phase, WorkSize};

const SHIPPED: &str = include_str!("../src/shipped/cpu-epyc-zen4-1t.yaml");

/// The shipped model; its first curve has all parts.
fn shipped() -> CostModelFile {
    let mut file = CostModelFile::read(SHIPPED).expect("the shipped model");
    file.curves.sort_by_key(|curve| curve.gate.is_none());
    file
}

fn refusal(change: impl FnOnce(&mut CostModelFile)) -> String {
    let mut file = shipped();
    change(&mut file);
    CostModel::from_file(&file).expect_err("refused").to_string()
}

#[test]
fn each_part_is_held_to_what_a_fit_can_give() {
    let check = |change: &dyn Fn(&mut CostModelFile, f64), values: &[f64], expected: &str| {
        for value in values {
            assert_eq!(refusal(|file| change(file, *value)), expected, "{value}");
        }
    };
    let wild = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1e200];
    let first = {
        let file = shipped();
        let curve = &file.curves[0];
        format!("curve `{} {} {}`", curve.kind, curve.dtype, curve.phase.name())
    };
    let says = |part: &str| format!("{first}: {part} does not fit the terms");
    check(&|file, value| file.curves[0].band[0].0 = value, &wild, &says("the band"));
    check(&|file, value| file.curves[0].band[0].1 = value, &wild, &says("the band"));
    check(&|file, value| file.curves[0].band[0].2 = value, &[f64::NAN, -40.0], &says("the band"));
    check(&|file, value| file.curves[0].band_outside.1 = value, &wild, &says("the band outside"));
    check(&|file, value| file.curves[0].warm = value, &wild, &says("what a cache saves"));
    check(&|file, value| file.curves[0].warm = value, &[-1e-9], &says("what a cache saves"));
    let flushed = |call, byte| Some(FlushedFile { call, byte });
    let says_flushed = says("what empty caches cost");
    check(&|file, value| file.curves[0].flushed = flushed(value, 0.0), &wild, &says_flushed);
    check(&|file, value| file.curves[0].flushed = flushed(0.0, value), &wild, &says_flushed);
    check(&|file, value| file.curves[0].flushed = flushed(value, 0.0), &[-1e-9], &says_flushed);
    check(&|file, value| file.curves[0].flushed = flushed(0.0, value), &[-1e-9], &says_flushed);
    check(&|file, value| file.curves[0].least = value, &[0.0, f64::NAN, 1e-300], &says("the floor"));
    check(&|file, value| file.curves[0].hidden = value, &[-1.0, f64::NAN, 1e300], &says("the floor"));
    check(&|file, value| file.curves[0].clip.1 = value, &wild, &says("the clip"));
    check(&|file, value| file.curves[0].usual = vec![(0.0, value)], &wild, &says("the usual correction"));
    check(&|file, value| file.curves[0].linear.intercept = value, &wild, &says("the linear part"));
    check(&|file, value| file.curves[0].anchor[0] = value, &wild, &says("the anchor"));
    check(&|file, value| file.curves[0].terms[0].scale = value, &[0.0, 1e-200], &says("a term's range"));
    let gate = |file: &mut CostModelFile| file.curves[0].gate.clone().expect("a gate");
    for value in wild {
        let mut own = gate(&mut shipped());
        own.reach = value;
        assert_eq!(refusal(|file| file.curves[0].gate = Some(own)), says("the gate"));
        let mut own = gate(&mut shipped());
        own.threshold = value;
        assert_eq!(refusal(|file| file.curves[0].gate = Some(own)), says("the gate"));
    }
    for (index, part) in ["call", "recording", "backward", "cold"].into_iter().enumerate() {
        for value in [f64::NAN, f64::INFINITY, -1e-6] {
            let expected = format!("overhead: `{part}` must be a number of seconds, 0 or more");
            let found = refusal(|file| {
                let overhead = file.overhead.as_mut().expect("an overhead");
                let CallOverhead { call, recording, backward, cold } = overhead;
                *[call, recording, backward, cold][index] = value;
            });
            assert_eq!(found, expected);
        }
    }
}

#[test]
fn curves_have_a_form_that_exists_and_stand_there_once() {
    assert_eq!(
        refusal(|file| {
            file.curves[0].kind = "mine".to_string();
            file.curves[0].form = "circle".to_string();
        }),
        format!(
            "curve `mine {} {}`: `circle` is no form of shape: product, convolution, attention, rows, channels, table",
            shipped().curves[0].dtype,
            shipped().curves[0].phase.name(),
        )
    );
    let twice = refusal(|file| file.curves.push(file.curves[0].clone()));
    assert!(twice.ends_with("stands there twice"), "{twice}");
}

#[test]
fn figures_of_the_device_are_those_of_a_device() {
    let number =
        SHIPPED.lines().find_map(|line| line.strip_prefix("  memory_bandwidth: ")).expect("a figure");
    for wrong in ["0", "-1.0", ".nan", ".inf", "1.0e-300"] {
        let line = |number: &str| format!("  memory_bandwidth: {number}\n");
        let text = SHIPPED.replacen(&line(number), &line(wrong), 1);
        let error = CostModelFile::read(&text).expect_err(wrong).to_string();
        assert!(error.contains("memory_bandwidth must be a positive number"), "{error}");
    }
}

/// Every number of every curve by turns becomes zero, huge, tiny or negative: a refusal, or times that are times.
#[test]
fn what_is_accepted_predicts_times() {
    let sizes = [
        WorkSize::Product { batch: 1e9, m: 1e15, n: 1e15, k: 1e15 },
        WorkSize::Product { batch: 1.0, m: 1.0, n: 1.0, k: 1.0 },
        WorkSize::Rows { rows: 1e15, cols: 1e15, inputs: 3.0 },
        WorkSize::Rows { rows: 1.0, cols: 1.0, inputs: 1.0 },
    ];
    let file = shipped();
    let (mut n_accepted, mut n_refused) = (0, 0);
    for kind in ["linear", "softmax"] {
        let of_kind = |curve: &&schema::CurveFile| curve.kind == kind && curve.phase == Phase::Forward;
        let curve = file.curves.iter().find(of_kind).expect("a curve");
        let text = schema::to_yaml(curve);
        let n_lines = text.lines().count();
        for place in 0..n_lines {
            for wild in ["0", "1.0e+14", "-1.0e+14", "1.0e-14", "1.0e+300"] {
                let lines: Vec<String> = text
                    .lines()
                    .enumerate()
                    .map(
                        |(index, line)| {
                            if index == place { with_number(line, wild) } else { line.to_string() }
                        },
                    )
                    .collect();
                let Ok(changed) = schema::from_yaml(&lines.join("\n")) else { continue };
                let one = CostModelFile { curves: vec![changed], ..file.clone() };
                let Ok(model) = CostModel::from_file(&one) else {
                    n_refused += 1;
                    continue;
                };
                n_accepted += 1;
                for size in &sizes {
                    let Some(curve) = model.curve(kind, "float32", Phase::Forward, size) else { continue };
                    let own = curve.predict(&cost_model::Work::of(*size, Phase::Forward, 4.0));
                    let is_time = |seconds: f64| seconds.is_finite() && seconds > 0.0;
                    let all = [own.seconds, own.p10, own.p90];
                    assert!(all.into_iter().all(is_time), "{kind}: {} → {own:?}", lines[place]);
                }
            }
        }
    }
    assert!(n_accepted > 100 && n_refused > 100, "{n_accepted} accepted, {n_refused} refused");
}

/// Puts a number in the place of a line's last.
fn with_number(line: &str, number: &str) -> String {
    let end = line.trim_end_matches(['\'', '"']);
    match end.rfind([' ', '\'', '"']) {
        Some(at) if end[at + 1..].parse::<f64>().is_ok() => {
            format!("{}{number}{}", &end[..=at], &line[end.len()..])
        }
        _ => line.to_string(),
    }
}
