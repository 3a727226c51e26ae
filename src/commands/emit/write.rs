//! Writes files in parallel: each thread takes the next one, so that several cores copy weights.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{BufWriter, Write},
    num::NonZeroUsize,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

use codegen::Filled;
use indicatif::ProgressBar;

use crate::{
    failure::Failure,
    files::Folder,
    weights::{self, Source, Sources},
};

/// Disks gain nothing from more threads.
const MOST_THREADS: usize = 4;

/// Writes files into a folder; returns the digest of each and the checksums of the copied sources. Returns the error of
/// the first file that fails.
pub fn write(
    emitted: &[codegen::File],
    sources: &Sources,
    folder: &Folder,
    progress: &ProgressBar,
) -> Result<BTreeMap<String, Filled>, Failure> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut done = Vec::new();
        let mut source = sources.open();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(file) = emitted.get(index) else { return done };
            let written = one(file, &mut source, folder, progress);
            if written.is_err() {
                // No thread begins another file.
                next.store(emitted.len(), Ordering::Relaxed);
            }
            done.push((index, written));
        }
    };
    let n_threads = thread::available_parallelism().map_or(1, NonZeroUsize::get).min(MOST_THREADS);
    let mut done = thread::scope(|scope| {
        let others: Vec<_> = (1..n_threads).map(|_| scope.spawn(work)).collect();
        let mut done = work();
        for other in others {
            done.extend(other.join().expect("a thread that writes files does not panic"));
        }
        done
    });
    done.sort_by_key(|(index, _)| *index);
    done.into_iter().map(|(index, written)| Ok((emitted[index].path.clone(), written?))).collect()
}

fn one(
    file: &codegen::File,
    source: &mut Source,
    folder: &Folder,
    progress: &ProgressBar,
) -> Result<Filled, Failure> {
    let path = folder.path(&file.path)?;
    let in_file = |error: std::io::Error| Failure::input(format!("cannot write {}: {error}", file.path));
    let mut out =
        BufWriter::with_capacity(1 << 16, progress.wrap_write(File::create(&path).map_err(in_file)?));
    let filled = file.content.write(source, &mut out).map_err(|error| {
        if weights::is_of_source(&error) { weights::read_failure(error) } else { in_file(error) }
    })?;
    out.flush().map_err(in_file)?;
    Ok(filled)
}
