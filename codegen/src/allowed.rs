//! Which operators a stage may call: names from a file are not trusted to be operators.
//!
//! `torch.ops.NAMESPACE.NAME` is an attribute of a Python object: of `torch.ops` itself, of a name space, of an
//! operator. Only the names of `operators::argument_names` are written that way; torch resolves each of them to an
//! operator. Those of other libraries are called if the user allows their name space, through a look-up that finds only
//! operators.

use std::collections::{BTreeMap, BTreeSet};

use operators::{argument_names, refusal};
use tracer::{Node, NodeId, Operand, Program};

use crate::{
    error::{CutError, MAX_DEPTH, OperatorFault},
    location::{path, place, statement},
    names::is_identifier,
    nodes::split,
    python::keyword,
    scripted_functions::{Part, parts},
};

/// Name spaces whose operators are allowed by name.
const LISTED: &[&str] = &["aten", "prim", "torchvision"];

/// Steps that the trace names like operators, and that stages write in another way.
const SPELLED: &[&str] = &[
    "prim::DictConstruct",
    "prim::ListConstruct",
    "prim::ListUnpack",
    "prim::Opaque",
    "prim::SetAttr",
    "prim::TupleConstruct",
];

/// Words of TorchScript that run code elsewhere or later.
const REFUSED_WORDS: &[&str] = &["fork", "rpc_async", "rpc_remote", "rpc_sync"];

/// Checks that stages may call what a model calls: operators of torch and torchvision, and those of the name spaces in `spaces`.
///
/// # Errors
/// Every operator that they may not call, once.
pub fn check_operators(program: &Program, spaces: &[String]) -> Result<(), Vec<CutError>> {
    let mut faults = BTreeMap::new();
    for (index, node) in program.nodes.iter().enumerate() {
        for found in faults_of(node, spaces) {
            faults.entry(found).or_insert(NodeId(index as u32));
        }
    }
    if faults.is_empty() {
        return Ok(());
    }
    Err(faults.into_iter().map(|(found, node)| error(program, node, found)).collect())
}

/// Checks a text that is copied into a node's stage: its statement, and the functions that it calls.
///
/// # Errors
/// The first operator that stages may not call.
pub(crate) fn check_text(
    program: &Program,
    node: NodeId,
    text: &str,
    spaces: &[String],
) -> Result<(), CutError> {
    let fault = named_in(text).into_iter().find_map(|name| Some((fault_of(&name, spaces)?, name)));
    fault.map_or(Ok(()), |(fault, name)| Err(error(program, node, (name, fault))))
}

/// Lists the operators that a model calls and that are neither torch's nor torchvision's.
pub fn foreign_operators(program: &Program) -> BTreeSet<String> {
    let named = program.nodes.iter().flat_map(|node| match statement(program, node) {
        Some(text) => named_in(text),
        None => vec![node.operator.clone()],
    });
    named.filter(|name| is_foreign(name)).collect()
}

/// Tells whether an operator is in a name space that is not listed.
pub(crate) fn is_foreign(operator: &str) -> bool {
    !LISTED.contains(&split(operator).0)
}

/// Tells whether an operator is one of torch's.
pub(crate) fn is_listed(operator: &str) -> bool {
    argument_names(operator).is_some()
}

/// An operator and its fault.
type Found = (String, OperatorFault);

fn error(program: &Program, node: NodeId, (operator, fault): Found) -> CutError {
    let path = path(program, node);
    // A string that is not a name may be as long as its file.
    let operator = operator.chars().take(LONGEST).collect();
    CutError::Operator { operator, path, place: place(program, node), fault }
}

/// Longest name that a message repeats.
const LONGEST: usize = 80;

fn faults_of(node: &Node, spaces: &[String]) -> Vec<Found> {
    let of_node = |fault| (node.operator.clone(), fault);
    let is_spelled = SPELLED.contains(&node.operator.as_str());
    let mut faults = Vec::new();
    if !is_spelled {
        faults.extend(fault_of(&node.operator, spaces).map(of_node));
    }
    if node.arguments.iter().any(|argument| depth(&argument.operand) > MAX_DEPTH) {
        faults.push(of_node(OperatorFault::Nested));
    }
    // The arguments of a statement are named by its own variables, which do not reach code.
    if faults.is_empty() && !is_spelled {
        let known = argument_names(&node.operator);
        let mut names = BTreeSet::new();
        for (index, argument) in node.arguments.iter().enumerate() {
            let Some(name) = keyword(split(&node.operator).1, index, argument) else { continue };
            let is_known = known.is_none_or(|known| known.split(' ').any(|known| known == name));
            if !is_identifier(name) || !is_known || name == "self" {
                faults.push(of_node(OperatorFault::Argument(name.chars().take(LONGEST).collect())));
            } else if !names.insert(name) {
                faults.push(of_node(OperatorFault::Twice(name.to_string())));
            }
        }
    }
    faults
}

/// Returns the reason against calling an operator, if any.
fn fault_of(operator: &str, spaces: &[String]) -> Option<OperatorFault> {
    if let Some(reason) = refusal(operator) {
        return Some(OperatorFault::Refused(reason));
    }
    let (space, name) = split(operator);
    if !is_foreign(operator) {
        return (!is_listed(operator)).then_some(OperatorFault::Unknown);
    }
    if !is_identifier(space) || !is_identifier(name) {
        return Some(OperatorFault::Unknown);
    }
    let is_allowed = spaces.iter().any(|allowed| allowed == space);
    (!is_allowed).then(|| OperatorFault::Foreign { space: space.to_string() })
}

/// Lists the operators that a TorchScript text names, whether it calls them there or later.
///
/// TorchScript can only name operators; syntax that might hide another name counts as an unknown operator.
fn named_in(text: &str) -> Vec<String> {
    let parts = parts(text);
    let mut names = Vec::new();
    for (index, part) in parts.iter().enumerate() {
        let path = match part {
            Part::Path(path) => *path,
            // A multi-line string or a continued line would be parsed differently from here.
            Part::Other(other) => {
                let is_string = other.starts_with(['"', '\'']);
                let is_odd = if is_string { other.contains('\n') } else { other.contains(['\\', ';', '`']) };
                let is_triple = is_string
                    && other.len() == 2
                    && matches!(parts.get(index + 1), Some(Part::Other(next)) if next.starts_with(['"', '\'']));
                if is_odd || is_triple {
                    names.push(other.chars().take(LONGEST).collect());
                }
                continue;
            }
        };
        let is_called =
            matches!(parts.get(index + 1), Some(Part::Other(next)) if next.trim_start().starts_with('('));
        let steps: Vec<&str> = path.split('.').collect();
        match steps.as_slice() {
            ["torch", name] => names.push(format!("aten::{name}")),
            ["ops", space, name] => names.push(format!("{space}::{name}")),
            ["torch" | "ops", ..] => names.push(path.to_string()),
            // A function of the archive; its text is checked where it is followed.
            ["__torch__", ..] => {}
            [word] if REFUSED_WORDS.contains(word) => names.push(format!("prim::{word}")),
            [first, attributes @ ..] if !first.starts_with(|c: char| c.is_ascii_digit()) => {
                // A method of a tensor, a list or a string is an operator; an attribute may be a field.
                for (at, name) in attributes.iter().enumerate() {
                    let both = [format!("aten::{name}"), format!("prim::{name}")];
                    let is_refused = |name: &String| refusal(name).is_some();
                    let is_method = is_called && at + 1 == attributes.len();
                    match both.iter().find(|name| is_refused(name)) {
                        Some(refused) => names.push(refused.clone()),
                        None if is_method && !both.iter().any(|name| is_listed(name)) => {
                            names.extend(both.into_iter().take(1));
                        }
                        None => {}
                    }
                }
            }
            _ => {}
        }
    }
    names
}

/// Returns the nesting depth of lists.
fn depth(operand: &Operand) -> usize {
    let (mut deepest, mut open) = (0, vec![(operand, 0)]);
    while let Some((operand, depth)) = open.pop() {
        deepest = deepest.max(depth);
        if depth > MAX_DEPTH {
            break;
        }
        match operand {
            Operand::List(items) | Operand::Tuple(items) => {
                open.extend(items.iter().map(|item| (item, depth + 1)));
            }
            Operand::Dict(pairs) => {
                open.extend(pairs.iter().flat_map(|(key, value)| [(key, depth + 1), (value, depth + 1)]));
            }
            _ => {}
        }
    }
    deepest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operators_are_torchs_or_allowed() {
        let check = |operator: &str, expected: Option<OperatorFault>| {
            assert_eq!(fault_of(operator, &["fbgemm".to_string()]), expected, "{operator}");
        };
        let foreign = |space: &str| Some(OperatorFault::Foreign { space: space.into() });
        for operator in ["aten::relu", "aten::__and__", "prim::device", "torchvision::nms", "fbgemm::permute"]
        {
            check(operator, None);
        }
        for operator in [
            "aten::evil",
            "aten::__init__",
            "prim::__class__",
            "torchvision::x",
            "aten::add.__init__",
            "fbgemm::__init__",
            "fbgemm::a::b",
            "__dict__::x",
            "x::class",
            "relu",
            "aten::relu é",
        ] {
            check(operator, Some(OperatorFault::Unknown));
        }
        check("load_library::load", foreign("load_library"));
        check("fbgemm_::x", foreign("fbgemm_"));
        check(
            "aten::from_file",
            Some(OperatorFault::Refused("it opens a file of any name, and may create it")),
        );
    }

    #[test]
    fn attributes_of_python_objects_are_no_operators() {
        let attributes = "_dir import_module load_library loaded_libraries higher_order aten prim torchvision _op _schemas op \
                          overloads py_impl default name namespace __dict__ __class__ torch ops os sys";
        let dunders = "__init__ __call__ __class__ __dict__ __getattr__ __getattribute__ __setattr__ __delattr__ __globals__ \
                       __builtins__ __import__ __reduce__ __reduce_ex__ __self__ __func__ __code__ __subclasses__ __mro__ \
                       __new__ __module__ __loader__ __spec__ __wrapped__ __eq__ __hash__ __str__ __iter__ __dir__";
        let all: Vec<&str> = attributes.split_whitespace().chain(dunders.split_whitespace()).collect();
        let spaces: Vec<String> = all.iter().map(|name| (*name).to_string()).collect();
        for space in &all {
            for name in &all {
                let operator = format!("{space}::{name}");
                let is_refused = |spaces: &[String]| fault_of(&operator, spaces).is_some();
                assert!(is_refused(&[]) || is_listed(&operator), "{operator}");
                // Even in an allowed name space, Python's reserved names are refused.
                assert!(
                    is_refused(&spaces) || !operator.contains("__") || is_listed(&operator),
                    "{operator}"
                );
            }
        }
    }

    #[test]
    fn a_text_names_its_operators_however_they_are_written() {
        let check = |text: &str, expected: &[&str]| assert_eq!(named_in(text), expected, "{text}");
        check("y = torch.relu(x)\nz = ops.a.b(y, torch.add)", &["aten::relu", "a::b", "aten::add"]);
        check("f = x.save\nf(\"save(\")", &["aten::save"]);
        check("(x).save(\"a\")", &["aten::save"]);
        check("y = (x).t() + 1.5e3 + x.size(0)", &[]);
        check("y = x.nothing.evil (1)", &["aten::evil"]);
        check("(torch).save(x)", &["torch", "aten::save"]);
        check("torch .relu(x)", &["torch"]);
        check("ops.a.b.c(x)", &["ops.a.b.c"]);
        check("fork(f, x)", &["prim::fork"]);
        // Text hidden by a comment or a string.
        check("x = 1  # '\ny = torch.save(x)\n# '", &["aten::save"]);
        check("x = \"\"\"a\"torch.save(x)\"", &["\"\"", "aten::save"]);
        check("x = 1 \\\n + 2", &[" \\\n + "]);
    }
}
