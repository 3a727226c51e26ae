//! Shapes that travel inside the archive: our own extra file, or torch's example inputs.

use std::ops::Range;

use indexmap::IndexMap;
use operators::{Arithmetic, ShapeRule};
use serde_json::Value as Json;

use super::{
    pickle::{Object, ObjectId, Pickle},
    tensor::dtype as storage_dtype,
    zip::Records,
};
use crate::{
    error::TraceError,
    program::{Comparison, DType, Program, Recorded, RecordedInput, RecordedNode, TensorType, TraceNote},
};

const RECORD: &str = "extra/model_analyze.json";
/// Program and record differ by a few scalar operators only; further apart they are of different models.
const MAX_DIFFERENCES: usize = 2000;
/// Notes that are kept, and letters of each of their texts; `trace` writes no more.
const MAX_NOTES: usize = 100;
const MAX_LETTERS: usize = 500;

/// Reads the file that `model-analyze trace` adds.
pub(super) fn read(records: &mut Records<'_>) -> Result<Option<Recorded>, TraceError> {
    if !records.has(RECORD) {
        return Ok(None);
    }
    let wrong = |reason: String| TraceError::Record { record: RECORD.to_owned(), reason };
    let json: Json = serde_json::from_str(&records.read_text(RECORD)?)
        .map_err(|error| wrong(format!("not JSON: {error}")))?;
    match json.get("version").and_then(Json::as_u64) {
        Some(1) => {}
        Some(other) => return Err(wrong(format!("version {other} is not supported, the newest known is 1"))),
        None => return Err(wrong("`version` is missing".to_owned())),
    }
    let text = |value: &Json| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let about = match json.get("about") {
        Some(Json::Object(map)) => map.iter().map(|(key, value)| (key.clone(), text(value))).collect(),
        _ => IndexMap::new(),
    };
    let list = |name: &str| json.get(name).and_then(Json::as_array).map_or(&[][..], Vec::as_slice);
    let inputs = list("inputs").iter().map(|input| {
        Ok(RecordedInput {
            name: input.get("name").map_or_else(String::new, text),
            type_: tensor_type(input).map_err(wrong)?,
            range: range(input).map_err(wrong)?,
            values: values(input).map_err(wrong)?,
        })
    });
    let nodes = list("nodes").iter().map(|node| {
        let outputs = node.get("outputs").and_then(Json::as_array).map_or(&[][..], Vec::as_slice);
        let outputs = outputs.iter().map(|output| match output {
            Json::Null => Ok(None),
            output => tensor_type(output).map(Some),
        });
        Ok(RecordedNode {
            operator: node.get("op").map_or_else(String::new, text),
            outputs: outputs.collect::<Result<_, _>>().map_err(wrong)?,
        })
    });
    Ok(Some(Recorded {
        about,
        training: json.get("training").and_then(Json::as_bool).unwrap_or(false),
        absent: list("absent").iter().map(text).collect(),
        inputs: inputs.collect::<Result<_, TraceError>>()?,
        nodes: nodes.collect::<Result<_, TraceError>>()?,
        notes: list("notes").iter().take(MAX_NOTES).map(note).collect(),
        comparison: match json.get("checked").and_then(Json::as_bool) {
            None => Comparison::Unknown,
            Some(true) => Comparison::Same,
            Some(false) => Comparison::Skipped(short(json.get("unchecked"))),
        },
        inlined_functions: list("inlined_functions")
            .iter()
            .take(MAX_NOTES)
            .map(|name| short(Some(name)))
            .collect(),
    }))
}

fn note(json: &Json) -> TraceNote {
    let file = json.get("file").and_then(Json::as_str).map(|_| short(json.get("file")));
    TraceNote { place: file.zip(json.get("line").and_then(Json::as_u64)), text: short(json.get("text")) }
}

/// Returns the beginning of a text.
fn short(json: Option<&Json>) -> String {
    json.and_then(Json::as_str).unwrap_or_default().chars().take(MAX_LETTERS).collect()
}

fn tensor_type(json: &Json) -> Result<TensorType, String> {
    let numbers = |name: &str| match json.get(name) {
        None | Some(Json::Null) => Ok(None),
        Some(Json::Array(sizes)) => {
            let sizes = sizes.iter().map(Json::as_u64).collect::<Option<Vec<u64>>>();
            sizes.map(Some).ok_or_else(|| format!("`{name}` holds something that is not a size"))
        }
        Some(_) => Err(format!("`{name}` is not a list")),
    };
    let dtype = match json.get("dtype").and_then(Json::as_str) {
        None => None,
        Some(name) => Some(dtype(name).ok_or_else(|| format!("unknown element type `{name}`"))?),
    };
    Ok(TensorType {
        dtype,
        shape: numbers("shape")?,
        strides: numbers("strides")?,
        requires_grad: json.get("requires_grad").and_then(Json::as_bool),
        device: json.get("device").and_then(Json::as_str).map(str::to_owned),
    })
}

/// Returns the numbers of an input, as many as its sizes say.
fn values(json: &Json) -> Result<Option<Vec<f64>>, String> {
    let Some(Json::Array(numbers)) = json.get("values") else { return Ok(None) };
    let numbers: Option<Vec<f64>> =
        numbers.iter().map(|number| number.as_f64().filter(|one| one.is_finite())).collect();
    let sizes = tensor_type(json)?.shape.unwrap_or_default();
    let count = sizes.iter().try_fold(1u64, |product, size| product.checked_mul(*size));
    match numbers {
        Some(numbers) if Some(numbers.len() as u64) == count => Ok(Some(numbers)),
        _ => Err("`values` of an input are not as many numbers as it has".to_owned()),
    }
}

fn range(json: &Json) -> Result<Option<(f64, f64)>, String> {
    let (low, high) = match (json.get("low"), json.get("high")) {
        (None | Some(Json::Null), None | Some(Json::Null)) => return Ok(None),
        (low, high) => (low.and_then(Json::as_f64), high.and_then(Json::as_f64)),
    };
    match (low, high) {
        (Some(low), Some(high)) if low <= high && (high - low).is_finite() => Ok(Some((low, high))),
        _ => Err("`low` and `high` of an input are not a range".to_owned()),
    }
}

/// Reads torch's name of an element type, with or without `torch.`.
fn dtype(name: &str) -> Option<DType> {
    Some(match name.strip_prefix("torch.").unwrap_or(name) {
        "float64" | "double" => DType::Float64,
        "float32" | "float" => DType::Float32,
        "float16" | "half" => DType::Float16,
        "bfloat16" => DType::BFloat16,
        "int64" | "long" => DType::Int64,
        "int32" | "int" => DType::Int32,
        "int16" | "short" => DType::Int16,
        "int8" => DType::Int8,
        "uint8" => DType::UInt8,
        "uint16" => DType::UInt16,
        "uint32" => DType::UInt32,
        "uint64" => DType::UInt64,
        "bool" => DType::Bool,
        "complex64" => DType::Complex64,
        "complex128" => DType::Complex128,
        "float8_e4m3fn" => DType::Float8E4M3,
        "float8_e5m2" => DType::Float8E5M2,
        _ => return None,
    })
}

/// Puts the recorded nodes in step with the program's: afterwards `nodes[i]` belongs to the program's node `i`,
/// with no outputs where nothing was recorded.
///
/// The graph in memory and the saved code differ in scalar arithmetic, which torch simplifies on the way, and in the
/// `settled` statements: one node in memory, written out in the program. What matches is a longest common subsequence,
/// found by the greedy algorithm of Myers ("An O(ND) Difference Algorithm", 1986) in O(n + d²) for d differences; scalar
/// plumbing takes no part.
pub(super) fn align(mut recorded: Recorded, program: &Program, settled: &[Range<u32>]) -> Recorded {
    let mut given = std::mem::take(&mut recorded.nodes);
    let mut ours: Vec<Ours> = Vec::with_capacity(program.nodes.len());
    let mut at = 0;
    for statement in settled.iter().map(|nodes| nodes.start as usize..nodes.end as usize) {
        ours.extend((at..statement.start).map(Ours::Node));
        ours.push(Ours::Settled);
        at = statement.end;
    }
    ours.extend((at..program.nodes.len()).map(Ours::Node));
    let operator = |ours: &Ours| match ours {
        Ours::Node(at) => program.nodes[*at].operator.as_str(),
        Ours::Settled => "prim::Opaque",
    };
    ours.retain(|ours| !is_plumbing(operator(ours)));
    let theirs: Vec<usize> = (0..given.len()).filter(|at| !is_plumbing(&given[*at].operator)).collect();
    let same = |a: usize, b: usize| agrees(operator(&ours[a]), &given[theirs[b]].operator);
    let pairs = matches(ours.len(), theirs.len(), same);
    let blank =
        |node: &crate::program::Node| RecordedNode { operator: node.operator.clone(), outputs: Vec::new() };
    let mut aligned: Vec<RecordedNode> = program.nodes.iter().map(blank).collect();
    for (a, b) in pairs {
        if let Ours::Node(at) = ours[a] {
            aligned[at].outputs = std::mem::take(&mut given[theirs[b]].outputs);
        }
    }
    recorded.nodes = aligned;
    recorded
}

/// The counterpart of one recorded node.
enum Ours {
    Node(usize),
    Settled,
}

fn is_plumbing(operator: &str) -> bool {
    let Some((_, name)) = operator.split_once("::") else { return false };
    let Some(row) = operators::find(name) else { return false };
    matches!(
        row.numbers,
        Arithmetic::ToTensor
            | Arithmetic::ToInt
            | Arithmetic::ToFloat
            | Arithmetic::ToNumberImplicitly
            | Arithmetic::Size
    ) || matches!(row.shape, ShapeRule::TypeOf | ShapeRule::DeviceOf)
}

/// Returns the pairs of a longest common subsequence; none when the sequences differ in too many places.
fn matches(n: usize, m: usize, same: impl Fn(usize, usize) -> bool) -> Vec<(usize, usize)> {
    let limit = (n + m).min(MAX_DIFFERENCES) as isize;
    // `reach[k]` is how far diagonal `k = a - b` has come; a copy for every round, to walk back.
    let offset = limit + 1;
    let mut reach = vec![0_isize; 2 * offset as usize + 1];
    let mut rounds: Vec<Vec<isize>> = Vec::new();
    for d in 0..=limit {
        rounds.push(reach[(offset - d - 1) as usize..=(offset + d + 1) as usize].to_vec());
        for k in (-d..=d).step_by(2) {
            let at = (offset + k) as usize;
            let mut a = if k == -d || k != d && reach[at - 1] < reach[at + 1] {
                reach[at + 1]
            } else {
                reach[at - 1] + 1
            };
            while a < n as isize && a - k < m as isize && a - k >= 0 && same(a as usize, (a - k) as usize) {
                a += 1;
            }
            reach[at] = a;
            if a >= n as isize && a - k >= m as isize {
                return walk_back(&rounds, n as isize, m as isize);
            }
        }
    }
    Vec::new()
}

fn walk_back(rounds: &[Vec<isize>], mut a: isize, mut b: isize) -> Vec<(usize, usize)> {
    let mut pairs = Vec::new();
    for (d, reach) in rounds.iter().enumerate().rev() {
        let (d, k) = (d as isize, a - b);
        let of = |k: isize| reach[(k + d + 1) as usize];
        let before = if k == -d || k != d && of(k - 1) < of(k + 1) { k + 1 } else { k - 1 };
        let (from_a, from_b) = if d == 0 { (0, 0) } else { (of(before), of(before) - before) };
        while a > from_a && b > from_b && a > 0 && b > 0 {
            a -= 1;
            b -= 1;
            pairs.push((a as usize, b as usize));
        }
        (a, b) = (from_a, from_b);
    }
    pairs.reverse();
    pairs
}

fn agrees(ours: &str, given: &str) -> bool {
    ours == given
        || ours == "prim::Opaque" && matches!(given, "prim::If" | "prim::Loop" | "prim::Enter" | "prim::Exit")
}

/// Reads the sizes of the example inputs that torch itself keeps.
pub(super) fn traced_inputs(
    records: &mut Records<'_>,
    program: &Program,
) -> Result<Option<Recorded>, TraceError> {
    const RECORD: &str = "traced_inputs.pkl";
    if !records.has(RECORD) {
        return Ok(None);
    }
    let bytes = records.read(RECORD)?;
    // torch wrote the record for convenience only: a malformed one does not stop the reading.
    let Ok(pickle) = Pickle::read(RECORD, &bytes) else { return Ok(None) };
    let Object::Dict(methods) = pickle.get(pickle.root) else { return Ok(None) };
    let forward = methods.iter().find(|(name, _)| pickle.get(*name) == &Object::Str("forward"));
    let Some(Object::List(values) | Object::Tuple(values)) = forward.map(|(_, values)| pickle.get(*values))
    else {
        return Ok(None);
    };
    if values.len() != program.inputs.len() {
        return Ok(None);
    }
    let input = |(value, id): (&crate::program::ValueId, &ObjectId)| RecordedInput {
        name: program.values[value.index()].name.clone(),
        type_: type_of(&pickle, *id),
        range: None,
        values: None,
    };
    Ok(Some(Recorded {
        inputs: program.inputs.iter().zip(values).map(input).collect(),
        ..Recorded::default()
    }))
}

fn type_of(pickle: &Pickle<'_>, id: ObjectId) -> TensorType {
    let Object::Tensor { storage, shape, strides, requires_grad, .. } = pickle.get(id) else {
        return TensorType::default();
    };
    let Object::Storage { dtype, device, .. } = pickle.get(*storage) else { return TensorType::default() };
    TensorType {
        dtype: storage_dtype(dtype),
        shape: Some(shape.clone()),
        strides: Some(strides.clone()),
        requires_grad: Some(*requires_grad),
        device: Some((*device).to_owned()),
    }
}
