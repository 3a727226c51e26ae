//! The location of a node: its module, and its line in the archive's code.

use tracer::{Node, NodeId, Program};

/// Returns the path of a node's module, with the number of the call if the module is called several times.
pub(crate) fn path(program: &Program, node: NodeId) -> String {
    let call = &program.calls[program.nodes[node.index()].call.index()];
    let path = &program.modules[call.module.index()].path;
    let path = if path.is_empty() { "model" } else { path };
    numbered(path, call.ordinal)
}

/// Returns a call's place: the path of its module, with the number of the call from the second on.
pub(crate) fn numbered(path: &str, ordinal: u32) -> String {
    match ordinal {
        0 | 1 => path.to_string(),
        ordinal => format!("{path} (call {ordinal})"),
    }
}

/// Returns the file of the archive and the line in which a statement begins.
pub(crate) fn place(program: &Program, node: NodeId) -> String {
    let span = program.nodes[node.index()].span;
    let Some(source) = program.sources.get(span.source as usize) else { return "of unknown place".into() };
    format!("{}:{}", source.name, source.line(span.start as usize))
}

/// Returns the text of a node that is a statement: scripted control flow.
pub(crate) fn statement<'p>(program: &'p Program, node: &Node) -> Option<&'p str> {
    if node.operator != "prim::Opaque" {
        return None;
    }
    let source = program.sources.get(node.span.source as usize)?;
    let text = source.text.get(node.span.start as usize..node.span.end as usize)?;
    ["for ", "if ", "while "].iter().any(|word| text.starts_with(word)).then_some(text)
}
