//! Blocks of a model in place: each becomes a stage of its own, and each runs on the values that the previous ones
//! really send.

use std::path::Path;

use codegen::Skips;
use libtorch::{Bench, BlockTimes, measure_blocks};
use model_analyze::parts::{
    Answer, Beside, CutAt, EmitRequest, Failure, ModelFile, Profile, Stages, emit, whole, write,
};
use runtime::profile::{Row, header_line};
use schema::Phase;
use tracer::Program;

use crate::{
    header::{command, countdown, moment, tick},
    in_torch::{self, failed},
};

/// Measures each block, and the whole model.
pub fn measure(arguments: &Profile, model: &Path) -> Result<Answer, Failure> {
    let path = &arguments.output;
    if path.exists() {
        return Err(Failure::input(format!("{} exists", path.display()))
            .with_hint("a model's profile cannot be continued; choose another file with -o"));
    }
    // Checks that the file can be written, before minutes are spent.
    let folder = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    tempfile::NamedTempFile::new_in(folder)
        .map_err(|error| Failure::input(format!("cannot write {}: {error}", path.display())))?;
    let device = libtorch::device(&arguments.device).map_err(failed)?;
    let model = ModelFile::read(model)?;
    let program = &model.program;
    // A model inside a wrapper has only one block at the top.
    let blocks = (arguments.depth..=64).map(|depth| blocks(program, depth)).find(|blocks| blocks.len() > 1);
    let blocks = blocks.ok_or_else(|| {
        Failure::input(format!("{} has no blocks to measure separately", model.path().display()))
            .with_hint("`model-analyze inspect` lists its blocks")
    })?;
    let scratch = Beside::scratch()?;
    let out = scratch.path().join("out");
    // The first stage begins where the model begins.
    let cut = CutAt::Blocks(blocks[1..].to_vec());
    let weights = arguments.weights.as_deref();
    emit(&model, &EmitRequest::archives(cut, Skips::Portal, weights), None)?.write_folder(&out, false)?;
    let stages = Stages::read(&out)?;
    let specs = stages.input_specs(program)?;
    let whole_model = whole::on(&model, weights, &arguments.device)?;
    let bench = Bench::open(device, arguments.threads).map_err(failed)?;
    let inputs = specs.iter().enumerate().map(|(index, spec)| {
        libtorch::random(&in_torch::input(spec), i64::from(arguments.seed) + index as i64)
    });
    let inputs = inputs.collect::<Result<Vec<_>, _>>().map_err(failed)?;
    let before = bench.pace().map_err(failed)?;
    let limit = arguments.minutes * 60.0;
    let (bar, start) = (countdown(limit), std::time::Instant::now());
    let mut progress =
        |round: usize| tick(&bar, start.elapsed().as_secs_f64(), limit, &format!("{round} rounds"));
    let (times, whole) = measure_blocks(
        &in_torch::whole(&whole_model),
        &stages.archives()?,
        &stages.wiring,
        &inputs,
        device,
        limit,
        &mut progress,
    )
    .map_err(failed)?;
    bar.finish_and_clear();

    let mut header = bench.conditions().map_err(failed)?;
    header.set(
        "method",
        "each block is a stage of its own, run on the values that the previous blocks send; median of rounds over the whole model; backward: time of a training step beyond that of a forward pass without recording",
    );
    header.set("model", format!("{}, {}", program.name, model.digest()));
    header.set("date", moment());
    header.set("command", command(arguments));
    let mut rows = Vec::new();
    for (path, times) in blocks.iter().map(String::as_str).zip(&times).chain([("", &whole)]) {
        rows.extend(of(path, times, bench.name()));
    }
    let text = format!("{}# pace: {before}\n{}{}", header.text(), header_line(), Row::lines(&rows));
    write(path, text.as_bytes())?;
    Ok(answer(path, bench.name(), &blocks, &times, &whole))
}

/// Returns the paths of the blocks at a depth, in execution order, including shallower ones without children at that
/// depth.
fn blocks(program: &Program, depth: u32) -> Vec<String> {
    let mut depths: Vec<u32> = Vec::new();
    let mut starts: Vec<(u32, String)> = Vec::new();
    for (index, call) in program.calls.iter().enumerate() {
        let own = call.parent.map_or(0, |parent| depths.get(parent.index()).map_or(1, |above| above + 1));
        depths.push(own);
        let id = tracer::CallId(index as u32);
        let is_wanted = own > 0 && own <= depth && !call.nodes.is_empty();
        if is_wanted {
            starts.push((call.nodes.start, codegen::call_path(program, id)));
        }
    }
    // If a block begins with its first child, the stage is named after the child: cuts are between operators.
    starts.sort_by_key(|(start, _)| *start);
    let mut named: Vec<(u32, String)> = Vec::new();
    for (start, path) in starts {
        match named.last_mut() {
            Some(last) if last.0 == start => last.1 = path,
            _ => named.push((start, path)),
        }
    }
    named.into_iter().map(|(_, path)| path).collect()
}

fn of(path: &str, times: &BlockTimes, device: &str) -> Vec<Row> {
    let dtype = times
        .element
        .map_or("float32".to_string(), |element| libtorch::dtype(element).unwrap_or("float32").to_string());
    let mut rows = Vec::new();
    for (phase, statistics) in [(Phase::Forward, &times.forward), (Phase::Backward, &times.backward)] {
        // A block without gradients has no backward pass.
        if phase == Phase::Backward && statistics.count() == 0 {
            continue;
        }
        let mut row = Row::block(path, &dtype, phase, device, &times.output);
        row.set_time("seconds", statistics.median());
        row.set_time("seconds_min", statistics.least());
        row.set_time("seconds_p90", statistics.quantile(0.9));
        row.set("samples", statistics.count());
        row.set("output_bytes", times.output_bytes);
        rows.push(row);
    }
    rows
}

fn answer(path: &Path, device: &str, blocks: &[String], times: &[BlockTimes], whole: &BlockTimes) -> Answer {
    let forward = |times: &BlockTimes| times.forward.median();
    let backward = |times: &BlockTimes| times.backward.median();
    let text = format!(
        "{} blocks on {device}: forward {}, backward {}\nthe whole model:  forward {}, backward {}\nwrote {}\n",
        blocks.len(),
        schema::Seconds(times.iter().map(forward).sum()),
        schema::Seconds(times.iter().map(backward).sum()),
        schema::Seconds(forward(whole)),
        schema::Seconds(backward(whole)),
        path.display(),
    );
    let block = |(path, times): (&String, &BlockTimes)| serde_json::json!({"path": path, "forward_seconds": forward(times), "backward_seconds": backward(times)});
    let json = serde_json::json!({
        "schema_version": 1,
        "file": path,
        "device": device,
        "blocks": blocks.iter().zip(times).map(block).collect::<Vec<_>>(),
        "model": {"forward_seconds": forward(whole), "backward_seconds": backward(whole)},
    });
    Answer { text, json }
}
