//! The loss that a comparison differentiates: a random linear functional of all outputs.
//!
//! Its gradient at an output is random and not zero, whatever the output is. (A sum of squares would be constant behind a layer
//! norm, and its gradient zero at a head of zeros: nothing before them would be compared.)

use tch::{Device, Kind, Tensor};

use crate::{
    error::TorchError,
    kinds::{carries_gradient, is_complex},
};

/// Returns Σ w·y over outputs, given with their positions; the weights w depend on the seed and the position alone.
///
/// Returns nothing where no output can carry a gradient.
pub(super) fn functional(outputs: &[(usize, &Tensor)], seed: i64) -> Result<Option<Tensor>, TorchError> {
    let mut sum: Option<Tensor> = None;
    for &(position, output) in outputs {
        if !carries_gradient(output.kind()) || output.numel() == 0 {
            continue;
        }
        let real = as_real(output)?;
        let kind = if real.kind() == Kind::Double { Kind::Double } else { Kind::Float };
        tch::manual_seed(1_000_003 * (seed + 1) + position as i64);
        let weights = Tensor::f_randn(real.size(), (kind, Device::Cpu))?.f_to_device(real.device())?;
        let term = real.f_to_kind(kind)?.f_mul(&weights)?.f_sum(kind)?;
        let term = term.f_div_scalar((real.numel() as f64).sqrt())?.f_to_kind(Kind::Double)?;
        sum = Some(match sum {
            Some(sum) => sum.f_add(&term)?,
            None => term,
        });
    }
    Ok(sum)
}

/// Returns a dense tensor of real numbers: complex ones become pairs, gradients of embeddings with `sparse=True` all their rows.
pub(super) fn as_real(tensor: &Tensor) -> Result<Tensor, TorchError> {
    if tensor.is_sparse() {
        return as_real(&tensor.f_to_dense(None, false)?);
    }
    if is_complex(tensor.kind()) {
        // A conjugate that is only marked as one has no pairs.
        Ok(tensor.f_resolve_conj()?.f_view_as_real()?)
    } else {
        Ok(tensor.shallow_clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_output_gets_a_gradient() {
        let leaf = |kind: Kind| Tensor::f_ones([2, 3], (kind, Device::Cpu)).unwrap().set_requires_grad(true);
        let (real, complex) = (leaf(Kind::Float), leaf(Kind::ComplexFloat));
        let count = Tensor::from_slice(&[1_i64, 2]);
        let loss = functional(&[(0, &real), (1, &count), (2, &complex)], 0).unwrap().unwrap();
        loss.backward();
        for leaf in [&real, &complex] {
            let gradient = as_real(&leaf.grad()).unwrap();
            assert_eq!(gradient.f_count_nonzero(0).unwrap().min().int64_value(&[]), 2, "{gradient:?}");
        }
        let value = |seed| functional(&[(0, &real)], seed).unwrap().unwrap().double_value(&[]);
        // Other tests of this process draw from the same generator, and may do so between seed and weights.
        assert!(
            (0..20).any(|_| value(1).to_bits() == value(1).to_bits()),
            "weights depend on more than the seed"
        );
        assert_ne!(value(1).to_bits(), value(2).to_bits());
        assert!(functional(&[(0, &count)], 0).unwrap().is_none());
    }
}
