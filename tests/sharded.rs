//! Models whose layers devices share, beside the whole models.
#![cfg(feature = "torch")]
#![allow(clippy::print_stdout, clippy::unwrap_used, missing_docs)]

mod oracle;
mod validate;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use oracle::warm::warm;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn python() -> PathBuf {
    root().join(".venv/bin/python")
}

/// Runs a program; returns whether it succeeded, and all that it said.
fn run(program: impl AsRef<std::ffi::OsStr>, arguments: &[&str]) -> (bool, String) {
    let mut command = Command::new(program);
    command.args(arguments).env("OMP_NUM_THREADS", "1");
    let output = command.env("MODEL_ANALYZE_PYTHON", warm(&python(), &[])).output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&said).into_owned())
}

fn command(arguments: &[&str]) -> (bool, String) {
    run(env!("CARGO_BIN_EXE_model-analyze"), arguments)
}

/// Compares a schedule with one process; `train.py` starts its own ranks.
fn check(folder: &Path, more: &[&str]) -> (bool, String) {
    let script = folder.join("train.py");
    run(python(), &[&[script.to_str().unwrap(), "--check", "--allow-eval"], more].concat())
}

/// The same on ranks that are forked: importing torch is most of what each does.
fn check_forked(folder: &Path, world: u32, more: &[&str]) -> (bool, String) {
    let (script, folder) = (root().join("tests/oracle/check.py"), folder.to_str().unwrap());
    run(warm(&python(), &[]), &[&[script.to_str().unwrap(), folder, &world.to_string()], more].concat())
}

/// As a user types it: `split` chooses cuts and schedule, `train.py` starts its own ranks.
#[test]
fn what_split_writes_trains_as_one_process_does() {
    let place = tempfile::tempdir().unwrap();
    let out = place.path().join("out");
    let (folder, model) = (out.to_str().unwrap(), root().join("fixtures/traces/gpt2_tiny.pt"));
    let model = model.to_str().unwrap();
    let (is_split, said) = command(&[
        "split",
        model,
        "--devices",
        "4xh100",
        "--tensor-parallel",
        "2",
        "--stages",
        "2",
        "--micro-batches",
        "4",
        "-o",
        folder,
    ]);
    assert!(is_split && said.contains("each layer on 2 devices"), "{said}");
    assert!(said.contains("\nproved      operands and gradients of"), "{said}");
    let (is_same, said) = check(&out, &[]);
    assert!(is_same && said.contains("on 4 ranks") && said.contains("the same"), "{said}");
    let verify = ["verify", folder, "--float64", "--steps", "2", "--format", "json"];
    let (is_same, said) = command(&verify);
    let answer: serde_json::Value = serde_json::from_str(&said).unwrap();
    validate::validate("answer-verify", &answer);
    let shards = &answer["forms"][0]["shards"];
    assert!(is_same && shards["ranks"] == 2 && shards["replicated_max_difference"] == 0.0, "{said}");
    let exchanges = shards["exchanges"].as_array().unwrap();
    assert!(exchanges.len() >= 3, "{said}");
    assert!(exchanges.iter().all(|one| one["planned_bytes"] == one["bytes"]), "{said}");
    assert!(answer["proved"]["exchanges"].as_u64().is_some_and(|n| n > 10), "{said}");
    let (is_same, said) = command(&["verify", folder, "--steps", "0"]);
    let uncompared = "what all ranks hold and what they exchange NOT compared: there was no step";
    assert!(is_same && said.contains(uncompared) && !said.contains("replicated"), "{said}");
    // Frameworks that share layers by themselves are told how many devices do; for others nothing is written.
    let export = |name: &str| fs::read_to_string(out.join("exports").join(name));
    assert!(export("megatron.txt").unwrap().contains("--tensor-model-parallel-size 2"));
    assert!(export("deepspeed_pipeline.py").is_err());
    assert!(export("README.md").unwrap().contains("- DeepSpeed: 2 devices share each layer.\n"));
    // One entry of shared work without its sum on the way back: outputs are the same, gradients are not.
    let stage = out.join("stages/stage_0.py");
    let source = fs::read_to_string(&stage).unwrap();
    let entry = source.lines().find(|line| line.contains("= self.shard.copy(")).unwrap();
    let wrong = entry.replace("self.shard.copy(", "(");
    fs::write(&stage, source.replacen(entry, &wrong, 1)).unwrap();
    let (is_same, said) = check_forked(&out, 4, &["--allow-changes"]);
    assert!(!is_same && said.contains("different"), "{said}");
    let (is_same, said) = command(&["verify", folder, "--steps", "2", "--allow-changes"]);
    assert!(!is_same && said.contains("the first difference is in stage 0: gradient of"), "{said}");
    assert!(said.contains("values that all 2 ranks hold differ") && said.contains("PLANNED"), "{said}");
    // The line that was changed, with the class that it is in: two stages have a layer each, which is none of several.
    let line = format!("of stages/stage_0.py, in Stage, does not match the plan: {}", wrong.trim());
    assert!(said.contains(&line) && line.contains("# transformer."), "{said}");
}

/// Splits of single operators: written, read back from the plan, proven, verified; faults are found. (`make zoo-shards` trains them.)
#[test]
fn operators_in_their_own_ways_are_the_whole_model() {
    let place = tempfile::tempdir().unwrap();
    let out = place.path().join("out");
    let (folder, model) = (out.to_str().unwrap(), root().join("fixtures/traces/cnn_basic.pt"));
    let model = model.to_str().unwrap();
    let (is_split, said) =
        command(&["split", model, "--devices", "2xt4", "--strategy", "optcnn", "-o", folder]);
    assert!(is_split && said.contains("each operator over 2 devices in its own way"), "{said}");
    assert!(said.contains("each device has"), "{said}");
    let (is_same, said) = command(&["verify", folder, "--float64", "--steps", "2", "--format", "json"]);
    let answer: serde_json::Value = serde_json::from_str(&said).unwrap();
    let exchanges = answer["forms"][0]["shards"]["exchanges"].as_array().unwrap();
    assert!(is_same && !exchanges.is_empty(), "{said}");
    assert!(exchanges.iter().all(|one| one["planned_bytes"] == one["bytes"]), "{said}");
    // The plan records the splits: the same stages follow from it, and other splits give others.
    let plan = out.join("plan.yaml");
    let recorded = fs::read_to_string(&plan).unwrap();
    let again = |name: &str, text: &str| {
        let (path, target) = (place.path().join(format!("{name}.yaml")), place.path().join(name));
        fs::write(&path, text).unwrap();
        let (is_made, said) =
            command(&["emit", model, path.to_str().unwrap(), "-o", target.to_str().unwrap()]);
        (is_made, said, fs::read_to_string(target.join("stages/stage_0.py")).unwrap_or_default())
    };
    let source = fs::read_to_string(out.join("stages/stage_0.py")).unwrap();
    let (is_made, said, same) = again("same", &recorded);
    assert!(is_made && same == source, "{said}");
    let mut splits = recorded.lines().skip_while(|line| *line != "operators:").skip(1);
    let split = splits.next().unwrap_or_else(|| panic!("no operator is split:\n{recorded}"));
    let (is_made, said, other) = again("other", &recorded.replacen(split, "", 1));
    assert!(is_made && other != source, "{said}");
    let wrong = format!("{}: corners", split.rsplit_once(": ").unwrap().0);
    let (is_made, said, _) = again("wrong", &recorded.replacen(split, &wrong, 1));
    assert!(!is_made && said.contains("it can be split by whole; "), "{said}");
    let (is_simulated, said) = command(&["simulate", plan.to_str().unwrap()]);
    assert!(is_simulated, "{said}");
    // A gradient that is not summed on the way back: outputs are the same, gradients are not.
    let entry = source.lines().find(|line| line.contains("= self.shard.weight(")).unwrap();
    let wrong = entry.replace("self.shard.weight(", "self.shard.same(");
    fs::write(out.join("stages/stage_0.py"), source.replacen(entry, &wrong, 1)).unwrap();
    let (is_same, said) = command(&["verify", folder, "--float64", "--steps", "1", "--allow-changes"]);
    assert!(!is_same && said.contains("the first difference is in stage 0: gradient of"), "{said}");
}

/// Two blocks of grouped causal attention, whose samples are joined to one dimension before the linear layers.
const DECODER: &str = r#"
import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.packed, self.out = nn.RMSNorm(16), nn.Linear(16, 32), nn.Linear(16, 16)

    def forward(self, x):
        b, s, _ = x.shape
        query, rest = self.packed(self.norm(x).view(-1, 16)).view(b, s, 32).split([16, 16], -1)
        key, value = rest.view(b, s, 2, 2, 4).permute(2, 0, 3, 1, 4)
        query = query.view(b, s, 4, 4).transpose(1, 2)
        found = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        return x + self.out(found.transpose(1, 2).reshape(b, s, 16))


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(50, 16), nn.Parameter(torch.randn(6, 16))
        self.blocks, self.head = nn.Sequential(Block(), Block()), nn.Linear(16, 50)

    def forward(self, ids):
        return self.head(self.blocks(self.words(ids) + self.places))
"#;

/// The same with whole weights: two samples of six positions go to three devices by positions, which attention alone looks across.
/// Replicas of shared layers share out their state as `split` is asked to; what `train.py` refuses is said when it is written.
#[test]
fn replicas_of_shared_layers_share_out_their_state() {
    let place = tempfile::tempdir().unwrap();
    let model = root().join("fixtures/traces/gpt2_tiny.pt");
    let asked = [
        "--devices",
        "4xh100",
        "--tensor-parallel",
        "2",
        "--strategy",
        "data-parallel",
        "--micro-batches",
        "4",
    ];
    for (level, refused) in [("zero2", ""), ("zero3", "train.py refuses zero3 where devices share layers")] {
        let out = place.path().join(level);
        let more = ["--sharding", level, "-o", out.to_str().unwrap()];
        let (is_split, said) =
            command(&[&["split", model.to_str().unwrap()][..], &asked[..], &more[..]].concat());
        assert!(is_split && said.contains(&format!("each layer on 2 devices sharded by {level}")), "{said}");
        assert_eq!(said.contains("train.py refuses"), !refused.is_empty(), "{said}");
        assert!(said.contains(refused), "{said}");
        let (is_same, said) = check_forked(&out, 4, &[]);
        let told = if refused.is_empty() {
            "on 4 ranks"
        } else {
            "--sharding zero3 cannot be combined with --shards 2"
        };
        assert!(is_same == refused.is_empty() && said.contains(told), "{said}");
    }
}

const REREAD: &str = r#"
import torch
from torch import nn


class Codes(nn.Module):
    """Rows become the nearest code, whose place no gradient goes through."""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Conv1d(3, 8, 3, padding=1), nn.Conv1d(8, 3, 3, padding=1)
        self.register_buffer("codes", torch.randn(16, 8))
        self.register_buffer("sums", torch.randn(16, 8))

    def forward(self, x):
        rows = self.up(x).transpose(1, 2)
        flat = rows.reshape(-1, 8)
        apart = (flat**2).sum(1, keepdim=True) - 2 * flat @ self.codes.t() + (self.codes**2).sum(1)
        place = apart.argmin(1)
        near = nn.functional.embedding(place, self.codes).view_as(rows)
        self.sums.mul_(0.9).add_(nn.functional.one_hot(place, 16).type_as(flat).t() @ flat.detach())
        return self.down((rows + (near - rows).detach()).transpose(1, 2)), nn.functional.mse_loss(rows, near)


class Dropped(nn.Sequential):
    """Drops in place, as MobileNet's head does."""

    def __init__(self):
        super().__init__(nn.Linear(16, 32), nn.Hardswish(), nn.Dropout(0.3, inplace=True), nn.Linear(32, 16), nn.Linear(16, 5))


class Again(nn.Module):
    """One layer, called four times."""

    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(50, 16), nn.Linear(16, 50, bias=False)
        self.layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)

    def forward(self, ids):
        x = self.words(ids)
        for _ in range(4):
            x = self.layer(x)
        return self.head(x)
"#;

/// Of ways that are equally fast the one that follows from the plan is written; where no gradient comes, none is sent.
#[test]
fn what_is_written_follows_from_the_plan_and_sends_what_it_counts() {
    let place = tempfile::tempdir().unwrap();
    let path = |name: &str| place.path().join(name).to_str().unwrap().to_string();
    let source = path("reread.py");
    fs::write(&source, REREAD).unwrap();
    for (class, input) in [("Codes", "4x3x16"), ("Dropped", "4x16"), ("Again", "4x6:int64")] {
        let (folder, model) = (path(class), path(&format!("{class}.pt")));
        let (is_traced, said) =
            command(&["trace", &format!("{source}:{class}"), "--train", "--input", input, "-o", &model]);
        assert!(is_traced, "{said}");
        let asked = ["--devices", "2xt4", "--tensor-parallel", "2", "--micro-batches", "1", "-o", &folder];
        let (is_split, said) = command(&[&["split", &model][..], &asked].concat());
        assert!(is_split, "{said}");
        let (is_same, said) = command(&["verify", &folder, "--steps", "1", "--tolerance", "1e-3"]);
        assert!(is_same && !said.contains("PLANNED"), "{class}: {said}");
        assert!(said.contains("\nproved: ") && !said.contains("NOT proved"), "{class}: {said}");
    }
}

#[test]
fn sequences_in_parts_train_as_whole_ones() {
    let place = tempfile::tempdir().unwrap();
    let out = place.path().join("out");
    let path = |name: &str| place.path().join(name).to_str().unwrap().to_string();
    let (folder, model, source) = (path("out"), path("decoder.pt"), path("decoder.py"));
    let (folder, model) = (folder.as_str(), model.as_str());
    fs::write(&source, DECODER).unwrap();
    let trace = ["trace", &format!("{source}:Decoder"), "--input", "2x6:int64", "--seed", "1", "-o", model];
    let (is_traced, said) = command(&trace);
    assert!(is_traced, "{said}");
    let asked = ["--devices", "3xh100", "--context-parallel", "3", "--stages", "1", "-o", folder];
    let (is_split, said) = command(&[&["split", model][..], &asked].concat());
    assert!(is_split && said.contains("samples or positions in 3 parts"), "{said}");
    let source = fs::read_to_string(out.join("stages/stage_0.py")).unwrap();
    assert_eq!(source.matches("self.shard.attention(").count(), 2, "{source}");
    // No device cuts a weight for itself, either.
    let cuts = |line: &&str| line.contains("self.shard.scatter(self.") && !line.contains(".places");
    assert_eq!(source.lines().find(cuts), None);
    let (is_same, said) = command(&["verify", folder, "--float64", "--steps", "2"]);
    assert!(is_same && said.contains("all 3 ranks hold are the same to the last bit"), "{said}");
    assert!(said.contains("exchanged   forward, all-gather"), "{said}");
    let (is_same, said) = check_forked(&out, 3, &[]);
    assert!(is_same && said.contains("on 3 ranks") && said.contains("the same"), "{said}");
    let export = |name: &str| fs::read_to_string(out.join("exports").join(name)).unwrap();
    assert!(export("megatron.txt").contains("--context-parallel-size 3"));
    assert!(export("README.md").contains("3 devices each have a part of every sequence"));
    // Where cut weights would serve better, they are whole all the same.
    let (other, gpt2) = (path("gpt2"), root().join("fixtures/traces/gpt2_tiny.pt"));
    let asked = ["--devices", "2xh100", "--context-parallel", "2", "--stages", "1", "-o", &other];
    let (is_split, said) = command(&[&["split", gpt2.to_str().unwrap()][..], &asked].concat());
    assert!(is_split && said.contains("samples or positions in 2 parts"), "{said}");
    let read = |name: &str| fs::read_to_string(Path::new(&other).join(name)).unwrap();
    assert!(!read("plan.yaml").contains("\ncuts:"));
    assert!(!read("stages/stage_0.py").contains("self.shard.scatter(self.transformer.h"));
    let (is_planned, said) = command(&["plan", model, "--devices", "5xh100", "--context-parallel", "5"]);
    assert!(!is_planned && said.contains("one of 5 parts"), "{said}");
}

/// Two layers of two halves each, as Megatron-LM has them: with whole values between halves each has a sum there and one back, with parts
/// of them a reduce-scatter and an all-gather, and a plan says which.
#[test]
fn sequences_between_layers_are_whole_or_in_parts_as_asked() {
    let place = tempfile::tempdir().unwrap();
    let path = |name: &str| place.path().join(name).to_str().unwrap().to_string();
    let model = root().join("fixtures/traces/bert_tiny.pt");
    let model = model.to_str().unwrap();
    let shared = ["--devices", "2xh100", "--tensor-parallel", "2", "--stages", "1"];
    let stage = |held: &str| {
        let folder = path(held);
        let asked = [&["split", model, "--sequence-parallel", held, "-o", &folder][..], &shared].concat();
        let (is_split, said) = command(&asked);
        assert!(is_split, "{said}");
        let read = |name: &str| fs::read_to_string(Path::new(&folder).join(name)).unwrap();
        assert!(read("plan.yaml").contains(&format!("\nsequence_parallel: {held}\n")));
        if held == "on" {
            let (is_same, said) = command(&["verify", &folder, "--float64", "--steps", "1"]);
            assert!(is_same && said.contains("the sources match the plan"), "{said}");
        }
        let has_flag = read("exports/megatron.txt").contains(" --sequence-parallel");
        assert_eq!(has_flag, held == "on");
        read("stages/stage_0.py")
    };
    // What a class of layers has, each of its layers has.
    let count = |source: &str, name: &str| -> usize {
        let each = |class: &str| {
            let name = class.split('(').next().unwrap_or_default();
            match name {
                "Stage" => 1,
                _ => source.matches(&format!("\": {name},\n")).count(),
            }
        };
        let classes = source.split("\nclass ").skip(1);
        classes.map(|class| each(class) * class.matches(&format!("self.shard.{name}(")).count()).sum()
    };
    let (whole, parts) = (stage("off"), stage("on"));
    for name in ["reduce_scatter", "gather_split", "exchange", "scatter"] {
        assert_eq!(count(&whole, name), 0, "{name}: {whole}");
    }
    // Two a layer there and two back, and the pooler's.
    assert_eq!((count(&whole, "reduce"), count(&whole, "copy")), (5, 5), "{whole}");
    assert_eq!((count(&parts, "reduce_scatter"), count(&parts, "gather_split")), (4, 5), "{parts}");
    // Whole are weights of norms, whose gradients are summed.
    let copies = |text: &str| parts.matches(text).count();
    assert_eq!(copies("self.shard.copy("), copies("self.shard.copy(self."), "{parts}");
    for (more, expected) in [
        (&["--tensor-parallel", "none"][..], "--sequence-parallel needs devices that share layers"),
        (
            &["--tensor-parallel", "none", "--context-parallel", "2"],
            "--sequence-parallel needs devices that share layers",
        ),
    ] {
        let asked = ["plan", model, "--devices", "2xh100", "--sequence-parallel", "on"];
        let (is_planned, said) = command(&[&asked[..], more].concat());
        assert!(!is_planned && said.contains(expected), "{said}");
    }
}

/// A mixture as transformers routes it: each position goes to two of four experts, whose matrices lie in one tensor.
const MIXTURE: &str = r#"
import torch
from torch import nn
from torch.nn import functional as F


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.router = nn.Linear(16, 4)
        self.up, self.down = nn.Parameter(torch.randn(4, 16, 192) / 4), nn.Parameter(torch.randn(4, 96, 16) / 9)
        self.bias, self.scale = nn.Parameter(torch.randn(4, 192)), nn.Parameter(torch.tensor(1.5))

    def forward(self, x):
        rows = x.reshape(-1, 16)
        shares, chosen = torch.topk(F.softmax(self.router(rows), -1), 2)
        expert, order = torch.sort(chosen.reshape(-1))
        ends = torch.cumsum(torch.histc(expert.float(), 4, 0, 3), 0, dtype=torch.int32)
        gate, up = (F.grouped_mm(rows[order // 2], self.up, offs=ends) + self.bias[expert]).chunk(2, -1)
        found = F.grouped_mm(F.silu(gate) * up * self.scale, self.down, offs=ends) * shares.reshape(-1)[order].unsqueeze(-1)
        return x + found[torch.argsort(order)].view(-1, 2, 16).sum(1).view(x.shape)


class Mixture(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.layers, self.head = nn.Embedding(50, 16), nn.Sequential(Experts(), Experts()), nn.Linear(16, 50)

    def forward(self, ids):
        return self.head(self.layers(self.words(ids)))
"#;

/// Experts lie on two devices each, and so do their rows, however many are routed there.
#[test]
fn experts_on_different_devices_give_what_one_gives() {
    let place = tempfile::tempdir().unwrap();
    let path = |name: &str| place.path().join(name).to_str().unwrap().to_string();
    let (folder, model, source) = (path("out"), path("mixture.pt"), path("mixture.py"));
    let (folder, model) = (folder.as_str(), model.as_str());
    fs::write(&source, MIXTURE).unwrap();
    let trace = ["trace", &format!("{source}:Mixture"), "--input", "2x6:int64", "--seed", "1", "-o", model];
    let (is_traced, said) = command(&trace);
    assert!(is_traced, "{said}");
    // Devices on which arithmetic is all that counts.
    let cluster = path("cluster.yaml");
    let text = "kind: cluster\nversion: 1\ntypes:\n  slow: {memory: 60000000000, memory_bandwidth: 1.0e+12, peak: {float32: 1.0e+9}}\n\
        devices:\n- {type: slow, count: 4}\nlevels:\n- {name: link, bandwidth: 1.0e+12, latency: 1.0e-6}\n";
    fs::write(&cluster, text).unwrap();
    let asked = ["--cluster", &cluster, "--tensor-parallel", "2", "--stages", "2", "-o", folder];
    let (is_split, said) = command(&[&["split", model][..], &asked].concat());
    assert!(is_split && said.contains("each layer on 2 devices"), "{said}");
    let read = |name: &str| fs::read_to_string(Path::new(folder).join(name)).unwrap();
    let plan = read("plan.yaml");
    for name in ["up", "down"] {
        assert!(plan.contains(&format!("\n  layers.*.{name}:\n    dim: 0\n")), "{plan}");
    }
    let stage = read("stages/stage_0.py");
    assert!(stage.contains("self.shard.to_experts(") && stage.contains("self.shard.grouped_mm("), "{stage}");
    let (is_same, said) = command(&["verify", folder, "--float64", "--steps", "2"]);
    assert!(is_same && said.contains("all 2 ranks hold are the same to the last bit"), "{said}");
    assert!(said.contains("forward, point-to-point") && !said.contains("PLANNED"), "{said}");
    // Gradients of rows that another device's experts have do not come back.
    let place_of_fault = Path::new(folder).join("stages/shards.py");
    let shards = fs::read_to_string(&place_of_fault).unwrap();
    let right = "lambda g: self.moved(g, 0, bands, [(0, rows)] * self.size)";
    let wrong = "lambda g: torch.cat([g, g.new_zeros(rows - g.size(0), *g.size()[1:])])";
    assert_eq!(shards.matches(right).count(), 1);
    fs::write(&place_of_fault, shards.replace(right, wrong)).unwrap();
    let (is_same, said) = command(&["verify", folder, "--steps", "1", "--allow-changes"]);
    assert!(!is_same && said.contains("gradient of") && said.contains("PLANNED"), "{said}");
    // No stage begins where only the stage before it knows how many rows there are.
    let (is_planned, said) =
        command(&[&["plan", model][..], &asked[..4], &["--cut-at", "layers.0/chunk"]].concat());
    assert!(!is_planned && said.contains("layers.0"), "{said}");
}

/// Each device has a part of the samples and of the experts: rows go to their experts, and come back.
#[test]
fn experts_and_samples_lie_on_different_devices() {
    let place = tempfile::tempdir().unwrap();
    let path = |name: &str| place.path().join(name).to_str().unwrap().to_string();
    let (folder, model, source) = (path("out"), path("mixture.pt"), path("mixture.py"));
    let (folder, model) = (folder.as_str(), model.as_str());
    fs::write(&source, MIXTURE).unwrap();
    let trace = ["trace", &format!("{source}:Mixture"), "--input", "4x6:int64", "--seed", "1", "-o", model];
    let (is_traced, said) = command(&trace);
    assert!(is_traced, "{said}");
    // A link over which bytes count more than calls.
    let cluster = path("cluster.yaml");
    let text = "kind: cluster\nversion: 1\ntypes:\n  slow: {memory: 60000000000, memory_bandwidth: 1.0e+12, peak: {float32: 1.0e+9}}\n\
        devices:\n- {type: slow, count: 4}\nlevels:\n- {name: link, bandwidth: 1.0e+8, latency: 0}\n";
    fs::write(&cluster, text).unwrap();
    let asked = ["--cluster", &cluster, "--expert-parallel", "4", "--stages", "1", "-o", folder];
    let (is_split, said) = command(&[&["split", model][..], &asked].concat());
    assert!(is_split && said.contains("samples or positions, and experts, in 4 parts"), "{said}");
    let read = |name: &str| fs::read_to_string(Path::new(folder).join(name)).unwrap();
    let plan = read("plan.yaml");
    let cuts =
        plan.split("\ncuts:\n").nth(1).and_then(|rest| rest.split("\nassumed:").next()).unwrap_or_default();
    let cuts = cuts.lines().take_while(|line| line.starts_with("  "));
    let names: Vec<&str> = cuts.filter_map(|line| line.strip_suffix(':')).map(str::trim).collect();
    assert_eq!(names, ["layers.*.up", "layers.*.down"], "{plan}");
    let stage = read("stages/stage_0.py");
    for call in ["take", "dispatch", "grouped_mm", "combine"] {
        assert!(stage.contains(&format!("self.shard.{call}(")), "{call}: {stage}");
    }
    let (is_same, said) = command(&["verify", folder, "--float64", "--steps", "2"]);
    assert!(is_same && said.contains("all 4 ranks hold are the same to the last bit"), "{said}");
    assert!(said.contains("forward, all-to-all") && !said.contains("PLANNED"), "{said}");
    assert!(read("exports/README.md").contains("4 devices each have a part of the experts"));
    // A plan means what it meant where it was made.
    let file = format!("{folder}/plan.yaml");
    let step = |more: &[&str]| {
        let (is_planned, said) = command(&[&["plan", model, "--cluster", &cluster][..], more].concat());
        assert!(is_planned, "{said}");
        said.split(" per step").next().unwrap_or_default().to_string()
    };
    assert_eq!(step(&["--check", &file]), step(&["--expert-parallel", "4", "--stages", "1"]));
    // Gradients that come back in another order are found.
    let place_of_fault = Path::new(folder).join("stages/shards.py");
    let shards = fs::read_to_string(&place_of_fault).unwrap();
    let right = "self.dealt(g[order], got, sent)";
    assert_eq!(shards.matches(right).count(), 1);
    fs::write(&place_of_fault, shards.replace(right, "self.dealt(g, got, sent)")).unwrap();
    let (is_same, said) = command(&["verify", folder, "--steps", "1", "--allow-changes"]);
    assert!(!is_same && said.contains("gradient of"), "{said}");
    // Two stages of two devices each, trained.
    let (out, both) = (place.path().join("both"), path("both"));
    let asked = [
        "--cluster",
        &cluster,
        "--expert-parallel",
        "2",
        "--stages",
        "2",
        "--micro-batches",
        "2",
        "-o",
        &both,
    ];
    let (is_split, said) = command(&[&["split", model][..], &asked].concat());
    assert!(is_split, "{said}");
    let (is_same, said) = check_forked(&out, 4, &[]);
    assert!(is_same && said.contains("on 4 ranks") && said.contains("the same"), "{said}");
    // Unasked it is looked at where no single device holds all.
    let small = path("small.yaml");
    fs::write(&small, text.replace("60000000000", "500000")).unwrap();
    let (is_planned, said) = command(&["plan", model, "--cluster", &small, "--stages", "1"]);
    assert!(is_planned && said.contains("2 by experts"), "{said}");
    let dense = root().join("fixtures/traces/gpt2_tiny.pt");
    for (model, count, expected) in [
        (model, "3", "3 devices cannot share 4 experts and the 48 rows that are routed to them evenly"),
        (model, "3", "2, 4 could"),
        (dense.to_str().unwrap(), "2", "the model has no experts whose matrices lie in one tensor"),
    ] {
        let devices = format!("{count}xh100");
        let asked = ["plan", model, "--devices", &devices, "--expert-parallel", count];
        let (is_planned, said) = command(&asked);
        assert!(!is_planned && said.contains(expected), "{said}");
    }
}

/// Groups have a part of the tokens and of the experts each, and the devices of a group share its layers, experts among them.
#[test]
fn experts_and_layers_are_shared_at_once() {
    let place = tempfile::tempdir().unwrap();
    let path = |name: &str| place.path().join(name).to_str().unwrap().to_string();
    let (out, model, source, task) =
        (place.path().join("out"), path("mixture.pt"), path("mixture.py"), path("task.py"));
    let (folder, model) = (out.to_str().unwrap(), model.as_str());
    fs::write(&source, attentive_mixture()).unwrap();
    let trace = [
        "trace",
        &format!("{source}:Mixture"),
        "--input",
        "4x6:int64",
        "--seed",
        "1",
        "--train",
        "-o",
        model,
    ];
    let (is_traced, said) = command(&trace);
    assert!(is_traced, "{said}");
    let cluster = path("cluster.yaml");
    let text = "kind: cluster\nversion: 1\ntypes:\n  slow: {memory: 60000000000, memory_bandwidth: 1.0e+12, peak: {float32: 1.0e+9}}\n\
        devices:\n- {type: slow, count: 8}\nlevels:\n- {name: link, bandwidth: 1.0e+8, latency: 0}\n";
    fs::write(&cluster, text).unwrap();
    let asked = ["--cluster", &cluster, "--tensor-parallel", "2", "--expert-parallel", "4", "--stages", "1"];
    let size = ["--micro-batches", "2"];
    let (is_split, said) = command(&[&["split", model][..], &asked, &size, &["-o", folder]].concat());
    let expected = "samples or positions, and experts, in 4 parts, each layer on 2 devices";
    assert!(is_split && said.contains(expected), "{said}");
    let read = |name: &str| fs::read_to_string(Path::new(folder).join(name)).unwrap();
    let (plan, stage) = (read("plan.yaml"), read("stages/stage_0.py"));
    assert!(plan.contains("\nexpert_parallel: 4\n") && plan.contains("degree: 8"), "{plan}");
    assert!(stage.contains("\"layers.0.experts.down\": (1, 1, 0),"), "{stage}");
    for call in ["outer.dispatch", "outer.grouped_mm", "outer.combine", "reduce_scatter"] {
        assert!(stage.contains(&format!("self.shard.{call}(")), "{call}: {stage}");
    }
    let told = "4 groups of devices each have a part of the experts, and of the samples";
    assert!(read("exports/README.md").contains(told));
    let (is_same, said) = command(&["verify", folder, "--float64", "--steps", "2"]);
    assert!(is_same && said.contains("all 8 ranks hold are the same to the last bit"), "{said}");
    assert!(said.contains("the sources match the plan") && !said.contains("PLANNED"), "{said}");
    // A plan means what it meant where it was made; one that contradicts itself is refused.
    let step = |more: &[&str]| {
        let (is_planned, said) =
            command(&[&["plan", model, "--cluster", &cluster, "--micro-batches", "2"][..], more].concat());
        assert!(is_planned, "{said}");
        said.split(" per step").next().unwrap_or_default().to_string()
    };
    let checked =
        command(&["plan", model, "--cluster", &cluster, "--check", &format!("{folder}/plan.yaml")]).1;
    assert_eq!(checked.split(" per step").next().unwrap_or_default(), step(&asked[2..]));
    for (changed, expected) in [
        ("expert_parallel: 3", "`expert_parallel: 3` of the plan: 8 devices share layers"),
        ("expert_parallel: 4\ncontext_parallel: 4", "groups of devices are of one kind"),
        ("expert_parallel: 2\n", "4 devices cannot cut its dimension"),
    ] {
        let file = path("changed.yaml");
        fs::write(&file, plan.replace("expert_parallel: 4\n", &format!("{changed}\n"))).unwrap();
        let (is_taken, said) = command(&["plan", model, "--check", &file, "--cluster", &cluster]);
        assert!(!is_taken && said.contains(expected), "{said}");
    }
    // Trained, saved, and gone on with in one process: losses and norms are those of one process all along.
    fs::write(&task, MIXTURE_TASK).unwrap();
    let losses = |more: &[&str]| {
        let (log, script) = (path("log.jsonl"), format!("{folder}/train.py"));
        let always = [script.as_str(), "--task", &task, "--schedule", "1F1B", "--log", &log];
        let (is_done, said) = run(python(), &[&always[..], more].concat());
        assert!(is_done, "{said}");
        let lines = fs::read_to_string(&log).unwrap();
        let lines = lines.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        let figures = lines.filter(|line| line["loss"].is_f64()).map(|line| {
            assert!(line["norm"].as_f64().unwrap() > 0.5, "it is not clipped: {line}");
            [line["loss"].as_f64().unwrap(), line["norm"].as_f64().unwrap()]
        });
        let figures: Vec<f64> = figures.flatten().collect();
        fs::remove_file(&log).unwrap();
        figures
    };
    let save = path("checkpoints");
    let expected = losses(&["--single", "--steps", "4"]);
    let mut found = losses(&["--steps", "2", "--save", &save]);
    found.extend(losses(&["--steps", "4", "--save", &save, "--resume", "--shards", "1"]));
    assert_eq!(found.len(), 8);
    for (found, expected) in found.iter().zip(&expected) {
        assert!((found / expected - 1.0).abs() < 1e-5, "{found} {expected}");
    }
    // Groups that all read the experts of the first are found.
    let place_of_fault = Path::new(folder).join("stages/shards.py");
    let shards = fs::read_to_string(&place_of_fault).unwrap();
    let right = "self.first = shard.rank * self.part[dim]";
    assert_eq!(shards.matches(right).count(), 1);
    fs::write(&place_of_fault, shards.replace(right, "self.first = 0")).unwrap();
    let (is_same, said) = command(&["verify", folder, "--steps", "1", "--allow-changes"]);
    assert!(!is_same && said.contains("outputs"), "{said}");
    // Two stages of two groups of two devices, trained.
    let (out, both) = (place.path().join("both"), path("both"));
    let asked = ["--cluster", &cluster, "--tensor-parallel", "2", "--expert-parallel", "2", "--stages", "2"];
    let (is_split, said) = command(&[&["split", model][..], &asked, &size, &["-o", &both]].concat());
    assert!(is_split, "{said}");
    let (is_same, said) = check_forked(&out, 8, &[]);
    assert!(is_same && said.contains("on 8 ranks") && said.contains("the same"), "{said}");
    // Unasked they are looked at where no single device holds all. More memory makes no plan slower.
    let (source, model) = (path("wide.py"), path("wide.pt"));
    fs::write(&source, attentive_mixture().replace("192", "552").replace("96", "276")).unwrap();
    let (is_traced, said) =
        command(&["trace", &format!("{source}:Mixture"), "--input", "4x6:int64", "-o", &model]);
    assert!(is_traced, "{said}");
    let seconds = ["350000", "400000"].map(|memory| {
        let small = path("small.yaml");
        fs::write(&small, text.replace("60000000000", memory)).unwrap();
        let asked = ["plan", &model, "--cluster", &small, "--stages", "1", "--format", "json"];
        let out = Command::new(env!("CARGO_BIN_EXE_model-analyze")).args(asked).output().unwrap();
        let answer: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
        assert_eq!(answer["shared"]["expert_parallel"], 4, "{answer}");
        answer["step_seconds"].as_f64().unwrap() / answer["micro_batches"].as_f64().unwrap()
    });
    assert!(seconds[1] <= seconds[0], "{seconds:?}");
    // Where the devices of a group cut no weight they have a part of its tokens each, and all experts of the group.
    let (source, model, folder) = (path("odd.py"), path("odd.pt"), path("odd"));
    fs::write(&source, attentive_mixture().replace("192", "184").replace("96", "92")).unwrap();
    let (is_traced, said) =
        command(&["trace", &format!("{source}:Mixture"), "--input", "4x6:int64", "-o", &model]);
    assert!(is_traced, "{said}");
    let six = path("six.yaml");
    fs::write(&six, text.replace("count: 8", "count: 6")).unwrap();
    let asked = ["--cluster", &six, "--tensor-parallel", "3", "--expert-parallel", "2", "--stages", "1"];
    let (is_split, said) = command(&[&["split", &model][..], &asked, &["-o", &folder]].concat());
    assert!(is_split && said.contains("samples or positions, and experts, in 2 parts"), "{said}");
    let stage = fs::read_to_string(format!("{folder}/stages/stage_0.py")).unwrap();
    assert!(stage.contains("\"layers.0.experts.down\": (None, 1, 0),"), "{stage}");
    let (is_same, said) = command(&["verify", &folder, "--float64", "--steps", "2"]);
    assert!(is_same && !said.contains("PLANNED"), "{said}");
}

/// The mixture with attention in front of its experts.
fn attentive_mixture() -> String {
    let block = r#"class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.q, self.k, self.v, self.o = nn.LayerNorm(16), *(nn.Linear(16, 16, bias=False) for _ in range(4))
        self.experts = Experts()

    def forward(self, x):
        b, s, _ = x.shape
        h = self.norm(x)
        q, k, v = (p(h).view(b, s, 4, 4).transpose(1, 2) for p in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, s, 16)
        return self.experts(x + self.o(y))


class Mixture("#;
    MIXTURE
        .replace("class Mixture(", block)
        .replace("Sequential(Experts(), Experts())", "Sequential(Block(), Block())")
}

/// A task for it, with a norm that is clipped.
const MIXTURE_TASK: &str = r#"
import torch


def inputs(step, samples):
    return (torch.randint(0, 50, (samples, 6), generator=torch.Generator().manual_seed(step)),)


def target(step, samples):
    return inputs(step, samples)[0]


def loss(outputs, target):
    return torch.nn.functional.cross_entropy(outputs[0].flatten(0, 1), target.flatten())


def optimizer(parameters):
    return torch.optim.AdamW(parameters, lr=0.02)


clip = 0.5
"#;

/// Shares of experts that are sent are counted by their own bytes, not by those of the positions that tell where they go.
#[test]
fn what_is_sent_to_experts_is_counted_by_its_own_size() {
    let place = tempfile::tempdir().unwrap();
    let path = |name: &str| place.path().join(name).to_str().unwrap().to_string();
    let (folder, model, config) = (path("out"), path("glm.pt"), path("config.json"));
    let text = r#"{"architectures": ["Glm4MoeForCausalLM"], "model_type": "glm4_moe", "vocab_size": 256, "hidden_size": 64,
        "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
        "max_position_embeddings": 128, "moe_intermediate_size": 96, "num_experts_per_tok": 2, "n_shared_experts": 1,
        "n_routed_experts": 4, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1}"#;
    fs::write(&config, text).unwrap();
    let (is_traced, said) =
        command(&["trace", "--hf", &config, "--input", "input_ids=1x128:int64:0..256", "-o", &model]);
    assert!(is_traced, "{said}");
    let (is_split, said) =
        command(&["split", &model, "--devices", "2xcpu", "--expert-parallel", "2", "-o", &folder]);
    assert!(is_split, "{said}");
    let (is_same, said) = command(&["verify", &folder, "--steps", "1"]);
    assert!(is_same && said.contains("forward, all-to-all 3 times") && !said.contains("PLANNED"), "{said}");
}

/// A recommender: a large table of which a step reads little, and small layers.
const RECOMMENDER: &str = r#"
import torch
from torch import nn


class Recommender(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.low = nn.Embedding(2000000, 128), nn.Sequential(nn.Linear(13, 128), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(128 * 27, 1024), nn.ReLU(), nn.Linear(1024, 1))

    def forward(self, numbers, ids):
        return self.top(torch.cat([self.low(numbers), self.table(ids).flatten(1)], 1))
"#;

/// Where sums of a large table's gradients, or one device's work, hold all others up, its rows or columns are shared unasked.
#[test]
fn a_large_table_is_shared_unasked() {
    let place = tempfile::tempdir().unwrap();
    let path = |name: &str| place.path().join(name).to_str().unwrap().to_string();
    let (model, source) = (path("recommender.pt"), path("recommender.py"));
    fs::write(&source, RECOMMENDER).unwrap();
    let inputs = ["--no-weights", "--input", "512x13", "--input", "512x26:int64:0..2000000"];
    let class = format!("{source}:Recommender");
    let trace = [&["trace", class.as_str()], &inputs[..], &["-o", &model]].concat();
    let (is_traced, said) = command(&trace);
    assert!(is_traced, "{said}");
    let seconds = |more: &[&str]| {
        let asked = ["plan", &model, "--devices", "4xt4", "--micro-batches", "12", "--format", "json"];
        let (is_planned, said) = command(&[&asked[..], more].concat());
        assert!(is_planned, "{said}");
        let start = said.find('{').unwrap();
        let mut answers = serde_json::Deserializer::from_str(&said[start..]).into_iter::<serde_json::Value>();
        let answer = answers.next().unwrap().unwrap();
        (answer["step_seconds"].as_f64().unwrap(), answer["shared"]["degree"].as_u64())
    };
    let (unasked, whole) = (seconds(&[]), seconds(&["--tensor-parallel", "none"]));
    assert_eq!((unasked.1, whole.1), (Some(4), None));
    assert!(unasked.0 < 0.75 * whole.0, "{unasked:?} {whole:?}");
}

/// A decoder with grouped heads that returns its loss, of which some targets do not count.
const WITH_LOSS: &str = r#"
import torch
from torch import nn
from torch.nn import functional as F


class Layer(nn.Module):
    def __init__(self, width, heads, keys):
        super().__init__()
        self.heads, self.keys, size = heads, keys, width // heads
        self.norm, self.after = nn.RMSNorm(width), nn.RMSNorm(width)
        self.q, self.k, self.v = (nn.Linear(width, n * size, bias=False) for n in (heads, keys, keys))
        self.o, self.up, self.down = nn.Linear(width, width), nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        y = self.norm(x)
        split = lambda z, n: z.view(x.size(0), x.size(1), n, -1).transpose(1, 2)
        q, k, v = split(self.q(y), self.heads), split(self.k(y), self.keys), split(self.v(y), self.keys)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.o(y.transpose(1, 2).reshape(x.size()))
        return x + self.down(F.silu(self.up(self.after(x))))


class Decoder(nn.Module):
    def __init__(self, width=32, words=96):
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(64, width)
        self.layers = nn.ModuleList(Layer(width, 4, 2) for _ in range(2))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, words, labels):
        x = self.words(words) + self.places(torch.arange(words.size(1)))
        for layer in self.layers:
            x = layer(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), labels.flatten(), ignore_index=3)
"#;

/// Groups have a part of the positions each, and devices of a group share its layers.
#[test]
fn positions_and_layers_are_shared_at_once() {
    let place = tempfile::tempdir().unwrap();
    let path = |name: &str| place.path().join(name).to_str().unwrap().to_string();
    let (folder, model, source, cluster) =
        (path("out"), path("decoder.pt"), path("decoder.py"), path("cluster.yaml"));
    let (folder, model) = (folder.as_str(), model.as_str());
    fs::write(&source, WITH_LOSS).unwrap();
    let words = "2x16:int64";
    let from = format!("{source}:Decoder");
    let (is_traced, said) =
        command(&["trace", &from, "--input", words, "--input", words, "--seed", "1", "--train", "-o", model]);
    assert!(is_traced, "{said}");
    // Two nodes of four devices, over links on which bytes count more than calls.
    let text = "kind: cluster\nversion: 1\ntypes:\n  slow: {memory: 60000000000, memory_bandwidth: 1.0e+12, peak: {float32: 1.0e+9}}\n\
        devices:\n- {type: slow, count: 4, nodes: 2}\nlevels:\n\
        - {name: inside, bandwidth: 1.0e+10, latency: 0}\n- {name: between, bandwidth: 1.0e+9, latency: 0}\n";
    fs::write(&cluster, text).unwrap();
    let asked = ["--cluster", &cluster, "--tensor-parallel", "2", "--context-parallel", "4", "--stages", "1"];
    let (is_split, said) = command(&[&["split", model][..], &asked, &["-o", folder]].concat());
    assert!(is_split && said.contains("samples or positions in 4 parts, each layer on 2 devices"), "{said}");
    let read = |name: &str| fs::read_to_string(Path::new(folder).join(name)).unwrap();
    let (plan, stage) = (read("plan.yaml"), read("stages/stage_0.py"));
    assert!(plan.contains("\ncontext_parallel: 4\n") && plan.contains("degree: 8"), "{plan}");
    for call in ["outer.attention", "outer.gather_split", "outer.per_target", "cross_entropy", "reduce"] {
        assert!(stage.contains(&format!("self.shard.{call}(")), "{call}: {stage}");
    }
    let told = "--tensor-model-parallel-size 2 --context-parallel-size 4";
    assert!(read("exports/megatron.txt").contains(told) && !read("exports/README.md").contains("- `vllm"));
    let (is_same, said) = command(&["verify", folder, "--float64", "--steps", "2"]);
    assert!(is_same && said.contains("all 8 ranks hold are the same to the last bit"), "{said}");
    assert!(said.contains("the sources match the plan") && !said.contains("PLANNED"), "{said}");
    // A plan means what it meant where it was made.
    let step = |more: &[&str]| {
        let (is_planned, said) = command(&[&["plan", model, "--cluster", &cluster][..], more].concat());
        assert!(is_planned, "{said}");
        said.split(" per step").next().unwrap_or_default().to_string()
    };
    assert_eq!(step(&["--check", &format!("{folder}/plan.yaml")]), step(&asked[2..]));
    // One that somebody has changed is refused by what is wrong with it.
    for (changed, expected) in [
        ("context_parallel: 3", "`context_parallel: 3` of the plan: 8 devices share layers"),
        ("context_parallel: 8", "`context_parallel: 8` of the plan: 8 devices share layers"),
        ("context_parallel: 4\noperators: {head linear: samples}", "each operator has a split of its own"),
    ] {
        let file = path("changed.yaml");
        fs::write(&file, plan.replace("context_parallel: 4", changed)).unwrap();
        let (is_taken, said) = command(&["plan", model, "--check", &file, "--cluster", &cluster]);
        assert!(!is_taken && said.contains(expected), "{said}");
        let (is_taken, said) = command(&["simulate", &file]);
        assert!(!is_taken && said.contains(expected), "{said}");
    }
    // What a step takes beside its micro-batches are the sums of gradients of weights that each device has whole.
    let slow = path("slow.yaml");
    fs::write(&slow, text.replace("1.0e+10", "1.0e+8").replace(", nodes: 2", "")).unwrap();
    let asked_of = ["--cluster", &slow, "--context-parallel", "4", "--stages", "1", "--format", "json"];
    let step_of = |count: &str, more: &[&str]| {
        let asked = [&["plan", model, "--micro-batches", count][..], &asked_of, more].concat();
        let out = Command::new(env!("CARGO_BIN_EXE_model-analyze")).args(asked).output().unwrap();
        let answer: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
        answer["step_seconds"].as_f64().unwrap()
    };
    let (two, four) = (step_of("2", &[]), step_of("4", &[]));
    let parameters: f64 = 4.0 * 17_824.0;
    let sums = 2.0 * 0.75 * parameters / 1e8;
    assert!((2.0 * two - four) > sums && (2.0 * two - four) < 1.2 * sums, "{two} {four} {sums}");
    // Gradients of which each group has a term alone.
    let place_of_fault = Path::new(folder).join("stages/stage_0.py");
    let fault = stage.replacen(
        "self.shard.outer.weight(self.layers[0].q.weight)",
        "self.shard.weight(self.layers[0].q.weight)",
        1,
    );
    assert_ne!(fault, stage);
    fs::write(&place_of_fault, fault).unwrap();
    let (is_same, said) = command(&["verify", folder, "--steps", "1", "--allow-changes"]);
    assert!(!is_same && said.contains("gradient of layers.0.q.weight"), "{said}");
    // Two stages of two groups of two devices, trained; one such stage with replicas that share out the optimizer.
    let (out, both) = (place.path().join("both"), path("both"));
    let asked = ["--cluster", &cluster, "--tensor-parallel", "2", "--context-parallel", "2", "--stages"];
    let (is_split, said) =
        command(&[&["split", model][..], &asked, &["2", "--micro-batches", "2", "-o", &both]].concat());
    assert!(is_split, "{said}");
    let (is_same, said) = check_forked(&out, 8, &[]);
    assert!(is_same && said.contains("on 8 ranks") && said.contains("the same"), "{said}");
    // Several nodes share a layer only where somebody asks for it, or nothing else fits.
    let nodes = path("nodes.yaml");
    fs::write(&nodes, text.replace("count: 4", "count: 1")).unwrap();
    let (is_planned, said) = command(&["plan", model, "--cluster", &nodes, "--tensor-parallel", "auto"]);
    assert!(is_planned && !said.contains("devices per layer tried"), "{said}");
    let (is_planned, said) = command(&["plan", model, "--cluster", &nodes, "--tensor-parallel", "2"]);
    assert!(is_planned && said.contains("each layer on 2 devices"), "{said}");
    for (options, expected) in [
        (["--tensor-parallel", "2", "--context-parallel", "auto"], "in only one of these ways"),
        (["--tensor-parallel", "3", "--context-parallel", "2"], "does not divide the 4 devices"),
        (["--tensor-parallel", "4", "--context-parallel", "3"], "does not divide the 4 devices"),
        (["--tensor-parallel", "4", "--context-parallel", "2"], ""),
    ] {
        let (is_planned, said) = command(&[&["plan", model, "--cluster", &cluster][..], &options].concat());
        assert!(is_planned == expected.is_empty() && said.contains(expected), "{said}");
    }
}

/// AlexNet as FlexFlow places it over a slow link, small.
const ALEXNET: &str = r#"
from torch import nn


class AlexNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 10, 5), nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(10, 20, 5), nn.MaxPool2d(2), nn.ReLU()
        )
        self.classifier = nn.Sequential(nn.Linear(320, 50), nn.ReLU(), nn.Dropout(0.5), nn.Linear(50, 10))

    def forward(self, x):
        x = self.features(x)
        return self.classifier(x.view(x.size(0), -1))
"#;

/// Convolutions on two devices, the dense part on the first: five losses are those of one process, to the last bit.
#[test]
fn a_dense_part_lies_on_one_device() {
    let place = tempfile::tempdir().unwrap();
    let path = |name: &str| place.path().join(name).to_str().unwrap().to_string();
    let (folder, model, source, cluster) =
        (path("out"), path("alexnet.pt"), path("alexnet.py"), path("cluster.yaml"));
    let (folder, model) = (folder.as_str(), model.as_str());
    fs::write(&source, ALEXNET).unwrap();
    let of = format!("{source}:AlexNet");
    let trace = ["trace", &of, "--train", "--input", "64x1x28x28", "--seed", "0", "-o", model];
    let (is_traced, said) = command(&trace);
    assert!(is_traced, "{said}");
    // It is found where sums of the dense part's gradients take longer than its work, and not where they do not.
    let at = |peak: &str| {
        let text = format!(
            "kind: cluster\nversion: 1\ntypes:\n  slow: {{memory: 60000000000, memory_bandwidth: 1.0e+12, peak: {{float32: {peak}}}}}\n\
             devices:\n- {{type: slow, count: 2}}\nlevels:\n- {{name: link, bandwidth: 1.0e+10, latency: 1.0e-6}}\n"
        );
        fs::write(&cluster, text).unwrap();
        let asked = ["--cluster", &cluster, "--context-parallel", "2", "--on-first", "auto", "--stages", "1"];
        let (is_split, said) = command(
            &[&["split", model][..], &asked, &["--targets", "python", "--force", "-o", folder]].concat(),
        );
        assert!(is_split, "{said}");
        fs::read_to_string(Path::new(folder).join("plan.yaml")).unwrap()
    };
    let plan = at("1.0e+9");
    assert!(!plan.contains("on_first"), "{plan}");
    let plan = at("1.0e+12");
    assert_eq!(plan.matches("on_first: true").count(), 2, "{plan}");
    let (is_same, said) = command(&["verify", folder, "--float64", "--steps", "2"]);
    assert!(is_same && said.contains("all 2 ranks hold are the same to the last bit"), "{said}");
    assert!(said.contains("forward, point-to-point 2 times: 87040 bytes, as planned"), "{said}");
    let said = Command::new(warm(&python(), &[]))
        .arg(root().join("tests/oracle/on_first.py"))
        .arg(folder)
        .output()
        .unwrap();
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stdout));
    // What comes back is lost on the way to the convolutions.
    let place_of_fault = Path::new(folder).join("stages/shards.py");
    let shards = fs::read_to_string(&place_of_fault).unwrap();
    let right =
        "self.exchanged(x, lambda x: self.moved(x, 0, has, wants), lambda g: self.moved(g, 0, wants, has))";
    let wrong = "self.exchanged(x, lambda x: self.moved(x, 0, has, wants), lambda g: torch.zeros_like(x))";
    assert_eq!(shards.matches(right).count(), 1);
    fs::write(&place_of_fault, shards.replace(right, wrong)).unwrap();
    let (is_same, said) = command(&["verify", folder, "--steps", "1", "--allow-changes"]);
    assert!(!is_same && said.contains("gradient of features") && said.contains("PLANNED"), "{said}");
    // As asked: a convolution in front of what is shared again.
    let other = path("other");
    let asked =
        ["--devices", "2xh100", "--context-parallel", "2", "--on-first", "features.3", "--stages", "1"];
    let (is_split, said) =
        command(&[&["split", model][..], &asked, &["--targets", "python", "-o", &other]].concat());
    assert!(is_split, "{said}");
    let stage = fs::read_to_string(Path::new(&other).join("stages/stage_0.py")).unwrap();
    assert!(stage.contains("self.shard.lend(self.features[3].weight, 20)"), "{stage}");
    let (is_same, said) = command(&["verify", &other, "--float64", "--steps", "2"]);
    assert!(is_same && said.contains("as planned") && !said.contains("PLANNED"), "{said}");
    let plan = |more: &[&str]| command(&[&["plan", model, "--devices", "2xh100"][..], more].concat());
    for (more, expected) in [
        (&["--on-first", "classifier"][..], "add --context-parallel N"),
        (&["--context-parallel", "2", "--on-first", "clasifier"], "no such call, did you mean `classifier`?"),
        (
            &["--context-parallel", "2", "--on-first", "classifier.1"],
            "no weights that could be on one device",
        ),
    ] {
        let (is_planned, said) = plan(more);
        assert!(!is_planned && said.contains(expected), "{said}");
    }
}

const BUFFERS_AND_BIASES: &str = r#"
import torch
from torch import nn


class Volumes(nn.Module):
    """Biases before norms: their gradients are zero but for rounding."""

    def __init__(self):
        super().__init__()
        self.first = nn.Sequential(nn.Conv3d(1, 8, 3, padding=1), nn.BatchNorm3d(8), nn.ReLU())
        self.second = nn.Sequential(nn.Conv3d(8, 16, 3, padding=1), nn.InstanceNorm3d(16), nn.ReLU(), nn.Conv3d(16, 3, 1))

    def forward(self, x):
        return self.second(self.first(x))


class Book(nn.Module):
    """A vector quantizer, whose forward passes move its codes; a parameter that is a number, an output without any."""

    def __init__(self):
        super().__init__()
        self.into, self.out = nn.Linear(12, 24), nn.Linear(24, 12)
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.register_buffer("book", torch.randn(16, 24))

    def forward(self, x):
        z = self.into(x)
        index = torch.cdist(z, self.book).argmin(-1)
        code = self.book[index]
        with torch.no_grad():
            self.book.mul_(0.9).index_add_(0, index, z, alpha=0.1)
        return self.scale.exp() * self.out(z + (code - z).detach()), z[:, :0]
"#;

/// No fault is: a gradient that is nothing but rounding, buffers that each replica writes for itself, a parameter without
/// dimensions, an output without numbers.
#[test]
fn rounding_and_buffers_of_replicas_are_no_differences() {
    let place = tempfile::tempdir().unwrap();
    let path = |name: &str| place.path().join(name).to_str().unwrap().to_string();
    fs::write(path("models.py"), BUFFERS_AND_BIASES).unwrap();
    for (class, input, asked, expected) in [
        ("Volumes", "2x1x8x8x8", ["--tensor-parallel", "2"], "of them rounding: weights that change"),
        ("Book", "8x12", ["--strategy", "fsdp"], "the same"),
    ] {
        let (of, model, out) = (format!("{}:{class}", path("models.py")), path("model.pt"), path(class));
        let (is_traced, said) = command(&["trace", &of, "--train", "--input", input, "-o", &model]);
        assert!(is_traced, "{said}");
        let split = ["split", &model, "--devices", "2xt4", "--micro-batches", "4", "-o", &out];
        let (is_split, said) = command(&[&split[..], &asked, &["--targets", "python"]].concat());
        assert!(is_split, "{said}");
        let (is_same, said) = check_forked(Path::new(&out), 2, &[]);
        assert!(is_same && said.contains("on 2 ranks") && said.contains(expected), "{said}");
        let (is_same, said) = command(&["verify", &out, "--steps", "2"]);
        assert!(is_same, "{said}");
    }
}

/// `tests/oracle/mutants.py` says which faults; most of them leave outputs as they are.
#[test]
fn verify_finds_each_fault_of_shared_layers() {
    let said = oracle::run("mutants");
    assert!(said.trim_end().ends_with("\n0 failed"), "{said}");
    assert_eq!(said.matches(": differs").count(), 7, "{said}");
    assert_eq!(said.matches(": the same").count(), 2, "{said}");
}

/// Cuts that somebody has changed are taken, or refused by their names.
#[test]
fn cuts_of_a_plan_are_honoured_or_refused() {
    let place = tempfile::tempdir().unwrap();
    let path = |name: &str| place.path().join(name).to_str().unwrap().to_string();
    let model = root().join("fixtures/traces/gpt2_tiny.pt");
    let (model, plan) = (model.to_str().unwrap(), path("plan.yaml"));
    let asked = ["plan", model, "--devices", "2xh100", "--tensor-parallel", "2", "-o", &plan];
    assert!(command(&asked).0);
    let text = fs::read_to_string(&plan).unwrap();
    let name = "transformer.wte.weight";
    assert!(text.contains("\ncuts:\n"), "{text}");
    let with = |cuts: &str| {
        let (before, rest) = text.split_once("\ncuts:\n").unwrap();
        let after = rest.split_once("\npredicted:").unwrap().1;
        let changed = path("changed.yaml");
        fs::write(&changed, format!("{before}\ncuts:{cuts}\npredicted:{after}")).unwrap();
        command(&["emit", model, &changed, "-o", &path("out"), "--targets", "python", "--force"])
    };
    let (is_written, said) = with(&format!("\n  {name}:\n    dim: 1"));
    assert!(is_written, "{said}");
    let stage = fs::read_to_string(place.path().join("out/stages/stage_0.py")).unwrap();
    assert!(stage.contains(&format!("CUTS = {{\n    \"{name}\": (1, 1),\n}}")), "{name} alone is cut");
    for (cuts, expected) in [
        (format!("\n  {name}:\n    dim: 7"), "cannot cut its dimension 7"),
        (
            "\n  transformer.wte.wieght:\n    dim: 0".to_string(),
            "which the model does not have, did you mean",
        ),
    ] {
        let (is_written, said) = with(&cuts);
        assert!(!is_written && said.contains(expected), "{said}");
    }
}

/// `tests/oracle/sharded.py` says what is compared; `make zoo-shards` takes all models, on two and four devices.
#[test]
fn devices_that_share_layers_give_what_one_gives() {
    let said = oracle::run("sharded");
    assert!(said.trim_end().ends_with("0 failed"), "{said}");
    assert!(said.matches("the same").count() >= 5, "{said}");
    assert!(said.matches("100.0% of FLOPs shared").count() >= 4, "{said}");
}

/// The operators stand in `tests/oracle/layouts.py`; what its rules say of each is followed by hand.
#[test]
fn each_strategy_of_each_operator_gives_what_one_device_gives() {
    let said = oracle::run("layouts");
    let strategies: u32 =
        said.lines().last().and_then(|line| line.split(' ').next()?.parse().ok()).expect("a sum");
    assert!(strategies > 1_000 && said.trim_end().ends_with(" 0 differences"), "{said}");
}

/// `tests/oracle/bands.py` says what is compared; `make bands` takes models of torchvision, and an image of 2,048 x 2,048.
#[test]
fn images_in_bands_give_what_one_device_gives() {
    let said = oracle::run("bands");
    assert!(said.trim_end().ends_with("0 failed"), "{said}");
    assert_eq!(said.matches("100.0% of FLOPs shared").count(), 3, "{said}");
    assert_eq!(said.matches("is found").count(), 6, "{said}");
}

/// Stages of which three devices each have uneven bands train as one process does.
#[test]
fn stages_of_images_in_bands_train_as_one_process_does() {
    let place = tempfile::tempdir().unwrap();
    let out = place.path().join("out");
    let (folder, model) = (out.to_str().unwrap(), root().join("fixtures/traces/unet_small.pt"));
    let model = model.to_str().unwrap();
    let split = |more: &[&str]| {
        command(
            &[&["split", model, "--devices", "6xh100", "--micro-batches", "4", "-o", folder], more].concat(),
        )
    };
    let (is_split, said) = split(&["--spatial", "3", "--stages", "2"]);
    assert!(is_split && said.contains("images in 3 bands"), "{said}");
    let plan = fs::read_to_string(out.join("plan.yaml")).unwrap();
    assert!(plan.contains("bands: true"), "{plan}");
    let (is_same, said) = check_forked(&out, 6, &[]);
    assert!(is_same && said.contains("on 6 ranks") && said.contains("the same"), "{said}");
    // What somebody has changed is taken, or refused by its name.
    let changed = place.path().join("changed.yaml");
    for (from, to, expected) in [
        ("dim: 2\n    bands", "dim: 4\n    bands", "no images with a dimension 4"),
        ("\n  x:\n", "\n  y:\n", "bands of `y`, which is not an input"),
        (
            "\n  x:\n",
            "\n  head.weight:\n    dim: 0\n  x:\n",
            "with images in bands, parameters must be whole",
        ),
    ] {
        fs::write(&changed, plan.replace(from, to)).unwrap();
        let again = place.path().join("again");
        let (is_written, said) = command(&[
            "emit",
            model,
            changed.to_str().unwrap(),
            "-o",
            again.to_str().unwrap(),
            "--targets",
            "python",
        ]);
        assert!(!is_written && said.contains(expected), "{said}");
    }
    for (more, expected) in [
        (["--spatial", "2", "--tensor-parallel", "2"], "layers can be shared in only one of these ways"),
        (["--spatial", "8", "--stages", "1"], "--spatial 8 does not divide the 6 devices"),
    ] {
        let (is_planned, said) = command(&[&["plan", model, "--devices", "6xh100"][..], &more].concat());
        assert!(!is_planned && said.contains(expected), "{said}");
    }
}
