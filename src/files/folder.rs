//! A folder that appears whole or not at all: written beside its place, then renamed.
//!
//! With `--force` it takes the place of one that we wrote. What else lies there, checkpoints or a task, is linked into the new one
//! before the two change places, so that at any moment it is where it was.

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

/// A folder that is gone with its owner, unless it was renamed.
#[derive(Debug)]
pub struct Beside {
    path: PathBuf,
    /// Locked for as long as we live.
    lock: Option<fs::File>,
    /// Removing folders takes two of the files that a process may open; they are held for that.
    _reserve: Option<fs::File>,
}

impl Beside {
    /// Makes a folder in another.
    pub fn in_folder(parent: &Path) -> io::Result<Self> {
        unfinished::sweep(parent);
        // Whoever drops a `TempDir` needs files to remove it, and only ours are reserved.
        let make = || builder(0o777).tempdir_in(parent).map(tempfile::TempDir::keep);
        let (path, lock) = unfinished::make_locked(make, Clone::clone)?;
        let mut beside = Self { path, lock, _reserve: None };
        beside._reserve = Some(fs::File::open(&beside.path)?);
        Ok(beside)
    }

    /// Makes a folder for what is needed only while the command runs.
    pub fn scratch() -> Result<Self, Failure> {
        let folder = std::env::temp_dir();
        Self::in_folder(&folder).map_err(|error| {
            Failure::input(format!("cannot write in {}: {}", folder.display(), without_path(&error)))
                .with_hint("TMPDIR names the folder for temporary files")
        })
    }

    /// Returns its place.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Gives a file in it the name that it was made for.
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
        // It has its name, or a run that sweeps will do it.
        let _ = fs::remove_dir_all(&self.path);
        making.given_up(&self.path);
    }
}

/// A folder that is being written.
pub struct Folder {
    target: PathBuf,
    beside: Beside,
    /// What lies in the folder that is replaced.
    replaced: Option<Replaced>,
}

/// A folder that we wrote.
struct Replaced {
    /// Paths of the files in it that are ours, as its manifest has them.
    listed: BTreeSet<String>,
}

impl Replaced {
    fn read(folder: &Path) -> Result<Self, Failure> {
        let path = folder.join(MANIFEST);
        if !path.is_file() {
            let message = format!("{} holds something else, it has no {MANIFEST}", folder.display());
            return Err(Failure::input(message).with_hint("choose another folder"));
        }
        let broken = |error: serde_json::Error| {
            Failure::input(format!("{}: {error}, so nothing says which files are ours", path.display()))
                .with_hint("choose another folder, or remove this one")
        };
        let manifest: Manifest = serde_json::from_slice(&read_bytes(&path)?).map_err(broken)?;
        let mut listed: BTreeSet<String> = manifest.files.keys().cloned().collect();
        if listed.is_empty() {
            // Earlier versions did not list them.
            listed.extend(EARLIER.iter().map(ToString::to_string));
            let of_stages = manifest.stages.into_iter().map(|stage| stage.files);
            let of_stages = of_stages.flat_map(|files| [files.torchscript, files.python, files.weights]);
            listed.extend(of_stages.flatten().map(|name| format!("stages/{name}")));
        }
        listed.insert(MANIFEST.to_string());
        Ok(Self { listed })
    }

    /// Lists what is not ours: files, links and empty folders. What Python compiled is made again when it is needed.
    fn foreign(&self, folder: &Path) -> io::Result<Vec<PathBuf>> {
        let is_ours = |path: &Path| {
            let is_compiled = path.components().any(|part| part.as_os_str() == "__pycache__");
            is_compiled || self.listed.contains(&folder_files::in_manifest(path))
        };
        Ok(folder_files::all(folder)?.into_iter().filter(|path| !is_ours(path)).collect())
    }

    /// Lets what is not ours lie in both folders; refuses where the new one has something of the same name.
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

/// What earlier versions wrote into every folder, beside the stages.
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

/// Gives a file, a link or an empty folder a second place, below the same path of another folder.
fn link(from: &Path, to: &Path, path: &Path) -> io::Result<()> {
    let mut below = PathBuf::new();
    for part in path.parent().into_iter().flat_map(Path::components) {
        below.push(part);
        make_like(&from.join(&below), &to.join(&below))?;
    }
    let (from, to) = (from.join(path), to.join(path));
    if fs::symlink_metadata(&from)?.is_dir() { make_like(&from, &to) } else { fs::hard_link(from, to) }
}

/// Makes a folder with the rights of another, unless it is there.
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
    /// Begins a folder. One that holds anything is refused, unless `force` is given and we wrote it.
    pub fn create(target: &Path, force: bool) -> Result<Self, Failure> {
        let shown = target.display();
        // `out/` is `out`; a link is seen only without the slash.
        let target: PathBuf = target.components().collect();
        if target.file_name().is_none() {
            return Err(Failure::input(format!("{shown} cannot be replaced"))
                .with_hint("name a folder that is new, such as out"));
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

    /// Returns the place of a file while the folder is written.
    pub fn path(&self, relative: &str) -> Result<PathBuf, Failure> {
        let path = self.beside.path().join(relative);
        let mut folder = self.beside.path().to_path_buf();
        // One by one: if the folder was removed by a signal, it must not come back.
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

    /// Puts the folder into its place.
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
        // While it lies beside, nobody takes the old folder for a leftover.
        let _lock = unfinished::keep(&self.target);
        // In one step where the system can: there is never no folder. What was replaced then lies beside, and goes.
        if exchange(beside, &self.target) {
            making.finished(beside, &self.target);
            // What was written there meanwhile, such as a checkpoint of a training that runs.
            let carried = carry(beside, &self.target);
            making.begun(beside);
            return carried;
        }
        // The old folder steps aside first; if the new one cannot come, it steps back.
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
