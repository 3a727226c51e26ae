//! Levels: partitions of the graph from coarse to fine, and the quotient graph of each.

use std::ops::Range;

use indexmap::IndexMap;
use tracer::ValueId;

use crate::{
    BlockId, OperatorId,
    block::{Block, Item, Level},
    model::{Flow, ModelGraph},
};

/// A graph whose nodes are the items of a level.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Quotient {
    /// The nodes in execution order.
    pub items: Vec<Item>,
    /// Edges from an earlier to a later item, with the values that flow; empty for pure order.
    pub edges: IndexMap<(usize, usize), Vec<ValueId>>,
}

impl ModelGraph {
    /// Returns the items of a level: every operator in exactly one, in execution order.
    pub fn level(&self, level: Level) -> Vec<Item> {
        let opened = match level {
            Level::Block => self.containers(),
            _ => Vec::new(),
        };
        self.items(|block| match level {
            Level::Operator => true,
            Level::Layer => self.has_inner(block),
            Level::Block => opened[block.id.index()],
            Level::Depth(depth) => block.depth < depth && self.has_inner(block),
        })
    }

    /// Returns the direct contents of a block: its calls, and operators between them.
    pub fn inside(&self, block: BlockId) -> Vec<Item> {
        self.items_from(block, |inner| inner.id == block)
    }

    /// Returns the items with some blocks opened.
    pub fn items(&self, is_open: impl Fn(&Block) -> bool) -> Vec<Item> {
        if self.operators.is_empty() {
            return Vec::new();
        }
        self.items_from(BlockId::ROOT, is_open)
    }

    fn items_from(&self, block: BlockId, is_open: impl Fn(&Block) -> bool) -> Vec<Item> {
        let mut items = Vec::new();
        // An explicit stack: nesting may be deeper than the thread's.
        let mut stack = vec![Item::Block(block)];
        while let Some(item) = stack.pop() {
            match item {
                Item::Block(id) if !is_open(self.block(id)) => items.push(item),
                Item::Operator(_) => items.push(item),
                Item::Block(id) => {
                    let block = self.block(id);
                    let bottom = stack.len();
                    let mut at = block.operators.start;
                    for child in &block.children {
                        let range = &self.block(*child).operators;
                        stack.extend((at..range.start).map(|at| Item::Operator(OperatorId(at))));
                        if !range.is_empty() {
                            stack.push(Item::Block(*child));
                        }
                        at = at.max(range.end);
                    }
                    stack.extend((at..block.operators.end).map(|at| Item::Operator(OperatorId(at))));
                    stack[bottom..].reverse();
                }
            }
        }
        items
    }

    fn has_inner(&self, block: &Block) -> bool {
        block.children.iter().any(|child| !self.block(*child).operators.is_empty())
    }

    /// Returns for every block whether it only groups the model's units: the root, lists of layers, and the blocks
    /// around them. A list is two or more numbered calls (`layers.3`) with parts of their own; inside another list they
    /// must also be equal.
    fn containers(&self) -> Vec<bool> {
        let mut opened = vec![false; self.blocks.len()];
        for block in self.blocks.iter().rev() {
            let parts = || {
                block.children.iter().map(|child| self.block(*child)).filter(|child| self.has_inner(child))
            };
            let numbered: Vec<&Block> = parts().filter(|child| is_numbered(&child.module_path)).collect();
            let mut outlines: Vec<u64> = numbered.iter().map(|child| child.outline).collect();
            outlines.sort_unstable();
            let is_alike = outlines.windows(2).any(|pair| pair[0] == pair[1]);
            let is_list = numbered.len() >= 2 && (is_alike || !self.is_inside_list(block));
            let is_around = parts().any(|child| opened[child.id.index()]);
            opened[block.id.index()] =
                is_list || is_around || (block.parent.is_none() && self.has_inner(block));
        }
        opened
    }

    fn is_inside_list(&self, block: &Block) -> bool {
        block.module_path.split('.').any(|name| !name.is_empty() && name.bytes().all(|b| b.is_ascii_digit()))
    }

    /// Returns the quotient over the items of a level.
    pub fn quotient(&self, items: Vec<Item>) -> Quotient {
        let mut of_operator = vec![usize::MAX; self.operators.len()];
        for (position, item) in items.iter().enumerate() {
            for operator in item.operators(self) {
                of_operator[operator as usize] = position;
            }
        }
        let mut edges: IndexMap<(usize, usize), Vec<ValueId>> = IndexMap::new();
        for edge in self.flow.raw_edges() {
            let ends = (of_operator[edge.source().index()], of_operator[edge.target().index()]);
            if ends.0 == ends.1 || ends.0 == usize::MAX || ends.1 == usize::MAX {
                continue;
            }
            let values = edges.entry(ends).or_default();
            if let Flow::Value(value) = edge.weight {
                // Edges come consumer by consumer, so a repeated value is near the end.
                if values.last() != Some(&value) && !values.contains(&value) {
                    values.push(value);
                }
            }
        }
        edges.sort_unstable_keys();
        Quotient { items, edges }
    }

    /// Returns the runs of neighbouring equal items: `layers.1` to `layers.11`. Runs of one are included, so the runs
    /// cover all items.
    pub fn repeats(&self, items: &[Item]) -> Vec<Range<usize>> {
        let alike = |a: Item, b: Item| match (a, b) {
            (Item::Block(a), Item::Block(b)) => self.block(a).structure == self.block(b).structure,
            _ => false,
        };
        let mut runs: Vec<Range<usize>> = Vec::new();
        for position in 0..items.len() {
            match runs.last_mut() {
                Some(run) if alike(items[run.start], items[position]) => run.end = position + 1,
                _ => runs.push(position..position + 1),
            }
        }
        runs
    }
}

fn is_numbered(path: &str) -> bool {
    path.rsplit('.')
        .next()
        .is_some_and(|name| !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit()))
}
