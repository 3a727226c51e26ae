//! V-shaped 1F1B (Qi et al., 2024, arXiv:2405.15362): a building block repeated every six slots, whole backwards.
//!
//! ```text
//! six slots a rank; lower case is the chunk on the way up, B/W the backward that comes down again
//! p = 4  rank 0  F b w . . B …     each block is the block before it, one micro-batch later
//! ```
//!
//! The blocks of all micro-batches are laid over each other, what lies before the first and behind the last is
//! cleared, and then each operation is pulled forward into free slots as long as no rank holds more activations
//! than the repeated pattern does. O(p·(p + m)) slots.

use super::{
    Op, Order,
    row::{self, Chunks},
    vshape::stage,
};

pub(super) const ROW: row::Row = row::Row {
    chunks: Chunks::V,
    ..row::Row::new("v1f1b", |shape, _| order(shape.ranks, shape.micro_batches))
};

const SLOTS: usize = 6;

/// What can stand in a slot: forward down and up, backward up (chunk 1) and down (chunk 0), their weight halves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Piece {
    ForwardDown,
    ForwardUp,
    BackwardUp,
    BackwardDown,
    WeightUp,
    WeightDown,
}

use Piece::{BackwardDown, BackwardUp, ForwardDown, ForwardUp, WeightDown, WeightUp};

const PIECES: [Piece; SLOTS] = [ForwardDown, ForwardUp, BackwardUp, BackwardDown, WeightUp, WeightDown];

/// A rank's slots.
type Row = Vec<Option<Piece>>;

/// Makes the order.
fn order(ranks: u32, micro_batches: u32) -> Order {
    let (p, m) = (ranks as usize, micro_batches as usize);
    let mut rows = repeat(&patterns(p), 4 * p + m + 1);
    clear_outside(&mut rows, m);
    pull_forward(&mut rows);
    let program = |rank: u32, row: &Row| {
        let mut next = [0; SLOTS];
        let mut ops = Vec::with_capacity(4 * m);
        for piece in row.iter().flatten() {
            let mb = next[*piece as usize];
            next[*piece as usize] += 1;
            if mb >= micro_batches {
                continue;
            }
            match piece {
                ForwardDown => ops.push(Op::forward(stage(rank, ranks, 0), mb)),
                ForwardUp => ops.push(Op::forward(stage(rank, ranks, 1), mb)),
                BackwardUp => ops.push(Op::backward(stage(rank, ranks, 1), mb)),
                BackwardDown => ops.push(Op::backward(stage(rank, ranks, 0), mb)),
                // The weight half is part of the whole backward before it.
                WeightUp | WeightDown => {}
            }
        }
        ops
    };
    let ranks = rows.iter().enumerate().map(|(rank, row)| program(rank as u32, row)).collect();
    Order { ranks, chain: 2 * p as u32 }
}

/// Returns where in its six slots each rank has each piece.
fn patterns(p: usize) -> Vec<[usize; SLOTS]> {
    let mut at = vec![[0; SLOTS]; p];
    let mut now = 0;
    for row in at.iter_mut() {
        now += 1;
        row[ForwardDown as usize] = now;
    }
    for row in at.iter_mut().rev() {
        now += 1;
        row[ForwardUp as usize] = now;
    }
    now += 1;
    if p.is_multiple_of(3) {
        now += 3;
    }
    // After every third pair the wave waits three slots, or it would meet its own repetition.
    let mut cycle = (3 - (p + 2) % 3) % 3;
    let mut pair = || {
        let start = now;
        now += 2;
        cycle += 1;
        if cycle == 3 {
            cycle = 0;
            now += 3;
        }
        start
    };
    for row in at.iter_mut() {
        let start = pair();
        row[BackwardUp as usize] = start;
        row[WeightUp as usize] = start + 1;
    }
    for row in at.iter_mut().rev() {
        let start = pair();
        row[BackwardDown as usize] = start;
        row[WeightDown as usize] = start + 1;
    }
    for slot in at.iter_mut().flatten() {
        *slot %= SLOTS;
    }
    at
}

fn repeat(patterns: &[[usize; SLOTS]], times: usize) -> Vec<Row> {
    let row = |pattern: &[usize; SLOTS]| {
        let mut block = [None; SLOTS];
        for (piece, slot) in PIECES.into_iter().zip(pattern) {
            block[*slot] = Some(piece);
        }
        block.repeat(times)
    };
    patterns.iter().map(row).collect()
}

/// Clears what lies before the first micro-batch and behind the last, following the first one's path.
fn clear_outside(rows: &mut [Row], m: usize) {
    let clear = |row: &mut Row, slot: usize| {
        row[..slot].iter_mut().rev().skip(SLOTS - 1).step_by(SLOTS).for_each(|piece| *piece = None);
        row.iter_mut().skip(slot + SLOTS * m).step_by(SLOTS).for_each(|piece| *piece = None);
    };
    let mut slot = SLOTS;
    for piece in [ForwardDown, ForwardUp, BackwardUp, BackwardDown] {
        let down = matches!(piece, ForwardDown | BackwardUp);
        for nth in 0..rows.len() {
            let rank = if down { nth } else { rows.len() - 1 - nth };
            let row = &mut rows[rank];
            let Some(found) = (slot..slot + SLOTS).find(|slot| row.get(*slot) == Some(&Some(piece))) else {
                slot += SLOTS;
                continue;
            };
            clear(row, found);
            slot = found + 1;
            let weight = match piece {
                BackwardUp => WeightUp,
                BackwardDown => WeightDown,
                _ => continue,
            };
            if let Some(found) = (slot..slot + SLOTS).find(|slot| row.get(*slot) == Some(&Some(weight))) {
                clear(row, found);
            }
        }
    }
}

/// Moves each operation to the earliest free slot behind what it needs, peak activations unchanged.
fn pull_forward(rows: &mut [Row]) {
    let p = rows.len();
    let length = rows.first().map_or(0, Vec::len);
    // Activations alive after each slot, by rank.
    let mut alive: Vec<Vec<i64>> = rows
        .iter()
        .map(|row| {
            let mut now = 0;
            let step = |piece: &Option<Piece>| {
                now += match piece {
                    Some(ForwardDown | ForwardUp) => 1,
                    Some(WeightUp | WeightDown) => -1,
                    _ => 0,
                };
                now
            };
            row.iter().map(step).collect()
        })
        .collect();
    let peak = alive.iter().flatten().copied().max().unwrap_or(0).max(0);
    // Slot of each piece of each micro-batch; -1 before it is known.
    let mut at: Vec<[Vec<i64>; SLOTS]> = vec![Default::default(); p];
    for i in 0..length {
        for rank in 0..p {
            let Some(piece) = rows[rank][i] else { continue };
            let n = at[rank][piece as usize].len();
            let of = |rank: usize, piece: Piece| at[rank][piece as usize].get(n).copied().unwrap_or(-1);
            let mut behind = at[rank][piece as usize].last().copied().unwrap_or(-1);
            behind = behind.max(match piece {
                WeightUp => of(rank, BackwardUp),
                WeightDown => of(rank, BackwardDown),
                ForwardDown if rank > 0 => of(rank - 1, ForwardDown),
                ForwardDown => -1,
                ForwardUp if rank + 1 < p => of(rank + 1, ForwardUp),
                ForwardUp => of(rank, ForwardDown),
                // A whole backward ends with its weight half.
                BackwardUp if rank > 0 => of(rank - 1, WeightUp),
                BackwardUp => of(rank, ForwardUp),
                BackwardDown if rank + 1 < p => of(rank + 1, WeightDown),
                BackwardDown => of(rank, WeightUp),
            });
            let row = &mut rows[rank];
            let mut slot = (behind + 1) as usize;
            let is_backward = matches!(piece, BackwardUp | BackwardDown);
            while slot < i && row[slot].is_some() {
                slot += 1;
            }
            while is_backward && slot < i && (row[slot].is_some() || row[slot + 1].is_some()) {
                slot += 1;
            }
            if slot < i && matches!(piece, ForwardDown | ForwardUp) {
                // A forward makes activations: it may go back only while there is room for them.
                let mut room = i;
                while room > slot && alive[rank][room - 1] < peak {
                    room -= 1;
                }
                slot = (room..i).find(|slot| row[*slot].is_none()).unwrap_or(i);
            }
            if slot < i {
                row[slot] = row[i].take();
                let change = match piece {
                    ForwardDown | ForwardUp => 1,
                    WeightUp | WeightDown => -1,
                    _ => 0,
                };
                alive[rank][slot..i].iter_mut().for_each(|alive| *alive += change);
            }
            at[rank][piece as usize].push(slot.min(i) as i64);
        }
    }
}
