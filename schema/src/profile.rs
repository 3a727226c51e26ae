//! A profile: measured times of operators, one row per measurement.
//!
//! Rows come from a CSV file of `profile`, whose columns have the names of [`COLUMNS`], or from any other CSV file
//! through a [`ProfileMap`](crate::ProfileMap). Shapes are those of the forward operator, also in backward rows.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Columns of a row, except its time.
pub const COLUMNS: [&str; 38] = [
    "kind",
    "dtype",
    "device",
    "phase",
    "batch",
    "m",
    "n",
    "k",
    "in_channels",
    "out_channels",
    "groups",
    "size",
    "depth",
    "height",
    "width",
    "kernel",
    "kernel_depth",
    "kernel_height",
    "kernel_width",
    "stride",
    "stride_depth",
    "stride_height",
    "stride_width",
    "padding",
    "padding_depth",
    "padding_height",
    "padding_width",
    "dilation",
    "heads",
    "kv_heads",
    "seq",
    "kv_seq",
    "head_dim",
    "causal",
    "rows",
    "cols",
    "inputs",
    "vocabulary",
];

/// The most bytes that `profile` reads to evict everything else from the caches of a CPU.
pub const MOST_DRIVEN_OUT: f64 = 256e6;

/// The part of a training step that a time belongs to.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// The forward pass.
    #[default]
    Forward,
    /// Gradients of inputs and of weights together.
    Backward,
    /// Gradient of the inputs only.
    InputGradient,
    /// Gradient of the weights only.
    WeightGradient,
    /// Forward, backward and the update of the weights in one measurement.
    Training,
}

impl Phase {
    /// All phases with their names in files.
    pub const ALL: [(Phase, &'static str); 5] = [
        (Phase::Forward, "forward"),
        (Phase::Backward, "backward"),
        (Phase::InputGradient, "input_gradient"),
        (Phase::WeightGradient, "weight_gradient"),
        (Phase::Training, "training"),
    ];

    /// Returns its name in files.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(phase, _)| *phase == self).map_or("forward", |(_, name)| name)
    }

    /// Finds a phase by its name in files or a common short form.
    pub fn find(name: &str) -> Option<Self> {
        match name {
            "fwd" => Some(Phase::Forward),
            "bwd" => Some(Phase::Backward),
            "bwd_i" => Some(Phase::InputGradient),
            "bwd_w" => Some(Phase::WeightGradient),
            _ => Self::ALL.iter().find(|(_, known)| *known == name).map(|(phase, _)| *phase),
        }
    }
}

/// The size of an operator's work; its variant decides the features of its time.
///
/// Invariant: every number is finite and at least one, except `causal` and `inputs`. They are `f64` because they are
/// only multiplied.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum WorkSize {
    /// `batch` products of an m × k and a k × n matrix.
    Product {
        /// Number of products.
        batch: f64,
        /// Rows of the result.
        m: f64,
        /// Columns of the result.
        n: f64,
        /// Length of the sums.
        k: f64,
    },
    /// A convolution over up to three axes; absent axes come first and have size 1.
    Convolution {
        /// Samples.
        batch: f64,
        /// Channels of the input.
        in_channels: f64,
        /// Channels of the output.
        out_channels: f64,
        /// Groups of channels that are convolved separately.
        groups: f64,
        /// Input size by axis.
        input: [f64; 3],
        /// Output size by axis.
        output: [f64; 3],
        /// Kernel size by axis.
        kernel: [f64; 3],
        /// Stride by axis.
        stride: [f64; 3],
    },
    /// Scaled dot-product attention.
    Attention {
        /// Samples.
        batch: f64,
        /// Heads of the queries.
        heads: f64,
        /// Heads of keys and values.
        kv_heads: f64,
        /// Queries of a sample.
        seq: f64,
        /// Keys of a sample.
        kv_seq: f64,
        /// Length of one head's vector.
        head_dim: f64,
        /// Whether a query attends only to keys up to its own position.
        causal: bool,
    },
    /// Work per element or per row of a matrix: element-wise, normalisation, softmax, pooling, copies.
    Rows {
        /// Rows.
        rows: f64,
        /// Columns; rows are contiguous.
        cols: f64,
        /// Number of tensors of that size that are read; one is written.
        inputs: f64,
    },
    /// Statistics of channels over samples and pixels: batch norms.
    Channels {
        /// Samples.
        batch: f64,
        /// Channels.
        channels: f64,
        /// Pixels of a channel of a sample.
        pixels: f64,
    },
    /// Rows looked up in a table; its gradient is as large as the table.
    Table {
        /// Rows that are looked up.
        rows: f64,
        /// Columns.
        cols: f64,
        /// Rows of the table.
        vocabulary: f64,
    },
}

impl WorkSize {
    /// Returns the same work as rows of a matrix, for CPUs and for profiles without channels.
    pub fn as_rows(self) -> Self {
        match self {
            // A table is channels-last, while images have pixels as the last dimension.
            Self::Channels { batch, channels, pixels: 1.0 } => {
                Self::Rows { rows: batch, cols: channels, inputs: 1.0 }
            }
            Self::Channels { batch, channels, pixels } => {
                Self::Rows { rows: batch * channels, cols: pixels, inputs: 1.0 }
            }
            other => other,
        }
    }
}

/// One measurement.
#[derive(Clone, Debug, PartialEq)]
pub struct ProfileRow {
    /// Line of the file, counted from one.
    pub line: u64,
    /// `linear`, `convolution`, `attention`, `softmax`, …
    pub kind: String,
    /// `float32`, `tf32`, `bfloat16`, …
    pub dtype: String,
    /// Device, by the file's name.
    pub device: String,
    /// Part of the training step.
    pub phase: Phase,
    /// Size of the work.
    pub size: WorkSize,
    /// Measured time.
    ///
    /// Invariant: finite and positive.
    pub seconds: f64,
    /// The same with inputs in the cache, in files of `profile`.
    ///
    /// Invariant: finite and positive.
    pub warm_seconds: Option<f64>,
    /// The same with no data or code of the call in any cache, in files of `profile`.
    ///
    /// Invariant: finite and positive.
    pub flushed_seconds: Option<f64>,
    /// Block of a model that the time belongs to; empty for operators and whole models.
    pub path: String,
}

impl ProfileRow {
    /// Tells whether the time is that of a block or of a whole model, not of an operator.
    pub fn is_block(&self) -> bool {
        matches!(self.kind.as_str(), "block" | "model")
    }
}

/// Call overhead, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CallOverhead {
    /// A call of an operator that does almost nothing.
    pub call: f64,
    /// Additional time if autograd records it.
    pub recording: f64,
    /// One such operator in the backward pass.
    pub backward: f64,
    /// Additional time if other work has run since, so that the caches no longer hold the code.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub cold: f64,
}

pub(crate) fn is_zero(seconds: &f64) -> bool {
    *seconds == 0.0
}

impl CallOverhead {
    /// Parses the field of a profile's header: `call 6.6e-7 s, recording 5.1e-7 s, backward 2.7e-6 s, cold 2.1e-5 s`.
    /// Older profiles lack the last part.
    pub fn from_text(text: &str) -> Option<Self> {
        let part = |name: &str| seconds_after(text, name);
        Some(Self {
            call: part("call ")?,
            recording: part("recording ")?,
            backward: part("backward ")?,
            cold: part("cold ").unwrap_or_default(),
        })
    }

    /// Returns the median of each part; `None` if there are no measurements.
    pub fn median(measured: &[Self]) -> Option<Self> {
        let part = |part: fn(&Self) -> f64| middle(measured.iter().map(part).collect());
        Some(Self {
            call: part(|one| one.call)?,
            recording: part(|one| one.recording)?,
            backward: part(|one| one.backward)?,
            cold: part(|one| one.cold)?,
        })
    }
}

/// The largest variation of an idle machine's speed.
const STEADY: f64 = 0.15;

/// The speed of a machine at some moment: seconds of a fixed matrix product and of a fixed copy.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pace {
    /// Seconds of the product.
    pub product: f64,
    /// Seconds of the copy.
    pub copy: f64,
}

impl Pace {
    /// Parses the field of a profile: `product 2.6e-3 s, copy 5.1e-3 s`.
    pub fn from_text(text: &str) -> Option<Self> {
        let part = |name: &str| seconds_after(text, name).filter(|seconds| *seconds > 0.0);
        Some(Self { product: part("product ")?, copy: part("copy ")? })
    }

    /// Returns the median of each part; `None` if there are no measurements.
    pub fn median(measured: &[Self]) -> Option<Self> {
        let part = |part: fn(&Self) -> f64| middle(measured.iter().map(part).collect());
        Some(Self { product: part(|one| one.product)?, copy: part(|one| one.copy)? })
    }

    /// Describes how much longer the slowest took than the fastest, if that is more than an idle machine's variation.
    pub fn unsteady(measured: &[Self]) -> Option<String> {
        let spread = |part: fn(&Self) -> f64| {
            let all = || measured.iter().map(part);
            all().fold(0.0, f64::max) / all().fold(f64::INFINITY, f64::min) - 1.0
        };
        let (product, copy) = (spread(|one| one.product), spread(|one| one.copy));
        (product.max(copy) > STEADY)
            .then(|| format!("products by {:.0} %, copies by {:.0} %", 100.0 * product, 100.0 * copy))
    }
}

impl fmt::Display for Pace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "product {:.3e} s, copy {:.3e} s", self.product, self.copy)
    }
}

/// Finds `NAME 1e-6 s` among parts separated by commas.
fn seconds_after(text: &str, name: &str) -> Option<f64> {
    let rest = text.split(',').find_map(|part| part.trim().strip_prefix(name))?;
    let seconds: f64 = rest.trim().strip_suffix(" s")?.parse().ok()?;
    (seconds.is_finite() && seconds >= 0.0).then_some(seconds)
}

/// Returns the median; `None` if there are no numbers.
fn middle(mut all: Vec<f64>) -> Option<f64> {
    all.sort_by(f64::total_cmp);
    let high = all.len() / 2;
    match all.len() % 2 {
        0 => Some((all.get(high.checked_sub(1)?)? + all[high]) / 2.0),
        _ => all.get(high).copied(),
    }
}

/// Facts about a machine besides its name, which rows do not contain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hardware {
    /// `sm90`, `x86-64-avx2`, …
    pub architecture: Option<String>,
    /// Bytes of a CPU core's own cache; for a GPU, its L2.
    pub core_cache: Option<u64>,
    /// Bytes of the last cache.
    pub last_cache: Option<u64>,
    /// Bytes of memory.
    pub memory: Option<u64>,
}

impl Hardware {
    /// Parses the field of a profile's header: `architecture x86-64-avx2, core cache 524288 B, memory 25216417792 B`.
    pub fn from_text(text: &str) -> Self {
        let part = |name: &str| text.split(',').find_map(|part| part.trim().strip_prefix(name));
        let bytes =
            |name: &str| part(name)?.trim().strip_suffix(" B")?.parse().ok().filter(|bytes| *bytes > 0);
        Self {
            architecture: part("architecture ").map(str::to_string),
            core_cache: bytes("core cache "),
            last_cache: bytes("last cache "),
            memory: bytes("memory "),
        }
    }
}

impl fmt::Display for Hardware {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let architecture = self.architecture.iter().map(|name| format!("architecture {name}"));
        let sizes =
            [("core cache", self.core_cache), ("last cache", self.last_cache), ("memory", self.memory)];
        let sizes = sizes.into_iter().filter_map(|(name, size)| Some(format!("{name} {} B", size?)));
        f.write_str(&architecture.chain(sizes).collect::<Vec<_>>().join(", "))
    }
}

/// The content of a file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Profile {
    /// The measurements in the order of the file.
    pub rows: Vec<ProfileRow>,
    /// Records that the map's `where` excluded.
    pub n_filtered: usize,
    /// Cells without a time.
    pub n_missing: usize,
    /// Times that are not positive and were dropped because the map allows it.
    pub n_invalid: usize,
    /// Whether the last line lacks its line break, as in a file that is still being written.
    pub is_cut_off: bool,
    /// Call overhead, if the header has it.
    pub overhead: Option<CallOverhead>,
    /// The machine's speeds over time, if the file has them.
    pub paces: Vec<Pace>,
    /// Facts about the machine, if the header has them.
    pub hardware: Hardware,
    /// Threads of the measuring CPU, if the header has them.
    pub threads: Option<u32>,
    /// The authors of the measurements, with their licence, if the header has them.
    pub sources: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profiles_tell_how_fast_the_machine_was() {
        let of = |product, copy| Pace { product, copy };
        for pace in [of(2.5e-3, 0.0051), of(1.0, 12.5)] {
            assert_eq!(Pace::from_text(&pace.to_string()), Some(pace));
        }
        for wrong in
            ["", "product 1 s", "product 0 s, copy 1 s", "product nan s, copy 1 s", "product 1, copy 2"]
        {
            assert_eq!(Pace::from_text(wrong), None, "{wrong}");
        }
        assert_eq!(Pace::median(&[]), None);
        assert_eq!(Pace::median(&[of(1.0, 6.0), of(4.0, 2.0)]), Some(of(2.5, 4.0)));
        assert_eq!(Pace::median(&[of(1.0, 6.0), of(4.0, 2.0), of(2.0, 9.0)]), Some(of(2.0, 6.0)));
        assert_eq!(Pace::unsteady(&[]), None);
        assert_eq!(Pace::unsteady(&[of(1.0, 1.0)]), None);
        assert_eq!(Pace::unsteady(&[of(1.0, 8.0), of(1.1, 7.0), of(1.1, 8.0)]), None);
        let said = Pace::unsteady(&[of(1.0, 8.0), of(1.1, 6.4), of(1.05, 8.0)]);
        assert_eq!(said.as_deref(), Some("products by 10 %, copies by 25 %"));
    }

    #[test]
    fn headers_tell_what_a_call_costs() {
        let own = |cold| CallOverhead { call: 6.6e-7, recording: 5.1e-7, backward: 2.7e-6, cold };
        let old = "call 6.6e-7 s, recording 5.1e-7 s, backward 2.7e-6 s";
        assert_eq!(CallOverhead::from_text(old), Some(own(0.0)));
        assert_eq!(CallOverhead::from_text(&format!("{old}, cold 2.1e-5 s")), Some(own(2.1e-5)));
        assert_eq!(CallOverhead::from_text("call 6.6e-7 s, cold 2.1e-5 s"), None);
        let one = own(3.0e-6);
        assert_eq!(CallOverhead::median(&[]), None);
        assert_eq!(
            CallOverhead::median(&[own(9.0e-6), CallOverhead { call: 1.0, ..one }, own(1.0e-6)]),
            Some(one)
        );
        let two = CallOverhead { call: 0.5, ..own(2.0e-6) };
        let half = CallOverhead { call: 0.25, ..own(1.0e-6) };
        let middle = CallOverhead { call: 0.375, ..own(1.5e-6) };
        assert_eq!(CallOverhead::median(&[two, half]), Some(middle));
    }

    #[test]
    fn headers_tell_of_the_machine() {
        let own = Hardware {
            architecture: Some("x86-64-avx2".into()),
            core_cache: Some(524_288),
            last_cache: None,
            memory: Some(25_216_417_792),
        };
        assert_eq!(own.to_string(), "architecture x86-64-avx2, core cache 524288 B, memory 25216417792 B");
        assert_eq!(Hardware::from_text(&own.to_string()), own);
        assert_eq!(Hardware::from_text("core cache 0 B, memory much"), Hardware::default());
        assert_eq!(Hardware::from_text(""), Hardware::default());
    }
}
