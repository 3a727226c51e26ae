//! `model-analyze plan`, end to end: answers, files and faults as a user meets them.

use std::fs;

use assert_cmd::Command;
use needs::outside;

mod needs;

fn run(arguments: &[&str]) -> std::process::Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_model-analyze"));
    command.current_dir(env!("CARGO_MANIFEST_DIR")).env("NO_COLOR", "1").args(arguments);
    command.output().expect("the command starts")
}

fn json(arguments: &[&str]) -> serde_json::Value {
    let output = run(&[arguments, &["--format", "json"]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("standard output is one JSON document")
}

fn fails(arguments: &[&str], code: i32, expected: &[&str]) {
    let output = run(arguments);
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{text}");
    assert!(output.stdout.is_empty());
    for part in expected {
        assert!(text.contains(part), "`{part}` is not in:\n{text}");
    }
}

const PROFILE: &str = "fixtures/profiles/small_vgg.txt";

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary folder can be made")
}

fn write(folder: &tempfile::TempDir, name: &str, text: &str) -> String {
    let path = folder.path().join(name);
    fs::write(&path, text).expect("a temporary file can be written");
    path.display().to_string()
}

#[test]
fn compat_answers_with_the_keys_of_the_contract() {
    let answer = json(&[
        "plan",
        PROFILE,
        "--compat",
        "pipedream",
        "--machines",
        "4,2",
        "--bandwidth",
        "30e9,3.125e9",
        "--activation-transfer",
    ]);
    for key in [
        "schema_version",
        "strategy",
        "period_seconds",
        "data_parallel_seconds",
        "lower_bound_seconds",
        "gap",
    ] {
        assert!(!answer[key].is_null(), "{key}");
    }
    let stages = answer["stages"].as_array().expect("stages");
    let blocks: usize = stages.iter().map(|stage| stage["blocks"].as_array().expect("blocks").len()).sum();
    assert_eq!(blocks, 27);
    let replicas: u64 = stages.iter().map(|stage| stage["replicas"].as_u64().expect("replicas")).sum();
    assert_eq!(replicas, 8);
}

#[test]
fn text_is_a_table_and_a_reason() {
    let output = run(&["plan", PROFILE, "--strategy", "pipedream", "--machines", "4", "--bandwidth", "1e9"]);
    insta::assert_snapshot!(String::from_utf8_lossy(&output.stdout));
}

#[test]
fn every_strategy_agrees_with_the_simulator() {
    let folder = folder();
    let plan = folder.path().join("plan.yaml");
    let plan = plan.to_str().expect("temporary paths are text");
    let strategies = [
        "layer",
        "data-parallel",
        "gpipe",
        "1f1b",
        "interleaved",
        "zero-bubble",
        "hybrid",
        "even-layers",
        "even-parameters",
        "torchgpipe",
        "deepspeed",
        "pipedream",
    ];
    let clusters = ["two-nodes", "mixed"].map(|name| format!("fixtures/clusters/{name}.yaml"));
    for model in [PROFILE, "fixtures/traces/unet_small.pt"] {
        for (cluster, strategy) in
            clusters.iter().flat_map(|cluster| strategies.map(|strategy| (cluster, strategy)))
        {
            let answer = json(&[
                "plan",
                model,
                "--cluster",
                cluster,
                "--strategy",
                strategy,
                "--micro-batches",
                "16",
                "-o",
                plan,
            ]);
            // Parameters alone can be cut so that a stage has nothing to compute; that is not simulated.
            let stages = answer["stages"].as_array().expect("stages");
            if stages.iter().any(|stage| stage["compute_seconds"].as_f64() == Some(0.0)) {
                continue;
            }
            let simulated = json(&["simulate", plan]);
            let step = simulated["step_seconds"].as_f64().expect("a step");
            let (ours, theirs) = match answer["step_seconds"].as_f64() {
                Some(ours) => (ours, step),
                // Steady state: what each micro-batch adds.
                None => {
                    let period = simulated["period_seconds"].as_f64().expect("a period");
                    (answer["period_seconds"].as_f64().expect("a period"), period / 16.0)
                }
            };
            let difference = (ours - theirs).abs() / theirs;
            assert!(difference < 0.01, "{model}, {cluster}, {strategy}: planned {ours}, simulated {theirs}");
        }
    }
}

#[test]
fn a_plan_is_scored_as_it_was_planned() {
    let folder = folder();
    let path = folder.path().join("plan.yaml");
    let plan = path.to_str().expect("temporary paths are text");
    let model = "fixtures/traces/unet_small.pt";
    let strategies = ["1f1b", "interleaved", "pipedream", "gpipe"];
    for (strategy, overlap) in strategies.iter().flat_map(|&one| [(one, None), (one, Some("--no-overlap"))]) {
        let arguments = ["plan", model, "--devices", "4xh100", "--strategy", strategy, "-o", plan];
        let made = json(&[&arguments[..], overlap.as_slice()].concat());
        let checked = json(&["plan", model, "--check", plan]);
        for key in ["step_seconds", "period_seconds"] {
            let (made, checked) = (made[key].as_f64(), checked[key].as_f64());
            assert!(
                made.zip(checked).is_none_or(|(a, b)| (a - b).abs() < 1e-6 * a),
                "{strategy}: {made:?} {checked:?}"
            );
            assert_eq!(made.is_some(), checked.is_some());
        }
        // The file says whether stages wait for what they send, and the simulator reads it.
        let simulated = json(&["simulate", plan])["step_seconds"].as_f64();
        let difference = made["step_seconds"].as_f64().zip(simulated).map(|(a, b)| (a / b - 1.0).abs());
        assert!(
            difference.is_none_or(|difference| difference < 0.01),
            "{strategy}, {overlap:?}: {difference:?}"
        );
    }
    // Edited by hand: a block taken out is missed, and another model's is not known.
    let text = fs::read_to_string(&path).expect("just written");
    let edited = write(&folder, "edited.yaml", &text.replacen("- down.0", "- down.9", 1));
    if edited != text {
        fails(&["plan", model, "--check", &edited], 2, &["error: "]);
    }
}

#[test]
fn stages_and_memory_are_limits() {
    let answer = json(&["plan", PROFILE, "--devices", "4xh100", "--strategy", "1f1b", "--stages", "3"]);
    assert_eq!(answer["stages"].as_array().map(Vec::len), Some(3));
    fails(
        &["plan", PROFILE, "--devices", "4xh100", "--stages", "99"],
        2,
        &["small_vgg.txt: 99 stages were asked for, the model has 27 blocks"],
    );
    fails(
        &["plan", PROFILE, "--machines", "2", "--memory", "1e8", "--optimizer", "adam"],
        1,
        &["no plan fits: the stage with block `node25`", "one of these suffices", "more on each device"],
    );
}

#[test]
fn wrong_input_says_what_and_where() {
    let folder = folder();
    let node = |id: &str, time: &str| {
        format!(
            "{id} -- Linear(1, 1) -- forward_compute_time={time}, backward_compute_time=1.0, activation_size=4.0, parameter_size=8.0\n"
        )
    };
    let two = format!("{}{}", node("a", "1.0"), node("b", "1.0"));
    let cyclic = write(&folder, "cyclic.txt", &format!("{two}\ta -- b\n\tb -- a\n"));
    fails(
        &["plan", &cyclic, "--devices", "2xh100"],
        2,
        &["line 3: the graph has a cycle: a → b → a", "hint:"],
    );
    let apart = write(&folder, "apart.txt", &two);
    fails(&["plan", &apart, "--devices", "2xh100"], 2, &["line 2: the graph is not connected"]);
    let negative = write(&folder, "negative.txt", &format!("{}\n", node("a", "-1")));
    fails(&["plan", &negative, "--devices", "2xh100"], 2, &["`forward_compute_time` of node `a` is -1"]);
    let json = write(&folder, "other.json", "{\"nodes\": []}");
    fails(&["plan", &json], 2, &["this JSON is not a known workload"]);
    let empty = write(&folder, "empty.txt", "");
    fails(&["plan", &empty], 2, &["the file is empty"]);

    fails(&["plan", PROFILE], 2, &["a plan needs a cluster", "--devices 4xh100"]);
    fails(&["plan", PROFILE, "--devices", "0xh100"], 2, &["a count is zero"]);
    fails(&["plan", PROFILE, "--devices", "4xh10"], 2, &["no device is called `h10`", "did you mean"]);
    fails(&["plan", PROFILE, "--machines", "0"], 2, &["--machines describes 0"]);
    fails(
        &["plan", PROFILE, "--compat", "pipedream", "--machines", "4", "--bandwidth", "0"],
        2,
        &["bandwidth of 0"],
    );
    fails(
        &["plan", PROFILE, "--compat", "pipedream", "--machines", "4,2", "--bandwidth", "1e9"],
        2,
        &["each level needs one of each"],
    );
    fails(
        &["plan", PROFILE, "--compat", "pipedream", "--machines", "99", "--straight"],
        1,
        &["without replication"],
    );
    fails(
        &["plan", PROFILE, "--devices", "2xh100", "--strategy", "magic"],
        2,
        &["no strategy is called `magic`"],
    );
    let cluster = write(
        &folder,
        "cluster.yaml",
        "kind: cluster\nversion: 1\ndevices: [{type: t4, count: 2}]\nlevels: [{name: pcie, bandwidth: 1e9, latency: 0}]\n\
         links: [{from: \"node0:0\", to: nowhere, bandwidth: 1, latency: 0}]\n",
    );
    fails(&["plan", PROFILE, "--cluster", &cluster], 2, &["a link names device `nowhere`"]);
}

const UNET: &str = "fixtures/traces/unet_small.pt";

/// A node of `count` devices with so many bytes of memory each.
fn lab(folder: &tempfile::TempDir, count: u32, memory: u64) -> String {
    let text = format!(
        "kind: cluster\nversion: 1\ntypes:\n  lab: {{memory: {memory}, memory_bandwidth: 1.5e+12, peak: {{float32: 1.9e+13}}, \
         host_bandwidth: 2.5e+10}}\ndevices: [{{type: lab, count: {count}}}]\n\
         levels: [{{name: pcie, bandwidth: 1.2e+10, latency: 8.0e-6}}]\n"
    );
    write(folder, "lab.yaml", &text)
}

fn text(arguments: &[&str]) -> String {
    let output = run(arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text").split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn a_change_that_is_named_does() {
    let folder = folder();
    let arguments = |cluster: &str, more: &[&str]| {
        let own = [&["plan", UNET, "--cluster", cluster], more].concat();
        own.into_iter().map(str::to_string).collect::<Vec<String>>()
    };
    let plan = |cluster: &str, more: &[&str]| {
        let arguments = arguments(cluster, more);
        run(&arguments.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let mut n_refused = 0;
    for strategy in ["auto", "1f1b", "interleaved", "layer"] {
        for (count, memory) in [(2, 250_000), (2, 500_000), (4, 300_000), (4, 350_000)] {
            let asked = ["--strategy", strategy, "--micro-batches", "8"];
            let output = plan(&lab(&folder, count, memory), &asked);
            if output.status.success() {
                continue;
            }
            n_refused += 1;
            let said =
                String::from_utf8_lossy(&output.stderr).split_whitespace().collect::<Vec<_>>().join(" ");
            assert_eq!(output.status.code(), Some(1), "{said}");
            let changes = said.split_once("one of these suffices: ").expect("a hint").1;
            for change in changes.split("; ") {
                let (mut count, mut memory, mut more) = (count, memory, asked.map(str::to_string).to_vec());
                match change.split(' ').collect::<Vec<_>>().as_slice() {
                    [many, "devices", ..] => count = many.parse().expect("a number"),
                    [much, unit, "more", "on", ..] => {
                        let scale = match *unit {
                            "B" => 1.0,
                            "KiB" => 1024.0,
                            "MiB" => 1048576.0,
                            other => panic!("{other}"),
                        };
                        // Three digits are shown, rounded up.
                        memory += (much.parse::<f64>().expect("a number") * scale).ceil() as u64;
                    }
                    ["--micro-batches", fewer] => more[3] = fewer.to_string(),
                    words => more.extend(words.iter().map(|word| word.to_string())),
                }
                let more: Vec<&str> = more.iter().map(String::as_str).collect();
                let output = plan(&lab(&folder, count, memory), &more);
                assert!(output.status.success(), "{strategy}, {said}: `{change}` does not do");
            }
        }
    }
    assert!(n_refused > 4, "{n_refused} of the questions have no plan");
}

#[test]
fn what_does_not_fit_one_device_says_so() {
    let folder = folder();
    let cluster = lab(&folder, 4, 600_000);
    let said = text(&["plan", UNET, "--cluster", &cluster]);
    assert!(said.contains("The model does not fit one device; with enough memory it would take"), "{said}");
    let roomy = text(&["plan", UNET, "--devices", "4xt4"]);
    assert!(roomy.contains("One device would take"), "{roomy}");
    // That as many stages were asked for is no matter of memory.
    let asked = text(&["plan", UNET, "--devices", "2xt4", "--stages", "2"]);
    assert!(asked.contains("One device would take"), "{asked}");
    assert!(roomy.contains("After the last of them sums of gradients"), "{roomy}");
}

/// Numbers of devices that are no power of two share layers, too, and one more device never makes the step longer: groups of six, or
/// of four that leave one of five idle. What is planned so is checked so.
#[test]
fn any_number_of_devices_shares_layers_unasked() {
    let (folder, model) = (folder(), "fixtures/traces/gpt2_tiny.pt");
    let file = folder.path().join("plan.yaml").display().to_string();
    let mut before = f64::INFINITY;
    for (count, expected) in
        [(4, &[1, 2, 4][..]), (5, &[1, 2, 4, 5]), (6, &[1, 2, 3, 4, 6]), (7, &[1, 2, 3, 4, 6, 7])]
    {
        let text = format!(
            "kind: cluster\nversion: 1\ntypes:\n  slow: {{memory: 1000000000, memory_bandwidth: 1.0e9, peak: {{float32: 1.0e8}}}}\n\
             devices: [{{type: slow, count: {count}}}]\nlevels: [{{name: fast, bandwidth: 1.0e12, latency: 1.0e-9}}]\n"
        );
        let cluster = write(&folder, "slow.yaml", &text);
        let asked = ["plan", model, "--cluster", &cluster, "--micro-batches", "1"];
        let planned = json(&[&asked[..], &["-o", &file]].concat());
        let tried = planned["shared"]["tried"].as_array().expect("a list").iter().map(|one| &one["degree"]);
        assert_eq!(tried.collect::<Vec<_>>(), expected, "{count} devices: {planned}");
        let seconds = planned["step_seconds"].as_f64().expect("a number");
        assert!(seconds <= before, "{count} devices: {seconds}, {before} with one fewer");
        assert_eq!(
            json(&[&asked[..4], &["--check", &file]].concat())["step_seconds"],
            planned["step_seconds"]
        );
        before = seconds;
    }
}

/// On more than 64 devices layers are shared unasked by as many as leave few groups.
#[test]
fn layers_are_shared_unasked_on_many_devices_in_few_groups() {
    let folder = folder();
    let text = "kind: cluster\nversion: 1\ntypes:\n  slow: {memory: 1000000000, memory_bandwidth: 1.0e9, peak: {float32: 1.0e8}}\n\
        devices: [{type: slow, count: 8, nodes: 9}]\nlevels: [{name: fast, bandwidth: 1.0e12, latency: 1.0e-9}, {name: slow, bandwidth: 1.0e9, latency: 1.0e-5}]\n";
    let cluster = write(&folder, "many.yaml", text);
    let asked = ["plan", "fixtures/traces/gpt2_tiny.pt", "--cluster", &cluster, "--micro-batches", "1"];
    let planned = json(&asked);
    let shared = &planned["shared"];
    assert_eq!(planned["bound_of"], "plan with whole layers, or shared ones in at most 32 groups");
    assert_eq!(shared["degree"], 4, "{shared}");
    let tried = shared["tried"].as_array().expect("a list").iter().map(|one| one["degree"].as_u64());
    assert_eq!(tried.collect::<Vec<_>>(), [Some(1), Some(4), Some(8)]);
}

/// Where no device has room for parameters, gradients and the optimizer's state, layers on several devices are tried, too, and where
/// most of them would be idle.
#[test]
fn layers_are_shared_unasked_where_the_state_fits_no_single_device() {
    let (folder, model) = (folder(), "fixtures/traces/gpt2_tiny.pt");
    let planned_of = |count: &str, memory: u64, more: &[&str]| {
        // Slow devices, fast links: of one micro-batch only the work inside of layers can be divided.
        let text = format!(
            "kind: cluster\nversion: 1\ntypes:\n  slow: {{memory: {memory}, memory_bandwidth: 1.0e9, peak: {{float32: 1.0e8}}}}\n\
             devices: [{{type: slow, count: 4}}]\nlevels: [{{name: fast, bandwidth: 1.0e12, latency: 1.0e-9}}]\n"
        );
        let cluster = write(&folder, "slow.yaml", &text);
        json(&[&["plan", model, "--cluster", &cluster, "--micro-batches", count], more].concat())
    };
    let planned = |memory: u64, more: &[&str]| planned_of("1", memory, more);
    let (roomy, tight) = (1 << 30, 120_000);
    assert!(planned_of("4", roomy, &[])["shared"].is_null());
    assert_eq!(planned_of("1", roomy, &[])["shared"]["degree"], 4);
    let unasked = planned(tight, &[]);
    assert_eq!(unasked["shared"]["degree"], 4, "{unasked}");
    for one in unasked["shared"]["tried"].as_array().expect("what was tried") {
        assert_eq!(
            one["micro_batches"].is_null(),
            one["seconds_each"].is_null(),
            "a time is of a step: {one}"
        );
    }
    assert_eq!(unasked["step_seconds"], planned(tight, &["--tensor-parallel", "auto"])["step_seconds"]);
    let alone = planned(tight, &["--tensor-parallel", "none"]);
    assert!(alone["shared"].is_null() && alone["step_seconds"].as_f64() > unasked["step_seconds"].as_f64());
    // A strategy by name is what was asked for.
    assert!(planned(tight, &["--strategy", "gpipe"])["shared"].is_null());
}

#[test]
fn what_is_computed_again_is_said() {
    let folder = folder();
    let cluster = lab(&folder, 2, 600_000);
    let arguments = ["plan", UNET, "--cluster", &cluster, "--strategy", "1f1b", "--micro-batches", "4"];
    let answer = json(&arguments);
    let again: usize = answer["stages"]
        .as_array()
        .expect("stages")
        .iter()
        .map(|stage| stage["recompute"].as_array().map_or(0, Vec::len))
        .sum();
    assert!(again > 0, "{answer}");
    let said = text(&arguments);
    assert!(said.contains("To fit, stage ") && said.contains(" blocks (+"), "{said}");
}

#[test]
fn what_is_there_once_more_is_part_of_the_peak() {
    let folder = folder();
    let file = folder.path().join("plan.yaml").display().to_string();
    let cluster = lab(&folder, 1, 800_000);
    let answer = json(&["plan", UNET, "--cluster", &cluster, "--loss", "none", "-o", &file]);
    let plan = schema::from_yaml::<schema::Plan>(&fs::read_to_string(&file).expect("the plan was written"))
        .expect("a plan");
    let stage = &plan.stages[0];
    let cost = &stage.cost;
    assert!(!stage.recompute.is_empty() && cost.recomputed.0 > 0, "{stage:?}");
    // One device keeps one micro-batch: all of this is there while the largest block is computed again.
    let least = 2 * cost.parameters.0 + cost.optimizer.0 + cost.activations.0 + cost.recomputed.0;
    let held = answer["stages"][0]["memory_bytes"].as_u64().expect("bytes");
    assert!(held >= least, "{held} of at least {least}");
}

#[test]
fn where_no_block_can_be_spared_stages_keep_their_inputs() {
    let folder = folder();
    let file = folder.path().join("plan.yaml").display().to_string();
    let cluster = lab(&folder, 2, 2_200_000);
    let asked = ["--cluster", &cluster, "--strategy", "gpipe", "--micro-batches", "64", "--loss", "none"];
    let arguments = [&["plan", UNET][..], &asked, &["--tensor-parallel", "none"]].concat();
    let said = text(&arguments);
    assert!(said.contains(" saves only its inputs and recomputes all of its blocks (+"), "{said}");
    let made = json(&[&arguments[..], &["-o", &file]].concat());
    let whole = |stage: &serde_json::Value| stage["recompute_unit"] == "stage";
    assert!(made["stages"].as_array().expect("stages").iter().any(whole), "{made}");
    // The plan keeps what its times were made with.
    let checked = json(&["plan", UNET, "--check", &file]);
    for key in ["memory_bytes", "step_seconds", "stages"] {
        assert_eq!(made[key], checked[key], "{key}");
    }
    // A part of a stage is not a stage.
    let plan = fs::read_to_string(&file).expect("the plan was written");
    let (head, rest) = plan.split_once("  recompute:\n  - ").expect("recomputed operators");
    let rest = rest.split_once('\n').expect("a block").1;
    write(&folder, "plan.yaml", &format!("{head}  recompute:\n{rest}"));
    fails(&["plan", UNET, "--check", &file], 2, &["needs all of its blocks under `recompute`"]);
}

#[test]
fn a_checked_plan_has_its_own_optimizer_loss_and_rounding() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("plan.yaml").display().to_string();
    let asked = ["--devices", "2xa100", "--optimizer", "sgd", "--loss", "cross-entropy", "--tf32"];
    let made = json(&[&["plan", UNET][..], &asked, &["-o", &file]].concat());
    let checked = json(&["plan", UNET, "--check", &file]);
    for key in ["memory_bytes", "step_seconds"] {
        assert_eq!(made[key], checked[key], "{key}");
    }
    let other = json(&["plan", UNET, "--check", &file, "--optimizer", "adam"]);
    assert!(other["memory_bytes"].as_u64() > made["memory_bytes"].as_u64(), "{other}");

    let llama = ["plan", "fixtures/large/llama-3.2-3b.pt", "--input", "1x256:int64"];
    let asked = ["--devices", "1xb300", "--effort", "quick", "--master-weights", "-o", &file];
    let made = json(&[&llama[..], &asked].concat());
    let checked = json(&[&llama[..], &["--check", &file]].concat());
    assert_eq!(made["memory_bytes"], checked["memory_bytes"]);
}

#[test]
fn a_checked_plan_of_shared_layers_takes_what_was_planned() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("plan.yaml").display().to_string();
    let llama = ["plan", "fixtures/large/llama-3.2-3b.pt", "--input", "1x256:int64"];
    let check = [&llama[..], &["--check", &file]].concat();
    for shared in [["--tensor-parallel", "2"], ["--context-parallel", "2"], ["--strategy", "optcnn"]] {
        let asked = ["--devices", "4xa100", "--effort", "quick", "-o", &file];
        let made = json(&[&llama[..], &asked, &shared].concat());
        let checked = json(&check);
        for key in ["memory_bytes", "step_seconds"] {
            assert_eq!(made[key], checked[key], "{shared:?}: {key}");
        }
        // Other ways to share layers were not looked at.
        assert!(text(&check).contains("no plan of these splits is faster"), "{shared:?}");
    }
    // A part of a group.
    let plan = fs::read_to_string(&file).expect("the plan was written");
    let part = plan.replacen("  - node0:3\n  tensor_parallel", "  tensor_parallel", 1);
    assert_ne!(part, plan);
    write(&folder, "plan.yaml", &part);
    fails(&check, 2, &["stage 0: its devices are not whole groups of 4", "groups are node0:0 node0:1"]);
}

/// Plans are compared over steps of one size, whoever shares layers.
#[test]
fn groups_of_devices_take_steps_as_large_as_single_devices() {
    let counts = |degree: &str| {
        let asked = ["plan", GPT2, "--devices", "4xh100", "--strategy", "gpipe", "--tensor-parallel", degree];
        let answer = json(&asked);
        let tried = answer["micro_batches_tried"].as_array().expect("what was tried").clone();
        tried.iter().map(|one| one["micro_batches"].as_u64().expect("a number")).collect::<Vec<u64>>()
    };
    assert_eq!(counts("none"), [4, 8, 16, 32]);
    assert_eq!(counts("2"), [4, 8, 16, 32]);
}

#[test]
fn replicas_of_batch_norms_are_said_to_have_statistics_of_their_own() {
    let folder = folder();
    let text = "graph(%self : __torch__.Model,
      %x : Float(4, 3, 8, 8, strides=[192, 64, 8, 1], requires_grad=0, device=cpu)):
  %w : Float(3, 3, 1, 1, strides=[3, 1, 1, 1], requires_grad=1, device=cpu) = prim::GetAttr[name=\"w\"](%self)
  %mean : Float(3, strides=[1], requires_grad=0, device=cpu) = prim::GetAttr[name=\"running_mean\"](%self)
  %var : Float(3, strides=[1], requires_grad=0, device=cpu) = prim::GetAttr[name=\"running_var\"](%self)
  %none : NoneType = prim::Constant()
  %yes : bool = prim::Constant[value=1]()
  %no : bool = prim::Constant[value=0]()
  %one : int = prim::Constant[value=1]()
  %zero : int = prim::Constant[value=0]()
  %ones : int[] = prim::ListConstruct(%one, %one)
  %zeros : int[] = prim::ListConstruct(%zero, %zero)
  %m : float = prim::Constant[value=0.1]()
  %e : float = prim::Constant[value=1.0e-05]()
  %a : Tensor = aten::conv2d(%x, %w, %none, %ones, %zeros, %ones, %one)
  %b : Tensor = aten::batch_norm(%a, %none, %none, %mean, %var, %yes, %m, %e, %no)
  return (%b)
";
    let check = |strategy: &str, training: &str, expected: bool| {
        let model = write(&folder, "norm.txt", &text.replace("%yes, %m", &format!("{training}, %m")));
        let output = run(&["plan", &model, "--devices", "2xt4", "--strategy", strategy]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        let is_said = said.contains("statistics of batch norms (`running_mean` and 1 more)");
        assert_eq!(is_said && said.contains("`train.py --batch-norm sync`"), expected, "{said}");
    };
    check("data-parallel", "%yes", true);
    check("data-parallel", "%no", false);
    check("one-device", "%yes", false);
}

#[test]
fn a_strategy_by_name_says_which_are_faster() {
    let said = text(&["plan", UNET, "--devices", "4xt4", "--strategy", "layer", "--micro-batches", "8"]);
    assert!(said.contains("Faster: data-parallel (-"), "{said}");
    assert!(said.contains("no layer plan with whole layers is faster"), "{said}");
    assert!(!said.contains("proven optimal"), "{said}");
    let one = text(&["plan", UNET, "--devices", "2xt4", "--strategy", "layer", "--micro-batches", "1"]);
    assert!(one.contains("per step of 1 micro-batch ("), "{one}");
}

#[test]
fn a_check_says_what_the_plan_said() {
    let folder = folder();
    let file = folder.path().join("plan.yaml").display().to_string();
    let made = json(&["plan", UNET, "--devices", "4xt4", "--strategy", "1f1b", "-o", &file]);
    let checked = json(&["plan", UNET, "--check", &file]);
    for key in ["bubble", "samples", "times", "memory_bytes", "step_seconds"] {
        assert_eq!(made[key], checked[key], "{key}");
    }
    fails(&["plan", UNET, "--check", &file, "-o", "other.yaml"], 2, &["cannot be used with"]);
    fails(
        &["plan", UNET, "--check", &file, "--strategy", "gpipe", "--stages", "3"],
        2,
        &["--check does not take --strategy, --stages", "scored as it stands"],
    );
    let fewer = text(&["plan", UNET, "--check", &file, "--devices", "6xt4"]);
    assert!(fewer.contains("of the 6 devices are used. "), "{fewer}");
    assert!(!fewer.contains("no plan was found"), "{fewer}");
}

#[test]
fn short_memory_takes_fewer_micro_batches() {
    let folder = folder();
    // So little that as many micro-batches as devices leave no room for a pipeline.
    let cluster = lab(&folder, 8, 400_000);
    let alone = ["--no-recompute", "--tensor-parallel", "none"];
    let answer = json(&[&["plan", UNET, "--cluster", &cluster][..], &alone].concat());
    let tried = answer["micro_batches_tried"].as_array().expect("what was tried");
    let each = |one: &serde_json::Value| one["seconds_each"].as_f64().expect("seconds");
    let is_few = |one: &&serde_json::Value| one["micro_batches"].as_u64() < Some(8);
    let (few, many): (Vec<_>, Vec<_>) = tried.iter().partition(is_few);
    let least = |all: &[&serde_json::Value]| all.iter().map(|one| each(one)).fold(f64::INFINITY, f64::min);
    assert!(least(&few) < 0.7 * least(&many), "{tried:?}");
    assert!(answer["micro_batches"].as_u64() < Some(8), "{answer}");
}

#[test]
fn outside_formats_are_told_apart() {
    let check = |path: &str, key: &str, expected: f64| {
        let path = outside(path).expect("the sample has it").display().to_string();
        let answer = json(&["plan", &path]);
        let found = answer[key].as_f64().expect(key);
        assert!((found - expected).abs() < 1e-6, "{path}: {found} is not {expected}");
    };
    check("partitioners/dnn-partitioning/LayerGraphs/bert24_training.json", "period_seconds", 41.745812);
    check(
        "partitioners/dnn-partitioning/LayerGraphs/resnet50_training.json",
        "lower_bound_seconds",
        78.631813,
    );
    let path = "partitioners/dnn-partitioning/latency-inputs/LayerGraphs/bert24_inference.json";
    let path = outside(path).expect("the sample has it").display().to_string();
    let answer = json(&["plan", &path, "--objective", "latency"]);
    assert!((answer["step_seconds"].as_f64().expect("a latency") - 100.2185).abs() < 1e-4, "{answer}");
    assert_eq!(answer["optimal"], true, "{answer}");
    let profile = outside("partitioners/pipedream/resnet50/graph.txt").expect("the sample has it");
    let answer = json(&[
        "plan",
        &profile.display().to_string(),
        "--compat",
        "pipedream",
        "--machines",
        "4,4",
        "--bandwidth",
        "16e9,1.25e9",
        "--activation-transfer",
    ]);
    assert!((answer["period_seconds"].as_f64().expect("a period") - 0.043208).abs() < 0.6e-6);
}

/// A plan says how sure it is of its step, and whose times it believes.
#[test]
fn a_plan_carries_its_band() {
    let folder = folder();
    let file = folder.path().join("plan.yaml").display().to_string();
    let answer = json(&["plan", "fixtures/traces/unet_small.pt", "--devices", "2xt4", "-o", &file]);
    let text = fs::read_to_string(file).expect("a plan was written");
    let plan: schema::Plan = schema::from_yaml(&text).expect("it is a plan");
    let band = plan.predicted.band.expect("a traced model's times have a band");
    assert_eq!(answer["band"]["p90"].as_f64(), Some(band.p90.0));
    let step = plan.predicted.step.or(plan.predicted.period).expect("a time");
    assert!(band.p10 < step && step < band.p90, "{band:?} around {step:?}");
    for stage in &plan.stages {
        let cost = stage.cost.forward.0 + stage.cost.input_gradient.0 + stage.cost.weight_gradient.0;
        let band = stage.band.expect("a band");
        assert!(band.p10.0 < cost && cost < band.p90.0, "{band:?} around {cost}");
    }
    let times = plan.predicted.times.expect("a source");
    assert!(times.cost_model.starts_with("T4, fitted to measurements of sitar-lab/NeuSight"), "{times:?}");
    assert!((times.shares.values().sum::<f64>() - 1.0).abs() < 1e-9, "{times:?}");
}

/// Traces of the fixtures on small and larger clusters: the plan is the best of all strategies, and bounded.
#[test]
fn no_strategy_beats_the_plan() {
    let models =
        ["unet_small", "gpt2_tiny", "cnn_basic", "bert_tiny", "lstm_seq2seq_small", "amoebanet_6_small"];
    for (index, model) in models.into_iter().enumerate() {
        let model = format!("fixtures/traces/{model}.pt");
        // Each model meets each kind of cluster over the whole list; all of them would take minutes.
        let clusters = ["2xt4", "4xh100", "8xv100", "2x8xa100", "4xa100+4xv100"];
        for devices in [clusters[index % 5], clusters[(index + 2) % 5]] {
            let answer = json(&["plan", &model, "--devices", devices, "--micro-batches", "16", "--compare"]);
            let step = answer["step_seconds"].as_f64().expect("a step");
            let bound = answer["lower_bound_seconds"].as_f64().expect("a bound");
            assert!(0.0 < bound && bound <= step, "{model} on {devices}: {bound} {step}");
            let others = answer["runners_up"].as_array().expect("others");
            let mut n_rules = 0;
            for other in others {
                let strategy = other["strategy"].as_str().expect("a name");
                // Pipelines without an end train otherwise; they are there to compare.
                if strategy == "pipedream" || other["seconds"].is_null() {
                    continue;
                }
                n_rules += usize::from(
                    ["even-layers", "even-parameters", "torchgpipe", "deepspeed"].contains(&strategy),
                );
                let loses = other["loses"].as_f64().expect("a share");
                assert!(loses >= -1e-9, "{model} on {devices}: {strategy} is faster by {loses}");
            }
            assert_eq!(n_rules, 4, "{model} on {devices}");
        }
    }
}

/// What is searched longer is never slower, and answers say how long they were searched for.
#[test]
fn more_effort_is_never_slower() {
    let each = |model: &str, devices: &str, effort: &str| {
        let model = format!("fixtures/traces/{model}.pt");
        let answer = json(&["plan", &model, "--devices", devices, "--effort", effort]);
        let said = answer["effort"].as_str().unwrap_or("normal");
        assert_eq!(said, effort);
        let step = answer["step_seconds"].as_f64().or(answer["period_seconds"].as_f64()).expect("a time");
        step / answer["micro_batches"].as_f64().expect("a number")
    };
    let mut n_better = 0;
    for (model, devices) in [
        ("gpt2_tiny", "2x4xa100"),
        ("unet_small", "4xt4"),
        ("lstm_seq2seq_small", "2xa100+2xv100"),
        ("amoebanet_6_small", "2xt4"),
    ] {
        let [quick, normal, thorough] =
            ["quick", "normal", "thorough"].map(|effort| each(model, devices, effort));
        assert!(thorough <= normal && normal <= quick, "{model} on {devices}: {quick} {normal} {thorough}");
        n_better += usize::from(normal < quick);
    }
    assert!(n_better > 0, "a longer search is of use somewhere");
}

#[test]
fn every_strategy_is_compared() {
    let output = run(&["plan", "fixtures/traces/unet_small.pt", "--devices", "4xt4", "--compare"]);
    insta::assert_snapshot!(String::from_utf8_lossy(&output.stdout));
}

#[test]
fn a_step_has_as_few_micro_batches_as_serve_well() {
    let answer = json(&["plan", "fixtures/traces/unet_small.pt", "--devices", "4xt4", "--strategy", "1f1b"]);
    let tried = answer["micro_batches_tried"].as_array().expect("what was tried");
    let each = |one: &serde_json::Value| one["seconds_each"].as_f64().expect("seconds");
    assert_eq!(tried.len(), 4);
    let chosen = answer["micro_batches"].as_u64().expect("a number");
    let own = tried.iter().find(|one| one["micro_batches"].as_u64() == Some(chosen)).expect("it was tried");
    let least = tried.iter().map(each).fold(f64::INFINITY, f64::min);
    assert!(each(own) <= 1.05 * least);
    for fewer in tried.iter().filter(|one| one["micro_batches"].as_u64() < Some(chosen)) {
        assert!(each(fewer) > 1.05 * least, "{fewer} would have done");
    }
    let fixed =
        json(&["plan", "fixtures/traces/unet_small.pt", "--devices", "4xt4", "--micro-batches", "12"]);
    assert_eq!(fixed["micro_batches"], 12);
    assert!(fixed["micro_batches_tried"].is_null());
}

/// Leaves of a model's tree of calls in order, those of no work left out.
fn leaves(model: &str) -> Vec<String> {
    let answer = json(&["inspect", model, "--depth", "99"]);
    let blocks = answer["blocks"].as_array().expect("blocks are listed");
    let paths: Vec<&str> = blocks.iter().filter_map(|block| block["path"].as_str()).collect();
    let is_leaf =
        |path: &&&str| !path.is_empty() && !paths.iter().any(|other| other.starts_with(&format!("{path}.")));
    paths.iter().filter(is_leaf).map(ToString::to_string).collect()
}

#[test]
fn no_cut_at_any_depth_beats_the_plan() {
    let folder = folder();
    for model in ["fixtures/traces/unet_small.pt", "fixtures/traces/gpt2_tiny.pt"] {
        let file = folder.path().join("plan.yaml").display().to_string();
        let asked = [
            "plan",
            model,
            "--devices",
            "2xt4",
            "--stages",
            "2",
            "--strategy",
            "1f1b",
            "--micro-batches",
            "8",
        ];
        let planned = json(&[&asked[..], &["-o", &file]].concat());
        let seconds = planned["step_seconds"].as_f64().expect("a plan takes time");
        let text = fs::read_to_string(&file).expect("the plan was written");
        let mut plan: schema::Plan = schema::from_yaml(&text).expect("a plan reads back");
        let leaves = leaves(model);
        let mut n_checked = 0;
        for cut in (1..leaves.len()).step_by(leaves.len() / 12 + 1) {
            plan.stages[0].blocks = leaves[..cut].to_vec();
            plan.stages[1].blocks = leaves[cut..].to_vec();
            plan.stages.iter_mut().for_each(|stage| stage.recompute.clear());
            let other = write(&folder, "other.yaml", &schema::to_yaml(&plan));
            let output = run(&["plan", model, "--check", &other, "--format", "json"]);
            // Some cuts part what belongs together.
            if !output.status.success() {
                continue;
            }
            let checked: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
            let other = checked["step_seconds"].as_f64().expect("a plan takes time");
            assert!(seconds <= other * 1.005, "{model}, cut at {}: {other} s, not {seconds} s", leaves[cut]);
            n_checked += 1;
        }
        assert!(n_checked > 4, "{model}: {n_checked} cuts were compared");
    }
}

#[test]
fn a_plan_says_between_how_many_blocks_it_looked() {
    let answer = json(&["plan", "fixtures/traces/unet_small.pt", "--devices", "2xt4"]);
    let (blocks, operators) = (answer["blocks"].as_u64(), answer["operators"].as_u64());
    assert!(blocks.is_some() && blocks <= operators, "{blocks:?} of {operators:?}");
    // A profile's nodes are its blocks: nothing finer is there to be left out.
    let answer = json(&["plan", PROFILE, "--machines", "2", "--bandwidth", "1e9"]);
    assert!(answer["blocks"].as_u64() > Some(0) && answer["operators"].is_null());
}

const GPT2: &str = "fixtures/traces/gpt2_tiny.pt";

#[test]
fn keys_and_values_decide_where_inference_is_cut() {
    let folder = folder();
    let cluster = lab(&folder, 2, 568_500);
    let ask = |tokens: u64| -> Vec<String> {
        let tokens = tokens.to_string();
        let asked = ["plan", GPT2, "--cluster", &cluster, "--inference", "--kv-cache", &tokens];
        asked.map(str::to_string).to_vec()
    };
    let asked = ask(1000);
    let asked: Vec<&str> = asked.iter().map(String::as_str).collect();
    let file = folder.path().join("plan.yaml").display().to_string();
    let answer = json(&[&asked[..], &["-o", &file]].concat());
    // Two layers of 16 numbers, keys and values, four bytes each; two sequences in each of two micro-batches.
    let cache = &answer["inference"]["kv_cache"];
    assert_eq!((&cache["bytes_per_token"], &cache["attentions"]), (&256.into(), &2.into()));
    assert_eq!(cache["sequences"], 4);
    // Both layers' caches of one micro-batch take as much as one's of both; all parameters do not fit beside them.
    let stages = answer["stages"].as_array().expect("a list");
    let holds = |stage: &serde_json::Value, name: &str| stage["blocks"].to_string().contains(name);
    assert!(holds(&stages[0], "h.0.attn") && holds(&stages[1], "h.1.attn"), "{stages:?}");
    // The simulator runs the forward pass alone, and finds caches where the plan has them; the file is scored as it was planned.
    let simulated = json(&["simulate", &file]);
    let parts = simulated["devices"][0]["parts"].to_string();
    assert!(
        parts.contains("512000") && !parts.contains("gradients") && !parts.contains("optimizer"),
        "{parts}"
    );
    let checked = json(&["plan", GPT2, "--check", &file]);
    assert_eq!(checked["period_seconds"], answer["period_seconds"]);
    assert_eq!(checked["inference"], answer["inference"]);
    // As many tokens as are said to have room have it.
    let most = cache["most_tokens"].as_u64().expect("a number");
    let stages = stages.len().to_string();
    let with = |tokens: u64| {
        let asked = ask(tokens);
        run(&asked.iter().map(String::as_str).chain(["--stages", &stages]).collect::<Vec<&str>>())
            .status
            .code()
    };
    assert_eq!((with(most), with(most + 100)), (Some(0), Some(1)));
}

#[test]
fn one_request_runs_where_it_is_fastest() {
    let answer = json(&["plan", GPT2, "--devices", "1xt4+1xv100", "--objective", "latency"]);
    let stages = answer["stages"].as_array().expect("a list");
    assert_eq!(stages.len(), 1);
    assert!(answer["step_seconds"].as_f64() >= answer["lower_bound_seconds"].as_f64());
    assert_eq!(answer["micro_batches"], 1);
}

/// What a pass costs the host is charged, kept, said, and simulated; a device's type may say it.
#[test]
fn what_the_script_takes_of_the_host_is_in_the_plan() {
    let folder = folder();
    let (model, file) =
        ("fixtures/traces/gpt2_tiny.pt", folder.path().join("plan.yaml").display().to_string());
    let asked = ["plan", model, "--devices", "2xt4", "--strategy", "1f1b", "--micro-batches", "4"];
    let free = json(&asked);
    assert!(free["host_overhead_seconds"].is_null());
    let charged = json(&[&asked[..], &["--host-overhead", "280", "-o", &file]].concat());
    assert_eq!(charged["host_overhead_seconds"], 280e-6);
    let step = |answer: &serde_json::Value| answer["step_seconds"].as_f64().expect("a step");
    // Four micro-batches and the way of one through two stages: five forward and backward passes one behind the other.
    let more = step(&charged) - step(&free);
    assert!((8.0 * 280e-6..=10.01 * 280e-6).contains(&more), "{more}");
    let simulated = |more: &[&str]| step(&json(&[&["simulate", &file], more].concat()));
    assert!((simulated(&[]) - step(&charged)).abs() < 1e-6);
    assert!(simulated(&["--host-overhead", "0"]) < step(&charged) - 8.0 * 280e-6 * 0.99);
    assert!((step(&json(&["plan", model, "--check", &file])) - step(&charged)).abs() < 1e-6);
    assert!(text(&["plan", model, "--check", &file]).contains("host: 280 µs per pass for the script"));
    // A whole backward pass has nothing of what halves cost; each of those that are split, under a schedule that has them.
    let halves = ["--host-overhead", "0", "--split-overhead", "900"];
    assert_eq!(step(&json(&[&asked[..], &halves[..]].concat())), step(&free));
    let asked = ["plan", model, "--devices", "2xt4", "--strategy", "zero-bubble", "--micro-batches", "4"];
    let free = json(&asked);
    let charged = json(&[&asked[..], &halves, &["-o", &file]].concat());
    assert_eq!(charged["split_overhead_seconds"], 900e-6);
    let more = step(&charged) - step(&free);
    assert!((2.99 * 900e-6..=4.01 * 900e-6).contains(&more), "{more}");
    assert!((simulated(&[]) - step(&charged)).abs() < 1e-6);
    assert!((simulated(&["--split-overhead", "0"]) - step(&free)).abs() < 1e-6);
    let said = text(&["plan", model, "--check", &file]);
    assert!(said.contains("host: 900 µs per backward pass split into halves for the script"), "{said}");
    // The most that a type says, where nothing is asked for.
    let cluster = "kind: cluster\nversion: 1\ntypes:\n  slow: {memory: 16000000000, memory_bandwidth: 3.2e11, peak: {float32: 8.1e12}, \
                   host_overhead: 2.8e-4}\ndevices:\n- {name: a, type: slow, place: [0]}\n- {name: b, type: t4, place: [0]}\nlevels:\n\
                   - {name: pcie, bandwidth: 1.6e10, latency: 1.0e-5}\n";
    let path = write(&folder, "cluster.yaml", cluster);
    let of_type = |more: &[&str]| {
        json(&[&["plan", model, "--cluster", &path, "--micro-batches", "4"], more].concat())["host_overhead_seconds"]
            .as_f64()
    };
    assert_eq!(of_type(&[]), Some(280e-6));
    assert_eq!(of_type(&["--host-overhead", "0"]), None);
    for wrong in ["NaN", "1e7", "much"] {
        fails(&[&asked[..], &["--host-overhead", wrong]].concat(), 2, &["--host-overhead"]);
    }
    let forward = ["plan", model, "--devices", "2xt4", "--inference", "--host-overhead", "9"];
    fails(&forward, 2, &["a forward pass does not take --host-overhead"]);
}

#[test]
fn inference_refuses_what_is_of_training() {
    fails(&["plan", GPT2, "--devices", "2xt4", "--kv-cache", "10"], 2, &["--kv-cache is for inference"]);
    fails(
        &["plan", GPT2, "--devices", "2xt4", "--inference", "--optimizer", "sgd", "--sharding", "zero1"],
        2,
        &["a forward pass does not take --optimizer, --sharding"],
    );
    fails(
        &["plan", GPT2, "--devices", "2xt4", "--objective", "latency", "--batch", "4"],
        2,
        &["one request's forward pass does not take --batch"],
    );
    fails(&["plan", PROFILE, "--inference"], 2, &["a profile graph does not take --inference"]);
    let cnn = "fixtures/traces/cnn_basic.pt";
    fails(
        &["plan", cnn, "--devices", "2xt4", "--inference", "--kv-cache", "10"],
        2,
        &["no attention that was recognised"],
    );
    fails(
        &["plan", GPT2, "--devices", "2xt4", "--inference", "--stages", "2", "--micro-batches", "1"],
        2,
        &["2 stages need as many micro-batches in flight to be busy, and 1 are asked for"],
    );
}

#[test]
fn a_micro_batch_has_as_many_samples_as_serve_best() {
    let cnn = "fixtures/traces/cnn_basic.pt";
    let folder = folder();
    let file = folder.path().join("plan.yaml").display().to_string();
    let asked = ["plan", cnn, "--devices", "2xt4", "--strategy", "data-parallel", "--batch", "16"];
    let answer = json(&[&asked[..], &["--micro-batch-size", "..8", "-o", &file]].concat());
    let tried = answer["micro_batch_sizes_tried"].as_array().expect("a list");
    let sizes: Vec<u64> = tried.iter().filter_map(|one| one["samples"].as_u64()).collect();
    assert_eq!(sizes, [1, 2, 4, 8]);
    // Each is what the same plan takes with inputs of that size, and the best of them is taken.
    let mut least = f64::INFINITY;
    for one in tried {
        let input = format!("{}x3x32x32", one["samples"]);
        let alone = json(&[&asked[..], &["--input", &input]].concat());
        let each = alone["step_seconds"].as_f64().expect("a number") / 16.0;
        let told = one["sample_seconds"].as_f64().expect("a number");
        assert!((told - each).abs() <= 1e-9 * each, "{one}: {each}");
        least = least.min(each);
    }
    let own = answer["step_seconds"].as_f64().expect("a number") / 16.0;
    assert!(own <= least * 1.0002 && answer["samples"] == 16, "{own} is not {least}");
    // The plan says so, and is scored so.
    let checked = json(&["plan", cnn, "--check", &file]);
    assert_eq!((&checked["samples"], &checked["step_seconds"]), (&16.into(), &answer["step_seconds"]));
}

#[test]
fn sizes_of_micro_batches_that_cannot_be_are_refused() {
    let folder = folder();
    let text = "graph(%self : __torch__.Model,
      %x : Float(4, 6, strides=[6, 1], requires_grad=0, device=cpu)):
  %v : Float(3, 6, strides=[6, 1], requires_grad=1, device=cpu) = prim::GetAttr[name=\"v\"](%self)
  %none : NoneType = prim::Constant()
  %rows : int = prim::Constant[value=4]()
  %columns : int = prim::Constant[value=6]()
  %sizes : int[] = prim::ListConstruct(%rows, %columns)
  %a : Tensor = aten::view(%x, %sizes)
  %b : Tensor = aten::linear(%a, %v, %none)
  return (%b)
";
    let fixed = write(&folder, "fixed.txt", text);
    let with = |model: &str, more: &[&str], expected: &[&str]| {
        fails(&[&["plan", model, "--devices", "2xt4"], more].concat(), 2, expected);
    };
    let cnn = "fixtures/traces/cnn_basic.pt";
    with(
        &fixed,
        &["--micro-batch-size", "8"],
        &["micro-batches of 8 samples", "trace the model with inputs of that size"],
    );
    with(cnn, &["--micro-batch-size", "auto"], &["--batch N sets the samples per step"]);
    with(
        cnn,
        &["--micro-batch-size", "5", "--batch", "16"],
        &["divides a batch of 16", "4 or 8 samples divide it"],
    );
    with(cnn, &["--micro-batch-size", "0"], &["at least one sample"]);
    fails(
        &["plan", PROFILE, "--micro-batch-size", "4"],
        2,
        &["a profile graph does not take --micro-batch-size"],
    );
}

/// Bytes of a part of the memory of the only stage of Llama 3.2 3B on one device, by name.
fn part_of_llama(name: &str, more: &[&str]) -> u64 {
    let llama = "fixtures/large/llama-3.2-3b.pt";
    let asked = ["--input", "1x2048:int64", "--devices", "1xb300", "--stages", "1", "--micro-batches", "1"];
    let answer =
        json(&[&["plan", llama][..], &asked, &["--no-recompute", "--effort", "quick"], more].concat());
    let parts = answer["stages"][0]["memory_parts"].as_array().expect("a stage has parts");
    let part = parts.iter().find(|part| part["name"] == name).expect("the part is there");
    part["bytes"].as_u64().expect("bytes are whole")
}

#[test]
fn a_fused_loss_needs_no_second_copy_of_the_outputs() {
    let logits = 2048 * 128_256 * 2;
    let kept = part_of_llama("activations", &["--loss", "fused-cross-entropy"]);
    assert!(kept > logits, "{kept}");
    let workspace = part_of_llama("workspace", &["--loss", "fused-cross-entropy"]);
    assert!(workspace * 4 < logits, "{workspace}");
    assert_eq!(part_of_llama("workspace", &["--loss", "cross-entropy"]), 4 * logits);
}

#[test]
fn float32_copies_are_state_of_the_optimizer() {
    let parameters = part_of_llama("parameters", &[]);
    assert_eq!(part_of_llama("optimizer", &[]), 2 * parameters);
    // The copy, and two numbers of Adam or one of SGD's momentum, twice as wide as the parameters.
    assert_eq!(part_of_llama("optimizer", &["--master-weights"]), 6 * parameters);
    assert_eq!(part_of_llama("optimizer", &["--master-weights", "--optimizer", "momentum"]), 4 * parameters);
}

/// Float32 copies stay with every optimizer, so that another one is no way out of a lack of memory that they make.
#[test]
fn float32_copies_are_not_saved_by_another_optimizer() {
    let asked = ["--input", "1x64:int64", "--devices", "1xa100-40gb", "--memory-fraction", "0.58"];
    let copies = ["--effort", "quick", "--loss", "none", "--master-weights", "--optimizer", "sgd"];
    let llama = [&["plan", "fixtures/large/llama-3.2-3b.pt"][..], &asked, &copies].concat();
    let output = run(&llama);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("24.1 GiB instead of") && !said.contains("--optimizer"), "{said}");
}

/// Strategies whose devices keep the whole state say so instead of planning without what was asked for.
#[test]
fn strategies_that_shard_nothing_refuse_to() {
    const CNN: &str = "fixtures/traces/cnn_basic.pt";
    let asked = |strategy: &'static str, level: &'static str| {
        ["plan", CNN, "--devices", "4xt4", "--batch", "32", "--strategy", strategy, "--sharding", level]
    };
    for strategy in ["pipedream", "gems-master", "chimera", "dualpipe"] {
        let said = format!("--strategy {strategy} does not take --sharding zero1");
        fails(&asked(strategy, "zero1"), 2, &[&said]);
        json(&asked(strategy, "none"));
    }
    for strategy in ["data-parallel", "hybrid", "even-layers", "gpipe"] {
        json(&asked(strategy, "zero1"));
    }
}

/// A plan says itself how its devices share layers, and is not searched for.
#[test]
fn a_check_refuses_what_would_change_nothing() {
    let folder = folder();
    let file = folder.path().join("plan.yaml").display().to_string();
    json(&["plan", UNET, "--devices", "2xt4", "--batch", "8", "-o", &file]);
    for flag in [
        ["--tensor-parallel", "2"],
        ["--sequence-parallel", "on"],
        ["--spatial", "2"],
        ["--context-parallel", "2"],
        ["--on-first", "head"],
        ["--effort", "quick"],
    ] {
        let said = format!("--check does not take {}", flag[0]);
        fails(&[&["plan", UNET, "--check", &file], &flag[..]].concat(), 2, &[&said]);
    }
}

/// Copies of parameters that have 32 bits already are none.
#[test]
fn float32_copies_without_narrow_parameters_are_told() {
    for command in [
        &["plan", UNET, "--devices", "2xt4", "--batch", "8", "--master-weights"][..],
        &["inspect", UNET, "--memory", "--device", "t4", "--master-weights"],
    ] {
        let said = String::from_utf8_lossy(&run(command).stderr).into_owned();
        assert!(said.contains("no parameter has 16 bits: --master-weights changes nothing"), "{said}");
    }
    let llama = ["plan", "fixtures/large/llama-3.2-3b.pt", "--input", "1x256:int64", "--devices", "1xb300"];
    let said = run(&[&llama[..], &["--effort", "quick", "--master-weights"]].concat()).stderr;
    assert!(!String::from_utf8_lossy(&said).contains("--master-weights"));
}
