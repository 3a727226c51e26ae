//! What does it look like? Values become SVG, DOT, HTML and trace JSON.
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod gantt;
pub mod perfetto;
