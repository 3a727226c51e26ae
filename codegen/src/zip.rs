//! Uncompressed zip archives in torch's form: the data of every record begins at a multiple of 64 bytes.
//!
//! Written in one pass to any writer: sizes are known beforehand, checksums follow the data in a descriptor. Archives
//! and records beyond 4 GiB are zip64.

use std::io::{self, Write};

use crate::content::{Checksum, Filled, ReadAt, Record};

const ALIGNMENT: u64 = 64;
/// Marks values that are in the zip64 field because they exceed their own.
const ESCAPE: u64 = 0xffff_ffff;
/// Checksum and sizes follow the data; names are UTF-8.
const FLAGS: u16 = 0x0808;

/// Writes the records, then the directory; returns the checksum of the whole file and the copied pieces.
pub(crate) fn write(records: &[Record], source: &mut dyn ReadAt, out: &mut dyn Write) -> io::Result<Filled> {
    let mut copied = Vec::new();
    let mut whole = Checksum::default();
    let mut at = 0_u64;
    let mut buffer = Vec::new();
    let mut directory = Vec::new();
    for record in records {
        let size: u64 = record.pieces.iter().map(|piece| piece.len()).sum();
        let start = at;
        let header = local_header(&record.name, size, start);
        out.write_all(&header)?;
        whole.update(&header);
        let mut data = Checksum::default();
        let mut place = start + header.len() as u64;
        for piece in &record.pieces {
            let mut sink = |bytes: &[u8]| out.write_all(bytes);
            data.append(&piece.copy(source, &mut buffer, &mut sink, place, &mut copied)?);
            place += piece.len();
        }
        whole.append(&data);
        let checksum = data.crc32();
        let descriptor = descriptor(checksum, size);
        out.write_all(&descriptor)?;
        whole.update(&descriptor);
        at += header.len() as u64 + size + descriptor.len() as u64;
        entry(&mut directory, &record.name, checksum, size, start);
    }
    let end = end(records.len() as u64, directory.len() as u64, at);
    directory.extend_from_slice(&end);
    out.write_all(&directory)?;
    whole.update(&directory);
    Ok(Filled { digest: whole.digest(), copied })
}

fn put16(out: &mut Vec<u8>, value: u16) {
    out.extend_from_slice(&value.to_le_bytes());
}

fn put32(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(&(value.min(ESCAPE) as u32).to_le_bytes());
}

fn put64(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(&value.to_le_bytes());
}

fn local_header(name: &str, size: u64, start: u64) -> Vec<u8> {
    let is_large = size >= ESCAPE;
    let mut extra = Vec::new();
    if is_large {
        put16(&mut extra, 1);
        put16(&mut extra, 16);
        put64(&mut extra, size);
        put64(&mut extra, size);
    }
    // torch pads with a field `FB` filled with `Z`.
    let unpadded = start + 30 + name.len() as u64 + extra.len() as u64 + 4;
    let padding = (ALIGNMENT - unpadded % ALIGNMENT) % ALIGNMENT;
    extra.extend_from_slice(b"FB");
    put16(&mut extra, padding as u16);
    extra.resize(extra.len() + padding as usize, b'Z');

    let mut header = b"PK\x03\x04".to_vec();
    put16(&mut header, if is_large { 45 } else { 0 });
    put16(&mut header, FLAGS);
    put16(&mut header, 0); // stored
    put32(&mut header, 0); // no time: the same model gives the same bytes
    put32(&mut header, 0); // checksum follows
    let shown = if is_large { ESCAPE } else { 0 };
    put32(&mut header, shown);
    put32(&mut header, shown);
    put16(&mut header, name.len() as u16);
    put16(&mut header, extra.len() as u16);
    header.extend_from_slice(name.as_bytes());
    header.append(&mut extra);
    header
}

fn descriptor(checksum: u32, size: u64) -> Vec<u8> {
    let mut out = b"PK\x07\x08".to_vec();
    out.extend_from_slice(&checksum.to_le_bytes());
    if size >= ESCAPE {
        put64(&mut out, size);
        put64(&mut out, size);
    } else {
        put32(&mut out, size);
        put32(&mut out, size);
    }
    out
}

fn entry(out: &mut Vec<u8>, name: &str, checksum: u32, size: u64, start: u64) {
    let mut extra = Vec::new();
    if size >= ESCAPE {
        put64(&mut extra, size);
        put64(&mut extra, size);
    }
    if start >= ESCAPE {
        put64(&mut extra, start);
    }
    if !extra.is_empty() {
        let mut head = Vec::new();
        put16(&mut head, 1);
        put16(&mut head, extra.len() as u16);
        head.append(&mut extra);
        extra = head;
    }
    out.extend_from_slice(b"PK\x01\x02");
    put16(out, 0);
    put16(out, if extra.is_empty() { 0 } else { 45 });
    put16(out, FLAGS);
    put16(out, 0);
    put32(out, 0);
    out.extend_from_slice(&checksum.to_le_bytes());
    put32(out, size);
    put32(out, size);
    put16(out, name.len() as u16);
    put16(out, extra.len() as u16);
    put16(out, 0); // comment
    put16(out, 0); // disk
    put16(out, 0); // attributes
    put32(out, 0);
    put32(out, start);
    out.extend_from_slice(name.as_bytes());
    out.append(&mut extra);
}

fn end(records: u64, directory: u64, start: u64) -> Vec<u8> {
    let mut out = Vec::new();
    if records >= 0xffff || directory >= ESCAPE || start >= ESCAPE {
        out.extend_from_slice(b"PK\x06\x06");
        put64(&mut out, 44);
        put16(&mut out, 45);
        put16(&mut out, 45);
        put32(&mut out, 0);
        put32(&mut out, 0);
        put64(&mut out, records);
        put64(&mut out, records);
        put64(&mut out, directory);
        put64(&mut out, start);
        out.extend_from_slice(b"PK\x06\x07");
        put32(&mut out, 0);
        put64(&mut out, start + directory);
        put32(&mut out, 1);
    }
    out.extend_from_slice(b"PK\x05\x06");
    put16(&mut out, 0);
    put16(&mut out, 0);
    put16(&mut out, records.min(0xffff) as u16);
    put16(&mut out, records.min(0xffff) as u16);
    put32(&mut out, directory);
    put32(&mut out, start);
    put16(&mut out, 0);
    out
}
