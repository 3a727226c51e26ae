//! The current work of a command, on standard error, shown after a second; silent if there is no terminal.
//!
//! There is one terminal and so one spinner: work within longer work shows its message meanwhile.

use std::{
    io::IsTerminal,
    sync::{
        Mutex, PoisonError,
        mpsc::{self, RecvTimeoutError},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use indicatif::{ProgressBar, ProgressStyle};

/// Shorter work would end before its message is read.
const PATIENCE: Duration = Duration::from_secs(1);
const FRAME: Duration = Duration::from_millis(100);

struct Spinner {
    stop: mpsc::Sender<()>,
    thread: JoinHandle<()>,
}

static SPINNER: Mutex<Option<Spinner>> = Mutex::new(None);
/// The progress of the work.
static PLACE: Mutex<String> = Mutex::new(String::new());

/// A line that is cut at the terminal's width: a wrapped line could not be cleared.
fn spinner() -> ProgressBar {
    let style = ProgressStyle::with_template("{spinner} {wide_msg}").expect("both parts are known");
    ProgressBar::new_spinner().with_style(style)
}

/// Shows what is done from now on, until [`done`].
pub fn working(message: &'static str) {
    done();
    if !std::io::stderr().is_terminal() {
        return;
    }
    let (stop, stopped) = mpsc::channel();
    let thread = thread::spawn(move || {
        let mut bar: Option<ProgressBar> = None;
        let mut wait = PATIENCE;
        while stopped.recv_timeout(wait) == Err(RecvTimeoutError::Timeout) {
            wait = FRAME;
            let bar = bar.get_or_insert_with(spinner);
            let place = PLACE.lock().unwrap_or_else(PoisonError::into_inner).clone();
            bar.set_message(if place.is_empty() {
                message.to_string()
            } else {
                format!("{message}: {place}")
            });
            bar.tick();
        }
        if let Some(bar) = bar {
            bar.finish_and_clear();
        }
    });
    *SPINNER.lock().unwrap_or_else(PoisonError::into_inner) = Some(Spinner { stop, thread });
}

/// Shows the progress.
pub fn at(place: String) {
    *PLACE.lock().unwrap_or_else(PoisonError::into_inner) = place;
}

/// Clears the line, before anything else is written.
pub fn done() {
    let spinner = SPINNER.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(Spinner { stop, thread }) = spinner {
        drop(stop);
        let _ = thread.join();
    }
    at(String::new());
}
