//! The files of an emitted folder, compared with its manifest.
//!
//! The manifest is written last and holds size and CRC-32 of every other file. Manifests of earlier versions do not
//! list files; nothing is compared then.

use std::{
    collections::BTreeMap,
    fs,
    io::{self, Read},
    path::{Component, Path, PathBuf},
};

use codegen::Checksum;
use schema::{FileDigest, Manifest};

use crate::{
    failure::{Failure, note},
    files,
};

/// The path of the manifest in a folder.
pub const MANIFEST: &str = "stages/manifest.json";

/// What to do with files that were changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Changes {
    /// The command fails.
    Refused,
    /// The command prints a note.
    Said,
}

impl Changes {
    /// Returns the choice of `--allow-changes`.
    pub fn allowed(allow: bool) -> Self {
        if allow { Changes::Said } else { Changes::Refused }
    }
}

/// Adds the files outside the stages to the manifest of a folder in the making.
pub fn list_more(folder: &files::Folder) -> Result<(), Failure> {
    let root = folder.path("")?;
    let path = folder.path(MANIFEST)?;
    let mut manifest: Manifest = serde_json::from_slice(&files::read_bytes(&path)?).map_err(Failure::bug)?;
    for file in all(&root)? {
        let name = in_manifest(&file);
        if name != MANIFEST && !manifest.files.contains_key(&name) {
            manifest.files.insert(name, digest(&root.join(&file))?);
        }
    }
    let text = serde_json::to_string_pretty(&manifest).map_err(Failure::bug)? + "\n";
    files::write(&path, text.as_bytes())
}

/// Compares files with the manifest.
pub fn check(
    folder: &Path,
    digests: &BTreeMap<String, FileDigest>,
    changes: Changes,
    is_wanted: impl Fn(&str) -> bool,
) -> Result<(), Failure> {
    let mut missing = Vec::new();
    let mut changed = Vec::new();
    for (name, expected) in digests.iter().filter(|(name, _)| is_wanted(name)) {
        // A manifest from a stranger must not open files elsewhere.
        if !Path::new(name).components().all(|part| matches!(part, Component::Normal(_))) {
            return Err(Failure::input(format!(
                "{} lists the file `{name}`",
                folder.join(MANIFEST).display()
            )));
        }
        let path = folder.join(name);
        let shown = path.display();
        match fs::metadata(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                missing.push(format!("{shown} is missing"));
            }
            // Sizes first: they are cheap to check.
            Ok(data) if data.len() == expected.bytes && digest(&path)? == *expected => {}
            Ok(_) => changed.push(format!("{shown} was changed after it was written")),
            Err(error) => return Err(Failure::input(format!("{shown}: {error}"))),
        }
    }
    if let (Changes::Said, []) = (changes, &missing[..]) {
        changed.into_iter().for_each(note);
        return Ok(());
    }
    let hint = if missing.is_empty() {
        "emit the stages again, or accept it with --allow-changes"
    } else {
        "emit the stages again"
    };
    missing.append(&mut changed);
    if missing.is_empty() { Ok(()) } else { Err(Failure::input(missing.join("\n       ")).with_hint(hint)) }
}

/// Lists the files, links and empty folders below a folder by their relative paths, sorted.
pub fn all(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut folders = vec![PathBuf::new()];
    while let Some(next) = folders.pop() {
        let mut is_empty = true;
        for entry in fs::read_dir(folder.join(&next))? {
            let entry = entry?;
            is_empty = false;
            let path = next.join(entry.file_name());
            if entry.file_type()?.is_dir() {
                folders.push(path);
            } else {
                found.push(path);
            }
        }
        if is_empty && !next.as_os_str().is_empty() {
            found.push(next);
        }
    }
    found.sort();
    Ok(found)
}

/// Returns a path in the manifest's notation.
pub fn in_manifest(path: &Path) -> String {
    let parts = path.components().map(|part| part.as_os_str().to_string_lossy());
    parts.collect::<Vec<_>>().join("/")
}

/// Returns size and checksum of a file, read in pieces.
fn digest(path: &Path) -> Result<FileDigest, Failure> {
    let in_file = |error: io::Error| Failure::input(format!("{}: {error}", path.display()));
    let mut file = fs::File::open(path).map_err(in_file)?;
    let mut checksum = Checksum::default();
    let mut buffer = vec![0; 1 << 18];
    loop {
        match file.read(&mut buffer).map_err(in_file)? {
            0 => return Ok(checksum.digest()),
            length => checksum.update(&buffer[..length]),
        }
    }
}
