//! The V: rank `r` of `p` holds stage `r` on the way down and stage `2p − 1 − r` on the way up.
//!
//! ```text
//! rank 0  0       7
//! rank 1    1   6
//! rank 2      2 5
//! rank 3      3 4     the last rank holds both sides of the turn: nothing crosses a link there
//! ```

/// Returns the stage of a rank in a chunk: 0 goes down, 1 comes back.
pub(super) fn stage(rank: u32, ranks: u32, chunk: usize) -> u32 {
    match chunk {
        0 => rank,
        _ => 2 * ranks - 1 - rank,
    }
}
