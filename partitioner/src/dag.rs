//! Where a graph can be cut.

pub(crate) mod cut_states;
pub(crate) mod ideals;
pub(crate) mod node_set;
