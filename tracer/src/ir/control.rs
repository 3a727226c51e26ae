//! Blocks inside nodes: `prim::If` and `prim::Loop`.
//!
//! Where constants decide which block runs and how often, its nodes stand in the program as if written there; a node
//! that depends on data is kept whole, with what its blocks read and the lists they change.

use std::collections::HashSet;

use super::{
    IrError,
    lower::{Bound, Lowering, Reads, weigh},
    tree::{Block, IrType, Node as IrNode, Use},
};
use crate::{
    Argument, Constant, Node, NodeId, Note, Operand,
    constant_folding::{RAISE, known, taken},
};

impl Lowering {
    /// Lowers a node that has blocks.
    pub(super) fn control(&mut self, node: &IrNode) -> Result<(), IrError> {
        match (node.kind.as_str(), node.blocks.as_slice()) {
            ("prim::If", [then, otherwise]) => {
                let value = node.inputs.first().and_then(|input| self.constant_of(input));
                match taken(value, then, otherwise, |block| raises(block)) {
                    Some(block) => {
                        let given = self.inside(block, Vec::new(), false)?;
                        self.leave(block);
                        self.give(node, given)
                    }
                    None => self.opaque(node),
                }
            }
            ("prim::Loop", [block]) => match self.steps(node, block) {
                Some(steps) => {
                    let mut carried = node.inputs[2..]
                        .iter()
                        .map(|input| Ok(self.operand(input)?.0))
                        .collect::<Result<Vec<_>, IrError>>()?;
                    for step in steps {
                        carried.insert(0, Operand::Constant(Constant::Int(step)));
                        carried = self.inside(block, carried, step > 0)?;
                        carried.remove(0);
                        self.leave(block);
                    }
                    self.give(node, carried)
                }
                None => self.opaque(node),
            },
            _ => self.opaque(node),
        }
    }

    fn constant_of(&self, input: &Use) -> Option<Constant> {
        match self.bound.get(&input.name)? {
            Bound::Operand(operand, _) => known(operand, &self.program.values, &self.program.nodes),
            _ => None,
        }
    }

    /// Returns the numbers of a loop's rounds, where they are known and few, and nothing ends it early.
    fn steps(&mut self, node: &IrNode, block: &Block) -> Option<Vec<i64>> {
        let [limit, condition, carried @ ..] = node.inputs.as_slice() else { return None };
        let Some(Constant::Int(limit)) = self.constant_of(limit) else { return None };
        let goes_on = [condition, block.outputs.first()?];
        let is_true = |input: &Use| self.constant_of(input) == Some(Constant::Bool(true));
        let fits = carried.len() + 1 == block.inputs.len()
            && carried.len() + 1 == block.outputs.len()
            && carried.len() == node.outputs.len();
        if !fits || !goes_on.into_iter().all(is_true) {
            return None;
        }
        self.written_out.steps(&[limit], count(block))
    }

    /// Lowers a block's nodes with its inputs bound, and returns what it gives.
    fn inside(
        &mut self,
        block: &Block,
        inputs: Vec<Operand>,
        is_again: bool,
    ) -> Result<Vec<Operand>, IrError> {
        let was = if is_again { self.another_round() } else { self.repeat };
        for (input, operand) in block.inputs.iter().zip(inputs) {
            let weight = weigh(&operand);
            self.bind(&input.name, Bound::Operand(operand, weight), input.span)?;
        }
        for node in &block.nodes {
            self.node(node)?;
        }
        let given = block.outputs.iter().map(|output| Ok(self.operand(output)?.0)).collect();
        self.repeat = was;
        given
    }

    /// Forgets the names of a block: they are its own, and the next round gives them again.
    fn leave(&mut self, block: &Block) {
        let inputs = block.inputs.iter();
        for binding in inputs.chain(block.nodes.iter().flat_map(|node| &node.outputs)) {
            self.bound.remove(&binding.name);
        }
    }

    fn give(&mut self, node: &IrNode, given: Vec<Operand>) -> Result<(), IrError> {
        if given.len() != node.outputs.len() {
            return Err(super::lower::arity(node, &format!("{} outputs", given.len()), node.outputs.len()));
        }
        for (output, operand) in node.outputs.iter().zip(given) {
            let weight = weigh(&operand);
            self.bind(&output.name, Bound::Operand(operand, weight), output.span)?;
        }
        Ok(())
    }

    /// `aten::append(%l, %x)`: while the items of a list are known, its name stands for them and one more.
    pub(super) fn append(&mut self, node: &IrNode) -> Result<(), IrError> {
        let [list, item] = node.inputs.as_slice() else { return self.operator(node) };
        let Operand::List(mut items) = self.operand(list)?.0 else { return self.operator(node) };
        items.push(self.operand(item)?.0);
        let longer = Operand::List(items);
        let weight = weigh(&longer);
        self.bound.insert(list.name.clone(), Bound::Operand(longer.clone(), weight));
        match node.outputs.as_slice() {
            [output] => self.bind(&output.name, Bound::Operand(longer, weight), output.span),
            _ => Ok(()),
        }
    }

    /// Makes a value of a list that a name stands for.
    fn hold(&mut self, list: &Use) -> Result<(), IrError> {
        let (operand, _) = self.operand(list)?;
        let call = self.calls.innermost();
        let id = self.add(Node {
            operator: "prim::ListConstruct".to_owned(),
            arguments: vec![Argument { name: None, operand }],
            outputs: Vec::new(),
            changes: Vec::new(),
            call,
            span: list.span,
        });
        self.rebind(list, id)
    }

    /// Gives a list's name to a new output of a node.
    fn rebind(&mut self, list: &Use, node: NodeId) -> Result<(), IrError> {
        let type_ = self.lists.get(&list.name).cloned().unwrap_or_else(|| IrType::Named("list".to_owned()));
        self.bound.remove(&list.name);
        let was = self.another_round();
        let value = self.value(&list.name, &type_, Some(node), list.span);
        self.repeat = was;
        self.program.nodes[node.index()].outputs.push(value?);
        Ok(())
    }

    /// Lets new values take names of their own; returns the round until now.
    fn another_round(&mut self) -> Option<usize> {
        self.repeats += 1;
        self.repeat.replace(self.repeats)
    }

    /// One node that reads what its blocks read from outside, and gives the lists that they change.
    fn opaque(&mut self, node: &IrNode) -> Result<(), IrError> {
        let mut reads = Reads::default();
        reads.uses(&node.inputs);
        node.blocks.iter().for_each(|block| reads.block(block));
        let mut changed = HashSet::new();
        node.blocks.iter().for_each(|block| changes(block, &mut changed));
        let is_list = |name: &str| matches!(self.bound.get(name), Some(Bound::Operand(Operand::List(_), _)));
        let changed: Vec<&Use> = reads
            .outer
            .iter()
            .copied()
            .filter(|read| changed.contains(read.name.as_str()) && is_list(&read.name))
            .collect();
        for list in &changed {
            self.hold(list)?;
        }
        let mut arguments = Vec::new();
        for read in reads.outer {
            match self.bound.get(&read.name) {
                Some(Bound::Module(..) | Bound::Function(_)) => {}
                Some(Bound::Operand(..)) | None => arguments.push(self.operand(read)?.0),
            }
        }
        let id = self.push_node(node, "prim::Opaque", arguments)?;
        for list in changed {
            self.rebind(list, id)?;
        }
        let call = &self.calls.get_mut(self.program.nodes[id.index()].call);
        let path = self.modules.get_mut(call.module).path.clone();
        let text = format!("`{}` is kept as one opaque operator", node.kind);
        self.program.notes.push(Note { text, path, span: node.span, node: Some(id) });
        Ok(())
    }
}

/// Tells whether a block ends the model with an exception.
fn raises(block: &Block) -> bool {
    block.nodes.iter().any(|node| node.kind == RAISE)
}

/// Counts the nodes of a block, those inside others too.
fn count(block: &Block) -> usize {
    block.nodes.iter().map(|node| 1 + node.blocks.iter().map(count).sum::<usize>()).sum()
}

/// Lists the names that a block's operators change in place.
fn changes<'a>(block: &'a Block, names: &mut HashSet<&'a str>) {
    for node in &block.nodes {
        let is_changing = node.kind.strip_prefix("aten::").is_some_and(operators::changes_container);
        names.extend(node.inputs.first().filter(|_| is_changing).map(|input| input.name.as_str()));
        node.blocks.iter().for_each(|block| changes(block, names));
    }
}
