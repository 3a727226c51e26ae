//! Norms, pools, resampling, recurrent layers, losses: operators on samples, channels or positions one by one.

use super::{Axis, Side, each_cut};
use crate::layout::{
    strategy::{After, Edit, Special, Value},
    subject::Subject,
};

/// `layer_norm`, `rms_norm`: all dimensions before the normalised ones.
pub fn layer(subject: &Subject<'_>) -> Option<Vec<Axis>> {
    let input = subject.leaf("input")?;
    let sizes = subject.leaves[input].sizes.clone();
    let normalised = subject.call.ints("normalized_shape")?.len();
    Some(each_cut(subject, &sizes, |dim, blocks| {
        let mut leaves = vec![Side::Partial; subject.leaves.len()];
        leaves[input] = Side::Cut(dim, blocks);
        (dim + normalised < sizes.len()).then_some(Axis::new(leaves, Side::Cut(dim, blocks)))
    }))
}

/// The side of each operand if a dimension of `input` is cut: operands per channel have one dimension.
fn along_channels(subject: &Subject<'_>, input: usize, dim: usize, blocks: u64) -> Axis {
    let side = |at: usize| match dim {
        _ if at == input => Side::Cut(dim, blocks),
        1 => Side::Cut(0, blocks),
        _ => Side::Partial,
    };
    Axis::new((0..subject.leaves.len()).map(side).collect(), Side::Cut(dim, blocks))
}

/// `batch_norm`: channels with all per-channel operands; with given statistics, any dimension.
pub fn batch(subject: &Subject<'_>) -> Option<Vec<Axis>> {
    let input = subject.leaf("input")?;
    let sizes = subject.leaves[input].sizes.clone();
    let trains = subject.call.flag("training")?;
    let has_statistics = subject.leaf("running_mean").is_some();
    Some(each_cut(subject, &sizes, |dim, blocks| {
        (dim == 1 || !trains && has_statistics).then(|| along_channels(subject, input, dim, blocks))
    }))
}

/// `group_norm`: samples, and groups of channels.
pub fn group(subject: &Subject<'_>) -> Option<Vec<Axis>> {
    let input = subject.leaf("input")?;
    let sizes = subject.leaves[input].sizes.clone();
    let groups = u64::try_from(subject.call.int("num_groups")?).ok()?;
    Some(each_cut(subject, &sizes, |dim, blocks| {
        let axis = along_channels(subject, input, dim, blocks);
        match dim {
            0 => Some(axis),
            1 if blocks == 1 && groups.is_multiple_of(subject.context.degree) => {
                Some(axis.dividing(subject.argument("num_groups"), None))
            }
            _ => None,
        }
    }))
}

/// Pools, resampling and similar operators: samples; channels if each is independent.
pub fn samples(subject: &Subject<'_>) -> Option<Vec<Axis>> {
    let [leaf] = subject.leaves.as_slice() else { return None };
    let result = subject.result()?;
    let spatial = match subject.row.and_then(operators::Operator::image_dimensions) {
        Some(dimensions) => dimensions,
        None => leaf.sizes.len().checked_sub(2)?,
    };
    let has_channels = subject.row.is_some_and(|row| row.class == operators::OperatorClass::Pool);
    let leading = leaf.sizes.len().checked_sub(spatial)?;
    if leading != 2 || result.len() != leaf.sizes.len() {
        return None;
    }
    Some(each_cut(subject, &leaf.sizes, |dim, blocks| {
        (dim == 0 || dim == 1 && has_channels)
            .then_some(Axis::new(vec![Side::Cut(dim, blocks)], Side::Cut(dim, blocks)))
    }))
}

/// `cross_entropy` of classes by index: classes, rows. Of parts of the classes the largest score, the sum and the target's
/// own are exchanged, so the loss is whole on each device, and each has its part of the gradient. The loss of some rows is a
/// term of the sum; targets of all devices are counted for the mean.
pub fn cross_entropy(subject: &Subject<'_>) -> Option<Vec<Axis>> {
    let (scores, target) = (subject.leaf("self")?, subject.leaf("target")?);
    let (sizes, of_target) = (&subject.leaves[scores].sizes, &subject.leaves[target].sizes);
    // Weights of classes, and targets as probabilities, are rare.
    let is_plain = subject.leaves.len() == 2 && of_target.len() + 1 == sizes.len();
    if !is_plain || subject.call.float("label_smoothing").is_some_and(|share| share != 0.0) {
        return None;
    }
    let mut leaves = vec![Side::Whole; 2];
    leaves[scores] = Side::Cut(usize::from(sizes.len() > 1), 1);
    let mut all = vec![Axis { special: Some(Special::CrossEntropy), ..Axis::new(leaves, Side::Whole) }];
    let (reduction, targets) = (subject.argument("reduction")?, subject.argument("target")?);
    let (is_mean, is_sum) =
        (subject.call.int("reduction") == Some(1), subject.call.int("reduction") == Some(2));
    let can_change = [reduction, targets].iter().all(|at| subject.operator.arguments[*at].is_given);
    // A sum of many losses is beyond the range of 16 bits.
    let is_short = subject.has_dtype(subject.leaves[scores].source, tracer::DType::Float16);
    // What takes a number without a gradient takes it whole.
    let is_trained = subject.operator.outputs.iter().all(|value| subject.context.is_trained_number(*value));
    let is_possible = is_trained && (is_mean && can_change && !is_short || is_sum);
    let Some(ignored) = subject.call.int("ignore_index").filter(|_| is_possible) else { return Some(all) };
    let sizes = sizes.clone();
    all.extend(each_cut(subject, &sizes, |dim, blocks| {
        let of_target = if dim == 0 { 0 } else { dim - 1 };
        let mut leaves = vec![Side::Cut(dim, blocks); 2];
        leaves[target] = Side::Cut(of_target, blocks);
        let mut axis = Axis::new(leaves, Side::Sum);
        if is_mean {
            axis.edits.push(Edit::Set { argument: reduction, item: None, to: Value::Int(2) });
            axis.after = Some(After::PerTarget { argument: targets, ignored });
        }
        (dim != 1 && sizes.len() > 1).then_some(axis)
    }));
    Some(all)
}

/// `lstm` and similar: samples. In states they come after layers.
pub fn recurrent(subject: &Subject<'_>) -> Option<Vec<Axis>> {
    let input = subject.leaf("input")?;
    if subject.leaves[input].sizes.len() != 3 || subject.outputs.len() < 2 || subject.leaf("data").is_some() {
        return None;
    }
    let is_drawing = subject.call.float("dropout")? != 0.0 && subject.call.flag("train") != Some(false);
    let is_first = subject.call.flag("batch_first")?;
    // Output and states have their samples in different dimensions: one layout for all results cannot express that.
    if is_drawing || is_first {
        return None;
    }
    let state = subject.argument("hx")?;
    let side = |(at, leaf): (usize, &crate::layout::Leaf)| match leaf.argument {
        _ if at == input => Side::Cut(1, 1),
        argument if argument == state => Side::Cut(1, 1),
        _ => Side::Partial,
    };
    Some(vec![Axis::new(subject.leaves.iter().enumerate().map(side).collect(), Side::Cut(1, 1))])
}
