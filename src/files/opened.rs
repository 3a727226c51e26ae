//! A file that is read on demand, and that must not change meanwhile.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::SystemTime,
};

use super::read::check_regular;
use crate::failure::Failure;

/// An open file. Only requested parts are read.
#[derive(Debug)]
pub struct Opened {
    path: PathBuf,
    file: fs::File,
    state: State,
    /// If reading moves the file's only position, one thread reads at a time.
    #[cfg(not(unix))]
    turn: std::sync::Mutex<()>,
}

/// Distinguishes a file from its earlier content, and from another file of its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    length: u64,
    modified: Option<SystemTime>,
    #[cfg(unix)]
    place: (u64, u64),
}

impl State {
    /// Returns the present state of a file.
    pub fn of(data: &fs::Metadata) -> Self {
        Self {
            length: data.len(),
            modified: data.modified().ok(),
            #[cfg(unix)]
            place: {
                use std::os::unix::fs::MetadataExt;
                (data.dev(), data.ino())
            },
        }
    }
}

/// Opens a file.
pub fn open(path: &Path) -> Result<Opened, Failure> {
    check_regular(path)?;
    let in_file = |error| Failure::input(format!("{}: {error}", path.display()));
    let file = fs::File::open(path).map_err(in_file)?;
    let state = State::of(&file.metadata().map_err(in_file)?);
    Ok(Opened {
        path: path.to_path_buf(),
        file,
        state,
        #[cfg(not(unix))]
        turn: std::sync::Mutex::default(),
    })
}

/// The failure for a file that changed while it was read.
pub fn changed(path: &Path) -> Failure {
    Failure::input(format!("{} was changed while it was read", path.display()))
        .with_hint("wait until it is complete, or copy it first")
}

impl Opened {
    /// Returns its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns its state when it was opened.
    pub fn state(&self) -> State {
        self.state
    }

    /// Returns its first bytes, at most the given number.
    pub fn start(&self, most: usize) -> Result<Vec<u8>, Failure> {
        let length = usize::try_from(self.state.length).unwrap_or(usize::MAX).min(most);
        let mut bytes = vec![0; length];
        self.read(0, &mut bytes).map_err(|error| self.failure(&error))?;
        Ok(bytes)
    }

    /// Returns all of it as text; `None` if it is not text.
    pub fn text(&self) -> Result<Option<String>, Failure> {
        // Files of weights are not text from the first bytes on: they are not read further.
        let start = self.start(1 << 16)?;
        let is_text = match std::str::from_utf8(&start) {
            Ok(_) => true,
            // The last character may be truncated.
            Err(error) => error.error_len().is_none(),
        };
        if !is_text {
            return Ok(None);
        }
        Ok(String::from_utf8(self.start(usize::MAX)?).ok())
    }

    /// Returns the result, or the failure for a changed file if it changed meanwhile: then that is the cause.
    pub fn unless_changed<T>(&self, result: Result<T, Failure>) -> Result<T, Failure> {
        let now = fs::metadata(&self.path).map(|data| State::of(&data));
        if now.is_ok_and(|now| now == self.state) { result } else { Err(changed(&self.path)) }
    }

    fn failure(&self, error: &io::Error) -> Failure {
        if error.kind() == io::ErrorKind::UnexpectedEof {
            changed(&self.path)
        } else {
            Failure::input(format!("{}: {error}", self.path.display()))
        }
    }

    #[cfg(unix)]
    fn read(&self, position: u64, buffer: &mut [u8]) -> io::Result<()> {
        std::os::unix::fs::FileExt::read_exact_at(&self.file, buffer, position)
    }

    #[cfg(not(unix))]
    fn read(&self, position: u64, buffer: &mut [u8]) -> io::Result<()> {
        use std::io::{Read, Seek, SeekFrom};
        let _turn = self.turn.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let mut file = &self.file;
        file.seek(SeekFrom::Start(position))?;
        file.read_exact(buffer)
    }
}

impl tracer::Bytes for Opened {
    fn size(&self) -> u64 {
        self.state.length
    }

    fn read_at(&self, position: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.read(position, buffer)
    }
}
