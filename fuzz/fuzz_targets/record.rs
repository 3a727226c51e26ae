//! One record of a valid archive replaced, its checksum right: what lies behind the zip layer.
//!
//! The first byte picks the archive, the second the record (by name, tensor data left out), the rest is what it holds.
#![no_main]

use std::{
    io::{Cursor, Read, Write},
    sync::LazyLock,
};

use zip::{CompressionMethod, ZipArchive, ZipWriter, write::SimpleFileOptions};

/// `seeds.py` lists them in the same order.
const ARCHIVES: [&[u8]; 3] = [
    include_bytes!("../../fixtures/traces/odd_calls.pt"),
    include_bytes!("../../fixtures/traces/repeats.pt"),
    include_bytes!("../../fixtures/traces/lstm_seq2seq_small.pt"),
];

/// Records by name: those that are read first, sorted, then tensor data.
type Records = Vec<(String, Vec<u8>)>;

static RECORDS: LazyLock<Vec<(Records, usize)>> = LazyLock::new(|| ARCHIVES.map(unpack).to_vec());

fn unpack(bytes: &[u8]) -> (Records, usize) {
    let mut archive = ZipArchive::new(Cursor::new(bytes)).expect("a fixture");
    let mut records: Records = (0..archive.len())
        .map(|index| {
            let mut file = archive.by_index(index).expect("a record");
            let mut data = Vec::new();
            file.read_to_end(&mut data).expect("a record's bytes");
            (file.name().to_owned(), data)
        })
        .collect();
    let is_data = |name: &str| name.contains("/data/") || name.contains("/constants/");
    records.sort_by_key(|(name, _)| (is_data(name), name.clone()));
    let n_read = records.iter().filter(|(name, _)| !is_data(name)).count();
    (records, n_read)
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let [archive, record, text @ ..] = bytes else { return };
    let (records, n_read) = &RECORDS[usize::from(*archive) % RECORDS.len()];
    let replaced = usize::from(*record) % n_read;
    let mut writer = ZipWriter::new(Cursor::new(Vec::new()));
    let options = SimpleFileOptions::default().compression_method(CompressionMethod::Stored);
    for (index, (name, data)) in records.iter().enumerate() {
        writer.start_file(name.as_str(), options).expect("a name");
        writer.write_all(if index == replaced { text } else { data }).expect("memory");
    }
    let archive = writer.finish().expect("an archive").into_inner();
    if let Ok(program) = tracer::read_archive(&archive) {
        model_analyze_fuzz::to_picture(&program);
    }
});
