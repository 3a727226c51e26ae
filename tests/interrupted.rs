//! Killed at any moment: what lies in its place is whole, old or new, and a second run succeeds.
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
    torture(&format!("{line} 2"), &format!("{line} 3"), 60);
}

#[test]
fn splits_are_old_or_new() {
    let line = "split ROOT/fixtures/traces/unet_small.pt --devices 2xt4 -o out --force --stages";
    torture(&format!("{line} 2"), &format!("{line} 1"), 60);
}

#[test]
fn reports_are_old_or_new() {
    let place = "-o report.html";
    let other = format!("report ROOT/fixtures/traces/gpt2_tiny.pt {place}");
    torture(&format!("report ROOT/fixtures/traces/unet_small.pt {place}"), &other, 30);
}

#[test]
fn plans_are_old_or_new() {
    let line = "plan ROOT/fixtures/traces/cnn_basic.pt -o plan.yaml --devices";
    torture(&format!("{line} 2xt4"), &format!("{line} 4xv100"), 50);
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
    let output = start_training("whole", "60").wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let whole = losses(&output.stdout);
    assert_eq!(whole.len(), 60);
    for step in [7, 23, 41] {
        let mut child = start_training("killed", "60");
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
    let output = start_training("killed", "60").wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let last = losses(&output.stdout);
    for (step, loss) in &last {
        assert_eq!(whole[*step as usize - 1], (*step, loss.clone()), "the curve is another one");
    }
    assert!((10..=19).contains(&last.len()), "after step 41 there are not {} left", last.len());
}
