//! The input of a report: a model, and data about it.

use graph::{ModelGraph, OperatorCosts};
use schema::{Plan, ReportWhatIf, SimulatedPlan, Timeline, WhatIfDevice};

/// Everything in a report.
pub struct Report<'a> {
    /// The model.
    pub graph: &'a ModelGraph,
    /// The costs of its operators.
    pub costs: &'a OperatorCosts,
    /// Predicted seconds of each operator, forward and backward, if known.
    pub seconds: Option<&'a [f64]>,
    /// Each operator's stage, if there is a plan.
    pub stages: Option<&'a [Option<u32>]>,
    /// The plan and its simulation.
    pub planned: Option<Planned<'a>>,
    /// Measured times of a run.
    pub measured: Option<&'a Timeline>,
    /// The program and its command line.
    pub origin: Origin,
}

/// A plan with its simulation.
pub struct Planned<'a> {
    /// The plan.
    pub plan: &'a Plan,
    /// The simulator's answer.
    pub simulated: &'a SimulatedPlan,
    /// The simulated step.
    pub timeline: &'a Timeline,
    /// The same plan under other circumstances.
    pub what_if: Option<&'a ReportWhatIf>,
    /// The steps that are drawn, by the number of their cell.
    pub what_if_steps: &'a [(usize, Timeline)],
    /// The devices for each cell; none where they would make the page too large.
    pub what_if_devices: &'a [Vec<WhatIfDevice>],
}

/// The origin of a report.
#[derive(Clone, Debug, Default)]
pub struct Origin {
    /// Tool and version: `model-analyze 0.1.0`.
    pub tool: String,
    /// The command line.
    pub command: String,
    /// The model's name for titles, where the graph has none.
    pub name: String,
    /// Digest of the model, in hex.
    pub digest: String,
}

impl Report<'_> {
    /// Returns the name for titles.
    pub(super) fn name(&self) -> &str {
        if self.graph.name.is_empty() { &self.origin.name } else { &self.graph.name }
    }
}
