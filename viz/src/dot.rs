//! A diagram as DOT, for Graphviz and other readers.
//!
//! graphviz-rust prints identifiers verbatim, so every text is quoted here: a name with a quote or a backslash would
//! otherwise end its string, and a name in angle brackets would be read as HTML.

use graphviz_rust::{
    dot_structures::{
        Attribute, Edge, EdgeTy, Graph, GraphAttributes, Id, Node, NodeId, Stmt, Subgraph, Vertex,
    },
    printer::{DotPrinter, PrinterContext},
};

use crate::{
    cards::{full_title, stage_badge},
    diagram::{BoxId, Diagram, Family},
    layout::Direction,
    palette, text,
};

/// Longest name in a label, in characters.
const LONGEST: usize = 120;

/// Writes a diagram as a DOT document with a cluster for every frame.
pub fn dot(diagram: &Diagram, direction: Direction) -> String {
    let root = diagram.get(BoxId::ROOT);
    let rankdir = match direction {
        Direction::TopToBottom => "TB",
        Direction::LeftToRight => "LR",
    };
    let mut statements = vec![
        Stmt::GAttribute(GraphAttributes::Graph(vec![
            attribute("label", &root.title),
            attribute("labelloc", "t"),
            attribute("rankdir", rankdir),
            attribute("fontname", "Helvetica"),
            attribute("style", "rounded"),
            attribute("color", palette::FAINT.light),
        ])),
        Stmt::GAttribute(GraphAttributes::Node(vec![
            attribute("shape", "box"),
            attribute("style", "rounded,filled"),
            attribute("fontname", "Helvetica"),
            attribute("fontsize", "11"),
            attribute("height", "0.3"),
        ])),
        Stmt::GAttribute(GraphAttributes::Edge(vec![
            attribute("fontname", "Helvetica"),
            attribute("fontsize", "9"),
            attribute("color", palette::WIRE.light),
            attribute("fontcolor", palette::MUTED.light),
        ])),
    ];
    // From the innermost outwards: a frame's statements are complete when they are added to its parent.
    let mut inner: Vec<Vec<Stmt>> = vec![Vec::new(); diagram.boxes().len()];
    for id in diagram.ids().rev().filter(|id| *id != BoxId::ROOT) {
        let statement = if diagram.is_leaf(id) {
            Stmt::Node(leaf(diagram, id))
        } else {
            let mut statements = std::mem::take(&mut inner[id.index()]);
            statements.push(Stmt::Attribute(attribute("label", &lines(diagram, id))));
            statements.reverse();
            Stmt::Subgraph(Subgraph { id: Id::Plain(format!("cluster_{}", id.0)), stmts: statements })
        };
        let parent = diagram.get(id).parent.expect("only the root has no parent");
        inner[parent.index()].push(statement);
    }
    inner[0].reverse();
    statements.append(&mut inner[0]);
    for wire in diagram.wires() {
        for sink in &wire.sinks {
            let attributes = if wire.label.is_empty() {
                vec![]
            } else {
                vec![attribute("label", &shortened(&wire.label))]
            };
            statements.push(Stmt::Edge(Edge { ty: EdgeTy::Pair(end(wire.source), end(*sink)), attributes }));
        }
    }
    let graph = Graph::DiGraph { id: quoted(&root.title), strict: false, stmts: statements };
    let mut printed = graph.print(&mut PrinterContext::default());
    printed.push('\n');
    printed
}

fn leaf(diagram: &Diagram, id: BoxId) -> Node {
    let item = diagram.get(id);
    let mut attributes = vec![attribute("label", &lines(diagram, id)), attribute("tooltip", &item.path)];
    match Family::ALL.iter().position(|family| *family == item.family) {
        Some(family) => {
            attributes.push(attribute("fillcolor", palette::FAMILIES[family].fill.light));
            attributes.push(attribute("color", palette::FAMILIES[family].line.light));
        }
        None => attributes.push(attribute("fillcolor", palette::PAGE.light)),
    }
    if let Some(stage) = item.stage.filter(|_| diagram.has_stages) {
        let shade = palette::STAGES[stage as usize % palette::STAGES.len()];
        attributes.push(attribute("color", shade.light));
        attributes.push(attribute("penwidth", "2"));
    }
    Node { id: NodeId(Id::Plain(format!("n{}", id.0)), None), attributes }
}

/// Returns the texts of a box, one a line.
fn lines(diagram: &Diagram, id: BoxId) -> String {
    let item = diagram.get(id);
    let mut lines = vec![shortened(&full_title(diagram, id))];
    lines.extend([&item.subtitle].into_iter().filter(|text| !text.is_empty()).map(|text| shortened(text)));
    if diagram.is_leaf(id) {
        lines.extend(item.details.iter().map(|text| shortened(text)));
        lines.extend(item.tags.iter().map(|tag| shortened(&format!("← {tag}"))));
    }
    if diagram.amounts.is_some() {
        lines.extend(item.amount.iter().map(|amount| amount.text.clone()));
    }
    if diagram.has_stages {
        lines.extend(item.stage.map(stage_badge));
    }
    lines.join("\n")
}

fn end(id: BoxId) -> Vertex {
    Vertex::N(NodeId(Id::Plain(format!("n{}", id.0)), None))
}

fn attribute(name: &str, value: &str) -> Attribute {
    Attribute(Id::Plain(name.to_string()), quoted(value))
}

/// A text as a quoted identifier; line feeds remain line feeds of the label.
fn quoted(value: &str) -> Id {
    let mut quoted = String::with_capacity(value.len() + 2);
    quoted.push('"');
    for (index, line) in value.split('\n').enumerate() {
        if index > 0 {
            quoted.push_str("\\n");
        }
        for c in text::clean(line).chars() {
            if c == '"' || c == '\\' {
                quoted.push('\\');
            }
            quoted.push(c);
        }
    }
    quoted.push('"');
    Id::Escaped(quoted)
}

fn shortened(value: &str) -> String {
    // A line feed inside a name is not a line feed of the label.
    let value = text::clean(value);
    match value.char_indices().nth(LONGEST) {
        None => value.into_owned(),
        Some((end, _)) => format!("{}…", &value[..end]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagram::DiagramBox;

    fn check(title: &str) -> String {
        let mut diagram = Diagram::new(DiagramBox { title: title.to_string(), ..DiagramBox::default() });
        let named = |title: &str| DiagramBox { title: title.to_string(), ..DiagramBox::default() };
        let frame = diagram.add(BoxId::ROOT, named(title));
        let a = diagram.add(frame, named(title));
        let b = diagram.add(frame, named("b"));
        diagram.connect(a, title, [b]);
        dot(&diagram, Direction::TopToBottom)
    }

    #[test]
    fn texts_are_quoted() {
        insta::assert_snapshot!(check("say \"hi\" \\ <b>\nnext"));
    }

    #[test]
    fn what_is_printed_can_be_parsed() {
        for title in
            ["a", "", "\"", "\\", "a\\", "<x>", "\u{0}\r\n", "subgraph {", "a -> b;", "名前", "]; evil ["]
        {
            let printed = check(title);
            let parsed = graphviz_rust::parse(&printed);
            assert!(parsed.is_ok(), "{title:?}\n{printed}\n{parsed:?}");
        }
    }
}
