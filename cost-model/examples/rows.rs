//! Compares what ships for a device, and its data sheet, with rows that neither was fitted to: `make bench-shipped` runs it.
//!
//!     cargo run --release -p model-analyze-cost-model --example rows -- PROFILE.csv [...]
//!
//! Sums of all rows of a kind stand for whole models, in which what is too long and too short may cancel.

#![allow(clippy::print_stdout, missing_docs)]

use std::error::Error;

use cost_model::{CostModel, Estimate, Features, Sample, combine, cross_validate};
use indexmap::IndexMap;

/// Prints the errors of some estimates beside the truth.
fn line(what: &str, samples: &[Sample], estimates: &[Estimate]) {
    let truth: f64 = samples.iter().map(|sample| sample.seconds).sum();
    let whole = combine(estimates.iter().copied());
    let error = |(sample, own): (&Sample, &Estimate)| 100.0 * (own.seconds / sample.seconds - 1.0).abs();
    let mean = samples.iter().zip(estimates).map(error).sum::<f64>() / samples.len() as f64;
    let inside =
        samples.iter().zip(estimates).filter(|(sample, own)| (own.p10..=own.p90).contains(&sample.seconds));
    println!(
        "  {what:12}{:6} rows{mean:8.1} %{:6.0} % in band   sum {:6.3} of measured, band {:.2}–{:.2}",
        samples.len(),
        100.0 * inside.count() as f64 / samples.len() as f64,
        whole.seconds / truth,
        whole.p10 / truth,
        whole.p90 / truth,
    );
}

fn main() -> Result<(), Box<dyn Error>> {
    for path in std::env::args().skip(1) {
        let profile = schema::read_own_profile(&std::fs::read_to_string(&path)?)?;
        let mut sums: IndexMap<&str, (Vec<Sample>, Vec<Estimate>)> = IndexMap::new();
        for group in cost_model::group(&profile, &IndexMap::new())? {
            let Some(model) = CostModel::shipped(&group.figures) else { continue };
            let size = &group.samples[0].work.size;
            let Some(curve) = model.curve(&group.kind, &group.dtype, group.phase, size) else { continue };
            println!("{} {} {}", group.device, group.kind, group.dtype);
            let curves: Vec<Estimate> =
                group.samples.iter().map(|sample| curve.predict(&sample.work).in_a_model()).collect();
            let (sheet, _) = cross_validate(&group, Features::DataSheet, 0)?;
            line("curve", &group.samples, &curves);
            line("data sheet", &sheet.samples, &sheet.estimates);
            for (name, samples, estimates) in
                [("curve", group.samples, curves), ("data sheet", sheet.samples, sheet.estimates)]
            {
                let sum = sums.entry(name).or_default();
                sum.0.extend(samples);
                sum.1.extend(estimates);
            }
        }
        println!("{path}, all");
        for (name, (samples, estimates)) in sums {
            line(name, &samples, &estimates);
        }
    }
    Ok(())
}
