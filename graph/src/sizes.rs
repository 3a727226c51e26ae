//! Sizes of parameters that a trace does not state, inferred from the operators that read them if these allow only one
//! answer.
//!
//! IR text declares the sizes of values, but not of parameters. A linear layer's weight follows from its input and
//! output; an embedding's rows, or the kernel of a strided convolution, may not: those stay unknown.

use operators::{Keeps, ShapeRule, overloads};
use smallvec::SmallVec;
use tracer::{Constant, Node, Operand, Program, TensorId, Type};

/// Sizes, where they are known.
pub type Sizes = SmallVec<[u64; 4]>;

/// Returns the sizes of the program's tensors that it does not state, by [`TensorId`]. O(operators).
pub fn sizes(program: &Program) -> Vec<Option<Sizes>> {
    let mut found = vec![None; program.tensors.len()];
    for node in &program.nodes {
        let arguments = NodeArguments { program, node };
        arguments.node(&mut |tensor: TensorId, sizes: Sizes| {
            found[tensor.index()].get_or_insert(sizes);
        });
    }
    found
}

/// One node's operands by position.
struct NodeArguments<'p> {
    program: &'p Program,
    node: &'p Node,
}

impl NodeArguments<'_> {
    fn node(&self, set: &mut dyn FnMut(TensorId, Sizes)) -> Option<()> {
        let row = operators::find(schema::short_name(&self.node.operator))?;
        let mut give = |at: usize, sizes: Sizes| {
            if let Some(Operand::Tensor(tensor)) = self.operand(at) {
                set(*tensor, sizes);
            }
        };
        match (row.shape, row.keeps) {
            (ShapeRule::Linear, _) => {
                let (input, output) = (self.shape(0)?, self.result()?);
                let (from, to) = (*input.last()?, *output.last()?);
                // A weight of one dimension gives one number per row.
                if input.len() == output.len() {
                    give(1, SmallVec::from_slice(&[to, from]));
                    give(2, SmallVec::from_slice(&[to]));
                }
            }
            (ShapeRule::MatrixProduct | ShapeRule::AddedProduct, _) => {
                let first = usize::from(row.shape == ShapeRule::AddedProduct);
                let output = self.result().filter(|output| output.len() == 2)?;
                if let Some(input) = self.shape(first) {
                    give(first + 1, SmallVec::from_slice(&[*input.get(1)?, *output.get(1)?]));
                } else if let Some(weight) = self.shape(first + 1) {
                    give(first, SmallVec::from_slice(&[*output.first()?, *weight.first()?]));
                }
            }
            (_, Keeps::BatchNorm | Keeps::InstanceNorm) => {
                let channels = *self.shape(0)?.get(1)?;
                (1..=4).for_each(|at| give(at, SmallVec::from_slice(&[channels])));
            }
            (_, Keeps::GroupNorm) => {
                let channels = *self.shape(0)?.get(1)?;
                (2..=3).for_each(|at| give(at, SmallVec::from_slice(&[channels])));
            }
            (_, Keeps::LayerNorm | Keeps::RmsNorm) => {
                let sizes: Sizes = self.numbers(1)?.into_iter().collect();
                (2..=3).for_each(|at| give(at, sizes.clone()));
            }
            (ShapeRule::Convolution | ShapeRule::TransposedConvolution | ShapeRule::AnyConvolution, _) => {
                self.convolution(row.shape, &mut give)?;
            }
            (rule, _) if rule.is_recurrent_layer() => self.recurrent(rule, set)?,
            _ => {}
        }
        Some(())
    }

    fn convolution(&self, rule: ShapeRule, give: &mut dyn FnMut(usize, Sizes)) -> Option<()> {
        let signature = overloads(&self.node.operator).into_iter().next()?;
        let at = |name: &str| signature.parameters.iter().position(|parameter| parameter.name == name);
        let is_transposed = match rule {
            ShapeRule::AnyConvolution => self.flag(at("transposed")?)?,
            _ => rule == ShapeRule::TransposedConvolution,
        };
        let groups = self.number(at("groups")?)?.max(1);
        let (input, output) = (self.shape(0)?, self.result()?);
        let spatial = input.len().checked_sub(2)?;
        let (from, to) = (*input.get(1)?, *output.get(1)?);
        give(at("bias")?, SmallVec::from_slice(&[to]));
        let mut sizes: Sizes = if is_transposed {
            SmallVec::from_slice(&[from, to / groups])
        } else {
            SmallVec::from_slice(&[to, from / groups])
        };
        let [stride, padding, dilation] =
            ["stride", "padding", "dilation"].map(|name| self.numbers(at(name)?));
        let (stride, padding, dilation) = (stride?, padding?, dilation?);
        let of = |list: &[u64], dim: usize| list.get(dim).or(list.last()).copied();
        for dim in 0..spatial {
            // Only stride 1 determines the kernel: any other rounds.
            if of(&stride, dim)? != 1 || is_transposed {
                return None;
            }
            let (size, made) = (*input.get(2 + dim)?, *output.get(2 + dim)?);
            let padded = size.checked_add(of(&padding, dim)?.checked_mul(2)?)?;
            let reach = padded.checked_sub(made)?;
            let dilation = of(&dilation, dim)?.max(1);
            sizes.push(reach.is_multiple_of(dilation).then_some(reach / dilation)?.checked_add(1)?);
        }
        give(at("weight")?, sizes);
        Some(())
    }

    /// Weights of every layer and direction: input, hidden, their biases, and a projection.
    fn recurrent(&self, rule: ShapeRule, set: &mut dyn FnMut(TensorId, Sizes)) -> Option<()> {
        let input = self.shape(0)?;
        let state = |at: usize| -> Option<Vec<u64>> {
            match self.operand(1)? {
                Operand::List(items) | Operand::Tuple(items) => self.shape_of(items.get(at)?),
                one => self.shape_of(one).filter(|_| at == 0),
            }
        };
        let given = *state(0)?.last()?;
        let hidden = if rule == ShapeRule::Lstm { *state(1)?.last()? } else { given };
        let Operand::List(weights) = self.operand(2)? else { return None };
        let has_biases = self.flag(3)?;
        let directions = if self.flag(7)? { 2 } else { 1 };
        let (rows, both) = (hidden.checked_mul(rule.gates())?, given.checked_mul(directions as u64)?);
        let each = 2 + if has_biases { 2 } else { 0 } + usize::from(hidden != given);
        for (index, weight) in weights.iter().enumerate() {
            let is_first_layer = index / each < directions;
            let read = if is_first_layer { *input.last()? } else { both };
            let sizes: &[u64] = match (index % each, has_biases) {
                (0, _) => &[rows, read],
                (1, _) => &[rows, given],
                (2 | 3, true) => &[rows],
                _ => &[given, hidden],
            };
            if let Operand::Tensor(tensor) = weight {
                set(*tensor, SmallVec::from_slice(sizes));
            }
        }
        Some(())
    }

    fn operand(&self, at: usize) -> Option<&Operand> {
        self.node.arguments.get(at).map(|argument| &argument.operand)
    }

    fn shape(&self, at: usize) -> Option<Vec<u64>> {
        self.shape_of(self.operand(at)?)
    }

    fn shape_of(&self, operand: &Operand) -> Option<Vec<u64>> {
        match operand {
            Operand::Value(value) => self.declared(*value),
            Operand::Tensor(tensor) => {
                let shape = &self.program.tensors[tensor.index()].shape;
                (!shape.is_empty()).then(|| shape.clone())
            }
            _ => None,
        }
    }

    fn declared(&self, value: tracer::ValueId) -> Option<Vec<u64>> {
        match &self.program.values[value.index()].type_ {
            Type::Tensor(type_) => type_.shape.clone(),
            _ => None,
        }
    }

    fn result(&self) -> Option<Vec<u64>> {
        self.declared(*self.node.outputs.first()?)
    }

    fn flag(&self, at: usize) -> Option<bool> {
        match self.operand(at)? {
            Operand::Constant(Constant::Bool(value)) => Some(*value),
            _ => None,
        }
    }

    fn number(&self, at: usize) -> Option<u64> {
        natural(self.operand(at)?)
    }

    fn numbers(&self, at: usize) -> Option<Vec<u64>> {
        match self.operand(at)? {
            Operand::List(items) => items.iter().map(natural).collect(),
            one => natural(one).map(|number| vec![number]),
        }
    }
}

fn natural(operand: &Operand) -> Option<u64> {
    match operand {
        Operand::Constant(Constant::Int(value)) => u64::try_from(*value).ok(),
        _ => None,
    }
}
