//! The answer of `devices --format json`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::DeviceType;

/// Answer of `devices`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DevicesAnswer {
    /// Version of this answer.
    pub schema_version: u32,
    /// The devices of the catalogue, or the requested one.
    pub devices: Vec<DeviceAnswer>,
}

/// A device of the catalogue.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DeviceAnswer {
    /// The name that plans and answers use; the `aliases` of its figures are accepted as well.
    pub name: String,
    /// The figures of a device type, as in a cluster file.
    pub figures: DeviceType,
    /// Whether curves ship that were fitted to measurements of this device or of another with the same chip; otherwise
    /// times come from its data sheet.
    pub has_curves: bool,
    /// The source of its times.
    pub times: String,
}
