//! What devices tell each other where a value is taken in another layout than it was made in.

use super::{Bands, Layout, Moved, Need, Rows, Slice};

/// One exchange, with what its gradient does in the backward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Exchange {
    /// Nothing; gradients are summed. Where a whole value enters work that is shared out.
    Copy,
    /// Terms are summed; nothing. Where such work ends.
    Reduce,
    /// Each takes its slice; slices are gathered.
    Scatter(Slice),
    /// Slices are gathered; each takes its slice of the gradient.
    Gather(Slice),
    /// Slices are gathered; gradients are summed, and each takes its slice.
    GatherSplit(Slice),
    /// Terms are summed, and each takes its slice; slices of the gradient are gathered.
    ReduceScatter(Slice),
    /// From slices of one dimension to slices of another; the other way.
    Exchange {
        /// Was cut along.
        from: usize,
        /// Is cut along.
        to: usize,
    },
    /// The first device keeps it, the others hold zeros; nothing.
    Once,
    /// Each takes its rows; rows are gathered.
    ToBands(Bands),
    /// Rows are gathered; each takes its rows of the gradient.
    FromBands(Bands),
    /// Rows are gathered; gradients are summed, and each takes its rows.
    FromBandsSplit(Bands),
    /// Each takes what it lacks of others' rows; gradients go back, and are added where several took the same.
    Rows(Rows),
}

/// What goes over the links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Collective {
    /// Everybody has the sum of all.
    AllReduce,
    /// Everybody has the parts of all.
    AllGather,
    /// Everybody has its slice of the sum.
    ReduceScatter,
    /// Everybody sends a part to each.
    AllToAll,
    /// Neighbours send each other rows, of so many.
    Neighbours(Moved, u64),
}

impl Exchange {
    /// Returns what the forward pass sends.
    pub fn forward(self, degree: u64) -> Option<Collective> {
        match self {
            Exchange::Copy | Exchange::Scatter(_) | Exchange::Once => None,
            Exchange::ToBands(_) => None,
            Exchange::Rows(rows) => neighbours(rows, degree),
            Exchange::Reduce => Some(Collective::AllReduce),
            Exchange::Gather(_) | Exchange::GatherSplit(_) => Some(Collective::AllGather),
            Exchange::FromBands(bands) | Exchange::FromBandsSplit(bands) => Some(all_rows(bands, degree)),
            Exchange::ReduceScatter(_) => Some(Collective::ReduceScatter),
            Exchange::Exchange { .. } => Some(Collective::AllToAll),
        }
    }

    /// Returns what the backward pass sends.
    pub fn backward(self, degree: u64) -> Option<Collective> {
        match self {
            Exchange::Reduce | Exchange::Gather(_) | Exchange::FromBands(_) | Exchange::Once => None,
            Exchange::Rows(rows) => neighbours(rows, degree),
            Exchange::Copy => Some(Collective::AllReduce),
            Exchange::Scatter(_) | Exchange::ReduceScatter(_) => Some(Collective::AllGather),
            Exchange::ToBands(bands) => Some(all_rows(bands, degree)),
            Exchange::GatherSplit(_) => Some(Collective::ReduceScatter),
            Exchange::FromBandsSplit(bands) if is_even(bands, degree) => Some(Collective::ReduceScatter),
            Exchange::FromBandsSplit(_) => Some(Collective::AllReduce),
            Exchange::Exchange { .. } => Some(Collective::AllToAll),
        }
    }
}

fn is_even(bands: Bands, degree: u64) -> bool {
    bands.size.is_multiple_of(degree)
}

/// Everybody gets all rows: uneven bands go as messages, for gathers know equal parts alone.
fn all_rows(bands: Bands, degree: u64) -> Collective {
    if is_even(bands, degree) {
        return Collective::AllGather;
    }
    let others = degree - 1;
    let moved =
        Moved { total: bands.size * others, most: bands.size - bands.size / degree, messages: others };
    Collective::Neighbours(moved, bands.size)
}

fn neighbours(rows: Rows, degree: u64) -> Option<Collective> {
    let moved = rows.moved(degree);
    (moved.total > 0).then_some(Collective::Neighbours(moved, rows.from.size))
}

/// Returns the exchanges that make of a value in one layout what a taker needs, in order; `None` where there are none.
///
/// Through what has no gradient nothing flows back: whether all do the same with it does not matter.
pub fn exchanges(from: Layout, need: Need, has_gradient: bool) -> Option<Vec<Exchange>> {
    if let Need::Rows(rows) = need {
        let mut steps = exchanges(from, Need::In(Layout::Bands(rows.from)), has_gradient)?;
        steps.push(Exchange::Rows(rows));
        return Some(steps);
    }
    let is_partial = need == Need::Partial && has_gradient;
    let Some(to) = need.layout() else { return Some(Vec::new()) };
    Some(match (from, to) {
        (Layout::Whole, Layout::Whole) if is_partial => vec![Exchange::Copy],
        (Layout::Whole, Layout::Whole) | (Layout::Sum, Layout::Sum) => Vec::new(),
        (Layout::Whole, Layout::Even(slice)) => vec![Exchange::Scatter(slice)],
        (Layout::Whole, Layout::Sum) => vec![Exchange::Once],
        (Layout::Even(slice), Layout::Whole) if is_partial => vec![Exchange::GatherSplit(slice)],
        (Layout::Even(slice), Layout::Whole) => vec![Exchange::Gather(slice)],
        (Layout::Even(from), Layout::Even(to)) if from == to => Vec::new(),
        (Layout::Even(from), Layout::Even(to)) if from.dim != to.dim && from.blocks * to.blocks == 1 => {
            vec![Exchange::Exchange { from: from.dim, to: to.dim }]
        }
        (Layout::Even(from), Layout::Even(to)) => vec![Exchange::Gather(from), Exchange::Scatter(to)],
        (Layout::Whole, Layout::Bands(bands)) => vec![Exchange::ToBands(bands)],
        (Layout::Bands(bands), Layout::Whole) if is_partial => vec![Exchange::FromBandsSplit(bands)],
        (Layout::Bands(bands), Layout::Whole) => vec![Exchange::FromBands(bands)],
        (Layout::Bands(from), Layout::Bands(to)) if from == to => Vec::new(),
        (Layout::Bands(from), Layout::Bands(to)) => vec![Exchange::FromBands(from), Exchange::ToBands(to)],
        (Layout::Bands(from), Layout::Even(to)) => vec![Exchange::FromBands(from), Exchange::Scatter(to)],
        (Layout::Even(from), Layout::Bands(to)) => vec![Exchange::Gather(from), Exchange::ToBands(to)],
        (Layout::Sum, Layout::Bands(bands)) => vec![Exchange::Reduce, Exchange::ToBands(bands)],
        // A slice of the value is no term of it.
        (Layout::Even(_) | Layout::Bands(_), Layout::Sum) => return None,
        (Layout::Sum, Layout::Whole) if is_partial => vec![Exchange::Reduce, Exchange::Copy],
        (Layout::Sum, Layout::Whole) => vec![Exchange::Reduce],
        (Layout::Sum, Layout::Even(slice)) => vec![Exchange::ReduceScatter(slice)],
    })
}
