//! `cost-model.yaml`: fitted curves of one device, how good they are, and what they were fitted to.

use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    CallOverhead, DeviceFileError, DeviceType, Phase, YamlError, catalogue::check_figures, from_yaml,
};

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
    /// What a call costs besides its work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overhead: Option<CallOverhead>,
    /// The curves.
    pub curves: Vec<CurveFile>,
}

/// Where curves come from.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Provenance {
    /// Names of the profiles.
    pub profiles: Vec<String>,
    /// Whose measurements they hold, with commit and licence, where others took them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<String>,
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
    /// The form of shape that the terms are made of: `product`, `convolution`, `attention`, `rows`, `table`.
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
    /// The correction where no term is trusted, in files of earlier releases: the same for all lengths.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mean: Option<f64>,
    /// The correction where no term is trusted: logarithm of the anchor's time, and what operators of that length
    /// usually miss.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub usual: Vec<(f64, f64)>,
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
    /// Seconds that each byte read saves where the cache holds it already.
    #[serde(default)]
    pub warm: f64,
    /// The same for what only the last cache holds, where that is another than `l2`.
    #[serde(default, skip_serializing_if = "crate::profile::is_zero")]
    pub warm_far: f64,
    /// What is added where no cache holds anything of a call, if that was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flushed: Option<FlushedFile>,
}

/// What is added to a call whose results, scratch memory and code no cache holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FlushedFile {
    /// Seconds of any call.
    pub call: f64,
    /// Seconds of each byte that a cache could hold.
    pub byte: f64,
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

/// How a term is standardised; in files `MEAN SCALE LEAST LARGEST`.
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
    /// The rest.
    pub coefficients: Numbers,
}

/// When a polynomial is trusted: the inverse factor of the covariance of the fitted rows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GateFile {
    /// The leverage from which trust falls.
    pub threshold: f64,
    /// Logarithm of the anchor's time from which trust falls.
    pub reach: f64,
    /// Mean and deviation of the logarithm of each size; the rows are of these and their products.
    pub sizes: Vec<(f64, f64)>,
    /// What each row takes off.
    pub centres: Numbers,
    /// The rows, of the first terms each.
    pub rows: Vec<Numbers>,
}

/// Numbers on one line, `1.5 -2e-3`: a list of hundreds would take a line for each. Lists are read as well.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "NumbersForm", into = "String")]
pub struct Numbers(pub Vec<f64>);

/// The ways in which [`Numbers`] are written.
#[derive(Deserialize, JsonSchema)]
#[serde(untagged)]
enum NumbersForm {
    Line(String),
    One(f64),
    List(Vec<f64>),
}

/// The ways in which a [`TermRange`] is written.
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
                let number = |word: &str| word.parse().map_err(|_| format!("`{word}` is no number"));
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
    #[error("cost model version {0} is not known, the newest known is {COST_MODEL_VERSION}")]
    Version(u32),
    /// Figures that no device has.
    #[error(transparent)]
    Figures(#[from] DeviceFileError),
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
    /// When it is no such file, or the device's figures are none.
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
