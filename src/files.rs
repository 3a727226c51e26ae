//! Files: read whole or mapped, written beside and renamed, so that nothing half-written is left behind.

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
};

use crate::{PROGRAM, failure::Failure, nearest::nearest};

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

/// Names what is not finished; a run that was killed leaves it behind.
const UNFINISHED: &str = ".model-analyze-unfinished-";

/// Writes a file whole or not at all. A link is followed; a device or pipe is written as it stands.
pub fn write(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    let in_file = |error: std::io::Error| Failure::input(format!("cannot write {}: {error}", path.display()));
    let is_link = fs::symlink_metadata(path).is_ok_and(|data| data.is_symlink());
    let place = match is_link {
        true => fs::canonicalize(path).map_err(in_file)?,
        false => path.to_path_buf(),
    };
    match fs::metadata(&place) {
        Ok(data) if data.is_dir() => {
            return Err(Failure::input(format!("{} is a directory, not a file", path.display())));
        }
        // Renaming over /dev/null would replace it for everybody.
        Ok(data) if !data.is_file() => {
            let mut device = fs::OpenOptions::new().write(true).open(&place).map_err(in_file)?;
            return device.write_all(bytes).map_err(in_file);
        }
        _ => {}
    }
    let mut file =
        builder(0o666).tempfile_in(parent(&place)).map_err(|error| not_in(path, &parent(&place), error))?;
    // Through the file itself: its wrapper would name what is beside, which is nothing to anybody.
    file.as_file_mut().write_all(bytes).map_err(in_file)?;
    if let Ok(data) = fs::metadata(&place) {
        fs::set_permissions(file.path(), data.permissions()).map_err(in_file)?;
    }
    // A full disk of a server is told here or never.
    file.as_file().sync_all().map_err(in_file)?;
    file.persist(&place).map_err(|error| in_file(error.error))?;
    Ok(())
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
    let error = std::io::Error::from(error.kind());
    let failure = Failure::input(format!("cannot write {}: {error}", path.display()));
    match parent.is_dir() {
        true => failure,
        false => failure.with_hint(format!("there is no folder {}", parent.display())),
    }
}

/// Returns a maker of unfinished things; `mode` is what the user's mask allows at most.
fn builder(mode: u32) -> tempfile::Builder<'static, 'static> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(UNFINISHED);
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

/// A folder that appears whole or not at all: written beside its place, then renamed.
pub struct Folder {
    target: PathBuf,
    beside: tempfile::TempDir,
    replaces: bool,
    /// Locked for as long as we live: what is not locked was left by a run that was killed.
    _lock: Option<fs::File>,
}

/// Names the folders that `--force` may replace.
const MARK: &str = "stages/manifest.json";

/// Younger leftovers may be folders that are just being made.
const SURELY_OLD: std::time::Duration = std::time::Duration::from_secs(60);

impl Folder {
    /// Begins a folder. One that holds anything is refused, unless `force` is given and we wrote it.
    pub fn create(target: &Path, force: bool) -> Result<Self, Failure> {
        let shown = target.display();
        // `out/` is `out`; a link is seen only without the slash.
        let target: PathBuf = target.components().collect();
        if target.file_name().is_none() {
            return Err(Failure::input(format!("{shown} cannot be replaced"))
                .with_hint("name a folder that is new, such as out"));
        }
        let mut replaces = false;
        match fs::symlink_metadata(&target) {
            Ok(data) if data.is_symlink() => {
                return Err(Failure::input(format!("{shown} is a link")).with_hint("name the folder itself"));
            }
            Ok(data) if !data.is_dir() => return Err(Failure::input(format!("{shown} is not a folder"))),
            Ok(_) => {
                let in_target = |error: std::io::Error| Failure::input(format!("{shown}: {error}"));
                let is_empty = fs::read_dir(&target).map_err(in_target)?.next().is_none();
                if !is_empty && !force {
                    return Err(Failure::input(format!("{shown} is not empty"))
                        .with_hint("--force replaces it if this command wrote it"));
                }
                if !is_empty && !target.join(MARK).is_file() {
                    return Err(Failure::input(format!("{shown} holds something else, it has no {MARK}"))
                        .with_hint("choose another folder"));
                }
                replaces = true;
            }
            Err(_) => {}
        }
        let parent = parent(&target);
        let in_parent =
            |error: std::io::Error| Failure::input(format!("cannot write in {}: {error}", parent.display()));
        fs::create_dir_all(&parent).map_err(in_parent)?;
        sweep(&parent);
        let beside = builder(0o777)
            .tempdir_in(&parent)
            .map_err(|error| in_parent(std::io::Error::from(error.kind())))?;
        let lock = lock(beside.path());
        Ok(Self { target, beside, replaces, _lock: lock })
    }

    /// Returns the place of a file while the folder is written.
    pub fn path(&self, relative: &str) -> Result<PathBuf, Failure> {
        let path = self.beside.path().join(relative);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(|error| {
                Failure::input(format!("cannot write in {}: {error}", self.target.display()))
            })?;
        }
        Ok(path)
    }

    /// Puts the folder into its place.
    pub fn finish(self) -> Result<(), Failure> {
        let in_target = |error: std::io::Error| {
            Failure::input(format!("cannot write {}: {error}", self.target.display()))
        };
        if !self.replaces {
            fs::rename(self.beside.path(), &self.target).map_err(in_target)?;
            // Nothing is left to clean up.
            let _ = self.beside.keep();
            return Ok(());
        }
        // In one step where the system can: there is never no folder. What was replaced then lies beside.
        if exchange(self.beside.path(), &self.target) {
            let old = self.beside.path().to_path_buf();
            return self
                .beside
                .close()
                .map_err(|error| Failure::input(format!("cannot remove {}: {error}", old.display())));
        }
        // The old folder steps aside first; if the new one cannot come, it steps back.
        let old = self.beside.path().with_extension("old");
        fs::rename(&self.target, &old).map_err(in_target)?;
        if let Err(error) = fs::rename(self.beside.path(), &self.target) {
            let _ = fs::rename(&old, &self.target);
            return Err(in_target(error));
        }
        let _ = self.beside.keep();
        fs::remove_dir_all(&old)
            .map_err(|error| Failure::input(format!("cannot remove {}: {error}", old.display())))
    }
}

/// Lets two folders change places; tells whether that could be done.
#[cfg(target_os = "linux")]
fn exchange(one: &Path, other: &Path) -> bool {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE).is_ok()
}

#[cfg(not(target_os = "linux"))]
fn exchange(_one: &Path, _other: &Path) -> bool {
    false
}

/// Locks a folder while the file lives; none where the file system has no locks.
fn lock(folder: &Path) -> Option<fs::File> {
    let file = fs::File::open(folder).ok()?;
    #[cfg(unix)]
    rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive).ok()?;
    Some(file)
}

/// Removes what killed runs have left in a folder: it may be as large as a model.
fn sweep(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let is_ours = entry.file_name().to_str().is_some_and(|name| name.starts_with(UNFINISHED));
        let Ok(data) = entry.metadata() else { continue };
        let age = data.modified().ok().and_then(|time| time.elapsed().ok()).unwrap_or_default();
        if is_ours && data.is_dir() && age > SURELY_OLD && lock(&entry.path()).is_some() {
            // Somebody else's rights may forbid it, which is no fault of this run.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

fn check_regular(path: &Path) -> Result<(), Failure> {
    let data = fs::metadata(path).map_err(|error| missing(path, &error))?;
    match data.is_file() {
        true => Ok(()),
        false if data.is_dir() => {
            Err(Failure::input(format!("{} is a directory, not a file", path.display()))
                .with_hint("name the file itself"))
        }
        false => Err(Failure::input(format!("{} is not a regular file", path.display()))),
    }
}

/// A file that cannot be looked at; where its folder has one of nearly the same name, that is likely meant.
fn missing(path: &Path, error: &std::io::Error) -> Failure {
    let failure = Failure::input(format!("{}: {error}", path.display()));
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
