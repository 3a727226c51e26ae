//! Files: read whole or mapped, written under a temporary name and renamed, so that nothing half-written is left.

use std::{fs, path::Path};

use self::read::check_regular;
use crate::{failure::Failure, program::PROGRAM};

mod folder;
mod opened;
mod read;
mod write;

pub use folder::{Beside, Folder};
pub use opened::{Opened, State, changed, open};
pub use read::{read_bytes, read_start, read_text};
pub use write::write;

/// Maps a file that this process has written into memory: only accessed pages are read.
pub fn map(path: &Path) -> Result<memmap2::Mmap, Failure> {
    check_regular(path)?;
    let in_file = |error| Failure::input(format!("{}: {error}", path.display()));
    let file = fs::File::open(path).map_err(in_file)?;
    // SAFETY: the mapping is read-only and private to this process. Invariant: nobody shortens the file while it is
    // mapped, which would cause SIGBUS: it is in a folder that this process is making and nobody else knows. Files of
    // others are read, not mapped.
    #[allow(unsafe_code)]
    let mapping = unsafe { memmap2::Mmap::map(&file) };
    mapping.map_err(in_file)
}

/// Adds the writing program to the end of a picture, in formats that have comments.
pub fn signed(path: &Path, mut text: String) -> String {
    let by = format!("written by {PROGRAM}");
    let comment = match path.extension().and_then(std::ffi::OsStr::to_str) {
        Some("svg") => format!("<!-- {by} -->\n"),
        Some("dot" | "gv") => format!("// {by}\n"),
        _ => return text,
    };
    if !text.ends_with('\n') {
        text.push('\n');
    }
    text + &comment
}

/// Returns the peak memory of this process, if the system tells it.
pub fn peak_memory() -> Option<schema::Bytes> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kibibytes: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(schema::Bytes(kibibytes * 1024))
}
