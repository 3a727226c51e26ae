//! The methods to search splits of operators, and their names.

use partitioner::inside::Walk;

use crate::sharing::OperatorSearch;

/// The settings of FlexFlow's search: proposals per start, how rarely a worse one is accepted, and the random seed.
pub const WALK: Walk = Walk { budget: 25_000, alpha: 100.0, seed: 0 };

/// A search for splits of operators.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Elimination, with a certified bound: OptCNN.
    Exact,
    /// Random changes from elimination's result and from data parallelism: FlexFlow.
    Random,
}

impl Method {
    /// The names of all.
    pub const NAMES: [&str; 2] = ["optcnn", "flexflow"];

    /// Returns the method with a name, in any case.
    pub fn from_name(name: &str) -> Option<Self> {
        match name.to_ascii_lowercase().as_str() {
            "optcnn" => Some(Self::Exact),
            "flexflow" => Some(Self::Random),
            _ => None,
        }
    }

    /// Returns its search of what stages can be written of.
    pub fn search(self, optimizer_factor: f64, micro_batches: u32) -> OperatorSearch {
        let random = (self == Self::Random).then_some(WALK);
        OperatorSearch { name: self.name(), random, optimizer_factor, micro_batches }
    }

    /// Returns its name.
    pub fn name(self) -> &'static str {
        Self::NAMES[usize::from(self == Self::Random)]
    }
}
