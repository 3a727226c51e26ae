//! Where libtorch lies.

use std::path::PathBuf;

/// Returns the folder of the libtorch that this process runs with, where the system tells.
pub fn folder() -> Option<PathBuf> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let mut paths = maps.lines().filter_map(|line| line.find('/').map(|start| PathBuf::from(&line[start..])));
    let found = paths.find(|path| path.file_name().is_some_and(|name| name == "libtorch_cpu.so"))?;
    found.parent().map(PathBuf::from)
}
