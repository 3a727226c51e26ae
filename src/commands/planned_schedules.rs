//! Schedules that stages are planned for, and the strategy of each.

use partitioner::Strategy;
use simulator::order::Schedule;

/// Schedules of pipelines that stages are planned for.
pub const PIPELINES: [(Schedule, Strategy); 7] = [
    (Schedule::GPipe, Strategy::GPipe),
    (Schedule::OneForwardOneBackward, Strategy::OneForwardOneBackward),
    (Schedule::Interleaved1F1B, Strategy::Interleaved),
    (Schedule::InterleavedZeroBubble, Strategy::ZeroBubble),
    (Schedule::Zb2p, Strategy::Zb2p),
    (Schedule::Zbv, Strategy::Zbv),
    (Schedule::DualPipeV, Strategy::DualPipeV),
];

/// Schedules that are not offered, and are planned for where they are asked for.
pub const OTHERS: [(Schedule, Strategy); 5] = [
    (Schedule::LayerParallel, Strategy::Layer),
    (Schedule::PipeDream, Strategy::PipeDream),
    (Schedule::GemsMaster, Strategy::Gems),
    (Schedule::Chimera, Strategy::Chimera),
    (Schedule::DualPipe, Strategy::DualPipe),
];

/// Tells whether `split` plans stages for a schedule.
pub fn is_planned(schedule: Schedule) -> bool {
    PIPELINES.iter().chain(&OTHERS).any(|(known, _)| *known == schedule)
}
