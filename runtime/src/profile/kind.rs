//! Kinds of operators and data types by their names in files.

use schema::kinds;

/// The kind of a measured operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)] // The names say it; `NAMES` has them as files write them.
pub enum Kind {
    Linear,
    Bmm,
    /// Dense over channels.
    Convolution,
    /// Groups of several channels each.
    GroupedConvolution,
    /// One channel per group.
    DepthwiseConvolution,
    /// Described by the convolution that it transposes: its columns are those of the result.
    TransposedConvolution,
    Attention,
    Embedding,
    LayerNorm,
    /// In training mode: statistics of the batch.
    BatchNorm,
    /// In eval mode: running statistics.
    BatchNormEval,
    GroupNorm,
    Softmax,
    Relu,
    Gelu,
    Silu,
    Sigmoid,
    Tanh,
    Add,
    Mul,
    /// In training mode; in eval mode it does nothing.
    Dropout,
    MaxPool,
    AvgPool,
    /// To one element per channel.
    GlobalAvgPool,
    /// To twice the size.
    UpsampleNearest,
    /// To twice the size.
    UpsampleBilinear,
    /// Two tensors along their rows; the size is the result's.
    Cat,
    /// A contiguous copy.
    Copy,
    /// A contiguous copy of (batch, seq, heads, dim) as (batch, heads, seq, dim).
    Permute,
    /// The same on channels-last tensors (`torch.channels_last`), which use other kernels.
    ConvolutionLast,
    GroupedConvolutionLast,
    DepthwiseConvolutionLast,
    BatchNormLast,
    BatchNormEvalLast,
    MaxPoolLast,
}

use Kind::*;

/// Kind, name in files, share of the plan. Those of channels-last tensors come last.
const KINDS: [(Kind, &str, usize); 35] = [
    (Linear, kinds::LINEAR, 8),
    (Bmm, kinds::BMM, 5),
    (Convolution, kinds::CONVOLUTION, 10),
    (GroupedConvolution, kinds::GROUPED_CONVOLUTION, 3),
    (DepthwiseConvolution, kinds::DEPTHWISE_CONVOLUTION, 3),
    (TransposedConvolution, kinds::TRANSPOSED_CONVOLUTION, 2),
    (Attention, kinds::ATTENTION, 5),
    (Embedding, kinds::EMBEDDING, 2),
    (LayerNorm, kinds::LAYER_NORM, 2),
    (BatchNorm, kinds::BATCH_NORM, 2),
    (BatchNormEval, kinds::BATCH_NORM_EVAL, 2),
    (GroupNorm, kinds::GROUP_NORM, 2),
    (Softmax, kinds::SOFTMAX, 2),
    (Relu, kinds::RELU, 2),
    (Gelu, kinds::GELU, 2),
    (Silu, kinds::SILU, 1),
    (Sigmoid, kinds::SIGMOID, 1),
    (Tanh, kinds::TANH, 1),
    (Add, kinds::ADD, 2),
    (Mul, kinds::MUL, 2),
    (Dropout, kinds::DROPOUT, 1),
    (MaxPool, kinds::MAX_POOL, 2),
    (AvgPool, kinds::AVG_POOL, 1),
    (GlobalAvgPool, kinds::GLOBAL_AVG_POOL, 1),
    (UpsampleNearest, kinds::UPSAMPLE_NEAREST, 1),
    (UpsampleBilinear, kinds::UPSAMPLE_BILINEAR, 1),
    (Cat, kinds::CAT, 1),
    (Copy, kinds::COPY, 1),
    (Permute, kinds::PERMUTE, 1),
    (ConvolutionLast, kinds::CONVOLUTION_CHANNELS_LAST, 7),
    (GroupedConvolutionLast, kinds::GROUPED_CONVOLUTION_CHANNELS_LAST, 2),
    (DepthwiseConvolutionLast, kinds::DEPTHWISE_CONVOLUTION_CHANNELS_LAST, 3),
    (BatchNormLast, kinds::BATCH_NORM_CHANNELS_LAST, 1),
    (BatchNormEvalLast, kinds::BATCH_NORM_EVAL_CHANNELS_LAST, 1),
    (MaxPoolLast, kinds::MAX_POOL_CHANNELS_LAST, 1),
];

/// An unknown name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown {what} `{name}`")]
pub struct UnknownName {
    /// The name.
    pub name: String,
    /// `operator kind`, `data type`.
    pub what: &'static str,
    /// The known names.
    pub known: Vec<&'static str>,
}

impl Kind {
    /// Returns all kinds in the order of the documentation.
    pub fn all() -> impl Iterator<Item = Kind> {
        KINDS.iter().map(|(kind, _, _)| *kind)
    }

    /// Returns the kinds on tensors in the usual layout: measured on CPUs, and the default.
    pub fn usual() -> impl Iterator<Item = Kind> {
        Self::all().filter(|kind| !kind.is_channels_last())
    }

    /// Returns whether its images are channels-last tensors.
    pub fn is_channels_last(self) -> bool {
        self.plain() != self
    }

    /// Returns the same kind on tensors in the usual layout.
    pub fn plain(self) -> Kind {
        match self {
            ConvolutionLast => Convolution,
            GroupedConvolutionLast => GroupedConvolution,
            DepthwiseConvolutionLast => DepthwiseConvolution,
            BatchNormLast => BatchNorm,
            BatchNormEvalLast => BatchNormEval,
            MaxPoolLast => MaxPool,
            plain => plain,
        }
    }

    /// Returns its name in files.
    pub fn name(self) -> &'static str {
        self.entry().1
    }

    /// Returns how many items of a round of the plan are of this kind.
    pub fn share(self) -> usize {
        self.entry().2
    }

    /// Finds a kind by its name.
    ///
    /// # Errors
    /// When there is no such kind.
    pub fn find(name: &str) -> Result<Self, UnknownName> {
        let found = KINDS.iter().find(|(_, known, _)| *known == name);
        found.map(|(kind, _, _)| *kind).ok_or_else(|| UnknownName {
            name: name.to_string(),
            what: "operator kind",
            known: KINDS.iter().map(|(_, known, _)| *known).collect(),
        })
    }

    /// Returns whether tensor cores may compute it: only then does TF32 differ from float32.
    pub fn is_product(self) -> bool {
        matches!(
            self.plain(),
            Linear
                | Bmm
                | Convolution
                | GroupedConvolution
                | DepthwiseConvolution
                | TransposedConvolution
                | Attention
        )
    }

    fn entry(self) -> &'static (Kind, &'static str, usize) {
        KINDS.iter().find(|(kind, _, _)| *kind == self).expect("every kind has its entry")
    }
}

/// The data type of elements, and of their products.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DType {
    /// IEEE single precision, also in products.
    Float32,
    /// Stored as single precision, multiplied with 10 bits of mantissa.
    Tf32,
    /// Brain float.
    BFloat16,
    /// IEEE half precision.
    Float16,
}

impl DType {
    /// All of them, in the order of the enum.
    pub const ALL: [Self; 4] = [Self::Float32, Self::Tf32, Self::BFloat16, Self::Float16];

    const NAMES: [(DType, &'static str); 4] = [
        (DType::Float32, "float32"),
        (DType::Tf32, "tf32"),
        (DType::BFloat16, "bfloat16"),
        (DType::Float16, "float16"),
    ];

    /// Returns its name in files.
    pub fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(dtype, _)| *dtype == self).expect("every type has a name").1
    }

    /// Finds a type by its name as people and libraries spell it.
    ///
    /// # Errors
    /// When there is no such type.
    pub fn find(name: &str) -> Result<Self, UnknownName> {
        let long = schema::data_type(name);
        let found = Self::NAMES.iter().find(|(_, known)| *known == long);
        found.map(|(dtype, _)| *dtype).ok_or_else(|| UnknownName {
            name: name.to_string(),
            what: "data type",
            known: Self::NAMES.iter().map(|(_, known)| *known).collect(),
        })
    }

    /// Returns the bytes of an element.
    pub fn bytes(self) -> f64 {
        match self {
            Self::Float32 | Self::Tf32 => 4.0,
            Self::BFloat16 | Self::Float16 => 2.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_back() {
        for kind in Kind::all() {
            assert_eq!(Kind::find(kind.name()), Ok(kind));
        }
        assert_eq!(DType::find("bf16"), Ok(DType::BFloat16));
        let error = Kind::find("conv").unwrap_err();
        assert_eq!(error.to_string(), "unknown operator kind `conv`");
        assert!(error.known.contains(&"convolution"));
    }
}
