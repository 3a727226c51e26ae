//! `plan --strategy optcnn` and `flexflow`: operators split over devices, planned, and as the papers' searches predict.

#![allow(clippy::unwrap_used)]

use assert_cmd::Command;

const CNN: &str = "fixtures/traces/cnn_basic.pt";

fn run(arguments: &[&str]) -> std::process::Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_model-analyze"));
    command.current_dir(env!("CARGO_MANIFEST_DIR")).env("NO_COLOR", "1").args(arguments);
    command.output().unwrap()
}

fn json(arguments: &[&str]) -> serde_json::Value {
    let output = run(&[arguments, &["--format", "json"]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let answer = serde_json::from_slice(&output.stdout).unwrap();
    let schema = std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/schema/json/answer-plan.json")).unwrap();
    let schema = serde_json::from_slice(&schema).unwrap();
    jsonschema::validator_for(&schema).unwrap().validate(&answer).unwrap();
    answer
}

/// Two dense layers that are large for their batch, as IR text.
fn dense(folder: &tempfile::TempDir) -> String {
    dense_of(folder, [64, 8192, 4096, 1024])
}

/// Two dense layers with so many rows, inputs, hidden values and outputs.
fn dense_of(folder: &tempfile::TempDir, [rows, inputs, hidden, outputs]: [usize; 4]) -> String {
    let matrix = |rows: usize, columns: usize| {
        format!("Float({rows}, {columns}, strides=[{columns}, 1], requires_grad=1, device=cpu)")
    };
    let (x, first, second) =
        (matrix(rows, inputs).replace("grad=1", "grad=0"), matrix(hidden, inputs), matrix(outputs, hidden));
    let (between, result) = (matrix(rows, hidden), matrix(rows, outputs));
    let text = format!(
        "graph(%self : __torch__.Dense,
      %x : {x}):
  %first : __torch__.torch.nn.modules.linear.Linear = prim::GetAttr[name=\"first\"](%self)
  %second : __torch__.torch.nn.modules.linear.Linear = prim::GetAttr[name=\"second\"](%self)
  %none : NoneType = prim::Constant()
  %v : {first} = prim::GetAttr[name=\"weight\"](%first)
  %y : {between} = aten::linear(%x, %v, %none)
  %z : {between} = aten::relu(%y)
  %w : {second} = prim::GetAttr[name=\"weight\"](%second)
  %u : {result} = aten::linear(%z, %w, %none)
  return (%u)
"
    );
    let path = folder.path().join("dense.txt");
    std::fs::write(&path, text).unwrap();
    path.display().to_string()
}

/// Products of 1,024 rows take a fifth of the time in TF32, but exchanges as long as before: another split is the fastest.
#[test]
fn rounded_products_are_split_as_their_own_times_say() {
    let folder = tempfile::tempdir().unwrap();
    let wide = dense_of(&folder, [1024, 8192, 8192, 8192]);
    let splits = |more: &[&str]| {
        let ask = ["plan", &wide, "--devices", "4xa100", "--strategy", "optcnn"];
        let answer = json(&[&ask, more].concat());
        let operators = answer["shared"]["operators"].as_array().unwrap().iter();
        operators.map(|operator| operator["split"].as_str().unwrap().to_string()).collect::<Vec<_>>()
    };
    assert_ne!(splits(&[]), splits(&["--tf32"]));
}

#[test]
fn splits_are_bounded_and_beat_data_parallelism() {
    let folder = tempfile::tempdir().unwrap();
    let dense = dense(&folder);
    for (model, devices) in [(CNN, "8xt4"), (CNN, "1xt4"), (&dense, "4xt4"), (&dense, "2x4xv100")] {
        let [exact, random] = ["optcnn", "flexflow"]
            .map(|strategy| json(&["plan", model, "--devices", devices, "--strategy", strategy]));
        let number = |answer: &serde_json::Value, key: &str| answer["inside"][key].as_f64().unwrap();
        let (step, bound) = (number(&exact, "step_seconds"), number(&exact, "lower_bound_seconds"));
        assert!(bound <= step && step <= bound * 1.001, "{model} on {devices}: {exact}");
        let walked = number(&random, "step_seconds");
        assert!(bound <= walked * (1.0 + 1e-9) && walked <= step, "{model} on {devices}: {walked}, {step}");
        assert!(step <= number(&exact, "data_parallel_seconds"), "{model} on {devices}: {exact}");
        let operators = exact["inside"]["operators"].as_array().unwrap();
        assert!(!operators.is_empty());
        for operator in operators {
            let parts =
                ["samples", "channels", "height", "width", "sums"].map(|key| operator[key].as_u64().unwrap());
            assert!(8_u64.is_multiple_of(parts.iter().product()), "{operator} on {devices}");
        }
        // One device has nothing to split over; all others have a plan.
        let reason = &exact["inside"]["not_carried_out"];
        assert_eq!(reason.is_string(), devices == "1xt4", "{model} on {devices}: {exact}");
        assert_eq!(exact["shared"]["operators"].is_array(), devices != "1xt4", "{exact}");
    }
}

#[test]
fn large_weights_are_split_rather_than_synchronised() {
    let folder = tempfile::tempdir().unwrap();
    let answer = json(&["plan", &dense(&folder), "--devices", "4xt4", "--strategy", "optcnn"]);
    let step = answer["inside"]["step_seconds"].as_f64().unwrap();
    assert!(answer["inside"]["data_parallel_seconds"].as_f64().unwrap() > 1.5 * step, "{answer}");
    for operator in answer["inside"]["operators"].as_array().unwrap() {
        assert_eq!(operator["samples"], 1, "{operator}");
    }
    for operator in answer["shared"]["operators"].as_array().unwrap() {
        assert_ne!(operator["split"], "samples", "{operator}");
    }
}

/// The fastest splits are never slower than what other options choose of the same splits, on the same devices.
#[test]
fn no_other_option_is_faster() {
    let folder = tempfile::tempdir().unwrap();
    let dense = dense(&folder);
    let gpt = "fixtures/traces/gpt2_tiny.pt";
    let asked = [
        (CNN, "2", "--tensor-parallel"),
        (CNN, "2", "--spatial"),
        (CNN, "2", "--context-parallel"),
        (&dense, "4", "--tensor-parallel"),
        (&dense, "4", "--context-parallel"),
        (gpt, "2", "--tensor-parallel"),
    ];
    for (model, degree, option) in asked {
        let devices = format!("{degree}xt4");
        let step = |more: &[&str]| {
            let arguments = [&["plan", model, "--devices", &devices, "--micro-batches", "1"], more].concat();
            json(&arguments)["step_seconds"].as_f64().unwrap()
        };
        let (own, other) = (step(&["--strategy", "optcnn"]), step(&[option, degree]));
        assert!(own <= other * (1.0 + 1e-6), "{model} {option}: {own}, {other}");
    }
}

/// Devices that share layers are planned as one: what is told of one device would be told of four.
#[test]
fn speed_ups_are_those_of_groups() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("out");
    let split = ["split", CNN, "--devices", "4xt4", "--strategy", "optcnn", "-o", place.to_str().unwrap()];
    let output = run(&split);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{text}");
    for expected in [
        "\nspeed-up    1.00 × one group of 4 devices (",
        "\nsplits      one device alone is faster than any of them: ",
        "\nwould help  one more group of 4 devices (",
        "\ncompared, simulated; 4 devices count as one\n",
    ] {
        assert!(text.contains(expected), "{expected}\n{text}");
    }
    let answer: serde_json::Value =
        serde_json::from_slice(&run(&[&split[..], &["--force", "--format", "json"]].concat()).stdout)
            .unwrap();
    assert!(answer["plan"]["shared"]["alone_seconds"].as_f64().unwrap() > 0.0);
    assert_eq!(answer["one_device_step_seconds"], serde_json::Value::Null);
}

#[test]
fn the_same_seed_gives_the_same_answer() {
    let asked = ["plan", CNN, "--devices", "4xt4", "--strategy", "flexflow"];
    let [one, other] = [run(&asked), run(&asked)];
    assert_eq!(one.stdout, other.stdout);
    let text = String::from_utf8(one.stdout).unwrap();
    for said in [
        "strategy flexflow",
        "each operator over 4 devices in its own way",
        "as the paper searches, with several dimensions",
        "data parallelism:",
        "random changes (MCMC)",
        "the loss not counted",
    ] {
        assert!(text.contains(said), "`{said}` is not in:\n{text}");
    }
}

#[test]
fn what_cannot_be_is_refused() {
    let refused: [(&[&str], i32, &str); 6] = [
        (
            &["plan", CNN, "--devices", "4xt4", "--strategy", "optcnn", "--stages", "2"],
            2,
            "does not take --stages",
        ),
        (
            &["split", CNN, "--devices", "4xt4", "--strategy", "optcnn", "--spatial", "2", "--dry-run"],
            2,
            "does not take --spatial",
        ),
        (&["plan", CNN, "--devices", "2xt4+2xv100", "--strategy", "optcnn"], 2, "needs devices of one type"),
        (
            &["plan", CNN, "--devices", "2xt4", "--strategy", "optcnn", "--memory-fraction", "0.00001"],
            1,
            "no split of the operators fits",
        ),
        (
            &["plan", "fixtures/profiles/small_vgg.txt", "--devices", "4xt4", "--strategy", "optcnn"],
            2,
            "splits the operators of traced models",
        ),
        (
            &["split", CNN, "--devices", "1xt4", "--strategy", "optcnn", "--dry-run"],
            1,
            "needs devices that the fastest links join",
        ),
    ];
    for (arguments, code, expected) in refused {
        let output = run(arguments);
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {text}");
        assert!(text.contains(expected) && output.stdout.is_empty(), "`{expected}` is not in:\n{text}");
    }
}
