//! Groups of devices that share each layer: planned with as one device each, written with all members.

use std::collections::BTreeMap;

use indexmap::IndexMap;
use partitioner::{Planned, Solution};
use schema::{Bytes, Cluster, Cut, Plan, ShardingLevel, SharedAnswer, SharedTried, TensorParallel};

use super::{PlanRequest, Subject, asked::Asked, model::attempt, no_plan::Unplanned, request::Degree};
use crate::{
    failure,
    sharing::{self, Way},
    workspace::Workspace,
};

/// Who shares what.
pub(super) struct Groups {
    answer: SharedAnswer,
    /// Members by the first of them.
    members: BTreeMap<String, Vec<String>>,
    /// What one device of a group does.
    pub(super) own: Workspace,
    /// All devices.
    cluster: Cluster,
    cuts: IndexMap<String, Cut>,
    /// Bytes of the exchanges of a micro-batch, there and back, all devices together.
    exchange_bytes: u64,
}

/// The most devices that share a layer where the number is chosen: what fast links join.
const MOST: u32 = 8;

/// Plans a model whose layers so many devices share.
pub(super) fn planned_by(
    whole: &Workspace,
    request: &PlanRequest,
    degree: u32,
    way: Way<'_>,
) -> Result<(Asked, Planned), Unplanned> {
    let (cluster, members) = sharing::grouped(&request.cluster, degree, way.option())?;
    let own = whole.shared((&request.cluster, &request.cost_models), degree, way)?;
    let shared = own.shared.as_ref().expect("it is shared");
    let exchanged = shared.exchange_seconds(&own.graph, &request.cluster);
    let (seconds, bound) = shared.seconds;
    let answer = SharedAnswer {
        degree,
        bands: shared.bands.map(|dim| dim as u32),
        whole_weights: shared.bands.is_none() && shared.cuts.is_empty(),
        split_flops: shared.split_share,
        exchanges: exchanged.values().filter(|(forward, backward)| forward + backward > 0.0).count() as u64,
        exchange_seconds: exchanged.values().map(|(forward, backward)| forward + backward).sum(),
        gap: if bound > 0.0 { (seconds / bound - 1.0).max(0.0) } else { 0.0 },
        proved: sharing::proved(shared.proof),
        tried: Vec::new(),
    };
    let cuts = shared.named_cuts(whole.program());
    let exchange_bytes = shared.exchange_bytes(&own.graph);
    // Replicas of what is shared keep all of it.
    let sharding = request.sharding.or(Some(ShardingLevel::None));
    let alone = PlanRequest {
        cluster,
        sharding,
        tensor_parallel: Degree::Of(1),
        spatial: Degree::Of(1),
        context_parallel: Degree::Of(1),
        ..request.clone()
    };
    let (asked, mut solved) = attempt(Subject::Model(&own), &alone)?;
    if request.strategy.is_none() && !runs(&solved.best) {
        let position = solved.others.iter().position(runs);
        match position {
            Some(position) => std::mem::swap(&mut solved.best, &mut solved.others[position]),
            None => failure::note(
                "train.py does not run this plan: stages that devices share have as many replicas each",
            ),
        }
    }
    let groups = Groups { answer, members, own, cluster: request.cluster.clone(), cuts, exchange_bytes };
    Ok((asked.of_groups(groups), solved))
}

/// Tells whether `train.py` runs a plan whose layers devices share: with as many replicas of each stage.
fn runs(solution: &Solution) -> bool {
    solution.stages.windows(2).all(|pair| pair[0].run.count == pair[1].run.count)
}

/// Plans a model with each number of devices that may share its layers, and keeps the fastest; `first` is the plan without.
pub(super) fn planned_best(
    whole: &Workspace,
    request: &PlanRequest,
    first: Result<(Asked, Planned), Unplanned>,
    way: Way<'_>,
) -> Result<(Asked, Planned), Unplanned> {
    let degrees = (2..=MOST).filter(|degree| degree.is_power_of_two());
    let fits = degrees.filter(|degree| sharing::grouped(&request.cluster, *degree, way.option()).is_ok());
    let each = |found: &Result<(Asked, Planned), Unplanned>| {
        found.as_ref().ok().map(|(_, plan)| plan.best.seconds_each())
    };
    let mut tried = vec![SharedTried { degree: 1, seconds_each: each(&first) }];
    let mut best = first;
    for degree in fits {
        let found = planned_by(whole, request, degree, way);
        tried.push(SharedTried { degree, seconds_each: each(&found) });
        let is_better = match (each(&found), each(&best)) {
            (Some(own), Some(other)) => own < other,
            (own, None) => own.is_some(),
            (None, _) => false,
        };
        if is_better {
            best = found;
        }
    }
    best.map(|(asked, plan)| (asked.having_tried(tried), plan))
}

impl Groups {
    /// Says which other numbers of devices were tried.
    pub(super) fn having_tried(&mut self, tried: Vec<SharedTried>) {
        self.answer.tried = tried;
    }

    /// Returns how many devices share each layer.
    pub(super) fn degree(&self) -> u32 {
        self.answer.degree
    }

    /// Returns the bytes of the exchanges of a micro-batch, all devices together.
    pub(super) fn exchange_bytes(&self) -> u64 {
        self.exchange_bytes
    }

    /// Returns what is said of it.
    pub(super) fn answer(&self) -> SharedAnswer {
        self.answer.clone()
    }

    /// Returns the members of a group.
    pub(super) fn members(&self, leader: &str) -> impl Iterator<Item = &str> {
        self.members.get(leader).into_iter().flatten().map(String::as_str)
    }

    /// Names all devices in a plan of groups, and what they share.
    pub(super) fn expand(&self, plan: &mut Plan) {
        let all = |leaders: &[String]| -> Vec<String> {
            leaders.iter().flat_map(|leader| self.members(leader)).map(str::to_string).collect()
        };
        for stage in &mut plan.stages {
            stage.devices = all(&stage.devices);
            // Exchanges are in the stage's own times, each where it stands.
            stage.tensor_parallel =
                Some(TensorParallel { degree: self.answer.degree, all_reduce: Bytes(0), per_pass: 0 });
        }
        let memory = std::mem::take(&mut plan.predicted.memory);
        let each = |one: schema::DeviceMemory| {
            let names: Vec<String> = self.members(&one.device).map(str::to_string).collect();
            names.into_iter().map(move |device| schema::DeviceMemory { device, ..one.clone() })
        };
        plan.predicted.memory = memory.into_iter().flat_map(each).collect();
        plan.cluster.clone_from(&self.cluster);
        plan.cuts.clone_from(&self.cuts);
    }
}
