//! A diagram for Google's Model Explorer: one graph collection, and costs as its node data.
//!
//! Show them with `model-explorer model.json --node_data_paths costs.json`. The format is that of version 0.1; it has
//! no schema of its own. Frames are not nodes in it but parts of a node's namespace.

use serde_json::{Value, json};

use crate::diagram::{BoxId, Diagram, DiagramBox};

/// Writes a whole diagram as a graph collection.
pub fn explorer(diagram: &Diagram) -> Value {
    let root = diagram.get(BoxId::ROOT);
    let leaves: Vec<BoxId> = diagram.ids().skip(1).filter(|id| diagram.is_leaf(*id)).collect();
    let mut incoming: Vec<Vec<Value>> = vec![Vec::new(); diagram.boxes().len()];
    let mut outputs: Vec<Vec<Value>> = vec![Vec::new(); diagram.boxes().len()];
    for wire in diagram.wires() {
        let made = &mut outputs[wire.source.index()];
        let output = made.len().to_string();
        made.push(json!({ "id": output, "attrs": [{ "key": "shape", "value": wire.label }] }));
        for sink in &wire.sinks {
            let arriving = &mut incoming[sink.index()];
            let input = arriving.len().to_string();
            arriving.push(json!({
                "sourceNodeId": name(wire.source),
                "sourceNodeOutputId": output,
                "targetNodeInputId": input,
            }));
        }
    }
    let spaces = name_spaces(diagram);
    let nodes: Vec<Value> = leaves
        .into_iter()
        .map(|id| {
            let item = diagram.get(id);
            json!({
                "id": name(id),
                "label": item.title,
                "namespace": spaces[id.index()],
                "attrs": attributes(item),
                "incomingEdges": incoming[id.index()],
                "outputsMetadata": outputs[id.index()],
            })
        })
        .collect();
    json!({ "label": root.title, "graphs": [{ "id": root.title, "nodes": nodes }] })
}

/// Writes the boxes' amounts as node data for the same collection; `None` without amounts.
pub fn explorer_costs(diagram: &Diagram) -> Option<Value> {
    let what = diagram.amounts.as_ref()?;
    let root = diagram.get(BoxId::ROOT);
    let results: serde_json::Map<String, Value> = diagram
        .ids()
        .skip(1)
        .filter(|id| diagram.is_leaf(*id))
        .filter_map(|id| {
            diagram.get(id).amount.as_ref().map(|amount| (name(id), json!({ "value": amount.value })))
        })
        .collect();
    let gradient = [
        json!({ "stop": 0.0, "bgColor": crate::palette::COST[0].light }),
        json!({ "stop": 1.0, "bgColor": crate::palette::COST[5].light }),
    ];
    Some(json!({ root.title.as_str(): { "name": what, "results": results, "gradient": gradient } }))
}

fn name(id: BoxId) -> String {
    format!("n{}", id.0)
}

/// Returns each box's frames, outermost first, joined by slashes.
fn name_spaces(diagram: &Diagram) -> Vec<String> {
    let mut spaces = vec![String::new(); diagram.boxes().len()];
    for id in diagram.ids().skip(1) {
        let parent = diagram.get(id).parent.expect("only the root has no parent");
        if parent == BoxId::ROOT {
            continue;
        }
        // A slash in a name would open another level.
        let title = diagram.get(parent).title.replace('/', "\u{2215}");
        let outer = &spaces[parent.index()];
        spaces[id.index()] = if outer.is_empty() { title } else { format!("{outer}/{title}") };
    }
    spaces
}

fn attributes(item: &DiagramBox) -> Vec<Value> {
    let mut attributes = vec![("path", item.path.clone())];
    attributes
        .extend([("setting", item.subtitle.clone())].into_iter().filter(|(_, value)| !value.is_empty()));
    attributes.extend(item.attributes.iter().map(|(name, value)| (name.as_str(), value.clone())));
    attributes.extend(item.amount.as_ref().map(|amount| ("cost", amount.text.clone())));
    attributes.extend(item.stage.map(|stage| ("stage", stage.to_string())));
    attributes.into_iter().map(|(key, value)| json!({ "key": key, "value": value })).collect()
}
