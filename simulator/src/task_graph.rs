//! Task graphs whose tasks start when a rule lets them: FlexFlow's full simulation (Jia et al., 2019,
//! arXiv:1807.05358, §5; `simulate_task_graph_execution` in its repository).
//!
//! Unlike [`crate::EventGraph`], nothing fixes the order of tasks that share a device: whichever is ready and allowed
//! starts, smaller numbers first. O((tasks + dependencies)·log tasks + tasks·ready).

use std::{
    cmp::Reverse,
    collections::{BTreeSet, BinaryHeap},
};

use thiserror::Error;

/// Start and end of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ran {
    /// The task.
    pub task: usize,
    /// When it starts.
    pub start: u64,
    /// When it ends.
    pub end: u64,
}

/// Why a task graph does not run to its end.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum TaskGraphError {
    /// A dependency names a task that is not there.
    #[error("a dependency goes from task {from} to task {to}; there are {n_tasks}")]
    Dependency {
        /// Where it comes from.
        from: usize,
        /// Where it goes.
        to: usize,
        /// Tasks of the graph.
        n_tasks: usize,
    },
    /// Tasks wait for each other, or the rule lets none of the ready ones start.
    #[error("task {task} never starts: it waits for itself, or the rule does not allow it")]
    Stuck {
        /// The first of them.
        task: usize,
    },
}

/// Runs a graph of tasks; `may_start` sees a ready task and those that run.
///
/// # Errors
/// Names a task that never starts.
pub fn run(
    durations: &[u64],
    dependencies: &[(usize, usize)],
    may_start: impl Fn(usize, &BTreeSet<usize>) -> bool,
) -> Result<Vec<Ran>, TaskGraphError> {
    let n_tasks = durations.len();
    let mut open = vec![0_usize; n_tasks];
    let mut successors = vec![Vec::new(); n_tasks];
    for &(from, to) in dependencies {
        if from >= n_tasks || to >= n_tasks {
            return Err(TaskGraphError::Dependency { from, to, n_tasks });
        }
        open[to] += 1;
        successors[from].push(to);
    }
    let mut ready: BTreeSet<usize> = (0..n_tasks).filter(|task| open[*task] == 0).collect();
    let mut running: BTreeSet<usize> = BTreeSet::new();
    let mut ends: BinaryHeap<Reverse<(u64, usize)>> = BinaryHeap::new();
    let mut ran: Vec<Option<Ran>> = vec![None; n_tasks];
    let mut now = 0_u64;
    loop {
        for task in ready.clone() {
            if may_start(task, &running) {
                ready.remove(&task);
                running.insert(task);
                let end = now.saturating_add(durations[task]);
                ran[task] = Some(Ran { task, start: now, end });
                ends.push(Reverse((end, task)));
            }
        }
        let Some(Reverse((end, task))) = ends.pop() else { break };
        now = end;
        running.remove(&task);
        for next in &successors[task] {
            open[*next] -= 1;
            if open[*next] == 0 {
                ready.insert(*next);
            }
        }
    }
    ran.into_iter().enumerate().map(|(task, ran)| ran.ok_or(TaskGraphError::Stuck { task })).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(
        durations: &[u64],
        dependencies: &[(usize, usize)],
        most_at_once: usize,
        expected: &[(u64, u64)],
    ) {
        let ran = run(durations, dependencies, |_, running| running.len() < most_at_once).unwrap();
        let found: Vec<(u64, u64)> = ran.iter().map(|ran| (ran.start, ran.end)).collect();
        assert_eq!(found, expected);
    }

    /// The traces of FlexFlow's own tests.
    #[test]
    fn flexflows_traces() {
        let chain = [(0, 1), (1, 2), (2, 3)];
        check(&[1, 10, 100, 1000], &chain, 9, &[(0, 1), (1, 11), (11, 111), (111, 1111)]);
        let diamond = [(0, 1), (0, 2), (1, 3), (2, 3)];
        check(&[10, 15, 20, 25], &diamond, 9, &[(0, 10), (10, 25), (10, 30), (30, 55)]);
        check(&[10, 15, 20, 25], &diamond, 1, &[(0, 10), (10, 25), (25, 45), (45, 70)]);
        let crossing = [(0, 1), (0, 2), (1, 3), (2, 3), (2, 4), (3, 5), (4, 5)];
        let costs = [10, 15, 20, 25, 30, 35];
        check(&costs, &crossing, 9, &[(0, 10), (10, 25), (10, 30), (30, 55), (30, 60), (60, 95)]);
        check(&costs, &crossing, 1, &[(0, 10), (10, 25), (25, 45), (45, 70), (70, 100), (100, 135)]);
        let fan = [(0, 1), (0, 2), (0, 3), (1, 4), (2, 4), (3, 4)];
        check(&[10, 100, 100, 100, 20], &fan, 2, &[(0, 10), (10, 110), (10, 110), (110, 210), (210, 230)]);
    }

    #[test]
    fn what_never_starts_is_named() {
        assert_eq!(run(&[1, 1, 1], &[(1, 2), (2, 1)], |_, _| true), Err(TaskGraphError::Stuck { task: 1 }));
        assert_eq!(run(&[1, 1], &[], |task, _| task == 0), Err(TaskGraphError::Stuck { task: 1 }));
        let missing = TaskGraphError::Dependency { from: 0, to: 7, n_tasks: 1 };
        assert_eq!(run(&[1], &[(0, 7)], |_, _| true), Err(missing));
    }
}
