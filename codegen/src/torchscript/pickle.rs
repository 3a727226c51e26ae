//! Pickles for torch's reader: protocol 2, with a memo only for tensors with several names.
//!
//! torch allocates memory for each tensor, even if two are in one record. Only a tensor taken from the memo is the same
//! parameter under both names, and is trained as one.

use std::collections::HashMap;

use tracer::DType;

/// A pickle under construction.
pub(crate) struct Pickle {
    out: Vec<u8>,
    /// Tensors that are named several times, with their numbers in the memo.
    memo: HashMap<Vec<u8>, u32>,
}

/// The position of a tensor.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct RecordSlice {
    /// Number of the record.
    pub key: usize,
    /// Elements of the record.
    pub elements: u64,
    /// First element.
    pub offset: u64,
}

impl Pickle {
    pub fn new() -> Self {
        Self { out: vec![0x80, 2], memo: HashMap::new() }
    }

    pub fn finish(mut self) -> Vec<u8> {
        self.out.push(b'.');
        self.out
    }

    pub fn mark(&mut self) {
        self.out.push(b'(');
    }

    /// Closes the last mark.
    pub fn tuple(&mut self) {
        self.out.push(b't');
    }

    fn global(&mut self, module: &str, name: &str) {
        self.out.extend_from_slice(format!("c{module}\n{name}\n").as_bytes());
    }

    pub fn text(&mut self, text: &str) {
        self.out.push(b'X');
        self.out.extend_from_slice(&(text.len() as u32).to_le_bytes());
        self.out.extend_from_slice(text.as_bytes());
    }

    pub fn bool(&mut self, value: bool) {
        self.out.push(if value { 0x88 } else { 0x89 });
    }

    fn int(&mut self, value: u64) {
        match i32::try_from(value) {
            Ok(small) => {
                self.out.push(b'J');
                self.out.extend_from_slice(&small.to_le_bytes());
            }
            Err(_) => {
                // torch's reader only accepts eight bytes. Sizes stay below 2⁶³.
                self.out.extend_from_slice(&[0x8a, 8]);
                self.out.extend_from_slice(&value.to_le_bytes());
            }
        }
    }

    /// Opens an object; its attributes follow as keys and values.
    pub fn open_object(&mut self, class: &str) {
        let (module, name) = class.rsplit_once('.').expect("classes are qualified");
        self.global(module, name);
        self.out.extend_from_slice(b")\x81}(");
    }

    /// Closes the object.
    pub fn close_object(&mut self) {
        self.out.extend_from_slice(b"ub");
    }

    /// Writes a tensor with several names: the first time in full, then as the same tensor.
    pub fn shared_tensor(
        &mut self,
        dtype: DType,
        place: &RecordSlice,
        shape: &[u64],
        strides: &[u64],
        requires_grad: bool,
    ) {
        let mut whole = Pickle { out: Vec::new(), memo: HashMap::new() };
        whole.tensor(dtype, place, shape, strides, requires_grad);
        let next = self.memo.len() as u32;
        match self.memo.get(&whole.out) {
            Some(number) => {
                self.out.push(b'j');
                self.out.extend_from_slice(&number.to_le_bytes());
            }
            None => {
                self.out.extend_from_slice(&whole.out);
                self.out.push(b'r');
                self.out.extend_from_slice(&next.to_le_bytes());
                self.memo.insert(whole.out, next);
            }
        }
    }

    /// Writes a tensor.
    pub fn tensor(
        &mut self,
        dtype: DType,
        place: &RecordSlice,
        shape: &[u64],
        strides: &[u64],
        requires_grad: bool,
    ) {
        self.global("torch._utils", "_rebuild_tensor_v2");
        self.mark();
        self.mark();
        self.text("storage");
        self.global("torch", storage_class(dtype));
        self.text(&place.key.to_string());
        self.text("cpu");
        self.int(place.elements);
        self.tuple();
        self.out.push(b'Q');
        self.int(place.offset);
        for list in [shape, strides] {
            self.mark();
            list.iter().for_each(|item| self.int(*item));
            self.tuple();
        }
        self.bool(requires_grad);
        self.global("collections", "OrderedDict");
        self.out.extend_from_slice(b")R");
        self.tuple();
        self.out.push(b'R');
    }
}

fn storage_class(dtype: DType) -> &'static str {
    match dtype {
        DType::Float64 => "DoubleStorage",
        DType::Float32 => "FloatStorage",
        DType::Float16 => "HalfStorage",
        DType::BFloat16 => "BFloat16Storage",
        DType::Int64 => "LongStorage",
        DType::Int32 => "IntStorage",
        DType::Int16 => "ShortStorage",
        DType::Int8 => "CharStorage",
        DType::UInt8 => "ByteStorage",
        DType::UInt16 => "UInt16Storage",
        DType::UInt32 => "UInt32Storage",
        DType::UInt64 => "UInt64Storage",
        DType::Bool => "BoolStorage",
        DType::Complex64 => "ComplexFloatStorage",
        DType::Complex128 => "ComplexDoubleStorage",
        DType::Float8E4M3 => "Float8_e4m3fnStorage",
        DType::Float8E5M2 => "Float8_e5m2Storage",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_as_wide_as_torch_reads_them() {
        let check = |value: u64, expected: &[u8]| {
            let mut pickle = Pickle { out: Vec::new(), memo: HashMap::new() };
            pickle.int(value);
            assert_eq!(pickle.out, expected, "{value}");
        };
        check(7, b"J\x07\0\0\0");
        check(0x7fff_ffff, b"J\xff\xff\xff\x7f");
        check(0x8000_0000, b"\x8a\x08\0\0\0\x80\0\0\0\0");
    }
}
