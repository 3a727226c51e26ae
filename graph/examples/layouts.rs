//! Prints the strategies of each operator of an archive for a number of devices: a line of JSON with its arguments and
//! all its strategies. `tests/oracle/layouts.py` tries them.
//!
//! `cargo run -p model-analyze-graph --example layouts -- MODEL.pt DEVICES`

use std::io::Write;

use graph::Number;
use graph::layout::{Context, Edit, Layout, Need, Slice, Source, Special};
use serde_json::{Value, json};
use tracer::{Constant, Operand};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut given = std::env::args().skip(1);
    let (path, degree) = given.next().zip(given.next()).ok_or("usage: layouts MODEL.pt DEVICES")?;
    let program = tracer::read_archive(&std::fs::read(path)?)?;
    let graph = graph::build(&program, &graph::BuildOptions::default())?;
    let mut context = Context::new(&graph, degree.parse()?);
    context.on_first = true;
    let mut out = std::io::stdout().lock();
    for operator in &graph.operators {
        let leaves = context.leaves(operator.id);
        let values = |source: Source| match source {
            Source::Value(id) => graph.value(id).fact.tensors().first().copied().cloned(),
            Source::Tensor(id) => Some(graph.tensor(id).fact()),
        };
        let told = leaves.iter().map(|leaf| {
            let dtype = values(leaf.source).and_then(|fact| fact.dtype).map(graph::dtype_name);
            let is_list = matches!(leaf.source, Source::Value(id) if matches!(graph.value(id).fact, graph::Fact::List(_)));
            json!({"argument": leaf.argument, "item": leaf.item, "sizes": leaf.sizes, "dtype": dtype, "list": is_list})
        });
        let facts = |operand: &Operand| match operand {
            Operand::Value(id) => number(&graph.value(*id).fact),
            Operand::Tensor(id) => program.literals.get(id).map_or(Value::Null, literal),
            Operand::Constant(value) => literal(value),
            _ => Value::Null,
        };
        let arguments = operator.arguments.iter().map(|argument| {
            let value = match &argument.operand {
                Operand::List(items) | Operand::Tuple(items) => {
                    Value::from(items.iter().map(facts).collect::<Vec<_>>())
                }
                operand => facts(operand),
            };
            json!({"name": argument.name, "given": argument.is_given, "value": value})
        });
        let strategies = context.strategies(operator.id);
        let ways = strategies.iter().map(|one| {
            json!({
                "needs": one.needs.iter().map(|need| needed(*need)).collect::<Vec<_>>(),
                "gives": layout(one.gives),
                "edits": one.edits.iter().map(|edit| edited(*edit)).collect::<Vec<_>>(),
                "special": one.special.map(special),
                "split": one.is_split,
            })
        });
        let line = json!({
            "operator": operator.name,
            "leaves": told.collect::<Vec<_>>(),
            "arguments": arguments.collect::<Vec<_>>(),
            "strategies": ways.collect::<Vec<_>>(),
        });
        writeln!(out, "{line}")?;
    }
    Ok(())
}

fn literal(constant: &Constant) -> Value {
    match constant {
        Constant::Int(value) => json!(value),
        Constant::Float(value) => json!(value),
        Constant::Bool(value) => json!(value),
        Constant::Str(value) => json!(value),
        _ => Value::Null,
    }
}

fn number(fact: &graph::Fact) -> Value {
    match fact {
        graph::Fact::Int(Some(value)) => json!(value),
        graph::Fact::Float(Some(value)) => json!(value),
        graph::Fact::Bool(Some(value)) => json!(value),
        graph::Fact::Tensor(tensor) => match tensor.number {
            Some(Number::Int(value)) => json!(value),
            Some(Number::Float(value)) => json!(value),
            Some(Number::Bool(value)) => json!(value),
            None => Value::Null,
        },
        _ => Value::Null,
    }
}

fn slice(slice: Slice) -> Value {
    json!([slice.dim, slice.blocks])
}

fn layout(of: Layout) -> Value {
    match of {
        Layout::Whole => json!("whole"),
        Layout::Sum => json!("sum"),
        Layout::Even(at) => slice(at),
        Layout::Routed(at) => json!({"experts": at.experts}),
        Layout::Taken(of) => json!({"taken": of.rows}),
        Layout::First(rows) => json!({"first": rows}),
        Layout::Bands(at) => json!({"bands": [at.dim, at.size]}),
    }
}

fn needed(need: Need) -> Value {
    match need {
        Need::Whole => json!("whole"),
        Need::Partial => json!("partial"),
        Need::Lent(rows) => json!({"lent": rows}),
        Need::Any => json!("any"),
        Need::In(of) => layout(of),
        Need::Rows(rows) => json!({"rows": [rows.from.dim, rows.from.size, rows.results]}),
    }
}

fn edited(edit: Edit) -> Value {
    match edit {
        Edit::Divide { argument, item } => json!({"argument": argument, "item": item}),
        Edit::Set { argument, item, to } => {
            json!({"argument": argument, "item": item, "to": format!("{to:?}")})
        }
        Edit::Multiply => json!("multiply"),
    }
}

fn special(special: Special) -> Value {
    match special {
        Special::Dropout(at) => json!({"dropout": slice(at)}),
        Special::Rows => json!("rows"),
        Special::Experts => json!("experts"),
        Special::DropoutOfBands(_) | Special::DropoutOfFirst(_) | Special::Norm { .. } => {
            json!(format!("{special:?}"))
        }
        Special::CrossEntropy | Special::CausalAttention | Special::Take(_) | Special::Combine(..) => {
            json!({"ranks": "shard_operators.py"})
        }
    }
}
