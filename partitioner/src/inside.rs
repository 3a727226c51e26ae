//! How is each operator split over a group of devices?
//!
//! Only numbers: an operator is a list of strategies with their costs, an edge is a table of the costs of changing from
//! one strategy to another. The meaning of a strategy is known only to the code that makes the tables.
//!
//! ```
//! use partitioner::inside::{Choices, Cost, Matrix, eliminate};
//!
//! // Two operators that may stay whole or be split; changing in between costs more than it gains.
//! let operator = |whole, split| [whole, split].map(|seconds| Cost { seconds, ..Cost::default() }).to_vec();
//! let choices = Choices {
//!     nodes: vec![operator(1.0, 2.0), operator(5.0, 3.0)],
//!     edges: vec![(0, 1, Matrix::new(2, 2, vec![0.0, 4.0, 4.0, 0.0]).into())],
//! };
//! let found = eliminate(&choices, |cost| cost.seconds);
//! assert_eq!((found.picks, found.value), (vec![1, 1], 5.0));
//! ```

mod choices;
mod dead_ends;
mod eliminate;
mod lagrange;
mod mcmc;
mod order;
mod repeated;

mod layers;
mod links;
mod space;
mod volumes;

#[cfg(test)]
mod agreement;
#[cfg(test)]
#[path = "../tests/inside/integer_program.rs"]
mod integer_program;

pub use choices::{Choices, Cost, Matrix, Totals};
pub use eliminate::{Found, eliminate};
pub use lagrange::{Limits, NoSplit, Split, split};
pub use layers::{Degrees, Layer, Need, Read};
pub use links::Links;
pub use mcmc::{Walk, Walked, walk};
pub use repeated::Repeated;
pub use space::{Prices, Space};
pub use volumes::Volume;
