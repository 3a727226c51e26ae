//! `model-analyze diff`: the differences of two plans, or of two models, and their effect.

use std::path::{Path, PathBuf};

use clap::Args;
use viz::Arrangement;

use super::graph;
use crate::{
    failure::Failure,
    files,
    output::{Format, Output},
    visible::cell,
};

mod models;
mod plans;

/// Arguments of `diff`.
#[derive(Args)]
#[command(after_help = "Examples:
  model-analyze diff before.yaml after.yaml
  model-analyze diff by-hand.yaml out/plan.yaml --format json
  model-analyze diff by-hand.yaml out/plan.yaml -o steps.svg
  model-analyze diff unet.pt unet-wide.pt -o models.svg

Both plans are simulated: times, memory and bubble compare whatever strategy or tool wrote them. -o draws their steps on
one axis of time, one above the other.

Two models are compared operator by operator. An operator of one is also in the other if a block with the same path runs
the same operator with the same constants on parameters of the same sizes into results of the same sizes. -o draws the models side by side
and colours blocks by the share of their operators that the other model lacks.

The exit code is 0 whether or not they differ.")]
pub struct Diff {
    /// The plan or model to compare with
    before: PathBuf,
    /// The plan or model to compare
    after: PathBuf,
    /// Draw both in one picture: F.svg, or F.png or F.pdf (by rsvg-convert)
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Shape of an input of both models, in the order of `forward` or by name: [NAME=]SHAPE[:DTYPE]
    #[arg(long = "input", short, value_name = "INPUT", allow_hyphen_values = true)]
    inputs: Vec<String>,
    /// How many levels of the models' blocks the picture opens
    #[arg(long, short, value_parser = clap::value_parser!(u32).range(1..))]
    depth: Option<u32>,
    /// Output format
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

impl Diff {
    /// Prints the differences.
    pub fn run(self, output: &mut Output) -> Result<(), Failure> {
        let paths = [self.before.as_path(), self.after.as_path()];
        if let Some(path) = &self.output {
            graph::check_picture(path)?;
        }
        let (json, text, pictures, arrangement) = match [is_model(paths[0])?, is_model(paths[1])?] {
            [true, true] => {
                let compared = models::compare(paths, &self.inputs)?;
                let pictures =
                    self.output.is_some().then(|| models::draw(&compared, self.depth)).transpose()?;
                (
                    serde_json::to_value(&compared.answer),
                    models::text(&compared.answer),
                    pictures,
                    Arrangement::Right,
                )
            }
            [false, false] if self.inputs.is_empty() && self.depth.is_none() => {
                let (answer, steps) = plans::compare(paths)?;
                let pictures = viz::gantt::on_one_axis(&[&steps[0], &steps[1]]);
                (serde_json::to_value(&answer), plans::text(&answer), Some(pictures), Arrangement::Below)
            }
            [false, false] => {
                return Err(Failure::input("--input and --depth are for models, not for plans"));
            }
            [is_model, _] => {
                let [model, plan] = if is_model { paths } else { [paths[1], paths[0]] };
                return Err(Failure::input(format!(
                    "{} is a model and {} is not: give two plans or two models",
                    model.display(),
                    plan.display()
                ))
                .with_hint("`graph MODEL --plan PLAN -o stages.svg` draws a model with its stages"));
            }
        };
        if let (Some(path), Some(pictures)) = (&self.output, pictures) {
            let titles = paths.iter().map(|path| path.display().to_string());
            graph::write_picture(path, viz::beside(&titles.zip(pictures).collect::<Vec<_>>(), arrangement))?;
        }
        match self.format {
            Format::Json => output.json(&json.map_err(Failure::input)?),
            Format::Text => output.text(&text),
        }
    }
}

/// Tells whether a file is a model: an archive, or IR text.
fn is_model(path: &Path) -> Result<bool, Failure> {
    let bytes = files::read_start(path, 64)?;
    Ok(bytes.starts_with(b"PK") || bytes.trim_ascii_start().starts_with(b"graph("))
}

/// Names a run of blocks by its first and last.
fn run_of<'a>(mut blocks: impl ExactSizeIterator<Item = &'a str>) -> String {
    let n = blocks.len();
    let first = cell(blocks.next().unwrap_or_default());
    match blocks.last() {
        Some(last) => format!("{first} … {} ({n} blocks)", cell(last)),
        None => first.into_owned(),
    }
}
