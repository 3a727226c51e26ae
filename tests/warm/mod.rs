//! An interpreter that has imported torch already: `serve.py` says how.

use std::{
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::OnceLock,
};

/// What traces import besides torch.
// Each test binary takes what it needs of this.
#[allow(dead_code)]
pub const FOR_TRACES: &[&str] = &[
    "torch._dynamo",
    "transformers",
    "transformers.modeling_utils",
    "transformers.models.auto.modeling_auto",
];

/// Returns a program that is called as `python` is, for the commands that hand it a script; one process, which has imported
/// these modules and torch, serves a test binary and ends with it.
pub fn warm(python: &Path, modules: &[&str]) -> PathBuf {
    static CLIENT: OnceLock<PathBuf> = OnceLock::new();
    CLIENT
        .get_or_init(|| {
            let folder = tempfile::tempdir().expect("a folder").keep();
            let mut command = Command::new(python);
            command
                .args(["-W", "ignore"])
                .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/warm/serve.py"))
                .arg(&folder)
                .arg("torch")
                .args(modules);
            // Read when libraries are loaded.
            command.env("OMP_NUM_THREADS", "1").env("HF_HUB_OFFLINE", "1");
            let mut server =
                command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("python starts");
            let mut said = String::new();
            BufReader::new(server.stdout.take().expect("a pipe")).read_line(&mut said).expect("an answer");
            assert_eq!(said, "ready\n");
            // Its standard input ends with this process.
            std::mem::forget(server);
            folder.join("python")
        })
        .clone()
}
