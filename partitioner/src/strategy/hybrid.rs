//! Several stages, each of several replicas: pipeline and data parallelism together.

use simulator::order::Schedule;

use crate::{
    grid::shape::{FEW_DEVICES, Grid, GridSpace},
    strategy::row::{Row, Search},
};

pub(crate) const ROW: Row =
    Row { name: "hybrid", aliases: &[], search: Search::Grids(grids), has_replicas: true, ..Row::PLAIN };

/// Stages of two replicas or more: all shapes on few devices, else those that leave few devices idle.
fn grids(space: &GridSpace) -> Result<Vec<Grid>, String> {
    let GridSpace { n_devices, n_blocks, wanted, .. } = *space;
    let most = (n_devices / 2).min(n_blocks);
    let mut grids = Vec::new();
    for ranks in (2..=most).filter(|&ranks| wanted.is_none_or(|wanted| ranks == wanted)) {
        let all = n_devices / ranks;
        // Fewer ranks with the same replicas leave devices idle.
        let is_wasteful = ranks < most && n_devices / (ranks + 1) == all && wanted.is_none();
        let replicas = if n_devices <= FEW_DEVICES {
            (2..=all).rev().collect()
        } else if is_wasteful {
            Vec::new()
        } else {
            vec![all]
        };
        for replicas in replicas {
            for replicas_together in [true, false] {
                // Where all devices are alike, one way is as good as the other.
                if replicas_together || !space.is_uniform {
                    let schedule = Schedule::OneForwardOneBackward;
                    grids.push(Grid { schedule, ranks, chunks: 1, replicas, replicas_together });
                }
            }
        }
    }
    if grids.is_empty() {
        return Err(match wanted {
            Some(ranks) if ranks > n_blocks => {
                format!("{ranks} stages need as many blocks, of which there are {n_blocks}")
            }
            Some(ranks) if ranks > 1 => format!("{ranks} stages of two replicas need {} devices", 2 * ranks),
            Some(_) => "one stage is no hybrid".into(),
            None => "two stages of two replicas need two blocks and four devices".into(),
        });
    }
    Ok(grids)
}
