//! What a processor adds to the times of single calls: recording them, finding code again, touching memory first.

use graph::{ModelGraph, Operator, OperatorCosts};
use schema::{CallOverhead, Phase};

use super::cold_caches::{code_distances, lost, lost_memory};
use crate::{estimate::Estimate, work::Machine};

/// Bytes of a core's own cache, which holds its code: 0.5 to 2 MiB on servers since 2017.
const OWN_CACHE: f64 = 2.0 * 1024.0 * 1024.0;
/// Share of the memory kept over a training step that the next step finds cleared: by page faults of steps of GPT-2,
/// ViT and ResNet-18 under glibc, it was 0, 0, 0.2 and 0.6.
const FRESH_SHARE: f64 = 0.3;
/// Where the gradients exceed the largest allocation that is not mapped by this factor, they are returned as a whole: glibc
/// trims free memory at the heap's end. Of BERT's and ResNet-50's 0.9 and 1.1 were found cleared, and nothing else.
const TRIMMED: f64 = 2.0;
/// p10 and p90 of memory that is cleared, relative to the time.
const FRESH_BAND: (f64, f64) = (0.0, 2.5);
/// The same for calls without work.
const OVERHEAD_BAND: (f64, f64) = (0.7, 1.6);
/// The same for code that has to be found again: it took half to twice the usual time, by operator.
const COLD_BAND: (f64, f64) = (0.5, 1.8);

/// What curves and profile of a device tell of calls on a processor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallTimes {
    /// A call without work; nothing where that was not measured.
    pub overhead: Option<CallOverhead>,
    /// Seconds for a byte that the kernel has to clear first.
    pub fresh: Option<f64>,
    /// Whether a curve has the cost of empty caches. Where it was measured, memory stayed with the process.
    pub knows_flushed: bool,
}

/// What a processor adds to the times of a graph's operators; nothing on an accelerator.
pub(crate) struct HostTimes<'a> {
    graph: &'a ModelGraph,
    overhead: Option<CallOverhead>,
    fresh: Option<f64>,
    /// Bytes of the last cache.
    last_cache: f64,
    /// Bytes since an operator's code last ran, forward and backward; empty if the cost of cold code was not measured.
    code_distances: Vec<[f64; 2]>,
    /// Share of the memory given to operators that the cache has lost, forward and backward; `None` if its cost was not measured.
    lost_memory: Option<Vec<[f64; 2]>>,
    /// Bytes of the gradients of all weights.
    gradients: f64,
}

impl<'a> HostTimes<'a> {
    /// Looks at a graph, of which `moved` are the bytes that each operator moves. O(operators).
    pub fn new(
        graph: &'a ModelGraph,
        costs: &OperatorCosts,
        known: CallTimes,
        machine: &Machine,
        moved: &[f64],
        batch_scale: f64,
    ) -> Self {
        let CallTimes { overhead, fresh, knows_flushed } = known;
        let overhead = overhead.filter(|_| machine.is_processor());
        let has_cold = !moved.is_empty() && overhead.is_some_and(|overhead| overhead.cold > 0.0);
        Self {
            graph,
            overhead,
            fresh: fresh.filter(|_| !knows_flushed && machine.is_processor()),
            last_cache: machine.last_cache,
            code_distances: if has_cold || knows_flushed { code_distances(graph, moved) } else { Vec::new() },
            lost_memory: knows_flushed.then(|| lost_memory(graph, costs, machine.last_cache, batch_scale)),
            gradients: gradients(graph),
        }
    }

    /// Returns the times of a view: a call forward, and a call back.
    pub fn view(&self) -> Option<[Estimate; 2]> {
        let overhead = self.overhead?;
        Some([
            Estimate::about(overhead.call, OVERHEAD_BAND),
            Estimate::about(overhead.recording + overhead.backward, OVERHEAD_BAND),
        ])
    }

    /// Returns the time in which autograd records a call and comes back to it.
    pub fn recording(&self) -> Option<Estimate> {
        let overhead = self.overhead?;
        let around = overhead.recording + (overhead.backward - overhead.call).max(0.0);
        Some(Estimate::about(around, OVERHEAD_BAND))
    }

    /// Returns the shortest time of a call.
    pub fn shortest(&self, launch: f64) -> f64 {
        self.overhead.map_or(launch, |overhead| overhead.call.max(launch))
    }

    /// Returns the shares that the last cache lost of an operator's code and of the memory that it is given.
    pub fn lost(&self, operator: &Operator, phase: Phase) -> [f64; 2] {
        let (index, way) = (operator.id.index(), usize::from(phase != Phase::Forward));
        self.lost_memory.as_ref().map_or([0.0; 2], |memory| {
            [lost(self.code_distances[index][way], self.last_cache), memory[index][way]]
        })
    }

    /// Returns the time that lost code and memory add to a call.
    pub fn found_again(seconds: f64) -> Estimate {
        Estimate::about(seconds, COLD_BAND)
    }

    /// Returns the time to load code again that other operators evicted from the core's own cache. If the loss from the last
    /// cache is counted already, returns only the rest.
    pub fn cold_code(&self, operator: &Operator, phase: Phase, is_counted: bool) -> Option<Estimate> {
        let distance = self.code_distances.get(operator.id.index())?[usize::from(phase != Phase::Forward)];
        let counted = if is_counted { lost(distance, self.last_cache) } else { 0.0 };
        let cold = self.overhead?.cold * lost(distance, OWN_CACHE) * (1.0 - counted);
        (cold > 0.0).then(|| Estimate::about(cold, COLD_BAND))
    }

    /// Returns the time to clear memory kept over a training step: it is freed at the end, in part to the kernel, which clears
    /// its pages when the next step touches them. A forward pass alone reuses the same pages, as a profile does.
    pub fn first_touch(
        &self,
        operator: &Operator,
        machine: &Machine,
        trains: bool,
        saved: f64,
    ) -> Option<Estimate> {
        let (fresh, host) = (self.fresh?, machine.host?);
        let gradients = operator.tensors.iter().map(|tensor| self.graph.tensor(*tensor));
        // Larger ones are fresh in profiles as well.
        let gradients =
            gradients.filter(|tensor| trains && tensor.requires_grad && (tensor.bytes as f64) < host.mapped);
        let bytes = gradients.map(|tensor| tensor.bytes).sum::<u64>() as f64;
        let is_trimmed = self.gradients > TRIMMED * host.mapped;
        let bytes = if is_trimmed { bytes } else { FRESH_SHARE * (bytes + saved) };
        Some(Estimate::about(bytes * fresh, FRESH_BAND))
    }

    /// Returns the time to clear a tensor so large that it is fresh memory each time.
    pub fn cleared(&self, machine: &Machine, bytes: f64) -> Option<Estimate> {
        let fresh = self.fresh.filter(|_| machine.host.is_some_and(|host| bytes > host.mapped))?;
        Some(Estimate::about(bytes * fresh, FRESH_BAND))
    }
}

/// Returns the bytes of the gradients of all weights, those that are tied once.
fn gradients(graph: &ModelGraph) -> f64 {
    let weights = graph.tensors.iter().filter(|tensor| tensor.requires_grad && tensor.first == tensor.id);
    weights.map(|tensor| tensor.bytes as f64).sum()
}
