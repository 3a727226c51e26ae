//! `fit` from the outside: answers, files and the errors that a user can meet.

use std::path::{Path, PathBuf};

use assert_cmd::Command;

fn fit() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_model-analyze"));
    command.arg("fit");
    command
}

/// Products on a device with a launch of 5 µs, 60 % of the arithmetic and 80 % of the bandwidth.
fn profile(folder: &Path, change: impl Fn(String) -> String) -> PathBuf {
    let mut text = String::from("kind,dtype,device,m,n,k,seconds\n");
    for i in 0..120_u64 {
        let size = |salt: u64| 16 << ((i * salt + salt) % 8);
        let (m, n, k) = (size(3) + i, size(5), size(7) + 8 * (i % 5));
        let seconds = 5e-6 + (2 * m * n * k) as f64 / 1.87e14 + (2 * (m * k + n * k + m * n)) as f64 / 1.6e12;
        text.push_str(&format!("linear,bfloat16,A100,{m},{n},{k},{seconds:e}\n"));
    }
    let path = folder.join("profile.csv");
    std::fs::write(&path, change(text)).expect("written");
    path
}

#[test]
fn it_fits_writes_and_draws() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = profile(folder.path(), |text| text);
    let (model, plot) = (folder.path().join("cost-model.yaml"), folder.path().join("fit.svg"));
    let done =
        fit().arg(&path).args(["--format", "json", "-o"]).arg(&model).arg("--plot").arg(&plot).output();
    let done = done.expect("ran");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let answer: serde_json::Value = serde_json::from_slice(&done.stdout).expect("JSON");
    let group = &answer["groups"][0];
    assert_eq!((&group["kind"], &group["dtype"]), (&"linear".into(), &"bfloat16".into()));
    assert!(group["mape"].as_f64().expect("a number") < 5.0, "{group}");
    assert_eq!(group["negative"], 0);
    // What was written is read back and written alike.
    let text = std::fs::read_to_string(&model).expect("a model");
    let file = schema::CostModelFile::read(&text).expect("a model");
    let own = cost_model::CostModel::from_file(&file).expect("a model");
    assert_eq!(schema::to_yaml(&own.to_file()), text);
    assert!(std::fs::read_to_string(&plot).expect("a plot").starts_with("<svg"));
}

#[test]
fn wrong_input_is_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let check = |change: &dyn Fn(String) -> String, arguments: &[&str], expected: &str| {
        let path = profile(folder.path(), change);
        let done = fit().arg(&path).args(arguments).output().expect("ran");
        let shown = String::from_utf8_lossy(&done.stderr);
        assert_eq!(done.status.code(), Some(2), "{shown}");
        assert!(shown.contains(expected), "{shown}");
    };
    check(&|text| text.replacen("linear,bfloat16,A100", "linear,bfloat16,H20O", 1), &[], "If H200 is meant");
    check(&|text| text.replacen("linear,bfloat16,A100", "linear,bfloat16,H100", 1), &[], "2 devices");
    check(&|text| text.replace("seconds", "time"), &[], "column `seconds`");
    check(&|text| text[..600].to_string(), &[], "line 1");
    check(&|text| text.lines().take(9).map(|line| format!("{line}\n")).collect(), &[], "too few rows");
    check(&|text| text, &["--device", "V100"], "no row was measured on V100");
    check(&|text| text, &["--features", "raw", "-o", "x.yaml"], "physical");
    // A name that was typed may be mistyped.
    let nameless = |text: String| text.replace(",device,", ",").replace(",A100,", ",");
    check(&nameless, &["--device", "A10O"], "did you mean A10");
}

#[test]
fn a_device_that_nobody_knows_has_the_figures_of_its_rows() {
    let folder = tempfile::tempdir().expect("a folder");
    let renamed = |text: String| {
        "# model-analyze profile, version 1\n# hardware: architecture sm99, memory 16000000000 B\n"
            .to_string()
            + &text.replace(",A100,", ",Foo 9000,")
    };
    let path = profile(folder.path(), renamed);
    let model = folder.path().join("foo.yaml");
    let done = fit().arg(&path).args(["--format", "json", "-o"]).arg(&model).output().expect("ran");
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success() && said.contains("`Foo 9000` is not in the catalogue"), "{said}");
    let answer: serde_json::Value = serde_json::from_slice(&done.stdout).expect("JSON");
    assert!(answer["groups"][0]["mape"].as_f64().expect("a number") < 5.0, "{answer}");
    let file =
        schema::CostModelFile::read(&std::fs::read_to_string(&model).expect("a model")).expect("a model");
    let rate = file.figures.peak["bfloat16"].0;
    assert!((0.3e14..1.87e14).contains(&rate), "{rate:e}");
    assert_eq!((file.figures.memory.0, file.figures.architecture.as_deref()), (16_000_000_000, Some("sm99")));
    // The model brings its device along: no file has to describe it again.
    let traced = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/traces/unet_small.pt");
    for arguments in
        [["plan", traced, "--devices", "2xfoo-9000"], ["inspect", traced, "--device", "foo 9000"]]
    {
        let mut command = Command::new(env!("CARGO_BIN_EXE_model-analyze"));
        let done = command.args(arguments).arg("--cost-model").arg(&model).output().expect("ran");
        let (shown, said) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
        assert!(done.status.success() && shown.contains("Foo 9000, fitted to profile.csv"), "{shown}{said}");
    }
}

/// Each fault as a user sees it, with its row and column.
#[test]
fn faults_are_shown_with_row_and_column() {
    let folder = tempfile::tempdir().expect("a folder");
    let check = |name: &str, change: &dyn Fn(String) -> String, arguments: &[&str]| {
        let path = profile(folder.path(), change);
        let done = fit().arg(&path).args(arguments).output().expect("ran");
        assert_eq!(done.status.code(), Some(2), "{name}");
        let shown = String::from_utf8_lossy(&done.stderr).into_owned();
        insta::assert_snapshot!(name, shown.replace(&path.display().to_string(), "profile.csv"));
    };
    let in_row = |line: usize, cell: usize, text: &'static str| {
        move |profile: String| {
            let mut lines: Vec<String> = profile.lines().map(str::to_string).collect();
            let mut cells: Vec<&str> = lines[line - 1].split(',').collect();
            cells[cell] = text;
            lines[line - 1] = cells.join(",");
            lines.join("\n") + "\n"
        }
    };
    check("fit_time_nan", &in_row(7, 6, "NaN"), &[]);
    check("fit_time_negative", &in_row(9, 6, "-1e-5"), &[]);
    check("fit_dimension", &in_row(12, 4, "0"), &[]);
    check("fit_two_devices", &in_row(30, 2, "H100"), &[]);
    check("fit_cut_off", &|text| text[..text.len() - 40].to_string() + "\nlinear,bfl", &[]);
    check("fit_too_few", &|text| text.lines().take(9).map(|line| format!("{line}\n")).collect(), &[]);
    let map = folder.path().join("map.yaml");
    std::fs::write(
        &map,
        "kind: profile-map\nversion: 1\ncolumns: {widht: {column: m}}\ntimes: [{column: seconds, unit: s}]\n",
    )
    .expect("written");
    let map = map.display().to_string();
    let path = profile(folder.path(), |text| text);
    let done = fit().arg(&path).args(["--map", &map]).output().expect("ran");
    assert_eq!(done.status.code(), Some(2));
    let shown = String::from_utf8_lossy(&done.stderr).into_owned();
    insta::assert_snapshot!("fit_unknown_column", shown.replace(&map, "map.yaml"));
}

/// Four ranks on a link of 5 µs and 10 GB/s, without noise: a message to the next rank is one hop, an exchange among all is three.
#[test]
fn messages_to_neighbours_tell_the_same_link_as_exchanges_among_all() {
    let folder = tempfile::tempdir().expect("a folder");
    let (latency, bandwidth) = (5.0, 1e4);
    let table = |name: &str, hops: f64, share: f64| {
        let mut text = format!("# Collective test starting: {name}_perf\n");
        for rank in 0..4 {
            text += &format!("#  Rank {rank:2} Group  0 Pid  1 on  host device  {rank} [{rank}] cpu\n");
        }
        text += "#       size   count   type   redop   root   time   algbw   busbw\n";
        for size in [16_384_u32, 262_144, 4_194_304, 67_108_864].map(f64::from) {
            let time = hops * latency + share * size / bandwidth;
            text += &format!("{size} {} float none -1 {time:.3} {:.3} 0\n", size / 4.0, size / time / 1e3);
        }
        text
    };
    for tables in [table("sendrecv", 1.0, 1.0), table("alltoall", 3.0, 0.75) + &table("sendrecv", 1.0, 1.0)] {
        std::fs::write(folder.path().join("links.txt"), tables).expect("written");
        let done = fit().arg(folder.path().join("links.txt")).output().expect("ran");
        let shown = String::from_utf8_lossy(&done.stdout).into_owned();
        assert!(shown.contains("sendrecv of 4 ranks on 1 host, 4 sizes"), "{shown}");
        assert!(shown.contains("bandwidth: 1e10, latency: 5e-6"), "{shown}");
        assert_eq!(shown.matches("error 0.0 % at the median").count(), shown.matches(" sizes from ").count());
    }
}

#[test]
fn the_output_of_nccl_tests_becomes_a_level_of_a_cluster() {
    let folder = tempfile::tempdir().expect("a folder");
    let measured = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/profiles/nccl_tests_a100_8.txt");
    let level = folder.path().join("level.yaml");
    let done = fit().args([measured, "-o"]).arg(&level).output().expect("ran");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    insta::assert_snapshot!("fit_links", String::from_utf8_lossy(&done.stdout));
    // What was written is what a cluster file has.
    let level = std::fs::read_to_string(&level).expect("a level");
    let cluster = format!("kind: cluster\nversion: 1\ndevices: [{{type: a100, count: 8}}]\n{level}");
    let cluster = schema::read_cluster(&cluster, &Default::default()).expect("a cluster");
    assert_eq!((cluster.levels.len(), cluster.levels[0].name.as_str()), (1, "inside-a-node"));

    let text = std::fs::read_to_string(measured).expect("times");
    let wrong = |change: (&str, &str), arguments: &[&str], expected: &str| {
        let path = folder.path().join("wrong.txt");
        std::fs::write(&path, text.replace(change.0, change.1)).expect("written");
        let done = fit().arg(&path).args(arguments).output().expect("ran");
        let shown = String::from_utf8_lossy(&done.stderr);
        assert_eq!(done.status.code(), Some(2), "{shown}");
        assert!(shown.contains(expected), "{shown}");
    };
    wrong(("   22.57 ", "     nan "), &[], "wrong.txt: line 18: time is `nan`, not a number");
    wrong(("#  Rank", "#  Device"), &[], "line 16: the table is for 0 ranks");
    wrong(("all_reduce_perf", "hypercube_perf"), &[], "there is no formula for the time of `hypercube`");
    wrong(("", ""), &["--plot", "x.svg"], "--plot is for profiles of operators");
}
