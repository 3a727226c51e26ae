//! Graphviz as a renderer: run with a time limit, and not at all where it is known to be hopeless.

use std::{
    io::{ErrorKind, Read, Write},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// `dot` takes minutes beyond this.
const MOST_BOXES: usize = 1500;
const LONGEST: Duration = Duration::from_secs(20);
const BETWEEN_LOOKS: Duration = Duration::from_millis(10);

/// Renders DOT as SVG, or says why not.
pub fn render(dot: &str, n_boxes: usize) -> Result<String, String> {
    if n_boxes > MOST_BOXES {
        return Err(format!(
            "{n_boxes} boxes are more than Graphviz lays out in reasonable time ({MOST_BOXES}); try a smaller --depth"
        ));
    }
    let child = Command::new("dot")
        .arg("-Tsvg")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    let mut child = match child {
        Ok(child) => child,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return Err("`dot` is not on the PATH; install Graphviz or leave out --renderer dot".to_string());
        }
        Err(error) => return Err(format!("`dot` does not start: {error}")),
    };
    let mut stdin = child.stdin.take().expect("stdin is piped");
    let mut stdout = child.stdout.take().expect("stdout is piped");
    let text = dot.to_string();
    // Both pipes in threads of their own: the child may fill one while we wait at the other.
    let writer = thread::spawn(move || stdin.write_all(text.as_bytes()));
    let reader = thread::spawn(move || {
        let mut svg = String::new();
        stdout.read_to_string(&mut svg).map(|_| svg)
    });
    let start = Instant::now();
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break Ok(status),
            Ok(None) if start.elapsed() > LONGEST => {
                break Err(format!("Graphviz was stopped after {} seconds", LONGEST.as_secs()));
            }
            Ok(None) => thread::sleep(BETWEEN_LOOKS),
            Err(error) => break Err(format!("Graphviz got lost: {error}")),
        }
    };
    if status.is_err() {
        // It may have ended by now; either way it is gone after this.
        let _ = child.kill();
        let _ = child.wait();
    }
    let written = writer.join();
    let svg = reader.join();
    match (status?, written, svg) {
        (status, Ok(Ok(())), Ok(Ok(svg))) if status.success() => Ok(svg),
        (status, _, _) => Err(format!("Graphviz failed ({status})")),
    }
}
