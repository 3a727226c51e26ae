//! Tensors made of nothing.

use super::rows;
use crate::Operator;

#[rustfmt::skip]
pub(super) const ROWS: &[Operator] = rows! {
    // name                class   shape          keeps  flops       kernel  memory  gives  python  in place  its Python  split        marks
    affine_grid_generator  Create  AffineGrid     -      AffineGrid  -       -       -      -       -         -           -            [];
    zeros                  Create  Create         -      -           -       -       -      Torch   -         -           -            [NoGradient OnDevice];
    ones                   Create  Create         -      -           -       -       -      Torch   -         -           -            [NoGradient OnDevice];
    full                   Create  Create         -      -           -       -       -      Torch   -         -           -            [NoGradient Cheap OnDevice];
    rand                   Create  Create         -      -           -       -       -      Torch   -         -           -            [Random OnDevice];
    randn                  Create  Create         -      -           -       -       -      Torch   -         -           -            [Random OnDevice];
    empty                  Create  Create         -      -           -       -       -      Torch   -         -           -            [NoGradient Unset OnDevice];
    empty_strided          Create  Create         -      -           -       -       -      -       -         -           -            [Unset];
    randint                Create  Create         -      -           -       -       -      Torch   -         -           -            [Random OnDevice];
    new_zeros              Create  Create         -      -           -       -       -      Method  -         -           -            [NoGradient OnDevice];
    new_ones               Create  Create         -      -           -       -       -      Method  -         -           -            [NoGradient OnDevice];
    new_full               Create  Create         -      -           -       -       -      Method  -         -           -            [NoGradient OnDevice];
    new_empty              Create  Create         -      -           -       -       -      Method  -         -           -            [NoGradient Unset OnDevice];
    new_empty_strided      Create  Create         -      -           -       -       -      -       -         -           -            [];
    zeros_like             Create  CreateLike     -      -           -       -       -      Torch   -         -           Elementwise  [NoGradient OnDevice];
    ones_like              Create  CreateLike     -      -           -       -       -      Torch   -         -           Elementwise  [NoGradient OnDevice];
    full_like              Create  CreateLike     -      -           -       -       -      Torch   -         -           Elementwise  [NoGradient OnDevice];
    empty_like             Create  CreateLike     -      -           -       -       -      Torch   -         -           -            [NoGradient Unset OnDevice];
    rand_like              Create  CreateLike     -      -           -       -       -      Torch   -         -           -            [Random OnDevice];
    randn_like             Create  CreateLike     -      -           -       -       -      Torch   -         -           -            [Random OnDevice];
    randint_like           Create  CreateLike     -      -           -       -       -      -       -         -           -            [Random];
    bernoulli              Create  CreateLike     -      -           -       -       -      Torch   Other     -           -            [Random];
    fill                   Create  CreateLike     -      -           Cheap   -       -      -       Other     Method      Elementwise  [Cheap];
    zero                   Create  CreateLike     -      -           -       -       -      -       Other     Method      Elementwise  [];
    uniform                Create  CreateLike     -      -           -       -       -      -       Other     -           -            [Random];
    normal                 Create  CreateLike     -      -           -       -       -      -       Other     -           -            [Random];
    random                 Create  CreateLike     -      -           -       -       -      -       Other     -           -            [Random];
    cauchy                 Create  CreateLike     -      -           -       -       -      -       Other     -           -            [Random];
    geometric              Create  CreateLike     -      -           -       -       -      -       Other     -           -            [Random];
    arange                 Create  Sequence       -      -           -       -       -      Torch   -         -           -            [NoGradient OnDevice];
    range                  Create  Sequence       -      -           -       -       -      -       -         -           -            [OnDevice];
    linspace               Create  Sequence       -      -           -       -       -      Torch   -         -           -            [NoGradient OnDevice];
    logspace               Create  Sequence       -      -           -       -       -      -       -         -           -            [];
    eye                    Create  Sequence       -      -           -       -       -      Torch   -         -           -            [NoGradient OnDevice];
    randperm               Create  Sequence       -      -           -       -       -      Torch   -         -           -            [NoGradient Random OnDevice];
    tril_indices           Create  Sequence       -      -           -       -       -      -       -         -           -            [NoGradient OnDevice];
    triu_indices           Create  Sequence       -      -           -       -       -      -       -         -           -            [NoGradient OnDevice];
    hann_window            Create  Sequence       -      -           -       -       -      -       -         -           -            [OnDevice];
    hamming_window         Create  Sequence       -      -           -       -       -      -       -         -           -            [];
    blackman_window        Create  Sequence       -      -           -       -       -      -       -         -           -            [];
    bartlett_window        Create  Sequence       -      -           -       -       -      -       -         -           -            [];
    kaiser_window          Create  Sequence       -      -           -       -       -      -       -         -           -            [];
    multinomial            Create  Multinomial    -      -           -       -       -      -       -         -           -            [Random];
    _shape_as_tensor       Create  ShapeAsTensor  -      -           -       -       -      -       -         -           -            [NoGradient];
};
