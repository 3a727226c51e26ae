//! Tasks and what they wait for, as one flat graph: built once, timed often.
//!
//! A task waits for the ends of others, each plus a lag (negative where a part of the other's work is enough). That
//! a stream does one thing at a time is a wait like any other: each task waits for the one before it on its stream.
//! Tasks are numbered so that each waits only for smaller numbers, so the longest path is one pass over two arrays.
//!
//! For searches: [`EventGraph::retime`] changes durations and times again from the first change on; nothing is
//! rebuilt. Full work O(tasks + waits), the repetition less by building and by everything before the change.

use std::collections::HashMap;

/// A task's number.
pub type TaskId = u32;

/// Tasks, their durations and what they wait for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventGraph {
    durations: Vec<u64>,
    /// First wait of each task, and the end of the last.
    first_wait: Vec<u32>,
    waits: Vec<Wait>,
    /// Distinct lags; a wait names its own by number.
    lags: Vec<i64>,
    lag_numbers: HashMap<i64, u32>,
}

/// One wait of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Wait {
    task: TaskId,
    lag: u32,
}

impl EventGraph {
    /// Returns an empty graph with room for a number of tasks.
    pub fn with_capacity(n_tasks: usize) -> Self {
        Self {
            durations: Vec::with_capacity(n_tasks),
            first_wait: Vec::with_capacity(n_tasks + 1),
            waits: Vec::with_capacity(2 * n_tasks),
            ..Self::default()
        }
    }

    /// Adds a task that waits for others: (task, lag).
    ///
    /// # Panics
    /// Waits must name tasks that were added before.
    pub fn add(&mut self, duration: u64, waits: impl IntoIterator<Item = (TaskId, i64)>) -> TaskId {
        let id = self.durations.len() as TaskId;
        if self.first_wait.is_empty() {
            self.first_wait.push(0);
        }
        for (task, lag) in waits {
            assert!(task < id, "a task waits for an earlier one");
            let lag = match lag {
                0 => 0,
                lag => self.lag_number(lag),
            };
            self.waits.push(Wait { task, lag });
        }
        self.durations.push(duration);
        self.first_wait.push(self.waits.len() as u32);
        id
    }

    fn lag_number(&mut self, lag: i64) -> u32 {
        // Number 0 is no lag.
        if self.lags.is_empty() {
            self.lags.push(0);
        }
        *self.lag_numbers.entry(lag).or_insert_with(|| {
            self.lags.push(lag);
            (self.lags.len() - 1) as u32
        })
    }

    /// Returns the time of all tasks and positive lags one after the other: no path is longer.
    pub fn total(&self) -> u64 {
        let lags = self
            .waits
            .iter()
            .filter(|wait| wait.lag != 0)
            .map(|wait| self.lags[wait.lag as usize].max(0) as u64);
        self.durations.iter().copied().chain(lags).fold(0, u64::saturating_add)
    }

    /// Returns the number of tasks.
    pub fn len(&self) -> usize {
        self.durations.len()
    }

    /// Tells whether there is no task.
    pub fn is_empty(&self) -> bool {
        self.durations.is_empty()
    }

    /// Returns a task's duration.
    pub fn duration(&self, task: TaskId) -> u64 {
        self.durations[task as usize]
    }

    /// Returns what a task waits for: (task, lag).
    pub fn waits(&self, task: TaskId) -> impl Iterator<Item = (TaskId, i64)> + '_ {
        let range = self.first_wait[task as usize] as usize..self.first_wait[task as usize + 1] as usize;
        self.waits[range].iter().map(|wait| (wait.task, self.lag(wait.lag)))
    }

    #[inline]
    fn lag(&self, number: u32) -> i64 {
        if number == 0 { 0 } else { self.lags[number as usize] }
    }

    /// Returns when each task ends: the longest path. O(tasks + waits).
    pub fn ends(&self) -> Vec<u64> {
        let mut ends = vec![0; self.len()];
        self.time_from(0, &mut ends);
        ends
    }

    /// Changes durations and brings end times up to date, from the first changed task on.
    ///
    /// # Panics
    /// `ends` must be this graph's, from [`Self::ends`] or the last call.
    pub fn retime(&mut self, changes: &[(TaskId, u64)], ends: &mut [u64]) {
        assert_eq!(ends.len(), self.len(), "the end times are this graph's");
        let mut first = None;
        for &(task, duration) in changes {
            let old = std::mem::replace(&mut self.durations[task as usize], duration);
            if old != duration {
                first = Some(first.map_or(task, |first: TaskId| first.min(task)));
            }
        }
        if let Some(first) = first {
            self.time_from(first as usize, ends);
        }
    }

    fn time_from(&self, first: usize, ends: &mut [u64]) {
        if self.is_empty() {
            return;
        }
        let mut at = self.first_wait[first] as usize;
        for task in first..self.len() {
            let until = self.first_wait[task + 1] as usize;
            let mut start = 0_u64;
            for wait in &self.waits[at..until] {
                let end = ends[wait.task as usize];
                let there =
                    if wait.lag == 0 { end } else { end.saturating_add_signed(self.lags[wait.lag as usize]) };
                start = start.max(there);
            }
            at = until;
            ends[task] = start.saturating_add(self.durations[task]);
        }
    }

    /// Returns the critical path, in order of time: each task starts when the one before it lets it.
    ///
    /// Tasks may start and end otherwise than the graph alone says; `queued` is the task that went before another on a
    /// link that both need.
    pub(crate) fn path_to_the_end(
        &self,
        starts: &[u64],
        ends: &[u64],
        queued: impl Fn(TaskId) -> Option<TaskId>,
    ) -> Vec<TaskId> {
        let Some(mut task) = (0..self.len()).max_by_key(|task| (ends[*task], std::cmp::Reverse(*task)))
        else {
            return Vec::new();
        };
        let mut path = vec![task as TaskId];
        loop {
            let start = starts[task];
            let there = |(before, lag): &(TaskId, i64)| ends[*before as usize].saturating_add_signed(*lag);
            let on_the_link = queued(task as TaskId).map(|before| (before, 0));
            let waits = || self.waits(task as TaskId).chain(on_the_link);
            // With several equally late, the smallest number: the same graph gives the same path. A part of work
            // that was slowed later seems to have been done after the start.
            let exact = waits().filter(|wait| there(wait) == start).map(|(before, _)| before).min();
            let slowed = || waits().filter(|wait| there(wait) > start).map(|(before, _)| before).min();
            match exact.or_else(slowed) {
                Some(before) if start > 0 => {
                    path.push(before);
                    task = before as usize;
                }
                _ => break,
            }
        }
        path.reverse();
        path
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_diamond() {
        let mut graph = EventGraph::default();
        let a = graph.add(5, []);
        let b = graph.add(3, [(a, 0)]);
        let c = graph.add(10, [(a, 2)]);
        let d = graph.add(1, [(b, 0), (c, -4)]);
        let mut ends = graph.ends();
        assert_eq!(ends, [5, 8, 17, 14]);
        assert_eq!(graph.path_to_the_end(&[0, 5, 7, 13], &ends, |_| None), [a, c]);
        graph.retime(&[(c, 1), (d, 20)], &mut ends);
        assert_eq!(ends, [5, 8, 8, 28]);
        assert_eq!(ends, graph.ends());
        assert_eq!(graph.path_to_the_end(&[0, 5, 7, 8], &ends, |_| None), [a, b, d]);
    }
}
