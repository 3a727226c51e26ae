//! Files with models and tensors: TorchScript archives, state dicts, `.safetensors`; a zip of pickles, code and tensor bytes mostly.
//!
//! Cost follows the code's size: of a tensor's record only the local zip header is looked at.

mod absent;
mod files;
pub(crate) mod literals;
mod modules;
mod other;
pub(crate) mod pickle;
mod recorded;
mod safetensors;
mod script;
pub(crate) mod state_dict;
pub(crate) mod tensor;
mod weights;
pub(crate) mod zip;

pub(crate) use files::{Library, unmangle};
pub(crate) use modules::{Attribute, Modules};
pub(crate) use script::NEWEST_VERSION;
pub use script::{is_archive, read_archive, read_archive_at};
pub use state_dict::role_by_name;
pub use weights::{read_tensors, read_tensors_at};
