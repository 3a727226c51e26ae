//! `profile`: operators or blocks.

use model_analyze::parts::{Answer, Failure, Profile};

use crate::{blocks, suite};

/// Measures the requested operators or blocks.
pub fn measure(arguments: &Profile) -> Result<Answer, Failure> {
    match &arguments.model {
        Some(model) => blocks::measure(arguments, model),
        None => suite::measure(arguments),
    }
}
