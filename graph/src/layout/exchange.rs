//! Exchanges: the communication that converts a value from the layout it was made in to the one it is needed in.

use tracer::ValueId;

use super::{Bands, Layout, Moved, Need, Routed, Rows, Slice, Taken};

/// An exchange: an action of the forward pass, and one on the gradient in the backward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Exchange {
    /// Forward nothing, backward an all-reduce: where a replicated value enters divided work.
    Copy,
    /// Forward an all-reduce, backward nothing: where divided work ends.
    Reduce,
    /// Forward each device takes its slice, backward an all-gather.
    Scatter(Slice),
    /// Forward an all-gather, backward each device takes its slice of the gradient.
    Gather(Slice),
    /// Forward an all-gather, backward a reduce-scatter.
    GatherSplit(Slice),
    /// Forward a reduce-scatter, backward an all-gather.
    ReduceScatter(Slice),
    /// An all-to-all from slices of one dimension to slices of another; backward the reverse.
    Exchange {
        /// The dimension of the slices before.
        from: usize,
        /// The dimension of the slices after.
        to: usize,
    },
    /// Forward the first device keeps the value and the others hold zeros, backward nothing.
    Once,
    /// Forward each device takes its rows, backward a gather of rows.
    ToBands(Bands),
    /// Forward a gather of rows, backward each device takes its rows of the gradient.
    FromBands(Bands),
    /// Forward a gather of rows, backward gradients are summed and each device takes its rows.
    FromBandsSplit(Bands),
    /// A halo exchange: each device receives the rows it lacks; in the backward pass their gradients are sent back and
    /// added.
    Rows(Rows),
    /// Forward each device takes the rows of its experts, backward a gather of rows.
    ToExperts(Routed),
    /// Forward a gather of rows, backward each device takes the rows of its experts.
    FromExperts(Routed),
    /// Forward a gather of rows, backward gradients go to the devices that have the rows, and are added.
    FromExpertsSplit(Routed),
    /// An all-to-all: rows go from the devices that have them to those of their experts; backward their gradients go back.
    Dispatch(Taken, Routed),
    /// Forward the first device keeps all rows, this many, and the others none; backward it sends its gradient to the
    /// others.
    ToFirst(u64),
    /// Forward the first device sends all rows, this many, to the others; backward it keeps its gradient.
    FromFirst(u64),
    /// Forward the first device sends all rows, this many, to the others; backward it gets the sum of all gradients.
    FromFirstSplit(u64),
    /// Forward the first device collects the rows, this many, of equal slices; backward it deals out the gradient.
    Collect(u64),
    /// Forward the first device deals out the rows, this many, in equal slices; backward it collects the gradient.
    Deal(u64),
    /// Forward the rows, this many, are zeros on all devices but the first; backward the first keeps its gradient.
    FirstTerm(u64),
    /// Devices without rows compute with a weight of this many rows that only the first has: they get an empty tensor
    /// of its sizes. Nothing is sent.
    Lend(u64),
    /// Forward the rows of others' experts become zeros; backward each device takes the rows of its experts.
    ExpertsTerm(Routed),
}

/// The collective that an exchange runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Collective {
    /// All-reduce.
    AllReduce,
    /// All-gather.
    AllGather,
    /// Reduce-scatter.
    ReduceScatter,
    /// All-to-all.
    AllToAll,
    /// Neighbours send each other rows; the number of rows of the image is given.
    Neighbours(Moved, u64),
}

impl Exchange {
    /// Returns the rows of experts before or after it.
    pub fn routed(self) -> Option<Routed> {
        match self {
            Exchange::ToExperts(routed)
            | Exchange::FromExperts(routed)
            | Exchange::FromExpertsSplit(routed)
            | Exchange::Dispatch(_, routed)
            | Exchange::ExpertsTerm(routed) => Some(routed),
            _ => None,
        }
    }

    /// Returns the values that say where rows go: each device must have them whole.
    pub(crate) fn routing(self) -> impl Iterator<Item = ValueId> {
        let positions = match self {
            Exchange::Dispatch(taken, _) => Some(taken.positions),
            _ => None,
        };
        self.routed().map(|routed| routed.offsets).into_iter().chain(positions)
    }

    /// Returns the collective of the forward pass.
    pub fn forward(self, degree: u64) -> Option<Collective> {
        match self {
            Exchange::Copy | Exchange::Scatter(_) | Exchange::Once => None,
            Exchange::ToBands(_) | Exchange::ToExperts(_) | Exchange::ExpertsTerm(_) => None,
            Exchange::ToFirst(_) | Exchange::FirstTerm(_) | Exchange::Lend(_) => None,
            Exchange::FromFirst(_) | Exchange::FromFirstSplit(_) => Some(all_of_first(degree)),
            Exchange::Collect(_) | Exchange::Deal(_) => Some(slices_of_first(degree)),
            Exchange::FromExperts(_) | Exchange::FromExpertsSplit(_) => Some(routed(degree)),
            Exchange::Rows(rows) => neighbours(rows, degree),
            Exchange::Reduce => Some(Collective::AllReduce),
            Exchange::Gather(_) | Exchange::GatherSplit(_) => Some(Collective::AllGather),
            Exchange::FromBands(bands) | Exchange::FromBandsSplit(bands) => Some(all_rows(bands, degree)),
            Exchange::ReduceScatter(_) => Some(Collective::ReduceScatter),
            Exchange::Exchange { .. } | Exchange::Dispatch(..) => Some(Collective::AllToAll),
        }
    }

    /// Returns the collective of the backward pass.
    pub fn backward(self, degree: u64) -> Option<Collective> {
        match self {
            Exchange::Reduce | Exchange::Gather(_) | Exchange::FromBands(_) | Exchange::Once => None,
            Exchange::FromExperts(_) | Exchange::ExpertsTerm(_) => None,
            Exchange::FromFirst(_) | Exchange::FirstTerm(_) | Exchange::Lend(_) => None,
            Exchange::ToFirst(_) => Some(all_of_first(degree)),
            Exchange::FromFirstSplit(_) => Some(Collective::AllReduce),
            Exchange::Collect(_) | Exchange::Deal(_) => Some(slices_of_first(degree)),
            Exchange::ToExperts(_) | Exchange::FromExpertsSplit(_) => Some(routed(degree)),
            Exchange::Rows(rows) => neighbours(rows, degree),
            Exchange::Copy => Some(Collective::AllReduce),
            Exchange::Scatter(_) | Exchange::ReduceScatter(_) => Some(Collective::AllGather),
            Exchange::ToBands(bands) => Some(all_rows(bands, degree)),
            Exchange::GatherSplit(_) => Some(Collective::ReduceScatter),
            Exchange::FromBandsSplit(bands) if is_even(bands, degree) => Some(Collective::ReduceScatter),
            Exchange::FromBandsSplit(_) => Some(Collective::AllReduce),
            Exchange::Exchange { .. } | Exchange::Dispatch(..) => Some(Collective::AllToAll),
        }
    }
}

fn is_even(bands: Bands, degree: u64) -> bool {
    bands.size.is_multiple_of(degree)
}

/// A gather of uneven bands as point-to-point messages: all-gather needs equal parts.
fn all_rows(bands: Bands, degree: u64) -> Collective {
    if is_even(bands, degree) {
        return Collective::AllGather;
    }
    let others = degree - 1;
    let moved =
        Moved { total: bands.size * others, most: bands.size - bands.size / degree, messages: others };
    Collective::Neighbours(moved, bands.size)
}

/// Rows of experts as messages to all others. Each row is missing on all devices but one, whatever the routing; the
/// bytes that one device receives are those of even routing.
fn routed(degree: u64) -> Collective {
    let others = degree - 1;
    Collective::Neighbours(Moved { total: degree * others, most: others, messages: others }, degree)
}

/// All rows as messages from the first device to each other one; its link is the busiest.
fn all_of_first(degree: u64) -> Collective {
    let others = degree - 1;
    let total = degree * others;
    Collective::Neighbours(Moved { total, most: total, messages: others }, degree)
}

/// One equal slice per device, to the first device or from it.
fn slices_of_first(degree: u64) -> Collective {
    let others = degree - 1;
    Collective::Neighbours(Moved { total: others, most: others, messages: others }, degree)
}

fn neighbours(rows: Rows, degree: u64) -> Option<Collective> {
    let moved = rows.moved(degree);
    (moved.total > 0).then_some(Collective::Neighbours(moved, rows.from.size))
}

/// Returns the exchanges, in order, that convert a value from one layout to the one that its consumer needs; `None` if
/// impossible.
///
/// Without a gradient, the gradient's layout does not matter.
pub fn exchanges(from: Layout, need: Need, has_gradient: bool) -> Option<Vec<Exchange>> {
    if let Need::Rows(rows) = need {
        let mut steps = exchanges(from, Need::In(Layout::Bands(rows.from)), has_gradient)?;
        steps.push(Exchange::Rows(rows));
        return Some(steps);
    }
    if let Need::Lent(rows) = need {
        return match from {
            Layout::First(own) => (own == rows).then(|| vec![Exchange::Lend(rows)]),
            other => exchanges(other, Need::Partial, has_gradient),
        };
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
        (Layout::Routed(from), Layout::Routed(to)) if from == to => Vec::new(),
        (Layout::Whole, Layout::Routed(routed)) => vec![Exchange::ToExperts(routed)],
        (Layout::Sum, Layout::Routed(routed)) => vec![Exchange::Reduce, Exchange::ToExperts(routed)],
        (Layout::Even(from), Layout::Routed(to)) => vec![Exchange::Gather(from), Exchange::ToExperts(to)],
        (Layout::Routed(routed), Layout::Sum) => vec![Exchange::ExpertsTerm(routed)],
        (Layout::Routed(routed), Layout::Whole) if is_partial => vec![Exchange::FromExpertsSplit(routed)],
        (Layout::Routed(routed), Layout::Whole) => vec![Exchange::FromExperts(routed)],
        (Layout::Routed(from), Layout::Even(to)) => vec![Exchange::FromExperts(from), Exchange::Scatter(to)],
        (Layout::Routed(from), Layout::Routed(to)) => {
            vec![Exchange::FromExperts(from), Exchange::ToExperts(to)]
        }
        (Layout::Taken(taken), Layout::Routed(routed)) => vec![Exchange::Dispatch(taken, routed)],
        // They are taken on the way to experts alone.
        (Layout::Taken(_), _) | (_, Layout::Taken(_)) => return None,
        (Layout::First(from), Layout::First(to)) if from == to => Vec::new(),
        (Layout::First(_), Layout::First(_)) => return None,
        (Layout::Whole, Layout::First(rows)) => vec![Exchange::ToFirst(rows)],
        (Layout::Sum, Layout::First(rows)) => vec![Exchange::Reduce, Exchange::ToFirst(rows)],
        (Layout::Even(Slice { dim: 0, blocks: 1 }), Layout::First(rows)) => vec![Exchange::Collect(rows)],
        (Layout::Even(from), Layout::First(rows)) => vec![Exchange::Gather(from), Exchange::ToFirst(rows)],
        (Layout::First(rows), Layout::Whole) if is_partial => vec![Exchange::FromFirstSplit(rows)],
        (Layout::First(rows), Layout::Whole) => vec![Exchange::FromFirst(rows)],
        (Layout::First(rows), Layout::Even(Slice { dim: 0, blocks: 1 })) => vec![Exchange::Deal(rows)],
        (Layout::First(rows), Layout::Even(to)) => vec![Exchange::FromFirst(rows), Exchange::Scatter(to)],
        (Layout::First(rows), Layout::Sum) => vec![Exchange::FirstTerm(rows)],
        // Rows of experts are on all devices.
        (Layout::First(_), Layout::Routed(_)) | (Layout::Routed(_), Layout::First(_)) => return None,
        (Layout::First(rows), Layout::Bands(to)) => vec![Exchange::FromFirst(rows), Exchange::ToBands(to)],
        (Layout::Bands(from), Layout::First(rows)) => {
            vec![Exchange::FromBands(from), Exchange::ToFirst(rows)]
        }
        // Experts take rows of tokens, not of images.
        (Layout::Routed(_), Layout::Bands(_)) | (Layout::Bands(_), Layout::Routed(_)) => return None,
        // A slice of a value is not a term of a sum.
        (Layout::Even(_) | Layout::Bands(_), Layout::Sum) => return None,
        (Layout::Sum, Layout::Whole) if is_partial => vec![Exchange::Reduce, Exchange::Copy],
        (Layout::Sum, Layout::Whole) => vec![Exchange::Reduce],
        (Layout::Sum, Layout::Even(slice)) => vec![Exchange::ReduceScatter(slice)],
    })
}
