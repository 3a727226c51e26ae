"""Feeds what `emit` and `split` write into `exports/` to the frameworks that it is for.

    python tests/oracle/exports.py COMMAND FOLDER [--installed]

Cuts small models at modules and at places that no other framework can cut at, and reads each export with the framework's own
code: torch's `pipeline`, accelerate, transformers, and, where they are installed, torchtitan, Megatron Core, DeepSpeed, vLLM,
SGLang and Ray. Where one is not, its rule is stated here again, and the line says so; with `--installed` (`make exports-load`) that is an
error, the cases are more, DeepSpeed trains all models in processes of their own, and so does Ray.
Prints a line for each export and exits 1 when one is refused.
"""

import argparse
import ast
import contextlib
import importlib.metadata
import importlib.util
import io
import json
import os
import re
import subprocess
import sys
import traceback
import types
import warnings
import zipfile
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "fixtures"), str(Path(__file__).resolve().parent)]

import torch
import verify_stages
import zoo
from torch import nn

warnings.filterwarnings("ignore")

# Model, command and how it is cut, in how many stages.
CASES = [
    ("gpt2_tiny", "emit --cut transformer.h.1"),
    ("gpt2_tiny", "emit --cut transformer.h.0.mlp,transformer.h.1"),
    ("bert_tiny", "emit --cut bert.encoder.layer.1"),
    ("unet_small", "emit --cut down.1,raise_.1"),
    ("cnn_dropout", "emit --stages 3"),
    ("resnet", "emit --cut layer2,layer3.0"),
    ("layered", "emit --cut layers.1,layers.3"),
    ("llama", "emit --cut model.layers.2"),
    ("llama", "split --devices 2xh100 --tensor-parallel 2 --stages 1"),
    ("llama", "split --devices 2xh100 --tensor-parallel none --stages 2 --strategy 1f1b --recompute LlamaDecoderLayer=light"),
]
# Those of `make exports-load`: models of all kinds, and plans with replicas, several stages on a rank, schedules of torch.
MORE = [
    ("cnn_basic", "emit --cut conv2"),
    ("layered", "emit --stages 4"),
    ("amoebanet_6_small", "emit --stages 3"),
    ("lstm_seq2seq_small", "emit --stages 2"),
    ("complex", "emit --stages 3"),
    ("writes", "emit --stages 2"),
    ("repeats", "emit --stages 2"),
    ("t5", "emit --stages 3"),
    ("whisper", "emit --stages 2"),
    ("vit", "emit --stages 2"),
    ("mixtral", "emit --stages 2"),
    ("qwen3", "split --devices 4xh100 --tensor-parallel 2 --stages 2 --schedule 1f1b"),
    ("llama", "split --devices 4xh100 --stages 4 --schedule 1f1b --micro-batches 8"),
    ("llama", "split --devices 4xh100 --stages 2 --schedule 1f1b"),
    ("llama", "split --devices 2xh100 --stages 2"),
    ("resnet", "split --devices 2xh100 --strategy data-parallel"),
]


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.inner, self.outer = nn.LayerNorm(width), nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x):
        return x + self.outer(torch.relu(self.inner(self.norm(x))))


class Layered(nn.Module):
    """Made as torchtitan's models are: a part may lack what stands before it and after it."""

    def __init__(self):
        super().__init__()
        self.tok_embeddings = nn.Embedding(32, 8)
        self.layers = nn.ModuleDict({str(index): Layer(8) for index in range(5)})
        self.norm = nn.LayerNorm(8)
        self.output = nn.Linear(8, 32)

    def forward(self, x):
        x = self.tok_embeddings(x) if self.tok_embeddings is not None else x
        for layer in self.layers.values():
            x = layer(x)
        x = self.norm(x) if self.norm is not None else x
        return self.output(x) if self.output is not None else x


def build(name):
    """Returns a model and its inputs."""
    torch.manual_seed(4)
    if name == "layered":
        return Layered().eval(), [torch.randint(0, 32, (2, 6))]
    if name == "resnet":
        from torchvision.models.resnet import BasicBlock, ResNet

        return ResNet(BasicBlock, [1, 2, 1, 1], num_classes=10, width_per_group=64).eval(), [torch.randn(2, 3, 32, 32)]
    if name in FAMILIES:
        return FAMILIES[name]()
    made, inputs = zoo.build(name)
    return made, [value for _, value in inputs]


def decoder(kind, **more):
    def build():
        import transformers

        config = getattr(transformers, f"{kind}Config")
        sizes = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2)
        made = config(**sizes, vocab_size=64, max_position_embeddings=32, use_cache=False, **more)
        return getattr(transformers, f"{kind}ForCausalLM")(made).eval(), [torch.randint(0, 64, (2, 8))]

    return build


def t5():
    import transformers

    config = transformers.T5Config(vocab_size=64, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, use_cache=False)
    model = transformers.T5ForConditionalGeneration(config).eval()

    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, source, target):
            return self.model(input_ids=source, decoder_input_ids=target).logits

    return Both().eval(), [torch.randint(0, 64, (2, 8)), torch.randint(0, 64, (2, 6))]


def whisper():
    import transformers

    config = transformers.WhisperConfig(
        vocab_size=64, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4,
        encoder_ffn_dim=64, decoder_ffn_dim=64, num_mel_bins=8, max_source_positions=16, max_target_positions=16, use_cache=False,
        pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
    )  # fmt: skip
    model = transformers.WhisperForConditionalGeneration(config).eval()

    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, sound, words):
            return self.model(input_features=sound, decoder_input_ids=words).logits

    return Both().eval(), [torch.randn(2, 8, 32), torch.randint(0, 64, (2, 6))]


def vit():
    from torchvision.models import VisionTransformer

    return VisionTransformer(image_size=16, patch_size=4, num_layers=3, num_heads=2, hidden_dim=16, mlp_dim=32, num_classes=10).eval(), [torch.randn(2, 3, 16, 16)]


class Complex(nn.Module):
    """Complex values cross a border, an input is taken late, and one part of what crosses has no gradient."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x, scale):
        mask = (x > 0).to(x.dtype)
        spectrum = torch.fft.fft(self.first(x))
        y = self.second(torch.fft.ifft(spectrum).real * scale)
        return self.third(y * mask) * scale


FAMILIES = {
    "llama": decoder("Llama"),
    "qwen3": decoder("Qwen3", head_dim=8),
    "mixtral": decoder("Mixtral", num_local_experts=2),
    "t5": t5,
    "whisper": whisper,
    "vit": vit,
    "complex": lambda: (Complex().eval(), [torch.randn(2, 8), torch.rand(2, 8)]),
}


def module_of(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def first(value):
    return verify_stages.leaves(value.logits if hasattr(value, "logits") else value)[0]


def check(condition, message):
    if not condition:
        raise AssertionError(message)


def told(text):
    """Returns what a file says that it cannot express."""
    return [line for line in text.splitlines() if "Differs from the plan" in line]


def refused(folder, target):
    """Returns why no file was written for a target, where none was."""
    found = re.search(rf"^- {re.escape(target)}: (.*)\.$", (folder / "README.md").read_text().partition("Not written")[2], re.M)
    return found and found[1]


def manifest_of(folder):
    return json.loads((folder.parent / "stages/manifest.json").read_text())


def layers_of(model):
    """Returns the length of the list of layers that a transformer is; nothing else is one."""
    named = {"GPT2LMHeadModel": lambda: model.transformer.h, "BertForSequenceClassification": lambda: model.bert.encoder.layer}
    named["Layered"] = lambda: model.layers
    decoders = ("LlamaForCausalLM", "Qwen3ForCausalLM", "MixtralForCausalLM")
    named |= dict.fromkeys(decoders, lambda: model.model.layers)
    return len(named.get(type(model).__name__, list)())


# -- torch ----------------------------------------------------------------------------------------------------------


def torch_split_spec(folder, model, inputs, stages):
    if reason := refused(folder, "torch.distributed.pipelining"):
        check("share each layer" in reason or "one stage" in reason or "no module begins" in reason, reason)
        return f"not written: {reason}"
    from torch.distributed.pipelining import pipeline

    spec = module_of(folder / "torch_split_spec.py").split_spec
    # BERT's mask is a keyword of its layers, which torch's exporter follows as it does the model.
    try:
        pipe = pipeline(model, mb_args=tuple(inputs), split_spec=spec)
    except AssertionError as error:
        # torch 2.11 itself cannot unflatten decoders of transformers 5, wherever they are split.
        check("unexpected placeholder" in str(error) and hasattr(model, "lm_head"), error)
        return f"torch {torch.__version__} refuses the model ({error})"
    count = len([name for name, _ in pipe.split_gm.named_children() if name.startswith("submod_")])
    check(count == len(spec) + 1 == stages, f"torch makes {count} stages of {len(spec)} splits")
    with torch.no_grad():
        torch.testing.assert_close(first(pipe(*inputs)), first(model(*inputs)))
    return f"torch {torch.__version__}: {count} stages, the same output"


# -- accelerate -----------------------------------------------------------------------------------------------------


def device_map(folder, model, inputs, stages):
    """Under fake tensors each device is one, though the machine has none: torch itself refuses to mix them."""
    if reason := refused(folder, "Hugging Face accelerate (`device_map`)"):
        check(not (folder / "device_map.json").exists(), "written all the same")
        return f"not written: {reason}"
    import accelerate
    from torch._subclasses.fake_tensor import FakeTensorMode

    found = json.loads((folder / "device_map.json").read_text())
    accelerate.utils.check_device_map(model, found)
    with FakeTensorMode(allow_non_fake_inputs=True):
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            at = name
            while at not in found:
                at = at.rpartition(".")[0]
            holder = model.get_submodule(name.rpartition(".")[0])
            fake = torch.empty(tensor.shape, dtype=tensor.dtype, device=f"cuda:{found[at]}")
            kept = holder._parameters if isinstance(tensor, nn.Parameter) else holder._buffers
            kept[name.rpartition(".")[2]] = nn.Parameter(fake) if kept is holder._parameters else fake
        for name, rank in found.items():
            if name in dict(model.named_modules()):
                hook = accelerate.hooks.AlignDevicesHook(f"cuda:{rank}", io_same_device=False, place_submodules=False)
                accelerate.hooks.add_hook_to_module(model.get_submodule(name), hook)
        fakes = [torch.empty(value.shape, dtype=value.dtype, device=f"cuda:{min(found.values())}") for value in inputs]
        with torch.no_grad():
            output = first(model(*fakes))
    # Each stage's parameters lie where the plan has them; one that several hold lies with its first module.
    for about in manifest_of(folder)["stages"]:
        tied = {holder["name"] for tie in manifest_of(folder)["tied"] for holder in tie["holders"]}
        for name in set(about["parameters"]) - tied:
            at = name
            while at not in found:
                at = at.rpartition(".")[0]
            check(found[at] == about["stage"], f"{name} is on {found[at]}, planned in stage {about['stage']}")
    return f"accelerate {accelerate.__version__}: {len(found)} entries, runs on {len(set(found.values()))} devices, ends on {output.device}"


# -- torchtitan -----------------------------------------------------------------------------------------------------


def torchtitan(folder, model, inputs, stages):
    if reason := refused(folder, "torchtitan"):
        check(not isinstance(model, Layered) and not hasattr(getattr(model, "model", None), "embed_tokens") or "has no whole module" in reason or "in another order" in reason, reason)
        return f"not written: {reason}"
    page = module_of(folder / "torchtitan.py")
    notes, given = told((folder / "torchtitan.py").read_text()), page.parallelism
    parts = given.get("module_fqns_per_model_part")
    is_hugging_face = not isinstance(model, Layered)
    source = "its rule, stated again"
    try:
        from torchtitan.config import ParallelismConfig, TrainingConfig
        from torchtitan.distributed import ParallelDims

        config = ParallelismConfig(**given)
        TrainingConfig(**getattr(page, "training", {}))
        degrees = ("data_parallel_replicate", "data_parallel_shard", "tensor_parallel", "pipeline_parallel")
        world = 1
        for name in degrees:
            world *= getattr(config, f"{name}_degree")
        ParallelDims.from_config(config, world)
        check(world == world_of(folder), f"{world} devices of {world_of(folder)}")
        source = f"torchtitan {importlib.metadata.version('torchtitan')}"
    except ImportError as error:
        source += f" ({error})"
    again, light = recomputed(folder)
    mode = "none" if not sum(again) else "selective" if light == sum(again) else "full"
    found = getattr(page, "activation_checkpoint", {"mode": mode})  # nothing without a plan
    check(found["mode"] == mode, f"{found}, not {mode}")
    if parts is None:
        return f"{source}: degrees {given}"
    named = [name for part in parts for name in part if name != "rotary_emb"]
    check(len(named) == len(set(named)) and all(parts), f"a module is in two parts, or a part is empty: {parts}")
    if "stated" not in source:
        pieces = titan_parts(model, config, inputs, is_hugging_face)
    elif is_hugging_face:
        pieces = [split_like_backend(model, part) for part in parts]
    else:
        pieces = [split_like_torchtitan(model, part) for part in parts]
    held = [{name.replace("model.model.", "model.").replace("model.lm_head", "lm_head") for name, _ in piece.named_parameters()} for piece in pieces]
    planned = [set(about["parameters"]) for about in manifest_of(folder)["stages"]]
    check(notes or held == planned, f"parts hold {held}, planned are {planned}")
    check(set().union(*held) == set().union(*planned), "parameters are lost")
    if not is_hugging_face:
        with torch.no_grad():
            value = inputs[0]
            for piece in pieces:
                value = piece(value)
            torch.testing.assert_close(value, model(*inputs))
        return f"{source}: {len(parts)} parts in a row give the same output"
    return f"{source}: {len(parts)} parts hold the planned parameters{', but for what is told' if notes else ''}, {given['pipeline_parallel_schedule']}"


def world_of(folder):
    plan = folder.parent / "plan.yaml"
    if not plan.exists():
        return len(manifest_of(folder)["stages"])
    return len(set(re.findall(r"^  - (node\d+:\d+)$", plan.read_text(), re.M)))


def recomputed(folder):
    """Returns how many blocks stages compute again, by stage, and how many of all keep the results of their products."""
    stages = manifest_of(folder)["stages"]
    return [len(about.get("recompute", [])) for about in stages], sum(len(about.get("recompute_light", [])) for about in stages)


def titan_parts(model, config, inputs, is_hugging_face):
    """Each rank of a pipeline splits the model with torchtitan's own code, and makes its schedule of its stages."""
    import torch.distributed as dist
    import torch.distributed.pipelining
    from torch.testing._internal.distributed.fake_pg import FakeStore
    from torchtitan.distributed import pipeline_parallel

    if is_hugging_face:
        # The package needs a later torch than ours; its files that split a model do not.
        package = types.ModuleType("torchtitan.experiments.transformers_modeling_backend")
        package.__path__ = [str(Path(pipeline_parallel.__file__).parent.parent / "experiments/transformers_modeling_backend")]
        sys.modules.setdefault(package.__name__, package)
        from torchtitan.experiments.transformers_modeling_backend import model as backend
        from torchtitan.experiments.transformers_modeling_backend import pipeline as splitter

        class Wrapped(backend.HFTransformerModel):
            """The backend's own model, around ours instead of one by a configuration from the hub."""

            def __init__(self):
                nn.Module.__init__(self)
                self.model = model
                model.model.layers = backend.SliceableModuleDict({str(index): layer for index, layer in enumerate(model.model.layers)})

        whole, split = Wrapped(), splitter.pipeline_module_split
    else:
        whole, splitter, split = model, pipeline_parallel, pipeline_parallel._pipeline_module_split
    # Later torch's takes a mesh as well.
    splitter.PipelineStage = lambda *given, get_mesh=None, **more: dist.pipelining.PipelineStage(*given, **more)
    size, pieces = config.pipeline_parallel_degree, {}
    for rank in range(size):
        dist.init_process_group("fake", rank=rank, world_size=size, store=FakeStore())
        try:
            mesh = dist.device_mesh.init_device_mesh("cpu", (size,), mesh_dim_names=("pp",))
            made, models = split(whole, mesh, config.pipeline_parallel_schedule, torch.device("cpu"), config.module_fqns_per_model_part)
            for stage, piece in zip(made, models):
                pieces[stage.stage_index] = piece
            batch = config.pipeline_parallel_microbatch_size * max(len(config.module_fqns_per_model_part), 8)
            text = Path(config.pipeline_parallel_schedule_csv).read_text() if config.pipeline_parallel_schedule_csv else ""
            if text:
                batch = config.pipeline_parallel_microbatch_size * (1 + max(int(count) for count in re.findall(r"F(\d+)", text)))
            pipeline_parallel._build_pipeline_schedule(parallelism=config, local_batch_size=batch, stages=made, loss_fn=lambda *_: None)
        finally:
            dist.destroy_process_group()
    return [pieces[stage] for stage in sorted(pieces)]


def split_like_torchtitan(model, names):
    """The rule of torchtitan 0.3.0: lists keep the members named, other children stay or become None."""
    return split_like(model, names, lambda: None)


def split_like_backend(model, names):
    """The rule of its backend for Hugging Face, which calls modules of a decoder as its own models do."""
    import copy

    made = copy.deepcopy(model)
    kept = {"model.embed_tokens": "tok_embeddings", "model.norm": "norm", "lm_head": "lm_head", "model.rotary_emb": "rotary_emb"}
    for path, name in kept.items():
        if name not in names:
            setattr(made.get_submodule(path.rpartition(".")[0]), path.rpartition(".")[2], nn.Identity())
    made.model.layers = nn.ModuleDict({str(index): layer for index, layer in enumerate(made.model.layers) if f"layers.{index}" in names})
    return made


def split_like(model, names, absent):
    import copy

    model, kept = copy.deepcopy(model), set(names)
    for name, child in list(model.named_children()):
        if isinstance(child, (nn.ModuleDict, nn.ModuleList)):
            members = {other.split(".", 1)[1] for other in kept if other.startswith(f"{name}.")}
            if isinstance(child, nn.ModuleDict):
                setattr(model, name, nn.ModuleDict({key: value for key, value in child.items() if key in members}))
            else:
                setattr(model, name, nn.ModuleList(value for index, value in enumerate(child) if str(index) in members))
        elif name not in kept:
            setattr(model, name, absent())
    return model


# -- Megatron -------------------------------------------------------------------------------------------------------


def megatron(folder, model, inputs, stages):
    if reason := refused(folder, "Megatron-LM"):
        check("no list of equal layers" not in reason or not layers_of(model), reason)
        return f"not written: {reason}"
    (line,) = [line for line in (folder / "megatron.txt").read_text().splitlines() if not line.startswith("#")]
    given = dict(re.findall(r'--(\S+) "?([^" ]+)"?', line))
    again = max(recomputed(folder)[0])
    check(int(given.get("recompute-num-layers", 0)) == again, f"{line}; {again} layers are computed again")
    size, layout = int(given["pipeline-model-parallel-size"]), given.get("pipeline-model-parallel-layout")
    if layout is None:
        check(size == 1, line)
        return f"no pipeline: {line}"
    try:
        from megatron.core.transformer.pipeline_parallel_layer_layout import PipelineParallelLayerLayout

        parsed = PipelineParallelLayerLayout(layout, size)
        parsed.validate_layer_layout(layers_of(model), None)
        rows = len(parsed.layout[0]) * size
        counts = [[kind.name for kind in parsed.layout[stage % size][stage // size]].count("decoder") for stage in range(rows)]
        source = "Megatron Core's parser"
    except ImportError as error:
        rows = layout.split("|")
        check(len(rows) % size == 0 and layout[0] == "E" and layout[-1] == "L", layout)
        check(layout.count("E") == layout.count("L") == 1 and layout.count("t") == layers_of(model), layout)
        counts, source = [row.count("t") for row in rows], f"its rule, stated again ({error})"
    check_layers(folder, "megatron.txt", counts)
    return f"{source}: {counts} layers on {size} ranks"


def check_layers(folder, file, counts):
    """Stages have as many layers as the manifest says, where the file tells of no difference."""
    numbers = [{int(found[1]) for name in about["parameters"] if (found := re.search(r"\b(?:h|layer|layers)\.(\d+)\.", name))} for about in manifest_of(folder)["stages"]]
    check(told((folder / file).read_text()) or counts == [len(stage) for stage in numbers], f"{counts}, planned are {numbers}")


def megatron_bridge(folder, model, inputs, stages):
    if reason := refused(folder, "Megatron-Bridge"):
        return f"not written: {reason}"
    plan = module_of(folder / "megatron_bridge.py").PLAN
    try:
        from megatron.core.transformer.transformer_config import TransformerConfig
    except ImportError as error:
        check(set(plan) <= {"pipeline_model_parallel_size", "pipeline_model_parallel_layout", "tensor_model_parallel_size", "virtual_pipeline_model_parallel_size", "recompute_granularity", "recompute_method", "recompute_num_layers"}, plan)
        return f"its fields, stated again ({error})"
    config = TransformerConfig(num_layers=layers_of(model), hidden_size=32, num_attention_heads=4, pipeline_dtype=torch.bfloat16)
    for name, value in plan.items():
        check(hasattr(config, name), f"it has no field {name}")
        setattr(config, name, value)
    config.__post_init__()
    chunks = config.virtual_pipeline_model_parallel_size or 1
    check(chunks * config.pipeline_model_parallel_size == stages, f"{chunks} chunks")
    return f"Megatron Core's TransformerConfig, which Megatron-Bridge's derive from: {plan}"


# -- Hugging Face ---------------------------------------------------------------------------------------------------


def hugging_face(folder, model, inputs, stages):
    if reason := refused(folder, "Hugging Face transformers"):
        check("only forward passes" in reason or "not one of its models" in reason or "only decoders" in reason or "boundaries" in reason or "neither" in reason or "no style" in reason, reason)
        return f"not written: {reason}"
    import transformers
    from transformers.distributed import pipeline_parallel

    found = module_of(folder / "hugging_face.py").distributed_config
    said = []
    if (found.pp_size or 1) > 1:
        made = object.__new__(pipeline_parallel.PipelineStage)
        made.pp_size = found.pp_size
        ranges = [made.layer_range_for_rank(rank, layers_of(model)) for rank in range(found.pp_size)]
        check_layers(folder, "hugging_face.py", [stop - start for start, stop in ranges])
        said.append(f"layers {ranges}")
    if found.tp_plan:
        said.append(compare_tp_plan(model, manifest_of(folder), found.tp_plan))
    return f"transformers {transformers.__version__}: {', '.join(said)}"


def compare_tp_plan(model, manifest, ours):
    """Each rule matches a module and cuts its weight along the dimension that our stages cut it along."""
    from transformers.distributed.parallel_utils import ALL_PARALLEL_STYLES

    dims = {"colwise": 0, "colwise_gather_output": 0, "packed_colwise": 0, "embedding_rowwise": 0, "rowwise": 1, "rowwise_split_input": 1, "embedding_colwise": 1}
    modules = {re.sub(r"\.\d+(?=\.|$)", ".*", name) for name, _ in model.named_modules()}
    for path, style in ours.items():
        check(path in modules and style in ALL_PARALLEL_STYLES and style in dims, f"no {path}: {style}")
    theirs = dict(model.tp_plan)
    differ = {path: (ours.get(path), theirs.get(path)) for path in {*ours, *theirs} if ours.get(path) != theirs.get(path)}
    return f"{len(ours)} rules, {len(differ)} unlike its own plan{f' (ours, its own): {differ}' if differ else ''}"


# -- vLLM and SGLang ------------------------------------------------------------------------------------------------


def vllm(folder, model, inputs, stages):
    """vLLM's rule (`get_pp_indices`): whole numbers, one a rank, their sum the number of layers."""
    def scope(text):
        return {"envs": types.SimpleNamespace(VLLM_PP_LAYER_PARTITION=text), "logger": None}

    return dealt_out(folder, model, stages, "vLLM", "VLLM_PP_LAYER_PARTITION", "vllm/distributed/utils.py", scope)


def sglang(folder, model, inputs, stages):
    """SGLang's rule, which is vLLM's (`get_pp_indices` reads the variable itself)."""
    def scope(text):
        return {"os": types.SimpleNamespace(getenv={"SGLANG_PP_LAYER_PARTITION": text}.get), "logger": None, "Tuple": tuple}

    return dealt_out(folder, model, stages, "SGLang", "SGLANG_PP_LAYER_PARTITION", "sglang/srt/distributed/utils.py", scope)


def dealt_out(folder, model, stages, target, variable, path, scope):
    """The numbers of layers, held against the engine's own function where its wheel is there; `scope` is what that finds around it."""
    name = target.lower()
    if isinstance(counts := partition(folder, model, stages, target, f"{name}.env", variable), str):
        return counts
    source = "its rule, stated again"
    if wheels := sorted((Path(sys.prefix) / "wheels").glob(f"{name}-*.whl")):
        check_indices(wheels[0], path, scope(",".join(map(str, counts))), model, counts)
        source = f"get_pp_indices of {wheels[0].name.split('-cp')[0]}"
    return f"{source}: {counts}"


def partition(folder, model, stages, target, file, variable):
    """The numbers of layers in a file of variables; why there is none, where there is none."""
    if reason := refused(folder, target):
        check("no list of equal layers" not in reason or not layers_of(model), reason)
        return f"not written: {reason}"
    (line,) = [line for line in (folder / file).read_text().splitlines() if line and not line.startswith("#")]
    # As `docker --env-file` reads it: all behind the sign is the value.
    (name, _, value) = line.partition("=")
    check(name == variable, line)
    counts = [int(count) for count in value.split(",")]
    sourced = subprocess.run(["sh", "-c", f". {folder}/{file}; echo ${variable}"], capture_output=True, text=True)
    check(sourced.stdout.strip() == value, sourced.stdout + sourced.stderr)
    check(len(counts) == stages and sum(counts) == layers_of(model), f"{counts} for {layers_of(model)} layers")
    check_layers(folder, file, counts)
    return counts


def check_indices(wheel, path, scope, model, counts):
    """Asks a framework's own `get_pp_indices`. Its package needs a GPU's build of torch; the function is taken out of its source."""
    tree = ast.parse(zipfile.ZipFile(wheel).read(path))
    (function,) = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "get_pp_indices"]
    exec(compile(ast.Module([function], []), path, "exec"), scope)
    ranges = [scope["get_pp_indices"](layers_of(model), rank, len(counts)) for rank in range(len(counts))]
    check([stop - start for start, stop in ranges] == counts, ranges)


# -- DeepSpeed ------------------------------------------------------------------------------------------------------


def loss_of(outputs, target):
    return first(outputs).square().mean() * target.mean()


def deepspeed(folder, model, inputs, stages):
    """One step of SGD under DeepSpeed's engine, a process a rank, gives the parameters that a plain loop gives."""
    if reason := refused(folder, "DeepSpeed"):
        check("share each layer" in reason or "on one rank" in reason, reason)
        return f"not written: {reason}"
    page = folder / "deepspeed_pipeline.py"
    for parameter in model.parameters():
        parameter.grad = None
    if importlib.util.find_spec("deepspeed") is None:
        # Stages in a row, and all gradients that DeepSpeed would send.
        scope = {"__name__": "page", "__file__": str(page)}
        text = page.read_text().replace("from deepspeed import comm\nfrom deepspeed.pipe import LayerSpec, PipelineModule\n", "PipelineModule = object\n")
        exec(compile(text, str(page), "exec"), scope)
        layers, given, steps = [scope["Stage"](stage) for stage in range(stages)], tuple(inputs) if len(inputs) > 1 else inputs[0], []
        for stage, layer in enumerate(layers):
            if stage:
                given = tuple(value.detach().requires_grad_(value.is_floating_point()) for value in given) if isinstance(given, tuple) else given.detach().requires_grad_()
            steps.append((given, made := layer(given)))
            given = made
        loss_of(given, torch.ones(1)).backward()
        for (_, made), (taken, _) in zip(reversed(steps[:-1]), reversed(steps[1:])):
            pairs = [(one, other.grad) for one, other in zip(verify_stages.leaves(made), verify_stages.leaves(taken)) if one.is_floating_point()]
            for index, (one, gradient) in enumerate(pairs):
                check(one.requires_grad and gradient is not None, "DeepSpeed would wait for a gradient")
                one.backward(gradient, retain_graph=index + 1 < len(pairs))
        loss_of(model(*inputs), torch.ones(1)).backward()
        found = {}
        for layer in layers:
            for name, parameter in layer.module.named_parameters():
                if parameter.grad is not None:
                    found[name] = found.get(name, 0) + parameter.grad
        whole = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
        for name, gradient in whole.items():
            torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-6, msg=lambda text, name=name: f"{name}: {text}")
        return f"its engine's order, stated again (no module named deepspeed): {stages} stages, {len(whole)} gradients"
    torch.manual_seed(5)
    batches = [tuple(other_of(value) for value in inputs) for _ in range(3)]
    torch.save(batches, folder.parent / "batches.pt")
    sum(loss_of(model(*batch), torch.ones(1)) / len(batches) for batch in batches).backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.5 * parameter.grad if parameter.grad is not None else 0
    torch.save({name: value.detach() for name, value in model.named_parameters(remove_duplicate=False)}, folder.parent / "stepped.pt")
    command = ["torchrun", "--standalone", "--nproc-per-node", str(world_of(folder)), __file__, "--deepspeed", str(page), "-"]
    ran = subprocess.run([sys.executable, "-m", "torch.distributed.run", *command[1:]], capture_output=True, text=True, timeout=120, env=os.environ | {"DS_ACCELERATOR": "cpu", "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"})
    lines = [line for line in ran.stdout.splitlines() if line.startswith("equal: ")]
    check(ran.returncode == 0 and len(lines) == world_of(folder), (ran.stdout + ran.stderr)[-6000:])
    return f"DeepSpeed {importlib.metadata.version('deepspeed')}: {len(lines)} processes, {sum(int(line.split()[1]) for line in lines)} parameters after a step"


def other_of(value):
    return value.flatten()[torch.randperm(value.numel())].view(value.shape)


def deepspeed_rank(path):
    """One rank: trains a step, and compares its parameters with those of a plain loop."""
    import deepspeed

    deepspeed.init_distributed("gloo", dist_init_required=True)
    page = module_of(path)
    folder = path.parent.parent
    model = page.pipeline(loss_of)
    batches = torch.load(folder / "batches.pt")
    config = page.CONFIG | {"optimizer": {"type": "SGD", "params": {"lr": 0.5}}}
    config |= {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": len(batches), "zero_allow_untested_optimizer": True}
    engine, *_ = deepspeed.initialize(model=model, model_parameters=[one for one in model.parameters() if one.requires_grad], config=config)
    engine.train_batch(iter([(batch if len(batch) > 1 else batch[0], torch.ones(1)) for batch in batches]))
    expected, count = torch.load(folder / "stepped.pt"), 0
    for name, parameter in model.forward_funcs[0].module.named_parameters(remove_duplicate=False):
        if parameter.requires_grad:
            torch.testing.assert_close(parameter.detach(), expected[name], rtol=1e-4, atol=1e-6, msg=lambda text, name=name: f"{name}: {text}")
            count += 1
    sys.stdout.write(f"equal: {count}\n")
    sys.stdout.flush()


# -- Ray ------------------------------------------------------------------------------------------------------------


def ray(folder, model, inputs, stages):
    page = (folder / "ray_train.py").read_text()
    compile(page, "ray_train.py", "exec")
    check(f"WORKERS = {world_of(folder)}\n" in page, f"{world_of(folder)} ranks")
    if importlib.util.find_spec("ray") is None:
        return f"{world_of(folder)} workers (no module named ray)"
    if type(model).__name__ not in ("GPT2LMHeadModel", "LlamaForCausalLM"):
        return f"{world_of(folder)} workers, not run: it runs train.py, whatever the model"
    command = [sys.executable, folder / "ray_train.py", "--device", "cpu", "--steps", "2", "--allow-eval"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, env=os.environ | {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"})
    losses = re.findall(r"loss [-\d.e]+", ran.stdout + ran.stderr)
    check(ran.returncode == 0 and losses, (ran.stdout + ran.stderr)[-6000:])
    return f"Ray {importlib.metadata.version('ray')}: {world_of(folder)} workers, {losses[-1]}"


READERS = [torch_split_spec, torchtitan, megatron, megatron_bridge, deepspeed, hugging_face, vllm, sglang, device_map, ray]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--installed", action="store_true")
    parser.add_argument("--deepspeed", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--only", nargs="*", help="readers and models")
    options = parser.parse_args()
    torch.set_num_threads(1)
    failed = 0
    for number, (name, cut) in enumerate(CASES + MORE if options.installed else CASES):
        readers = [read for read in READERS if not options.only or {name, read.__name__} & set(options.only)]
        if not readers:
            continue
        model, inputs = build(name)
        archive, out = options.folder / f"{number}.pt", options.folder / str(number)
        traced, outputs = zoo.SCRIPT.trace(model, [(None, value) for value in inputs])
        zoo.SCRIPT.save(traced, str(archive), zoo.SCRIPT.record(traced, about={}, training=False, outputs=outputs))
        (kind, *cut) = cut.split()
        command = [options.command, kind, archive, *cut, *(["--targets", "python"] if kind == "emit" else []), "--force", "-o", out]
        ran = subprocess.run(command, capture_output=True, text=True)
        if ran.returncode:
            failed += 1
            print(f"{name} {' '.join(cut)}: REFUSED\n{ran.stderr}", flush=True)
            continue
        stages = len(json.loads((out / "stages/manifest.json").read_text())["stages"])
        for read in readers:
            said = io.StringIO()
            try:
                with contextlib.redirect_stdout(said):
                    line = read(out / "exports", build(name)[0], inputs, stages)
                check(not options.installed or "stated again" not in line and "no module named" not in line, line)
                print(f"{name} {kind} {' '.join(cut)}: {read.__name__}: {line}", flush=True)
            except Exception:
                failed += 1
                print(f"{name} {kind} {' '.join(cut)}: {read.__name__}: REFUSED\n{said.getvalue()}{traceback.format_exc()}", flush=True)
                for path in (out / "exports").iterdir():
                    if read.__name__.split("_")[0] in path.name:
                        print(path.read_text())
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    if "--deepspeed" in sys.argv:
        deepspeed_rank(Path(sys.argv[2]))
    else:
        main()
