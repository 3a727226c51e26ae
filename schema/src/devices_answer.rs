//! What `devices` prints with `--format json`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::DeviceType;

/// Answer of `devices`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DevicesAnswer {
    /// Version of this answer.
    pub schema_version: u32,
    /// The devices of the catalogue, or the one that was asked for.
    pub devices: Vec<DeviceAnswer>,
}

/// A device of the catalogue.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DeviceAnswer {
    /// The name that plans and answers use; `aliases` of its figures serve as well.
    pub name: String,
    /// What a cluster file says of a device type.
    pub figures: DeviceType,
    /// Whether curves ship that are fitted to measurements of this device or of another of the same chip; without them times
    /// come from its data sheet.
    pub has_curves: bool,
    /// What times of it come from.
    pub times: String,
}
