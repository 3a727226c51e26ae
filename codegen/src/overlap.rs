//! Stored tensors that share elements and are not one tensor.
//!
//! A stage keeps each tensor by itself, so a step that changes one would leave the other as it was. Tensors that are never
//! trained may overlap: nothing changes them but the model, whose writes `alias` follows. O(n log n) in runs of elements.

use std::collections::BTreeMap;

use tracer::{Program, Role, Tensor};

use crate::error::CutError;

/// Runs of elements that are looked at in one storage; more are taken to overlap, since no model has them.
const MAX_RUNS: u64 = 1 << 24;

/// Returns an error for each tensor that shares elements with another of which one is trained.
pub(crate) fn overlaps(program: &Program) -> Vec<CutError> {
    let mut storages: BTreeMap<&str, Vec<&Tensor>> = BTreeMap::new();
    for tensor in program.tensors.iter().filter(|tensor| tensor.role != Role::Constant) {
        let Some(storage) = &tensor.storage else { continue };
        let others = storages.entry(&storage.record).or_default();
        // Names of one tensor are no overlap. A buffer is another tensor: no gradient reaches it.
        if others.iter().all(|other| !is_same(other, tensor)) {
            others.push(tensor);
        }
    }
    storages.retain(|_, tensors| tensors.len() > 1 && tensors.iter().any(|tensor| is_trained(tensor)));
    storages.values().filter_map(|tensors| overlap(tensors)).collect()
}

fn is_same(one: &Tensor, other: &Tensor) -> bool {
    one.place() == other.place() && one.dtype == other.dtype && is_trained(one) == is_trained(other)
}

fn is_trained(tensor: &Tensor) -> bool {
    tensor.role == Role::Parameter && tensor.requires_grad
}

/// Returns the first two tensors of a storage that share an element, of which one is trained.
fn overlap(tensors: &[&Tensor]) -> Option<CutError> {
    let error = |one: usize, other: usize| {
        let (first, second) = (tensors[one.min(other)], tensors[one.max(other)]);
        Some(CutError::Overlap { tensor: first.path.clone(), other: second.path.clone() })
    };
    let mut runs: Vec<(u64, u64, usize)> = Vec::new();
    let mut n_runs = 0_u64;
    for (index, tensor) in tensors.iter().enumerate() {
        n_runs = n_runs.saturating_add(count(tensor));
        if n_runs > MAX_RUNS {
            let trained = tensors.iter().position(|tensor| is_trained(tensor))?;
            return error(trained, if trained == index { usize::from(index == 0) } else { index });
        }
        collect(tensor, index, &mut runs);
    }
    runs.sort_unstable();
    let (mut all, mut trained) = (Furthest::default(), Furthest::default());
    for (start, end, index) in runs {
        let is_trained = is_trained(tensors[index]);
        let before = if is_trained { &all } else { &trained };
        if let Some(other) = before.reaches(start, index) {
            return error(index, other);
        }
        all.note(end, index);
        if is_trained {
            trained.note(end, index);
        }
    }
    None
}

/// The two tensors whose runs reach furthest so far.
#[derive(Default)]
struct Furthest {
    first: Option<(u64, usize)>,
    second: Option<(u64, usize)>,
}

impl Furthest {
    fn note(&mut self, end: u64, index: usize) {
        let other = [self.first, self.second].into_iter().flatten().filter(|(_, at)| *at != index).max();
        let own = [self.first, self.second, Some((end, index))].into_iter().flatten();
        let own = own.filter(|(_, at)| *at == index).max();
        (self.first, self.second) = (own.max(other), own.min(other));
    }

    /// Returns a tensor other than this one with a run beyond the start of this one's.
    fn reaches(&self, start: u64, index: usize) -> Option<usize> {
        let mut others = [self.first, self.second].into_iter().flatten();
        others.find(|(end, at)| *end > start && *at != index).map(|(_, at)| at)
    }
}

/// Returns the dimensions as (size, stride) that remain when elements that lie one behind the other are one run, and the
/// length of a run. An expanded dimension has its elements once.
fn merged(tensor: &Tensor) -> (Vec<(u64, u64)>, u64) {
    let mut dimensions: Vec<(u64, u64)> =
        tensor.strides.iter().zip(&tensor.shape).map(|(a, b)| (*a, *b)).collect();
    dimensions.retain(|(stride, size)| *stride > 0 && *size > 1);
    dimensions.sort_unstable();
    let mut run = 1_u64;
    let mut rest = Vec::new();
    for (stride, size) in dimensions {
        if stride == run && rest.is_empty() {
            run = run.saturating_mul(size);
        } else {
            rest.push((size, stride));
        }
    }
    (rest, run)
}

fn count(tensor: &Tensor) -> u64 {
    if tensor.shape.contains(&0) {
        return 0;
    }
    merged(tensor).0.iter().fold(1_u64, |runs, (size, _)| runs.saturating_mul(*size))
}

/// Adds a tensor's runs, as bytes of its storage.
fn collect(tensor: &Tensor, index: usize, runs: &mut Vec<(u64, u64, usize)>) {
    let Some(storage) = tensor.storage.as_ref().filter(|_| !tensor.shape.contains(&0)) else { return };
    let (dimensions, run) = merged(tensor);
    let item = tensor.dtype.bytes();
    let mut starts = vec![storage.offset];
    for (size, stride) in dimensions {
        let steps =
            move |start: u64| (0..size).map(move |at| start.saturating_add(at.saturating_mul(stride)));
        starts = starts.into_iter().flat_map(steps).collect();
    }
    let bytes = |element: u64| element.saturating_mul(item);
    runs.extend(starts.into_iter().map(|start| (bytes(start), bytes(start.saturating_add(run)), index)));
}

#[cfg(test)]
mod tests {
    use tracer::{DType, Storage};

    use super::*;

    /// A tensor of one storage of 64 elements.
    fn tensor(path: &str, offset: u64, shape: &[u64], strides: &[u64], role: Role) -> Tensor {
        Tensor {
            path: path.into(),
            dtype: DType::Float32,
            shape: shape.to_vec(),
            strides: strides.to_vec(),
            storage: Some(Storage {
                record: "data/0".into(),
                offset,
                elements: 64,
                position: Some(0),
                bytes: 256,
                checksum: None,
            }),
            requires_grad: role == Role::Parameter,
            role,
            device: "cpu".into(),
        }
    }

    fn check(tensors: Vec<Tensor>, expected: Option<(&str, &str)>) {
        let program = Program { tensors, ..Program::default() };
        let expected =
            expected.map(|(one, other)| CutError::Overlap { tensor: one.into(), other: other.into() });
        assert_eq!(overlaps(&program), Vec::from_iter(expected));
    }

    #[test]
    fn tensors_with_an_element_in_common_are_named_if_one_is_trained() {
        use Role::{Buffer, Parameter};
        let whole = |role| tensor("whole", 0, &[8, 8], &[8, 1], role);
        let named = |other: &'static str| Some(("whole", other));
        check(vec![whole(Parameter), tensor("rows", 16, &[2, 8], &[8, 1], Parameter)], named("rows"));
        check(vec![whole(Parameter), tensor("turned", 0, &[8, 8], &[1, 8], Parameter)], named("turned"));
        check(vec![whole(Parameter), tensor("turned", 0, &[8, 8], &[1, 8], Buffer)], named("turned"));
        check(vec![whole(Buffer), tensor("flat", 0, &[64], &[1], Parameter)], named("flat"));
        check(vec![whole(Parameter), tensor("same", 0, &[8, 8], &[8, 1], Buffer)], named("same"));
        // What nothing trains, one tensor under two names, and parts of one storage beside each other.
        check(vec![whole(Buffer), tensor("rows", 16, &[2, 8], &[8, 1], Buffer)], None);
        check(vec![whole(Parameter), tensor("same", 0, &[8, 8], &[8, 1], Parameter)], None);
        check(vec![whole(Parameter), tensor("none", 9, &[0, 8], &[8, 1], Parameter)], None);
        let columns = |path, offset, n| tensor(path, offset, &[8, n], &[8, 1], Parameter);
        check(vec![columns("left", 0, 3), columns("right", 3, 5)], None);
        check(vec![columns("left", 0, 4), columns("right", 3, 5)], Some(("left", "right")));
        let every = |path, offset| tensor(path, offset, &[32], &[2], Parameter);
        check(vec![every("even", 0), every("odd", 1)], None);
        // A buffer that reaches further does not hide the trained tensor below it.
        let row = |path, offset, n, role| tensor(path, offset, &[n], &[1], role);
        let rows =
            vec![row("trained", 0, 4, Parameter), row("end", 8, 30, Buffer), row("last", 3, 60, Buffer)];
        check(rows, Some(("trained", "last")));
        // Far more runs than a model has: refused, not enumerated.
        let many = tensor("many", 0, &[1 << 40], &[2], Parameter);
        check(vec![row("first", 0, 1, Buffer), many], Some(("first", "many")));
    }
}
