//! Lines of blocks that stages are cut from again and again, with what their stages recompute.
//!
//! Grids of one strategy climb from few lines, mostly the model's own order. At most [`LINES`] are kept.

use std::{cell::RefCell, collections::HashMap, rc::Rc};

use crate::{
    dag::cut_states::States,
    problem::Problem,
    stage::score::{MemoryPlans, Scorer},
};

/// The most lines that are kept at a time.
const LINES: usize = 16;

/// States of a line, and what its stages recompute.
type Line = (Rc<States>, Rc<MemoryPlans>);

/// Lines by their blocks; all questions are about the same blocks and values.
#[derive(Default)]
pub(crate) struct Lines(RefCell<HashMap<Vec<usize>, Line>>);

impl Lines {
    /// Asks something of a scorer over a line, on the devices of another scorer.
    pub(crate) fn with<T>(&self, scorer: &Scorer, line: &[usize], ask: impl FnOnce(&Scorer) -> T) -> T {
        let (states, memory_plans) = self.line(scorer.problem, line);
        let mut over = scorer.over(&states);
        over.memory_plans = memory_plans;
        ask(&over)
    }

    fn line(&self, problem: &Problem, line: &[usize]) -> Line {
        let mut lines = self.0.borrow_mut();
        if let Some(known) = lines.get(line) {
            return known.clone();
        }
        if lines.len() == LINES {
            lines.clear();
        }
        let made: Line = (Rc::new(States::line(problem, line.to_vec())), Rc::default());
        lines.insert(line.to_vec(), made.clone());
        made
    }
}
