//! The manifest, which describes the stages and their connections.

use std::collections::{BTreeMap, BTreeSet};

use schema::{
    Boundary, Exchanged, Files, Input, MANIFEST_VERSION, Manifest, ModelReference, OutputTree, RecomputeUnit,
    StageFiles, TiedHolder, TiedParameter,
};
use tracer::{Constant, NodeId, Operand, Program, Role, TensorType, Type, ValueId};

use crate::{
    names::Names,
    nodes::{is_exchange, split},
    pipeline::{Carried, Pipeline, Port, Skips, Source, Stage, Step},
};

/// Sizes and types of values, as far as known; indexed by value.
pub type Facts = Vec<Option<TensorType>>;

/// Returns the facts about values in the program itself.
pub fn facts(program: &Program) -> Facts {
    let mut facts: Facts = program
        .values
        .iter()
        .map(|value| match &value.type_ {
            Type::Tensor(known) if known.shape.is_some() => Some(known.clone()),
            _ => None,
        })
        .collect();
    if let Some(recorded) = &program.recorded {
        for (input, known) in program.inputs.iter().zip(&recorded.inputs) {
            facts[input.index()] = Some(known.type_.clone());
        }
        // Only if both lists agree in order.
        let tensors: Vec<_> = program.nodes.iter().zip(&recorded.nodes).collect();
        if recorded.nodes.len() == program.nodes.len() {
            for (node, known) in tensors {
                if node.operator != known.operator {
                    continue;
                }
                for (output, type_) in node.outputs.iter().zip(&known.outputs) {
                    facts[output.index()] = type_.clone();
                }
            }
        }
    }
    facts
}

/// Facts of the command that are not in the program.
#[derive(Clone, Debug, Default)]
pub struct About {
    /// Name and digest of the model.
    pub model: Option<ModelReference>,
    /// The model's file, by a path of the user.
    pub source: Option<String>,
    /// The checkpoint that the weights were taken from, if not the model's file.
    pub weights: Option<String>,
    /// Tool and version.
    pub written_by: String,
    /// Devices by stage.
    pub devices: Vec<Vec<String>>,
    /// Blocks to recompute, by stage.
    pub recompute: Vec<Vec<String>>,
    /// Those of them that keep their dear results, by stage.
    pub recompute_light: Vec<Vec<String>>,
    /// Operators whose results are dear: what these blocks keep.
    pub dear: BTreeSet<NodeId>,
    /// The unit of recomputation, by stage.
    pub recompute_unit: Vec<RecomputeUnit>,
    /// Blocks to keep in host memory, by stage.
    pub offload: Vec<Vec<String>>,
    /// Name spaces of operators that stages may call, in addition to torch's.
    pub operators: Vec<String>,
    /// How stages are cut inside their operators, if they are.
    pub shards: Option<Shards>,
}

/// How stages are cut inside their operators. The program has the exchanges already.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shards {
    /// Ranks that share a stage.
    pub degree: u32,
    /// Groups of them that share it first, each of which shares its part further; 1 without groups.
    pub groups: u32,
    /// Parameters and buffers that are cut.
    pub cuts: Cuts,
    /// The dimension of those that groups cut first, in one block; their shards cut the part of a group further.
    pub group_cuts: BTreeMap<String, usize>,
    /// Exchanges, by the first result of the operator that makes them.
    pub sent: BTreeMap<ValueId, Vec<Exchanged>>,
    /// Values that no stage sends: rows of experts, whose number varies.
    pub stays: BTreeSet<ValueId>,
}

/// By name in the model: the cut dimension, and its number of equal blocks, each of which is cut; 0 if the first shard
/// has all of it.
pub type Cuts = BTreeMap<String, (usize, u32)>;

impl About {
    /// Returns the cut tensors of a stage; `None` if the stage is whole on all shards.
    pub(crate) fn cuts_of(&self, program: &Program, stage: &Stage) -> Option<Cuts> {
        let shards = self.shards.as_ref()?;
        let cuts = of_stage(&shards.cuts, program, stage);
        let exchanges = |step: &Step| match step {
            Step::Run { node, .. } => is_exchange(split(&program.nodes[node.index()].operator).0),
            _ => false,
        };
        (!cuts.is_empty() || stage.steps.iter().any(exchanges)).then_some(cuts)
    }

    /// Returns the tensors of a stage that groups of shards cut first.
    pub(crate) fn group_cuts_of(&self, program: &Program, stage: &Stage) -> BTreeMap<String, usize> {
        let cuts = self.shards.as_ref().map(|shards| of_stage(&shards.group_cuts, program, stage));
        cuts.unwrap_or_default()
    }
}

/// Returns the rows of a table of tensors that a stage has.
fn of_stage<T: Copy>(all: &BTreeMap<String, T>, program: &Program, stage: &Stage) -> BTreeMap<String, T> {
    let paths = stage.tensors.iter().map(|id| program.tensors[id.index()].path.as_str());
    paths.filter_map(|path| Some((path.to_string(), *all.get(path)?))).collect()
}

/// Returns a tensor's row in a stage's table of cuts: the dimension and blocks of its shards, and the dimension that groups cut.
pub(crate) fn cut_row(cut: Option<(usize, u32)>, of_groups: Option<usize>) -> String {
    let own = cut.map_or("None, 1".to_string(), |(dim, blocks)| format!("{dim}, {blocks}"));
    let first = of_groups.map_or_else(String::new, |dim| format!(", {dim}"));
    format!("({own}{first})")
}

impl Shards {
    /// Returns the exchanges between the shards of a stage, by kind.
    fn sent_by(&self, program: &Program, stage: &Stage) -> Vec<Exchanged> {
        let mut found: BTreeMap<(&str, &str, Option<&str>), Exchanged> = BTreeMap::new();
        for step in &stage.steps {
            let Step::Run { node, .. } = step else { continue };
            let value = program.nodes[node.index()].outputs.first();
            for one in value.and_then(|value| self.sent.get(value)).into_iter().flatten() {
                let key = (one.phase.as_str(), one.collective.as_str(), one.dtype.as_deref());
                let sum = found.entry(key).or_insert_with(|| Exchanged { calls: 0, bytes: 0, ..one.clone() });
                sum.calls += one.calls;
                sum.bytes = sum.bytes.saturating_add(one.bytes);
            }
        }
        // Forward first, then backward.
        found.into_values().rev().collect()
    }
}

/// Tells whether the model was traced in training mode: the mode of most of its modules.
///
/// The root's mode alone is not reliable: a wrapper made for tracing is in training mode by default.
pub fn was_training(program: &Program) -> bool {
    let count = |mode: bool| {
        let modes = program.modules.iter().filter_map(|module| module.attributes.get("training"));
        modes.filter(|found| **found == Constant::Bool(mode)).count()
    };
    count(true) > count(false)
}

/// Returns the manifest of a pipeline. `files` names the files of a stage by its position; their digests are added when
/// they are written.
pub fn manifest(
    program: &Program,
    names: &Names,
    pipeline: &Pipeline,
    facts: &Facts,
    about: &About,
    files: &dyn Fn(usize) -> Files,
) -> Manifest {
    let boundary = |port: &Port| {
        let (shape, dtype) = fact(program, port, facts);
        Boundary { name: port.name.clone(), shape, dtype, range: None, values: None }
    };
    let input_name = |index: usize| names.get(program.inputs[index]).to_string();
    let stages = pipeline.stages.iter().enumerate().map(|(index, stage)| {
        let inputs = stage.inputs.iter().map(|port| {
            let (shape, dtype) = fact(program, port, facts);
            let from = match port.source {
                Source::Model(input) => format!("input:{}", input_name(input)),
                Source::Stage { stage, port } => {
                    format!("stage:{stage}:{}", pipeline.stages[stage as usize].outputs[port].name)
                }
            };
            Input { name: port.name.clone(), from, shape, dtype }
        });
        let tensors = |role: Role| {
            let tensors = stage.tensors.iter().map(|id| &program.tensors[id.index()]);
            tensors.filter(|tensor| tensor.role == role).map(|tensor| tensor.path.clone()).collect()
        };
        let is_repeated = |step: &&Step| matches!(step, Step::Run { is_repeated: true, .. });
        StageFiles {
            stage: index as u32,
            blocks: stage.label.clone(),
            files: files(index),
            inputs: inputs.collect(),
            outputs: stage.outputs.iter().map(boundary).collect(),
            parameters: tensors(Role::Parameter),
            buffers: tensors(Role::Buffer),
            recompute: about.recompute.get(index).cloned().unwrap_or_default(),
            recompute_light: about.recompute_light.get(index).cloned().unwrap_or_default(),
            recompute_unit: about.recompute_unit.get(index).copied().unwrap_or_default(),
            offload: about.offload.get(index).cloned().unwrap_or_default(),
            repeated_operators: stage.steps.iter().filter(is_repeated).count() as u32,
            devices: about.devices.get(index).cloned().unwrap_or_default(),
            cuts: about.cuts_of(program, stage),
            group_cuts: about.group_cuts_of(program, stage),
            exchanges: about.shards.as_ref().map_or_else(Vec::new, |shards| shards.sent_by(program, stage)),
        }
    });
    let tied = pipeline.tied.iter().map(|tied| TiedParameter {
        holders: tied
            .holders
            .iter()
            .map(|(stage, id)| TiedHolder { stage: *stage, name: program.tensors[id.index()].path.clone() })
            .collect(),
        requires_grad: tied.requires_grad,
    });
    let drawn = program.recorded.as_ref().map(|recorded| recorded.inputs.as_slice()).unwrap_or_default();
    let inputs = program.inputs.iter().enumerate().map(|(index, input)| {
        let known = facts.get(input.index()).and_then(Option::as_ref);
        let shape = known.and_then(|known| known.shape.clone());
        // Other sizes than the example's leave its values without a meaning.
        let count = shape.as_ref().map(|shape| shape.iter().product::<u64>());
        let values = drawn.get(index).and_then(|drawn| drawn.values.clone());
        Boundary {
            name: names.get(*input).to_string(),
            dtype: known.and_then(|known| known.dtype).map(|dtype| dtype.name().to_string()),
            range: drawn.get(index).and_then(|drawn| drawn.range),
            values: values.filter(|values| Some(values.len() as u64) == count),
            shape,
        }
    });
    let mut next = 0;
    Manifest {
        kind: "stages".into(),
        schema_version: MANIFEST_VERSION,
        written_by: about.written_by.clone(),
        model: about
            .model
            .clone()
            .unwrap_or(ModelReference { name: program.name.clone(), digest: tracer::digest(program) }),
        source: about.source.clone(),
        weights: about.weights.clone(),
        training: was_training(program),
        skips: match pipeline.skips {
            Skips::Relay => "relay".into(),
            Skips::Portal => "portal".into(),
        },
        inputs: inputs.collect(),
        output: tree(&program.output, &mut next),
        stages: stages.collect(),
        tied: tied.collect(),
        shards: about.shards.as_ref().map(|shards| shards.degree),
        shard_groups: about.shards.as_ref().map(|shards| shards.groups).filter(|groups| *groups > 1),
        files: BTreeMap::new(),
    }
}

fn fact(program: &Program, port: &Port, facts: &Facts) -> (Option<Vec<u64>>, Option<String>) {
    match port.carried {
        Carried::Tensor(id) => {
            let tensor = &program.tensors[id.index()];
            (Some(tensor.shape.clone()), Some(tensor.dtype.name().into()))
        }
        Carried::Value(_) if port.kind.is_boxed() => {
            let dtype = match port.kind {
                crate::Kind::Float => "float64",
                crate::Kind::Bool => "bool",
                _ => "int64",
            };
            let shape = (port.kind != crate::Kind::IntList).then(Vec::new);
            (shape, Some(dtype.into()))
        }
        Carried::Value(value) => {
            let known = facts.get(value.index()).and_then(Option::as_ref);
            let dtype = known.and_then(|known| known.dtype).map(|dtype| dtype.name().to_string());
            (known.and_then(|known| known.shape.clone()), dtype)
        }
    }
}

// The reader of the program bounds the depth.
fn tree(operand: &Operand, next: &mut u32) -> OutputTree {
    match operand {
        Operand::Value(_) | Operand::Tensor(_) => {
            *next += 1;
            OutputTree::Value(*next - 1)
        }
        Operand::Constant(constant) => OutputTree::Literal(match constant {
            Constant::None => serde_json::Value::Null,
            Constant::Bool(value) => (*value).into(),
            Constant::Int(value) => (*value).into(),
            Constant::Float(value) => (*value).into(),
            Constant::Complex(real, imaginary) => vec![*real, *imaginary].into(),
            Constant::Str(text) | Constant::Device(text) => text.clone().into(),
        }),
        Operand::List(items) => OutputTree::List(items.iter().map(|item| tree(item, next)).collect()),
        Operand::Tuple(items) => OutputTree::Tuple(items.iter().map(|item| tree(item, next)).collect()),
        Operand::Dict(pairs) => {
            OutputTree::Dict(pairs.iter().map(|(key, value)| (tree(key, next), tree(value, next))).collect())
        }
    }
}
