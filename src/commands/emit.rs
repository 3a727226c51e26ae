//! `model-analyze emit`: stage modules that run.

mod extras;
mod write;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use clap::{Args, ValueEnum, builder::NonEmptyStringValueParser};
use codegen::{
    About, Assignment, CutError, CutOptions, Facts, Launcher, Names, OperatorFault, Pipeline, ReadAt, Skips,
    Targets, Tied,
};
use schema::{ANSWER_VERSION, EmitAnswer, EmittedStage, Manifest, ModelReference, Plan, TiedPlace};
use tracer::Program;

use crate::{
    PROGRAM,
    failure::Failure,
    files,
    model::trace_failure,
    output::{Format, Output},
    plan_file,
    weights::{self, Source, Sources},
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
    /// Take the weights from here instead of the trace: a .safetensors, what torch.save wrote of a state dict, the index of a
    /// checkpoint in parts, or a folder of such files
    #[arg(long, value_name = "CHECKPOINT")]
    weights: Option<PathBuf>,
    /// Folder for the stages; must be new or empty
    #[arg(short, long, value_name = "FOLDER")]
    output: PathBuf,
    /// Replace what this command wrote in the folder; other files in it stay
    #[arg(long)]
    force: bool,
    /// Refuse a cut that puts one parameter into two stages
    #[arg(long)]
    no_tied: bool,
    /// Forms of the stages
    #[arg(long, value_enum, value_delimiter = ',', default_value = "torchscript,python")]
    targets: Vec<Target>,
    /// How values travel that skip a stage
    #[arg(long, value_enum, default_value_t)]
    skips: SkipsArgument,
    /// Let stages call the operators of this name space, too, which another library than torch registers; say it again for
    /// more. Do that only for a file that you trust
    #[arg(long, value_name = "NAMESPACE", value_parser = name_space)]
    allow_operators: Vec<String>,
    /// Launch files to write beside train.py
    #[arg(long, value_enum, value_delimiter = ',')]
    launch: Vec<Launch>,
    /// How the answer is printed
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// A form of a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Target {
    /// Archives for torch.jit.load, libtorch and tch
    Torchscript,
    /// Python source and safetensors
    Python,
}

/// How skips travel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum SkipsArgument {
    /// Through the stages between; torch.distributed.pipelining needs this
    #[default]
    Relay,
    /// Straight to the stage that needs them
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

impl Emit {
    /// Writes the stages.
    pub fn run(self, output: &mut Output) -> Result<(), Failure> {
        let cut = self.cut()?;
        let folder = files::Folder::create(&self.output, self.force)?;
        let bytes = cut.write(&folder)?;
        folder.finish()?;
        self.answer(&cut.program, &cut.pipeline, bytes, output)
    }

    /// Writes the stages into a folder that somebody else finishes.
    pub fn write_into(&self, folder: &files::Folder) -> Result<(), Failure> {
        self.cut()?.write(folder).map(|_| ())
    }

    /// Cuts the model; nothing is written yet.
    fn cut(&self) -> Result<Cut, Failure> {
        let file = files::open(&self.model)?;
        let program = tracer::read_archive_at(&file).map_err(|error| trace_failure(&self.model, &error));
        let program = file.unless_changed(program)?;
        crate::trace_notes::tell(&program);
        crate::trace_notes::require_gradients(&program, &self.model)?;
        let (program, sources) = self.weighted(program)?;
        // What weights are copied from is what the code was read from.
        file.unless_changed(Ok(()))?;
        check_operators(&program, &self.model, &self.allow_operators)?;
        let plan = self.plan.as_deref().map(|path| plan_file::read_for(path, &program)).transpose()?;
        let assignment = match (&plan, self.stages) {
            (None, Some(stages)) => Ok(codegen::even(&program, stages as usize)),
            (Some(plan), _) => {
                let stages: Vec<Vec<String>> = plan.stages.iter().map(|stage| stage.blocks.clone()).collect();
                codegen::assign(&program, &stages)
            }
            (None, None) => codegen::cut_before(&program, &self.cut),
        };
        let assignment = assignment.map_err(|errors| cut_failure(&errors, None).in_file(&self.model))?;
        let names = Names::new(&program);
        let options = CutOptions {
            skips: match self.skips {
                SkipsArgument::Relay => Skips::Relay,
                SkipsArgument::Portal => Skips::Portal,
            },
            tied: if self.no_tied { Tied::Refuse } else { Tied::Replicate },
        };
        let about = About {
            operators: self.allow_operators.clone(),
            ..about(&program, &self.model, self.weights.as_deref(), plan.as_ref())
        };
        let facts = facts(&program);
        let program = codegen::with_scalars(&program, &facts);
        let (program, pipeline) = codegen::cut_near(&program, &assignment, &names, &facts, &options)
            .map_err(|errors| {
                cut_failure(&errors, nearest(&program, &assignment, &names, &options, &errors))
                    .in_file(&self.model)
            })?;
        codegen::check(&program, &pipeline).map_err(|error| bug(&error))?;
        let targets = Targets {
            torchscript: self.targets.contains(&Target::Torchscript),
            python: self.targets.contains(&Target::Python),
        };
        let (mut files, manifest) = codegen::stages(&program, &names, &pipeline, &facts, &about, targets)
            .map_err(|error| cut_failure(&[error], None).in_file(&self.model))?;
        let launchers: Vec<Launcher> = self.launch.iter().map(|launch| launch.launcher()).collect();
        let (beside, notes) = extras::extras(&program, &assignment, &pipeline, plan.as_ref(), &launchers);
        files.extend(beside);
        codegen::sign(&mut files, &about);
        for note in notes.into_iter().chain(codegen::kept_activations(&program, &pipeline, &about)) {
            crate::failure::note(note);
        }
        Ok(Cut { program: program.into_owned(), pipeline, files, manifest, sources })
    }

    /// Returns the program with the places of its weights, and the files that they lie in.
    fn weighted(&self, program: Program) -> Result<(Program, Sources), Failure> {
        let Some(checkpoint) = &self.weights else {
            weights::require(&program, &self.model)?;
            return Ok((program, Sources::of(&self.model)?));
        };
        let weighted = weights::adopt(&program, &self.model, checkpoint)?;
        weighted.say(checkpoint);
        Ok((weighted.adopted.program, weighted.sources))
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

/// A model that was cut, and what will be written of it.
struct Cut {
    program: Program,
    pipeline: Pipeline,
    files: Vec<codegen::File>,
    /// Without the digests of the files.
    manifest: Manifest,
    sources: Sources,
}

impl Cut {
    /// Writes all files, the manifest last, and reads them back; returns the bytes of weights and texts.
    fn write(&self, folder: &files::Folder) -> Result<u64, Failure> {
        let total: u64 = self.files.iter().map(|file| file.content.size()).sum();
        let progress = progress(total);
        // A Python source knows the checksum of its weights, which are written before.
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
        let mut written = Written { folder, open: None };
        let checked = codegen::check_written(&self.program, &copied, &mut source, &mut written);
        // It is compared with the source, which may have become another meanwhile.
        self.sources.check_unchanged()?;
        checked.map_err(|error| bug(&error))?;
        Ok(total)
    }
}

impl Cut {
    /// Compares what was copied with the checksums of the archive, and says which weights are no numbers.
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
                "{file}: `{tensor}` is damaged: its record {record} has another checksum than the archive says{more}"
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

/// The files as they lie in the output folder, not yet under its name.
struct Written<'f> {
    folder: &'f files::Folder,
    /// The file that was read last.
    open: Option<(String, Source)>,
}

impl codegen::Written for Written<'_> {
    type Bytes = memmap2::Mmap;

    fn bytes(&mut self, file: &str) -> std::io::Result<memmap2::Mmap> {
        let other = |failure: Failure| std::io::Error::other(failure.to_string());
        files::map(&self.folder.path(file).map_err(other)?).map_err(other)
    }

    fn read_at(&mut self, file: &str, position: u64, buffer: &mut [u8]) -> std::io::Result<()> {
        if self.open.as_ref().is_none_or(|(name, _)| name != file) {
            let other = |failure: Failure| std::io::Error::other(failure.to_string());
            let path = self.folder.path(file).map_err(other)?;
            self.open = Some((file.to_string(), Sources::of(&path).map_err(other)?.open()));
        }
        let (_, open) = self.open.as_mut().expect("opened above");
        open.read_at(position, buffer)
    }
}

/// Returns sizes and types of values: those that the trace carries, and what follows from them.
fn facts(program: &Program) -> Facts {
    let mut facts = codegen::facts(program);
    // Stages need no shapes: where the graph cannot be built, the manifest leaves them out.
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
    // Drawn on standard error, and only where somebody looks.
    let bar = indicatif::ProgressBar::new(total);
    let style = indicatif::ProgressStyle::with_template("{bar:40} {bytes}/{total_bytes} {bytes_per_sec}");
    bar.set_style(style.expect("the template is well formed"));
    bar
}

fn about(program: &Program, model: &Path, weights: Option<&Path>, plan: Option<&Plan>) -> About {
    let found_again =
        |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_path_buf()).to_str().map(str::to_string);
    About {
        source: found_again(model),
        weights: weights.and_then(found_again),
        model: Some(ModelReference { name: program.name.clone(), digest: tracer::digest(program) }),
        written_by: PROGRAM.to_string(),
        devices: plan.map(|plan| plan.stages.iter().map(|s| s.devices.clone()).collect()).unwrap_or_default(),
        recompute: plan
            .map(|plan| plan.stages.iter().map(|s| s.recompute.clone()).collect())
            .unwrap_or_default(),
        offload: plan.map(|plan| plan.stages.iter().map(|s| s.offload.clone()).collect()).unwrap_or_default(),
        operators: Vec::new(),
    }
}

fn nearest(
    program: &Program,
    assignment: &Assignment,
    names: &Names,
    options: &CutOptions,
    errors: &[CutError],
) -> Option<String> {
    codegen::nearest(program, assignment, names, options, errors)
        .map(|blocks| format!("the nearest cut that can: --cut {}", blocks.join(",")))
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
                Some("without --no-tied each stage gets a copy and train.py sums gradients".into())
            }
            CutError::Opaque { .. } => Some(
                "no cut helps, each puts it into some stage: trace the part of the model before it, or write it without branches".into(),
            ),
            _ => None,
        })
    });
    match hint {
        Some(hint) => Failure::input(message).with_hint(hint),
        None => Failure::input(message),
    }
}

/// Refuses operators that stages may not call, and says which they will call that are not torch's.
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

/// Operators that a note names.
const SHOWN_OPERATORS: usize = 8;

/// Reads the name of a name space of operators.
pub fn name_space(text: &str) -> Result<String, String> {
    let is_name = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    match text {
        "aten" | "prim" | "torchvision" => {
            Err("its operators are allowed by name, there is nothing to add".to_string())
        }
        _ if !is_name => Err("a name space is a name, as `fbgemm` in torch.ops.fbgemm".to_string()),
        _ => Ok(text.to_string()),
    }
}

fn bug(error: &dyn std::fmt::Display) -> Failure {
    Failure::bug(format!("the stages fail their check: {error}"))
        .with_hint("this is a bug of model-analyze; nothing was written")
}
