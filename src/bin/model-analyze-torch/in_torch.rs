//! Conversions of the command's types into libtorch's.

use libtorch::{InputSpec, WholeModel};
use model_analyze::parts::{DrawnInput, Failure, whole::Whole};

/// Turns an error of libtorch into a failure.
pub fn failed(error: libtorch::TorchError) -> Failure {
    Failure::input(error)
}

/// An input that is drawn at random.
pub fn input(drawn: &DrawnInput) -> InputSpec {
    let DrawnInput { name, dtype, shape, range, values, below } = drawn.clone();
    InputSpec { name, dtype, shape, range, values, below }
}

/// A whole model.
pub fn whole(whole: &Whole) -> WholeModel {
    let (inputs, outputs) = (whole.inputs.clone(), whole.outputs.clone());
    WholeModel { archive: whole.archive.clone(), inputs, outputs }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::path::Path;

    use codegen::Skips;
    use model_analyze::parts::{CutAt, EmitRequest, ModelFile, Stages, emit, whole::as_one_stage};

    use super::*;

    #[test]
    fn the_model_as_one_stage_is_the_model() {
        let archive = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/traces/lstm_seq2seq_small.pt");
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("out");
        let model = ModelFile::read(&archive).unwrap();
        let request = EmitRequest::archives(CutAt::Even(2), Skips::Relay, None);
        emit(&model, &request, None).unwrap().write_folder(&out, false).unwrap();
        let stages = Stages::read(&out).unwrap();
        let specs = stages.input_specs(&model.program).unwrap();
        let inputs: Vec<_> = specs.iter().map(|spec| libtorch::random(&input(spec), 0).unwrap()).collect();
        let (archives, device) = (stages.archives().unwrap(), libtorch::device("cpu").unwrap());
        let one = as_one_stage(&model, None).unwrap();
        let outputs = &stages.model_outputs[..];
        let wired = (&stages.wiring, outputs);
        let same = libtorch::verify(&whole(&one), &archives, wired, &[inputs], true, device).unwrap();
        assert_eq!(same.outputs.len(), outputs.len());
        assert!(same.gradients.len() > 4, "{same:?}");
        let all = same.outputs.iter().chain(same.gradients.iter().map(|gradient| &gradient.difference));
        assert!(all.clone().all(|one| one.relative < 1e-6), "{same:?}");
    }
}
