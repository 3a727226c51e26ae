//! The ways to cut an operator: one rule for each [`operators::Split`].
//!
//! A rule lists axes. An axis says which dimensions of the operands and the results are cut together, or that results
//! are terms of a sum; an operand without such a dimension is whole, and each device does a part with it. Rules are
//! arithmetic over the real numbers; `tests/oracle/layouts.py` tries each against torch.

mod bands;
mod elementwise;
mod first;
mod norms;
mod products;
mod views;

use operators::Split;
use tracer::ValueId;

use super::{
    Bands, Layout, Leaf, Routed, Rows, Slice, Source, Taken,
    strategy::{After, Edit, Need, Special, Strategy},
    subject::Subject,
};

/// The layout of an operand, or of the results, along one axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// Cut along a dimension, in blocks; in bands if images are.
    Cut(usize, u64),
    /// Whole, and each device does a part with it.
    Partial,
    /// Whole, and all devices do the same with it.
    Whole,
    /// A term of a sum.
    Sum,
    /// Rows of the device's own band, and a halo.
    Rows(Rows),
    /// Any layout.
    Any,
}

/// Dimensions that are cut together.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Axis {
    pub leaves: Vec<Side>,
    pub gives: Side,
    pub edits: Vec<Edit>,
    pub after: Option<After>,
    pub special: Option<Special>,
    /// False if each device does all of the work, on a term.
    pub is_split: bool,
}

impl Axis {
    pub fn new(leaves: Vec<Side>, gives: Side) -> Self {
        Self { leaves, gives, edits: Vec::new(), after: None, special: None, is_split: true }
    }

    /// With a number of an argument that must be the size of a part.
    pub fn dividing(mut self, argument: Option<usize>, item: Option<usize>) -> Self {
        self.edits.extend(argument.map(|argument| Edit::Divide { argument, item }));
        self
    }

    /// On terms, each of which is as large as the whole.
    pub fn on_terms(self) -> Self {
        Self { is_split: false, ..self }
    }
}

/// Returns all strategies of an operator; in the first, each device does all of the work.
pub(crate) fn strategies(subject: &Subject<'_>) -> Vec<Strategy> {
    let whole = Strategy { needs: vec![Need::Whole; subject.leaves.len()], ..Strategy::default() };
    let mut all = vec![whole];
    let is_routing = subject.operator.outputs.iter().any(|value| subject.context.is_routing(*value));
    if subject.row.is_none() || subject.leaves.is_empty() || is_routing {
        return all;
    }
    by_axis(subject, &mut all);
    for images in &subject.context.also {
        by_axis(&subject.context.subject_of(subject.operator, Some(images)), &mut all);
    }
    if subject.context.on_first {
        all.extend(first::strategies(subject, axes(subject)));
    }
    for (routed, rows) in subject.routed() {
        for strategy in by_expert(subject, routed, rows) {
            if !all.contains(&strategy) {
                all.push(strategy);
            }
        }
    }
    all.extend(to_experts(subject));
    all.extend(from_experts(subject));
    all
}

/// Returns the value with the positions by which an operator takes rows for experts.
pub(crate) fn positions_of(subject: &Subject<'_>) -> Option<ValueId> {
    let (_, rows) = subject.makes_routed()?;
    let (_, positions) = rows_at(subject)?;
    (subject.result()?.first() == Some(&rows)).then_some(positions)
}

/// Returns the rows, and the positions, by which an `index` takes rows.
fn rows_at(subject: &Subject<'_>) -> Option<(u64, ValueId)> {
    subject.row.filter(|row| row.split == Split::Index)?;
    views::rows_at(subject)
}

/// Returns the ways to cut rows, in any of the numbers of blocks.
fn slices(subject: &Subject<'_>, sizes: &[u64]) -> Vec<Slice> {
    let context = subject.context;
    let all = context.blocks.iter().map(|blocks| Slice { dim: 0, blocks: *blocks });
    all.filter(|slice| subject.images.is_none() && slice.fits(sizes, context.degree)).collect()
}

/// An `index` of rows for experts: each device takes those that are its own, and sends them on.
fn to_experts(subject: &Subject<'_>) -> Vec<Strategy> {
    let Some(positions) = positions_of(subject).filter(|value| subject.context.is_routing(*value)) else {
        return Vec::new();
    };
    let sizes = &subject.leaves[0].sizes;
    let made = |slice: Slice| {
        let taken = Taken { positions, rows: sizes[0], blocks: slice.blocks };
        Strategy {
            needs: vec![Need::In(Layout::Even(slice)), Need::Whole],
            gives: Layout::Taken(taken),
            special: Some(Special::Take(taken)),
            is_split: true,
            ..Strategy::default()
        }
    };
    slices(subject, sizes).into_iter().map(made).collect()
}

/// An `index` of rows of experts: each device gets those at its own positions.
fn from_experts(subject: &Subject<'_>) -> Vec<Strategy> {
    let made = || {
        let (routed, rows) = subject.takes_routed()?;
        let (own, _) = rows_at(subject)?;
        let made = |slice: Slice| Strategy {
            needs: vec![Need::In(Layout::Routed(routed)), Need::Whole],
            gives: Layout::Even(slice),
            special: Some(Special::Combine(routed, slice)),
            is_split: true,
            ..Strategy::default()
        };
        let result = subject.result()?;
        (own == rows).then(|| slices(subject, result).into_iter().map(made).collect())
    };
    made().unwrap_or_default()
}

/// Adds the strategies along axes.
fn by_axis(subject: &Subject<'_>, all: &mut Vec<Strategy>) {
    for axis in axes(subject) {
        if subject.images.is_some() && !is_of_rows(subject, &axis) {
            continue;
        }
        if let Some(strategy) = strategy(subject, axis)
            && !all.contains(&strategy)
        {
            all.push(strategy);
        }
    }
}

/// Returns the strategies on the rows of the device's own experts: those of grouped products, and of operators that cut
/// rows evenly and compute each independently, so that the number of rows on a device does not matter.
fn by_expert(subject: &Subject<'_>, routed: Routed, rows: u64) -> Vec<Strategy> {
    let layout = Layout::Routed(routed);
    if routed_by(subject) == Some((routed, rows)) {
        return products::by_expert(subject, layout).into_iter().collect();
    }
    let is_row = |side: &Side, sizes: Option<&Vec<u64>>| match side {
        Side::Cut(0, 1) => sizes.and_then(|sizes| sizes.first()) == Some(&rows),
        Side::Whole | Side::Partial | Side::Any => true,
        Side::Cut(..) | Side::Sum | Side::Rows(_) => false,
    };
    let is_of_rows = |axis: &Axis| {
        let mut leaves = axis.leaves.iter().zip(&subject.leaves);
        axis.gives == Side::Cut(0, 1)
            && axis.leaves.len() == subject.leaves.len()
            && axis.leaves.contains(&Side::Cut(0, 1))
            && leaves.all(|(side, leaf)| {
                let is_stored = matches!(leaf.source, Source::Tensor(_));
                is_row(side, Some(&leaf.sizes)) && !(is_stored && matches!(side, Side::Cut(..)))
            })
            && subject.outputs.iter().all(|sizes| is_row(&axis.gives, sizes.as_ref()))
            && axis.edits.is_empty()
            && axis.after.is_none()
            && axis.special.is_none()
    };
    let need = |side: &Side| match side {
        Side::Cut(..) => Need::In(layout),
        Side::Partial => Need::Partial,
        Side::Any => Need::Any,
        _ => Need::Whole,
    };
    let made = |axis: Axis| Strategy {
        needs: axis.leaves.iter().map(need).collect(),
        gives: layout,
        is_split: axis.is_split,
        ..Strategy::default()
    };
    axes(subject).into_iter().filter(is_of_rows).map(made).collect()
}

/// Tells whether an operator multiplies each run of rows with its own matrix.
pub(crate) fn is_grouped(subject: &Subject<'_>) -> bool {
    subject.row.is_some_and(|row| row.split == Split::GroupedProduct)
}

/// Returns how a grouped product routes rows to experts, and the number of rows, if both can be divided evenly.
pub(crate) fn routed_by(subject: &Subject<'_>) -> Option<(Routed, u64)> {
    if is_grouped(subject) { products::routed(subject) } else { None }
}

/// Returns the numbers of experts and of rows of a grouped product.
pub(crate) fn grouped_sizes(subject: &Subject<'_>) -> Option<(u64, u64)> {
    if is_grouped(subject) { products::grouped_sizes(subject) } else { None }
}

/// Returns the source of a grouped product's matrices.
pub(crate) fn matrices_of(subject: &Subject<'_>) -> Option<Source> {
    let is_routed = routed_by(subject).is_some();
    is_routed.then(|| subject.leaf("mat2").map(|at| subject.leaves[at].source)).flatten()
}

/// Returns the values that are rows of experts because other values of the operator are.
pub(crate) fn routed_of(subject: &Subject<'_>, routed: Routed, rows: u64) -> Vec<ValueId> {
    let mut found = Vec::new();
    if subject.row.is_none() || subject.leaves.is_empty() {
        return found;
    }
    for strategy in by_expert(subject, routed, rows) {
        found.extend(subject.operator.outputs.iter().copied());
        for (leaf, need) in subject.leaves.iter().zip(&strategy.needs) {
            if let (Source::Value(id), Need::In(Layout::Routed(_))) = (leaf.source, need) {
                found.push(id);
            }
        }
    }
    found
}

/// Tells whether an axis cuts rows of an image.
fn is_of_rows(subject: &Subject<'_>, axis: &Axis) -> bool {
    cut_by(subject, axis)
        .into_iter()
        .any(|(value, dim)| subject.images.is_some_and(|images| images.has_rows(value, dim)))
}

/// Returns the dimensions of operands and of results that an axis cuts.
fn cut_by(subject: &Subject<'_>, axis: &Axis) -> Vec<(ValueId, usize)> {
    let dim = |side: &Side| match *side {
        Side::Cut(dim, _) => Some(dim),
        Side::Rows(rows) => Some(rows.from.dim),
        _ => None,
    };
    let leaf = |(leaf, side): (&Leaf, &Side)| match leaf.source {
        Source::Value(id) => Some((id, dim(side)?)),
        Source::Tensor(_) => None,
    };
    let result = |id: &ValueId| Some((*id, dim(&axis.gives)?));
    let leaves = subject.leaves.iter().zip(&axis.leaves).filter_map(leaf);
    leaves.chain(subject.operator.outputs.iter().filter_map(result)).collect()
}

/// Returns dimensions that hold rows because they do in another operand, or in a result.
pub(crate) fn rows_of(subject: &Subject<'_>) -> Vec<(ValueId, usize)> {
    if subject.row.is_none() || subject.leaves.is_empty() {
        return Vec::new();
    }
    let found = axes(subject).into_iter().filter(|axis| is_of_rows(subject, axis));
    found.flat_map(|axis| cut_by(subject, &axis)).collect()
}

/// Returns numbers of blocks into which an operator splits a dimension.
pub(crate) fn blocks_of(subject: &Subject<'_>) -> Vec<u64> {
    match subject.row.map(|row| row.split) {
        Some(Split::Parts) => views::parts(subject).map(|(_, parts)| vec![parts]).unwrap_or_default(),
        Some(Split::Reshape) => views::packed(subject),
        _ => Vec::new(),
    }
}

fn axes(subject: &Subject<'_>) -> Vec<Axis> {
    let Some(row) = subject.row else { return Vec::new() };
    if subject.images.is_some()
        && let Some(found) = bands::axes(subject, row)
    {
        return found.unwrap_or_default();
    }
    let found = match row.split {
        Split::Whole => None,
        Split::Elementwise => elementwise::any(subject),
        Split::Additive => elementwise::additive(subject),
        Split::Scaling => elementwise::scaling(subject),
        Split::Through => elementwise::through(subject),
        Split::Dropout => elementwise::dropout(subject),
        Split::OtherDims => elementwise::other_dims(subject),
        Split::LeadingDims => elementwise::leading(subject, 2),
        Split::Reduce | Split::Sum | Split::Mean => elementwise::reduce(subject),
        Split::LayerNorm => norms::layer(subject),
        Split::BatchNorm => norms::batch(subject),
        Split::GroupNorm => norms::group(subject),
        Split::Samples => norms::samples(subject),
        Split::Recurrent => norms::recurrent(subject),
        Split::Linear => products::linear(subject),
        Split::Matmul => products::matmul(subject, 0),
        Split::AddedProduct => products::added(subject),
        Split::GroupedProduct => products::grouped(subject),
        Split::Attention => products::attention(subject),
        Split::Embedding => products::embedding(subject),
        Split::CrossEntropy => norms::cross_entropy(subject),
        Split::Convolution => products::convolution(subject),
        Split::Reshape => views::reshape(subject),
        Split::Permute => views::permute(subject),
        Split::Expand => views::expand(subject),
        Split::Squeeze => views::squeeze(subject),
        Split::Slice => views::slice(subject),
        Split::Select => views::select(subject),
        Split::Parts => views::taken_apart(subject),
        Split::Cat => views::cat(subject),
        Split::Stack => views::stack(subject),
        Split::Items => views::items(subject),
        Split::Size => views::size(subject),
        Split::Question => Some(vec![Axis::new(vec![Side::Any; subject.leaves.len()], Side::Whole)]),
        Split::Repeat => views::repeat(subject),
        Split::Index => views::index(subject),
        Split::Interleave => views::interleave(subject),
        Split::Pad => views::pad(subject),
        Split::Exchanged => elementwise::exchanged(subject),
    };
    found.unwrap_or_default()
}

/// Makes a strategy of an axis, if everything that is cut can be cut.
fn strategy(subject: &Subject<'_>, axis: Axis) -> Option<Strategy> {
    let degree = subject.context.degree;
    let in_bands = subject.images.is_some();
    let is_uneven = |value: &ValueId| subject.context.uneven.contains(value);
    let cuts_uneven = subject.leaves.iter().zip(&axis.leaves).any(|(leaf, side)| {
        matches!((leaf.source, side), (Source::Value(value), Side::Cut(0, _)) if is_uneven(&value))
    });
    if cuts_uneven || matches!(axis.gives, Side::Cut(0, _)) && subject.operator.outputs.iter().any(is_uneven)
    {
        return None;
    }
    let cut = |sizes: &[u64], dim: usize, blocks: u64| {
        if !in_bands {
            let slice = Slice { dim, blocks };
            return slice.fits(sizes, degree).then_some(Layout::Even(slice));
        }
        let bands = Bands { dim, size: *sizes.get(dim)? };
        (blocks == 1 && bands.fits(degree)).then_some(Layout::Bands(bands))
    };
    // If the number of rows changes, rows stay on the same device only if both numbers divide evenly.
    let mut sizes_in_bands = Vec::new();
    let mut needs = Vec::with_capacity(axis.leaves.len());
    for (leaf, side) in subject.leaves.iter().zip(&axis.leaves) {
        needs.push(match *side {
            Side::Cut(dim, blocks) => {
                let is_weight = matches!(leaf.source, Source::Tensor(id)
                    if subject.context.graph.tensor(id).role != tracer::Role::Constant);
                if in_bands && is_weight && !bands::takes_stored(subject.row?.class) {
                    return None;
                }
                sizes_in_bands.push(*leaf.sizes.get(dim)?);
                Need::In(cut(&leaf.sizes, dim, blocks)?)
            }
            Side::Rows(rows) => Need::Rows(rows),
            Side::Partial => Need::Partial,
            Side::Whole => Need::Whole,
            Side::Sum => Need::In(Layout::Sum),
            Side::Any => Need::Any,
        });
    }
    if needs.len() != subject.leaves.len() {
        return None;
    }
    let gives = match axis.gives {
        Side::Cut(dim, blocks) => {
            let of = |sizes: &Option<Vec<u64>>| cut(sizes.as_ref()?, dim, blocks);
            let first = of(subject.outputs.first()?)?;
            if !subject.outputs.iter().all(|sizes| of(sizes) == Some(first)) {
                return None;
            }
            if let Layout::Bands(bands) = first {
                sizes_in_bands.push(bands.size);
            }
            first
        }
        Side::Sum if !subject.is_float() => return None,
        Side::Sum => Layout::Sum,
        _ => Layout::Whole,
    };
    let is_same = sizes_in_bands.windows(2).all(|pair| pair[0] == pair[1]);
    let takes_rows = axis.leaves.iter().any(|side| matches!(side, Side::Rows(_)));
    if in_bands && !is_same && !takes_rows && !sizes_in_bands.iter().all(|size| size.is_multiple_of(degree)) {
        return None;
    }
    // An absent argument cannot be changed.
    let is_said = |edit: &Edit| match edit {
        Edit::Divide { argument, .. } => subject.operator.arguments[*argument].is_given,
        Edit::Set { .. } | Edit::Multiply => true,
    };
    if !axis.edits.iter().all(is_said) {
        return None;
    }
    Some(Strategy {
        needs,
        gives,
        edits: axis.edits,
        after: axis.after,
        special: axis.special,
        is_split: axis.is_split,
    })
}

/// Calls `f` with each dimension and number of blocks that can be cut, and collects the results.
pub(crate) fn each_cut(
    subject: &Subject<'_>,
    sizes: &[u64],
    mut axis: impl FnMut(usize, u64) -> Option<Axis>,
) -> Vec<Axis> {
    let mut all = Vec::new();
    if subject.images.is_some() {
        let is_cut = |dim: &usize| sizes[*dim] >= subject.context.degree;
        return (1..sizes.len()).filter(is_cut).filter_map(|dim| axis(dim, 1)).collect();
    }
    for dim in 0..sizes.len() {
        for &blocks in &subject.context.blocks {
            if (Slice { dim, blocks }).fits(sizes, subject.context.degree) {
                all.extend(axis(dim, blocks));
            }
        }
    }
    all
}
