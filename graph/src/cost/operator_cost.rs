//! The cost of one operator, or of a run of operators: operations and bytes, which add up.

use std::ops::AddAssign;

/// The cost of one operator, or of a run of operators.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OperatorCost {
    /// Forward operations as `torch.utils.flop_counter` counts them: products, convolutions and attention only, two for
    /// a multiply-add.
    pub forward_flops: u64,
    /// Backward operations for the gradients of inputs.
    pub backward_flops_input: u64,
    /// Backward operations for the gradients of parameters.
    pub backward_flops_weight: u64,
    /// The part of `forward_flops` in fused attention and recurrent kernels, which torch's counter misses on a CPU.
    pub fused_flops: u64,
    /// Bytes of the parameters that are read here for the first time.
    pub parameter_bytes: u64,
    /// Bytes that autograd saves here until the backward pass and that no earlier operator saves.
    pub saved_bytes: u64,
    /// Bytes of newly allocated results.
    pub output_bytes: u64,
    /// Bytes read: inputs and stored tensors. Views read nothing.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// The number of products that are not counted above, because their sizes are unknown.
    pub uncounted: u32,
    /// The number of operators whose saved activations are missing from `saved_bytes`, because sizes are unknown.
    pub unmeasured: u32,
}

impl OperatorCost {
    /// Returns the operations of the whole backward pass.
    pub fn backward_flops(&self) -> u64 {
        self.backward_flops_input.saturating_add(self.backward_flops_weight)
    }
}

impl AddAssign for OperatorCost {
    fn add_assign(&mut self, other: Self) {
        let add = |a: &mut u64, b: u64| *a = a.saturating_add(b);
        add(&mut self.forward_flops, other.forward_flops);
        add(&mut self.backward_flops_input, other.backward_flops_input);
        add(&mut self.backward_flops_weight, other.backward_flops_weight);
        add(&mut self.fused_flops, other.fused_flops);
        add(&mut self.parameter_bytes, other.parameter_bytes);
        add(&mut self.saved_bytes, other.saved_bytes);
        add(&mut self.output_bytes, other.output_bytes);
        add(&mut self.read_bytes, other.read_bytes);
        add(&mut self.written_bytes, other.written_bytes);
        self.uncounted += other.uncounted;
        self.unmeasured += other.unmeasured;
    }
}
