//! Wrong models and shapes: each is refused with its place and a hint, exit code 2, and nothing is written.
#![allow(clippy::unwrap_used)]

use std::{
    fs,
    io::{Cursor, Write},
    path::Path,
    process::{Command, Output},
};

use zip::{CompressionMethod, ZipWriter, write::SimpleFileOptions};

fn fixture(name: &str) -> Vec<u8> {
    fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(name)).unwrap()
}

fn run(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_model-analyze"));
    command.current_dir(folder).env("NO_COLOR", "1").args(arguments).output().unwrap()
}

fn names(folder: &Path) -> Vec<String> {
    let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<String> = names.map(|name| name.to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// Returns what every reading command says about `model.pt`, which must be the same.
#[track_caller]
fn refused_in(folder: &Path, inputs: &[&str]) -> String {
    let before = names(folder);
    let inputs: Vec<&str> = inputs.iter().flat_map(|input| ["--input", input]).collect();
    let commands: [&[&str]; 5] = [
        &["inspect", "model.pt"],
        &["inspect", "model.pt", "--format", "json"],
        &["graph", "model.pt", "-o", "model.svg"],
        &["graph", "model.pt", "-o", "model.json"],
        &["split", "model.pt", "--devices", "2xt4", "-o", "out"],
    ];
    let mut said: Vec<String> = commands
        .iter()
        .map(|command| {
            let output = run(folder, &[*command, &inputs].concat());
            let error = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(2), "{command:?}: {error}");
            assert!(output.stdout.is_empty(), "{command:?}");
            assert_eq!(names(folder), before, "{command:?} has written something");
            error
        })
        .collect();
    said.dedup();
    assert_eq!(said.len(), 1, "commands differ: {said:#?}");
    assert!(said[0].contains("\n  hint: "), "no hint: {}", said[0]);
    said.remove(0)
}

#[track_caller]
fn refused(model: impl AsRef<[u8]>, inputs: &[&str]) -> String {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("model.pt"), model).unwrap();
    refused_in(folder.path(), inputs)
}

fn pack(records: &[(&str, &[u8])]) -> Vec<u8> {
    let mut writer = ZipWriter::new(Cursor::new(Vec::new()));
    for (name, bytes) in records {
        let method =
            if name.ends_with(".py") { CompressionMethod::Deflated } else { CompressionMethod::Stored };
        writer.start_file(*name, SimpleFileOptions::default().compression_method(method)).unwrap();
        writer.write_all(bytes).unwrap();
    }
    writer.finish().unwrap().into_inner()
}

fn archive(code: &str, pickle: &[u8]) -> Vec<u8> {
    pack(&[("net/data.pkl", pickle), ("net/code/__torch__.py", code.as_bytes()), ("net/version", b"3\n")])
}

/// A class whose `forward` has these lines.
fn body(lines: &str) -> String {
    let head = "class Net(Module):\n  def forward(self: __torch__.Net,\n    x: Tensor) -> Tensor:\n";
    lines.lines().fold(head.to_string(), |code, line| format!("{code}    {line}\n"))
}

/// An instance of `Net` without attributes.
const NET: &[u8] = b"\x80\x02c__torch__\nNet\n)\x81}(ub.";

macro_rules! refuses {
    ($($name:ident: $model:expr $(, $input:literal)*;)*) => {
        $(
            #[test]
            fn $name() {
                insta::assert_snapshot!(stringify!($name), refused($model, &[$($input),*]));
            }
        )*
    };
}

refuses! {
    not_a_zip: b"# the notes of last week\n";
    an_empty_file: b"";
    a_web_page: b"\n<!DOCTYPE html><html><body>404 Not Found</body></html>\n";
    a_pointer_of_git_lfs: b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n";
    an_onnx_model: b"\x08\x08\x12\x07pytorch\x1a\x032.9:\x10\x0a\x0e\x0a\x01x\x12\x01y\"\x04Relu";
    a_tar_archive: { let mut tar = vec![0; 512]; tar[257..262].copy_from_slice(b"ustar"); tar };
    text_in_utf_16: b"\xff\xfeg\0r\0a\0p\0h\0(\0";
    a_numpy_archive: pack(&[("weights.npy", b"\x93NUMPY")]);
    a_keras_model: pack(&[("config.json", b"{}"), ("model.weights.h5", b"\x89HDF")]);
    an_archive_without_code: archive("class Other(Module):\n  pass\n", NET);
    a_zip_without_its_last_byte: { let whole = fixture("traces/cnn_basic.pt"); whole[..whole.len() - 1].to_vec() };
    a_truncated_zip: { let whole = fixture("traces/cnn_basic.pt"); whole[..whole.len() / 2].to_vec() };
    a_damaged_record: damaged();
    a_zip_bomb: bomb(1 << 30);
    a_zip_bomb_that_lies: bomb(200 << 20);
    a_foreign_class: archive(&body("return x"), b"\x80\x02cos\nsystem\nX\x04\0\0\0true\x85R.");
    a_foreign_opcode: archive(&body("return x"), b"\x80\x02(dp0\n.");
    a_quantized_tensor:
        archive(&body("return x"), b"\x80\x02c__torch__\nNet\n)\x81}(X\x01\0\0\0wctorch._utils\n_rebuild_qtensor\n(tRub.");
    a_sparse_tensor:
        archive(&body("return x"), b"\x80\x02c__torch__\nNet\n)\x81}(X\x01\0\0\0wctorch._utils\n_rebuild_sparse_tensor\n(tRub.");
    a_trace_without_forward: archive(&body("return x").replace("forward", "encode"), NET);
    a_state_dict: fixture("wrong/state_dict.pt");
    a_module_that_holds_itself:
        archive(&body("return x"), b"\x80\x02c__torch__\nNet\n)\x81q\x00}(X\x05\0\0\0innerh\x00ub.");
    modules_nested_10_000_deep: archive(&body("return x"), &nested_modules(10_000));
    a_function_that_calls_itself: archive(&body("return (self).forward(x, )"), NET);
    brackets_nested_10_000_deep:
        archive(&body(&format!("return {}x{}", "torch.relu(".repeat(10_000), ")".repeat(10_000))), NET);
    lists_nested_10_000_deep: archive(&body(&nested_lists(10_000)), NET);
    calls_nested_10_000_deep: archive(&nested_calls(10_000), NET);
    code_that_breaks_off: archive(&body("return torch.relu(x"), NET), "2x4";
    ir_text_nested_10_000_deep: nested_blocks(10_000).into_bytes(), "2x4";
    ir_text_that_uses_what_nobody_makes:
        b"graph(%x : Tensor):\n  %y : Tensor = aten::relu(%z)\n  return (%y)\n", "2x4";
    too_many_inputs: fixture("traces/cnn_basic.pt"), "4x3x32x32", "4x3x32x32";
    a_shape_for_a_number: archive(&body("return torch.mul(x, n)").replace("x: Tensor", "x: Tensor,\n    n: int"), NET), "2x4", "1";
    a_shape_for_a_list: archive(&body("return torch.stack(x)").replace("x: Tensor", "x: List[Tensor]"), NET), "2x4";
    a_named_shape_for_a_list: archive(&body("return torch.stack(x)").replace("x: Tensor", "x: List[Tensor]"), NET), "x=2x4";
    no_such_input: fixture("traces/cnn_basic.pt"), "image=4x3x32x32";
    an_input_given_twice: fixture("traces/bert_tiny.pt"), "input_ids=2x8:int64", "input_ids=2x9:int64";
    an_input_without_shape: fixture("wrong/scripted.pt");
    the_wrong_number_of_channels: fixture("traces/cnn_basic.pt"), "4x1x32x32";
    the_wrong_number_of_dimensions: fixture("traces/cnn_basic.pt"), "4x3x32";
    a_picture_of_the_wrong_size: fixture("traces/cnn_basic.pt"), "4x3x40x40";
    a_sequence_of_the_wrong_dtype: fixture("traces/gpt2_tiny.pt"), "2x12:float32";
    a_picture_smaller_than_the_kernel: fixture("traces/cnn_basic.pt"), "4x3x3x3";
    an_unknown_dtype: fixture("traces/cnn_basic.pt"), "4x3x32x32:float12";
    a_shape_that_is_none: fixture("traces/cnn_basic.pt"), "4x3x-32";
    a_shape_beyond_measure: fixture("traces/cnn_basic.pt"), "4x3x99999999999999999999x32";
}

#[test]
fn a_directory() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("model.pt")).unwrap();
    insta::assert_snapshot!("a_directory", refused_in(folder.path(), &[]));
}

#[test]
fn a_file_that_is_not_there() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("modell.pt"), b"").unwrap();
    insta::assert_snapshot!("a_file_that_is_not_there", refused_in(folder.path(), &[]));
}

#[test]
fn what_cannot_be_flattened_is_named_and_still_drawn() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("model.pt"), fixture("wrong/scripted.pt")).unwrap();
    let inspected = run(folder.path(), &["inspect", "model.pt", "--input", "2x4"]);
    assert!(inspected.status.success());
    insta::assert_snapshot!("scripted_inspect", String::from_utf8(inspected.stdout).unwrap());
    let drawn =
        run(folder.path(), &["graph", "model.pt", "--input", "2x4", "--depth", "2", "-o", "model.svg"]);
    assert!(drawn.status.success());
    insta::assert_snapshot!("scripted_graph", String::from_utf8(drawn.stderr).unwrap());
    let picture = fs::read_to_string(folder.path().join("model.svg")).unwrap();
    for label in ["encoder", "gate", "head"] {
        assert!(picture.contains(&format!(">{label}<")), "{label} in {picture}");
    }
    // What was kept whole is called by its word, and its cost is not said to be nothing.
    let inside = run(folder.path(), &["graph", "model.pt", "--input", "2x4", "--depth", "9"]);
    let picture = String::from_utf8(inside.stdout).unwrap();
    for text in [">if<", ">while<", ">not followed<", "plus an unknown number"] {
        assert!(picture.contains(text), "{text} in {picture}");
    }
    // What has no results did something else: here it writes in place.
    fs::write(folder.path().join("writes.pt"), fixture("traces/writes.pt")).unwrap();
    let inside = run(folder.path(), &["graph", "writes.pt"]);
    let picture = String::from_utf8(inside.stdout).unwrap();
    assert_eq!(picture.matches(">not followed<").count(), 2);
    // Nobody knows which stage an `if` belongs to that was never followed.
    let split = run(folder.path(), &["split", "model.pt", "--devices", "2xt4", "-o", "out"]);
    assert_eq!(split.status.code(), Some(2));
}

#[test]
fn checks_and_dictionaries_may_be_cut() {
    let folder = tempfile::tempdir().unwrap();
    let lines = "if bool(torch.sum(x)):\n  _0 = torch.neg(x)\nelse:\n  pass\n\
                 if torch.ne(torch.dim(x), 2):\n  ops.prim.RaiseException(\"2D\")\nelse:\n  pass\n\
                 y = torch.matmul(x, x)\nd = {\"y\": y}\nz = torch.matmul(y, y)\n\
                 torch._set_item(d, \"z\", torch.matmul(z, y))\nreturn torch.matmul(d[\"z\"], z)";
    fs::write(folder.path().join("model.pt"), archive(&body(lines), NET)).unwrap();
    let split =
        run(folder.path(), &["split", "model.pt", "--input", "8x8", "--devices", "2xt4", "-o", "out"]);
    assert!(split.status.success(), "{}", String::from_utf8_lossy(&split.stderr));
    assert!(folder.path().join("out/stages/stage_0.pt").is_file());
}

#[test]
fn an_attribute_that_changes_may_not_be_cut() {
    let folder = tempfile::tempdir().unwrap();
    let lines = "y = torch.matmul(x, x)\nself.seen = 1\nreturn torch.matmul(y, y)";
    fs::write(folder.path().join("model.pt"), archive(&body(lines), NET)).unwrap();
    let split =
        run(folder.path(), &["split", "model.pt", "--input", "8x8", "--devices", "2xt4", "-o", "out"]);
    assert_eq!(split.status.code(), Some(2));
    insta::assert_snapshot!(String::from_utf8(split.stderr).unwrap());
}

#[test]
fn an_operator_of_somebody_else_is_named_and_not_guessed() {
    let folder = tempfile::tempdir().unwrap();
    let lines = "y = ops.mylib.linear(x, x)\nreturn torch.relu(y)";
    fs::write(folder.path().join("model.pt"), archive(&body(lines), NET)).unwrap();
    let inspected = run(folder.path(), &["inspect", "model.pt", "--input", "8x8"]);
    assert!(inspected.status.success());
    let said = String::from_utf8(inspected.stdout).unwrap();
    assert!(said.contains("unknown operator mylib::linear ×1 in (root); its shapes are unknown"), "{said}");
}

#[test]
fn a_model_that_only_branches_says_so_when_it_is_cut() {
    let folder = tempfile::tempdir().unwrap();
    let lines = "if bool(x):\n  y = torch.matmul(x, x)\nelse:\n  y = x\nreturn y";
    fs::write(folder.path().join("model.pt"), archive(&body(lines), NET)).unwrap();
    let split =
        run(folder.path(), &["split", "model.pt", "--input", "8x8", "--devices", "2xt4", "-o", "out"]);
    assert_eq!(split.status.code(), Some(2));
    insta::assert_snapshot!(String::from_utf8(split.stderr).unwrap());
}

#[test]
fn a_mark_of_utf_8_is_skipped() {
    let folder = tempfile::tempdir().unwrap();
    let text = "\u{feff}graph(%x : Tensor):\n  %y : Tensor = aten::relu(%x)\n  return (%y)\n";
    fs::write(folder.path().join("model.txt"), text).unwrap();
    let inspected = run(folder.path(), &["inspect", "model.txt", "--input", "2x4"]);
    assert!(inspected.status.success(), "{}", String::from_utf8_lossy(&inspected.stderr));
}

/// One bit of a record is turned: its checksum tells.
fn damaged() -> Vec<u8> {
    let mut bytes = archive(&body("return x"), NET);
    let at = bytes.windows(NET.len()).position(|window| window == NET).unwrap();
    bytes[at + 5] ^= 1;
    bytes
}

/// A megabyte of spaces, whose directory claims another size.
fn bomb(claimed: u32) -> Vec<u8> {
    let spaces = vec![b' '; 1_000_003];
    let mut bytes = archive(std::str::from_utf8(&spaces).unwrap(), NET);
    let hits: Vec<usize> =
        (0..bytes.len() - 4).filter(|at| bytes[*at..at + 4] == 1_000_003_u32.to_le_bytes()).collect();
    assert_eq!(hits.len(), 2, "the record's header and the directory");
    hits.iter().for_each(|at| bytes[*at..at + 4].copy_from_slice(&claimed.to_le_bytes()));
    bytes
}

fn nested_modules(depth: usize) -> Vec<u8> {
    let mut bytes = b"\x80\x02".to_vec();
    bytes.extend(b"c__torch__\nNet\n)\x81}(X\x01\0\0\0a".repeat(depth));
    bytes.push(b'N');
    bytes.extend(b"ub".repeat(depth));
    bytes.push(b'.');
    bytes
}

fn nested_lists(depth: usize) -> String {
    (1..depth).fold("l0 = [x]".to_string(), |text, depth| format!("{text}\nl{depth} = [l{}]", depth - 1))
}

fn nested_calls(depth: usize) -> String {
    let mut code = "def f0(x: Tensor) -> Tensor:\n  return x\n".to_string();
    for depth in 1..depth {
        code.push_str(&format!(
            "def f{depth}(x: Tensor) -> Tensor:\n  return __torch__.f{}(x, )\n",
            depth - 1
        ));
    }
    code + &body(&format!("return __torch__.f{}(x, )", depth - 1))
}

fn nested_blocks(depth: usize) -> String {
    let mut text = "graph(%x : Tensor, %c : bool):\n".to_string();
    for depth in 0..depth {
        text.push_str(&format!("{0}%y{depth} : Tensor = prim::If(%c)\n{0}block0():\n", " ".repeat(2)));
    }
    text
}

#[test]
fn files_that_are_not_there_get_a_hint_that_helps() {
    let folder = tempfile::tempdir().unwrap();
    let said = |name: &str| {
        let output = run(folder.path(), &["inspect", name]);
        assert_eq!(output.status.code(), Some(2));
        String::from_utf8(output.stderr).unwrap()
    };
    fs::write(folder.path().join("e"), "").unwrap();
    fs::write(folder.path().join("model.pt"), "").unwrap();
    assert!(said("-").contains("hint: give the path of a file; standard input is not read"));
    assert!(!said("x").contains("did you mean"));
    assert!(said("modle.pt").contains("hint: did you mean `model.pt`?"));
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink("gone", folder.path().join("linked.pt")).unwrap();
        assert!(said("linked.pt").contains("hint: it is a link to gone, which does not exist"));
    }
}

/// What is changed in a file, and what is then said of it.
struct Slip {
    name: &'static str,
    file: &'static str,
    from: &'static str,
    to: &'static str,
}

const fn slip(name: &'static str, file: &'static str, from: &'static str, to: &'static str) -> Slip {
    Slip { name, file, from, to }
}

const PLAN: &str = "plans/unet-4.yaml";
const CLUSTER: &str = "clusters/two-nodes.yaml";
const MAP: &str = "maps/deepbench_conv.yaml";
const COST_MODEL: &str = "";
const SLIPS: [Slip; 27] = [
    slip("a word for a number", PLAN, "micro_batches: 8", "micro_batches: eight"),
    slip("a negative number", PLAN, "micro_batches: 8", "micro_batches: -8"),
    slip("a part of a number", PLAN, "micro_batches: 8", "micro_batches: 8.5"),
    slip("a number too large", PLAN, "micro_batches: 8", "micro_batches: 99999999999"),
    slip("no value", PLAN, "micro_batches: 8", "micro_batches:"),
    slip("a field less", PLAN, "schedule: gpipe\n", ""),
    slip("a field less inside", PLAN, "  name: unet\n", ""),
    slip("a misspelt field", PLAN, "micro_batches: 8", "micro_batchs: 8"),
    slip("an unknown field", PLAN, "micro_batches: 8", "learning_rate: 8"),
    slip("a field twice", PLAN, "schedule: gpipe\n", "schedule: gpipe\nschedule: 1f1b\n"),
    slip("a list for fields", PLAN, "  types:\n", "  types: [v100]\n  type:\n"),
    slip("a text for a list", PLAN, "blocks: [down.0, down.1]", "blocks: down.0"),
    slip("a number in quotes", PLAN, "forward: 0.021", "forward: \"0.021\""),
    slip("a number with a unit", PLAN, "forward: 0.021", "forward: 21 ms"),
    slip("a tab", PLAN, "  name: unet", "\tname: unet"),
    slip("a colon less", PLAN, "schedule: gpipe", "schedule gpipe"),
    slip("an indent too much", PLAN, "  name: unet", "   name: unet"),
    slip("a bracket less", PLAN, "[down.0, down.1]", "[down.0, down.1"),
    slip("a bandwidth with a unit", CLUSTER, "bandwidth: 3.0e+11", "bandwidth: 300 GB/s"),
    slip("a level without a bandwidth", CLUSTER, "bandwidth: 3.0e+11, ", ""),
    slip("a count in words", CLUSTER, "count: 4", "count: four"),
    slip(
        "fields for a list",
        CLUSTER,
        "levels:\n- {name: nvlink, bandwidth: 3.0e+11, latency: 3.0e-6}\n- {name: infiniband, bandwidth: 2.5e+10, latency: 1.0e-5}",
        "levels: {name: nvlink}",
    ),
    slip("a list for a file", CLUSTER, "kind: cluster\nversion: 1\n", "- cluster\n"),
    slip("a map with an unknown field", MAP, "kind: profile-map\n", "kind: profile-map\nheader: 1\n"),
    slip(
        "a cost model's curves as a number",
        COST_MODEL,
        "",
        "kind: cost-model\nversion: 1\ndevice: T4\ncurves: 5\n",
    ),
    slip("a cost model's version in words", COST_MODEL, "", "kind: cost-model\nversion: new\n"),
    slip("a cost model without a device", COST_MODEL, "", "kind: cost-model\nversion: 1\ncurves: []\n"),
];

/// What people get wrong in files by hand: each is told in the file's own words, with its place.
#[test]
fn slips_in_files_are_told_in_the_words_of_the_file() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("model.pt"), fixture("traces/unet_small.pt")).unwrap();
    fs::write(folder.path().join("rows.csv"), "kind,dtype,device,phase,m,n,k,seconds\n").unwrap();
    let mut table = String::new();
    for Slip { name, file, from, to } in SLIPS {
        let text = if file.is_empty() {
            to.to_string()
        } else {
            let whole = String::from_utf8(fixture(file)).unwrap();
            assert_eq!(whole.matches(from).count().min(1), 1, "{name}: {file} has no {from:?}");
            whole.replacen(from, to, 1)
        };
        fs::write(folder.path().join("f.yaml"), text).unwrap();
        let arguments: &[&str] = match file {
            PLAN => &["simulate", "f.yaml"],
            CLUSTER => &["plan", "model.pt", "--cluster", "f.yaml"],
            MAP => &["fit", "rows.csv", "--map", "f.yaml"],
            _ => &["plan", "model.pt", "--devices", "2xt4", "--cost-model", "f.yaml"],
        };
        let output = run(folder.path(), arguments);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{name}: {said}");
        for serde in ["invalid type", "expected", "struct ", "u32", "f64", "a sequence", "unit value"] {
            assert!(!said.contains(serde) || said.contains("is expected"), "{name}: {said}");
        }
        let place = said.split_once("─[").and_then(|(_, rest)| rest.split_once(']')).map(|(place, _)| place);
        let place = place.unwrap_or_else(|| panic!("{name} has no place: {said}"));
        let first = said.lines().next().unwrap().trim_start_matches("error: f.yaml: ");
        table.push_str(&format!("{name}\n  {place} {first}\n"));
    }
    insta::assert_snapshot!("slips_in_files", table);
}
