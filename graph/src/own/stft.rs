//! `stft`: frequencies by window.

use tracer::DType;

use super::Own;
use crate::{
    cost::{keep::Keep, times},
    fact::{Fact, Shape, TensorFact, show_shape},
    infer::{
        call::{Call, Known, Result, fresh_fact, reject, shape},
        complex_of,
    },
};

pub(super) const OWN: Own = Own { infer, keep, flops: None };

fn infer(call: &Call<'_>) -> Result {
    let input = call.first()?;
    let (batch, length) = match shape(input)?.as_slice() {
        [length] => (None, *length),
        [batch, length] => (Some(*batch), *length),
        other => reject!("{} is not a signal", show_shape(other)),
    };
    let (window, hop) = window_and_hop(call)?;
    // torch's own function pads before it calls this.
    let padded = match call.flag("center") {
        Some(true) => length.and_then(|length| length.checked_add(window / 2 * 2)),
        _ => length,
    };
    if padded.is_some_and(|length| length < window) {
        reject!("{} is shorter than a window of {window}", show_shape(shape(input)?));
    }
    let frames = padded.map(|length| 1 + (length - window) / hop);
    let is_complex = input.dtype.known()?.is_complex();
    let is_half = match call.get("onesided") {
        None | Some(Fact::None) => !is_complex,
        Some(_) => call.flag("onesided").known()?,
    };
    let frequencies = if is_half { window / 2 + 1 } else { window };
    let mut sizes: Shape = batch.into_iter().collect();
    sizes.extend([Some(frequencies), frames]);
    if call.flag("return_complex") == Some(true) {
        return fresh_fact(input.dtype.map(complex_of), sizes);
    }
    sizes.push(Some(2));
    fresh_fact(input.dtype, sizes)
}

/// Returns the length of the windows of a transform, and their distance.
pub(super) fn window_and_hop(call: &Call<'_>) -> Result<(u64, u64)> {
    let positive = |name: &str| call.int(name).and_then(|n| u64::try_from(n).ok()).filter(|n| *n > 0);
    let window = positive("n_fft").known()?;
    let hop = match call.get("hop_length") {
        None | Some(Fact::None) => (window / 4).max(1),
        Some(_) => positive("hop_length").known()?,
    };
    Ok((window, hop))
}

/// Saves the frames of a signal, multiplied with the window.
fn keep(keep: &mut Keep<'_>, call: &Call<'_>, result: Option<&TensorFact>) -> bool {
    let Ok(first) = call.first() else { return false };
    let one = first.dtype.map(DType::bytes);
    match call.tensor("window") {
        Ok(window) => {
            keep.tensor(window);
            let frames = result.and_then(|spectrum| spectrum.shape.as_ref()?.last().copied().flatten());
            let frames = match call.flag("return_complex") {
                Some(true) => frames,
                _ => result.and_then(|spectrum| *spectrum.shape.as_ref()?.iter().rev().nth(1)?),
            };
            let batch =
                first.sizes().map(|sizes| times(sizes[..sizes.len().saturating_sub(1)].iter().copied()));
            let length = call.int("n_fft").and_then(|n| u64::try_from(n).ok());
            let all = frames.zip(batch).zip(length.zip(one));
            keep.fresh(all.map(|((frames, batch), (length, one))| times([frames, batch, length, one])));
            if window.requires_grad {
                keep.tensor(first);
            }
        }
        Err(_) => keep.tensor(first),
    }
    true
}
