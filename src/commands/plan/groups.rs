//! Groups of devices that share each layer: planned as one device each, written with all members.

use std::collections::BTreeMap;

use indexmap::IndexMap;
use schema::{
    Bytes, Cluster, Cut, OperatorLayout, Plan, SequenceParallel, SharedAnswer, SharedTried, TensorParallel,
};

use super::request::PlanRequest;
use crate::{
    failure::{self, Failure},
    sharing::{self, Way},
    workspace::Workspace,
};

/// The groups and their members.
pub(super) struct Groups {
    answer: SharedAnswer,
    /// Members of each group, by its first one.
    members: BTreeMap<String, Vec<String>>,
    /// One device's share of the model.
    pub(super) own: Workspace,
    /// All devices.
    cluster: Cluster,
    cuts: IndexMap<String, Cut>,
    /// The splits of operators, and the name of the search that found them.
    operators: Option<(&'static str, IndexMap<String, String>)>,
    sequence_parallel: Option<SequenceParallel>,
    /// Bytes of exchanges over all devices: of a micro-batch in both passes, and once a step.
    exchange_bytes: (u64, u64),
}

impl Groups {
    /// Returns the groups of the given size, and a cluster with one device per group.
    pub(super) fn of(
        whole: &Workspace,
        request: &PlanRequest,
        degree: u32,
        way: Way<'_>,
    ) -> Result<(Self, Cluster), Failure> {
        let (cluster, members) = sharing::grouped(&request.cluster, degree, way.option())?;
        let own = whole.shared((&request.cluster, &request.cost_models, request.rounding()), degree, way)?;
        let shared = own.shared.as_ref().expect("it is shared");
        let exchanged = shared.exchange_seconds(&own.graph);
        let (seconds, bound) = shared.seconds;
        let cuts = shared.named_cuts(whole.program());
        let splits = shared.operators.as_deref().unwrap_or_default();
        let operators = match way {
            Way::Operators(search) => Some((search.name, sharing::recorded(splits))),
            _ => None,
        };
        let made = splits.iter().filter(|own| own.makes_tensors).map(|own| OperatorLayout {
            block: own.path.clone(),
            operator: own.name.clone(),
            split: own.split.clone(),
        });
        let answer = SharedAnswer {
            degree,
            context_parallel: way.around().context_parallel(),
            expert_parallel: way.around().expert_parallel(),
            operators: made.collect(),
            bands: shared.bands.map(|dim| dim as u32),
            whole_weights: shared.bands.is_none()
                && shared.cuts.is_empty()
                && !shared.by_expert
                && operators.is_none(),
            by_expert: shared.by_expert,
            on_first: cuts.iter().filter(|(_, cut)| cut.on_first).map(|(name, _)| name.clone()).collect(),
            split_flops: shared.split_share,
            exchanges: exchanged.values().filter(|(forward, backward)| forward + backward > 0.0).count()
                as u64,
            exchange_seconds: exchanged.values().map(|(forward, backward)| forward + backward).sum(),
            gap: if seconds > 0.0 { (1.0 - bound / seconds).max(0.0) } else { 0.0 },
            proved: sharing::proved(shared.proof),
            alone_seconds: shared.alone,
            tried: Vec::new(),
        };
        let exchange_bytes = shared.exchange_bytes(&own.graph);
        let all = request.cluster.clone();
        let sequence_parallel = way.sequence_parallel();
        let groups =
            Self { answer, members, own, cluster: all, cuts, operators, sequence_parallel, exchange_bytes };
        Ok((groups, cluster))
    }

    /// Returns the name of the search for the splits of operators, if there was one.
    pub(super) fn strategy(&self) -> Option<&'static str> {
        self.operators.as_ref().map(|(name, _)| *name)
    }

    /// Records the other group sizes that were tried.
    pub(super) fn having_tried(&mut self, tried: Vec<SharedTried>) {
        self.answer.tried = tried;
    }

    /// Tells whether the first device of a group has parameters that the others lack.
    pub(super) fn has_first(&self) -> bool {
        !self.answer.on_first.is_empty()
    }

    /// Tells which devices no group has: the size of groups does not divide their number.
    pub(super) fn say_left_out(&self) {
        let is_member = |name: &String| self.members.values().any(|members| members.contains(name));
        let devices = self.cluster.devices.iter().map(|device| &device.name);
        let left: Vec<&str> = devices.filter(|name| !is_member(name)).map(String::as_str).collect();
        if let [first, others @ ..] = left.as_slice() {
            let (verb, more) = match others.len() {
                0 => ("is", String::new()),
                more => ("are", format!(" and {more} more")),
            };
            let degree = self.answer.degree;
            failure::note(format!(
                "{first}{more} {verb} idle: groups of {degree} devices leave no more of them"
            ));
        }
    }

    /// Returns how many devices share each layer.
    pub(super) fn degree(&self) -> u32 {
        self.answer.degree
    }

    /// Returns the bytes of exchanges of a step of so many micro-batches, over all devices.
    pub(super) fn exchange_bytes(&self, micro_batches: u64, replicas: u64) -> u64 {
        let (each, once) = self.exchange_bytes;
        each.saturating_mul(micro_batches).saturating_add(once.saturating_mul(replicas))
    }

    /// Returns the part of the answer about sharing.
    pub(super) fn answer(&self) -> SharedAnswer {
        self.answer.clone()
    }

    /// Returns the members of a group.
    pub(super) fn members(&self, leader: &str) -> impl Iterator<Item = &str> {
        self.members.get(leader).into_iter().flatten().map(String::as_str)
    }

    /// Replaces devices in a plan by the groups that they make up: the reverse of [`expand`](Self::expand).
    ///
    /// # Errors
    /// When a stage has a part of a group.
    pub(super) fn contracted(&self, given: &Plan) -> Result<Plan, Failure> {
        let mut plan = given.clone();
        let of = |device: &String| self.members.iter().find(|(_, members)| members.contains(device));
        for (index, stage) in plan.stages.iter_mut().enumerate() {
            let mut leaders: Vec<String> = Vec::new();
            for device in &stage.devices {
                // Devices that the cluster lacks are told where stages are placed.
                let leader = of(device).map_or(device, |(leader, _)| leader);
                if !leaders.contains(leader) {
                    leaders.push(leader.clone());
                }
            }
            let count: usize = leaders.iter().map(|leader| self.members(leader).count().max(1)).sum();
            if count != stage.devices.len() {
                let degree = self.answer.degree;
                let message =
                    format!("stage {index}: its devices are not whole groups of {degree} that share layers");
                let groups: Vec<String> =
                    self.members.values().take(3).map(|group| group.join(" ")).collect();
                return Err(Failure::input(message).with_hint(format!("groups are {}", groups.join(", "))));
            }
            stage.devices = leaders;
            stage.tensor_parallel = None;
        }
        plan.cuts = IndexMap::new();
        plan.operators = IndexMap::new();
        (plan.context_parallel, plan.expert_parallel) = (None, None);
        Ok(plan)
    }

    /// Replaces groups in a plan by their devices, and adds the cuts of shared parameters.
    pub(super) fn expand(&self, plan: &mut Plan) {
        let all = |leaders: &[String]| -> Vec<String> {
            leaders.iter().flat_map(|leader| self.members(leader)).map(str::to_string).collect()
        };
        for stage in &mut plan.stages {
            stage.devices = all(&stage.devices);
            // Exchanges are in the stage's own times, each at its place.
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
        plan.sequence_parallel = self.sequence_parallel;
        plan.context_parallel = self.answer.context_parallel;
        plan.expert_parallel = self.answer.expert_parallel;
        if let Some((name, operators)) = &self.operators {
            plan.strategy = name.to_string();
            plan.operators.clone_from(operators);
        }
    }
}
