//! Several stages, each of several replicas: pipeline and data parallelism together.

use simulator::order::Schedule;

use crate::{
    grid::shape::{Grid, GridSpace},
    strategy::row::{Row, Search},
};

pub(crate) const ROW: Row =
    Row { name: "hybrid", aliases: &[], search: Search::Grids(grids), has_replicas: true, ..Row::PLAIN };

fn grids(space: &GridSpace) -> Result<Vec<Grid>, String> {
    let GridSpace { n_blocks, wanted, .. } = *space;
    let grids = space.replicated(Schedule::OneForwardOneBackward, 1);
    if grids.is_empty() {
        return Err(match wanted {
            Some(ranks) if ranks > n_blocks => {
                format!("{ranks} stages need as many blocks, of which there are {n_blocks}")
            }
            Some(ranks) if ranks > 1 => format!("{ranks} stages of two replicas need {} devices", 2 * ranks),
            Some(_) => "one stage is not a hybrid".into(),
            None => "two stages of two replicas need two blocks and four devices".into(),
        });
    }
    Ok(grids)
}
