//! `model-analyze fit` of nccl-tests' output: latency and bandwidth of a link, for a cluster file.

use std::path::PathBuf;

use schema::{BytesPerSecond, FittedCollective, FittedLinks, Level, NcclTest, Seconds};
use simulator::{Measured, collective::Collective, fit_link};

use crate::{failure::Failure, files};

/// Reads all files and fits one link to them.
pub fn fit(paths: &[PathBuf]) -> Result<FittedLinks, Failure> {
    let (mut tests, mut rows) = (Vec::new(), Vec::new());
    for path in paths {
        let text = files::read_text(path)?;
        let in_file = |what: String| Failure::input(format!("{}: {what}", path.display()));
        let read = schema::read_nccl_tests(&text).map_err(|error| in_file(error.to_string()))?;
        for test in &read {
            let formula = formula(test).ok_or_else(|| {
                in_file(format!("there is no formula for the time of `{}`", test.collective))
                    .with_hint(format!("measure one of {}, {SEND}", NAMES.map(|(name, _)| name).join(", ")))
            })?;
            rows.extend(test.rows.iter().map(|(bytes, seconds)| formula(*bytes, seconds * 1e9)));
        }
        tests.extend(read);
    }
    let found = fit_link(&rows).ok_or_else(|| {
        Failure::input(format!("{}: the sizes do not separate latency from bandwidth", paths[0].display()))
            .with_hint("measure from a few bytes to hundreds of megabytes: -b 8 -e 512M -f 2")
    })?;
    let mut errors = found.errors.iter();
    let tests: Vec<FittedCollective> = tests
        .iter()
        .map(|test| {
            let own: Vec<f64> = errors.by_ref().take(test.rows.len()).copied().collect();
            answer(test, &own)
        })
        .collect();
    let is_across = tests.iter().any(|test| test.hosts > 1);
    Ok(FittedLinks {
        schema_version: 1,
        level: Level {
            name: if is_across { "between-nodes" } else { "inside-a-node" }.to_string(),
            bandwidth: BytesPerSecond((found.link.bandwidth / 1e6).round() * 1e6),
            latency: Seconds(found.link.latency as f64 * 1e-9),
        },
        tests,
    })
}

/// Writes the answer for people.
pub fn text(found: &FittedLinks) -> String {
    let mut text = String::new();
    for test in &found.tests {
        text.push_str(&format!(
            "{} of {} ranks on {}, {} sizes from {} to {}: error {:.1} % at the median, {:.0} % at most\n",
            test.collective,
            test.ranks,
            if test.hosts == 1 { "1 host".to_string() } else { format!("{} hosts", test.hosts) },
            test.sizes,
            test.least,
            test.most,
            test.median,
            test.worst,
        ));
    }
    let Level { latency, bandwidth, .. } = &found.level;
    text.push_str(&format!("latency    {latency} per hop\nbandwidth  {bandwidth} per port, each way\n\n"));
    text.push_str(&format!("# a level of a cluster file\n{}", file(found)));
    text
}

/// Writes the level in the format of a cluster file.
pub fn file(found: &FittedLinks) -> String {
    let Level { name, bandwidth, latency } = &found.level;
    format!("levels:\n- {{name: {name}, bandwidth: {:e}, latency: {:e}}}\n", bandwidth.0, latency.0)
}

const NAMES: [(&str, Collective); 5] = [
    ("all_reduce", Collective::AllReduce),
    ("reduce_scatter", Collective::ReduceScatter),
    ("all_gather", Collective::AllGather),
    ("alltoall", Collective::AllToAll),
    ("broadcast", Collective::Broadcast),
];

/// Each rank sends to the next one and receives from the one before.
const SEND: &str = "sendrecv";

/// Returns what a row of a table measures, by its bytes and nanoseconds.
fn formula(test: &NcclTest) -> Option<impl Fn(u64, f64) -> Measured + use<>> {
    // A message to a neighbour is one hop and all of its bytes: as gathering twice as much between two ranks.
    let (collective, ranks, times) = if test.collective == SEND {
        (Collective::AllGather, 2, 2)
    } else {
        let found = NAMES.iter().find(|(known, _)| *known == test.collective)?;
        (found.1, test.ranks, 1)
    };
    Some(move |bytes: u64, nanoseconds| Measured {
        collective,
        ranks,
        bytes: bytes.saturating_mul(times),
        nanoseconds,
    })
}

fn answer(test: &NcclTest, errors: &[f64]) -> FittedCollective {
    let mut sorted: Vec<f64> = errors.iter().map(|error| 100.0 * error.abs()).collect();
    sorted.sort_by(f64::total_cmp);
    let sizes = || test.rows.iter().map(|(bytes, _)| schema::Bytes(*bytes));
    FittedCollective {
        collective: test.collective.clone(),
        ranks: test.ranks,
        hosts: test.hosts,
        sizes: test.rows.len(),
        least: sizes().min().unwrap_or_default(),
        most: sizes().max().unwrap_or_default(),
        median: sorted.get(sorted.len() / 2).copied().unwrap_or_default(),
        worst: sorted.last().copied().unwrap_or_default(),
    }
}
