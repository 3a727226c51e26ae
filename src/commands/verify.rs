//! `model-analyze verify`: the stages against the whole model.

use std::path::PathBuf;

use clap::Args;
#[cfg(feature = "torch")]
use schema::TensorDifference;

use crate::{
    failure::Failure,
    output::{Format, Output},
};

/// Arguments of `verify`.
#[derive(Args)]
#[command(after_help = "Examples:
  model-analyze verify out/ --model model.pt
  model-analyze verify out/ --model model.pt --device cuda:0 --tolerance 1e-4

Compares outputs, the gradient of every parameter, and the losses of training steps. Ends with exit code 1 when a
difference is out of tolerance. Needs a build with libtorch: cargo build --release --features torch")]
pub struct Verify {
    /// The folder that `emit` or `split` wrote
    folder: PathBuf,
    /// The whole model (default: where the stages were cut from)
    #[arg(long, value_name = "FILE")]
    model: Option<PathBuf>,
    /// The checkpoint of its weights (default: where those of the stages were taken from)
    #[arg(long, value_name = "CHECKPOINT")]
    weights: Option<PathBuf>,
    /// Device to run on: cpu, cuda, cuda:1
    #[arg(long, default_value = "cpu")]
    device: String,
    /// Training steps to compare
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1000))]
    steps: u32,
    /// Largest difference to accept, relative to the largest value of a tensor
    #[arg(long, default_value_t = 1e-5)]
    tolerance: f64,
    /// Seed of the inputs
    #[arg(long, default_value_t = 0)]
    seed: i64,
    /// Take files of the folder as they are that were changed after they were written
    #[arg(long)]
    allow_changes: bool,
    /// How the answer is printed
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

#[cfg(not(feature = "torch"))]
impl Verify {
    /// Says what is missing.
    pub fn run(self, _output: &mut Output) -> Result<(), Failure> {
        let Self { folder: _, model: _, weights: _, device: _, steps: _, .. } = &self;
        let Self { tolerance: _, seed: _, allow_changes: _, format: _, .. } = self;
        Err(crate::stages::no_libtorch("verify"))
    }
}

#[cfg(feature = "torch")]
impl Verify {
    /// Compares and prints.
    pub fn run(self, output: &mut Output) -> Result<(), Failure> {
        use crate::{folder_files::Changes, stages::Stages};

        if !(self.tolerance >= 0.0 && self.tolerance.is_finite()) {
            return Err(Failure::input(format!("--tolerance {} is no tolerance", self.tolerance)));
        }
        let stages = Stages::read(&self.folder)?;
        // All that runs, also what train.py takes.
        stages.check_files(Changes::allowed(self.allow_changes), |file| {
            file.starts_with("stages/") || ["train.py", "schedule.csv", "plan.yaml"].contains(&file)
        })?;
        let archives = stages.archives()?;
        let model = stages.model(self.model.as_deref())?;
        let weights = self.weights.clone().or_else(|| stages.manifest.weights.as_ref().map(PathBuf::from));
        let failed = |error: runtime::BackendError| Failure::input(error);
        let device = runtime::torch::device(&self.device).map_err(failed)?;
        let whole = crate::commands::whole::on(&model, weights.as_deref(), &self.device)?;
        let specs = stages.input_specs(&model)?;
        let mut inputs = Vec::new();
        for step in 0..i64::from(self.steps) {
            let one = specs.iter().enumerate().map(|(index, spec)| {
                runtime::torch::random(spec, self.seed + step * specs.len() as i64 + index as i64)
            });
            inputs.push(one.collect::<Result<Vec<_>, _>>().map_err(failed)?);
        }
        let verification = runtime::torch::verify(
            &whole.model,
            &archives,
            &stages.wiring,
            &stages.model_outputs,
            &inputs,
            device,
        )
        .map_err(failed)?;
        let answer = answer(&verification, &self.device, self.tolerance);
        match self.format {
            Format::Json => output.json(&serde_json::to_value(&answer).map_err(Failure::input)?)?,
            Format::Text => output.text(&text(&answer, self.tolerance))?,
        }
        match answer.ok {
            true => Ok(()),
            false => Err(Failure::no("the stages differ from the whole model by more than the tolerance")
                .with_hint(
                    "a model traced with dropout is random: trace it in eval mode, or raise --tolerance",
                )),
        }
    }
}

#[cfg(feature = "torch")]
fn answer(verification: &runtime::torch::Verification, device: &str, tolerance: f64) -> schema::Verified {
    // NaN is a difference, too: it must not be lost in a maximum.
    let largest = |values: &mut dyn Iterator<Item = f64>| {
        values.fold(0.0, |largest: f64, value| if value.is_nan() { value } else { largest.max(value) })
    };
    // A training that has lost its way has lost it in both.
    let is_same = |whole: f64, stages: f64| whole == stages || whole.is_nan() && stages.is_nan();
    let losses = verification.losses.iter().map(|(whole, stages)| match is_same(*whole, *stages) {
        true => 0.0,
        false => (whole - stages).abs() / whole.abs().max(f64::MIN_POSITIVE),
    });
    let losses_max_difference = largest(&mut { losses });
    let outputs_relative = largest(&mut verification.outputs.iter().map(|d| d.relative));
    let gradients_max_difference = largest(&mut verification.gradients.iter().map(|d| d.relative));
    let is_within = |value: f64| value <= tolerance;
    let kinds = [("output", &verification.outputs), ("gradient", &verification.gradients)];
    let mut worst: Vec<_> = kinds
        .iter()
        .flat_map(|(kind, differences)| {
            differences.iter().map(|d| TensorDifference {
                kind: (*kind).to_string(),
                name: d.name.clone(),
                absolute: d.absolute,
                relative: d.relative,
            })
        })
        .collect();
    worst.sort_by(|a, b| b.relative.total_cmp(&a.relative).then_with(|| a.name.cmp(&b.name)));
    worst.truncate(5);
    schema::Verified {
        schema_version: schema::EXECUTED_VERSION,
        ok: [losses_max_difference, outputs_relative, gradients_max_difference].into_iter().all(is_within),
        device: device.to_string(),
        steps: verification.losses.len(),
        outputs_max_difference: largest(&mut verification.outputs.iter().map(|d| d.absolute)),
        gradients_max_difference,
        losses_max_difference,
        gradients_compared: verification.gradients.len(),
        worst,
        losses: verification.losses.clone(),
    }
}

#[cfg(feature = "torch")]
fn text(answer: &schema::Verified, tolerance: f64) -> String {
    let mut text = format!(
        "outputs    largest difference {:.1e}\ngradients  largest difference {:.1e} of the tensor's largest value, {} parameters\nlosses     largest difference {:.1e}, {} steps",
        answer.outputs_max_difference,
        answer.gradients_max_difference,
        answer.gradients_compared,
        answer.losses_max_difference,
        answer.steps,
    );
    if let (Some((first, _)), Some((last, _))) = (answer.losses.first(), answer.losses.last()) {
        text.push_str(&format!(" ({first:.3e} → {last:.3e})"));
    }
    text.push('\n');
    let is_lost = |(whole, stages): &(f64, f64)| !whole.is_finite() && !stages.is_finite();
    if let Some(step) = answer.losses.iter().position(is_lost) {
        text.push_str(&format!(
            "  no numbers from step {} on, in the whole model as in the stages: random data make its training diverge\n",
            step + 1
        ));
    }
    for difference in answer.worst.iter().filter(|difference| difference.absolute > 0.0) {
        let TensorDifference { kind, name, absolute, relative } = difference;
        text.push_str(&format!("  {kind} {name}: {absolute:.1e} ({relative:.1e} relative)\n"));
    }
    let verdict = if answer.ok { "the same" } else { "different" };
    text.push_str(&format!("{verdict} within {tolerance:.0e} on {}\n", answer.device));
    text
}

#[cfg(all(test, feature = "torch"))]
mod tests {
    use super::*;

    #[test]
    fn losses_that_are_no_numbers_on_both_sides_are_the_same() {
        let check = |losses: &[(f64, f64)], expected: bool, said: &str| {
            let verification = runtime::torch::Verification {
                losses: losses.to_vec(),
                ..runtime::torch::Verification::default()
            };
            let answer = answer(&verification, "cpu", 1e-5);
            assert_eq!(answer.ok, expected, "{losses:?}");
            assert!(text(&answer, 1e-5).contains(said), "{}", text(&answer, 1e-5));
        };
        let lost = f64::NAN;
        check(&[(1.0, 1.0), (0.5, 0.5)], true, "the same");
        check(&[(1.0, 1.0), (1e30, 1e30), (lost, lost)], true, "no numbers from step 3 on");
        check(&[(1.0, 1.0), (f64::INFINITY, f64::INFINITY)], true, "no numbers from step 2 on");
        check(&[(1.0, 1.0), (lost, 1.0)], false, "different");
        check(&[(1.0, 1.0), (1.0, lost)], false, "different");
        check(&[(f64::INFINITY, lost)], false, "different");
    }
}
