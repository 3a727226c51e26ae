//! The report: one HTML file that shows a model, its plan and its timeline, and fetches nothing.
//!
//! What can stand still is written here and reads without JavaScript; the script in `app/` draws the graph and the
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
