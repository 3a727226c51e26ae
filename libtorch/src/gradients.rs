//! Gradients whose kernel libtorch exposes as a function, called as autograd calls them.
//!
//! A backward pass through autograd can only begin with a gradient of ones, which is made first; for a short operator
//! little is left after subtracting that, and the rest is mostly noise. Here nothing has to be subtracted, and the
//! gradient rotates over copies like everything else. Products, convolutions and norms have no such function in tch.

use tch::{Device, Tensor};

use runtime::profile::{Item, Kind, Size};

use crate::{
    error::TorchError,
    operators::{Copy, Pool, Prepared},
};

/// What such a kernel reads besides the operator's own tensors.
pub(super) struct Kept {
    /// The gradient of the result.
    gradient: Tensor,
    /// The result, or the indices of its maxima.
    saved: Tensor,
}

/// The kernel of a gradient.
pub(super) type Kernel = dyn Fn(&Copy, &Kept) -> Result<Tensor, tch::TchError>;

/// Returns the kernel of an operator's only gradient.
pub(super) fn kernel(item: &Item, device: Device) -> Option<Box<Kernel>> {
    Some(match (item.kind.plain(), item.size) {
        (Kind::Relu, _) => Box::new(|_, kept| kept.saved.f_threshold_backward(&kept.gradient, 0.0)),
        (Kind::Gelu, _) => Box::new(|c, kept| c.inputs[0].f_gelu_backward(&kept.gradient, "none")),
        (Kind::Silu, _) => Box::new(|c, kept| c.inputs[0].f_silu_backward(&kept.gradient)),
        (Kind::Sigmoid, _) => Box::new(|_, kept| Tensor::f_sigmoid_backward(&kept.gradient, &kept.saved)),
        (Kind::Tanh, _) => Box::new(|_, kept| Tensor::f_tanh_backward(&kept.gradient, &kept.saved)),
        (Kind::Softmax, _) => Box::new(|_, kept| {
            Tensor::f_internal_softmax_backward_data(&kept.gradient, &kept.saved, -1, kept.saved.kind())
        }),
        (Kind::Mul, _) => Box::new(|c, kept| {
            drop(kept.gradient.f_mul(&c.inputs[1])?);
            kept.gradient.f_mul(&c.inputs[0])
        }),
        // A CPU saves its factors as floats; a GPU has a kernel of its own.
        (Kind::Dropout, _) if !device.is_cuda() => Box::new(|_, kept| kept.gradient.f_mul(&kept.saved)),
        (kind @ (Kind::MaxPool | Kind::AvgPool), Size::Convolution { kernel, stride, padding, .. }) => {
            let (k, s, p) = ([kernel as i64; 2], [stride as i64; 2], [padding as i64; 2]);
            match kind {
                Kind::MaxPool => Box::new(move |c, kept| {
                    let x = &c.inputs[0];
                    x.f_max_pool2d_with_indices_backward(&kept.gradient, k, s, p, [1, 1], false, &kept.saved)
                }),
                _ => Box::new(move |c, kept| {
                    c.inputs[0].f_avg_pool2d_backward(&kept.gradient, k, s, p, false, true, None)
                }),
            }
        }
        (Kind::UpsampleNearest, Size::Images { height, width, .. }) => {
            let to = [2 * height as i64, 2 * width as i64];
            Box::new(move |c, kept| {
                Tensor::f_upsample_nearest2d_backward(&kept.gradient, to, c.inputs[0].size(), None, None)
            })
        }
        (Kind::UpsampleBilinear, Size::Images { height, width, .. }) => {
            let to = [2 * height as i64, 2 * width as i64];
            Box::new(move |c, kept| {
                let from = c.inputs[0].size();
                Tensor::f_upsample_bilinear2d_backward(&kept.gradient, to, from, false, None, None)
            })
        }
        (Kind::Embedding, Size::Table { vocabulary, .. }) => Box::new(move |c, kept| {
            Tensor::f_embedding_dense_backward(&kept.gradient, &c.rest[0], vocabulary as i64, -1, false)
        }),
        _ => return None,
    })
}

/// Makes what the kernel reads, for each copy of the operator.
pub(super) fn keep(item: &Item, prepared: &Prepared, pool: &Pool) -> Result<Vec<Kept>, TorchError> {
    let kept = |index: usize| {
        let (result, saved) = match (item.kind.plain(), item.size) {
            (Kind::MaxPool, Size::Convolution { kernel, stride, padding, .. }) => {
                let (k, s, p) = ([kernel as i64; 2], [stride as i64; 2], [padding as i64; 2]);
                prepared.copies[index].inputs[0].f_max_pool2d_with_indices(k, s, p, [1, 1], false)?
            }
            _ => {
                let result = prepared.call(index)?;
                (result.shallow_clone(), result)
            }
        };
        let gradient = pool.laid_out(item, &result.size(), result.kind())?;
        Ok(Kept { gradient, saved })
    };
    tch::no_grad(|| (0..prepared.copies.len()).map(kept).collect())
}
