//! Norms: the input's sizes; the native forms also return statistics.

use operators::ShapeRule;

use super::{
    call::{Call, Known, Result, fresh, reject, shape},
    convolution::laid_out,
    rules::rules,
};
use crate::fact::{Fact, Shape, TensorFact, show_shape};

rules! {
    same_sizes: SameSizes,
    norm: Norm | ChannelNorm,
}

/// `layer_norm`, `rms_norm`, `group_norm`, `instance_norm`, `batch_norm` and their native forms.
pub fn norm(call: &Call<'_>) -> Result {
    let input = call.first()?;
    let sizes = shape(input)?;
    check(call, input)?;
    let keeps_layout = call.shape_rule() == ShapeRule::ChannelNorm;
    let strides = laid_out(sizes, keeps_layout && input.is_channels_last());
    let result = TensorFact { strides, ..fresh(input.dtype, sizes.clone()) };
    if call.n_outputs < 2 {
        return Ok(Fact::Tensor(result));
    }
    let statistics: Shape = if let Some(inner) = call.ints("normalized_shape") {
        let outer = sizes.len().saturating_sub(inner.len());
        sizes.iter().enumerate().map(|(at, size)| if at < outer { *size } else { Some(1) }).collect()
    } else if call.has("group") {
        let groups = call.int("group").and_then(|groups| u64::try_from(groups).ok());
        Shape::from_slice(&[*sizes.first().known()?, groups])
    } else if !call.has("training") || call.flag("training") == Some(false) {
        Shape::from_slice(&[Some(0)])
    } else {
        Shape::from_slice(&[*sizes.get(1).known()?])
    };
    let statistics = Fact::Tensor(fresh(input.dtype, statistics));
    Ok(Fact::List(vec![Fact::Tensor(result), statistics.clone(), statistics]))
}

fn check(call: &Call<'_>, input: &TensorFact) -> Result<()> {
    let sizes = shape(input)?;
    if let Some(wanted) = call.ints("normalized_shape") {
        let start = sizes.len().checked_sub(wanted.len());
        let fits = start.is_some_and(|start| {
            sizes[start..].iter().zip(&wanted).all(|(size, want)| match (size, want) {
                (Some(size), Some(want)) => i64::try_from(*size) == Ok(*want),
                _ => true,
            })
        });
        if !fits {
            reject!("the last sizes of {} are not {wanted:?}", show_shape(sizes));
        }
        return Ok(());
    }
    let channels = ["weight", "running_mean"].iter().find_map(|name| call.tensor(name).ok()?.elements());
    if let (Some(channels), Some(Some(own))) = (channels, sizes.get(1))
        && channels != *own
    {
        reject!("{} has {own} channels, the parameters have {channels}", show_shape(sizes));
    }
    Ok(())
}

/// `local_response_norm`, `normalize`, `renorm` and other operators that keep sizes, with a contiguous result.
pub fn same_sizes(call: &Call<'_>) -> Result {
    let input = call.first()?;
    Ok(Fact::Tensor(fresh(input.dtype, shape(input)?.clone())))
}
