//! Seconds of operators on a device: the cost model's predictions, as numbers for the planner, with their band.

use std::collections::BTreeMap;

use cost_model::{CostModel, Costs, Estimate, PredictOptions, Rounding, TimeSource, predict};
use graph::{ModelGraph, OperatorCosts, OperatorId};
use indexmap::IndexMap;
use partitioner::{Objective, OperatorSeconds, Problem, check_plan};
use schema::{Band, Plan, Seconds, TimesFrom};
use simulator::order::Schedule;

use crate::{
    cost_models::{CostModels, ROUNDED, rounding_of},
    failure,
    sharing::SharedModel,
};

/// Times per operator.
#[derive(Clone)]
pub struct Times {
    /// The most likely times.
    pub seconds: Vec<OperatorSeconds>,
    /// The whole model's lower and upper end, distributed over operators in proportion to their own bands.
    pub ends: [Vec<OperatorSeconds>; 2],
    /// Their source.
    pub from: TimesFrom,
}

/// The problem with times at their lower end, and at their upper end.
pub struct Ends(pub [Problem; 2]);

/// Returns the options of prediction for a rounding, with a note if the device does not support it.
pub fn options(rounding: Rounding, model: &CostModel) -> PredictOptions {
    let options = CostModels::options(rounding, model);
    if options.rounding != rounding {
        let device = &model.device;
        failure::note(match rounding {
            Rounding::Float8 => format!("{device} has no float8: linear layers stay in 16 bits"),
            _ => format!("{device} has no TF32: products stay in float32"),
        });
    }
    options
}

/// Returns the options of prediction that a plan's times were made with.
pub fn options_of(times: &TimesFrom) -> PredictOptions {
    PredictOptions { rounding: rounding_of(times), ..PredictOptions::default() }
}

/// Predicts seconds per operator.
pub fn times(
    graph: &ModelGraph,
    costs: &OperatorCosts,
    model: &CostModel,
    options: &PredictOptions,
) -> Times {
    let predicted = predict(graph, costs, model, options);
    let ids = || (0..graph.operators.len() as u32).map(OperatorId);
    let seconds = ids().map(|id| parts(&predicted, id).map(|part| part.seconds)).map(in_seconds).collect();
    let end = |of: fn(&Estimate) -> f64| {
        // Operators' errors are partly independent: the total is more certain than its parts.
        let total = predicted.total();
        let whole = cost_model::combine([total.forward, total.backward()].into_iter());
        let apart: f64 =
            ids().flat_map(|id| parts(&predicted, id)).map(|part| of(&part) - part.seconds).sum();
        let narrowed = if apart == 0.0 { 0.0 } else { (of(&whole) - whole.seconds) / apart };
        let at = |part: Estimate| (part.seconds + (of(&part) - part.seconds) * narrowed).max(0.0);
        ids().map(|id| in_seconds(parts(&predicted, id).map(at))).collect()
    };
    Times {
        seconds,
        ends: [end(|part| part.p10), end(|part| part.p90)],
        from: from(model, &predicted, graph, options),
    }
}

/// Tells whether a schedule has no flush.
pub fn is_without_flush(schedule: &str) -> bool {
    Schedule::from_name(schedule).is_ok_and(|schedule| schedule.is_asynchronous())
}

impl Times {
    /// Adds the exchanges of devices that share layers: those of both passes, which block, and those once a step, which are in
    /// each pass if steps have no end. Errors of links are independent of devices' and are neglected.
    pub fn add_exchanges(&mut self, shared: &SharedModel, graph: &ModelGraph, is_endless: bool) {
        self.add(&shared.exchange_seconds(graph));
        let once = shared.seconds_once(graph);
        if is_endless {
            self.add(&once.into_iter().map(|(operator, seconds)| (operator, (0.0, seconds))).collect());
            return;
        }
        for (operator, seconds) in once {
            let [low, high] = &mut self.ends;
            for times in [&mut self.seconds, low, high] {
                times[operator.index()].once += seconds;
            }
        }
    }

    /// Adds the blocking exchanges of the forward and the backward pass.
    fn add(&mut self, exchanges: &BTreeMap<OperatorId, (f64, f64)>) {
        for (operator, (forward, backward)) in exchanges {
            let [low, high] = &mut self.ends;
            for times in [&mut self.seconds, low, high] {
                let own = &mut times[operator.index()];
                own.forward += forward;
                own.input_gradient += backward;
            }
        }
    }
}

impl Ends {
    /// Sets the band of a plan: scores it again with all times at their lower and at their upper end.
    pub fn set_bands(&self, problem: &Problem, plan: &mut Plan) {
        let score = |problem: &Problem| {
            let solution = check_plan(problem, plan).ok()?;
            Some(match solution.objective {
                Objective::Step(seconds) | Objective::Period(seconds) => seconds,
            })
        };
        let [low, high] = &self.0;
        let scores = [score(low), score(problem), score(high)];
        let planned = plan.predicted.step.or(plan.predicted.period);
        if let ([Some(low), Some(likely), Some(high)], Some(planned)) = (scores, planned)
            && likely > 0.0
        {
            let at = |end: f64| Seconds(planned.0 * end / likely);
            plan.predicted.band = Some(Band { p10: at(low), p90: at(high) });
        }
        let seconds = |problem: &Problem, blocks: &[String]| -> f64 {
            let own = problem.blocks.iter().filter(|block| blocks.contains(&block.path));
            own.map(|block| block.forward.0 + block.input_gradient.0 + block.weight_gradient.0).sum()
        };
        for stage in &mut plan.stages {
            let cost = stage.cost;
            let planned = cost.forward.0 + cost.input_gradient.0 + cost.weight_gradient.0;
            let likely = seconds(problem, &stage.blocks);
            if likely > 0.0 {
                let at = |end: &Problem| Seconds(planned * seconds(end, &stage.blocks) / likely);
                stage.band = Some(Band { p10: at(low), p90: at(high) });
            }
        }
    }
}

fn parts(predicted: &Costs, id: OperatorId) -> [Estimate; 3] {
    let one = predicted.operator(id);
    [one.forward, one.input_gradient, one.weight_gradient]
}

fn in_seconds([forward, input_gradient, weight_gradient]: [f64; 3]) -> OperatorSeconds {
    OperatorSeconds { forward, input_gradient, weight_gradient, once: 0.0 }
}

/// Describes the sources of times, with their shares.
pub fn from(model: &CostModel, predicted: &Costs, graph: &ModelGraph, options: &PredictOptions) -> TimesFrom {
    let mut by_source: IndexMap<TimeSource, f64> = IndexMap::new();
    for index in 0..graph.operators.len() as u32 {
        let one = predicted.operator(OperatorId(index));
        let seconds: f64 = parts(predicted, OperatorId(index)).iter().map(|part| part.seconds).sum();
        *by_source.entry(one.source).or_default() += seconds;
    }
    let total: f64 = by_source.values().sum();
    by_source.retain(|_, seconds| *seconds > 0.0);
    by_source.sort_keys();
    let mut rounding = options.rounding;
    if rounding == Rounding::Float8 && predicted.n_float8() == 0 {
        failure::note(
            "no layer runs in float8: that takes linear layers of 16 bits (--dtype bfloat16 of trace) before the last, with sizes that are multiples of 16",
        );
        rounding = Rounding::Own;
    }
    let rounded = ROUNDED.iter().find(|(own, _)| *own == rounding);
    let rounded = rounded.map_or("", |(_, words)| words);
    TimesFrom {
        cost_model: format!("{}{rounded}", model.title()),
        shares: by_source
            .into_iter()
            .map(|(source, seconds)| (source.name().to_string(), seconds / total))
            .collect(),
        outside: predicted.outside(),
        others: IndexMap::new(),
    }
}
