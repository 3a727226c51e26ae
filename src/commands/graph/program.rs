//! Outside programs that turn one text into another, run with a time limit.

use std::{
    io::{ErrorKind, Read, Write},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

const BETWEEN_LOOKS: Duration = Duration::from_millis(10);

/// Why a program gave no output.
#[derive(Debug, PartialEq, Eq)]
pub enum Missing {
    /// It is not on the PATH.
    NotFound,
    /// It has failed.
    Failed(String),
}

/// Runs a program with a text as its input and returns its output, within a time limit. `name` is its name in messages.
pub fn run(command: &mut Command, name: &str, text: &str, longest: Duration) -> Result<Vec<u8>, Missing> {
    let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
    let mut child = child.map_err(|error| match error.kind() {
        ErrorKind::NotFound => Missing::NotFound,
        _ => Missing::Failed(format!("{name} does not start: {error}")),
    })?;
    let mut stdin = child.stdin.take().expect("stdin is piped");
    let mut stdout = child.stdout.take().expect("stdout is piped");
    let text = text.to_string();
    // Each pipe has a thread: the child may fill one while the other is read.
    let writer = thread::spawn(move || stdin.write_all(text.as_bytes()));
    let reader = thread::spawn(move || {
        let mut written = Vec::new();
        stdout.read_to_end(&mut written).map(|_| written)
    });
    let start = Instant::now();
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break Ok(status),
            Ok(None) if start.elapsed() > longest => {
                break Err(Missing::Failed(format!(
                    "{name} was stopped after {} seconds",
                    longest.as_secs()
                )));
            }
            Ok(None) => thread::sleep(BETWEEN_LOOKS),
            Err(error) => break Err(Missing::Failed(format!("cannot wait for {name}: {error}"))),
        }
    };
    let status = status.inspect_err(|_| {
        // The child may have ended already; it has after this. The threads are not joined: processes that the child has
        // started may hold the pipes for ever.
        let _ = child.kill();
        let _ = child.wait();
    })?;
    match (writer.join(), reader.join()) {
        (Ok(Ok(())), Ok(Ok(written))) if status.success() => Ok(written),
        _ => Err(Missing::Failed(format!("{name} failed ({status})"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONGEST: Duration = Duration::from_secs(20);

    #[test]
    fn what_takes_too_long_is_stopped_with_all_it_has_started() {
        let start = Instant::now();
        // The shell stands for a wrapper of `dot`; the program it runs goes on to hold the pipes.
        let mut wrapper = Command::new("sh");
        wrapper.args(["-c", "sleep 20; true"]);
        let answer = run(&mut wrapper, "It", "digraph {}", Duration::from_millis(100));
        assert_eq!(answer, Err(Missing::Failed("It was stopped after 0 seconds".to_string())));
        assert!(start.elapsed() < Duration::from_secs(10));
    }

    #[test]
    fn a_failure_is_one() {
        let mut broken = Command::new("sh");
        broken.args(["-c", "cat; exit 3"]);
        let failed = Missing::Failed("It failed (exit status: 3)".to_string());
        assert_eq!(run(&mut broken, "It", "text", LONGEST), Err(failed));
        let mut working = Command::new("cat");
        assert_eq!(run(&mut working, "It", "text", LONGEST), Ok(b"text".to_vec()));
        let mut absent = Command::new("no-such-program-anywhere");
        assert_eq!(run(&mut absent, "It", "text", LONGEST), Err(Missing::NotFound));
    }
}
