//! A child process that ends with this one: the interpreter of `trace`, and the processes it starts.
//!
//! The child leads a process group of its own. A terminal's Ctrl-C therefore reaches only this process, which ends the
//! whole group; so does dropping the value.

use std::{
    io,
    process::{Child, Command, ExitStatus},
};

use crate::unfinished;

/// A process and its group.
pub struct Companion {
    /// The process.
    pub process: Child,
    has_ended: bool,
}

impl Companion {
    /// Starts it.
    pub fn start(command: &mut Command) -> io::Result<Self> {
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(command, 0);
        let mut making = unfinished::making();
        let process = command.spawn()?;
        making.started(process.id());
        Ok(Self { process, has_ended: false })
    }

    /// Waits until the process ends.
    pub fn wait(&mut self) -> io::Result<ExitStatus> {
        let status = self.process.wait()?;
        self.has_ended = true;
        unfinished::making().ended(self.process.id());
        Ok(status)
    }
}

impl Drop for Companion {
    fn drop(&mut self) {
        if self.has_ended {
            return;
        }
        unfinished::end_group(self.process.id());
        let _ = self.process.kill();
        let _ = self.wait();
    }
}
