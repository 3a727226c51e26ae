//! Groups of devices that share each layer: planned with as one device each, written with all members.

use std::collections::BTreeMap;

use indexmap::IndexMap;
use schema::{Bytes, Cluster, Cut, Plan, TensorParallel};

use super::{PlanRequest, Subject};
use crate::{failure::Failure, sharing, workspace::Workspace};

/// Who shares what.
#[derive(Clone)]
pub(super) struct Groups {
    pub(super) degree: u32,
    /// Members by the first of them.
    members: BTreeMap<String, Vec<String>>,
    /// All devices.
    cluster: Cluster,
    cuts: IndexMap<String, Cut>,
}

impl Groups {
    /// Returns what one device of a group does, and the request for a cluster of groups; nothing where nothing is shared.
    pub(super) fn of(
        subject: Subject<'_>,
        request: &PlanRequest,
    ) -> Result<Option<(Workspace, PlanRequest, Self)>, Failure> {
        if request.tensor_parallel <= 1 {
            return Ok(None);
        }
        let Subject::Model(whole) = subject else {
            return Err(Failure::input(
                "a profile's blocks are given: --tensor-parallel is for traced models",
            ));
        };
        let degree = request.tensor_parallel;
        let (cluster, members) = sharing::grouped(&request.cluster, degree)?;
        let own = whole.shared((&request.cluster, &request.cost_models), degree, None)?;
        let cuts = own.shared.as_ref().map(|shared| shared.named_cuts(whole.program())).unwrap_or_default();
        let groups = Self { degree, members, cluster: request.cluster.clone(), cuts };
        Ok(Some((own, PlanRequest { cluster, ..request.clone() }, groups)))
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
                Some(TensorParallel { degree: self.degree, all_reduce: Bytes(0), per_pass: 0 });
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
