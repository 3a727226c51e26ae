//! `model-analyze trace`: builds and traces a model in the user's own Python.
//!
//! The interpreter gets `trace.py` on standard input and a request as its argument, and answers in JSON lines. It
//! writes to a temporary folder and renames, so that a failure or an interrupt leaves nothing.

use std::{
    ffi::OsStr,
    io::IsTerminal,
    path::{Path, PathBuf},
};

use clap::Args;
use schema::{ANSWER_VERSION, TraceAnswer};
use serde_json::{Map, Value, json};

use crate::{
    failure::Failure,
    files::Beside,
    interpreter::Conversation,
    model,
    output::{Format, Output},
    shell::quoted,
};

pub mod input_spec;

use input_spec::InputSpec;

/// The last part starts the work. The Python package also runs it, on live models.
pub const SCRIPT: &str = concat!(
    include_str!("../trace_notes.py"),
    include_str!("../trace_check.py"),
    include_str!("../trace_inputs.py"),
    include_str!("../trace_documented.py"),
    include_str!("../trace_config.py"),
    include_str!("../trace_mapped.py"),
    include_str!("../trace_detached.py"),
    include_str!("../trace_archive.py"),
    include_str!("../trace.py")
);

/// Arguments of `trace`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  model-analyze trace torchvision.models:resnet50 --input 8x3x224x224 -o resnet50.pt
  model-analyze trace my_package.models:UNet --arg width=32 --input 1x3x256x256 -o unet.pt
  model-analyze trace unet.py:UNet --input 8x3x256x256 --train --autocast bfloat16 -o unet.pt
  model-analyze trace gpt.py:build --input ids=8x128:int64 --input mask=8x128:bool -o gpt.pt
  model-analyze trace train.py:Net --input 32x100 --state-dict net.safetensors -o net.pt
  model-analyze trace train.py:Net --input-file batch.pt --constant training=false -o net.pt
  model-analyze trace --hf Llama-3-8B/config.json --no-weights --dtype bfloat16 -o llama.pt

Format of inputs: [NAME=]SHAPE[:DTYPE][:LOW..HIGH or :VALUE,VALUE,...]
  8x3x224x224          float32, normally distributed
  8x128:int64          whole numbers small enough for every embedding of the model
  ids=8x128:int64:0..50257
                       passed as the keyword argument `ids`, from 0 up to 50256
  grid=1x3:int64:1,8,8 these three numbers
  scalar               a tensor without dimensions

An --input-file holds the arguments of forward: a tensor, a tuple or list of the positional arguments,
a dict of those by name, or {\"args\": [...], \"kwargs\": {...}}. Tensors may be nested in dicts, lists and tuples.
It is a .safetensors, a .json in which lists of numbers are tensors, or a file of torch.save with tensors.

The target is imported from the current folder or from the interpreter's packages.
A class or function is called with the values of --arg; a model is used as it is.")]
pub struct Trace {
    /// What to trace: `package.module:name` or `path/to/file.py:name`, a class, a function or a model
    #[arg(required_unless_present = "config", conflicts_with = "config")]
    target: Option<String>,

    /// Trace the model of Hugging Face's transformers that a config.json, or a folder with one, describes: its weights
    /// are random, nothing is downloaded, and missing inputs are replaced by examples
    #[arg(long = "hf", value_name = "CONFIG", conflicts_with = "arguments")]
    config: Option<PathBuf>,

    /// An example input, in the order of `forward`: [NAME=]SHAPE[:DTYPE][:LOW..HIGH or :VALUE,...]
    #[arg(long = "input", short, value_name = "INPUT", allow_hyphen_values = true)]
    #[arg(required_unless_present_any = ["config", "input_file"])]
    inputs: Vec<String>,

    /// A file of inputs, which is never executed: .pt, .safetensors or .json
    #[arg(long, value_name = "FILE", conflicts_with = "inputs")]
    input_file: Option<PathBuf>,

    /// A constant keyword argument of `forward`; the value is JSON, or plain text if it is not JSON
    #[arg(long = "constant", value_name = "KEY=VALUE", allow_hyphen_values = true)]
    constants: Vec<String>,

    /// The method to trace instead of `forward`
    #[arg(long, value_name = "NAME")]
    method: Option<String>,

    /// A keyword argument of the target; the value is JSON, or plain text if it is not JSON
    #[arg(long = "arg", short, value_name = "KEY=VALUE", allow_hyphen_values = true)]
    arguments: Vec<String>,

    /// Archive to write
    #[arg(long, short)]
    output: PathBuf,

    /// Weights to load: a file of torch.save or a .safetensors
    #[arg(long, value_name = "FILE")]
    state_dict: Option<PathBuf>,

    /// Allow missing or unexpected parameters in the state dict
    #[arg(long, requires = "state_dict")]
    partial_state_dict: bool,

    /// Trace without weights: parameters take no memory and have no values, so that a model larger than this machine's
    /// memory can be planned. `split --weights` takes the values from a checkpoint
    #[arg(long, conflicts_with_all = ["state_dict", "device"])]
    no_weights: bool,

    /// Data type of the weights, the default type while the model is built (default: float32)
    #[arg(long, value_name = "DTYPE", value_parser = ["bfloat16", "float16", "float32", "float64"])]
    dtype: Option<String>,

    /// Trace in training mode: dropout and batch statistics become part of the trace (default: eval)
    #[arg(long)]
    train: bool,

    /// Trace in automatic mixed precision: matrix products in this type, sums and norms in float32, as on a GPU; the
    /// casts between them become part of the trace
    #[arg(long, value_name = "DTYPE", value_parser = ["bfloat16", "float16"])]
    autocast: Option<String>,

    /// Trace with weights and images as channels-last tensors, as `model.to(memory_format=torch.channels_last)` makes
    /// them: other kernels run and are predicted. For `inspect`, `plan` and archives; Python stages hold weights
    /// contiguous
    #[arg(long, conflicts_with = "no_weights")]
    channels_last: bool,

    /// Seed of the random weights and inputs
    #[arg(long, default_value_t = 0)]
    seed: u64,

    /// Device to build the model on: cpu, cuda, cuda:1
    #[arg(long, default_value = "cpu")]
    device: String,

    /// Skip the comparison of the trace with the model on further inputs (halves the time); the archive records that
    #[arg(long)]
    no_check: bool,

    /// Trace a torch.autograd.Function as its forward pass: the archive can be drawn and planned, but not cut, since
    /// its gradients would be wrong
    #[arg(long)]
    inline_functions: bool,

    /// Refuse outputs and intermediate values that torch calls unsafe to trace (mutable lists and dictionaries)
    #[arg(long)]
    strict: bool,

    /// The Python interpreter that has torch and the model
    #[arg(long, env = "MODEL_ANALYZE_PYTHON", default_value = "python3", value_name = "PROGRAM")]
    python: String,

    /// Output format
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

impl Trace {
    /// Runs the interpreter.
    pub fn run(self, output: &mut Output) -> Result<(), Failure> {
        self.check_output()?;
        let mut request = self.request()?;
        // The interpreter's files are in a folder that is removed when the command ends.
        let beside = Beside::in_folder(&folder_of(&self.output))?;
        let made = beside.path().join(self.output.file_name().unwrap_or_default());
        request["output"] = utf8(absolute(&made)?.as_os_str())?.into();
        let known = |failure: Failure| failure.with_place(&made, &self.output);
        let done = self.converse(&request).map_err(known)?;
        let path = self.output.display().to_string();
        // An unreadable archive is found here, not by the next command.
        let program = model::program_quietly(&made).map_err(known)?;
        let operators = program.nodes.len() as u64;
        for note in crate::trace_notes::detailed(&program) {
            crate::failure::note(note);
        }
        beside
            .release(&made, &self.output)
            .map_err(|error| Failure::input(format!("cannot write {path}: {error}")))?;
        let parameters = done.get("parameters").and_then(Value::as_u64).unwrap_or_default();
        let torch = done.get("torch").and_then(Value::as_str).unwrap_or("?");
        match self.format {
            Format::Text => output
                .text(&format!("{path}: {operators} operators, {parameters} parameters, torch {torch}\n")),
            Format::Json => {
                let answer = TraceAnswer {
                    schema_version: ANSWER_VERSION,
                    output: path,
                    operators,
                    parameters,
                    torch: torch.to_string(),
                    trace_notes: crate::trace_notes::all(&program),
                };
                output.json(&serde_json::to_value(&answer).map_err(Failure::input)?)
            }
        }
    }

    /// Checks, before the model is built, that the archive can be written.
    fn check_output(&self) -> Result<(), Failure> {
        if self.output.is_dir() || self.output.file_name().is_none() {
            return Err(Failure::input(format!("{} is a directory, not a file", self.output.display())));
        }
        let folder = folder_of(&self.output);
        if !folder.is_dir() {
            let shown = folder.display().to_string();
            return Err(Failure::input(format!("no directory {shown}"))
                .with_hint(format!("make it first: mkdir -p {}", quoted(&shown))));
        }
        match tempfile::tempfile_in(&folder) {
            Ok(_) => Ok(()),
            Err(error) => Err(Failure::input(format!("cannot write in {}: {error}", folder.display()))),
        }
    }

    fn request(&self) -> Result<Value, Failure> {
        if let Some(target) = &self.target {
            check_target(target)?;
        }
        let mut inputs = Vec::new();
        for text in &self.inputs {
            let spec = InputSpec::parse(text).map_err(|error| {
                Failure::input(&error).at("--input", text, error.span(), error.found()).with_hint(
                    "the format is [NAME=]SHAPE[:DTYPE][:LOW..HIGH or :VALUE,...], such as 8x3x224x224 or ids=8x128:int64",
                )
            })?;
            inputs.push(spec);
        }
        check_names(&inputs)?;
        let constants = parse_arguments("--constant", &self.constants)?;
        if let Some(name) =
            inputs.iter().filter_map(|input| input.name.as_ref()).find(|name| constants.contains_key(*name))
        {
            return Err(Failure::input(format!("{name} is given by both --input and --constant")));
        }
        Ok(json!({
            "target": self.target,
            "config": existing(self.config.as_deref(), Path::exists)?,
            "arguments": parse_arguments("--arg", &self.arguments)?,
            "inputs": inputs.iter().map(InputSpec::to_json).collect::<Vec<_>>(),
            "input_file": existing(self.input_file.as_deref(), Path::is_file)?,
            "constants": constants,
            "method": self.method,
            "training": self.train,
            "channels_last": self.channels_last,
            "autocast": self.autocast,
            "weightless": self.no_weights,
            "dtype": self.dtype,
            "seed": self.seed,
            "device": self.device,
            "check": !self.no_check,
            "inline_functions": self.inline_functions,
            "strict": self.strict,
            "state_dict": existing(self.state_dict.as_deref(), Path::is_file)?,
            "strict_state_dict": !self.partial_state_dict,
            "output": utf8(absolute(&self.output)?.as_os_str())?,
        }))
    }

    /// Runs the script and returns its last message.
    fn converse(&self, request: &Value) -> Result<Value, Failure> {
        let last = converse(&self.python, SCRIPT, request)?;
        match last.get("done") {
            Some(done) => Ok(done.clone()),
            None => Err(self.python_failure(&last["error"])),
        }
    }

    /// Shows Python's exception, the user's own line and the module that was being called.
    fn python_failure(&self, error: &Value) -> Failure {
        let text = |key: &str| error.get(key).and_then(Value::as_str).unwrap_or_default();
        let step = text("step");
        match text("kind") {
            "no-torch" => {
                let python = if text("python").is_empty() { &self.python } else { text("python") };
                Failure::input(format!("{python} has no torch")).with_hint(format!(
                    "install it there ({} -m pip install torch), or name another interpreter with --python",
                    quoted(python)
                ))
            }
            "python" => self.exception(error, step),
            _ if text("hint").is_empty() => Failure::input(text("message")),
            _ => Failure::input(text("message")).with_hint(text("hint")),
        }
    }

    fn exception(&self, error: &Value, step: &str) -> Failure {
        let text = |key: &str| error.get(key).and_then(Value::as_str).unwrap_or_default();
        let mut message = format!("{step}: {}", text("type"));
        if !text("message").is_empty() {
            message.push_str(": ");
            message.push_str(&text("message").replace('\n', "\n  "));
        }
        if let Some(module) = error.get("module").and_then(Value::as_str) {
            message.push_str(&format!("\n  in module {module}"));
        }
        if let Some(frame) = error.get("frame").filter(|frame| frame.is_object()) {
            let part = |key: &str| frame.get(key).and_then(Value::as_str).unwrap_or_default();
            let line = frame.get("line").and_then(Value::as_u64).unwrap_or_default();
            message.push_str(&format!("\n  at {}:{line}", part("file")));
            if !part("function").is_empty() && part("function") != "<module>" {
                message.push_str(&format!(" in {}", part("function")));
            }
            if !part("text").is_empty() {
                message.push_str(&format!("\n     {}", part("text")));
            }
        }
        let failure = Failure::input(message);
        // Errors that only parameters without values, or without memory of their own, cause.
        let of_stand_ins = ["meta", "view size is not compatible", "single memory location"];
        let is_weightless = self.no_weights && of_stand_ins.iter().any(|part| text("message").contains(part));
        let hint = match (text("type"), step) {
            _ if is_weightless => {
                "with --no-weights, parameters have no values while the model is built, and large ones no memory of their \
                 own while it runs: trace it with its weights"
                    .to_owned()
            }
            _ if text("message").contains("can't allocate memory") => {
                "it ran out of memory: smaller inputs take less, and with --no-weights parameters take none".to_owned()
            }
            ("ModuleNotFoundError", _) => format!(
                "the target is searched in the current folder and in the packages of {}",
                self.python
            ),
            ("TypeError", step) if step.starts_with("building") => {
                "arguments of the target are given as --arg KEY=VALUE".to_owned()
            }
            (_, "running forward") if self.inputs.is_empty() && self.input_file.is_none() => {
                "example inputs were used: give the model's own with --input NAME=SHAPE[:DTYPE]".to_owned()
            }
            ("TypeError" | "RuntimeError" | "ValueError" | "IndexError", "running forward") => {
                "the shapes, dtypes and names of --input must match forward".to_owned()
            }
            _ => return failure,
        };
        failure.with_hint(hint)
    }
}

/// Returns the folder that contains a file.
fn folder_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_path_buf(),
        _ => PathBuf::from("."),
    }
}

/// Refuses an impossible target before an interpreter starts.
fn check_target(target: &str) -> Result<(), Failure> {
    let (place, name) = target.rsplit_once(':').unwrap_or_default();
    if let Some(kind) = model::kind_of_file(Path::new(target)) {
        return Err(Failure::input(format!("{target} is {kind} already"))
            .with_hint("inspect, graph, plan and split read it directly"));
    }
    if place.is_empty() || name.is_empty() {
        return Err(Failure::input(format!("target `{target}` does not name an object"))
            .with_hint("write package.module:name or path/to/file.py:name"));
    }
    if place.ends_with(".py") && !Path::new(place).is_file() {
        return Err(Failure::input(format!("{place}: no such file")));
    }
    Ok(())
}

/// Runs a script in an interpreter that has torch, shows its progress and returns its last message.
pub fn converse(python: &str, script: &str, request: &Value) -> Result<Value, Failure> {
    let conversation = Conversation::start(python, &[], script, request).map_err(|error| {
        Failure::input(format!("cannot run {python}: {error}")).with_hint(
            "name an interpreter that has torch: --python .venv/bin/python, or set MODEL_ANALYZE_PYTHON",
        )
    })?;
    let progress = Progress::new();
    let last = conversation.finish(|value| {
        if let Some(step) = value.get("step").and_then(Value::as_str) {
            progress.step(step);
        } else if let Some(note) = value.get("note").and_then(Value::as_str) {
            progress.note(note);
        }
    });
    progress.finish();
    last
}

/// Returns a path for the script, null if none was given.
fn existing(path: Option<&Path>, is_there: fn(&Path) -> bool) -> Result<Value, Failure> {
    match path {
        Some(path) if !is_there(path) => Err(Failure::input(format!("{}: no such file", path.display()))),
        Some(path) => Ok(utf8(path.as_os_str())?.into()),
        None => Ok(Value::Null),
    }
}

fn check_names(inputs: &[InputSpec]) -> Result<(), Failure> {
    for (index, input) in inputs.iter().enumerate() {
        let Some(name) = &input.name else {
            if inputs[..index].iter().any(|before| before.name.is_some()) {
                return Err(Failure::input("an --input without a name follows one with a name")
                    .with_hint("as in a Python call, those without a name come first"));
            }
            continue;
        };
        if inputs[..index].iter().any(|before| before.name.as_ref() == Some(name)) {
            return Err(Failure::input(format!("--input {name} is given twice")));
        }
    }
    Ok(())
}

fn parse_arguments(option: &str, arguments: &[String]) -> Result<Map<String, Value>, Failure> {
    let mut parsed = Map::new();
    for argument in arguments {
        let Some((key, value)) = argument.split_once('=').filter(|(key, _)| !key.is_empty()) else {
            return Err(Failure::input(format!("{option} {argument} is not KEY=VALUE")).with_hint(format!(
                "values are JSON, for example {option} num_classes=10 {option} weights=null {option} 'name=\"tiny\"'"
            )));
        };
        let value = serde_json::from_str(value).unwrap_or_else(|_| Value::from(value));
        if parsed.insert(key.to_owned(), value).is_some() {
            return Err(Failure::input(format!("{option} {key} is given twice")));
        }
    }
    Ok(parsed)
}

fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    std::path::absolute(path).map_err(|error| Failure::input(format!("{}: {error}", path.display())))
}

fn utf8(path: &OsStr) -> Result<&str, Failure> {
    path.to_str().ok_or_else(|| Failure::input(format!("{}: not UTF-8", path.display())))
}

/// One line on the terminal about the current work; silent if there is no terminal.
struct Progress {
    bar: Option<indicatif::ProgressBar>,
}

impl Progress {
    /// Begins with an empty line.
    fn new() -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = indicatif::ProgressBar::new_spinner();
            bar.enable_steady_tick(std::time::Duration::from_millis(100));
            bar
        });
        Self { bar }
    }

    /// Replaces the line.
    fn step(&self, step: &str) {
        if let Some(bar) = &self.bar {
            bar.set_message(step.to_owned());
        }
    }

    /// Prints a note above the line.
    fn note(&self, note: &str) {
        match &self.bar {
            Some(bar) => bar.println(format!("note: {note}")),
            None => crate::failure::note(note),
        }
    }

    /// Removes the line.
    fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
