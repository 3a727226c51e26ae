//! Files that are written whole or not at all: under a temporary name, then renamed.

use std::{fs, io::Write, path::Path};

use super::read::parent;
use crate::{failure::Failure, unfinished};

/// Writes a file whole or not at all. A link is followed; a device or pipe is written to directly.
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
    // Written through the file itself: errors of its wrapper would contain the temporary name, which means nothing to
    // users.
    file.as_file_mut().write_all(bytes).map_err(in_file)?;
    if let Ok(data) = fs::metadata(&place) {
        fs::set_permissions(file.path(), data.permissions()).map_err(in_file)?;
    }
    // A server's full disk is reported here or never.
    file.as_file().sync_all().map_err(in_file)?;
    let mut making = unfinished::making();
    let beside = file.path().to_path_buf();
    file.persist(&place).map_err(|error| in_file(error.error))?;
    making.finished(&beside, &place);
    Ok(())
}

/// Returns the system's message without the temporary name, which means nothing to users.
pub(super) fn without_path(error: &std::io::Error) -> String {
    let text = error.to_string();
    text.split(" at path ").next().unwrap_or_default().to_string()
}

fn not_in(path: &Path, parent: &Path, error: std::io::Error) -> Failure {
    // The temporary name means nothing to users.
    let error = without_path(&error);
    let failure = Failure::input(format!("cannot write {}: {error}", path.display()));
    if parent.is_dir() {
        failure
    } else {
        failure.with_hint(format!("there is no folder {}", parent.display()))
    }
}

/// Returns a builder of temporary files and folders; `mode` is limited by the user's umask.
pub(super) fn builder(mode: u32) -> tempfile::Builder<'static, 'static> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(unfinished::UNFINISHED);
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        builder.permissions(fs::Permissions::from_mode(mode));
    }
    builder
}
