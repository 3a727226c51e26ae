//! Prints the tree as torch does, byte for byte.

use std::fmt::{self, Display, Formatter, Write};

use super::{
    strings,
    tree::{Binding, Block, Dim, Graph, IrTensorType, IrType, Literal, Node, Use},
};

impl Display for Graph {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write_graph(self, f)
    }
}

fn write_graph(graph: &Graph, f: &mut Formatter<'_>) -> fmt::Result {
    f.write_str("graph(")?;
    separated(f, &graph.inputs, ",\n      ", write_binding)?;
    f.write_str("):\n")?;
    for node in &graph.nodes {
        write_node(node, 1, f)?;
    }
    f.write_str("  return (")?;
    separated(f, &graph.outputs, ", ", write_use)?;
    f.write_str(")\n")?;
    for (name, subgraph) in &graph.subgraphs {
        write!(f, "with {name} = ")?;
        write_graph(subgraph, f)?;
    }
    Ok(())
}

fn separated<T>(
    f: &mut Formatter<'_>,
    items: &[T],
    between: &str,
    write: impl Fn(&T, &mut Formatter<'_>) -> fmt::Result,
) -> fmt::Result {
    for (index, item) in items.iter().enumerate() {
        if index > 0 {
            f.write_str(between)?;
        }
        write(item, f)?;
    }
    Ok(())
}

fn write_binding(binding: &Binding, f: &mut Formatter<'_>) -> fmt::Result {
    write!(f, "%{} : {}", binding.name, binding.type_)
}

fn write_use(use_: &Use, f: &mut Formatter<'_>) -> fmt::Result {
    write!(f, "%{}", use_.name)
}

fn indent(level: usize, f: &mut Formatter<'_>) -> fmt::Result {
    (0..level).try_for_each(|_| f.write_str("  "))
}

fn write_node(node: &Node, level: usize, f: &mut Formatter<'_>) -> fmt::Result {
    indent(level, f)?;
    separated(f, &node.outputs, ", ", write_binding)?;
    write!(f, " = {}", node.kind)?;
    if !node.attributes.is_empty() {
        f.write_char('[')?;
        separated(f, &node.attributes, ", ", |(name, value), f| write!(f, "{name}={value}"))?;
        f.write_char(']')?;
    }
    if let Some(scalars) = &node.scalars {
        write!(f, "({scalars})")?;
    }
    f.write_char('(')?;
    separated(f, &node.inputs, ", ", write_use)?;
    f.write_char(')')?;
    if let Some(scope) = &node.scope {
        write!(f, ", scope: {scope}")?;
    }
    if let Some(place) = &node.place {
        write!(f, " # {place}")?;
    }
    f.write_char('\n')?;
    for (index, block) in node.blocks.iter().enumerate() {
        write_block(index, block, level, f)?;
    }
    Ok(())
}

fn write_block(index: usize, block: &Block, level: usize, f: &mut Formatter<'_>) -> fmt::Result {
    indent(level + 1, f)?;
    write!(f, "block{index}(")?;
    separated(f, &block.inputs, ", ", write_binding)?;
    f.write_str("):\n")?;
    for node in &block.nodes {
        write_node(node, level + 2, f)?;
    }
    indent(level + 2, f)?;
    f.write_str("-> (")?;
    separated(f, &block.outputs, ", ", write_use)?;
    f.write_str(")\n")
}

impl Display for Literal {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Literal::Number(text) | Literal::Word(text) | Literal::Elements(text) => f.write_str(text),
            Literal::Str(text) => strings::write(text, f),
            Literal::Boxed(text) => write!(f, "{{{text}}}"),
            Literal::Omitted(text) => write!(f, "<{text}>"),
            Literal::List(items) => {
                f.write_char('[')?;
                separated(f, items, ", ", Display::fmt)?;
                f.write_char(']')
            }
            Literal::Tuple(items) => {
                f.write_char('(')?;
                separated(f, items, ", ", Display::fmt)?;
                f.write_str(if items.len() == 1 { ",)" } else { ")" })
            }
            Literal::Dict(pairs) => {
                f.write_char('{')?;
                separated(f, pairs, ", ", |(key, value), f| write!(f, "{key}: {value}"))?;
                f.write_char('}')
            }
            Literal::Annotated(type_, value) => write!(f, "annotate({type_}, {value})"),
        }
    }
}

impl Display for IrType {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            IrType::Tensor(tensor) => write_tensor(tensor, f),
            IrType::List(element) => write!(f, "{element}[]"),
            IrType::Optional(element) => write!(f, "{element}?"),
            IrType::Tuple { is_named, elements } => {
                f.write_str(if *is_named { "NamedTuple(" } else { "(" })?;
                separated(f, elements, ", ", |(name, type_), f| match name {
                    Some(name) => write!(f, "{name} : {type_}"),
                    None => write!(f, "{type_}"),
                })?;
                f.write_char(')')
            }
            IrType::Dict(key, value) => write!(f, "Dict({key}, {value})"),
            IrType::Applied(name, arguments) => {
                write!(f, "{name}[")?;
                separated(f, arguments, ", ", Display::fmt)?;
                f.write_char(']')
            }
            IrType::Named(name) => f.write_str(name),
        }
    }
}

fn write_tensor(tensor: &IrTensorType, f: &mut Formatter<'_>) -> fmt::Result {
    match (&tensor.dtype, &tensor.dims) {
        (Some(dtype), Some(_)) => f.write_str(dtype)?,
        (Some(dtype), None) => write!(f, "{dtype}Tensor")?,
        (None, _) => f.write_str("Tensor")?,
    }
    let mut parts: Vec<String> = tensor.dims.iter().flatten().map(Dim::to_string).collect();
    if let Some(strides) = &tensor.strides {
        let strides: Vec<String> = strides.iter().map(i64::to_string).collect();
        parts.push(format!("strides=[{}]", strides.join(", ")));
    }
    if let Some(requires_grad) = tensor.requires_grad {
        parts.push(format!("requires_grad={}", u8::from(requires_grad)));
    }
    if let Some(device) = &tensor.device {
        parts.push(format!("device={device}"));
    }
    if tensor.dims.is_some() || !parts.is_empty() {
        write!(f, "({})", parts.join(", "))?;
    }
    f.write_str(if tensor.is_undefined { "[Undefined]" } else { "" })
}

impl Display for Dim {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Dim::Known(size) => write!(f, "{size}"),
            Dim::Unknown => f.write_char('*'),
            Dim::Symbol(name) => f.write_str(name),
        }
    }
}
