//! Which function follows which rule of the table of operators.

use operators::{OperatorClass, ShapeRule};

use super::{
    call::{Call, Result},
    convolution, copied, copy, elementwise, linalg, matmul, norm, number, recurrent, reduce, shared, unusual,
    view,
};

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

/// Finds the rule of an operator by its short, plain name.
pub fn rule(name: &str) -> Option<Rule> {
    let row = operators::find(name)?;
    Some(Rule { class: row.class, infer: function(row.shape)? })
}

/// Tells whether the sizes of an operator's result depend on values.
pub fn is_sized_by_values(name: &str) -> bool {
    operators::find(name).is_some_and(|row| row.shape.is_by_values())
}

fn function(rule: ShapeRule) -> Option<Infer> {
    Some(match rule {
        ShapeRule::Unknown => return None,
        ShapeRule::Unary => elementwise::unary,
        ShapeRule::Clamp => elementwise::clamp,
        ShapeRule::Absolute => elementwise::absolute,
        ShapeRule::UnaryFloat => elementwise::unary_float,
        ShapeRule::UnaryBool => elementwise::unary_bool,
        ShapeRule::Promoting => elementwise::promoting,
        ShapeRule::Where => elementwise::choosing,
        ShapeRule::Dividing => elementwise::dividing,
        ShapeRule::PromotingFloat => elementwise::promoting_float,
        ShapeRule::Mantissa => elementwise::mantissa,
        ShapeRule::Comparing => elementwise::comparing,
        ShapeRule::LikeFirstOperand => elementwise::keeping,
        ShapeRule::MaskedScatter => elementwise::scattering,
        ShapeRule::FloatPower => elementwise::double,
        ShapeRule::IsIn => elementwise::member,
        ShapeRule::Dist => elementwise::distance,
        ShapeRule::Prelu => elementwise::sloped,
        ShapeRule::Complex => elementwise::pairing,
        ShapeRule::Glu => elementwise::halving,
        ShapeRule::Cast => elementwise::cast,
        ShapeRule::SameWithDtype | ShapeRule::RunningSum => elementwise::same_with_dtype,
        ShapeRule::Loss
        | ShapeRule::ClassLoss
        | ShapeRule::CtcLoss
        | ShapeRule::MarginLoss
        | ShapeRule::PairLoss => elementwise::loss,
        ShapeRule::Rounding | ShapeRule::Round => elementwise::rounding,
        ShapeRule::Size => number::size,
        ShapeRule::Rank
        | ShapeRule::Elements
        | ShapeRule::Length
        | ShapeRule::TypeOf
        | ShapeRule::LayoutOf
        | ShapeRule::DeviceOf
        | ShapeRule::RequiresGrad
        | ShapeRule::IsFloatingPoint
        | ShapeRule::IsComplex
        | ShapeRule::IsCpu
        | ShapeRule::Is
        | ShapeRule::IsNot
        | ShapeRule::StrideOf
        | ShapeRule::Text
        | ShapeRule::Question => number::question,
        ShapeRule::ToInt
        | ShapeRule::ToFloat
        | ShapeRule::ToBool
        | ShapeRule::ToTensor
        | ShapeRule::Convert => number::convert,
        ShapeRule::Item => number::item,
        ShapeRule::Unpack => number::first,
        ShapeRule::List => number::list,
        ShapeRule::Dictionary => number::dictionary,
        ShapeRule::DictionaryKeys | ShapeRule::DictionaryValues | ShapeRule::DictionaryItems => {
            number::dictionary_parts
        }
        ShapeRule::Same => number::same,
        ShapeRule::Shared => shared::exchanged,
        ShapeRule::SharedRows => shared::rows,
        ShapeRule::SharedNumber => shared::number,
        ShapeRule::Fold => number::fold,
        ShapeRule::Sum => reduce::sum,
        ShapeRule::Mean => reduce::mean,
        ShapeRule::Variance | ShapeRule::VarianceAndMean => reduce::variance,
        ShapeRule::Truth => reduce::truth,
        ShapeRule::Position => reduce::position,
        ShapeRule::Extreme => reduce::extreme,
        ShapeRule::ExtremeWithIndex | ShapeRule::RunningExtreme => reduce::extreme_with_index,
        ShapeRule::Sorting | ShapeRule::TopK | ShapeRule::ArgSort | ShapeRule::SortedValues => {
            reduce::sorting
        }
        ShapeRule::Places
        | ShapeRule::PlacesByDimension
        | ShapeRule::MaskedSelect
        | ShapeRule::BinCount
        | ShapeRule::KeptBoxes
        | ShapeRule::Unique
        | ShapeRule::UniqueSlices
        | ShapeRule::UniqueConsecutive => reduce::by_data,
        ShapeRule::RowByRow => unusual::row_by_row,
        ShapeRule::Pdist => unusual::pairs,
        ShapeRule::Quantile => unusual::quantile,
        ShapeRule::AMinMax => unusual::extremes,
        ShapeRule::Trace => unusual::trace,
        ShapeRule::Covariance => unusual::covariance,
        ShapeRule::Trapezoid => unusual::area,
        ShapeRule::SumToSize => unusual::sum_to_size,
        ShapeRule::SegmentReduce => unusual::segments,
        ShapeRule::Histogram => unusual::histograms,
        ShapeRule::NonzeroStatic => unusual::places,
        ShapeRule::MaxUnpool => unusual::unpool,
        ShapeRule::FractionalPool => unusual::fractional_pool,
        ShapeRule::Rot90 => unusual::turned,
        ShapeRule::BlockDiag => unusual::blocks,
        ShapeRule::CartesianProd => unusual::choices,
        ShapeRule::Combinations => unusual::combinations,
        ShapeRule::Kron => unusual::kron,
        ShapeRule::Stft => unusual::spectrum,
        ShapeRule::Gradient => unusual::gradient,
        ShapeRule::Linear => matmul::linear,
        ShapeRule::Matmul => matmul::matmul,
        ShapeRule::ExactProduct => matmul::exact,
        ShapeRule::AddedProduct => matmul::adding,
        ShapeRule::Outer => matmul::outer,
        ShapeRule::Einsum => matmul::einsum,
        ShapeRule::GroupedProduct => matmul::grouped,
        ShapeRule::Bilinear => matmul::bilinear,
        ShapeRule::Cdist => matmul::distance,
        ShapeRule::Attention => matmul::attention,
        ShapeRule::NativeAttention => matmul::native_attention,
        ShapeRule::Histc => copy::histogram,
        ShapeRule::Tensordot => copy::tensordot,
        ShapeRule::WeightNorm => copy::weight_norm,
        ShapeRule::AtLeast1 | ShapeRule::AtLeast2 | ShapeRule::AtLeast3 => copy::at_least,
        ShapeRule::Cat
        | ShapeRule::HStack
        | ShapeRule::VStack
        | ShapeRule::DStack
        | ShapeRule::ColumnStack => copy::cat,
        ShapeRule::Stack => copy::stack,
        ShapeRule::PadSequence => copy::pad_sequence,
        ShapeRule::Index => copy::index,
        ShapeRule::Embedding => copy::embedding,
        ShapeRule::EmbeddingBag => copy::embedding_bag,
        ShapeRule::Gather => copy::gather,
        ShapeRule::IndexSelect => copy::index_select,
        ShapeRule::LikeFirst => copy::like_first,
        ShapeRule::Pad => copy::pad,
        ShapeRule::Repeat => copy::repeat,
        ShapeRule::RepeatInterleave => copy::repeat_interleave,
        ShapeRule::Meshgrid => copy::meshgrid,
        ShapeRule::Diff => copy::difference,
        ShapeRule::OneHot => copy::one_hot,
        ShapeRule::Search => copy::search,
        ShapeRule::DiagonalMatrix | ShapeRule::DiagonalEmbedding | ShapeRule::FlatDiagonal => {
            copy::diagonal_matrix
        }
        ShapeRule::Fourier | ShapeRule::FourierOfReal | ShapeRule::FourierToReal => copy::fourier,
        ShapeRule::Moved => copy::moved,
        ShapeRule::Create | ShapeRule::CreateFull | ShapeRule::CreateIntegers | ShapeRule::CreateNew => {
            copy::create
        }
        ShapeRule::CreateLike | ShapeRule::Normal => copy::create_like,
        ShapeRule::Range
        | ShapeRule::Steps
        | ShapeRule::Permutation
        | ShapeRule::Eye
        | ShapeRule::LowerIndices
        | ShapeRule::UpperIndices
        | ShapeRule::Window => copy::sequence,
        ShapeRule::Multinomial => copy::multinomial,
        ShapeRule::ShapeAsTensor => copy::shape_as_tensor,
        ShapeRule::Square => linalg::square,
        ShapeRule::SquareWithInfo => linalg::square_with_code,
        ShapeRule::MatrixPower => linalg::power,
        ShapeRule::SolveTriangular => linalg::solved,
        ShapeRule::Solve => linalg::system,
        ShapeRule::SolveFromFactors => linalg::solved_from_factors,
        ShapeRule::LeastSquares => linalg::least_squares,
        ShapeRule::PseudoInverse => linalg::pseudo_inverse,
        ShapeRule::Determinant => linalg::determinant,
        ShapeRule::RankOrCondition => linalg::measured,
        ShapeRule::Eigen => linalg::eigen,
        ShapeRule::Svd => linalg::singular,
        ShapeRule::Qr => linalg::orthogonal,
        ShapeRule::Geqrf => linalg::reflections,
        ShapeRule::Householder => linalg::reflected,
        ShapeRule::Factors => linalg::factored,
        ShapeRule::LuTriangles => linalg::triangles,
        ShapeRule::Chain => linalg::chain,
        ShapeRule::TensorInverse => linalg::tensor_inverse,
        ShapeRule::TensorSolve => linalg::tensor_system,
        ShapeRule::Vander => linalg::powers,
        ShapeRule::Convolution => convolution::convolution,
        ShapeRule::DeformableConvolution => convolution::deformable,
        ShapeRule::Pool => convolution::pool,
        ShapeRule::AdaptivePool => convolution::adaptive_pool,
        ShapeRule::Upsample => convolution::upsample,
        ShapeRule::PixelShuffle => convolution::shuffle,
        ShapeRule::Im2Col => convolution::unfold,
        ShapeRule::GridSample => convolution::grid_sample,
        ShapeRule::AffineGrid => convolution::affine_grid,
        ShapeRule::Boxes => convolution::boxes,
        ShapeRule::SameSizes => norm::same_sizes,
        ShapeRule::Norm => norm::norm,
        ShapeRule::Recurrent => recurrent::recurrent,
        ShapeRule::RecurrentCell => recurrent::cell,
        ShapeRule::PackSequence => recurrent::pack,
        ShapeRule::UnpackSequence => recurrent::unpack,
        ShapeRule::Reshape => view::reshape,
        ShapeRule::Flatten => view::flatten,
        ShapeRule::Permute
        | ShapeRule::ReverseDimensions
        | ShapeRule::TransposeLast
        | ShapeRule::MoveDimensions
        | ShapeRule::SwapAxes
        | ShapeRule::Transpose => view::permute,
        ShapeRule::Expand => view::expand,
        ShapeRule::Squeeze => view::squeeze,
        ShapeRule::Slice => view::slice,
        ShapeRule::Select => view::select,
        ShapeRule::Unbind => view::unbind,
        ShapeRule::Split | ShapeRule::HSplit | ShapeRule::VSplit | ShapeRule::DSplit => view::split,
        ShapeRule::Contiguous => view::contiguous,
        ShapeRule::Identity => view::identity,
        ShapeRule::AsStrided => view::as_strided,
        ShapeRule::Unfold => view::windows,
        ShapeRule::Diagonal => view::diagonal,
        ShapeRule::ComplexParts | ShapeRule::AsComplex | ShapeRule::AsReal => view::complex_parts,
        ShapeRule::Clone => view::clone,
        ShapeRule::Dropout => view::dropout,
        ShapeRule::CopyOfView => copied::copied,
    })
}
