//! The names that lines use, in a stage and in a block that is written once for several places of the model.

use std::collections::HashMap;

use tracer::{NodeId, Program, TensorId, ValueId};

use crate::location;

/// The names that differ between a stage and a block of it; those of the stage are the default.
#[derive(Clone, Debug, Default)]
pub(super) struct Scope {
    /// Path of the block, and the number of its call; none for the stage.
    pub call: Option<(String, u32)>,
    /// Names of values, instead of their own.
    pub values: HashMap<ValueId, String>,
    /// Names of tensors outside of the block, which are passed to it.
    pub tensors: HashMap<TensorId, String>,
}

impl Scope {
    /// Returns the path of a module or a tensor as the code of this scope reaches it, from `self` on.
    pub fn inside<'t>(&self, path: &'t str) -> &'t str {
        let own = self.call.as_ref().and_then(|(block, _)| below(path, block));
        own.map_or(path, |rest| rest.strip_prefix('.').unwrap_or(rest))
    }

    /// Returns whether a tensor belongs to a module inside of the block, or to the block's own.
    pub fn holds(&self, tensor: &str) -> bool {
        self.call.as_ref().is_none_or(|(block, _)| below(tensor, block).is_some_and(|rest| !rest.is_empty()))
    }

    /// Returns the place of an operator, as its line's comment says it: in a block with a dot in front, counted from there.
    pub fn place(&self, program: &Program, node: NodeId) -> String {
        let call = &program.calls[program.nodes[node.index()].call.index()];
        self.place_of(&program.modules[call.module.index()].path, call.ordinal)
            .unwrap_or_else(|| location::path(program, node))
    }

    /// Returns the place of a call below this block, counted from there; `None` for another.
    pub fn place_of(&self, path: &str, ordinal: u32) -> Option<String> {
        let (block, own) = self.call.as_ref()?;
        let rest = below(path, block)?;
        let rest = if rest.is_empty() { "." } else { rest };
        // The number of a call goes without saying where it is the block's.
        Some(if ordinal.max(1) == *own {
            rest.to_string()
        } else {
            format!("{rest} (call {})", ordinal.max(1))
        })
    }
}

/// Returns the rest of a path that is another or below it, with its leading dot; an empty text if they are equal.
fn below<'t>(path: &'t str, block: &str) -> Option<&'t str> {
    path.strip_prefix(block).filter(|rest| rest.is_empty() || rest.starts_with('.'))
}
