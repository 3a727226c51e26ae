//! Tensors made without operands.

use super::rows;
use crate::Operator;

#[rustfmt::skip]
pub(super) const ROWS: &[Operator] = rows! {
    // name                class   shape           keeps  flops       kernel  memory  gives  python  in place  its Python  split        numbers  marks
    affine_grid_generator  Create  AffineGrid      -      AffineGrid  -       -       -      -       -         -           -            -        [];
    zeros                  Create  Create          -      -           -       -       -      Torch   -         -           -            -        [NoGradient OnDevice];
    ones                   Create  Create          -      -           -       -       -      Torch   -         -           -            -        [NoGradient OnDevice];
    full                   Create  CreateFull      -      -           -       -       -      Torch   -         -           -            -        [NoGradient Cheap OnDevice];
    rand                   Create  Create          -      -           -       -       -      Torch   -         -           -            -        [Random OnDevice];
    randn                  Create  Create          -      -           -       -       -      Torch   -         -           -            -        [Random OnDevice];
    empty                  Create  Create          -      -           -       -       -      Torch   -         -           -            -        [NoGradient Unset OnDevice];
    empty_strided          Create  Create          -      -           -       -       -      -       -         -           -            -        [Unset];
    randint                Create  CreateIntegers  -      -           -       -       -      Torch   -         -           -            -        [Random OnDevice];
    new_zeros              Create  CreateNew       -      -           -       -       -      Method  -         -           -            -        [NoGradient OnDevice StopsGradient];
    new_ones               Create  CreateNew       -      -           -       -       -      Method  -         -           -            -        [NoGradient OnDevice StopsGradient];
    new_full               Create  CreateNew       -      -           -       -       -      Method  -         -           -            -        [NoGradient OnDevice StopsGradient];
    new_empty              Create  CreateNew       -      -           -       -       -      Method  -         -           -            -        [NoGradient Unset OnDevice StopsGradient];
    new_empty_strided      Create  CreateNew       -      -           -       -       -      -       -         -           -            -        [StopsGradient];
    zeros_like             Create  CreateLike      -      -           -       -       -      Torch   -         -           Elementwise  -        [NoGradient OnDevice StopsGradient];
    ones_like              Create  CreateLike      -      -           -       -       -      Torch   -         -           Elementwise  -        [NoGradient OnDevice StopsGradient];
    full_like              Create  CreateLike      -      -           -       -       -      Torch   -         -           Elementwise  -        [NoGradient OnDevice StopsGradient];
    empty_like             Create  CreateLike      -      -           -       -       -      Torch   -         -           -            -        [NoGradient Unset OnDevice StopsGradient];
    rand_like              Create  CreateLike      -      -           -       -       -      Torch   -         -           -            -        [Random OnDevice StopsGradient];
    randn_like             Create  CreateLike      -      -           -       -       -      Torch   -         -           -            -        [Random OnDevice StopsGradient];
    randint_like           Create  CreateLike      -      -           -       -       -      -       -         -           -            -        [Random StopsGradient];
    bernoulli              Create  CreateLike      -      -           -       -       -      Torch   Other     -           -            -        [Random StopsGradient];
    fill                   Create  CreateLike      -      -           Cheap   -       -      -       Other     Method      Elementwise  -        [Cheap];
    zero                   Create  CreateLike      -      -           -       -       -      -       Other     Method      Elementwise  -        [];
    uniform                Create  CreateLike      -      -           -       -       -      -       Other     -           -            -        [Random];
    normal                 Create  Normal          -      -           -       -       -      -       Other     -           -            -        [Random];
    random                 Create  CreateLike      -      -           -       -       -      -       Other     -           -            -        [Random];
    cauchy                 Create  CreateLike      -      -           -       -       -      -       Other     -           -            -        [Random];
    geometric              Create  CreateLike      -      -           -       -       -      -       Other     -           -            -        [Random];
    arange                 Create  Range           -      -           -       -       -      Torch   -         -           -            -        [NoGradient OnDevice];
    range                  Create  Range           -      -           -       -       -      -       -         -           -            -        [OnDevice];
    linspace               Create  Steps           -      -           -       -       -      Torch   -         -           -            -        [NoGradient OnDevice];
    logspace               Create  Steps           -      -           -       -       -      -       -         -           -            -        [];
    eye                    Create  Eye             -      -           -       -       -      Torch   -         -           -            -        [NoGradient OnDevice];
    randperm               Create  Permutation     -      -           -       -       -      Torch   -         -           -            -        [NoGradient Random OnDevice];
    tril_indices           Create  LowerIndices    -      -           -       -       -      -       -         -           -            -        [NoGradient OnDevice];
    triu_indices           Create  UpperIndices    -      -           -       -       -      -       -         -           -            -        [NoGradient OnDevice];
    hann_window            Create  Window          -      -           -       -       -      -       -         -           -            -        [OnDevice];
    hamming_window         Create  Window          -      -           -       -       -      -       -         -           -            -        [];
    blackman_window        Create  Window          -      -           -       -       -      -       -         -           -            -        [];
    bartlett_window        Create  Window          -      -           -       -       -      -       -         -           -            -        [];
    kaiser_window          Create  Window          -      -           -       -       -      -       -         -           -            -        [];
    multinomial            Create  Multinomial     -      -           -       -       -      -       -         -           -            -        [Random];
    _shape_as_tensor       Create  ShapeAsTensor   -      -           -       -       -      -       -         -           -            -        [NoGradient];
};
