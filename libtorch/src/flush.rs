//! What a call takes on a processor when no cache holds anything of it.
//!
//! A suite calls one operator over and over. Its operands may rotate; its result, its scratch memory and its code are
//! where the call before left them. In a model other operators ran in between: the memory that a result is given was
//! last used a pass ago, and so was the code that oneDNN made for this very shape. Where a pass is larger than the last
//! cache all of that comes from memory again: on an EPYC with 32 MiB of it a depthwise convolution of 1.8 MB took 98 µs
//! in a row and 270 µs after 64 MB of something else.

use tch::{Device, Kind, Tensor};

use runtime::profile::Statistics;

use crate::{
    error::TorchError,
    timer::{Call, Timer},
};

/// Samples of each call: reading what drives everything out takes longer than most operators.
const SAMPLES: usize = 3;
/// Samples of a call that does nothing.
const CLOCK_SAMPLES: usize = 15;

/// Drives everything else from the caches.
pub(super) struct Flush {
    other: Tensor,
    /// The clock's own way back to its code, in seconds.
    clock: f64,
}

impl Flush {
    /// Takes so many bytes that no cache holds them.
    pub(super) fn new(bytes: f64, timer: &Timer) -> Result<Self, TorchError> {
        let other = Tensor::f_ones([(bytes / 4.0) as i64], (Kind::Float, Device::Cpu))?;
        let mut flush = Self { other, clock: 0.0 };
        let mut nothing = |_: usize| Ok(());
        flush.clock = flush.times(timer, CLOCK_SAMPLES, &mut nothing)?.median();
        Ok(flush)
    }

    /// Returns the median seconds of a call that finds nothing in a cache.
    pub(super) fn measure(&self, timer: &Timer, call: &mut Call) -> Result<f64, TorchError> {
        let seconds = self.times(timer, SAMPLES, call)?.median();
        Ok((seconds - self.clock).max(1e-8))
    }

    fn times(&self, timer: &Timer, n: usize, call: &mut Call) -> Result<Statistics, TorchError> {
        let mut before = || {
            drop(tch::no_grad(|| self.other.f_sum(Kind::Float))?);
            Ok(())
        };
        timer.after(n, &mut before, call)
    }
}
