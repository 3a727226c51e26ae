//! Odd places: full disks, folders that may not be written, strange names, links, other languages. Each ends with what was
//! asked for, or with a message that names the place, and with nothing half-written.

#![cfg(unix)]
#![allow(clippy::unwrap_used, clippy::print_stdout, missing_docs)]

use std::{
    ffi::OsStr,
    fs,
    os::unix::{ffi::OsStrExt, fs::symlink},
    path::{Path, PathBuf},
    process::{Command, Output},
};

mod needs;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn trace(name: &str) -> PathBuf {
    root().join("fixtures/traces").join(name)
}

fn command(folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_model-analyze"));
    command.current_dir(folder);
    command
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn good(output: &Output) -> String {
    assert!(output.status.success(), "{}", stderr(output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .unwrap()
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into())
        .collect();
    names.sort();
    names
}

/// Command lines that write, each into the current folder.
const WRITERS: &[&str] = &[
    "emit MODEL --stages 2 -o out",
    "split MODEL --devices 2xt4 --stages 2 -o out",
    "report MODEL -o report.html",
    "graph MODEL -o graph.svg",
    "graph MODEL --depth 9 -o graph.dot",
    "plan MODEL --devices 2xt4 -o plan.yaml",
];

fn words(line: &str) -> Vec<std::ffi::OsString> {
    let model = trace("unet_small.pt");
    line.split(' ').map(|word| if word == "MODEL" { model.clone().into() } else { word.into() }).collect()
}

/// Runs a line of a shell before the command: limits and mounts are its own.
fn after(shell: &str, folder: &Path, line: &str) -> Output {
    Command::new("sh")
        .args(["-c", &format!("{shell} && exec \"$@\""), "sh", env!("CARGO_BIN_EXE_model-analyze")])
        .args(words(line))
        .current_dir(folder)
        .output()
        .expect("the shell starts")
}

#[test]
fn files_that_may_not_grow_are_not_left_short() {
    for line in WRITERS {
        let place = tempfile::tempdir().unwrap();
        // One block of 512 bytes; the signal is ignored, so that the write itself fails as on a full disk.
        let output = after("trap '' XFSZ; ulimit -f 1", place.path(), line);
        assert_eq!(output.status.code(), Some(2), "{line}: {}", stderr(&output));
        assert!(stderr(&output).starts_with("error: "), "{line}: {}", stderr(&output));
        assert!(names(place.path()).is_empty(), "{line} left {:?}", names(place.path()));
    }
}

#[test]
fn a_full_disk_is_told_and_left_as_it_was() {
    // A file system of our own, where the system lets us make one.
    let mount = "mount -t tmpfs -o size=60k none . && cd \"$PWD\" && echo old > plan.yaml";
    let check = "; code=$?; ls -A >&2; exit $code";
    let mut tried = 0;
    for line in WRITERS.iter().filter(|line| !line.starts_with("plan")) {
        let place = tempfile::tempdir().unwrap();
        let script = format!("{mount} && head -c 55000 /dev/zero > fill && {{ \"$@\"; }} {check}");
        let output = Command::new("unshare")
            .args(["--user", "--map-root-user", "--mount", "sh", "-c", &script, "sh"])
            .arg(env!("CARGO_BIN_EXE_model-analyze"))
            .args(words(line))
            .current_dir(place.path())
            .output();
        let Ok(output) = output else { break };
        let text = stderr(&output);
        if text.contains("unshare") || text.contains("mount:") {
            break;
        }
        tried += 1;
        assert_eq!(output.status.code(), Some(2), "{line}: {text}");
        assert!(text.contains("error: ") && text.contains("No space left"), "{line}: {text}");
        let (_, listed) = text.rsplit_once("fill").unwrap();
        assert_eq!(listed.trim(), "plan.yaml", "{line}: {text}");
        assert!(!text.contains("unfinished"), "{line}: {text}");
    }
    if tried == 0 {
        needs::skip(needs::Need::Mounts);
    }
}

#[test]
fn places_that_may_not_be_written_are_named() {
    for (place, reason) in [("/proc/out", "/proc"), ("/dev/null/out", "/dev/null")] {
        let folder = tempfile::tempdir().unwrap();
        for line in
            ["emit MODEL --stages 2 -o PLACE", "report MODEL -o PLACE", "plan MODEL --devices 2xt4 -o PLACE"]
        {
            let output = command(folder.path()).args(words(&line.replace("PLACE", place))).output().unwrap();
            assert_eq!(output.status.code(), Some(2), "{line} {place}: {}", stderr(&output));
            assert!(stderr(&output).contains(reason), "{line}: {}", stderr(&output));
        }
    }
}

#[test]
fn folders_without_the_right_to_write_stay_as_they_are() {
    use std::os::unix::{fs::PermissionsExt, process::CommandExt};

    let place = tempfile::tempdir().unwrap();
    fs::set_permissions(place.path(), fs::Permissions::from_mode(0o555)).unwrap();
    for line in WRITERS {
        let mut command = command(place.path());
        // The superuser may write anywhere; nobody may not.
        if rustix::process::geteuid().is_root() {
            command.uid(65_534).gid(65_534);
        }
        let output = match command.args(words(line)).output() {
            Ok(output) if stderr(&output).contains(".pt: Permission denied") => {
                needs::skip(needs::Need::OtherUser);
                break;
            }
            Ok(output) => output,
            Err(_) => {
                needs::skip(needs::Need::OtherUser);
                break;
            }
        };
        assert_eq!(output.status.code(), Some(2), "{line}: {}", stderr(&output));
        assert!(stderr(&output).to_lowercase().contains("permission denied"), "{line}: {}", stderr(&output));
    }
    assert!(names(place.path()).is_empty());
    fs::set_permissions(place.path(), fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn files_have_any_name() {
    let place = tempfile::tempdir().unwrap();
    let odd: [&[u8]; 8] = [
        "mit Leerzeichen.pt".as_bytes(),
        "ünï\u{1f600}.pt".as_bytes(),
        b"-rf.pt",
        b"$(touch owned).pt",
        b"new\nline.pt",
        b"not utf-8 \xff\xfe.pt",
        b"quote\"'.pt",
        b"no_ending",
    ];
    for name in odd {
        let name = OsStr::from_bytes(name);
        let model = place.path().join(name);
        fs::copy(trace("cnn_basic.pt"), &model).unwrap();
        good(&command(place.path()).arg("inspect").arg(&model).output().unwrap());
        let mut out = place.path().join("out ").into_os_string();
        out.push(name);
        let out = PathBuf::from(out);
        let line = command(place.path())
            .args(["split", "--devices", "2xt4", "--stages", "2", "-o"])
            .args([&out, &model])
            .output()
            .unwrap();
        good(&line);
        assert!(out.join("stages/manifest.json").is_file());
        assert!(!place.path().join("owned").exists());
    }
}

#[test]
fn links_are_followed_to_what_they_name() {
    let place = tempfile::tempdir().unwrap();
    let real = place.path().join("real");
    fs::create_dir(&real).unwrap();
    symlink(&real, place.path().join("link")).unwrap();
    symlink(trace("cnn_basic.pt"), place.path().join("model.pt")).unwrap();
    good(
        &command(place.path())
            .args(["emit", "model.pt", "--stages", "2", "-o", "link/out"])
            .output()
            .unwrap(),
    );
    assert!(real.join("out/stages/manifest.json").is_file());
    fs::write(real.join("plan.yaml"), "old").unwrap();
    symlink(real.join("plan.yaml"), place.path().join("plan.yaml")).unwrap();
    good(
        &command(place.path())
            .args(["plan", "model.pt", "--devices", "2xt4", "-o", "plan.yaml"])
            .output()
            .unwrap(),
    );
    assert!(fs::symlink_metadata(place.path().join("plan.yaml")).unwrap().is_symlink());
    assert!(fs::read_to_string(real.join("plan.yaml")).unwrap().starts_with("kind: plan"));
    // A link that leads nowhere, and one that leads to itself.
    symlink("nowhere", place.path().join("broken.pt")).unwrap();
    symlink("loop.pt", place.path().join("loop.pt")).unwrap();
    for name in ["broken.pt", "loop.pt"] {
        let output = command(place.path()).args(["inspect", name]).output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        assert!(stderr(&output).contains(name), "{}", stderr(&output));
    }
}

#[test]
fn the_language_of_the_user_changes_nothing() {
    let place = tempfile::tempdir().unwrap();
    let model = trace("unet_small.pt");
    let under = |language: &str| {
        let mut command = command(place.path());
        command.args(["split", "--devices", "2xt4", "--stages", "2", "--dry-run"]).arg(&model);
        good(&command.env("LC_ALL", language).env("LANG", language).output().unwrap())
    };
    let english = under("C");
    for language in ["tr_TR.UTF-8", "de_DE.UTF-8", "ar_EG.UTF-8", "ja_JP.eucJP", "no such language"] {
        assert_eq!(under(language), english, "{language}");
    }
}

#[test]
fn an_output_that_is_closed_from_the_start_is_no_fault_of_ours() {
    let place = tempfile::tempdir().unwrap();
    let output = after("exec >&-", place.path(), "inspect MODEL");
    assert!(!stderr(&output).contains("panicked"), "{}", stderr(&output));
}
