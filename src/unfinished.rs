//! Files and folders in the making, which have no final name yet: a signal removes them, or the next run if nothing
//! else could.
//!
//! SIGINT, SIGTERM and SIGHUP end the process from a thread of their own. It takes the lock that guards starting,
//! naming and giving up files, and keeps it: nothing is made after it. Files that SIGKILL leaves are locked by nobody,
//! by which [`sweep`] distinguishes them from those that others are making.

#[cfg(unix)]
mod signals;

use std::{
    collections::BTreeSet,
    fs,
    io::{self, ErrorKind},
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
};

/// The prefix of temporary names.
pub const UNFINISHED: &str = ".model-analyze-unfinished-";

/// The state that the signal thread needs.
#[derive(Debug)]
pub struct Making {
    /// Files and folders to remove.
    unfinished: BTreeSet<PathBuf>,
    /// Process groups to end.
    children: BTreeSet<u32>,
    /// A message about files with their final name, or written in place.
    written: Option<String>,
}

static MAKING: Mutex<Making> =
    Mutex::new(Making { unfinished: BTreeSet::new(), children: BTreeSet::new(), written: None });

/// Holds back signals while a file is started, named or given up.
pub fn making() -> MutexGuard<'static, Making> {
    MAKING.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Making {
    /// Records a started file or folder.
    pub fn begun(&mut self, path: &Path) {
        self.unfinished.insert(path.to_path_buf());
    }

    /// Records a file or folder that was given up and removed.
    pub fn given_up(&mut self, path: &Path) {
        self.unfinished.remove(path);
    }

    /// Records a file or folder that got its final name.
    pub fn finished(&mut self, path: &Path, target: &Path) {
        self.unfinished.remove(path);
        // Not if it is part of another unfinished folder.
        if !self.unfinished.iter().any(|outer| target.starts_with(outer)) {
            self.written = Some(format!("{} is written", target.display()));
        }
    }

    /// Sets the message about output that a signal leaves.
    pub fn keeps(&mut self, what: String) {
        self.written = Some(what);
    }

    /// Records the first process of a new group.
    pub fn started(&mut self, child: u32) {
        self.children.insert(child);
    }

    /// Records the end of a process.
    pub fn ended(&mut self, child: u32) {
        self.children.remove(&child);
    }
}

/// Makes a file or folder that no other run takes for a leftover: `make` is tried until its result could be locked
/// under its name.
///
/// A file system without locks has none; nothing is swept there.
pub fn make_locked<T>(
    make: impl Fn() -> io::Result<T>,
    path_of: impl Fn(&T) -> PathBuf,
) -> io::Result<(T, Option<fs::File>)> {
    let mut making = making();
    loop {
        let made = make()?;
        let path = path_of(&made);
        let file = match fs::File::open(&path) {
            Ok(file) => file,
            // Another run took it for a leftover before it was locked.
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            Err(error) => {
                // It is empty, and a careful removal needs file descriptors, too.
                let _ = fs::remove_dir(&path).or_else(|_| fs::remove_file(&path));
                return Err(error);
            }
        };
        match lock(&file) {
            Locked::Ours if !is_at(&file, &path) => {}
            Locked::Theirs => {}
            Locked::Ours => {
                making.begun(&path);
                return Ok((made, Some(file)));
            }
            Locked::Never => {
                making.begun(&path);
                return Ok((made, None));
            }
        }
    }
}

/// The holder of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Locked {
    Ours,
    Theirs,
    /// The file system has no locks.
    Never,
}

#[cfg(unix)]
fn lock(file: &fs::File) -> Locked {
    use rustix::{
        fs::{FlockOperation, flock},
        io::Errno,
    };
    match flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Locked::Ours,
        Err(Errno::WOULDBLOCK) => Locked::Theirs,
        Err(_) => Locked::Never,
    }
}

#[cfg(not(unix))]
fn lock(_file: &fs::File) -> Locked {
    Locked::Never
}

/// Tells whether an open file is still the one at a path.
#[cfg(unix)]
fn is_at(file: &fs::File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let place = |data: fs::Metadata| (data.dev(), data.ino());
    match (file.metadata(), fs::symlink_metadata(path)) {
        (Ok(open), Ok(named)) => place(open) == place(named),
        _ => false,
    }
}

#[cfg(not(unix))]
fn is_at(_file: &fs::File, _path: &Path) -> bool {
    true
}

/// Locks an existing file or folder, so that no other run takes it for a leftover.
pub fn keep(path: &Path) -> Option<fs::File> {
    let file = fs::File::open(path).ok()?;
    (lock(&file) == Locked::Ours).then_some(file)
}

/// Removes leftovers of killed runs in a folder: they may be as large as a model.
pub fn sweep(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let is_ours = entry.file_name().to_str().is_some_and(|name| name.starts_with(UNFINISHED));
        let (true, Ok(kind)) = (is_ours, entry.file_type()) else { continue };
        // Opening a pipe would block.
        if !(kind.is_dir() || kind.is_file()) {
            continue;
        }
        let path = entry.path();
        // Held until it is removed: its maker, if it has not locked it yet, then makes another.
        let Some(_lock) = keep(&path) else { continue };
        // A failure, for example by another user's permissions, does not matter to this run.
        let _ = remove(&path, kind.is_dir());
    }
}

fn remove(path: &Path, is_folder: bool) -> io::Result<()> {
    if is_folder { fs::remove_dir_all(path) } else { fs::remove_file(path) }
}

/// Installs the signal handlers: when a signal ends the process, no unfinished file and no child stays.
#[cfg(unix)]
pub fn watch() {
    signals::watch();
}

#[cfg(not(unix))]
pub fn watch() {}

/// Waits for the end of the process if a signal has come: errors in the meantime are caused by it.
pub fn wait_if_interrupted() {
    #[cfg(unix)]
    signals::wait_if_interrupted();
}

/// Ends all processes of a group.
pub fn end_group(leader: u32) {
    #[cfg(unix)]
    if let Some(group) = i32::try_from(leader).ok().and_then(rustix::process::Pid::from_raw) {
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
    }
}
