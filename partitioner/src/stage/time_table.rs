//! A table of stage times by start and end state, for solvers that ask for the same stage many times.
//!
//! In a grid of equal stages most device runs are alike: a stage's time depends on its states and the micro-batches in flight
//! alone. One table for each kind of run, filled on demand: O(Q²) numbers at worst, a row for each start.

use std::cell::RefCell;

/// Seconds by start and end; 0 if not computed yet.
pub(crate) struct TimeTable(RefCell<Vec<Vec<f64>>>);

impl TimeTable {
    pub(crate) fn new(n_states: usize) -> Self {
        Self(RefCell::new(vec![Vec::new(); n_states]))
    }

    pub(crate) fn get(&self, start: usize, end: usize) -> Option<f64> {
        let seconds = self.0.borrow()[start].get(end - start).copied();
        seconds.filter(|seconds| *seconds != 0.0)
    }

    pub(crate) fn set(&self, start: usize, end: usize, seconds: f64) {
        let rows = &mut *self.0.borrow_mut();
        let row = &mut rows[start];
        if row.len() <= end - start {
            row.resize(end - start + 1, 0.0);
        }
        row[end - start] = seconds;
    }
}
