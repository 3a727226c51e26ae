//! Ray Train: workers that run `train.py`, one per rank of the plan.

use super::{Export, Made, Subject};

/// The file, without the number of workers.
const PAGE: &str = include_str!("ray.py");

/// Returns the script. It runs any plan that `train.py` runs, without settings of its own.
pub(super) fn ray(Subject { terms, .. }: &Subject<'_>) -> Export {
    let workers: usize = terms.replicas.iter().sum::<usize>() * terms.shards.max(1);
    let text = PAGE.replace("WORKERS = 1\n", &format!("WORKERS = {workers}\n"));
    Export { path: "ray_train.py", target: "Ray Train", made: Ok(Made { notes: Vec::new(), text }) }
}
