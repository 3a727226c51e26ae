//! The report: one self-contained HTML file that shows a model, its plan and its timeline.
//!
//! Static content is written here and is readable without JavaScript; the script in `app/` draws the graph and the
//! timelines and sorts tables. Names from the model are never parsed as HTML: here they are escaped, there they are set
//! as text.

mod data;
mod embed;
mod figures;
mod input;
mod overview;
mod page;
mod scatter;
mod stages;
mod table;
mod timeline;

pub use input::{Origin, Planned, Report};
pub use page::html;
