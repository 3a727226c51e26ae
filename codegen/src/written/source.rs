//! Reads a Python stage back: which operator each line runs, and for which module.
//!
//! A line is taken apart into targets, call and comment, whoever wrote it. Python has several spellings of one operator (`x[:, 2:5]`
//! is a slice, `a + b` an addition): those of the source and of the model are put into the same words first.

use std::collections::BTreeMap;

use tracer::{NodeId, Program};

use super::Fault;
use crate::{
    names::comment,
    operators::{is_detour, split},
    python,
};

/// A line that runs an operator.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Line {
    /// The module, as the comment says it.
    place: String,
    /// The operator.
    word: String,
}

/// The operators of a model, for all its sources.
pub(super) struct Sources {
    model: Vec<Line>,
    /// How often each must run, and how often it was seen.
    counts: BTreeMap<Line, (usize, usize)>,
}

impl Sources {
    /// Lists what must run.
    pub fn new(program: &Program) -> Self {
        let nodes = program.nodes.iter().enumerate().filter(|(_, node)| !is_detour(&node.operator));
        let lines = nodes.map(|(index, node)| Line {
            place: comment(&python::path(program, NodeId(index as u32))),
            word: word(split(&node.operator).1),
        });
        let model: Vec<Line> = lines.filter(|line| !passes(&line.word)).collect();
        let mut counts = BTreeMap::new();
        for line in &model {
            counts.entry(line.clone()).or_insert((0, 0)).0 += 1;
        }
        Self { model, counts }
    }

    /// Reads a stage: its operators are the model's, in the model's order, and no more than `repeated` run again.
    pub fn read(&mut self, source: &str, repeated: usize) -> Result<(), Fault> {
        let mut again = 0;
        let mut at = 0;
        let mut after = "nothing".to_string();
        for mut line in lines(source) {
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
        match again > repeated {
            true => Err(Fault::Operators {
                operator: "what is computed again".into(),
                expected: repeated,
                found: again,
            }),
            false => Ok(()),
        }
    }

    /// Every operator runs as one stage's own, once.
    pub fn finish(&self) -> Result<(), Fault> {
        let wrong = self.counts.iter().find(|(_, (expected, found))| expected != found);
        wrong.map_or(Ok(()), |(line, &(expected, found))| {
            Err(Fault::Operators { operator: format!("{} ({})", line.word, line.place), expected, found })
        })
    }
}

/// Ends the comment of a line that another stage runs, too.
const AGAIN: &str = " (again)";

/// Tells whether a word stands for a step that comes and goes with a cut.
fn passes(word: &str) -> bool {
    is_detour(&format!("aten::{word}"))
        || is_detour(&format!("prim::{word}"))
        || matches!(word, "item" | "ListConstruct" | "DictConstruct")
}

/// Returns the word for an operator's name or sign.
fn word(name: &str) -> String {
    let bare = match name.trim_matches('_') {
        "" => name,
        bare => bare,
    };
    match bare {
        "+" => "add",
        "-" => "sub",
        "*" => "mul",
        "/" | "truediv" => "div",
        "//" | "floor_divide" => "floordiv",
        "%" => "remainder",
        "&" => "and",
        "|" => "or",
        "^" => "xor",
        "==" => "eq",
        "!=" => "ne",
        "<" => "lt",
        "<=" => "le",
        ">" => "gt",
        ">=" => "ge",
        "slice" | "getitem" | "TupleIndex" | "[]" => "slice",
        "FloatImplicit" => "Float",
        "conv1d" | "conv2d" | "conv3d" | "conv_transpose1d" | "conv_transpose2d" | "conv_transpose3d" => {
            "convolution"
        }
        other if other.starts_with("opaque_") => "Opaque",
        other => other,
    }
    .to_string()
}

/// Lists the lines of `forward` that run an operator, in order; methods that it calls stand where they are called.
fn lines(source: &str) -> Vec<Line> {
    let mut methods: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let mut method = None;
    for line in source.lines() {
        if let Some(rest) = line.strip_prefix("    def ") {
            method = rest.split('(').next();
        } else if let (Some(content), Some(method)) = (line.strip_prefix("        "), method) {
            methods.entry(method).or_default().push(content);
        } else if !line.is_empty() {
            method = None;
        }
    }
    let mut found = Vec::new();
    for line in methods.get("forward").into_iter().flatten() {
        match block(line).and_then(|block| methods.get(block)) {
            Some(block) => found.extend(block.iter().filter_map(|line| read(line))),
            None => found.extend(read(line)),
        }
    }
    found
}

/// Returns the method that a line hands to the helpers that keep no activations.
fn block(line: &str) -> Option<&str> {
    let call = line.split_once(" = ")?.1;
    if !call.starts_with("again(self.") && !call.starts_with("on_host(self, ") {
        return None;
    }
    let name = &call[call.find("self.block_")? + "self.".len()..];
    name.split([',', ')']).next()
}

fn read(line: &str) -> Option<Line> {
    let (code, place) = line.split_at(outside(line, "  # ")?);
    let code = code.strip_prefix("if self.training: ").unwrap_or(code);
    let code = outside(code, "; del ").map_or(code, |end| &code[..end]);
    let call = outside(code, " = ").map_or(code, |at| &code[at + 3..]);
    // What another stage sent in a tensor, and is a number.
    let is_unboxed = call.ends_with("__boxed)") || call.ends_with("__boxed.tolist()");
    let word = word(called(call));
    (!is_unboxed && !passes(&word)).then(|| Line { place: place[4..].to_string(), word })
}

/// Returns where a text begins outside of quotes and brackets.
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

/// Returns what the right side of a line calls.
fn called(call: &str) -> &str {
    let name =
        |text: &'_ str| text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(text.len());
    if let Some(rest) = call.strip_prefix("torch.ops.") {
        let operator = rest.split_once('.').map_or("", |(_, operator)| operator);
        return &operator[..name(operator)];
    }
    if call.starts_with('-') {
        return "neg";
    }
    if let Some(rest) = call.strip_prefix("list(") {
        return called(rest);
    }
    // An operand, then what is done with it.
    let mut at = match call.starts_with(['(', '[', '{']) {
        true => closing(call),
        false => name(call),
    };
    loop {
        let rest = &call[at..];
        if rest.starts_with('(') {
            let function = &call[..at];
            return match &function[function.rfind('.').map_or(0, |dot| dot + 1)..] {
                "int" => "Int",
                "bool" => "Bool",
                "float" => "Float",
                other => other,
            };
        } else if rest.starts_with('[') {
            let end = at + closing(rest);
            if end == call.len() {
                return "[]";
            }
            at = end;
        } else if let Some(attribute) = rest.strip_prefix('.') {
            at += 1 + name(attribute);
        } else if let Some(sign) = rest.strip_prefix(' ') {
            return sign.split(' ').next().unwrap_or("");
        } else if call.starts_with(['(', '[', '{']) || call.starts_with("self.") {
            return "ListUnpack";
        } else {
            return call.rfind('.').map_or("ListUnpack", |dot| &call[dot + 1..]);
        }
    }
}

/// Returns the end of the bracket that a text begins with.
fn closing(text: &str) -> usize {
    let inner =
        outside(&text[1..], ")").into_iter().chain(outside(&text[1..], "]")).chain(outside(&text[1..], "}"));
    inner.min().map_or(text.len(), |end| end + 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_spelling_says_its_operator() {
        let check = |line: &str, place: &str, word: &str| {
            let expected = Line { place: place.into(), word: word.into() };
            assert_eq!(read(line), Some(expected), "{line}");
        };
        check("y = torch.relu(x); del x  # relu (call 2)", "relu (call 2)", "relu");
        check("y = torch.ops.aten.index.Tensor(x, [i])  # a.b", "a.b", "index");
        check("y = torch.ops.torchvision.nms(x, y, 0.5)  # a", "a", "nms");
        check("y = torch.conv_transpose2d(x, self.up[0][\"b-0\"].weight)  # up.0", "up.0", "convolution");
        check("y = self.up[0].weight.view([1, -1])  # up.0", "up.0", "view");
        check("y = x[:, 2:5]  # model", "model", "slice");
        check("y = self.table[:, :size]  # model", "model", "slice");
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
            assert_eq!(read(passing), None, "{passing}");
        }
    }
}
