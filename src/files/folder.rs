//! A folder that appears whole or not at all: written under a temporary name next to its place, then renamed.
//!
//! With `--force` it replaces a folder of this program. Other files in that folder, checkpoints or a task, are linked
//! into the new one before the two exchange places, so that they are in place at any moment.

use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
};

use schema::Manifest;

use super::{
    read::{parent, read_bytes},
    write::{builder, without_path},
};
use crate::{
    failure::Failure,
    folder_files::{self, MANIFEST},
    unfinished,
};

/// A folder that is removed with its owner, unless it was renamed.
#[derive(Debug)]
pub struct Beside {
    path: PathBuf,
    /// Locked as long as this process lives.
    lock: Option<fs::File>,
    /// Removing folders takes two of the file descriptors that a process may open; they are reserved here.
    _reserve: Option<fs::File>,
}

impl Beside {
    /// Makes a folder in another.
    pub fn in_folder(parent: &Path) -> io::Result<Self> {
        unfinished::sweep(parent);
        // Dropping a `TempDir` opens files, and only those of `Beside` are reserved: its folder is removed by hand.
        let make = || builder(0o777).tempdir_in(parent).map(tempfile::TempDir::keep);
        let (path, lock) = unfinished::make_locked(make, Clone::clone)?;
        let mut beside = Self { path, lock, _reserve: None };
        beside._reserve = Some(fs::File::open(&beside.path)?);
        Ok(beside)
    }

    /// Makes a folder for temporary files of the command.
    pub fn scratch() -> Result<Self, Failure> {
        let folder = std::env::temp_dir();
        Self::in_folder(&folder).map_err(|error| {
            Failure::input(format!("cannot write in {}: {}", folder.display(), without_path(&error)))
                .with_hint("set TMPDIR to another folder for temporary files")
        })
    }

    /// Returns its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Renames a file in it to its final name.
    pub fn release(&self, file: &Path, target: &Path) -> io::Result<()> {
        let mut making = unfinished::making();
        fs::rename(file, target)?;
        making.finished(file, target);
        Ok(())
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        let mut making = unfinished::making();
        (self.lock, self._reserve) = (None, None);
        // Either it has its final name, or a later run removes it.
        let _ = fs::remove_dir_all(&self.path);
        making.given_up(&self.path);
    }
}

/// A folder that is being written.
pub struct Folder {
    target: PathBuf,
    beside: Beside,
    /// The folder that is replaced.
    replaced: Option<Replaced>,
}

/// A folder of this program.
struct Replaced {
    /// Paths of the files in it that this program wrote, by its manifest.
    listed: BTreeSet<String>,
}

impl Replaced {
    fn read(folder: &Path) -> Result<Self, Failure> {
        let path = folder.join(MANIFEST);
        if !path.is_file() {
            let message = format!("{} is not a folder of stages: it has no {MANIFEST}", folder.display());
            return Err(Failure::input(message).with_hint("choose another folder"));
        }
        let broken = |error: serde_json::Error| {
            Failure::input(format!("{}: {error}, so the files to replace are unknown", path.display()))
                .with_hint("choose another folder, or remove this one")
        };
        let manifest: Manifest = serde_json::from_slice(&read_bytes(&path)?).map_err(broken)?;
        let mut listed: BTreeSet<String> = manifest.files.keys().cloned().collect();
        if listed.is_empty() {
            // Manifests of earlier versions did not list them.
            listed.extend(EARLIER.iter().map(ToString::to_string));
            let of_stages = manifest.stages.into_iter().map(|stage| stage.files);
            let of_stages = of_stages.flat_map(|files| [files.torchscript, files.python, files.weights]);
            listed.extend(of_stages.flatten().map(|name| format!("stages/{name}")));
        }
        listed.insert(MANIFEST.to_string());
        Ok(Self { listed })
    }

    /// Lists files, links and empty folders that this program did not write. Python's compiled files are left out: they
    /// are made again when needed.
    fn foreign(&self, folder: &Path) -> io::Result<Vec<PathBuf>> {
        let is_ours = |path: &Path| {
            let is_compiled = path.components().any(|part| part.as_os_str() == "__pycache__");
            is_compiled || self.listed.contains(&folder_files::in_manifest(path))
        };
        Ok(folder_files::all(folder)?.into_iter().filter(|path| !is_ours(path)).collect())
    }

    /// Links the files of others into both folders; refuses if the new one has a file of the same name.
    fn carry(&self, from: &Path, to: &Path, shown: &Path) -> Result<(), Failure> {
        let foreign =
            self.foreign(from).map_err(|error| Failure::input(format!("{}: {error}", shown.display())))?;
        let is_same = |path: &Path| is_one_file(&from.join(path), &to.join(path));
        let is_folder = |path: &Path| fs::symlink_metadata(path).is_ok_and(|data| data.is_dir());
        let taken = foreign.iter().find(|path| {
            let place = to.join(path);
            let is_below_file = place.ancestors().skip(1).take_while(|above| *above != to).any(Path::is_file);
            let is_there = fs::symlink_metadata(&place).is_ok();
            let are_folders = is_folder(&place) && is_folder(&from.join(path));
            is_below_file || is_there && !are_folders && !is_same(path)
        });
        if let Some(path) = taken {
            let message = format!(
                "{} was not written by this command and would be replaced",
                shown.join(path).display()
            );
            return Err(Failure::input(message).with_hint("move it away, or choose another folder"));
        }
        for path in foreign.iter().filter(|path| !is_same(path)) {
            link(from, to, path).map_err(|error| {
                Failure::input(format!("cannot keep {}: {error}", shown.join(path).display()))
                    .with_hint("move it away, or choose another folder")
            })?;
        }
        Ok(())
    }
}

/// Files that earlier versions wrote into every folder outside the stages.
const EARLIER: [&str; 17] = [
    "exports/README.md",
    "exports/deepspeed_parts.py",
    "exports/device_map.json",
    "exports/megatron.txt",
    "exports/torch_split_spec.py",
    "exports/torchtitan.py",
    "exports/torchtitan.toml",
    "exports/vllm.env",
    "graph.svg",
    "launch/torchrun.sh",
    "launch/train.sbatch",
    "launch/trainjob.yaml",
    "plan.yaml",
    "report.html",
    "schedule.csv",
    "timeline.svg",
    "train.py",
];

/// Links a file, a link or an empty folder into another folder, at the same relative path.
fn link(from: &Path, to: &Path, path: &Path) -> io::Result<()> {
    let mut below = PathBuf::new();
    for part in path.parent().into_iter().flat_map(Path::components) {
        below.push(part);
        make_like(&from.join(&below), &to.join(&below))?;
    }
    let (from, to) = (from.join(path), to.join(path));
    if fs::symlink_metadata(&from)?.is_dir() { make_like(&from, &to) } else { fs::hard_link(from, to) }
}

/// Makes a folder with the permissions of another, unless it exists.
fn make_like(from: &Path, to: &Path) -> io::Result<()> {
    match fs::create_dir(to) {
        Ok(()) => fs::set_permissions(to, fs::metadata(from)?.permissions()),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
    }
}

/// Tells whether two paths name one file.
#[cfg(unix)]
fn is_one_file(one: &Path, other: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let place = |path: &Path| fs::symlink_metadata(path).map(|data| (data.dev(), data.ino()));
    matches!((place(one), place(other)), (Ok(one), Ok(other)) if one == other)
}

#[cfg(not(unix))]
fn is_one_file(_one: &Path, _other: &Path) -> bool {
    false
}

impl Folder {
    /// Starts a folder. A target with any content is refused, unless `force` is given and this program wrote it.
    pub fn create(target: &Path, force: bool) -> Result<Self, Failure> {
        let shown = target.display();
        // `out/` becomes `out`: a link is recognised only without the slash.
        let target: PathBuf = target.components().collect();
        if target.file_name().is_none() {
            return Err(Failure::input(format!("{shown} cannot be replaced"))
                .with_hint("name a new folder, such as out"));
        }
        let mut replaced = None;
        match fs::symlink_metadata(&target) {
            Ok(data) if data.is_symlink() => {
                return Err(Failure::input(format!("{shown} is a link")).with_hint("name the folder itself"));
            }
            Ok(data) if !data.is_dir() => return Err(Failure::input(format!("{shown} is not a folder"))),
            Ok(_) => {
                let in_target = |error: io::Error| Failure::input(format!("{shown}: {error}"));
                let is_empty = fs::read_dir(&target).map_err(in_target)?.next().is_none();
                if !is_empty && !force {
                    return Err(Failure::input(format!("{shown} is not empty"))
                        .with_hint("--force replaces it if this command wrote it"));
                }
                replaced = Some(if is_empty {
                    Replaced { listed: BTreeSet::new() }
                } else {
                    Replaced::read(&target)?
                });
            }
            Err(_) => {}
        }
        let parent = parent(&target);
        let in_parent = |error: io::Error| {
            Failure::input(format!("cannot write in {}: {}", parent.display(), without_path(&error)))
        };
        fs::create_dir_all(&parent).map_err(in_parent)?;
        let beside = Beside::in_folder(&parent).map_err(in_parent)?;
        Ok(Self { target, beside, replaced })
    }

    /// Returns the path of a file while the folder is written.
    pub fn path(&self, relative: &str) -> Result<PathBuf, Failure> {
        let path = self.beside.path().join(relative);
        let mut folder = self.beside.path().to_path_buf();
        // Folders are made one by one: one that a signal has removed must not be made again.
        for part in Path::new(relative).parent().into_iter().flat_map(Path::components) {
            folder.push(part);
            match fs::create_dir(&folder) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                    let shown = self.target.display();
                    return Err(Failure::input(format!("cannot write in {shown}: {error}")));
                }
                _ => {}
            }
        }
        Ok(path)
    }

    /// Moves the folder to its place.
    pub fn finish(self) -> Result<(), Failure> {
        let in_target =
            |error: io::Error| Failure::input(format!("cannot write {}: {error}", self.target.display()));
        let beside = self.beside.path();
        let Some(replaced) = &self.replaced else {
            let mut making = unfinished::making();
            fs::rename(beside, &self.target).map_err(in_target)?;
            making.finished(beside, &self.target);
            return Ok(());
        };
        let carry = |from: &Path, to: &Path| replaced.carry(from, to, &self.target);
        carry(&self.target, beside)?;
        let mut making = unfinished::making();
        // While the old folder has a temporary name, no other run may take it for a leftover.
        let _lock = unfinished::keep(&self.target);
        // In one step if the system can: then there is always a folder in place. The replaced one gets the temporary
        // name and is removed.
        if exchange(beside, &self.target) {
            making.finished(beside, &self.target);
            // Files that were written there since, such as a checkpoint of a running training.
            let carried = carry(beside, &self.target);
            making.begun(beside);
            return carried;
        }
        // The old folder is renamed first; if the new one cannot be moved, it is renamed back.
        let old = beside.with_extension("old");
        fs::rename(&self.target, &old).map_err(in_target)?;
        if let Err(error) = fs::rename(beside, &self.target) {
            let _ = fs::rename(&old, &self.target);
            return Err(in_target(error));
        }
        making.finished(beside, &self.target);
        fs::remove_dir_all(&old)
            .map_err(|error| Failure::input(format!("cannot remove {}: {error}", old.display())))
    }
}

/// Exchanges the places of two folders; returns whether the system can.
#[cfg(target_os = "linux")]
fn exchange(one: &Path, other: &Path) -> bool {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE).is_ok()
}

#[cfg(not(target_os = "linux"))]
fn exchange(_one: &Path, _other: &Path) -> bool {
    false
}
