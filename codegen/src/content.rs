//! What goes into a file: bytes of ours, and ranges of the archive that hold the weights.
//!
//! Weights are never held in memory: a file is a list of pieces, written through a buffer of 256 KiB, which stays in a core's own
//! cache on its way.

use std::io::{self, Write};

use schema::FileDigest;
use tracer::{DType, Program, Tensor, TensorId};

use crate::{error::CutError, finite::is_all_finite};

/// A file of the output.
#[derive(Clone, Debug, PartialEq)]
pub struct File {
    /// Path below the output folder; made by us, never by the model.
    pub path: String,
    /// What goes into it.
    pub content: Content,
}

/// What goes into a file.
#[derive(Clone, Debug, PartialEq)]
pub enum Content {
    /// Pieces, one behind the other.
    Plain(Vec<Piece>),
    /// A zip archive of stored records, aligned to 64 bytes.
    Zip(Vec<Record>),
}

/// One record of an archive.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// Name with the top folder.
    pub name: String,
    /// What goes into it.
    pub pieces: Vec<Piece>,
}

/// A piece of a file.
#[derive(Clone, Debug, PartialEq)]
pub enum Piece {
    /// Written by us.
    Bytes(Vec<u8>),
    /// A range of the source archive.
    Copy {
        /// First byte.
        position: u64,
        /// How many.
        length: u64,
        /// Type of the elements in it.
        dtype: DType,
    },
    /// Elements of the source archive in the order of a tensor's sizes.
    Gather(Gather),
}

/// Elements picked by sizes and strides.
#[derive(Clone, Debug, PartialEq)]
pub struct Gather {
    position: u64,
    shape: Vec<u64>,
    strides: Vec<u64>,
    item: u64,
    dtype: DType,
}

/// A piece of the source archive that went into a file.
#[derive(Clone, Debug, PartialEq)]
pub struct Copied {
    /// Its first byte in the written file.
    pub at: u64,
    /// What was copied.
    pub piece: Piece,
    /// CRC-32 of all of it, as it went by.
    pub crc32: u32,
    /// False where it holds NaN or infinity.
    pub is_finite: bool,
    /// CRC-32 of its windows that are read back, as they went by.
    pub checksums: Vec<u32>,
}

/// A file that was written.
#[derive(Clone, Debug, PartialEq)]
pub struct Filled {
    /// Its size and checksum.
    pub digest: FileDigest,
    /// What it took from the source.
    pub copied: Vec<Copied>,
}

/// Size and CRC-32 of bytes that go by.
#[derive(Clone, Debug, Default)]
pub struct Checksum {
    bytes: u64,
    hasher: crc32fast::Hasher,
}

impl Checksum {
    /// Takes the bytes that come next.
    pub fn update(&mut self, bytes: &[u8]) {
        self.bytes += bytes.len() as u64;
        self.hasher.update(bytes);
    }

    /// Takes bytes whose checksum was taken elsewhere.
    pub(crate) fn append(&mut self, next: &Checksum) {
        self.bytes += next.bytes;
        self.hasher.combine(&next.hasher);
    }

    /// Returns the CRC-32.
    pub(crate) fn crc32(&self) -> u32 {
        self.hasher.clone().finalize()
    }

    /// Returns both as a manifest has them.
    pub fn digest(&self) -> FileDigest {
        FileDigest { bytes: self.bytes, crc32: format!("{:08x}", self.crc32()) }
    }
}

/// Bytes that have one checksum.
const WINDOW: u64 = 1 << 16;
/// Of so many windows one is read back, and the last: what is out of place anywhere is out of place there.
const READ_BACK: u64 = 16;

/// Returns the parts of so many bytes that are read back: first byte and length.
pub(crate) fn windows(length: u64) -> impl Iterator<Item = (u64, u64)> {
    let count = length.div_ceil(WINDOW);
    let chosen = (0..count).filter(move |window| window % READ_BACK == 0 || window + 1 == count);
    chosen.map(move |window| (window * WINDOW, WINDOW.min(length - window * WINDOW)))
}

/// Takes checksums of windows from bytes that go by.
struct Sampler<W> {
    windows: W,
    /// The window that comes next or is being filled.
    window: Option<(u64, u64)>,
    at: u64,
    hasher: crc32fast::Hasher,
    checksums: Vec<u32>,
}

impl<W: Iterator<Item = (u64, u64)>> Sampler<W> {
    fn new(mut windows: W) -> Self {
        let window = windows.next();
        Self { windows, window, at: 0, hasher: crc32fast::Hasher::new(), checksums: Vec::new() }
    }

    fn feed(&mut self, bytes: &[u8]) {
        let end = self.at + bytes.len() as u64;
        while let Some((first, length)) = self.window.filter(|(first, _)| *first < end) {
            let last = (first + length).min(end);
            self.hasher.update(&bytes[(first.max(self.at) - self.at) as usize..(last - self.at) as usize]);
            if last < first + length {
                break;
            }
            self.checksums.push(std::mem::take(&mut self.hasher).finalize());
            self.window = self.windows.next();
        }
        self.at = end;
    }
}

/// A file that can be read anywhere.
pub trait ReadAt {
    /// Fills the buffer from this position on.
    ///
    /// # Errors
    /// When the file ends or cannot be read.
    fn read_at(&mut self, position: u64, buffer: &mut [u8]) -> io::Result<()>;
}

impl ReadAt for &[u8] {
    fn read_at(&mut self, position: u64, buffer: &mut [u8]) -> io::Result<()> {
        let start = usize::try_from(position).ok();
        let range = start.and_then(|start| self.get(start..start.checked_add(buffer.len())?));
        buffer.copy_from_slice(range.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

const BUFFER: usize = 1 << 18;

impl Content {
    /// Makes a content of text.
    pub fn text(text: String) -> Self {
        Content::Plain(vec![Piece::Bytes(text.into_bytes())])
    }

    /// Returns the bytes of weights in it, which is nearly its size.
    pub fn size(&self) -> u64 {
        match self {
            Content::Plain(pieces) => pieces.iter().map(Piece::len).sum(),
            Content::Zip(records) => {
                records.iter().map(|r| r.pieces.iter().map(Piece::len).sum::<u64>() + 160).sum()
            }
        }
    }

    /// Writes it; tells its checksum and what was copied of the source.
    ///
    /// # Errors
    /// When reading the source or writing fails.
    pub fn write(&self, source: &mut dyn ReadAt, out: &mut dyn Write) -> io::Result<Filled> {
        let pieces = match self {
            Content::Plain(pieces) => pieces,
            Content::Zip(records) => return crate::zip::write(records, source, out),
        };
        let mut buffer = Vec::new();
        let mut copied = Vec::new();
        let mut whole = Checksum::default();
        let mut at = 0;
        for piece in pieces {
            let sink = &mut |bytes: &[u8]| out.write_all(bytes);
            whole.append(&piece.copy(source, &mut buffer, sink, at, &mut copied)?);
            at += piece.len();
        }
        Ok(Filled { digest: whole.digest(), copied })
    }
}

impl Piece {
    /// Returns the number of bytes.
    pub fn len(&self) -> u64 {
        match self {
            Piece::Bytes(bytes) => bytes.len() as u64,
            Piece::Copy { length, .. } => *length,
            Piece::Gather(gather) => gather.shape.iter().product::<u64>() * gather.item,
        }
    }

    /// Returns the type of its elements.
    fn dtype(&self) -> DType {
        match self {
            Piece::Bytes(_) => DType::UInt8,
            Piece::Copy { dtype, .. } => *dtype,
            Piece::Gather(gather) => gather.dtype,
        }
    }

    /// Returns the first byte of the source that it is made of, and how many bytes it spans there.
    pub(crate) fn extent(&self) -> Option<(u64, u64)> {
        match self {
            Piece::Bytes(_) => None,
            Piece::Copy { position, length, .. } => Some((*position, *length)),
            Piece::Gather(Gather { position, shape, strides, item, .. }) => {
                let last: u64 =
                    shape.iter().zip(strides).map(|(size, stride)| size.saturating_sub(1) * stride).sum();
                Some((*position, if shape.contains(&0) { 0 } else { (last + 1) * item }))
            }
        }
    }

    /// Tells whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Writes it at a position of a file through `sink`; notes what comes from the source, and returns its checksum.
    pub(crate) fn copy(
        &self,
        source: &mut dyn ReadAt,
        buffer: &mut Vec<u8>,
        sink: &mut dyn FnMut(&[u8]) -> io::Result<()>,
        at: u64,
        copied: &mut Vec<Copied>,
    ) -> io::Result<Checksum> {
        let mut whole = Checksum::default();
        if let Piece::Bytes(bytes) = self {
            whole.update(bytes);
            sink(bytes)?;
            return Ok(whole);
        }
        let mut sampler = Sampler::new(windows(self.len()));
        let dtype = self.dtype();
        let mut is_finite = true;
        self.write(source, buffer, &mut |bytes| {
            whole.update(bytes);
            is_finite &= is_all_finite(dtype, bytes);
            sampler.feed(bytes);
            sink(bytes)
        })?;
        copied.push(Copied {
            at,
            piece: self.clone(),
            crc32: whole.crc32(),
            is_finite,
            checksums: sampler.checksums,
        });
        Ok(whole)
    }

    /// Hands its bytes to `sink`, a bufferful at a time.
    pub(crate) fn write(
        &self,
        source: &mut dyn ReadAt,
        buffer: &mut Vec<u8>,
        sink: &mut dyn FnMut(&[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        match self {
            Piece::Bytes(bytes) => sink(bytes),
            Piece::Copy { position, length, .. } => {
                buffer.resize(BUFFER, 0);
                let mut done = 0;
                while done < *length {
                    let now = (length - done).min(BUFFER as u64);
                    let part = &mut buffer[..now as usize];
                    source.read_at(position + done, part)?;
                    sink(part)?;
                    done += now;
                }
                Ok(())
            }
            Piece::Gather(gather) => gather.write(source, sink),
        }
    }
}

impl Gather {
    /// Walks the elements in order; the innermost dimension is read in one go where it is dense.
    ///
    /// O(elements) reads in the worst case, a transposed matrix.
    fn write(
        &self,
        source: &mut dyn ReadAt,
        sink: &mut dyn FnMut(&[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        if self.shape.contains(&0) {
            return Ok(());
        }
        let dims = self.shape.len();
        // Dimensions at the end that are dense together.
        let mut run = 1_u64;
        let mut dense = dims;
        while dense > 0 && self.strides[dense - 1] == run {
            run *= self.shape[dense - 1];
            dense -= 1;
        }
        let mut index = vec![0_u64; dense];
        let mut out = Vec::with_capacity(BUFFER);
        let mut part = vec![0_u8; (run * self.item).min(BUFFER as u64) as usize];
        loop {
            let offset: u64 = index.iter().zip(&self.strides).map(|(i, s)| i * s).sum();
            let (mut at, end) = (offset * self.item, (offset + run) * self.item);
            while at < end {
                let now = (end - at).min(part.len() as u64) as usize;
                source.read_at(self.position + at, &mut part[..now])?;
                out.extend_from_slice(&part[..now]);
                if out.len() >= BUFFER {
                    sink(&out)?;
                    out.clear();
                }
                at += now as u64;
            }
            let mut dim = dense;
            loop {
                if dim == 0 {
                    return sink(&out);
                }
                dim -= 1;
                index[dim] += 1;
                if index[dim] < self.shape[dim] {
                    break;
                }
                index[dim] = 0;
            }
        }
    }
}

/// Returns the bytes of a tensor, densely packed in the order of its sizes.
pub(crate) fn dense(program: &Program, id: TensorId) -> Result<Piece, CutError> {
    let tensor = &program.tensors[id.index()];
    let (position, extent) = range(tensor)?;
    let item = tensor.dtype.bytes();
    let mut expected = 1_u64;
    let mut is_dense = true;
    for (&size, &stride) in tensor.shape.iter().zip(&tensor.strides).rev() {
        is_dense &= size == 1 || stride == expected;
        expected = expected.saturating_mul(size);
    }
    if is_dense || extent == 0 {
        return Ok(Piece::Copy { position, length: extent * item, dtype: tensor.dtype });
    }
    let (shape, strides) = (tensor.shape.clone(), tensor.strides.clone());
    Ok(Piece::Gather(Gather { position, shape, strides, item, dtype: tensor.dtype }))
}

/// Returns a tensor's first byte in the archive and how many elements it spans; checks both against the record.
pub(crate) fn range(tensor: &Tensor) -> Result<(u64, u64), CutError> {
    let storage = tensor.storage.as_ref().ok_or_else(|| CutError::NoData { tensor: tensor.path.clone() })?;
    let fault = |reason: &str| CutError::Tensor { tensor: tensor.path.clone(), reason: reason.into() };
    if tensor.shape.len() != tensor.strides.len() {
        return Err(fault("sizes and strides differ in number"));
    }
    let mut count = 1_u64;
    let mut last = 0_u64;
    for (&size, &stride) in tensor.shape.iter().zip(&tensor.strides) {
        count = count.checked_mul(size).ok_or_else(|| fault("its size overflows"))?;
        let reach = size.saturating_sub(1).checked_mul(stride).and_then(|reach| last.checked_add(reach));
        last = reach.ok_or_else(|| fault("its strides overflow"))?;
    }
    // Expanded tensors repeat elements; what is written out must stay near what is stored.
    if count > storage.elements.saturating_mul(4096).max(1 << 20) {
        return Err(fault("its sizes multiply to far more elements than are stored"));
    }
    let item = tensor.dtype.bytes();
    let extent = if count == 0 { 0 } else { last + 1 };
    let end = storage.offset.checked_add(extent).and_then(|end| end.checked_mul(item));
    match end {
        Some(end) if end <= storage.bytes => match tensor.first_byte() {
            Some(first) => Ok((first, extent)),
            None => Err(CutError::NoWeights { tensor: tensor.path.clone() }),
        },
        _ => Err(fault("it reaches beyond its record")),
    }
}
