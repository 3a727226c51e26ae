//! A stage as a Python module: source that a person can read, change and check in.
//!
//! Tensors keep their names: holders without code replace the model's modules, so the state dict's keys are the
//! model's. Each operator is one line, followed by the path of its module.

mod arguments;
mod call;
mod forward;
mod repeated;
mod scope;
mod spelling;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use operators::ShapeRule;
use tracer::{Program, Role, TensorId, ValueId};

pub(crate) use self::{
    arguments::keyword,
    call::{constant_name, follows_device, is_child},
    repeated::may_be_class,
};
use call::Writer;
use forward::{Text, forward};
use repeated::Repeated;
use scope::Scope;

use crate::{
    allowed::is_foreign,
    content::Content,
    error::CutError,
    fold::Folded,
    manifest::{About, Cuts, cut_row, was_training},
    names::{Names, comment, python_quoted as quoted},
    nodes::{is_exchange, kinds, rule_of, split, values_of},
    opaque::functions,
    pipeline::{Pipeline, Stage, Step},
    safetensors,
    saving::{self, Segment},
};

/// Code that is the same in every stage.
pub(crate) mod shipped {
    const HOLDER: &str = include_str!("holder.py");
    const PLACE: [&str; 2] = [include_str!("place.py"), include_str!("place_shard.py")];
    const WEIGHTS: &str = include_str!("weights.py");
    const LOAD: [&str; 2] = [include_str!("load.py"), include_str!("load_shard.py")];
    /// The exchanges of stages that are cut inside operators, in a file next to them.
    pub(crate) const SHARDS: &str = include_str!("shards.py");
    /// The functions for blocks that save no activations.
    pub(crate) const SAVING: &str = include_str!("saving.py");
    /// The look-up of other libraries' operators; their names follow.
    pub(crate) const OPERATORS: &str = include_str!("operators.py");
    /// The compiler of scripted control flow.
    pub(crate) const SCRIPTED: &str = include_str!("scripted.py");
    /// A sharded stage of a model that was traced in evaluation mode.
    const STAYS: &str = r#"
    def train(self, mode=True):
        """Stays in evaluation mode, as traced: its parts have no dropout and no batch statistics, so they exchange neither."""
        if mode and self.shard.size > 1:
            raise RuntimeError("the model was traced in evaluation mode and is shared by several devices: trace it with --train to train it")
        return super().train(mode)
"#;

    /// Returns the code that creates and loads a stage's tensors, by the stage's number and the attribute with
    /// constants.
    pub(crate) fn helpers(stage: &str, constants: &str, is_sharded: bool) -> String {
        let form = usize::from(is_sharded);
        let helpers = [HOLDER, PLACE[form], WEIGHTS, LOAD[form]].join("\n\n");
        helpers.replace("stage_K", &format!("stage_{stage}")).replace("_CONSTANTS_", constants)
    }

    /// Returns the constructor of a stage, in the mode that the model was traced in.
    ///
    /// In evaluation mode the parts of dropout or of a batch norm exchange nothing, so a sharded stage that was traced
    /// in it cannot be put in training mode.
    pub(crate) fn init(is_sharded: bool, training: bool) -> String {
        let begin = if is_sharded {
            "    def __init__(self, shard=None):\n        super().__init__()\n        self.shard = shard or Shard()\n"
        } else {
            "    def __init__(self):\n        super().__init__()\n"
        };
        let mode = if training { "True" } else { "False" };
        let stays = if is_sharded && !training { STAYS } else { "" };
        format!("{begin}        place_tensors(self)\n        self.train({mode})  # as traced\n{stays}")
    }
}

/// Returns a stage's source and its weights.
///
/// # Errors
/// If a tensor has no data.
pub(crate) fn stage(
    program: &Program,
    names: &Names,
    pipeline: &Pipeline,
    index: usize,
    about: &About,
) -> Result<(String, Content), CutError> {
    let stage = &pipeline.stages[index];
    let constants = free_name(program, "constants");
    let training = was_training(program);
    let kinds = kinds(program);
    let on_host = on_host(program);
    let folded = Folded::new(program, stage, &kinds);
    let scope = Scope::default();
    let writer = Writer {
        program,
        names,
        kinds: &kinds,
        constants: &constants,
        training,
        on_host: &on_host,
        folded: &folded,
        scope: &scope,
    };
    let tied = tied_names(program, stage);
    let (segments, _) = saving::segments(program, index, stage, &folded, about);
    let (cuts, group_cuts) = (about.cuts_of(program, stage), about.group_cuts_of(program, stage));
    if cuts.is_some() && free_name(program, "shard") != "shard" {
        return Err(CutError::ShardName);
    }
    let mut out = String::new();
    header(&mut out, program, pipeline, index, (&segments, cuts.is_some()));
    tables(&mut out, program, stage, &tied, cuts.as_ref().map(|cuts| (cuts, &group_cuts)));
    out.push_str(&shipped::helpers(&index.to_string(), &constants, cuts.is_some()));
    if !segments.is_empty() {
        out.push_str(shipped::SAVING);
    }
    let foreign = foreign_operators(program, stage);
    if !foreign.is_empty() {
        out.push_str(shipped::OPERATORS);
        foreign.iter().for_each(|name| out.push_str(&format!("        {},\n", quoted(name))));
        out.push_str("    )\n}\n");
    }
    let functions = functions(program, stage, "__torch__", Some("self: __torch__.Held"), &about.operators)?;
    if !functions.own.is_empty() {
        out.push_str(shipped::SCRIPTED);
    }
    for (_, name, function) in &functions.own {
        // Scripted control flow stays in TorchScript.
        out.push_str(&format!("\n\n_{name} = _scripted(\n    {},\n", quoted(name)));
        for line in function.code.lines() {
            out.push_str(&format!("    {}\n", quoted(&format!("  {line}\n"))));
        }
        for line in functions.called.lines() {
            out.push_str(&format!("    {}\n", quoted(&format!("{line}\n"))));
        }
        out.push_str(")\n");
    }
    // All blocks of a stage alike, so that those that differ in what they keep are one class.
    let kept = if segments.iter().any(|segment| segment.light) {
        saving::dear(stage, about)
    } else {
        BTreeSet::new()
    };
    let text = Text::new(writer, stage, &functions.own, kept);
    let repeated = Repeated::find(&text, &segments, cuts.is_some());
    repeated.write(&mut out, &text);
    out.push_str("\n\nclass Stage(Holder):\n");
    out.push_str(&format!("    \"\"\"{}\"\"\"\n\n", comment(&describe(program, stage))));
    out.push_str(&shipped::init(cuts.is_some(), training));
    out.push('\n');
    forward(&mut out, &text, &repeated, &segments);

    let mut tensors: Vec<(String, TensorId)> = Vec::new();
    for &id in &stage.tensors {
        let path = &program.tensors[id.index()].path;
        if !tied.contains_key(path.as_str()) {
            tensors.push((path.clone(), id));
        }
    }
    for &id in &stage.constants {
        tensors.push((format!("{constants}.{}", constant_name(program, id)), id));
    }
    Ok((out, safetensors::file(program, &tensors)?))
}

/// Returns the operators of a stage that are neither torch's nor torchvision's.
fn foreign_operators<'p>(program: &'p Program, stage: &Stage) -> BTreeSet<&'p str> {
    let run = stage.steps.iter().filter_map(|step| match step {
        Step::Run { node, .. } => Some(program.nodes[node.index()].operator.as_str()),
        _ => None,
    });
    // Operators on shared layers belong to no library.
    run.filter(|operator| is_foreign(operator) && !is_exchange(split(operator).0)).collect()
}

/// Returns values that must stay on the host: lengths of packed sequences.
pub(crate) fn on_host(program: &Program) -> HashSet<ValueId> {
    let mut found = HashSet::new();
    for node in program.nodes.iter().rev() {
        let (_, name) = split(&node.operator);
        let is_packing = rule_of(name) == ShapeRule::PackSequence;
        let is_lengths = node.outputs.iter().any(|output| found.contains(output))
            && matches!(rule_of(name), ShapeRule::Cast | ShapeRule::Sorting);
        if is_packing {
            found.extend(node.arguments.iter().skip(1).flat_map(|a| values_of(&a.operand)));
        } else if is_lengths {
            found.extend(node.arguments.iter().take(1).flat_map(|a| values_of(&a.operand)));
        }
    }
    found
}

fn free_name(program: &Program, wanted: &str) -> String {
    let root = program.modules.first();
    let is_taken = |name: &str| {
        root.is_some_and(|root| {
            root.children.contains_key(name)
                || root.parameters.contains_key(name)
                || root.buffers.contains_key(name)
        })
    };
    let mut name = wanted.to_string();
    while is_taken(&name) {
        name.push('_');
    }
    name
}

/// Second names of tensors that a stage already holds under another name.
fn tied_names<'p>(program: &'p Program, stage: &Stage) -> BTreeMap<&'p str, &'p str> {
    let mut first: HashMap<_, &str> = HashMap::new();
    let mut tied = BTreeMap::new();
    for &id in &stage.tensors {
        let tensor = &program.tensors[id.index()];
        let Some(place) = tensor.place() else { continue };
        let key = (place, tensor.dtype);
        match first.get(&key) {
            Some(name) => {
                tied.insert(tensor.path.as_str(), *name);
            }
            None => {
                first.insert(key, &tensor.path);
            }
        }
    }
    tied
}

fn describe(program: &Program, stage: &Stage) -> String {
    let class = program.modules.first().map_or("", |root| root.class.rsplit('.').next().unwrap_or(""));
    if stage.label.is_empty() {
        format!("A part of {class}.")
    } else {
        let shown: Vec<&str> = stage.label.iter().take(12).map(String::as_str).collect();
        let more = if stage.label.len() > shown.len() { ", …" } else { "" };
        format!("{class}: {}{more}.", shown.join(", "))
    }
}

/// Returns why some blocks save their activations although the plan recomputes them or keeps them in host memory.
pub fn kept_activations(program: &Program, pipeline: &Pipeline, about: &About) -> Vec<String> {
    let kinds = kinds(program);
    let stages = pipeline.stages.iter().enumerate();
    stages
        .flat_map(|(index, stage)| {
            let folded = Folded::new(program, stage, &kinds);
            saving::segments(program, index, stage, &folded, about).1
        })
        .collect()
}

fn header(
    out: &mut String,
    program: &Program,
    pipeline: &Pipeline,
    index: usize,
    (segments, is_sharded): (&[Segment], bool),
) {
    let class = program.modules.first().map_or("", |root| root.class.as_str());
    out.push_str(&format!(
        "\"\"\"Stage {index} of {} of {}, written by model-analyze {}.\n\n",
        pipeline.stages.len(),
        comment(class),
        env!("CARGO_PKG_VERSION"),
    ));
    out.push_str(&format!(
        "Weights are in stage_{index}.safetensors, under their names in the model: `stage = load()`.\n"
    ));
    out.push_str("\"\"\"\n\n");
    if is_sharded {
        out.push_str("import importlib.util\n");
    }
    if !segments.is_empty() {
        out.push_str("import threading\n");
    }
    out.push_str("import zlib\n");
    if !segments.is_empty() {
        out.push_str("from contextlib import contextmanager, nullcontext\n");
    }
    out.push_str("from pathlib import Path\n\nimport torch\nimport torch.nn.functional as F  # noqa: F401\nfrom torch import nn\n");
    if !segments.is_empty() {
        out.push_str("from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts\n");
    }
    let stage = &pipeline.stages[index];
    let mut spaces = BTreeSet::new();
    for step in &stage.steps {
        if let Step::Run { node, .. } = step {
            spaces.insert(split(&program.nodes[node.index()].operator).0);
        }
    }
    if spaces.contains("torchvision") {
        out.push_str("import torchvision  # noqa: F401  (its operators)\n");
    }
    out.push('\n');
}

fn tables(
    out: &mut String,
    program: &Program,
    stage: &Stage,
    tied: &BTreeMap<&str, &str>,
    cuts: Option<(&Cuts, &BTreeMap<String, usize>)>,
) {
    let line = |name: &str, id: TensorId| {
        let tensor = &program.tensors[id.index()];
        let sizes: Vec<String> = tensor.shape.iter().map(u64::to_string).collect();
        format!("    {}: ([{}], {}),\n", quoted(name), sizes.join(", "), spelling::dtype(tensor.dtype))
    };
    let mut table = |name: &str, about: &str, wanted: &dyn Fn(TensorId) -> bool| {
        out.push_str(&format!("# {about}\n{name} = {{\n"));
        for &id in &stage.tensors {
            let path = &program.tensors[id.index()].path;
            if wanted(id) && !tied.contains_key(path.as_str()) {
                out.push_str(&line(path, id));
            }
        }
        out.push_str("}\n");
    };
    let role = |id: TensorId| program.tensors[id.index()].role;
    let trains = |id: TensorId| program.tensors[id.index()].requires_grad;
    table("PARAMETERS", "Names in the model: sizes, type.", &|id| role(id) == Role::Parameter && trains(id));
    table("FROZEN", "Frozen parameters.", &|id| role(id) == Role::Parameter && !trains(id));
    table("BUFFERS", "Not trained, but kept in the state dict.", &|id| role(id) == Role::Buffer);
    out.push_str("# Constants of the trace; not in the state dict.\nCONSTANTS = {\n");
    for &id in &stage.constants {
        out.push_str(&line(&constant_name(program, id), id));
    }
    out.push_str("}\n# Second names of a parameter.\nTIED = {\n");
    for (second, first) in tied {
        out.push_str(&format!("    {}: {},\n", quoted(second), quoted(first)));
    }
    out.push_str("}\n");
    if let Some((cuts, group_cuts)) = cuts {
        let first =
            if group_cuts.is_empty() { "" } else { ", and the dimension that groups of shards cut before" };
        out.push_str(&format!("# Tensors that are cut over shards: the cut dimension, and its number of equal blocks, each of which is cut (0: the first shard has all){first}.\nCUTS = {{\n"));
        let names: BTreeSet<&String> = cuts.keys().chain(group_cuts.keys()).collect();
        for name in names.into_iter().filter(|name| !tied.contains_key(name.as_str())) {
            let row = cut_row(cuts.get(name).copied(), group_cuts.get(name).copied());
            out.push_str(&format!("    {}: {row},\n", quoted(name)));
        }
        out.push_str("}\n");
    }
    out.push_str("\n\n");
}
