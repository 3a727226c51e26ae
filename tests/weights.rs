//! Models traced without their weights, and checkpoints that hold them.

#![allow(clippy::unwrap_used, clippy::print_stdout, missing_docs)]

use std::{
    collections::BTreeMap,
    fs,
    io::{Read, Write},
    path::{Path, PathBuf},
};

use assert_cmd::Command;
use needs::python;
use tempfile::TempDir;
use warm::warm;
use zip::{CompressionMethod, ZipArchive, ZipWriter, write::SimpleFileOptions};

mod needs;
mod warm;

fn command() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_model-analyze"));
    command.current_dir(env!("CARGO_MANIFEST_DIR")).env("NO_COLOR", "1").env("OMP_NUM_THREADS", "1");
    command
}

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/traces").join(name)
}

/// Writes a trace again as if its parameters had had no numbers.
fn without_weights(trace: &Path, folder: &Path) -> PathBuf {
    let program = tracer::read_archive(&fs::read(trace).unwrap()).unwrap();
    let parameters = program.tensors.iter().filter(|tensor| tensor.role == tracer::Role::Parameter);
    let absent: Vec<&str> = parameters.map(|tensor| tensor.path.as_str()).collect();
    let path = folder.join(trace.file_name().unwrap());
    let mut archive = ZipArchive::new(fs::File::open(trace).unwrap()).unwrap();
    let mut writer = ZipWriter::new(fs::File::create(&path).unwrap());
    for index in 0..archive.len() {
        let mut record = archive.by_index(index).unwrap();
        let mut bytes = Vec::new();
        record.read_to_end(&mut bytes).unwrap();
        if record.name().ends_with("extra/model_analyze.json") {
            let mut json: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
            json["absent"] = serde_json::to_value(&absent).unwrap();
            bytes = serde_json::to_vec(&json).unwrap();
        }
        let options = SimpleFileOptions::default().compression_method(CompressionMethod::Stored);
        writer.start_file(record.name(), options).unwrap();
        writer.write_all(&bytes).unwrap();
    }
    writer.finish().unwrap();
    path
}

fn refuse(arguments: &[&str]) -> String {
    let output = command().args(arguments).assert().code(2).stdout("").get_output().stderr.clone();
    String::from_utf8(output).unwrap()
}

/// Everything that lies in a folder of stages, but for what names the files it was made of.
fn stages(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let files = fs::read_dir(folder.join("stages")).unwrap().map(|entry| entry.unwrap());
    let files = files.map(|file| (file.file_name().into_string().unwrap(), fs::read(file.path()).unwrap()));
    files.filter(|(name, _)| name != "manifest.json").collect()
}

fn emit(model: &Path, weights: Option<&Path>, out: &Path) -> String {
    let mut emit = command();
    emit.arg("emit").arg(model).args(["--stages", "2", "-o"]).arg(out);
    if let Some(weights) = weights {
        emit.arg("--weights").arg(weights);
    }
    String::from_utf8(emit.assert().success().get_output().stderr.clone()).unwrap()
}

#[test]
fn stages_with_weights_of_a_checkpoint_are_those_of_the_whole_trace() {
    for name in ["gpt2_tiny.pt", "unet_small.pt", "lstm_seq2seq_small.pt"] {
        let folder = tempfile::tempdir().unwrap();
        let (whole, out) = (folder.path().join("whole"), folder.path().join("out"));
        let weightless = without_weights(&fixture(name), folder.path());
        emit(&fixture(name), None, &whole);
        let expected = stages(&whole);
        // The trace with its weights will do as a checkpoint of them.
        assert_eq!(emit(&weightless, Some(&fixture(name)), &out), "", "{name}");
        assert_eq!(stages(&out), expected, "{name}");
        // The stages' own weights are a checkpoint in parts, without the second names of tied parameters.
        let parts = folder.path().join("parts");
        fs::create_dir(&parts).unwrap();
        let mut map = serde_json::Map::new();
        let program = tracer::read_archive(&fs::read(&weightless).unwrap()).unwrap();
        let is_known = |name: &str| program.tensors.iter().any(|tensor| tensor.path == name);
        for stage in ["stage_0.safetensors", "stage_1.safetensors"] {
            let bytes = fs::read(whole.join("stages").join(stage)).unwrap();
            // The constants of the code lie beside the model's tensors.
            let tensors = tracer::read_tensors(&bytes).unwrap().into_iter();
            for tensor in tensors.filter(|tensor| is_known(&tensor.path)) {
                map.insert(tensor.path, stage.into());
            }
            fs::write(parts.join(stage), bytes).unwrap();
        }
        let index = parts.join("model.safetensors.index.json");
        fs::write(&index, serde_json::json!({ "weight_map": map }).to_string()).unwrap();
        for checkpoint in [&parts, &index] {
            let out = tempfile::tempdir().unwrap();
            assert_eq!(emit(&weightless, Some(checkpoint), out.path()), "", "{name}");
            assert_eq!(stages(out.path()), expected, "{name} from {}", checkpoint.display());
        }
    }
}

#[test]
fn a_plan_needs_no_weights_and_stages_do() {
    let folder = tempfile::tempdir().unwrap();
    let weightless = without_weights(&fixture("gpt2_tiny.pt"), folder.path());
    let model = weightless.to_str().unwrap();
    let inspect = |model: &str| {
        command().args(["inspect", model, "--format", "json"]).assert().success().get_output().stdout.clone()
    };
    assert_eq!(inspect(model), inspect(fixture("gpt2_tiny.pt").to_str().unwrap()));
    let plan = folder.path().join("plan.yaml");
    command().args(["plan", model, "--devices", "2xt4", "-o"]).arg(&plan).assert().success();
    let out = folder.path().join("out");
    let out = out.to_str().unwrap();
    for arguments in [
        &["emit", model, plan.to_str().unwrap(), "-o", out][..],
        &["split", model, "--devices", "2xt4", "-o", out],
    ] {
        let said = refuse(arguments);
        assert!(said.contains(&format!("error: {model} was traced without its weights\n")), "{said}");
        assert!(said.contains("hint: name the checkpoint that holds them: --weights"), "{said}");
        assert!(!Path::new(out).exists());
    }
    command().args(["split", model, "--devices", "2xt4", "--dry-run"]).assert().success();
    let said = refuse(&["emit", model, "--stages", "2", "--weights", model, "-o", out]);
    assert!(said.contains("hint: --weights needs a file that has them"), "{said}");
    let weights = fixture("gpt2_tiny.pt");
    let arguments = ["split", model, "--devices", "2xt4", "--stages", "2", "-o", out, "--weights"];
    command().args(arguments).arg(&weights).assert().success();
    let manifest: serde_json::Value =
        serde_json::from_slice(&fs::read(Path::new(out).join("stages/manifest.json")).unwrap()).unwrap();
    assert_eq!(manifest["weights"], weights.canonicalize().unwrap().to_str().unwrap());
    // A form that is not wanted takes no disk.
    let arguments =
        ["split", model, "--devices", "2xt4", "--stages", "2", "--force", "-o", out, "--targets=python"];
    command().args(arguments).arg("--weights").arg(&weights).assert().success();
    let files: Vec<String> = stages(Path::new(out)).into_keys().collect();
    assert_eq!(files, ["stage_0.py", "stage_0.safetensors", "stage_1.py", "stage_1.safetensors"]);
}

#[test]
fn checkpoints_that_do_not_fit_say_why() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_string();
    let weightless = without_weights(&fixture("gpt2_tiny.pt"), folder.path());
    let model = weightless.to_str().unwrap();
    let said = |checkpoint: &str| {
        refuse(&["emit", model, "--stages", "2", "--weights", checkpoint, "-o", &at("out")])
    };
    let other = fixture("bert_tiny.pt");
    let message = said(other.to_str().unwrap());
    assert!(message.contains("does not hold the weights of this model\n"), "{message}");
    assert!(message.contains("is not in the checkpoint"), "{message}");
    assert!(message.lines().count() < 14, "{message}");

    let write = |name: &str, text: &str| fs::write(at(name), text).unwrap();
    write("no.index.json", "{}");
    assert!(said(&at("no.index.json")).contains("there is no `weight_map`"));
    write("away.index.json", r#"{"weight_map": {"a": "../secret"}}"#);
    assert!(said(&at("away.index.json")).contains("`../secret` is not a file in its folder"));
    write("lost.index.json", r#"{"weight_map": {"a": "lost.safetensors"}}"#);
    assert!(said(&at("lost.index.json")).contains("lost.safetensors: No such file"));
    fs::create_dir(at("empty")).unwrap();
    assert!(said(&at("empty")).contains("empty holds no weights\n"));
    assert!(said(&at("nowhere")).contains("nowhere: No such file"));
    write("damaged.safetensors", "\u{8}\0\0\0\0\0\0\0{\"a\": 1}and more");
    assert!(
        said(&at("damaged.safetensors")).contains("damaged.safetensors: "),
        "{}",
        said(&at("damaged.safetensors"))
    );
    assert!(!Path::new(&at("out")).exists());
}

#[test]
fn sizes_of_a_trace_in_text_come_from_safetensors_too() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    command()
        .arg("emit")
        .arg(fixture("cnn_basic.pt"))
        .args(["--stages", "1", "-o"])
        .arg(&out)
        .assert()
        .success();
    let weights = out.join("stages/stage_0.safetensors");
    let text = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/ir/cnn_basic.inlined.txt");
    let parameters = |arguments: &[&str]| {
        let inspect =
            command().arg("inspect").arg(&text).args(["--format", "json"]).args(arguments).assert().success();
        let answer: serde_json::Value = serde_json::from_slice(&inspect.get_output().stdout).unwrap();
        answer["totals"]["parameters"].as_u64().unwrap()
    };
    let whole = tracer::read_archive(&fs::read(fixture("cnn_basic.pt")).unwrap()).unwrap();
    let expected = whole.tensors.iter().filter(|tensor| tensor.role == tracer::Role::Parameter);
    let expected: u64 = expected.map(|tensor| tensor.shape.iter().product::<u64>()).sum();
    assert_eq!(parameters(&["--parameters", weights.to_str().unwrap()]), expected);
}

fn trace(python: &Path, arguments: &[&str], name: &str) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join(name);
    let mut trace = command();
    trace.env("MODEL_ANALYZE_PYTHON", warm(python, &[])).arg("trace").args(arguments).arg("-o").arg(&output);
    trace.assert().success();
    (folder, output)
}

const LARGE: &str = "
import torch
from torch import nn

class Large(nn.Module):
    '''Matrices, words, a router, experts in one tensor, tied words, a buffer made of a parameter, a recurrent layer.'''

    def __init__(self, width=1024):
        super().__init__()
        self.words = nn.Embedding(2000, width)
        self.norm = nn.LayerNorm(width)
        self.router = nn.Linear(width, 4, bias=False)
        self.experts = nn.Parameter(torch.randn(4, width, width) * 0.02)
        self.mix = nn.GRU(width, 64, batch_first=True)
        self.narrow = nn.utils.parametrizations.weight_norm(nn.Linear(64, width))
        self.head = nn.Linear(width, 2000, bias=False)
        self.head.weight = self.words.weight
        self.register_buffer('average', self.norm.weight.detach().clone())
        self.register_buffer('turns', torch.arange(width, dtype=torch.float32), persistent=False)

    def forward(self, ids):
        x = self.norm(self.words(ids)) * self.average + self.turns
        weights, chosen = self.router(x).topk(2)
        part = torch.einsum('bsw,ewv->bsev', x, self.experts.view(4, x.shape[-1], -1))
        x = x + (part.gather(2, chosen[..., None].expand(-1, -1, -1, part.shape[-1])) * weights[..., None]).sum(2)
        return self.head(x + self.narrow(self.mix(x)[0]))
";

#[test]
fn a_model_traced_without_weights_is_the_same_model() {
    let Some(python) = python() else { return };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("large.py");
    fs::write(&file, LARGE).unwrap();
    let target = format!("{}:Large", file.display());
    let arguments = [target.as_str(), "--input=2x5:int64"];
    let (_whole_folder, whole) = trace(&python, &arguments, "model.pt");
    let (_folder, weightless) = trace(&python, &[&arguments[..], &["--no-weights"]].concat(), "model.pt");
    assert!(fs::metadata(&weightless).unwrap().len() < 4 << 20);
    let read = |path: &Path| tracer::read_archive(&fs::read(path).unwrap()).unwrap();
    let (one, other) = (read(&whole), read(&weightless));
    assert_eq!(tracer::digest(&one), tracer::digest(&other));
    assert_eq!(one.recorded.as_ref().unwrap().nodes, other.recorded.as_ref().unwrap().nodes);
    for (one, other) in one.tensors.iter().zip(&other.tensors) {
        assert_eq!((&one.path, &one.strides), (&other.path, &other.strides));
        let (one, other) = (one.storage.as_ref().unwrap(), other.storage.as_ref().unwrap());
        assert_eq!(one.bytes, other.bytes);
    }
    let absent = other.tensors.iter().filter(|tensor| tensor.first_byte().is_none());
    let absent: Vec<&str> = absent.map(|tensor| tensor.path.as_str()).collect();
    assert!(
        absent.contains(&"experts") && absent.contains(&"average") && !absent.contains(&"turns"),
        "{absent:?}"
    );

    // What torch itself writes of the weights makes the same stages as the trace that holds them.
    let checkpoint = folder.path().join("state.bin");
    let save = format!("import torch; torch.save(torch.jit.load({whole:?}).state_dict(), {checkpoint:?})");
    Command::new(&python).args(["-c", &save]).assert().success();
    let (expected, out) = (folder.path().join("expected"), folder.path().join("out"));
    emit(&whole, None, &expected);
    emit(&weightless, Some(&checkpoint), &out);
    assert_eq!(stages(&out), stages(&expected));
    if cfg!(feature = "torch") {
        let verify =
            command().arg("verify").arg(&out).args(["--steps", "2", "--format", "json"]).assert().success();
        let answer: serde_json::Value = serde_json::from_slice(&verify.get_output().stdout).unwrap();
        assert_eq!(answer["outputs_max_difference"], 0.0);
        assert!(answer["gradients_compared"].as_u64().unwrap() >= 10, "{answer}");
    }
}

const NEEDS_WEIGHTS: &str = "
import torch
from torch import nn

class Reads(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.scale = self.layer.weight.abs().max().item()

    def forward(self, x):
        return self.layer(x) * self.scale

class Keeps(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.half = self.layer.weight.detach() / 2

    def forward(self, x):
        return self.layer(x) @ self.half

class Lazy(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.LazyLinear(4)

    def forward(self, x):
        return self.layer(x)
";

#[test]
fn models_that_need_their_weights_say_so() {
    let Some(python) = python() else { return };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("needs.py");
    fs::write(&file, NEEDS_WEIGHTS).unwrap();
    let output = folder.path().join("model.pt");
    for (class, expected) in [
        ("Reads", "hint: with --no-weights, parameters have no values while the model is built"),
        ("Keeps", "error: forward uses a tensor that was computed from weights when the model was built"),
        ("Lazy", "error: layer.weight has no size before the model runs; trace it with its weights"),
    ] {
        let mut trace = command();
        trace
            .env("MODEL_ANALYZE_PYTHON", warm(&python, &[]))
            .arg("trace")
            .arg(format!("{}:{class}", file.display()));
        let failed = trace.args(["--input=2x4", "--no-weights", "-o"]).arg(&output).assert().code(2);
        let said = String::from_utf8(failed.get_output().stderr.clone()).unwrap();
        assert!(said.contains(expected), "{class}: {said}");
        assert!(!output.exists());
    }
}

#[test]
fn weights_are_made_in_the_type_that_is_asked_for() {
    let Some(python) = python() else { return };
    let arguments =
        ["fixtures/models/cnn.py:BasicCNN", "--input=2x3x32x32:bfloat16", "--no-weights", "--dtype=bfloat16"];
    let (folder, model) = trace(&python, &arguments, "cnn.pt");
    let program = tracer::read_archive(&fs::read(&model).unwrap()).unwrap();
    let parameters = program.tensors.iter().filter(|tensor| tensor.role == tracer::Role::Parameter);
    assert!(parameters.clone().count() > 3);
    assert!(parameters.clone().all(|tensor| tensor.dtype == tracer::DType::BFloat16));
    let (_folder, wide) = trace(
        &python,
        &arguments[..1].iter().copied().chain(["--input=2x3x32x32"]).collect::<Vec<_>>(),
        "cnn.pt",
    );
    let out = folder.path().join("out");
    let said = refuse(&[
        "emit",
        model.to_str().unwrap(),
        "--stages",
        "2",
        "--weights",
        wide.to_str().unwrap(),
        "-o",
        out.to_str().unwrap(),
    ]);
    assert!(said.contains("is bfloat16 in the model and float32 in the checkpoint"), "{said}");
    assert!(
        said.contains("hint: trace the model with the type of its weights: trace --dtype float32"),
        "{said}"
    );
}
