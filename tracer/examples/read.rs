//! Reads an archive and prints what was found: `read MODEL.pt [--ops | --repeat N]`.
#![allow(clippy::print_stdout, unsafe_code, missing_docs)]

use std::time::Instant;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().expect("a path");
    let mode = arguments.next();
    let file = std::fs::File::open(&path).expect("a readable file");
    // SAFETY: nobody changes the file while the example runs.
    let bytes = unsafe { memmap2::Mmap::map(&file) }.expect("a file that can be mapped");
    let start = Instant::now();
    let program = match tracer::read_archive(&bytes) {
        Ok(program) => program,
        Err(error) => {
            println!("error: {error}");
            if let Some(place) = error.place() {
                println!(
                    "  at {} {:?}: {:?}",
                    place.source.name,
                    place.line_and_column(),
                    place.source.text.get(place.range.clone())
                );
            }
            std::process::exit(2);
        }
    };
    if mode.as_deref() == Some("--repeat") {
        for _ in 0..20 {
            let start = Instant::now();
            let _ = tracer::read_archive(&bytes);
            println!("{:.3} ms", start.elapsed().as_secs_f64() * 1e3);
        }
        // Linux only: the highest resident size so far.
        if let Ok(status) = std::fs::read_to_string("/proc/self/status")
            && let Some(line) = status.lines().find(|line| line.starts_with("VmHWM:"))
        {
            println!("peak {}", line.trim_start_matches("VmHWM:").trim());
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    match mode.as_deref() {
        Some("--ops") => {
            for node in &program.nodes {
                let call = &program.calls[node.call.index()];
                let path = &program.modules[call.module.index()].path;
                println!("{}\t{path}\t{}", node.operator, node.outputs.len());
            }
        }
        Some("--dump") => println!("{program:#?}"),
        _ => {
            println!(
                "{}: {} modules, {} tensors, {} calls, {} nodes, {} values, {:.3} ms",
                program.name,
                program.modules.len(),
                program.tensors.len(),
                program.calls.len(),
                program.nodes.len(),
                program.values.len(),
                seconds * 1e3
            );
            for note in &program.notes {
                println!("  {} in `{}`", note.text, note.path);
            }
        }
    }
}
