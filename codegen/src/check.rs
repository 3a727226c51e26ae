//! The check after cutting, independent of the cutting code.
//!
//! It interprets the stages on names only: every operator is owned by exactly one stage, no value is read before it is
//! available, each read sees the same writes as in the whole model, and every stored tensor belongs to a stage.
//! Near-linear in the operands of all stages.

use std::collections::{BTreeMap, BTreeSet};

use thiserror::Error;
use tracer::{NodeId, Operand, Program, Role, TensorId, ValueId};

use crate::{
    nodes::{leaves, mutated_arguments},
    pipeline::{Carried, Form, Pipeline, Source, Stage, Step},
    stale::{Stale, stale},
};

/// A fault of stages: always a bug of this program.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum CheckError {
    /// An operator runs in no stage, or is owned by several.
    #[error("operator {operator} ({name}) runs {times} times")]
    Times {
        /// Its position.
        operator: u32,
        /// Its name.
        name: String,
        /// How often.
        times: usize,
    },
    /// An operator that writes or draws random numbers runs twice.
    #[error("operator {operator} ({name}) may not be repeated")]
    Repeated {
        /// Its position.
        operator: u32,
        /// Its name.
        name: String,
    },
    /// A value is read before it is available.
    #[error("stage {stage} reads value `{value}` before it has it")]
    Absent {
        /// Where.
        stage: usize,
        /// Its name.
        value: String,
    },
    /// A stage lacks a tensor that it uses, or no stage has the tensor.
    #[error("tensor `{tensor}` is not in stage {}", stage.map_or("any".to_string(), |stage| stage.to_string()))]
    Tensor {
        /// Its path.
        tensor: String,
        /// The stage without it.
        stage: Option<usize>,
    },
    /// Inputs and outputs do not match.
    #[error("input `{input}` of stage {stage} has no source")]
    Input {
        /// Where.
        stage: usize,
        /// Its name.
        input: String,
    },
    /// Operators of a stage do not run in the order of the trace.
    #[error("stage {stage} runs operators out of order")]
    Order {
        /// Where.
        stage: usize,
    },
    /// A read misses a write to its memory, or sees a later one.
    #[error("stage {stage} reads `{value}` as it was before or after, not as the model does")]
    Stale {
        /// Where.
        stage: usize,
        /// Its name.
        value: String,
    },
    /// The last stage does not return the model's outputs.
    #[error("the last stage does not return the model's outputs")]
    Output,
}

/// Checks stages against the program.
///
/// # Errors
/// The first fault.
pub fn check(program: &Program, pipeline: &Pipeline) -> Result<(), CheckError> {
    let mut times = vec![0_usize; program.nodes.len()];
    let mut homes: BTreeSet<TensorId> = BTreeSet::new();
    for index in 0..pipeline.stages.len() {
        let stage = Reading::of(program, pipeline, index)?;
        stage.check(&mut times)?;
        homes.extend(stage.held);
    }
    if let Some((operator, times)) = times.iter().enumerate().find(|(_, times)| **times != 1) {
        let name = program.nodes[operator].operator.clone();
        return Err(CheckError::Times { operator: operator as u32, name, times: *times });
    }
    for (index, tensor) in program.tensors.iter().enumerate() {
        if tensor.role != Role::Constant && !homes.contains(&TensorId(index as u32)) {
            return Err(CheckError::Tensor { tensor: tensor.path.clone(), stage: None });
        }
    }
    check_tied(program, pipeline)?;
    if let Some(Stale { stage, value }) = stale(program, pipeline) {
        return Err(CheckError::Stale { stage, value: program.values[value.index()].name.clone() });
    }
    let mut wanted = Vec::new();
    leaves(&program.output, &mut |leaf| match leaf {
        Operand::Value(value) => wanted.push(Carried::Value(*value)),
        Operand::Tensor(tensor) => wanted.push(Carried::Tensor(*tensor)),
        _ => {}
    });
    let returned =
        pipeline.stages.last().map(|stage| stage.outputs.iter().map(|port| port.carried).collect());
    if returned == Some(wanted) { Ok(()) } else { Err(CheckError::Output) }
}

/// The state while a stage is checked: its tensors, and the values that it receives.
struct Reading<'a> {
    program: &'a Program,
    stage: &'a Stage,
    index: usize,
    held: BTreeSet<TensorId>,
    received: BTreeSet<ValueId>,
}

impl<'a> Reading<'a> {
    /// Checks that inputs have the declared sources.
    fn of(program: &'a Program, pipeline: &'a Pipeline, index: usize) -> Result<Self, CheckError> {
        let stage = &pipeline.stages[index];
        let held = stage.tensors.iter().chain(&stage.constants).copied().collect();
        let mut known: BTreeSet<ValueId> = BTreeSet::new();
        for port in &stage.inputs {
            let Carried::Value(value) = port.carried else {
                return Err(CheckError::Input { stage: index, input: port.name.clone() });
            };
            let is_right = match port.source {
                Source::Model(input) => program.inputs.get(input) == Some(&value),
                Source::Stage { stage: from, port: output } => {
                    let sender = pipeline.stages.get(from as usize).filter(|_| (from as usize) < index);
                    let sent = sender.and_then(|sender| sender.outputs.get(output));
                    sent.is_some_and(|sent| sent.carried == port.carried && sent.kind == port.kind)
                }
            };
            if !is_right || !known.insert(value) {
                return Err(CheckError::Input { stage: index, input: port.name.clone() });
            }
        }
        Ok(Self { program, stage, index, held, received: known })
    }

    /// Checks that an operand is available.
    fn read(&self, operand: &Operand, known: &BTreeSet<ValueId>) -> Result<(), CheckError> {
        let Self { program, held, index, .. } = self;
        let mut fault = None;
        leaves(operand, &mut |leaf| match leaf {
            Operand::Value(value) if !known.contains(value) => {
                let value = program.values[value.index()].name.clone();
                fault = Some(CheckError::Absent { stage: *index, value });
            }
            Operand::Tensor(tensor) if !held.contains(tensor) => {
                let tensor = program.tensors[tensor.index()].path.clone();
                fault = Some(CheckError::Tensor { tensor, stage: Some(*index) });
            }
            _ => {}
        });
        fault.map_or(Ok(()), Err)
    }

    /// Checks the steps in their order, and counts how often each operator runs.
    fn check(&self, times: &mut [usize]) -> Result<(), CheckError> {
        let Self { program, stage, index, received, .. } = self;
        let mut known = received.clone();
        let mut cloned = BTreeSet::new();
        let mut last: Option<NodeId> = None;
        for step in &stage.steps {
            match step {
                Step::Clone(value) | Step::Unbox(value) => {
                    self.read(&Operand::Value(*value), &known)?;
                    cloned.insert(*value);
                }
                Step::Run { node: id, form, is_repeated } => {
                    let node = &program.nodes[id.index()];
                    if last.is_some_and(|last| last >= *id) {
                        return Err(CheckError::Order { stage: *index });
                    }
                    last = Some(*id);
                    for argument in &node.arguments {
                        self.read(&argument.operand, &known)?;
                    }
                    let mutated = mutated_arguments(node);
                    if *is_repeated && !mutated.is_empty() {
                        return Err(CheckError::Repeated { operator: id.0, name: node.operator.clone() });
                    }
                    // A value from elsewhere is not written to, unless it was cloned.
                    for argument in mutated.into_iter().filter(|_| *form == Form::AsWritten) {
                        if let Operand::Value(value) = &node.arguments[argument].operand
                            && received.contains(value)
                            && !cloned.contains(value)
                        {
                            return Err(CheckError::Repeated { operator: id.0, name: node.operator.clone() });
                        }
                    }
                    times[id.index()] += usize::from(!is_repeated);
                    known.extend(&node.outputs);
                }
            }
        }
        for port in &stage.outputs {
            match port.carried {
                Carried::Value(value) => self.read(&Operand::Value(value), &known)?,
                Carried::Tensor(tensor) => self.read(&Operand::Tensor(tensor), &known)?,
            }
        }
        Ok(())
    }
}

/// A parameter in two stages must be declared as tied.
fn check_tied(program: &Program, pipeline: &Pipeline) -> Result<(), CheckError> {
    let mut stages_of: BTreeMap<(&str, u64), BTreeSet<u32>> = BTreeMap::new();
    for (index, stage) in pipeline.stages.iter().enumerate() {
        for id in &stage.tensors {
            let tensor = &program.tensors[id.index()];
            if let (Role::Parameter, Some(storage)) = (tensor.role, &tensor.storage) {
                stages_of.entry((storage.record.as_str(), storage.offset)).or_default().insert(index as u32);
            }
        }
    }
    for ((record, offset), stages) in stages_of.into_iter().filter(|(_, stages)| stages.len() > 1) {
        let is_declared = pipeline.tied.iter().any(|tied| {
            let storage = program.tensors[tied.holders[0].1.index()].storage.as_ref();
            storage.is_some_and(|storage| storage.record == record && storage.offset == offset)
                && tied.holders.iter().map(|(stage, _)| *stage).collect::<BTreeSet<_>>() == stages
        });
        if !is_declared {
            return Err(CheckError::Tensor {
                tensor: record.to_string(),
                stage: stages.first().map(|s| *s as usize),
            });
        }
    }
    Ok(())
}
