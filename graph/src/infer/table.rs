//! The table: which operators follow which rule.

use std::{collections::HashMap, sync::OnceLock};

use super::{
    call::{Call, Result},
    convolution, copied, copy, elementwise, linalg, matmul, norm, number, recurrent, reduce, unusual, view,
};
use crate::model::OperatorClass::{self, *};

/// How an operator is understood.
#[derive(Clone, Copy)]
pub struct Rule {
    /// What it does, roughly.
    pub class: OperatorClass,
    /// What comes out.
    pub infer: Infer,
}

/// Says what comes out of an operator.
type Infer = fn(&Call<'_>) -> Result;

/// Operators whose values say how many elements there are.
const SIZED_BY_VALUES: &str = "nonzero argwhere nonzero_numpy masked_select bincount unique _unique _unique2 unique_consecutive \
    unique_dim nms";

/// Names without name space and without the `_` of in-place forms.
const TABLE: &[(&str, OperatorClass, Infer)] = &[
    (
        "relu relu6 leaky_relu elu selu celu gelu silu mish hardswish hardtanh hardsigmoid softplus softshrink \
         hardshrink threshold rrelu rrelu_with_noise neg negative positive square sgn sign clamp clip clamp_min \
         clamp_max clamp_max nan_to_num bitwise_not frac logit log_sigmoid conj_physical _conj_physical \
         log_normal exponential fake_quantize_per_tensor_affine fake_quantize_per_channel_affine",
        Elementwise,
        elementwise::unary,
    ),
    ("floor ceil round trunc fix", Elementwise, number::rounding),
    ("abs absolute angle", Elementwise, elementwise::absolute),
    (
        "sin cos tan exp exp2 log log2 log10 log1p expm1 sqrt rsqrt reciprocal sigmoid tanh erf erfc erfinv sinh cosh \
         asin acos atan asinh acosh atanh arcsin arccos arctan arcsinh arccosh arctanh lgamma digamma polygamma \
         deg2rad rad2deg sinc i0 special_expit special_erf special_log1p special_i0 special_gammaln special_logit \
         special_expm1 special_sinc special_exp2 special_erfc special_erfinv special_round special_ndtr mvlgamma \
         special_multigammaln special_digamma special_psi special_polygamma special_entr special_erfcx \
         special_i0e special_i1 special_i1e special_log_ndtr special_ndtri special_airy_ai special_bessel_j0 special_bessel_j1 \
         special_bessel_y0 special_bessel_y1 special_modified_bessel_i0 special_modified_bessel_i1 \
         special_modified_bessel_k0 special_modified_bessel_k1 special_scaled_modified_bessel_k0 \
         special_scaled_modified_bessel_k1 special_spherical_bessel_j0",
        Elementwise,
        elementwise::unary_float,
    ),
    ("matrix_exp linalg_matrix_exp", Other, elementwise::unary_float),
    ("isnan isinf isfinite isposinf isneginf isreal signbit", Elementwise, elementwise::unary_bool),
    (
        "add sub subtract rsub mul multiply remainder fmod floor_divide floordiv maximum minimum fmax fmin pow where \
         bitwise_and bitwise_or bitwise_xor bitwise_left_shift bitwise_right_shift __and__ __or__ __xor__ __lshift__ \
         __rshift__ __iand__ __ior__ __ixor__ gcd lcm hypot nextafter logaddexp logaddexp2 \
         heaviside addcmul addcdiv lerp cross linalg_cross",
        Elementwise,
        elementwise::promoting,
    ),
    ("div divide true_divide atan2 arctan2", Elementwise, elementwise::dividing),
    (
        "xlogy special_xlogy special_xlog1py special_zeta igamma igammac special_gammainc special_gammaincc ldexp \
         copysign special_chebyshev_polynomial_t special_chebyshev_polynomial_u special_chebyshev_polynomial_v \
         special_chebyshev_polynomial_w special_shifted_chebyshev_polynomial_t special_shifted_chebyshev_polynomial_u \
         special_shifted_chebyshev_polynomial_v special_shifted_chebyshev_polynomial_w \
         special_hermite_polynomial_h special_hermite_polynomial_he special_laguerre_polynomial_l \
         special_legendre_polynomial_p",
        Elementwise,
        elementwise::promoting_float,
    ),
    ("frexp", Elementwise, elementwise::mantissa),
    (
        "eq ne lt le gt ge equal not_equal less less_equal greater greater_equal logical_and logical_or logical_xor \
         isclose",
        Elementwise,
        elementwise::comparing,
    ),
    ("logical_not", Elementwise, elementwise::unary_bool),
    ("masked_fill _prelu_kernel copy where_self", Elementwise, elementwise::keeping),
    ("masked_scatter", Elementwise, elementwise::scattering),
    ("float_power", Elementwise, elementwise::double),
    ("isin", Elementwise, elementwise::member),
    ("dist", Reduce, elementwise::distance),
    ("prelu", Elementwise, elementwise::sloped),
    ("complex polar", Elementwise, elementwise::pairing),
    ("glu", Elementwise, elementwise::halving),
    (
        "to type_as _to_copy type float half bfloat16 double long int short bool cpu cuda \
         _autocast_to_reduced_precision _autocast_to_full_precision",
        Copy,
        elementwise::cast,
    ),
    (
        "softmax log_softmax _softmax _log_softmax softmin special_softmax special_log_softmax _safe_softmax cumsum \
         cumprod logcumsumexp",
        Reduce,
        elementwise::same_with_dtype,
    ),
    (
        "cross_entropy_loss nll_loss nll_loss_nd nll_loss2d mse_loss l1_loss smooth_l1_loss huber_loss kl_div \
         binary_cross_entropy binary_cross_entropy_with_logits soft_margin_loss margin_ranking_loss \
         hinge_embedding_loss poisson_nll_loss cosine_embedding_loss triplet_margin_loss multi_margin_loss \
         multilabel_margin_loss gaussian_nll_loss ctc_loss",
        Reduce,
        elementwise::loss,
    ),
    // Reductions.
    ("sum prod nansum", Reduce, reduce::sum),
    (
        "mean nanmean norm linalg_norm linalg_vector_norm linalg_matrix_norm frobenius_norm nuclear_norm logsumexp \
         special_logsumexp",
        Reduce,
        reduce::mean,
    ),
    ("var std var_mean std_mean", Reduce, reduce::variance),
    ("any all", Reduce, reduce::truth),
    ("argmax argmin count_nonzero", Reduce, reduce::position),
    ("amax amin", Reduce, reduce::extreme),
    ("max min median nanmedian mode kthvalue cummax cummin", Reduce, reduce::extreme_with_index),
    ("sort topk msort argsort", Reduce, reduce::sorting),
    (SIZED_BY_VALUES, Reduce, reduce::by_data),
    ("cosine_similarity pairwise_distance", Reduce, unusual::row_by_row),
    ("pdist", Reduce, unusual::pairs),
    ("quantile nanquantile", Reduce, unusual::quantile),
    ("aminmax", Reduce, unusual::extremes),
    ("trace", Reduce, unusual::trace),
    ("cov corrcoef", Matmul, unusual::covariance),
    ("trapezoid trapz cumulative_trapezoid", Reduce, unusual::area),
    ("sum_to_size", Reduce, unusual::sum_to_size),
    ("segment_reduce", Reduce, unusual::segments),
    ("histogram histogramdd", Reduce, unusual::histograms),
    ("nonzero_static", Reduce, unusual::places),
    // Products.
    ("linear _linear", Matmul, matmul::linear),
    ("matmul linalg_matmul __matmul__", Matmul, matmul::matmul),
    ("mm bmm mv dot vdot inner _int_mm linalg_vecdot", Matmul, matmul::exact),
    ("addmm baddbmm addmv addbmm addr _addmm_activation", Matmul, matmul::adding),
    ("outer ger", Matmul, matmul::outer),
    ("einsum", Matmul, matmul::einsum),
    ("_grouped_mm", Matmul, matmul::grouped),
    ("histc", Reduce, copy::histogram),
    ("bilinear", Matmul, matmul::bilinear),
    ("tensordot", Matmul, copy::tensordot),
    ("cdist _cdist_forward _euclidean_dist", Matmul, matmul::distance),
    (
        "scaled_dot_product_attention _scaled_dot_product_flash_attention _scaled_dot_product_attention_math \
         _scaled_dot_product_efficient_attention _scaled_dot_product_flash_attention_for_cpu \
         _scaled_dot_product_cudnn_attention",
        Attention,
        matmul::attention,
    ),
    ("_native_multi_head_attention _transformer_encoder_layer_fwd", Attention, matmul::native_attention),
    // Linear algebra.
    ("linalg_inv inverse linalg_cholesky cholesky cholesky_inverse", Other, linalg::square),
    ("linalg_inv_ex linalg_cholesky_ex", Other, linalg::square_with_code),
    ("linalg_matrix_power matrix_power", Matmul, linalg::power),
    ("linalg_solve_triangular", Other, linalg::solved),
    ("linalg_solve linalg_solve_ex _linalg_solve_ex", Other, linalg::system),
    (
        "cholesky_solve lu_solve linalg_lu_solve linalg_ldl_solve triangular_solve",
        Other,
        linalg::solved_from_factors,
    ),
    ("linalg_lstsq", Other, linalg::least_squares),
    ("linalg_pinv pinverse", Other, linalg::pseudo_inverse),
    ("linalg_det det logdet linalg_slogdet slogdet _linalg_det _linalg_slogdet", Other, linalg::determinant),
    ("linalg_matrix_rank linalg_cond", Other, linalg::measured),
    ("linalg_eig linalg_eigh linalg_eigvals linalg_eigvalsh _linalg_eigh", Other, linalg::eigen),
    ("linalg_svd svd linalg_svdvals _linalg_svd", Other, linalg::singular),
    ("linalg_qr qr", Other, linalg::orthogonal),
    ("geqrf", Other, linalg::reflections),
    ("linalg_householder_product orgqr ormqr", Other, linalg::reflected),
    (
        "linalg_lu_factor linalg_lu_factor_ex _lu_with_info linalg_ldl_factor linalg_ldl_factor_ex",
        Other,
        linalg::factored,
    ),
    ("linalg_lu lu_unpack", Other, linalg::triangles),
    ("linalg_multi_dot chain_matmul", Matmul, linalg::chain),
    ("linalg_tensorinv", Other, linalg::tensor_inverse),
    ("linalg_tensorsolve", Other, linalg::tensor_system),
    ("linalg_vander", Other, linalg::powers),
    // Convolutions, pools, pictures.
    (
        "conv1d conv2d conv3d conv_tbc convolution _convolution conv_transpose1d conv_transpose2d conv_transpose3d \
         _convolution_mode thnn_conv2d mkldnn_convolution cudnn_convolution convolution_overrideable slow_conv3d \
         _conv_depthwise2d conv_depthwise3d",
        Convolution,
        convolution::convolution,
    ),
    ("deform_conv2d", Convolution, convolution::deformable),
    (
        "max_pool1d max_pool2d max_pool3d avg_pool1d avg_pool2d avg_pool3d max_pool2d_with_indices \
         max_pool3d_with_indices max_pool1d_with_indices mkldnn_max_pool2d quantized_max_pool2d",
        Pool,
        convolution::pool,
    ),
    (
        "adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d \
         adaptive_max_pool3d _adaptive_avg_pool2d _adaptive_avg_pool3d",
        Pool,
        convolution::adaptive_pool,
    ),
    (
        "upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_linear1d upsample_bilinear2d \
         upsample_bicubic2d upsample_trilinear3d _upsample_bilinear2d_aa _upsample_bicubic2d_aa \
         _upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d __interpolate interpolate",
        Pool,
        convolution::upsample,
    ),
    ("max_unpool2d max_unpool3d", Pool, unusual::unpool),
    ("fractional_max_pool2d fractional_max_pool3d", Pool, unusual::fractional_pool),
    ("pixel_shuffle pixel_unshuffle", Copy, convolution::shuffle),
    ("channel_shuffle native_channel_shuffle", Copy, norm::same_sizes),
    ("im2col col2im", Copy, convolution::unfold),
    ("grid_sampler grid_sampler_2d grid_sampler_3d", Pool, convolution::grid_sample),
    ("affine_grid_generator", Create, convolution::affine_grid),
    ("roi_align roi_pool ps_roi_align ps_roi_pool", Pool, convolution::boxes),
    // Norms.
    (
        "batch_norm layer_norm group_norm instance_norm rms_norm _fused_rms_norm native_batch_norm native_layer_norm \
         native_group_norm _native_batch_norm_legit _batch_norm_impl_index",
        Norm,
        norm::norm,
    ),
    ("local_response_norm renorm normalize embedding_renorm alpha_dropout_", Norm, norm::same_sizes),
    ("_weight_norm _weight_norm_interface", Norm, copy::weight_norm),
    // Recurrent.
    ("lstm gru rnn_tanh rnn_relu", Recurrent, recurrent::recurrent),
    ("lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell", Recurrent, recurrent::cell),
    ("_pack_padded_sequence", Copy, recurrent::pack),
    ("_pad_packed_sequence", Copy, recurrent::unpack),
    // Views.
    ("view reshape view_as _unsafe_view _reshape_alias _view_copy", View, view::reshape),
    ("reshape_as", View, view::reshape),
    ("flatten unflatten ravel", View, view::flatten),
    (
        "permute transpose t numpy_T matrix_H mT mH adjoint movedim moveaxis swapaxes swapdims",
        View,
        view::permute,
    ),
    ("expand expand_as broadcast_to", View, view::expand),
    ("squeeze unsqueeze", View, view::squeeze),
    ("slice narrow", View, view::slice),
    ("select", View, view::select),
    ("unbind", View, view::unbind),
    (
        "split split_with_sizes chunk tensor_split hsplit vsplit dsplit unsafe_split unsafe_chunk \
         unsafe_split_with_sizes",
        View,
        view::split,
    ),
    ("contiguous", View, view::contiguous),
    (
        "detach alias lift_fresh lift resolve_conj resolve_neg conj _conj _neg_view set_data data requires_grad",
        View,
        view::identity,
    ),
    ("as_strided", View, view::as_strided),
    ("unfold", View, view::windows),
    ("diagonal linalg_diagonal", View, view::diagonal),
    ("view_as_real view_as_complex real imag", View, view::complex_parts),
    ("atleast_1d atleast_2d atleast_3d", View, copy::at_least),
    ("clone", Copy, view::clone),
    (
        "view_copy _reshape_alias_copy permute_copy transpose_copy t_copy expand_copy squeeze_copy unsqueeze_copy \
         slice_copy narrow_copy select_copy unbind_copy split_copy split_with_sizes_copy alias_copy lift_fresh_copy \
         _conj_copy _neg_view_copy as_strided_copy unfold_copy diagonal_copy view_as_real_copy view_as_complex_copy",
        Copy,
        copied::copied,
    ),
    (
        "dropout feature_dropout alpha_dropout feature_alpha_dropout native_dropout",
        Elementwise,
        view::dropout,
    ),
    // Joins and look-ups.
    ("cat concat concatenate hstack vstack row_stack dstack column_stack", Copy, copy::cat),
    ("stack", Copy, copy::stack),
    ("pad_sequence", Copy, copy::pad_sequence),
    ("index _unsafe_index _unsafe_masked_index", Copy, copy::index),
    ("embedding", Embedding, copy::embedding),
    ("embedding_bag _embedding_bag", Embedding, copy::embedding_bag),
    ("gather take_along_dim take", Copy, copy::gather),
    ("index_select", Copy, copy::index_select),
    (
        "scatter scatter_add scatter_reduce index_add index_copy index_fill index_put _index_put_impl index_reduce \
         put select_scatter slice_scatter diagonal_scatter as_strided_scatter _unsafe_masked_index_put_accumulate \
         fill_diagonal",
        Copy,
        copy::like_first,
    ),
    (
        "pad constant_pad_nd _pad_circular _pad_enum reflection_pad1d reflection_pad2d reflection_pad3d \
         replication_pad1d replication_pad2d replication_pad3d",
        Copy,
        copy::pad,
    ),
    ("rot90", Copy, unusual::turned),
    ("block_diag", Copy, unusual::blocks),
    ("cartesian_prod", Copy, unusual::choices),
    ("combinations", Copy, unusual::combinations),
    ("kron", Elementwise, unusual::kron),
    ("stft", Other, unusual::spectrum),
    ("repeat tile", Copy, copy::repeat),
    ("repeat_interleave", Copy, copy::repeat_interleave),
    ("meshgrid broadcast_tensors", View, copy::meshgrid),
    ("diff", Elementwise, copy::difference),
    ("gradient", Elementwise, unusual::gradient),
    ("one_hot", Copy, copy::one_hot),
    ("searchsorted bucketize", Other, copy::search),
    ("diag diag_embed diagflat", Copy, copy::diagonal_matrix),
    (
        "fft_fft fft_ifft fft_fft2 fft_ifft2 fft_fftn fft_ifftn fft_rfft fft_irfft fft_rfft2 fft_irfft2 fft_rfftn \
         fft_irfftn fft_hfft fft_ihfft fft_hfft2 fft_ihfft2 fft_hfftn fft_ihfftn",
        Other,
        copy::fourier,
    ),
    ("roll flip fliplr flipud tril triu fft_fftshift fft_ifftshift", Copy, copy::moved),
    // Fresh tensors.
    (
        "zeros ones full rand randn empty empty_strided randint new_zeros new_ones new_full new_empty \
         new_empty_strided",
        Create,
        copy::create,
    ),
    (
        "zeros_like ones_like full_like empty_like rand_like randn_like randint_like bernoulli fill zero uniform \
         normal random cauchy geometric",
        Create,
        copy::create_like,
    ),
    (
        "arange range linspace logspace eye randperm tril_indices triu_indices hann_window hamming_window \
         blackman_window bartlett_window kaiser_window",
        Create,
        copy::sequence,
    ),
    ("multinomial", Create, copy::multinomial),
    ("_shape_as_tensor", Create, copy::shape_as_tensor),
    // Numbers, lists, questions.
    ("size sizes", Plumbing, number::size),
    (
        "dim ndimension numel len dtype layout device requires_grad is_floating_point is_complex stride __is__ \
         __isnot__ is_cuda is_cpu is_nested is_quantized is_sparse is_mkldnn is_same_size is_contiguous format str \
         is_scripting is_tracing is_meta is_xpu is_mps",
        Plumbing,
        number::question,
    ),
    (
        "Int IntImplicit Float FloatImplicit Bool ScalarImplicit item _local_scalar_dense NumToTensor scalar_tensor \
         tensor as_tensor",
        Plumbing,
        number::convert,
    ),
    ("__getitem__ TupleIndex", Plumbing, number::item),
    ("ListUnpack TupleUnpack", Plumbing, number::first),
    ("ListConstruct TupleConstruct", Plumbing, number::list),
    ("DictConstruct", Plumbing, number::dictionary),
    ("keys values items", Plumbing, number::dictionary_parts),
    (
        "list dict annotate unchecked_cast Uninitialized append extend insert _set_item RaiseException warn print Print Constant",
        Plumbing,
        number::same,
    ),
    ("__not__ __contains__ __round_to_zero_floordiv", Plumbing, number::fold),
];

/// Tells whether the sizes of an operator's result depend on values.
pub fn is_sized_by_values(name: &str) -> bool {
    SIZED_BY_VALUES.split_whitespace().any(|known| known == name)
}

/// Finds the rule of an operator by its short, plain name.
pub fn rule(name: &str) -> Option<Rule> {
    static INDEX: OnceLock<HashMap<&'static str, Rule>> = OnceLock::new();
    let index = INDEX.get_or_init(|| {
        let mut index = HashMap::new();
        for (names, class, infer) in TABLE {
            for name in names.split_ascii_whitespace() {
                index.insert(name, Rule { class: *class, infer: *infer });
            }
        }
        index
    });
    index.get(name).copied()
}
