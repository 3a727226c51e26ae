//! The source of an emitted Python stage, parsed line by line: it is refused unless every line is in the grammar of
//! stages.
//!
//! ```text
//! origin, docstring, imports, tables of tensors, helpers as they ship, operators of other libraries, scripted functions
//! classes of blocks that are written once: forward
//! BLOCKS, the modules that are of these classes
//! class Stage(Holder):
//!     __init__ as it ships, blocks that keep no activations, forward
//! ```
//!
//! An accepted source compiles: strings end on their line, brackets are closed, names are not keywords, no argument
//! occurs twice.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Fault,
    expression::{Expr, expression, is_name, pair},
    source::{is_value, operator},
};
use crate::{
    allowed::is_foreign,
    names::is_reserved,
    python::{is_child, may_be_class, shipped},
};

/// Imports that a stage may have.
const IMPORTS: &[&str] = &[
    "import importlib.util",
    "import threading",
    "import zlib",
    "from contextlib import contextmanager, nullcontext",
    "from pathlib import Path",
    "import torch",
    "import torch.nn.functional as F  # noqa: F401",
    "from torch import nn",
    "from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts",
    "import torchvision  # noqa: F401  (its operators)",
];

/// Tables of tensors.
const TABLES: &[&str] = &["PARAMETERS", "FROZEN", "BUFFERS", "CONSTANTS", "TIED", "CUTS"];

/// The code of a stage.
pub(super) struct Page<'t> {
    methods: BTreeMap<&'t str, Vec<Statement<'t>>>,
    /// `forward` of each class of blocks.
    classes: BTreeMap<&'t str, Vec<Statement<'t>>>,
    /// The class of each module that has one.
    blocks: BTreeMap<String, &'t str>,
}

/// A line of a method.
pub(super) struct Statement<'t> {
    /// The computed or returned value.
    pub value: Option<Expr<'t>>,
    /// The module that is called, by its path from `self` on.
    pub module: Option<String>,
    /// Its comment; `None` for lines that the stage needs itself.
    pub comment: Option<&'t str>,
}

impl<'t> Page<'t> {
    /// Parses a source.
    pub fn read(source: &'t str) -> Result<Self, Fault> {
        let mut reader = Reader { source, rest: source };
        match reader.page() {
            Some(page) => Ok(page),
            None => {
                let line = source[..source.len() - reader.rest.len()].matches('\n').count() + 1;
                let text = reader.rest.lines().next().unwrap_or_default().chars().take(200).collect();
                Err(Fault::Line { line, text })
            }
        }
    }

    /// Returns the lines of `forward`.
    pub fn forward(&self) -> &[Statement<'t>] {
        self.method("forward").unwrap_or_default()
    }

    /// Returns the lines of the class that a module is of.
    pub fn block(&self, path: &str) -> Option<&[Statement<'t>]> {
        self.classes.get(self.blocks.get(path)?).map(Vec::as_slice)
    }

    /// Returns the lines of a method.
    pub fn method(&self, name: &str) -> Option<&[Statement<'t>]> {
        self.methods.get(name).map(Vec::as_slice)
    }
}

impl<'t> Statement<'t> {
    /// Parses a line of a method, without its indentation.
    pub fn read(line: &'t str) -> Option<Self> {
        let end = outside(line, "  # ").unwrap_or(line.len());
        let (code, comment) = (&line[..end], line.get(end + 4..));
        if let Some(returned) = code.strip_prefix("return ") {
            let value = expression(returned)?;
            return is_value(&value).then_some(Self { value: None, module: None, comment });
        }
        let code = code.strip_prefix("if self.training: ").unwrap_or(code);
        let code = code.strip_prefix("with kept: ").unwrap_or(code);
        let (code, freed) = match outside(code, "; del ") {
            Some(at) => (&code[..at], Some(&code[at + 6..])),
            None => (code, None),
        };
        let (targets, call) = match outside(code, " = ") {
            Some(at) => (Some(&code[..at]), &code[at + 3..]),
            None => (None, code),
        };
        let targets = targets
            .map(|text| text.strip_prefix('(').and_then(|text| text.strip_suffix(",)")).unwrap_or(text));
        let mut names = targets.into_iter().chain(freed).flat_map(|names| names.split(", "));
        let value = expression(call)?;
        let module = called_module(&value);
        let is_right = names.all(is_variable) && (module.is_some() || operator(&value).is_some());
        is_right.then_some(Self { value: Some(value), module, comment })
    }
}

/// Tells whether a name may be assigned: not one that the code of stages uses otherwise.
fn is_variable(name: &str) -> bool {
    is_name(name) && !name.starts_with("__") && (!is_reserved(name) || name == "device")
}

struct Reader<'t> {
    source: &'t str,
    rest: &'t str,
}

impl<'t> Reader<'t> {
    /// Consumes exactly this text.
    fn take(&mut self, text: &str) -> Option<()> {
        self.rest = self.rest.strip_prefix(text)?;
        Some(())
    }

    /// Consumes a line if it is valid.
    fn line<T>(&mut self, read: impl FnOnce(&'t str) -> Option<T>) -> Option<T> {
        let (line, rest) = self.rest.split_once('\n')?;
        let found = read(line)?;
        self.rest = rest;
        Some(found)
    }

    fn page(&mut self) -> Option<Page<'t>> {
        // Python also ends lines at characters other than `\n`, and refuses some of them.
        if let Some(at) = self.source.find(|c: char| c.is_control() && c != '\n') {
            self.rest = &self.source[self.source[..at].rfind('\n').map_or(0, |at| at + 1)..];
            return None;
        }
        // The line with the writing program and the model.
        if self.rest.starts_with("# ") {
            self.line(|_| Some(()))?;
        }
        self.docstring()?;
        while self.line(|line| (line.is_empty() || IMPORTS.contains(&line)).then_some(())).is_some() {}
        let tables = self.rest;
        while self.rest.starts_with('#') {
            self.table()?;
        }
        let is_sharded = tables[..tables.len() - self.rest.len()].contains("\nCUTS = {\n");
        self.helpers(is_sharded)?;
        self.operators()?;
        self.scripted()?;
        let (classes, blocks) = self.blocks()?;
        self.take("\n\nclass Stage(Holder):\n")?;
        self.about()?;
        let init = [true, false].map(|training| shipped::init(is_sharded, training));
        init.iter().find_map(|init| self.take(init))?;
        let methods = self.methods()?;
        Some(Page { methods, classes, blocks })
    }

    /// Reads the line that says what a class is.
    fn about(&mut self) -> Option<()> {
        self.line(|line| {
            let about = line.strip_prefix("    \"\"\"")?.strip_suffix("\"\"\"")?;
            (!about.contains(['"', '\\'])).then_some(())
        })?;
        self.take("\n")
    }

    /// Reads the classes of blocks, and which modules are of them.
    #[expect(clippy::type_complexity, reason = "two tables")]
    fn blocks(&mut self) -> Option<(BTreeMap<&'t str, Vec<Statement<'t>>>, BTreeMap<String, &'t str>)> {
        let mut classes = BTreeMap::new();
        while self.rest.starts_with("\n\nclass ") {
            self.take("\n\n")?;
            let name = self.line(|line| {
                let name = line.strip_prefix("class ")?.strip_suffix("(Holder):")?;
                (is_name(name) && may_be_class(name)).then_some(name)
            })?;
            self.about()?;
            self.line(|line| head(line).filter(|method| *method == "forward"))?;
            if classes.insert(name, self.statements()?).is_some() {
                return None;
            }
        }
        self.take("\n\n# Blocks that are written once: these modules are of these classes.\nBLOCKS = {\n")?;
        let mut blocks = BTreeMap::new();
        while self.rest.starts_with("    ") {
            self.line(|line| match pair(line.strip_prefix("    ")?)? {
                (Expr::Text(path), Expr::Name(class))
                    if classes.contains_key(class) && !path.contains('\\') =>
                {
                    blocks.insert(path.to_string(), class).is_none().then_some(())
                }
                _ => None,
            })?;
        }
        self.take("}\n")?;
        Some((classes, blocks))
    }

    /// Reads the lines of a method.
    fn statements(&mut self) -> Option<Vec<Statement<'t>>> {
        let mut statements = Vec::new();
        while self.rest.starts_with("        ") {
            statements.push(self.line(|line| Statement::read(line.strip_prefix("        ")?))?);
        }
        (!statements.is_empty()).then_some(statements)
    }

    fn docstring(&mut self) -> Option<()> {
        self.take("\"\"\"")?;
        let end = self.rest.find("\"\"\"\n\n").filter(|end| !self.rest[..*end].contains(['"', '\\']))?;
        self.rest = &self.rest[end + 5..];
        Some(())
    }

    /// Parses `NAME = {`, lines of names and values, `}`.
    fn table(&mut self) -> Option<()> {
        self.line(|line| line.starts_with("# ").then_some(()))?;
        self.line(|line| TABLES.contains(&line.strip_suffix(" = {")?).then_some(()))?;
        while self.rest.starts_with("    ") {
            self.line(|line| {
                let (key, value) = pair(line.strip_prefix("    ")?)?;
                (matches!(key, Expr::Text(_)) && is_value(&value)).then_some(())
            })?;
        }
        self.take("}\n")
    }

    /// Parses the helpers, which are the same in every stage except for two names.
    fn helpers(&mut self, is_sharded: bool) -> Option<()> {
        let stage = self.rest.split_once("with_name(\"stage_")?.1.split('.').next()?;
        let constants = self.rest.split_once("_holder(root, [\"")?.1.split('"').next()?;
        if !stage.bytes().all(|b| b.is_ascii_digit()) || !is_name(constants) {
            return None;
        }
        self.take("\n\n")?;
        let helpers = shipped::helpers(stage, constants, is_sharded);
        let (before, after) = helpers.split_once("\nWEIGHTS = None\n")?;
        self.take(before)?;
        self.take("\n")?;
        self.line(weights)?;
        self.take(after)?;
        let saves = self.take(shipped::SAVING).is_some();
        (saves || !self.rest.contains("        with kept: ")).then_some(())
    }

    /// Parses the names of other libraries' operators.
    fn operators(&mut self) -> Option<()> {
        if !self.rest.starts_with(shipped::OPERATORS) {
            return Some(());
        }
        self.take(shipped::OPERATORS)?;
        while self.rest.starts_with("        ") {
            self.line(|line| match expression(line.strip_prefix("        ")?.strip_suffix(',')?)? {
                Expr::Text(name) if is_foreign(name) => Some(()),
                _ => None,
            })?;
        }
        self.take("    )\n}\n")
    }

    /// Parses scripted functions: each a name and quoted lines.
    fn scripted(&mut self) -> Option<()> {
        if !self.rest.starts_with(shipped::SCRIPTED) {
            return Some(());
        }
        self.take(shipped::SCRIPTED)?;
        while self.rest.starts_with("\n\n_opaque_") {
            self.take("\n\n")?;
            self.line(|line| {
                let number = line.strip_prefix("_opaque_")?.strip_suffix(" = _scripted(")?;
                number.bytes().all(|b| b.is_ascii_digit()).then_some(())
            })?;
            while self.rest.starts_with("    ") {
                self.line(|line| {
                    let text = line.strip_prefix("    ")?;
                    let text = text.strip_suffix(',').unwrap_or(text);
                    matches!(expression(text)?, Expr::Text(_)).then_some(())
                })?;
            }
            self.take(")\n")?;
        }
        Some(())
    }

    fn methods(&mut self) -> Option<BTreeMap<&'t str, Vec<Statement<'t>>>> {
        let mut methods = BTreeMap::new();
        while !self.rest.is_empty() {
            self.take("\n")?;
            let name = self.line(head)?;
            if methods.insert(name, self.statements()?).is_some() {
                return None;
            }
        }
        Some(methods)
    }
}

/// Returns the path of the module that an expression calls: `self.layer[0](x)`.
fn called_module(expr: &Expr<'_>) -> Option<String> {
    let Expr::Call(callee, arguments) = expr else { return None };
    let path = path_of(callee)?;
    (!path.is_empty() && arguments.iter().all(is_value)).then(|| path.join("."))
}

/// Returns the names of `self.layer[0]["a-b"]`, after `self`: names of children, which modules use for nothing else.
pub(super) fn path_of<'t>(expr: &Expr<'t>) -> Option<Vec<&'t str>> {
    let (base, name) = match expr {
        Expr::Name("self") => return Some(Vec::new()),
        Expr::Attribute(base, name) if is_child(name) && *name != "shard" => (base, *name),
        Expr::Index(base, name) => match &name[..] {
            [Expr::Text(name)] if !name.contains('\\') => (base, *name),
            [Expr::Number(name)] => (base, *name),
            _ => return None,
        },
        _ => return None,
    };
    let mut path = path_of(base)?;
    path.push(name);
    Some(path)
}

/// Parses `    def block_0(self, x):  # path`.
fn head(line: &str) -> Option<&str> {
    let (name, rest) = line.strip_prefix("    def ")?.split_once("(self")?;
    let (parameters, rest) = rest.split_once("):")?;
    let is_block = name.strip_prefix("block_").is_some_and(|n| n.bytes().all(|b| b.is_ascii_digit()));
    let mut known = BTreeSet::new();
    let are_right = match parameters.strip_prefix(", ") {
        Some(names) => names.split(", ").all(|name| is_variable(name) && known.insert(name)),
        None => parameters.is_empty(),
    };
    let is_right =
        are_right && (is_block || name == "forward") && (rest.is_empty() || rest.starts_with("  # "));
    is_right.then_some(name)
}

/// Parses the size and the checksum of the weights, or that they are unknown.
fn weights(line: &str) -> Option<()> {
    let known = line.strip_prefix("WEIGHTS = ")?;
    let is_known = || {
        let (size, checksum) = known.strip_prefix('(')?.strip_suffix("\")")?.split_once(", \"")?;
        let is_right =
            is_number(size) && checksum.len() == 8 && checksum.bytes().all(|b| b.is_ascii_hexdigit());
        is_right.then_some(())
    };
    if known == "None" { Some(()) } else { is_known() }
}

fn is_number(text: &str) -> bool {
    matches!(expression(text), Some(Expr::Number(_))) && text.bytes().all(|b| b.is_ascii_digit())
}

/// Returns the position of a text outside of quotes and brackets.
fn outside(line: &str, wanted: &str) -> Option<usize> {
    let (mut depth, mut is_quoted, mut is_escaped) = (0_usize, false, false);
    for (at, c) in line.char_indices() {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' if is_quoted => is_escaped = true,
            '"' => is_quoted = !is_quoted,
            _ if is_quoted => {}
            _ if depth == 0 && line[at..].starts_with(wanted) => return Some(at),
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    None
}
