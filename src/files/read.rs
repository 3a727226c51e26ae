//! Files that are read whole, and the errors of reading.

use std::{
    fs,
    io::Read,
    path::{Path, PathBuf},
};

use crate::{failure::Failure, nearest::nearest};

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

/// Reads the beginning of a file.
pub fn read_start(path: &Path, most: u64) -> Result<Vec<u8>, Failure> {
    check_regular(path)?;
    let mut bytes = Vec::new();
    let read = fs::File::open(path).and_then(|file| file.take(most).read_to_end(&mut bytes));
    read.map_err(|error| Failure::input(format!("{}: {error}", path.display())))?;
    Ok(bytes)
}

/// Refuses everything but regular files, with the reason.
pub(super) fn check_regular(path: &Path) -> Result<(), Failure> {
    let data = fs::metadata(path).map_err(|error| missing(path, &error))?;
    if data.is_file() {
        Ok(())
    } else if data.is_dir() {
        Err(Failure::input(format!("{} is a directory, not a file", path.display()))
            .with_hint("name the file itself"))
    } else {
        Err(Failure::input(format!("{} is not a regular file", path.display())))
    }
}

/// The failure for a file that cannot be opened; names a file of nearly the same name in its folder.
fn missing(path: &Path, error: &std::io::Error) -> Failure {
    let failure = Failure::input(format!("{}: {error}", path.display()));
    if path == Path::new("-") {
        return failure.with_hint("give the path of a file; standard input is not read");
    }
    if let Ok(target) = fs::read_link(path) {
        return failure.with_hint(format!("it is a link to {}, which does not exist", target.display()));
    }
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let near = fs::read_dir(parent(path)).into_iter().flatten().flatten();
    let near = near.map(|entry| entry.file_name().to_string_lossy().into_owned());
    match nearest(&name, near, 2) {
        Some(near) if error.kind() == std::io::ErrorKind::NotFound => {
            failure.with_hint(format!("did you mean `{}`?", path.with_file_name(near).display()))
        }
        _ => failure,
    }
}

/// Returns the folder of a file.
pub(super) fn parent(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_path_buf(),
        _ => PathBuf::from("."),
    }
}
