//! The corpus of `fixtures/hostile/`: one packed archive a kind of file.

use std::{fs, io::Read, path::Path};

/// A file of the corpus.
pub struct Entry {
    pub kind: &'static str,
    pub name: String,
    pub bytes: Vec<u8>,
}

pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Unpacks all files of a kind: tar, whose headers are 512 bytes with a name and a size in octal.
pub fn entries(kind: &'static str) -> Vec<Entry> {
    let packed = fs::read(root().join(format!("fixtures/hostile/{kind}.tar.gz"))).unwrap();
    let mut tar = Vec::new();
    flate2::read::GzDecoder::new(&packed[..]).read_to_end(&mut tar).unwrap();
    let text =
        |field: &[u8]| String::from_utf8(field.iter().copied().take_while(|b| *b != 0).collect()).unwrap();
    let mut entries = Vec::new();
    let mut rest = &tar[..];
    while rest.len() >= 512 && rest[0] != 0 {
        let name = text(&rest[..100]);
        let size = usize::from_str_radix(text(&rest[124..136]).trim(), 8).unwrap();
        entries.push(Entry { kind, name, bytes: rest[512..512 + size].to_vec() });
        rest = &rest[512 + size.div_ceil(512) * 512..];
    }
    entries
}
