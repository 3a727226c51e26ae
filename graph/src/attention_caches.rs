//! Keys and values that generation keeps between tokens: those of every attention of the graph.
//!
//! Attention is one operator, or two products with a softmax between. Heads that share keys and values are counted
//! once: repeated keys are followed back, through views and copies, to their smallest form.
//!
//! ```text
//! k 1x2x5x8 ── unsqueeze ── expand 1x2x4x5x8 ── reshape 1x8x5x8 ── attention    counts 2 heads, not 8
//! ```

use operators::{Kernel, OperatorClass};
use tracer::ValueId;

use crate::model::{ModelGraph, Operator, OperatorId};

/// The most operators between a softmax and the products around it: scales, masks, casts, dropout, reshapes.
const FAR: usize = 12;

/// The key-value cache of one attention for the sequences of one batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionCache {
    /// The attention operator, or the product with its values.
    pub operator: OperatorId,
    /// Positions of a sequence that it attends to in this trace.
    pub positions: u64,
    /// Bytes of keys and values per position, over all sequences of the batch.
    pub bytes_per_position: u64,
}

/// Finds the attentions of a graph, in order.
pub fn attention_caches(graph: &ModelGraph) -> Vec<AttentionCache> {
    graph.operators.iter().filter_map(|operator| cache_of(graph, operator)).collect()
}

fn cache_of(graph: &ModelGraph, operator: &Operator) -> Option<AttentionCache> {
    let row = operators::find(operators::plain(operator.short_name()).0)?;
    let (own, keys, values, positions) = if row.class == OperatorClass::Attention {
        let value_of = |name: &str| match operator.argument(name)? {
            tracer::Operand::Value(value) => Some(*value),
            _ => None,
        };
        let (keys, values) = (value_of("key")?, value_of("value")?);
        // Positions come before the dimension of a head.
        let sizes = sizes(graph, keys)?;
        (operator.id, keys, values, *sizes.get(sizes.len().checked_sub(2)?)?)
    } else if row.kernel == Kernel::Softmax {
        let weights = *operator.outputs.first()?;
        let positions = *sizes(graph, weights)?.last()?;
        let (product, values) = product_behind(graph, weights)?;
        (product, keys_before(graph, operator, positions)?, values, positions)
    } else {
        return None;
    };
    let bytes = |value| {
        let tensor = graph.value(value).fact.tensor()?;
        let elements = least_elements(graph, value, positions)?;
        (positions > 0 && elements.is_multiple_of(positions))
            .then(|| (elements / positions).saturating_mul(tensor.dtype.map_or(0, |dtype| dtype.bytes())))
    };
    let bytes_per_position = bytes(keys)?.saturating_add(bytes(values)?);
    Some(AttentionCache { operator: own, positions, bytes_per_position })
}

fn sizes(graph: &ModelGraph, value: ValueId) -> Option<Vec<u64>> {
    graph.value(value).fact.tensor()?.sizes()
}

/// Returns the least number of elements of a value among its views and copies: before heads were repeated.
fn least_elements(graph: &ModelGraph, mut value: ValueId, positions: u64) -> Option<u64> {
    let mut least = graph.value(value).fact.tensor()?.elements()?;
    for _ in 0..FAR {
        let Some(producer) = graph.value(value).producer.map(|producer| graph.operator(producer)) else {
            break;
        };
        let mut tensors =
            producer.inputs.iter().filter(|input| graph.value(**input).fact.tensor().is_some_and(is_large));
        let is_look = matches!(producer.class, OperatorClass::View | OperatorClass::Copy);
        let (Some(&before), None, true) = (tensors.next(), tensors.next(), is_look) else { break };
        let Some(elements) = graph.value(before).fact.tensor().and_then(|tensor| tensor.elements()) else {
            break;
        };
        // A value without such positions is not a key.
        if elements % positions.max(1) != 0 {
            break;
        }
        least = least.min(elements);
        value = before;
    }
    Some(least)
}

/// Tells whether a tensor has more than one element.
fn is_large(tensor: &crate::TensorFact) -> bool {
    tensor.shape.as_ref().is_none_or(|shape| !shape.is_empty())
}

/// Tells whether an operator passes scores or weights on elementwise.
fn hands_on(operator: &Operator) -> bool {
    matches!(operator.class, OperatorClass::View | OperatorClass::Copy | OperatorClass::Elementwise)
}

/// Returns the two operands of a product of two values.
fn product(operator: &Operator, graph: &ModelGraph) -> Option<(ValueId, ValueId)> {
    let is_stack = |value: &&ValueId| sizes(graph, **value).is_some_and(|sizes| sizes.len() > 2);
    let operands: Vec<ValueId> = operator.inputs.iter().filter(is_stack).copied().collect();
    match operands[..] {
        [.., first, second] if operator.class == OperatorClass::Matmul => Some((first, second)),
        _ => None,
    }
}

/// Finds the product of the weights with the values, and the values.
fn product_behind(graph: &ModelGraph, mut weights: ValueId) -> Option<(OperatorId, ValueId)> {
    for _ in 0..FAR {
        let takers = || graph.value(weights).consumers.iter().map(|taker| graph.operator(*taker));
        if let Some((taker, values)) = takers().find_map(|taker| {
            let (first, second) = product(taker, graph)?;
            (first == weights).then_some((taker, second))
        }) {
            return Some((taker.id, values));
        }
        weights = *takers().find(|taker| hands_on(taker))?.outputs.first()?;
    }
    None
}

/// Finds the keys from which the scores before a softmax were made.
fn keys_before(graph: &ModelGraph, softmax: &Operator, positions: u64) -> Option<ValueId> {
    let mut open: Vec<&Operator> = vec![softmax];
    for _ in 0..FAR {
        let mut before: Vec<&Operator> = Vec::new();
        for operator in &open {
            for input in &operator.inputs {
                let is_scores = sizes(graph, *input).is_some_and(|sizes| sizes.last() == Some(&positions));
                let Some(producer) = graph.value(*input).producer.filter(|_| is_scores) else { continue };
                let producer = graph.operator(producer);
                if let Some((_, keys)) = product(producer, graph) {
                    return Some(keys);
                }
                if hands_on(producer) && !before.iter().any(|known| known.id == producer.id) {
                    before.push(producer);
                }
            }
        }
        open = before;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(body: &str, expected: &[(u64, u64)]) {
        let text = format!(
            "graph(%q : Float(1, 8, 5, 16, strides=[640, 80, 16, 1], requires_grad=0, device=cpu),
      %k : Float(1, 2, 5, 16, strides=[160, 80, 16, 1], requires_grad=0, device=cpu),
      %v : Float(1, 2, 5, 16, strides=[160, 80, 16, 1], requires_grad=0, device=cpu)):
  %none : NoneType = prim::Constant()
  %no : bool = prim::Constant[value=0]()
  %zero : float = prim::Constant[value=0.]()
  %m1 : int = prim::Constant[value=-1]()
  %m2 : int = prim::Constant[value=-2]()
  %c1 : int = prim::Constant[value=1]()
  %c2 : int = prim::Constant[value=2]()
  %c4 : int = prim::Constant[value=4]()
  %c5 : int = prim::Constant[value=5]()
  %c8 : int = prim::Constant[value=8]()
  %c16 : int = prim::Constant[value=16]()
  %spread : int[] = prim::ListConstruct(%c1, %c2, %c4, %c5, %c16)
  %heads : int[] = prim::ListConstruct(%c1, %c8, %c5, %c16)
  %k1 : Tensor = aten::relu(%k)
  %k2 : Tensor = aten::unsqueeze(%k1, %c2)
  %k3 : Tensor = aten::expand(%k2, %spread, %no)
  %k4 : Tensor = aten::reshape(%k3, %heads)
  %v2 : Tensor = aten::unsqueeze(%v, %c2)
  %v3 : Tensor = aten::expand(%v2, %spread, %no)
  %v4 : Tensor = aten::reshape(%v3, %heads)
{body}  return (%o)
"
        );
        let program = tracer::ir::read_ir(&text).expect("a graph");
        let graph = crate::build(&program, &crate::BuildOptions::default()).expect("it fits together");
        let found: Vec<(u64, u64)> = attention_caches(&graph)
            .iter()
            .map(|cache| (cache.positions, cache.bytes_per_position))
            .collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn heads_that_share_keys_count_them_once() {
        // Keys and values of two heads of sixteen numbers, four bytes each; not of the eight repeated heads.
        let own = 2 * 2 * 16 * 4;
        check(
            "  %o : Tensor = aten::scaled_dot_product_attention(%q, %k4, %v4, %none, %zero, %no, %none, %no)\n",
            &[(5, own)],
        );
        check(
            "  %t : Tensor = aten::transpose(%k4, %m2, %m1)
  %s : Tensor = aten::matmul(%q, %t)
  %w : Tensor = aten::softmax(%s, %m1, %none)
  %o : Tensor = aten::matmul(%w, %v4)\n",
            &[(5, own)],
        );
    }

    #[test]
    fn a_softmax_without_products_is_no_attention() {
        check("  %o : Tensor = aten::softmax(%v4, %m1, %none)\n", &[]);
    }
}
