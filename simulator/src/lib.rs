//! How long does a training step take under a plan, and where does the time go?
//!
//! Numbers only: stages and their costs, an [`order::Order`] of operations and a machine go in, a timeline comes
//! out. [`clock`] is the exact integer time of an order at uniform costs; [`closed_form`] and [`in_flight`] say the
//! same in formulas where they exist.
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod closed_form;
pub mod in_flight;
pub mod order;

mod clock;
mod cost;
mod lint;

pub use clock::{Blocked, Clock, ClockError, Span, clock, clock_spans, steady_period};
pub use cost::Cost;
pub use lint::{Finding, Place, Problem, Report, Severity, lint};
