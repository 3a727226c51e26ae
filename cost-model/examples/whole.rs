//! Compares predicted with measured times of whole models and their blocks: `make bench-cost` runs it.
//!
//!     cargo run --release -p model-analyze-cost-model --example whole -- SUITE.csv TRACES PROFILES
//!
//! The suite is fitted; TRACES/NAME.pt are the models, PROFILES/NAME.csv what `profile --model` measured of them.
//!
//! What was measured is not exact either: beside each figure stands what the measurement's own repeats give. The fastest
//! rounds, taken for predictions of the median ones, rank and miss as much as printed under "own".

#![allow(clippy::print_stdout, missing_docs)]

use std::{collections::HashMap, error::Error, path::Path};

use cost_model::{
    CostModel, Features, PredictOptions, add_measured, cross_validate, group, predict, spearman,
};
use graph::{BuildOptions, OperatorId};
use indexmap::IndexMap;
use schema::{CurveAccuracy, Pace, Phase, find_device};

/// Predictions of a model that are timed, to take the median.
const REPEATS: u32 = 21;

/// What cutting by predicted instead of measured times costs the slowest stage, in percent.
fn regret(predicted: &[f64], measured: &[f64], stages: usize) -> Option<f64> {
    let slowest = |cuts: &[usize], times: &[f64]| {
        cuts.windows(2).map(|cut| times[cut[0]..cut[1]].iter().sum::<f64>()).fold(0.0, f64::max)
    };
    let best = |times: &[f64]| -> Vec<usize> {
        // By number of stages and end: the least bottleneck, and where the last stage begins.
        let n = times.len();
        let mut table = vec![vec![(f64::INFINITY, 0); n + 1]; stages + 1];
        table[0][0] = (0.0, 0);
        for stage in 1..=stages {
            for end in stage..=n {
                for start in stage - 1..end {
                    let slowest = table[stage - 1][start].0.max(times[start..end].iter().sum());
                    if slowest < table[stage][end].0 {
                        table[stage][end] = (slowest, start);
                    }
                }
            }
        }
        let mut cuts = vec![n];
        for stage in (1..=stages).rev() {
            cuts.push(table[stage][cuts[cuts.len() - 1]].1);
        }
        cuts.reverse();
        cuts
    };
    if measured.len() < stages {
        return None;
    }
    Some(100.0 * (slowest(&best(predicted), measured) / slowest(&best(measured), measured) - 1.0))
}

/// Rank correlation of blocks by cost. Blocks without work are left out: what was measured of them is a call. Those that
/// do the same count once, with their mean: which of two equal layers took longer is noise.
fn ranks(works: &[[u64; 3]], predicted: &[f64], measured: &[f64]) -> f64 {
    let mut alike: IndexMap<[u64; 3], (Vec<f64>, Vec<f64>)> = IndexMap::new();
    for ((work, own), truth) in works.iter().zip(predicted).zip(measured).filter(|((work, _), _)| work[1] > 0)
    {
        let entry = alike.entry(*work).or_default();
        entry.0.push(*own);
        entry.1.push(*truth);
    }
    let mean = |times: &Vec<f64>| times.iter().sum::<f64>() / times.len() as f64;
    let (own, truth): (Vec<f64>, Vec<f64>) =
        alike.values().map(|(own, truth)| (mean(own), mean(truth))).unzip();
    spearman(&own, &truth)
}

/// The fastest and the slow rounds of each row: `seconds_min` and `seconds_p90` of the file, which readers leave out.
fn repeats(text: &str) -> Result<Vec<[f64; 2]>, Box<dyn Error>> {
    let mut lines = text.lines().filter(|line| !line.starts_with('#'));
    let header: Vec<&str> = lines.next().unwrap_or_default().split(',').collect();
    let column = |name| header.iter().position(|one| *one == name).ok_or("no column of repeats");
    let (least, most) = (column("seconds_min")?, column("seconds_p90")?);
    lines
        .map(|line| {
            let cells: Vec<&str> = line.split(',').collect();
            let number = |at: usize| cells.get(at).unwrap_or(&"").parse::<f64>();
            Ok([number(least)?, number(most)?])
        })
        .collect()
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [suite, traces, profiles, rest @ ..] = arguments.as_slice() else {
        return Err("give SUITE.csv, a folder of traces and one of profiles".into());
    };
    let verbose: Vec<&str> = rest.iter().map(String::as_str).collect();
    let profile = schema::read_own_profile(&std::fs::read_to_string(suite)?)?;
    let device = &profile.rows.first().ok_or("no rows")?.device;
    let mut own = IndexMap::new();
    add_measured(&profile, &mut own);
    let groups = group(&profile, &own)?;
    let (device, figures) = find_device(device, &own)?;
    let mut model = CostModel::of_data_sheet(device, figures);
    model.overhead = profile.overhead;
    println!("{:?}", model.overhead);
    let (mut errors, mut kinds) = (Vec::new(), Vec::new());
    let start = std::time::Instant::now();
    for group in &groups {
        let Ok((trial, Some(curve))) = cross_validate(group, Features::Physical, 0) else { continue };
        let accuracy = trial.accuracy();
        errors.extend(
            trial
                .samples
                .iter()
                .zip(&trial.estimates)
                .map(|(sample, own)| 100.0 * (own.seconds / sample.seconds - 1.0).abs()),
        );
        kinds.push(accuracy);
        println!(
            "{:24}{:16}{:5} mape {:6.1} median {:5.1} weighted {:5.1} band {:3.0} %  {}",
            group.kind,
            group.phase.name(),
            group.samples.len(),
            accuracy.mape,
            accuracy.median,
            accuracy.time_weighted,
            100.0 * accuracy.coverage,
            curve.describe(),
        );
        model.insert(
            &group.kind,
            &group.dtype,
            group.phase,
            &group.samples[0].work.size,
            curve,
            CurveAccuracy::default(),
        );
    }
    println!("fitted in {:.1} s", start.elapsed().as_secs_f64());
    errors.sort_by(f64::total_cmp);
    println!(
        "held-out layers: median error {:.1} % of {} rows; within 12 % in {} of {} kinds; between 75 and 85 % inside the band in {}, over all {:.0} %",
        errors[errors.len() / 2],
        errors.len(),
        kinds.iter().filter(|kind| kind.median <= 12.0).count(),
        kinds.len(),
        kinds.iter().filter(|kind| (0.745..0.855).contains(&kind.coverage)).count(),
        100.0 * kinds.iter().map(|kind| kind.coverage * kind.rows as f64).sum::<f64>() / errors.len() as f64,
    );
    let yaml = schema::to_yaml(&model.to_file());
    println!("file of {} bytes", yaml.len());
    let model = CostModel::from_file(&model.to_file())?;
    let (mut errors, mut regrets): (Vec<(f64, f64)>, _) = (Vec::new(), Vec::new());
    let mut names: Vec<_> = std::fs::read_dir(profiles)?.flatten().map(|entry| entry.path()).collect();
    names.sort();
    println!(
        "{:24}{:>10}{:>10}{:>8}{:>8}{:>12}{:>10}{:>8}{:>8}{:>16}   rank fwd, step (own)  blocks  regret (own)  ms to predict  pace of products, copies",
        "model",
        "forward",
        "predicted",
        "error",
        "band",
        "fwd+bwd",
        "predicted",
        "error",
        "band",
        "own repeats"
    );
    for path in names {
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let trace = Path::new(traces).join(format!("{name}.pt"));
        let Ok(bytes) = std::fs::read(trace) else { continue };
        let program = tracer::read_archive(&bytes)?;
        let graph = graph::build(&program, &BuildOptions::default()).map_err(|e| format!("{e:?}"))?;
        let costs = graph::costs(&graph);
        let predicted = predict(&graph, &costs, &model, &PredictOptions::default());
        let text = std::fs::read_to_string(&path)?;
        let measured = schema::read_own_profile(&text)?;
        let mut blocks: IndexMap<String, [f64; 2]> = IndexMap::new();
        let (mut fastest, mut slow) = (blocks.clone(), blocks.clone());
        for (row, [least, most]) in measured.rows.iter().zip(repeats(&text)?) {
            let at = usize::from(row.phase != Phase::Forward);
            for (times, seconds) in [(&mut blocks, row.seconds), (&mut fastest, least), (&mut slow, most)] {
                times.entry(row.path.clone()).or_default()[at] = seconds;
            }
        }
        let whole = blocks.shift_remove("").unwrap_or_default();
        let step_of = |times: &IndexMap<String, [f64; 2]>| {
            times.get("").map_or(f64::NAN, |[forward, backward]| forward + backward)
        };
        let own_range = [&fastest, &slow].map(|times| 100.0 * (step_of(times) / (whole[0] + whole[1]) - 1.0));
        let starts: HashMap<&str, u32> =
            graph.blocks.iter().map(|block| (block.path.as_str(), block.operators.start)).collect();
        let mut cuts: Vec<u32> =
            blocks.keys().map(|path| starts.get(path.as_str()).copied().unwrap_or(u32::MAX)).collect();
        cuts[0] = 0;
        cuts.push(graph.operators.len() as u32);
        let (mut own, mut truth) = (vec![Vec::new(); 2], vec![Vec::new(); 2]);
        let (mut misses, mut works, mut again) = (Vec::new(), Vec::new(), Vec::new());
        for (index, (path, [forward, backward])) in blocks.iter().enumerate() {
            if cuts[index] > cuts[index + 1] {
                println!("  {path} is not in the graph");
                continue;
            }
            let one = predicted.run(&(cuts[index]..cuts[index + 1]));
            let parts = || (cuts[index]..cuts[index + 1]).map(|id| costs.operator(OperatorId(id)));
            works.push([
                parts().count() as u64,
                parts().map(|cost| cost.read_bytes + cost.written_bytes).sum(),
                parts().map(|cost| cost.forward_flops).sum(),
            ]);
            let (f, b) = (one.forward.seconds, one.backward().seconds);
            own[0].push(f);
            own[1].push(f + b);
            truth[0].push(*forward);
            truth[1].push(forward + backward);
            again.push(fastest[path.as_str()].iter().sum::<f64>());
            misses.push(100.0 * ((f + b) / (forward + backward) - 1.0).abs());
            if verbose.contains(&name.as_str()) {
                println!(
                    "  {path:30} {:9.3} {:9.3} {:+6.1} %   {:9.3} {:9.3} {:+6.1} %  {}",
                    1e3 * forward,
                    1e3 * f,
                    100.0 * (f / forward - 1.0),
                    1e3 * backward,
                    1e3 * b,
                    100.0 * (b / backward - 1.0),
                    one.source.name()
                );
            }
        }
        misses.sort_by(f64::total_cmp);
        let worst = |times: &[f64]| {
            let all = (2..=4).filter_map(|stages| regret(times, &truth[1], stages));
            all.fold(None, |most: Option<f64>, one| Some(most.map_or(one, |most| most.max(one))))
        };
        let (worst, worst_again) = (worst(&own[1]), worst(&again));
        regrets.extend(worst);
        let mut spent = Vec::new();
        for _ in 0..REPEATS {
            let start = std::time::Instant::now();
            std::hint::black_box(predict(&graph, &costs, &model, &PredictOptions::default()));
            spent.push(start.elapsed().as_secs_f64());
        }
        spent.sort_by(f64::total_cmp);
        let spent = spent[spent.len() / 2];
        let total = predicted.total();
        let back = total.backward();
        let step = cost_model::combine([total.forward, back].into_iter());
        let error = |own: f64, truth: f64| 100.0 * (own / truth - 1.0);
        let pace = match (Pace::median(&profile.paces), Pace::median(&measured.paces)) {
            (Some(then), Some(now)) => {
                format!("{:+.0} {:+.0} %", error(now.product, then.product), error(now.copy, then.copy))
            }
            _ => "-".to_string(),
        };
        let inside = |own: &cost_model::Estimate, truth: f64| {
            if own.p10 <= truth && truth <= own.p90 { "in" } else { "out" }
        };
        errors.push((
            error(step.seconds, whole[0] + whole[1]).abs(),
            error(total.forward.seconds, whole[0]).abs(),
        ));
        println!(
            "{name:24}{:10.2}{:10.2}{:+7.1}%{:>8}{:12.2}{:10.2}{:+7.1}%{:>8}{:+7.0} to{:+4.0} %   {:.3} {:.3} ({:.3}){:10.1}{:>8} {:>7}{:9.2}  {pace}",
            1e3 * whole[0],
            1e3 * total.forward.seconds,
            error(total.forward.seconds, whole[0]),
            inside(&total.forward, whole[0]),
            1e3 * (whole[0] + whole[1]),
            1e3 * step.seconds,
            error(step.seconds, whole[0] + whole[1]),
            inside(&step, whole[0] + whole[1]),
            own_range[0],
            own_range[1],
            ranks(&works, &own[0], &truth[0]),
            ranks(&works, &own[1], &truth[1]),
            ranks(&works, &again, &truth[1]),
            misses[misses.len() / 2],
            worst.map_or("-".to_string(), |worst| format!("{worst:.1}")),
            worst_again.map_or("-".to_string(), |worst| format!("({worst:.1})")),
            1e3 * spent,
        );
        if verbose.contains(&format!("{name}!").as_str()) {
            let mut kinds: IndexMap<String, [f64; 4]> = IndexMap::new();
            for operator in &graph.operators {
                let one = predicted.operator(OperatorId(operator.id.0));
                let entry = kinds.entry(format!("{} {}", operator.name, one.source.name())).or_default();
                for (sum, part) in entry.iter_mut().zip([
                    one.forward.seconds,
                    one.input_gradient.seconds,
                    one.weight_gradient.seconds,
                    1e-3,
                ]) {
                    *sum += 1e3 * part;
                }
            }
            kinds.sort_by(|_, a, _, b| (b[0] + b[1] + b[2]).total_cmp(&(a[0] + a[1] + a[2])));
            kinds.iter().take(24).for_each(|(kind, t)| {
                println!("    {kind:50} n {:4.0} fwd {:9.3} in {:9.3} w {:9.3}", t[3], t[0], t[1], t[2]);
            });
        }
    }
    let within = |of: fn(&(f64, f64)) -> f64| errors.iter().filter(|one| of(one) <= 15.0).count();
    regrets.sort_by(f64::total_cmp);
    println!(
        "within 15 %: forward {} of {}, forward and backward {}; bottleneck regret of 2 to 4 stages: {} of {} within 1 %",
        within(|one| one.1),
        errors.len(),
        within(|one| one.0),
        regrets.iter().filter(|regret| **regret <= 1.0).count(),
        regrets.len(),
    );
    Ok(())
}
