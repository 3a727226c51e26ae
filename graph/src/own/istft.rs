//! `istft`: a signal from windows of frequencies.

use super::{Own, stft::window_and_hop};
use crate::{
    cost::keep::Keep,
    fact::{Fact, TensorFact, show_shape},
    infer::{
        call::{Call, Known, Result, fresh_fact, reject, shape},
        real_of,
    },
};

pub(super) const OWN: Own = Own { infer, keep, flops: None };

fn infer(call: &Call<'_>) -> Result {
    let input = call.first()?;
    let (batch, frequencies, frames) = match shape(input)?.as_slice() {
        [frequencies, frames] => (None, *frequencies, *frames),
        [batch, frequencies, frames] => (Some(*batch), *frequencies, *frames),
        other => reject!("{} is not a spectrum", show_shape(other)),
    };
    let (window, hop) = window_and_hop(call)?;
    if frequencies.is_some_and(|n| n != window && n != window / 2 + 1) {
        reject!("{} does not have the frequencies of a window of {window}", show_shape(shape(input)?));
    }
    let whole = frames.and_then(|frames| frames.checked_sub(1)?.checked_mul(hop)?.checked_add(window));
    let length = match (call.get("length"), call.flag("center").known()?) {
        (Some(Fact::Int(length)), _) => length.and_then(|length| u64::try_from(length).ok()),
        (_, true) => whole.and_then(|whole| whole.checked_sub(window / 2 * 2)),
        _ => whole,
    };
    let is_complex = call.flag("return_complex").known()?;
    let dtype = if is_complex { input.dtype } else { input.dtype.map(real_of) };
    fresh_fact(dtype, batch.into_iter().chain([length]).collect())
}

/// Saves the window, ones if none is given, and the sum of all windows at each position of the signal, before its ends
/// are cut off.
fn keep(keep: &mut Keep<'_>, call: &Call<'_>, _: Option<&TensorFact>) -> bool {
    let Ok(first) = call.first() else { return false };
    let natural = |name: &str| call.int(name).and_then(|n| u64::try_from(n).ok());
    let length = natural("n_fft");
    let hop = natural("hop_length").or(length.map(|length| length / 4));
    // An element of the spectrum is two of a real signal.
    let parts = if call.flag("return_complex") == Some(true) { 1 } else { 2 };
    let one = first.dtype.map(|dtype| dtype.bytes() / parts);
    match call.tensor("window") {
        Ok(window) if window.elements() == length => keep.tensor(window),
        _ => keep.fresh(length.zip(one).map(|(length, one)| length.saturating_mul(one))),
    }
    let frames = first.shape.as_ref().and_then(|sizes| sizes.last().copied().flatten());
    let whole = frames
        .zip(hop)
        .zip(length)
        .and_then(|((frames, hop), length)| frames.checked_sub(1)?.checked_mul(hop)?.checked_add(length));
    keep.fresh(whole.zip(one).map(|(whole, one)| whole.saturating_mul(one)));
    true
}
