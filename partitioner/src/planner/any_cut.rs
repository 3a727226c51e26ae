//! A lower bound for cuts at any operator.

use crate::{
    bound::grid::GridBounds,
    cut_space::CutSpace,
    grid::{search::grids, shape::Grid},
    problem::Problem,
    strategy::{Strategy, candidates},
};

/// Returns the lower bound, in seconds for each micro-batch, of a strategy or of all candidates, if cuts may lie at any operator:
/// by the work and the order of passes alone.
pub fn bound_of_any_cut(problem: &Problem, cut_space: &CutSpace, strategy: Option<Strategy>) -> f64 {
    let by_work = problem.seconds() / problem.machine.total_speed();
    if problem.training.inference.is_some() {
        return by_work;
    }
    let of = |strategy: Strategy| -> f64 {
        if strategy.is_asynchronous() || strategy.two_copies().is_some() {
            return by_work;
        }
        // Without states, the bound lets a cut lie anywhere, even within an operator.
        let bounds = GridBounds::new(problem, cut_space, (&cut_space.states, false), strategy);
        let least = |grid: Grid| {
            let each = grid.micro_batches(problem).ok()?;
            Some(bounds.by_work(grid, each) / (each * grid.replicas) as f64)
        };
        grids(problem, strategy).into_iter().flatten().filter_map(least).fold(f64::INFINITY, f64::min)
    };
    let least = match strategy {
        Some(strategy) => of(strategy),
        None => candidates(problem).map(of).fold(f64::INFINITY, f64::min),
    };
    if least.is_finite() { least } else { by_work }
}
