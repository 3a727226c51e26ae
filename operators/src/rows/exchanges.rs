//! Exchanges between devices that share a layer. They are not operators of torch: `graph` inserts them into a program,
//! `codegen` writes them as calls of the file that is emitted with stages.

use super::rows;
use crate::Operator;

#[rustfmt::skip]
pub(super) const ROWS: &[Operator] = rows! {
    // name                 class        shape         keeps        flops  kernel     memory  gives  python  in place  its Python  split  numbers  marks
    shard_copy              View         Identity      -            -      -          View    -      -       -         -           Exchanged -     [Cheap];
    shard_weight            Plumbing     Identity      -            -      -          View    -      -       -         -           Exchanged -     [Cheap SumsLater];
    shard_reduce            Copy         Clone         -            -      -          -       -      -       -         -           Exchanged -     [];
    shard_once              Copy         Clone         -            -      -          -       -      -       -         -           Exchanged -     [];
    shard_scatter           Copy         Shared        -            -      -          -       -      -       -         -           Exchanged -     [];
    shard_gather            Copy         Shared        -            -      -          -       -      -       -         -           Exchanged -     [];
    shard_gather_split      Copy         Shared        -            -      -          -       -      -       -         -           Exchanged -     [];
    shard_reduce_scatter    Copy         Shared        -            -      -          -       -      -       -         -           Exchanged -     [];
    shard_exchange          Copy         Shared        -            -      -          -       -      -       -         -           Exchanged -     [];
    shard_dropout           Elementwise  Dropout       DropoutMask  -      -          -       -      -       -         -           -      -        [Random];
    shard_embedding         Embedding    Embedding     Embedding    -      -          -       -      -       -         -           -      -        [];
    shard_attention       Attention    Attention     Attention     Attention  -    -       -      -       -         -           Attention -     [];
    shard_cross_entropy     Reduce       ClassLoss     CrossEntropy -      -          -       -      -       -         -           -      -        [];
    shard_to_bands          Copy         SharedRows    -            -      -          -       -      -       -         -           -      -        [];
    shard_from_bands        Copy         SharedRows    -            -      -          -       -      -       -         -           -      -        [];
    shard_from_bands_split  Copy         SharedRows    -            -      -          -       -      -       -         -           -      -        [];
    shard_to_experts        Copy         SharedExperts -           -      -          -       -      -       -         -           Exchanged -     [];
    shard_from_experts      Copy         SharedExperts -           -      -          -       -      -       -         -           Exchanged -     [];
    shard_from_experts_split Copy        SharedExperts -           -      -          -       -      -       -         -           Exchanged -     [];
    shard_experts_term      Copy         SharedExperts -           -      -          -       -      -       -         -           Exchanged -     [];
    shard_take              Copy         SharedTaken   -           -      -          -       -      -       -         -           Exchanged -     [];
    shard_dispatch          Copy         Clone         -           -      -          -       -      -       -         -           Exchanged -     [];
    shard_combine           Copy         SharedTaken   -           -      -          -       -      -       -         -           Exchanged -     [];
    shard_to_first          Copy     SharedFirst    -           -      -          -       -      -       -         -           -      -        [];
    shard_from_first        Copy     SharedFirst    -           -      -          -       -      -       -         -           -      -        [];
    shard_from_first_split  Copy     SharedFirst    -           -      -          -       -      -       -         -           -      -        [];
    shard_collect           Copy     SharedFirst    -           -      -          -       -      -       -         -           -      -        [];
    shard_deal              Copy     SharedFirst    -           -      -          -       -      -       -         -           -      -        [];
    shard_first_term        Copy     SharedFirst    -           -      -          -       -      -       -         -           -      -        [];
    shard_lend              View         Identity      -            -      -          View    -      -       -         -           -      -        [Cheap];
    shard_grouped_mm        Matmul       GroupedProduct GroupedFactors GroupedProduct - -    -      -       -         -           GroupedProduct - [];
    shard_window            Copy         SharedRows    -            -      -          -       -      -       -         -           -      -        [];
    shard_spread            Copy         SharedRows    -            -      -          -       -      -       -         -           -      -        [];
    shard_stretch           Copy         SharedRows    -            -      -          -       -      -       -         -           -      -        [];
    shard_crop              Copy         SharedRows    -            -      -          -       -      -       -         -           -      -        [];
    shard_counted           Elementwise  SharedRows    -            -      -          -       -      -       -         -           -      -        [];
    shard_weighed           Elementwise  Identity      -            -      -          -       -      -       -         -           -      -        [];
    shard_per_target        Elementwise  Identity      -            -      -          -       -      -       -         -           -      -        [];
    shard_dropout_bands     Elementwise  Dropout       DropoutMask  -      -          -       -      -       -         -           -      -        [Random];
    shard_dropout_first     Elementwise  Dropout       DropoutMask  -      -          -       -      -       -         -           -      -        [Random];
    shard_batch_norm        Norm         Norm          BatchNorm    -      BatchNorm  -       -      -       -         -           -      -        [];
    shard_group_norm        Norm         Norm          GroupNorm    -      GroupNorm  -       -      -       -         -           -      -        [];
    shard_rows              Plumbing     SharedNumber  -            -      -          -       Int    -       -         -           -      -        [Cheap NoGradient];
    shard_all_rows          Plumbing     SharedNumber  -            -      -          -       Int    -       -         -           -      -        [Cheap NoGradient];
    shard_on_first          Plumbing     SharedNumber  -            -      -          -       Int    -       -         -           -      -        [Cheap NoGradient];
    shard_part              Plumbing     SharedNumber  -            -      -          -       Int    -       -         -           -      -        [Cheap NoGradient];
    shard_whole             Plumbing     SharedNumber  -            -      -          -       Int    -       -         -           -      -        [Cheap NoGradient];
};
