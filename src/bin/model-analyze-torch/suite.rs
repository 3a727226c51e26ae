//! The suite: operators of a sampling plan, appended to a file that a later run can continue.

use std::{
    fs::{File, OpenOptions},
    io::{Seek, SeekFrom, Write},
    path::Path,
    time::Instant,
};

use libtorch::Bench;
use model_analyze::parts::{Answer, Failure, Profile, making, quoted, read_bytes, write};
use runtime::profile::{Contents, DType, Header, Kind, Operators, Plan, Row, Sweep, header_line};
use schema::Pace;

use crate::{
    header::{command, countdown, moment, tick},
    in_torch::failed,
};

/// Consecutive failing operators after which the run gives up.
const HOPELESS: usize = 30;

/// Seconds between measurements of the call overhead and of the machine's speed: both vary with the machine's other
/// load.
const OVERHEAD_EVERY: f64 = 60.0;

/// Images of a sweep, unless given.
const BATCH: u64 = 1;
const BATCH_OF_GPUS: u64 = 8;

/// Header fields that must be equal within one file.
const SAME: [&str; 4] = ["device", "software", "threads", "method"];

/// Measures operators and appends their rows.
pub fn measure(arguments: &Profile) -> Result<Answer, Failure> {
    let path = &arguments.output;
    let shown = path.display();
    let device = libtorch::device(&arguments.device).map_err(failed)?;
    let begun = begun(path)?;
    let bench = Bench::open(device, arguments.threads).map_err(failed)?;
    let kinds: Result<Vec<Kind>, _> = arguments.kinds.iter().map(|name| Kind::find(name)).collect();
    let mut kinds = kinds.map_err(Failure::input)?;
    if kinds.is_empty() && bench.is_cuda() {
        kinds = Kind::all().collect();
    }
    let dtypes = dtypes(&arguments.dtype, &bench)?;
    let mut header = bench.conditions().map_err(failed)?;
    let mut plan = if arguments.sweep {
        let usual = if bench.is_cuda() { BATCH_OF_GPUS } else { BATCH };
        Operators::Sweep(Sweep::new(arguments.batch.map_or(usual, u64::from), &dtypes))
    } else {
        let scale = bench.scale(arguments.minutes, &dtypes).map_err(failed)?;
        Operators::Random(Plan::new(u64::from(arguments.seed), &kinds, &dtypes, scale))
    };
    let mut done = std::collections::BTreeSet::new();
    let mut n_rows = 0;
    let mut file = match begun.filter(|contents| !contents.items.is_empty()) {
        Some(contents) => {
            plan = resume(path, &contents, &header, &plan)?;
            let file = reopen(path, contents.keep as u64)?;
            done = contents.items;
            n_rows = contents.n_rows;
            file
        }
        None => {
            header.set("date", moment());
            header.set("command", command(arguments));
            header.set("plan", plan.text());
            write(path, format!("{}{}", header.text(), header_line()).as_bytes())?;
            reopen(path, u64::MAX)?
        }
    };
    making().keeps(format!("{shown} holds the measurements so far; the same command continues it"));
    let in_file = |error: std::io::Error| Failure::input(format!("cannot write {shown}: {error}"));
    let n_before = done.len();
    if n_before > 0 {
        let [overhead, pace] = ["overhead", "pace"].map(|key| header.get(key).unwrap_or_default());
        let lines = format!("# taken up again: {}\n# overhead: {overhead}\n# pace: {pace}\n", moment());
        file.write_all(lines.as_bytes()).map_err(in_file)?;
    }
    let (start, limit) = (Instant::now(), arguments.minutes * 60.0);
    let bar = countdown(limit);
    let (mut n_measured, mut n_failed) = (0_usize, 0_usize);
    let mut next_overhead = OVERHEAD_EVERY;
    let mut paces: Vec<Pace> = header.get("pace").and_then(Pace::from_text).into_iter().collect();
    for item in (0_u64..).map_while(|index| plan.item(index)).filter(|item| !done.contains(&item.index)) {
        let elapsed = start.elapsed().as_secs_f64();
        if elapsed >= limit {
            break;
        }
        if elapsed >= next_overhead {
            let (overhead, pace) = (bench.overhead().map_err(failed)?, bench.pace().map_err(failed)?);
            paces.push(pace);
            let lines = format!("# overhead: {overhead}\n# pace: {pace}\n");
            file.write_all(lines.as_bytes()).map_err(in_file)?;
            next_overhead = elapsed + OVERHEAD_EVERY;
        }
        tick(&bar, elapsed, limit, &format!("{n_measured} operators, now {}", item.kind.name()));
        match bench.measure(&item) {
            Ok(rows) => {
                file.write_all(Row::lines(&rows).as_bytes()).map_err(in_file)?;
                n_measured += 1;
                n_rows += rows.len();
            }
            Err(error) => {
                n_failed += 1;
                let reason = error.to_string().replace(['\n', '\r'], " ");
                if n_failed >= HOPELESS && n_measured == 0 {
                    return Err(Failure::input(format!("no operator could be measured: {reason}")));
                }
                let line = format!("# item {}, {}: {reason}\n", item.index, item.kind.name());
                file.write_all(line.as_bytes()).map_err(in_file)?;
                if is_lasting(&reason) {
                    // Rows without times: a run that continues the file skips this operator.
                    let without: Vec<Row> =
                        item.kind.phases().iter().map(|phase| Row::of(&item, *phase, bench.name())).collect();
                    file.write_all(Row::lines(&without).as_bytes()).map_err(in_file)?;
                    let message =
                        format!("{}: the GPU is unusable for this process: {reason}", item.kind.name());
                    return Err(Failure::input(message)
                        .with_hint(format!("the same command continues {shown} with the next operator")));
                }
            }
        }
    }
    bar.finish_and_clear();
    let seconds = start.elapsed().as_secs_f64();
    file.write_all(format!("# until: {}, {n_measured} operators in {seconds:.0} s\n", moment()).as_bytes())
        .map_err(in_file)?;
    file.sync_all().map_err(in_file)?;
    let counts = Counts { measured: n_measured, failed: n_failed, before: n_before, rows: n_rows, seconds };
    Ok(answer(path, bench.name(), &counts, &paces))
}

/// Tells whether an error lasts for the process: CUDA's context is then unusable. After other errors, such as sizes
/// that a kernel does not support, the next operator runs.
fn is_lasting(reason: &str) -> bool {
    let reason = reason.to_lowercase();
    let lasting = [
        "illegal memory access",
        "illegal address",
        "illegal instruction",
        "misaligned address",
        // Every message ends with advice about `device-side assertions`.
        "device-side assert triggered",
        "launch failure",
        "launch timed out",
        "uncorrectable ecc",
        "hardware stack error",
        "invalid program counter",
    ];
    ["cuda error", "hip error"].iter().any(|error| reason.contains(error))
        && lasting.iter().any(|what| reason.contains(what))
}

/// Returns the data types to measure.
fn dtypes(given: &[DType], bench: &Bench) -> Result<Vec<DType>, Failure> {
    let dtypes = if given.is_empty() { bench.dtypes() } else { given.to_vec() };
    if !bench.is_cuda() && dtypes.contains(&DType::Tf32) {
        return Err(Failure::input("tf32 is a data type of CUDA devices").with_hint("--device cuda:0"));
    }
    Ok(dtypes)
}

/// The counts of a run.
struct Counts {
    measured: usize,
    failed: usize,
    /// Operators measured by earlier runs.
    before: usize,
    /// Rows in the file.
    rows: usize,
    seconds: f64,
}

fn answer(path: &Path, device: &str, counts: &Counts, paces: &[Pace]) -> Answer {
    let shown = path.display();
    let Counts { measured, failed, before, rows, seconds } = counts;
    let mut text = format!(
        "measured {measured} operators on {device} in {:.1} minutes{}; {shown} has {rows} rows\n",
        seconds / 60.0,
        if *before > 0 { format!(", after {before} of earlier runs") } else { String::new() },
    );
    if *failed > 0 {
        text.push_str(&format!("{failed} could not be measured; comments in the file say why\n"));
    }
    if let Some(how) = Pace::unsteady(paces) {
        text.push_str(&format!(
            "the machine's speed changed during the measurement, {how}: other programs ran, or its clock rate changed\n"
        ));
    }
    let shown = quoted(&shown.to_string());
    text.push_str(&format!("next: model-analyze fit {shown} -o cost-model.yaml\n"));
    let json = serde_json::json!({
        "schema_version": 1,
        "file": path,
        "device": device,
        "operators": measured,
        "operators_before": before,
        "failed": failed,
        "rows": rows,
        "seconds": seconds,
    });
    Answer { text, json }
}

/// Reads the file of an earlier run; `None` if there is no file.
fn begun(path: &Path) -> Result<Option<Contents>, Failure> {
    if !path.exists() {
        return Ok(None);
    }
    let bytes = read_bytes(path)?;
    // A crash may truncate a character of a comment; the rows are before it.
    let valid = String::from_utf8_lossy(&bytes);
    let contents = runtime::profile::read(&valid).map_err(|error| {
        Failure::input(format!("{}: {error}", path.display())).with_hint("choose another file with -o")
    })?;
    Ok(Some(contents))
}

/// Checks that a file can be continued, and returns its sampling plan, which must stay the same.
fn resume(path: &Path, contents: &Contents, now: &Header, wanted: &Operators) -> Result<Operators, Failure> {
    let shown = path.display();
    let hint = "a file holds one plan on one device; choose another file with -o";
    contents
        .header
        .require_same(now, &SAME)
        .map_err(|error| Failure::input(format!("{shown}: {error}")).with_hint(hint))?;
    let plan =
        contents.header.get("plan").and_then(Operators::read).ok_or_else(|| {
            Failure::input(format!("{shown}: its header has no readable plan")).with_hint(hint)
        })?;
    if !plan.asks_the_same(wanted) {
        let message = format!("{shown} was started with another plan: {}", plan.text());
        return Err(Failure::input(message)
            .with_hint("use the same --seed, --kinds, --dtype and --batch, or another file"));
    }
    Ok(plan)
}

/// Opens a file and truncates it after the bytes to keep.
fn reopen(path: &Path, keep: u64) -> Result<File, Failure> {
    let in_file = |error: std::io::Error| Failure::input(format!("cannot write {}: {error}", path.display()));
    let mut file = OpenOptions::new().read(true).write(true).open(path).map_err(in_file)?;
    if file.metadata().map_err(in_file)?.len() > keep {
        file.set_len(keep).map_err(in_file)?;
    }
    file.seek(SeekFrom::End(0)).map_err(in_file)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::is_lasting;

    #[test]
    fn errors_that_stay() {
        let lasting = [
            "CUDA error: an illegal memory access was encountered",
            "CUDA error: device-side assert triggered Compile with `TORCH_USE_CUDA_DSA`",
            "HIP error: unspecified launch failure",
        ];
        let mild = [
            "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 79.10 GiB",
            "CUDA error: out of memory",
            "CUDA error: invalid configuration argument",
            // An H200 reported this for an interpolation of more blocks than a grid may have, and stayed usable.
            "Internal torch error: CUDA error: invalid argument Search for `cudaErrorInvalidValue' in https://docs.nvidia.com \
             CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be \
             incorrect. Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.",
            "upsample_bilinear2d_backward_out_cuda does not have a deterministic implementation",
        ];
        assert!(lasting.into_iter().all(is_lasting));
        assert!(!mild.into_iter().any(is_lasting));
    }
}
