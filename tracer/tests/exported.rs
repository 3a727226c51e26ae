//! Programs of torch.export: `fixtures/exported`, whole and bent.
#![allow(clippy::unwrap_used, missing_docs)]

use std::{
    fs,
    io::{Cursor, Read, Write},
    path::Path,
};

use serde_json::{Value as Json, json};
use tracer::{Program, Role, read_archive};
use zip::{CompressionMethod, ZipArchive, ZipWriter, write::SimpleFileOptions};

fn fixture(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/exported").join(name);
    fs::read(path).unwrap()
}

fn read(name: &str) -> Program {
    read_archive(&fixture(name)).unwrap()
}

/// Name, role, whether it trains, sizes, and bytes of a tensor.
type Stored = (String, Role, bool, Vec<u64>, Vec<u8>);

type Records = Vec<(String, Vec<u8>)>;

fn records(name: &str) -> Records {
    let mut archive = ZipArchive::new(Cursor::new(fixture(name))).unwrap();
    let mut records = Vec::new();
    for index in 0..archive.len() {
        let mut record = archive.by_index(index).unwrap();
        let mut bytes = Vec::new();
        record.read_to_end(&mut bytes).unwrap();
        records.push((record.name().to_owned(), bytes));
    }
    records
}

fn pack(records: &Records, method: CompressionMethod) -> Vec<u8> {
    let mut writer = ZipWriter::new(Cursor::new(Vec::new()));
    for (name, bytes) in records {
        writer.start_file(name.as_str(), SimpleFileOptions::default().compression_method(method)).unwrap();
        writer.write_all(bytes).unwrap();
    }
    writer.finish().unwrap().into_inner()
}

fn record<'r>(records: &'r mut Records, ending: &str) -> &'r mut Vec<u8> {
    &mut records.iter_mut().find(|(name, _)| name.ends_with(ending)).unwrap().1
}

/// Changes a record of JSON.
fn bent_record(ending: &str, bend: impl FnOnce(&mut Json)) -> Vec<u8> {
    let mut records = records("decoder.pt2");
    let bytes = record(&mut records, ending);
    let mut document: Json = serde_json::from_slice(bytes).unwrap();
    bend(&mut document);
    *bytes = serde_json::to_vec(&document).unwrap();
    pack(&records, CompressionMethod::Stored)
}

fn bent(bend: impl FnOnce(&mut Json)) -> Vec<u8> {
    bent_record("models/model.json", bend)
}

fn nodes(document: &mut Json) -> &mut Vec<Json> {
    document["graph_module"]["graph"]["nodes"].as_array_mut().unwrap()
}

fn node<'d>(document: &'d mut Json, target: &str) -> &'d mut Json {
    nodes(document).iter_mut().find(|node| node["target"] == target).unwrap()
}

#[track_caller]
fn refused(bytes: &[u8], expected: &str) {
    let said = read_archive(bytes).err().map(|error| error.to_string());
    assert_eq!(said.as_deref(), Some(expected));
}

fn calls(program: &Program) -> String {
    let mut text = String::new();
    for call in &program.calls {
        let module = &program.modules[call.module.index()];
        let count = |operands: &[tracer::Operand]| operands.len();
        text.push_str(&format!(
            "{:?} {} call {} nodes {:?}, {} in\n",
            module.path,
            module.class,
            call.ordinal,
            call.nodes,
            count(&call.arguments)
        ));
    }
    text
}

#[test]
fn a_program_is_read_into_operators_and_calls() {
    let program = read("decoder.pt2");
    let text = program.sources[0].text.replace("9223372036854775807", "MAX");
    insta::assert_snapshot!("decoder_graph", text);
    insta::assert_snapshot!("decoder_calls", calls(&program));
    let open = program.open_sizes.as_ref().unwrap();
    let symbols: Vec<_> = open.symbols.iter().map(|symbol| (symbol.place, symbol.range())).collect();
    assert_eq!(symbols, [((0, 0), "1 to 64".to_owned()), ((0, 1), "2 to 31".to_owned())]);
    // Every value of the example has its type, and no more than that.
    let recorded = program.recorded.as_ref().unwrap();
    assert_eq!(recorded.nodes.len(), program.nodes.len());
    assert_eq!(recorded.inputs[0].type_.shape, Some(vec![2, 6]));
    assert!(!recorded.training);
}

#[test]
fn tensors_lie_where_the_archive_has_them_whatever_its_generation() {
    let of = |name: &str| -> Vec<Stored> {
        let (bytes, program) = (fixture(name), read(name));
        let tensors = program.tensors.iter().map(|tensor| {
            let start = usize::try_from(tensor.first_byte().unwrap()).unwrap();
            let length = tensor.shape.iter().product::<u64>() * tensor.dtype.bytes();
            let data = bytes[start..][..usize::try_from(length).unwrap()].to_vec();
            (tensor.path.clone(), tensor.role, tensor.requires_grad, tensor.shape.clone(), data)
        });
        tensors.collect()
    };
    let newest = of("decoder.pt2");
    assert_eq!(newest.len(), 27);
    let of_path = |path: &str| newest.iter().find(|(found, ..)| found == path).unwrap();
    assert_eq!(of_path("slope").4, 0.5_f32.to_le_bytes());
    assert_eq!(of_path("slope").1, Role::Buffer);
    assert!(of_path("positions").2);
    for older in ["decoder_saved.pt2", "decoder_flat.pt2"] {
        assert!(of(older) == newest, "{older}");
        let (older, newest) = (read(older), read("decoder.pt2"));
        assert_eq!(older.nodes, newest.nodes);
        let tied = |program: &Program| {
            let place = |path: &str| {
                let tensor = program.tensors.iter().find(|tensor| tensor.path == path).unwrap();
                tensor.place().map(|(record, ..)| record.to_owned())
            };
            place("head.weight") == place("embedding.weight")
        };
        assert!(tied(&older) && tied(&newest));
    }
    // A checkpoint is read from it as well.
    let tensors = tracer::read_tensors(&fixture("decoder.pt2")).unwrap();
    assert_eq!(tensors.len(), newest.len());
}

#[test]
fn a_program_without_weights_says_so() {
    let program = read("weightless.pt2");
    assert!(program.tensors.iter().all(|tensor| tensor.first_byte().is_none()));
    let mut records: Vec<_> = program.tensors.iter().map(|t| &t.storage.as_ref().unwrap().record).collect();
    records.sort();
    records.dedup();
    assert_eq!(records.len(), program.tensors.len(), "nothing is tied to nothing");
    let notes = &program.recorded.as_ref().unwrap().notes;
    assert!(notes.iter().any(|note| note.text.starts_with("exported without its weights")), "{notes:?}");
}

#[test]
fn layouts_that_are_not_known_are_refused() {
    let changed = |ending: &str, content: &[u8]| {
        let mut records = records("decoder.pt2");
        *record(&mut records, ending) = content.to_vec();
        pack(&records, CompressionMethod::Stored)
    };
    refused(
        &changed("archive_version", b"1"),
        "the exported program cannot be read: its layout has version 1, and the only one known is 0",
    );
    refused(
        &changed("byteorder", b"big"),
        "the exported program cannot be read: its weights are not little-endian",
    );
    refused(
        &bent(|document| document["schema_version"] = json!({"major": 9, "minor": 1})),
        "the exported program cannot be read: its format has version 9.1, and 8 is the only one known",
    );
    let mut two = records("decoder.pt2");
    let copy = record(&mut two, "models/model.json").clone();
    two.push(("decoder/models/other.json".into(), copy));
    refused(
        &pack(&two, CompressionMethod::Stored),
        "the exported program cannot be read: there are 2 programs in it, `model` and `other` among them, and one is read; save it alone",
    );
    let mut compiled = records("decoder.pt2");
    compiled.retain(|(name, _)| !name.contains("models/"));
    let none = pack(&compiled, CompressionMethod::Stored);
    refused(&none, "the exported program cannot be read: there is no program in it, no `models/NAME.json`");
    compiled.push(("decoder/data/aotinductor/model/model.so".into(), b"\x7fELF".to_vec()));
    refused(
        &pack(&compiled, CompressionMethod::Stored),
        "expected a TorchScript archive, found an AOTInductor package, which holds compiled code and no graph",
    );
    refused(
        &pack(&records("decoder.pt2"), CompressionMethod::Deflated),
        "record `models/model.json`: it must be stored, not compressed or encrypted",
    );
    refused(
        &changed("models/model.json", b"{\"graph_module\": "),
        "record `models/model.json`: not what torch.export writes: EOF while parsing a value at line 1 column 17",
    );
}

#[test]
fn graphs_that_are_not_known_are_refused() {
    const RELU: &str = "torch.ops.aten.gelu.default";
    let argument = |value: Json| bent(|document| node(document, RELU)["inputs"][0]["arg"] = value);
    let unknown = read_archive(&argument(json!({"as_rune": 1}))).err().unwrap().to_string();
    let said = "record `models/model.json`: not what torch.export writes: unknown variant `as_rune` at line 1 column ";
    assert!(unknown.starts_with(said) && unknown.len() < said.len() + 8, "{unknown}");
    refused(
        &argument(json!({"as_tensor": {"name": "nobody"}})),
        "the exported program cannot be read: `nobody` is used before anything makes it",
    );
    refused(
        &argument(json!({"as_custom_obj": {"name": "x", "class_fqn": "y"}})),
        "the exported program cannot be read: it passes on an object of a C++ class",
    );
    refused(
        &bent(|document| {
            let twice = node(document, RELU).clone();
            nodes(document).push(twice);
        }),
        "the exported program cannot be read: `gelu` is made twice",
    );
    let target = |target: &str| {
        let target = json!(target);
        bent(|document| node(document, RELU)["target"] = target)
    };
    refused(
        &target("torch.ops.higher_order.cond"),
        "the exported program cannot be read: `cond` in `blocks.0.act` holds graphs of its own, which are not read; export the model without it, or trace it",
    );
    refused(
        &target("os.system"),
        "the exported program cannot be read: it calls `os.system`, which is not an operator that is read",
    );
    refused(
        &target("torch.ops.aten.dropout.default"),
        "the exported program cannot be read: `torch.ops.aten.dropout.default` is given `self`, which it does not take",
    );
    let output =
        |spec: Json| bent(|document| document["graph_module"]["signature"]["output_specs"][0] = spec);
    refused(
        &output(json!({"loss_output": {"arg": {"name": "mul"}}})),
        "the exported program cannot be read: its graph holds the backward pass as well; export the model's forward pass alone",
    );
    refused(
        &output(json!({"token": {}})),
        "the exported program cannot be read: it orders its effects by tokens, which are not read",
    );
    refused(
        &bent(|document| {
            node(document, "torch.ops.higher_order.wrap_with_set_grad_enabled")["target"] =
                json!("torch.ops.higher_order.wrap_with_autocast");
        }),
        "the exported program cannot be read: `wrap_with_autocast` has other arguments than torch gives it",
    );
}

#[test]
fn tensors_that_do_not_fit_are_refused() {
    const CONFIG: &str = "model_weights_config.json";
    let meta = |key: &'static str, value: Json| {
        bent_record(CONFIG, |document| document["config"]["positions"]["tensor_meta"][key] = value)
    };
    refused(
        &meta("storage_offset", json!({"as_int": 1})),
        "the exported program cannot be read: `positions` has sizes [32, 16] with strides [16, 1] from 1, past the 2048 bytes of record `data/weights/weight_0`",
    );
    refused(
        &meta("sizes", json!([{"as_int": 1_i64 << 40}, {"as_int": 1_i64 << 40}])),
        "the exported program cannot be read: `positions` has sizes [1099511627776, 1099511627776], beyond measure",
    );
    refused(
        &meta("sizes", json!([{"as_int": -1}, {"as_int": 16}])),
        "the exported program cannot be read: `positions` has sizes that are not numbers",
    );
    refused(
        &meta("sizes", json!([{"as_int": 16}, {"as_int": 16}])),
        "the exported program cannot be read: `positions` is float32 [32, 16] in the graph and float32 [16, 16] where it is stored",
    );
    refused(
        &meta("layout", json!(1)),
        "the exported program cannot be read: `positions` is sparse, and only dense tensors are read",
    );
    refused(
        &meta("dtype", json!(9)),
        "the exported program cannot be read: `positions` has element type 9, which is not read",
    );
    refused(
        &bent_record(CONFIG, |document| document["config"]["positions"]["path_name"] = json!("../../passwd")),
        "record `data/weights/../../passwd` is missing from the archive",
    );
    refused(
        &bent_record(CONFIG, |document| {
            document["config"].as_object_mut().unwrap().remove("positions");
        }),
        "the exported program cannot be read: `positions` is stored nowhere in it",
    );
    // What is stored as a Python object is not opened.
    let pickled = bent_record(CONFIG, |document| document["config"]["positions"]["use_pickle"] = json!(true));
    let program = read_archive(&pickled).unwrap();
    let tensor = program.tensors.iter().find(|tensor| tensor.path == "positions").unwrap();
    assert_eq!((tensor.first_byte(), tensor.shape.as_slice()), (None, [32, 16].as_slice()));
    assert_eq!(
        program.recorded.unwrap().notes[1].text,
        "`positions` is stored as a Python object, which is not opened: its numbers are not there"
    );
}

#[test]
fn what_nests_without_end_is_refused() {
    let mut graph = json!({"inputs": [], "outputs": [], "nodes": [], "tensor_values": {}});
    for _ in 0..25 {
        let region = json!({
            "target": "torch.ops.higher_order.wrap_with_set_grad_enabled",
            "inputs": [
                {"name": "", "arg": {"as_bool": false}},
                {"name": "", "arg": {"as_graph": {"name": "g", "graph": graph}}}
            ],
            "outputs": [],
            "metadata": {}
        });
        graph = json!({"inputs": [], "outputs": [], "nodes": [region], "tensor_values": {}});
    }
    let region = graph["nodes"][0].take();
    let bytes = bent(|document| nodes(document).push(region));
    let said = read_archive(&bytes).err().unwrap().to_string();
    assert!(said.contains("recursion limit exceeded"), "{said}");
    // An expression is a size that is not known.
    let bytes = bent(|document| {
        let values = &mut document["graph_module"]["graph"]["tensor_values"]["ids"]["sizes"];
        let text = format!("{}Symbol('s1'){}", "Add(".repeat(50_000), ")".repeat(50_000));
        values[0] = json!({"as_expr": {"expr_str": text, "hint": {"as_int": 2}}});
    });
    assert_eq!(read_archive(&bytes).unwrap().recorded.unwrap().inputs[0].type_.shape, Some(vec![2, 6]));
}

#[test]
fn every_cut_of_the_file_is_refused() {
    let whole = fixture("decoder.pt2");
    for length in (0..whole.len()).step_by(997) {
        assert!(read_archive(&whole[..length]).is_err(), "{length} bytes");
    }
}
