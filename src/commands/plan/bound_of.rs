//! The plans that a lower bound holds for: what was asked for leaves out others, which may be faster.

use partitioner::{MadeBy, Solution, Strategy};

use super::request::PlanRequest;
use crate::sharing::{Around, Way};

/// What all plans that were looked for have in common.
#[derive(Clone, Default)]
pub(super) struct BoundOf {
    strategy: Option<Strategy>,
    /// `2 stages`, `each layer on 4 devices`, …
    with: Vec<String>,
    /// The splits of operators were chosen before the plan.
    is_of_splits: bool,
}

impl BoundOf {
    /// Returns what a request asks for.
    pub(super) fn of(request: &PlanRequest) -> Self {
        let stages = request.stages.map(|count| match count {
            1 => "1 stage".to_string(),
            count => format!("{count} stages"),
        });
        let pins: Vec<String> = request.constraints.pin.iter().map(ToString::to_string).collect();
        let pinned = (!pins.is_empty()).then(|| format!("{} pinned", pins.join(", ")));
        Self {
            strategy: request.strategy,
            with: stages.into_iter().chain(pinned).collect(),
            is_of_splits: false,
        }
    }

    /// Adds something that others could have otherwise.
    pub(super) fn add(&mut self, what: String) {
        self.with.push(what);
    }

    /// Adds something that may have been said.
    pub(super) fn add_once(&mut self, what: &str) {
        if !self.with.iter().any(|known| known == what) {
            self.add(what.to_string());
        }
    }

    /// Adds how devices share layers.
    pub(super) fn add_sharing(&mut self, degree: u32, way: Way<'_>) {
        match way {
            Way::Layers(_, Around { groups: 1, .. }) => self.add(format!("each layer on {degree} devices")),
            Way::Layers(_, Around { groups, by_expert }) => {
                let what = if by_expert { "samples or positions, and experts," } else { "sequences" };
                let each = degree / groups.max(1);
                self.add(format!("{what} in {groups} parts, each layer on {each} devices"));
            }
            Way::Bands => self.add(format!("images in {degree} bands")),
            Way::Positions(_) => self.add(format!("sequences in {degree} parts")),
            Way::Experts => self.add(format!("experts in {degree} parts")),
            Way::Operators(_) | Way::Cuts(..) | Way::Given(..) => self.is_of_splits = true,
        }
    }

    /// Returns the plans as a noun, `gpipe plan with 2 stages`; `None` if the bound holds for all plans.
    pub(super) fn words(&self, solution: &Solution) -> Option<String> {
        if self.is_of_splits {
            return Some("plan of these splits".to_string());
        }
        // A given plan is held against all others.
        if solution.made_by == MadeBy::AsGiven {
            return None;
        }
        let strategy = self.strategy.map_or_else(String::new, |own| format!("{} ", own.name()));
        let with = match self.with.as_slice() {
            [] => String::new(),
            [only] => format!(" with {only}"),
            [first @ .., last] => format!(" with {} and {last}", first.join(", ")),
        };
        Some(format!("{strategy}plan{with}")).filter(|words| words != "plan")
    }
}
