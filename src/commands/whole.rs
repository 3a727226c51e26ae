//! The whole model, ready to run on a device.
//!
//! A trace names the device of each tensor that it makes (`torch.arange(…, device=torch.device("cpu"))`), and libtorch
//! runs it as written: on a GPU such a model stops at the first of them. Stages make tensors on the device of their
//! inputs; so the whole model as one stage replaces an archive that names another device, one whose weights are in a
//! checkpoint, and one whose types depend on numbers that the archive stores as tensors.

use std::path::{Path, PathBuf};

use codegen::Skips;
use indexmap::IndexMap;
use runtime::Source;
use tracer::{Constant, Operand, Program, Role};

use super::emit::{CutAt, EmitRequest, emit};
use crate::{failure::Failure, files::Beside, model::is_exported, stages::Stages, workspace::ModelFile};

/// A whole model, and the folder that contains it if it had to be written.
pub struct Whole {
    /// The file to run.
    pub archive: PathBuf,
    /// The model's inputs that its `forward` takes, in order.
    pub inputs: Vec<usize>,
    /// The positions of the model's outputs among its results; `None` if they are the same.
    pub outputs: Option<Vec<usize>>,
    /// Set for a program of torch.export, which only a Python interpreter runs.
    pub exported: Option<Exported>,
    _written: Option<Beside>,
}

/// Facts about a program that `torch.export.load` does not return.
pub struct Exported {
    /// Names of each tied parameter: each name gets memory of its own there.
    pub tied: Vec<Vec<String>>,
}

/// Returns the model for a device, in its own file if some process can run that: a program of torch.export runs in a
/// Python interpreter.
pub fn as_given(model: &ModelFile, weights: Option<&Path>, device: &str) -> Result<Whole, Failure> {
    if is_exported(&model.program) && weights.is_none() && names_only(&model.program, device) {
        crate::weights::require(model)?;
        return Ok(unchanged(model));
    }
    on(model, weights, device)
}

/// Returns the model for libtorch on a device, with the weights of a checkpoint if one is given.
pub fn on(model: &ModelFile, weights: Option<&Path>, device: &str) -> Result<Whole, Failure> {
    let program = &model.program;
    model.require_gradients()?;
    if weights.is_none() {
        crate::weights::require(model)?;
    }
    // Without TorchScript's optimizer, which sums gradients in another order, numbers of Python are tensors.
    let is_right = !codegen::needs_scalars(program, &codegen::facts(program));
    if weights.is_none() && is_right && names_only(program, device) && !is_exported(program) {
        return Ok(unchanged(model));
    }
    as_one_stage(model, weights)
}

/// Returns the model's own file.
fn unchanged(model: &ModelFile) -> Whole {
    let program = &model.program;
    let inputs = (0..program.inputs.len()).collect();
    let archive = model.path().to_path_buf();
    let exported = is_exported(program).then(|| Exported { tied: tied(program) });
    Whole { archive, inputs, outputs: None, exported, _written: None }
}

/// Returns the names of each parameter that has several.
fn tied(program: &Program) -> Vec<Vec<String>> {
    let mut groups: IndexMap<_, Vec<String>> = IndexMap::new();
    for tensor in program.tensors.iter().filter(|tensor| tensor.role == Role::Parameter) {
        if let Some(place) = tensor.place() {
            groups.entry((place, tensor.dtype)).or_default().push(tensor.path.clone());
        }
    }
    groups.into_values().filter(|names| names.len() > 1).collect()
}

/// Writes the model as one stage.
pub fn as_one_stage(model: &ModelFile, weights: Option<&Path>) -> Result<Whole, Failure> {
    let folder = Beside::scratch()?;
    let out = folder.path().join("out");
    emit(model, &EmitRequest::archives(CutAt::Even(1), Skips::Relay, weights), None)?
        .write_folder(&out, false)?;
    let stages = Stages::read(&out)?;
    let [joints] = stages.wiring.stages.as_slice() else {
        return Err(Failure::bug("one stage was asked for"));
    };
    let input = |source: &Source| match source {
        Source::Input(index) => Ok(*index),
        Source::Stage { .. } => Err(Failure::bug("the only stage has another before it")),
    };
    let inputs = joints.inputs.iter().map(input).collect::<Result<Vec<_>, _>>()?;
    let outputs = stages.model_outputs.iter().map(|&(_, output)| output).collect();
    let archives: Vec<PathBuf> = stages.archives()?;
    let archive = archives[0].clone();
    Ok(Whole { archive, inputs, outputs: Some(outputs), exported: None, _written: Some(folder) })
}

/// Tells whether every device that a program names is of the given kind.
fn names_only(program: &Program, device: &str) -> bool {
    let sort = |name: &str| name.split(':').next().unwrap_or_default().to_string();
    let wanted = sort(device);
    let is_fine = |operand: &Operand| !matches!(operand, Operand::Constant(Constant::Device(name)) if sort(name) != wanted);
    program.nodes.iter().all(|node| node.arguments.iter().all(|argument| is_fine(&argument.operand)))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_model_that_names_its_device_is_written_anew_for_another() {
        let fixture = |name: &str| Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/traces").join(name);
        let check = |name: &str, device: &str, is_written: bool| {
            let whole = on(&ModelFile::read(&fixture(name)).unwrap(), None, device).unwrap();
            assert_eq!(whole._written.is_some(), is_written, "{name} on {device}");
            assert_eq!(whole.inputs.len(), 1);
            assert!(whole.archive.exists());
        };
        check("gpt2_tiny.pt", "cpu", false);
        check("gpt2_tiny.pt", "cuda:1", true);
        check("unet_small.pt", "cuda", false);
    }
}
