//! What a terminal of sixty columns shows: tables that fit, names shortened by whole words, heads in bold. What a pipe gets is whole.

#![allow(clippy::unwrap_used, missing_docs)]

use std::{
    fs::File,
    io::Read,
    path::Path,
    process::{Command, Stdio},
};

use rustix::{
    fs::{Mode, OFlags},
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
    termios::{Winsize, tcsetwinsize},
};

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_model-analyze"));
    command.args(arguments).current_dir(env!("CARGO_MANIFEST_DIR"));
    for variable in ["COLUMNS", "NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "CI"] {
        command.env_remove(variable);
    }
    command.env("TERM", "xterm");
    command
}

/// Which of a command's streams a terminal is.
#[derive(Clone, Copy)]
enum Stream {
    Output,
    Error,
}

/// Runs the command with a terminal as its standard output, and returns what that was sent.
fn on_terminal(columns: u16, arguments: &[&str], environment: &[(&str, &str)]) -> String {
    shown(Stream::Output, columns, arguments, environment)
}

fn shown(stream: Stream, columns: u16, arguments: &[&str], environment: &[(&str, &str)]) -> String {
    let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&terminal).unwrap();
    unlockpt(&terminal).unwrap();
    let size = Winsize { ws_row: 40, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(&terminal, size).unwrap();
    let name = ptsname(&terminal, Vec::new()).unwrap();
    let side = rustix::fs::open(&name, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).unwrap();
    let mut command = command(arguments);
    command.envs(environment.iter().copied()).stdin(Stdio::null());
    match stream {
        Stream::Output => command.stdout(Stdio::from(side)).stderr(Stdio::piped()),
        Stream::Error => command.stdout(Stdio::null()).stderr(Stdio::from(side)),
    };
    let child = command.spawn().unwrap();
    // The terminal ends when nobody has it any more.
    drop(command);
    let mut text = Vec::new();
    let mut reader = File::from(terminal);
    let mut part = [0; 4096];
    while let Ok(n @ 1..) = reader.read(&mut part) {
        text.extend_from_slice(&part[..n]);
    }
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(text).unwrap().replace("\r\n", "\n")
}

fn piped(arguments: &[&str]) -> String {
    let output = command(arguments).env("COLUMNS", "60").output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Takes the colours out.
fn plain(text: &str) -> String {
    let mut plain = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('\u{1b}') {
        plain.push_str(before);
        rest = after.split_once('m').map_or("", |(_, rest)| rest);
    }
    plain + rest
}

/// A profile small enough to be fitted in no time.
fn small_profile(folder: &Path) -> String {
    let whole = std::fs::read_to_string(
        Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/profiles/cpu-epyc-1-thread.csv"),
    )
    .unwrap();
    let is_row = |row: &&str| row.starts_with("bmm,float32,") && row.contains(",forward,");
    let head = whole.lines().take_while(|line| line.starts_with('#') || line.starts_with("kind,"));
    let rows = whole.lines().filter(is_row).take(60);
    let text: String = head.chain(rows).flat_map(|line| [line, "\n"]).collect();
    let path = folder.join("small.csv");
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_string()
}

#[test]
fn tables_fit_a_narrow_terminal_and_are_whole_in_a_pipe() {
    let folder = tempfile::tempdir().unwrap();
    let profile = small_profile(folder.path());
    let model = "fixtures/traces/gpt2_tiny.pt";
    for arguments in [
        &["inspect", model][..],
        &["inspect", model, "--memory", "--device", "a100"],
        &["plan", model, "--devices", "2xt4", "--strategy", "1f1b", "--compare"],
        &["split", model, "--devices", "2xt4", "--strategy", "1f1b", "--dry-run"],
        &["compare", model, "--devices", "2xt4", "--only", "gpipe"],
        &["simulate", "fixtures/plans/unet-4.yaml"],
        &["devices"],
        &["devices", "a100"],
        &["fit", &profile],
    ] {
        let shown = on_terminal(60, arguments, &[]);
        for line in plain(&shown).lines() {
            // What has no spaces is not broken.
            let is_one_word = !line.trim().contains(' ');
            assert!(line.chars().count() <= 60 || is_one_word, "{arguments:?}: {line}");
        }
        assert!(!piped(arguments).contains(['\u{1b}', '\u{1}']), "{arguments:?}");
    }
}

#[test]
fn names_are_shortened_for_a_terminal_only() {
    let arguments = ["inspect", "fixtures/traces/gpt2_tiny.pt", "--depth", "9"];
    let whole = piped(&arguments);
    assert!(whole.contains("  transformer.h.0.attn.c_attn ") && !whole.contains("wider terminal"), "{whole}");
    let narrow = plain(&on_terminal(60, &arguments, &[]));
    assert!(narrow.contains("…") && narrow.contains("(a wider terminal also shows "), "{narrow}");
    // Wide enough, a terminal shows what a pipe gets.
    let wide = plain(&on_terminal(300, &arguments, &[]));
    assert_eq!(wide.lines().collect::<Vec<_>>(), whole.lines().collect::<Vec<_>>());
    // COLUMNS wins over what the terminal says of itself.
    assert_eq!(plain(&on_terminal(300, &arguments, &[("COLUMNS", "60")])), narrow);
}

#[test]
fn heads_are_bold_where_that_is_wanted() {
    let bold = "\u{1b}[1m";
    assert!(on_terminal(100, &["devices"], &[]).starts_with(&format!("{bold}device ")));
    assert!(!on_terminal(100, &["devices"], &[("NO_COLOR", "1")]).contains('\u{1b}'));
}

/// Notes are broken where a terminal ends, and are one line in a pipe. (Hints and errors hold commands to copy, and are not.)
#[test]
fn notes_fit_a_narrow_terminal() {
    let arguments = ["inspect", "fixtures/traces/unet_small.pt", "--device", "h100", "--fp8"];
    let text = plain(&shown(Stream::Error, 60, &arguments, &[]));
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines.len() > 1 && lines[0].starts_with("note: no layer runs in float8"), "{text}");
    assert!(lines.iter().all(|line| line.chars().count() <= 60), "{text}");
    assert!(lines[1..].iter().all(|line| line.starts_with("  ")), "{text}");
    let whole = command(&arguments).env("COLUMNS", "60").output().unwrap();
    let whole = String::from_utf8(whole.stderr).unwrap();
    assert_eq!(whole.lines().count(), 1);
    assert_eq!(text.split_whitespace().collect::<Vec<_>>(), whole.split_whitespace().collect::<Vec<_>>());
}
