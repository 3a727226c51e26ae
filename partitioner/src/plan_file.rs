//! Between solutions and `plan.yaml`: one is written, and one that was edited is read and scored.

pub(crate) mod check;
pub(crate) mod placed;
pub(crate) mod score;
pub(crate) mod write;
