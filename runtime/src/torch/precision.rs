//! Where CUDA libraries may multiply float32 as TF32.
//!
//! tch has no switch for it, so libtorch's own is called, where C++ names are known: on Linux.

use crate::BackendError;

/// What may be multiplied as TF32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tf32 {
    /// Nothing.
    Forbidden,
    /// Convolutions, but not products: libtorch's defaults, by which models run.
    InConvolutions,
    /// Both.
    Allowed,
}

/// Says what may be multiplied as TF32 from now on.
#[cfg(target_os = "linux")]
#[allow(unsafe_code)]
pub(super) fn set(tf32: Tf32) -> Result<(), BackendError> {
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

/// Says that there is no switch.
#[cfg(not(target_os = "linux"))]
pub(super) fn set(tf32: Tf32) -> Result<(), BackendError> {
    match tf32 {
        Tf32::Allowed => Err(BackendError("TF32 can be switched on Linux only".to_string())),
        Tf32::Forbidden | Tf32::InConvolutions => Ok(()),
    }
}
