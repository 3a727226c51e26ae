//! What does it look like? Values become SVG, DOT, HTML and trace JSON.
