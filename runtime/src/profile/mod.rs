//! Profiles: which operators are measured, when a measurement suffices, and the file.
//!
//! Nothing here needs libtorch: the sampling [`Plan`] and the grid of a [`Sweep`], the sizes and work of its operators, the [`Statistics`] of
//! repeated times, and the file with its header. Measuring itself is in `torch::Bench`.

mod file;
mod kind;
mod machine;
mod plan;
mod random;
mod row;
mod sample;
mod size;
mod statistics;
mod sweep;
mod waiting;

pub use file::{Contents, FileError, Header, HeaderDifference, header_line, read};
pub use kind::{DType, Kind, UnknownName};
pub use machine::{civil_date, clocks, cpu_name, gpu_clocks, hardware, largest_cache};
pub use plan::{Item, Plan, Rates, Scale, Split};
pub use row::{Row, columns};
pub use size::{Size, Work};
pub use statistics::Statistics;
pub use sweep::{Operators, Sweep};
pub use waiting::waited;
