//! Which blocks a model is planned in: first coarse ones, then finer ones around the boundaries of the plans found.
//!
//! The coarse blocks are always planned, whatever the number of devices, so that more devices never make a plan slower.
//! A model of few operators is planned over all of them.

use std::collections::{BTreeMap, BTreeSet};

use partitioner::{
    Effort, Grain, Limits, MicroBatches, PlanError, Planned, Problem, Sliceable, Solution, Strategy,
    bound_of_any_cut, plan_model, plan_model_below, plan_near,
};

use super::asked::{Asked, Question};

/// Operators × devices up to which every operator is a block of its own.
const FEW: usize = 3_000;
/// The same where memory is short, which takes longer.
const FEWER: usize = 1_500;
/// The most blocks for pipelines of as many stages as devices.
const MOST_WANTED: usize = 64;
/// Rounds in a row without a gain after which opening blocks stops.
const IDLE_ROUNDS: usize = 2;
/// The number of fastest pipelines around whose boundaries blocks are opened.
const PIPELINES: usize = 2;
/// Share by which a plan must be faster to count as better: times are no more precise than that.
const GAIN: f64 = 1e-4;

/// A model divided into blocks, and its plans.
type Found = (Asked, Planned);
/// Blocks without a plan, and the reason.
pub(super) type NoPlan = (Problem, PlanError);

/// Finds the best plan over all grains; plans that take `below` seconds for each micro-batch are of no use, so blocks around
/// their boundaries are opened, but not planned with all strategies.
pub(super) fn planned(
    question: &Question<'_>,
    strategy: Option<Strategy>,
    joined: &BTreeSet<String>,
    given: Option<&Grain>,
    below: f64,
) -> Result<Found, Vec<NoPlan>> {
    let model = question.sliceable();
    let replicated_chunks = strategy.is_some_and(Strategy::makes_chunks);
    let limits = Limits { replicated_chunks, ..Limits::NORMAL };
    let mut search =
        Search { question, model: model.as_ref(), strategy, limits, below, best: None, failed: Vec::new() };
    search.look_through(joined, given);
    if question.effort() == Effort::Thorough {
        search.look_closer();
    }
    search.finish()
}

/// The search over grains, with the best plan so far.
struct Search<'a> {
    question: &'a Question<'a>,
    model: Option<&'a Sliceable<'a>>,
    strategy: Option<Strategy>,
    limits: Limits,
    /// Seconds for each micro-batch from which on plans are of no use.
    below: f64,
    /// The best plan, and its grain.
    best: Option<(Asked, Planned, Grain)>,
    /// Blocks of which there is no plan.
    failed: Vec<NoPlan>,
}

impl<'a> Search<'a> {
    /// Plans a model at the suitable grains; with little effort only at the first that has a plan.
    fn look_through(&mut self, joined: &BTreeSet<String>, given: Option<&Grain>) {
        let Some(model) = self.model else {
            self.look(&Grain::default());
            return;
        };
        let devices = self.question.n_devices();
        let is_small = model.n_working() * devices <= FEW;
        // If all cuts are given, smaller blocks still serve to recompute, and to send gradients one by one.
        if let Some(given) = given {
            self.look(given);
            if is_small && self.has_room() {
                self.look(&model.finest(joined));
            }
            return;
        }
        let coarse = model.enough(self.question.stages().unwrap_or(1) as usize, joined);
        let next = self.look(&coarse);
        let is_quick = self.question.effort() == Effort::Quick && self.best.is_some();
        if is_quick || self.strategy.is_some_and(Strategy::is_rule) {
            return;
        }
        if is_small && self.has_room() {
            self.look(&model.finest(joined));
            return;
        }
        let wanted = devices.min(MOST_WANTED);
        let finer = Some(model.enough(wanted, joined))
            .filter(|finer| *finer != coarse && (self.n_blocks() < wanted || next.is_none()));
        let next = finer.and_then(|finer| self.look(&finer)).or(next);
        if let Some(next) = next {
            self.refine(next);
        }
        // If memory is short, single operators save less than whole calls, but cuts may lie anywhere.
        if self.best.is_none() && is_small {
            self.look(&model.finest(joined));
        } else if model.n_working() * devices <= FEWER {
            self.refine(model.finest(joined));
        }
    }

    /// Searches once more with higher limits: over the blocks of the best plan, and over those derived from its
    /// boundaries.
    fn look_closer(&mut self) {
        self.limits = self.limits.times(Limits::MORE);
        let Some((_, solved, grain)) = &self.best else { return };
        let (grain, micro_batches) = (grain.clone(), solved.best.micro_batches);
        let next = self.look_at(self.asked(&grain, Some(micro_batches)), &grain, f64::INFINITY);
        let is_open = !self.question.is_given() && !self.strategy.is_some_and(Strategy::is_rule);
        if let Some(next) = next.filter(|_| is_open) {
            self.refine(next);
        }
    }

    /// Divides the model into blocks; with the given number of micro-batches, if the planner is to choose it and has.
    fn asked(&self, grain: &Grain, micro_batches: Option<u32>) -> Asked {
        let mut asked = self.question.asked(grain);
        let training = &mut asked.problem.training;
        training.limits = self.limits;
        if let (MicroBatches::Enough, Some(count)) = (training.micro_batches, micro_batches) {
            training.micro_batches = MicroBatches::About(count);
        }
        asked
    }

    /// Plans a model at a grain and keeps the plan if it is the best; returns the next grain, derived from its
    /// boundaries.
    fn look(&mut self, grain: &Grain) -> Option<Grain> {
        self.look_at(self.asked(grain, None), grain, f64::INFINITY)
    }

    /// The same for plans below a limit, in seconds for each micro-batch.
    fn look_at(&mut self, mut asked: Asked, grain: &Grain, below: f64) -> Option<Grain> {
        let like = self.best.as_ref().map(|(_, solved, _)| &solved.best);
        let mut solved = match plan_model_below(&mut asked.problem, self.strategy, like, below) {
            Ok(solved) => solved,
            Err(error) => {
                self.failed.push((asked.problem, error));
                return None;
            }
        };
        let plans = std::iter::once(&solved.best).chain(&solved.others);
        let next = self.model.map(|model| model.around(grain, &asked.problem, plans));
        let seconds = solved.best.seconds_each();
        let is_open = solved.unranked.is_some() || !grain.is_finest() || solved.best.saves_memory();
        if self.model.is_some() && is_open {
            // A bound for these blocks does not hold for finer ones, nor one strategy's for others.
            let bound = self.question.longest_path();
            let of_all = || bound_of_any_cut(&asked.problem, &solved.cut_space, self.strategy);
            solved.best.bound_by(bound.unwrap_or_else(of_all));
        }
        if self.seconds().is_none_or(|best| seconds < best * (1.0 - GAIN)) {
            if let Some((_, before, _)) = self.best.take().filter(|_| solved.tried.is_empty()) {
                // Other numbers of micro-batches were tried with other blocks; the chosen one has today's time.
                solved.tried = before.tried;
                let own = solved.best.micro_batches;
                solved
                    .tried
                    .iter_mut()
                    .filter(|one| one.micro_batches == own)
                    .for_each(|one| one.seconds_each = seconds);
            }
            self.best = Some((asked, solved, grain.clone()));
        }
        next
    }

    /// Opens blocks around the boundaries of each round's plans, and closes others; then plans the best of these grains
    /// with all strategies.
    fn refine(&mut self, mut next: Grain) {
        let (Some(model), Some((asked, solved, _))) = (self.model, &self.best) else { return };
        let micro_batches = Some(solved.best.micro_batches);
        let (sharding, group) = (solved.best.sharding(), solved.best.execution.sharding_group);
        let unit = asked.problem.training.recompute_unit;
        let pipelines = std::iter::once(&solved.best).chain(&solved.others);
        let pipelines = pipelines.filter(|plan| plan.stages.len() > 1).take(PIPELINES);
        // A strategy may occur twice, at two sharding levels: here all are planned with the level of the best.
        let mut strategies: BTreeSet<Strategy> =
            pipelines.filter_map(|plan| plan.made_by.strategy()).collect();
        let mut best: Option<(f64, Grain)> = None;
        let mut seen: Vec<Grain> = Vec::new();
        let mut idle = 0;
        let like = solved.best.clone();
        while seen.len() < self.limits.rounds && idle < IDLE_ROUNDS && !seen.contains(&next) {
            // The number of micro-batches has been chosen by now.
            let mut problem = self.asked(&next, micro_batches).problem;
            (problem.training.sharding, problem.training.sharding_group) = (sharding, group);
            problem.training.recompute_unit = unit;
            let plans: Vec<Solution> = match problem.training.inference {
                Some(_) => plan_model(&mut problem, None, None).map(|found| found.best).into_iter().collect(),
                None => {
                    let found =
                        |strategy: &Strategy| Some((*strategy, plan_near(&problem, *strategy, &like)?));
                    let found: BTreeMap<Strategy, Solution> = strategies.iter().filter_map(found).collect();
                    // Where a strategy has no plan there is no boundary to open blocks around.
                    strategies.retain(|strategy| found.contains_key(strategy));
                    found.into_values().collect()
                }
            };
            let least = plans.iter().map(Solution::seconds_each).fold(f64::INFINITY, f64::min);
            idle += 1;
            if best.as_ref().is_none_or(|(seconds, _)| least < seconds * (1.0 - GAIN)) {
                best = Some((least, next.clone()));
                idle = 0;
            }
            let following = model.around(&next, &problem, plans.iter());
            seen.push(std::mem::replace(&mut next, following));
        }
        let is_better =
            |(seconds, _): &(f64, Grain)| self.seconds().is_none_or(|best| *seconds < best * (1.0 - GAIN));
        if let Some((_, grain)) = best.filter(is_better) {
            let own = self.seconds().map_or(f64::INFINITY, |best| best * (1.0 - GAIN));
            self.look_at(self.asked(&grain, micro_batches), &grain, own.min(self.below));
        }
    }

    fn seconds(&self) -> Option<f64> {
        self.best.as_ref().map(|(_, solved, _)| solved.best.seconds_each())
    }

    /// Tells whether there is a plan that saves all activations.
    fn has_room(&self) -> bool {
        self.best.as_ref().is_some_and(|(_, solved, _)| !solved.best.saves_memory())
    }

    fn n_blocks(&self) -> usize {
        self.best.as_ref().map_or(0, |(asked, ..)| asked.problem.blocks.len())
    }

    fn finish(self) -> Result<Found, Vec<NoPlan>> {
        let (asked, solved, grain) = self.best.ok_or(self.failed)?;
        Ok((self.question.with_bands(asked, &grain), solved))
    }
}
