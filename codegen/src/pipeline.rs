//! `Pipeline`: a program cut into stages, each a program of its own.

use tracer::{NodeId, Operand, TensorId, ValueId};

use crate::nodes::Kind;

/// How values travel that are needed more than one stage later.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Skips {
    /// Through the stages between, as outputs they pass on. `torch.distributed.pipelining` needs this.
    #[default]
    Relay,
    /// Straight to the stage that needs them.
    Portal,
}

/// Options of [`crate::cut`].
#[derive(Clone, Copy, Debug, Default)]
pub struct CutOptions {
    /// How skips travel.
    pub skips: Skips,
    /// What to do with a parameter that two stages use.
    pub tied: Tied,
}

/// What to do with a parameter that two stages use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tied {
    /// Each stage gets a copy; whoever trains sums the gradients.
    #[default]
    Replicate,
    /// No such cut.
    Refuse,
}

/// Which stage each node belongs to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Assignment {
    /// Stage by node.
    pub stage_of: Vec<u32>,
    /// Blocks of each stage, for people: `layer1`, `layer2.0`.
    pub labels: Vec<Vec<String>>,
}

impl Assignment {
    /// Cuts before each of the given node positions.
    pub fn at(nodes: usize, cuts: &[usize]) -> Self {
        let stage_of =
            (0..nodes).map(|node| cuts.iter().filter(|cut| **cut <= node).count() as u32).collect();
        Self { stage_of, labels: vec![Vec::new(); cuts.len() + 1] }
    }

    /// Returns the number of stages.
    pub fn stages(&self) -> usize {
        self.labels.len()
    }
}

/// A program cut into stages.
#[derive(Clone, Debug, PartialEq)]
pub struct Pipeline {
    /// The stages in order.
    pub stages: Vec<Stage>,
    /// Parameters that more than one stage holds.
    pub tied: Vec<TiedTensor>,
    /// How skips travel.
    pub skips: Skips,
    /// What the model returns; its values are the last stage's outputs, in this order.
    pub output: Operand,
}

/// One stage.
#[derive(Clone, Debug, PartialEq)]
pub struct Stage {
    /// Blocks, for people.
    pub label: Vec<String>,
    /// What `forward` takes, in order: what other stages send, then inputs of the model.
    pub inputs: Vec<Port>,
    /// What `forward` does, in the order of the trace.
    pub steps: Vec<Step>,
    /// What `forward` returns, in order.
    pub outputs: Vec<Port>,
    /// Parameters and buffers it holds, in the order of the archive. The second name of a tied tensor stands behind
    /// its first.
    pub tensors: Vec<TensorId>,
    /// Constants of the trace that it uses.
    pub constants: Vec<TensorId>,
}

/// A value at the border of a stage.
#[derive(Clone, Debug, PartialEq)]
pub struct Port {
    /// Unique among the stage's inputs, or outputs.
    pub name: String,
    /// What it carries.
    pub carried: Carried,
    /// What the value is: numbers travel in tensors.
    pub kind: Kind,
    /// Where it comes from; of no meaning for an output.
    pub source: Source,
}

/// What a port carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Carried {
    /// A value of the program.
    Value(ValueId),
    /// A stored tensor, returned by the model as it is.
    Tensor(TensorId),
}

/// Where an input comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The model's input at this position.
    Model(usize),
    /// An output of an earlier stage.
    Stage {
        /// Which stage.
        stage: u32,
        /// Which of its outputs.
        port: usize,
    },
}

/// One step of a stage's `forward`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A value that is changed in place here, but was made elsewhere.
    Clone(ValueId),
    /// A number that travelled in a tensor.
    Unbox(ValueId),
    /// An operator.
    Run {
        /// Which.
        node: NodeId,
        /// As written, or changed for the cut.
        form: Form,
        /// True when another stage runs it as its own, and this one again because that is cheaper than sending.
        is_repeated: bool,
    },
}

/// How an operator is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// As in the trace.
    AsWritten,
    /// Without writing in place.
    OutOfPlace,
}

/// One tensor that more than one stage holds.
#[derive(Clone, Debug, PartialEq)]
pub struct TiedTensor {
    /// The name that each stage knows it by.
    pub holders: Vec<(u32, TensorId)>,
    /// True when it trains: gradients must be summed.
    pub requires_grad: bool,
}
