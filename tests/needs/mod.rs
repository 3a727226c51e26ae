//! What tests need beside cargo, and what happens where it is lacking: a line that `.ci/test` counts, or a failure.
//!
//! The line goes to the error stream itself, for the harness shows nothing of what a test that passes prints.
//! Where `CI` is set, only what `.ci/may-lack` lists may be lacking.
// Each test binary takes what it needs of this.
#![allow(dead_code)]

use std::{
    io::Write,
    panic::Location,
    path::{Path, PathBuf},
};

/// What a test may need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// An interpreter with torch, `.venv/bin/python`.
    Torch,
    /// Chromium.
    Browser,
    /// Graphviz.
    Graphviz,
    /// A libtorch that was built with CUDA.
    Cuda,
    /// Leave to mount a file system.
    Mounts,
    /// A checkout that other users may read.
    OtherUser,
    /// An interpreter without torch.
    BarePython,
    /// `../shared/data`, of which `fixtures/outside` is a sample.
    WholeSets,
    /// The traces of `make zoo`.
    Zoo,
    /// Memory for an archive of 4 GiB, and patience.
    Large,
    /// glibc, which can be told to keep memory.
    Glibc,
}

impl Need {
    /// Every need.
    pub const ALL: [Self; 11] = [
        Self::Torch,
        Self::Browser,
        Self::Graphviz,
        Self::Cuda,
        Self::Mounts,
        Self::OtherUser,
        Self::BarePython,
        Self::WholeSets,
        Self::Zoo,
        Self::Large,
        Self::Glibc,
    ];

    /// Returns the name in `.ci/may-lack`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Torch => "torch",
            Self::Browser => "browser",
            Self::Graphviz => "graphviz",
            Self::Cuda => "cuda",
            Self::Mounts => "mounts",
            Self::OtherUser => "other-user",
            Self::BarePython => "bare-python",
            Self::WholeSets => "whole-sets",
            Self::Zoo => "zoo",
            Self::Large => "large",
            Self::Glibc => "glibc",
        }
    }

    fn lacking(self) -> &'static str {
        match self {
            Self::Torch => "there is no .venv/bin/python with torch, `make .venv/ready` makes it",
            Self::Browser => "there is no Chromium on the PATH, `make programs` installs it",
            Self::Graphviz => "there is no `dot` on the PATH, `make programs` installs it",
            Self::Cuda => "the libtorch in .venv was built without CUDA",
            Self::Mounts => "no file system can be mounted here",
            Self::OtherUser => "other users may not read this checkout",
            Self::BarePython => "there is no python3 without torch on the PATH",
            Self::WholeSets => "../shared/data is not there",
            Self::Zoo => "there is no out/zoo, `make zoo` makes it",
            Self::Large => "it takes LARGE=1, .venv and 5 GB of memory",
            Self::Glibc => "this is not glibc",
        }
    }
}

/// Says that a test does nothing here.
///
/// # Panics
/// Where `CI` is set and the machine must have what is needed.
#[track_caller]
pub fn skip(need: Need) {
    say("skipped", need);
}

/// Says that a test leaves out a part.
///
/// # Panics
/// Where `CI` is set and the machine must have what is needed.
#[track_caller]
pub fn shorten(need: Need) {
    say("shortened", need);
}

/// Returns the interpreter with torch, or says that the test is skipped.
#[track_caller]
pub fn python() -> Option<PathBuf> {
    let python = root().join(".venv/bin/python");
    if python.exists() {
        return Some(python);
    }
    skip(Need::Torch);
    None
}

/// Returns a file of an outside data set, from the committed sample where that has it.
///
/// A file that is nowhere shortens the test.
#[track_caller]
pub fn outside(path: &str) -> Option<PathBuf> {
    let found = data().into_iter().map(|folder| folder.join(path)).find(|path| path.exists());
    if found.is_none() {
        shorten(Need::WholeSets);
    }
    found
}

/// Returns the places of an outside data set: the committed sample, then the whole set where it is there.
#[track_caller]
pub fn outside_sets(path: &str) -> Vec<PathBuf> {
    let [sample, whole] = data().map(|folder| folder.join(path));
    if whole.exists() {
        return vec![sample, whole];
    }
    shorten(Need::WholeSets);
    vec![sample]
}

fn data() -> [PathBuf; 2] {
    ["fixtures/outside", "../shared/data"].map(|folder| root().join(folder))
}

/// The workspace, whose crates lie one folder deep.
fn root() -> PathBuf {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    if own.join(".ci/may-lack").exists() { own.into() } else { own.join("..") }
}

#[track_caller]
fn say(what: &str, need: Need) {
    let is_ci = std::env::var("CI").is_ok_and(|value| value == "1" || value == "true");
    assert!(
        !is_ci || may_lack(include_str!("../../.ci/may-lack"), need),
        "this test needs {}: {} (CI is set, and .ci/may-lack does not list it)",
        need.name(),
        need.lacking()
    );
    let location = Location::caller();
    let thread = std::thread::current();
    // One thread runs the tests by itself, under its own name.
    let test = match thread.name() {
        Some(name) if name != "main" => name.to_string(),
        _ => format!("{}:{}", location.file(), location.line()),
    };
    let line = format!("{what}: {}::{test}: {}\n", env!("CARGO_CRATE_NAME"), need.lacking());
    // A reader that is gone is not a fault of the test.
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// Tells whether a list allows a need to be lacking.
pub fn may_lack(list: &str, need: Need) -> bool {
    names(list).any(|name| name == need.name())
}

/// Returns the needs of a list: the first word of each line.
pub fn names(list: &str) -> impl Iterator<Item = &str> {
    list.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split_whitespace().next())
}
