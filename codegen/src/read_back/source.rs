//! Reads a Python stage back: the operator and the module of each line.
//!
//! A source is parsed completely (`page.rs`), whoever wrote it: a line outside the grammar of stages is a fault. Python
//! has several notations for one operator (`x[:, 2:5]` is a slice, `a + b` an addition): those of the source and of the
//! model are first normalised. Called functions are compared by their whole path, never by its last name.

use std::collections::BTreeMap;

use operators::{Arithmetic, Python, ShapeRule};
use tracer::{NodeId, Program};

use super::{
    Fault,
    expression::Expr,
    page::{Page, Statement, path_of},
};
use crate::{
    allowed::{is_foreign, is_listed},
    location,
    names::comment,
    nodes::{INNER, OUTER, is_detour, rule_of, split},
};

/// A line that runs an operator.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Line {
    /// The module, by the line's comment.
    place: String,
    /// The operator.
    word: String,
}

/// The operators of a model, for all its sources.
pub(super) struct Sources {
    model: Vec<Line>,
    /// How often each must run, and how often it was found.
    counts: BTreeMap<Line, (usize, usize)>,
}

impl Sources {
    /// Lists the operators that must run.
    pub fn new(program: &Program) -> Self {
        let nodes = program.nodes.iter().enumerate().filter(|(_, node)| !is_detour(&node.operator));
        let lines = nodes.map(|(index, node)| Line {
            place: comment(&location::path(program, NodeId(index as u32))),
            word: word(&node.operator),
        });
        let model: Vec<Line> = lines.filter(|line| !passes(&line.word)).collect();
        let mut counts = BTreeMap::new();
        for line in &model {
            counts.entry(line.clone()).or_insert((0, 0)).0 += 1;
        }
        Self { model, counts }
    }

    /// Parses a stage: its operators are the model's, in the model's order, and at most `repeated` run again.
    pub fn read(&mut self, source: &str, repeated: usize) -> Result<(), Fault> {
        let mut again = 0;
        let mut at = 0;
        let mut after = "nothing".to_string();
        for mut line in lines(source, MOST_AN_OPERATOR * (self.model.len() + 1000))? {
            let is_again = !self.counts.contains_key(&line) && line.place.ends_with(AGAIN);
            if is_again {
                line.place.truncate(line.place.len() - AGAIN.len());
                again += 1;
            }
            let operator = format!("{} ({})", line.word, line.place);
            let Some(count) = self.counts.get_mut(&line) else {
                return Err(Fault::Operators { operator, expected: 0, found: 1 });
            };
            count.1 += usize::from(!is_again);
            match self.model[at..].iter().position(|next| *next == line) {
                Some(ahead) => at += ahead + 1,
                None => return Err(Fault::Order { operator, after }),
            }
            after = format!("`{operator}`");
        }
        if again > repeated {
            Err(Fault::Operators {
                operator: "recomputed operators".into(),
                expected: repeated,
                found: again,
            })
        } else {
            Ok(())
        }
    }

    /// Every operator is owned by one stage, once.
    pub fn finish(&self) -> Result<(), Fault> {
        let wrong = self.counts.iter().find(|(_, (expected, found))| expected != found);
        wrong.map_or(Ok(()), |(line, &(expected, found))| {
            Err(Fault::Operators { operator: format!("{} ({})", line.word, line.place), expected, found })
        })
    }
}

/// Marks the comment of a line that another stage owns.
const AGAIN: &str = " (again)";

/// The common name of convolutions of any form.
const CONVOLUTION: &str = "conv";

/// Tells whether an operator is a step that a cut may add or remove.
fn passes(word: &str) -> bool {
    is_detour(&format!("aten::{word}"))
        || is_detour(&format!("prim::{word}"))
        || Arithmetic::of(word) == Arithmetic::Item
        || matches!(rule_of(word), ShapeRule::List | ShapeRule::Dictionary)
}

/// Returns the normalised name of an operator by its qualified name. Only torch's own have several notations.
fn word(operator: &str) -> String {
    let (space, name) = split(operator);
    if !matches!(space, "aten" | "prim") {
        return operator.to_string();
    }
    // In-place operators of the model may be out-of-place in a stage.
    let plain = if name.ends_with("__") { name } else { name.strip_suffix('_').unwrap_or(name) };
    let has_function = || operators::find(plain).is_some_and(|row| row.python == Python::Torch);
    let numbers = Arithmetic::of(plain);
    let named = match (rule_of(plain), numbers) {
        (_, Arithmetic::Divide | Arithmetic::FloorDivide) => numbers.sign().and_then(operators::signed),
        (_, Arithmetic::ToFloat | Arithmetic::ToFloatImplicitly) => Some("float"),
        (ShapeRule::Slice | ShapeRule::Item, _) => Some("[]"),
        (ShapeRule::AnyConvolution, _) => Some(CONVOLUTION),
        (ShapeRule::Convolution | ShapeRule::TransposedConvolution, _) if has_function() => Some(CONVOLUTION),
        _ => None,
    };
    named.unwrap_or(plain).to_string()
}

/// The most lines of code for an operator of the model: an unchanged source has calls and return statements of blocks in addition.
const MOST_AN_OPERATOR: usize = 10;

/// Lists the lines of `forward` that run an operator, in order; methods and blocks that it calls are inlined.
fn lines(source: &str, most: usize) -> Result<Vec<Line>, Fault> {
    let page = Page::read(source)?;
    let mut walk = Walk { page: &page, found: Vec::new(), left: most };
    walk.lines(page.forward(), None)?;
    Ok(walk.found)
}

/// A call of a block: its path, and the number of its call.
type Called = (String, u32);

/// Walks a source in the order of execution.
struct Walk<'p, 't> {
    page: &'p Page<'t>,
    found: Vec<Line>,
    /// Number of lines left: in a changed source, blocks could call each other.
    left: usize,
}

impl<'p, 't> Walk<'p, 't> {
    /// Walks the lines of the stage, or of a block.
    fn lines(&mut self, lines: &'p [Statement<'t>], within: Option<&Called>) -> Result<(), Fault> {
        for line in lines {
            let Some(left) = self.left.checked_sub(1) else {
                return Err(Fault::Unreadable("its blocks call more operators than the model has".into()));
            };
            self.left = left;
            if let Some(method) = method(line).and_then(|name| self.page.method(name)) {
                self.lines(method, within)?;
                continue;
            }
            let wrapped = || wrapped(line).map(|path| path.join("."));
            if let Some(own) = line.module.clone().or_else(wrapped) {
                let path = within.map_or_else(|| own.clone(), |(block, _)| format!("{block}.{own}"));
                if let Some(block) = self.page.block(&path) {
                    let number = line.comment.map_or(1, |comment| call_of(comment, within).1);
                    self.lines(block, Some(&(path, number)))?;
                    continue;
                }
                let runs = line.value.as_ref().and_then(operator);
                if runs.is_none_or(|runs| runs == "prim::Opaque") {
                    return Err(Fault::Unreadable(format!("it calls `self.{own}`, which is not a block")));
                }
            }
            self.found.extend(read(line).map(|line| Line { place: absolute(&line.place, within), ..line }));
        }
        Ok(())
    }
}

/// Returns the place in a comment, relative to its block, without the number of its call, and that number.
fn call_of<'c>(comment: &'c str, within: Option<&Called>) -> (&'c str, u32) {
    let place = comment.split(": ").next().unwrap_or(comment);
    let numbered = place.strip_suffix(')').and_then(|text| text.rsplit_once(" (call "));
    match numbered.and_then(|(place, number)| Some((place, number.parse().ok()?))) {
        Some(found) => found,
        // In a block the number is that of the block.
        None => (place, within.filter(|_| place.starts_with('.')).map_or(1, |(_, number)| *number)),
    }
}

/// Returns the place in the model that a comment means.
fn absolute(comment: &str, within: Option<&Called>) -> String {
    let Some((block, _)) = within.filter(|_| comment.starts_with('.')) else { return comment.to_string() };
    let (rest, number) = call_of(comment, within);
    let rest = if rest == "." { "" } else { rest };
    if number > 1 { format!("{block}{rest} (call {number})") } else { format!("{block}{rest}") }
}

/// Returns the arguments of a line that calls the helpers for blocks that save no activations.
fn handed<'l, 't>(statement: &'l Statement<'t>) -> &'l [Expr<'t>] {
    match &statement.value {
        Some(Expr::Call(callee, arguments)) if matches!(**callee, Expr::Name("again" | "on_host")) => {
            arguments
        }
        _ => &[],
    }
}

/// Returns the method that a line passes to these helpers.
fn method<'t>(statement: &Statement<'t>) -> Option<&'t str> {
    handed(statement).iter().find_map(|argument| match argument.path()?[..] {
        ["self", name] if name.starts_with("block_") => Some(name),
        _ => None,
    })
}

/// Returns the path of the module that a line passes to these helpers, after them and the stage.
fn wrapped<'t>(statement: &Statement<'t>) -> Option<Vec<&'t str>> {
    let is_helper = |expr: &&Expr<'_>| matches!(expr, Expr::Name("self" | "again"));
    handed(statement).iter().find(|expr| !is_helper(expr)).and_then(path_of).filter(|path| !path.is_empty())
}

/// Returns the operator of a statement.
fn read(statement: &Statement<'_>) -> Option<Line> {
    let place = statement.comment?;
    let value = statement.value.as_ref()?;
    // A number that another stage sent as a tensor.
    let is_boxed = |expr: &Expr<'_>| matches!(expr, Expr::Name(name) if name.ends_with("__boxed"));
    let is_unboxed = match value {
        Expr::Call(callee, arguments) => match &**callee {
            Expr::Attribute(base, "tolist") => is_boxed(base),
            _ => arguments.iter().any(is_boxed),
        },
        _ => false,
    };
    let word = word(&operator(value)?);
    (!is_unboxed && !passes(&word)).then(|| Line { place: place.to_string(), word })
}

/// Returns the operator of an expression; `None` for expressions that no stage contains.
///
/// A call of `torch` or of a name space is an operator by its whole path, and nothing is reached through another call.
pub(super) fn operator(expr: &Expr<'_>) -> Option<String> {
    match expr {
        Expr::Minus(value) if is_value(value) => Some(operators::NEGATION.into()),
        Expr::Sign(sign, operands) if operands.iter().all(is_value) => {
            operators::signed(sign).map(|name| format!("aten::{name}"))
        }
        Expr::Index(base, bounds) if is_value(base) && bounds.iter().all(is_value) => {
            Some(operators::SLICE.into())
        }
        Expr::Call(callee, arguments) => {
            if let (Expr::Name("list"), [inner @ Expr::Call(..)]) = (&**callee, &arguments[..]) {
                return operator(inner);
            }
            if !arguments.iter().all(is_value) {
                return None;
            }
            called(callee)
        }
        Expr::Attribute(base, name)
            if is_tensor(base)
                && let Some(operator) = operators::python_attribute(name) =>
        {
            Some(operator.into())
        }
        // An operand by itself is unpacked.
        other => is_value(other).then(|| "prim::ListUnpack".into()),
    }
}

/// Returns the operator of a callee.
fn called(callee: &Expr<'_>) -> Option<String> {
    let listed = |name: String| is_listed(&name).then_some(name);
    if let Some(path) = callee.path() {
        match path[..] {
            ["torch" | "F", name] => return listed(format!("aten::{name}")),
            ["torch", "ops", space, name] | ["torch", "ops", space, name, _] => {
                return listed(format!("{space}::{name}"));
            }
            ["torch" | "F", ..] => return None,
            // Operators on shared layers.
            ["self", "shard", name] | ["self", "shard", OUTER, name] => {
                let space = if path.len() > 3 { OUTER } else { INNER };
                let name = format!("shard_{name}");
                return operators::find(&name).map(|_| format!("{space}::{name}"));
            }
            [name] => {
                let is_opaque = |name: &str| {
                    matches!(name, "again" | "on_host")
                        || name
                            .strip_prefix("_opaque_")
                            .is_some_and(|n| n.bytes().all(|b| b.is_ascii_digit()))
                };
                return operators::python_function(name)
                    .or_else(|| is_opaque(name).then_some("prim::Opaque"))
                    .map(Into::into);
            }
            _ => {}
        }
    }
    match callee {
        Expr::Attribute(base, name) if is_value(base) => {
            listed(format!("aten::{name}")).or_else(|| listed(format!("prim::{name}")))
        }
        Expr::Index(base, name) => match (&**base, &name[..]) {
            (Expr::Name("_operators"), [Expr::Text(name)]) if is_foreign(name) => Some((*name).to_string()),
            _ => None,
        },
        _ => None,
    }
}

/// Tells whether an expression is a tensor's name, or a path in the module.
fn is_tensor(expr: &Expr<'_>) -> bool {
    match expr {
        Expr::Name(name) => !matches!(*name, "torch" | "F" | "nn"),
        Expr::Index(base, name) => is_tensor(base) && name.iter().all(is_value),
        Expr::Attribute(base, name) => !name.starts_with("__") && is_of_module(base),
        _ => false,
    }
}

fn is_of_module(expr: &Expr<'_>) -> bool {
    match expr {
        Expr::Name(name) => *name == "self",
        Expr::Index(base, name) => is_of_module(base) && name.iter().all(is_value),
        Expr::Attribute(base, name) => !name.starts_with("__") && is_of_module(base),
        _ => false,
    }
}

/// Tells whether an expression is an operand: it runs nothing except constructors of constants.
pub(super) fn is_value(expr: &Expr<'_>) -> bool {
    match expr {
        Expr::Number(_) | Expr::Text(_) => true,
        Expr::Name(_) | Expr::Index(..) => is_tensor(expr),
        // `torch.float32`, `torch.inf`.
        Expr::Attribute(base, name) => {
            is_tensor(expr) || (**base == Expr::Name("torch") && !name.starts_with('_'))
        }
        Expr::Group(items) => items.iter().all(is_value),
        Expr::Minus(value) => is_value(value),
        Expr::Sign(_, operands) => operands.iter().all(is_value),
        Expr::Call(callee, arguments) => {
            let makes_constant = match &**callee {
                Expr::Name(name) => matches!(*name, "int" | "float" | "bool" | "complex"),
                callee => matches!(callee.path().as_deref(), Some(["torch", "device" | "tensor"])),
            };
            makes_constant && arguments.iter().all(is_value)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_spelling_says_its_operator() {
        let check = |line: &str, place: &str, word: &str| {
            let expected = Line { place: place.into(), word: word.into() };
            let statement = Statement::read(line).unwrap();
            assert_eq!(read(&statement), Some(expected), "{line}");
        };
        check("y = torch.relu(x); del x  # relu (call 2)", "relu (call 2)", "relu");
        check("y = torch.ops.aten.index.Tensor(x, [i])  # a.b", "a.b", "index");
        check("y = torch.ops.torchvision.nms(x, y, 0.5)  # a", "a", "torchvision::nms");
        check("y = torch.conv_transpose2d(x, self.up[0][\"b-0\"].weight)  # up.0", "up.0", "conv");
        check("y = self.up[0].weight.view([1, -1])  # up.0", "up.0", "view");
        check("y = x[:, 2:5]  # model", "model", "[]");
        check("y = self.table[:, :size]  # model", "model", "[]");
        check("y = (1.0) - x  # model", "model", "sub");
        check("y = a // b; del a, b  # model", "model", "floordiv");
        check("y = -x  # model", "model", "neg");
        check("y = a >= (0.5); del a  # model", "model", "ge");
        check("y = torch.ops.aten.pow.int_float(2, a)  # model", "model", "pow");
        check("y = x.dtype  # model", "model", "dtype");
        check("y = list(x.size())  # model", "model", "size");
        check("y = _opaque_12(x, 3)  # gate", "gate", "Opaque");
        check("x.append(y)  # model", "model", "append");
        check("y = torch.einsum(\"a  # b ; del c\", [x, y])  # at", "at", "einsum");
        check("if self.training: n = self.bn.n.add_(1)  # bn", "bn", "add");
        for passing in ["(y,) = x  # m", "a, b = x  # m", "n = int(n__boxed)  # sent as a tensor", "return y"]
        {
            assert_eq!(read(&Statement::read(passing).unwrap()), None, "{passing}");
        }
    }

    #[test]
    fn nothing_is_reached_through_a_name_that_is_no_operator() {
        for line in [
            "y = torch.add.__init__(x)  # a",
            "y = torch.add.__init__.__globals__.get(\"sys\")  # a",
            "y = torch.ops.load_library.__call__(\"x.so\")  # a",
            "y = torch.ops.load_library(\"x.so\")  # a",
            "y = torch.ops.import_module(\"this\")  # a",
            "y = torch.ops.fbgemm.permute(x)  # a",
            "y = torch.ops.aten.evil(x)  # a",
            "y = torch.load(\"x\")  # a",
            "y = torch.hub.load(\"x\")  # a",
            "y = eval(\"1\")  # a",
            "y = exec(\"1\")  # a",
            "y = getattr(x, \"y\")  # a",
            "y = x.__class__()  # a",
            "y = x.grad.backward()  # a",
            "y = self.load_state_dict(x)  # a",
            "y = (torch.relu)(x)  # a",
            "y = torch.relu(eval(\"1\"))  # a",
            "y = torch.relu(torch.load(\"x\"))  # a",
            "y = torch.relu(x.y)  # a",
            "y = x[eval(\"1\")]  # a",
            "y = _operators[\"aten::relu\"](x)  # a",
            "y = _operators[x](x)  # a",
            "y = torch.relu(x)(x)  # a",
            "y = x.tolist().append(1)  # a",
        ] {
            assert!(Statement::read(line).is_none(), "{line}");
        }
        let foreign = Statement::read("y = _operators[\"fbgemm::permute\"](x)  # a").unwrap();
        assert_eq!(read(&foreign).unwrap().word, "fbgemm::permute");
    }
}
