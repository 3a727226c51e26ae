//! Which blocks a model is planned in: coarse ones first, finer ones around the borders of the plans that were found.
//!
//! The coarse blocks are always among those that are planned, whatever the number of devices, so that more devices never make a
//! plan slower. A model of few operators is planned over all of them.

use std::collections::BTreeSet;

use partitioner::{
    Grain, MicroBatches, PlanError, Planned, Problem, Sliceable, Solution, Strategy, bound_of_any_cut,
    plan_model, plan_with,
};

use super::asked::{Asked, Question};

/// Operators × devices up to which every operator is a block of its own.
const FEW: usize = 3_000;
/// Blocks that there should be at the most for pipelines of as many stages as devices.
const MOST_WANTED: usize = 64;
/// Times that blocks are opened around borders, and how many of these in a row may gain nothing.
const ROUNDS: usize = 8;
const IDLE_ROUNDS: usize = 2;
/// The fastest pipelines around whose borders blocks are opened.
const PIPELINES: usize = 2;
/// Share by which a plan must be faster to be called better: times are no surer than that.
const GAIN: f64 = 1e-4;

/// A model taken apart, and its plans.
type Found = (Asked, Planned);
/// The blocks of which there is no plan, and why.
type NoPlan = (Box<Problem>, PlanError);

/// Finds the best plan over all grains that are looked at.
pub(super) fn planned(
    question: &Question<'_>,
    strategy: Option<Strategy>,
    joined: &BTreeSet<String>,
    given: Option<&Grain>,
) -> Result<Found, NoPlan> {
    let model = question.sliceable();
    let mut search = Search { question, model: model.as_ref(), strategy, best: None, error: None };
    let Some(model) = &model else {
        search.look(&Grain::default());
        return search.finish();
    };
    let devices = question.n_devices();
    let is_small = model.n_working() * devices <= FEW;
    // Where all cuts are given, blocks are there to be computed again, and for gradients to be sent one by one.
    if let Some(given) = given {
        search.look(given);
        if is_small && search.has_room() {
            search.look(&model.finest(joined));
        }
        return search.finish();
    }
    let next = search.look(&model.enough(question.stages().unwrap_or(1) as usize, joined));
    if strategy.is_some_and(Strategy::is_rule) {
        return search.finish();
    }
    if is_small && search.has_room() {
        search.look(&model.finest(joined));
        return search.finish();
    }
    let wanted = devices.min(MOST_WANTED);
    let next = if search.n_blocks() < wanted || next.is_none() {
        search.look(&model.enough(wanted, joined)).or(next)
    } else {
        next
    };
    // Where memory is short, small parts of a small model save less than whole calls.
    if let Some(next) = next.filter(|_| !is_small) {
        search.refine(next);
    }
    search.finish()
}

/// The best plan of the grains that were looked at.
struct Search<'a> {
    question: &'a Question<'a>,
    model: Option<&'a Sliceable<'a>>,
    strategy: Option<Strategy>,
    best: Option<Found>,
    error: Option<NoPlan>,
}

impl Search<'_> {
    /// Plans a model at a grain and keeps the plan where it is the best; returns the grain that follows from its borders.
    fn look(&mut self, grain: &Grain) -> Option<Grain> {
        self.look_at(self.question.asked(grain), grain)
    }

    fn look_at(&mut self, mut asked: Asked, grain: &Grain) -> Option<Grain> {
        let mut solved = match plan_model(&mut asked.problem, self.strategy) {
            Ok(solved) => solved,
            Err(error) => {
                // What comes nearest says what would do.
                let needed = |error: &PlanError| match error {
                    PlanError::Memory { needed, .. } => *needed,
                    _ => u64::MAX,
                };
                if self.error.as_ref().is_none_or(|(_, other)| needed(&error) < needed(other)) {
                    self.error = Some((Box::new(asked.problem), error));
                }
                return None;
            }
        };
        let plans = std::iter::once(&solved.best).chain(&solved.others);
        let next = self.model.map(|model| model.around(grain, &asked.problem, plans));
        let seconds = solved.best.seconds_each();
        if self.model.is_some() && (!grain.is_finest() || solved.best.saves_memory()) {
            // What was proven of these blocks says nothing of finer ones.
            let bound = self.question.longest_path();
            let of_all = || bound_of_any_cut(&asked.problem, &solved.cut_space, self.strategy);
            solved.best.bound_by(bound.unwrap_or_else(of_all));
        }
        if self.seconds().is_none_or(|best| seconds < best * (1.0 - GAIN)) {
            if let Some((_, before)) = self.best.take().filter(|_| solved.tried.is_empty()) {
                // Other numbers of micro-batches were tried with other blocks; what was taken is as fast as it is now.
                solved.tried = before.tried;
                let own = solved.best.micro_batches;
                solved
                    .tried
                    .iter_mut()
                    .filter(|one| one.micro_batches == own)
                    .for_each(|one| one.seconds_each = seconds);
            }
            self.best = Some((asked, solved));
        }
        next
    }

    /// Opens blocks around the borders of the plans of each round, and closes others; then plans the best of these grains with all
    /// strategies.
    fn refine(&mut self, mut next: Grain) {
        let (Some(model), Some((_, solved))) = (self.model, &self.best) else { return };
        let micro_batches = MicroBatches::About(solved.best.micro_batches);
        let (sharding, group) = (solved.best.sharding(), solved.best.execution.sharding_group);
        let pipelines = std::iter::once(&solved.best).chain(&solved.others);
        let pipelines = pipelines.filter(|plan| plan.stages.len() > 1).take(PIPELINES);
        // One strategy may be there twice, with more and with less shared out: here all are planned with what the best shares.
        let strategies: BTreeSet<Strategy> = pipelines.filter_map(|plan| plan.made_by.strategy()).collect();
        let mut best: Option<(f64, Grain)> = None;
        let mut seen: Vec<Grain> = Vec::new();
        let mut idle = 0;
        while seen.len() < ROUNDS && idle < IDLE_ROUNDS && !seen.contains(&next) {
            let mut problem = self.question.asked(&next).problem;
            (problem.training.sharding, problem.training.sharding_group) = (sharding, group);
            // How many micro-batches serve best is known by now.
            if problem.training.micro_batches == MicroBatches::Enough {
                problem.training.micro_batches = micro_batches;
            }
            let plans: Vec<Solution> = match problem.training.inference {
                Some(_) => plan_model(&mut problem, None).map(|found| found.best).into_iter().collect(),
                None => {
                    strategies.iter().filter_map(|strategy| plan_with(&problem, *strategy).ok()).collect()
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
            let mut asked = self.question.asked(&grain);
            if asked.problem.training.micro_batches == MicroBatches::Enough {
                asked.problem.training.micro_batches = micro_batches;
            }
            self.look_at(asked, &grain);
        }
    }

    fn seconds(&self) -> Option<f64> {
        self.best.as_ref().map(|(_, solved)| solved.best.seconds_each())
    }

    /// Tells whether there is a plan, and one that keeps all activations.
    fn has_room(&self) -> bool {
        self.best.as_ref().is_some_and(|(_, solved)| !solved.best.saves_memory())
    }

    fn n_blocks(&self) -> usize {
        self.best.as_ref().map_or(0, |(asked, _)| asked.problem.blocks.len())
    }

    fn finish(self) -> Result<Found, NoPlan> {
        self.best.ok_or_else(|| self.error.expect("what has no plan says why"))
    }
}
