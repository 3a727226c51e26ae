//! The zip layer: which records there are, where they lie, and the small ones' bytes.
//!
//! The directory is read by the `zip` crate, which keeps the last of two equal names without a word;
//! therefore the directory's headers are counted again here.

use std::{
    collections::BTreeMap,
    io::{Read, Seek, SeekFrom},
};

use flate2::{Decompress, FlushDecompress, Status};
use zip::{CompressionMethod, ZipArchive};

use crate::{
    bytes::{Bytes, Reader, part},
    error::TraceError,
};

/// More records than any model has: NASNet-Large has 5,000.
const MAX_RECORDS: usize = 1_000_000;
const MAX_NAME: usize = 4096;
/// One text or pickle.
pub(crate) const MAX_RECORD_BYTES: u64 = 256 << 20;
/// All texts and pickles together.
pub(crate) const MAX_TOTAL_BYTES: u64 = 1 << 30;

/// The record by which an archive without a top folder is known: torch.export's until torch 2.7.
pub(crate) const FLAT: &str = "serialized_exported_program.json";

/// An open archive.
pub(crate) struct Records<'a> {
    zip: ZipArchive<Reader<'a>>,
    /// Top folder, without the slash; empty where records lie at the root.
    pub(crate) folder: String,
    /// Index by name without the top folder.
    names: BTreeMap<String, usize>,
    unpacked: u64,
    bytes: &'a dyn Bytes,
    decoder: Decompress,
}

/// The position of a stored record in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) position: u64,
    pub(crate) bytes: u64,
    /// CRC-32; torch writes none where it is told not to compute it.
    pub(crate) checksum: Option<u32>,
}

impl<'a> Records<'a> {
    /// Opens the directory; touches no record.
    pub(crate) fn open(bytes: &'a dyn Bytes) -> Result<Self, TraceError> {
        let zip =
            ZipArchive::new(Reader::new(bytes)).map_err(|error| TraceError::Zip { reason: fault(&error) })?;
        if zip.len() > MAX_RECORDS {
            return Err(TraceError::Limit { what: "records in the archive", limit: MAX_RECORDS });
        }
        let headers = count_headers(bytes, zip.central_directory_start());
        if headers != zip.len() {
            return Err(TraceError::Zip {
                reason: format!("{headers} directory entries have {} different names", zip.len()),
            });
        }
        let mut folder = None;
        let mut names = BTreeMap::new();
        let is_flat = zip.file_names().any(|name| name == FLAT);
        for (index, name) in zip.file_names().enumerate() {
            if name.len() > MAX_NAME {
                return Err(TraceError::Limit { what: "bytes in a record's name", limit: MAX_NAME });
            }
            if is_flat {
                names.insert(name.to_owned(), index);
                continue;
            }
            let Some((top, rest)) = name.split_once('/') else { continue };
            match &folder {
                None => folder = Some(top.to_owned()),
                Some(first) if first == top => {}
                Some(_) => continue,
            }
            names.insert(rest.to_owned(), index);
        }
        let folder = folder.unwrap_or_default();
        Ok(Records { zip, folder, names, unpacked: 0, bytes, decoder: Decompress::new(false) })
    }

    /// Returns the names under a prefix, sorted.
    pub(crate) fn names_under<'s>(&'s self, prefix: &'s str) -> impl Iterator<Item = &'s str> {
        self.names
            .range::<str, _>((std::ops::Bound::Included(prefix), std::ops::Bound::Unbounded))
            .map(|(name, _)| name.as_str())
            .take_while(move |name| name.starts_with(prefix))
    }

    /// Tells whether a record whose name ends so lies beside the folder of the archive.
    pub(crate) fn has_outside(&self, ending: &str) -> bool {
        self.zip.file_names().any(|name| !name.contains('/') && name.ends_with(ending))
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.names.contains_key(name)
    }

    /// Unpacks a small record.
    pub(crate) fn read(&mut self, name: &str) -> Result<Vec<u8>, TraceError> {
        let wrong = |reason: String| TraceError::Record { record: name.to_owned(), reason };
        let bytes = self.bytes;
        let index = self.index(name)?;
        let file = self.zip.by_index_raw(index).map_err(|error| damaged(name, &error))?;
        let (size, crc, method, encrypted) =
            (file.size(), file.crc32(), file.compression(), file.encrypted());
        let (start, packed) = (file.data_start(), file.compressed_size());
        drop(file);
        let limit = MAX_RECORD_BYTES.min(MAX_TOTAL_BYTES - self.unpacked);
        if size > limit {
            return Err(TraceError::TooLarge { record: name.to_owned(), size, limit });
        }
        let is_there = start.checked_add(packed).is_some_and(|end| end <= bytes.size());
        if !is_there {
            return Err(wrong("it reaches past the end of the file".to_owned()));
        }
        // A stored record is as long as its content; compression lengthens none by much.
        let most = if method == CompressionMethod::Stored { size } else { size + size / 8 + 1024 };
        if method == CompressionMethod::Stored && packed != size {
            return Err(wrong(format!("the directory says {size} bytes, there are {packed}")));
        }
        let packed = &part(bytes, start, packed.min(most)).map_err(|error| wrong(error.to_string()))?[..];
        let size_here = usize::try_from(size).expect("the limit fits");
        let unpacked = match method {
            _ if encrypted => return Err(wrong("it is encrypted".to_owned())),
            CompressionMethod::Stored => packed.to_vec(),
            // Deflate packs 1032 bytes into one at most: a directory that promises more lies.
            CompressionMethod::Deflated if size_here / 1032 > packed.len() => {
                return Err(wrong(format!("{} bytes cannot unpack to {size}", packed.len())));
            }
            CompressionMethod::Deflated => self.inflate(packed, size_here).map_err(wrong)?,
            other => return Err(wrong(format!("compression {other} is not what torch writes"))),
        };
        if unpacked.len() != size_here {
            return Err(wrong(format!("the directory says {size} bytes, there are {}", unpacked.len())));
        }
        // Torch writes 0 where it is told to compute none.
        if crc != 0 && crc32fast::hash(&unpacked) != crc {
            return Err(wrong("its checksum is wrong".to_owned()));
        }
        self.unpacked += size;
        Ok(unpacked)
    }

    /// One decoder for all records: its tables are larger than most of them.
    fn inflate(&mut self, packed: &[u8], size: usize) -> Result<Vec<u8>, String> {
        self.decoder.reset(false);
        let mut unpacked = Vec::with_capacity(size);
        let status = self.decoder.decompress_vec(packed, &mut unpacked, FlushDecompress::Finish);
        match status {
            Ok(Status::StreamEnd) => Ok(unpacked),
            Ok(_) if unpacked.len() == size => {
                Err(format!("it unpacks to more than the {size} bytes of the directory"))
            }
            Ok(_) => Err("its compressed data is cut off".to_owned()),
            Err(error) => Err(format!("its compressed data is damaged: {error}")),
        }
    }

    /// Unpacks a small record as text.
    pub(crate) fn read_text(&mut self, name: &str) -> Result<String, TraceError> {
        String::from_utf8(self.read(name)?).map_err(|error| TraceError::Record {
            record: name.to_owned(),
            reason: format!("not UTF-8 at byte {}", error.utf8_error().valid_up_to()),
        })
    }

    /// Finds a stored record; only its local header is touched.
    pub(crate) fn extent(&mut self, name: &str) -> Result<Extent, TraceError> {
        let file_bytes = self.bytes.size();
        let index = self.index(name)?;
        let file = self.zip.by_index_raw(index).map_err(|error| damaged(name, &error))?;
        if file.compression() != CompressionMethod::Stored || file.encrypted() {
            return Err(TraceError::Record {
                record: name.to_owned(),
                reason: "it must be stored, not compressed or encrypted".to_owned(),
            });
        }
        let checksum = Some(file.crc32()).filter(|crc| *crc != 0);
        let extent = Extent { position: file.data_start(), bytes: file.size(), checksum };
        match extent.position.checked_add(extent.bytes) {
            Some(end) if end <= file_bytes => Ok(extent),
            _ => Err(TraceError::Record {
                record: name.to_owned(),
                reason: "it reaches past the end of the file".to_owned(),
            }),
        }
    }

    fn index(&self, name: &str) -> Result<usize, TraceError> {
        self.names.get(name).copied().ok_or_else(|| TraceError::MissingRecord { record: name.to_owned() })
    }
}

fn damaged(name: &str, error: &zip::result::ZipError) -> TraceError {
    TraceError::Record { record: name.to_owned(), reason: fault(error) }
}

/// Says what is wrong with a zip; what cannot be read is not there.
fn fault(error: &zip::result::ZipError) -> String {
    match error {
        zip::result::ZipError::Io(_) => "it ends too early".to_owned(),
        other => other.to_string(),
    }
}

/// Counts the central directory's headers: signature, 42 bytes, then name, extra field and comment.
fn count_headers(bytes: &dyn Bytes, start: u64) -> usize {
    let mut reader = Reader::new(bytes);
    let mut at = start;
    let mut count = 0;
    let mut header = [0_u8; 46];
    while reader.seek(SeekFrom::Start(at)).is_ok()
        && reader.read_exact(&mut header).is_ok()
        && header.starts_with(b"PK\x01\x02")
    {
        let length = |at: usize| u64::from(u16::from_le_bytes([header[at], header[at + 1]]));
        at += 46 + length(28) + length(30) + length(32);
        count += 1;
    }
    count
}
