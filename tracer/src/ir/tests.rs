//! Small texts: what is read, what each fault looks like, and that nothing at all makes the reader panic.

use proptest::prelude::*;

use super::{IrError, parse, read_ir};
use crate::{Constant, Operand};

/// Wraps a node's line into a graph.
fn graph(line: &str) -> String {
    format!("graph(%x : Tensor):\n  {line}\n  return (%x)\n")
}

fn check_line(line: &str) {
    let text = graph(line);
    let tree = parse(&text).unwrap_or_else(|error| panic!("{line}: {error}"));
    assert_eq!(tree.to_string(), text);
}

#[test]
fn lines_print_back() {
    for type_ in [
        "Tensor",
        "Tensor(requires_grad=1, device=cuda:0)",
        "Float(2, 3, strides=[3, 1], requires_grad=0, device=cpu)",
        "Float(requires_grad=0, device=cpu)",
        "Float()",
        "DoubleTensor(device=cpu)",
        "LongTensor",
        "Float(*, 3, *, requires_grad=0)",
        "Half(SS(-1), 2)",
        "Tensor[Undefined]",
        "Tensor[]",
        "int[]?[]",
        "(int, (Tensor, str?))",
        "()",
        "NamedTuple(a : Tensor, b : int)",
        "Dict(str, Dict(int, Tensor[]))",
        "Future[Tensor]",
        "Union[int, Tensor]",
        "Function<f>",
        "__torch__.torch.nn.modules.linear.___torch_mangle_3.Linear",
        "__torch__.torch.classes.quantized.Conv2dPackedParamsBase",
        "Float8_e4m3fn(2, strides=[1])",
    ] {
        check_line(&format!("%y : {type_} = aten::op(%x)"));
    }
    for literal in [
        "1",
        "-1",
        "1.",
        "1.0000000000000001e-05",
        "inf",
        "-inf",
        "nan",
        "3.+4.j",
        "-1e-05-inf.j",
        "\"\"",
        "\"a, b]\\\"\"",
        "\"\\001\\\\\\'\"",
        "[]",
        "[1, -2]",
        "[\"a\", \"b\"]",
        "[[1], []]",
        "(1, 2)",
        "(1,)",
        "{\"a\": [1]}",
        "{}",
        "{2}",
        "{-1e-05}",
        "<Tensor>",
        "None",
        "[True, False]",
        "annotate(List[Optional[int]], [None, 1])",
        "annotate(Dict[str, List[int]], {})",
        " 1  2 [ CPUFloatType{2} ]",
        "[ CPUFloatType{0} ]",
        "(1,.,.) =   1  2  (2,.,.) =   3  4 [ CPUDoubleType{2,1,2} ]",
        "[<Tensor>, <Tensor>]",
    ] {
        check_line(&format!("%y : int = prim::Constant[value={literal}]()"));
    }
    for tail in [
        ", scope: __module.a/__module.a.b # a b # c.py:3:0",
        " # C:\\dir\\f.py:1:2",
        ", scope: Net/Sequential[layer 1]",
        ", scope: __module.# odd",
        " # <ipython-input-1>:3:4",
    ] {
        check_line(&format!("%y : int = aten::op(%x){tail}"));
    }
    check_line("%a.1 : int, %block1-0 : int = aten::op[name=\"x\", sizes=[1, 2]](%x, %x)");
    check_line(" = prim::Print(%x)");
    check_line("%y : Tensor = ^Function(1, (2, 3), \"a\")(%x)");
    check_line("%y : Tensor = ^Function()(%x)");
    check_line("%y : Tensor = prim::FusionGroup_0(%x)");
    let fused = "graph(%x : Tensor):\n  %y : Tensor = prim::FusionGroup_0(%x)\n  return (%y)\n\
                 with prim::FusionGroup_0 = graph(%0 : Tensor):\n  return (%0)\n";
    assert_eq!(parse(fused).expect("a graph").to_string(), fused);
}

#[test]
fn strings_are_unescaped() {
    // The printer computes escapes from signed bytes; this is what it makes of `é`.
    let text = graph("%y : str = prim::Constant[value=\"caf\\0)+\\/.)\\n\\001\"]()");
    let tree = parse(&text).expect("a graph");
    assert_eq!(tree.to_string(), text);
    let super::tree::Literal::Str(found) = &tree.nodes[0].attributes[0].1 else { panic!() };
    assert_eq!(found, "café\n\u{1}");
}

#[test]
fn literals_become_typed_constants() {
    let constant = |type_: &str, literal: &str| {
        let text = format!(
            "graph(%x : Tensor):\n  %c : {type_} = prim::Constant[value={literal}]()\n  return (%c)\n"
        );
        read_ir(&text).expect("a program").output
    };
    assert_eq!(constant("bool", "1"), Operand::Constant(Constant::Bool(true)));
    assert_eq!(constant("int", "1"), Operand::Constant(Constant::Int(1)));
    assert_eq!(constant("float", "1."), Operand::Constant(Constant::Float(1.0)));
    assert_eq!(constant("float", "-inf"), Operand::Constant(Constant::Float(f64::NEG_INFINITY)));
    assert_eq!(constant("complex", "3.+4.j"), Operand::Constant(Constant::Complex(3.0, 4.0)));
    assert_eq!(constant("complex", "-1e-05-2.j"), Operand::Constant(Constant::Complex(-1e-5, -2.0)));
    assert_eq!(constant("Device", "\"cuda:0\""), Operand::Constant(Constant::Device("cuda:0".to_owned())));
    let ints = vec![Operand::Constant(Constant::Int(1)), Operand::Constant(Constant::Int(2))];
    assert_eq!(constant("int[]", "[1, 2]"), Operand::List(ints));
    let bools = vec![Operand::Constant(Constant::Bool(true))];
    assert_eq!(constant("bool[]", "[True]"), Operand::List(bools));
}

#[test]
fn older_scopes_are_understood() {
    for scope in ["__module.a/__module.a.b", "Net::/Seq::a/Linear::a.b", "Net/Seq[a]/Linear[b]"] {
        let program =
            read_ir(&graph(&format!("%y : Tensor = aten::relu(%x), scope: {scope}"))).expect("a program");
        let paths: Vec<&str> =
            program.calls.iter().map(|call| program.modules[call.module.index()].path.as_str()).collect();
        assert_eq!(paths, ["", "a", "a.b"], "{scope}");
    }
}

/// Lowers nodes that stand in a graph of `%x`, `%n` and `%b`, and shows what is left of them.
fn check_lowered(nodes: &str, expected: &str) {
    let text = format!("graph(%x : Tensor, %n : int, %b : bool):\n{nodes}\n  return (%y)\n");
    let program = read_ir(&text).expect("a program");
    let shown = |operand: &Operand| match operand {
        Operand::Value(value) => format!("%{}", program.values[value.index()].name),
        Operand::List(items) => format!("list of {}", items.len()),
        Operand::Constant(Constant::Int(value)) => value.to_string(),
        operand => format!("{operand:?}"),
    };
    let mut lines = String::new();
    for node in &program.nodes {
        let outputs: Vec<&str> =
            node.outputs.iter().map(|output| program.values[output.index()].name.as_str()).collect();
        let arguments: Vec<String> = node.arguments.iter().map(|a| shown(&a.operand)).collect();
        lines += &format!("{} = {}({})\n", outputs.join(", "), node.operator, arguments.join(", "));
    }
    assert_eq!(lines + &shown(&program.output), expected);
}

#[test]
fn what_constants_decide_is_written_out() {
    let loop_of = |limit: &str| {
        format!(
            "  %three : int = prim::Constant[value=3]()\n  %true : bool = prim::Constant[value=1]()\n  \
             %l : Tensor[] = prim::ListConstruct()\n  %z : Tensor = prim::Loop({limit}, %true, %x)\n    \
             block0(%i : int, %c : Tensor):\n      %d : Tensor = aten::mul(%c, %i)\n      \
             %e : Tensor[] = aten::append(%l, %d)\n      -> (%true, %d)\n  %y : Tensor = aten::stack(%l)"
        )
    };
    check_lowered(
        &loop_of("%three"),
        "d = aten::mul(%x, 0)\nd:1 = aten::mul(%d, 1)\nd:2 = aten::mul(%d:1, 2)\ny = aten::stack(list of 3)\n%y",
    );
    // A list that an opaque loop changes is another one behind it.
    check_lowered(
        &loop_of("%n"),
        "l:1 = prim::ListConstruct(list of 0)\nz, l:2 = prim::Opaque(%n, Constant(Bool(true)), %x, %l:1)\n\
         y = aten::stack(%l:2)\n%y",
    );
    check_lowered(
        "  %c : Tensor = prim::unchecked_cast(%x)\n  %y : Tensor = aten::relu(%c)",
        "y = aten::relu(%x)\n%y",
    );
    let branch_on = |condition: &str| {
        format!(
            "  %none : NoneType = prim::Constant()\n  %r : Tensor = aten::relu(%x)\n  \
             %is : bool = aten::__is__(%r, %none)\n  %y : Tensor = prim::If({condition})\n    block0():\n      \
             %p : Tensor = aten::neg(%r)\n      -> (%p)\n    block1():\n      -> (%r)"
        )
    };
    check_lowered(&branch_on("%is"), "r = aten::relu(%x)\n%r");
    // A branch that raises is a check, which is taken to pass.
    check_lowered(
        "  %s : str = prim::Constant[value=\"wrong\"]()\n  %q : bool = aten::Bool(%x)\n  \
         %y : Tensor = prim::If(%q)\n    block0():\n      %p : Tensor = aten::neg(%x)\n      -> (%p)\n    \
         block1():\n       = prim::RaiseException(%s, %s)\n      -> (%x)",
        "q = aten::Bool(%x)\np = aten::neg(%x)\n%p",
    );
    check_lowered(&branch_on("%b"), "r = aten::relu(%x)\ny = prim::Opaque(%b, %r)\n%y");
}

#[test]
fn marks_for_a_profiler_are_left_out() {
    check_lowered(
        "  %name : str = prim::Constant[value=\"part\"]()\n  %none : NoneType = prim::Constant()\n  \
         %mark : __torch__.torch.classes.profiler._RecordFunction = profiler::_record_function_enter_new(%name, %none)\n  \
         %y : Tensor = aten::relu(%x)\n   = profiler::_record_function_exit(%mark)",
        "y = aten::relu(%x)\n%y",
    );
}

fn check_error(text: &str, expected: &str) {
    let error = read_ir(text).expect_err(text);
    let place = error.span().map(|span| &text[span.start as usize..span.end as usize]);
    assert_eq!(format!("{error} [{}]", place.unwrap_or_default()), expected);
}

#[test]
fn faults_name_their_place() {
    check_error("", "expected `graph(`, found the end of the text []");
    check_error("module {", "expected `graph(`, found `module` [module]");
    check_error("graph(%x : Tensor)\n", "expected `):`, found `)` [)]");
    check_error("graph(%x : Tensor):\n  %y = f(%x)\n", "expected `:` and a type, found `=` [=]");
    check_error("graph(%x : Tensor):\n  oops\n", "expected a node or `return (`, found `oops` [oops]");
    check_error("graph(%x : Tensor):\n", "expected a node or `return (`, found the end of the text []");
    check_error(&graph("%y : Tensor = aten::relu(%x"), "expected `,` or `)`, found the end of the line []");
    check_error(&graph("%y : Float = aten::relu(%x)"), "expected the sizes of a tensor, found ` ` [ ]");
    check_error(&graph("%y : int = prim::Constant[value=]()"), "expected a value, found `]` []]");
    check_error(
        &graph("%y : str = prim::Constant[value=\"a]()"),
        "expected the closing quote of a string, found the end of the line []",
    );
    check_error(
        &graph("%y : Tensor = aten::relu(%x) and more"),
        "expected `, scope:`, ` # file:line:column` or the end of the line, found ` ` [ ]",
    );
    check_error(&graph("%y : Tensor = aten::relu(%z)"), "value %z is used but nothing above makes it [%z]");
    check_error(&graph("%x : Tensor = aten::relu(%x)"), "value %x is made twice [%x]");
    check_error(
        &graph("%y : int = prim::GetAttr(%x)"),
        "prim::GetAttr needs the attribute name=\"…\", found 0 [%y : int = prim::GetAttr(%x)]",
    );
    check_error(
        &graph("%t : (Tensor, Tensor) = prim::TupleConstruct(%x, %x)\n  %a : Tensor = prim::TupleUnpack(%t)"),
        "prim::TupleUnpack needs 2 outputs, found 1 [%a : Tensor = prim::TupleUnpack(%t)]",
    );
}

#[test]
fn hostile_texts_end_in_errors() {
    let deep = |open: &str, inner: &str, close: &str| open.repeat(50_000) + inner + &close.repeat(50_000);
    assert!(parse(&graph(&format!("%y : {} = f()", deep("(", "int", ")")))).is_err());
    assert!(parse(&graph(&format!("%y : {} = f()", deep("Dict(int, ", "int", ")")))).is_err());
    assert!(parse(&graph(&format!("%y : int{} = f()", deep("[]", "", "?")))).is_err());
    assert!(parse(&graph(&format!("%y : int = prim::Constant[value={}]()", deep("[", "1", "]")))).is_err());
    assert!(parse(&graph(&format!("%y : int = prim::Constant[value={}]()", deep("{1:", "1", "}")))).is_err());
    assert!(
        parse(&graph(&format!(" = prim::If(%x)\n{}", "block0():\n = prim::If(%x)\n".repeat(50_000))))
            .is_err()
    );

    // A list of lists of lists: 2^40 elements in forty lines.
    let mut text = "graph(%x : Tensor):\n  %l0 : int[] = prim::ListConstruct(%x, %x)\n".to_owned();
    for line in 1..40 {
        text += &format!("  %l{line} : int[] = prim::ListConstruct(%l{}, %l{})\n", line - 1, line - 1);
    }
    text += "  return (%l39)\n";
    assert!(matches!(read_ir(&text), Err(IrError::TooMuch { .. })));

    let path = vec!["a"; 100_000].join(".");
    let scope = format!("%y : Tensor = aten::relu(%x), scope: __module.{path}");
    assert!(matches!(read_ir(&graph(&scope)), Err(IrError::TooMuch { .. })));
}

const DUMPS: [&str; 4] = [
    include_str!("../../../fixtures/ir/odd.inlined.txt"),
    include_str!("../../../fixtures/ir/odd.graph.txt"),
    include_str!("../../../fixtures/ir/scripted_control.txt"),
    include_str!("../../../fixtures/ir/scripted_folded.txt"),
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn mutated_dumps_never_panic(
        dump in 0..DUMPS.len(),
        edits in prop::collection::vec((any::<prop::sample::Index>(), 0..40usize, "[ -~\n]{0,6}"), 1..4),
    ) {
        let mut bytes = DUMPS[dump].as_bytes().to_vec();
        for (at, removed, inserted) in edits {
            let at = at.index(bytes.len());
            let end = (at + removed).min(bytes.len());
            bytes.splice(at..end, inserted.bytes());
        }
        let text = String::from_utf8_lossy(&bytes);
        if let Some(span) = read_ir(&text).err().and_then(|error| error.span()) {
            prop_assert!(text.get(span.start as usize..span.end as usize).is_some());
        }
        if let Ok(tree) = parse(&text) {
            let printed = tree.to_string();
            let again = parse(&printed);
            prop_assert_eq!(again.map(|tree| tree.to_string()), Ok(printed));
        }
    }
}
