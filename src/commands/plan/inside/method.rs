//! The methods to search splits of operators, and their names.

/// A search for splits of operators.
#[derive(Clone, Copy, PartialEq, Eq)]
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

    /// Returns its name.
    pub fn name(self) -> &'static str {
        Self::NAMES[usize::from(self == Self::Random)]
    }
}
