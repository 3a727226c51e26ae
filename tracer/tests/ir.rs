//! IR text of torch itself: the committed dumps, and those of the whole zoo where it has been traced.

#![allow(clippy::unwrap_used, clippy::print_stdout, missing_docs)]

use std::{
    fs,
    path::{Path, PathBuf},
};

use tracer::{Argument, CallId, Constant, Operand, Program, Type, ir};

#[path = "../../tests/needs/mod.rs"]
mod needs;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The committed dumps, then those that `make zoo` leaves in `out/zoo`.
fn dumps() -> Vec<PathBuf> {
    let mut found = Vec::new();
    for folder in ["fixtures/ir", "out/zoo"] {
        let Ok(entries) = fs::read_dir(root().join(folder)) else {
            needs::shorten(needs::Need::Zoo);
            continue;
        };
        found.extend(
            entries
                .map(|entry| entry.unwrap().path())
                .filter(|path| path.extension() == Some("txt".as_ref())),
        );
    }
    found.sort();
    found
}

#[test]
fn dumps_print_back_byte_for_byte() {
    let dumps = dumps();
    assert!(dumps.len() >= 8);
    for path in dumps {
        let text = fs::read_to_string(&path).unwrap();
        let graph = ir::parse(&text).unwrap_or_else(|error| panic!("{}: {error} {error:?}", path.display()));
        let printed = graph.to_string();
        for (ours, theirs) in printed.lines().zip(text.lines()) {
            assert_eq!(ours, theirs, "{}", path.display());
        }
        assert_eq!(printed, text, "{}", path.display());
    }
}

#[test]
fn dumps_become_programs() {
    for path in dumps() {
        let text = fs::read_to_string(&path).unwrap();
        let program = ir::read_ir(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        check_invariants(&program, &path);
    }
}

fn check_invariants(program: &Program, path: &Path) {
    let place = path.display();
    assert_eq!(program.calls[0].nodes, 0..program.nodes.len() as u32, "{place}");
    for (index, module) in program.modules.iter().enumerate().skip(1) {
        let parent = module.parent.unwrap();
        assert!(parent.index() < index, "{place}: {}", module.path);
        assert!(program.modules[parent.index()].children.values().any(|child| child.index() == index));
    }
    for call in &program.calls[1..] {
        let parent = &program.calls[call.parent.unwrap().index()];
        assert!(parent.nodes.start <= call.nodes.start && call.nodes.end <= parent.nodes.end, "{place}");
        assert!(!call.nodes.is_empty(), "{place}");
    }
    for (index, node) in program.nodes.iter().enumerate() {
        assert!(program.calls[node.call.index()].nodes.contains(&(index as u32)), "{place}");
        for Argument { operand, .. } in &node.arguments {
            check_operand(program, operand, index);
        }
    }
}

fn check_operand(program: &Program, operand: &Operand, user: usize) {
    match operand {
        Operand::Value(value) => {
            assert!(program.values[value.index()].producer.is_none_or(|producer| producer.index() < user));
        }
        Operand::Tensor(tensor) => assert!(tensor.index() < program.tensors.len()),
        Operand::Constant(_) => {}
        Operand::List(items) | Operand::Tuple(items) => {
            items.iter().for_each(|item| check_operand(program, item, user));
        }
        Operand::Dict(pairs) => pairs.iter().for_each(|(_, value)| check_operand(program, value, user)),
    }
}

fn read_fixture(name: &str) -> Program {
    ir::read_ir(&fs::read_to_string(root().join("fixtures/ir").join(name)).unwrap()).unwrap()
}

/// Draws the calls with their own nodes' operators.
fn outline(program: &Program) -> String {
    let mut text = String::new();
    for (index, call) in program.calls.iter().enumerate() {
        let id = CallId(index as u32);
        let mut depth = 0;
        let mut above = call.parent;
        while let Some(parent) = above {
            depth += 1;
            above = program.calls[parent.index()].parent;
        }
        let module = &program.modules[call.module.index()];
        let own: Vec<&str> = (call.nodes.start..call.nodes.end)
            .map(|node| &program.nodes[node as usize])
            .filter(|node| node.call == id)
            .map(|node| node.operator.trim_start_matches("aten::"))
            .collect();
        let (path, class) = (&module.path, module.class.rsplit('.').next().unwrap());
        text += &format!("{}{path}: {class}.{} [{}]\n", "  ".repeat(depth), call.method, own.join(" "));
    }
    text
}

#[test]
fn scopes_become_calls() {
    insta::assert_snapshot!(outline(&read_fixture("cnn_basic.inlined.txt")), @r"
    : BasicCNN.forward [relu relu view relu relu]
      conv1: Conv2d.forward [_convolution]
      pool: MaxPool2d.forward [max_pool2d]
      conv2: Conv2d.forward [_convolution]
      pool: MaxPool2d.forward1 [max_pool2d]
      fc1: Linear.forward [linear]
      fc2: Linear.forward [linear]
      fc3: Linear.forward [linear]
    ");
    insta::assert_snapshot!(outline(&read_fixture("lstm_seq2seq_small.inlined.txt")), @r"
    : Seq2Seq.forward []
      encoder: Encoder.forward [tanh]
        encoder.embedding: Embedding.forward [embedding]
        encoder.lstm: LSTM.forward [size zeros zeros lstm]
        encoder.bridge: Linear.forward [linear]
      decoder: Decoder.forward [slice select unsqueeze size expand contiguous zeros_like transpose bmm softmax bmm cat]
        decoder.embedding: Embedding.forward [embedding]
        decoder.lstm: LSTM.forward [lstm]
        decoder.project: Linear.forward [linear]
    ");
    // One linear layer called twice in a row, a scripted loop of three rounds, and a name that is not an identifier.
    insta::assert_snapshot!(outline(&read_fixture("odd.inlined.txt")), @r"
    : Odd.forward [prim::TupleUnpack to detach add to detach add zeros to mul sum gt Bool prim::Opaque sum gt Bool prim::Opaque sum gt Bool prim::Opaque to add]
      l: Linear.forward [linear]
      l: Linear.forward1 [linear]
      odd.block1-0: Linear.forward [linear]
    ");
}

#[test]
fn method_calls_stay_nodes_of_their_own_calls() {
    insta::assert_snapshot!(outline(&read_fixture("cnn_basic.graph.txt")), @r"
    : BasicCNN.forward [relu relu view relu relu]
      conv1: Conv2d.forward [prim::CallMethod]
      pool: MaxPool2d.forward [prim::CallMethod]
      conv2: Conv2d.forward [prim::CallMethod]
      pool: MaxPool2d.forward1 [prim::CallMethod]
      fc1: Linear.forward [prim::CallMethod]
      fc2: Linear.forward [prim::CallMethod]
      fc3: Linear.forward [prim::CallMethod]
    ");
}

#[test]
fn operands_and_types_are_those_of_the_dump() {
    let program = read_fixture("cnn_basic.inlined.txt");
    let convolution = &program.nodes[0];
    assert_eq!(convolution.operator, "aten::_convolution");
    let arguments: Vec<String> =
        convolution.arguments.iter().map(|argument| show(&program, &argument.operand)).collect();
    insta::assert_snapshot!(arguments.join(" "), @r#"%x.1 conv1.weight conv1.bias ["1", "1"] ["0", "0"] ["1", "1"] false ["0", "0"] 1 false false true true"#);
    let Type::Tensor(type_) = &program.values[convolution.outputs[0].index()].type_ else { panic!() };
    assert_eq!(type_.shape, Some(vec![4, 6, 28, 28]));
    assert_eq!(type_.device.as_deref(), Some("cpu"));
}

fn show(program: &Program, operand: &Operand) -> String {
    match operand {
        Operand::Value(value) => format!("%{}", program.values[value.index()].name),
        Operand::Tensor(tensor) => program.tensors[tensor.index()].path.clone(),
        Operand::Constant(Constant::Int(int)) => int.to_string(),
        Operand::Constant(Constant::Bool(bool)) => bool.to_string(),
        Operand::List(items) => {
            format!("{:?}", items.iter().map(|item| show(program, item)).collect::<Vec<_>>())
        }
        other => format!("{other:?}"),
    }
}
