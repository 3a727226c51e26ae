//! Measures the operators of a plan on one device.
//!
//! The gradients of some operators have kernels of their own ([`crate::gradients`]). For the others a backward pass
//! starts from a gradient of ones, because tch can pass no other; the time of making the ones and of starting autograd
//! is measured on an operator that does nothing, and subtracted.

use std::fmt;

use schema::{MOST_DRIVEN_OUT, Pace, Phase};
use tch::{Device, Kind as Element, Tensor};

use runtime::profile::{self, DType, Header, Item, Rates, Row, Scale, Statistics};

use crate::{
    card::{Card, card},
    cold,
    error::TorchError,
    flush::Flush,
    gradients, memory,
    operators::{Pool, Prepared, element},
    precision::{self, Tf32},
    timer::{Call, Timer, Timing},
};

/// The libtorch that tch is built for.
const LIBTORCH: &str = "2.11.0";
/// For a GPU whose driver does not report its cache: twice that of an H100.
const GPU_CACHE: f64 = 100e6;
/// For a CPU that does not report its cache.
const PROCESSOR_CACHE: f64 = 64e6;
/// Copies of a GPU's operators fill its cache this many times over: results reuse the memory of the previous ones, so
/// the inputs alone must evict each other, and a cache does not evict in order.
const GPU_ROTATION: f64 = 4.0;
/// The first generation of GPUs whose tensor cores take bfloat16 and TF32.
const AMPERE: u32 = 80;
/// Calls longer than this, in seconds, take the same time with warm caches.
const LONG: f64 = 5e-3;
/// One in this many operators is measured with empty caches as well.
const FLUSHED_EVERY: u64 = 4;
/// Least share of a measured backward pass that subtraction leaves.
const LEAST_SHARE: f64 = 0.05;
/// A difference of two times counts when it is this many times its own error.
const RESOLVED: f64 = 4.0;

/// A device that operators are measured on.
pub struct Bench {
    device: Device,
    name: String,
    /// Of a GPU.
    card: Option<Card>,
    timer: Timer,
    pool: Pool,
    /// More bytes than any cache holds.
    rotation: f64,
    /// On processors.
    flush: Option<Flush>,
}

/// The measurement of one call.
struct Measured {
    cold: Timing,
    /// With warm caches, where that can make a difference.
    warm: Option<Timing>,
    /// Seconds with empty caches, where measured.
    flushed: Option<f64>,
}

/// The overhead of a call, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Overhead {
    /// A call of an operator on one element.
    pub call: f64,
    /// Added when autograd records it.
    pub recording: f64,
    /// The backward pass of one such operator.
    pub backward: f64,
    /// Added on a CPU when other operators have run since, so that its cache no longer holds the code.
    pub cold: Option<f64>,
}

impl fmt::Display for Overhead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { call, recording, backward, cold } = self;
        write!(f, "call {call:.2e} s, recording {recording:.2e} s, backward {backward:.2e} s")?;
        cold.map_or(Ok(()), |cold| write!(f, ", cold {cold:.2e} s"))
    }
}

impl Bench {
    /// Opens a device; without a number of threads the current one stays.
    ///
    /// # Errors
    /// When libtorch cannot use the device.
    pub fn open(device: Device, threads: Option<u32>) -> Result<Self, TorchError> {
        if let Some(threads) = threads {
            tch::set_num_threads(threads as i32);
        }
        tch::manual_seed(0);
        let found = if let Device::Cuda(index) = device { card(index) } else { None };
        let (name, rotation) = match device {
            Device::Cuda(index) => {
                let name = found.as_ref().map_or_else(|| format!("cuda:{index}"), |card| card.name.clone());
                let cache = found.as_ref().and_then(|card| card.hardware.core_cache);
                (name, GPU_ROTATION * cache.map_or(GPU_CACHE, |bytes| bytes as f64))
            }
            _ => {
                let threads = tch::get_num_threads();
                let unit = if threads == 1 { "thread" } else { "threads" };
                let name = format!("{} ({threads} {unit})", profile::cpu_name());
                (name, (2.0 * profile::largest_cache().unwrap_or(PROCESSOR_CACHE)).min(MOST_DRIVEN_OUT))
            }
        };
        precision::set(Tf32::Forbidden)?;
        if !device.is_cuda() {
            memory::keep()?;
        }
        let timer = Timer::new(device)?;
        let flush = if device.is_cuda() { None } else { Some(Flush::new(rotation, &timer)?) };
        Ok(Self { device, name, card: found, timer, pool: Pool::new(rotation, device), rotation, flush })
    }

    /// Returns the device's name as it is written in rows.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Tells whether this is a CUDA device.
    pub fn is_cuda(&self) -> bool {
        self.device.is_cuda()
    }

    /// Returns the data types worth measuring: on a GPU those that its hardware multiplies, on a CPU the usual one.
    pub fn dtypes(&self) -> Vec<DType> {
        if !self.is_cuda() {
            return vec![DType::Float32];
        }
        let of_card = self.card.as_ref().and_then(|card| card.hardware.architecture.as_deref());
        let generation = of_card.and_then(|name| name.strip_prefix("sm")?.parse::<u32>().ok());
        let is_old = generation.is_some_and(|generation| generation < AMPERE);
        let has = |dtype: &DType| !is_old || matches!(dtype, DType::Float32 | DType::Float16);
        DType::ALL.into_iter().filter(has).collect()
    }

    /// Returns the conditions of the measurement.
    ///
    /// # Errors
    /// When the device fails.
    pub fn conditions(&self) -> Result<Header, TorchError> {
        let mut header = Header::default();
        header.set("device", &self.name);
        // A GPU whose driver reports nothing has neither.
        let (clocks, hardware) = match &self.card {
            Some(card) => (profile::gpu_clocks(&card.address), Some(card.hardware.clone())),
            None if self.is_cuda() => (None, None),
            None => (profile::clocks(), Some(profile::hardware())),
        };
        if let Some(clocks) = clocks {
            header.set("clocks", clocks);
        }
        if let Some(hardware) = hardware {
            header.set("hardware", hardware);
        }
        let with = |name: &str, has: bool| if has { format!(", {name}") } else { String::new() };
        let libraries = if self.device.is_cuda() {
            format!(", CUDA {}, cuDNN {}", tch::utils::version_cudart(), tch::utils::version_cudnn())
        } else {
            with("MKL", tch::utils::has_mkl()) + &with("oneDNN", tch::utils::has_mkldnn())
        };
        header.set("software", format!("libtorch {LIBTORCH} through tch{libraries}"));
        header.set("threads", tch::get_num_threads());
        header.set("overhead", self.overhead()?);
        header.set("pace", self.pace()?);
        header.set(
            "method",
            if self.device.is_cuda() {
                "seconds: on the device, batches of calls queued behind copies whose own time is subtracted; host_seconds: until a call returns"
            } else {
                "seconds: median of single calls, without what the thread waited for a processor, in memory that stays with the process"
            }
            .to_string()
                + "; inputs rotate over copies larger than the cache, warm_seconds are without that, flushed_seconds with empty caches; backward without autograd's start, without a time where that cannot be told from noise",
        );
        Ok(header)
    }

    /// Measures rates, one for each type, rounded up to powers of two: small differences then do not change the plan,
    /// and its longest operators take as long as intended.
    ///
    /// # Errors
    /// When the device fails.
    pub fn scale(&self, minutes: f64, dtypes: &[DType]) -> Result<Scale, TorchError> {
        let power = |rate: f64| rate.log2().ceil().exp2();
        let mut flops = Rates::all(1.0);
        for dtype in dtypes {
            let (product, work) = self.product(*dtype)?;
            flops.set(*dtype, power(work / product.device.least()));
        }
        let (copy, bytes) = self.copy()?;
        Ok(Scale {
            flops,
            bytes: power(bytes / copy.device.least()),
            longest: (minutes * 60.0 / 25_000.0).clamp(1e-3, 0.05),
            largest: if self.device.is_cuda() { 8.0 * 2_f64.powi(30) } else { 2_f64.powi(29) },
        })
    }

    /// Measures how fast the machine is now, with a fixed amount of work.
    ///
    /// # Errors
    /// When the device fails.
    pub fn pace(&self) -> Result<Pace, TorchError> {
        let (product, copy) = (self.product(DType::Float32)?.0, self.copy()?.0);
        Ok(Pace { product: product.device.median(), copy: copy.device.median() })
    }

    /// Times a product that fills the device; returns also its FLOPs.
    fn product(&self, dtype: DType) -> Result<(Timing, f64), TorchError> {
        self.multiply_as(dtype)?;
        let size = if self.device.is_cuda() { 4096 } else { 512 };
        let a = Tensor::f_randn([size, size], (Element::Float, self.device))?.f_to_kind(element(dtype))?;
        let timing = tch::no_grad(|| {
            self.timer.measure(&mut |_| {
                drop(a.f_matmul(&a)?);
                Ok(())
            })
        })?;
        Ok((timing, 2.0 * (size as f64).powi(3)))
    }

    /// Times a copy; returns also its bytes.
    fn copy(&self) -> Result<(Timing, f64), TorchError> {
        let elements = 1_i64 << if self.device.is_cuda() { 26 } else { 23 };
        // Zeros could all be backed by one page of the kernel.
        let from = Tensor::f_ones([elements], (Element::Float, self.device))?;
        let mut to = from.f_to_dtype(Element::Float, false, true)?;
        let timing = tch::no_grad(|| {
            self.timer.measure(&mut |_| {
                to.f_copy_(&from)?;
                Ok(())
            })
        })?;
        Ok((timing, 8.0 * elements as f64))
    }

    /// Sets how float32 is multiplied from now on.
    fn multiply_as(&self, dtype: DType) -> Result<(), TorchError> {
        if self.device.is_cuda() {
            precision::set(if dtype == DType::Tf32 { Tf32::Allowed } else { Tf32::Forbidden })?;
        }
        Ok(())
    }

    /// Measures the overhead of a call.
    ///
    /// # Errors
    /// When the device fails.
    pub fn overhead(&self) -> Result<Overhead, TorchError> {
        let one = Tensor::f_ones([1], (Element::Float, self.device))?;
        let mut add = |_: usize| {
            drop(one.f_add(&one)?);
            Ok(())
        };
        let call = tch::no_grad(|| self.timer.measure(&mut add))?.host.median();
        let leaf = one.f_to_dtype(Element::Float, false, true)?.f_set_requires_grad(true)?;
        let recorded = self.timer.measure(&mut |_| {
            drop(leaf.f_add(&one)?);
            Ok(())
        })?;
        const LENGTH: usize = 64;
        let mut way = leaf.f_mul(&one)?;
        for _ in 1..LENGTH {
            way = way.f_mul(&one)?;
        }
        let back = |root: &Tensor| {
            let mut call = |_: usize| {
                Tensor::f_run_backward(&[root], &[&leaf], true, false)?;
                Ok(())
            };
            Ok::<_, TorchError>(self.timer.measure(&mut call)?.host.median())
        };
        let (long, short) = (back(&way)?, back(&leaf.f_mul(&one)?)?);
        Ok(Overhead {
            call,
            recording: (recorded.host.median() - call).max(0.0),
            backward: (long - short).max(0.0) / (LENGTH - 1) as f64,
            cold: if self.device.is_cuda() { None } else { Some(tch::no_grad(cold::extra)?) },
        })
    }

    /// Measures all phases of an item.
    ///
    /// # Errors
    /// When the device has no memory for it, or no such operator.
    pub fn measure(&self, item: &Item) -> Result<Vec<Row>, TorchError> {
        self.multiply_as(item.dtype)?;
        let mut prepared = Prepared::new(item, &self.pool, self.rotation)?;
        let mut rows = Vec::new();
        let mut forward = |index: usize| {
            drop(prepared.call(index)?);
            Ok(())
        };
        let n_copies = prepared.copies.len();
        let is_flushed = item.index.is_multiple_of(FLUSHED_EVERY);
        let measured = tch::no_grad(|| self.measured(n_copies, is_flushed, &mut forward))?;
        rows.push(self.row(item, Phase::Forward, &measured, None));
        let phases = &item.kind.phases()[1..];
        if phases.is_empty() {
            return Ok(rows);
        }
        prepared.limit(item.work().output_bytes);
        if let Some(kernel) = gradients::kernel(item, self.device) {
            let kept = gradients::keep(item, &prepared, &self.pool)?;
            let mut back = |index: usize| {
                let index = index % kept.len();
                drop(kernel(&prepared.copies[index], &kept[index])?);
                Ok(())
            };
            let measured = tch::no_grad(|| self.measured(kept.len(), is_flushed, &mut back))?;
            rows.push(self.row(item, phases[0], &measured, None));
            return Ok(rows);
        }
        prepared.record()?;
        let outputs: Vec<Tensor> =
            (0..prepared.copies.len()).map(|index| prepared.call(index)).collect::<Result<_, _>>()?;
        let idle = self.idle(&outputs[0], is_flushed)?;
        for phase in phases {
            let leaves = |index: usize| {
                let copy = &prepared.copies[index];
                if *phase == Phase::WeightGradient { &copy.weights } else { &copy.inputs }
            };
            let mut backward = |index: usize| {
                let index = index % outputs.len();
                Tensor::f_run_backward(&[&outputs[index]], leaves(index), true, false)?;
                Ok(())
            };
            let measured = self.measured(outputs.len(), is_flushed, &mut backward)?;
            rows.push(if is_resolved(&measured.cold.device, &idle.cold.device) {
                self.row(item, *phase, &measured, Some(&idle))
            } else {
                // A row without a time: readers skip it, and the item is complete.
                Row::of(item, *phase, &self.name)
            });
        }
        Ok(rows)
    }

    /// Measures a call on rotating copies; then on a single one, and with empty caches, where that can make a
    /// difference.
    fn measured(&self, n_copies: usize, is_flushed: bool, call: &mut Call) -> Result<Measured, TorchError> {
        let cold = self.timer.measure(call)?;
        let is_short = cold.device.median() < LONG;
        let warm = if n_copies > 1 && is_short { Some(self.timer.glance(&mut |_| call(0))?) } else { None };
        let flush = self.flush.as_ref().filter(|_| is_flushed && is_short);
        let flushed = flush.map(|flush| flush.measure(&self.timer, call)).transpose()?;
        Ok(Measured { cold, warm, flushed })
    }

    /// Measures a backward pass without work: a gradient of ones is made and passed on.
    fn idle(&self, output: &Tensor, is_flushed: bool) -> Result<Measured, TorchError> {
        let leaf = tch::no_grad(|| output.f_detach())?.f_set_requires_grad(true)?;
        let root = leaf.f_alias()?;
        self.measured(1, is_flushed, &mut |_| {
            Tensor::f_run_backward(&[&root], &[&leaf], true, false)?;
            Ok(())
        })
    }

    fn row(&self, item: &Item, phase: Phase, measured: &Measured, idle: Option<&Measured>) -> Row {
        let Measured { cold, warm, flushed } = measured;
        let mut row = Row::of(item, phase, &self.name);
        let less =
            |seconds: f64, idle: Option<f64>| (seconds - idle.unwrap_or(0.0)).max(LEAST_SHARE * seconds);
        let device = idle.map(|idle| idle.cold.device.median());
        let quantile = |statistics: &Statistics, share| less(statistics.quantile(share), device);
        row.set_time("seconds", quantile(&cold.device, 0.5));
        row.set_time("seconds_min", quantile(&cold.device, 0.0));
        row.set_time("seconds_p90", quantile(&cold.device, 0.9));
        row.set("samples", cold.device.count());
        row.set_time("warm_seconds", quantile(&warm.as_ref().unwrap_or(cold).device, 0.5));
        if let Some(seconds) = flushed {
            row.set_time("flushed_seconds", less(*seconds, idle.and_then(|idle| idle.flushed)));
        }
        row.set_time("host_seconds", less(cold.host.median(), idle.map(|idle| idle.cold.host.median())));
        row.set_time("first_seconds", cold.first);
        row
    }
}

/// Returns whether a backward pass takes measurably longer than the start of autograd.
fn is_resolved(cold: &Statistics, idle: &Statistics) -> bool {
    let error = |times: &Statistics| times.error() * times.median();
    cold.median() - idle.median() > RESOLVED * error(cold).hypot(error(idle))
}
