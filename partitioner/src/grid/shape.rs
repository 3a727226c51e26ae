//! The shape of a synchronous plan: stages in a row, chunks of each rank, replicas.

use simulator::order::{OrderError, Schedule, Shape};

use crate::{
    problem::{MicroBatches, Problem},
    stage::run::{Run, rank_of},
};

/// Up to this many devices, all numbers of stages and replicas are tried; beyond, only those that use all devices, and halves.
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
    /// Returns the number of parts that the model is cut into.
    pub(crate) fn n_stages(self) -> usize {
        self.ranks * self.chunks
    }

    /// Returns the devices of one of `n_parts` parts in a row, each with replicas of its own.
    pub(crate) fn run(self, part: usize, n_parts: usize) -> Run {
        if self.replicas_together {
            Run { first: part * self.replicas, count: self.replicas, stride: 1 }
        } else {
            Run { first: part, count: self.replicas, stride: n_parts }
        }
    }

    /// Returns the rank that holds a stage.
    pub(crate) fn rank_of(self, stage: usize) -> usize {
        rank_of(self.schedule, stage, self.ranks)
    }

    /// Returns the devices of a stage; chunks of a rank share theirs.
    pub(crate) fn devices(self, stage: usize) -> Run {
        self.run(self.rank_of(stage), self.ranks)
    }

    /// Returns the numbers of stages and replicas; (0, 0) with several chunks, whose grids keep their own order.
    pub(crate) fn likeness(self) -> (usize, usize) {
        if self.chunks == 1 { (self.ranks, self.replicas) } else { (0, 0) }
    }

    /// Returns the micro-batches of each replica: no more than a step may have, unless each has one or the schedule takes no
    /// fewer.
    ///
    /// # Errors
    /// When an exact number was asked for that replicas cannot share evenly or the schedule does not take.
    pub(crate) fn micro_batches(self, problem: &Problem) -> Result<usize, String> {
        let wanted = problem.training.wanted(&problem.machine) as usize;
        let is_exact = matches!(problem.training.micro_batches, MicroBatches::Exactly(_));
        if is_exact && !wanted.is_multiple_of(self.replicas) {
            let replicas = self.replicas;
            return Err(format!("{wanted} micro-batches cannot be shared evenly by {replicas} replicas"));
        }
        let most = problem.training.most_micro_batches as usize / self.replicas;
        let each = wanted.div_ceil(self.replicas).max(1);
        let each = if is_exact { each } else { each.min(most.max(1)) };
        let is_taken = |each: usize| self.schedule.check(self.shape(each));
        match is_taken(each) {
            Ok(()) => Ok(each),
            // Some schedules take micro-batches in rounds: add a few to complete one, or leave some where a step may have no more.
            Err(OrderError::MicroBatches { smallest: Some(next), .. }) if !is_exact => {
                let fewer = (1..each).rev().find(|&fewer| next as usize > most && is_taken(fewer).is_ok());
                Ok(fewer.unwrap_or(next as usize))
            }
            Err(error) => Err(error.to_string()),
        }
    }

    pub(crate) fn shape(self, each: usize) -> Shape {
        Shape { ranks: self.ranks as u32, chunks: self.chunks as u32, micro_batches: each as u32 }
    }
}

/// The space of grids: the numbers of devices and blocks, and the shape that was asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GridSpace {
    pub(crate) n_devices: usize,
    /// Blocks with something to compute.
    pub(crate) n_blocks: usize,
    /// Stages in a row that were asked for.
    pub(crate) wanted: Option<usize>,
    /// Whether all cuts are given.
    pub(crate) is_given: bool,
    /// Whether all devices and links are alike.
    pub(crate) is_uniform: bool,
    /// Whether stages of one of several numbers of chunks may have replicas.
    pub(crate) replicated_chunks: bool,
    /// Micro-batches of a step that replicas share evenly, if an exact number was asked for.
    pub(crate) micro_batches: Option<usize>,
}

impl GridSpace {
    /// Returns pipelines without replicas, of as many stages as were asked for or of each number to try.
    pub(crate) fn straight(&self, schedule: Schedule, chunks: usize) -> Vec<Grid> {
        let n_parts = self.n_blocks / chunks;
        let ranks = self.wanted.map_or_else(|| counts(2, self.n_devices.min(n_parts)), |wanted| vec![wanted]);
        let grid = |ranks| Grid { schedule, ranks, chunks, replicas: 1, replicas_together: true };
        ranks.into_iter().filter(|ranks| (1..=n_parts).contains(ranks)).map(grid).collect()
    }

    /// Returns pipelines of one stage on each rank, without replicas and with them.
    pub(crate) fn pipelines(&self, schedule: Schedule) -> Vec<Grid> {
        let mut grids = self.straight(schedule, 1);
        grids.extend(self.replicated(schedule, 1));
        grids
    }

    /// Returns pipelines whose stages have two replicas or more: all shapes on few devices, else those that leave few devices idle.
    pub(crate) fn replicated(&self, schedule: Schedule, chunks: usize) -> Vec<Grid> {
        let most = (self.n_devices / 2).min(self.n_blocks / chunks);
        let mut grids = Vec::new();
        for ranks in (2..=most).filter(|&ranks| self.wanted.is_none_or(|wanted| ranks == wanted)) {
            let all = self.most_replicas(ranks);
            // One more rank with as many replicas would fit, so this shape leaves devices idle.
            let is_wasteful = ranks < most && self.most_replicas(ranks + 1) == all && self.wanted.is_none();
            let replicas = if self.n_devices <= FEW_DEVICES {
                (2..=self.n_devices / ranks).rev().collect()
            } else if is_wasteful || all < 2 {
                Vec::new()
            } else {
                vec![all]
            };
            for replicas in replicas {
                for replicas_together in [true, false] {
                    // If all devices are alike, both arrangements are equal.
                    if replicas_together || !self.is_uniform {
                        grids.push(Grid { schedule, ranks, chunks, replicas, replicas_together });
                    }
                }
            }
        }
        grids
    }

    /// Returns the most replicas of so many ranks for which there are devices, and which can share the micro-batches of a step evenly.
    fn most_replicas(&self, ranks: usize) -> usize {
        let all = self.n_devices / ranks;
        let Some(micro_batches) = self.micro_batches else { return all };
        (2..=all).rev().find(|&replicas| micro_batches.is_multiple_of(replicas)).unwrap_or(all)
    }

    /// Returns one stage of the whole model with each number of replicas to try.
    ///
    /// # Errors
    /// When more stages were asked for.
    pub(crate) fn whole_models(&self) -> Result<Vec<Grid>, String> {
        let few = self.n_devices <= FEW_DEVICES;
        let most = if few { self.n_devices } else { self.most_replicas(1) };
        counts(2, most).into_iter().map(|replicas| self.whole_model(replicas)).collect()
    }

    /// Returns pipelines with several chunks on each rank, and replicas of them where these are searched.
    ///
    /// # Errors
    /// When all cuts are given, or there are too few devices or blocks.
    pub(crate) fn chunked(
        &self,
        schedule: Schedule,
        chunks: std::ops::RangeInclusive<usize>,
    ) -> Result<Vec<Grid>, String> {
        if self.is_given {
            return Err("it makes several parts of each stage, and all cuts are given".into());
        }
        // With many devices, only shapes that use all of them.
        let is_full = |grid: &Grid| {
            self.n_devices <= FEW_DEVICES
                || self.wanted.is_some()
                || self.n_devices.is_multiple_of(grid.ranks)
        };
        // A fixed number of chunks leaves few shapes, so replicas are tried too.
        let is_one = chunks.start() == chunks.end();
        let replicated = |chunks: usize| {
            let is_asked = is_one || self.replicated_chunks;
            let all = if is_asked { self.replicated(schedule, chunks) } else { Vec::new() };
            all.into_iter().filter(is_full)
        };
        let grids =
            chunks.flat_map(|chunks| self.straight(schedule, chunks).into_iter().chain(replicated(chunks)));
        let grids: Vec<Grid> = grids.filter(|grid| grid.ranks > 1).collect();
        if grids.is_empty() {
            return Err("two chunks on each of two devices need four blocks".into());
        }
        Ok(grids)
    }

    /// Returns one stage with replicas.
    ///
    /// # Errors
    /// When more stages were asked for.
    pub(crate) fn whole_model(&self, replicas: usize) -> Result<Grid, String> {
        if self.wanted.is_some_and(|stages| stages != 1) {
            return Err("the whole model is one stage; more were asked for".into());
        }
        let schedule = Schedule::OneForwardOneBackward;
        Ok(Grid { schedule, ranks: 1, chunks: 1, replicas, replicas_together: true })
    }

    /// Returns a pipeline over all devices, as one cuts by hand.
    pub(crate) fn by_hand(&self) -> Grid {
        let ranks = self.wanted.unwrap_or(self.n_devices.min(self.n_blocks));
        let schedule = Schedule::OneForwardOneBackward;
        Grid { schedule, ranks, chunks: 1, replicas: 1, replicas_together: true }
    }
}

/// Numbers of stages or replicas to try, the most first.
pub(crate) fn counts(least: usize, most: usize) -> Vec<usize> {
    if most <= FEW_DEVICES {
        return (least.min(most)..=most).rev().collect();
    }
    std::iter::successors(Some(most), |&count| Some(count / 2)).take_while(|&count| count >= least).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        oracle::random_problems::{Dice, problem},
        plan_with,
        strategy::Strategy,
    };

    /// Of many devices those are taken that can share the micro-batches of a step evenly.
    #[test]
    fn replicas_of_many_devices_divide_an_exact_number_of_micro_batches() {
        let space = |n_devices, micro_batches| GridSpace {
            n_devices,
            n_blocks: 12,
            wanted: None,
            is_given: false,
            is_uniform: true,
            replicated_chunks: true,
            micro_batches,
        };
        let check = |n_devices, micro_batches, whole: &[usize], stages: &[(usize, usize)]| {
            let space = space(n_devices, micro_batches);
            let own = space.whole_models().expect("one stage");
            assert_eq!(own.iter().map(|grid| grid.replicas).collect::<Vec<_>>(), whole);
            let own = space.replicated(Schedule::OneForwardOneBackward, 1);
            assert_eq!(own.iter().map(|grid| (grid.ranks, grid.replicas)).collect::<Vec<_>>(), stages);
        };
        check(24, None, &[24, 12, 6, 3], &[(2, 12), (3, 8), (4, 6), (6, 4), (8, 3), (12, 2)]);
        check(
            24,
            Some(64),
            &[16, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2],
            &[(3, 8), (6, 4), (12, 2)],
        );
        check(72, Some(32), &[32, 16, 8, 4, 2], &[(2, 32), (4, 16), (9, 8), (12, 4)]);
    }

    /// Devices beyond a number that can share a step's micro-batches never make it slower.
    #[test]
    fn more_devices_than_share_a_step_leave_it_as_fast() {
        for case in 0..6 {
            let seconds = |n_devices: usize| {
                let mut problem = problem(&mut Dice(case), 4, n_devices, true, true);
                problem.training.micro_batches = MicroBatches::Exactly(16);
                plan_with(&problem, Strategy::DataParallel).expect("there is room").seconds()
            };
            let (few, many) = (seconds(16), seconds(22));
            assert!(many <= few * (1.0 + 1e-9), "case {case}: {many} on 22 devices, {few} on 16");
        }
    }

    /// A step whose size the planner chooses has no more micro-batches than it may have, whatever replicas and rounds share.
    #[test]
    fn a_step_has_no_more_micro_batches_than_it_may() {
        let mut problem = problem(&mut Dice(7), 4, 4, true, true);
        let mut check =
            |schedule: Schedule, [ranks, chunks, replicas]: [usize; 3], [wanted, most]: [u32; 2], each| {
                problem.training.micro_batches = MicroBatches::About(wanted);
                problem.training.most_micro_batches = most;
                let grid = Grid { schedule, ranks, chunks, replicas, replicas_together: true };
                assert_eq!(grid.micro_batches(&problem), Ok(each), "{grid:?}, {wanted} of {most}");
            };
        check(Schedule::OneForwardOneBackward, [1, 1, 3], [16, 16], 5);
        check(Schedule::OneForwardOneBackward, [1, 1, 3], [16, 17], 5);
        check(Schedule::OneForwardOneBackward, [1, 1, 3], [16, 18], 6);
        check(Schedule::OneForwardOneBackward, [1, 1, 32], [16, 16], 1);
        check(Schedule::Interleaved1F1B, [3, 2, 1], [16, 16], 15);
        check(Schedule::Interleaved1F1B, [3, 2, 1], [16, 18], 18);
    }
}
