//! Operators without a shape rule, with the facts that reading and cutting need.

use super::rows;
use crate::Operator;

#[rustfmt::skip]
pub(super) const ROWS: &[Operator] = rows! {
    // name            class    shape    keeps    flops  kernel  memory   gives              python           in place  its Python  split  numbers    marks
    shape_as_tensor    Unknown  Unknown  Unknown  -      -       -        -                  -                -         -           -      -          [NoGradient];
    allclose           Unknown  Unknown  Unknown  -      -       -        -                  -                -         -           -      -          [NoGradient];
    poisson            Unknown  Unknown  Unknown  -      -       -        -                  -                -         -           -      -          [Random];
    DictIndex          Unknown  Unknown  Unknown  -      -       -        -                  -                -         -           -      -          [Unpacks];
    tolist             Unknown  Unknown  Unknown  -      -       -        -                  -                -         -           -      -          [Unpacks];
    T                  Unknown  Unknown  Unknown  -      -       View     -                  -                -         -           -      -          [];
    H                  Unknown  Unknown  Unknown  -      -       View     -                  -                -         -           -      -          [];
    requires_grad_     Unknown  Unknown  Unknown  -      -       View     -                  -                -         -           -      -          [];
    align_as           Unknown  Unknown  Unknown  -      -       View     -                  -                -         -           -      -          [];
    slice_inverse      Unknown  Unknown  Unknown  -      -       View     -                  -                -         -           -      -          [];
    align_to           Unknown  Unknown  Unknown  -      -       View     -                  -                -         -           -      -          [];
    rename             Unknown  Unknown  Unknown  -      -       View     -                  -                Other     -           -      -          [];
    refine_names       Unknown  Unknown  Unknown  -      -       View     -                  -                -         -           -      -          [];
    indices            Unknown  Unknown  Unknown  -      -       View     -                  -                -         -           -      -          [];
    col_indices        Unknown  Unknown  Unknown  -      -       View     -                  -                -         -           -      -          [];
    crow_indices       Unknown  Unknown  Unknown  -      -       View     -                  -                -         -           -      -          [];
    ccol_indices       Unknown  Unknown  Unknown  -      -       View     -                  -                -         -           -      -          [];
    row_indices        Unknown  Unknown  Unknown  -      -       View     -                  -                -         -           -      -          [];
    _fw_primal         Unknown  Unknown  Unknown  -      -       View     -                  -                -         -           -      -          [];
    _unpack_dual       Unknown  Unknown  Unknown  -      -       View     -                  -                -         -           -      -          [];
    _ncf_view          Unknown  Unknown  Unknown  -      -       View     -                  -                -         -           -      -          [];
    _ncf_unsqueeze     Unknown  Unknown  Unknown  -      -       View     -                  -                -         -           -      -          [];
    pin_memory         Unknown  Unknown  Unknown  -      -       MayView  -                  -                -         -           -      -          [];
    coalesce           Unknown  Unknown  Unknown  -      -       MayView  -                  -                -         -           -      -          [];
    _grad_sum_to_size  Unknown  Unknown  Unknown  -      -       MayView  -                  -                -         -           -      -          [];
    to_dense           Unknown  Unknown  Unknown  -      -       MayView  -                  -                -         -           -      -          [];
    dequantize         Unknown  Unknown  Unknown  -      -       MayView  -                  -                -         -           -      -          [];
    _unsafe_index_put  Unknown  Unknown  Unknown  -      -       -        -                  OverloadDefault  -         -           -      -          [];
    cudnn_batch_norm   Unknown  Unknown  Unknown  -      -       -        -                  -                -         -           -      -          [MovesStatistics];
    ord                Unknown  Unknown  Unknown  -      -       -        Int                -                -         -           -      -          [];
    storage_offset     Unknown  Unknown  Unknown  -      -       -        Int                -                -         -           -      -          [];
    is_grad_enabled    Unknown  Unknown  Unknown  -      -       -        Bool               -                -         -           -      -          [];
    Scalar             Unknown  Unknown  Unknown  -      -       -        Number             -                -         -           -      -          [];
    ComplexImplicit    Unknown  Unknown  Unknown  -      -       -        Number             -                -         -           -      -          [];
    Complex            Unknown  Unknown  Unknown  -      -       -        Number             -                -         -           -      ToComplex  [];
    join               Unknown  Unknown  Unknown  -      -       -        Str                -                -         -           -      -          [];
    replace            Unknown  Unknown  Unknown  -      -       -        Str                -                -         -           -      -          [];
    where_list         Unknown  Unknown  Unknown  -      -       -        Tensors            -                -         -           -      -          [];
    align_tensors      Unknown  Unknown  Unknown  -      -       -        Tensors            -                -         -           -      -          [];
    sorted             Unknown  Unknown  Unknown  -      -       -        SameList           -                -         -           -      -          [];
    mod                Unknown  Unknown  Unknown  -      -       -        Arithmetic         -                -         -           -      -          [];
    __range_length     Unknown  Unknown  Unknown  -      -       -        IntOfNumbers       -                -         -           -      -          [];
    __derive_index     Unknown  Unknown  Unknown  -      -       -        IntOfNumbers       -                -         -           -      -          [];
    factorial          Unknown  Unknown  Unknown  -      -       -        IntOfNumbers       -                -         -           -      -          [];
    count              Unknown  Unknown  Unknown  -      -       -        IntOfNumbers       -                -         -           -      -          [];
    truediv            Unknown  Unknown  Unknown  -      -       -        FloatOfNumbers     -                -         -           -      Divide     [];
    mathremainder      Unknown  Unknown  Unknown  -      -       -        FloatOfNumbers     -                -         -           -      -          [];
    degrees            Unknown  Unknown  Unknown  -      -       -        FunctionOfNumbers  -                -         -           -      -          [];
    radians            Unknown  Unknown  Unknown  -      -       -        FunctionOfNumbers  -                -         -           -      -          [];
    fabs               Unknown  Unknown  Unknown  -      -       -        FunctionOfNumbers  -                -         -           -      -          [];
    gamma              Unknown  Unknown  Unknown  -      -       -        FunctionOfNumbers  -                -         -           -      -          [];
    pop                Unknown  Unknown  Unknown  -      -       -        Popped             -                -         -           -      -          [];
};
