//! The model that a command works on: its file, opened and read once, with its graph and its costs, made once.
//!
//! The file stays open: weights are copied later from the file that the code was read from.

use std::{
    borrow::Cow,
    cell::{OnceCell, RefCell},
    collections::BTreeMap,
    path::Path,
    rc::Rc,
    sync::Arc,
};

use cost_model::Rounding;
use graph::{InputShape, ModelGraph, OperatorCosts};
use schema::{Cluster, DeviceType, LayerSharing, Plan};
use tracer::{Archive, ArchiveKind, Program};

use crate::{
    commands::Times,
    cost_models::{CostModels, rounding_of},
    failure::Failure,
    files::{self, Opened},
    model,
    sharing::{self, SharedModel, Way},
    trace_notes,
};

/// A model's file and its content.
#[derive(Clone)]
pub struct ModelFile {
    file: Arc<Opened>,
    /// The program in the trace.
    pub program: Program,
    digest: OnceCell<String>,
}

impl ModelFile {
    /// Reads a trace, an archive or IR text, and prints the notes of tracing.
    pub fn read(path: &Path) -> Result<Self, Failure> {
        Self::of(files::open(path)?)
    }

    /// Reads a trace from an open file.
    pub fn of(file: Opened) -> Result<Self, Failure> {
        let program = model::read(&file);
        Self::with(file, program)
    }

    /// Reads an archive, from which stages can be cut.
    pub fn read_archive(path: &Path) -> Result<Self, Failure> {
        let file = files::open(path)?;
        let program = model::read_archive(&file);
        Self::with(file, program)
    }

    fn with(file: Opened, program: Result<Program, Failure>) -> Result<Self, Failure> {
        let program = file.unless_changed(program)?;
        if model::is_exported(&program) && file.path().extension().is_none_or(|ending| ending != "pt2") {
            crate::failure::note(format!("{} is a program of torch.export (.pt2)", file.path().display()));
        }
        trace_notes::tell(&program);
        Ok(Self { file: Arc::new(file), program, digest: OnceCell::new() })
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// Returns the open file.
    pub fn opened(&self) -> &Arc<Opened> {
        &self.file
    }

    /// Returns the digest that identifies the model.
    pub fn digest(&self) -> &str {
        self.digest.get_or_init(|| tracer::digest(&self.program))
    }

    /// Returns the file's name without its ending.
    pub fn stem(&self) -> String {
        self.path().file_stem().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// Refuses models that stages cannot be cut from: IR texts, and some programs of torch.export.
    pub fn require_archive(&self) -> Result<(), Failure> {
        if let Some(Archive { kind: ArchiveKind::Export { obstacle: Some(reason) }, .. }) =
            &self.program.archive
        {
            return Err(Failure::input(format!("{} cannot be cut: {reason}", self.path().display()))
                .with_hint("export without run_decompositions(), or trace the model"));
        }
        if self.program.archive.is_some() { Ok(()) } else { model::read_archive(&self.file).map(|_| ()) }
    }

    /// Refuses to make stages of a model that lacks its own gradients.
    pub fn require_gradients(&self) -> Result<(), Failure> {
        let names = self.program.recorded.as_ref().map_or(&[][..], |recorded| &recorded.inlined_functions);
        if names.is_empty() {
            return Ok(());
        }
        Err(Failure::input(format!(
            "{} was traced with --inline-functions: stages would not train with the gradients of {}",
            self.path().display(),
            names.join(", ")
        ))
        .with_hint(
            "inspect, graph and plan accept it; to cut it, write the function with torch's own operators",
        ))
    }

    /// Returns what of the model no backward pass gets through, as `without_derivative` of its graph says it. Sizes are
    /// those of the file; without them nothing is known.
    pub fn without_derivative(&self) -> Option<String> {
        let graph = graph::build(&self.program, &graph::BuildOptions::default()).ok()?;
        without_derivative(&graph)
    }
}

/// What to do about a model that no backward pass gets through.
pub const TRACE_FOR_TRAINING: &str = "`model-analyze trace` writes the model with operators that train; `plan --inference` plans its forward pass alone";

/// Returns the operators that a gradient reaches and of which torch has no derivative, in words; `None` if the model
/// can be trained.
pub fn without_derivative(graph: &ModelGraph) -> Option<String> {
    let found = graph::without_derivative(graph);
    let first = &graph.operators[found.first()?.index()];
    let alike = found.iter().filter(|id| graph.operators[id.index()].name == first.name).count();
    let path = &graph.block(first.block).path;
    let place = if path.is_empty() { String::new() } else { format!(" in `{path}`") };
    let calls = match alike {
        1 => format!("called{place}"),
        _ => format!("{alike} calls, the first{place}"),
    };
    Some(format!("torch has no derivative of {} ({calls})", first.name))
}

/// Predictions by device type, with its figures, cost models and rounding of products.
pub type TimesKnown = Rc<RefCell<Vec<((String, DeviceType, CostModels, Rounding), Times)>>>;

/// A model with its graph and its costs.
#[derive(Clone)]
pub struct Workspace {
    /// Its file.
    pub file: ModelFile,
    /// Its graph.
    pub graph: ModelGraph,
    /// FLOPs and bytes of its operators.
    pub costs: OperatorCosts,
    /// Times of its operators, by device type and rounding of products, as far as requested.
    pub(crate) times: TimesKnown,
    /// The inputs that the graph was built for.
    inputs: Vec<InputShape>,
    /// The same model with other micro-batch sizes, as far as requested.
    sized: Rc<RefCell<BTreeMap<u64, Result<Workspace, String>>>>,
    /// Set if this is one device's share of the model.
    pub shared: Option<SharedModel>,
}

impl Workspace {
    /// Reads a trace and builds its graph for the given inputs (`[NAME=]SHAPE[:DTYPE]`).
    pub fn read(path: &Path, inputs: &[String]) -> Result<Self, Failure> {
        Self::read_with(path, inputs, None)
    }

    /// Reads a trace with the sizes of its parameters from another file, for traces that lack them.
    pub fn read_with(path: &Path, inputs: &[String], parameters: Option<&Path>) -> Result<Self, Failure> {
        let inputs = model::input_shapes(inputs)?;
        let mut file = ModelFile::read(path)?;
        if let Some(parameters) = parameters {
            model::adopt_sizes(&mut file.program, parameters)?;
        }
        Self::build(file, inputs)
    }

    /// Reads a trace from an open file.
    pub fn of(file: Opened, inputs: &[String]) -> Result<Self, Failure> {
        let inputs = model::input_shapes(inputs)?;
        Self::build(ModelFile::of(file)?, inputs)
    }

    /// Builds the graph of a trace.
    pub fn build(file: ModelFile, inputs: Vec<InputShape>) -> Result<Self, Failure> {
        let graph = model::build(file.path(), &file.program, inputs.clone())?;
        Ok(Self::new(file, graph, inputs, None))
    }

    fn new(file: ModelFile, graph: ModelGraph, inputs: Vec<InputShape>, shared: Option<SharedModel>) -> Self {
        let costs = graph::costs(&graph);
        Self { file, graph, costs, times: TimesKnown::default(), inputs, sized: Rc::default(), shared }
    }

    /// Returns the same model for other inputs.
    ///
    /// # Errors
    /// Why its sizes cannot be inferred from these.
    pub fn with_inputs(&self, inputs: Vec<InputShape>) -> Result<Self, String> {
        let built = graph::build(self.program(), &graph::BuildOptions { inputs: inputs.clone() });
        let graph = built.map_err(|errors| errors.0[0].to_string())?;
        Ok(Self::new(self.file.clone(), graph, inputs, None))
    }

    /// Returns the same model with micro-batches of another size: changes the first dimension of every input that has
    /// as many samples as the first one.
    ///
    /// # Errors
    /// Why its sizes cannot be inferred from those of its inputs.
    pub fn with_samples(&self, samples: u64) -> Result<Self, String> {
        if let Some(known) = self.sized.borrow().get(&samples) {
            return known.clone();
        }
        let made = self.resized(samples);
        self.sized.borrow_mut().insert(samples, made.clone());
        made
    }

    fn resized(&self, samples: u64) -> Result<Self, String> {
        let graph = &self.graph;
        let sizes =
            |graph: &ModelGraph, value| -> Option<Vec<u64>> { graph.value(value).fact.tensor()?.sizes() };
        let first = graph.inputs.first().and_then(|input| sizes(graph, *input));
        let own =
            first.and_then(|sizes| sizes.first().copied()).ok_or("the sizes of its inputs are unknown")?;
        if own == samples {
            return Ok(self.clone());
        }
        let input = |value: &graph::ValueId| {
            let value = graph.value(*value);
            let tensor = value.fact.tensor()?;
            let mut shape = tensor.sizes()?;
            let first = shape.first_mut().filter(|first| **first == own)?;
            *first = samples;
            Some(InputShape { name: Some(value.name.clone()), shape, dtype: tensor.dtype })
        };
        let inputs: Vec<InputShape> = graph.inputs.iter().filter_map(input).collect();
        let other = self.with_inputs(inputs)?;
        let lost = graph::lost_sizes(&other.graph);
        if let Some(lost) = lost.first().filter(|_| lost.len() > graph::lost_sizes(graph).len()) {
            return Err(format!("sizes after `{}` are unknown then", lost.name));
        }
        // Sizes that the trace fixed as numbers are noticed here at the latest.
        for (before, after) in graph.outputs.iter().zip(&other.graph.outputs) {
            let (Some(before), Some(after)) = (sizes(graph, *before), sizes(&other.graph, *after)) else {
                continue;
            };
            let (Some(from), Some(to)) = (before.first(), after.first()) else { continue };
            if from.is_multiple_of(own) && *to != from / own * samples {
                return Err(format!("the trace fixed the number of samples: an output would have {to}"));
            }
        }
        Ok(other)
    }

    /// Returns the same model with the micro-batch size of a plan.
    pub fn of_plan(&self, plan: &Plan) -> Result<Cow<'_, Self>, Failure> {
        let Some(samples) = plan.micro_batch_size else { return Ok(Cow::Borrowed(self)) };
        let sized = self.with_samples(samples).map(Cow::Owned);
        sized.map_err(|reason| self.not_followed(samples, &reason))
    }

    /// The failure of a model that only has the micro-batch size of its trace.
    pub fn not_followed(&self, samples: u64, reason: &str) -> Failure {
        Failure::input(format!("micro-batches of {samples} samples: {reason}"))
            .in_file(self.file.path())
            .with_hint("trace the model with inputs of that size, or plan with the traced size")
    }

    /// Returns one device's share of a model that devices of a cluster share.
    pub fn shared(
        &self,
        (cluster, models, rounding): (&Cluster, &CostModels, Rounding),
        degree: u32,
        way: Way<'_>,
    ) -> Result<Self, Failure> {
        let around = way.around();
        let (groups, each) = (around.groups, degree / around.groups.max(1));
        let devices = (cluster, models, rounding);
        if groups == 1 {
            return self.one_device(sharing::shared_by(&self.subject(devices, (each, 1)), way)?);
        }
        let first = if around.by_expert { Way::Experts } else { Way::Positions(&[]) };
        let part = sharing::shared_by(&self.subject(devices, (groups, each)), first)?;
        let part = self.one_device(part)?;
        let own = sharing::shared_by(&part.subject(devices, (each, 1)), way.in_group())?;
        part.one_device(own.in_groups(part.shared.as_ref().expect("it is shared")))
    }

    /// Returns this model, to be shared by so many devices, each the given number of places behind the one before.
    fn subject<'a>(
        &'a self,
        (cluster, models, rounding): (&'a Cluster, &'a CostModels, Rounding),
        (degree, stride): (u32, u32),
    ) -> sharing::Subject<'a> {
        sharing::Subject {
            program: self.program(),
            graph: &self.graph,
            costs: &self.costs,
            inputs: &self.inputs,
            cluster,
            models,
            rounding,
            degree,
            links: sharing::links(cluster, degree, stride),
            of_groups: stride > 1,
            part: self.shared.as_ref(),
        }
    }

    /// Returns the workspace of a device's part of this model.
    fn one_device(&self, shared: SharedModel) -> Result<Self, Failure> {
        // The digest is that of the model.
        let digest = OnceCell::from(self.file.digest().to_string());
        let file = ModelFile { file: Arc::clone(&self.file.file), program: shared.program.clone(), digest };
        let built = graph::build(&file.program, &graph::BuildOptions { inputs: self.inputs.clone() });
        let graph = built.map_err(|errors| {
            Failure::bug(format!("sizes of a device's part are inconsistent: {}", errors.0[0]))
        })?;
        if graph.disagreements.len() > self.graph.disagreements.len() {
            let wrong = &graph.disagreements[graph.disagreements.len() - 1];
            let name = &graph.operator(wrong.operator).name;
            return Err(Failure::bug(format!(
                "a device's part of `{name}` would be {}, not {}",
                wrong.inferred, wrong.recorded
            )));
        }
        Ok(Self::new(file, graph, self.inputs.clone(), Some(shared)))
    }

    /// Returns the model under a plan: with its micro-batch size, and as one device's share if devices share layers.
    pub fn under(&self, plan: &Plan, models: &CostModels) -> Result<Cow<'_, Self>, Failure> {
        let own = self.of_plan(plan)?;
        Ok(own.shared_by(plan, models)?.map_or(own, Cow::Owned))
    }

    /// Returns one device's share under a plan whose devices share layers, with the micro-batch size of this model.
    pub fn shared_by(&self, plan: &Plan, models: &CostModels) -> Result<Option<Self>, Failure> {
        let LayerSharing::ByCuts(degree) = plan.sharing() else { return Ok(None) };
        let rounding = plan.predicted.times.as_ref().map_or(Rounding::Own, rounding_of);
        self.shared((&plan.cluster, models, rounding), degree, Way::of_plan(plan)).map(Some)
    }

    /// Returns the program in the trace.
    pub fn program(&self) -> &Program {
        &self.file.program
    }
}
