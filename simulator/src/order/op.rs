//! One operation of a stage on a micro-batch, written as PyTorch writes it: `3F0`, `2I5`, `2W5`, `1B4`.

use std::fmt;

/// What an operation does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Forward pass.
    Forward,
    /// Gradient of the inputs alone.
    InputGradient,
    /// Gradient of the parameters alone, after [`Kind::InputGradient`].
    WeightGradient,
    /// Both gradients at once.
    Backward,
}

impl Kind {
    /// Returns PyTorch's letter.
    pub fn letter(self) -> char {
        match self {
            Kind::Forward => 'F',
            Kind::InputGradient => 'I',
            Kind::WeightGradient => 'W',
            Kind::Backward => 'B',
        }
    }

    /// Returns the kind with this letter.
    pub fn from_letter(letter: char) -> Option<Self> {
        match letter {
            'F' => Some(Kind::Forward),
            'I' => Some(Kind::InputGradient),
            'W' => Some(Kind::WeightGradient),
            'B' => Some(Kind::Backward),
            _ => None,
        }
    }

    /// Tells whether the gradient of the inputs exists when the operation ends.
    pub fn makes_input_gradient(self) -> bool {
        matches!(self, Kind::InputGradient | Kind::Backward)
    }

    /// Tells whether the activations of the micro-batch are free when the operation ends.
    pub fn frees_activations(self) -> bool {
        matches!(self, Kind::WeightGradient | Kind::Backward)
    }
}

/// One operation of a rank's program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Op {
    /// The stage it runs.
    pub stage: u32,
    /// The micro-batch it works on.
    pub micro_batch: u32,
    /// What it does.
    pub kind: Kind,
    /// Runs together with the operation after it in the program: both start when both can, and end as one.
    pub joined: bool,
}

impl Op {
    /// Returns an operation that runs by itself.
    pub fn new(stage: u32, kind: Kind, micro_batch: u32) -> Self {
        Self { stage, micro_batch, kind, joined: false }
    }

    /// Returns a forward pass.
    pub fn forward(stage: u32, micro_batch: u32) -> Self {
        Self::new(stage, Kind::Forward, micro_batch)
    }

    /// Returns a whole backward pass.
    pub fn backward(stage: u32, micro_batch: u32) -> Self {
        Self::new(stage, Kind::Backward, micro_batch)
    }

    /// Returns the gradient of the inputs.
    pub fn input_gradient(stage: u32, micro_batch: u32) -> Self {
        Self::new(stage, Kind::InputGradient, micro_batch)
    }

    /// Returns the gradient of the parameters.
    pub fn weight_gradient(stage: u32, micro_batch: u32) -> Self {
        Self::new(stage, Kind::WeightGradient, micro_batch)
    }

    /// Returns the operation joined to the one after it.
    pub fn join(self) -> Self {
        Self { joined: true, ..self }
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}{}", self.stage, self.kind.letter(), self.micro_batch)
    }
}
