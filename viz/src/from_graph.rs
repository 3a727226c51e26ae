//! A model's graph as a diagram: blocks become frames, operators become boxes, tensors become wires.
//!
//! Arithmetic on sizes is left out: it would be half of every transformer's boxes and is not informative. Tensors that
//! flow through it, such as a list that is unpacked, are followed.

use std::collections::{BTreeSet, HashSet};

use graph::{BlockId, Fact, ModelGraph, Operator, OperatorClass, ValueId, dtype_name, show_shape};
use indexmap::IndexMap;
use operators::ShapeRule;
use schema::Bytes;

use crate::diagram::{Amount, BoxId, Diagram, DiagramBox, Family};

/// Data that a picture shows in addition to the graph.
#[derive(Default)]
pub struct Overlay<'a> {
    /// The amount of each operator.
    pub amounts: Option<Amounts<'a>>,
    /// Each operator's stage.
    pub stages: Option<&'a [Option<u32>]>,
}

/// The amount of each operator.
pub struct Amounts<'a> {
    /// The name of the amount: `forward FLOPs`.
    pub name: String,
    /// One number for each operator; they are additive.
    pub values: &'a [f64],
    /// Writes a number with its unit.
    pub show: &'a dyn Fn(f64) -> String,
}

/// More outputs than this are merged into one box.
const MOST_OUTPUTS: usize = 4;

/// Makes a diagram of a whole model, opened to its operators.
pub fn from_graph(graph: &ModelGraph, overlay: &Overlay<'_>) -> Diagram {
    let builder = Builder { graph, overlay, prefix: prefix_sums(graph, overlay) };
    let mut diagram = Diagram::new(DiagramBox {
        title: graph.name.clone(),
        operators: 0..graph.operators.len() as u32,
        amount: builder.amount(0..graph.operators.len() as u32),
        ..DiagramBox::default()
    });
    diagram.amounts = overlay.amounts.as_ref().map(|amounts| amounts.name.clone());
    diagram.has_stages = overlay.stages.is_some();
    // The boxes that compute each drawn value; several for an unpacked list.
    let mut makers: Vec<Vec<BoxId>> = vec![Vec::new(); graph.values.len()];
    for input in &graph.inputs {
        let value = graph.value(*input);
        let id = diagram.add(BoxId::ROOT, builder.input(value));
        makers[input.index()].push(id);
    }
    let mut wires: IndexMap<(BoxId, ValueId), Vec<BoxId>> = IndexMap::new();
    // The frames around the current operator, innermost last.
    let mut open: Vec<(BlockId, BoxId)> = vec![(BlockId::ROOT, BoxId::ROOT)];
    let is_shown = shown(graph);
    for operator in &graph.operators {
        if operator.class == OperatorClass::Plumbing {
            for (place, output) in operator.outputs.iter().enumerate() {
                if carries_tensor(graph, *output) {
                    let through = match passed_on(operator, place) {
                        Some(value) => makers[value.index()].iter().copied().collect(),
                        None => {
                            operator.inputs.iter().flat_map(|value| makers[value.index()].clone()).collect()
                        }
                    };
                    let through: BTreeSet<BoxId> = through;
                    makers[output.index()] = through.into_iter().collect();
                }
            }
            continue;
        }
        if !is_shown[operator.id.index()] {
            continue;
        }
        builder.enter(&mut diagram, &mut open, operator.block);
        let (_, parent) = *open.last().expect("the root stays open");
        let id = diagram.add(parent, builder.operator(operator, &diagram.get(parent).path));
        for input in &operator.inputs {
            for maker in &makers[input.index()] {
                wires.entry((*maker, *input)).or_default().push(id);
            }
        }
        for output in &operator.outputs {
            makers[output.index()].push(id);
        }
    }
    let outputs: Vec<ValueId> =
        graph.outputs.iter().copied().filter(|output| !makers[output.index()].is_empty()).collect();
    let mut seen = HashSet::new();
    let outputs: Vec<ValueId> = outputs.into_iter().filter(|output| seen.insert(*output)).collect();
    let mut shared = None;
    for (index, output) in outputs.iter().enumerate() {
        let id = match shared {
            Some(id) => id,
            None => diagram.add(BoxId::ROOT, builder.output(index, outputs.len())),
        };
        if outputs.len() > MOST_OUTPUTS {
            shared = Some(id);
        }
        for maker in &makers[output.index()] {
            wires.entry((*maker, *output)).or_default().push(id);
        }
    }
    for ((maker, value), sinks) in wires {
        diagram.connect(maker, label(graph, value), sinks);
    }
    diagram
}

/// Returns the value that one result of plumbing passes on, where it unpacks a written list.
fn passed_on(operator: &Operator, place: usize) -> Option<ValueId> {
    use graph::{Constant, Operand};
    let (Operand::List(items) | Operand::Tuple(items)) = &operator.arguments.first()?.operand else {
        return None;
    };
    let index = match (operator.shape_rule(), operator.arguments.get(1).map(|argument| &argument.operand)) {
        (ShapeRule::Item, Some(Operand::Constant(Constant::Int(index)))) => {
            let from_end = if *index < 0 { i64::try_from(items.len()).ok()? } else { 0 };
            usize::try_from(index + from_end).ok()?
        }
        (ShapeRule::Unpack, None) if items.len() == operator.outputs.len() => place,
        _ => return None,
    };
    match items.get(index)? {
        Operand::Value(value) => Some(*value),
        _ => None,
    }
}

/// Returns the first word of a statement that was kept whole.
fn kept_whole(operator: &Operator) -> Option<&'static str> {
    if operator.name != "prim::Opaque" {
        return None;
    }
    let first = operator.arguments.first().map(|argument| argument.name.as_ref());
    ["if", "for", "while", "with"].into_iter().find(|word| first == Some(*word)).or(Some("opaque"))
}

/// Returns for each operator whether a drawn tensor leads from it to an output.
///
/// Some sizes are computed with tensors of one number; operators that only compute sizes are not drawn. Nor is the cast
/// of a weight, which mixed precision puts before each product: like the weight, it belongs to its reader.
fn shown(graph: &ModelGraph) -> Vec<bool> {
    let mut is_live = vec![false; graph.values.len()];
    for output in &graph.outputs {
        is_live[output.index()] = true;
    }
    let mut is_shown = vec![false; graph.operators.len()];
    for operator in graph.operators.iter().rev() {
        let is_plumbing = operator.class == OperatorClass::Plumbing;
        let is_read = operator
            .outputs
            .iter()
            .any(|value| is_live[value.index()] && (!is_plumbing || carries_tensor(graph, *value)));
        // A write in place has an effect even where its result is not read.
        let is_in_place = !is_plumbing && operator.name.ends_with('_') && !operator.name.ends_with("__");
        // So does a statement without results.
        let is_done = operator.outputs.is_empty() && kept_whole(operator).is_some();
        if is_read || is_in_place || is_done {
            is_shown[operator.id.index()] = !is_plumbing && !is_weight_cast(operator);
            // Of a written list, only the element that is read.
            let one = operator.outputs.iter().enumerate().filter(|(_, value)| is_live[value.index()]);
            let taken: Option<Vec<ValueId>> = one.map(|(place, _)| passed_on(operator, place)).collect();
            for input in taken.filter(|_| is_plumbing).as_ref().unwrap_or(&operator.inputs) {
                is_live[input.index()] = true;
            }
        }
    }
    is_shown
}

/// Returns whether an operator only casts a stored tensor.
fn is_weight_cast(operator: &Operator) -> bool {
    operator.shape_rule().is_cast_by_argument() && operator.inputs.is_empty() && !operator.tensors.is_empty()
}

struct Builder<'a> {
    graph: &'a ModelGraph,
    overlay: &'a Overlay<'a>,
    /// Prefix sums of the amounts.
    prefix: Vec<f64>,
}

fn prefix_sums(graph: &ModelGraph, overlay: &Overlay<'_>) -> Vec<f64> {
    let Some(amounts) = &overlay.amounts else { return Vec::new() };
    let mut sums = vec![0.0];
    for operator in 0..graph.operators.len() {
        let value = amounts.values.get(operator).copied().filter(|v| v.is_finite()).unwrap_or(0.0);
        sums.push(sums[operator] + value.max(0.0));
    }
    sums
}

impl Builder<'_> {
    /// Closes the frames that a block is not in and opens those that it is in.
    fn enter(&self, diagram: &mut Diagram, open: &mut Vec<(BlockId, BoxId)>, block: BlockId) {
        let mut way = Vec::new();
        let mut next = Some(block);
        while let Some(id) = next {
            way.push(id);
            next = self.graph.block(id).parent;
        }
        way.reverse();
        let common = way.iter().zip(open.iter()).take_while(|(a, (b, _))| **a == *b).count();
        open.truncate(common.max(1));
        for id in &way[open.len()..] {
            let (above, parent) = *open.last().expect("the root stays open");
            let path = diagram.get(parent).path.clone();
            let frame = diagram.add(parent, self.block(*id, above, &path));
            open.push((*id, frame));
        }
    }

    /// Returns a block's title and path, as its caller names it.
    ///
    /// torch names a module after one owner. A shared activation would be `stage4.2.act (call 12)` in `stage1.0`: there
    /// it is `act`, so that blocks which differ in nothing else look the same, too.
    fn called(&self, id: BlockId, above: BlockId, outer_path: &str) -> (String, String) {
        let block = self.graph.block(id);
        let caller = self.graph.block(above);
        let calls = caller.children.iter().filter(|call| self.graph.block(**call).module == block.module);
        let ordinal = calls.take_while(|call| **call != id).count() + 1;
        let owner = &caller.module_path;
        let inner = match block.module_path.strip_prefix(owner.as_str()) {
            Some(rest) if owner.is_empty() || rest.starts_with('.') => rest.trim_start_matches('.'),
            _ => last_name(&block.module_path),
        };
        let inner = if inner.is_empty() { block.path.as_str() } else { inner };
        let title = if ordinal > 1 { format!("{inner} (call {ordinal})") } else { inner.to_string() };
        let dot = if outer_path.is_empty() { "" } else { "." };
        let path = format!("{outer_path}{dot}{title}");
        (title, path)
    }

    fn block(&self, id: BlockId, above: BlockId, outer_path: &str) -> DiagramBox {
        let block = self.graph.block(id);
        let (title, path) = self.called(id, above, outer_path);
        let is_elsewhere = path != block.path;
        let mut attributes = vec![("class".to_string(), block.class.clone())];
        if is_elsewhere {
            attributes.push(("block".to_string(), block.path.clone()));
        }
        let (elements, bytes) = self.parameters(block.operators.clone());
        let mut details = Vec::new();
        if elements > 0 {
            attributes.push(("parameters".to_string(), elements.to_string()));
            attributes.push(("parameter bytes".to_string(), Bytes(bytes).to_string()));
            details.push(format!("{} parameters", count(elements)));
        }
        DiagramBox {
            path,
            title,
            subtitle: block.kind.clone(),
            details,
            attributes,
            operators: block.operators.clone(),
            amount: self.amount(block.operators.clone()),
            stage: self.stage(block.operators.clone()),
            ..DiagramBox::default()
        }
    }

    fn operator(&self, operator: &Operator, block: &str) -> DiagramBox {
        let range = operator.id.0..operator.id.0 + 1;
        let name = operator.short_name().trim_matches('_');
        let name = if name.is_empty() { operator.short_name() } else { name };
        let name = kept_whole(operator).unwrap_or(name);
        let dot = if block.is_empty() { "" } else { "." };
        let output = operator.outputs.first().and_then(|value| self.graph.value(*value).fact.tensor());
        let mut attributes = vec![("operator".to_string(), operator.name.clone())];
        if let Some(tensor) = output {
            attributes.push(("output".to_string(), tensor.to_string()));
        }
        DiagramBox {
            path: format!("{block}{dot}{name}"),
            title: name.to_string(),
            subtitle: match kept_whole(operator) {
                Some(_) => "not followed".to_string(),
                None => summary(self.graph, operator).unwrap_or_default(),
            },
            attributes,
            operators: range.clone(),
            family: family(operator.class),
            has_parameters: operator
                .tensors
                .iter()
                .any(|tensor| self.graph.tensor(*tensor).role == graph::Role::Parameter),
            amount: self.amount(range.clone()),
            stage: self.stage(range),
            ..DiagramBox::default()
        }
    }

    fn input(&self, value: &graph::Value) -> DiagramBox {
        let dtype = value.fact.tensor().and_then(|tensor| tensor.dtype).map(dtype_name);
        DiagramBox {
            path: value.name.clone(),
            title: value.name.clone(),
            attributes: dtype.map(|dtype| ("dtype".to_string(), dtype.to_string())).into_iter().collect(),
            family: Family::Input,
            ..DiagramBox::default()
        }
    }

    fn output(&self, index: usize, count: usize) -> DiagramBox {
        let title = match count {
            1 => "output".to_string(),
            count if count > MOST_OUTPUTS => format!("{count} outputs"),
            _ => format!("output {index}"),
        };
        DiagramBox { path: title.clone(), title, family: Family::Output, ..DiagramBox::default() }
    }

    fn amount(&self, operators: std::ops::Range<u32>) -> Option<Amount> {
        let amounts = self.overlay.amounts.as_ref()?;
        let value = self.prefix[operators.end as usize] - self.prefix[operators.start as usize];
        let total = self.prefix.last().copied().unwrap_or(0.0);
        let share = if total > 0.0 { 100.0 * value / total } else { 0.0 };
        // Differences of sums may leave rounding errors.
        let value = if share < 1e-9 { 0.0 } else { value };
        let text = if value == 0.0 {
            "0".to_string()
        } else if share < 0.1 {
            format!("{} · <0.1 %", (amounts.show)(value))
        } else {
            format!("{} · {share:.1} %", (amounts.show)(value))
        };
        Some(Amount { value, text })
    }

    /// Returns the stage of all these operators, if they have the same.
    fn stage(&self, operators: std::ops::Range<u32>) -> Option<u32> {
        let stages = self.overlay.stages?;
        let mut stages = operators.filter_map(|operator| stages.get(operator as usize).copied().flatten());
        let first = stages.next()?;
        stages.all(|stage| stage == first).then_some(first)
    }

    /// Counts the trained elements that some operators read, shared ones once, and their bytes.
    fn parameters(&self, operators: std::ops::Range<u32>) -> (u64, u64) {
        let mut seen = HashSet::new();
        let mut sum = (0u64, 0u64);
        for operator in self.graph.operators_of(&operators) {
            for tensor in &operator.tensors {
                let tensor = self.graph.tensor(*tensor);
                if tensor.role == graph::Role::Parameter && seen.insert(tensor.first) {
                    sum.0 = sum.0.saturating_add(tensor.elements());
                    sum.1 = sum.1.saturating_add(tensor.bytes);
                }
            }
        }
        sum
    }
}

/// Returns a path's last name; with its parent's where it is a number: `experts.3`.
fn last_name(path: &str) -> &str {
    let mut start = path.rfind('.').map_or(0, |dot| dot + 1);
    while start > 0 && path[start..].starts_with(|first: char| first.is_ascii_digit()) {
        start = path[..start - 1].rfind('.').map_or(0, |dot| dot + 1);
    }
    &path[start..]
}

/// Writes a number with three digits: `25.6 M`.
pub fn count(number: u64) -> String {
    let value = number as f64;
    let (value, unit) = match number {
        0..1_000 => return number.to_string(),
        1_000..999_500 => (value / 1e3, "k"),
        999_500..999_500_000 => (value / 1e6, "M"),
        _ => (value / 1e9, "G"),
    };
    let digits = if value < 9.995 {
        2
    } else if value < 99.95 {
        1
    } else {
        0
    };
    format!("{value:.digits$} {unit}")
}

fn carries_tensor(graph: &ModelGraph, value: ValueId) -> bool {
    let tensors = graph.value(value).fact.tensors();
    tensors.iter().any(|tensor| tensor.shape.as_ref().is_none_or(|shape| !shape.is_empty()))
}

/// Returns the label of a wire.
fn label(graph: &ModelGraph, value: ValueId) -> String {
    let one = |tensor: &graph::TensorFact| tensor.shape.as_ref().map(|shape| show_shape(shape));
    match &graph.value(value).fact {
        Fact::Tensor(tensor) => one(tensor).unwrap_or_default(),
        fact => {
            let shapes: Vec<String> = fact.tensors().into_iter().filter_map(one).collect();
            match shapes.as_slice() {
                [] => String::new(),
                [first, rest @ ..] if rest.iter().all(|shape| shape == first) && !rest.is_empty() => {
                    format!("{} × {first}", shapes.len())
                }
                shapes => shapes.join(", "),
            }
        }
    }
}

fn family(class: OperatorClass) -> Family {
    match class {
        OperatorClass::Convolution => Family::Convolution,
        OperatorClass::Matmul => Family::Matmul,
        OperatorClass::Attention | OperatorClass::Recurrent => Family::Sequence,
        OperatorClass::Norm => Family::Norm,
        OperatorClass::Elementwise => Family::Elementwise,
        OperatorClass::Reduce | OperatorClass::Pool => Family::Reduce,
        OperatorClass::Embedding => Family::Embedding,
        OperatorClass::View | OperatorClass::Copy | OperatorClass::Create | OperatorClass::Plumbing => {
            Family::Movement
        }
        OperatorClass::Other | OperatorClass::Unknown => Family::Module,
    }
}

/// Summarises an operator's settings: `3×3, 64→128, stride 2`.
fn summary(graph: &ModelGraph, operator: &Operator) -> Option<String> {
    let weight = operator
        .tensors
        .iter()
        .map(|tensor| graph.tensor(*tensor))
        .find(|tensor| tensor.shape.len() >= 2)
        .map(|tensor| tensor.shape.as_slice());
    let mut parts = Vec::new();
    match operator.class {
        OperatorClass::Convolution => {
            let [first, second, kernel @ ..] = weight? else { return None };
            let is_transposed = operator.shape_rule() == ShapeRule::TransposedConvolution
                || operator.constant("transposed") == Some(&graph::Constant::Bool(true));
            let groups = integer(operator, "groups").unwrap_or(1).max(1) as u64;
            let (from, to) = if is_transposed {
                (*first, second.saturating_mul(groups))
            } else {
                (second.saturating_mul(groups), *first)
            };
            parts.push(joined(kernel.iter().copied()));
            parts.push(format!("{from}→{to}"));
            parts.extend(stride(operator));
            if groups > 1 {
                parts.push(format!("groups {groups}"));
            }
        }
        OperatorClass::Matmul => {
            let [to, from] = weight? else { return None };
            match operator.shape_rule() {
                ShapeRule::Linear => parts.push(format!("{from}→{to}")),
                // GPT-2's Conv1D stores its weight transposed.
                ShapeRule::AddedProduct => parts.push(format!("{to}→{from}")),
                _ => return None,
            }
        }
        OperatorClass::Embedding => parts.push(joined(weight?.iter().copied())),
        OperatorClass::Pool => {
            let kernel = integers(operator, "kernel_size")?;
            parts.push(joined(kernel.into_iter().map(|size| size.unsigned_abs())));
            parts.extend(stride(operator));
        }
        _ => return None,
    }
    Some(parts.join(", "))
}

fn stride(operator: &Operator) -> Option<String> {
    let stride = integers(operator, "stride")?;
    let first = *stride.first()?;
    if stride.iter().any(|other| *other != first) {
        return Some(format!("stride {}", joined(stride.iter().map(|size| size.unsigned_abs()))));
    }
    (first != 1).then(|| format!("stride {first}"))
}

/// Writes sizes as `3×3`.
fn joined(sizes: impl Iterator<Item = u64>) -> String {
    sizes.map(|size| size.to_string()).collect::<Vec<_>>().join("×")
}

fn integer(operator: &Operator, name: &str) -> Option<i64> {
    match operator.constant(name)? {
        graph::Constant::Int(value) => Some(*value),
        _ => None,
    }
}

fn integers(operator: &Operator, name: &str) -> Option<Vec<i64>> {
    match operator.argument(name)? {
        graph::Operand::List(items) => items
            .iter()
            .map(|item| match item {
                graph::Operand::Constant(graph::Constant::Int(value)) => Some(*value),
                _ => None,
            })
            .collect(),
        graph::Operand::Constant(graph::Constant::Int(value)) => Some(vec![*value]),
        _ => None,
    }
}
