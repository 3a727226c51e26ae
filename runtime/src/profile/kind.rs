//! Kinds of operators and data types by their names in files.

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)] // The names say it; `NAMES` has them as files write them.
pub enum Kind {
    Linear,
    Bmm,
    /// Of all channels with all.
    Convolution,
    /// Of groups of several channels each.
    GroupedConvolution,
    /// Of each channel by itself.
    DepthwiseConvolution,
    /// Described by the convolution that it transposes: its columns are those of the result.
    TransposedConvolution,
    Attention,
    Embedding,
    LayerNorm,
    /// In training mode: statistics of the batch.
    BatchNorm,
    /// In eval mode: statistics that are given.
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
    /// To one element a channel.
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
    /// These are the same on tensors whose channels lie side by side (`torch.channels_last`): other kernels.
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
    (Linear, "linear", 8),
    (Bmm, "bmm", 5),
    (Convolution, "convolution", 10),
    (GroupedConvolution, "grouped_convolution", 3),
    (DepthwiseConvolution, "depthwise_convolution", 3),
    (TransposedConvolution, "transposed_convolution", 2),
    (Attention, "attention", 5),
    (Embedding, "embedding", 2),
    (LayerNorm, "layer_norm", 2),
    (BatchNorm, "batch_norm", 2),
    (BatchNormEval, "batch_norm_eval", 2),
    (GroupNorm, "group_norm", 2),
    (Softmax, "softmax", 2),
    (Relu, "relu", 2),
    (Gelu, "gelu", 2),
    (Silu, "silu", 1),
    (Sigmoid, "sigmoid", 1),
    (Tanh, "tanh", 1),
    (Add, "add", 2),
    (Mul, "mul", 2),
    (Dropout, "dropout", 1),
    (MaxPool, "max_pool", 2),
    (AvgPool, "avg_pool", 1),
    (GlobalAvgPool, "global_avg_pool", 1),
    (UpsampleNearest, "upsample_nearest", 1),
    (UpsampleBilinear, "upsample_bilinear", 1),
    (Cat, "cat", 1),
    (Copy, "copy", 1),
    (Permute, "permute", 1),
    (ConvolutionLast, "convolution_channels_last", 7),
    (GroupedConvolutionLast, "grouped_convolution_channels_last", 2),
    (DepthwiseConvolutionLast, "depthwise_convolution_channels_last", 3),
    (BatchNormLast, "batch_norm_channels_last", 1),
    (BatchNormEvalLast, "batch_norm_eval_channels_last", 1),
    (MaxPoolLast, "max_pool_channels_last", 1),
];

/// A name that is none of ours.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{name}` is no {what}")]
pub struct UnknownName {
    /// The name.
    pub name: String,
    /// `operator kind`, `data type`.
    pub what: &'static str,
    /// Those that are known.
    pub known: Vec<&'static str>,
}

impl Kind {
    /// Returns all kinds in the order of the documentation.
    pub fn all() -> impl Iterator<Item = Kind> {
        KINDS.iter().map(|(kind, _, _)| *kind)
    }

    /// Returns those of tensors in the usual layout: what is measured on processors, and where nothing is said.
    pub fn usual() -> impl Iterator<Item = Kind> {
        Self::all().filter(|kind| !kind.is_channels_last())
    }

    /// Tells whether its images are channels-last tensors.
    pub fn is_channels_last(self) -> bool {
        self.plain() != self
    }

    /// Returns the kind that does the same on tensors in the usual layout.
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

    /// Returns how many of a round of the plan are of this kind.
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

    /// Tells whether tensor cores may work on it: only then TF32 is another thing than float32.
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

/// How elements are stored, and multiplied.
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
        assert_eq!(error.to_string(), "`conv` is no operator kind");
        assert!(error.known.contains(&"convolution"));
    }
}
