//! How much longer a call takes on a CPU when other operators ran since the last one.
//!
//! A suite calls one operator over and over, with its code in the core's cache and its branches predicted. In a model
//! other operators run in between. Here small operators, whose work is negligible, are called right after themselves
//! and after a dozen others that move 60 MB: the difference is the cost of loading the code again, libtorch's own and
//! the kernel's.

use tch::{Device, Kind, TchError, Tensor};

use runtime::profile::Statistics;

use crate::{error::TorchError, timer::Watch};

/// Calls of each operator: right after itself, and after others.
const CALLS: (usize, usize) = (50, 15);

/// Returns the median of the added seconds over operators.
pub(super) fn extra() -> Result<f64, TorchError> {
    let (row, weights, image, filter) =
        (normal(&[1, 8])?, normal(&[8, 8])?, normal(&[1, 8, 4, 4])?, normal(&[8, 8, 3, 3])?);
    let none: Option<&Tensor> = None;
    let calls: [&dyn Fn() -> Result<Tensor, TchError>; 8] = [
        &|| row.f_add(&row),
        &|| row.f_view([8]),
        &|| row.f_relu(),
        &|| row.f_softmax(-1, Kind::Float),
        &|| row.f_linear(&weights, none),
        &|| row.f_layer_norm([8], none, none, 1e-5, false),
        &|| image.f_max_pool2d([2, 2], [2, 2], [0, 0], [1, 1], false),
        &|| image.f_conv2d(&filter, none, [1, 1], [0, 0], [1, 1], 1),
    ];
    let others = Others::new()?;
    let median = |n: usize, call: &dyn Fn() -> Result<Tensor, TchError>, is_cold: bool| {
        let mut times = Statistics::default();
        for _ in 0..n {
            if is_cold {
                others.run()?;
            }
            let watch = Watch::start();
            drop(call()?);
            times.add(watch.seconds());
        }
        Ok::<_, TorchError>(times.median())
    };
    let added = |call: &dyn Fn() -> Result<Tensor, TchError>| {
        Ok::<_, TorchError>(median(CALLS.1, call, true)? - median(CALLS.0, call, false)?)
    };
    // The clock's own cold start.
    let clock = added(&|| Ok(row.shallow_clone()))?;
    let mut all = Statistics::default();
    for call in calls {
        all.add((added(call)? - clock).max(0.0));
    }
    Ok(all.median())
}

fn normal(shape: &[i64]) -> Result<Tensor, TchError> {
    Tensor::f_randn(shape, (Kind::Float, Device::Cpu))
}

/// Operands of the operators in between.
struct Others {
    large: Tensor,
    square: Tensor,
    image: Tensor,
    filter: Tensor,
}

impl Others {
    fn new() -> Result<Self, TorchError> {
        Ok(Self {
            large: normal(&[1024, 1024])?,
            square: normal(&[256, 256])?,
            image: normal(&[1, 32, 28, 28])?,
            filter: normal(&[32, 32, 3, 3])?,
        })
    }

    fn run(&self) -> Result<(), TorchError> {
        let Self { large, square, image, filter } = self;
        let none: Option<&Tensor> = None;
        for made in [
            large.f_mul(large)?,
            square.f_matmul(square)?,
            image.f_conv2d(filter, none, [1, 1], [0, 0], [1, 1], 1)?,
            large.f_softmax(-1, Kind::Float)?,
            large.f_gelu("none")?,
            large.f_layer_norm([1024], none, none, 1e-5, false)?,
            large.f_sum_dim_intlist(0_i64, false, Kind::Float)?,
            large.f_exp()?,
            Tensor::f_cat(&[square, square], 0)?,
            large.f_tr()?.f_contiguous()?,
            image.f_max_pool2d([2, 2], [2, 2], [0, 0], [1, 1], false)?,
            large.f_sigmoid()?,
        ] {
            drop(made);
        }
        Ok(())
    }
}
