//! The shape of a synchronous plan: stages in a row, chunks of each rank, replicas.

use simulator::order::{OrderError, Schedule, Shape};

use crate::{
    error::PlanError,
    problem::{MicroBatches, Problem},
    strategy::Strategy,
};

/// Up to this many devices, all numbers of stages and replicas are tried; beyond, those that use all devices, and halves.
pub(crate) const FEW_DEVICES: usize = 16;

/// Stages in a row, each of as many chunks and replicas, under a schedule.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grid {
    pub(crate) schedule: Schedule,
    pub(crate) ranks: usize,
    pub(crate) chunks: usize,
    pub(crate) replicas: usize,
    /// Whether replicas of a stage sit side by side, or whole pipelines do.
    pub(crate) replicas_together: bool,
}

impl Grid {
    /// Returns how many parts the model is cut into.
    pub(crate) fn n_stages(self) -> usize {
        self.ranks * self.chunks
    }

    /// Returns the micro-batches of each replica.
    ///
    /// # Errors
    /// When exactly so many were asked for as replicas cannot share evenly or the schedule does not take.
    pub(crate) fn micro_batches(self, problem: &Problem, strategy: Strategy) -> Result<usize, PlanError> {
        let wanted = problem.training.wanted(&problem.machine) as usize;
        let is_exact = matches!(problem.training.micro_batches, MicroBatches::Exactly(_));
        let refused = |reason: String| PlanError::Schedule { strategy: strategy.name(), reason };
        if is_exact && !wanted.is_multiple_of(self.replicas) {
            let replicas = self.replicas;
            return Err(refused(format!(
                "{wanted} micro-batches cannot be shared evenly by {replicas} replicas"
            )));
        }
        let each = wanted.div_ceil(self.replicas).max(1);
        match self.schedule.check(self.shape(each)) {
            Ok(()) => Ok(each),
            // Some schedules take micro-batches in rounds: a few more, then.
            Err(OrderError::MicroBatches { smallest: Some(next), .. }) if !is_exact => Ok(next as usize),
            Err(error) => Err(refused(error.to_string())),
        }
    }

    pub(crate) fn shape(self, each: usize) -> Shape {
        Shape { ranks: self.ranks as u32, chunks: self.chunks as u32, micro_batches: each as u32 }
    }
}

/// Numbers of stages or replicas to try, the most first.
pub(crate) fn counts(least: usize, most: usize) -> Vec<usize> {
    if most <= FEW_DEVICES {
        return (least.min(most)..=most).rev().collect();
    }
    std::iter::successors(Some(most), |&count| Some(count / 2)).take_while(|&count| count >= least).collect()
}
