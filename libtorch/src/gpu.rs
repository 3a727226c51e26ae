//! libtorch's half for GPUs, which linkers leave out.
//!
//! Nothing here calls it by name, so a linker drops it (`--as-needed`), and libtorch then shows no GPU. It makes itself known
//! when it is loaded. `libtorch.so` brings along the half that it was built with: CUDA, ROCm, or none. It is loaded when
//! a GPU is asked for and not before: that takes a fifth of a second and 350 MB.

use std::sync::OnceLock;

use crate::error::TorchError;

/// Loads what libtorch needs for GPUs, once.
///
/// Before this nothing may ask libtorch for GPUs, not even by setting a seed: it remembers the answer.
pub(super) fn load() -> Result<(), TorchError> {
    static LOADED: OnceLock<Result<(), String>> = OnceLock::new();
    LOADED.get_or_init(open).clone().map_err(TorchError)
}

/// Tells why libtorch shows no GPU.
pub(super) fn why_none() -> &'static str {
    if tch::utils::has_cudart() {
        "libtorch has CUDA, but finds no device that its driver serves"
    } else {
        "this libtorch was built without CUDA"
    }
}

#[cfg(target_os = "linux")]
#[allow(unsafe_code)]
fn open() -> Result<(), String> {
    use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};

    // SAFETY: what runs while it is loaded are libtorch's own registrations, as when a linker had named it; it is the libtorch
    // that this program runs with, since both are found on the same path.
    let library = unsafe { Library::open(Some("libtorch.so"), RTLD_NOW | RTLD_GLOBAL) };
    // It stays: libtorch now holds pointers into it.
    library
        .map(std::mem::forget)
        .map_err(|error| format!("libtorch's half for GPUs cannot be loaded: {error}"))
}

/// Elsewhere linkers keep what they were told.
#[cfg(not(target_os = "linux"))]
fn open() -> Result<(), String> {
    Ok(())
}
