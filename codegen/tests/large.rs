//! Stages beyond 4 GiB: the archive is zip64, with fields as wide as torch reads them.
//!
//! Zeros are skipped instead of written, so that the file takes next to no room. With `LARGE=1` torch loads it as well,
//! which takes 5 GB of memory.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::{
    fs::File,
    io::{self, Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
    process::Command,
};

use codegen::{Assignment, CutOptions, Names, ReadAt, Targets, cut};
use tracer::DType;
use zip::ZipArchive;

#[path = "../../tests/needs/mod.rs"]
mod needs;

/// More elements than 31 bits can count, in more bytes than 32 bits can.
const ELEMENTS: u64 = (1 << 31) + 40;

/// The fixture, followed by zeros, with a mark at the very end of the large tensor.
struct Source {
    archive: Vec<u8>,
}

const MARK: [u8; 4] = [0x00, 0x3c, 0x00, 0x40];

impl ReadAt for Source {
    fn read_at(&mut self, position: u64, buffer: &mut [u8]) -> io::Result<()> {
        let length = self.archive.len() as u64;
        if position + buffer.len() as u64 <= length {
            return (&self.archive[..]).read_at(position, buffer);
        }
        buffer.fill(0);
        let end = length + 2 * ELEMENTS;
        if position + buffer.len() as u64 == end {
            let at = buffer.len() - MARK.len();
            buffer[at..].copy_from_slice(&MARK);
        }
        Ok(())
    }
}

/// A sparse file.
struct Sparse(File);

impl Write for Sparse {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        static ZEROS: [u8; 1 << 20] = [0; 1 << 20];
        if bytes.len() <= ZEROS.len() && bytes == &ZEROS[..bytes.len()] {
            self.0.seek(SeekFrom::Current(bytes.len() as i64))?;
        } else {
            self.0.write_all(bytes)?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[test]
fn a_record_beyond_4_gib_is_read_back() {
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/traces/cnn_basic.pt");
    let mut source = Source { archive: std::fs::read(fixture).unwrap() };
    let mut program = tracer::read_archive(&source.archive).unwrap();
    // The first layer's bias, as if it were very long; records after it begin beyond 4 GiB.
    let tensor = program.tensors.iter_mut().find(|tensor| tensor.path == "conv1.bias").unwrap();
    tensor.dtype = DType::Float16;
    tensor.shape = vec![ELEMENTS];
    tensor.strides = vec![1];
    let storage = tensor.storage.as_mut().unwrap();
    storage.position = Some(source.archive.len() as u64);
    (storage.elements, storage.bytes, storage.offset) = (ELEMENTS, 2 * ELEMENTS, 0);

    let names = Names::new(&program);
    let assignment = Assignment::at(program.nodes.len(), &[6]);
    let pipeline = cut(&program, &assignment, &names, &CutOptions::default()).unwrap();
    let targets = Targets { torchscript: true, python: false };
    let facts = codegen::facts(&program);
    let about = codegen::About::default();
    let (files, _) = codegen::stages(&program, &names, &pipeline, &facts, &about, targets).unwrap();
    let stage = files.iter().find(|file| file.path == "stages/stage_0.pt").unwrap();
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("large-{}.pt", std::process::id()));
    let mut out = Sparse(File::create(&path).unwrap());
    let filled = stage.content.write(&mut source, &mut out).unwrap();
    let copied = filled.copied;
    assert!(copied.iter().any(|piece| piece.piece.len() == 2 * ELEMENTS));
    drop(out);

    let mut archive = ZipArchive::new(File::open(&path).unwrap()).unwrap();
    let mut beyond = 0;
    for index in 0..archive.len() {
        let mut record = archive.by_index(index).unwrap();
        assert_eq!(record.data_start() % 64, 0, "{}", record.name());
        beyond += usize::from(record.data_start() > u64::from(u32::MAX));
        // The `zip` crate compares the checksum at the end.
        let mut last = Vec::new();
        let mut buffer = vec![0; 1 << 20];
        let mut size = 0;
        loop {
            let length = record.read(&mut buffer).unwrap();
            if length == 0 {
                break;
            }
            size += length as u64;
            last = buffer[length.saturating_sub(4)..length].to_vec();
        }
        assert_eq!(size, record.size(), "{}", record.name());
        if size == 2 * ELEMENTS {
            assert_eq!(last, MARK);
        }
    }
    assert!(beyond > 4, "only {beyond} records begin beyond 4 GiB");

    let python = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.venv/bin/python");
    if std::env::var_os("LARGE").is_some() && python.exists() {
        load(&python, &path);
    } else {
        needs::shorten(needs::Need::Large);
    }
    std::fs::remove_file(path).unwrap();
}

fn load(python: &Path, path: &Path) {
    let script = "import sys, torch; b = torch.jit.load(sys.argv[1]).conv1.bias; print(b.dtype, b.numel(), b[-2:].tolist())";
    let output = Command::new(python).args(["-W", "ignore", "-c", script]).arg(path).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).trim().to_string();
    let expected = format!("torch.float16 {ELEMENTS} [1.0, 2.0]");
    assert_eq!(said, expected, "{}", String::from_utf8_lossy(&output.stderr));
}
