//! Collects saved activations: each storage once, and the copies that operators make.

use smallvec::SmallVec;
use tracer::ValueId;

use super::times;
use crate::{
    fact::{Shape, StorageId, TensorFact},
    infer::{Call, viewed_strides},
    model::{ModelGraph, OperatorId, Origin},
};

/// The storages saved so far.
pub(super) struct Saved {
    /// By storage, the first operator that saves it.
    pub keepers: Vec<Option<OperatorId>>,
}

impl Saved {
    pub(super) fn new(graph: &ModelGraph) -> Self {
        Self { keepers: vec![None; graph.storages.len()] }
    }
}

/// Collects the saved activations of one operator.
pub(crate) struct Keep<'a> {
    saved: &'a mut Saved,
    graph: &'a ModelGraph,
    keeper: OperatorId,
    pub(super) bytes: u64,
    /// False once a tensor of unknown size is saved.
    pub(super) is_all: bool,
    /// True once a tensor is saved, be it a parameter or one that an earlier operator saves, too.
    pub(super) is_any: bool,
}

impl<'a> Keep<'a> {
    /// Starts empty.
    pub(super) fn new(saved: &'a mut Saved, graph: &'a ModelGraph, keeper: OperatorId) -> Self {
        Self { saved, graph, keeper, bytes: 0, is_all: true, is_any: false }
    }

    fn storage(&mut self, id: StorageId) {
        let storage = self.graph.storage(id);
        let is_stored = matches!(storage.origin, Origin::Stored(_));
        let first = &mut self.saved.keepers[id.index()];
        if !is_stored && first.is_none() {
            *first = Some(self.keeper);
            match self.beside_own_rows(id) {
                Some((own, halo)) => {
                    self.storage(own);
                    self.fresh(Some(halo));
                }
                None => self.fresh(storage.bytes),
            }
        }
    }

    /// Returns the storage of a band's own rows within fetched rows, and the bytes of the fetched ones: stages save
    /// only these.
    fn beside_own_rows(&self, id: StorageId) -> Option<(StorageId, u64)> {
        let Origin::Made(operator) = self.graph.storage(id).origin else { return None };
        let operator = self.graph.operator(operator);
        let takes_rows = matches!(operator.short_name(), "shard_window" | "shard_spread");
        let of = |value: &ValueId| self.graph.value(*value).fact.tensor();
        let (own, all) = (of(operator.inputs.first()?)?, of(operator.outputs.first()?)?);
        let halo = all.bytes()?.checked_sub(own.bytes()?)?;
        takes_rows.then_some((own.storage?, halo))
    }

    pub(crate) fn tensor(&mut self, tensor: &TensorFact) {
        self.is_any = true;
        if let Some(storage) = tensor.storage {
            self.storage(storage);
        }
    }

    pub(super) fn all<'t>(&mut self, tensors: impl IntoIterator<Item = &'t TensorFact>) {
        tensors.into_iter().for_each(|tensor| self.tensor(tensor));
    }

    pub(crate) fn named(&mut self, call: &Call<'_>, name: &str) {
        if let Ok(tensor) = call.tensor(name) {
            self.tensor(tensor);
        }
    }

    pub(crate) fn fresh(&mut self, bytes: Option<u64>) {
        self.is_any = true;
        self.is_all &= bytes.is_some();
        self.bytes = self.bytes.saturating_add(bytes.unwrap_or(0));
    }

    /// Saves an operand of a batched product, or the copy of it that is made.
    pub(super) fn matrix(&mut self, tensor: &TensorFact, batch: &[u64]) {
        match spread_copy(tensor, batch) {
            Some(bytes) => self.fresh(bytes),
            None => self.tensor(tensor),
        }
    }

    /// Saves a fresh operand of a batched product, or the copy of it.
    pub(super) fn fresh_matrix(&mut self, tensor: &TensorFact, batch: &[u64]) {
        let bytes = spread_copy(tensor, batch);
        self.fresh(bytes.unwrap_or(tensor.bytes()));
    }

    /// Saves an operand of a folded product: all but its last dimension become one.
    pub(super) fn rows(&mut self, tensor: &TensorFact) {
        let (Some(sizes), Some(strides)) = (tensor.sizes(), tensor.strides.as_ref()) else {
            return self.tensor(tensor);
        };
        let Some((last, outer)) = sizes.split_last() else { return self.tensor(tensor) };
        let together = times(outer.iter().copied());
        self.reshaped(tensor, &sizes, strides, &Shape::from_slice(&[Some(together), Some(*last)]));
    }

    pub(super) fn reshaped(&mut self, tensor: &TensorFact, sizes: &[u64], strides: &[u64], shape: &Shape) {
        match viewed_strides(sizes, strides, shape) {
            Some(_) => self.tensor(tensor),
            None => self.fresh(copy_bytes(tensor, sizes)),
        }
    }

    /// Saves both factors, each if the other needs a gradient.
    pub(super) fn factors(&mut self, a: &TensorFact, b: &TensorFact) {
        if b.requires_grad {
            self.tensor(a);
        }
        if a.requires_grad {
            self.tensor(b);
        }
    }
}

/// Returns the bytes of the copy that a batched product makes of an operand. It is first expanded to `batch`, then its
/// leading dimensions become one; most strides allow that as a view.
fn spread_copy(tensor: &TensorFact, batch: &[u64]) -> Option<Option<u64>> {
    let (sizes, strides) = (tensor.sizes()?, tensor.strides.as_ref()?);
    let n_inner = sizes.len().min(2);
    let inner = &sizes[sizes.len() - n_inner..];
    let expanded: SmallVec<[u64; 8]> = batch.iter().chain(inner).copied().collect();
    let extra = expanded.len() - sizes.len();
    let spread: SmallVec<[u64; 8]> = (0..expanded.len())
        .map(|at| match at.checked_sub(extra) {
            Some(own) if sizes[own] == expanded[at] => strides[own],
            _ => 0,
        })
        .collect();
    let together = times(batch.iter().copied());
    let shape: Shape = std::iter::once(together).chain(inner.iter().copied()).map(Some).collect();
    match viewed_strides(&expanded, &spread, &shape) {
        Some(_) => None,
        None => Some(copy_bytes(tensor, &expanded)),
    }
}

pub(super) fn copy_bytes(tensor: &TensorFact, sizes: &[u64]) -> Option<u64> {
    tensor.dtype.map(|dtype| times(sizes.iter().copied()).saturating_mul(dtype.bytes()))
}
