//! Reads plan files in one way for every command: header, shape, and whether it is a plan for this model.

use std::path::Path;

use schema::{Plan, PlanFileError};

use crate::{failure::Failure, files, sharing::Way, workspace::ModelFile};

/// Reads a plan and checks its header.
pub fn read(path: &Path) -> Result<Plan, Failure> {
    let text = files::read_text(path)?;
    let name = path.display().to_string();
    let plan = schema::read_plan(&text).map_err(|error| unreadable(&name, &text, &error))?;
    check(&name, &plan)?;
    Way::check_groups(&plan)?;
    Ok(plan)
}

/// Reads a plan that was made for this model.
pub fn read_for(path: &Path, model: &ModelFile) -> Result<Plan, Failure> {
    let plan = read(path)?;
    let digest = model.digest();
    if plan.model.digest == digest {
        return Ok(plan);
    }
    let (theirs, ours) = (short(&plan.model.digest), short(digest));
    Err(Failure::input(format!("{} was made for another model, `{}`", path.display(), plan.model.name))
        .with_hint(format!("its digest is {theirs}, this model's is {ours}; plan again")))
}

/// The failure for a text that is not a plan, with the place.
fn unreadable(name: &str, text: &str, error: &PlanFileError) -> Failure {
    let failure = Failure::input(format!("{name}: {error}"));
    let span = match error {
        PlanFileError::Yaml(_) => None,
        PlanFileError::Kind(_) => field(text, "kind"),
        PlanFileError::Version(_) => field(text, "version"),
        PlanFileError::Missing(_) => Some(0..0),
    };
    let failure = match (span, error) {
        (Some(span), _) => failure.at(name, text, span, "here"),
        (None, PlanFileError::Yaml(yaml)) => failure.at_line(name, text, yaml.place),
        (None, _) => failure,
    };
    failure.with_hint(match error {
        PlanFileError::Version(_) => "it is from a newer model-analyze; update, or plan again with this one",
        _ => "`model-analyze plan -o` writes plans",
    })
}

/// Returns the line of a field of the header.
fn field(text: &str, name: &str) -> Option<std::ops::Range<usize>> {
    let mut start = 0;
    for line in text.split_inclusive('\n') {
        if line.strip_prefix(name).is_some_and(|rest| rest.trim_start().starts_with(':')) {
            return Some(start..start + line.trim_end().len());
        }
        start += line.len();
    }
    None
}

/// Checks the invariants that every command relies on.
fn check(name: &str, plan: &Plan) -> Result<(), Failure> {
    if plan.stages.is_empty() {
        return Err(Failure::input(format!("{name} has no stages")));
    }
    for (index, stage) in plan.stages.iter().enumerate() {
        if stage.blocks.is_empty() {
            return Err(Failure::input(format!("{name}: stage {index} is empty")));
        }
        let is_known = |device: &&String| plan.cluster.devices.iter().any(|known| known.name == **device);
        if let Some(device) = stage.devices.iter().find(|device| !is_known(device)) {
            let known: Vec<&str> = plan.cluster.devices.iter().take(12).map(|d| d.name.as_str()).collect();
            return Err(Failure::input(format!(
                "{name}: stage {index} names device `{device}`, which its cluster lacks"
            ))
            .with_hint(format!("the cluster's devices begin with {}", known.join(", "))));
        }
    }
    plan.cluster.validate().map_err(|error| Failure::input(format!("{name}: its cluster: {error}")))
}

fn short(digest: &str) -> String {
    digest.chars().take(12).collect()
}
