//! `model-analyze graph`: a picture of the model.
//!
//! The file's ending decides the format. The built-in renderer suffices; Graphviz runs only on request, with a time
//! limit.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use graph::{ModelGraph, OperatorCosts};
use schema::{Bytes, Flops};
use viz::{Amounts, Caption, Color, Depth, Diagram, Direction, Overlay};

use crate::{
    cost_models::CostModels, failure::Failure, files, model, operator_stages, output::Output, plan_file,
    workspace::Workspace,
};

mod converted;
mod graphviz;
mod program;

/// Shown while it works.
pub const WORKING: &str = "drawing the model";

/// Arguments of `graph`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  model-analyze graph resnet50.pt -o resnet50.svg
  model-analyze graph gpt2.pt -o gpt2.svg --depth 3 --color memory --direction LR
  model-analyze graph resnet50.pt -o stages.svg --plan plan.yaml
  model-analyze graph resnet50.pt -o resnet50.dot
  model-analyze graph resnet50.pt -o resnet50.png
  model-analyze graph resnet50.pt -o resnet50.json        then: model-explorer resnet50.json

Without --depth the deepest level with at most 150 boxes is drawn. Consecutive equal blocks are drawn once, with their number.
Norms and other small blocks stay closed; the arithmetic of masks and positions is one box, and so are consecutive reshapes
and copies, except at the deepest level; if the first level alone has more boxes, so is its arithmetic between other
boxes. Without -o the picture goes to standard output.")]
pub struct Graph {
    /// A traced model: an archive of torch.jit.save, or IR text
    model: PathBuf,

    /// File to write: F.svg, F.png or F.pdf (by rsvg-convert), F.dot, or F.json for Model Explorer
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Format, if the file's name does not tell it
    #[arg(long, value_enum)]
    format: Option<Kind>,

    /// How many levels of blocks to open; 1 shows the model's direct parts
    #[arg(long, short, value_parser = clap::value_parser!(u32).range(1..))]
    depth: Option<u32>,

    /// Meaning of the colours (default: stage with --plan, else family)
    #[arg(long, value_enum)]
    color: Option<ColorBy>,

    /// A plan whose stages are outlined
    #[arg(long, value_name = "PLAN")]
    plan: Option<PathBuf>,

    /// Side of the outputs, seen from the inputs
    #[arg(long, value_enum, default_value_t, ignore_case = true)]
    direction: Towards,

    /// Program that lays the picture out
    #[arg(long, value_enum, default_value_t)]
    renderer: Renderer,

    /// Sizes of parameters, which an IR text lacks: a state dict (.pt, .safetensors), an archive, or JSON {"path":
    /// [sizes]}
    #[arg(long, value_name = "FILE")]
    parameters: Option<PathBuf>,

    /// Shape of an input, in the order of `forward` or by name: [NAME=]SHAPE[:DTYPE]
    #[arg(long = "input", short, value_name = "INPUT", allow_hyphen_values = true)]
    inputs: Vec<String>,
}

/// The output format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Kind {
    /// A picture
    Svg,
    /// A picture in pixels, two per unit of the SVG; made by rsvg-convert
    Png,
    /// A picture to print; made by rsvg-convert
    Pdf,
    /// Graphviz's language
    Dot,
    /// Operators and the values between them, as JSON (.adjacency.json)
    Adjacency,
    /// A graph collection for Model Explorer
    Explorer,
    /// Node data for Model Explorer: the costs that --color names
    ExplorerCosts,
}

/// The meaning of colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ColorBy {
    /// Kind of operation
    Family,
    /// FLOPs of the forward pass
    Cost,
    /// Activations that autograd saves for the backward pass
    Memory,
    /// The plan's stages
    Stage,
    /// No meaning
    None,
}

/// The direction of the graph.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Towards {
    /// From top to bottom
    #[default]
    #[value(name = "TB")]
    Bottom,
    /// From left to right
    #[value(name = "LR")]
    Right,
}

/// The program that lays the picture out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Renderer {
    /// This program
    #[default]
    Own,
    /// Graphviz, where it is installed
    Dot,
}

/// A request for a picture.
#[derive(Clone, Copy, Debug)]
pub struct GraphRequest {
    kind: Kind,
    color: ColorBy,
    depth: Option<u32>,
    direction: Towards,
    renderer: Renderer,
}

impl GraphRequest {
    /// Requests a picture of the stages.
    pub fn of_stages() -> Self {
        Self {
            kind: Kind::Svg,
            color: ColorBy::Stage,
            depth: None,
            direction: Towards::default(),
            renderer: Renderer::default(),
        }
    }
}

impl Graph {
    /// Draws the model.
    pub fn run(self, output: &mut Output) -> Result<(), Failure> {
        let request = GraphRequest {
            kind: self.kind()?,
            color: self.color()?,
            depth: self.depth,
            direction: self.direction,
            renderer: self.renderer,
        };
        let workspace = Workspace::read_with(&self.model, &self.inputs, self.parameters.as_deref())?;
        tell_notes(&workspace);
        let plan = self.plan.as_ref().map(|path| plan_file::read_for(path, &workspace.file)).transpose()?;
        let models = CostModels::default();
        let shared = plan.as_ref().map(|plan| workspace.under(plan, &models)).transpose()?;
        let workspace = shared.as_deref().unwrap_or(&workspace);
        let stages = match (&self.plan, plan) {
            (Some(path), Some(plan)) => {
                Some(operator_stages::of_plan(&path.display().to_string(), &plan, workspace.program())?)
            }
            _ => None,
        };
        let text = graph(workspace, stages.as_deref(), &request)?;
        let ending = match request.kind {
            Kind::Png => Some("png"),
            Kind::Pdf => Some("pdf"),
            _ => None,
        };
        if let Some(ending) = ending {
            let picture = converted::convert(&text, ending)?;
            return match &self.output {
                Some(path) if path.as_os_str() != "-" => files::write(path, &picture),
                _ => output.bytes(&picture),
            };
        }
        match &self.output {
            Some(path) if path.as_os_str() != "-" => files::write(path, files::signed(path, text).as_bytes()),
            _ => output.document(&text),
        }
    }

    /// Decides the format, from the option or from the file's name.
    fn kind(&self) -> Result<Kind, Failure> {
        let name = self.output.as_deref().filter(|path| path.as_os_str() != "-");
        if let Some(kind) = self.format {
            return Ok(kind);
        }
        let Some(path) = name else { return Ok(Kind::Svg) };
        let ending =
            path.extension().and_then(|ending| ending.to_str()).unwrap_or_default().to_ascii_lowercase();
        match ending.as_str() {
            "svg" => Ok(Kind::Svg),
            "png" => Ok(Kind::Png),
            "pdf" => Ok(Kind::Pdf),
            "dot" | "gv" => Ok(Kind::Dot),
            "json" if path.with_extension("").extension().is_some_and(|inner| inner == "adjacency") => {
                Ok(Kind::Adjacency)
            }
            "json" => Ok(Kind::Explorer),
            "html" | "htm" => Err(Failure::input("`graph` writes no HTML")
                .with_hint("`model-analyze report` writes a page with the model, its plan and its timeline; write an .svg here")),
            "" => Err(Failure::input(format!("{} does not tell the format", path.display()))
                .with_hint("end it with .svg, .png, .pdf, .dot or .json, or give --format")),
            other => Err(Failure::input(format!("cannot write a .{other} file"))
                .with_hint("end it with .svg, .png, .pdf, .dot or .json, or give --format")),
        }
    }

    fn color(&self) -> Result<ColorBy, Failure> {
        match (self.color, &self.plan) {
            (Some(ColorBy::Stage), None) => Err(Failure::input("there are no stages to colour")
                .with_hint("name the plan with --plan plan.yaml")),
            (Some(color), _) => Ok(color),
            (None, Some(_)) => Ok(ColorBy::Stage),
            (None, None) => Ok(ColorBy::Family),
        }
    }
}

/// Prints notes about shapes that could not be inferred exactly.
pub fn tell_notes(workspace: &Workspace) {
    let notes = crate::failure::shown_notes(model::notes(workspace.program()).collect());
    notes.iter().for_each(crate::failure::note);
}

/// Draws a model, with the stages of its operators if there are any.
pub fn graph(
    workspace: &Workspace,
    stages: Option<&[Option<u32>]>,
    request: &GraphRequest,
) -> Result<String, Failure> {
    let values = amounts(&workspace.graph, &workspace.costs, request.color);
    let overlay = Overlay {
        amounts: values.as_ref().map(|(name, values, show)| Amounts { name: name.to_string(), values, show }),
        stages,
    };
    let mut diagram = viz::from_graph(&workspace.graph, &overlay);
    if workspace.graph.name.is_empty()
        && let Some(name) = workspace.file.path().file_stem()
    {
        diagram.set_title(&name.to_string_lossy());
    }
    match request.kind {
        Kind::Adjacency => {
            let document = graph::document(&workspace.graph, &workspace.costs);
            Ok(format!("{}\n", serde_json::to_string(&document).map_err(Failure::input)?))
        }
        Kind::Explorer => Ok(format!("{}\n", viz::explorer(&diagram))),
        Kind::ExplorerCosts => match viz::explorer_costs(&diagram) {
            Some(costs) => Ok(format!("{costs}\n")),
            None => Err(Failure::input("there are no costs to write")
                .with_hint("choose --color cost or --color memory")),
        },
        Kind::Svg | Kind::Png | Kind::Pdf | Kind::Dot => picture(workspace, &diagram, request),
    }
}

fn picture(workspace: &Workspace, diagram: &Diagram, request: &GraphRequest) -> Result<String, Failure> {
    let direction = match request.direction {
        Towards::Bottom => Direction::TopToBottom,
        Towards::Right => Direction::LeftToRight,
    };
    let (view, levels) = viz::view(diagram, request.depth.map_or(Depth::Automatic, Depth::At));
    if request.kind == Kind::Dot {
        return Ok(viz::dot(&view, direction));
    }
    if request.renderer == Renderer::Dot {
        match graphviz::render(&viz::dot(&view, direction), view.boxes().len()) {
            Ok(svg) => return Ok(svg),
            Err(reason) => crate::failure::note(format_args!("{reason}; drawn without Graphviz")),
        }
    }
    let scene = viz::lay_out_diagram(&view, direction)
        .map_err(|error| Failure::input(format!("{}: {error}", workspace.file.path().display())))?;
    let mut parts = vec![
        format!("{} parameters", viz::count(workspace.graph.parameters())),
        match workspace.costs.total() {
            total if total.uncounted == 0 => Flops(total.forward_flops).to_string(),
            total if total.forward_flops == 0 => "an unknown number of FLOP".to_string(),
            total => format!("{} plus an unknown number", Flops(total.forward_flops)),
        },
        format!("{} operators", workspace.graph.operators.len()),
    ];
    if levels.open < levels.of {
        parts.push(format!("{} of {} levels shown", levels.open, levels.of));
    }
    let caption = Caption { title: diagram.boxes()[0].title.clone(), subtitle: parts.join(" · ") };
    let color = match request.color {
        ColorBy::Family => Color::Family,
        ColorBy::Cost => Color::Cost,
        ColorBy::Memory => Color::Memory,
        ColorBy::Stage => Color::Stage,
        ColorBy::None => Color::None,
    };
    Ok(viz::draw(&view, &scene, &caption, color))
}

/// Draws a model coloured by amounts: their name, one per operator, and their format.
pub(super) fn coloured(
    workspace: &Workspace,
    (name, values, show): (&str, &[f64], &dyn Fn(f64) -> String),
    depth: Option<u32>,
) -> Result<String, Failure> {
    let overlay = Overlay { amounts: Some(Amounts { name: name.to_string(), values, show }), stages: None };
    let mut diagram = viz::from_graph(&workspace.graph, &overlay);
    if workspace.graph.name.is_empty() {
        diagram.set_title(&workspace.file.stem());
    }
    let request = GraphRequest { color: ColorBy::Cost, depth, ..GraphRequest::of_stages() };
    picture(workspace, &diagram, &request)
}

/// Checks the picture's format by its name, before any work is done.
pub(super) fn check_picture(path: &Path) -> Result<(), Failure> {
    match path.extension().and_then(|ending| ending.to_str()) {
        Some("svg" | "png" | "pdf") => Ok(()),
        _ => Err(Failure::input(format!("{}: the picture must be an .svg, .png or .pdf", path.display()))
            .with_hint("end it with .svg, .png or .pdf")),
    }
}

/// Writes a picture in the format of its name.
pub(super) fn write_picture(path: &Path, svg: String) -> Result<(), Failure> {
    match path.extension().and_then(|ending| ending.to_str()) {
        Some(ending @ ("png" | "pdf")) => files::write(path, &converted::convert(&svg, ending)?),
        _ => files::write(path, files::signed(path, svg).as_bytes()),
    }
}

type ShowNumber = fn(f64) -> String;

/// Returns the name of the boxes' amounts, one amount per operator, and their format.
fn amounts(
    graph: &ModelGraph,
    costs: &OperatorCosts,
    color: ColorBy,
) -> Option<(&'static str, Vec<f64>, ShowNumber)> {
    let each = |of: fn(&graph::OperatorCost) -> u64| {
        graph.operators.iter().map(|operator| of(&costs.operator(operator.id)) as f64).collect()
    };
    match color {
        ColorBy::Cost => {
            Some(("forward FLOPs", each(|cost| cost.forward_flops), |n| Flops(n as u64).to_string()))
        }
        ColorBy::Memory => {
            Some(("saved activations", each(|cost| cost.saved_bytes), |n| Bytes(n as u64).to_string()))
        }
        ColorBy::Family | ColorBy::Stage | ColorBy::None => None,
    }
}
