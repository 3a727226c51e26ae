//! A memo table of best pipelines, by all that they depend on: O(stages) an answer, some hundreds for a model.
//!
//! Without a memory limit the best pipeline is the same for all schedules; and most numbers of micro-batches leave as many of
//! them in flight.

use crate::{
    Machine, MachineDevice, MicroBatches, Training,
    pipeline::best::{Sharing, best_pipeline, best_within_memory, best_without_limit},
    stage::{
        memo::{Memo, Numbers},
        place::Neighbours,
        run::Cut,
        scorer::Scorer,
    },
};

/// A pipeline and the seconds of its slowest stage for each micro-batch.
type Pipeline = (f64, Vec<Cut>);

/// Answers of [`best_pipeline`] over the same states.
#[derive(Default)]
pub(crate) struct PipelineCache {
    /// Machines of earlier questions: compared without their memory, and with it. A machine may have thousands of devices, so
    /// each is kept and compared once.
    machines: [Numbers<Machine>; 2],
    trainings: Numbers<Training>,
    answers: Memo<Question, Answer>,
}

/// All that an answer depends on.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Question {
    /// Numbers of the machine and of the training among those that were asked about.
    machine: usize,
    training: usize,
    sharing: Sharing,
    neighbours: Neighbours,
    /// How memory counts; `None` without a memory limit.
    memory: Option<Memory>,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct Memory {
    is_bound: bool,
    /// Micro-batches in flight of each stage and those of them that may wait for the weights' gradients, the last one first, and
    /// whether any do.
    in_flight: Vec<(usize, usize)>,
    is_split: bool,
}

/// The best pipeline below a bound.
#[derive(Clone)]
struct Answer {
    bound: f64,
    found: Option<Pipeline>,
}

impl PipelineCache {
    /// Finds the best pipeline of equal stages below a bound, for a schedule with a flush; `least` is a lower bound of the
    /// seconds of its slowest stage, or 0.
    ///
    /// The scorer's states must be the same in all calls.
    pub(crate) fn best_pipeline(
        &self,
        scorer: &Scorer,
        sharing: Sharing,
        least: f64,
        bound: f64,
    ) -> Option<Pipeline> {
        let Sharing::Equal { stages, replicas, .. } = sharing else {
            return best_pipeline(scorer, sharing, bound);
        };
        let own = &scorer.problem.training;
        let number = |training: Training| self.trainings.of(|other| *other == training, || training);
        // Without a memory limit it does not matter what replicas share out or what is recomputed.
        let training = number(Training { host_overhead: own.host_overhead, ..Training::default() });
        let neighbours = scorer.rules.neighbours;
        let machines = scorer.runs.machine(|with_memory| self.number(&scorer.problem.machine, with_memory));
        let question = Question { machine: machines[0], training, sharing, neighbours, memory: None };
        let roomy = self.ask(question.clone(), bound, || best_without_limit(scorer, sharing, bound))?;
        if scorer.is_roomy() {
            return Some(roomy);
        }
        let in_flight = scorer.rules.in_flight;
        let memory = Memory {
            is_bound: scorer.is_bound,
            in_flight: (1..=stages)
                .map(|layer| layer * replicas)
                .map(|behind| (in_flight.count(replicas, behind), in_flight.waiting(replicas, behind)))
                .collect(),
            is_split: in_flight.is_split(),
        };
        // Leaves out fields that matter only through the micro-batches in flight.
        let training = number(Training {
            micro_batches: MicroBatches::Enough,
            most_micro_batches: u32::MAX,
            devices_each: 1,
            stages: None,
            only_groups: false,
            only_replicas: false,
            ..*own
        });
        let question = Question { machine: machines[1], training, memory: Some(memory), ..question };
        self.ask(question, bound, || best_within_memory(scorer, sharing, roomy.0.max(least), bound))
    }

    /// Returns the number of a machine, among those that differ with or without their memory.
    pub(crate) fn number(&self, machine: &Machine, with_memory: bool) -> usize {
        let is_same = |other: &Machine| is_alike(machine, other, with_memory);
        self.machines[usize::from(with_memory)].of(is_same, || machine.clone())
    }

    /// Looks an answer up, or finds it.
    fn ask(
        &self,
        question: Question,
        bound: f64,
        find: impl FnOnce() -> Option<Pipeline>,
    ) -> Option<Pipeline> {
        // No answer below one bound does not tell of higher bounds.
        let is_enough = |before: &Answer| before.found.is_some() || bound <= before.bound;
        let answer = self.answers.get_if(question, is_enough, |_| Answer { bound, found: find() });
        // Solvers overshoot the bound by as much for rounding.
        answer.found.filter(|found| found.0 < bound * (1.0 + 1e-12))
    }
}

/// Tells whether two machines are the same, with or without their memory.
fn is_alike(one: &Machine, other: &Machine, with_memory: bool) -> bool {
    let is_same = |(one, other): (&MachineDevice, &MachineDevice)| {
        let MachineDevice { name, speed, memory, memory_bandwidth, host_bandwidth, place } = one;
        *speed == other.speed
            && (!with_memory || *memory == other.memory)
            && *memory_bandwidth == other.memory_bandwidth
            && *host_bandwidth == other.host_bandwidth
            && *place == other.place
            && *name == other.name
    };
    let Machine { devices, levels, links, overlaps } = one;
    *overlaps == other.overlaps
        && *levels == other.levels
        && *links == other.links
        && devices.len() == other.devices.len()
        && devices.iter().zip(&other.devices).all(is_same)
}

#[cfg(test)]
mod tests {
    use simulator::order::InFlight;

    use super::*;
    use crate::{
        dag::cut_states::States,
        oracle::random_problems::{Dice, cases, is_skipped, problem},
        pipeline::best::relaxed_pipeline,
        stage::score::Rules,
    };

    #[test]
    fn cached_pipelines_are_those_that_a_search_finds() {
        let mut dice = Dice(47);
        let (mut n_found, mut n_none) = (0, 0);
        for case in 0..cases(200) {
            let (n_blocks, stages) = (2 + dice.below(5) as usize, 1 + dice.below(3) as usize);
            let is_uniform = dice.flip();
            let mut problem = problem(&mut dice, n_blocks, stages, false, is_uniform);
            if dice.flip() {
                let memory = 60 + dice.below(300);
                problem.machine.devices.iter_mut().for_each(|device| device.memory.0 = memory);
            }
            let bounds: Vec<f64> =
                (0..12).map(|_| problem.seconds() * dice.below(20) as f64 / 10.0).collect();
            if is_skipped(case) {
                continue;
            }
            let states = States::ideals(&problem, 1000).unwrap();
            let cache = PipelineCache::default();
            let sharing = Sharing::Equal { stages, replicas: 1, replicas_together: true };
            for (index, bound) in bounds.into_iter().enumerate() {
                let in_flight = match index % 4 {
                    0 => InFlight::All(4),
                    1 => InFlight::Split(2),
                    count => InFlight::UntilEnd(count as u32),
                };
                let rules = Rules { is_asynchronous: false, in_flight, neighbours: Neighbours::Paired };
                let bound = if bound == 0.0 { f64::INFINITY } else { bound };
                let scorer = Scorer::new(&problem, &states, rules);
                // A lower bound changes nothing but where the search begins.
                let least = if index % 3 == 0 { problem.seconds() / stages as f64 } else { 0.0 };
                let asked = cache.best_pipeline(&scorer, sharing, least, bound);
                let found = best_pipeline(&Scorer::new(&problem, &states, rules), sharing, bound);
                assert_eq!(asked, found, "case {case}, {rules:?} below {bound}");
                // Without knapsacks no pipeline seems slower than it is, and none that fits is missed.
                let relaxed = relaxed_pipeline(&Scorer::new(&problem, &states, rules), sharing, bound);
                let seconds =
                    |found: &Option<Pipeline>| found.as_ref().map_or(f64::INFINITY, |found| found.0);
                let is_less = seconds(&relaxed) <= seconds(&found) * (1.0 + 1e-9);
                assert!(is_less, "case {case}, {rules:?} below {bound}: {relaxed:?} {found:?}");
                n_found += usize::from(found.is_some());
                n_none += usize::from(found.is_none());
            }
        }
        assert!(is_skipped(0) || n_found.min(n_none) > 200, "{n_found} {n_none}");
    }
}
