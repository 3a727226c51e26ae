//! Scripted control flow in a trace: each statement becomes a function of its own.
//!
//! The statement is kept as TorchScript text: the TorchScript format defines the function in the stage's file, the
//! Python format compiles it with `torch.jit`, together with the functions that it calls. Statements that access a
//! module or a constant are refused.

use tracer::{Constant, Node, NodeId, Operand, Program, Type, ValueId};

use crate::{
    allowed::check_text,
    error::CutError,
    location::{path, place, statement},
    names::is_identifier,
    nodes::values_of,
    pipeline::{Stage, Step},
    scripted_functions::Called,
};

/// A function made of a statement.
pub(crate) struct Function {
    /// Its definition.
    pub code: String,
    /// Arguments to pass, in order.
    pub arguments: Vec<Operand>,
    /// Values that it returns, in order.
    pub outputs: Vec<ValueId>,
}

/// The longest supported statement.
const MAX_TEXT: usize = 100_000;

/// Functions of a stage.
pub(crate) struct Functions {
    /// Nodes that need one, with its name.
    pub own: Vec<(NodeId, String, Function)>,
    /// Definitions of the functions that they call.
    pub called: String,
}

/// Writes the functions that a stage needs, for a file of a name space. A method takes its receiver as the first
/// argument; `spaces` are further name spaces whose operators they may call.
pub(crate) fn functions(
    program: &Program,
    stage: &Stage,
    space: &str,
    receiver: Option<&str>,
    spaces: &[String],
) -> Result<Functions, CutError> {
    let mut found = Vec::new();
    let mut called = Called::new(program, space);
    for step in &stage.steps {
        let Step::Run { node, .. } = step else { continue };
        let refuse = |reason: &str| CutError::Opaque {
            path: path(program, *node),
            place: place(program, *node),
            reason: reason.into(),
            node: *node,
        };
        match program.nodes[node.index()].operator.as_str() {
            "prim::Opaque" => {
                let name = format!("opaque_{}", node.0);
                let function = function(program, *node, &name, receiver, &mut called).map_err(refuse)?;
                check_text(program, *node, &function.code, spaces)?;
                found.push((*node, name, function));
            }
            "prim::SetAttr" => return Err(refuse("it assigns an attribute of a module")),
            _ => {}
        }
    }
    let called = called.code();
    if let Some((node, ..)) = found.last() {
        check_text(program, *node, &called, spaces)?;
    }
    Ok(Functions { own: found, called })
}

fn function(
    program: &Program,
    id: NodeId,
    name: &str,
    receiver: Option<&str>,
    called: &mut Called<'_>,
) -> Result<Function, &'static str> {
    let node = &program.nodes[id.index()];
    let source = program.sources.get(node.span.source as usize).ok_or("its text is not in the archive")?;
    let (start, end) = (node.span.start as usize, node.span.end as usize);
    source.text.get(start..end).ok_or("its text is not in the archive")?;
    let text = statement(program, node).ok_or("it is a call that cannot be inlined")?;
    if text.len() > MAX_TEXT {
        return Err("it is too long");
    }
    for word in ["self", "CONSTANTS", "return", "def", "getattr", "fork"] {
        if has_word(text, word) {
            return Err("it accesses a module or a constant, forks, or returns early");
        }
    }
    let mut parameters: Vec<String> = receiver.map(str::to_string).into_iter().collect();
    let mut arguments = Vec::new();
    let (mut head, mut local) = (None, Vec::new());
    for argument in &node.arguments {
        let keyword = argument.name.as_deref().ok_or("it is a call that cannot be inlined")?;
        if matches!(keyword, "for" | "if" | "while") {
            head = with_head(text, &type_of(program, &argument.operand).unwrap_or_default());
            if let Some(Head { name, type_, .. }) = &head {
                parameters.push(format!("{name}: {type_}"));
                arguments.push(argument.operand.clone());
            }
            continue;
        }
        if !is_identifier(keyword) {
            return Err("it reads a stored tensor of a module");
        }
        if let Operand::Constant(Constant::Str(global)) = &argument.operand
            && is_called(text, keyword)
        {
            local.push((keyword, global.as_str()));
            continue;
        }
        // Names that only its original head reads are not needed any more.
        if head.as_ref().is_some_and(|head| !has_word(&head.text, keyword)) {
            continue;
        }
        parameters.push(format!("{keyword}: {}", type_of(program, &argument.operand)?));
        arguments.push(argument.operand.clone());
    }
    let text = called.follow(head.as_ref().map_or(text, |head| &head.text), &local)?;
    let outputs: Vec<ValueId> =
        node.outputs.iter().copied().filter(|value| is_read(program, *value)).collect();
    let names: Vec<&str> = outputs
        .iter()
        .map(|value| {
            let name = &program.values[value.index()].name;
            name.rsplit_once('.').map_or(name.as_str(), |(base, _)| base)
        })
        .collect();
    if !names.iter().all(|name| is_identifier(name)) {
        return Err("its names are unusual");
    }
    let types: Vec<String> =
        outputs.iter().map(|value| written(&program.values[value.index()].type_)).collect();
    let returned = match types.as_slice() {
        // For example a check.
        [] => "NoneType".into(),
        [only] => only.clone(),
        all => format!("Tuple[{}]", all.join(", ")),
    };
    let line_start = source.text[..start].rfind('\n').map_or(0, |at| at + 1);
    let indent = source.text[line_start..start].len();
    let mut code = format!("def {name}({}) -> {returned}:\n", parameters.join(",\n    "));
    for line in text.lines() {
        let content = if line.len() > indent && line[..indent].bytes().all(|b| b == b' ') && indent > 0 {
            &line[indent..]
        } else {
            line
        };
        code.push_str(&format!("  {content}\n"));
    }
    code.push_str(&match names.as_slice() {
        [] => "  return None\n".into(),
        [only] => format!("  return {only}\n"),
        all => format!("  return ({})\n", all.join(", ")),
    });
    Ok(Function { code, arguments, outputs })
}

/// A statement whose condition or length is passed as an argument.
struct Head {
    name: String,
    type_: &'static str,
    text: String,
}

/// Replaces a statement's condition or number of iterations by an argument: its operators run before it, and must not
/// run twice, which random numbers would reveal. A `while` evaluates its condition in each iteration, and is unchanged.
fn with_head(text: &str, type_: &str) -> Option<Head> {
    let (line, rest) = text.split_once('\n')?;
    let mut name = "head".to_string();
    while has_word(text, &name) {
        name.push('_');
    }
    let (line, type_) = match (type_, line.strip_suffix(':')?) {
        ("bool", line) if line.starts_with("if ") => (format!("if {name}:"), "bool"),
        ("int", line) => {
            let (target, rounds) = line.strip_prefix("for ")?.split_once(" in range(")?;
            // The closing bracket of the line is that of `range`, and its argument is only the length.
            let mut depth = 0_usize;
            for letter in rounds.strip_suffix(')')?.chars() {
                match letter {
                    '(' | '[' | '{' => depth += 1,
                    ')' | ']' | '}' => depth = depth.checked_sub(1)?,
                    ',' if depth == 0 => return None,
                    '"' | '\'' => return None,
                    _ => {}
                }
            }
            (format!("for {target} in range({name}):"), "int")
        }
        _ => return None,
    };
    Some(Head { name, type_, text: format!("{line}\n{rest}") })
}

/// Tells whether a text calls a function by its local name.
fn is_called(text: &str, name: &str) -> bool {
    has_word(text, name) && text.contains(&format!("{name}("))
}

/// Tells whether an identifier occurs in a text.
fn has_word(text: &str, word: &str) -> bool {
    let is_part = |b: Option<u8>| b.is_some_and(|b| b.is_ascii_alphanumeric() || b == b'_');
    text.match_indices(word).any(|(at, _)| {
        let before = at.checked_sub(1).map(|at| text.as_bytes()[at]);
        let after = text.as_bytes().get(at + word.len()).copied();
        (!is_part(before) || word.starts_with("__")) && !is_part(after)
    })
}

/// Tells whether anything reads a value. O(operands); control flow is rare.
fn is_read(program: &Program, value: ValueId) -> bool {
    let in_node = |node: &Node| node.arguments.iter().any(|a| values_of(&a.operand).contains(&value));
    program.nodes.iter().any(in_node) || values_of(&program.output).contains(&value)
}

fn type_of(program: &Program, operand: &Operand) -> Result<String, &'static str> {
    Ok(match operand {
        Operand::Value(value) => written(&program.values[value.index()].type_),
        Operand::Tensor(_) => "Tensor".into(),
        Operand::Constant(Constant::Int(_)) => "int".into(),
        Operand::Constant(Constant::Float(_)) => "float".into(),
        Operand::Constant(Constant::Bool(_)) => "bool".into(),
        Operand::Constant(Constant::Str(_)) => "str".into(),
        Operand::Constant(Constant::Device(_)) => "Device".into(),
        Operand::List(items) if !items.is_empty() => format!("List[{}]", type_of(program, &items[0])?),
        Operand::Tuple(items) if !items.is_empty() => {
            let items: Result<Vec<String>, _> = items.iter().map(|item| type_of(program, item)).collect();
            format!("Tuple[{}]", items?.join(", "))
        }
        _ => return Err("the type of an argument is unknown"),
    })
}

/// Writes a type in TorchScript.
pub(crate) fn written(type_: &Type) -> String {
    match type_ {
        Type::Tensor(_) => "Tensor".into(),
        Type::Int => "int".into(),
        Type::Float => "float".into(),
        Type::Bool => "bool".into(),
        Type::Str => "str".into(),
        Type::Device => "Device".into(),
        Type::Number => "number".into(),
        Type::None => "NoneType".into(),
        Type::Optional(inner) => format!("Optional[{}]", written(inner)),
        Type::List(inner) => format!("List[{}]", written(inner)),
        Type::Tuple(items) if items.is_empty() => "Tuple[()]".into(),
        Type::Tuple(items) => format!("Tuple[{}]", items.iter().map(written).collect::<Vec<_>>().join(", ")),
        Type::Dict(key, value) => format!("Dict[{}, {}]", written(key), written(value)),
        Type::Class(_) => "Any".into(),
    }
}
