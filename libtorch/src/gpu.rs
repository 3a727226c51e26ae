//! libtorch's GPU library, which linkers leave out.
//!
//! Nothing here calls it by name, so a linker drops it (`--as-needed`), and libtorch then shows no GPU. It registers
//! itself when it is loaded. `libtorch.so` comes with the one that it was built with: CUDA, ROCm, or none. It is loaded
//! only when a GPU is asked for: that takes a fifth of a second and 350 MB.

use std::sync::OnceLock;

use crate::error::TorchError;

/// Loads what libtorch needs for GPUs, once.
///
/// Before this nothing may ask libtorch for GPUs, not even by setting a seed: libtorch caches the answer.
pub(super) fn load() -> Result<(), TorchError> {
    static LOADED: OnceLock<Result<(), String>> = OnceLock::new();
    LOADED.get_or_init(open).clone().map_err(TorchError)
}

/// Returns why libtorch shows no GPU.
pub(super) fn why_none() -> &'static str {
    if tch::utils::has_cudart() {
        "libtorch has CUDA, but its driver finds no device"
    } else {
        "this libtorch was built without CUDA"
    }
}

#[cfg(target_os = "linux")]
#[allow(unsafe_code)]
fn open() -> Result<(), String> {
    use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};

    // SAFETY: loading runs libtorch's own registrations only, as it would if a linker had named it; it is the libtorch
    // that this program runs with, since both are found on the same path.
    let library = unsafe { Library::open(Some("libtorch.so"), RTLD_NOW | RTLD_GLOBAL) };
    // Never unloaded: libtorch now holds pointers into it.
    library.map(std::mem::forget).map_err(|error| format!("cannot load libtorch's GPU library: {error}"))
}

/// Elsewhere linkers keep every library they are given.
#[cfg(not(target_os = "linux"))]
fn open() -> Result<(), String> {
    Ok(())
}
