//! Killed or interrupted at any moment: what lies in its place is whole, old or new, and a second run succeeds. An interrupted
//! run leaves nothing else; what a killed one leaves is taken away by the next.
//!
//! Two hundred runs are killed (`SIGKILL`, nothing can be cleaned up), at moments spread over the time that each command takes.
//! Every command here writes the same bytes for the same input, so that "whole" is equality with a run that was left alone.

#![cfg(unix)]
#![allow(clippy::unwrap_used, clippy::print_stdout, missing_docs)]

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

mod needs;

/// Begins the name of what was not finished; whoever sees it knows that it is not whole.
const UNFINISHED: &str = ".model-analyze-unfinished-";

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Files by their path in a folder; what is unfinished by name is left out.
type Content = BTreeMap<PathBuf, Vec<u8>>;

fn content(folder: &Path) -> Content {
    let mut all = Content::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(&next).unwrap().flatten() {
            let path = entry.path();
            if entry.file_name().to_string_lossy().starts_with(UNFINISHED) {
                continue;
            }
            if path.is_dir() {
                folders.push(path);
            } else {
                all.insert(path.strip_prefix(folder).unwrap().into(), fs::read(&path).unwrap());
            }
        }
    }
    all
}

fn start(folder: &Path, line: &str) -> Child {
    let words = line.split(' ').map(|word| match word.strip_prefix("ROOT/") {
        Some(name) => root().join(name).into_os_string(),
        None => word.into(),
    });
    Command::new(env!("CARGO_BIN_EXE_model-analyze"))
        .args(words)
        .current_dir(folder)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the command starts")
}

fn finish(folder: &Path, line: &str) -> Duration {
    let start_of = Instant::now();
    let output = start(folder, line).wait_with_output().unwrap();
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    start_of.elapsed()
}

/// Kills `one` and `other` in turn, over each other's results, at `kills` moments.
fn torture(one: &str, other: &str, kills: u32) {
    let lines = [one, other];
    // What each leaves behind when it is left alone, over the other's result.
    let place = tempfile::tempdir().unwrap();
    let folder = place.path();
    let mut whole = Vec::new();
    let mut longest = Duration::ZERO;
    for line in lines {
        longest = longest.max(finish(folder, line));
        whole.push(content(folder));
    }
    assert_ne!(whole[0], whole[1], "old and new can be told apart");
    let (mut untouched, mut done) = (0, 0);
    for kill in 0..kills {
        // The folder holds the result of the second line before the first is killed, and the other way round.
        let (new, old) = ((kill % 2) as usize, ((kill + 1) % 2) as usize);
        if content(folder) != whole[old] {
            finish(folder, lines[old]);
            assert_eq!(content(folder), whole[old], "a second run gives what it should");
        }
        // Moments follow the golden ratio: spread evenly however many there are.
        let share = f64::from(kill).mul_add(0.618_033_988_749_895, 0.5).fract();
        let mut child = start(folder, lines[new]);
        std::thread::sleep(longest.mul_f64(share * 1.2));
        child.kill().unwrap();
        child.wait().unwrap();
        let found = content(folder);
        match found {
            _ if found == whole[old] => untouched += 1,
            _ if found == whole[new] => done += 1,
            _ => {
                let names: Vec<_> =
                    found.keys().filter(|name| whole[old].get(*name) != found.get(*name)).collect();
                panic!(
                    "{} was killed at {share:.3} and left something that is neither old nor new: {names:?}",
                    lines[new]
                );
            }
        }
    }
    finish(folder, one);
    assert_eq!(content(folder), whole[0], "a run after all that succeeds");
    println!("{one}: {kills} killed, {untouched} left the old, {done} the new");
    assert!(untouched > 0, "some must have been in time");
}

#[test]
fn emitted_folders_are_old_or_new() {
    let line = "emit ROOT/fixtures/traces/unet_small.pt -o out --force --stages";
    torture(&format!("{line} 2"), &format!("{line} 3"), 30);
}

#[test]
fn splits_are_old_or_new() {
    let line = "split ROOT/fixtures/traces/unet_small.pt --devices 2xt4 -o out --force --stages";
    torture(&format!("{line} 2"), &format!("{line} 1"), 30);
}

#[test]
fn reports_are_old_or_new() {
    let place = "-o report.html";
    let other = format!("report ROOT/fixtures/traces/gpt2_tiny.pt {place}");
    torture(&format!("report ROOT/fixtures/traces/unet_small.pt {place}"), &other, 20);
}

#[test]
fn plans_are_old_or_new() {
    let line = "plan ROOT/fixtures/traces/cnn_basic.pt -o plan.yaml --devices";
    torture(&format!("{line} 2xt4"), &format!("{line} 4xv100"), 30);
}

/// Lists what lies in a folder that has no name yet.
fn unfinished(folder: &Path) -> Vec<PathBuf> {
    let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    paths.filter(|path| path.file_name().unwrap().to_string_lossy().starts_with(UNFINISHED)).collect()
}

/// Interrupts each of the lines with each signal at some moments, and expects nothing beside what was there.
fn interrupt(lines: &[&str], moments: u32) {
    use std::os::unix::process::ExitStatusExt;

    use rustix::process::{Pid, Signal, kill_process};

    let place = tempfile::tempdir().unwrap();
    let folder = place.path();
    let mut told = 0;
    for (index, line) in lines.iter().enumerate() {
        let longest = finish(folder, line);
        let whole = content(folder);
        for moment in 0..moments {
            let signal = [Signal::INT, Signal::TERM, Signal::HUP][((index as u32 + moment) % 3) as usize];
            let share = f64::from(moment).mul_add(0.618_033_988_749_895, 0.5).fract();
            let child = start(folder, line);
            std::thread::sleep(longest.mul_f64(share));
            let _ = kill_process(Pid::from_raw(child.id().cast_signed()).unwrap(), signal);
            let output = child.wait_with_output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            let number = signal.as_raw();
            match (output.status.code(), output.status.signal()) {
                // Before the command could do anything.
                (None, Some(by)) if by == number && said.is_empty() => {}
                (Some(0), None) => {}
                (Some(code), None) if code == 128 + number => {
                    assert!(
                        said.starts_with("interrupted: ") && said.lines().count() == 1,
                        "{line}: {said:?}"
                    );
                    let is_done = !said.contains("nothing was written");
                    assert!(!is_done || said.contains(" is written"), "{line}: {said}");
                    told += 1;
                }
                other => panic!("{line} ended with {other:?} on {signal:?}: {said}"),
            }
            assert_eq!(unfinished(folder), Vec::<PathBuf>::new(), "{line}, {signal:?} at {share:.3}");
            assert_eq!(content(folder), whole, "{line}, {signal:?} at {share:.3}");
        }
    }
    println!("{told} of {} were told to end in time", lines.len() as u32 * moments);
    assert!(told > 0, "some must have been in time");
}

#[test]
fn signals_leave_nothing_and_say_so() {
    let lines = [
        "emit ROOT/fixtures/traces/unet_small.pt -o out --force --stages 2",
        "split ROOT/fixtures/traces/unet_small.pt --devices 2xt4 --stages 2 -o out --force",
        "report ROOT/fixtures/traces/unet_small.pt -o report.html",
    ];
    interrupt(&lines, 18);
}

#[test]
fn an_interrupted_trace_takes_its_python_along() {
    let Some(python) = needs::python() else { return };
    let place = tempfile::tempdir().unwrap();
    let folder = place.path();
    // Something that Python would go on with for a minute, and that starts a process of its own.
    let source = "
import os, subprocess, time
import torch

class Slow(torch.nn.Module):
    def __init__(self):
        super().__init__()
        other = subprocess.Popen(['sleep', '60'])
        with open('pids.tmp', 'w') as file:
            file.write(f'{os.getpid()} {other.pid}')
        os.replace('pids.tmp', 'pids')
        time.sleep(60)
";
    fs::write(folder.join("slow.py"), source).unwrap();
    let line = format!("trace slow.py:Slow --input 2 -o slow.pt --python {}", python.display());
    for signal in [rustix::process::Signal::INT, rustix::process::Signal::TERM] {
        let child = start(folder, &line);
        let pids = loop {
            match fs::read_to_string(folder.join("pids")) {
                Ok(text) => break text,
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
            }
        };
        fs::remove_file(folder.join("pids")).unwrap();
        let pid = rustix::process::Pid::from_raw(child.id().cast_signed()).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(said, "interrupted: nothing was written\n");
        assert_eq!(output.status.code(), Some(128 + signal.as_raw()));
        for pid in pids.split(' ') {
            let pid = rustix::process::Pid::from_raw(pid.parse().unwrap()).unwrap();
            // Whoever inherits it may not have taken note of its end yet.
            let is_running = || {
                let status = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok();
                status.is_some_and(|status| !status.contains(") Z "))
            };
            let start_of = Instant::now();
            while is_running() && start_of.elapsed() < Duration::from_secs(5) {
                std::thread::sleep(Duration::from_millis(10));
            }
            assert!(!is_running(), "process {pid:?} goes on");
        }
        assert_eq!(unfinished(folder), Vec::<PathBuf>::new());
        assert!(!folder.join("slow.pt").exists());
    }
}

#[test]
fn what_killed_runs_left_goes_with_the_next_run_and_what_others_make_stays() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path();
    let at = |name: &str| folder.join(format!("{UNFINISHED}{name}"));
    let make = || {
        for name in ["left", "made"] {
            fs::create_dir_all(at(name).join("stages")).unwrap();
            fs::write(at(name).join("stages/stage_0.pt"), "half").unwrap();
            fs::write(at(&format!("{name}.html")), "half").unwrap();
        }
    };
    make();
    let locks = ["made", "made.html"].map(|name| {
        let file = fs::File::open(at(name)).unwrap();
        rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive).unwrap();
        file
    });
    for line in [
        "report ROOT/fixtures/traces/cnn_basic.pt -o report.html",
        "emit ROOT/fixtures/traces/cnn_basic.pt --stages 2 -o out --force",
    ] {
        make();
        finish(folder, line);
        let left: std::collections::BTreeSet<_> = unfinished(folder).into_iter().collect();
        assert_eq!(left, [at("made"), at("made.html")].into(), "{line}");
    }
    drop(locks);
    finish(folder, "report ROOT/fixtures/traces/cnn_basic.pt -o report.html");
    assert_eq!(unfinished(folder), Vec::<PathBuf>::new());
}

#[test]
fn a_model_that_shrinks_while_it_is_read_is_told() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path();
    let model = folder.join("m.pt");
    let bytes = fs::read(root().join("fixtures/traces/unet_small.pt")).unwrap();
    let (mut told, mut early, mut late) = (0, 0, 0);
    for line in ["split m.pt --devices 2xt4 --stages 2 -o out", "emit m.pt --stages 2 -o out", "inspect m.pt"]
    {
        fs::write(&model, &bytes).unwrap();
        let longest = finish(folder, line);
        let _ = fs::remove_dir_all(folder.join("out"));
        for moment in 0..16 {
            fs::write(&model, &bytes).unwrap();
            let share = f64::from(moment).mul_add(0.618_033_988_749_895, 0.5).fract();
            let child = start(folder, line);
            std::thread::sleep(longest.mul_f64(share));
            let file = fs::OpenOptions::new().write(true).open(&model).unwrap();
            file.set_len(bytes.len() as u64 / if moment % 2 == 0 { 2 } else { 200 }).unwrap();
            let output = child.wait_with_output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            match output.status.code() {
                Some(0) => late += 1,
                Some(2) if said.starts_with("error: m.pt was changed while it was read\n") => told += 1,
                // It was short before the command looked at it.
                Some(2) if said.starts_with("error: m.pt: ") => early += 1,
                code => panic!("{line} at {share:.3}: {code:?} {said}"),
            }
            let _ = fs::remove_dir_all(folder.join("out"));
            assert_eq!(fs::read_dir(folder).unwrap().count(), 1, "{line} at {share:.3} left something");
        }
    }
    println!("{told} were told, {early} began too late, {late} were done before");
}

#[test]
fn limits_are_told_and_leave_nothing() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path();
    let model = root().join("fixtures/traces/unet_small.pt");
    let lines =
        ["split MODEL --devices 2xt4 --stages 2 -o out", "emit MODEL --stages 2 -o out", "report MODEL -o r"];
    // So many open files, beside those that the system's own libraries need while the command starts; blocks of a file.
    let of_files = (3..16).map(|count| format!("ulimit -n {count}; exec"));
    // One writer at a time has fewer files open than the check behind it, which then meets the limit.
    let alone = (8..11).map(|count| format!("ulimit -n {count}; exec taskset -c 0"));
    let limits = of_files
        .chain(alone.filter(|_| cfg!(target_os = "linux")))
        .chain(["ulimit -f 40; exec".into(), "ulimit -f 1; exec".into()]);
    let mut told = 0;
    for limit in limits {
        for line in lines {
            let line = line.replace("MODEL", model.to_str().unwrap());
            let output = Command::new("sh")
                .args(["-c", &format!("{limit} {} {line}", env!("CARGO_BIN_EXE_model-analyze"))])
                .current_dir(folder)
                .output()
                .unwrap();
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            let code = output.status.code();
            let loads = !said.contains("error while loading shared libraries");
            assert!(matches!(code, Some(0 | 2)) || !loads, "{limit} {line}: {code:?} {said}");
            assert!(!said.contains("uncategorized"), "{limit} {line}: {said}");
            told += u32::from(loads && code == Some(2));
            if code == Some(0) {
                fs::remove_dir_all(folder.join("out"))
                    .or_else(|_| fs::remove_file(folder.join("r")))
                    .unwrap();
            }
            let left: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
            assert_eq!(left, Vec::<PathBuf>::new(), "{limit} {line}: {said}");
        }
    }
    assert!(told > 6, "only {told} met a limit");
}

/// Rows that end, without comments: what a profile has measured so far.
#[cfg(feature = "torch")]
fn rows(text: &str) -> Vec<&str> {
    let whole = text.split_inclusive('\n').filter(|line| line.ends_with('\n') && !line.starts_with('#'));
    whole.map(str::trim_end).skip(1).collect()
}

#[cfg(feature = "torch")]
#[test]
fn profiles_go_on_where_they_were() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path();
    let line = "profile --suite --kinds linear,relu --minutes 0.2 -o profile.csv";
    let mut before: Vec<String> = Vec::new();
    for kill in 0..10 {
        let share = f64::from(kill).mul_add(0.618_033_988_749_895, 0.5).fract();
        let mut child = start(folder, line);
        std::thread::sleep(Duration::from_secs_f64(0.2 + 2.0 * share));
        child.kill().unwrap();
        child.wait().unwrap();
        let Ok(text) = fs::read_to_string(folder.join("profile.csv")) else { continue };
        let after: Vec<String> = rows(&text).into_iter().map(str::to_string).collect();
        // An item that was cut off may be measured anew; what was whole before stays.
        let kept = before.iter().zip(&after).take_while(|(one, other)| one == other).count();
        assert!(kept + 3 >= before.len(), "{} rows were lost", before.len() - kept);
        before = after;
    }
    finish(folder, line);
    let text = fs::read_to_string(folder.join("profile.csv")).unwrap();
    assert!(text.ends_with('\n'));
    let all = rows(&text);
    assert!(all.len() >= before.len() && all.len() > 5, "{} rows", all.len());
    let fields: Vec<usize> = all.iter().map(|row| row.split(',').count()).collect();
    assert!(fields.iter().all(|n| *n == fields[0]), "half a row was taken for a whole one");
    let described = |row: &&str| row.rsplitn(4, ',').last().map(str::to_string);
    println!("{} rows after 10 kills, the first {:?}", all.len(), described(&all[0]));
}

/// Kills all processes of a training run, then takes it up: the losses are those of a run that was left alone.
#[cfg(feature = "torch")]
#[test]
fn training_goes_on_from_its_last_checkpoint() {
    use std::{
        io::{BufRead, BufReader},
        os::unix::process::CommandExt,
    };

    let place = tempfile::tempdir().unwrap();
    let folder = place.path();
    finish(folder, "emit ROOT/fixtures/traces/cnn_basic.pt --stages 2 -o out");
    let start_training = |checkpoints: &str, steps: &str| {
        Command::new(root().join(".venv/bin/python"))
            .args(["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "train.py"])
            .args([
                "--allow-eval",
                "--device",
                "cpu",
                "--steps",
                steps,
                "--save-every",
                "1",
                "--resume",
                "--save",
                checkpoints,
            ])
            .current_dir(folder.join("out"))
            .env("OMP_NUM_THREADS", "1")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
            .expect("python starts")
    };
    let losses = |text: &[u8]| -> Vec<(u32, String)> {
        let text = String::from_utf8_lossy(text).into_owned();
        let words = |line: &str| {
            let mut words = line.strip_prefix("step ")?.split(' ');
            Some((words.next()?.parse().ok()?, words.nth(1)?.to_string()))
        };
        text.lines().filter_map(words).collect()
    };
    let output = start_training("whole", "42").wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let whole = losses(&output.stdout);
    assert_eq!(whole.len(), 42);
    for step in [7, 23] {
        let mut child = start_training("killed", "42");
        let group = rustix::process::Pid::from_raw(child.id().cast_signed()).unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut seen = Vec::new();
        for line in lines.map_while(Result::ok) {
            let found = losses(line.as_bytes());
            let is_time = found.iter().any(|(at, _)| *at == step);
            seen.extend(found);
            if is_time {
                break;
            }
        }
        // Somewhere in the next step, or while this one is written.
        rustix::process::kill_process_group(group, rustix::process::Signal::KILL).unwrap();
        child.wait().unwrap();
        for (step, loss) in seen {
            assert_eq!(whole[step as usize - 1], (step, loss), "the curve is another one");
        }
    }
    let output = start_training("killed", "42").wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let last = losses(&output.stdout);
    for (step, loss) in &last {
        assert_eq!(whole[*step as usize - 1], (*step, loss.clone()), "the curve is another one");
    }
    // A checkpoint is written while the next step runs: the last whole one may be of two steps before.
    assert!((10..=21).contains(&last.len()), "after step 23 there are not {} left", last.len());
}
