//! Files: read whole or mapped, written beside and renamed, so that nothing half-written is left behind.

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
};

use crate::failure::Failure;

/// Reads a text file.
pub fn read_text(path: &Path) -> Result<String, Failure> {
    let bytes = read_bytes(path)?;
    String::from_utf8(bytes).map_err(|error| {
        Failure::input(format!("{}: not UTF-8 text: {}", path.display(), error.utf8_error()))
    })
}

/// Reads a file.
pub fn read_bytes(path: &Path) -> Result<Vec<u8>, Failure> {
    check_regular(path)?;
    fs::read(path).map_err(|error| Failure::input(format!("{}: {error}", path.display())))
}

/// Maps a file into memory: what is not looked at is not read.
pub fn map(path: &Path) -> Result<memmap2::Mmap, Failure> {
    check_regular(path)?;
    let in_file = |error| Failure::input(format!("{}: {error}", path.display()));
    let file = fs::File::open(path).map_err(in_file)?;
    // SAFETY: the mapping is read-only and private to this process. Invariant: nobody shortens the file while
    // we read it; a process that does gets SIGBUS, as with any mapped file.
    #[allow(unsafe_code)]
    let mapping = unsafe { memmap2::Mmap::map(&file) };
    mapping.map_err(in_file)
}

/// Writes a file whole or not at all.
pub fn write(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    let in_file = |error: std::io::Error| Failure::input(format!("cannot write {}: {error}", path.display()));
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_path_buf(),
        _ => PathBuf::from("."),
    };
    let mut file = tempfile::NamedTempFile::new_in(&folder).map_err(in_file)?;
    file.write_all(bytes).map_err(in_file)?;
    let mode = fs::metadata(path).map(|data| data.permissions()).ok();
    if let Some(mode) = mode.or_else(default_permissions) {
        fs::set_permissions(file.path(), mode).map_err(in_file)?;
    }
    file.persist(path).map_err(|error| in_file(error.error))?;
    Ok(())
}

/// Temporary files are private by default; a result is not.
#[cfg(unix)]
fn default_permissions() -> Option<fs::Permissions> {
    use std::os::unix::fs::PermissionsExt;
    Some(fs::Permissions::from_mode(0o644))
}

#[cfg(not(unix))]
fn default_permissions() -> Option<fs::Permissions> {
    None
}

fn check_regular(path: &Path) -> Result<(), Failure> {
    let data = fs::metadata(path).map_err(|error| Failure::input(format!("{}: {error}", path.display())))?;
    match data.is_file() {
        true => Ok(()),
        false if data.is_dir() => {
            Err(Failure::input(format!("{} is a directory, not a file", path.display())))
        }
        false => Err(Failure::input(format!("{} is not a regular file", path.display()))),
    }
}
