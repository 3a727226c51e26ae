//! What a stage costs, and by which rules of a schedule.

use schema::RecomputeUnit;

use simulator::order::InFlight;

use crate::{
    problem::{Again, Problem},
    stage::place::Neighbours,
};

/// What bounds a stage's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum BoundBy {
    /// Computing.
    Compute,
    /// Synchronising replicas.
    Sync,
    /// Moving activations and gradients.
    Transfer,
    /// Recomputation and offload.
    Memory,
}

impl BoundBy {
    /// Returns the word for messages and files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Compute => "compute",
            Self::Sync => "sync",
            Self::Transfer => "transfer",
            Self::Memory => "memory",
        }
    }
}

/// What a stage costs.
#[derive(Clone, Debug, PartialEq)]
pub struct StageScore {
    /// Seconds for each micro-batch, all replicas together.
    pub seconds: f64,
    /// Seconds of computing, recomputation included, shared by the replicas.
    pub compute: f64,
    /// Of these, seconds of recomputation and of copies to the host.
    pub overhead: f64,
    /// Seconds of synchronising replicas.
    pub sync: f64,
    /// Seconds of the fuller direction of the port.
    pub transfer: f64,
    /// Seconds of forward passes, sums and updates that follow each other; 0 where nothing does.
    pub round: f64,
    /// Bytes at the peak, on each device.
    pub memory: f64,
    /// Bytes of the smallest device.
    pub limit: f64,
    /// Blocks that are recomputed.
    pub recompute: Vec<usize>,
    /// Those of them that keep their dear results.
    pub light: Vec<usize>,
    /// Whether they are recomputed block by block, or the stage at once.
    pub recompute_unit: RecomputeUnit,
    /// Blocks whose saved activations are offloaded.
    pub offload: Vec<usize>,
    /// Whether the choice was given, so that memory decided nothing.
    pub is_as_asked: bool,
    /// What bounds it.
    pub bound_by: BoundBy,
}

impl StageScore {
    /// Returns the blocks that are recomputed, each with what that takes.
    pub(crate) fn again(&self, problem: &Problem) -> impl Iterator<Item = (usize, Again)> {
        let last = self.recompute.last().copied();
        let of = move |&block: &usize| {
            let own = &problem.blocks[block];
            let again = own.again(self.light.contains(&block));
            // Within a stage that is computed again at once, only the last block ends early.
            let is_whole = !self.recompute_unit.is_block() && Some(block) != last;
            (block, if is_whole { Again { forward: own.forward, ..again } } else { again })
        };
        self.recompute.iter().map(of)
    }

    /// Adds its parts up, or takes the largest where the machine overlaps them.
    pub(crate) fn settle(&mut self, overlaps: bool) {
        self.seconds = total(overlaps, self.compute, self.sync, self.transfer).max(self.round);
        let sync = self.sync.max(self.round);
        let is_compute = self.compute >= sync && self.compute >= self.transfer;
        self.bound_by = if is_compute && self.overhead > 0.0 && !self.is_as_asked {
            BoundBy::Memory
        } else if is_compute {
            BoundBy::Compute
        } else if sync >= self.transfer {
            BoundBy::Sync
        } else {
            BoundBy::Transfer
        };
    }
}

/// Seconds for each micro-batch: the largest part where parts overlap, their sum where not.
pub(crate) fn total(overlaps: bool, compute: f64, sync: f64, transfer: f64) -> f64 {
    if overlaps { compute.max(sync).max(transfer) } else { compute + sync + transfer }
}

/// The rules of a schedule that decide what stages cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Whether replicas synchronise after every round, and old versions of the parameters are kept.
    pub is_asynchronous: bool,
    /// Micro-batches in flight.
    pub in_flight: InFlight,
    /// Which links join a stage to its neighbours.
    pub neighbours: Neighbours,
}
