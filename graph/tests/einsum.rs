//! Operations of `einsum`. The expected numbers are those of `torch.utils.flop_counter` 2.11, forward and backward.

use graph::BuildOptions;

#[track_caller]
fn check(equation: &str, shapes: &[&[u64]], path: &[i64], forward: u64, backward: u64) {
    let graph = graph::build(&program(equation, shapes, path), &BuildOptions::default()).expect("a graph");
    let total = graph::costs(&graph).total();
    assert_eq!((total.forward_flops, total.backward_flops()), (forward, backward), "{equation} {path:?}");
}

fn program(equation: &str, shapes: &[&[u64]], path: &[i64]) -> tracer::Program {
    let list = |numbers: &[u64]| numbers.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
    let inputs = shapes.iter().enumerate().map(|(index, sizes)| {
        let mut strides = vec![1; sizes.len()];
        (1..sizes.len()).rev().for_each(|at| strides[at - 1] = strides[at] * sizes[at]);
        let (sizes, strides) = (list(sizes), list(&strides));
        format!("%x{index} : Float({sizes}, strides=[{strides}], requires_grad=1, device=cpu)")
    });
    let names: Vec<String> = (0..shapes.len()).map(|index| format!("%x{index}")).collect();
    let steps: String = path
        .iter()
        .enumerate()
        .map(|(at, step)| format!("  %p{at} : int = prim::Constant[value={step}]()\n"))
        .collect();
    let path: Vec<String> = (0..path.len()).map(|at| format!("%p{at}")).collect();
    let path = if path.is_empty() {
        "  %path : NoneType = prim::Constant()\n".to_string()
    } else {
        format!("  %path : int[] = prim::ListConstruct({})\n", path.join(", "))
    };
    let text = format!(
        "graph({}):\n  %equation : str = prim::Constant[value=\"{equation}\"]()\n{steps}{path}  \
         %list : Tensor[] = prim::ListConstruct({})\n  \
         %out : Tensor = aten::einsum(%equation, %list, %path)\n  return (%out)\n",
        inputs.collect::<Vec<_>>().join(",\n      "),
        names.join(", ")
    );
    tracer::ir::read_ir(&text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

#[test]
fn two_and_three_operands() {
    check("ab,bc->ac", &[&[2, 3], &[3, 4]], &[], 48, 96);
    check("ab,bc,cd->ad", &[&[2, 3], &[3, 4], &[4, 5]], &[], 128, 256);
}

#[test]
fn four_and_five_operands_are_taken_from_the_front() {
    check("ab,bc,cd,de->ae", &[&[2, 3], &[3, 4], &[4, 5], &[5, 6]], &[], 248, 496);
    check("ab,bc,cd,de,ef->af", &[&[2, 3], &[3, 4], &[4, 5], &[5, 6], &[6, 7]], &[], 416, 832);
    check("ab,cd,bc,de->ae", &[&[2, 3], &[4, 5], &[3, 4], &[5, 6]], &[], 360, 720);
    check("bij,bjk,bkl,bl->bi", &[&[2, 3, 4], &[2, 4, 5], &[2, 5, 6], &[2, 6]], &[], 672, 1344);
}

#[test]
fn a_sum_of_one_element_is_no_product_of_matrices() {
    check("bid,bjd->bij", &[&[2, 3, 1], &[2, 4, 1]], &[], 0, 0);
    check("bid,bjd->bij", &[&[2, 3, 2], &[2, 4, 2]], &[], 96, 192);
}

#[test]
fn a_path_is_followed() {
    check("ab,bc,cd->ad", &[&[2, 3], &[3, 4], &[4, 5]], &[1, 2, 0, 1], 180, 360);
    check("ab,bc,cd,de->ae", &[&[2, 3], &[3, 4], &[4, 5], &[5, 6]], &[0, 1, 0, 2, 0, 1], 248, 496);
}

#[test]
fn a_path_that_names_no_two_operands_is_refused() {
    let shapes: [&[u64]; 3] = [&[2, 3], &[3, 4], &[4, 5]];
    for path in [[-1, 0, 0, 1], [0, 0, 0, 1], [0, 3, 0, 1], [0, 1, -1, 0], [0, i64::MIN, 0, 1]] {
        let errors = graph::build(&program("ab,bc,cd->ad", &shapes, &path), &BuildOptions::default());
        let message = errors.expect_err("a path that torch would refuse").to_string();
        assert!(message.contains("a path of einsum takes operands"), "{path:?}: {message}");
    }
}
