//! What does it look like? Values become SVG, DOT, HTML and trace JSON.

pub mod palette;
pub mod svg;
pub mod text;
