//! Shapes that travel inside the archive: our own extra file, or torch's example inputs.

use indexmap::IndexMap;
use serde_json::Value as Json;

use super::{
    pickle::{Object, ObjectId, Pickle},
    tensor::dtype as storage_dtype,
    zip::Records,
};
use crate::{
    error::TraceError,
    program::{DType, Program, Recorded, RecordedInput, RecordedNode, TensorType},
};

const RECORD: &str = "extra/model_analyze.json";
/// Program and record differ by a few scalar operators only; further apart they are of different models.
const LOOK_AHEAD: usize = 32;

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
        inputs: inputs.collect::<Result<_, TraceError>>()?,
        nodes: nodes.collect::<Result<_, TraceError>>()?,
    }))
}

fn tensor_type(json: &Json) -> Result<TensorType, String> {
    let numbers = |name: &str| match json.get(name) {
        None | Some(Json::Null) => Ok(None),
        Some(Json::Array(sizes)) => {
            let sizes = sizes.iter().map(Json::as_u64).collect::<Option<Vec<u64>>>();
            sizes.map(Some).ok_or_else(|| format!("`{name}` holds something that is no size"))
        }
        Some(_) => Err(format!("`{name}` is no list")),
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
/// The graph in memory and the saved code differ in scalar arithmetic, which torch simplifies on the way.
pub(super) fn align(mut recorded: Recorded, program: &Program) -> Recorded {
    let mut given = std::mem::take(&mut recorded.nodes);
    let mut at = 0;
    let mut aligned = Vec::with_capacity(program.nodes.len());
    let ours: Vec<&str> = program.nodes.iter().map(|node| node.operator.as_str()).collect();
    for (index, operator) in ours.iter().enumerate() {
        let same = |ahead: usize| {
            (0..3).all(|k| match (ours.get(index + k), given.get(at + ahead + k)) {
                (Some(ours), Some(given)) => agrees(ours, &given.operator),
                (ours, given) => ours.is_none() && given.is_none() || k > 0,
            }) && given.get(at + ahead).is_some()
        };
        let here = given.get(at).is_some_and(|given| agrees(operator, &given.operator));
        let ahead = if here { Some(0) } else { (1..LOOK_AHEAD).find(|ahead| same(*ahead)) };
        match ahead {
            Some(ahead) => {
                at += ahead;
                aligned.push(RecordedNode {
                    operator: (*operator).to_owned(),
                    outputs: std::mem::take(&mut given[at].outputs),
                });
                at += 1;
            }
            None => aligned.push(RecordedNode { operator: (*operator).to_owned(), outputs: Vec::new() }),
        }
    }
    recorded.nodes = aligned;
    recorded
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
    // A convenience of torch: what is odd in it does not stop the reading.
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
