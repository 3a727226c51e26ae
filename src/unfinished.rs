//! What is being made and has no name yet: found again by a signal, which removes it, and by the next run, if nothing could.
//!
//! SIGINT, SIGTERM and SIGHUP end the process from a thread of their own. It takes the lock that everybody takes who begins,
//! names or gives up something, and keeps it: nothing appears behind its back. What SIGKILL leaves is locked by nobody, and
//! that is how [`sweep`] tells it from what others are making.

#[cfg(unix)]
mod signals;

use std::{
    collections::BTreeSet,
    fs,
    io::{self, ErrorKind},
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
};

/// Begins the name of what is not finished.
pub const UNFINISHED: &str = ".model-analyze-unfinished-";

/// What a signal must know.
#[derive(Debug)]
pub struct Making {
    /// Files and folders to remove.
    unfinished: BTreeSet<PathBuf>,
    /// Groups of processes to end.
    children: BTreeSet<u32>,
    /// What has got its name, or is written in place.
    written: Option<String>,
}

static MAKING: Mutex<Making> =
    Mutex::new(Making { unfinished: BTreeSet::new(), children: BTreeSet::new(), written: None });

/// Holds back signals while something is begun, named or given up.
pub fn making() -> MutexGuard<'static, Making> {
    MAKING.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Making {
    /// Something was begun.
    pub fn begun(&mut self, path: &Path) {
        self.unfinished.insert(path.to_path_buf());
    }

    /// Something was given up and is gone.
    pub fn given_up(&mut self, path: &Path) {
        self.unfinished.remove(path);
    }

    /// Something has got its name.
    pub fn finished(&mut self, path: &Path, target: &Path) {
        self.unfinished.remove(path);
        // Part of something that is not finished itself.
        if !self.unfinished.iter().any(|outer| target.starts_with(outer)) {
            self.written = Some(format!("{} is written", target.display()));
        }
    }

    /// What a signal will not take back, in words.
    pub fn keeps(&mut self, what: String) {
        self.written = Some(what);
    }

    /// A process was started as the first of a group.
    pub fn started(&mut self, child: u32) {
        self.children.insert(child);
    }

    /// A process has ended.
    pub fn ended(&mut self, child: u32) {
        self.children.remove(&child);
    }
}

/// Makes something in a folder that nobody else takes for a leftover: `make` is tried until it could be locked under its name.
///
/// On a file system without locks there is none, and nothing is ever swept.
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
            // Somebody took it for a leftover before we had the lock.
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            Err(error) => {
                // It is empty, and what would remove it with care needs files, too.
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

/// Who holds a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Locked {
    Ours,
    Theirs,
    /// The file system has none.
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

/// Tells whether an open file is still what its path names.
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

/// Locks something that is there already, so that no other run takes it for a leftover.
pub fn keep(path: &Path) -> Option<fs::File> {
    let file = fs::File::open(path).ok()?;
    (lock(&file) == Locked::Ours).then_some(file)
}

/// Removes what killed runs have left in a folder: it may be as large as a model.
pub fn sweep(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let is_ours = entry.file_name().to_str().is_some_and(|name| name.starts_with(UNFINISHED));
        let (true, Ok(kind)) = (is_ours, entry.file_type()) else { continue };
        // Opening a pipe would wait.
        if !(kind.is_dir() || kind.is_file()) {
            continue;
        }
        let path = entry.path();
        // Held until it is gone: its maker, who may not have locked it yet, then makes another.
        let Some(_lock) = keep(&path) else { continue };
        // Somebody else's rights may forbid it, which is no fault of this run.
        let _ = remove(&path, kind.is_dir());
    }
}

fn remove(path: &Path, is_folder: bool) -> io::Result<()> {
    if is_folder { fs::remove_dir_all(path) } else { fs::remove_file(path) }
}

/// Lets signals end the process as they should: nothing unfinished stays, nor does a child.
#[cfg(unix)]
pub fn watch() {
    signals::watch();
}

#[cfg(not(unix))]
pub fn watch() {}

/// Waits for the end where a signal is about to make it: what fails meanwhile fails because of it.
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
