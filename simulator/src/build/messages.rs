//! The messages of a stage's gradients: buckets, layers, slices.

use crate::workload::{Layer, Stage, Sync};

/// Most messages of a stage in a step; beyond it, they are made larger.
pub(super) const MAX_MESSAGES: u64 = 16_384;

/// Gradients of a stage that are sent at once.
pub(super) struct Message {
    pub(super) bytes: u64,
    /// Backward work that is still to be done when the gradients exist, of `whole`.
    pub(super) remaining: u64,
    pub(super) whole: u64,
    /// The layer, from the front.
    pub(super) layer: usize,
    /// Forward work before the layer, of the stage's, when this is the layer's last message.
    pub(super) needed: Option<(u64, u64)>,
}

/// Divides a stage's gradients into messages, at most `most`, in the order in which they come to exist: the last
/// layer's first.
pub(super) fn messages(stage: &Stage, sync: Sync, most: u64) -> Vec<Message> {
    match sync.mode.slice() {
        Some(slice) => slices(stage, slice, most),
        None => buckets(stage, sync, most),
    }
}

fn buckets(stage: &Stage, sync: Sync, most: u64) -> Vec<Message> {
    let total = stage.memory.gradients;
    if total == 0 {
        return Vec::new();
    }
    let size = sync.bucket.max(total.div_ceil(most)).max(1);
    let first = sync.first_bucket.clamp(1, size);
    let message = |bytes, remaining, whole| Message { bytes, remaining, whole, layer: 0, needed: None };
    let mut messages: Vec<Message> = Vec::new();
    if stage.layers.is_empty() {
        // Gradients appear evenly over the backward.
        let mut left = total;
        while left > 0 {
            let bytes = left.min(if messages.is_empty() { first } else { size });
            left -= bytes;
            messages.push(message(bytes, left, total));
        }
        return messages;
    }
    let whole: u64 = stage.layers.iter().map(|layer| layer.backward).sum();
    let (mut remaining, mut bytes) = (whole, 0_u64);
    for layer in stage.layers.iter().rev() {
        remaining -= layer.backward;
        bytes = bytes.saturating_add(layer.gradients);
        if bytes >= if messages.is_empty() { first } else { size } {
            messages.push(message(std::mem::take(&mut bytes), remaining, whole));
        }
    }
    if bytes > 0 {
        messages.push(message(bytes, 0, whole));
    }
    messages
}

fn slices(stage: &Stage, slice: Option<u64>, most: u64) -> Vec<Message> {
    let whole_stage = [Layer { forward: 1, backward: 1, gradients: stage.memory.gradients }];
    let layers = if stage.layers.is_empty() { &whole_stage[..] } else { &stage.layers };
    let total: u64 = layers.iter().map(|layer| layer.gradients).fold(0, u64::saturating_add);
    let slice = slice.unwrap_or(u64::MAX).max(total.div_ceil(most)).max(1);
    let whole: u64 = layers.iter().map(|layer| layer.backward).sum();
    let all: u64 = layers.iter().map(|layer| layer.forward).sum();
    let (mut remaining, mut before) = (whole, all);
    let mut messages = Vec::new();
    for (idx, layer) in layers.iter().enumerate().rev() {
        remaining -= layer.backward;
        before -= layer.forward;
        let mut left = layer.gradients;
        while left > 0 {
            let bytes = left.min(slice);
            left -= bytes;
            let needed = (left == 0).then_some((before, all));
            messages.push(Message { bytes, remaining, whole, layer: idx, needed });
        }
    }
    messages
}
