//! Images in bands: operators that read rows around a row, and those that read all rows.
//!
//! Convolutions, pools and resampling read windows of rows, some of which are in others' bands; positions outside the
//! image are filled before they run, so that they need no padding along the banded dimension. Norms that average over
//! positions do so over all bands. Operators on each position by itself have the same rule as for equal slices.

use operators::{Keeps, OperatorClass, ShapeRule, Split};

use super::{Axis, Side, each_cut, elementwise};
use crate::layout::{
    After, Bands, Edit, Resampling, Rows, Special, Stretch, Take, Value, Window, subject::Subject,
};

/// Returns the axes of an operator with a rule of its own for bands; `None` for all others.
pub fn axes(subject: &Subject<'_>, row: &operators::Operator) -> Option<Option<Vec<Axis>>> {
    Some(match (row.split, row.shape) {
        (Split::Convolution, _) => convolution(subject),
        (Split::Samples, ShapeRule::Pool | ShapeRule::PoolWithIndices) => pool(subject, row),
        (Split::Samples, ShapeRule::AdaptivePool) => adaptive_pool(subject, row),
        (
            Split::Samples,
            ShapeRule::Upsample
            | ShapeRule::UpsampleNearest
            | ShapeRule::UpsampleNearestExact
            | ShapeRule::UpsampleLinear,
        ) => resampling(subject),
        (Split::Samples, ShapeRule::Norm) => norm(subject, subject.leaves.first()?.sizes.get(1).copied()),
        (Split::Samples, _) => positions(subject),
        (Split::BatchNorm, _) => norm(subject, None),
        (Split::GroupNorm, _) => norm(subject, Some(u64::try_from(subject.call.int("num_groups")?).ok()?)),
        (Split::Whole, _) if row.keeps == Keeps::ChannelMask => positions(subject),
        (Split::Dropout, _) => dropout(subject),
        (Split::Pad, _) => pad(subject),
        (Split::Slice, _) => slice(subject),
        (Split::Recurrent | Split::Whole, _) => None,
        _ => return None,
    })
}

/// Tells whether a stored tensor may be cut by rows on each device: an image that is added, not a weight.
pub fn takes_stored(class: OperatorClass) -> bool {
    matches!(
        class,
        OperatorClass::Elementwise | OperatorClass::Copy | OperatorClass::View | OperatorClass::Reduce
    )
}

/// The dimension of an image that bands divide; samples and channels precede it.
fn along(subject: &Subject<'_>, rank: usize) -> Option<usize> {
    let dim = 2 + subject.images?.along;
    (dim < rank).then_some(dim)
}

fn banded(subject: &Subject<'_>, sizes: &[u64], dim: usize) -> Option<Bands> {
    let bands = Bands { dim, size: *sizes.get(dim)? };
    bands.fits(subject.context.degree).then_some(bands)
}

/// An item of a list with one number per dimension of an image.
fn item(subject: &Subject<'_>, name: &str, rank: usize, dim: usize) -> Option<i64> {
    subject.call.sizes(name, rank - 2)?.get(dim - 2).copied()
}

impl Axis {
    /// With another value of an item of an argument that has one number per dimension; the argument may be absent.
    fn setting(mut self, subject: &Subject<'_>, name: &str, item: Option<usize>, to: Value) -> Option<Self> {
        let argument = subject.argument(name)?;
        let about = &subject.operator.arguments[argument];
        if !about.is_given {
            return Some(self);
        }
        if let (Some(item), tracer::Operand::List(items) | tracer::Operand::Tuple(items)) =
            (item, &about.operand)
        {
            // A single number for all dimensions cannot be changed for one.
            if item >= items.len() || items.len() == 1 && subject.leaves[0].sizes.len() > 3 {
                return None;
            }
        } else if item.is_some() {
            return None;
        }
        self.edits.push(Edit::Set { argument, item, to });
        Some(self)
    }

    fn then(self, after: After) -> Self {
        Self { after: Some(after), ..self }
    }
}

/// Convolutions: windows of rows; transposed ones: rows that add to rows of results.
fn convolution(subject: &Subject<'_>) -> Option<Vec<Axis>> {
    let (input, weight) = (subject.leaf("input")?, subject.leaf("weight")?);
    let (sizes, kernel) = (&subject.leaves[input].sizes, &subject.leaves[weight].sizes);
    let (result, rank) = (subject.result()?, sizes.len());
    let dim = along(subject, rank)?;
    if rank != kernel.len() || result.len() != rank {
        return None;
    }
    let (from, to) = (banded(subject, sizes, dim)?, banded(subject, result, dim)?);
    let number = |name| item(subject, name, rank, dim);
    let stride = u64::try_from(number("stride")?).ok()?;
    let extent = u64::try_from(number("dilation")?).ok()?.checked_mul(kernel[dim] - 1)? + 1;
    // `same` and `valid` apply to all dimensions and cannot be set for one.
    let window = Window { extent, stride, padding: number("padding")? };
    let is_transposed = subject.call.is_transposed();
    let take =
        if is_transposed { Take::Spread(window) } else { Take::Window { window, fill: 0.0_f64.to_bits() } };
    let rows = Rows { from, results: to.size, take };
    let mut leaves = vec![Side::Partial; subject.leaves.len()];
    leaves[input] = if rows.are_own() { Side::Cut(dim, 1) } else { Side::Rows(rows) };
    let mut axis =
        Axis::new(leaves, Side::Cut(dim, 1)).setting(subject, "padding", Some(dim - 2), Value::Int(0))?;
    if is_transposed {
        axis = axis.setting(subject, "output_padding", Some(dim - 2), Value::Int(0))?.then(After::Crop(rows));
    }
    Some(vec![axis])
}

/// Pools with windows. Maxima ignore the fill value; means count it as torch does.
fn pool(subject: &Subject<'_>, row: &operators::Operator) -> Option<Vec<Axis>> {
    let [leaf] = subject.leaves.as_slice() else { return None };
    let (result, rank) = (subject.result()?, leaf.sizes.len());
    let dim = along(subject, rank)?;
    // Indices count positions of the whole.
    if subject.outputs.len() != 1 || result.len() != rank || !has_samples(subject, rank) {
        return None;
    }
    let (from, to) = (banded(subject, &leaf.sizes, dim)?, banded(subject, result, dim)?);
    let number = |name| item(subject, name, rank, dim);
    let kernel = u64::try_from(number("kernel_size")?).ok()?;
    let is_own = subject.call.ints("stride").is_none_or(|list| list.is_empty());
    let stride = if is_own { kernel } else { u64::try_from(number("stride")?).ok()? };
    let extent = u64::try_from(number("dilation").unwrap_or(1)).ok()?.checked_mul(kernel - 1)? + 1;
    let padding = number("padding").unwrap_or(0);
    let is_max = row.keeps == Keeps::MaxPool;
    if is_max && !subject.is_float() {
        return None;
    }
    let fill = if is_max { f64::NEG_INFINITY } else { 0.0 }.to_bits();
    let window = Window { extent, stride, padding };
    let rows = Rows { from, results: to.size, take: Take::Window { window, fill } };
    let axis = Axis::new(vec![Side::Rows(rows)], Side::Cut(dim, 1)).setting(
        subject,
        "padding",
        Some(dim - 2),
        Value::Int(0),
    )?;
    let end = (to.size - 1).checked_mul(stride)?.checked_add(extent)? as i64;
    let counts_padding = subject.call.flag("count_include_pad").unwrap_or(true);
    let beyond = end > from.size as i64 + if counts_padding { 2 * padding } else { padding };
    let counts_otherwise = beyond || padding > 0 && !counts_padding;
    let is_exact = is_max || !counts_otherwise || subject.call.has("divisor_override");
    Some(vec![if is_exact { axis } else { axis.then(After::Count { rows, counts_padding }) }])
}

/// Tells whether a pool, whose name tells its dimensions, has samples, too.
fn has_samples(subject: &Subject<'_>, rank: usize) -> bool {
    subject.row.and_then(operators::Operator::image_dimensions).is_some_and(|own| own + 2 == rank)
}

/// Pools to a size: a mean of all rows is a sum of weighted means; windows if rows divide evenly.
fn adaptive_pool(subject: &Subject<'_>, row: &operators::Operator) -> Option<Vec<Axis>> {
    let [leaf] = subject.leaves.as_slice() else { return None };
    let (result, rank) = (subject.result()?, leaf.sizes.len());
    let dim = along(subject, rank)?;
    if subject.outputs.len() != 1 || result.len() != rank || !has_samples(subject, rank) {
        return None;
    }
    let from = banded(subject, &leaf.sizes, dim)?;
    let results = result[dim];
    if results == 1 {
        let is_mean = row.keeps != Keeps::MaxPool && subject.is_float();
        let axis = Axis::new(vec![Side::Cut(dim, 1)], Side::Sum).then(After::Weigh(from.size));
        return is_mean.then(|| vec![axis]);
    }
    if !from.size.is_multiple_of(results) || results < subject.context.degree {
        return None;
    }
    let each = from.size / results;
    let window = Window { extent: each, stride: each, padding: 0 };
    let rows = Rows { from, results, take: Take::Window { window, fill: 0.0_f64.to_bits() } };
    let input = if each == 1 { Side::Cut(dim, 1) } else { Side::Rows(rows) };
    let axis = Axis::new(vec![input], Side::Cut(dim, 1));
    Some(vec![divided(subject, axis, "output_size", dim, rank)?])
}

/// With the size of the results on one device.
fn divided(subject: &Subject<'_>, axis: Axis, name: &str, dim: usize, rank: usize) -> Option<Axis> {
    let argument = subject.argument(name)?;
    match &subject.operator.arguments[argument].operand {
        tracer::Operand::List(items) | tracer::Operand::Tuple(items) if items.len() == rank - 2 => {
            Some(axis.dividing(Some(argument), Some(dim - 2)))
        }
        _ => None,
    }
}

/// Resampling: rows are resampled in the exchange, the operator resamples the other dimensions.
fn resampling(subject: &Subject<'_>) -> Option<Vec<Axis>> {
    let [leaf] = subject.leaves.as_slice() else { return None };
    let (result, rank) = (subject.result()?, leaf.sizes.len());
    let dim = along(subject, rank)?;
    if result.len() != rank {
        return None;
    }
    let by = match subject.call.shape_rule() {
        ShapeRule::UpsampleNearestExact => Resampling::NearestExact,
        ShapeRule::UpsampleNearest => Resampling::Nearest,
        ShapeRule::UpsampleLinear => Resampling::Linear,
        _ => return None,
    };
    let to = banded(subject, result, dim)?;
    let given = subject.argument("output_size").map(|at| &subject.operator.arguments[at].operand);
    let by_size = matches!(given, Some(tracer::Operand::List(_) | tracer::Operand::Tuple(_)));
    let of_dim = match rank - dim {
        1 if rank == 3 => "scales",
        1 => "scales_w",
        2 => "scales_h",
        _ => "scales_d",
    };
    let list = subject.call.get("scale_factors").filter(|fact| matches!(fact, crate::fact::Fact::List(_)));
    let scale = match list {
        Some(crate::fact::Fact::List(items)) => match items.get(dim - 2)? {
            crate::fact::Fact::Float(scale) => Some((*scale)?),
            _ => return None,
        },
        _ if subject.call.has(of_dim) => Some(subject.call.float(of_dim)?),
        _ => None,
    };
    let with_sizes = |mut axis: Axis| {
        if by_size {
            axis = divided(subject, axis, "output_size", dim, rank)?;
        }
        match (list, scale) {
            (Some(_), _) => axis.setting(subject, "scale_factors", Some(dim - 2), Value::One),
            (None, Some(_)) => axis.setting(subject, of_dim, None, Value::Nothing),
            (None, None) => Some(axis),
        }
    };
    if leaf.sizes[dim] == 1 {
        // A single row broadcasts to every row.
        let axis = Axis::new(vec![Side::Partial], Side::Cut(dim, 1));
        return Some(vec![with_sizes(axis).filter(|_| by_size)?]);
    }
    let from = banded(subject, &leaf.sizes, dim)?;
    let align_corners = subject.call.flag("align_corners").unwrap_or(false);
    let take = Take::Stretch(Stretch { by, align_corners, scale: scale.map(f64::to_bits) });
    let rows = Rows { from, results: to.size, take };
    Some(vec![with_sizes(Axis::new(vec![Side::Rows(rows)], Side::Cut(dim, 1)))?])
}

/// Operators that treat all positions of an image equally: any dimension after samples and channels.
fn positions(subject: &Subject<'_>) -> Option<Vec<Axis>> {
    let [leaf] = subject.leaves.as_slice() else { return None };
    let result = subject.result()?;
    if result.len() != leaf.sizes.len() {
        return None;
    }
    Some(each_cut(subject, &leaf.sizes, |dim, _| {
        (dim > 1).then_some(Axis::new(vec![Side::Cut(dim, 1)], Side::Cut(dim, 1)))
    }))
}

/// Norms of channels: averages are over all bands.
fn norm(subject: &Subject<'_>, groups: Option<u64>) -> Option<Vec<Axis>> {
    let input = subject.leaf("input")?;
    let sizes = &subject.leaves[input].sizes;
    if !subject.is_float() || groups.is_some() && subject.leaf("running_mean").is_some() {
        return None;
    }
    Some(each_cut(subject, sizes, |dim, _| {
        let side = |at: usize| {
            let is_statistic =
                subject.operator.arguments[subject.leaves[at].argument].name.starts_with("running_");
            match at {
                _ if at == input => Side::Cut(dim, 1),
                _ if is_statistic => Side::Whole,
                _ => Side::Partial,
            }
        };
        let leaves = (0..subject.leaves.len()).map(side).collect();
        let special = Special::Norm { bands: Bands { dim, size: sizes[dim] }, groups };
        (dim > 1).then_some(Axis { special: Some(special), ..Axis::new(leaves, Side::Cut(dim, 1)) })
    }))
}

/// `dropout`: rows of one mask.
fn dropout(subject: &Subject<'_>) -> Option<Vec<Axis>> {
    let result = subject.result()?;
    let mut all = elementwise::any(subject).filter(|_| subject.may_write_elsewhere())?;
    for axis in &mut all {
        if let Side::Cut(dim, _) = axis.gives {
            axis.special = Some(Special::DropoutOfBands(Bands { dim, size: result[dim] }));
        }
    }
    Some(all)
}

/// `pad` with a number: windows of one row, which begin before the image.
fn pad(subject: &Subject<'_>) -> Option<Vec<Axis>> {
    let [leaf] = subject.leaves.as_slice() else { return None };
    let result = subject.result()?;
    let is_number = match subject.call.get("mode") {
        Some(crate::fact::Fact::Str(mode)) => mode == "constant",
        _ => subject.argument("value").is_some(),
    };
    let name = if subject.argument("pad").is_some() { "pad" } else { "padding" };
    let numbers: Vec<i64> = subject.call.ints(name)?.into_iter().collect::<Option<_>>()?;
    let fill = subject.call.float("value").unwrap_or(0.0);
    let rank = leaf.sizes.len();
    if result.len() != rank {
        return None;
    }
    let mut all = Vec::new();
    for dim in 1..rank {
        let at = 2 * (rank - 1 - dim);
        let (before, behind) =
            (numbers.get(at).copied().unwrap_or(0), numbers.get(at + 1).copied().unwrap_or(0));
        let Some(from) = banded(subject, &leaf.sizes, dim) else { continue };
        if (before, behind) == (0, 0) {
            all.push(Axis::new(vec![Side::Cut(dim, 1)], Side::Cut(dim, 1)));
            continue;
        }
        if !is_number || banded(subject, result, dim).is_none() {
            continue;
        }
        let window = Window { extent: 1, stride: 1, padding: before };
        let rows = Rows { from, results: result[dim], take: Take::Window { window, fill: fill.to_bits() } };
        let axis = Axis::new(vec![Side::Rows(rows)], Side::Cut(dim, 1));
        let axis = axis.setting(subject, name, Some(at), Value::Int(0));
        all.extend(axis.and_then(|axis| axis.setting(subject, name, Some(at + 1), Value::Int(0))));
    }
    Some(all)
}

/// `slice`: other dimensions, and a window of one row.
fn slice(subject: &Subject<'_>) -> Option<Vec<Axis>> {
    let mut all: Vec<Axis> = super::views::slice(subject)?;
    let [leaf] = subject.leaves.as_slice() else { return None };
    let (result, rank) = (subject.result()?, leaf.sizes.len());
    let dim = subject.dim("dim", rank)?;
    let window = || {
        let from = banded(subject, &leaf.sizes, dim)?;
        banded(subject, result, dim)?;
        let size = from.size as i64;
        let start = if subject.call.has("start") { subject.call.int("start")? } else { 0 };
        let start = if start < 0 { (start + size).max(0) } else { start };
        let stride = u64::try_from(subject.call.int("step")?).ok()?;
        let window = Window { extent: 1, stride, padding: -start };
        let rows =
            Rows { from, results: result[dim], take: Take::Window { window, fill: 0.0_f64.to_bits() } };
        let axis = Axis::new(vec![Side::Rows(rows)], Side::Cut(dim, 1));
        let axis = axis.setting(subject, "start", None, Value::Int(0))?;
        let axis = axis.setting(subject, "end", None, Value::Int(i64::MAX))?;
        (dim > 0 && subject.argument("end").is_some()).then_some(axis)
    };
    let is_all = leaf.sizes == result && subject.call.int("step") == Some(1);
    if !is_all {
        all.extend(window());
    }
    Some(all)
}
