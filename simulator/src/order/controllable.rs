//! V-Half and V-Min: pipeline parallelism with controllable memory (Qi et al., 2024, arXiv:2405.15362).
//!
//! ```text
//! p = 2, V-Min: a block of one micro-batch, repeated every six slots
//! rank 0  F . . f B . . b        lower case: the chunk on the way up, and the backward on the way down again
//! rank 1    F f . . B b
//! ```
//!
//! Where a rank stands in the block decides how long activations live, and so the memory: a half or a third of
//! 1F1B's. Then the warm-up and cool-down are squeezed: each operation moves to the earliest free slot behind what
//! it needs, as long as the rank's peak does not grow. This is done twice, with the weight gradients in place and
//! with only the room they need. The order does not depend on costs. O(p·(p + m)·s) for the squeeze, `s` slots a rank.

use super::{
    Kind, Op, Order,
    row::{Chunks, Row},
    vshape::stage,
};

pub(super) const HALF: Row = Row {
    chunks: Chunks::V,
    ..Row::new("v-half", |shape, _| order(shape.ranks, shape.micro_batches, Memory::Half))
};

pub(super) const MIN: Row = Row {
    chunks: Chunks::V,
    ..Row::new("v-min", |shape, _| order(shape.ranks, shape.micro_batches, Memory::Min))
};

/// Which building block.
#[derive(Clone, Copy)]
enum Memory {
    /// A half of 1F1B's activations.
    Half,
    /// About a third of 1F1B's activations.
    Min,
}

/// Slots from one micro-batch to the next.
const INTERVAL: u32 = 6;

/// Pieces in a rank's table: forward of both chunks, backward up, backward down, then weight gradients.
const FIRST_FORWARD: usize = 0;
const LAST_BACKWARD: usize = 3;
const BACKWARDS: std::ops::Range<usize> = 2..4;
const WEIGHT: usize = 4;

/// Slot of every micro-batch, by piece.
type Slots = Vec<Vec<u32>>;

/// Makes the order.
fn order(ranks: u32, micro_batches: u32, memory: Memory) -> Order {
    let repeated = |block: [u32; 4]| -> Slots {
        block.iter().map(|first| (0..micro_batches).map(|mb| first + INTERVAL * mb).collect()).collect()
    };
    let laid_out: Vec<Slots> = (0..ranks).map(|rank| repeated(block(rank, ranks, memory))).collect();
    let squeezed = squeeze(laid_out, Weights::InPlace);
    let squeezed = squeeze(without_weights(squeezed), Weights::Later);
    let complete: Vec<Slots> =
        without_weights(squeezed).into_iter().map(|slots| with_weights(slots, true)).collect();
    let program = |(rank, slots): (usize, &Slots)| {
        let mut pieces: Vec<(u32, usize, usize)> = Vec::new();
        for (piece, times) in slots.iter().enumerate() {
            pieces.extend(times.iter().enumerate().map(|(mb, slot)| (*slot, piece, mb)));
        }
        pieces.sort_unstable();
        let op = |(_, piece, mb): (u32, usize, usize)| {
            let kind = [Kind::Forward, Kind::InputGradient, Kind::WeightGradient][piece / 2];
            // Forward passes meet chunk 0 first, backward passes chunk 1.
            let chunk = if kind == Kind::Forward { piece % 2 } else { 1 - piece % 2 };
            Op::new(stage(rank as u32, ranks, chunk), kind, mb as u32)
        };
        pieces.into_iter().map(op).collect()
    };
    Order { ranks: complete.iter().enumerate().map(program).collect(), chain: 2 * ranks }
}

/// Returns the slots of the first micro-batch on a rank. The gap keeps repetitions from meeting.
fn block(rank: u32, ranks: u32, memory: Memory) -> [u32; 4] {
    match memory {
        Memory::Min => {
            let gap = if ranks.is_multiple_of(3) { 2 } else { 0 };
            [rank, 2 * ranks - rank - 1, 2 * ranks + gap + rank, 4 * ranks + gap - rank - 1]
        }
        Memory::Half => {
            let gap = if ranks.is_multiple_of(2) { 3 } else { 0 };
            [2 * rank, 3 * ranks - rank - 2, 3 * ranks + gap + 2 * rank - 1, 6 * ranks + gap - rank - 2]
        }
    }
}

fn without_weights(ranks: Vec<Slots>) -> Vec<Slots> {
    ranks
        .into_iter()
        .map(|mut slots| {
            slots.truncate(WEIGHT);
            slots
        })
        .collect()
}

/// Puts a weight gradient for each backward into the first free slot behind it; one list, or one a chunk.
fn with_weights(mut slots: Slots, is_split: bool) -> Slots {
    let bound = last_slot(&slots);
    let mut weights = vec![Vec::new(); if is_split { 2 } else { 1 }];
    let mut waiting = [0_u32; 2];
    for (slot, piece) in (0..).zip(occupants(&slots, bound)) {
        match piece {
            Some(piece) if BACKWARDS.contains(&piece) => {
                waiting[if is_split { piece - BACKWARDS.start } else { 0 }] += 1;
            }
            Some(_) => {}
            None => {
                if let Some(which) = waiting.iter().position(|count| *count > 0) {
                    weights[which].push(slot);
                    waiting[which] -= 1;
                }
            }
        }
    }
    let mut slot = bound;
    for (which, count) in waiting.into_iter().enumerate() {
        for _ in 0..count {
            slot += 1;
            weights[which].push(slot);
        }
    }
    slots.extend(weights);
    slots
}

fn last_slot(slots: &Slots) -> u32 {
    slots.iter().filter_map(|times| times.last()).copied().max().unwrap_or(0)
}

/// Returns what stands in each slot up to a last one.
fn occupants(slots: &Slots, bound: u32) -> Vec<Option<usize>> {
    let mut occupants = vec![None; bound as usize + 1];
    for (piece, times) in slots.iter().enumerate() {
        for slot in times {
            occupants[*slot as usize] = Some(piece);
        }
    }
    occupants
}

/// Returns a rank's peak activations. Without weight gradients in place, each idle slot behind a backward runs one.
fn peak(occupants: &[Option<usize>], has_weights: bool) -> i64 {
    let (mut alive, mut peak, mut waiting) = (0_i64, 0, 0);
    for piece in occupants {
        match piece {
            Some(0 | 1) => alive += 1,
            Some(WEIGHT) => alive -= 1,
            Some(_) => waiting += 1,
            None if !has_weights && waiting > 0 => {
                alive -= 1;
                waiting -= 1;
            }
            None => {}
        }
        peak = peak.max(alive);
    }
    peak
}

#[derive(Clone, Copy, PartialEq)]
enum Weights {
    InPlace,
    Later,
}

/// Which part of the repeated pattern is at hand.
#[derive(Clone, Copy, PartialEq)]
enum Phase {
    WarmUp,
    Steady,
    CoolDown,
}

/// Moves operations forward in warm-up and cool-down, then closes all gaps; the result has weight gradients.
fn squeeze(mut ranks: Vec<Slots>, weights: Weights) -> Vec<Slots> {
    if weights == Weights::InPlace {
        ranks = ranks.into_iter().map(|slots| with_weights(slots, false)).collect();
    }
    let has_weights = weights == Weights::InPlace;
    let mut tables: Vec<Vec<Option<usize>>> =
        ranks.iter().map(|slots| occupants(slots, last_slot(slots))).collect();
    let limit = tables.iter().map(|table| peak(table, has_weights)).max().unwrap_or(0);
    let last_micro_batch = ranks.first().map_or(0, |slots| slots[FIRST_FORWARD].len().saturating_sub(1));
    let mut phase = Phase::WarmUp;
    // Only what was handled counts as occupied: later operations may be overtaken.
    let mut settled: Vec<Vec<bool>> = tables.iter().map(|table| vec![false; table.len()]).collect();
    for (slot, rank, piece, mb) in by_time(&ranks) {
        if piece == LAST_BACKWARD && rank == 0 && phase == Phase::WarmUp {
            phase = Phase::Steady;
        }
        let mut stays = phase == Phase::WarmUp && !has_weights;
        if phase == Phase::Steady {
            if piece == FIRST_FORWARD && mb == last_micro_batch {
                phase = Phase::CoolDown;
            }
            stays = true;
        }
        if !stays {
            let earliest = needs(&ranks, rank, piece, mb).map_or(0, |needed| needed + 1);
            for candidate in earliest..slot {
                if settled[rank][candidate as usize] {
                    continue;
                }
                let table = &mut tables[rank];
                let before = table[candidate as usize];
                table[slot as usize] = None;
                table[candidate as usize] = Some(piece);
                if peak(table, has_weights) <= limit {
                    ranks[rank][piece][mb] = candidate;
                    break;
                }
                table[candidate as usize] = before;
                table[slot as usize] = Some(piece);
            }
        }
        settled[rank][ranks[rank][piece][mb] as usize] = true;
    }
    if !has_weights {
        ranks = ranks.into_iter().map(|slots| with_weights(slots, false)).collect();
    }
    close_gaps(&ranks)
}

/// Returns all (slot, rank, piece, micro-batch) in order of time; ties by rank, then piece.
fn by_time(ranks: &[Slots]) -> Vec<(u32, usize, usize, usize)> {
    let mut all = Vec::new();
    for (rank, slots) in ranks.iter().enumerate() {
        for (piece, times) in slots.iter().enumerate() {
            all.extend(times.iter().enumerate().map(|(mb, slot)| (*slot, rank, piece, mb)));
        }
    }
    all.sort_unstable();
    all
}

/// Returns the last slot among what an operation needs.
fn needs(ranks: &[Slots], rank: usize, piece: usize, mb: usize) -> Option<u32> {
    let mut needed = None;
    let feeder = match piece {
        0 | 2 => rank.checked_sub(1),
        1 | 3 => Some(rank + 1).filter(|next| *next < ranks.len()),
        _ => None,
    };
    needed = needed.max(feeder.map(|feeder| ranks[feeder][piece][mb]));
    if (1..WEIGHT).contains(&piece) {
        needed = needed.max(Some(ranks[rank][piece - 1][mb]));
    }
    if piece == WEIGHT {
        // The n-th weight gradient belongs to the n-th backward of either chunk.
        let slots = &ranks[rank];
        needed = needed.max(nth_of_both(&slots[2], &slots[3], mb));
    }
    if let Some(before) = mb.checked_sub(1) {
        needed = needed.max(Some(ranks[rank][piece][before]));
    }
    needed
}

/// Returns the n-th smallest of two ascending lists. O(n).
fn nth_of_both(a: &[u32], b: &[u32], n: usize) -> Option<u32> {
    let (mut i, mut j) = (0, 0);
    let mut value = None;
    for _ in 0..=n {
        value = match (a.get(i), b.get(j)) {
            (Some(x), Some(y)) if x <= y => {
                i += 1;
                Some(*x)
            }
            (_, Some(y)) => {
                j += 1;
                Some(*y)
            }
            (Some(x), None) => {
                i += 1;
                Some(*x)
            }
            (None, None) => return value,
        };
    }
    value
}

/// Starts every operation as soon as it can in the order of the slots, each one slot long.
fn close_gaps(ranks: &[Slots]) -> Vec<Slots> {
    let mut starts: Vec<Slots> = ranks
        .iter()
        .map(|slots| slots.iter().map(|times| Vec::with_capacity(times.len())).collect())
        .collect();
    let mut free = vec![0; ranks.len()];
    for (_, rank, piece, mb) in by_time(ranks) {
        let mut start = free[rank];
        let feeder = match piece {
            0 | 2 => rank.checked_sub(1),
            1 | 3 => Some(rank + 1).filter(|next| *next < ranks.len()),
            _ => None,
        };
        if let Some(made) = feeder.and_then(|feeder| starts[feeder][piece].get(mb)) {
            start = start.max(made + 1);
        }
        starts[rank][piece].push(start);
        free[rank] = start + 1;
    }
    starts
}
