//! Measures the operators of a plan on one device.
//!
//! The gradients of some operators are kernels that can be called ([`crate::gradients`]). For the others
//! a backward pass is started with a gradient of ones, because tch can pass no other; making the ones, and starting
//! autograd, is measured beside it on an operator that does nothing, and subtracted.

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
/// Of a GPU whose driver does not tell its cache: twice that of an H100.
const GPU_CACHE: f64 = 100e6;
/// Of a processor that does not tell its cache.
const PROCESSOR_CACHE: f64 = 64e6;
/// Copies of a GPU's operators fill its cache so many times: results lie where the one before lay, so inputs alone must
/// drive each other out, and a cache does not forget in order.
const GPU_ROTATION: f64 = 4.0;
/// The first generation of GPUs whose tensor cores take bfloat16 and TF32.
const AMPERE: u32 = 80;
/// Longer calls, in seconds, are the same with warm caches.
const LONG: f64 = 5e-3;
/// Of so many operators one is measured with empty caches as well.
const FLUSHED_EVERY: u64 = 4;
/// Least share of a measured backward pass that subtraction leaves.
const LEAST_SHARE: f64 = 0.05;
/// A difference of two times is one when it is so many times its own error.
const RESOLVED: f64 = 4.0;

/// A device that operators are measured on.
pub struct Bench {
    device: Device,
    name: String,
    /// Of a GPU.
    card: Option<Card>,
    timer: Timer,
    pool: Pool,
    /// Bytes that no cache holds.
    rotation: f64,
    /// On processors.
    flush: Option<Flush>,
}

/// What was measured of one call.
struct Measured {
    cold: Timing,
    /// Where that could make a difference.
    warm: Option<Timing>,
    /// Seconds with empty caches, where that was measured.
    flushed: Option<f64>,
}

/// What a call costs besides its work, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Overhead {
    /// A call of an operator of one element.
    pub call: f64,
    /// What is added when autograd records it.
    pub recording: f64,
    /// One such operator on the way back.
    pub backward: f64,
    /// What is added on a processor when other operators have run since, so that its cache no longer holds the code.
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
    /// Opens a device; the number of threads is left as it is when none is given.
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

    /// Returns the device's name as rows have it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Tells whether this is a CUDA device.
    pub fn is_cuda(&self) -> bool {
        self.device.is_cuda()
    }

    /// Returns the types that are worth measuring: of a GPU those that it multiplies by itself, of a processor the usual one.
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
        // A GPU whose driver says nothing has neither.
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
            match self.device.is_cuda() {
                true => "seconds: on the device, batches of calls queued behind copies whose own time is subtracted; host_seconds: until a call returns",
                false => "seconds: median of single calls, without what the thread waited for a processor, in memory that stays with the process",
            }
            .to_string()
                + "; inputs rotate over copies larger than the cache, warm_seconds are without that, flushed_seconds with empty caches; backward without autograd's start, without a time where that cannot be told from noise",
        );
        Ok(header)
    }

    /// Measures rates, of each type its own, rounded up to powers of two: small differences do not change the plan, and its
    /// longest operators take as long as they should.
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

    /// Measures how fast the machine is now, by work that is always the same.
    ///
    /// # Errors
    /// When the device fails.
    pub fn pace(&self) -> Result<Pace, TorchError> {
        let (product, copy) = (self.product(DType::Float32)?.0, self.copy()?.0);
        Ok(Pace { product: product.device.median(), copy: copy.device.median() })
    }

    /// Times a product that fills the device; with its FLOPs.
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

    /// Times a copy; with its bytes.
    fn copy(&self) -> Result<(Timing, f64), TorchError> {
        let elements = 1_i64 << if self.device.is_cuda() { 26 } else { 23 };
        // Zeros could all be one page of the kernel's.
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

    /// Says how float32 is multiplied from now on.
    fn multiply_as(&self, dtype: DType) -> Result<(), TorchError> {
        if self.device.is_cuda() {
            precision::set(if dtype == DType::Tf32 { Tf32::Allowed } else { Tf32::Forbidden })?;
        }
        Ok(())
    }

    /// Measures what a call costs besides its work.
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
    /// When the device has no room for it, or no such operator.
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
            rows.push(match is_resolved(&measured.cold.device, &idle.cold.device) {
                true => self.row(item, *phase, &measured, Some(&idle)),
                // A row without a time: readers pass over it, and the item is complete.
                false => Row::of(item, *phase, &self.name),
            });
        }
        Ok(rows)
    }

    /// Measures a call on copies in turn; then on one alone, and with empty caches, where that could make a difference.
    fn measured(&self, n_copies: usize, is_flushed: bool, call: &mut Call) -> Result<Measured, TorchError> {
        let cold = self.timer.measure(call)?;
        let is_short = cold.device.median() < LONG;
        let warm = if n_copies > 1 && is_short { Some(self.timer.glance(&mut |_| call(0))?) } else { None };
        let flush = self.flush.as_ref().filter(|_| is_flushed && is_short);
        let flushed = flush.map(|flush| flush.measure(&self.timer, call)).transpose()?;
        Ok(Measured { cold, warm, flushed })
    }

    /// Measures a backward pass without work: a gradient of ones is made and handed on.
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

/// Tells whether a backward pass takes measurably longer than autograd's start.
fn is_resolved(cold: &Statistics, idle: &Statistics) -> bool {
    let error = |times: &Statistics| times.error() * times.median();
    cold.median() - idle.median() > RESOLVED * error(cold).hypot(error(idle))
}
