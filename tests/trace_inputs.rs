//! `model-analyze trace` with what people have: inputs in files and inside of other things, constants, methods, configs.
#![allow(clippy::unwrap_used, missing_docs)]

use std::{fs, path::Path, process::Output};

use needs::python;
use tracer::{Comparison, Program, read_archive};
use warm::{FOR_TRACES, warm};

mod needs;
mod warm;

const BATCH: &str = "fixtures/models/nested.py:Batch";
const NAMED: &str = "fixtures/models/nested.py:Named";

/// Runs Python in a folder.
fn write(python: &Path, folder: &Path, script: &str) {
    let done = std::process::Command::new(python).current_dir(folder).args(["-c", script]).status().unwrap();
    assert!(done.success());
}

fn run(python: &Path, folder: &Path, arguments: &[&str]) -> Output {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_model-analyze"));
    command.current_dir(env!("CARGO_MANIFEST_DIR")).env("MODEL_ANALYZE_PYTHON", warm(python, FOR_TRACES));
    command.env("OMP_NUM_THREADS", "1").env("NO_COLOR", "1").arg("trace").args(arguments);
    command.arg("-o").arg(folder.join("model.pt")).output().unwrap()
}

/// Traces, and returns the program and what was said.
fn trace(python: &Path, folder: &Path, arguments: &[&str]) -> (Program, String) {
    let output = run(python, folder, arguments);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{arguments:?}: {said}");
    (read_archive(&fs::read(folder.join("model.pt")).unwrap()).unwrap(), said)
}

fn refuse(python: &Path, folder: &Path, arguments: &[&str]) -> String {
    let output = run(python, folder, arguments);
    assert_eq!(output.status.code(), Some(2), "{arguments:?}");
    assert!(!folder.join("model.pt").exists());
    String::from_utf8(output.stderr).unwrap()
}

/// Name, sizes and range of each input.
fn inputs(program: &Program) -> Vec<String> {
    let recorded = program.recorded.as_ref().unwrap();
    let shown = recorded
        .inputs
        .iter()
        .map(|input| format!("{} {:?} {:?}", input.name, input.type_.shape.as_ref().unwrap(), input.range));
    shown.collect()
}

fn operators(program: &Program) -> Vec<&str> {
    program.nodes.iter().map(|node| node.operator.as_str()).collect()
}

#[test]
fn a_file_holds_a_dict_with_lists_inside() {
    let Some(python) = python() else { return };
    let folder = tempfile::tempdir().unwrap();
    let script = "import torch; torch.manual_seed(0); ids = torch.tensor([[1, 9, 3, 0, 2], [5, 5, 5, 5, 5]]); \
        more = [torch.rand(2, 5, 8), torch.full((2, 5, 8), 0.5)]; \
        torch.save(({'ids': ids, 'more': more, 'mask': torch.tensor([[True] * 5, [False] * 5])},), 'batch.pt')";
    write(&python, folder.path(), script);
    let file = folder.path().join("batch.pt");
    let file = file.to_str().unwrap();
    let (program, said) =
        trace(&python, folder.path(), &[BATCH, "--input-file", file, "--constant", "twice=true"]);
    assert_eq!(said, "note: constants of the call are part of the trace: twice=True\n");
    let found = inputs(&program);
    assert_eq!(found[0], "batch_ids [2, 5] Some((0.0, 10.0))");
    assert!(found[1].starts_with("batch_more_0 [2, 5, 8] Some((0.0"), "{found:?}");
    assert_eq!(found[2..], ["batch_more_1 [2, 5, 8] None", "batch_mask [2, 5] Some((0.0, 2.0))"]);
    let recorded = program.recorded.as_ref().unwrap();
    assert_eq!(recorded.comparison, Comparison::Same);
    assert_eq!(recorded.about["inputs"], "batch.ids, batch.more.0, batch.more.1, batch.mask");
    assert_eq!(recorded.about["constants"], "twice=True");
    let (once, said) = trace(&python, folder.path(), &[BATCH, "--input-file", file]);
    assert_eq!(said, "");
    assert_eq!(operators(&program).iter().filter(|name| **name == "aten::mul").count(), 2);
    assert_eq!(operators(&once).iter().filter(|name| **name == "aten::mul").count(), 1);
    // What was traced is what the other commands read.
    for arguments in [&["inspect"][..], &["split", "--devices=2xt4", "--stages=2", "--dry-run"]] {
        let mut command = assert_cmd::Command::new(env!("CARGO_BIN_EXE_model-analyze"));
        command.args(arguments).arg(folder.path().join("model.pt")).assert().success().stderr("");
    }
}

#[test]
fn files_hold_arguments_by_name_or_by_place() {
    let Some(python) = python() else { return };
    let folder = tempfile::tempdir().unwrap();
    let script = "import torch; from safetensors.torch import save_file; x, mask = torch.randn(2, 4), torch.rand(2, 4); \
        save_file({'x': x, 'mask': mask}, 'named.safetensors'); torch.save([x], 'list.pt'); torch.save(x, 'alone.pt'); \
        torch.save({'args': [x], 'kwargs': {'mask': mask}}, 'both.pt')";
    write(&python, folder.path(), script);
    let numbers = "[[0.5, -1, 2, 3], [1, 2, 3, 4]]";
    fs::write(folder.path().join("named.json"), format!("{{\"x\": {numbers}, \"scale\": 2}}")).unwrap();
    fs::write(folder.path().join("alone.json"), format!("[{numbers}]")).unwrap();
    for (name, expected) in [
        ("named.safetensors", &["mask", "x"][..]),
        ("list.pt", &["x"]),
        ("alone.pt", &["x"]),
        ("both.pt", &["input_0", "mask"]),
        ("named.json", &["x"]),
    ] {
        let file = folder.path().join(name);
        let (program, _) = trace(&python, folder.path(), &[NAMED, "--input-file", file.to_str().unwrap()]);
        let recorded = program.recorded.as_ref().unwrap();
        let mut names: Vec<&str> = recorded.inputs.iter().map(|input| input.name.as_str()).collect();
        if name.ends_with(".safetensors") {
            names.sort_unstable();
        }
        assert_eq!(names, expected, "{name}");
        assert_eq!(recorded.comparison, Comparison::Same, "{name}");
        assert_eq!(operators(&program).contains(&"aten::mul"), expected.contains(&"mask"), "{name}");
    }
    // Lists of numbers that make one tensor are one.
    let file = folder.path().join("alone.json");
    let (program, _) = trace(&python, folder.path(), &[NAMED, "--input-file", file.to_str().unwrap()]);
    assert_eq!(inputs(&program), ["x [1, 2, 4] Some((-4.0, 4.0))"]);
}

#[test]
fn what_is_no_input_is_named() {
    let Some(python) = python() else { return };
    let folder = tempfile::tempdir().unwrap();
    let script = "import torch, pickle; x = torch.randn(2, 4); torch.save({'x': x, 'masks': x}, 'wrong.pt'); \
        torch.save({'x': None}, 'nothing.pt'); torch.save(torch.nn.Linear(2, 2), 'module.pt')";
    write(&python, folder.path(), script);
    let file = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let said = |arguments: &[&str]| refuse(&python, folder.path(), arguments);
    assert_eq!(
        said(&[NAMED, "--input-file", &file("wrong.pt")]),
        "error: wrong.pt has masks, which forward does not take: it takes mask, scale, x\n"
    );
    assert_eq!(
        said(&[NAMED, "--input-file", &file("nothing.pt")]),
        "error: forward is called without a tensor: there is nothing to trace\n"
    );
    let refused = said(&[NAMED, "--input-file", &file("module.pt")]);
    assert!(refused.contains("UnpicklingError: Weights only load failed"), "{refused}");
    assert!(said(&[NAMED, "--input-file", &file("none.pt")]).ends_with("none.pt: no such file\n"));
    assert_eq!(
        said(&[NAMED, "--input", "mask=2x4", "--constant", "mask=1"]),
        "error: mask is given by both --input and --constant\n"
    );
    assert_eq!(said(&[NAMED, "--input", "2x4", "--method", "encod"]), "error: Named has no method 'encod'\n");
    assert!(said(&[NAMED]).contains("required arguments were not provided"), "{}", said(&[NAMED]));
}

#[test]
fn another_method_is_traced() {
    let Some(python) = python() else { return };
    let folder = tempfile::tempdir().unwrap();
    let (program, _) = trace(&python, folder.path(), &[BATCH, "--method", "encode", "--input", "2x5:int64"]);
    assert_eq!(operators(&program), ["aten::embedding"]);
    assert_eq!(program.recorded.unwrap().about["method"], "encode");
}

/// Called without a mask and without positions, transformers attends causally by a fused kernel; so does the trace. Positions
/// that are given, or that numbers of an input decide, may be those of packed sequences, which need their mask.
#[test]
fn attention_is_causal_where_only_sizes_decide_the_positions() {
    let Some(python) = python() else { return };
    let folder = tempfile::tempdir().unwrap();
    let source = "import torch, transformers as t\n\
        class Plain(torch.nn.Module):\n\
        \x20   def __init__(self):\n\
        \x20       super().__init__()\n\
        \x20       config = t.LlamaConfig(hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4,\n\
        \x20           vocab_size=100, use_cache=False)\n\
        \x20       self.model = t.LlamaForCausalLM(config)\n\
        \x20   def forward(self, ids):\n\
        \x20       return self.model(input_ids=ids).logits\n\
        class Given(Plain):\n\
        \x20   def forward(self, ids, at):\n\
        \x20       return self.model(input_ids=ids, position_ids=at).logits\n\
        class Decided(Plain):\n\
        \x20   def forward(self, ids):\n\
        \x20       at = torch.arange(ids.shape[1]) * ids[:, :1].clamp(1, 1)\n\
        \x20       return self.model(input_ids=ids, position_ids=at).logits\n";
    fs::write(folder.path().join("packed.py"), source).unwrap();
    for (class, more, is_causal) in [
        ("Plain", &[][..], true),
        ("Given", &["--input", "at=2x8:int64:0..8"], false),
        ("Decided", &[], false),
    ] {
        let target = format!("{}:{class}", folder.path().join("packed.py").display());
        let arguments = [&[target.as_str(), "--input", "ids=2x8:int64:0..100"], more].concat();
        let (program, _) = trace(&python, folder.path(), &arguments);
        let has = |operator: &str| operators(&program).contains(&operator);
        assert!(has("aten::scaled_dot_product_attention"), "{class}");
        assert_eq!(!has("aten::diff"), is_causal, "{class}");
        assert_eq!(program.recorded.unwrap().comparison, Comparison::Same, "{class}");
    }
}

/// Activations are not kept for a backward pass that never comes, except where forward takes gradients by itself.
#[test]
fn a_model_takes_the_memory_of_its_forward_pass() {
    let Some(python) = python() else { return };
    let folder = tempfile::tempdir().unwrap();
    let source = "import resource, torch\n\
        class Deep(torch.nn.Module):\n\
        \x20   def __init__(self):\n\
        \x20       super().__init__()\n\
        \x20       self.layers = torch.nn.ModuleList(torch.nn.Linear(64, 64) for _ in range(10))\n\
        \x20   def forward(self, x):\n\
        \x20       before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n\
        \x20       for layer in self.layers:\n\
        \x20           x = layer(x).tanh()\n\
        \x20       grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before\n\
        \x20       assert grown < 400_000, f'{grown} KiB'\n\
        \x20       return x\n\
        class Force(torch.nn.Module):\n\
        \x20   def __init__(self):\n\
        \x20       super().__init__()\n\
        \x20       self.layer = torch.nn.Linear(4, 1)\n\
        \x20   def forward(self, x):\n\
        \x20       if torch.jit.is_tracing():\n\
        \x20           return self.layer(x)\n\
        \x20       x = x.requires_grad_()\n\
        \x20       return torch.autograd.grad(self.layer(x).tanh().sum(), x)[0]\n";
    fs::write(folder.path().join("deep.py"), source).unwrap();
    let target = |class: &str| format!("{}:{class}", folder.path().join("deep.py").display());
    // Ten layers keep two tensors of 41 MB each for a backward pass.
    trace(&python, folder.path(), &[&target("Deep"), "--input", "160000x64"]);
    trace(&python, folder.path(), &[&target("Force"), "--input", "2x4", "--no-check"]);
}

/// Models of transformers, by nothing but their configs.
#[test]
fn a_config_is_enough() {
    let Some(python) = python() else { return };
    let folder = tempfile::tempdir().unwrap();
    let script = "import transformers as t\n\
        t.LlamaConfig(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, vocab_size=100,\n\
        architectures=['LlamaForCausalLM']).save_pretrained('llama')\n\
        t.T5Config(d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2, vocab_size=50).save_pretrained('t5')\n\
        t.ViTConfig(hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4, image_size=32,\n\
        patch_size=16).save_pretrained('vit')\n\
        tower = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4)\n\
        t.CLIPConfig(text_config=dict(vocab_size=64, max_position_embeddings=16, eos_token_id=2, **tower),\n\
        vision_config=dict(image_size=32, patch_size=16, **tower), architectures=['CLIPModel']).save_pretrained('clip')\n\
        t.SiglipConfig(text_config=dict(vocab_size=64, max_position_embeddings=16, **tower),\n\
        vision_config=dict(image_size=32, patch_size=16, **tower), architectures=['SiglipModel']).save_pretrained('siglip')\n\
        t.VideoMAEConfig(num_frames=2, image_size=32, patch_size=16, **tower).save_pretrained('videomae')\n\
        t.XLNetConfig(vocab_size=50, d_model=8, n_layer=1, n_head=2, d_inner=8).save_pretrained('xlnet')\n\
        lite = dict(num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2, head_dim=8, hidden_size=16,\n\
        max_position_embeddings=16, intermediate_size=8)\n\
        t.DiaConfig(encoder_config=dict(vocab_size=40, **lite), decoder_config=dict(vocab_size=1028, num_channels=3,\n\
        cross_hidden_size=16, cross_num_attention_heads=2, cross_num_key_value_heads=2, cross_head_dim=8, **lite),\n\
        delay_pattern=[0, 1, 2]).save_pretrained('codes')\n\
        t.PerceiverConfig(num_latents=4, d_latents=16, d_model=8, num_self_attends_per_block=1,\n\
        num_cross_attention_heads=2, num_self_attention_heads=2).save_pretrained('states')\n\
        t.PerceiverConfig(num_latents=4, d_latents=16, d_model=8, num_self_attends_per_block=1, vocab_size=50,\n\
        max_position_embeddings=16, num_cross_attention_heads=2, num_self_attention_heads=2,\n\
        architectures=['PerceiverForSequenceClassification']).save_pretrained('bytes')\n\
        t.LlavaConfig(text_config=dict(model_type='llama', vocab_size=64, **tower), image_token_index=63,\n\
        vision_config=dict(model_type='clip_vision_model', image_size=32, patch_size=16, **tower), \n\
        architectures=['LlavaForConditionalGeneration']).save_pretrained('places')\n\
        t.Siglip2Config(text_config=dict(vocab_size=64, max_position_embeddings=16, **tower), vision_config=dict(num_patches=4,\n\
        patch_size=16, **tower), architectures=['Siglip2Model']).save_pretrained('packed')\n\
        t.ASTConfig(num_mel_bins=32, max_length=64, patch_size=16, **tower).save_pretrained('spectrum')\n\
        t.IdeficsConfig(vocab_size=50, additional_vocab_size=2, use_resampler=False, cross_layer_interval=1, **tower,\n\
        vision_config=dict(embed_dim=32, image_size=32, patch_size=16, intermediate_size=64, num_hidden_layers=1,\n\
        num_attention_heads=4), architectures=['IdeficsModel']).save_pretrained('crossed')\n\
        t.Qwen2AudioConfig(audio_token_index=49, text_config=dict(model_type='qwen2', vocab_size=50, num_key_value_heads=4,\n\
        **tower), audio_config=dict(d_model=32, num_mel_bins=8, encoder_layers=1, encoder_attention_heads=4,\n\
        encoder_ffn_dim=64, max_source_positions=16), architectures=['Qwen2AudioForConditionalGeneration'])\\\n\
        .save_pretrained('sounds')\n\
        t.BertConfig(vocab_size=50, **tower, architectures=['BertForMultipleChoice']).save_pretrained('choices')\n\
        t.VideoMAEConfig(num_frames=2, image_size=32, patch_size=16, decoder_hidden_size=16, decoder_intermediate_size=16,\n\
        decoder_num_hidden_layers=1, decoder_num_attention_heads=2, **tower,\n\
        architectures=['VideoMAEForPreTraining']).save_pretrained('masked')\n\
        t.Pix2StructConfig(text_config=dict(vocab_size=50, hidden_size=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2),\n\
        vision_config=dict(hidden_size=16, patch_embed_hidden_size=12, d_ff=16, d_kv=8, num_hidden_layers=1, seq_len=128,\n\
        num_attention_heads=2), architectures=['Pix2StructForConditionalGeneration']).save_pretrained('flat')\n\
        t.TrOCRConfig(vocab_size=50, d_model=16, decoder_layers=1, decoder_attention_heads=2,\n\
        decoder_ffn_dim=16).save_pretrained('headed')\n\
        t.Gemma3TextConfig(vocab_size=50, head_dim=8, num_key_value_heads=2, use_bidirectional_attention=True,\n\
        architectures=['OurEncoder'], **tower).save_pretrained('pairs')";
    write(&python, folder.path(), script);
    for (config, arguments, note, expected) in [
        (
            "llama/config.json",
            &[][..],
            "input_ids=1x128:int64:0..100",
            &["input_ids [1, 128] Some((0.0, 100.0))"][..],
        ),
        (
            "llama",
            &["--input", "input_ids=2x8:int64", "--no-weights"],
            "",
            &["input_ids [2, 8] Some((0.0, 100.0))"],
        ),
        ("bytes", &[], "inputs=1x16:int64:0..50", &["inputs [1, 16] Some((0.0, 50.0))"]),
        ("vit", &[], "pixel_values=1x3x32x32", &["pixel_values [1, 3, 32, 32] None"]),
        (
            "clip",
            &[],
            "input_ids=1x16:int64:0..64 --input pixel_values=1x3x32x32",
            &["input_ids [1, 16] Some((0.0, 64.0))", "pixel_values [1, 3, 32, 32] None"],
        ),
        (
            "siglip",
            &[],
            "input_ids=1x16:int64:0..64 --input pixel_values=1x3x32x32",
            &["input_ids [1, 16] Some((0.0, 64.0))", "pixel_values [1, 3, 32, 32] None"],
        ),
        // As many words as the image takes in their place, all of them its token.
        (
            "places",
            &[],
            "input_ids=1x4:int64:63..64 --input pixel_values=1x3x32x32",
            &["input_ids [1, 4] Some((63.0, 64.0))", "pixel_values [1, 3, 32, 32] None"],
        ),
        (
            "packed",
            &[],
            "pixel_values=1x4x768 --input pixel_attention_mask=1x4:int64:1..2 --input spatial_shapes=1x2:int64:2..3",
            &[
                "input_ids [1, 16] Some((0.0, 64.0))",
                "pixel_values [1, 4, 768] None",
                "pixel_attention_mask [1, 4] Some((1.0, 2.0))",
                "spatial_shapes [1, 2] Some((2.0, 3.0))",
            ],
        ),
        ("videomae", &[], "pixel_values=1x2x3x32x32", &["pixel_values [1, 2, 3, 32, 32] None"]),
        (
            "codes",
            &[],
            "input_ids=1x16:int64:0..40 --input decoder_input_ids=1x16x3:int64:0..1028",
            &["input_ids [1, 16] Some((0.0, 40.0))", "decoder_input_ids [1, 16, 3] Some((0.0, 1028.0))"],
        ),
        // The second guess and the third: the first that forward takes is told.
        ("states", &[], "inputs=1x128x8", &["inputs [1, 128, 8] None"]),
        ("spectrum", &[], "input_values=1x64x32", &["input_values [1, 64, 32] None"]),
        (
            "crossed",
            &[],
            "pixel_values=1x1x3x32x32 --input image_attention_mask=1x128x1:int64:1..2",
            &[
                "input_ids [1, 128] Some((0.0, 50.0))",
                "pixel_values [1, 1, 3, 32, 32] None",
                "image_attention_mask [1, 128, 1] Some((1.0, 2.0))",
            ],
        ),
        // As many words as the sound takes in their place.
        (
            "sounds",
            &[],
            "input_ids=1x8:int64:49..50 --input input_features=1x8x32",
            &[
                "input_ids [1, 8] Some((49.0, 50.0))",
                "input_features [1, 8, 32] None",
                "feature_attention_mask [1, 32] Some((1.0, 2.0))",
            ],
        ),
        ("choices", &[], "input_ids=1x2x128:int64:0..50", &["input_ids [1, 2, 128] Some((0.0, 50.0))"]),
        (
            "masked",
            &[],
            "pixel_values=1x2x3x32x32 --input bool_masked_pos=1x4:bool",
            &["pixel_values [1, 2, 3, 32, 32] None", "bool_masked_pos [1, 4] Some((0.0, 2.0))"],
        ),
        (
            "flat",
            &[],
            "flattened_patches=1x128x14:0..2 --input decoder_input_ids=1x128:int64:0..50",
            &[
                "flattened_patches [1, 128, 14] Some((0.0, 2.0))",
                "decoder_input_ids [1, 128] Some((0.0, 50.0))",
            ],
        ),
        // A type that has models with heads only.
        ("headed", &[], "input_ids=1x128:int64:0..50", &["input_ids [1, 128] Some((0.0, 50.0))"]),
        // Its mask is made with torch.vmap, and its class is not transformers'.
        (
            "pairs",
            &[],
            "note: transformers has no OurEncoder: the model is a Gemma3TextModel",
            &["input_ids [1, 128] Some((0.0, 50.0))"],
        ),
        ("xlnet", &[], "input_ids=1x128:int64:0..50", &["input_ids [1, 128] Some((0.0, 50.0))"]),
        (
            "t5",
            &[],
            "input_ids=1x128:int64:0..50 --input decoder_input_ids=1x128:int64:0..50",
            &["input_ids [1, 128] Some((0.0, 50.0))", "decoder_input_ids [1, 128] Some((0.0, 50.0))"],
        ),
    ] {
        let path = folder.path().join(config);
        let (program, said) =
            trace(&python, folder.path(), &[&["--hf", path.to_str().unwrap()], arguments].concat());
        assert_eq!(inputs(&program), expected, "{config}");
        assert_eq!(said.contains("example inputs"), !note.is_empty(), "{said}");
        assert!(said.contains(note), "{said}");
    }
    let said = refuse_hf(&python, "{\"model_type\": \"nosuch\"}");
    assert!(said.contains("model type `nosuch`"), "{said}");
}

/// What the inputs leave out is told, and a model that cannot be held is refused before the machine runs out of memory.
#[test]
fn what_is_left_out_or_too_large_is_said() {
    let Some(python) = python() else { return };
    let folder = tempfile::tempdir().unwrap();
    let source = "import torch\n\
        class Towers(torch.nn.Module):\n\
        \x20   def __init__(self):\n\
        \x20       super().__init__()\n\
        \x20       self.words = torch.nn.Linear(8, 8)\n\
        \x20       self.sees = torch.nn.ModuleDict({'first': torch.nn.Linear(8, 8), 'tied': torch.nn.Linear(8, 8)})\n\
        \x20       self.sees['tied'].weight = self.words.weight\n\
        \x20       self.token = torch.nn.Parameter(torch.zeros(1))\n\
        \x20   def forward(self, x, image=None):\n\
        \x20       return self.words(x) if image is None else self.words(x) + self.sees['first'](image) + self.token\n\
        class Huge(torch.nn.Module):\n\
        \x20   def __init__(self):\n\
        \x20       super().__init__()\n\
        \x20       self.weight = torch.nn.Parameter(torch.zeros(1).expand(10**15))\n\
        \x20   def forward(self, x):\n\
        \x20       return x * self.weight[:4]\n";
    fs::write(folder.path().join("parts.py"), source).unwrap();
    let target = |class: &str| format!("{}:{class}", folder.path().join("parts.py").display());
    let (program, said) = trace(&python, folder.path(), &[&target("Towers"), "--input", "x=2x8"]);
    let note = "no operator reads 81 of 153 parameters with these inputs: sees.first, sees.tied.bias, token";
    assert_eq!(said, format!("note: {note}\n"));
    assert_eq!(program.recorded.unwrap().notes[0].text, note);
    let (_, said) =
        trace(&python, folder.path(), &[&target("Towers"), "--input", "x=2x8", "--input", "image=2x8"]);
    assert_eq!(said, "note: no operator reads 8 of 153 parameters with these inputs: sees.tied.bias\n");
    fs::remove_file(folder.path().join("model.pt")).unwrap();
    let said = refuse(&python, folder.path(), &[&target("Huge"), "--input", "4"]);
    assert!(said.contains("the model's parameters take more than the "), "{said}");
    assert!(said.contains("hint: --no-weights traces it without them"), "{said}");
}

/// What a first run keeps is computed again when the model is traced: an archive must hold how, not the numbers.
#[test]
fn what_forward_keeps_of_parameters_is_traced() {
    let Some(python) = python() else { return };
    let folder = tempfile::tempdir().unwrap();
    let source = "import torch\n\
        class Table:\n\
        \x20   def __init__(self):\n\
        \x20       self.found, self.count = {}, 0\n\
        \x20   def put(self, key, value):\n\
        \x20       assert self.count == len(self.found)\n\
        \x20       self.found[key], self.count = (value, None), self.count + 1\n\
        class Cached(torch.nn.Module):\n\
        \x20   def __init__(self):\n\
        \x20       super().__init__()\n\
        \x20       self.bias = torch.nn.Parameter(torch.randn(8))\n\
        \x20       self.kept, self.last, self.order = {}, None, torch.arange(7, -1, -1)\n\
        \x20       self.table = Table()\n\
        \x20   def forward(self, x):\n\
        \x20       if 'bias' not in self.kept:\n\
        \x20           self.kept['bias'] = self.bias[self.order]\n\
        \x20       if self.last is None:\n\
        \x20           self.last = self.bias * 2\n\
        \x20       if 'exp' not in self.table.found:\n\
        \x20           self.table.put('exp', self.bias.exp())\n\
        \x20       return x + self.kept['bias'] + self.last + self.table.found['exp'][0]\n";
    fs::write(folder.path().join("cached.py"), source).unwrap();
    let target = format!("{}:Cached", folder.path().join("cached.py").display());
    let (program, said) = trace(&python, folder.path(), &[&target, "--input", "2x8"]);
    assert_eq!(said, "");
    let expected = ["aten::index", "aten::mul", "aten::exp", "aten::add", "aten::add", "aten::add"];
    assert_eq!(operators(&program), expected);
}

/// Parameters that no module lists: the attribute is named, and torch's dump of the tensor is not shown.
#[test]
fn parameters_in_plain_lists_are_named() {
    let Some(python) = python() else { return };
    let folder = tempfile::tempdir().unwrap();
    let source = "import torch\n\
        class Plain(torch.nn.Module):\n\
        \x20   def __init__(self, computed=False):\n\
        \x20       super().__init__()\n\
        \x20       self.last, self.made = torch.nn.Linear(8, 8), None\n\
        \x20       self.parts = [] if computed else [{'a': torch.nn.Linear(8, 8)}, torch.ones(8, requires_grad=True)]\n\
        \x20       self.made = lambda kept=self.last.weight * 2: kept\n\
        \x20   def forward(self, x):\n\
        \x20       return self.last(self.parts[0]['a'](x) * self.parts[1] if self.parts else x * self.made())\n";
    fs::write(folder.path().join("plain.py"), source).unwrap();
    let target = format!("{}:Plain", folder.path().join("plain.py").display());
    let said = refuse(&python, folder.path(), &[&target, "--input", "8x8"]);
    let expected = "error: forward reads parameters that no module lists, so that no optimizer would train them: \
                    parts.0.a.weight, parts.0.a.bias, parts.1\n";
    assert!(said.starts_with(expected) && said.contains("hint: keep modules in nn.ModuleList"), "{said}");
    let said = refuse(&python, folder.path(), &[&target, "--input", "8x8", "--arg", "computed=true"]);
    assert!(
        said.starts_with("error: forward uses a tensor that was computed from parameters before"),
        "{said}"
    );
}

fn refuse_hf(python: &Path, config: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("config.json"), config).unwrap();
    refuse(python, folder.path(), &["--hf", folder.path().to_str().unwrap()])
}
