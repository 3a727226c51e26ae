//! What does it look like? Values become SVG, DOT, HTML and trace JSON.
//!
//! ```
//! use viz::{BoxId, Diagram, DiagramBox, Direction};
//!
//! let named = |title: &str| DiagramBox { title: title.into(), ..DiagramBox::default() };
//! let mut diagram = Diagram::new(named("model"));
//! diagram.add(BoxId::ROOT, named("conv1"));
//! assert!(viz::dot(&diagram, Direction::TopToBottom).contains("conv1"));
//! ```

#![cfg_attr(not(test), warn(clippy::too_many_lines, clippy::excessive_nesting))]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod cards;
mod chains;
mod channels;
mod closed;
mod columns;
pub mod diagram;
mod dot;
mod draw;
mod explorer;
mod from_graph;
pub mod gantt;
mod inside;
mod layers;
mod layout;
mod lift;
pub mod palette;
pub mod perfetto;
pub mod report;
pub mod svg;
mod swept;
pub mod text;
mod view;

pub use diagram::{Amount, BoxId, Diagram, DiagramBox, DiagramError, Family, Wire};
pub use dot::dot;
pub use draw::{Caption, Color, draw};
pub use explorer::{explorer, explorer_costs};
pub use from_graph::{Amounts, Overlay, count, from_graph};
pub use layout::{Direction, Label, Rect, Route, Scene, lay_out_diagram};
pub use view::{Depth, Levels, MOST_BOXES, view};

mod bars;
mod beside;
mod plots;

pub use bars::{Bar, BarsPlot, bars_plot};
pub use beside::{Arrangement, beside};
pub use plots::{FitPlots, Line, PlotError, Point, Series, fit_plots};
pub use swept::{Swept, SweptPanel};
