//! The crates of the workspace, as Cargo.toml lists them.

#![allow(clippy::unwrap_used)]

use std::{fs, path::Path};

/// Returns the folders of all crates but the command, which lies at the root.
pub fn members() -> Vec<String> {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
    let text = fs::read_to_string(manifest).unwrap();
    let list = text.split_once("members = [").unwrap().1.split_once(']').unwrap().0;
    let names = list.split(',').map(|name| name.trim().trim_matches('"').to_string());
    let members: Vec<String> = names.filter(|name| !name.is_empty()).collect();
    assert!(members.len() > 10, "{members:?} are not all");
    members
}
