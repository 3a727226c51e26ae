//! One operator asked in three ways: as `graph` counts it, as `profile` counts it, and as `cost-model` counts what either of
//! them says of its size. Operations and bytes are the same, but for what the test names.

#![allow(clippy::unwrap_used, missing_docs)]

use std::collections::BTreeSet;

use graph::{BuildOptions, OperatorCost};
use runtime::profile::{DType, Item, Kind, Plan, Rates, Row, Scale, Size, columns};
use schema::{Phase, WorkSize};

const CONSTANTS: &str = "  %none : NoneType = prim::Constant()
  %no : bool = prim::Constant[value=0]()
  %yes : bool = prim::Constant[value=1]()
  %zero : int = prim::Constant[value=0]()
  %one : int = prim::Constant[value=1]()
  %two : int = prim::Constant[value=2]()
  %last : int = prim::Constant[value=-1]()
  %small : float = prim::Constant[value=1e-05]()
  %tenth : float = prim::Constant[value=0.1]()
  %never : float = prim::Constant[value=0.]()
  %erf : str = prim::Constant[value=\"none\"]()
";

/// A tensor of the graph: its name, sizes, and whether it is a weight.
struct Operand {
    name: &'static str,
    sizes: Vec<u64>,
    is_weight: bool,
}

fn input(name: &'static str, sizes: &[u64]) -> Operand {
    Operand { name, sizes: sizes.to_vec(), is_weight: false }
}

fn weight(name: &'static str, sizes: &[u64]) -> Operand {
    Operand { name, sizes: sizes.to_vec(), is_weight: true }
}

/// What a profile runs, as a trace has it: operands, and lines that end in `%out`.
fn traced(item: &Item) -> (Vec<Operand>, String) {
    let out = |call: &str| format!("  %out : Tensor = aten::{call}\n");
    let list = |name: &str, sizes: &[u64]| {
        let numbers: String = sizes
            .iter()
            .enumerate()
            .map(|(at, size)| format!("  %{name}{at} : int = prim::Constant[value={size}]()\n"))
            .collect();
        let names: Vec<String> = (0..sizes.len()).map(|at| format!("%{name}{at}")).collect();
        format!("{numbers}  %{name} : int[] = prim::ListConstruct({})\n", names.join(", "))
    };
    match (item.kind, item.size) {
        (Kind::Linear, Size::Product { m, n, k, .. }) => {
            (vec![input("x", &[m, k]), weight("w", &[n, k])], out("linear(%x, %w, %none)"))
        }
        (_, Size::Product { batch, m, n, k }) => {
            (vec![input("x", &[batch, m, k]), input("y", &[batch, k, n])], out("bmm(%x, %y)"))
        }
        (
            kind,
            Size::Convolution {
                batch,
                in_channels,
                out_channels,
                groups,
                height,
                width,
                kernel,
                stride,
                padding,
            },
        ) => {
            let reach = |size: u64| (size + 2 * padding - kernel) / stride + 1;
            let rest = (height + 2 * padding - kernel) % stride;
            let image = [batch, in_channels, height, width];
            let filter = weight("w", &[out_channels, in_channels / groups, kernel, kernel]);
            let lists = [("k", kernel), ("s", stride), ("p", padding), ("d", 1), ("r", rest), ("g", groups)];
            let lists: String = lists.iter().map(|(name, value)| list(name, &[*value, *value])).collect();
            let call = match kind {
                Kind::MaxPool => "max_pool2d(%x, %k, %s, %p, %d, %no)",
                Kind::AvgPool => "avg_pool2d(%x, %k, %s, %p, %no, %yes, %none)",
                Kind::TransposedConvolution => "conv_transpose2d(%x, %w, %none, %s, %p, %r, %g0, %d)",
                _ => "conv2d(%x, %w, %none, %s, %p, %d, %g0)",
            };
            let operands = match kind {
                Kind::MaxPool | Kind::AvgPool => vec![input("x", &image)],
                Kind::TransposedConvolution => {
                    vec![input("x", &[batch, out_channels, reach(height), reach(width)]), filter]
                }
                _ => vec![input("x", &image), filter],
            };
            (operands, lists + &out(call))
        }
        (_, Size::Attention { batch, heads, seq, kv_seq, head_dim, causal }) => {
            let keys = [batch, heads, kv_seq, head_dim];
            let operands =
                vec![input("q", &[batch, heads, seq, head_dim]), input("k", &keys), input("v", &keys)];
            let is_causal = if causal { "%yes" } else { "%no" };
            let call =
                format!("scaled_dot_product_attention(%q, %k, %v, %none, %never, {is_causal}, %none, %no)");
            (operands, out(&call))
        }
        (_, Size::Table { rows, cols, vocabulary }) => (
            vec![weight("w", &[vocabulary, cols]), input("indices", &[rows])],
            out("embedding(%w, %indices, %last, %no, %no)"),
        ),
        (kind, Size::Images { batch, channels, groups, height, width }) => {
            let mut operands = vec![input("x", &[batch, channels, height, width])];
            let lists =
                list("target", &[2 * height, 2 * width]) + &list("g", &[groups]) + &list("single", &[1, 1]);
            let is_norm = matches!(kind, Kind::BatchNorm | Kind::BatchNormEval | Kind::GroupNorm);
            if is_norm {
                operands.extend(["w", "b"].map(|name| weight(name, &[channels])));
            }
            if is_norm && kind != Kind::GroupNorm {
                operands.extend(["mean", "variance"].map(|name| weight(name, &[channels])));
            }
            let call = match kind {
                Kind::GroupNorm => "group_norm(%x, %g0, %w, %b, %small, %yes)",
                Kind::BatchNorm => "batch_norm(%x, %w, %b, %mean, %variance, %yes, %tenth, %small, %yes)",
                Kind::BatchNormEval => "batch_norm(%x, %w, %b, %mean, %variance, %no, %tenth, %small, %yes)",
                Kind::UpsampleNearest => "upsample_nearest2d(%x, %target, %none, %none)",
                Kind::UpsampleBilinear => "upsample_bilinear2d(%x, %target, %no, %none, %none)",
                _ => "adaptive_avg_pool2d(%x, %single)",
            };
            (operands, lists + &out(call))
        }
        (_, Size::Heads { batch, heads, seq, head_dim }) => {
            let turned = "  %turned : Tensor = aten::transpose(%x, %one, %two)\n";
            (
                vec![input("x", &[batch, seq, heads, head_dim])],
                format!("{turned}{}", out("contiguous(%turned, %zero)")),
            )
        }
        (kind, Size::Rows { rows, cols }) => {
            let whole = [rows, cols];
            let mut operands = vec![input("x", &whole)];
            let lists = list("width", &[cols]);
            let call = match kind {
                Kind::LayerNorm => {
                    operands.extend(["w", "b"].map(|name| weight(name, &[cols])));
                    "layer_norm(%x, %width, %w, %b, %small, %yes)"
                }
                Kind::Softmax => "softmax(%x, %last, %none)",
                Kind::Relu => "relu(%x)",
                Kind::Gelu => "gelu(%x, %erf)",
                Kind::Silu => "silu(%x)",
                Kind::Sigmoid => "sigmoid(%x)",
                Kind::Tanh => "tanh(%x)",
                Kind::Add | Kind::Mul => {
                    operands.push(input("y", &whole));
                    if kind == Kind::Add { "add(%x, %y, %one)" } else { "mul(%x, %y)" }
                }
                Kind::Dropout => "dropout(%x, %tenth, %yes)",
                Kind::Cat => {
                    operands = vec![input("x", &[rows, cols / 2]), input("y", &[rows, cols / 2])];
                    "cat(%both, %one)"
                }
                _ => "clone(%x, %none)",
            };
            let both = "  %both : Tensor[] = prim::ListConstruct(%x, %y)\n";
            let both = if kind == Kind::Cat { both } else { "" };
            (operands, format!("{lists}{both}{}", out(call)))
        }
    }
}

/// The counts of `graph`, and the size that `cost-model` reads from it.
fn in_a_graph(operands: &[Operand], lines: &str) -> (OperatorCost, Option<WorkSize>) {
    let declared: Vec<String> = operands
        .iter()
        .map(|one| {
            let sizes: Vec<String> = one.sizes.iter().map(u64::to_string).collect();
            let mut stride = 1;
            let mut strides: Vec<String> = Vec::new();
            for size in one.sizes.iter().rev() {
                strides.insert(0, stride.to_string());
                stride *= size;
            }
            let (dtype, grad) = match one.name {
                "indices" => ("Long", 0),
                "mean" | "variance" => ("Float", 0),
                _ => ("Float", 1),
            };
            format!(
                "%{} : {dtype}({}, strides=[{}], requires_grad={grad}, device=cpu)",
                one.name,
                sizes.join(", "),
                strides.join(", ")
            )
        })
        .collect();
    let text = format!("graph({}):\n{CONSTANTS}{lines}  return (%out)\n", declared.join(",\n      "));
    let program = tracer::ir::read_ir(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let graph = graph::build(&program, &BuildOptions::default()).unwrap();
    let costs = graph::costs(&graph);
    let operator = graph.operators.last().unwrap();
    let cost = costs.operator(operator.id);
    (cost, cost_model::work_size(&graph, operator, &cost))
}

/// Elements of the vectors that a norm reads, and that autograd keeps of the weights: those are not parameters here.
fn vectors(kind: Kind, operands: &[Operand]) -> (u64, u64) {
    let elements = |names: &[&str]| -> u64 {
        let chosen = operands.iter().filter(|one| names.contains(&one.name) && one.is_weight);
        chosen.map(|one| one.sizes.iter().product::<u64>()).sum()
    };
    let is_norm = matches!(kind, Kind::LayerNorm | Kind::GroupNorm | Kind::BatchNorm | Kind::BatchNormEval);
    let read = if is_norm { elements(&["w", "b", "mean", "variance"]) } else { 0 };
    let kept = match kind {
        Kind::Embedding => 0,
        Kind::BatchNorm | Kind::BatchNormEval => elements(&["w", "mean", "variance"]),
        _ => elements(&["w"]),
    };
    (read, kept)
}

/// Where the three differ, each on purpose, is written down here:
///
/// - `graph` counts operations as torch's counter does: products alone, and all scores of causal attention, of which
///   kernels compute half.
/// - What is not a product has operations in `profile` by the rule of thumb of FLOP counters, for the column of that name and
///   for choosing sizes; `cost-model`'s curves, which have coefficients of their own for each kind, take one an element.
/// - `cost-model` sees a pool as a convolution of single channels, with a multiply-add for each element of a window, and a
///   window of weights that is not there; and a mean of everything as if it wrote what it reads. Curves that ship were
///   fitted so.
/// - `profile` and `cost-model` leave out a norm's vectors, which `graph` counts.
#[test]
fn an_operator_has_one_count() {
    let scale = Scale { flops: Rates::all(1e12), bytes: 1e10, longest: 0.02, largest: 4e9 };
    let plan = Plan::new(11, &[], &[DType::Float32], scale);
    let mut wrong = Vec::new();
    let mut seen = BTreeSet::new();
    for item in (0..400).map(|index| plan.item(index)) {
        seen.insert(item.kind);
        let (operands, lines) = traced(&item);
        let (counted, from_graph) = in_a_graph(&operands, &lines);
        let mut row = Row::of(&item, Phase::Forward, "a device");
        row.set_time("seconds", 1e-3);
        let text = format!("{}\n{}", columns().join(","), Row::lines(&[row]));
        let from_profile = schema::read_own_profile(&text).unwrap().rows[0].size;
        let said = item.work();
        let work = cost_model::Work::of(from_profile, Phase::Forward, 4.0);
        let (read, kept) = vectors(item.kind, &operands);
        let mut check = |what: &str, found: f64, expected: f64| {
            if found != expected {
                let kind = item.kind.name();
                wrong.push(format!("{kind}: {what} {found:e}, not {expected:e}: {:?}", item.size));
            }
        };
        let (is_causal, window) = match item.size {
            Size::Attention { causal, .. } => (causal, 0),
            Size::Convolution { in_channels, kernel, .. } => (false, in_channels * kernel * kernel),
            _ => (false, 0),
        };
        let (in_graph, in_cost_model) = match item.kind {
            kind if kind.is_product() => (said.flops * if is_causal { 2.0 } else { 1.0 }, said.flops),
            Kind::MaxPool | Kind::AvgPool => (0.0, 2.0 * said.flops),
            kind => {
                let (rows, cols) = item.size.matrix(kind).unwrap();
                (0.0, rows as f64 * cols as f64)
            }
        };
        check("operations of graph", counted.forward_flops as f64, in_graph);
        check("operations of cost-model", work.flops, in_cost_model);
        let more = match item.kind {
            Kind::MaxPool | Kind::AvgPool => 4.0 * window as f64,
            Kind::GlobalAvgPool => (said.bytes - said.output_bytes) - said.output_bytes,
            _ => 0.0,
        };
        check("bytes of cost-model", work.bytes(), said.bytes + more);
        let moved = (counted.read_bytes + counted.written_bytes) as f64;
        check("bytes of graph", moved, said.bytes + 4.0 * read as f64);
        check("bytes of the result", counted.output_bytes as f64, said.output_bytes);
        check("bytes kept", counted.saved_bytes as f64, said.saved_bytes + 4.0 * kept as f64);
        if from_graph.map(WorkSize::as_rows) != Some(from_profile.as_rows()) {
            wrong.push(format!("{}: size {from_graph:?}, not {from_profile:?}", item.kind.name()));
        }
    }
    assert!(Kind::usual().all(|kind| seen.contains(&kind)), "{seen:?}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
