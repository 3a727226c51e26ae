//! What `trace --hf` guesses where a config says little, and numbers that are given as they are.
#![allow(clippy::unwrap_used, missing_docs)]

use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

use needs::python;
use tracer::read_archive;

mod needs;

const MODELS: &str = "tests/guesses/models.py";

fn model_analyze(python: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_model-analyze"));
    command.current_dir(env!("CARGO_MANIFEST_DIR")).env("MODEL_ANALYZE_PYTHON", python);
    command.env("OMP_NUM_THREADS", "1").env("NO_COLOR", "1").args(arguments).output().unwrap()
}

/// Each model takes its inputs in one way; the number is that of the guess.
#[test]
fn arguments_are_guessed_from_names_configs_and_documentation() {
    let Some(python) = python() else { return };
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("script.py");
    fs::write(&script, model_analyze(&python, &["trace-script"]).stdout).unwrap();
    let done = Command::new(&python).args(["-W", "ignore", MODELS]).arg(&script).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let expected = "\
Stacked 14 pixel_values=1x3x16x16 prompt_pixel_values=1x3x16x16 prompt_masks=1x3x16x16:0..1
OneFrame 3 pixel_values=64x48 grid_thw=1x3:int64:1,8,8
Placed 0 pixel_values=1x81x48 pixel_position_ids=1x81x2:int64:0..9
Documented 0 input_ids=1x16:int64:0..50 structure=1:int64:1..2 levels=1x6x8
Masked 0 pixel_values=1x3x32x32 class_input_ids=1x16:int64:0..50 class_attention_mask=1x16:int64:1..2
Prompted 0 pixel_values=1x3x32x32
Spoken 33 input_values=1x128x8 decoder_input_values=1x128x8
Never takes none of pixel_values states
Unknown refused: the config of Unknown does not give the size of its inputs structure
give them all: --input pixel_values=SHAPE[:DTYPE] --input structure=SHAPE[:DTYPE]
";
    assert_eq!(String::from_utf8_lossy(&done.stdout), expected);
}

/// The numbers of an input, as the note of a guess spells them.
#[test]
fn numbers_of_an_input_are_taken_as_they_are() {
    let Some(python) = python() else { return };
    let folder = tempfile::tempdir().unwrap();
    let archive = folder.path().join("model.pt");
    let output = archive.to_str().unwrap();
    let target = format!("{MODELS}:OneFrame");
    let traced = |grid: &str| {
        let patches = "pixel_values=64x48";
        model_analyze(&python, &["trace", &target, "--input", patches, "--input", grid, "-o", output])
    };
    let done = traced("grid_thw=1x3:int64:1,16,4");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let program = read_archive(&fs::read(&archive).unwrap()).unwrap();
    let recorded = program.recorded.unwrap();
    assert_eq!(recorded.inputs[1].range, None);
    let sizes = recorded.nodes.last().unwrap().outputs[0].as_ref().unwrap().shape.clone();
    assert_eq!(sizes, Some(vec![16, 4, 8]));
    let said = String::from_utf8(traced("grid_thw=1x3:int64:1,16").stderr).unwrap();
    assert!(said.contains("a tensor of 1x3 holds 3 numbers, not 2"), "{said}");
}

/// A loop over the experts that some token has come to: others have come to others. What a round without tokens does must be nothing.
#[test]
fn loops_over_the_experts_that_were_hit_run_over_all() {
    let Some(python) = python() else { return };
    let folder = tempfile::tempdir().unwrap();
    let source = "import torch\n\
        class Experts(torch.nn.Module):\n\
        \x20   def __init__(self, added=0.0, fixed=False):\n\
        \x20       super().__init__()\n\
        \x20       self.router, self.added, self.fixed = torch.nn.Linear(8, 4), added, fixed\n\
        \x20       self.experts = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(4))\n\
        \x20   def forward(self, x):\n\
        \x20       chosen = torch.tensor([0, 2]) if self.fixed else self.router(x).argmax(-1)\n\
        \x20       tokens, found = torch.nn.functional.one_hot(chosen, 4).T, torch.zeros_like(x)\n\
        \x20       for hit in (tokens.sum(-1) > 0).nonzero():\n\
        \x20           rows, = torch.where(tokens[hit].squeeze(0))\n\
        \x20           found = found.index_add(0, rows, self.experts[hit](x[rows])) + self.added\n\
        \x20       return found\n";
    fs::write(folder.path().join("experts.py"), source).unwrap();
    let target = format!("{}:Experts", folder.path().join("experts.py").display());
    let archive = folder.path().join("model.pt");
    let traced = |more: &[&str]| {
        let given = ["trace", target.as_str(), "--input", "2x8", "-o", archive.to_str().unwrap()];
        let done = model_analyze(&python, &[&given, more].concat());
        (done.status.success(), String::from_utf8(done.stderr).unwrap())
    };
    let products = || {
        let program = read_archive(&fs::read(&archive).unwrap()).unwrap();
        program.nodes.iter().filter(|node| node.operator == "aten::linear").count()
    };
    // Two tokens come to two experts at most.
    assert_eq!(traced(&[]), (true, String::new()));
    assert_eq!(products(), 5);
    // Where no data chooses, as many rounds as there are.
    let (is_traced, said) = traced(&["--arg", "fixed=true"]);
    assert!(is_traced, "{said}");
    assert_eq!(products(), 2);
    let (is_traced, said) = traced(&["--arg", "added=1.0"]);
    assert!(!is_traced);
    assert!(said.contains("the trace is not the model: on another input of the same sizes"), "{said}");
    assert!(
        said.contains("experts.py:10: a loop over the rows that data chose runs over all of them"),
        "{said}"
    );
}
