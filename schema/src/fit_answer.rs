//! The answer of `fit --format json`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Bytes, Level, Phase};

/// The answer of `fit`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FitAnswer {
    /// Version of this shape.
    pub schema_version: u32,
    /// `physical`, `raw` or `roofline`.
    pub features: String,
    /// `random`, `extrapolate` or `cross_validation`.
    pub split: String,
    /// Seed of the split.
    pub seed: u64,
    /// One per kind, data type, phase and device.
    pub groups: Vec<FitGroup>,
}

/// Held-out errors of one group's model, in percent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FitGroup {
    /// Kind of operator.
    pub kind: String,
    /// Data type.
    pub dtype: String,
    /// Part of the training step.
    pub phase: Phase,
    /// Device.
    pub device: String,
    /// Held-out rows.
    pub rows: usize,
    /// Fitted rows.
    pub train_rows: usize,
    /// Rows of a repeated shape, whose median was taken.
    pub duplicates: usize,
    /// Fitted outliers, which had little weight.
    pub outliers: usize,
    /// Mean absolute relative error.
    pub mape: f64,
    /// Median absolute relative error.
    pub median: f64,
    /// The 90th percentile of the error.
    pub p90: f64,
    /// Sum of absolute errors over the sum of times.
    pub time_weighted: f64,
    /// Rank correlation.
    pub spearman: f64,
    /// Share of rows inside p10–p90.
    pub coverage: f64,
    /// Predictions that are not positive.
    pub negative: usize,
}

/// The answer of `fit` to the output of nccl-tests.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FittedLinks {
    /// Version of this shape.
    pub schema_version: u32,
    /// The link that explains the times, as a level of a cluster file.
    pub level: Level,
    /// The fitted tests.
    pub tests: Vec<FittedCollective>,
}

/// A measured collective and the errors of the fitted link, in percent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FittedCollective {
    /// `all_reduce`, `all_gather`, …
    pub collective: String,
    /// Ranks.
    pub ranks: u32,
    /// Their hosts.
    pub hosts: u32,
    /// Number of measured sizes.
    pub sizes: usize,
    /// The smallest.
    pub least: Bytes,
    /// The largest.
    pub most: Bytes,
    /// Median absolute relative error.
    pub median: f64,
    /// The largest.
    pub worst: f64,
}
