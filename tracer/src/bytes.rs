//! Sources of bytes: memory, or a file with random access.
//!
//! A mapped file would cost nothing either, but one that shrinks while it is read ends the process with SIGBUS.

use std::io::{self, Read, Seek, SeekFrom};

/// Bytes that can be read anywhere.
pub trait Bytes {
    /// Returns how many there are.
    fn size(&self) -> u64;

    /// Fills the buffer from this position on.
    ///
    /// # Errors
    /// When they end before, or cannot be read.
    fn read_at(&self, position: u64, buffer: &mut [u8]) -> io::Result<()>;
}

impl Bytes for &[u8] {
    fn size(&self) -> u64 {
        self.len() as u64
    }

    fn read_at(&self, position: u64, buffer: &mut [u8]) -> io::Result<()> {
        let start = usize::try_from(position).ok();
        let range = start.and_then(|start| self.get(start..start.checked_add(buffer.len())?));
        buffer.copy_from_slice(range.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

/// A part of other bytes.
pub(crate) struct Slice<'a> {
    whole: &'a dyn Bytes,
    start: u64,
    length: u64,
}

impl<'a> Slice<'a> {
    /// Takes a part that lies in the whole.
    pub(crate) fn new(whole: &'a dyn Bytes, start: u64, length: u64) -> Self {
        Self { whole, start, length }
    }
}

impl Bytes for Slice<'_> {
    fn size(&self) -> u64 {
        self.length
    }

    fn read_at(&self, position: u64, buffer: &mut [u8]) -> io::Result<()> {
        let end = position.checked_add(buffer.len() as u64).filter(|end| *end <= self.length);
        let first = end.and_then(|_| self.start.checked_add(position));
        self.whole.read_at(first.ok_or(io::ErrorKind::UnexpectedEof)?, buffer)
    }
}

/// Returns `length` bytes from a position on; a range past the end is an error before memory is allocated.
pub(crate) fn part(source: &dyn Bytes, position: u64, length: u64) -> io::Result<Vec<u8>> {
    if position.checked_add(length).is_none_or(|end| end > source.size()) {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let length = usize::try_from(length).map_err(|_| io::ErrorKind::OutOfMemory)?;
    let mut bytes = vec![0; length];
    source.read_at(position, &mut bytes)?;
    Ok(bytes)
}

/// Returns at most the given number of bytes from the start.
pub(crate) fn start(source: &dyn Bytes, most: u64) -> Vec<u8> {
    part(source, 0, most.min(source.size())).unwrap_or_default()
}

/// The length of a read-ahead: a header and its neighbours.
const AHEAD: u64 = 1 << 12;

/// Reads from a place that moves, a few kilobytes at a time.
pub(crate) struct Reader<'a> {
    source: &'a dyn Bytes,
    at: u64,
    /// Bytes of the source, and the position of the first.
    held: Vec<u8>,
    first: u64,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(source: &'a dyn Bytes) -> Self {
        Self { source, at: 0, held: Vec::new(), first: 0 }
    }

    /// Returns the bytes read ahead, from the position on.
    fn ahead(&mut self) -> io::Result<&[u8]> {
        let size = self.source.size();
        let is_held = |at: u64| at >= self.first && at - self.first < self.held.len() as u64;
        if !is_held(self.at) {
            self.held = part(self.source, self.at.min(size), AHEAD.min(size.saturating_sub(self.at)))?;
            self.first = self.at;
        }
        Ok(&self.held[(self.at - self.first) as usize..])
    }
}

impl Read for Reader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let ahead = self.ahead()?;
        let length = ahead.len().min(buffer.len());
        buffer[..length].copy_from_slice(&ahead[..length]);
        self.at += length as u64;
        Ok(length)
    }
}

impl Seek for Reader<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let place = match to {
            SeekFrom::Start(place) => Some(place),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
            SeekFrom::End(by) => self.source.size().checked_add_signed(by),
        };
        self.at = place.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.at)
    }
}
