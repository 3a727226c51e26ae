"""Feeds what `emit` writes into `exports/` to the frameworks that it is for.

    python tests/oracle/exports.py COMMAND FOLDER

Emits small models, cut at modules and at places that no other framework can cut at, and reads each export with the
framework's own code: torch's `pipeline`, accelerate, and, where they are installed (`pip install torchtitan megatron-core
deepspeed`, tried with 0.3.0, 0.16.1 and 0.19.8), those. Where one is not, its rule is stated here again, and the line says so.
Prints a line for each export and exits 1 when one is refused.
"""

import argparse
import contextlib
import importlib.util
import io
import json
import os
import re
import subprocess
import sys
import traceback
import tomllib
import warnings
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "fixtures"), str(Path(__file__).resolve().parent)]

import torch
import verify_stages
import zoo
from torch import nn

warnings.filterwarnings("ignore")

# Model, and where it is cut.
CASES = [
    ("gpt2_tiny", ["--cut", "transformer.h.1"]),
    ("gpt2_tiny", ["--cut", "transformer.h.0.mlp,transformer.h.1"]),
    ("bert_tiny", ["--cut", "bert.encoder.layer.1"]),
    ("unet_small", ["--cut", "down.1,raise_.1"]),
    ("cnn_basic", ["--cut", "conv2"]),
    ("cnn_dropout", ["--stages", "3"]),
    ("resnet", ["--cut", "layer2,layer3.0"]),
    ("layered", ["--cut", "layers.1,layers.3"]),
    ("layered", ["--stages", "4"]),
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
    made, inputs = zoo.build(name)
    return made, [value for _, value in inputs]


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


# -- torch ----------------------------------------------------------------------------------------------------------


def torch_split_spec(folder, model, inputs, stages):
    from torch.distributed.pipelining import pipeline

    spec = module_of(folder / "torch_split_spec.py").split_spec
    # BERT's mask is a keyword of its layers, which torch's exporter follows as it does the model.
    pipe = pipeline(model, mb_args=tuple(inputs), split_spec=spec)
    count = len([name for name, _ in pipe.split_gm.named_children() if name.startswith("submod_")])
    check(count == len(spec) + 1, f"torch makes {count} stages of {len(spec)} splits")
    check(count == stages or told((folder / "torch_split_spec.py").read_text()), "a split is missing, and not told")
    with torch.no_grad():
        torch.testing.assert_close(first(pipe(*inputs)), first(model(*inputs)))
    return f"torch {torch.__version__}: {count} stages, the same output"


# -- accelerate -----------------------------------------------------------------------------------------------------


def device_map(folder, model, inputs, stages):
    """Under fake tensors each device is one, though the machine has none: torch itself refuses to mix them."""
    try:
        import accelerate
    except ImportError as error:
        return f"skipped: {error}"
    from torch._subclasses.fake_tensor import FakeTensorMode

    found = json.loads((folder / "device_map.json").read_text())
    readme = next(line for line in (folder / "README.md").read_text().splitlines() if "device_map.json" in line)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        accelerate.utils.check_device_map(model, found)
    loose = [str(one.message) for one in said if "do not match" in str(one.message)]
    check(not loose or "placed by themselves" in readme, f"not told: {loose}")
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            at = name
            while at not in found:
                at = at.rpartition(".")[0]
            holder = model.get_submodule(name.rpartition(".")[0])
            fake = torch.empty(tensor.shape, dtype=tensor.dtype, device=f"cuda:{found[at]}")
            kept = holder._parameters if isinstance(tensor, nn.Parameter) else holder._buffers
            kept[name.rpartition(".")[2]] = nn.Parameter(fake) if kept is holder._parameters else fake
        places = {name: f"cuda:{rank}" for name, rank in found.items() if name in dict(model.named_modules())}
        for name, place in places.items():
            hook = accelerate.hooks.AlignDevicesHook(place, io_same_device=False, place_submodules=False)
            accelerate.hooks.add_hook_to_module(model.get_submodule(name), hook)
        fakes = [torch.empty(value.shape, dtype=value.dtype, device=f"cuda:{min(found.values())}") for value in inputs]
        try:
            with torch.no_grad():
                output = first(model(*fakes))
            ran = f"runs on {len(set(found.values()))} devices, ends on {output.device}"
        except RuntimeError as error:
            if "accelerate does not move" not in readme:
                raise
            ran = f"as told, cannot run ({str(error).splitlines()[0][:60]})"
    return f"accelerate {accelerate.__version__}: {len(found)} entries, {ran}"


# -- torchtitan -----------------------------------------------------------------------------------------------------


def torchtitan(folder, model, inputs, stages):
    parts = module_of(folder / "torchtitan.py").module_fqns_per_model_part
    old = tomllib.loads((folder / "torchtitan.toml").read_text())["parallelism"]
    check(old["module_fqns_per_model_part"] == parts, "TOML and Python differ")
    named = [name for part in parts for name in part]
    check(len(named) == len(set(named)), "a module is in two parts")
    notes = told((folder / "torchtitan.py").read_text())
    try:
        from torchtitan.distributed.pipeline_parallel import _split_module as split

        source = "torchtitan's _split_module"
    except ImportError as error:
        split, source = split_like_torchtitan, f"its rule, stated again ({error})"
    pieces = [split(model, part) for part in parts]
    if isinstance(model, Layered):
        check(not notes or len(parts) == 4, f"it differs: {notes}")
        with torch.no_grad():
            value = inputs[0]
            for piece in pieces:
                value = piece(value)
            torch.testing.assert_close(value, model(*inputs))
        return f"{source}: {len(parts)} parts in a row give the same output"
    # Every parameter below a child of the root is in one part.
    homes = {}
    for index, piece in enumerate(pieces):
        for name, parameter in piece.named_parameters():
            homes.setdefault(name, []).append(index)
    lost = [name for name, _ in model.named_parameters() if name not in homes]
    # Lists are numbered anew where some members are gone.
    count = sum(parameter.numel() for piece in pieces for parameter in piece.parameters())
    loose = sum(parameter.numel() for parameter in model._parameters.values() if parameter is not None)
    whole = sum(parameter.numel() for _, parameter in model.named_parameters(remove_duplicate=False))
    check(count >= whole - loose and not [name for name in lost if "." not in name], f"parameters are lost: {lost}")
    return f"{source}: {len(parts)} parts hold all parameters"


def split_like_torchtitan(model, names):
    """The rule of torchtitan 0.3.0: lists keep the members named, other children stay or become None."""
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
            setattr(model, name, None)
    return model


# -- Megatron -------------------------------------------------------------------------------------------------------


def layers_of(model):
    """Returns the length of the list of layers that a transformer is; nothing else is one."""
    named = {"GPT2LMHeadModel": lambda: model.transformer.h, "BertForSequenceClassification": lambda: model.bert.encoder.layer}
    named["Layered"] = lambda: model.layers
    return len(named.get(type(model).__name__, list)())


def megatron(folder, model, inputs, stages):
    text = (folder / "megatron.txt").read_text()
    option = re.search(r'^--pipeline-model-parallel-size (\d+) --pipeline-model-parallel-layout "(\S+)"$', text, re.M)
    if not option:
        check("no list of equal layers" in text and not layers_of(model), text)
        return "no layers, and it says so"
    size, layout = int(option[1]), option[2]
    try:
        from megatron.core.transformer.pipeline_parallel_layer_layout import PipelineParallelLayerLayout

        parsed = PipelineParallelLayerLayout(layout, size)
        parsed.validate_layer_layout(layers_of(model), None)
        counts = [[kind.name for kind in stage].count("decoder") for row in parsed.layout for stage in row]
        source = "Megatron Core's parser"
    except ImportError as error:
        rows = layout.split("|")
        check(len(rows) % size == 0 and layout[0] == "E" and layout[-1] == "L", layout)
        check(layout.count("E") == layout.count("L") == 1 and layout.count("t") == layers_of(model), layout)
        counts, source = [row.count("t") for row in rows], f"its rule, stated again ({error})"
    return f"{source}: {counts} layers on {size} ranks"


# -- vLLM -----------------------------------------------------------------------------------------------------------


def vllm(folder, model, inputs, stages):
    """vLLM's rule (`get_pp_indices`): whole numbers, one a rank, their sum the number of layers."""
    lines = [line for line in (folder / "vllm.env").read_text().splitlines() if line and not line.startswith("#")]
    if not lines:
        check("no list of equal layers" in (folder / "vllm.env").read_text() and not layers_of(model), "an empty file")
        return "no layers, and it says so"
    # As `docker --env-file` reads it: all behind the sign is the value.
    (name, _, value) = lines[0].partition("=")
    check(name == "VLLM_PP_LAYER_PARTITION" and len(lines) == 1, lines)
    counts = [int(count) for count in value.split(",")]
    check(len(counts) == stages and sum(counts) == layers_of(model), f"{counts} for {layers_of(model)} layers")
    sourced = subprocess.run(["sh", "-c", f". {folder}/vllm.env; echo $VLLM_PP_LAYER_PARTITION"], capture_output=True, text=True)
    check(sourced.stdout.strip() == value, sourced.stdout + sourced.stderr)
    return f"its rule, stated again: {counts}"


# -- DeepSpeed ------------------------------------------------------------------------------------------------------


def deepspeed(folder, model, inputs, stages):
    text = (folder / "deepspeed_parts.py").read_text()
    try:
        import deepspeed  # noqa: F401

        source = f"DeepSpeed {deepspeed.__version__}"
    except ImportError as error:
        source, text = f"its rule, stated again ({error})", text.replace("from deepspeed.pipe import PipelineModule", LIKE_DEEPSPEED)
    scope = {"__name__": "parts"}
    exec(compile(text, "deepspeed_parts.py", "exec"), scope)
    layers = [model.get_submodule(name) for name in scope["LAYERS"]]
    parts = scope["PARTS"]
    check(len(parts) == stages + 1 and parts[0] == 0 and parts[-1] == len(layers) and parts == sorted(parts), parts)
    taken = []
    for rank in range(stages):
        made = object.__new__(scope["PlannedPipeline"])
        nn.Module.__init__(made)
        made.global_rank, made._layer_specs, made.num_stages = rank, layers, stages
        made._topo = type("Topology", (), {"get_coord": lambda self, rank: type("At", (), {"pipe": rank}), "get_dim": lambda self, name: stages})()
        made._partition_layers(method="parameters")
        taken += layers[made._local_start : made._local_stop]
    check(taken == layers, "layers are lost")
    return f"{source}: parts {parts}"


LIKE_DEEPSPEED = """
class PipelineModule(__import__("torch").nn.Module):
    def _set_bounds(self, start=None, stop=None):
        self._local_start, self._local_stop = start, stop
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command")
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    failed = 0
    for number, (name, cut) in enumerate(CASES):
        model, inputs = build(name)
        archive, out = options.folder / f"{number}.pt", options.folder / str(number)
        traced, outputs = zoo.SCRIPT.trace(model, [(None, value) for value in inputs])
        zoo.SCRIPT.save(traced, str(archive), zoo.SCRIPT.record(traced, about={}, training=False, outputs=outputs))
        command = [options.command, "emit", archive, *cut, "--targets", "python", "-o", out]
        subprocess.run(command, check=True, capture_output=True)
        stages = len(json.loads((out / "stages/manifest.json").read_text())["stages"])
        for read in (torch_split_spec, torchtitan, megatron, deepspeed, vllm, device_map):
            said = io.StringIO()
            try:
                with contextlib.redirect_stdout(said):
                    line = read(out / "exports", build(name)[0], inputs, stages)
                print(f"{name} {' '.join(cut)}: {read.__name__}: {line}", flush=True)
            except Exception:
                failed += 1
                print(f"{name} {' '.join(cut)}: {read.__name__}: REFUSED\n{said.getvalue()}{traceback.format_exc()}", flush=True)
                for path in (out / "exports").iterdir():
                    if read.__name__.split("_")[0] in path.name:
                        print(path.read_text())
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
