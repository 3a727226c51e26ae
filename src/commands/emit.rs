//! `model-analyze emit`: writes stage modules that run.

mod extras;
mod write;

pub use extras::not_carried_out;

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    path::{Path, PathBuf},
};

use clap::{Args, ValueEnum, builder::NonEmptyStringValueParser};
use codegen::{
    About, Assignment, CutError, CutOptions, Facts, Launcher, Names, OperatorFault, Pipeline, ReadAt, Skips,
    Targets, Tied,
};
use graph::layout::Proof;
use schema::{
    ANSWER_VERSION, EmitAnswer, EmittedStage, LayerSharing, Manifest, ModelReference, Plan, TiedPlace,
};
use tracer::{NodeId, Program};

use crate::{
    cost_models::CostModels,
    failure::Failure,
    files,
    output::{Format, Output},
    plan_file,
    program::PROGRAM,
    sharing::SharedModel,
    weights::{self, Source, Sources},
    workspace::{ModelFile, Workspace},
};

/// Arguments of `emit`.
#[derive(Args)]
#[command(after_help = "Examples:
  model-analyze emit model.pt plan.yaml -o out/
  model-analyze emit model.pt --cut layer2,layer3 -o out/
  model-analyze emit model.pt plan.yaml -o out/ --targets python --launch torchrun,slurm
  model-analyze emit model.pt plan.yaml --weights checkpoint/ -o out/")]
pub struct Emit {
    /// A traced model (.pt)
    model: PathBuf,
    /// A plan written by `plan`
    #[arg(required_unless_present_any = ["cut", "stages"], conflicts_with_all = ["cut", "stages"])]
    plan: Option<PathBuf>,
    /// Cut before these blocks instead of following a plan
    #[arg(long, value_name = "BLOCK,…", value_delimiter = ',', value_parser = NonEmptyStringValueParser::new())]
    cut: Vec<String>,
    /// Cut into this many stages with as many operators each, instead of following a plan
    #[arg(long, value_name = "N", conflicts_with = "cut", value_parser = clap::value_parser!(u32).range(1..))]
    stages: Option<u32>,
    #[command(flatten)]
    forms: FormArguments,
    /// Folder for the stages; must be new or empty
    #[arg(short, long, value_name = "FOLDER")]
    output: PathBuf,
    /// Replace what this command wrote in the folder; other files in it stay
    #[arg(long)]
    force: bool,
    /// Refuse a cut that puts one parameter into two stages
    #[arg(long)]
    no_tied: bool,
    /// How values that skip a stage are transferred
    #[arg(long, value_enum, default_value_t)]
    skips: SkipsArgument,
    /// Launch files to write beside train.py
    #[arg(long, value_enum, value_delimiter = ',')]
    launch: Vec<Launch>,
    /// Output format
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// Arguments of every command that writes stages.
#[derive(Args)]
pub struct FormArguments {
    /// Take the weights from here instead of the trace: a .safetensors, a state dict of torch.save, the index of a
    /// sharded checkpoint, or a folder of such files
    #[arg(long, value_name = "CHECKPOINT")]
    pub weights: Option<PathBuf>,
    /// Formats of the stages; each contains the weights
    #[arg(long, value_enum, value_delimiter = ',', default_value = "torchscript,python")]
    targets: Vec<Target>,
    /// Also let stages call the operators of this name space, which a library other than torch registers; may be given
    /// several times. Only for a file that you trust
    #[arg(long, value_name = "NAMESPACE", value_parser = name_space)]
    pub allow_operators: Vec<String>,
}

/// A format of a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Target {
    /// Archives for torch.jit.load, libtorch and tch
    Torchscript,
    /// Python source and safetensors
    Python,
}

/// How values that skip a stage are transferred.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum SkipsArgument {
    /// Through the stages in between; torch.distributed.pipelining needs this
    #[default]
    Relay,
    /// Directly to the stage that needs them
    Portal,
}

/// A launcher.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Launch {
    /// A shell script for torchrun
    Torchrun,
    /// A batch script
    Slurm,
    /// A TrainJob
    Kubernetes,
}

impl Launch {
    fn launcher(self) -> Launcher {
        match self {
            Launch::Torchrun => Launcher::Torchrun,
            Launch::Slurm => Launcher::Slurm,
            Launch::Kubernetes => Launcher::Kubernetes,
        }
    }
}

/// The cuts of a model.
pub enum CutAt {
    /// Those of a plan.
    Plan(Box<Plan>),
    /// Before these blocks.
    Blocks(Vec<String>),
    /// Into this many stages, with equal numbers of operators.
    Even(usize),
}

/// A request for stages.
pub struct EmitRequest {
    /// The cuts.
    pub cut: CutAt,
    /// The checkpoint to take weights from, instead of the model's file.
    pub weights: Option<PathBuf>,
    /// Name spaces of operators that stages may call, in addition to torch's.
    pub operators: Vec<String>,
    /// Formats of the stages.
    pub targets: Targets,
    /// How values that skip a stage are transferred, and whether a parameter may be in two stages.
    pub options: CutOptions,
    /// Launch files to write next to train.py.
    pub launchers: Vec<Launcher>,
}

impl EmitRequest {
    /// Requests only archives, which this process can run.
    pub fn archives(cut: CutAt, skips: Skips, weights: Option<&Path>) -> Self {
        Self {
            cut,
            weights: weights.map(Path::to_path_buf),
            operators: Vec::new(),
            targets: Targets { torchscript: true, python: false },
            options: CutOptions { skips, tied: Tied::Replicate },
            launchers: Vec::new(),
        }
    }
}

impl FormArguments {
    /// Turns the arguments into a request.
    pub fn request(&self, cut: CutAt) -> EmitRequest {
        let targets = Targets {
            torchscript: self.targets.contains(&Target::Torchscript),
            python: self.targets.contains(&Target::Python),
        };
        EmitRequest {
            operators: self.allow_operators.clone(),
            targets,
            ..EmitRequest::archives(cut, Skips::Relay, self.weights.as_deref())
        }
    }
}

impl Emit {
    /// Writes the stages.
    pub fn run(self, output: &mut Output) -> Result<(), Failure> {
        let model = ModelFile::read_archive(&self.model)?;
        let cut = match (&self.plan, self.stages) {
            (Some(plan), _) => CutAt::Plan(Box::new(plan_file::read_for(plan, &model)?)),
            (None, Some(stages)) => CutAt::Even(stages as usize),
            (None, None) => CutAt::Blocks(self.cut.clone()),
        };
        let skips = match self.skips {
            SkipsArgument::Relay => Skips::Relay,
            SkipsArgument::Portal => Skips::Portal,
        };
        let tied = if self.no_tied { Tied::Refuse } else { Tied::Replicate };
        let request = EmitRequest {
            options: CutOptions { skips, tied },
            launchers: self.launch.iter().map(|launch| launch.launcher()).collect(),
            ..self.forms.request(cut)
        };
        let emitted = emit(&model, &request, None)?;
        let bytes = emitted.write_folder(&self.output, self.force)?;
        self.answer(&emitted.program, &emitted.pipeline, bytes, output)
    }

    fn answer(
        &self,
        program: &Program,
        pipeline: &Pipeline,
        bytes: u64,
        output: &mut Output,
    ) -> Result<(), Failure> {
        let parameters = |stage: &codegen::Stage| -> u64 {
            let tensors = stage.tensors.iter().map(|id| &program.tensors[id.index()]);
            tensors
                .filter(|tensor| tensor.role == tracer::Role::Parameter)
                .map(|tensor| tensor.shape.iter().product::<u64>())
                .sum()
        };
        match self.format {
            Format::Json => {
                let stage = |stage: &codegen::Stage| EmittedStage {
                    blocks: stage.label.clone(),
                    operators: stage.steps.len(),
                    parameters: parameters(stage),
                    inputs: stage.inputs.iter().map(|port| port.name.clone()).collect(),
                    outputs: stage.outputs.iter().map(|port| port.name.clone()).collect(),
                };
                let place = |(stage, id): &(u32, tracer::TensorId)| TiedPlace {
                    stage: *stage,
                    name: program.tensors[id.index()].path.clone(),
                };
                let answer = EmitAnswer {
                    schema_version: ANSWER_VERSION,
                    folder: self.output.display().to_string(),
                    bytes,
                    stages: pipeline.stages.iter().map(stage).collect(),
                    tied: pipeline.tied.iter().map(|tied| tied.holders.iter().map(place).collect()).collect(),
                };
                output.json(&serde_json::to_value(&answer).map_err(Failure::input)?)
            }
            Format::Text => {
                let mut text = String::new();
                for (index, stage) in pipeline.stages.iter().enumerate() {
                    text.push_str(&format!(
                        "stage {index}: {} operators, {} parameters, {} in, {} out\n",
                        stage.steps.len(),
                        parameters(stage),
                        stage.inputs.len(),
                        stage.outputs.len()
                    ));
                }
                for tied in &pipeline.tied {
                    let places: Vec<String> = tied
                        .holders
                        .iter()
                        .map(|(stage, id)| format!("{} in stage {stage}", program.tensors[id.index()].path))
                        .collect();
                    text.push_str(&format!("tied: {}; train.py sums the gradients\n", places.join(" = ")));
                }
                text.push_str(&format!("wrote {} ({})\n", self.output.display(), schema::Bytes(bytes)));
                output.text(&text)
            }
        }
    }
}

/// Cuts a model into stages; nothing is written yet. `own` is one device's share, if the plan's devices share layers
/// and it is already known.
pub fn emit(model: &ModelFile, request: &EmitRequest, own: Option<&Workspace>) -> Result<Emitted, Failure> {
    model.require_archive()?;
    model.require_gradients()?;
    let made = match (own, &request.cut) {
        (None, CutAt::Plan(plan)) => shared(model, plan)?,
        _ => None,
    };
    let own = own.or(made.as_ref());
    let mut cut = stages(model, request, own)?;
    let plan = match &request.cut {
        CutAt::Plan(plan) => Some(plan.as_ref()),
        _ => None,
    };
    if plan.is_some_and(|plan| plan.inference.is_some()) {
        crate::failure::note(
            "the plan is for inference: its time and memory are not those of train.py, which trains",
        );
    }
    let untrainable = model.without_derivative();
    if let Some(reason) = &untrainable {
        crate::failure::note(format!(
            "{reason}: the stages run forward passes, and train.py refuses to train them"
        ));
    }
    if let Some(plan) = plan {
        tell_own_buffers(&cut.program, plan);
    }
    let has_python = cut.targets.python;
    if !has_python && plan.is_some_and(Plan::keeps_products) {
        crate::failure::note(
            "archives recompute products, too, whose results the plan keeps (`recompute_light`): Python stages do as \
             planned (--targets python)",
        );
    }
    if has_python && cut.program.tensors.iter().any(is_channels_last) {
        crate::failure::note(
            "weights of the trace are channels-last; Python stages, which train.py runs, hold them contiguous: \
             results are equal up to rounding, which training steps may amplify, but times differ from those predicted",
        );
    }
    let shards = cut.manifest.shards.unwrap_or(1) as usize;
    let expert_parallel =
        own.and_then(|own| own.shared.as_ref()).map_or(1, SharedModel::expert_parallel) as usize;
    let (beside, notes) = extras::extras(
        &cut.program,
        &cut.assignment,
        &cut.pipeline,
        plan,
        (&request.launchers, shards, expert_parallel),
        has_python,
        untrainable.as_deref(),
    );
    cut.files.extend(beside);
    codegen::sign(&mut cut.files, &cut.about);
    for note in notes.into_iter().chain(codegen::kept_activations(&cut.program, &cut.pipeline, &cut.about)) {
        crate::failure::note(note);
    }
    let Stages { program, pipeline, files, manifest, sources, .. } = cut;
    Ok(Emitted { program, pipeline, files, manifest, sources })
}

/// Notes which buffers of a plan's replicas differ from each other as they train.
pub fn tell_own_buffers(program: &Program, plan: &Plan) {
    let has_replicas = plan.inference.is_none() && plan.stages.iter().any(|stage| stage.replicas() > 1);
    if let Some(text) = has_replicas.then(|| codegen::own_buffers(program)).flatten() {
        crate::failure::note(text);
    }
}

/// Stages as they will be written, without the files next to them.
struct Stages {
    program: Program,
    assignment: Assignment,
    pipeline: Pipeline,
    about: About,
    targets: Targets,
    files: Vec<codegen::File>,
    manifest: Manifest,
    sources: Sources,
}

/// Returns the texts of a plan's Python stages by path, and the proof of each device's program; the digests are those
/// of the folder to compare with.
pub fn sources(
    model: &ModelFile,
    request: &EmitRequest,
    digests: &BTreeMap<String, schema::FileDigest>,
) -> Result<(BTreeMap<String, String>, Option<Proof>), Failure> {
    let own = match &request.cut {
        CutAt::Plan(plan) => shared(model, plan)?,
        _ => None,
    };
    let mut cut = stages(model, request, own.as_ref())?;
    codegen::sign(&mut cut.files, &cut.about);
    let mut texts = BTreeMap::new();
    for file in cut.files.iter_mut().filter(|file| file.path.ends_with(".py")) {
        if let Some(digest) = codegen::weights_of(&file.path).and_then(|path| digests.get(&path)) {
            codegen::know_weights(file, digest);
        }
        let codegen::Content::Plain(pieces) = &file.content else { continue };
        let bytes = pieces.iter().flat_map(|piece| match piece {
            codegen::Piece::Bytes(bytes) => bytes.as_slice(),
            _ => &[],
        });
        let text = String::from_utf8_lossy(&bytes.copied().collect::<Vec<u8>>()).into_owned();
        texts.insert(file.path.clone(), text);
    }
    Ok((texts, own.and_then(|own| own.shared).map(|shared| shared.proof)))
}

fn stages(model: &ModelFile, request: &EmitRequest, own: Option<&Workspace>) -> Result<Stages, Failure> {
    let (program, sources) = weighted(model, request.weights.as_deref())?;
    // Weights are copied from the file that the code was read from.
    model.opened().unless_changed(Ok(()))?;
    check_operators(&program, model.path(), &request.operators)?;
    let own = own.and_then(|own| Some((own, own.shared.as_ref()?)));
    // One device runs other operators; stored tensors stay as they are in the file.
    let program = match own {
        Some((own, _)) => Cow::Owned(Program { tensors: program.tensors.clone(), ..own.program().clone() }),
        None => program,
    };
    let (assignment, plan) = match &request.cut {
        CutAt::Plan(plan) => {
            let stages: Vec<Vec<String>> = plan.stages.iter().map(|stage| stage.blocks.clone()).collect();
            (codegen::assign(&program, &stages), Some(plan.as_ref()))
        }
        CutAt::Blocks(blocks) => (codegen::cut_before(&program, blocks), None),
        CutAt::Even(stages) => (Ok(codegen::even(&program, *stages)), None),
    };
    let assignment = assignment.map_err(|errors| cut_failure(&errors, None).in_file(model.path()))?;
    let names = Names::new(&program);
    let targets = if own.is_some() { request.targets.python_alone() } else { request.targets };
    let shards = own.map(|(own, shared)| shared.shards(&own.graph));
    let sized = own.map_or(&*program, |(own, _)| own.program());
    let dear = plan.filter(|plan| plan.keeps_products()).map_or_else(BTreeSet::new, |plan| dear(sized, plan));
    let about = About { shards, dear, ..about(model, request, plan) };
    let facts = facts(sized);
    let program = codegen::with_scalars(&program, &facts);
    let (program, pipeline) = codegen::cut_near(&program, &assignment, &names, &facts, &request.options)
        .map_err(|errors| {
            cut_failure(&errors, nearest(&program, &assignment, &names, &request.options, &errors))
                .in_file(model.path())
        })?;
    codegen::check(&program, &pipeline).map_err(|error| bug(&error))?;
    let (files, manifest) = codegen::stages(&program, &names, &pipeline, &facts, &about, targets)
        .map_err(|error| cut_failure(&[error], None).in_file(model.path()))?;
    let program = program.into_owned();
    Ok(Stages { program, assignment, pipeline, about, targets, files, manifest, sources })
}

/// Returns one device's share under a plan whose devices share layers; `None` if they do not.
fn shared(model: &ModelFile, plan: &Plan) -> Result<Option<Workspace>, Failure> {
    match plan.sharing() {
        LayerSharing::Nothing => return Ok(None),
        LayerSharing::ByCuts(_) => {}
        LayerSharing::Estimated => {
            return Err(Failure::no("the plan's devices share layers, but it has no `cuts`")
                .with_hint("`model-analyze plan --tensor-parallel N` writes such plans"));
        }
        LayerSharing::Unequal => {
            return Err(Failure::no("stages shared by different numbers of devices are not supported yet"));
        }
    }
    let whole = Workspace::build(model.clone(), Vec::new())?;
    // Whatever micro-batches are planned, stages are verified with the trace's inputs, and their exchanges are those of
    // these inputs.
    whole.shared_by(plan, &CostModels::default())
}

/// Returns the program with the positions of its weights, and the files that contain them.
fn weighted<'m>(
    model: &'m ModelFile,
    checkpoint: Option<&Path>,
) -> Result<(Cow<'m, Program>, Sources), Failure> {
    let Some(checkpoint) = checkpoint else {
        weights::require(model)?;
        return Ok((Cow::Borrowed(&model.program), Sources::of_model(model)?));
    };
    let weighted = weights::adopt(model, checkpoint)?;
    weighted.say(checkpoint);
    Ok((Cow::Owned(weighted.adopted.program), weighted.sources))
}

/// A model that was cut, ready to be written.
pub struct Emitted {
    program: Program,
    pipeline: Pipeline,
    files: Vec<codegen::File>,
    /// Without the digests of the files.
    manifest: Manifest,
    sources: Sources,
}

impl Emitted {
    /// Writes a folder that appears whole or not at all; returns the bytes of weights and texts.
    pub fn write_folder(&self, target: &Path, force: bool) -> Result<u64, Failure> {
        let folder = files::Folder::create(target, force)?;
        let bytes = self.write(&folder)?;
        folder.finish()?;
        Ok(bytes)
    }

    /// Writes all files, the manifest last, and reads them back; returns the bytes of weights and texts.
    pub fn write(&self, folder: &files::Folder) -> Result<u64, Failure> {
        let total: u64 = self.files.iter().map(|file| file.content.size()).sum();
        let progress = progress(total);
        // A Python source contains the checksum of its weights, which are written first.
        let (mut texts, rest): (Vec<_>, Vec<_>) =
            self.files.iter().cloned().partition(|file| codegen::weights_of(&file.path).is_some());
        let mut filled = write::write(&rest, &self.sources, folder, &progress)?;
        for text in &mut texts {
            let weights = codegen::weights_of(&text.path).and_then(|path| filled.get(&path));
            if let Some(weights) = weights {
                codegen::know_weights(text, &weights.digest);
            }
        }
        filled.extend(write::write(&texts, &self.sources, folder, &progress)?);
        progress.finish_and_clear();
        let mut manifest = self.manifest.clone();
        manifest.files = filled.iter().map(|(path, file)| (path.clone(), file.digest.clone())).collect();
        write::write(&[codegen::manifest_file(&manifest)], &self.sources, folder, &progress)?;
        self.sources.check_unchanged()?;
        self.check_source(&filled)?;
        let copied = filled.into_iter().map(|(path, file)| (path, file.copied)).collect();
        let mut source = self.sources.open();
        let mut written = Written { folder, open: None, refused: None };
        let checked = codegen::check_written(&self.program, &copied, &mut source, &mut written);
        // The source may have been replaced since.
        self.sources.check_unchanged()?;
        if let Some(failure) = written.refused {
            return Err(failure);
        }
        checked.map_err(|error| bug(&error))?;
        Ok(total)
    }
}

impl Emitted {
    /// Compares copied bytes with the checksums of the archive, and reports weights that hold NaN or infinity.
    fn check_source(&self, filled: &BTreeMap<String, codegen::Filled>) -> Result<(), Failure> {
        let copied = || filled.values().flat_map(|file| &file.copied);
        let mut source = self.sources.open();
        let damaged =
            codegen::damaged(&self.program, copied(), &mut source).map_err(weights::read_failure)?;
        if let Some(codegen::Damaged { tensor, record, position }) = damaged.first() {
            let more = match damaged.len() {
                1 => String::new(),
                count => format!(", as have {} more", count - 1),
            };
            let file = self.sources.path_at(*position).display();
            let message = format!(
                "{file}: `{tensor}` is damaged: the checksum of its record {record} is not that of the archive{more}"
            );
            return Err(Failure::input(message)
                .with_hint("copy the file again from where it came, or save the model again"));
        }
        let lost =
            codegen::not_finite(&self.program, copied(), &mut source).map_err(weights::read_failure)?;
        if !lost.is_empty() {
            let is_parameter = |tensor: &&tracer::Tensor| tensor.role == tracer::Role::Parameter;
            let all = self.program.tensors.iter().filter(is_parameter).count();
            let more = if lost.len() > 3 { ", …" } else { "" };
            let names = lost.iter().take(3).map(String::as_str).collect::<Vec<_>>().join(", ");
            let count = lost.len();
            crate::failure::note(format!("{count} of {all} parameters hold NaN or infinity: {names}{more}"));
        }
        Ok(())
    }
}

/// The files in the output folder before it gets its name.
struct Written<'f> {
    folder: &'f files::Folder,
    /// The file that was read last.
    open: Option<(String, Source)>,
    /// Why an existing file could not be opened: a limit of the system, which proves no fault in the written file.
    refused: Option<Failure>,
}

impl Written<'_> {
    /// Opens a file by a function with the command's own errors.
    fn opened<T>(
        &mut self,
        file: &str,
        open: impl FnOnce(&Path) -> Result<T, Failure>,
    ) -> std::io::Result<T> {
        let other = |failure: &Failure| std::io::Error::other(failure.to_string());
        let path = self.folder.path(file).map_err(|failure| other(&failure))?;
        open(&path).map_err(|failure| {
            let error = other(&failure);
            if path.exists() {
                self.refused = Some(failure);
            }
            error
        })
    }
}

impl codegen::Written for Written<'_> {
    type Bytes = memmap2::Mmap;

    fn bytes(&mut self, file: &str) -> std::io::Result<memmap2::Mmap> {
        self.opened(file, files::map)
    }

    fn read_at(&mut self, file: &str, position: u64, buffer: &mut [u8]) -> std::io::Result<()> {
        if self.open.as_ref().is_none_or(|(name, _)| name != file) {
            let source = self.opened(file, |path| Ok(Sources::of(path)?.open()))?;
            self.open = Some((file.to_string(), source));
        }
        let (_, open) = self.open.as_mut().expect("opened above");
        open.read_at(position, buffer)
    }
}

/// Returns sizes and types of values: those in the trace, and those inferred from them.
fn facts(program: &Program) -> Facts {
    let mut facts = codegen::facts(program);
    // Stages need no shapes: if the graph cannot be built, the manifest leaves them out.
    let Ok(graph) = graph::build(program, &graph::BuildOptions::default()) else { return facts };
    for (known, value) in facts.iter_mut().zip(&graph.values) {
        let graph::Fact::Tensor(tensor) = &value.fact else { continue };
        if known.as_ref().is_some_and(|known| known.shape.is_some()) {
            continue;
        }
        let shape = tensor.shape.as_ref().and_then(|dims| dims.iter().copied().collect::<Option<Vec<u64>>>());
        *known = Some(tracer::TensorType { dtype: tensor.dtype, shape, ..tracer::TensorType::default() });
    }
    facts
}

fn progress(total: u64) -> indicatif::ProgressBar {
    // Drawn on standard error, and only on a terminal.
    let bar = indicatif::ProgressBar::new(total);
    let style = indicatif::ProgressStyle::with_template("{bar:40} {bytes}/{total_bytes} {bytes_per_sec}");
    bar.set_style(style.expect("the template is well formed"));
    bar
}

fn about(model: &ModelFile, request: &EmitRequest, plan: Option<&Plan>) -> About {
    let found_again =
        |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_path_buf()).to_str().map(str::to_string);
    let units = plan.map(|plan| plan.stages.iter().map(|stage| stage.recompute_unit).collect());
    let of_stages = |of: fn(&schema::PlanStage) -> &Vec<String>| {
        plan.map(|plan| plan.stages.iter().map(|stage| of(stage).clone()).collect()).unwrap_or_default()
    };
    About {
        source: found_again(model.path()),
        weights: request.weights.as_deref().and_then(found_again),
        model: Some(ModelReference { name: model.program.name.clone(), digest: model.digest().to_string() }),
        written_by: PROGRAM.to_string(),
        devices: of_stages(|stage| &stage.devices),
        recompute: of_stages(|stage| &stage.recompute),
        recompute_light: of_stages(|stage| &stage.recompute_light),
        dear: BTreeSet::new(),
        recompute_unit: units.unwrap_or_default(),
        offload: of_stages(|stage| &stage.offload),
        operators: request.operators.clone(),
        shards: None,
    }
}

/// Returns the operators whose results blocks keep that are recomputed but for such results, for the sizes of the file:
/// the dear ones before the last tensor that a block's backward pass needs.
fn dear(program: &Program, plan: &Plan) -> BTreeSet<NodeId> {
    let Ok(graph) = graph::build(program, &graph::BuildOptions::default()) else { return BTreeSet::new() };
    let blocks = plan.stages.iter().map(|stage| stage.blocks.as_slice());
    let Ok(owners) = codegen::owners(program, blocks) else { return BTreeSet::new() };
    let costs = graph::costs(&graph);
    let mut runs: BTreeMap<codegen::Owner<'_>, Range<u32>> = BTreeMap::new();
    for (node, owner) in (0..).zip(owners) {
        if let Some(owner) = owner {
            runs.entry(owner).or_insert(node..node).end = node + 1;
        }
    }
    let again = runs.values().flat_map(|run| costs.computed_again(run)).map(graph::OperatorId);
    again.filter(|operator| costs.is_dear(*operator)).map(graph::OperatorId::node).collect()
}

fn nearest(
    program: &Program,
    assignment: &Assignment,
    names: &Names,
    options: &CutOptions,
    errors: &[CutError],
) -> Option<String> {
    codegen::nearest(program, assignment, names, options, errors)
        .map(|blocks| format!("the nearest possible cut: --cut {}", blocks.join(",")))
}

fn cut_failure(errors: &[CutError], hint: Option<String>) -> Failure {
    let shown: Vec<String> = errors.iter().take(12).map(CutError::to_string).collect();
    let mut message = shown.join("\n       ");
    if errors.len() > shown.len() {
        message.push_str(&format!("\n       and {} more", errors.len() - shown.len()));
    }
    let hint = hint.or_else(|| {
        errors.iter().find_map(|error| match error {
            CutError::UnknownBlock { similar: Some(path), .. } => Some(format!("did you mean `{path}`?")),
            CutError::UnknownBlock { .. } => Some("`model-analyze inspect` lists the blocks".into()),
            CutError::Operator { fault: OperatorFault::Foreign { space }, .. } => Some(format!(
                "--allow-operators {space} lets stages call the operators of `{space}`, if you trust the file and have the library"
            )),
            CutError::Tied { .. } => {
                Some("without --no-tied each stage gets a copy, and train.py sums their gradients".into())
            }
            CutError::Overlap { .. } => Some(
                "make them one parameter, take parts of it in `forward`, and trace again".into(),
            ),
            CutError::Opaque { .. } => Some(
                "every cut puts it into some stage: trace only the part of the model before it, or write it without branches".into(),
            ),
            _ => None,
        })
    });
    match hint {
        Some(hint) => Failure::input(message).with_hint(hint),
        None => Failure::input(message),
    }
}

/// Refuses operators that stages may not call, and lists those outside torch that they will call.
pub fn check_operators(program: &Program, model: &Path, allowed: &[String]) -> Result<(), Failure> {
    codegen::check_operators(program, allowed).map_err(|errors| cut_failure(&errors, None).in_file(model))?;
    let foreign: Vec<String> = codegen::foreign_operators(program).into_iter().collect();
    if !foreign.is_empty() && !allowed.is_empty() {
        let more = foreign.len().saturating_sub(SHOWN_OPERATORS);
        let more = if more == 0 { String::new() } else { format!(" and {more} more") };
        let shown = foreign[..foreign.len().min(SHOWN_OPERATORS)].join(", ");
        crate::failure::note(format!(
            "stages will call operators that are not torch's: {shown}{more}; they need the library that registers them"
        ));
    }
    Ok(())
}

/// Tells whether a weight of images is stored channels-last.
fn is_channels_last(tensor: &tracer::Tensor) -> bool {
    match (tensor.shape.as_slice(), tensor.strides.as_slice()) {
        ([_, channels, height, width], [_, step, _, pixel]) => {
            *channels > 1 && height * width > 1 && *step == 1 && pixel == channels
        }
        _ => false,
    }
}

/// The most operators that a note names.
const SHOWN_OPERATORS: usize = 8;

/// Parses the name of a name space of operators.
fn name_space(text: &str) -> Result<String, String> {
    let is_name = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    match text {
        "aten" | "prim" | "torchvision" => Err("its operators are allowed already".to_string()),
        _ if !is_name => Err("a name space is a name, as `fbgemm` in torch.ops.fbgemm".to_string()),
        _ => Ok(text.to_string()),
    }
}

fn bug(error: &dyn std::fmt::Display) -> Failure {
    Failure::bug(format!("the stages fail their check: {error}"))
        .with_hint("this is a bug of model-analyze; nothing was written")
}
