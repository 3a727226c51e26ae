//! Archives made by hand: what is read, and how each wrong one is refused.
#![allow(clippy::unwrap_used)]

use std::io::{Cursor, Write};

use proptest::prelude::*;
use tracer::{Comparison, Constant, Operand, Program, Role, TraceError, TraceNote, Type, read_archive};
use zip::{CompressionMethod, ZipWriter, write::SimpleFileOptions};

const CODE: &str = r#"class Net(Module):
  __parameters__ = ["weight", ]
  __buffers__ = []
  weight : Tensor
  training : bool
  inner : __torch__.Inner
  def forward(self: __torch__.Net,
    x: Tensor) -> Tensor:
    inner = self.inner
    weight = self.weight
    _0 = (inner).forward(torch.linear(x, weight, None), )
    return (inner).forward1(_0, )
class Inner(Module):
  __parameters__ = []
  __buffers__ = []
  training : bool
  def forward(self: __torch__.Inner,
    x: Tensor) -> Tensor:
    return torch.relu(x)
  def forward1(self: __torch__.Inner,
    x: Tensor) -> Tensor:
    a, b, = torch.split(x, 2, 1)
    return torch.add(a, b, alpha=1)
"#;

/// A pickle, one opcode a call.
#[derive(Clone, Default)]
struct Pickle(Vec<u8>);

impl Pickle {
    fn new() -> Self {
        Pickle(b"\x80\x02".to_vec())
    }
    fn raw(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }
    fn global(self, module: &str, name: &str) -> Self {
        self.raw(format!("c{module}\n{name}\n").as_bytes())
    }
    fn text(self, text: &str) -> Self {
        let length = u32::try_from(text.len()).unwrap().to_le_bytes();
        self.raw(b"X").raw(&length).raw(text.as_bytes())
    }
    fn int(self, value: i32) -> Self {
        self.raw(b"J").raw(&value.to_le_bytes())
    }
    fn open(self, class: &str) -> Self {
        self.global("__torch__", class).raw(b")\x81}(")
    }
    fn tensor(self, storage: &str, key: &str, elements: i32, shape: &[i32], strides: &[i32]) -> Self {
        let mut pickle = self.global("torch._utils", "_rebuild_tensor_v2").raw(b"((").text("storage");
        pickle =
            pickle.global("torch", storage).text(key).text("cpu").int(elements).raw(b"tQ").int(0).raw(b"(");
        pickle = shape.iter().fold(pickle, |pickle, size| pickle.int(*size)).raw(b"t(");
        pickle = strides.iter().fold(pickle, |pickle, stride| pickle.int(*stride)).raw(b"t\x88");
        pickle.global("collections", "OrderedDict").raw(b")RtR")
    }
}

fn net() -> Vec<u8> {
    let pickle = Pickle::new().open("Net").text("weight").tensor("FloatStorage", "0", 6, &[2, 3], &[3, 1]);
    pickle.text("training").raw(b"\x89").text("inner").open("Inner").text("training").raw(b"\x89ubub.").0
}

fn pack(records: &[(&str, &[u8])], method: CompressionMethod) -> Vec<u8> {
    let mut writer = ZipWriter::new(Cursor::new(Vec::new()));
    for (name, bytes) in records {
        let method = if name.ends_with(".py") { method } else { CompressionMethod::Stored };
        writer.start_file(*name, SimpleFileOptions::default().compression_method(method)).unwrap();
        writer.write_all(bytes).unwrap();
    }
    writer.finish().unwrap().into_inner()
}

fn archive(code: &str, data: &[u8]) -> Vec<u8> {
    pack(
        &[
            ("net/data.pkl", data),
            ("net/data/0", &[0; 24]),
            ("net/code/__torch__.py", code.as_bytes()),
            ("net/constants.pkl", b"\x80\x02)."),
            ("net/version", b"3\n"),
            ("net/byteorder", b"little"),
        ],
        CompressionMethod::Deflated,
    )
}

/// A root module without attributes around one `forward`.
fn body(lines: &str) -> Vec<u8> {
    let mut code = String::from(
        "class Net(Module):\n  __parameters__ = []\n  __buffers__ = []\n  def forward(self: __torch__.Net,\n    x: Tensor) -> Tensor:\n",
    );
    for line in lines.lines() {
        code.push_str(&format!("    {line}\n"));
    }
    archive(&code, &Pickle::new().open("Net").raw(b"ub.").0)
}

fn show(operand: &Operand, program: &Program) -> String {
    let list =
        |items: &[Operand]| items.iter().map(|item| show(item, program)).collect::<Vec<_>>().join(", ");
    match operand {
        Operand::Value(value) => format!("%{}", program.values[value.index()].name),
        Operand::Tensor(tensor) => format!("@{}", program.tensors[tensor.index()].path),
        Operand::Constant(Constant::None) => "None".to_owned(),
        Operand::Constant(Constant::Bool(value)) => value.to_string(),
        Operand::Constant(Constant::Int(value)) => value.to_string(),
        Operand::Constant(Constant::Float(value)) => format!("{value:?}"),
        Operand::Constant(other) => format!("{other:?}"),
        Operand::List(items) => format!("[{}]", list(items)),
        Operand::Tuple(items) => format!("({})", list(items)),
        Operand::Dict(pairs) => {
            let pairs =
                pairs.iter().map(|(key, value)| format!("{}: {}", show(key, program), show(value, program)));
            format!("{{{}}}", pairs.collect::<Vec<_>>().join(", "))
        }
    }
}

fn text(program: &Program) -> String {
    let mut text = String::new();
    for node in &program.nodes {
        let outputs: Vec<String> =
            node.outputs.iter().map(|value| format!("%{}", program.values[value.index()].name)).collect();
        let arguments: Vec<String> = node
            .arguments
            .iter()
            .map(|argument| match &argument.name {
                Some(name) => format!("{name}={}", show(&argument.operand, program)),
                None => show(&argument.operand, program),
            })
            .collect();
        text.push_str(&format!("{} = {}({})\n", outputs.join(", "), node.operator, arguments.join(", ")));
    }
    text.push_str(&format!("return {}\n", show(&program.output, program)));
    text
}

/// What a body flattens to.
fn check(lines: &str, expected: &str) {
    let program = read_archive(&body(lines)).unwrap_or_else(|error| panic!("{error}\n{lines}"));
    assert_eq!(text(&program), expected, "{lines}");
}

/// How a body is refused, and the text that the error points at.
fn refused(lines: &str, expected: &str, at: &str) {
    let error = read_archive(&body(lines)).expect_err(lines);
    assert_eq!(error.to_string(), expected);
    let place = error.place().expect("a fault in code has a place");
    assert_eq!(&place.source.text[place.range.clone()], at);
}

fn message(bytes: &[u8]) -> String {
    read_archive(bytes).expect_err("it is wrong").to_string()
}

#[test]
fn calls_modules_and_tensors() {
    let bytes = archive(CODE, &net());
    let program = read_archive(&bytes).unwrap();
    assert_eq!(
        text(&program),
        "%linear = aten::linear(%x, @weight, None)\n\
         %relu = aten::relu(%linear)\n\
         %split = aten::split(%relu, 2, 1)\n\
         %a, %b = prim::ListUnpack(%split)\n\
         %add = aten::add(%a, %b, alpha=1)\n\
         return %add\n"
    );
    let paths: Vec<&str> = program.modules.iter().map(|module| module.path.as_str()).collect();
    assert_eq!(paths, ["", "inner"]);
    let calls: Vec<_> = program
        .calls
        .iter()
        .map(|call| (call.module.index(), call.method.as_str(), call.ordinal, call.nodes.clone()))
        .collect();
    assert_eq!(calls, [(0, "forward", 1, 0..5), (1, "forward", 1, 1..2), (1, "forward1", 2, 2..5)]);
    let weight = &program.tensors[0];
    assert_eq!(
        (weight.role, weight.requires_grad, weight.shape.as_slice()),
        (Role::Parameter, true, &[2, 3][..])
    );
    let storage = weight.storage.as_ref().unwrap();
    assert_eq!((storage.record.as_str(), storage.bytes), ("data/0", 24));
    assert_eq!(&bytes[usize::try_from(storage.position.unwrap()).unwrap()..][..24], [0; 24]);
    let node = &program.nodes[0];
    let span =
        &program.sources[node.span.source as usize].text[node.span.start as usize..node.span.end as usize];
    assert_eq!(span, "torch.linear(x, weight, None)");
    assert_eq!(program.archive.unwrap().version, 3);
}

#[test]
fn literals() {
    check(
        "return torch.f(x, -1, 2., 1.0000000000000001e-05, -inf, True, None)",
        "%f = aten::f(%x, -1, 2.0, 1e-5, -inf, true, None)\nreturn %f\n",
    );
    check(
        "return torch.f(9223372036854775807, -9223372036854775808)",
        "%f = aten::f(9223372036854775807, -9223372036854775808)\nreturn %f\n",
    );
    check(
        "return torch.f([1, 2], (x,), (), {\"a\": x})",
        "%f = aten::f([1, 2], (%x), (), {Str(\"a\"): %x})\nreturn %f\n",
    );
    check(
        "return torch.f(torch.device(\"cpu\"), (1.+2.j), 3.j)",
        "%f = aten::f(Device(\"cpu\"), Complex(1.0, 2.0), Complex(0.0, 3.0))\nreturn %f\n",
    );
    check(r#"return torch.f("a\n\"\\\0)+\/.)\101")"#, "%f = aten::f(Str(\"a\\n\\\"\\\\éA\"))\nreturn %f\n");
}

#[test]
fn whole_numbers_among_the_buffers_are_known_unless_they_change() {
    let known = |line: &str| {
        let code = format!(
            "class Net(Module):\n  __parameters__ = []\n  __buffers__ = [\"total\", ]\n  total : Tensor\n  \
             def forward(self: __torch__.Net,\n    x: Tensor) -> Tensor:\n    total = self.total\n    {line}\n    \
             return torch.mul(x, int(total))\n"
        );
        let data =
            Pickle::new().open("Net").text("total").tensor("LongStorage", "0", 1, &[], &[]).raw(b"ub.").0;
        let number = 7_i64.to_le_bytes();
        let records: [(&str, &[u8]); 4] = [
            ("net/data.pkl", &data),
            ("net/data/0", &number),
            ("net/code/__torch__.py", code.as_bytes()),
            ("net/version", b"3\n"),
        ];
        let program = read_archive(&pack(&records, CompressionMethod::Deflated)).unwrap();
        program.literals.values().cloned().collect::<Vec<_>>()
    };
    assert_eq!(known("pass"), [Constant::Int(7)]);
    assert_eq!(known("_0 = torch.add_(total, 1)"), []);
}

#[test]
fn names_stand_for_operands() {
    check("a = x\nb = (a, [a])\nc, d, = b\nreturn torch.cat(d)", "%cat = aten::cat([%x])\nreturn %cat\n");
    check(
        "x = torch.relu(x)\nx = torch.relu(x)\nreturn x",
        "%x.1 = aten::relu(%x)\n%x.2 = aten::relu(%x.1)\nreturn %x.2\n",
    );
    check("a, b = torch.max(x, 1)\nreturn (b, a)", "%a, %b = aten::max(%x, 1)\nreturn (%b, %a)\n");
    check("a, b = x, torch.relu(x)\nreturn b", "%relu = aten::relu(%x)\nreturn %relu\n");
    check("return (x, torch.relu(x))[1]", "%relu = aten::relu(%x)\nreturn %relu\n");
}

#[test]
fn numbers_and_tensors() {
    check(
        "n = ops.prim.NumToTensor(torch.size(x, 0))\nreturn torch.view(x, [int(n), -1])",
        "%size = aten::size(%x, 0)\n%n = prim::NumToTensor(%size)\n%Int = aten::Int(%n)\n\
         %view = aten::view(%x, [%Int, -1])\nreturn %view\n",
    );
    check(
        "a = annotate(number, torch.mul(x, 2))\nb = annotate(List[int], [])\nreturn torch.f(a, b)",
        "%mul = aten::mul(%x, 2)\n%a = aten::ScalarImplicit(%mul)\n%f = aten::f(%a, [])\nreturn %f\n",
    );
    check(
        "return torch.f(torch.size(x)[0], annotate(int, torch.dim(x)))",
        "%size = aten::size(%x)\n%getitem = aten::__getitem__(%size, 0)\n%dim = aten::dim(%x)\n\
         %f = aten::f(%getitem, %dim)\nreturn %f\n",
    );
    check("return ops.torchvision.nms(x, x, 0.5)", "%nms = torchvision::nms(%x, %x, 0.5)\nreturn %nms\n");
}

#[test]
fn marks_for_a_profiler_are_left_out() {
    check(
        "_0 = ops.profiler._record_function_enter_new(\"part\", None)\n_1 = torch.relu(x)\n\
         _2 = ops.profiler._record_function_exit(_0)\nreturn _1",
        "%_1 = aten::relu(%x)\nreturn %_1\n",
    );
    check(
        "_0 = ops.profiler._record_function_enter_new(\"part\")\n_1 = torch.relu(x)\n\
         ops.profiler._record_function_exit(_0)\nreturn _1",
        "%_1 = aten::relu(%x)\nreturn %_1\n",
    );
}

#[test]
fn control_flow_is_one_node() {
    check(
        "y = x\nif bool(x):\n  y0 = torch.relu(x)\nelse:\n  y0 = y\nreturn torch.neg(y0)",
        "%Bool = aten::Bool(%x)\n%y0 = prim::Opaque(if=%Bool, x=%x, y=%x)\n%neg = aten::neg(%y0)\nreturn %neg\n",
    );
    check(
        "l = annotate(List[Tensor], [])\nfor i in range(int(x)):\n  _0 = torch.append(l, x)\nreturn torch.stack(l)",
        "%Int = aten::Int(%x)\n%l = prim::ListConstruct([])\n%l.1 = prim::Opaque(for=%Int, x=%x, l=%l)\n\
         %stack = aten::stack(%l.1)\nreturn %stack\n",
    );
    // What one branch alone names means nothing afterwards.
    check(
        "if bool(x):\n  a = torch.neg(x)\n  b = torch.neg(a)\nelse:\n  b = x\nreturn b",
        "%Bool = aten::Bool(%x)\n%b = prim::Opaque(if=%Bool, x=%x)\nreturn %b\n",
    );
    let program = read_archive(&body("while bool(x):\n  x = torch.neg(x)\nreturn x")).unwrap();
    assert_eq!(program.notes[0].text, "`while` is kept as one opaque operator");
}

#[test]
fn control_flow_says_whose_memory_it_may_write_to() {
    let check = |lines: &str, expected: &[&str]| {
        let program = read_archive(&body(&format!("y = torch.neg(x)\n{lines}\nreturn y")))
            .unwrap_or_else(|e| panic!("{e}"));
        let node = program.nodes.iter().find(|node| node.operator == "prim::Opaque").expect("control flow");
        let names = node.changes.iter().map(|at| node.arguments[*at as usize].name.as_deref().unwrap());
        assert_eq!(names.collect::<Vec<_>>(), expected, "{lines}");
    };
    check("if bool(x):\n  _0 = torch.mul_(y, 2)\nelse:\n  pass", &["y"]);
    check("while bool(x):\n  a = torch.select(torch.slice(y), 0, 0)\n  _0 = torch.mul_(a, x)", &["y"]);
    check("if bool(x):\n  _0 = torch.add(torch.relu_(x), y)\nelse:\n  pass", &["x"]);
    check("if bool(x):\n  _0 = torch.neg(x, out=y)\nelse:\n  pass", &["y"]);
    check("if bool(x):\n  _0 = torch.__is__(y, None)\n  _1 = torch.mul(y, x)\nelse:\n  pass", &[]);
}

#[test]
fn what_control_flow_leaves_behind_has_its_type() {
    let check = |lines: &str, expected: Type| {
        let program =
            read_archive(&body(&format!("s = float(torch.sum(x))\n{lines}\nreturn torch.mul(x, r)")))
                .unwrap_or_else(|e| panic!("{e}"));
        assert!(program.nodes.iter().any(|node| node.operator == "prim::Opaque"), "{lines}");
        let named = program.values.iter().filter(|value| value.name == "r");
        assert_eq!(named.map(|value| &value.type_).collect::<Vec<_>>(), [&expected], "{lines}");
    };
    let tensor = Type::Tensor(Default::default());
    let both = |a: &str, b: &str| format!("if torch.gt(s, 0):\n  r = {a}\nelse:\n  r = {b}");
    check(&both("s", "2."), Type::Float);
    check(&both("1", "int(s)"), Type::Int);
    check(&both("torch.pow(int(s), 2)", "ops.prim.abs(s)"), Type::Float);
    check(&both("torch.lt(s, 1)", "torch.__not__(torch.eq(s, 2))"), Type::Bool);
    check(&both("ops.prim.max(3, int(s))", "torch.floordiv(int(s), 2)"), Type::Int);
    check(&both("torch.neg(x)", "torch.mul(x, s)"), tensor.clone());
    check(&both("[1, 2]", "annotate(List[int], [])"), Type::List(Box::new(Type::Int)));
    // One that is a tensor or nothing is what it was taken for before.
    check(&both("None", "x"), tensor.clone());
    check("if torch.gt(s, 0):\n  a = torch.mul(s, 2)\n  r = torch.gt(a, 1)\nelse:\n  r = False", Type::Bool);
    let pair = "if torch.gt(s, 0):\n  p = (x, s)\nelse:\n  p = (x, 2.)";
    check(&format!("{pair}\nr = (p)[1]"), Type::Float);
    check(&format!("{pair}\nif bool(x):\n  r = (p)[-1]\nelse:\n  r = 1."), Type::Float);
    check("if bool(x):\n  r = x\nelse:\n  r = x", tensor);
}

#[test]
fn calls_without_arguments_are_no_trouble() {
    for call in
        ["ops.prim.max()", "ops.prim.abs()", "torch.add()", "torch.pow()", "torch.sum()", "torch.gt()"]
    {
        assert!(read_archive(&body(&format!("return {call}"))).is_ok(), "{call}");
    }
}

#[test]
fn what_constants_decide_is_written_out() {
    check("if True:\n  y = torch.relu(x)\nelse:\n  y = x\nreturn y", "%y = aten::relu(%x)\nreturn %y\n");
    check(
        "y = torch.relu(x)\nif torch.__isnot__(y, None):\n  y = torch.neg(y)\nelse:\n  pass\nreturn y",
        "%y = aten::relu(%x)\n%y.1 = aten::neg(%y)\nreturn %y.1\n",
    );
    check(
        "for i in range(2):\n  x = torch.mul(x, i)\nreturn x",
        "%x.1 = aten::mul(%x, 0)\n%x.2 = aten::mul(%x.1, 1)\nreturn %x.2\n",
    );
    check(
        "l = annotate(List[Tensor], [])\nfor i in range(0, 5, 2):\n  _0 = torch.append(l, x)\nreturn torch.stack(l)",
        "%stack = aten::stack([%x, %x, %x])\nreturn %stack\n",
    );
    // As torch writes `for y in [x, x]`.
    check(
        "l = [x, x]\n_0 = [9223372036854775807, torch.len(l)]\nfor _1 in range(ops.prim.min(_0)):\n  x = torch.add(x, l[_1])\n\
         return x",
        "%getitem = aten::__getitem__([%x, %x], 0)\n%x.1 = aten::add(%x, %getitem)\n\
         %getitem.1 = aten::__getitem__([%x, %x], 1)\n%x.2 = aten::add(%x.1, %getitem.1)\nreturn %x.2\n",
    );
    // What would be too long stays whole.
    for text in [
        "for i in range(1001):\n  x = torch.neg(x)\nreturn x",
        "for i in range(2, 5, 0):\n  x = torch.neg(x)\nreturn x",
    ] {
        assert_eq!(read_archive(&body(text)).unwrap().notes.len(), 1, "{text}");
    }
    let nested: String =
        (0..8).map(|depth| format!("{}for i{depth} in range(900):\n", " ".repeat(depth))).collect();
    let program = read_archive(&body(&format!("{nested}        x = torch.neg(x)\nreturn x"))).unwrap();
    assert!(program.nodes.len() < 60_000, "{}", program.nodes.len());
}

#[test]
fn checks_are_taken_to_pass() {
    // As torch writes `assert` and `raise`.
    let raise = "ops.prim.RaiseException(\"expected 4D input\", \"builtins.ValueError\")";
    let expected = "%dim = aten::dim(%x)\n%ne = aten::ne(%dim, 4)\n%y = aten::relu(%x)\nreturn %y\n";
    for (then, otherwise) in [(raise, "pass"), ("pass", raise)] {
        let lines = format!(
            "if torch.ne(torch.dim(x), 4):\n  {then}\nelse:\n  {otherwise}\ny = torch.relu(x)\nreturn y"
        );
        check(&lines, expected);
        assert!(read_archive(&body(&lines)).unwrap().notes.is_empty());
    }
    check(
        &format!("if bool(x):\n  y = torch.relu(x)\nelse:\n  {raise}\n  y = uninitialized(Tensor)\nreturn y"),
        "%Bool = aten::Bool(%x)\n%y = aten::relu(%x)\nreturn %y\n",
    );
    // Where both raise, or one does after a question of its own, nothing is decided.
    for (then, otherwise) in
        [(raise, raise), (&*format!("if bool(x):\n    {raise}\n  else:\n    pass"), "pass")]
    {
        let lines = format!("if torch.ne(torch.dim(x), 4):\n  {then}\nelse:\n  {otherwise}\nreturn x");
        assert_eq!(read_archive(&body(&lines)).unwrap().notes.len(), 1, "{lines}");
    }
    check(
        "if torch.gt(0.5, 0):\n  y = torch.relu(x)\nelse:\n  y = x\nreturn y",
        "%gt = aten::gt(0.5, 0)\n%y = aten::relu(%x)\nreturn %y\n",
    );
}

#[test]
fn what_is_forked_stands_where_it_was_forked() {
    check(
        "y = torch.relu(x)\ndef __forked_function():\n  z = torch.neg(y)\n  return z\n\
         f = fork(__forked_function)\nw = torch.exp(y)\nreturn torch.add(w, torch.wait(f))",
        "%y = aten::relu(%x)\n%z = aten::neg(%y)\n%w = aten::exp(%y)\n%add = aten::add(%w, %z)\nreturn %add\n",
    );
    refused("def f():\n  return fork(f)\ny = fork(f)\nreturn torch.wait(y)", "`f` calls itself", "fork(f)");
}

#[test]
fn a_module_that_calls_its_own_method_is_called_once() {
    let code = "class Net(Module):\n  def forward(self: __torch__.Net,\n    x: Tensor) -> Tensor:\n    \
                y = (self)._inner(x, )\n    return torch.neg(y)\n  def _inner(self: __torch__.Net,\n    \
                x: Tensor) -> Tensor:\n    return torch.relu(x)\n";
    let program = read_archive(&archive(code, &Pickle::new().open("Net").raw(b"ub.").0)).unwrap();
    assert_eq!(text(&program), "%relu = aten::relu(%x)\n%neg = aten::neg(%relu)\nreturn %neg\n");
    assert_eq!(program.calls.len(), 1);
}

#[test]
fn code_that_is_refused() {
    refused("return torch.relu(y)", "name `y` is not defined", "y");
    refused("return self.weight", "the root module has no attribute `weight`", "self.weight");
    refused("return (self).forward(x, )", "`forward` calls itself", "(self).forward(x, )");
    refused("return torch.relu(x", "expected `,` or `)`, found the end of the text", "");
}

#[test]
fn syntax_has_a_place() {
    let error = read_archive(&body("return torch.relu(x ]")).unwrap_err();
    assert_eq!(error.to_string(), "expected `,` or `)`, found `]`");
    assert_eq!(error.place().unwrap().line_and_column(), (6, 25));
}

#[test]
fn deep_brackets() {
    for (open, close) in [("(", ")"), ("[", "]"), ("torch.relu(", ")"), ("-", ""), ("", "[0]"), ("", ".a")] {
        let text = format!("return {}x{}", open.repeat(10_000), close.repeat(10_000));
        assert!(message(&body(&text)).contains("at most 64 nested"), "{open}");
    }
}

#[test]
fn deep_blocks() {
    let mut lines = String::new();
    for depth in 0..10_000 {
        lines.push_str(&format!("{}if x:\n", " ".repeat(depth)));
    }
    assert!(message(&body(&lines)).contains("at most 64 nested"));
}

#[test]
fn deep_lists() {
    let mut lines = String::from("l0 = [x]\n");
    for depth in 1..10_000 {
        lines.push_str(&format!("l{depth} = [l{}]\n", depth - 1));
    }
    assert!(message(&body(&lines)).contains("lists inside one another"));
    let mut lines = String::from("l0 = [x]\n");
    for depth in 1..32 {
        lines.push_str(&format!("l{depth} = [l{0}, l{0}, l{0}]\n", depth - 1));
    }
    assert!(message(&body(&lines)).contains("elements of lists"));
}

#[test]
fn deep_calls() {
    let mut code = String::from("def f0(x: Tensor) -> Tensor:\n  return x\n");
    for depth in 1..10_000 {
        code.push_str(&format!(
            "def f{depth}(x: Tensor) -> Tensor:\n  return __torch__.f{}(x, )\n",
            depth - 1
        ));
    }
    code.push_str(
        "class Net(Module):\n  def forward(self, x: Tensor) -> Tensor:\n    return __torch__.f9999(x, )\n",
    );
    assert!(message(&archive(&code, &Pickle::new().open("Net").raw(b"ub.").0)).contains("nested more than"));
}

#[test]
fn deep_modules() {
    let deep = (0..10_000).fold(Pickle::new(), |pickle, _| pickle.open("Net").text("a")).raw(b"N");
    let deep = (0..10_000).fold(deep, |pickle, _| pickle.raw(b"ub")).raw(b".");
    assert!(message(&archive(CODE, &deep.0)).contains("modules inside one another"));
}

#[test]
fn cyclic_modules() {
    let cycle = Pickle::new().global("__torch__", "Net").raw(b")\x81q\x00}(").text("a").raw(b"h\x00ub.");
    assert_eq!(message(&archive(CODE, &cycle.0)), "`a`: the module contains itself");
}

#[test]
fn foreign_pickles() {
    let foreign = Pickle::new().global("os", "system").text("true").raw(b"\x85R.");
    assert_eq!(
        message(&archive(CODE, &foreign.0)),
        "pickle `data.pkl` at byte 2: foreign class `os.system` is refused"
    );
    let opcode = Pickle::new().raw(b"(dp0\n.");
    assert_eq!(
        message(&archive(CODE, &opcode.0)),
        "pickle `data.pkl` at byte 3: opcode DICT (0x64) is refused"
    );
    let short = Pickle::new().raw(b"X\xff\xff\xff\xff");
    assert_eq!(
        message(&archive(CODE, &short.0)),
        "pickle `data.pkl` at byte 2: the record ends inside an instruction"
    );
    let memo = Pickle::new().raw(b"Nr\xff\xff\xff\x7f.");
    assert!(message(&archive(CODE, &memo.0)).contains("memo slot 2147483647"));
    assert!(message(&archive(CODE, b"\x80\x02.")).contains("the stack is empty"));
}

#[test]
fn tensors_that_lie() {
    let with = |tensor: Pickle| archive(CODE, &tensor.raw(b"ub.").0);
    let start = || Pickle::new().open("Net").text("weight");
    let error = message(&with(start().tensor("FloatStorage", "9", 6, &[2, 3], &[3, 1])));
    assert_eq!(error, "record `data/9` is missing from the archive");
    let error = message(&with(start().tensor("QUInt8Storage", "0", 6, &[2, 3], &[3, 1])));
    assert_eq!(error, "`weight`: unknown element type `torch.QUInt8Storage`");
    let error = message(&with(start().tensor("FloatStorage", "0", 7, &[2, 3], &[3, 1])));
    assert_eq!(error, "`weight`: 7 elements of Float32 in a record of 24 bytes");
    let error = message(&with(start().tensor("FloatStorage", "0", 6, &[2, 3], &[4, 1])));
    assert!(error.contains("reach past the 6 stored elements"));
    let error = message(&with(start().tensor("FloatStorage", "0", 6, &[-2, 3], &[3, 1])));
    assert!(error.contains("a size or offset of -2"));
    let huge = [i32::MAX, i32::MAX, i32::MAX];
    assert!(message(&with(start().tensor("FloatStorage", "0", 6, &huge, &[0, 0, 0]))).contains("reach past"));
}

#[test]
fn files_of_another_kind() {
    let advice = |bytes: &[u8]| message(bytes);
    assert_eq!(advice(b""), "the file is empty");
    assert_eq!(advice(b"hello"), "expected a TorchScript archive, found a file that is not a zip archive");
    assert!(advice(b"\x80\x04N.").contains("a plain pickle"));
    let mut safetensors = 2_u64.to_le_bytes().to_vec();
    safetensors.extend_from_slice(b"{}  ");
    assert!(advice(&safetensors).contains("a safetensors file"));
    let dict = Pickle::new().global("collections", "OrderedDict").raw(b")R.");
    let state =
        pack(&[("archive/data.pkl", &dict.0), ("archive/version", b"3\n")], CompressionMethod::Stored);
    assert!(advice(&state).contains("a torch.save state dict"));
    let export =
        pack(&[("m/archive_format", b"pt2"), ("m/models/model.json", b"{}")], CompressionMethod::Stored);
    assert!(advice(&export).contains("torch.export"));
    assert!(advice(&pack(&[("a.txt", b"a")], CompressionMethod::Stored)).contains("without `data.pkl`"));
}

#[test]
fn damaged_zips() {
    let whole = archive(CODE, &net());
    assert!(message(&whole[..whole.len() / 2]).starts_with("the zip archive is damaged"));
    for version in ["11", "x", "-1"] {
        let records: [(&str, &[u8]); 3] =
            [("n/data.pkl", b"N."), ("n/code/a.py", b""), ("n/version", version.as_bytes())];
        assert!(
            message(&pack(&records, CompressionMethod::Stored)).contains("is not supported"),
            "{version}"
        );
    }
    let records: [(&str, &[u8]); 2] = [("n/data.pkl", b"N."), ("n/code/a.py", b"")];
    assert_eq!(
        message(&pack(&records, CompressionMethod::Stored)),
        "record `.data/version` is missing from the archive"
    );
    // Two records of one name: the writer refuses, so the second is renamed in its bytes.
    let records: [(&str, &[u8]); 2] = [("n/data.pkl", b"N."), ("n/data.pkm", b"N.")];
    let mut bytes = pack(&records, CompressionMethod::Stored);
    let hits: Vec<usize> = (0..bytes.len() - 10).filter(|at| &bytes[*at..at + 10] == b"n/data.pkm").collect();
    for at in hits {
        bytes[at + 9] = b'l';
    }
    assert!(message(&bytes).contains("2 directory entries have 1 different names"));
}

/// Changes what the directory and the local header say about a record's unpacked size.
fn claim(bytes: &mut [u8], from: u32, to: u32) {
    let hits: Vec<usize> =
        (0..bytes.len() - 4).filter(|at| bytes[*at..at + 4] == from.to_le_bytes()).collect();
    assert_eq!(hits.len(), 2);
    for at in hits {
        bytes[at..at + 4].copy_from_slice(&to.to_le_bytes());
    }
}

#[test]
fn zip_bombs() {
    let spaces = vec![b' '; 100_001];
    let records: [(&str, &[u8]); 3] = [("n/data.pkl", b"N."), ("n/version", b"3"), ("n/code/a.py", &spaces)];
    let whole = pack(&records, CompressionMethod::Deflated);
    let with = |size: u32| {
        let mut bytes = whole.clone();
        claim(&mut bytes, 100_001, size);
        read_archive(&bytes).unwrap_err()
    };
    assert!(matches!(with(1 << 30), TraceError::TooLarge { .. }));
    assert!(with(200 << 20).to_string().contains("cannot unpack to"));
    assert!(with(10).to_string().contains("more than the 10 bytes"));
}

#[test]
fn every_truncation_is_an_error() {
    let whole = archive(CODE, &net());
    for length in 0..whole.len() {
        assert!(read_archive(&whole[..length]).is_err(), "{length}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
        let _ = read_archive(&bytes);
        let _ = read_archive(&archive(CODE, &bytes));
    }

    #[test]
    fn mutated_archives_never_panic(hits in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 1..5)) {
        let mut bytes = archive(CODE, &net());
        for (at, byte) in hits {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        let _ = read_archive(&bytes);
    }

    #[test]
    fn mutated_pickles_never_panic(hits in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 1..5)) {
        let mut data = net();
        for (at, byte) in hits {
            let at = at.index(data.len());
            data[at] = byte;
        }
        let _ = read_archive(&archive(CODE, &data));
    }

    #[test]
    fn odd_code_never_panics(lines in "[a-z_(){}\\[\\],:.=\" \\\\\n0-9é-]{0,80}") {
        let _ = read_archive(&body(&lines));
        let _ = read_archive(&archive(&lines, &net()));
    }
}

#[test]
fn recorded_shapes_stand_in_step() {
    // The record lacks `split`, which is given no outputs.
    let json = br#"{"version": 1, "about": {"torch": "2.11.0"}, "training": true,
        "inputs": [{"name": "x", "dtype": "float32", "shape": [4, 3]}],
        "nodes": [{"op": "aten::linear", "outputs": [{"dtype": "float32", "shape": [4, 2]}]},
                  {"op": "aten::relu", "outputs": [{"dtype": "float32", "shape": [4, 2]}]},
                  {"op": "prim::ListUnpack", "outputs": [{"shape": [4, 1]}, {"shape": [4, 1]}]},
                  {"op": "aten::add", "outputs": [null]}]}"#;
    let program = read_archive(&with_record(json)).unwrap();
    let recorded = program.recorded.unwrap();
    assert!(recorded.training);
    assert_eq!(recorded.inputs[0].type_.shape, Some(vec![4, 3]));
    let outputs: Vec<usize> = recorded.nodes.iter().map(|node| node.outputs.len()).collect();
    assert_eq!(outputs, [1, 1, 0, 2, 1]);
}

/// Packs the net with what `trace` adds.
fn with_record(json: &[u8]) -> Vec<u8> {
    let records: [(&str, &[u8]); 5] = [
        ("net/data.pkl", &net()),
        ("net/data/0", &[0; 24]),
        ("net/code/__torch__.py", CODE.as_bytes()),
        ("net/version", b"3"),
        ("net/extra/model_analyze.json", json),
    ];
    pack(&records, CompressionMethod::Stored)
}

#[test]
fn ranges_of_inputs_are_read_or_refused() {
    let check = |range: &str, expected: Result<Option<(f64, f64)>, &str>| {
        let json = format!(r#"{{"version": 1, "inputs": [{{"name": "x"{range}}}]}}"#);
        let found = read_archive(&with_record(json.as_bytes()));
        match (found, expected) {
            (Ok(program), Ok(expected)) => assert_eq!(program.recorded.unwrap().inputs[0].range, expected),
            (Err(error), Err(expected)) => assert!(error.to_string().contains(expected), "{error}"),
            (found, _) => panic!("{range}: {found:?}"),
        }
    };
    check("", Ok(None));
    check(r#", "low": null, "high": null"#, Ok(None));
    check(r#", "low": 0, "high": 50"#, Ok(Some((0.0, 50.0))));
    check(r#", "low": -1.5, "high": 1"#, Ok(Some((-1.5, 1.0))));
    let refused = "`low` and `high` of an input are not a range";
    check(r#", "low": 1"#, Err(refused));
    check(r#", "low": 2, "high": 1"#, Err(refused));
    check(r#", "low": -1e308, "high": 1e308"#, Err(refused));
    check(r#", "low": "0", "high": 1"#, Err(refused));
}

#[test]
fn notes_of_a_trace_are_bounded() {
    let read = |more: &str| {
        let json = format!(r#"{{"version": 1{more}}}"#);
        read_archive(&with_record(json.as_bytes())).unwrap().recorded.unwrap()
    };
    assert_eq!(read("").comparison, Comparison::Unknown);
    assert_eq!(read(r#", "checked": true"#).comparison, Comparison::Same);
    let skipped = read(r#", "checked": false, "unchecked": "--no-check""#).comparison;
    assert_eq!(skipped, Comparison::Skipped("--no-check".to_owned()));

    let notes = r#", "notes": [{"file": "a.py", "line": 7, "text": "a"}, {"file": null, "line": 7, "text": "b"}, 3, "c"]"#;
    let note = |place: Option<(&str, u64)>, text: &str| TraceNote {
        place: place.map(|(file, line)| (file.to_owned(), line)),
        text: text.to_owned(),
    };
    let empty = note(None, "");
    assert_eq!(read(notes).notes, [note(Some(("a.py", 7)), "a"), note(None, "b"), empty.clone(), empty]);

    // No file makes a reader keep more of them than `trace` writes, nor longer ones.
    let long = "ä".repeat(10_000);
    let one = format!(r#"{{"file": "{long}", "line": 1, "text": "{long}"}}"#);
    let many = vec![one.as_str(); 300].join(",");
    let names = vec![format!("{long:?}"); 300].join(",");
    let recorded = read(&format!(
        r#", "notes": [{many}], "inlined_functions": [{names}], "checked": false, "unchecked": "{long}""#
    ));
    let short = "ä".repeat(500);
    assert_eq!(recorded.notes, vec![note(Some((&short, 1)), &short); 100]);
    assert_eq!(recorded.inlined_functions, vec![short.clone(); 100]);
    assert_eq!(recorded.comparison, Comparison::Skipped(short));
}
