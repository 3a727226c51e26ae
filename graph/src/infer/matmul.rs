//! Matrix products and everything built of them.

use std::collections::BTreeMap;

use operators::ShapeRule;

use super::{
    call::{Call, Known, Result, contiguous_strides, fresh, fresh_fact, reject, shape},
    elementwise::{broadcast, float_of, like},
    rules::rules,
};
use crate::fact::{Dim, Fact, Shape, TensorFact, show_shape};

rules! {
    linear: Linear,
    matmul: Matmul,
    exact: ExactProduct | MatrixProduct | BatchedProduct | MatrixVector | Inner | VecDot,
    adding: AddedProduct | AddedOuter | AddedSum,
    outer: Outer,
    einsum: Einsum,
    grouped: GroupedProduct,
    bilinear: Bilinear,
    distance: Cdist,
    attention: Attention,
    native_attention: NativeAttention,
}

/// Checks that two sizes are equal, as far as known, and returns the known one.
pub fn agree(a: Dim, b: Dim, what: impl FnOnce() -> String) -> Result<Dim> {
    match (a, b) {
        (Some(x), Some(y)) if x != y => reject!("{}: {x} against {y}", what()),
        (None, known) | (known, _) => Ok(known),
    }
}

/// `linear`: the last dimension is replaced.
pub fn linear(call: &Call<'_>) -> Result {
    let (input, weight) = (call.tensor("input")?, call.tensor("weight")?);
    let mut sizes = shape(input)?.clone();
    let w = shape(weight)?;
    let (Some(last), true) = (sizes.last().copied(), (1..=2).contains(&w.len())) else {
        reject!("{} with a weight of {}", show_shape(&sizes), show_shape(w));
    };
    let in_features = w[w.len() - 1];
    agree(last, in_features, || {
        format!("the last size of {} is not the weight's {}", show_shape(&sizes), show_shape(w))
    })?;
    match w.len() {
        2 => *sizes.last_mut().known()? = w[0],
        _ => {
            sizes.pop();
        }
    }
    fresh_fact(input.dtype, sizes)
}

/// `matmul`: vectors, matrices and batches of them.
pub fn matmul(call: &Call<'_>) -> Result {
    let (a, b) = (call.at(0).tensor().known()?, call.at(1).tensor().known()?);
    fresh_fact(a.dtype, product(shape(a)?, shape(b)?)?)
}

/// Returns the sizes of `a @ b`.
pub(super) fn product(a: &Shape, b: &Shape) -> Result<Shape> {
    if a.is_empty() || b.is_empty() {
        reject!("a product needs dimensions: {} with {}", show_shape(a), show_shape(b));
    }
    let inner_b = if b.len() == 1 { b[0] } else { b[b.len() - 2] };
    agree(a[a.len() - 1], inner_b, || {
        format!("inner sizes of {} and {} differ", show_shape(a), show_shape(b))
    })?;
    let batch = |shape: &Shape| Shape::from_slice(&shape[..shape.len().saturating_sub(2)]);
    let mut result = broadcast(&[&batch(a), &batch(b)])?;
    if a.len() > 1 {
        result.push(a[a.len() - 2]);
    }
    if b.len() > 1 {
        result.push(b[b.len() - 1]);
    }
    Ok(result)
}

/// `mm`, `bmm`, `mv`, `dot`: exact ranks.
pub fn exact(call: &Call<'_>) -> Result {
    let (a, b) = (call.at(0).tensor().known()?, call.at(1).tensor().known()?);
    let (x, y) = (shape(a)?, shape(b)?);
    match call.shape_rule() {
        ShapeRule::Inner if x.is_empty() || y.is_empty() => return fresh_fact(a.dtype, broadcast(&[x, y])?),
        ShapeRule::Inner => {
            let ((last, left), (other, right)) = (x.split_last().known()?, y.split_last().known()?);
            agree(*last, *other, || {
                format!("{} and {} differ in the last size", show_shape(x), show_shape(y))
            })?;
            return fresh_fact(a.dtype, left.iter().chain(right).copied().collect());
        }
        ShapeRule::VecDot => {
            let mut sizes = broadcast(&[x, y])?;
            let dim = call.dim("dim", sizes.len())?;
            if dim < sizes.len() {
                sizes.remove(dim);
            }
            return fresh_fact(a.dtype, sizes);
        }
        _ => {}
    }
    let ranks = match call.shape_rule() {
        ShapeRule::MatrixProduct => (2, 2),
        ShapeRule::BatchedProduct => (3, 3),
        ShapeRule::MatrixVector => (2, 1),
        _ => (1, 1),
    };
    if (x.len(), y.len()) != ranks {
        reject!(
            "{} needs {} and {} dimensions: {} with {}",
            call.name,
            ranks.0,
            ranks.1,
            show_shape(x),
            show_shape(y)
        );
    }
    if call.shape_rule() == ShapeRule::BatchedProduct {
        agree(x[0], y[0], || format!("batches of {} and {} differ", show_shape(x), show_shape(y)))?;
    }
    fresh_fact(a.dtype, product(x, y)?)
}

/// `addmm`, `baddbmm`, `addmv`, `addbmm`, `addr`: a product added to an operand.
pub fn adding(call: &Call<'_>) -> Result {
    let added = call.at(0).tensor().known()?;
    let (a, b) = (call.at(1).tensor().known()?, call.at(2).tensor().known()?);
    let (x, y) = (shape(a)?, shape(b)?);
    let product = match call.shape_rule() {
        ShapeRule::AddedOuter => x.iter().chain(y).copied().collect(),
        ShapeRule::AddedSum => {
            let mut sizes = product(x, y)?;
            if sizes.is_empty() {
                reject!("no batches of matrices: {} and {}", show_shape(x), show_shape(y));
            }
            sizes.remove(0);
            sizes
        }
        _ => product(x, y)?,
    };
    broadcast(&[&product, shape(added)?])?;
    fresh_fact(a.dtype, product)
}

/// `outer`, `ger`.
pub fn outer(call: &Call<'_>) -> Result {
    let (a, b) = (call.at(0).tensor().known()?, call.at(1).tensor().known()?);
    fresh_fact(a.dtype, shape(a)?.iter().chain(shape(b)?).copied().collect())
}

/// `einsum`: sizes by letter.
pub fn einsum(call: &Call<'_>) -> Result {
    let (parsed, tensors) = Einsum::of(call)?;
    parsed.products(call)?;
    fresh_fact(tensors.first().known()?.dtype, parsed.result(&parsed.output))
}

/// An einsum equation with its sizes.
pub struct Einsum {
    /// Letters of each operand; an ellipsis becomes private letters.
    pub operands: Vec<Vec<char>>,
    /// Letters of the result.
    pub output: Vec<char>,
    /// Size of each letter.
    pub sizes: BTreeMap<char, Dim>,
}

/// One product of `einsum`: two terms are removed from a list, and their product is added.
pub struct Product {
    /// Position of the first term.
    pub left: usize,
    /// Position of the second term, after the first.
    pub right: usize,
    /// The position of the product once both are consumed.
    pub place: usize,
}

impl Product {
    /// Removes both terms from the list.
    pub fn take<T>(&self, terms: &mut Vec<T>) -> (T, T) {
        let right = terms.remove(self.right);
        (terms.remove(self.left), right)
    }
}

impl Einsum {
    /// Parses an equation for operands whose ranks are known.
    pub fn parse(equation: &str, tensors: &[&TensorFact]) -> Result<Self> {
        let text: String = equation.chars().filter(|letter| !letter.is_whitespace()).collect();
        let (left, right) = match text.split_once("->") {
            Some((left, right)) => (left.to_string(), Some(right.to_string())),
            None => (text, None),
        };
        let terms: Vec<&str> = left.split(',').collect();
        if terms.len() != tensors.len() {
            reject!("equation {equation:?} names {} operands, {} are given", terms.len(), tensors.len());
        }
        let mut sizes: BTreeMap<char, Dim> = BTreeMap::new();
        let mut operands = Vec::new();
        let mut longest = 0;
        for (term, tensor) in terms.iter().zip(tensors) {
            let dims = shape(tensor)?;
            let letters = term.replace("...", "").chars().count();
            let Some(extra) = dims.len().checked_sub(letters) else {
                reject!("term {term:?} of equation {equation:?} against {}", show_shape(dims));
            };
            if !term.contains("...") && extra != 0 {
                reject!("term {term:?} of equation {equation:?} against {}", show_shape(dims));
            }
            longest = longest.max(extra);
            let expanded = expand(term, extra);
            for (letter, dim) in expanded.iter().zip(dims) {
                let known = sizes.entry(*letter).or_insert(Some(1));
                *known = match (*known, *dim) {
                    (Some(1), dim) => dim,
                    (known, Some(1)) => known,
                    (a, b) => agree(a, b, || format!("sizes of {letter:?} in {equation:?} differ"))?,
                };
            }
            operands.push(expanded);
        }
        let output = match right {
            Some(right) => expand(&right, longest),
            None => {
                // Without an arrow: the letters that occur once, sorted, after the ellipsis.
                let count =
                    |letter: char| operands.iter().flatten().filter(|other| **other == letter).count();
                let ellipsis = expand("...", longest);
                let once = sizes.keys().filter(|letter| letter.is_ascii_alphabetic() && count(**letter) == 1);
                ellipsis.into_iter().chain(once.copied()).collect()
            }
        };
        Ok(Self { operands, output, sizes })
    }

    /// Parses the equation of a call, and returns it with the operands.
    pub fn of<'a>(call: &'a Call<'_>) -> Result<(Self, Vec<&'a TensorFact>)> {
        let (Some(Fact::Str(equation)), Some(Fact::List(operands))) =
            (call.get("equation"), call.get("tensors"))
        else {
            return Err(super::call::Stop::Unknown);
        };
        let tensors: Vec<&TensorFact> = operands.iter().filter_map(Fact::tensor).collect();
        Ok((Self::parse(equation, &tensors)?, tensors))
    }

    /// Returns the products in execution order.
    ///
    /// Without a path operands are taken from left to right; the results of a path's steps are appended.
    pub fn products(&self, call: &Call<'_>) -> Result<Vec<Product>> {
        let mut path = call.ints("path").unwrap_or_default().into_iter();
        let products = (2..=self.operands.len()).rev().map(|n_terms| {
            let (Some(a), Some(b)) = (path.next().flatten(), path.next().flatten()) else {
                return Ok(Product { left: 0, right: 1, place: 0 });
            };
            match (usize::try_from(a.min(b)), usize::try_from(a.max(b))) {
                (Ok(left), Ok(right)) if left < right && right < n_terms => {
                    Ok(Product { left, right, place: n_terms - 2 })
                }
                _ => reject!("a path of einsum takes operands {a} and {b} of {n_terms}"),
            }
        });
        products.collect()
    }

    /// Returns the sizes of some letters.
    pub fn result(&self, letters: &[char]) -> Shape {
        letters.iter().map(|letter| self.sizes.get(letter).copied().flatten()).collect()
    }
}

/// Replaces `...` by letters of the private use area, the last dimension first in the alphabet.
fn expand(term: &str, extra: usize) -> Vec<char> {
    let private = |at: usize| char::from_u32(0xE000 + at as u32).unwrap_or('\u{F8FF}');
    match term.split_once("...") {
        Some((before, after)) => {
            before.chars().chain((0..extra).rev().map(private)).chain(after.chars()).collect()
        }
        None => term.chars().collect(),
    }
}

/// `bilinear`.
pub fn bilinear(call: &Call<'_>) -> Result {
    let (a, weight) = (call.tensor("input1")?, call.tensor("weight")?);
    let mut sizes = shape(a)?.clone();
    *sizes.last_mut().known()? = *shape(weight)?.first().known()?;
    fresh_fact(a.dtype, sizes)
}

/// `cdist`: distances between rows.
pub fn distance(call: &Call<'_>) -> Result {
    let (a, b) = (call.tensor("x1")?, call.tensor("x2")?);
    let (x, y) = (shape(a)?, shape(b)?);
    if x.len() < 2 || y.len() < 2 {
        reject!("distances between {} and {}", show_shape(x), show_shape(y));
    }
    let batch = |sizes: &Shape| Shape::from_slice(&sizes[..sizes.len() - 2]);
    let mut sizes = broadcast(&[&batch(x), &batch(y)])?;
    sizes.extend([x[x.len() - 2], y[y.len() - 2]]);
    fresh_fact(a.dtype.map(float_of), sizes)
}

/// `scaled_dot_product_attention`: the query's sizes with the value's last one.
pub fn attention(call: &Call<'_>) -> Result {
    let (query, key, value) = (call.tensor("query")?, call.tensor("key")?, call.tensor("value")?);
    let (q, k, v) = (shape(query)?, shape(key)?, shape(value)?);
    if q.len() < 2 || k.len() < 2 || v.len() < 2 {
        reject!("attention of {}, {} and {}", show_shape(q), show_shape(k), show_shape(v));
    }
    let shown = || format!("attention of {}, {} and {}", show_shape(q), show_shape(k), show_shape(v));
    agree(q[q.len() - 1], k[k.len() - 1], shown)?;
    agree(k[k.len() - 2], v[v.len() - 2], shown)?;
    let heads = |sizes: &Shape| Shape::from_slice(&sizes[..sizes.len() - 2]);
    let mut sizes = match call.flag("enable_gqa") {
        Some(true) => heads(q),
        _ => broadcast(&[&heads(q), &heads(k), &heads(v)])?,
    };
    sizes.extend([q[q.len() - 2], v[v.len() - 1]]);
    // The fused CPU kernel writes in the query's order; products write row by row.
    let strides =
        if attention_by_parts(call) { contiguous_strides(&sizes) } else { like(query, None).strides };
    let result = Fact::Tensor(TensorFact { strides, ..fresh(query.dtype, sizes) });
    Ok(match call.n_outputs {
        0 | 1 => result,
        _ => Fact::List(vec![result]),
    })
}

/// Tells whether attention runs as two products with a softmax between: no fused kernel supports a trained mask, heads
/// to be expanded, other than four dimensions, a value wider than the query, or heads whose numbers are not contiguous.
pub fn attention_by_parts(call: &Call<'_>) -> bool {
    let heads = |name: &str| {
        let shape = call.tensor(name).ok()?.shape.as_ref()?;
        Some(Shape::from_slice(&shape[..shape.len().saturating_sub(2)]))
    };
    let is_spread = heads("query") != heads("key") && call.flag("enable_gqa") != Some(true);
    let width = |name: &str| call.tensor(name).ok()?.shape.as_ref()?.last().copied();
    let is_scattered = |name: &&str| {
        let strides = call.tensor(name).ok().and_then(|tensor| tensor.strides.as_ref());
        strides.and_then(|strides| strides.last()).is_some_and(|stride| *stride != 1)
    };
    let rank = call.tensor("query").ok().and_then(|query| Some(query.shape.as_ref()?.len()));
    call.tensor("attn_mask").is_ok_and(|mask| mask.requires_grad)
        || is_spread
        || rank != Some(4)
        || width("query") != width("value")
        || ["query", "key", "value"].iter().any(is_scattered)
}

/// `_native_multi_head_attention` and `_transformer_encoder_layer_fwd`: the query's sizes.
pub fn native_attention(call: &Call<'_>) -> Result {
    let query = call.first()?;
    let result = Fact::Tensor(fresh(query.dtype, shape(query)?.clone()));
    if call.n_outputs < 2 {
        return Ok(result);
    }
    let weights = match (call.tensor("key").and_then(shape), shape(query)?.as_slice()) {
        _ if call.flag("need_weights") == Some(false) => Fact::Unknown,
        (Ok(key), [batch, length, _]) if call.flag("average_attn_weights") != Some(false) => {
            Fact::Tensor(fresh(query.dtype, Shape::from_slice(&[*batch, *length, *key.get(1).known()?])))
        }
        _ => Fact::Unknown,
    };
    Ok(Fact::List(vec![result, weights]))
}

/// `_grouped_mm`: rows in groups, each with its own matrix.
pub fn grouped(call: &Call<'_>) -> Result {
    let (a, b) = (call.at(0).tensor().known()?, call.at(1).tensor().known()?);
    let (x, y) = (shape(a)?, shape(b)?);
    let groups =
        call.tensor("offs").and_then(shape).ok().and_then(|offsets| offsets.first().copied().flatten());
    let sizes = match (x.as_slice(), y.as_slice()) {
        ([rows, _], [_, _, columns]) => Shape::from_slice(&[*rows, *columns]),
        ([rows, _], [_, columns]) => Shape::from_slice(&[groups, *rows, *columns]),
        ([_, rows, _], [_, columns]) => Shape::from_slice(&[*rows, *columns]),
        ([batch, rows, _], [_, _, columns]) => Shape::from_slice(&[*batch, *rows, *columns]),
        _ => reject!("grouped products of {} and {}", show_shape(x), show_shape(y)),
    };
    fresh_fact(a.dtype, sizes)
}
