//! `cost-model.yaml`: fitted curves of one device, their errors, and their data.

use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    CallOverhead, DeviceFileError, DeviceType, Phase, YamlError, catalogue::check_figures, from_yaml,
};

/// Newest supported version of the file.
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
    /// Its figures, for the roofline of operators without a curve.
    pub figures: DeviceType,
    /// The source of the curves.
    pub provenance: Provenance,
    /// The cost of a call in addition to its work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overhead: Option<CallOverhead>,
    /// The curves.
    pub curves: Vec<CurveFile>,
}

/// The source of curves.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Provenance {
    /// Names of the profiles.
    pub profiles: Vec<String>,
    /// The authors of the measurements, with commit and licence, if they are others.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<String>,
    /// The program and its version.
    pub program: String,
    /// Seed of the assignment of rows to folds.
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
    /// The form of shape that the terms are made of: `product`, `convolution`, `attention`, `rows`, `table`.
    pub form: String,
    /// Coefficients of the anchor's terms; absent terms are zero.
    pub anchor: IndexMap<String, f64>,
    /// The shortest prediction, in seconds.
    pub least: f64,
    /// Launch time that hides shorter work, in seconds; 0 if launches add.
    pub hidden: f64,
    /// Launch overhead, in seconds.
    pub floor: f64,
    /// The terms of the correction, with their standardisation and their fitted range.
    pub terms: IndexMap<String, TermRange>,
    /// The correction if no term is trusted, in files of earlier releases: the same for all times.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mean: Option<f64>,
    /// The correction if no term is trusted: logarithm of the anchor's time, and the usual error of operators of that
    /// time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub usual: Vec<(f64, f64)>,
    /// The bounds of the correction.
    pub clip: (f64, f64),
    /// Degree one.
    pub linear: Polynomial,
    /// Degree two; absent if degree one was as good.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quadratic: Option<Polynomial>,
    /// When the polynomials are trusted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gate: Option<GateFile>,
    /// The band inside the fitted range: logarithm of the predicted seconds, 10 % and 90 % quantiles of the error.
    pub band: Vec<(f64, f64, f64)>,
    /// The band outside.
    pub band_outside: (f64, f64),
    /// Seconds saved per byte read from the cache.
    #[serde(default)]
    pub warm: f64,
    /// The same for bytes that only the last cache holds, if that is not `l2`.
    #[serde(default, skip_serializing_if = "crate::profile::is_zero")]
    pub warm_far: f64,
    /// Time added if no cache holds any data or code of a call, if measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flushed: Option<FlushedFile>,
}

/// Time added to a call whose results, scratch memory and code are in no cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FlushedFile {
    /// Seconds per call.
    pub call: f64,
    /// Seconds per byte that a cache could hold.
    pub byte: f64,
}

/// Held-out errors of a curve, in percent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CurveAccuracy {
    /// Rows it was fitted to.
    pub rows: usize,
    /// Rows of a repeated shape.
    pub duplicates: usize,
    /// Rows far from their held-out prediction, which had little weight.
    pub outliers: usize,
    /// Mean absolute relative error, cross-validated.
    pub mape: f64,
    /// Median absolute relative error, cross-validated.
    pub median: f64,
}

/// The standardisation of a term; in files `MEAN SCALE LEAST LARGEST`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "TermForm", into = "String")]
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
    /// The other coefficients.
    pub coefficients: Numbers,
}

/// The trust in a polynomial: the inverse factor of the covariance of the fitted rows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GateFile {
    /// The leverage above which trust falls.
    pub threshold: f64,
    /// Logarithm of the anchor's time above which trust falls.
    pub reach: f64,
    /// Mean and deviation of the logarithm of each size; the rows consist of these and their products.
    pub sizes: Vec<(f64, f64)>,
    /// The offset of each row.
    pub centres: Numbers,
    /// The rows, each of the first terms.
    pub rows: Vec<Numbers>,
}

/// Numbers on one line, `1.5 -2e-3`: a list of hundreds would take a line for each. Lists can also be read.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "NumbersForm", into = "String")]
pub struct Numbers(pub Vec<f64>);

/// The forms in which [`Numbers`] can be written.
#[derive(Deserialize, JsonSchema)]
#[serde(untagged)]
enum NumbersForm {
    Line(String),
    One(f64),
    List(Vec<f64>),
}

/// The forms in which a [`TermRange`] can be written.
#[derive(Deserialize, JsonSchema)]
#[serde(untagged)]
enum TermForm {
    Line(String),
    Parts { mean: f64, scale: f64, range: (f64, f64) },
}

impl TryFrom<NumbersForm> for Numbers {
    type Error = String;

    fn try_from(form: NumbersForm) -> Result<Self, String> {
        match form {
            NumbersForm::List(numbers) => Ok(Self(numbers)),
            NumbersForm::One(number) => Ok(Self(vec![number])),
            NumbersForm::Line(line) => {
                let number = |word: &str| word.parse().map_err(|_| format!("`{word}` is not a number"));
                line.split_ascii_whitespace().map(number).collect::<Result<_, _>>().map(Self)
            }
        }
    }
}

impl From<Numbers> for String {
    fn from(numbers: Numbers) -> Self {
        let short = |number: &f64| {
            let (plain, scientific) = (number.to_string(), format!("{number:e}"));
            if plain.len() <= scientific.len() { plain } else { scientific }
        };
        numbers.0.iter().map(short).collect::<Vec<_>>().join(" ")
    }
}

impl TryFrom<TermForm> for TermRange {
    type Error = String;

    fn try_from(form: TermForm) -> Result<Self, String> {
        match form {
            TermForm::Parts { mean, scale, range } => Ok(Self { mean, scale, range }),
            TermForm::Line(line) => match Numbers::try_from(NumbersForm::Line(line))?.0.as_slice() {
                [mean, scale, low, high] => Ok(Self { mean: *mean, scale: *scale, range: (*low, *high) }),
                other => Err(format!("a term has 4 numbers, not {}", other.len())),
            },
        }
    }
}

impl From<TermRange> for String {
    fn from(TermRange { mean, scale, range: (low, high) }: TermRange) -> Self {
        Numbers(vec![mean, scale, low, high]).into()
    }
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
    #[error("cost model version {0} is not supported, the newest supported is {COST_MODEL_VERSION}")]
    Version(u32),
    /// Figures out of range.
    #[error(transparent)]
    Figures(#[from] DeviceFileError),
}

/// Only the header of a file.
#[derive(Deserialize)]
struct Header {
    kind: String,
    version: u32,
}

impl CostModelFile {
    /// Reads a file.
    ///
    /// # Errors
    /// If it is no such file, or the device's figures are out of range.
    pub fn read(text: &str) -> Result<Self, CostModelFileError> {
        let header: Header = from_yaml(text)?;
        if header.kind != "cost-model" {
            return Err(CostModelFileError::Kind(header.kind));
        }
        if header.version != COST_MODEL_VERSION {
            return Err(CostModelFileError::Version(header.version));
        }
        let file: Self = from_yaml(text)?;
        check_figures(&file.device, &file.figures)?;
        Ok(file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::to_yaml;

    #[test]
    fn numbers_are_read_as_lines_and_as_lists() {
        let check = |text: &str, expected: &[f64]| {
            let read: Numbers = from_yaml(text).expect(text);
            assert_eq!(read.0, expected);
            assert_eq!(from_yaml::<Numbers>(&to_yaml(&read)).expect("our own"), read);
        };
        check("1.5 -2e-3 0", &[1.5, -0.002, 0.0]);
        check("[1.5, -2.0e-3, 0]", &[1.5, -0.002, 0.0]);
        check("7", &[7.0]);
        check("''", &[]);
        assert!(from_yaml::<Numbers>("1.5 x").is_err());
    }

    #[test]
    fn terms_are_read_as_lines_and_as_parts() {
        let term = TermRange { mean: 0.5, scale: 1e-7, range: (-2.0, 3.25) };
        assert_eq!(to_yaml(&term).trim(), "0.5 1e-7 -2 3.25");
        assert_eq!(from_yaml::<TermRange>("0.5 1e-7 -2 3.25").expect("a line"), term);
        let parts = "{mean: 0.5, scale: 1.0e-7, range: [-2.0, 3.25]}";
        assert_eq!(from_yaml::<TermRange>(parts).expect("parts"), term);
        assert!(from_yaml::<TermRange>("1 2 3").is_err());
    }
}
