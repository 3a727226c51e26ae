//! The shape of a row's operator: by its kind if known, else by the columns that are set.

use super::{ProfileCsvError, ProfileFault, Record};
use crate::{WorkSize, kinds};

/// The forms of shape.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Product,
    Convolution,
    Attention,
    Rows,
    Channels,
    Table,
}

/// Kinds with a known shape; the shape of others follows from the columns that are set.
const KINDS: [(&str, Form); 17] = [
    (kinds::LINEAR, Form::Product),
    (kinds::MATMUL, Form::Product),
    (kinds::BMM, Form::Product),
    (kinds::GEMM, Form::Product),
    (kinds::ADDMM, Form::Product),
    (kinds::CONV1D, Form::Convolution),
    (kinds::CONV2D, Form::Convolution),
    (kinds::CONV3D, Form::Convolution),
    (kinds::CONVOLUTION, Form::Convolution),
    (kinds::GROUPED_CONVOLUTION, Form::Convolution),
    (kinds::DEPTHWISE_CONVOLUTION, Form::Convolution),
    (kinds::ATTENTION, Form::Attention),
    (kinds::SDPA, Form::Attention),
    (kinds::SOFTMAX, Form::Rows),
    (kinds::LAYER_NORM, Form::Rows),
    (kinds::ADD, Form::Rows),
    (kinds::EMBEDDING, Form::Table),
];

impl Record<'_> {
    /// Returns the shape of a row of this kind.
    pub(super) fn shape(&self, kind: &str) -> Result<WorkSize, ProfileCsvError> {
        let by_name = KINDS.iter().find(|(name, _)| *name == kind).map(|(_, form)| *form);
        let by_columns = || {
            let all = |names: &[&'static str]| names.iter().all(|name| self.has(name));
            if kind.starts_with("batch_norm") && all(&["in_channels", "height", "width"]) {
                Some(Form::Channels)
            } else if all(&["in_channels", "out_channels"]) {
                Some(Form::Convolution)
            } else if all(&["m", "n", "k"]) {
                Some(Form::Product)
            } else if all(&["seq", "head_dim"]) {
                Some(Form::Attention)
            } else {
                all(&["cols"]).then_some(Form::Rows)
            }
        };
        let unknown = || self.fault(ProfileFault::UnknownKind(kind.to_string()));
        match by_name.or_else(by_columns).ok_or_else(unknown)? {
            Form::Product => Ok(WorkSize::Product {
                batch: self.dimension("batch")?.unwrap_or(1.0),
                m: self.needed(kind, "m")?,
                n: self.needed(kind, "n")?,
                k: self.needed(kind, "k")?,
            }),
            Form::Convolution => self.convolution(kind),
            Form::Attention => {
                let (heads, seq) = (self.needed(kind, "heads")?, self.needed(kind, "seq")?);
                Ok(WorkSize::Attention {
                    batch: self.dimension("batch")?.unwrap_or(1.0),
                    heads,
                    kv_heads: self.dimension("kv_heads")?.unwrap_or(heads),
                    seq,
                    kv_seq: self.dimension("kv_seq")?.unwrap_or(seq),
                    head_dim: self.needed(kind, "head_dim")?,
                    causal: self.truth("causal")?,
                })
            }
            Form::Table => {
                let rows = self.dimension("rows")?.unwrap_or(1.0);
                let vocabulary = self.dimension("vocabulary")?.unwrap_or(rows);
                Ok(WorkSize::Table { rows, cols: self.needed(kind, "cols")?, vocabulary })
            }
            Form::Channels => Ok(WorkSize::Channels {
                batch: self.dimension("batch")?.unwrap_or(1.0),
                channels: self.needed(kind, "in_channels")?,
                pixels: self.needed(kind, "height")? * self.needed(kind, "width")?,
            }),
            Form::Rows => Ok(WorkSize::Rows {
                rows: self.dimension("rows")?.unwrap_or(1.0),
                cols: self.needed(kind, "cols")?,
                inputs: self.number("inputs", 0.0)?.unwrap_or(
                    if matches!(kind, kinds::ADD | kinds::MUL | kinds::SUB | kinds::DIV) { 2.0 } else { 1.0 },
                ),
            }),
        }
    }

    fn convolution(&self, kind: &str) -> Result<WorkSize, ProfileCsvError> {
        let size = self.dimension("size")?;
        let height = self.dimension("height")?.or(size);
        let width = self.dimension("width")?.or(size);
        let needs = |name| self.fault(ProfileFault::Needs { kind: kind.to_string(), name });
        let has_height = height.is_some();
        let input = [
            self.dimension("depth")?.unwrap_or(1.0),
            height.unwrap_or(1.0),
            width.or(height).ok_or_else(|| needs("size"))?,
        ];
        // An axis that the input lacks has a kernel of 1.
        let is_present = [input[0] > 1.0, has_height, true];
        let axis = |all: &'static str, own: [&'static str; 3], otherwise: Option<f64>, least: f64| {
            let shared = if self.is_word(all)? { None } else { self.number(all, least)? };
            let mut values = [0.0; 3];
            for (axis, value) in values.iter_mut().enumerate() {
                let given = self.number(own[axis], least)?.or(if is_present[axis] { shared } else { None });
                *value = given
                    .or(if is_present[axis] { otherwise } else { Some(least) })
                    .ok_or_else(|| needs(all))?;
            }
            Ok::<_, ProfileCsvError>(values)
        };
        let kernel = axis("kernel", ["kernel_depth", "kernel_height", "kernel_width"], None, 1.0)?;
        let stride = axis("stride", ["stride_depth", "stride_height", "stride_width"], Some(1.0), 1.0)?;
        let padding = axis("padding", ["padding_depth", "padding_height", "padding_width"], Some(0.0), 0.0)?;
        let dilation = self.dimension("dilation")?.unwrap_or(1.0);
        let is_same = self.text("padding")?.as_deref().is_some_and(|word| word.eq_ignore_ascii_case("same"));
        let mut output = [1.0; 3];
        for axis in 0..3 {
            let reach = dilation * (kernel[axis] - 1.0) + 1.0;
            let padded = input[axis] + 2.0 * padding[axis];
            output[axis] = if is_same {
                (input[axis] / stride[axis]).ceil()
            } else if reach <= padded {
                ((padded - reach) / stride[axis]).floor() + 1.0
            } else {
                return Err(self.fault(ProfileFault::Kernel { kernel: reach, size: padded }));
            };
        }
        Ok(WorkSize::Convolution {
            batch: self.dimension("batch")?.unwrap_or(1.0),
            in_channels: self.needed(kind, "in_channels")?,
            out_channels: self.needed(kind, "out_channels")?,
            groups: self.dimension("groups")?.unwrap_or(1.0),
            input,
            output,
            kernel,
            stride,
        })
    }

    /// Padding may be a word.
    fn is_word(&self, name: &'static str) -> Result<bool, ProfileCsvError> {
        Ok(name == "padding"
            && self
                .text(name)?
                .is_some_and(|word| word.eq_ignore_ascii_case("same") || word.eq_ignore_ascii_case("valid")))
    }
}
