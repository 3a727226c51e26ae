//! Files: read whole or mapped, written beside and renamed, so that nothing half-written is left behind.

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
};

use crate::{PROGRAM, failure::Failure, nearest::nearest, unfinished};

mod folder;
mod opened;

pub use folder::{Beside, Folder};
pub use opened::{Opened, State, changed, open};

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

/// Maps a file that we have written into memory: what is not looked at is not read.
pub fn map(path: &Path) -> Result<memmap2::Mmap, Failure> {
    check_regular(path)?;
    let in_file = |error| Failure::input(format!("{}: {error}", path.display()));
    let file = fs::File::open(path).map_err(in_file)?;
    // SAFETY: the mapping is read-only and private to this process. Invariant: nobody shortens the file while we read it, which
    // would be SIGBUS: it lies in a folder that we are making and that nobody else knows. Files of others are read, not mapped.
    #[allow(unsafe_code)]
    let mapping = unsafe { memmap2::Mmap::map(&file) };
    mapping.map_err(in_file)
}

/// Writes a file whole or not at all. A link is followed; a device or pipe is written as it stands.
pub fn write(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    let in_file = |error: std::io::Error| Failure::input(format!("cannot write {}: {error}", path.display()));
    let is_link = fs::symlink_metadata(path).is_ok_and(|data| data.is_symlink());
    let place = if is_link { fs::canonicalize(path).map_err(in_file)? } else { path.to_path_buf() };
    match fs::metadata(&place) {
        Ok(data) if data.is_dir() => {
            return Err(Failure::input(format!("{} is a directory, not a file", path.display())));
        }
        // Renaming over /dev/null would replace it for everybody.
        Ok(data) if !data.is_file() => {
            let mut device = fs::OpenOptions::new().write(true).open(&place).map_err(in_file)?;
            unfinished::making().finished(&place, &place);
            return device.write_all(bytes).map_err(in_file);
        }
        _ => {}
    }
    let folder = parent(&place);
    unfinished::sweep(&folder);
    let (mut file, _lock) =
        unfinished::make_locked(|| builder(0o666).tempfile_in(&folder), |file| file.path().to_path_buf())
            .map_err(|error| not_in(path, &folder, error))?;
    // Through the file itself: its wrapper would name what is beside, which is nothing to anybody.
    file.as_file_mut().write_all(bytes).map_err(in_file)?;
    if let Ok(data) = fs::metadata(&place) {
        fs::set_permissions(file.path(), data.permissions()).map_err(in_file)?;
    }
    // A full disk of a server is told here or never.
    file.as_file().sync_all().map_err(in_file)?;
    let mut making = unfinished::making();
    let beside = file.path().to_path_buf();
    file.persist(&place).map_err(|error| in_file(error.error))?;
    making.finished(&beside, &place);
    Ok(())
}

/// Returns what the system says, without the name of what lies beside: it is nothing to anybody.
fn without_path(error: &std::io::Error) -> String {
    let text = error.to_string();
    text.split(" at path ").next().unwrap_or_default().to_string()
}

/// Says at the end of a picture who drew it, in formats that have comments.
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

fn not_in(path: &Path, parent: &Path, error: std::io::Error) -> Failure {
    // The temporary file's name is nothing to anybody.
    let error = without_path(&error);
    let failure = Failure::input(format!("cannot write {}: {error}", path.display()));
    if parent.is_dir() {
        failure
    } else {
        failure.with_hint(format!("there is no folder {}", parent.display()))
    }
}

/// Returns a maker of unfinished things; `mode` is what the user's mask allows at most.
fn builder(mode: u32) -> tempfile::Builder<'static, 'static> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(unfinished::UNFINISHED);
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        builder.permissions(fs::Permissions::from_mode(mode));
    }
    builder
}

fn parent(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_path_buf(),
        _ => PathBuf::from("."),
    }
}

/// Returns the most memory this process has held, where the system tells.
pub fn peak_memory() -> Option<schema::Bytes> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kibibytes: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(schema::Bytes(kibibytes * 1024))
}

fn check_regular(path: &Path) -> Result<(), Failure> {
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
    // Of a name of one letter every other is as near.
    match nearest(&name, near, 2.min(name.chars().count() / 2)) {
        Some(near) if error.kind() == std::io::ErrorKind::NotFound => {
            failure.with_hint(format!("did you mean `{}`?", path.with_file_name(near).display()))
        }
        _ => failure,
    }
}
