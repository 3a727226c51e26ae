//! The strategies of an operator in words, as plans record them: all of one operator's differ.

use graph::{
    OperatorClass, OperatorId,
    layout::{Context, Layout, Need, Slice, Strategy},
};

/// The split of an operator that each device does whole.
pub const WHOLE: &str = "whole";

/// The split of one operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnSplit {
    /// Path of the call that contains it.
    pub path: String,
    /// Its name, with a number if the call has several.
    pub name: String,
    /// Its split in words.
    pub split: String,
    /// Whether it makes tensors that can be split.
    pub makes_tensors: bool,
}

/// Names the strategies of an operator.
pub fn words(context: &Context<'_>, id: OperatorId, ways: &[Strategy]) -> Vec<String> {
    let operator = context.graph.operator(id);
    let result = operator.outputs.first().copied();
    let rank = result.and_then(|value| context.sizes(value)).map_or(0, |sizes| sizes.len());
    let is_image = result.is_some_and(|value| context.is_image(value));
    let plain: Vec<String> = ways
        .iter()
        .enumerate()
        .map(|(at, way)| match way.gives {
            Layout::Whole if at == 0 => WHOLE.to_string(),
            Layout::Whole => "parts".to_string(),
            other => layout(other, rank, operator.class, is_image),
        })
        .collect();
    // Several strategies may give the same: then what they take tells them apart.
    let mut all: Vec<String> = Vec::with_capacity(ways.len());
    for (at, (way, own)) in ways.iter().zip(&plain).enumerate() {
        let mut word = own.clone();
        if all.contains(own) {
            let leaves = context.leaves(id);
            let ranks = leaves.iter().map(|leaf| leaf.sizes.len());
            let taken: Vec<String> =
                way.needs.iter().zip(ranks).map(|(need, rank)| need_word(*need, rank)).collect();
            word = format!("{own} of {}", taken.join(", "));
        }
        if all.contains(&word) {
            word = format!("{word} ({at})");
        }
        all.push(word);
    }
    all
}

fn layout(layout: Layout, rank: usize, class: OperatorClass, is_image: bool) -> String {
    match layout {
        Layout::Whole => WHOLE.to_string(),
        Layout::Sum => "sums".to_string(),
        Layout::First(_) => "first device".to_string(),
        Layout::Routed(_) => "experts".to_string(),
        Layout::Taken(_) => "own samples".to_string(),
        Layout::Bands(bands) => match bands.dim {
            2 => "rows".to_string(),
            3 => "columns".to_string(),
            dim => format!("bands of dimension {dim}"),
        },
        Layout::Even(Slice { dim, blocks }) => {
            let name = match dim {
                0 => "samples".to_string(),
                1 if is_image || class == OperatorClass::Convolution => "channels".to_string(),
                1 if rank == 4 && class == OperatorClass::Attention => "heads".to_string(),
                dim if dim + 1 == rank => "features".to_string(),
                dim => format!("dimension {dim}"),
            };
            if blocks == 1 { name } else { format!("{name} in {blocks} blocks") }
        }
    }
}

fn need_word(need: Need, rank: usize) -> String {
    match need {
        Need::Whole => WHOLE.to_string(),
        Need::Partial => "whole for parts".to_string(),
        Need::In(own) => layout(own, rank, OperatorClass::Plumbing, false),
        Need::Rows(_) => "rows around".to_string(),
        Need::Lent(_) => "lent".to_string(),
        Need::Any => "any".to_string(),
    }
}
