//! The thread that handles signals.

use std::{
    fs,
    sync::{
        Arc, LazyLock,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ},
    flag,
    iterator::Signals,
    low_level,
};

use super::{Making, end_group, making, remove};

static IS_INTERRUPTED: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);

pub(super) fn watch() {
    // A write beyond the limit on file sizes reports it itself.
    let _ = flag::register(SIGXFSZ, Arc::default());
    let ignored = ignored();
    // If not even this can be opened, the system's default handling stays.
    let Ok(mut signals) = Signals::new::<[i32; 0], i32>([]) else { return };
    for signal in [SIGINT, SIGTERM, SIGHUP].into_iter().filter(|signal| ignored >> (signal - 1) & 1 == 0) {
        // A second signal ends the process at once. It must be registered before the thread learns of the first.
        let _ = flag::register_conditional_shutdown(signal, 128 + signal, IS_INTERRUPTED.clone());
        let _ = signals.add_signal(signal);
    }
    thread::spawn(move || {
        if let Some(signal) = signals.forever().next() {
            end(signal);
        }
    });
}

/// Returns the signals that the parent wants ignored, as `nohup` does, one bit each.
fn ignored() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

fn end(signal: i32) -> ! {
    // Kept until the process ends.
    let making = making();
    IS_INTERRUPTED.store(true, Ordering::Release);
    clear(&making);
    let what = making.written.as_deref().unwrap_or("nothing was written");
    let text = format!("interrupted: {what}\n");
    // The reader of standard error may hang.
    let (said, is_said) = mpsc::channel();
    thread::spawn(move || {
        crate::failure::say(&text);
        let _ = said.send(());
    });
    let _ = is_said.recv_timeout(Duration::from_secs(1));
    low_level::exit(128 + signal)
}

fn clear(making: &Making) {
    for child in &making.children {
        end_group(*child);
    }
    for path in &making.unfinished {
        // Other threads may add a file or two before they notice that their folder is gone.
        for _ in 0..100 {
            let Ok(data) = fs::symlink_metadata(path) else { break };
            if remove(path, data.is_dir()).is_err() {
                thread::sleep(Duration::from_millis(5));
            }
        }
    }
}

pub(super) fn wait_if_interrupted() {
    while IS_INTERRUPTED.load(Ordering::Acquire) {
        thread::sleep(Duration::from_secs(1));
    }
}
