//! `map.yaml`: the map from the columns of any CSV file to rows of a profile.
//!
//! ```yaml
//! kind: profile-map
//! version: 1
//! columns:                          # our column: a constant, or where its value stands
//!   kind: convolution
//!   dtype: {column: sheet, values: {Results FP32: float32}}
//!   device: {column: gpu}
//!   batch: {column: n}
//!   in_channels: {column: c}
//!   …
//! times:                            # one row of the profile for each that has a number
//!   - {column: fwd_ms, unit: ms, phase: forward}
//!   - {column: bwd_inputs_ms, unit: ms, phase: input_gradient}
//! where:                            # only records of which all of these hold
//!   precision: 32
//! missing: ["", "N/A*"]             # cells that mean "not measured"
//! ```

use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Phase, YamlError, from_yaml};

/// Newest supported version of the map.
const VERSION: u32 = 1;

/// The map from a CSV file's columns to the standard ones.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ProfileMap {
    /// `profile-map`.
    #[serde(default = "kind")]
    pub kind: String,
    /// 1.
    #[serde(default = "version")]
    pub version: u32,
    /// Standard columns ([`COLUMNS`](crate::COLUMNS)) by name.
    pub columns: IndexMap<String, Source>,
    /// The columns that hold times.
    pub times: Vec<TimeColumn>,
    /// Conditions on columns of the file; records that fail one are excluded.
    #[serde(default, rename = "where", skip_serializing_if = "IndexMap::is_empty")]
    pub conditions: IndexMap<String, Condition>,
    /// Cells that mean "not measured" in a time column.
    #[serde(default = "missing")]
    pub missing: Vec<String>,
    /// What to do with a time that is zero, negative or not a number.
    #[serde(default)]
    pub invalid: Invalid,
}

/// The source of a value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Source {
    /// The same for all rows.
    Constant(Scalar),
    /// A cell of the record.
    Column(ColumnSource),
}

/// A cell of the record, optionally translated.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ColumnSource {
    /// Column of the file.
    pub column: String,
    /// Translation of the cell's text; unlisted texts need `otherwise`.
    #[serde(default, skip_serializing_if = "IndexMap::is_empty")]
    pub values: IndexMap<String, Scalar>,
    /// The value for cells that `values` does not list, and for empty ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub otherwise: Option<Scalar>,
    /// A factor on a number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scale: Option<f64>,
}

/// A text, number or boolean in YAML.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Scalar {
    /// `true` or `false`.
    Bool(bool),
    /// A number.
    Number(f64),
    /// A text.
    Text(String),
}

/// A column of times.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TimeColumn {
    /// Column of the file.
    pub column: String,
    /// Unit of its numbers.
    #[serde(default)]
    pub unit: TimeUnit,
    /// The phase of its times; `phase` in `columns` when absent, and forward if that is absent too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,
}

/// Unit of a column of times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum TimeUnit {
    /// Seconds.
    #[default]
    #[serde(rename = "s", alias = "seconds")]
    Seconds,
    /// Milliseconds.
    #[serde(rename = "ms", alias = "milliseconds")]
    Milliseconds,
    /// Microseconds.
    #[serde(rename = "us", alias = "µs", alias = "microseconds")]
    Microseconds,
    /// Nanoseconds.
    #[serde(rename = "ns", alias = "nanoseconds")]
    Nanoseconds,
}

impl TimeUnit {
    /// Returns the number of seconds.
    pub fn seconds(self) -> f64 {
        match self {
            Self::Seconds => 1.0,
            Self::Milliseconds => 1e-3,
            Self::Microseconds => 1e-6,
            Self::Nanoseconds => 1e-9,
        }
    }
}

/// A condition on records.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Condition {
    /// The cell is this; numbers compare as numbers.
    Is(Scalar),
    /// The cell is one of these.
    OneOf(Vec<Scalar>),
    /// The cell is none of these, or a number within bounds.
    Rule(Rule),
}

/// A condition with more than equality.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// The cell is none of these.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not: Vec<Scalar>,
    /// The cell is a number of at least this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min: Option<f64>,
    /// The cell is a number of at most this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<f64>,
}

/// What to do with a time that is zero, negative or not a number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Invalid {
    /// Refuse the file, with the place of the first one.
    #[default]
    Error,
    /// Exclude the row and count it.
    Drop,
}

/// Why a map is refused.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ProfileMapError {
    /// Not YAML, or not of this shape.
    #[error(transparent)]
    Yaml(#[from] YamlError),
    /// Another kind of file.
    #[error("this is a `{0}` file, not a `profile-map`")]
    Kind(String),
    /// Written for a later release.
    #[error("profile map version {0} is not supported, the newest supported is {VERSION}")]
    Version(u32),
    /// A column that rows do not have.
    #[error("`columns` sets `{name}`, which is not a column of a profile")]
    UnknownColumn {
        /// The name.
        name: String,
        /// The nearest standard column.
        similar: Option<String>,
    },
    /// A column that rows must have.
    #[error("`columns` does not set `{0}`")]
    NoColumn(&'static str),
    /// No column of times.
    #[error("`times` is empty, a profile needs at least one column of times")]
    NoTimes,
    /// A factor that is not usable.
    #[error("`{0}` has a scale that is not a positive, finite number")]
    Scale(String),
}

impl ProfileMap {
    /// Reads a map.
    ///
    /// # Errors
    /// If it is no such file, or names unknown columns.
    pub fn read(text: &str) -> Result<Self, ProfileMapError> {
        let map: Self = from_yaml(text)?;
        if map.kind != kind() {
            return Err(ProfileMapError::Kind(map.kind));
        }
        if map.version != VERSION {
            return Err(ProfileMapError::Version(map.version));
        }
        for (name, source) in &map.columns {
            if !crate::COLUMNS.contains(&name.as_str()) {
                let score = |known: &&str| strsim::normalized_damerau_levenshtein(name, known);
                let near = crate::COLUMNS.into_iter().max_by(|a, b| score(a).total_cmp(&score(b)));
                let similar = near.filter(|near| score(near) >= 0.5).map(str::to_string);
                return Err(ProfileMapError::UnknownColumn { name: name.clone(), similar });
            }
            if let Source::Column(ColumnSource { scale: Some(scale), .. }) = source
                && !(scale.is_finite() && *scale > 0.0)
            {
                return Err(ProfileMapError::Scale(name.clone()));
            }
        }
        for needed in ["kind", "dtype"] {
            if !map.columns.contains_key(needed) {
                return Err(ProfileMapError::NoColumn(needed));
            }
        }
        if map.times.is_empty() {
            return Err(ProfileMapError::NoTimes);
        }
        Ok(map)
    }

    /// Makes the map of a file with standard columns: `seconds`, and any of [`COLUMNS`](crate::COLUMNS).
    pub fn own<'a>(header: impl IntoIterator<Item = &'a str>) -> Self {
        let known = |name: &&str| crate::COLUMNS.contains(name);
        let column = |name: &str| ColumnSource {
            column: name.to_string(),
            values: IndexMap::new(),
            otherwise: None,
            scale: None,
        };
        Self {
            kind: kind(),
            version: VERSION,
            columns: header
                .into_iter()
                .filter(known)
                .map(|name| (name.to_string(), Source::Column(column(name))))
                .collect(),
            times: vec![TimeColumn { column: "seconds".to_string(), unit: TimeUnit::Seconds, phase: None }],
            conditions: IndexMap::new(),
            missing: missing(),
            invalid: Invalid::Error,
        }
    }
}

fn kind() -> String {
    "profile-map".to_string()
}

fn version() -> u32 {
    VERSION
}

fn missing() -> Vec<String> {
    vec![String::new()]
}
