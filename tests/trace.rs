//! `model-analyze trace` on small models, in the interpreter of `.venv`.

#![allow(clippy::unwrap_used, clippy::print_stdout, missing_docs)]

use std::{
    fs,
    path::{Path, PathBuf},
};

use assert_cmd::Command;
use tempfile::TempDir;
use tracer::{DType, Program, read_archive};
use validate::validate;
use warm::{FOR_TRACES, warm};

mod needs;
mod validate;
mod warm;

fn python() -> Option<PathBuf> {
    needs::python().map(|python| warm(&python, FOR_TRACES))
}

fn command(python: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_model-analyze"));
    command
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .env("MODEL_ANALYZE_PYTHON", python)
        .env("OMP_NUM_THREADS", "1")
        .env("NO_COLOR", "1")
        .arg("trace");
    command
}

/// Traces into a fresh folder and returns it with the program.
fn trace(python: &Path, arguments: &[&str]) -> (TempDir, Program) {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("model.pt");
    command(python).args(arguments).arg("-o").arg(&output).assert().success().stderr("");
    let left: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["model.pt"]);
    let program = read_archive(&fs::read(&output).unwrap()).unwrap();
    (folder, program)
}

/// Runs a command that must fail and leave nothing; returns what it says.
fn refuse(python: &Path, arguments: &[&str]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("model.pt");
    let assert = command(python).args(arguments).arg("-o").arg(&output).assert().code(2).stdout("");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    String::from_utf8(assert.get_output().stderr.clone()).unwrap()
}

#[test]
fn shapes_and_inputs_travel_inside() {
    let Some(python) = needs::python() else { return };
    let (_folder, program) = trace(&python, &["fixtures/models/cnn.py:BasicCNN", "--input", "2x3x32x32"]);
    let recorded = program.recorded.unwrap();
    assert_eq!(program.name, "model");
    assert!(!recorded.training);
    assert_eq!(recorded.about["target"], "fixtures/models/cnn.py:BasicCNN");
    assert_eq!(recorded.about["torch"].split('+').next(), Some("2.11.0"));
    assert_eq!(recorded.inputs[0].name, "x");
    assert_eq!(recorded.inputs[0].type_.shape, Some(vec![2, 3, 32, 32]));
    let operators: Vec<&str> = program.nodes.iter().map(|node| node.operator.as_str()).collect();
    let known: Vec<&str> = recorded.nodes.iter().map(|node| node.operator.as_str()).collect();
    assert_eq!(operators, known);
    let last = recorded.nodes.last().unwrap().outputs[0].as_ref().unwrap();
    assert_eq!(last.shape, Some(vec![2, 10]));
    assert_eq!(last.requires_grad, Some(true));
}

#[test]
fn arguments_names_and_structured_outputs() {
    let Some(python) = python() else { return };
    let arguments = [
        "fixtures/models/cnn.py:Keywords",
        "--arg=width=4",
        "--arg=activation=tanh",
        "--input=ids=2x5:int64:0..11",
        "--input=mask=2x4:bool",
        "--input=scale=scalar:float64:1..2",
        "--train",
    ];
    let (_folder, program) = trace(&python, &arguments);
    let recorded = program.recorded.unwrap();
    assert!(recorded.training);
    let inputs: Vec<_> = recorded
        .inputs
        .iter()
        .map(|input| (input.name.as_str(), input.type_.dtype.unwrap(), input.type_.shape.clone().unwrap()))
        .collect();
    let expected = [
        ("ids", DType::Int64, vec![2, 5]),
        ("mask", DType::Bool, vec![2, 4]),
        ("scale", DType::Float64, vec![]),
    ];
    assert_eq!(inputs, expected);
    let ranges: Vec<_> = recorded.inputs.iter().map(|input| input.range).collect();
    assert_eq!(ranges, [Some((0.0, 11.0)), Some((0.0, 2.0)), Some((1.0, 2.0))]);
    assert!(program.tensors.iter().any(|tensor| tensor.path == "embed.weight" && tensor.shape == [11, 4]));
    assert!(program.nodes.iter().any(|node| node.operator == "aten::tanh"));
}

#[test]
fn a_model_in_training_mode_is_inspected_and_drawn() {
    let Some(python) = python() else { return };
    let (folder, _) = trace(&python, &["fixtures/models/cnn.py:DropoutCNN", "--input=4x1x28x28", "--train"]);
    let run = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_model-analyze"));
        let output = command.current_dir(folder.path()).args(arguments).assert().success().stderr("");
        String::from_utf8(output.get_output().stdout.clone()).unwrap()
    };
    let report: serde_json::Value =
        serde_json::from_str(&run(&["inspect", "model.pt", "--format", "json"])).unwrap();
    let totals = &report["totals"];
    assert_eq!((&totals["flops"], &totals["backward_flops"]), (&3_844_000.into(), &6_536_000.into()));
    assert_eq!(report["disagreements"], serde_json::json!([]));
    // PyTorch keeps 212544 bytes on a CPU, where the mask of the 200 dropped elements has four bytes each; ours has one.
    assert_eq!(totals["activation_bytes"], 212_544 - 3 * 200);
    let picture = run(&["graph", "model.pt"]);
    assert!(picture.matches("dropout").count() >= 2, "{picture}");
}

/// The casts are those of a GPU: on a processor autocast leaves norms and exponentials in the low type, and PReLU in float32.
#[test]
fn mixed_precision_becomes_part_of_the_trace() {
    const MODEL: &str = "
import torch

class Mixed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
        self.norm, self.bend = torch.nn.LayerNorm(8), torch.nn.PReLU(8)

    def forward(self, x):
        made = self.first(x)
        bent = self.bend(made)
        shares = torch.softmax(self.norm(made), -1)
        with torch.autocast('cpu', enabled=False):
            plain = self.last(shares)
        return bent * shares + plain.exp()
";
    const RECURRENT: &str = "
import torch

class Recurrent(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.last = torch.nn.GRU(8, 8, batch_first=True), torch.nn.Linear(8, 2)

    def forward(self, x):
        return self.last(self.layer(x)[0][:, -1])
";
    let Some(python) = python() else { return };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("mixed.py");
    fs::write(&file, MODEL).unwrap();
    let target = format!("{}:Mixed", file.display());
    for (name, low) in [("bfloat16", DType::BFloat16), ("float16", DType::Float16)] {
        let (folder, program) = trace(&python, &[&target, "--input=4x8", "--autocast", name]);
        // Casts of weights are not drawn: a layer is one box. That of the input is, and that for the norm.
        let mut command = Command::new(env!("CARGO_BIN_EXE_model-analyze"));
        let drawn =
            command.current_dir(folder.path()).args(["graph", "model.pt", "--depth", "3"]).assert().success();
        let picture = String::from_utf8(drawn.get_output().stdout.clone()).unwrap();
        assert_eq!(picture.matches(">to</text>").count(), 2, "{picture}");
        let recorded = program.recorded.unwrap();
        assert_eq!(recorded.about["autocast"], name);
        assert!(program.tensors.iter().all(|tensor| tensor.dtype == DType::Float32));
        let of = |operator: &str| -> Vec<DType> {
            let nodes = recorded.nodes.iter().filter(|node| node.operator == operator);
            nodes.map(|node| node.outputs[0].as_ref().unwrap().dtype.unwrap()).collect()
        };
        // The second stands in the part without autocast.
        assert_eq!(of("aten::linear"), [low, DType::Float32]);
        for (operator, expected) in [
            ("aten::prelu", low),
            ("aten::layer_norm", DType::Float32),
            ("aten::softmax", DType::Float32),
            ("aten::mul", DType::Float32),
            ("aten::exp", DType::Float32),
        ] {
            assert_eq!(of(operator), [expected], "{operator}");
        }
        // Input, weight and bias of the first layer, the slopes, and back for the norm.
        assert_eq!(of("aten::to"), [low, low, low, low, DType::Float32]);
    }
    // The kernels of recurrent layers cast by themselves on a processor, where no trace sees it.
    fs::write(&file, RECURRENT).unwrap();
    let target = format!("{}:Recurrent", file.display());
    for (name, low) in [("bfloat16", DType::BFloat16), ("float16", DType::Float16)] {
        let (_folder, program) = trace(&python, &[&target, "--input=2x5x8", "--autocast", name]);
        let nodes = program.recorded.unwrap().nodes;
        for operator in ["aten::gru", "aten::linear"] {
            let node = nodes.iter().find(|node| node.operator == operator).unwrap();
            assert_eq!(node.outputs[0].as_ref().unwrap().dtype, Some(low), "{operator}");
        }
    }
    let said = refuse(&python, &[&target, "--input=4x8", "--autocast", "int8"]);
    assert!(said.contains("[possible values: bfloat16, float16]"), "{said}");
}

/// Under autocast a weight is a cast parameter: its gradient is a product as without.
#[test]
fn gradients_of_cast_weights_take_their_time() {
    const MODEL: &str = "
import torch

def build():
    return torch.nn.Sequential(*(torch.nn.Linear(512, 512, bias=False) for _ in range(3)))
";
    let Some(python) = python() else { return };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("deep.py");
    fs::write(&file, MODEL).unwrap();
    let target = format!("{}:build", file.display());
    let gradients = |more: &[&str]| {
        let (_folder, program) = trace(&python, &[&[target.as_str(), "--train", "--input"], more].concat());
        let graph = graph::build(&program, &graph::BuildOptions::default()).unwrap();
        let mut model = cost_model::CostModel::shipped(&schema::catalogue()["H200-SXM-141GB"]).unwrap();
        // Of the device alone.
        model.overhead = Some(schema::CallOverhead { call: 0.0, recording: 0.0, backward: 0.0, cold: 0.0 });
        let options = cost_model::PredictOptions::default();
        let costs = cost_model::predict(&graph, &graph::costs(&graph), &model, &options);
        costs.total().backward().seconds
    };
    let plain = gradients(&["8192x512:bfloat16", "--dtype", "bfloat16"]);
    let cast = gradients(&["8192x512", "--autocast", "bfloat16"]);
    // Without the gradients of weights it would be two products of five.
    assert!(cast >= plain && cast < 1.6 * plain, "{cast:e} {plain:e}");
}

#[test]
fn the_same_seed_gives_the_same_weights() {
    let Some(python) = python() else { return };
    let weights = |seed: &str| {
        let (folder, program) =
            trace(&python, &["fixtures/models/cnn.py:DropoutCNN", "--input=1x1x28x28", "--seed", seed]);
        let storage = program.tensors[0].storage.clone().unwrap();
        let bytes = fs::read(folder.path().join("model.pt")).unwrap();
        bytes[storage.position.unwrap() as usize..][..storage.bytes as usize].to_vec()
    };
    let first = weights("3");
    assert_eq!(first, weights("3"));
}

#[test]
fn state_dicts_are_loaded() {
    let Some(python) = python() else { return };
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state.pt");
    let safe = folder.path().join("state.safetensors");
    let make = format!(
        "import sys; sys.path.insert(0, 'fixtures')\nimport torch, safetensors.torch\nfrom models.cnn import BasicCNN\n\
         state = {{k: torch.full_like(v, 7) for k, v in BasicCNN().state_dict().items()}}\n\
         torch.save(state, {state:?}); safetensors.torch.save_file(state, {safe:?})"
    );
    Command::new(needs::python().unwrap())
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .args(["-c", &make])
        .assert()
        .success();
    let safe = safe.to_str().unwrap();
    let (out, program) =
        trace(&python, &["fixtures/models/cnn.py:BasicCNN", "--input=1x3x32x32", "--state-dict", safe]);
    let storage = program.tensors[0].storage.clone().unwrap();
    let bytes = fs::read(out.path().join("model.pt")).unwrap();
    assert_eq!(bytes[storage.position.unwrap() as usize..][..4], 7f32.to_le_bytes());
    let state = state.to_str().unwrap();
    let message =
        refuse(&python, &["fixtures/models/cnn.py:DropoutCNN", "--input=1x1x28x28", "--state-dict", state]);
    assert!(message.starts_with(&format!(
        "error: loading {state}: RuntimeError: Error(s) in loading state_dict for DropoutCNN:"
    )));
}

#[test]
fn failures_show_pythons_reason() {
    let Some(python) = python() else { return };
    let check = |arguments: &[&str], expected: &[&str]| {
        let message = refuse(&python, arguments);
        for part in expected {
            assert!(message.contains(part), "{message}\nlacks {part}");
        }
        assert!(!message.contains("Traceback"), "{message}");
    };
    check(
        &["fixtures/models/cnn.py:BrokenShapes", "--input=2x3x8x8"],
        &[
            "error: running forward: RuntimeError: mat1 and mat2 shapes cannot be multiplied (2x144 and 7x2)",
            "in module head.1 (Linear)",
            "at fixtures/models/cnn.py:",
            "return self.head(self.features(x))",
            "hint: the shapes, dtypes and names of --input must match forward",
        ],
    );
    check(&["fixtures/models/cnn.py:BasicCN", "--input=1"], &["has no 'BasicCN'; did you mean BasicCNN?"]);
    check(
        &["fixtures/models/cnn.py:BasicCNN", "--arg=w=1", "--input=1"],
        &["building BasicCNN: TypeError", "--arg KEY=VALUE"],
    );
    check(
        &["no_such_package.models:Net", "--input=1"],
        &["ModuleNotFoundError: No module named 'no_such_package'"],
    );
}

#[test]
fn wrong_usage_is_refused_before_python_starts() {
    let check = |arguments: &[&str], expected: &str| {
        let message = refuse(Path::new("/no/such/python"), arguments);
        assert!(message.contains(expected), "{message}");
    };
    check(&["a:B", "--input=8x3xx4"], "error: --input 8x3xx4: a size is missing\n   ╭─[--input:1:5]");
    check(&["a:B", "--input=8:flaot32"], "`flaot32` is not a dtype");
    check(&["no_such_file.py:Net", "--input=1"], "no_such_file.py: no such file");
    check(&["a", "--input=8"], "target `a` does not name an object");
    check(&["a:B", "--input=x=8", "--input=8"], "an --input without a name follows one with a name");
    check(&["a:B", "--input=x=8", "--input=x=8"], "--input x is given twice");
    check(&["a:B", "--arg=8", "--input=8"], "--arg 8 is not KEY=VALUE");
    check(&["a:B", "--input=8", "--state-dict=none.pt"], "none.pt: no such file");
    check(&["a:B", "--input=8"], "error: cannot run /no/such/python: ");
}

#[test]
fn an_interpreter_without_torch_is_named() {
    let Ok(found) = std::process::Command::new("python3").args(["-c", "import torch"]).output() else {
        needs::skip(needs::Need::BarePython);
        return;
    };
    if found.status.success() {
        needs::skip(needs::Need::BarePython);
        return;
    }
    let message = refuse(Path::new("python3"), &["fixtures/models/cnn.py:BasicCNN", "--input=1"]);
    assert!(message.contains(" has no torch\n  hint: install it there ("), "{message}");
}

#[test]
fn the_answer_follows_its_schema() {
    let Some(python) = python() else { return };
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("model.pt");
    let run = command(&python)
        .args(["fixtures/models/cnn.py:BasicCNN", "--input", "2x3x32x32", "--format", "json", "-o"])
        .arg(&output)
        .assert()
        .success();
    let answer: serde_json::Value = serde_json::from_slice(&run.get_output().stdout).unwrap();
    validate("answer-trace", &answer);
    assert!(answer["operators"].as_u64().unwrap() > 5, "{answer}");
}

#[test]
fn what_is_recorded_is_what_the_archive_holds() {
    let Some(python) = python() else { return };
    let folder = tempfile::tempdir().unwrap();
    let (source, output) = (folder.path().join("halves.py"), folder.path().join("model.pt"));
    // What torch would simplify once it ran the trace, as its comparison does.
    let text = "import torch
class Half(torch.nn.Module):
    def forward(self, x):
        half = x.size(1) // 2
        return torch.cat([torch.cat([x[:, half:], x], 1), x[:, :half]], 1)
class Halves(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = Half(), Half()
    def forward(self, x):
        return self.second(self.first(x))
";
    fs::write(&source, text).unwrap();
    let run = command(&python)
        .arg(format!("{}:Halves", source.display()))
        .args(["--input", "2x8", "--format", "json", "-o"])
        .arg(&output)
        .assert()
        .success();
    let traced: serde_json::Value = serde_json::from_slice(&run.get_output().stdout).unwrap();
    let mut inspect = Command::new(env!("CARGO_BIN_EXE_model-analyze"));
    let run = inspect.args(["inspect", "--format", "json"]).arg(&output).assert().success();
    let inspected: serde_json::Value = serde_json::from_slice(&run.get_output().stdout).unwrap();
    assert_eq!(traced["operators"], inspected["totals"]["operators"]);
    let recorded = read_archive(&fs::read(&output).unwrap()).unwrap().recorded.unwrap();
    let cats = recorded.nodes.iter().filter(|node| node.operator == "aten::cat");
    let shapes: Vec<_> =
        cats.map(|node| node.outputs[0].as_ref().and_then(|type_| type_.shape.clone())).collect();
    assert_eq!(shapes, [12, 16, 24, 32].map(|width| Some(vec![2, width])));
}

#[test]
fn checkpoints_are_left_out_and_functions_of_python_named() {
    let Some(python) = python() else { return };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("kept.py");
    let code = "
import torch
from torch.utils.checkpoint import checkpoint


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)

    def forward(self, x):
        return checkpoint(self.b, checkpoint(self.a, x, use_reentrant=False), use_reentrant=True)


class Square(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        context.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(context, gradient):
        return 3 * gradient * context.saved_tensors[0]


class Custom(Net):
    def forward(self, x):
        return self.b(Square.apply(self.a(x)))
";
    fs::write(&file, code).unwrap();
    let target = |name: &str| format!("{}:{name}", file.display());
    let (_, program) = trace(&python, &[&target("Net"), "--input=2x8", "--train"]);
    let operators: Vec<&str> = program.nodes.iter().map(|node| node.operator.as_str()).collect();
    assert_eq!(operators, ["aten::linear", "aten::linear"]);
    let message = refuse(&python, &[&target("Custom"), "--input=2x8"]);
    assert!(
        message.contains("forward calls Square") && message.contains("torch.autograd.Function"),
        "{message}"
    );
    assert!(!message.contains("@script"), "{message}");
}

#[test]
fn exported_methods_are_left_out() {
    let Some(python) = python() else { return };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("exported.py");
    // A module that is called in `forward` is traced there, so that no script can call it.
    let code = "
import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = torch.nn.GRU(4, 4, batch_first=True)

    def forward(self, x):
        return self.cell(x)[0]

    @torch.jit.export
    def sampled(self, x):
        return self.cell(x)[0].argmax(-1)
";
    fs::write(&file, code).unwrap();
    let (_, program) = trace(&python, &[&format!("{}:Net", file.display()), "--input=2x3x4"]);
    assert!(program.nodes.iter().any(|node| node.operator == "aten::gru"));
}

/// Models that a trace may fix more of than it should.
const FIXED: &str = "fixtures/models/fixed.py";

/// Runs a command that may say something beside, and returns what it says and the program.
fn trace_aloud(python: &Path, arguments: &[&str]) -> (TempDir, Program, String) {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("model.pt");
    let assert = command(python).args(arguments).arg("-o").arg(&output).assert().success();
    let said = String::from_utf8(assert.get_output().stderr.clone()).unwrap();
    let program = read_archive(&fs::read(&output).unwrap()).unwrap();
    (folder, program, said)
}

#[test]
fn a_trace_that_is_another_model_is_refused_by_its_statement() {
    let Some(python) = python() else { return };
    let check = |model: &str, inputs: &[&str], statement: &str, expected: &str| {
        let target = format!("{FIXED}:{model}");
        let said = refuse(&python, &[&[target.as_str()], inputs].concat());
        assert!(
            said.starts_with("error: the trace is not the model: on another input of the same sizes "),
            "{said}"
        );
        let line = line_of(statement);
        assert!(said.contains(&format!("{FIXED}:{line}: {expected}")), "{said}");
        assert!(said.contains("--no-check writes the archive as it is"), "{said}");
    };
    let truth = "a tensor is converted to a bool; the trace keeps its value, and so the branch";
    let number = "a tensor is converted to a number; the trace keeps its value";
    check("Branch", &["--input=4x8"], "if x.mean() > 0:", truth);
    check("Loop", &["--input=4x8", "--input=scalar:int64:1..5"], "range(int(n))", number);
    check("Scale", &["--input=4x8"], "float(x.norm())", number);
    check("Constants", &["--input=4x8"], "torch.tensor([x[0, 0], 1.0])", number);
    check("Written", &["--input=4x8"], "if sums[0] > 0", truth);
    check("WrittenLater", &["--input=4x8"], "if sums.max() > 0", truth);
    check("Compared", &["--input=4x8"], "torch.equal(x, x.abs())", "tensors are compared as a whole");
    check("Experts", &["--input=2x16:int64"], ".tolist()", "a tensor is converted to a list");
    check("Lengths", &["--input=4x8"], "x / len(rows)", "the length of a tensor depends on data");
    check("Skips", &["--input=6x8"], "rows.numel() == 0", truth);
    check("Ragged", &["--input=9x8", "--input=9:int64:0..30"], "int(at.max())", number);
}

/// Returns the only line of the models that has a text.
fn line_of(text: &str) -> usize {
    let source = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(FIXED)).unwrap();
    let found: Vec<usize> = source
        .lines()
        .enumerate()
        .filter(|(_, line)| line.contains(text))
        .map(|(index, _)| index + 1)
        .collect();
    assert_eq!(found.len(), 1, "{text}");
    found[0]
}

#[test]
fn how_a_difference_looks() {
    let Some(python) = python() else { return };
    let said = refuse(&python, &[&format!("{FIXED}:Lengths"), "--input=4x8"]);
    let (first, rest) = said.split_once('\n').unwrap();
    assert!(
        first.starts_with(
            "error: the trace is not the model: on another input of the same sizes the output differs in 32 of 32 numbers, by up to "
        ),
        "{said}"
    );
    let line = line_of("x / len(rows)");
    assert_eq!(
        rest,
        format!(
            "  {FIXED}:{line}: the length of a tensor depends on data; the trace keeps that length\n  \
             {FIXED}:{line}: a tensor is converted to a number; the trace keeps its value\n  \
             hint: choose with torch.where, masks or index_add instead of Python's if and numbers; --no-check writes the archive as it is\n"
        )
    );
    let said = refuse(&python, &[&format!("{FIXED}:Counter"), "--input=4x8"]);
    assert_eq!(
        said,
        "error: the trace is not the model: the model's results vary between runs, even with fixed random numbers and buffers\n  \
         hint: forward may keep numbers from one call to the next, or compute outside torch; --no-check writes the archive as it is\n"
    );
}

#[test]
fn notes_travel_in_the_archive() {
    let Some(python) = python() else { return };
    let check = |arguments: &[&str], told: &[String], repeated: &[String]| {
        let (folder, _, said) = trace_aloud(&python, arguments);
        let lines = |lines: &[String]| lines.iter().map(|line| format!("note: {line}\n")).collect::<String>();
        assert_eq!(said, lines(told));
        for command in [&["inspect"][..], &["graph"], &["split", "--devices=2xt4", "--dry-run"]] {
            let mut run = Command::new(env!("CARGO_BIN_EXE_model-analyze"));
            let output =
                run.args(command).arg(folder.path().join("model.pt")).env("NO_COLOR", "1").output().unwrap();
            let said = String::from_utf8(output.stderr).unwrap();
            assert!(said.starts_with(&lines(repeated)), "{command:?}: {said}");
        }
        let mut run = Command::new(env!("CARGO_BIN_EXE_model-analyze"));
        let output =
            run.args(["inspect", "--format=json"]).arg(folder.path().join("model.pt")).output().unwrap();
        let answer: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        validate("answer-inspect", &answer);
    };
    let truth = "a tensor is converted to a bool; the trace keeps its value, and so the branch";
    let place = format!("{FIXED}:{}", line_of("if torch.isnan(x).any():"));
    check(
        &[&format!("{FIXED}:Guard"), "--input=4x8"],
        &[format!("{place}: {truth}")],
        &[format!(
            "the trace contains only one outcome of a statement that depends on data: {place}: {truth}"
        )],
    );
    let place = format!("{FIXED}:{}", line_of("if x.mean() > 0:"));
    let unchecked = "the trace was not compared with the model on a second input (--no-check)".to_owned();
    let unread = "no operator reads 72 of 144 parameters with these inputs: a".to_owned();
    check(
        &[&format!("{FIXED}:Branch"), "--input=4x8", "--no-check"],
        &[format!("{place}: {truth}"), unread.clone(), unchecked.clone()],
        &[
            format!(
                "the trace contains only one outcome of a statement that depends on data: {place}: {truth}"
            ),
            unread,
            unchecked,
        ],
    );
    let drawn =
        "forward draws random numbers with Python's random; the trace keeps those that were drawn".to_owned();
    // Which layers are left out is chance, too, and told in a second line.
    let (_, _, said) = trace_aloud(&python, &[&format!("{FIXED}:Chance"), "--input=4x8", "--train"]);
    assert!(said.starts_with(&format!("note: {drawn}\n")), "{said}");
}

#[test]
fn what_only_reads_sizes_is_not_noted() {
    let Some(python) = python() else { return };
    // `trace` asserts that nothing is said.
    let (_, program) = trace(&python, &[&format!("{FIXED}:Sizes"), "--input=4x8"]);
    assert_eq!(program.recorded.unwrap().comparison, tracer::Comparison::Same);
}

#[test]
fn attention_in_eval_mode_is_traced_with_the_comparison() {
    let Some(python) = python() else { return };
    for (model, inputs) in [
        ("encoder", &["--input=2x5x32"][..]),
        ("Attention", &["--input=2x5x32"]),
        ("transformer", &["--input=2x5x32", "--input=2x3x32"]),
    ] {
        let target = format!("{FIXED}:{model}");
        let (_, program) = trace(&python, &[&[target.as_str()], inputs].concat());
        assert_eq!(program.recorded.unwrap().comparison, tracer::Comparison::Same);
        assert!(program.nodes.iter().all(|node| !node.operator.contains("_native_multi_head_attention")));
    }
}

#[test]
fn chance_and_buffers_are_fixed_while_traces_are_compared() {
    let Some(python) = python() else { return };
    let (_, program, said) = trace_aloud(&python, &[&format!("{FIXED}:Noise"), "--input=4x8", "--train"]);
    assert_eq!(said, "note: the archive draws random numbers in another order than the model\n");
    assert_eq!(program.recorded.as_ref().unwrap().comparison, tracer::Comparison::Same);

    let (folder, program, said) =
        trace_aloud(&python, &[&format!("{FIXED}:Average"), "--input=4x8", "--train"]);
    assert_eq!(
        said,
        "note: forward replaces replaced, which no trace can record: the archive keeps the old values\n"
    );
    let bytes = fs::read(folder.path().join("model.pt")).unwrap();
    for name in ["kept", "replaced"] {
        let tensor = program.tensors.iter().find(|tensor| tensor.path == name).unwrap();
        let start = tensor.first_byte().unwrap() as usize;
        assert_eq!(bytes[start..start + 32], [0; 32], "{name} is not as it was built");
        assert!(!tensor.requires_grad, "{name}");
    }

    let (_, program, said) = trace_aloud(&python, &[&format!("{FIXED}:Resizes"), "--input=4x8"]);
    assert_eq!(
        said,
        "note: buffers whose size is set by forward are kept as its first call left them: seen\n"
    );
    assert!(program.tensors.iter().any(|tensor| tensor.path == "seen" && tensor.shape == [8]));
}

#[test]
fn a_model_that_takes_no_other_input_is_said_to_be_unchecked() {
    let Some(python) = python() else { return };
    let (_, program, said) = trace_aloud(&python, &[&format!("{FIXED}:Picky"), "--input=4x8"]);
    let reason = "the model refuses other values (ValueError: other numbers)";
    assert!(said.contains(&format!("not compared with the model on a second input ({reason})")), "{said}");
    assert_eq!(program.recorded.unwrap().comparison, tracer::Comparison::Skipped(reason.to_owned()));
}

#[test]
fn compiled_models_are_traced_as_they_were_written() {
    let Some(python) = python() else { return };
    let (_, program) = trace(&python, &[&format!("{FIXED}:compiled"), "--input=4x8"]);
    let names: Vec<&str> = program.tensors.iter().map(|tensor| tensor.path.as_str()).collect();
    assert_eq!(names, ["part.0.weight", "part.0.bias", "inside.weight", "inside.bias"]);
    let operators: Vec<&str> = program.nodes.iter().map(|node| node.operator.as_str()).collect();
    assert_eq!(operators, ["aten::linear", "aten::relu", "aten::linear", "aten::sin"]);
}

#[test]
fn functions_of_python_are_drawn_and_planned_but_not_cut() {
    let Some(python) = python() else { return };
    let target = format!("{FIXED}:Custom");
    let said = refuse(&python, &[&target, "--input=4x8"]);
    assert!(said.contains("forward calls Swish") && said.contains("--inline-functions"), "{said}");
    let (folder, program, said) = trace_aloud(&python, &[&target, "--input=4x8", "--inline-functions"]);
    let marked = "traced with --inline-functions: Swish run as their forward passes, with torch's gradients";
    assert_eq!(said, format!("note: {marked}\n"));
    assert_eq!(program.recorded.unwrap().inlined_functions, ["Swish"]);
    let run = |arguments: &[&str]| {
        let mut run = Command::new(env!("CARGO_BIN_EXE_model-analyze"));
        let output = run.current_dir(folder.path()).env("NO_COLOR", "1").args(arguments).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    for arguments in [
        &["inspect", "model.pt"][..],
        &["graph", "model.pt"],
        &["plan", "model.pt", "--devices=2xt4", "--stages=2"],
    ] {
        let (code, said) = run(arguments);
        assert_eq!(code, Some(0), "{arguments:?}: {said}");
        assert!(said.contains(marked), "{said}");
    }
    for arguments in [
        &["split", "model.pt", "--devices=2xt4", "--stages=2", "-o", "out"][..],
        &["emit", "model.pt", "--stages=2", "-o", "out"],
    ] {
        let (code, said) = run(arguments);
        assert_eq!(code, Some(2), "{arguments:?}: {said}");
        assert!(said.contains("stages would not train with the gradients of Swish"), "{said}");
        assert!(!folder.path().join("out").exists());
    }
}

#[test]
fn what_ends_torchs_tracer_is_refused_in_one_line() {
    let Some(python) = python() else { return };
    let said = refuse(&python, &[&format!("{FIXED}:Mapped"), "--input=300x8"]);
    assert!(
        said.starts_with("error: forward calls torch.vmap, which torch's tracer cannot follow"),
        "{said}"
    );
    assert_eq!(said.lines().count(), 1, "{said}");
}

/// torch writes names into archives as code, and escapes only some.
#[test]
fn names_that_torch_could_not_read_again_are_refused() {
    let Some(python) = python() else { return };
    let target = format!("{FIXED}:Named");
    for name in ["torch", "größe"] {
        let said = refuse(&python, &[&target, "--input=4x8", &format!("--arg=name={name}")]);
        let start = "error: torch could not load the archive: it writes the name of 'layers.";
        assert!(said.starts_with(start) && said.contains(&format!("in which '{name}' is no name")), "{said}");
    }
    let (_, _, said) = trace_aloud(&python, &[&target, "--input=4x8", "--arg=name=lambda-x"]);
    assert_eq!(said, "");
}

/// What `torch.vmap` maps is traced row by row, and the archive is compared with the model, which does map it.
#[test]
fn what_is_mapped_is_written_out() {
    let Some(python) = python() else { return };
    let (_, program, said) = trace_aloud(&python, &[&format!("{FIXED}:Mapped"), "--input=4x8"]);
    assert_eq!(said, "");
    assert_eq!(program.nodes.iter().filter(|node| node.operator == "aten::sum").count(), 4);
    let (_, program, said) = trace_aloud(&python, &[&format!("{FIXED}:Members"), "--input=4x8"]);
    assert_eq!(said, "");
    let recorded = program.recorded.unwrap();
    assert_eq!(recorded.comparison, tracer::Comparison::Same);
    let matrices = program.nodes.iter().filter(|node| node.operator == "aten::matmul").count();
    assert_eq!(matrices, 3);
}

/// Regions without gradients stay so: the archive trains the parameters that the model trains.
#[test]
fn what_runs_without_gradients_has_none() {
    let Some(python) = python() else { return };
    let (folder, _, said) =
        trace_aloud(&python, &[&format!("{FIXED}:Frozen"), "--input=4x8", "--train", "--seed=3"]);
    assert_eq!(said, "");
    let script = format!(
        "import torch, sys; sys.path.insert(0, 'fixtures/models'); import fixed\n\
         torch.manual_seed(3); live, x = fixed.Frozen(), torch.randn(4, 8)\n\
         archive = torch.jit.load({:?})\n\
         archive.load_state_dict(live.state_dict())\n\
         [model(x).square().sum().backward() for model in (live, archive)]\n\
         pairs = list(zip(live.named_parameters(), archive.named_parameters(), strict=True))\n\
         print([name for (name, a), (other, b) in pairs if name != other or (a.grad is None) != (b.grad is None)\n\
         or a.grad is not None and not torch.equal(a.grad, b.grad)], sum(a.grad is None for (_, a), _ in pairs))",
        folder.path().join("model.pt")
    );
    let output = std::process::Command::new(needs::python().unwrap())
        .args(["-W", "ignore", "-c", &script])
        .output()
        .unwrap();
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "[] 2\n",
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}
