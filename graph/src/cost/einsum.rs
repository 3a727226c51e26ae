//! Saved activations of `einsum`, which runs as a chain of batched products of two operands.

use std::collections::BTreeMap;

use smallvec::SmallVec;

use super::{keep::Keep, times};
use crate::{
    fact::{Shape, TensorFact},
    infer::{Call, Einsum, viewed_strides},
};

/// An operand, or the product of two.
struct Term {
    letters: Vec<char>,
    /// The operand itself; a product's result is fresh memory.
    leaf: Option<TensorFact>,
    requires_grad: bool,
}

/// Saves the factors of each product.
pub(super) fn keep_einsum(keep: &mut Keep<'_>, call: &Call<'_>) {
    let Ok((parsed, tensors)) = Einsum::of(call) else { return };
    let Ok(products) = parsed.products(call) else { return };
    let sizes: Option<BTreeMap<char, u64>> =
        parsed.sizes.iter().map(|(letter, size)| Some((*letter, (*size)?))).collect();
    let (Some(sizes), Some(dtype)) = (sizes, tensors.first().and_then(|tensor| tensor.dtype)) else { return };
    let pairs = Pairs { sizes, output: &parsed.output, element: dtype.bytes() };
    let leaf = |(letters, tensor): (&Vec<char>, &&TensorFact)| Term {
        letters: letters.clone(),
        leaf: Some((*tensor).clone()),
        requires_grad: tensor.requires_grad,
    };
    let mut terms: Vec<Term> = parsed.operands.iter().zip(&tensors).map(leaf).collect();
    for product in products {
        let (left, right) = product.take(&mut terms);
        let result = pairs.product(keep, left, right, &terms);
        terms.insert(product.place, result);
    }
}

struct Pairs<'a> {
    sizes: BTreeMap<char, u64>,
    output: &'a [char],
    element: u64,
}

impl Pairs<'_> {
    fn size(&self, letter: char) -> u64 {
        self.sizes.get(&letter).copied().unwrap_or(1)
    }

    fn count(&self, letters: &[char]) -> u64 {
        times(letters.iter().map(|letter| self.size(*letter)))
    }

    /// Letters in the order of einsum's permuted operands: the result's, then the summed ones.
    fn order(&self, letter: char) -> (usize, char) {
        (self.output.iter().position(|other| *other == letter).unwrap_or(usize::MAX), letter)
    }

    fn product(&self, keep: &mut Keep<'_>, left: Term, right: Term, rest: &[Term]) -> Term {
        let is_needed =
            |letter: char| self.output.contains(&letter) || rest.iter().any(|t| t.letters.contains(&letter));
        let requires_grad = left.requires_grad || right.requires_grad;
        // Letters of one operand that the result lacks are summed first.
        let left = self.without(left, |letter| !is_needed(letter) && !right.letters.contains(&letter));
        let right = self.without(right, |letter| !is_needed(letter) && !left.letters.contains(&letter));
        let in_both = |letter: &char| left.letters.contains(letter) && right.letters.contains(letter);
        let mut letters = left.letters.clone();
        letters.extend(right.letters.iter().filter(|letter| !left.letters.contains(letter)));
        letters.sort_by_key(|letter| self.order(*letter));
        letters.dedup();
        let is_summed = |letter: &char| in_both(letter) && !is_needed(*letter) && self.size(*letter) != 1;
        let part = |of: &Term, wanted: &dyn Fn(&char) -> bool| -> Vec<char> {
            letters.iter().copied().filter(|letter| of.letters.contains(letter) && wanted(letter)).collect()
        };
        let summed = part(&left, &is_summed);
        let together = part(&left, &|letter| in_both(letter) && !is_summed(letter));
        let own_left = part(&left, &|letter| !in_both(letter));
        let own_right = part(&right, &|letter| !in_both(letter));
        if right.requires_grad {
            if summed.is_empty() {
                self.whole(keep, &left);
            } else {
                self.folded(keep, &left, [&together, &own_left, &summed]);
            }
        }
        if left.requires_grad {
            if summed.is_empty() {
                self.whole(keep, &right);
            } else {
                self.folded(keep, &right, [&together, &summed, &own_right]);
            }
        }
        letters.retain(|letter| is_needed(*letter));
        Term { letters, leaf: None, requires_grad }
    }

    fn without(&self, mut term: Term, is_summed: impl Fn(char) -> bool) -> Term {
        let before = term.letters.len();
        term.letters.retain(|letter| !is_summed(*letter));
        if term.letters.len() != before {
            term.leaf = None;
        }
        term
    }

    fn whole(&self, keep: &mut Keep<'_>, term: &Term) {
        match &term.leaf {
            Some(tensor) => keep.tensor(tensor),
            None => keep.fresh(Some(self.count(&term.letters).saturating_mul(self.element))),
        }
    }

    /// Saves a factor in three dimensions: a view if strides allow it, else a copy.
    fn folded(&self, keep: &mut Keep<'_>, term: &Term, parts: [&Vec<char>; 3]) {
        let shape: Shape = parts.iter().map(|letters| Some(self.count(letters))).collect();
        let in_order: Vec<char> = parts.into_iter().flatten().copied().collect();
        let is_view = term.leaf.as_ref().is_some_and(|tensor| {
            let (Some(sizes), Some(strides)) = (tensor.sizes(), tensor.strides.as_ref()) else { return true };
            let place = |letter: &char| term.letters.iter().position(|other| other == letter);
            let turned = |of: &[u64]| -> SmallVec<[u64; 8]> {
                in_order.iter().filter_map(|letter| of.get(place(letter)?).copied()).collect()
            };
            viewed_strides(&turned(&sizes), &turned(strides), &shape).is_some()
        });
        match &term.leaf {
            Some(tensor) if is_view => keep.tensor(tensor),
            _ => keep.fresh(Some(self.count(&in_order).saturating_mul(self.element))),
        }
    }
}
