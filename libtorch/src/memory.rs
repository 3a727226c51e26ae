//! Keeps freed memory of the C library with the process.
//!
//! glibc returns freed memory at its heap's end to the kernel, and pieces above a threshold at once; the next such
//! piece is cleared page by page. What is returned depends on what happened to be freed before (malloc/malloc.c,
//! `free`), and the cost of a page on whether the machine is a virtual one that returns free pages to its host in turn:
//! 0.3 ns a byte at one time, and 2.9 a few seconds later. A forward pass of VGG-16 took 570 to 760 ms for this reason.
//! Measured times are to be those of the work: nothing is returned here, as with the allocators that PyTorch's tuning
//! guide recommends.

use crate::error::TorchError;

/// Keeps freed memory with this process.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[allow(unsafe_code)]
pub(super) fn keep() -> Result<(), TorchError> {
    use std::ffi::c_int;

    /// Parameters and values of malloc.h: never trim the heap, map no pieces.
    const SETTINGS: [(c_int, c_int); 2] = [(-1, -1), (-4, 0)];

    // SAFETY: the declaration is that of glibc's malloc.h.
    unsafe extern "C" {
        fn mallopt(parameter: c_int, value: c_int) -> c_int;
    }
    for (parameter, value) in SETTINGS {
        // SAFETY: the function takes its own lock and only stores a number.
        if unsafe { mallopt(parameter, value) } == 0 {
            return Err(TorchError(format!("glibc refused memory parameter {parameter}")));
        }
    }
    Ok(())
}

/// Other C libraries are used as they are.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub(super) fn keep() -> Result<(), TorchError> {
    Ok(())
}
