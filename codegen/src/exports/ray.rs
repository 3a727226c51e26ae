//! Ray Train: workers that run `train.py`, one for each rank of the plan.

use super::{Export, Made, Subject};

/// The file, but for the number of workers.
const PAGE: &str = include_str!("ray.py");

/// Returns the script. It runs any plan that `train.py` runs: nothing is said anew.
pub(super) fn ray(Subject { terms, .. }: &Subject<'_>) -> Export {
    let workers: usize = terms.replicas.iter().sum::<usize>() * terms.shards.max(1);
    let text = PAGE.replace("WORKERS = 1\n", &format!("WORKERS = {workers}\n"));
    Export { path: "ray_train.py", target: "Ray Train", made: Ok(Made { notes: Vec::new(), text }) }
}
