//! Memory of the C library, brought to where it stays with the process.
//!
//! glibc gives back to the kernel what is freed at its heap's end, and pieces above a threshold at once; the next such
//! piece is cleared page by page. What is given back depends on what happened to be freed before (malloc/malloc.c,
//! `free`), and what a page costs on whether the machine is a virtual one that gives free pages back to its host in turn:
//! 0.3 ns a byte on one, and 2.9 a few seconds later. A forward pass of VGG-16 took 570 to 760 ms so. Measured times
//! are to be those of the work: nothing is given back here, as with the allocators that PyTorch's tuning guide advises.

use crate::error::TorchError;

/// Keeps what is freed with this process.
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

/// Other C libraries are taken as they are.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub(super) fn keep() -> Result<(), TorchError> {
    Ok(())
}
