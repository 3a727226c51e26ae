//! The memory of a forward pass alone, by operator: results that later operators still read.
//!
//! Nothing is saved for a backward pass. Stored tensors are not counted; the model's inputs count until their last
//! reader and its outputs to the end. Scratch memory of kernels is not counted. Linear in operands.

use crate::{
    model::{ModelGraph, Origin},
    step_memory::last_reads,
};

/// Returns the bytes that are alive while each operator runs, by operator. Unknown sizes count nothing.
pub fn forward_memory(graph: &ModelGraph) -> Vec<u64> {
    let n_operators = graph.operators.len();
    let mut changes = vec![0_i128; n_operators + 1];
    for (storage, last) in graph.storages.iter().zip(last_reads(graph)) {
        let from = match storage.origin {
            Origin::Stored(_) => continue,
            Origin::Input(_) => 0,
            Origin::Made(operator) => operator.index(),
        };
        let bytes = i128::from(storage.bytes.unwrap_or(0));
        let end = (last as usize).saturating_add(1).clamp(from + 1, n_operators.max(from + 1));
        changes[from.min(n_operators)] += bytes;
        changes[end.min(n_operators)] -= bytes;
    }
    let alive = changes.iter().take(n_operators).scan(0_i128, |sum, change| {
        *sum += change;
        Some(u64::try_from(*sum).unwrap_or(u64::MAX))
    });
    alive.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_alive_until_their_last_reader() {
        // 2 x 3 numbers in, 2 x 4 after the product, which the sum reads with the ReLU's.
        let text = "graph(%self : __torch__.Model,
      %x : Float(2, 3, strides=[3, 1], requires_grad=0, device=cpu)):
  %v : Float(4, 3, strides=[3, 1], requires_grad=1, device=cpu) = prim::GetAttr[name=\"v\"](%self)
  %none : NoneType = prim::Constant()
  %one : int = prim::Constant[value=1]()
  %a : Tensor = aten::linear(%x, %v, %none)
  %b : Tensor = aten::relu(%a)
  %c : Tensor = aten::add(%a, %b, %one)
  %d : Tensor = aten::relu(%c)
  return (%d)
";
        let program = tracer::ir::read_ir(text).expect("a graph");
        let graph = crate::build(&program, &crate::BuildOptions::default()).expect("it fits together");
        assert_eq!(forward_memory(&graph), [24 + 32, 2 * 32, 3 * 32, 2 * 32]);
    }
}
