//! Lower bounds of the step: times that no plan beats. `docs/bounds.md` derives them.

pub(crate) mod crossing;
pub(crate) mod feasible_step;
pub(crate) mod grid;
pub(crate) mod min_cut;
pub(crate) mod work;

#[cfg(test)]
mod worked_example;
