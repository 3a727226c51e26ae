//! Operators at which a backward pass fails.
#![allow(clippy::unwrap_used, missing_docs)]

use graph::BuildOptions;

#[track_caller]
fn check(body: &str, expected: &[&str]) {
    let lines: String = body.lines().map(|line| format!("  {}\n", line.trim())).collect();
    let text = format!(
        "graph(%x : Float(2, 4, strides=[4, 1], requires_grad=0, device=cpu),
      %w : Float(4, 4, strides=[4, 1], requires_grad=1, device=cpu),
      %b : Float(4, strides=[1], requires_grad=1, device=cpu)):
  %no : bool = prim::Constant[value=0]()
  %1 : int = prim::Constant[value=1]()
{lines}  return (%out)
"
    );
    let program = tracer::ir::read_ir(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let graph = graph::build(&program, &BuildOptions::default()).unwrap();
    let found = graph::without_derivative(&graph);
    let names: Vec<&str> = found.iter().map(|id| graph.operators[id.index()].name.as_str()).collect();
    assert_eq!(names, expected, "{text}");
}

/// What each of them does in torch 2.11: `torch.ops.aten.NAME(…).sum().backward()` raises or does not.
#[test]
fn a_backward_pass_fails_where_torch_has_no_derivative() {
    let fused = "%out : Tensor = aten::_addmm_activation(%b, %x, %w, %1, %1, %no)";
    check(fused, &["aten::_addmm_activation"]);
    check("%y : Tensor = aten::mm(%x, %w)\n%out : Tensor = aten::heaviside(%y, %y)", &["aten::heaviside"]);
    check("%y : Tensor = aten::mm(%x, %w)\n%out : Tensor = aten::relu(%y)", &[]);
    // No gradient reaches it: its operands are no parameters, or its result only decides positions.
    check("%y : Tensor = aten::heaviside(%x, %x)\n%out : Tensor = aten::mm(%y, %w)", &[]);
    check(
        "%y : Tensor = aten::mm(%x, %w)
         %z : Tensor = aten::heaviside(%y, %y)
         %zero : Tensor = aten::detach(%z)
         %out : Tensor = aten::mul(%y, %zero)",
        &[],
    );
}
