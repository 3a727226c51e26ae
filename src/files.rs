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

/// Returns the most memory this process has held, where the system tells.
pub fn peak_memory() -> Option<schema::Bytes> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kibibytes: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(schema::Bytes(kibibytes * 1024))
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

/// A folder that appears whole or not at all: written beside its place, then renamed.
pub struct Folder {
    target: PathBuf,
    beside: tempfile::TempDir,
    replaces: bool,
}

/// Names the folders that `--force` may replace.
const MARK: &str = "stages/manifest.json";

impl Folder {
    /// Begins a folder. One that holds anything is refused, unless `force` is given and we wrote it.
    pub fn create(target: &Path, force: bool) -> Result<Self, Failure> {
        let shown = target.display();
        let mut replaces = false;
        match fs::symlink_metadata(target) {
            Ok(data) if data.is_symlink() => {
                return Err(Failure::input(format!("{shown} is a link")).with_hint("name the folder itself"));
            }
            Ok(data) if !data.is_dir() => return Err(Failure::input(format!("{shown} is not a folder"))),
            Ok(_) => {
                let is_empty = fs::read_dir(target)?.next().is_none();
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
        let parent = match target.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent.to_path_buf(),
            _ => PathBuf::from("."),
        };
        let in_parent =
            |error: std::io::Error| Failure::input(format!("cannot write in {}: {error}", parent.display()));
        fs::create_dir_all(&parent).map_err(in_parent)?;
        let beside =
            tempfile::Builder::new().prefix(".model-analyze-").tempdir_in(&parent).map_err(in_parent)?;
        Ok(Self { target: target.to_path_buf(), beside, replaces })
    }

    /// Returns the place of a file while the folder is written.
    pub fn path(&self, relative: &str) -> Result<PathBuf, Failure> {
        let path = self.beside.path().join(relative);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        Ok(path)
    }

    /// Puts the folder into its place.
    pub fn finish(self) -> Result<(), Failure> {
        let in_target = |error: std::io::Error| {
            Failure::input(format!("cannot write {}: {error}", self.target.display()))
        };
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            fs::set_permissions(self.beside.path(), fs::Permissions::from_mode(0o755)).map_err(in_target)?;
        }
        if !self.replaces {
            fs::rename(self.beside.path(), &self.target).map_err(in_target)?;
            // Nothing is left to clean up.
            let _ = self.beside.keep();
            return Ok(());
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
