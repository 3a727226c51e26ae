//! Convolutions, pools and resampling: sizes of the spatial dimensions.

use operators::ShapeRule;
use smallvec::SmallVec;

use super::{
    call::{Call, Known, Result, as_float, contiguous_strides, fresh, fresh_fact, number, reject, shape},
    matmul::agree,
    rules::rules,
};
use crate::fact::{Dim, Fact, Shape, TensorFact, show_shape};

rules! {
    convolution: Convolution | TransposedConvolution | AnyConvolution,
    deformable: DeformableConvolution,
    pool: Pool | PoolWithIndices,
    adaptive_pool: AdaptivePool,
    upsample: Upsample | UpsampleNearest | UpsampleNearestExact | UpsampleLinear,
    shuffle: PixelShuffle | PixelUnshuffle,
    unfold: Im2Col | Col2Im,
    grid_sample: GridSample,
    affine_grid: AffineGrid,
    boxes: Boxes | PositionSensitiveBoxes,
}

/// `conv1d`, `conv2d`, `conv3d`, `_convolution`, the transposed ones and similar operators.
pub fn convolution(call: &Call<'_>) -> Result {
    let (input, weight) = (call.tensor("input").or_else(|_| call.first())?, call.tensor("weight")?);
    let (x, w) = (shape(input)?, shape(weight)?);
    let rank = w.len().checked_sub(2).known()?;
    let is_transposed = call.is_transposed();
    let shown = || format!("{} with a weight of {}", show_shape(x), show_shape(w));
    let is_batched = x.len() == rank + 2;
    if rank == 0 || !(is_batched || x.len() == rank + 1) {
        reject!("wrong number of dimensions: {}", shown());
    }
    let groups = call.int("groups").unwrap_or(1).max(1) as u64;
    let channels = x[x.len() - rank - 1];
    let (expected, made) = if is_transposed {
        (w[0], w[1].map(|size| size.saturating_mul(groups)))
    } else {
        (w[1].map(|size| size.saturating_mul(groups)), w[0])
    };
    agree(channels, expected, || "the input's channels do not match the weight".to_string())?;
    let mut result = Shape::from_slice(&x[..x.len() - rank - 1]);
    result.push(made);
    let (stride, dilation) = (call.sizes("stride", rank).known()?, call.sizes("dilation", rank).known()?);
    if stride.iter().chain(&dilation).any(|step| *step < 1) {
        reject!("stride and dilation must be positive");
    }
    let is_same = matches!(call.get("padding"), Some(Fact::Str(mode)) if mode == "same");
    let padding = match call.get("padding") {
        Some(Fact::Str(_)) => vec![0; rank],
        _ => call.sizes("padding", rank).known()?,
    };
    let extra = call.sizes("output_padding", rank).unwrap_or_else(|| vec![0; rank]);
    for position in 0..rank {
        let size = x[x.len() - rank + position];
        let kernel = w[position + 2];
        let (Some(size), Some(kernel)) = (size.and_then(signed), kernel.and_then(signed)) else {
            result.push(None);
            continue;
        };
        let reach = dilation[position].saturating_mul(kernel - 1) + 1;
        let out = if is_same {
            Some(size)
        } else if is_transposed {
            size.checked_sub(1).and_then(|n| n.checked_mul(stride[position])).and_then(|n| {
                n.checked_sub(padding[position].checked_mul(2)?)?
                    .checked_add(reach)?
                    .checked_add(extra[position])
            })
        } else {
            padding[position]
                .checked_mul(2)
                .and_then(|n| n.checked_add(size)?.checked_sub(reach))
                .filter(|n| *n >= 0)
                .map(|n| n / stride[position] + 1)
        };
        match out.filter(|out| *out > 0) {
            Some(out) => result.push(Some(out as u64)),
            None => reject!("the kernel is larger than the padded input: {}", shown()),
        }
    }
    let is_channels_last = rank == 2 && is_batched && (input.is_channels_last() || weight.is_channels_last());
    let strides = laid_out(&result, is_channels_last);
    Ok(Fact::Tensor(TensorFact { strides, ..fresh(input.dtype, result) }))
}

fn signed(size: u64) -> Option<i64> {
    i64::try_from(size).ok()
}

/// Returns the strides of a fresh tensor in the plain or the channels-last layout.
pub fn laid_out(sizes: &Shape, is_channels_last: bool) -> Option<SmallVec<[u64; 4]>> {
    match (is_channels_last, sizes.as_slice()) {
        (true, [n, c, rest @ ..]) => {
            let turned: Shape = std::iter::once(*n).chain(rest.iter().copied()).chain([*c]).collect();
            contiguous_strides(&turned).map(|s| {
                let (outer, channel) = (&s[..s.len() - 1], s[s.len() - 1]);
                [outer[0], channel].into_iter().chain(outer[1..].iter().copied()).collect()
            })
        }
        _ => contiguous_strides(sizes),
    }
}

/// `max_pool2d`, `avg_pool1d` and similar operators.
pub fn pool(call: &Call<'_>) -> Result {
    let input = call.first()?;
    let x = shape(input)?;
    let rank = call.row().and_then(|row| row.image_dimensions()).known()?;
    check_spatial(x, rank)?;
    let kernel = call.sizes("kernel_size", rank).known()?;
    let stride = match call.ints("stride") {
        Some(list) if list.is_empty() => kernel.clone(),
        None => kernel.clone(),
        _ => call.sizes("stride", rank).known()?,
    };
    let padding = call.sizes("padding", rank).unwrap_or_else(|| vec![0; rank]);
    let dilation = call.sizes("dilation", rank).unwrap_or_else(|| vec![1; rank]);
    if stride.iter().chain(&kernel).chain(&dilation).any(|size| *size < 1) {
        reject!("kernel, stride and dilation must be positive");
    }
    let is_ceil = call.flag("ceil_mode").unwrap_or(false);
    let mut result = Shape::from_slice(&x[..x.len() - rank]);
    for position in 0..rank {
        let Some(size) = x[x.len() - rank + position].and_then(signed) else {
            result.push(None);
            continue;
        };
        let (pad, step) = (padding[position], stride[position]);
        let reach = dilation[position].saturating_mul(kernel[position] - 1).saturating_add(1);
        let room = pad
            .checked_mul(2)
            .and_then(|n| n.checked_add(size))
            .and_then(|n| n.checked_sub(reach))
            .known()?;
        let rounded = if is_ceil { room.saturating_add(step - 1) } else { room };
        let mut out = rounded.div_euclid(step).saturating_add(1);
        // A last window that would start in the right padding is omitted.
        if is_ceil && (out - 1).saturating_mul(step) >= size.saturating_add(pad) {
            out -= 1;
        }
        if out < 1 {
            reject!("a window of {reach} does not fit into {}", show_shape(x));
        }
        result.push(Some(out as u64));
    }
    finish_pool(call, input, result)
}

/// `adaptive_avg_pool2d` and similar operators.
pub fn adaptive_pool(call: &Call<'_>) -> Result {
    let input = call.first()?;
    let x = shape(input)?;
    let rank = call.row().and_then(|row| row.image_dimensions()).known()?;
    check_spatial(x, rank)?;
    let asked = call.ints("output_size").known()?;
    let mut result = Shape::from_slice(&x[..x.len() - rank]);
    for position in 0..rank {
        let given = if asked.len() == 1 { asked[0] } else { *asked.get(position).known()? };
        result.push(given.and_then(|size| u64::try_from(size).ok()));
    }
    finish_pool(call, input, result)
}

fn finish_pool(call: &Call<'_>, input: &TensorFact, sizes: Shape) -> Result {
    // Averages over the whole image are computed as a mean, whose result is contiguous.
    let strides = laid_out(&sizes, input.is_channels_last());
    let result = TensorFact { strides, ..fresh(input.dtype, sizes) };
    let returns_indices = call.shape_rule() == ShapeRule::PoolWithIndices || call.n_outputs > 1;
    Ok(if returns_indices {
        Fact::List(vec![
            Fact::Tensor(result.clone()),
            Fact::Tensor(TensorFact { dtype: Some(tracer::DType::Int64), ..result }),
        ])
    } else {
        Fact::Tensor(result)
    })
}

fn check_spatial(x: &Shape, rank: usize) -> Result<()> {
    if x.len() == rank + 1 || x.len() == rank + 2 {
        Ok(())
    } else {
        reject!("{rank} spatial dimensions are needed, not those of {}", show_shape(x))
    }
}

/// `upsample_*`, `interpolate`: by size or by factor.
pub fn upsample(call: &Call<'_>) -> Result {
    let input = call.first()?;
    let x = shape(input)?;
    let rank = x.len().checked_sub(2).filter(|rank| *rank > 0).known()?;
    let asked = call.ints("output_size").or_else(|| call.ints("size")).filter(|list| !list.is_empty());
    let mut result = Shape::from_slice(&x[..2]);
    for position in 0..rank {
        let size = match &asked {
            Some(list) => {
                (*list.get(position).or(list.first()).known()?).and_then(|size| u64::try_from(size).ok())
            }
            None => {
                let factor = factor(call, position, rank).known()?;
                x[position + 2].map(|size| (size as f64 * factor).floor().max(0.0) as u64)
            }
        };
        result.push(size);
    }
    let strides = laid_out(&result, input.is_channels_last());
    Ok(Fact::Tensor(TensorFact { strides, ..fresh(input.dtype, result) }))
}

fn factor(call: &Call<'_>, position: usize, rank: usize) -> Option<f64> {
    if let Some(Fact::List(list)) = call.get("scale_factors").or_else(|| call.get("scale_factor")) {
        return number(list.get(position).or(list.first())?).map(as_float);
    }
    let names: &[&str] = match rank {
        1 => &["scales"],
        2 => &["scales_h", "scales_w"],
        _ => &["scales_d", "scales_h", "scales_w"],
    };
    call.float(names.get(position)?)
}

/// `pixel_shuffle`, `pixel_unshuffle`, `channel_shuffle`.
pub fn shuffle(call: &Call<'_>) -> Result {
    let input = call.first()?;
    let mut sizes = shape(input)?.clone();
    let rank = sizes.len();
    if rank < 3 {
        reject!("{} of {}", call.name, show_shape(&sizes));
    }
    let factor =
        call.int("upscale_factor").or(call.int("downscale_factor")).and_then(|f| u64::try_from(f).ok());
    if let Some(factor) = factor.filter(|factor| *factor > 0) {
        let square = factor.saturating_mul(factor);
        let is_up = call.shape_rule() == ShapeRule::PixelShuffle;
        let times = |dim: Dim| dim.map(|size| size.saturating_mul(factor));
        let over = |dim: Dim| dim.map(|size| size / factor);
        sizes[rank - 3] = sizes[rank - 3].map(|c| if is_up { c / square } else { c.saturating_mul(square) });
        for position in rank - 2..rank {
            sizes[position] = if is_up { times(sizes[position]) } else { over(sizes[position]) };
        }
    }
    fresh_fact(input.dtype, sizes)
}

/// `im2col`, `col2im`: unfold and fold.
pub fn unfold(call: &Call<'_>) -> Result {
    let input = call.first()?;
    let x = shape(input)?;
    let rank = x.len();
    if !(3..=4).contains(&rank) {
        reject!("{} of {}", call.name, show_shape(x));
    }
    let [kernel, stride, padding, dilation] =
        ["kernel_size", "stride", "padding", "dilation"].map(|name| call.sizes(name, 2));
    let (kernel, stride, padding, dilation) =
        (kernel.known()?, stride.known()?, padding.known()?, dilation.known()?);
    if stride.iter().chain(&kernel).any(|step| *step < 1) {
        reject!("kernel and stride must be positive");
    }
    let window = kernel[0].saturating_mul(kernel[1]) as u64;
    let blocks = |of: &dyn Fn(usize) -> Dim| -> Dim {
        (0..2).try_fold(1_u64, |product, at| {
            let room = signed(of(at)?)?.checked_add(padding[at].checked_mul(2)?)?;
            let room = room.checked_sub(dilation[at].checked_mul(kernel[at] - 1)?.checked_add(1)?)?;
            product.checked_mul(u64::try_from(room.div_euclid(stride[at]) + 1).ok()?)
        })
    };
    let folds = call.shape_rule() == ShapeRule::Col2Im;
    let mut result = Shape::from_slice(&x[..rank - if folds { 2 } else { 3 }]);
    if folds {
        let out = call.sizes("output_size", 2).known()?;
        result.push(x[rank - 2].map(|size| size / window.max(1)));
        result.extend(out.iter().map(|size| u64::try_from(*size).ok()));
    } else {
        result.push(x[rank - 3].map(|size| size.saturating_mul(window)));
        result.push(blocks(&|at| x[rank - 2 + at]));
    }
    fresh_fact(input.dtype, result)
}

/// `grid_sampler`: the input's channels with the grid's sizes.
pub fn grid_sample(call: &Call<'_>) -> Result {
    let (input, grid) = (call.tensor("input")?, call.tensor("grid")?);
    let (x, g) = (shape(input)?, shape(grid)?);
    if x.len() < 3 || g.len() != x.len() {
        reject!("samples of {} on {}", show_shape(x), show_shape(g));
    }
    let mut result = Shape::from_slice(&x[..2]);
    result.extend_from_slice(&g[1..g.len() - 1]);
    fresh_fact(input.dtype, result)
}

/// `affine_grid_generator`.
pub fn affine_grid(call: &Call<'_>) -> Result {
    let theta = call.first()?;
    let size = call.ints("size").known()?;
    let mut result: Shape = size
        .iter()
        .enumerate()
        .filter(|(at, _)| *at != 1)
        .map(|(_, s)| s.and_then(|s| u64::try_from(s).ok()))
        .collect();
    result.push(Some(size.len().saturating_sub(2) as u64));
    fresh_fact(theta.dtype, result)
}

/// `torchvision::roi_align` and similar operators: one image per box.
pub fn boxes(call: &Call<'_>) -> Result {
    let (input, rois) = (call.tensor("input")?, call.tensor("rois")?);
    let size = |name: &str| call.int(name).and_then(|size| u64::try_from(size).ok());
    let channels = *shape(input)?.get(1).known()?;
    let (height, width) = (size("pooled_height"), size("pooled_width"));
    let channels = match call.shape_rule() {
        ShapeRule::PositionSensitiveBoxes => match (channels, height, width) {
            (Some(c), Some(h), Some(w)) => h.checked_mul(w).and_then(|bins| c.checked_div(bins)),
            _ => None,
        },
        _ => channels,
    };
    let result =
        fresh(input.dtype, Shape::from_slice(&[*shape(rois)?.first().known()?, channels, height, width]));
    Ok(match call.n_outputs {
        2 => Fact::List(vec![Fact::Tensor(result.clone()), Fact::Tensor(result)]),
        _ => Fact::Tensor(result),
    })
}

/// `torchvision::deform_conv2d`.
pub fn deformable(call: &Call<'_>) -> Result {
    let (input, weight, offset) = (call.tensor("input")?, call.tensor("weight")?, call.tensor("offset")?);
    let (x, w, o) = (shape(input)?, shape(weight)?, shape(offset)?);
    match (x.as_slice(), o.as_slice()) {
        ([n, ..], [_, _, h, width]) => {
            fresh_fact(input.dtype, Shape::from_slice(&[*n, *w.first().known()?, *h, *width]))
        }
        _ => reject!("{} with offsets {}", show_shape(x), show_shape(o)),
    }
}
