//! Files that are read whole, and why one cannot be.

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

/// Refuses what is no file, and says why.
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

/// A file that cannot be looked at; where its folder has one of nearly the same name, that is likely meant.
fn missing(path: &Path, error: &std::io::Error) -> Failure {
    let failure = Failure::input(format!("{}: {error}", path.display()));
    if path == Path::new("-") {
        return failure.with_hint("files are read by their path, not from standard input");
    }
    if let Ok(target) = fs::read_link(path) {
        return failure.with_hint(format!("it is a link to {}, which is not there", target.display()));
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
