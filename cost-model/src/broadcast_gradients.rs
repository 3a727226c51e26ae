//! Gradients of operands that were broadcast: sums, which autograd adds to the operators of the graph.
//!
//! Such are a bias, a scale of each channel, a position that is added to each sample, a gate of a channel. Their gradients are sums
//! over the dimensions that they were broadcast to, kernels of their own that read a tensor of the result's size. A scale's is a
//! product first, which is written and read again.

use graph::{ModelGraph, Operator, OperatorClass, TensorFact};
use operators::Kernel;
use schema::WorkSize;

use crate::shape::{kernel, matrix};

/// The kernels that the gradient of one broadcast operand takes beside its operator's own.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Sum {
    /// The sum, as a copy of half of the elements: it reads all and writes next to nothing.
    pub read: WorkSize,
    /// The product of two tensors of the result's size that is summed.
    pub product: Option<WorkSize>,
}

/// Returns the sums of an operator's backward pass, one for each operand that wants a gradient and is smaller than the result.
pub(crate) fn sums(graph: &ModelGraph, operator: &Operator) -> Vec<Sum> {
    let Some(out) = result(graph, operator) else { return Vec::new() };
    let all = elements(&out);
    let is_product = kernel(operator) == Kernel::Mul;
    let of_result = |inputs: f64| matrix(&out, out.len().saturating_sub(1), inputs);
    let sum = Sum { read: halved(of_result(1.0)), product: is_product.then(|| of_result(2.0)) };
    let is_small = |size: &u64| 0 < *size && *size < all;
    let number = match operator.class {
        OperatorClass::Elementwise
            if matches!(kernel(operator), Kernel::Add | Kernel::Mul | Kernel::Pairwise) =>
        {
            wanting(graph, operator).filter(is_small).count()
        }
        // `expand` reads one tensor for several.
        OperatorClass::View => wanting(graph, operator).filter(is_small).count(),
        OperatorClass::Matmul | OperatorClass::Convolution => biases(graph, operator, &out),
        _ => 0,
    };
    vec![sum; number]
}

/// Returns the traffic of an element-wise product's gradients relative to its own; nothing for other operators. The gradient of
/// each operand of the result's size reads the result's gradient and the other operand, and is written.
pub(crate) fn product_traffic(graph: &ModelGraph, operator: &Operator) -> Option<f64> {
    if kernel(operator) != Kernel::Mul {
        return None;
    }
    let all = elements(&result(graph, operator)?) as f64;
    let sizes: Vec<f64> = operands(graph, operator).map(|(size, _)| size as f64).collect();
    let read: f64 = sizes.iter().sum();
    let whole = wanting(graph, operator).map(|size| size as f64).filter(|size| *size >= all);
    let gradients: f64 = whole.map(|size| 2.0 * all + (read - size)).sum();
    Some(gradients / (read + all))
}

/// Returns the number of biases that want a gradient: parameters, and what autocast makes of them.
fn biases(graph: &ModelGraph, operator: &Operator, out: &[u64]) -> usize {
    let is_bias = |shape: &[u64]| shape.len() == 1 && [out.last(), out.get(1)].contains(&shape.first());
    let cast = operator.inputs.iter().filter(|value| {
        let fact = graph.value(**value).fact.tensor();
        fact.is_some_and(|fact| fact.requires_grad && fact.sizes().is_some_and(|sizes| is_bias(&sizes)))
    });
    let stored = operator.tensors.iter().filter(|tensor| {
        let tensor = graph.tensor(**tensor);
        tensor.requires_grad && is_bias(&tensor.shape)
    });
    cast.count() + stored.count()
}

/// Returns the elements of each tensor that an operator reads, and whether it wants a gradient.
fn operands<'a>(graph: &'a ModelGraph, operator: &'a Operator) -> impl Iterator<Item = (u64, bool)> + 'a {
    let values = operator.inputs.iter().filter_map(|value| {
        let fact = graph.value(*value).fact.tensor()?;
        Some((fact.elements()?, fact.requires_grad))
    });
    let stored = operator.tensors.iter().map(|tensor| graph.tensor(*tensor));
    values.chain(
        stored.filter(|tensor| tensor.has_shape).map(|tensor| (tensor.elements(), tensor.requires_grad)),
    )
}

fn wanting<'a>(graph: &'a ModelGraph, operator: &'a Operator) -> impl Iterator<Item = u64> + 'a {
    operands(graph, operator).filter(|(_, wants)| *wants).map(|(size, _)| size)
}

fn result(graph: &ModelGraph, operator: &Operator) -> Option<Vec<u64>> {
    let value = operator.outputs.first()?;
    graph.value(*value).fact.tensor().and_then(TensorFact::sizes)
}

fn elements(sizes: &[u64]) -> u64 {
    sizes.iter().copied().fold(1, u64::saturating_mul)
}

fn halved(size: WorkSize) -> WorkSize {
    match size {
        WorkSize::Rows { rows, cols, inputs } => WorkSize::Rows { rows: (0.5 * rows).max(1.0), cols, inputs },
        size => size,
    }
}
