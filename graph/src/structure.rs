//! Structural hashes of the tree of blocks, which tell equal blocks.
//!
//! Hashes are built bottom-up. Each connection is counted once, at the innermost block that contains both its ends, so
//! the whole takes O(operators + connections · depth).

use std::collections::HashMap;

use tracer::{Constant, Operand, Program};

use crate::{
    BlockId,
    block::Block,
    fact::Fact,
    model::{ModelGraph, Operator},
    operand::{collect, unique},
};

/// Makes the tree of blocks: one per call.
pub fn blocks(program: &Program) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::with_capacity(program.calls.len());
    let mut taken: HashMap<String, u32> = HashMap::with_capacity(program.calls.len());
    for (index, call) in program.calls.iter().enumerate() {
        let module = &program.modules[call.module.index()];
        let id = BlockId(index as u32);
        let mut count = taken.get(&module.path).copied().unwrap_or(0);
        let path = loop {
            count += 1;
            let path = match count {
                1 => module.path.clone(),
                n if module.path.is_empty() => format!("(call {n})"),
                n => format!("{} (call {n})", module.path),
            };
            // A module may itself be called `relu (call 2)`.
            if count == 1 || !taken.contains_key(&path) {
                break path;
            }
        };
        taken.insert(module.path.clone(), count);
        if count > 1 {
            taken.insert(path.clone(), 1);
        }
        let parent = call.parent.map(|parent| BlockId(parent.0));
        let depth = parent.map_or(0, |parent| blocks[parent.index()].depth + 1);
        if let Some(parent) = parent {
            blocks[parent.index()].children.push(id);
        }
        let (mut inputs, mut outputs) = (Vec::new(), Vec::new());
        call.arguments.iter().for_each(|argument| collect(argument, &mut inputs, &mut Vec::new()));
        collect(&call.output, &mut outputs, &mut Vec::new());
        blocks.push(Block {
            id,
            path,
            kind: module.class.rsplit('.').next().unwrap_or(&module.class).to_string(),
            class: module.class.clone(),
            module: call.module,
            module_path: module.path.clone(),
            ordinal: count,
            parent,
            children: Vec::new(),
            depth,
            operators: call.nodes.clone(),
            inputs: unique(inputs),
            outputs: unique(outputs),
            structure: 0,
            outline: 0,
        });
    }
    blocks
}

/// Fills in the hashes of every block.
pub fn hash(graph: &mut ModelGraph) {
    let mut wires = vec![(0_u64, 0_u64); graph.blocks.len()];
    for operator in &graph.operators {
        for (position, value) in operator.inputs.iter().enumerate() {
            let Some(producer) = graph.value(*value).producer else { continue };
            let producer = graph.operator(producer);
            let block = common(graph, operator.block, producer.block);
            let start = graph.block(block).operators.start;
            let output = producer.outputs.iter().position(|output| output == value).unwrap_or(0);
            let mut wire = Hash::new(position as u64);
            wire.add(u64::from(operator.id.0 - start));
            wire.add(u64::from(producer.id.0 - start));
            wire.add(output as u64);
            let sum = &mut wires[block.index()];
            *sum = (sum.0.wrapping_add(wire.0), sum.1.wrapping_add(wire.0));
        }
    }
    for index in (0..graph.blocks.len()).rev() {
        let block = &graph.blocks[index];
        let mut exact = Hash::of(&block.kind);
        let mut rough = Hash::of(&block.kind);
        let mut at = block.operators.start;
        let own = |from: u32, to: u32, exact: &mut Hash, rough: &mut Hash| {
            for operator in graph.operators_of(&(from..to)) {
                add_operator(graph, operator, exact, rough);
            }
        };
        for child in &block.children {
            let child = graph.block(*child);
            own(at, child.operators.start, &mut exact, &mut rough);
            exact.add(child.structure);
            rough.add(child.outline);
            at = child.operators.end;
        }
        own(at, block.operators.end, &mut exact, &mut rough);
        exact.add(wires[index].0);
        rough.add(wires[index].1);
        let (exact, rough) = (exact.0, rough.0);
        let block = &mut graph.blocks[index];
        block.structure = exact;
        block.outline = rough;
    }
}

/// Returns the innermost block that contains both.
fn common(graph: &ModelGraph, mut a: BlockId, mut b: BlockId) -> BlockId {
    while a != b {
        let (x, y) = (graph.block(a), graph.block(b));
        // Parents have smaller numbers than children, so the larger one goes up.
        if x.id > y.id {
            a = x.parent.unwrap_or(BlockId::ROOT);
        } else {
            b = y.parent.unwrap_or(BlockId::ROOT);
        }
    }
    a
}

fn add_operator(graph: &ModelGraph, operator: &Operator, exact: &mut Hash, rough: &mut Hash) {
    exact.text(&operator.name);
    rough.text(&operator.name);
    for argument in &operator.arguments {
        add_operand(graph, &argument.operand, exact);
    }
    for output in &operator.outputs {
        add_fact(&graph.value(*output).fact, exact);
    }
}

fn add_operand(graph: &ModelGraph, operand: &Operand, hash: &mut Hash) {
    match operand {
        Operand::Value(_) => hash.add(1),
        Operand::Tensor(tensor) => {
            let tensor = graph.tensor(*tensor);
            hash.add(2 + tensor.role as u64);
            hash.add(tensor.dtype as u64);
            tensor.shape.iter().for_each(|size| hash.add(*size));
        }
        Operand::Constant(constant) => match constant {
            Constant::None => hash.add(6),
            Constant::Bool(value) => hash.add(7 + u64::from(*value)),
            Constant::Int(value) => hash.add(*value as u64),
            Constant::Float(value) => hash.add(value.to_bits()),
            Constant::Complex(a, b) => {
                hash.add(a.to_bits());
                hash.add(b.to_bits());
            }
            Constant::Str(text) | Constant::Device(text) => hash.text(text),
        },
        Operand::List(items) | Operand::Tuple(items) => {
            hash.add(items.len() as u64);
            items.iter().for_each(|item| add_operand(graph, item, hash));
        }
        Operand::Dict(items) => items.iter().for_each(|(key, value)| {
            add_operand(graph, key, hash);
            add_operand(graph, value, hash);
        }),
    }
}

fn add_fact(fact: &Fact, hash: &mut Hash) {
    match fact {
        Fact::Tensor(tensor) => {
            hash.add(tensor.dtype.map_or(99, |dtype| dtype as u64));
            for dim in tensor.shape.iter().flatten() {
                hash.add(dim.unwrap_or(u64::MAX));
            }
        }
        Fact::List(items) => items.iter().for_each(|item| add_fact(item, hash)),
        Fact::Dict(items) => items.iter().for_each(|(_, item)| add_fact(item, hash)),
        _ => {}
    }
}

/// A fast hash that is the same on every machine: multiply and fold, as in FxHash with a final shift.
struct Hash(u64);

impl Hash {
    fn new(seed: u64) -> Self {
        let mut hash = Self(0x9E37_79B9_7F4A_7C15);
        hash.add(seed);
        hash
    }

    fn of(text: &str) -> Self {
        let mut hash = Self::new(text.len() as u64);
        hash.text(text);
        hash
    }

    fn add(&mut self, value: u64) {
        let mixed = (self.0.rotate_left(5) ^ value).wrapping_mul(0x51_7C_C1_B7_27_22_0A_95);
        self.0 = mixed ^ (mixed >> 29);
    }

    fn text(&mut self, text: &str) {
        for chunk in text.as_bytes().chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.add(u64::from_le_bytes(word));
        }
        self.add(text.len() as u64);
    }
}
