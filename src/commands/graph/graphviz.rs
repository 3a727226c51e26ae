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
    run(Command::new("dot").arg("-Tsvg"), dot, LONGEST)
}

/// Gives a program a text and returns what it writes within a time.
fn run(command: &mut Command, text: &str, longest: Duration) -> Result<String, String> {
    let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
    let mut child = match child {
        Ok(child) => child,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return Err("`dot` is not on the PATH; install Graphviz or leave out --renderer dot".to_string());
        }
        Err(error) => return Err(format!("`dot` does not start: {error}")),
    };
    let mut stdin = child.stdin.take().expect("stdin is piped");
    let mut stdout = child.stdout.take().expect("stdout is piped");
    let text = text.to_string();
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
            Ok(None) if start.elapsed() > longest => {
                break Err(format!("Graphviz was stopped after {} seconds", longest.as_secs()));
            }
            Ok(None) => thread::sleep(BETWEEN_LOOKS),
            Err(error) => break Err(format!("Graphviz got lost: {error}")),
        }
    };
    let status = status.inspect_err(|_| {
        // It may have ended by now; either way it is gone after this. The threads are left alone: what it has
        // started itself may hold the pipes for ever.
        let _ = child.kill();
        let _ = child.wait();
    })?;
    match (writer.join(), reader.join()) {
        (Ok(Ok(())), Ok(Ok(svg))) if status.success() => Ok(svg),
        _ => Err(format!("Graphviz failed ({status})")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_takes_too_long_is_stopped_with_all_it_has_started() {
        let start = Instant::now();
        // The shell stands for a wrapper of `dot`; what it runs goes on to hold the pipes.
        let mut wrapper = Command::new("sh");
        wrapper.args(["-c", "sleep 20; true"]);
        let answer = run(&mut wrapper, "digraph {}", Duration::from_millis(100));
        assert_eq!(answer, Err("Graphviz was stopped after 0 seconds".to_string()));
        assert!(start.elapsed() < Duration::from_secs(10));
    }

    #[test]
    fn a_failure_is_one() {
        let mut broken = Command::new("sh");
        broken.args(["-c", "cat; exit 3"]);
        assert_eq!(run(&mut broken, "text", LONGEST), Err("Graphviz failed (exit status: 3)".to_string()));
        let mut working = Command::new("cat");
        assert_eq!(run(&mut working, "text", LONGEST), Ok("text".to_string()));
    }
}
