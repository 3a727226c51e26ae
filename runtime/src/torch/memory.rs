//! Memory of the C library, brought to where a long training run has it.
//!
//! glibc asks the kernel for pieces above a threshold and gives them back at once; the next such piece is cleared page by
//! page. The threshold grows to the largest piece that came back, up to 32 MiB, and what is free at the heap's end stays
//! there up to twice that (malloc/malloc.c, `free`). So times depend on what happened to be freed before: training steps
//! of BERT (4.7 M parameters) took 1,200 to 2,900 page faults, and none after one piece of that size had come back.

use tch::{Device, Kind, Tensor};

use crate::BackendError;

/// Bytes of the piece: the threshold does not follow larger ones than 32 MiB, the library's own header included.
const PIECE: i64 = 33_000_000;

/// Takes the largest piece that moves the threshold and gives it back.
pub(super) fn settle() -> Result<(), BackendError> {
    drop(Tensor::f_empty([PIECE / 4], (Kind::Float, Device::Cpu))?);
    Ok(())
}
