//! `model-analyze profile` as a user meets it. Most of it needs libtorch: `cargo test --features torch --test profile`.

use std::{path::Path, process::Command};

mod needs;

#[cfg(feature = "torch")]
mod validate;

fn command() -> Command {
    Command::new(env!("CARGO_BIN_EXE_model-analyze"))
}

/// Runs `profile` in a folder; returns the exit code and both outputs.
fn profile(folder: &Path, arguments: &[&str]) -> (i32, String, String) {
    let output =
        command().arg("profile").args(arguments).current_dir(folder).output().expect("the command starts");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("answers are text");
    (output.status.code().expect("no signal"), text(output.stdout), text(output.stderr))
}

#[test]
fn an_unknown_kind_has_its_neighbours_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let (code, _, error) =
        profile(folder.path(), &["--suite", "-o", "p.csv", "--kinds", "linear,convolutoin"]);
    assert_eq!(code, 2);
    assert!(
        error.contains("'convolutoin'") && error.contains("a similar value exists: 'convolution'"),
        "{error}"
    );
    let (code, _, error) = profile(folder.path(), &["--suite", "-o", "p.csv", "--dtype", "float23"]);
    assert_eq!(code, 2);
    assert!(error.contains("unknown data type `float23`; known are float32, tf32"), "{error}");
}

#[test]
fn something_must_be_measured_for_some_time() {
    let folder = tempfile::tempdir().expect("a folder");
    let (code, _, error) = profile(folder.path(), &["-o", "p.csv"]);
    assert_eq!(code, 2);
    assert!(error.contains("--suite"), "{error}");
    for minutes in ["0", "-1", "NaN", "1e9", "ten"] {
        let minutes = format!("--minutes={minutes}");
        let (code, _, error) = profile(folder.path(), &["--suite", "-o", "p.csv", &minutes]);
        assert_eq!(code, 2, "{minutes}: {error}");
    }
}

#[cfg(not(feature = "torch"))]
#[test]
fn without_libtorch_it_says_how_to_build() {
    let folder = tempfile::tempdir().expect("a folder");
    let (code, _, error) = profile(folder.path(), &["--suite", "-o", "p.csv"]);
    assert_eq!(code, 2);
    assert_eq!(
        error,
        "error: this build cannot profile: it has no libtorch\n  hint: make .venv/ready && cargo build --release --features torch\n"
    );
    assert!(!folder.path().join("p.csv").exists());
}

/// Two processes over gloo, up to 1 MiB and for some seconds.
const LINKS: [&str; 6] = ["--links", "-o", "links.txt", "--largest", "1MiB", "--minutes=0.05"];
/// What is said where other work hides the link: small messages take as long as large ones.
const HIDDEN: &str = "the sizes do not separate latency from bandwidth";

#[test]
fn two_processes_measure_the_link_between_them() {
    let Some(python) = needs::python() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let python = python.display().to_string();
    let (code, answer, error) =
        profile(folder.path(), &[&LINKS[..], &["--python", &python, "--format", "json"]].concat());
    assert!(code == 0 || error.contains(HIDDEN) && error.contains("while nothing else runs"), "{error}");
    let text = std::fs::read_to_string(folder.path().join("links.txt")).expect("tables");
    let tests = schema::read_nccl_tests(&text).expect("the form of nccl-tests");
    let names: Vec<&str> = tests.iter().map(|test| test.collective.as_str()).collect();
    assert_eq!(names, ["all_reduce", "reduce_scatter", "all_gather", "alltoall", "broadcast", "sendrecv"]);
    for test in &tests {
        assert_eq!((test.ranks, test.hosts), (2, 1));
        let sizes: Vec<u64> = test.rows.iter().map(|(bytes, _)| *bytes).collect();
        assert_eq!(sizes, [1_024, 4_096, 16_384, 65_536, 262_144, 1_048_576], "{}", test.collective);
    }
    // A time is that of one call: what stands beside it follows from it.
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let cells: Vec<f64> = line.split_whitespace().filter_map(|cell| cell.parse().ok()).collect();
        // Of the words, none is a number; the root is -1.
        let [size, count, _, time, algorithm, _] = cells[..] else { panic!("`{line}` has other columns") };
        assert!(size == 4.0 * count && (size / time / 1e3 - algorithm).abs() < 1e-3, "{line}");
        assert!((1.0..1e6).contains(&time), "{line}");
    }
    // The answer is what `fit` says of the file.
    let fit = ["fit", "links.txt", "--format", "json"];
    let fitted = command().args(fit).current_dir(folder.path()).output().expect("the command starts");
    assert_eq!(String::from_utf8_lossy(&fitted.stdout), answer);
}

/// As torchrun starts them: the first writes, the other is silent.
#[test]
fn ranks_of_torchrun_measure_together_and_one_answers() {
    let Some(python) = needs::python() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    // The system hands out none of these by itself, and so nothing else takes it meanwhile.
    let from = 20_000 + u16::try_from(std::process::id() % 10_000).expect("it is small");
    let is_free = |port: &u16| std::net::TcpListener::bind(("127.0.0.1", *port)).is_ok();
    let port = (from..from + 2000).find(is_free).expect("a port").to_string();
    let rank = |rank: &str, rest: &[&str]| {
        let mut one = command();
        one.arg("profile").args(LINKS).args(rest).arg("--python").arg(&python).current_dir(folder.path());
        one.envs([("RANK", rank), ("LOCAL_RANK", rank), ("WORLD_SIZE", "2"), ("GLOO_SOCKET_IFNAME", "lo")]);
        one.envs([("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", &port)]);
        one.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
        one.spawn().expect("it starts")
    };
    let ranks = [rank("0", &[]), rank("1", &[])];
    let [first, other] = ranks.map(|rank| rank.wait_with_output().expect("it ends"));
    let said = String::from_utf8_lossy(&first.stdout).into_owned();
    assert!(first.status.success() && other.status.success(), "{}", String::from_utf8_lossy(&first.stderr));
    assert!(
        said.contains("latency ") && said.contains("model-analyze fit links.txt -o level.yaml"),
        "{said}"
    );
    assert!(other.stdout.is_empty(), "{}", String::from_utf8_lossy(&other.stdout));
    let wrong = rank("0", &["--ranks", "4"]).wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&wrong.stderr).into_owned();
    assert!(
        said.contains("torchrun has started 2 ranks, not 4") && said.contains("leave out --ranks"),
        "{said}"
    );
}

#[test]
fn what_keeps_links_from_being_measured_is_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let refused = |arguments: &[&str], expected: &[&str]| {
        let (code, _, error) = profile(folder.path(), &[&LINKS[..3], arguments].concat());
        assert_eq!(code, 2, "{error}");
        for part in expected {
            assert!(error.contains(part), "{arguments:?}: {error}");
        }
        assert!(!folder.path().join("links.txt").exists());
    };
    refused(&["--device", "cuda:1"], &["--links joins several devices, not `cuda:1` alone", "--device cuda"]);
    refused(&["--largest", "1KiB"], &["--largest is less than 1 MiB"]);
    refused(&["--ranks", "1"], &["2..=1024"]);
    refused(&["--kinds", "linear"], &["'--links' cannot be used with '--kinds"]);
    refused(&["--python", "no-such-python"], &["cannot run no-such-python", "--python .venv/bin/python"]);
    let Some(python) = needs::python() else { return };
    let python = python.display().to_string();
    if !has_gpus(&python) {
        refused(&["--python", &python, "--device", "cuda"], &["has no GPU: 0 are here", "--ranks"]);
    }
    // An interpreter without torch, as it looks to the script.
    std::fs::write(folder.path().join("torch.py"), "raise ImportError('none')").expect("written");
    let mut bare = command();
    bare.arg("profile").args(LINKS).args(["--python", &python]).env("PYTHONPATH", folder.path());
    let output = bare.current_dir(folder.path()).output().expect("the command starts");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("has no torch") && said.contains("with --python"), "{said}");
    // A rank that dies takes the others with it, and is named.
    let dying = "import os, sys\nif not hasattr(os, 'was'):\n    os.was = os.fork\n    def fork():\n        \
                 fork.n += 1\n        process = os.was()\n        if process == 0 and fork.n == 2: os.kill(os.getpid(), 9)\n        \
                 return process\n    fork.n = 0\n    os.fork = fork\n";
    std::fs::remove_file(folder.path().join("torch.py")).expect("removed");
    std::fs::write(folder.path().join("sitecustomize.py"), dying).expect("written");
    let mut one = command();
    one.arg("profile").args(LINKS).args(["--python", &python]).env("PYTHONPATH", folder.path());
    let output = one.current_dir(folder.path()).output().expect("the command starts");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("rank 1 was ended by signal 9"), "{said}");
}

fn has_gpus(python: &str) -> bool {
    let asks = "import sys, torch; sys.exit(0 if torch.cuda.is_available() else 1)";
    Command::new(python).args(["-c", asks]).status().is_ok_and(|status| status.success())
}

#[cfg(feature = "torch")]
mod with_libtorch {
    use std::{collections::BTreeMap, fs, time::Duration};

    use super::*;

    const QUICK: [&str; 9] =
        ["--suite", "-o", "p.csv", "--kinds", "linear,softmax", "--minutes", "0.05", "--threads", "1"];

    fn read(folder: &Path) -> (String, schema::Profile) {
        let text = fs::read_to_string(folder.join("p.csv")).expect("a profile");
        let profile = schema::read_own_profile(&text).expect("the schema reads what was written");
        (text, profile)
    }

    /// Rows of each item and phase; more than one of any would be counted twice in a fit.
    fn places(text: &str) -> BTreeMap<(String, String), usize> {
        let mut lines = text.lines().filter(|line| !line.starts_with('#'));
        let columns: Vec<&str> = lines.next().expect("columns").split(',').collect();
        let at = |name: &str| columns.iter().position(|column| *column == name).expect("a column");
        let (item, phase) = (at("item"), at("phase"));
        let mut places = BTreeMap::new();
        for line in lines {
            let cells: Vec<&str> = line.split(',').collect();
            *places.entry((cells[item].to_string(), cells[phase].to_string())).or_default() += 1;
        }
        places
    }

    #[test]
    fn a_suite_is_measured_and_taken_up_again() {
        let folder = tempfile::tempdir().expect("a folder");
        let (code, answer, error) = profile(folder.path(), &QUICK);
        assert_eq!(code, 0, "{error}");
        assert!(answer.contains("next: model-analyze fit p.csv"), "{answer}");
        let (first, rows) = read(folder.path());
        for key in
            ["device", "hardware", "software", "threads", "overhead", "pace", "date", "command", "plan"]
        {
            assert!(first.contains(&format!("\n# {key}: ")), "no {key}:\n{first}");
        }
        let overhead = rows.overhead.expect("an overhead");
        assert!(overhead.cold > overhead.call, "code that is out of the cache costs more: {overhead:?}");
        assert!(
            rows.rows.iter().any(|row| row.kind == "linear" && row.phase == schema::Phase::WeightGradient)
        );
        assert!(
            rows.rows.iter().any(|row| row.kind == "softmax" && row.phase == schema::Phase::InputGradient)
        );
        assert!(rows.rows.iter().all(|row| row.seconds > 0.0 && row.dtype == "float32"));
        let pairs = || rows.rows.iter().filter_map(|row| row.flushed_seconds.zip(row.warm_seconds));
        let slower = pairs().filter(|(flushed, warm)| flushed > warm).count();
        assert!(pairs().count() > 4 && 2 * slower > pairs().count(), "empty caches cost time: {slower}");
        assert!(pairs().count() < rows.rows.len(), "few are measured with empty caches");

        // A crash in the middle of a row: all before its item stays, byte for byte.
        let cut = first.rfind("\nlinear").expect("rows of linear") + 40;
        fs::write(folder.path().join("p.csv"), &first[..cut]).expect("written");
        let (code, answer, error) = profile(folder.path(), &QUICK);
        assert_eq!(code, 0, "{error}");
        assert!(answer.contains("of earlier runs"), "{answer}");
        let (second, more) = read(folder.path());
        let same = first.lines().zip(second.lines()).take_while(|(a, b)| a == b).count();
        assert!(same >= first[..cut].lines().count() - 3, "{same} lines are the same");
        assert!(more.rows.len() > first[..cut].lines().filter(|line| !line.starts_with('#')).count());
        assert!(places(&second).values().all(|count| *count == 1));

        // Another question does not go into the same file.
        let other_seed = [&QUICK[..], &["--seed", "1"]].concat();
        let (code, _, error) = profile(folder.path(), &other_seed);
        assert_eq!(code, 2);
        assert!(
            error.contains("p.csv was started with another plan: seed=0 kinds=linear,softmax"),
            "{error}"
        );
        let moved = second.replacen("# device: ", "# device: Another ", 1);
        fs::write(folder.path().join("p.csv"), &moved).expect("written");
        let (code, _, error) = profile(folder.path(), &QUICK);
        assert_eq!(code, 2);
        assert!(error.contains("p.csv: the file was measured with device `Another "), "{error}");
        assert_eq!(fs::read_to_string(folder.path().join("p.csv")).expect("kept"), moved);
    }

    #[test]
    fn a_killed_run_goes_on() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut long: Vec<&str> = QUICK.to_vec();
        long[6] = "5";
        let mut child =
            command().arg("profile").args(&long).current_dir(folder.path()).spawn().expect("it starts");
        let begun = || {
            let text = fs::read_to_string(folder.path().join("p.csv")).unwrap_or_default();
            text.lines().filter(|line| line.starts_with("linear")).count() > 6
        };
        for _ in 0..600 {
            if begun() {
                break;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        child.kill().expect("it can be killed");
        child.wait().expect("it ends");
        let before = places(&fs::read_to_string(folder.path().join("p.csv")).expect("a profile")).len();
        let (code, _, error) = profile(folder.path(), &QUICK);
        assert_eq!(code, 0, "{error}");
        let (text, _) = read(folder.path());
        let places = places(&text);
        assert!(places.len() + 3 > before && places.values().all(|count| *count == 1));
        assert!(text.contains("# taken up again: "));
    }

    #[test]
    fn blocks_of_a_model_add_up_to_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/traces/cnn_basic.pt");
        let model = model.to_str().expect("a path of text");
        let arguments =
            ["--model", model, "-o", "p.csv", "--minutes", "0.01", "--threads", "1", "--format", "json"];
        let (code, answer, error) = profile(folder.path(), &arguments);
        assert_eq!(code, 0, "{error}");
        let answer: serde_json::Value = serde_json::from_str(&answer).expect("JSON");
        assert_eq!(answer["schema_version"], 1);
        validate::validate("answer-profile", &answer);
        let (text, rows) = read(folder.path());
        let paths: Vec<&str> = answer["blocks"]
            .as_array()
            .expect("blocks")
            .iter()
            .map(|block| block["path"].as_str().expect("a path"))
            .collect();
        assert!(paths.contains(&"conv1") && paths.contains(&"fc3"), "{paths:?}");
        assert_eq!(rows.rows.iter().filter(|row| row.kind == "model").count(), 2);
        assert_eq!(rows.rows.iter().filter(|row| row.kind == "block").count(), 2 * paths.len());
        assert!(text.contains("# model: "));
        assert_eq!(rows.paces.len(), 2, "before and after");
        let (code, _, error) = profile(folder.path(), &arguments);
        assert_eq!((code, error.contains("p.csv exists")), (2, true), "{error}");
    }

    /// Linkers drop libtorch's half for CUDA, which nothing calls by name; without it no GPU is ever seen.
    #[test]
    fn libtorch_is_asked_for_gpus_with_the_half_that_knows_them() {
        let half = Path::new(env!("CARGO_MANIFEST_DIR")).join(".venv/libtorch/lib/libtorch_cuda.so");
        if !half.exists() {
            needs::skip(needs::Need::Cuda);
            return;
        }
        let folder = tempfile::tempdir().expect("a folder");
        let (_, _, error) = profile(folder.path(), &["--suite", "-o", "p.csv", "--device", "cuda:99"]);
        assert!(error.contains("libtorch has CUDA") || error.contains("only cuda:0"), "{error}");
    }

    #[test]
    fn what_cannot_be_is_told() {
        let folder = tempfile::tempdir().expect("a folder");
        let check = |arguments: &[&str], expected: &str| {
            let (code, _, error) = profile(folder.path(), arguments);
            assert_eq!(code, 2, "{error}");
            assert!(error.contains(expected), "{error}");
        };
        check(
            &["--suite", "-o", "p.csv", "--device", "gpu"],
            "unknown device `gpu`; known are cpu and cuda:N",
        );
        check(&["--suite", "-o", "p.csv", "--device", "cuda:99"], "there is no cuda:99");
        check(&["--suite", "-o", "p.csv", "--dtype", "tf32"], "tf32 is a data type of CUDA devices");
        check(&["--suite", "-o", "no/such/p.csv", "--minutes", "0.01"], "cannot write no/such/p.csv");
        check(&["--model", "none.pt", "-o", "p.csv"], "none.pt");
        fs::write(folder.path().join("notes.csv"), "mine\n").expect("written");
        check(&["--suite", "-o", "notes.csv"], "notes.csv: the file exists and is not a profile");
        assert_eq!(fs::read_to_string(folder.path().join("notes.csv")).expect("kept"), "mine\n");
        assert!(!folder.path().join("p.csv").exists());
    }
}
