//! No call of any of torch's operators panics, whatever its operands: archives may be hostile.
//!
//! Calls are drawn from torch's own signatures, with operands of every rank, numbers at the ends of their range, empty
//! lists, and missing arguments. `ANY_CALLS=200 cargo test -p model-analyze-graph --test any_call` draws more of each
//! operator.

use std::{fmt::Write, panic};

use graph::BuildOptions;

const SIGNATURES: &str = include_str!("../../operators/src/signatures.txt");

/// Tensors that calls use: name, type, sizes.
const TENSORS: [(&str, &str, &[u64]); 14] = [
    ("s", "Float", &[]),
    ("e", "Float", &[0]),
    ("v", "Float", &[5]),
    ("m", "Float", &[3, 4]),
    ("q", "Float", &[4, 4]),
    ("x", "Float", &[2, 3, 4]),
    ("p", "Float", &[2, 3, 8, 8]),
    ("w", "Float", &[4, 3, 2, 2]),
    ("z", "Float", &[2, 3, 4, 4, 4]),
    ("h", "Float", &[4294967296, 4294967296, 0]),
    ("i", "Long", &[5]),
    ("j", "Long", &[2, 3]),
    ("b", "Bool", &[3, 4]),
    ("c", "ComplexFloat", &[3, 4]),
];

const INTEGERS: [i64; 12] = [i64::MIN, -7, -2, -1, 0, 1, 2, 3, 4, 8, 1 << 62, i64::MAX];
const FLOATS: [&str; 5] = ["0.5", "-1.", "0.", "1e+300", "2."];
const TEXTS: [&str; 8] = ["mean", "linear", "reduced", "r", "ij,jk->ik", "...i,i...->...", "floor", ""];

/// A linear congruential generator (Knuth's constants).
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) % n as u64) as usize
    }
}

/// The text of a graph with one call.
struct Text {
    lines: String,
    n_names: usize,
}

impl Text {
    fn line(&mut self, type_: &str, value: &str) -> String {
        self.n_names += 1;
        let name = format!("%n{}", self.n_names);
        writeln!(self.lines, "  {name} : {type_} = {value}").expect("a text grows");
        name
    }

    fn list(&mut self, type_: &str, items: Vec<String>) -> String {
        self.line(&format!("{type_}[]"), &format!("prim::ListConstruct({})", items.join(", ")))
    }

    fn operand(&mut self, type_: &str, dice: &mut Dice) -> String {
        let plain = type_.split(['(', '?']).next().unwrap_or(type_).trim();
        if type_.contains('?') && dice.below(3) == 0 {
            return self.line("NoneType", "prim::Constant()");
        }
        if let Some((item, _)) = type_.split_once('[') {
            let items = (0..dice.below(5)).map(|_| self.operand(item, dice)).collect();
            return self.list(if item.starts_with("Tensor") { "Tensor" } else { "int" }, items);
        }
        match plain {
            "Tensor" => format!("%{}", TENSORS[dice.below(TENSORS.len())].0),
            "int" | "SymInt" | "ScalarType" | "MemoryFormat" | "Layout" => {
                let value = INTEGERS[dice.below(INTEGERS.len())];
                self.line("int", &format!("prim::Constant[value={value}]()"))
            }
            "float" | "Scalar" | "number" => {
                let value = FLOATS[dice.below(FLOATS.len())];
                self.line("float", &format!("prim::Constant[value={value}]()"))
            }
            "bool" => {
                let value = dice.below(2);
                self.line("bool", &format!("prim::Constant[value={value}]()"))
            }
            "str" => {
                let value = TEXTS[dice.below(TEXTS.len())];
                self.line("str", &format!("prim::Constant[value=\"{value}\"]()"))
            }
            _ => self.line("NoneType", "prim::Constant()"),
        }
    }
}

/// Splits at commas outside of all brackets.
fn split(list: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut start) = (Vec::new(), 0, 0);
    for (at, letter) in list.char_indices() {
        match letter {
            '(' | '[' => depth += 1,
            ')' | ']' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(list[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(list[start..].trim());
    parts.into_iter().filter(|part| !part.is_empty() && *part != "*").collect()
}

/// Writes a graph that calls an operator.
fn call(signature: &str, dice: &mut Dice) -> Option<String> {
    let (left, right) = signature.rsplit_once(" -> ")?;
    let (name, parameters) = left.split_once('(')?;
    let name = name.rsplit_once('.').map_or(name, |(name, _)| name);
    let mut text = Text { lines: String::new(), n_names: 0 };
    let mut operands = Vec::new();
    for parameter in split(parameters.strip_suffix(')')?) {
        let (type_, _) = parameter.rsplit_once(' ')?;
        operands.push(text.operand(type_, dice));
    }
    // As in some archives: too few operands.
    if dice.below(12) == 0 {
        operands.truncate(dice.below(3));
    }
    let n_results = split(right.trim_start_matches('(').trim_end_matches(')')).len().max(1);
    let results: Vec<String> = (0..n_results).map(|n| format!("%out{n} : Tensor")).collect();
    let call = format!("{} = {name}({})", results.join(", "), operands.join(", "));
    Some(graph_of(&format!("{}  {call}\n", text.lines)))
}

/// Writes a graph of lines, whose result is the first result of the last line.
fn graph_of(lines: &str) -> String {
    let inputs: Vec<String> = TENSORS
        .iter()
        .map(|(name, element, sizes)| {
            let mut strides = vec![1_u64; sizes.len()];
            for at in (0..sizes.len().saturating_sub(1)).rev() {
                strides[at] = strides[at + 1].saturating_mul(sizes[at + 1].max(1)).min(1 << 62);
            }
            let list = |all: &[u64]| all.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
            let gradient = u8::from(*element == "Float");
            let shape = if sizes.is_empty() {
                String::new()
            } else {
                format!("{}, strides=[{}], ", list(sizes), list(&strides))
            };
            format!("%{name} : {element}({shape}requires_grad={gradient}, device=cpu)")
        })
        .collect();
    format!("graph({}):\n{lines}  return (%out0)\n", inputs.join(",\n      "))
}

fn costs(text: &str, is_recorded: bool) -> Option<graph::OperatorCosts> {
    let mut program = tracer::ir::read_ir(text).ok()?;
    if is_recorded {
        // Whatever the operands, the trace has a recorded result.
        let type_ = tracer::TensorType {
            shape: Some(vec![2, 3]),
            dtype: Some(graph::DType::Float32),
            ..tracer::TensorType::default()
        };
        let nodes = program.nodes.iter().map(|node| tracer::RecordedNode {
            operator: node.operator.clone(),
            outputs: vec![Some(type_.clone()); node.outputs.len()],
        });
        program.recorded = Some(tracer::Recorded { nodes: nodes.collect(), ..tracer::Recorded::default() });
    }
    let graph = graph::build(&program, &BuildOptions::default()).ok()?;
    Some(graph::costs(&graph))
}

#[test]
fn what_was_found_stays_mended() {
    let check = |call: &str| {
        let numbers = "  %no : NoneType = prim::Constant()\n  %0 : int = prim::Constant[value=0]()\n  \
             %most : int = prim::Constant[value=4611686018427387904]()\n  %none : int[] = prim::ListConstruct()\n  \
             %sizes : int[] = prim::ListConstruct(%most, %most, %most, %most)\n";
        costs(&graph_of(&format!("{numbers}  %out0 : Tensor = {call}\n")), false);
    };
    // This one did not terminate before.
    check("aten::mul(%none, %most)");
    check("aten::float_power_()");
    check("aten::nll_loss(%s, %s, %no, %0, %0)");
    check("aten::addbmm(%v, %v, %v, %0, %0)");
    check("aten::take_along_dim(%s, %h, %0)");
    check("aten::split(%p, %sizes, %0)");
    check("aten::moveaxis(%s, %0, %0)");
    check("aten::stride(%s, %0)");
    check("aten::max_pool2d(%p, %sizes, %sizes, %sizes, %sizes, %0)");
}

#[test]
fn no_call_panics() {
    let each: u64 = std::env::var("ANY_CALLS").ok().and_then(|text| text.parse().ok()).unwrap_or(4);
    let (mut built, mut failed) = (0_u64, Vec::new());
    let hook = panic::take_hook();
    panic::set_hook(Box::new(|_| {}));
    for (at, signature) in SIGNATURES.lines().enumerate() {
        for turn in 0..each {
            let mut dice = Dice(at as u64 * 1_000_003 + turn);
            dice.below(2);
            let Some(text) = call(signature, &mut dice) else { continue };
            match panic::catch_unwind(|| costs(&text, turn % 2 == 1)) {
                Ok(costs) => built += u64::from(costs.is_some()),
                Err(_) => {
                    failed.push(text);
                    break;
                }
            }
        }
    }
    panic::set_hook(hook);
    assert!(failed.is_empty(), "{} operators panic:\n{}", failed.len(), failed.join("\n"));
    // Most calls are rejected; enough of the others must remain for the test to mean anything.
    assert!(
        built > 500 * each,
        "only {built} of {} calls have a graph",
        SIGNATURES.lines().count() as u64 * each
    );
}
