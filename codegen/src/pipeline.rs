//! `Pipeline`: a program cut into stages, each a program of its own.

use tracer::{NodeId, Operand, TensorId, ValueId};

use crate::nodes::Kind;

/// How values that are needed more than one stage later are transferred.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Skips {
    /// Through the stages in between, as outputs that they pass on. `torch.distributed.pipelining` needs this.
    #[default]
    Relay,
    /// Directly to the stage that needs them.
    Portal,
}

/// Options of [`crate::cut`].
#[derive(Clone, Copy, Debug, Default)]
pub struct CutOptions {
    /// How skips are transferred.
    pub skips: Skips,
    /// What to do with a parameter that two stages use.
    pub tied: Tied,
}

/// What to do with a parameter that two stages use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tied {
    /// Each stage gets a copy; the training loop sums the gradients.
    #[default]
    Replicate,
    /// The cut is refused.
    Refuse,
}

/// The stage of each node.
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
    /// How skips are transferred.
    pub skips: Skips,
    /// The model's output; its values are the last stage's outputs, in this order.
    pub output: Operand,
}

/// One stage.
#[derive(Clone, Debug, PartialEq)]
pub struct Stage {
    /// Blocks, for people.
    pub label: Vec<String>,
    /// Arguments of `forward`, in order: values of other stages, then inputs of the model.
    pub inputs: Vec<Port>,
    /// Steps of `forward`, in the order of the trace.
    pub steps: Vec<Step>,
    /// Results of `forward`, in order.
    pub outputs: Vec<Port>,
    /// Its parameters and buffers, in the order of the archive. The second name of a tied tensor follows its first.
    pub tensors: Vec<TensorId>,
    /// Constants of the trace that it uses.
    pub constants: Vec<TensorId>,
}

/// A value at the boundary of a stage.
#[derive(Clone, Debug, PartialEq)]
pub struct Port {
    /// Unique among the stage's inputs, or outputs.
    pub name: String,
    /// The value that it carries.
    pub carried: Carried,
    /// The kind of value: numbers are sent as tensors.
    pub kind: Kind,
    /// The source of an input; without meaning for an output.
    pub source: Source,
    /// Whether a gradient may reach it, whichever parameters train.
    pub has_gradient: bool,
}

impl Stage {
    /// Returns the names of the tensors that it receives of other stages and that no gradient reaches in the model.
    pub fn without_gradient(&self) -> Vec<&str> {
        let is_plain = |port: &&Port| matches!(port.source, Source::Stage { .. }) && !port.has_gradient;
        self.inputs.iter().filter(is_plain).map(|port| port.name.as_str()).collect()
    }
}

/// The content of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Carried {
    /// A value of the program.
    Value(ValueId),
    /// A stored tensor that the model returns directly.
    Tensor(TensorId),
}

/// The source of an input.
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
    /// A value that was made elsewhere and is changed in place here.
    Clone(ValueId),
    /// A number that was sent as a tensor.
    Unbox(ValueId),
    /// An operator.
    Run {
        /// Which.
        node: NodeId,
        /// As written, or changed for the cut.
        form: Form,
        /// True if another stage owns it and this one recomputes it because that is cheaper than a transfer.
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
    /// The name of it in each stage.
    pub holders: Vec<(u32, TensorId)>,
    /// True if it is trained: gradients must be summed.
    pub requires_grad: bool,
}
