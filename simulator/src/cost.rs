//! Uniform costs: one forward, input-gradient and weight-gradient time for every stage, one latency for every hop.

/// What an operation of any stage takes, and a hop between ranks, in one unit of time (nanoseconds in a plan).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cost {
    /// Forward pass.
    pub forward: u64,
    /// Gradient of the inputs.
    pub input_gradient: u64,
    /// Gradient of the parameters.
    pub weight_gradient: u64,
    /// Latency of every hop between two ranks.
    pub hop: u64,
}

impl Cost {
    /// Forward, input gradient and weight gradient equal, hops free.
    pub const EQUAL: Self = Self { forward: 1, input_gradient: 1, weight_gradient: 1, hop: 0 };

    /// Returns the time of an operation.
    pub fn of(&self, kind: crate::order::Kind) -> u64 {
        use crate::order::Kind;
        match kind {
            Kind::Forward => self.forward,
            Kind::InputGradient => self.input_gradient,
            Kind::WeightGradient => self.weight_gradient,
            Kind::Backward => self.backward(),
        }
    }

    /// Returns the time of a whole backward pass.
    pub fn backward(&self) -> u64 {
        self.input_gradient.saturating_add(self.weight_gradient)
    }
}
