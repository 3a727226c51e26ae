//! A mutation fuzzer without a nightly compiler: `mutate SECONDS MODEL.pt…`.
//!
//! Three ways to break an archive: bytes of the file, bytes of a pickle, letters of the code; the last two are
//! packed again so that the damage is not caught by a checksum. A panic is a finding, and so is a read of
//! more than a second.
#![allow(clippy::print_stdout, missing_docs)]

use std::{
    io::{Cursor, Read, Write},
    time::{Duration, Instant},
};

use zip::{CompressionMethod, ZipArchive, ZipWriter, write::SimpleFileOptions};

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }
}

const WORDS: [&str; 24] = [
    "(",
    ")",
    "[",
    "]",
    "{",
    "}",
    ",",
    ":",
    "=",
    "\n",
    "  ",
    "self",
    "torch.relu(",
    "forward",
    "return ",
    "if ",
    "9223372036854775807",
    "-",
    "\"",
    "\\",
    "CONSTANTS.c0",
    "__torch__.",
    "annotate(int, ",
    "é",
];

fn main() {
    let mut arguments = std::env::args().skip(1);
    let seconds: u64 = arguments.next().and_then(|text| text.parse().ok()).expect("seconds");
    let models: Vec<Vec<u8>> = arguments.map(|path| std::fs::read(path).expect("a readable file")).collect();
    let unpacked: Vec<Vec<(String, Vec<u8>)>> = models.iter().map(|bytes| records(bytes)).collect();
    let mut random = Random(0x9e37_79b9_7f4a_7c15 ^ u64::from(std::process::id()));
    let end = Instant::now() + Duration::from_secs(seconds);
    let (mut runs, mut read, mut slowest) = (0_u64, 0_u64, Duration::ZERO);
    while Instant::now() < end {
        let which = random.below(models.len());
        let bytes = match random.below(4) {
            0 => {
                let mut bytes = models[which].clone();
                damage(&mut bytes, &mut random);
                bytes
            }
            kind => {
                let mut records = unpacked[which].clone();
                let suffix = if kind == 1 { ".pkl" } else { ".py" };
                let hit: Vec<usize> =
                    (0..records.len()).filter(|index| records[*index].0.ends_with(suffix)).collect();
                let index = hit[random.below(hit.len())];
                if kind == 3 {
                    splice(&mut records[index].1, &mut random);
                } else {
                    damage(&mut records[index].1, &mut random);
                }
                pack(&records)
            }
        };
        let start = Instant::now();
        let result = std::panic::catch_unwind(|| tracer::read_archive(&bytes).is_ok());
        let took = start.elapsed();
        slowest = slowest.max(took);
        runs += 1;
        match result {
            Ok(ok) => read += u64::from(ok),
            Err(_) => save(&bytes, "panic"),
        }
        if took > Duration::from_secs(1) {
            save(&bytes, "slow");
        }
    }
    println!("{runs} runs, {read} still read, slowest {slowest:?}");
}

fn save(bytes: &[u8], kind: &str) {
    let path = std::env::temp_dir().join(format!("tracer-{kind}.pt"));
    std::fs::write(&path, bytes).expect("a writable folder");
    println!("{kind}: {}", path.display());
    std::process::exit(1);
}

fn damage(bytes: &mut Vec<u8>, random: &mut Random) {
    for _ in 0..=random.below(4) {
        let at = random.below(bytes.len());
        match random.below(5) {
            0 => bytes.truncate(at),
            1 => {
                let piece = bytes[at..(at + 1 + random.below(40)).min(bytes.len())].to_vec();
                let to = random.below(bytes.len());
                bytes.splice(to..to, piece);
            }
            2 => {
                let end = (at + 1 + random.below(40)).min(bytes.len());
                bytes.drain(at..end);
            }
            _ if bytes.is_empty() => {}
            3 => bytes[at] ^= 1 << random.below(8),
            _ => bytes[at] = random.next() as u8,
        }
        if bytes.is_empty() {
            return;
        }
    }
}

fn splice(bytes: &mut Vec<u8>, random: &mut Random) {
    for _ in 0..=random.below(3) {
        let at = random.below(bytes.len() + 1);
        let word = WORDS[random.below(WORDS.len())].as_bytes();
        let cut = (at + random.below(3)).min(bytes.len());
        let times = if random.below(50) == 0 { 3000 } else { 1 };
        bytes.splice(at..cut, word.repeat(times));
    }
}

fn records(bytes: &[u8]) -> Vec<(String, Vec<u8>)> {
    let mut zip = ZipArchive::new(Cursor::new(bytes)).expect("an archive");
    let mut records = Vec::new();
    for index in 0..zip.len() {
        let mut file = zip.by_index(index).expect("a record");
        if file.name().ends_with(".debug_pkl") {
            continue;
        }
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).expect("a whole record");
        records.push((file.name().to_owned(), bytes));
    }
    records
}

fn pack(records: &[(String, Vec<u8>)]) -> Vec<u8> {
    let mut writer = ZipWriter::new(Cursor::new(Vec::new()));
    let options = SimpleFileOptions::default().compression_method(CompressionMethod::Stored);
    for (name, bytes) in records {
        writer.start_file(name.as_str(), options).expect("a new record");
        writer.write_all(bytes).expect("room");
    }
    writer.finish().expect("a whole archive").into_inner()
}
