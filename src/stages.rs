//! A folder of emitted stages: its manifest, how its stages are connected, and their inputs.

use std::path::{Path, PathBuf};

use operators::OperatorClass;
use runtime::{Source, StageWiring, Wiring};
use schema::{MANIFEST_VERSION, Manifest, OutputTree, Plan};
use tracer::Program;

use crate::{
    failure::Failure,
    files,
    folder_files::{self, Changes},
    plan_file,
    workspace::ModelFile,
};

/// A folder written by `emit` or `split`.
pub struct Stages {
    /// The manifest.
    pub manifest: Manifest,
    /// The connections as numbers.
    pub wiring: Wiring,
    /// The stage and the position of each of the model's outputs.
    pub model_outputs: Vec<(usize, usize)>,
    /// The plan of the stages, if there is one.
    pub plan: Option<Plan>,
    folder: PathBuf,
}

impl Stages {
    /// Reads a folder.
    pub fn read(folder: &Path) -> Result<Self, Failure> {
        let path = folder.join("stages").join("manifest.json");
        let text = files::read_text(&path)
            .map_err(|failure| failure.with_hint("name a folder that `emit` or `split` wrote"))?;
        let broken = |error: &dyn std::fmt::Display| Failure::input(format!("{}: {error}", path.display()));
        let value: serde_json::Value = serde_json::from_str(&text)
            .map_err(|error| Failure::json(&path.display().to_string(), &text, &error))?;
        match value["schema_version"].as_u64() {
            Some(version) if version <= u64::from(MANIFEST_VERSION) => {}
            Some(version) => {
                let message = format!("version {version} is newer than the supported {MANIFEST_VERSION}");
                return Err(broken(&message));
            }
            None => return Err(broken(&"there is no `schema_version`")),
        }
        let manifest: Manifest = serde_json::from_value(value).map_err(|error| broken(&error))?;
        let wiring = wiring(&manifest).map_err(|message| broken(&message))?;
        wiring.validate().map_err(|error| broken(&error))?;
        let last = manifest.stages.len() - 1;
        let mut model_outputs = Vec::new();
        leaves(&manifest.output, &mut |position| model_outputs.push((last, position as usize)));
        if model_outputs.iter().any(|&(stage, position)| position >= wiring.stages[stage].n_outputs) {
            return Err(broken(&"the last stage lacks one of the model's outputs"));
        }
        let plan = folder.join("plan.yaml");
        let plan = plan.exists().then(|| plan_file::read(&plan)).transpose()?;
        Ok(Self { manifest, wiring, model_outputs, plan, folder: folder.to_path_buf() })
    }

    /// Returns the folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Compares the wanted files with the digests of the manifest.
    pub fn check_files(&self, changes: Changes, is_wanted: impl Fn(&str) -> bool) -> Result<(), Failure> {
        folder_files::check(&self.folder, &self.manifest.files, changes, is_wanted)
    }

    /// Returns the TorchScript archives of the stages.
    pub fn archives(&self) -> Result<Vec<PathBuf>, Failure> {
        let path = |stage: &schema::StageFiles| {
            let missing = || {
                Failure::input(format!("stage {} has no TorchScript archive", stage.stage))
                    .with_hint("emit the stages again with --targets torchscript")
            };
            let name = stage.files.torchscript.as_ref().ok_or_else(missing)?;
            // A manifest from a stranger must not open files elsewhere.
            match Path::new(name).components().collect::<Vec<_>>()[..] {
                [std::path::Component::Normal(name)] => Ok(self.folder.join("stages").join(name)),
                _ => Err(Failure::input(format!("stage {} names the file `{name}`", stage.stage))
                    .with_hint("files of a stage must be in the folder of manifest.json")),
            }
        };
        let archives: Vec<PathBuf> = self.manifest.stages.iter().map(path).collect::<Result<_, _>>()?;
        // libtorch's parser has no limit on nesting and crashes the process; this reader names the file and the place.
        archives.iter().try_for_each(|archive| crate::model::program(archive).map(|_| ()))?;
        Ok(archives)
    }
}

fn wiring(manifest: &Manifest) -> Result<Wiring, String> {
    let source = |from: &str| -> Option<Source> {
        if let Some(name) = from.strip_prefix("input:") {
            return manifest.inputs.iter().position(|input| input.name == name).map(Source::Input);
        }
        let (stage, name) = from.strip_prefix("stage:")?.split_once(':')?;
        let stage: usize = stage.parse().ok()?;
        let outputs = &manifest.stages.get(stage)?.outputs;
        let output = outputs.iter().position(|output| output.name == name)?;
        Some(Source::Stage { stage, output })
    };
    let stage = |stage: &schema::StageFiles| {
        let inputs = stage.inputs.iter().map(|input| {
            let missing = || format!("input `{}` of stage {} has no source", input.name, stage.stage);
            source(&input.from).ok_or_else(missing)
        });
        Ok(StageWiring { inputs: inputs.collect::<Result<_, String>>()?, n_outputs: stage.outputs.len() })
    };
    let stages = manifest.stages.iter().map(stage).collect::<Result<Vec<_>, String>>()?;
    if stages.is_empty() {
        Err("there are no stages".to_string())
    } else {
        Ok(Wiring { stages, n_inputs: manifest.inputs.len() })
    }
}

fn leaves(tree: &OutputTree, visit: &mut impl FnMut(u32)) {
    match tree {
        OutputTree::Value(position) => visit(*position),
        OutputTree::Literal(_) => {}
        OutputTree::List(items) | OutputTree::Tuple(items) => {
            items.iter().for_each(|item| leaves(item, visit));
        }
        OutputTree::Dict(pairs) => pairs.iter().for_each(|(_, value)| leaves(value, visit)),
    }
}

impl Stages {
    /// Reads the whole model, and checks that the stages were cut from it.
    pub fn model(&self, given: Option<&Path>) -> Result<ModelFile, Failure> {
        let recorded = self.manifest.source.as_ref().map(PathBuf::from);
        let path = given.map(Path::to_path_buf).or(recorded);
        let path = path.ok_or_else(|| {
            Failure::input("the manifest does not name the file that the stages were cut from")
                .with_hint("name it with --model FILE")
        })?;
        let model = ModelFile::read(&path)?;
        if model.digest() == self.manifest.model.digest {
            return Ok(model);
        }
        let name = &self.manifest.model.name;
        Err(Failure::input(format!(
            "{} is not the model that the stages were cut from ({name})",
            path.display()
        ))
        .with_hint("emit the stages again, or name the right file with --model"))
    }

    /// Returns the ranges of random inputs: integers stay below the number of rows of every embedding.
    pub fn input_specs(&self, program: &Program) -> Result<Vec<DrawnInput>, Failure> {
        let reads_rows = |node: &&tracer::Node| {
            let row = node.operator.strip_prefix("aten::").and_then(operators::find);
            row.is_some_and(|row| row.class == OperatorClass::Embedding)
        };
        let rows = program.nodes.iter().filter(reads_rows).filter_map(|node| {
            match node.arguments.first()?.operand {
                tracer::Operand::Tensor(id) => program.tensors[id.index()].shape.first().copied(),
                _ => None,
            }
        });
        let below = rows.min().map_or(2, |rows| i64::try_from(rows).unwrap_or(i64::MAX));
        let spec = |input: &schema::Boundary| {
            let unknown = || {
                Failure::input(format!("the shape of input `{}` is unknown", input.name))
                    .with_hint("trace the model with `model-analyze trace`, which records shapes")
            };
            let shape = input.shape.as_ref().ok_or_else(unknown)?;
            let dtype = input.dtype.clone().ok_or_else(unknown)?;
            let shape = shape.iter().map(|&size| i64::try_from(size).map_err(Failure::input));
            Ok(DrawnInput {
                name: input.name.clone(),
                dtype,
                shape: shape.collect::<Result<_, _>>()?,
                range: input.range,
                values: input.values.clone(),
                below,
            })
        };
        self.manifest.inputs.iter().map(spec).collect()
    }
}

/// Lists the Python packages with operators that a model calls.
pub fn libraries(program: &Program) -> Vec<&'static str> {
    // Scripted control flow is stored as text.
    let has_vision = program.nodes.iter().any(|node| node.operator.starts_with("torchvision::"))
        || program.sources.iter().any(|source| source.text.contains("ops.torchvision."));
    if has_vision { vec!["torchvision"] } else { Vec::new() }
}

/// A random input of the model.
#[derive(Clone, Debug, PartialEq)]
pub struct DrawnInput {
    /// Name for messages.
    pub name: String,
    /// `float32`, `int64`, …
    pub dtype: String,
    /// Sizes of one micro-batch.
    pub shape: Vec<i64>,
    /// Numbers are at least the first and below the second, if the trace has a range.
    pub range: Option<(f64, f64)>,
    /// The numbers themselves, if the model takes no others.
    pub values: Option<Vec<f64>>,
    /// Integers without a range are below this.
    pub below: i64,
}
