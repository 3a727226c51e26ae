//! How long will a block take on a device?

#![cfg_attr(not(test), warn(clippy::too_many_lines, clippy::excessive_nesting))]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod batch_dependence;
mod broadcast_gradients;
mod cache;
mod calls;
mod curve;
mod dense;
mod efficiency;
mod estimate;
mod evaluate;
mod figures;
mod fit;
mod float8;
mod group;
mod host;
mod instructions;
mod model;
mod nnls;
mod parts;
mod predict;
mod raw;
mod recurrent;
mod ridge;
mod shape;
mod shipped;
mod sweep;
mod terms;
mod trial;
mod unfused_attention;
mod work;

pub use curve::{Beside, Curve};
pub use estimate::{Estimate, combine};
pub use evaluate::{Accuracy, Split, shuffle, spearman, split};
pub use figures::{add_measured, figures};
pub use fit::{MIN_ROWS, Sample, TooFewRows, Validation, fit};
pub use group::{Group, group};
pub use model::{CostModel, CostModelError};
pub use parts::Parts;
pub use predict::{Costs, PredictOptions, Prediction, Rounding, TimeSource, predict};
pub use raw::RawPolynomial;
pub use shape::work_size;
pub use sweep::{SweptKernel, WorkSweep};
pub use trial::{Features, Trial, cross_validate, try_split};
pub use work::{Machine, Work, element_bytes};
