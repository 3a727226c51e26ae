//! Checks that each read of a stage sees the same last write as in the whole model.
//!
//! The whole model and the stages are interpreted on abstract memory: a value refers to a cell, and a cell holds the
//! operator that wrote to it last. A view shares the cell of its base; a value that a stage receives or clones gets a
//! cell of its own. If layout and type decide whether an operator makes a view or a copy, it counts as both. This check
//! is independent of [`crate::alias`]. Near-linear in the operands of all stages.

use std::collections::HashMap;

use tracer::{Node, NodeId, Operand, Program, ValueId};

use crate::{
    nodes::{mutated_arguments, values_of},
    pipeline::{Carried, Form, Pipeline, Source, Step},
    views::{is_view, is_wide_view, may_copy},
};

/// A read that misses a write, or sees one that the whole model does not have there.
pub(crate) struct Stale {
    /// The stage.
    pub stage: usize,
    /// The value read.
    pub value: ValueId,
}

/// The operator that wrote last, if any.
type Written = Option<NodeId>;

/// Abstract memory: cells, and the cell of each value.
#[derive(Default)]
struct Memory {
    cells: HashMap<ValueId, usize>,
    /// Union-find parents of cells that were merged.
    parents: Vec<usize>,
    written: Vec<Written>,
}

impl Memory {
    fn find(&mut self, mut cell: usize) -> usize {
        while self.parents[cell] != cell {
            self.parents[cell] = self.parents[self.parents[cell]];
            cell = self.parents[cell];
        }
        cell
    }

    fn fresh(&mut self, value: ValueId, written: Written) {
        self.cells.insert(value, self.parents.len());
        self.parents.push(self.parents.len());
        self.written.push(written);
    }

    fn cell(&mut self, value: ValueId) -> Option<usize> {
        self.cells.get(&value).copied().map(|cell| self.find(cell))
    }

    fn written(&mut self, value: ValueId) -> Written {
        self.cell(value).and_then(|cell| self.written[cell])
    }

    fn run(&mut self, id: NodeId, node: &Node, form: Form) {
        let is_in_place = form == Form::AsWritten;
        let written_to = mutated_arguments(node);
        let looked_at = match () {
            () if !is_view(node) || (!is_in_place && !written_to.is_empty()) => 0,
            () if is_wide_view(node) => node.arguments.len(),
            () => node.arguments.len().min(1),
        };
        let mut shared: Option<usize> = None;
        for argument in &node.arguments[..looked_at] {
            for value in values_of(&argument.operand) {
                let Some(cell) = self.cell(value) else { continue };
                if let Some(first) = shared.replace(cell).filter(|first| *first != cell) {
                    self.parents[first] = cell;
                    self.written[cell] = self.written[cell].max(self.written[first]);
                }
            }
        }
        if is_in_place {
            for value in written_to.iter().flat_map(|index| values_of(&node.arguments[*index].operand)) {
                if let Some(cell) = self.cell(value) {
                    self.written[cell] = Some(id);
                }
            }
        }
        for &output in &node.outputs {
            match shared {
                Some(cell) => {
                    self.cells.insert(output, cell);
                }
                None => self.fresh(output, (!written_to.is_empty()).then_some(id)),
            }
        }
    }
}

/// Tells whether a node reads elements instead of only making a view.
fn reads(node: &Node) -> bool {
    !is_view(node) || may_copy(node) || !mutated_arguments(node).is_empty()
}

/// The last writes that reads see, by reader; the model's outputs are read at the end. Reads without a write are
/// absent.
type Seen = HashMap<(NodeId, ValueId), NodeId>;

/// Runs the whole model.
fn whole(program: &Program) -> Seen {
    let mut memory = Memory::default();
    let mut seen = Seen::new();
    let mut note = |memory: &mut Memory, id: usize, operand: &Operand| {
        for value in values_of(operand) {
            seen.extend(memory.written(value).map(|write| ((NodeId(id as u32), value), write)));
        }
    };
    for &input in &program.inputs {
        memory.fresh(input, None);
    }
    for (id, node) in program.nodes.iter().enumerate() {
        node.arguments.iter().for_each(|argument| note(&mut memory, id, &argument.operand));
        memory.run(NodeId(id as u32), node, Form::AsWritten);
    }
    note(&mut memory, program.nodes.len(), &program.output);
    seen
}

/// Finds the first read of a stage that sees another write than in the whole model.
pub(crate) fn stale(program: &Program, pipeline: &Pipeline) -> Option<Stale> {
    if program.nodes.iter().all(|node| mutated_arguments(node).is_empty()) {
        return None;
    }
    let seen = whole(program);
    let differs = |id: NodeId, value: ValueId, written: Written| written != seen.get(&(id, value)).copied();
    let mut sent: Vec<Vec<Written>> = Vec::with_capacity(pipeline.stages.len());
    for (index, stage) in pipeline.stages.iter().enumerate() {
        let mut memory = Memory::default();
        for port in &stage.inputs {
            let written = match port.source {
                Source::Model(_) => None,
                Source::Stage { stage, port } => {
                    sent.get(stage as usize).and_then(|ports| ports.get(port)).copied().flatten()
                }
            };
            if let Carried::Value(value) = port.carried {
                memory.fresh(value, written);
            }
        }
        for step in &stage.steps {
            match *step {
                Step::Clone(value) | Step::Unbox(value) => {
                    let written = memory.written(value);
                    memory.fresh(value, written);
                }
                Step::Run { node: id, form, .. } => {
                    let node = &program.nodes[id.index()];
                    let operands = node.arguments.iter().filter(|_| reads(node));
                    let mut values = operands.flat_map(|argument| values_of(&argument.operand));
                    if let Some(value) = values.find(|value| differs(id, *value, memory.written(*value))) {
                        return Some(Stale { stage: index, value });
                    }
                    memory.run(id, node, form);
                }
            }
        }
        let ports = stage.outputs.iter().map(|port| match port.carried {
            Carried::Value(value) => memory.written(value),
            Carried::Tensor(_) => None,
        });
        sent.push(ports.collect());
    }
    let (last, written) = (pipeline.stages.last()?, sent.last()?);
    let end = NodeId(program.nodes.len() as u32);
    last.outputs.iter().zip(written).find_map(|(port, written)| match port.carried {
        Carried::Value(value) if differs(end, value, *written) => {
            Some(Stale { stage: pipeline.stages.len() - 1, value })
        }
        _ => None,
    })
}
