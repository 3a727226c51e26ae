//! Wrong profiles, workloads and clusters: `plan` refuses each with its place, and writes nothing.
#![allow(clippy::unwrap_used)]

use std::{fs, process::Command};

/// Runs `plan` over files of these names and contents; returns its exit code and what it says.
#[track_caller]
fn refused(files: &[(&str, &str)], arguments: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        fs::write(folder.path().join(name), text).unwrap();
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_model-analyze"));
    let command = command.current_dir(folder.path()).env("NO_COLOR", "1");
    command.arg("plan").args(arguments.split(' '));
    // Workloads have no plan to write.
    if !arguments.contains(".json") && !arguments.contains("--compat") && !arguments.contains("--check") {
        command.args(["-o", "plan.yaml"]);
    }
    let output = command.output().unwrap();
    assert!(output.stdout.is_empty(), "{arguments}");
    assert!(!folder.path().join("plan.yaml").exists(), "{arguments} has written a plan");
    let code = output.status.code().unwrap();
    assert!(code == 1 || code == 2, "exit code {code}");
    format!("exit code {code}\n{}", String::from_utf8(output.stderr).unwrap())
}

/// A line of PipeDream's format.
fn node(id: &str, forward: &str) -> String {
    format!(
        "{id} -- Linear(1, 1) -- forward_compute_time={forward}, backward_compute_time=1.0, activation_size=4.0, parameter_size=8.0\n"
    )
}

fn profile(forward: &str, edges: &str) -> String {
    format!("{}{}{edges}", node("a", "1.0"), node("b", forward))
}

/// A workload of dnn-partitioning; `changed` replaces a part of it.
fn loads(from: &str, to: &str) -> String {
    let node = |id: u32| {
        format!(
            r#"{{"id": {id}, "name": "n{id}", "supportedOnFpga": 1, "cpuLatency": 4, "fpgaLatency": {id}, "isBackwardNode": 0, "size": 1}}"#
        )
    };
    let text = format!(
        "{{\"maxSizePerFPGA\": 8.0, \"maxFPGAs\": 2, \"maxCPUs\": 0,\n\"nodes\": [{},\n{}],\n\
         \"edges\": [{{\"sourceId\": 1, \"destId\": 2, \"cost\": 0.5}}]}}\n",
        node(1),
        node(2)
    );
    assert!(text.contains(from), "{from}");
    text.replace(from, to)
}

/// A workload of Piper; `changed` replaces a part of it.
fn piper(from: &str, to: &str) -> String {
    let node = |id: u32| {
        format!(
            "{{\"id\": {id}, \"name\": \"n{id}\", \"TMPCs\": {{\"1\": [{{\"id\": \"vanilla\", \"timePerSample\": 1.0, \
             \"parameterSize\": 2, \"memoryUsageA\": 3, \"memoryUsageB\": 4, \"syncTimeFw\": {{}}, \"syncTimeBw\": {{}}}}]}}}}"
        )
    };
    let text = format!(
        "{{\"maxDevices\": 2, \"maxMemoryPerDevice\": 10, \"bandwidth\": 1e9, \"mbsInBatch\": 4,\n\"nodes\": [{},\n{}],\n\
         \"edges\": [{{\"sourceId\": 1, \"destId\": 2, \"communicationCost\": 5}}]}}\n",
        node(1),
        node(2)
    );
    assert!(text.contains(from), "{from}");
    text.replace(from, to)
}

const CLUSTER: &str = "kind: cluster\nversion: 1\ndevices: [{type: t4, count: 2}]\n\
                       levels: [{name: pcie, bandwidth: 1.0e9, latency: 0}]\n";

/// A cluster file with a part replaced.
fn cluster(from: &str, to: &str) -> String {
    assert!(CLUSTER.contains(from), "{from}");
    CLUSTER.replace(from, to)
}

macro_rules! refuses {
    ($($name:ident: $file:literal $text:expr, $arguments:literal;)*) => {
        $(
            #[test]
            fn $name() {
                let profile = profile("1.0", "\ta -- b\n");
                let files = [("graph.txt", profile.as_str()), ($file, &*$text)];
                insta::assert_snapshot!(stringify!($name), refused(&files, $arguments));
            }
        )*
    };
}

refuses! {
    profile_cycle: "graph.txt" profile("1.0", "\ta -- b\n\tb -- a\n"), "graph.txt --devices 2xt4";
    profile_in_two_parts: "graph.txt" profile("1.0", ""), "graph.txt --devices 2xt4";
    profile_negative: "graph.txt" profile("-1.0", "\ta -- b\n"), "graph.txt --devices 2xt4";
    profile_nan: "graph.txt" profile("nan", "\ta -- b\n"), "graph.txt --devices 2xt4";
    profile_edge_to_nowhere: "graph.txt" profile("1.0", "\ta -- c\n"), "graph.txt --devices 2xt4";
    profile_empty: "graph.txt" "\n", "graph.txt --devices 2xt4";
    profile_more_stages_than_blocks: "graph.txt" profile("1.0", "\ta -- b\n"), "graph.txt --devices 4xt4 --stages 3";
    profile_more_stages_than_work: "graph.txt" profile("0", "\ta -- b\n").replace("backward_compute_time=1.0", "backward_compute_time=0.0"),
        "graph.txt --devices 4xt4 --stages 2";
    profile_more_stages_than_devices: "graph.txt" format!("{}{}\tb -- c\n", profile("1.0", "\ta -- b\n"), node("c", "1.0")),
        "graph.txt --devices 2xt4 --stages 3";
    profile_no_stages: "graph.txt" profile("1.0", "\ta -- b\n"), "graph.txt --devices 2xt4 --stages 0";
    profile_no_devices: "graph.txt" profile("1.0", "\ta -- b\n"), "graph.txt --devices 0xt4";
    profile_no_machines: "graph.txt" profile("1.0", "\ta -- b\n"), "graph.txt --machines 0";
    profile_no_bandwidth: "graph.txt" profile("1.0", "\ta -- b\n"), "graph.txt --machines 2 --bandwidth 0";
    profile_no_memory: "graph.txt" profile("1.0", "\ta -- b\n"), "graph.txt --machines 2 --memory nan";
    profile_without_samples: "graph.txt" profile("1.0", "\ta -- b\n"), "graph.txt --devices 2xt4 --batch 64";
    a_hybrid_of_two_devices: "graph.txt" profile("1.0", "\ta -- b\n"), "graph.txt --devices 2xt4 --strategy hybrid";
    micro_batches_that_cannot_be_shared: "graph.txt" profile("1.0", "\ta -- b\n"),
        "graph.txt --devices 2xt4 --strategy data-parallel --micro-batches 3";

    profile_too_many_micro_batches: "graph.txt" profile("1.0", "\ta -- b\n"), "graph.txt --devices 2xt4 --micro-batches 4000000000";
    profile_no_batch: "graph.txt" profile("1.0", "\ta -- b\n"), "graph.txt --devices 2xt4 --batch 0";
    profile_beyond_all_bandwidth: "graph.txt" profile("1.0", "\ta -- b\n"), "graph.txt --machines 2 --bandwidth 1e300";
    profile_in_scarce_memory: "graph.txt" profile("1.0", "\ta -- b\n").replace("parameter_size=8.0", "parameter_size=8e9"),
        "graph.txt --devices 2xt4";
    profile_of_a_letter: "graph.txt" profile("1.0", "\ta -- b\n"), "graph.txt --devices 4xe";
    profile_with_what_only_compat_takes: "graph.txt" profile("1.0", "\ta -- b\n"), "graph.txt --devices 2xt4 --straight --input 2x4";
    compat_with_what_only_planning_takes: "graph.txt" profile("1.0", "\ta -- b\n"),
        "graph.txt --compat pipedream --machines 2 --strategy 1f1b --memory 5 -o other.yaml";
    two_clusters: "graph.txt" profile("1.0", "\ta -- b\n"), "graph.txt --devices 2xt4 --machines 2";
    memory_beside_devices: "graph.txt" profile("1.0", "\ta -- b\n"), "graph.txt --devices 2xt4 --memory 1e3";

    loads_with_what_planning_takes: "loads.json" loads("2", "2"), "loads.json --devices 4xt4 --strategy 1f1b -o plan.yaml";
    loads_of_three_kinds: "loads.json" loads("2", "2"), "loads.json --machines 2,1,7";
    loads_cycle: "loads.json" loads("0.5}", "0.5}, {\"sourceId\": 2, \"destId\": 1, \"cost\": 0.5}"), "loads.json";
    loads_negative: "loads.json" loads("\"cpuLatency\": 4", "\"cpuLatency\": -4"), "loads.json";
    loads_nan: "loads.json" loads("0.5", "NaN"), "loads.json";
    loads_infinite: "loads.json" loads("0.5", "1e400"), "loads.json";
    loads_edge_to_nowhere: "loads.json" loads("\"destId\": 2", "\"destId\": 7"), "loads.json";
    loads_no_devices: "loads.json" loads("\"maxFPGAs\": 2", "\"maxFPGAs\": 0"), "loads.json";
    loads_no_machines: "loads.json" loads("2", "2"), "loads.json --machines 0";
    loads_no_memory: "loads.json" loads("8.0", "0"), "loads.json";
    loads_breaks_off: "loads.json" loads("}]}", ""), "loads.json";

    piper_no_micro_batches: "piper.json" piper("1e9", "1e9"), "piper.json --micro-batches 0";
    piper_two_bandwidths: "piper.json" piper("1e9", "1e9"), "piper.json --bandwidth 1e9,2e9";
    piper_cycle: "piper.json" piper("5}", "5}, {\"sourceId\": 2, \"destId\": 1, \"communicationCost\": 5}"), "piper.json";
    piper_negative: "piper.json" piper("\"timePerSample\": 1.0", "\"timePerSample\": -1.0"), "piper.json";
    piper_nan: "piper.json" piper("\"timePerSample\": 1.0", "\"timePerSample\": NaN"), "piper.json";
    piper_edge_to_nowhere: "piper.json" piper("\"destId\": 2", "\"destId\": 7"), "piper.json";
    piper_no_devices: "piper.json" piper("\"maxDevices\": 2", "\"maxDevices\": 0"), "piper.json";
    piper_no_bandwidth: "piper.json" piper("1e9", "0"), "piper.json";
    piper_nothing_fits: "piper.json" piper("\"maxMemoryPerDevice\": 10", "\"maxMemoryPerDevice\": 1"), "piper.json";

    cluster_no_devices: "cluster.yaml" cluster("[{type: t4, count: 2}]", "[]"), "graph.txt --cluster cluster.yaml";
    cluster_of_none: "cluster.yaml" cluster("count: 2", "count: 0"), "graph.txt --cluster cluster.yaml";
    cluster_negative_count: "cluster.yaml" cluster("count: 2", "count: -2"), "graph.txt --cluster cluster.yaml";
    cluster_unknown_type: "cluster.yaml" cluster("t4", "t44"), "graph.txt --cluster cluster.yaml";
    cluster_link_to_nowhere: "cluster.yaml"
        format!("{CLUSTER}links: [{{from: \"node0:0\", to: nowhere, bandwidth: 1, latency: 0}}]\n"),
        "graph.txt --cluster cluster.yaml";
    cluster_no_bandwidth: "cluster.yaml" cluster("1.0e9", "0"), "graph.txt --cluster cluster.yaml";
    cluster_nan_bandwidth: "cluster.yaml" cluster("1.0e9", ".nan"), "graph.txt --cluster cluster.yaml";
    cluster_negative_latency: "cluster.yaml" cluster("latency: 0", "latency: -1"), "graph.txt --cluster cluster.yaml";
    cluster_without_links: "cluster.yaml" cluster("levels: [{name: pcie, bandwidth: 1.0e9, latency: 0}]", ""),
        "graph.txt --cluster cluster.yaml";
    cluster_of_another_kind: "cluster.yaml" cluster("kind: cluster", "kind: plan"), "graph.txt --cluster cluster.yaml";
    cluster_of_tomorrow: "cluster.yaml" cluster("version: 1", "version: 9"), "graph.txt --cluster cluster.yaml";
    cluster_of_another_word: "cluster.yaml" cluster("type: t4", "typ: t4"), "graph.txt --cluster cluster.yaml";
    cluster_that_is_a_list: "cluster.yaml" "[]", "graph.txt --cluster cluster.yaml";
    cluster_breaks_off: "cluster.yaml" cluster("count: 2}]", "count: 2"), "graph.txt --cluster cluster.yaml";
}
