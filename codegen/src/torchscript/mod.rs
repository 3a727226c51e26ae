//! A stage as a TorchScript archive, written byte by byte: `torch.jit.load`, libtorch and tch read it.
//!
//! Each holder of tensors is a module class of its own shape, so that parameters keep their paths; the stage's whole
//! `forward` is in the root class. Weights are ranges of the source archive, copied unchanged.

mod code;
mod pickle;
mod tree;

use std::collections::BTreeMap;

use tracer::{ByteOrder, DType, Program, TensorId};

use crate::{
    content::{Content, Piece, Record, dense, range},
    error::CutError,
    names::Names,
    pipeline::Pipeline,
};
use pickle::Pickle;
use tree::Tree;

/// Returns a stage's archive.
///
/// # Errors
/// If a tensor has no data, or was stored in another byte order.
pub(crate) fn stage(
    program: &Program,
    names: &Names,
    pipeline: &Pipeline,
    index: usize,
    spaces: &[String],
) -> Result<Content, CutError> {
    let stage = &pipeline.stages[index];
    let folder = format!("stage_{index}");
    let archive = program.archive.clone().unwrap_or_default();
    if let (ByteOrder::Big, Some(first)) = (archive.byte_order, stage.tensors.first()) {
        let tensor = program.tensors[first.index()].path.clone();
        return Err(CutError::Tensor {
            tensor,
            reason: "the archive was written on a big-endian machine".into(),
        });
    }
    let tree = Tree::new(program, stage, &format!("__torch__.{folder}"))?;
    let storages = Storages::new(program, &stage.tensors)?;
    let mut records = Vec::new();
    let record = |name: &str, pieces: Vec<Piece>| Record { name: format!("{folder}/{name}"), pieces };
    let bytes = |bytes: Vec<u8>| vec![Piece::Bytes(bytes)];

    let training = crate::manifest::was_training(program);
    let mut root = Pickle::new();
    tree.pickle(&mut root, program, &storages, training);
    records.push(record("data.pkl", bytes(root.finish())));
    records.push(record("byteorder", bytes(b"little".to_vec())));
    for (key, storage) in storages.list.iter().enumerate() {
        let piece = Piece::Copy {
            position: storage.position,
            length: storage.elements * storage.item,
            dtype: storage.dtype,
        };
        records.push(record(&format!("data/{key}"), vec![piece]));
    }
    let source = code::module(program, names, stage, &tree, spaces)?;
    records.push(record(&format!("code/__torch__/{folder}.py"), bytes(source.into_bytes())));
    let mut constants = Pickle::new();
    constants.mark();
    for (key, id) in stage.constants.iter().enumerate() {
        let tensor = &program.tensors[id.index()];
        let elements = tensor.shape.iter().product();
        let strides = tracer::dense_strides(&tensor.shape);
        let place = pickle::RecordSlice { key, elements, offset: 0 };
        constants.tensor(tensor.dtype, &place, &tensor.shape, &strides, false);
        records.push(record(&format!("constants/{key}"), vec![dense(program, *id)?]));
    }
    constants.tuple();
    records.push(record("constants.pkl", bytes(constants.finish())));
    records.push(record("version", bytes(format!("{}\n", archive.version.max(3)).into_bytes())));
    Ok(Content::Zip(records))
}

/// The storages of a stage's tensors.
pub(crate) struct Storages {
    list: Vec<Stored>,
    by_record: BTreeMap<(String, u64), usize>,
}

struct Stored {
    position: u64,
    /// The first kept element.
    first: u64,
    elements: u64,
    item: u64,
    dtype: DType,
}

impl Storages {
    /// Tensors that share memory still share it; of a large record only the used part is copied.
    fn new(program: &Program, tensors: &[TensorId]) -> Result<Self, CutError> {
        let mut ranges: BTreeMap<(String, u64), (u64, u64, u64)> = BTreeMap::new();
        let mut order = Vec::new();
        let mut dtypes = BTreeMap::new();
        for id in tensors {
            let tensor = &program.tensors[id.index()];
            let (first_byte, extent) = range(tensor)?;
            let storage = tensor.storage.as_ref().expect("range checks that there is one");
            let item = tensor.dtype.bytes();
            let (first, end) = (storage.offset, storage.offset + extent);
            let key = (storage.record.clone(), item);
            dtypes.entry(key.clone()).or_insert(tensor.dtype);
            match ranges.get_mut(&key) {
                Some(known) => *known = (known.0.min(first), known.1.max(end), known.2),
                None => {
                    ranges.insert(key.clone(), (first, end, first_byte - first * item));
                    order.push(key);
                }
            }
        }
        let mut list = Vec::new();
        let mut by_record = BTreeMap::new();
        for key in order {
            let (first, end, position) = ranges[&key];
            let (item, dtype) = (key.1, dtypes[&key]);
            by_record.insert(key, list.len());
            list.push(Stored {
                position: position + first * item,
                first,
                elements: end - first,
                item,
                dtype,
            });
        }
        Ok(Self { list, by_record })
    }

    /// Returns the position of a tensor.
    fn place(&self, program: &Program, id: TensorId) -> pickle::RecordSlice {
        let tensor = &program.tensors[id.index()];
        let storage = tensor.storage.as_ref().expect("checked when the list was made");
        let key = self.by_record[&(storage.record.clone(), tensor.dtype.bytes())];
        let stored = &self.list[key];
        pickle::RecordSlice { key, elements: stored.elements, offset: storage.offset - stored.first }
    }
}
