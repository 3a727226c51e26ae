//! How long does a call take on a device?
//!
//! On a CPU the clock measures it. A CUDA device works asynchronously, and tch exposes neither its events nor its
//! graphs; so a batch of calls is queued behind copies that keep the device busy for longer than queueing takes, and
//! the copies alone are measured in the same way: the difference is the device's own time, without the caller's. The
//! time of a copy does not depend on the precision of products, and leaves the arithmetic units cool.

use std::time::Instant;

use tch::{Device, Kind, Tensor};

use runtime::profile::{Statistics, waited};

use crate::error::TorchError;

/// Most samples.
const MOST_SAMPLES: usize = 40;
/// Accepted error of the median, as a share of it.
const STEADY: f64 = 0.01;
/// Bounds on the seconds of one measurement, once it has its fewest samples.
const BUDGET: (f64, f64) = (0.03, 0.4);

/// Elements of what keeps a CUDA device busy: a copy of 256 MiB takes from 0.1 ms on the fastest devices to 2 ms, far longer
/// than its own launch.
const SPACER: i64 = 1 << 26;

/// Most copies that one sample queues.
const MOST_SPACERS: f64 = 64.0;
/// A sample counts when its calls were queued within this share of the time that the device was kept busy.
const QUEUED: f64 = 0.9;

/// A sample that had to wait is repeated when it is shorter than this, in seconds, up to this many times.
const TRUSTED: f64 = 2e-3;
const ATTEMPTS: usize = 5;

/// Measures calls on one device.
pub(super) struct Timer {
    device: Device,
    spacer: Option<Spacer>,
}

/// A copy that keeps a CUDA device busy.
struct Spacer {
    from: Tensor,
    to: Tensor,
    seconds: f64,
}

/// Seconds since some moment, without those that this thread was kept waiting.
///
/// For operators that run on several threads only the waiting of this one is known.
pub(super) struct Watch {
    waited: f64,
    start: Instant,
}

impl Watch {
    pub(super) fn start() -> Self {
        Self { waited: waited(), start: Instant::now() }
    }

    pub(super) fn seconds(&self) -> f64 {
        self.both().0
    }

    /// Returns the seconds without waiting, and the waiting.
    fn both(&self) -> (f64, f64) {
        let seconds = self.start.elapsed().as_secs_f64();
        let waited = waited() - self.waited;
        ((seconds - waited).max(1e-8), waited)
    }
}

/// The measurement of one call.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Timing {
    /// Seconds of a call on the device.
    pub(super) device: Statistics,
    /// Seconds until a call returns to its caller.
    pub(super) host: Statistics,
    /// Seconds of the very first call.
    pub(super) first: f64,
}

/// A call to measure; its argument is the number of calls before it.
pub(super) type Call<'a> = dyn FnMut(usize) -> Result<(), TorchError> + 'a;

impl Timer {
    /// Makes the timer of a device.
    pub(super) fn new(device: Device) -> Result<Self, TorchError> {
        let mut timer = Self { device, spacer: None };
        if device.is_cuda() {
            let made = || Tensor::f_ones([SPACER], (Kind::Float, device));
            let mut spacer = Spacer { from: made()?, to: made()?, seconds: 0.0 };
            spacer.run(3)?;
            timer.synchronize();
            let mut times = Statistics::default();
            for _ in 0..9 {
                let start = Instant::now();
                spacer.run(4)?;
                timer.synchronize();
                times.add(start.elapsed().as_secs_f64() / 4.0);
            }
            spacer.seconds = times.median();
            timer.spacer = Some(spacer);
        }
        Ok(timer)
    }

    /// Waits until the device is done.
    pub(super) fn synchronize(&self) {
        if let Device::Cuda(index) = self.device {
            tch::Cuda::synchronize(index as i64);
        }
    }

    /// Measures a call until its median is steady.
    pub(super) fn measure(&self, call: &mut Call) -> Result<Timing, TorchError> {
        let (first, _) = self.alone(0, call)?;
        let (second, host) = self.alone(1, call)?;
        let mut timing = Timing { first, ..Timing::default() };
        let estimate = first.min(second);
        let least = if estimate > 0.01 { 3 } else { 5 };
        let budget = (estimate * 6.0).clamp(BUDGET.0, BUDGET.1);
        let start = Instant::now();
        let mut made = 2;
        while timing.device.count() < MOST_SAMPLES {
            made += self.sample(made, estimate, host, &mut timing, call)?;
            let is_over = start.elapsed().as_secs_f64() > budget && timing.device.count() >= least;
            if is_over || timing.device.is_steady(least, STEADY) {
                break;
            }
        }
        Ok(timing)
    }

    /// Measures a call a few times only.
    pub(super) fn glance(&self, call: &mut Call) -> Result<Timing, TorchError> {
        let (first, host) = self.alone(0, call)?;
        let mut timing = Timing { first, ..Timing::default() };
        let mut made = 1;
        for _ in 0..if first > 2e-3 { 3 } else { 5 } {
            made += self.sample(made, first, host, &mut timing, call)?;
        }
        Ok(timing)
    }

    /// Measures single calls, each after something else that is not timed.
    pub(super) fn after(
        &self,
        n: usize,
        before: &mut dyn FnMut() -> Result<(), TorchError>,
        call: &mut Call,
    ) -> Result<Statistics, TorchError> {
        let mut times = Statistics::default();
        for index in 0..n {
            for attempt in 1.. {
                before()?;
                self.synchronize();
                let watch = Watch::start();
                call(index)?;
                self.synchronize();
                let (seconds, waited) = watch.both();
                if waited > 0.0 && seconds < TRUSTED && attempt < ATTEMPTS {
                    continue;
                }
                times.add(seconds);
                break;
            }
        }
        Ok(times)
    }

    /// Times a single call: until it is done, and until it returns.
    fn alone(&self, index: usize, call: &mut Call) -> Result<(f64, f64), TorchError> {
        self.synchronize();
        let watch = Watch::start();
        call(index)?;
        let host = watch.seconds();
        self.synchronize();
        Ok((watch.seconds(), host))
    }

    /// Adds one sample; returns how many calls it took.
    fn sample(
        &self,
        made: usize,
        estimate: f64,
        host: f64,
        timing: &mut Timing,
        call: &mut Call,
    ) -> Result<usize, TorchError> {
        let Some(spacer) = &self.spacer else {
            // The clock itself takes tens of nanoseconds.
            let calls = ((2e-5 / estimate.max(1e-7)).ceil() as usize).clamp(1, 32);
            let mut turn = made;
            for attempt in 1.. {
                let watch = Watch::start();
                for index in turn..turn + calls {
                    call(index)?;
                }
                let (seconds, waited) = watch.both();
                turn += calls;
                // Another process's turn just before or after a short sample would be subtracted from it by mistake.
                if waited > 0.0 && seconds < TRUSTED && attempt < ATTEMPTS {
                    continue;
                }
                timing.device.add(seconds / calls as f64);
                timing.host.add(seconds / calls as f64);
                break;
            }
            return Ok(turn - made);
        };
        let mut calls = ((4e-4 / estimate.max(1e-6)).ceil() as usize).clamp(1, 50);
        let mut spacers =
            (1.5 * host * calls as f64 / spacer.seconds).ceil().clamp(1.0, MOST_SPACERS) as usize;
        let mut turn = made;
        for attempt in 1.. {
            self.synchronize();
            let start = Instant::now();
            spacer.run(spacers)?;
            self.synchronize();
            let alone = start.elapsed().as_secs_f64();
            let start = Instant::now();
            spacer.run(spacers)?;
            let queued = Instant::now();
            for index in turn..turn + calls {
                call(index)?;
            }
            let host = queued.elapsed().as_secs_f64();
            turn += calls;
            self.synchronize();
            let together = start.elapsed().as_secs_f64();
            // A device that had run out of work waited for the caller: that is the caller's time.
            if host > QUEUED * alone && attempt < ATTEMPTS {
                if spacers < MOST_SPACERS as usize {
                    spacers = (2 * spacers).min(MOST_SPACERS as usize);
                } else {
                    calls = (calls / 2).max(1);
                }
                continue;
            }
            timing.host.add(host / calls as f64);
            timing.device.add((together - alone).max(1e-7 * calls as f64) / calls as f64);
            break;
        }
        Ok(turn - made)
    }
}

impl Spacer {
    fn run(&self, times: usize) -> Result<(), TorchError> {
        tch::no_grad(|| {
            let mut to = self.to.shallow_clone();
            for _ in 0..times {
                to.f_copy_(&self.from)?;
            }
            Ok(())
        })
    }
}
