//! Whether CUDA libraries may multiply float32 as TF32, and whether they must add in a fixed order.
//!
//! tch has no switches for this, so libtorch's own functions are called, where C++ names are known: on Linux.

use crate::error::TorchError;

/// What may be multiplied as TF32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tf32 {
    /// Nothing.
    Forbidden,
    /// Convolutions, but not products: libtorch's default, with which models run.
    InConvolutions,
    /// Both.
    Allowed,
}

/// Sets what may be multiplied as TF32 from now on.
#[cfg(target_os = "linux")]
#[allow(unsafe_code)]
pub(super) fn set(tf32: Tf32) -> Result<(), TorchError> {
    use std::ffi::c_void;

    // SAFETY: the declarations are those of libtorch 2.11 under Itanium names; the linker refuses others.
    unsafe extern "C" {
        /// `at::Context& at::globalContext()`
        #[link_name = "_ZN2at13globalContextEv"]
        fn global_context() -> *mut c_void;
        /// `void at::Context::setAllowTF32CuBLAS(bool)`
        #[link_name = "_ZN2at7Context18setAllowTF32CuBLASEb"]
        fn allow_in_products(context: *mut c_void, allowed: bool);
        /// `void at::Context::setAllowTF32CuDNN(bool)`
        #[link_name = "_ZN2at7Context17setAllowTF32CuDNNEb"]
        fn allow_in_convolutions(context: *mut c_void, allowed: bool);
    }
    // SAFETY: both methods only store a flag in the context, which lives as long as the process; in the Itanium ABI
    // a method takes `this` first and a reference is a pointer. No other thread runs an operator meanwhile.
    unsafe {
        let context = global_context();
        allow_in_products(context, tf32 == Tf32::Allowed);
        allow_in_convolutions(context, tf32 != Tf32::Forbidden);
    }
    Ok(())
}

/// Makes convolutions add in a fixed order from now on, or in the fastest one: then the same call may give different
/// results.
#[cfg(target_os = "linux")]
#[allow(unsafe_code)]
pub(super) fn set_repeatable(is_wanted: bool) {
    use std::ffi::c_void;

    // SAFETY: the declarations are those of libtorch 2.11 under Itanium names; the linker refuses others.
    unsafe extern "C" {
        /// `at::Context& at::globalContext()`
        #[link_name = "_ZN2at13globalContextEv"]
        fn global_context() -> *mut c_void;
        /// `void at::Context::setDeterministicCuDNN(bool)`
        #[link_name = "_ZN2at7Context21setDeterministicCuDNNEb"]
        fn fix_convolutions(context: *mut c_void, is_wanted: bool);
    }
    // SAFETY: as above, the method only stores a flag.
    unsafe { fix_convolutions(global_context(), is_wanted) };
}

/// Elsewhere there is no such switch.
#[cfg(not(target_os = "linux"))]
pub(super) fn set_repeatable(_is_wanted: bool) {}

/// Disables TF32 in NVIDIA's libraries for the life of this process, whatever operators ask for: a traced convolution
/// carries its own permission. They read this when they are loaded.
#[allow(unsafe_code)]
pub(super) fn forbid_for_good() {
    // SAFETY: called before libtorch's half for GPUs is loaded, when no thread of ours or of libtorch's reads the environment.
    unsafe { std::env::set_var("NVIDIA_TF32_OVERRIDE", "0") };
}

/// Reports that there is no switch.
#[cfg(not(target_os = "linux"))]
pub(super) fn set(tf32: Tf32) -> Result<(), TorchError> {
    match tf32 {
        Tf32::Allowed => Err(TorchError("TF32 can be switched on Linux only".to_string())),
        Tf32::Forbidden | Tf32::InConvolutions => Ok(()),
    }
}
