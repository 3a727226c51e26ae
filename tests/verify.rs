//! `verify` as a user types it: both forms of the stages, and damage of each kind that it must find.
//!
//! Files are tied to their folder by checksums, which find damage first; here the manifest forgets them, so that the comparison
//! itself is put to the test.

#![cfg(feature = "torch")]
#![allow(clippy::unwrap_used, clippy::print_stdout, missing_docs)]

mod validate;

use std::{
    fs,
    io::{Read, Write},
    path::{Path, PathBuf},
    process::Output,
};

use assert_cmd::Command;
use needs::python;
use serde_json::Value;
use warm::warm;

mod needs;
mod warm;

const MODELS: &str = "
import torch
from torch import nn

class ZeroHead(nn.Module):
    '''A head of zeros behind a layer norm: neither lets a sum of squares say anything about what lies before.'''
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(50, 16)
        self.a = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))
        self.b = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 16))
        self.norm = nn.LayerNorm(16)
        self.head = nn.Linear(16, 50)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
    def forward(self, ids):
        x = self.words(ids)
        return self.head(self.norm(x + self.b(x + self.a(x))))

class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.norm = nn.Linear(8, 8), nn.Linear(8, 8), nn.LayerNorm(8, elementwise_affine=False)
    def forward(self, x):
        return self.norm(self.b(torch.relu(self.a(x))))

class Waves(nn.Module):
    '''Complex numbers on the way, and among the parameters.'''
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)
        self.w, self.m = (nn.Parameter(torch.randn(*sizes, dtype=torch.cfloat)) for sizes in ((5,), (5, 5)))
    def forward(self, x):
        waves = torch.fft.rfft(self.a(x)) * self.w * 1j
        return self.b(torch.fft.irfft(waves @ self.m + torch.ones(5, dtype=torch.cfloat), n=8))

class Slope(nn.Module):
    def __init__(self, slope):
        super().__init__()
        self.inner, self.outer, self.slope = nn.Linear(8, 16), nn.Linear(16, 8), slope
    def forward(self, x):
        return x + self.outer(nn.functional.leaky_relu(self.inner(x), self.slope))

class Slopes(nn.Module):
    '''Blocks of one class of which two differ by a number, and one is called twice.'''
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Slope(slope) for slope in (0.1, 0.1, 0.3, 0.3)])
    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.layers[1](x)

class Scaled(nn.Module):
    '''Numbers of Python beside whole numbers, numbers without dimensions and half precision.'''
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)
    def forward(self, x):
        x = self.a(x * 0.5 + 1)
        return self.b(torch.relu(x)) * x.mean().half() * 0.3, x.sum().to(torch.int8) * 3, (x > 0) + 2

class Lengths(nn.Module):
    '''Lengths that must be between 1 and 6.'''
    def __init__(self):
        super().__init__()
        self.words, self.mix, self.head = nn.Embedding(40, 8), nn.LSTM(8, 8, batch_first=True), nn.Linear(8, 40)
    def forward(self, ids, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(self.words(ids), lengths, batch_first=True, enforce_sorted=False)
        return self.head(nn.utils.rnn.pad_packed_sequence(self.mix(packed)[0], batch_first=True, total_length=6)[0])

class Sparse(nn.Module):
    '''Gradients that hold the rows that were looked up.'''
    def __init__(self):
        super().__init__()
        self.words, self.bag = nn.Embedding(30, 8, sparse=True), nn.EmbeddingBag(30, 8, sparse=True)
        self.body, self.head = nn.Linear(8, 8), nn.Linear(8, 5)
    def forward(self, ids):
        return self.head(torch.tanh(self.body(self.words(ids) + self.bag(ids)[:, None])))

class Written(nn.Module):
    '''Writes to its input, which it reads again at the end.'''
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)
    def forward(self, x):
        x.mul_(2)
        return self.b(torch.relu(self.a(x))) + x

class Overlapped(nn.Module):
    '''A matrix whose first rows are another layer's, and one that is another layer's buffer.'''
    def __init__(self):
        super().__init__()
        self.wide, self.part, self.out, self.last = nn.Linear(8, 16), nn.Linear(8, 8), nn.Linear(16, 8), nn.Linear(8, 8)
        self.part.weight = nn.Parameter(self.wide.weight.data[:8])
        self.part.register_buffer('kept', self.last.weight.data)
    def forward(self, x):
        return self.last(self.out(self.wide(self.part(x) + self.part.kept[0])))

class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.body, self.head = nn.Embedding(30, 8), nn.Linear(8, 8), nn.Linear(8, 30, bias=False)
        self.head.weight = self.words.weight
    def forward(self, ids):
        return self.head(torch.tanh(self.body(self.words(ids))))
";

const CASES: [(&str, &str); 8] = [
    ("ZeroHead", "4x6:int64:0..50"),
    ("Normed", "4x8"),
    ("Waves", "4x8"),
    ("Scaled", "4x8:int64:0..9"),
    ("Written", "4x8"),
    ("Tied", "2x6:int64:0..30"),
    ("Sparse", "2x6:int64:0..30"),
    ("Lengths", "3x6:int64:5..40 3:int64:2..7"),
];

fn command() -> Command {
    Command::cargo_bin("model-analyze").unwrap()
}

/// Traces a model and splits it into two stages; returns the folder of the stages.
fn split(python: &Path, place: &Path, model: &str, input: &str) -> PathBuf {
    let out = place.join(model);
    splitting(python, place, model, input).arg("-o").arg(&out).assert().success();
    out
}

/// Traces a model; returns the command that splits it into two stages.
fn splitting(python: &Path, place: &Path, model: &str, input: &str) -> Command {
    let file = place.join("models.py");
    fs::write(&file, MODELS).unwrap();
    let archive = place.join(format!("{model}.pt"));
    let target = format!("{}:{model}", file.display());
    let mut trace = command();
    trace.env("MODEL_ANALYZE_PYTHON", warm(python, &[])).args(["trace", &target]);
    trace.args(input.split(' ').flat_map(|input| ["--input", input]));
    trace.arg("-o").arg(&archive);
    trace.assert().success();
    let mut split = command();
    split.arg("split").arg(&archive).args(["--devices", "2xt4", "--stages", "2"]);
    split
}

fn verify(folder: &Path, arguments: &[&str]) -> (Output, Value) {
    let mut command = command();
    command.envs(python().map(|python| ("MODEL_ANALYZE_PYTHON", warm(&python, &[]))));
    let output =
        command.arg("verify").arg(folder).args(arguments).args(["--format", "json"]).output().unwrap();
    let answer = serde_json::from_slice(&output.stdout).unwrap_or_default();
    (output, answer)
}

/// Lets the manifest forget the checksums of its files.
fn forget_checksums(folder: &Path) {
    let path = folder.join("stages/manifest.json");
    let mut manifest: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    manifest.as_object_mut().unwrap().remove("files");
    fs::write(path, serde_json::to_vec_pretty(&manifest).unwrap()).unwrap();
}

#[test]
fn both_forms_give_what_the_model_gives() {
    let Some(python) = python() else { return };
    let place = tempfile::tempdir().unwrap();
    for (model, input) in CASES {
        let out = split(&python, place.path(), model, input);
        let (output, answer) = verify(&out, &["--steps", "5"]);
        assert!(output.status.success(), "{model}: {}", String::from_utf8_lossy(&output.stderr));
        validate::validate("answer-verify", &answer);
        let forms: Vec<&str> =
            answer["forms"].as_array().unwrap().iter().map(|f| f["form"].as_str().unwrap()).collect();
        assert_eq!(forms, ["torchscript", "python"], "{model}");
        assert_eq!(answer["outputs_max_difference"], 0.0, "{model}: {answer}");
        assert_eq!(answer["gradients_zero"], 0, "{model}: every parameter is put to the test");
        assert!(answer["gradients_max_difference"].as_f64().unwrap() < 1e-6, "{model}: {answer}");
    }
}

/// Each would be trained by itself, while a step of the model changes both.
#[test]
fn tensors_that_share_elements_are_not_taken_apart() {
    let Some(python) = python() else { return };
    let place = tempfile::tempdir().unwrap();
    let output = splitting(&python, place.path(), "Overlapped", "4x8")
        .arg("-o")
        .arg(place.path().join("out"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{said}");
    for pair in ["`wide.weight` and `part.weight`", "`part.kept` and `last.weight`"] {
        assert!(
            said.contains(&format!(
                "{pair} share elements and are two tensors, which stages would train apart"
            )),
            "{said}"
        );
    }
    assert!(!place.path().join("out").exists());
}

/// Complex parameters, and what is made in a complex type, have double precision, too.
#[test]
fn complex_numbers_are_compared_in_float64() {
    let Some(python) = python() else { return };
    let place = tempfile::tempdir().unwrap();
    let out = split(&python, place.path(), "Waves", "4x8");
    let (output, answer) = verify(&out, &["--float64", "--steps", "2"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(answer["gradients_max_difference"].as_f64().unwrap() < 1e-12, "{answer}");
}

/// Ranks send and step with whole gradients, also of tables whose gradients have only the rows that were looked up.
#[test]
fn tables_with_sparse_gradients_are_trained() {
    let Some(python) = python() else { return };
    let place = tempfile::tempdir().unwrap();
    let out = split(&python, place.path(), "Sparse", "2x6:int64:0..30");
    let mut train = Command::new(&python);
    let done = train.arg(out.join("train.py")).args(["--check", "--allow-eval"]).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

/// Replaces a text in a Python stage.
fn in_source(folder: &Path, stage: usize, from: &str, to: &str) {
    let path = folder.join(format!("stages/stage_{stage}.py"));
    let text = fs::read_to_string(&path).unwrap();
    assert!(text.contains(from), "{text}");
    fs::write(&path, text.replacen(from, to, 1)).unwrap();
}

/// Replaces a text in the code of a TorchScript stage.
fn in_archive(folder: &Path, stage: usize, from: &str, to: &str) {
    let path = folder.join(format!("stages/stage_{stage}.pt"));
    let mut archive = zip::ZipArchive::new(fs::File::open(&path).unwrap()).unwrap();
    let mut out = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    let mut is_found = false;
    for index in 0..archive.len() {
        let mut record = archive.by_index(index).unwrap();
        let (name, mut bytes) = (record.name().to_string(), Vec::new());
        record.read_to_end(&mut bytes).unwrap();
        if name.ends_with(".py") {
            let text = String::from_utf8(bytes).unwrap();
            is_found |= text.contains(from);
            bytes = text.replacen(from, to, 1).into_bytes();
        }
        let stored = zip::write::SimpleFileOptions::default()
            .compression_method(zip::CompressionMethod::Stored)
            .with_alignment(64);
        out.start_file(name, stored).unwrap();
        out.write_all(&bytes).unwrap();
    }
    assert!(is_found, "{from}");
    fs::write(&path, out.finish().unwrap().into_inner()).unwrap();
}

#[test]
fn damage_is_found_and_its_stage_named() {
    let Some(python) = python() else { return };
    let place = tempfile::tempdir().unwrap();
    let (model, input) = CASES[0];
    let whole = split(&python, place.path(), model, input);
    let stage_of = |part: &str| {
        let holds = |stage: &usize| {
            let text = fs::read_to_string(whole.join(format!("stages/stage_{stage}.py"))).unwrap();
            text.contains(part)
        };
        (0..2).find(holds).unwrap()
    };
    let (relu, tanh) = (stage_of("torch.relu("), stage_of("torch.tanh("));
    type Damage<'d> = (&'d str, usize, Box<dyn Fn(&Path) + 'd>);
    let flip = |file: String, from_end: usize| {
        move |folder: &Path| {
            let path = folder.join("stages").join(&file);
            let mut bytes = fs::read(&path).unwrap();
            let at = bytes.len() - from_end;
            bytes[at] ^= 0x40;
            fs::write(&path, bytes).unwrap();
        }
    };
    let damages: [Damage<'_>; 6] = [
        ("an operator", relu, Box::new(|f| in_source(f, relu, "torch.relu(", "torch.neg("))),
        ("an operator of an archive", tanh, Box::new(|f| in_archive(f, tanh, "torch.tanh(", "torch.sin("))),
        (
            "a gradient cut off",
            tanh,
            Box::new(|f| in_source(f, tanh, "torch.tanh(", "torch.no_grad()(torch.tanh)(")),
        ),
        (
            "another gradient cut off",
            relu,
            Box::new(|f| in_source(f, relu, "torch.relu(", "torch.no_grad()(torch.relu)(")),
        ),
        (
            "a gradient cut off in an archive",
            tanh,
            Box::new(|f| in_archive(f, tanh, "torch.tanh(", "torch.detach(")),
        ),
        ("a bit of a weight", 1, Box::new(flip("stage_1.safetensors".to_string(), 1))),
    ];
    for (what, stage, damage) in damages {
        let folder = place.path().join("damaged");
        let _ = fs::remove_dir_all(&folder);
        copy(&whole, &folder);
        forget_checksums(&folder);
        damage(&folder);
        let (output, answer) = verify(&folder, &["--steps", "4"]);
        let message = String::from_utf8_lossy(&output.stderr);
        let is_found = answer["ok"] == false || output.status.code() == Some(2);
        assert!(is_found, "{what}: {answer}");
        if output.status.code() == Some(1) {
            assert!(message.contains(&format!("in stage {stage}")), "{what}: {message}");
            assert!(message.contains("--float64 separates rounding from faults"), "{what}: {message}");
        }
    }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), &target).unwrap();
        }
    }
}

#[test]
fn a_tied_parameter_is_one_in_an_archive_too() {
    let Some(python) = python() else { return };
    let place = tempfile::tempdir().unwrap();
    split(&python, place.path(), "Tied", "2x6:int64:0..30");
    let out = place.path().join("whole");
    let mut emit = command();
    emit.arg("emit").arg(place.path().join("Tied.pt")).args(["--stages", "1", "-o"]).arg(&out);
    emit.assert().success();
    let archive = out.join("stages/stage_0.pt");
    let count = format!("import torch; print(len(list(torch.jit.load({archive:?}).parameters())))");
    let counted = Command::new(&python).args(["-W", "ignore", "-c", &count]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&counted.stdout).trim(), "3", "{counted:?}");
}

/// Cuts a model in two, and compares the stages in both formats.
fn compare_stages_of(model: &Path) {
    let out = model.with_extension("out");
    let mut emit = command();
    emit.arg("emit").arg(model).args(["--stages", "2", "-o"]).arg(&out);
    emit.assert().success();
    let (output, answer) = verify(&out, &["--steps", "2"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!((&answer["ok"], answer["forms"].as_array().unwrap().len()), (&true.into(), 2));
}

/// Modules that no line of Python can name.
#[test]
fn modules_called_by_words_of_python_are_compared() {
    let Some(python) = python() else { return };
    let place = tempfile::tempdir().unwrap();
    let script = "import torch
from torch import nn
model = nn.Sequential()
model.add_module('class', nn.Linear(4, 4))
model.add_module('lambda', nn.Linear(4, 2))
torch.export.save(torch.export.export(model, (torch.randn(2, 4),)), 'words.pt2')
";
    Command::new(&python).args(["-W", "ignore", "-c", script]).current_dir(place.path()).assert().success();
    compare_stages_of(&place.path().join("words.pt2"));
}

/// Kinds of inputs that random numbers are not.
#[test]
fn what_no_random_number_is_stays_as_it_was_traced() {
    let Some(python) = python() else { return };
    let place = tempfile::tempdir().unwrap();
    let script = "import torch
from torch import nn
class Bag(nn.Module):
    def __init__(self):
        super().__init__()
        self.bag, self.head = nn.EmbeddingBag(50, 8, mode='sum'), nn.Linear(8, 2)
    def forward(self, words, offsets):
        return self.head(self.bag(words, offsets))
class Counted(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(8, 8), nn.Linear(8, 2)
    def forward(self, x, mask):
        return self.head(self.body(x)[mask].view(2, 3, 8))
if __name__ == '__main__':
    torch.save({'words': torch.arange(12), 'offsets': torch.tensor([0, 3, 7, 9])}, 'Bag-batch.pt')
    mask = torch.tensor([[True] * 3 + [False] * 2] * 2)
    torch.save({'x': torch.randn(2, 5, 8), 'mask': mask}, 'Counted-batch.pt')
";
    fs::write(place.path().join("kinds.py"), script).unwrap();
    Command::new(&python).args(["-W", "ignore", "kinds.py"]).current_dir(place.path()).assert().success();
    for name in ["Bag", "Counted"] {
        let mut trace = command();
        trace.args(["trace", &format!("kinds.py:{name}"), "--input-file", &format!("{name}-batch.pt"), "-o"]);
        trace.arg(format!("{name}.pt")).current_dir(place.path()).env("MODEL_ANALYZE_PYTHON", &python);
        trace.assert().success();
    }
    for name in ["Bag", "Counted"] {
        compare_stages_of(&place.path().join(format!("{name}.pt")));
    }
}

/// `nn.TransformerEncoder` in eval mode without gradients, which torch runs by kernels of inference alone.
#[test]
fn a_model_without_gradients_is_compared_by_its_outputs() {
    let Some(python) = python() else { return };
    let place = tempfile::tempdir().unwrap();
    let script = "import torch
layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.TransformerEncoder(layer, 2)).eval()
with torch.no_grad():
    torch.jit.save(torch.jit.trace(model, torch.randn(2, 5, 8)), 'fast.pt')
";
    Command::new(&python).args(["-W", "ignore", "-c", script]).current_dir(place.path()).assert().success();
    let (model, out) = (place.path().join("fast.pt"), place.path().join("out"));
    let cut = |arguments: &[&str]| {
        let mut plan = command();
        plan.args(arguments).arg(&model).args(["--devices", "2xt4", "--stages", "2"]).output().unwrap()
    };
    let reason = "torch has no derivative of aten::_transformer_encoder_layer_fwd (2 calls, the first in `1.layers.0`)";
    let refused = cut(&["plan"]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(2));
    assert!(said.contains(&format!("the model cannot be trained: {reason}\n")), "{said}");
    assert!(cut(&["plan", "--inference"]).status.success());
    let mut emit = command();
    let emitted = emit.arg("emit").arg(&model).args(["--stages", "2", "-o"]).arg(&out).output().unwrap();
    let said = String::from_utf8_lossy(&emitted.stderr).into_owned();
    assert!(emitted.status.success() && said.contains(reason), "{said}");
    let (output, _) = verify(&out, &[]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains(reason) && said.contains("--steps 0 compares outputs alone"), "{said}");
    let (output, answer) = verify(&out, &["--steps", "0"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!((&answer["ok"], &answer["steps"]), (&true.into(), &0.into()));
    for asked in [&["--check"][..], &["--steps", "1", "--allow-eval"], &["--single", "--allow-eval"]] {
        let output = Command::new(&python).arg(out.join("train.py")).args(asked).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.starts_with(&format!("the model cannot be trained: {reason}; ")), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
}

#[test]
fn what_was_not_compared_is_said() {
    let Some(python) = python() else { return };
    let place = tempfile::tempdir().unwrap();
    let (model, input) = CASES[1];
    let out = split(&python, place.path(), model, input);
    // An interpreter that was asked for must serve.
    let (output, _) = verify(&out, &["--python", "no-such-python"]);
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2));
    assert!(message.contains("cannot run no-such-python") && message.contains("--python"), "{message}");
    let (output, answer) = verify(&out, &["--form", "torchscript", "--python", "no-such-python"]);
    assert!(output.status.success());
    assert_eq!(answer["forms"].as_array().unwrap().len(), 1);

    let alone = place.path().join("alone");
    let mut emit = command();
    emit.arg("emit")
        .arg(place.path().join("Normed.pt"))
        .args(["--stages", "2", "--targets", "python", "-o"])
        .arg(&alone);
    emit.assert().success();
    let (output, answer) = verify(&alone, &["--steps", "2"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(answer["forms"][0]["form"], "python");
    let (output, _) = verify(&alone, &["--form", "torchscript"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("--targets torchscript"));
}

/// As a user types it: layers that are alike are modules of one class, and recomputed ones are handed to torch's checkpoint.
#[test]
fn repeated_layers_are_one_class_that_computes_as_they_do() {
    let Some(python) = python() else { return };
    let place = tempfile::tempdir().unwrap();
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/traces/gpt2_tiny.pt");
    for (recompute, call) in
        [(&[][..], "= self."), (&["--recompute", "transformer.h.*=always"], "= again(self.")]
    {
        let out = place.path().join(format!("out{}", recompute.len()));
        let mut split = command();
        split.arg("split").arg(&model).args(["--devices", "1xt4", "--stages", "1"]).args(recompute);
        split.arg("-o").arg(&out).assert().success();
        let source = fs::read_to_string(out.join("stages/stage_0.py")).unwrap();
        assert!(source.contains("class GPT2Block(Holder):"), "{source}");
        for layer in 0..2 {
            let call = format!("{call}transformer.h[{layer}]");
            assert_eq!(source.matches(&call).count(), 1, "{call}: {source}");
        }
        let (output, answer) = verify(&out, &["--form", "python", "--python", python.to_str().unwrap()]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(answer["forms"][0]["form"], "python");
    }
    // What differs by a number alone is a class of its own, and a shared module's calls are told apart.
    let out = split(&python, place.path(), "Slopes", "2x8");
    let whole = place.path().join("whole");
    let mut emit = command();
    emit.arg("emit")
        .arg(place.path().join("Slopes.pt"))
        .args(["--stages", "1", "-o"])
        .arg(&whole)
        .assert()
        .success();
    let source = fs::read_to_string(whole.join("stages/stage_0.py")).unwrap();
    let of = |class: &str| source.matches(&format!("\": {class},\n")).count();
    assert_eq!((of("Slope"), of("Slope_2")), (2, 2), "{source}");
    assert!(source.contains("  # layers.1 (call 2)\n"), "{source}");
    for folder in [&out, &whole] {
        let (output, _) = verify(folder, &["--form", "python", "--python", python.to_str().unwrap()]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}
