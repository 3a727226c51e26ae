//! The time that this thread has waited for a processor.
//!
//! On a busy machine a call's wall time includes the turns of other processes. Linux counts, for each thread, the
//! nanoseconds that it was runnable but did not run; wall time minus that is the call's own. The effect of others on
//! caches and memory remains.

use std::{
    cell::RefCell,
    fs::File,
    io::{Read, Seek, SeekFrom},
};

thread_local! {
    /// The count's file, kept open: it is read around every measurement.
    static FILE: RefCell<Option<File>> = RefCell::new(File::open("/proc/thread-self/schedstat").ok());
}

/// Returns the seconds that this thread has waited so far; always zero where the system does not report it.
pub fn waited() -> f64 {
    FILE.with_borrow_mut(|file| {
        let mut text = [0; 96];
        let file = file.as_mut()?;
        file.seek(SeekFrom::Start(0)).ok()?;
        let length = file.read(&mut text).ok()?;
        parse(std::str::from_utf8(&text[..length]).ok()?)
    })
    .unwrap_or(0.0)
}

/// Reads `nanoseconds run, nanoseconds waited, turns`.
fn parse(text: &str) -> Option<f64> {
    let waited: u64 = text.split_whitespace().nth(1)?.parse().ok()?;
    Some(waited as f64 * 1e-9)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_number_counts() {
        assert_eq!(parse("30 2500000000 7\n"), Some(2.5));
        assert_eq!(parse("30"), None);
        let before = waited();
        assert!(waited() >= before);
    }
}
