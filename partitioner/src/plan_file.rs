//! Between solutions and `plan.yaml`, and the simulator's verdict on either.

pub(crate) mod check;
pub(crate) mod placed;
pub(crate) mod score;
pub(crate) mod simulate;
pub(crate) mod write;
