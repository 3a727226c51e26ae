//! `cost-model.yaml`: fitted curves of one device, how good they are, and what they were fitted to.

use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{DeviceType, Phase, YamlError, from_yaml};

/// Newest version of the file that is understood.
pub const COST_MODEL_VERSION: u32 = 1;

/// A cost model as written in a file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CostModelFile {
    /// `cost-model`.
    pub kind: String,
    /// [`COST_MODEL_VERSION`].
    pub version: u32,
    /// Name of the device.
    pub device: String,
    /// Its figures; the roofline of everything that has no curve.
    pub figures: DeviceType,
    /// Where the curves come from.
    pub provenance: Provenance,
    /// The curves.
    pub curves: Vec<CurveFile>,
}

/// Where curves come from.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Provenance {
    /// Names of the profiles.
    pub profiles: Vec<String>,
    /// The program and its version.
    pub program: String,
    /// Seed of the order in which rows were dealt to folds.
    pub seed: u64,
}

/// One curve: `time = anchor · exp(correction)`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CurveFile {
    /// Kind of operator.
    pub kind: String,
    /// Data type.
    pub dtype: String,
    /// Part of the training step.
    pub phase: Phase,
    /// Error figures.
    pub accuracy: CurveAccuracy,
    /// The form of shape that the terms are made of: `product`, `convolution`, `attention`, `rows`.
    pub form: String,
    /// Coefficients of the anchor's terms; terms that are absent have none.
    pub anchor: IndexMap<String, f64>,
    /// No prediction is shorter, in seconds.
    pub least: f64,
    /// A launch behind which shorter work hides, in seconds; 0 when launches add.
    pub hidden: f64,
    /// What launching costs, in seconds.
    pub floor: f64,
    /// The terms of the correction, with what brings them to mean 0 and deviation 1, and their fitted range.
    pub terms: IndexMap<String, TermRange>,
    /// The correction where no term is trusted.
    pub mean: f64,
    /// The correction stays within.
    pub clip: (f64, f64),
    /// Degree one.
    pub linear: Polynomial,
    /// Degree two; absent when degree one was as good.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quadratic: Option<Polynomial>,
    /// When the polynomials are trusted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gate: Option<GateFile>,
    /// The band inside the fitted range: logarithm of the predicted seconds, 10 % and 90 % quantiles of what is missed.
    pub band: Vec<(f64, f64, f64)>,
    /// The band outside.
    pub band_outside: (f64, f64),
}

/// How good a curve is on rows that it was not fitted to, in percent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CurveAccuracy {
    /// Rows it was fitted to.
    pub rows: usize,
    /// Rows of a shape that was there already.
    pub duplicates: usize,
    /// Rows far from their held-out prediction, which had little weight.
    pub outliers: usize,
    /// Mean absolute relative error, cross-validated.
    pub mape: f64,
    /// Median absolute relative error, cross-validated.
    pub median: f64,
}

/// How a term is standardised.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TermRange {
    /// Mean over the fitted rows.
    pub mean: f64,
    /// Standard deviation.
    pub scale: f64,
    /// Least and largest standardised value.
    pub range: (f64, f64),
}

/// A polynomial of standardised terms: all of degree one, then all products in order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Polynomial {
    /// The constant.
    pub intercept: f64,
    /// The rest.
    pub coefficients: Vec<f64>,
}

/// When a polynomial is trusted: rows of a projection, each with its centre.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GateFile {
    /// The leverage from which trust falls.
    pub threshold: f64,
    /// What each row takes off.
    pub centres: Vec<f64>,
    /// The rows.
    pub rows: Vec<Vec<f64>>,
}

/// Why a cost model is refused.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum CostModelFileError {
    /// Not YAML, or not of this shape.
    #[error(transparent)]
    Yaml(#[from] YamlError),
    /// Another kind of file.
    #[error("this is a `{0}` file, not a `cost-model`")]
    Kind(String),
    /// Written for a later release.
    #[error("cost model version {0} is not known, the newest known is {COST_MODEL_VERSION}")]
    Version(u32),
}

/// Only what says which file it is.
#[derive(Deserialize)]
struct Header {
    kind: String,
    version: u32,
}

impl CostModelFile {
    /// Reads a file.
    ///
    /// # Errors
    /// When it is no such file.
    pub fn read(text: &str) -> Result<Self, CostModelFileError> {
        let header: Header = from_yaml(text)?;
        if header.kind != "cost-model" {
            return Err(CostModelFileError::Kind(header.kind));
        }
        if header.version != COST_MODEL_VERSION {
            return Err(CostModelFileError::Version(header.version));
        }
        Ok(from_yaml(text)?)
    }
}
