//! Against torch itself: the same operators at the same places as in the graphs that torch keeps in memory.
//!
//! The reference walks each method's own graph. `inlined_graph` would not do: torch simplifies the graphs of
//! submodules on the way there (scalar round trips, dead code, `cat` of `cat`), which the saved code has not.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::process::Command;

#[path = "../../tests/needs/mod.rs"]
mod needs;

const SCRIPT: &str = include_str!("trace_small.py");

#[test]
fn operators_and_scopes_are_those_of_torch() {
    let Some(python) = needs::python() else { return };
    let folder = std::env::temp_dir().join(format!("tracer-torch-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let output = Command::new(python)
        .args(["-W", "ignore", "-c", SCRIPT])
        .arg(&folder)
        .env("OMP_NUM_THREADS", "1")
        .output()
        .unwrap();
    if !output.status.success() {
        let reason = String::from_utf8_lossy(&output.stderr);
        assert!(reason.contains("ModuleNotFoundError"), "{reason}");
        needs::skip(needs::Need::Torch);
        return;
    }
    let mut models = 0;
    for line in String::from_utf8(output.stdout).unwrap().lines() {
        let bytes = std::fs::read(folder.join(format!("{line}.pt"))).unwrap();
        let expected = std::fs::read_to_string(folder.join(format!("{line}.ops"))).unwrap();
        let program = tracer::read_archive(&bytes).unwrap_or_else(|error| panic!("{line}: {error}"));
        let mut found = String::new();
        for node in &program.nodes {
            if matches!(node.operator.as_str(), "prim::TupleUnpack" | "prim::ListConstruct") {
                continue;
            }
            let module = program.calls[node.call.index()].module;
            found.push_str(&format!("{} {}\n", node.operator, program.modules[module.index()].path));
        }
        assert_eq!(found, expected, "{line}");
        let recorded = program.recorded.expect("torch keeps the example inputs");
        assert_eq!(recorded.inputs.len(), program.inputs.len());
        models += 1;
    }
    std::fs::remove_dir_all(&folder).unwrap();
    assert_eq!(models, 6);
}
