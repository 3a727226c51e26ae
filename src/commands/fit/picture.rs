//! The points of the plots of `fit --plot`, from trials.

use cost_model::{Features, Split, SweptKernel, WorkSweep};
use viz::{FitPlots, Line, Point, Series, Swept, SweptPanel};

use super::Tried;
use crate::failure::Failure;

/// The most points of one kind in a plot.
const MAX_POINTS: usize = 600;

/// Draws all plots into one SVG.
pub fn draw(tried: &[Tried], features: Features) -> Result<String, Failure> {
    let has_devices = tried.iter().any(|one| one.group.device != tried[0].group.device);
    let name = |one: &Tried| {
        let mut name = one.group.kind.clone();
        if one.group.phase != schema::Phase::Forward {
            name.push_str(&format!(" {}", one.group.phase.name()));
        }
        if tried.iter().any(|other| other.group.dtype != tried[0].group.dtype) {
            name.push_str(&format!(" {}", one.group.dtype));
        }
        if has_devices {
            name.push_str(&format!(" {}", one.group.device));
        }
        name
    };
    let family = |one: &Tried| {
        if has_devices { one.group.device.clone() } else { one.group.phase.name().replace('_', " ") }
    };
    let series = tried
        .iter()
        .map(|one| {
            let pairs = one.trial.samples.iter().zip(&one.trial.estimates);
            let every = one.trial.samples.len().div_ceil(MAX_POINTS).max(1);
            let points = pairs.step_by(every).map(|(sample, own)| Point {
                measured: sample.seconds,
                predicted: own.seconds,
                p10: own.p10,
                p90: own.p90,
            });
            Series { name: name(one), family: family(one), points: points.collect() }
        })
        .collect();
    let learning = tried
        .iter()
        .map(|one| {
            let sizes = [50, 100, 200, 400, 800, 1600];
            let fitting = sizes.into_iter().filter(|rows| rows * 5 / 4 <= one.group.samples.len());
            let points = fitting.filter_map(|rows| {
                let trial = cost_model::try_split(&one.group, features, Split::Random, rows, 1).ok()?;
                Some((rows as f64, trial.accuracy().mape))
            });
            Line { name: name(one), family: family(one), points: points.collect() }
        })
        .collect();
    let convolutions = tried.iter().filter(|one| one.group.kind.starts_with("conv"));
    let swept = convolutions.filter_map(|one| Some((one, WorkSweep::of(&one.group)?))).next();
    let swept = swept.map(|(one, sweep)| {
        let (images, side) = sweep.images;
        let what = format!("{images} × {side} × {side}, {}, as many channels in as out", one.group.dtype);
        let panel = |kernel: SweptKernel| SweptPanel {
            name: format!("{0} × {0}", kernel.side),
            measured: kernel.measured,
            raw: kernel.raw,
            curve: kernel.curve,
        };
        Swept { what, kernels: sweep.kernels.into_iter().map(panel).collect() }
    });
    let plots = FitPlots { title: format!("Cost model, {}", tried[0].group.device), series, learning, swept };
    viz::fit_plots(&plots).map_err(Failure::input)
}
