//! The time of a call on a CPU when no cache holds anything of it.
//!
//! A suite calls one operator over and over. Its operands may rotate; its result, its scratch memory and its code are
//! where the previous call left them. In a model other operators ran in between: the memory of a result was last used a
//! pass ago, and so was the code that oneDNN generated for this very shape. Where a pass is larger than the last-level
//! cache, all of that is loaded from memory: on an EPYC with 32 MiB of it a depthwise convolution of 1.8 MB took 98 µs
//! in a loop and 270 µs after 64 MB of other data.

use tch::{Device, Kind, Tensor};

use runtime::profile::Statistics;

use crate::{
    error::TorchError,
    timer::{Call, Timer},
};

/// Samples of each call: reading the data that evicts everything takes longer than most operators.
const SAMPLES: usize = 3;
/// Samples of a call that does nothing.
const CLOCK_SAMPLES: usize = 15;

/// Evicts everything else from the caches.
pub(super) struct Flush {
    other: Tensor,
    /// The clock's own cold start, in seconds.
    clock: f64,
}

impl Flush {
    /// Allocates more bytes than any cache holds.
    pub(super) fn new(bytes: f64, timer: &Timer) -> Result<Self, TorchError> {
        let other = Tensor::f_ones([(bytes / 4.0) as i64], (Kind::Float, Device::Cpu))?;
        let mut flush = Self { other, clock: 0.0 };
        let mut nothing = |_: usize| Ok(());
        flush.clock = flush.times(timer, CLOCK_SAMPLES, &mut nothing)?.median();
        Ok(flush)
    }

    /// Returns the median seconds of a call with cold caches.
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
