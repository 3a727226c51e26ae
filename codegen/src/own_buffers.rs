//! Buffers that a forward pass writes to, of which each replica of a stage has its own.

use std::collections::BTreeSet;

use tracer::{Operand, Program, Role};

use crate::{
    alias::Classes,
    nodes::{leaves, mutated_arguments},
};

/// Says which buffers differ between replicas, and by which option of `train.py` they do not; `None` if the forward pass
/// writes to none.
pub fn own_buffers(program: &Program) -> Option<String> {
    let mut classes = Classes::new(program);
    let mut written = BTreeSet::new();
    for node in &program.nodes {
        for position in mutated_arguments(node) {
            leaves(&node.arguments[position].operand, &mut |leaf| {
                written.insert(classes.of(leaf));
            });
        }
    }
    let (mut statistics, mut others) = (Vec::new(), Vec::new());
    for (index, tensor) in program.tensors.iter().enumerate() {
        let leaf = Operand::Tensor(tracer::TensorId(index as u32));
        let is_written = tensor.role == Role::Buffer && written.contains(&classes.of(&leaf));
        // Each replica counts as many batches as the others.
        if !is_written || tensor.path.ends_with("num_batches_tracked") {
            continue;
        }
        let is_norm = ["running_mean", "running_var"].iter().any(|name| tensor.path.ends_with(name));
        let alike = if is_norm { &mut statistics } else { &mut others };
        alike.push(&tensor.path);
    }
    let named = |paths: &[&String]| match paths {
        [only] => format!("`{only}`"),
        [first, rest @ ..] => format!("`{first}` and {} more", rest.len()),
        [] => String::new(),
    };
    let mut said = Vec::new();
    if !statistics.is_empty() {
        said.push(format!(
            "each replica has its own statistics of batch norms ({}), of its own samples: `train.py --batch-norm sync` \
             counts those of all replicas, `average` averages them for checkpoints and validation",
            named(&statistics)
        ));
    }
    if !others.is_empty() {
        said.push(format!(
            "each replica has its own of the buffers that a forward pass writes ({}), and those of the first are saved",
            named(&others)
        ));
    }
    (!said.is_empty()).then(|| said.join("; "))
}
