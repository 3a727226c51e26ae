//! Backward passes that start from a given gradient for each root.
//!
//! tch differentiates scalars only. A scalar whose gradient is the wanted one can be made, Σ root·gradient, but that
//! reads and writes every root three more times. TorchScript can call libtorch's own function, `torch.autograd.grad`;
//! `seeded.pt` is a module that calls it (`fixtures/seeded.py` makes it).

use tch::{CModule, IValue, Tensor};

use crate::error::TorchError;

/// The start of a backward pass: roots, each with its gradient.
#[derive(Debug, Default)]
pub(super) struct Roots {
    roots: Vec<Tensor>,
    gradients: Vec<Tensor>,
}

impl Roots {
    /// Adds a scalar to differentiate.
    pub(super) fn scalar(&mut self, root: Tensor) -> Result<(), TorchError> {
        let one = root.f_ones_like()?;
        self.tensor(root, one);
        Ok(())
    }

    /// Adds a tensor and the gradient that arrives for it; does nothing if the tensor needs none.
    pub(super) fn tensor(&mut self, root: Tensor, gradient: Tensor) {
        if root.requires_grad() {
            self.roots.push(root);
            self.gradients.push(gradient);
        }
    }

    /// Returns whether there is nothing to differentiate.
    pub(super) fn is_empty(&self) -> bool {
        self.roots.is_empty()
    }
}

/// `torch.autograd.grad`.
pub(super) struct Grad(CModule);

impl Grad {
    /// Loads it.
    pub(super) fn new() -> Result<Self, TorchError> {
        Ok(Self(CModule::load_data(&mut &include_bytes!("seeded.pt")[..])?))
    }

    /// Returns the gradient of each leaf; `None` for leaves that no root depends on.
    pub(super) fn of(
        &self,
        roots: &Roots,
        leaves: &[&Tensor],
        keep_graph: bool,
    ) -> Result<Vec<Option<Tensor>>, TorchError> {
        let list =
            |tensors: &[Tensor]| IValue::TensorList(tensors.iter().map(Tensor::shallow_clone).collect());
        let leaves: Vec<_> = leaves.iter().map(|leaf| leaf.shallow_clone()).collect();
        let arguments = [
            list(&roots.roots),
            list(&roots.gradients),
            IValue::TensorList(leaves),
            IValue::Bool(keep_graph),
        ];
        let answer = self.0.forward_is(&arguments)?;
        let gradient = |value: IValue| match value {
            IValue::Tensor(gradient) if gradient.defined() => Ok(Some(gradient)),
            IValue::Tensor(_) | IValue::None => Ok(None),
            other => Err(TorchError(format!("a gradient is {other:?}, which is not a tensor"))),
        };
        match answer {
            IValue::GenericList(values) => values.into_iter().map(gradient).collect(),
            IValue::TensorList(tensors) => {
                tensors.into_iter().map(|one| gradient(IValue::Tensor(one))).collect()
            }
            other => Err(TorchError(format!("gradients are {other:?}, which is not a list"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind};

    use super::*;

    #[test]
    fn gradients_are_those_of_the_weighted_sum() {
        let leaf = |size: &[i64]| Tensor::randn(size, (Kind::Float, Device::Cpu)).set_requires_grad(true);
        let (a, b, unused) = (leaf(&[3, 4]), leaf(&[4, 5]), leaf(&[2]));
        let product = a.matmul(&b);
        let seed = Tensor::randn([3, 5], (Kind::Float, Device::Cpu));
        let mut roots = Roots::default();
        assert!(roots.is_empty());
        roots.tensor(product.shallow_clone(), seed.shallow_clone());
        roots.scalar(a.square().sum(Kind::Float)).unwrap();
        // Nothing flows to a tensor without gradients.
        roots.tensor(seed.shallow_clone(), seed.shallow_clone());
        let grad = Grad::new().unwrap();
        let leaves = [&a, &b, &unused];
        let first = grad.of(&roots, &leaves, true).unwrap();
        assert!(first[2].is_none());
        let again = grad.of(&roots, &leaves, false).unwrap();
        let expected = [seed.matmul(&b.tr()) + a.detach() * 2.0, a.tr().matmul(&seed)];
        for (expected, (first, again)) in expected.iter().zip(first.iter().zip(&again)) {
            assert!(first.as_ref().unwrap().allclose(expected, 1e-6, 1e-6, false));
            assert_eq!(first.as_ref().unwrap(), again.as_ref().unwrap());
        }
        // The graph is already freed.
        assert!(grad.of(&roots, &leaves, false).is_err());
    }
}
