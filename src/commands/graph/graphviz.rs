//! Graphviz as a renderer: run with a time limit, and not at all for graphs that are too large.

use std::{process::Command, time::Duration};

use super::program::{Missing, run};

/// `dot` takes minutes beyond this.
const MOST_BOXES: usize = 1500;
const LONGEST: Duration = Duration::from_secs(20);

/// Renders DOT as SVG, or returns why not.
pub fn render(dot: &str, n_boxes: usize) -> Result<String, String> {
    if n_boxes > MOST_BOXES {
        return Err(format!(
            "{n_boxes} boxes are too many for Graphviz (at most {MOST_BOXES}); try a smaller --depth"
        ));
    }
    let svg =
        run(Command::new("dot").arg("-Tsvg"), "Graphviz", dot, LONGEST).map_err(|missing| match missing {
            Missing::NotFound => {
                "`dot` is not on the PATH; install Graphviz or leave out --renderer dot".to_string()
            }
            Missing::Failed(why) => why,
        })?;
    String::from_utf8(svg).map_err(|_| "Graphviz wrote no text".to_string())
}
