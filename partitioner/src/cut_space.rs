//! Where a model can be cut: found once for all questions about it.
//!
//! States and what must cross them depend on blocks, values and whether activations may leave the device; not on machines,
//! strategies or micro-batches, which change from question to question. What was answered is remembered with all that it depends on.

use std::cell::OnceCell;

use crate::{Problem, bound::crossing::Narrowest, dag::cut_states::States, pipeline::cache::Remembered};

/// The most ideals that are planned over; wider graphs are put in line.
const IDEALS: usize = 3000;

/// Ways to cut a model, and what was found of them.
pub struct Ways {
    /// All ideals where there are few, the problem's own order otherwise.
    pub(crate) states: States,
    /// Whether all ways to cut are among them.
    pub(crate) is_complete: bool,
    /// Whether the problem's own order is the only one.
    pub(crate) is_chain: bool,
    /// The problem's own order, where the states are others.
    line: OnceCell<States>,
    /// What must cross cuts; made when it is needed first.
    narrowest: OnceCell<Narrowest>,
    /// Best pipelines over the states, as far as they were asked for.
    pub(crate) pipelines: Remembered,
}

impl Ways {
    /// Finds the ways to cut a valid problem's model.
    pub fn of(problem: &Problem) -> Self {
        let line = own_order(problem);
        let is_chain = line.is_complete(problem);
        let ideals = if is_chain { None } else { States::ideals(problem, IDEALS) };
        let (states, line) = match ideals {
            Some(ideals) => (ideals, OnceCell::from(line)),
            None => (line, OnceCell::new()),
        };
        let is_complete = states.is_complete(problem);
        Self {
            states,
            is_complete,
            is_chain,
            line,
            narrowest: OnceCell::new(),
            pipelines: Remembered::default(),
        }
    }

    /// Returns the problem's own order.
    pub(crate) fn line(&self, problem: &Problem) -> &States {
        self.line.get_or_init(|| own_order(problem))
    }

    /// Returns what must cross cuts.
    pub(crate) fn narrowest(&self, problem: &Problem) -> &Narrowest {
        self.narrowest.get_or_init(|| match self.is_complete {
            true => Narrowest::of_all(problem, &self.states),
            false => Narrowest::sought(problem),
        })
    }
}

fn own_order(problem: &Problem) -> States {
    States::line(problem, (0..problem.blocks.len()).collect())
}
