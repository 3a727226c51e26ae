"""The stages of the folder: the manifest, their files and checksums, and each stage in the form that torch's runtime
needs."""

import importlib.util
import json
import os
import sys
import zlib
from contextlib import contextmanager, nullcontext
from pathlib import Path

import torch
from torch import nn

from train_parts.deferred import let_wait
from train_parts.written import Written, again

HERE = Path(__file__).resolve().parents[1]
STAGES = HERE / "stages"


def read_manifest(arguments):
    """Reads the manifest, and checks that the files that run are those that were written with it.

    Only sizes of weights are checked here: their checksum is compared when they are loaded.
    """
    place = STAGES / "manifest.json"
    try:
        manifest = json.loads(place.read_text())
    except FileNotFoundError:
        sys.exit(f"{place} is missing: this script must be in the folder of its stages")
    except ValueError as error:
        sys.exit(f"{place} is damaged ({error}): emit the stages again")
    digests = manifest.get("files", {})
    names = ["train.py"] + [name for name in digests if name.startswith("train_parts/")]
    names += ["schedule.csv"] * (arguments.schedule is None and "schedule.csv" in digests)
    names += ["stages/shards.py"] * any("cuts" in about for about in manifest["stages"])
    for about in manifest["stages"]:
        form = form_of(about, arguments.form)
        about["digests"], about["allow_changes"] = digests, arguments.allow_changes
        wanted = ["torchscript"] if form == "torchscript" else ["python", "weights"]
        names += [f"stages/{about['files'][kind]}" for kind in wanted if kind in about["files"]]
    for name in names:
        if not (HERE / name).is_file():
            sys.exit(f"{HERE / name} is missing: emit the stages again")
        compare(name, digests, arguments.allow_changes, name.endswith((".py", ".csv")))
    return manifest


NOTED = "TRAIN_NOTED"  # what was told, in the environment: a launcher's ranks need not tell it again
CHANGED = ": emit the stages again, or accept it with --allow-changes"


def compare(name, digests, allow_changes, is_read):
    """Exits if a file is not the one that was written with this folder; with `is_read` the checksum is compared,
    too."""
    if name not in digests:
        return  # an earlier version wrote no digests
    path, about = HERE / name, digests[name]
    if path.stat().st_size == about["bytes"] and (not is_read or checksum(path) == about["crc32"]):
        return
    text = f"{path} was changed after it was written"
    if not allow_changes:
        sys.exit(text + CHANGED)
    note(text)


def note(text):
    """Tells something that is the same for all ranks, once."""
    noted = os.environ.get(NOTED, "").splitlines()
    if os.environ.get("RANK", "0") == "0" and text not in noted:
        os.environ[NOTED] = "\n".join([*noted, text])
        print(f"note: {text}", file=sys.stderr, flush=True)


def checksum(path):
    found = 0
    with open(path, "rb") as file:
        while part := file.read(1 << 24):
            found = zlib.crc32(part, found)
    return f"{found:08x}"


def load_module(path, name):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def form_of(about, form):
    return form or ("python" if "python" in about["files"] else "torchscript")


def load_stage(about, form, device, waits=False, groups=(), offload=None):
    """Loads a stage; under schedules with split backward passes its weight gradients may be deferred.

    Of a stage that is cut inside its operators each rank loads its part: of `groups`, the ranks that share it, and where
    groups of ranks share it first, those at its place in all groups. `offload` moves the blocks that the plan keeps in host
    memory.
    """
    files, form = about["files"], form_of(about, form)
    if form not in files:
        sys.exit(f"stage {about['stage']} was not written as {form}")
    path = STAGES / files[form]
    if form == "torchscript":
        compare(f"stages/{files[form]}", about["digests"], about["allow_changes"], True)
        # TorchScript's optimizer computes gradients in another order, and some of them fail under autocast.
        torch._C._set_graph_executor_optimize(False)
        return torch.jit.load(path, map_location=device)
    module = load_module(path, f"stage_{about['stage']}")
    if waits:
        let_wait(module)
    if offload is not None and about.get("offload"):
        module.on_host = offload.on_host
    own = {}
    if groups and "cuts" in about:
        own["shard"] = module.Shard(*groups)
        tensors = module.PARAMETERS | module.FROZEN | module.BUFFERS
        for name, cut in module.CUTS.items():
            try:
                own["shard"].part_sizes(name, tensors[name][0], *cut)
            except ValueError as error:
                sys.exit(str(error))
    weights = f"stages/{files['weights']}"
    # The source compares the checksum itself, unless a file is named.
    if about["allow_changes"] or weights not in about["digests"]:
        compare(weights, about["digests"], about["allow_changes"], True)
        return module.load(HERE / weights, device=device, **own)
    try:
        return module.load(device=device, **own)
    except ValueError:
        sys.exit(f"{HERE / weights} was changed after it was written{CHANGED}")


def looks_alike(manifest, form):
    """Tells whether all micro-batches have gradients of the same values: a loss may look at some of several outputs, and
    control flow may take another branch."""
    texts = [(STAGES / about["files"]["python"]).read_text() for about in manifest["stages"] if form_of(about, form) == "python"]
    is_straight = len(texts) == len(manifest["stages"]) and not any("_scripted" in text for text in texts)
    return is_straight and len(manifest["stages"][-1]["outputs"]) == 1


def encode(tensor):
    """Encodes any tensor as a floating one, without loss: the runtime sends gradients back for all received tensors."""
    if tensor.is_floating_point():
        return tensor
    tensor = tensor.contiguous()
    wide = {torch.int64: torch.float64, torch.int32: torch.float32, torch.int16: torch.float16}
    if tensor.dtype in wide:
        return tensor.view(wide[tensor.dtype])
    if tensor.dtype.is_complex:
        return torch.view_as_real(tensor)
    return tensor.to(torch.float16)  # bool, uint8, int8: exact


def decode(tensor, dtype):
    if tensor.dtype == dtype:
        return tensor
    if dtype in (torch.int64, torch.int32, torch.int16):
        return tensor.detach().view(dtype)
    if dtype.is_complex:
        return torch.view_as_complex(tensor)
    return tensor.detach().to(dtype)


@contextmanager
def unchanged(buffers, before):
    """Statistics are updated in the first pass, not during recomputation, which sees what was there before it."""
    values = [buffer.clone() for buffer in buffers]
    try:
        with again(before):
            yield
    finally:
        for buffer, value in zip(buffers, values):
            buffer.data.copy_(value)


def autocast(arguments):
    if arguments.dtype == "fp32":
        return nullcontext()
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}[arguments.dtype]
    return torch.autocast(torch.device(arguments.device).type, dtype=dtype)


class Wrapped(nn.Module):
    """A stage for the runtime: floating, contiguous tensors in and out, no two of them with the same memory."""

    def __init__(self, module, about, arguments, offload):
        super().__init__()
        self.module, self.offload, self.sharing, self.trace = module, offload, None, arguments.trace
        self.received = [port["name"] for port in about["inputs"] if port["from"].startswith("stage:")]
        self.late = [(port["name"], port["from"].split(":", 1)[1]) for port in about["inputs"] if port["from"].startswith("input:")]
        self.order = [port["name"] for port in about["inputs"]]
        self.is_last = False
        self.written = Written(module)
        self.is_first = about["stage"] == 0
        self.dtypes = None  # of received tensors, once known
        self.sent_dtypes = None
        self.arguments = arguments
        self.stage, self.micro_batch = about["stage"], (0, 0)
        # The runtime wants gradients of all received tensors; operators without a derivative may read these.
        self.without_gradient = set(arguments.plan["without_gradient"].get(self.stage, ()))
        # Python stages handle their blocks themselves; an archive can only be recomputed or offloaded as a whole.
        is_archive = form_of(about, arguments.form) == "torchscript"
        self.is_whole = {}
        for name in ("recompute", "offload"):
            blocks = set(about.get(name, [])) if is_archive and (name, offload.mode) != ("offload", "none") else set()
            self.is_whole[name] = bool(blocks) and blocks >= set(about["blocks"])
            if name == "recompute" and about.get("recompute_unit") == "stage":
                self.is_whole[name] = True
                continue
            if blocks and not self.is_whole[name]:
                sys.exit(f"stage {about['stage']}: an archive cannot {name} only some of its blocks; use --form python")
        self.is_whole["offload"] = self.is_whole["offload"] or not arguments.offloads_blocks

    def run(self, values):
        positional = [values[name] for name in self.order]
        if self.arguments.check:
            pipeline, chunk = self.micro_batch
            seed_pass(self.arguments, self.stage, pipeline * self.arguments.micro_batches + chunk)
        self.offload.begin()
        self.trace.count_pass()
        # Cut tensors are known by what they are: stages that share their layers write to their own.
        before = self.written.begin(self.sharing is None) if torch.is_grad_enabled() else []
        with self.trace.timed("stages"), autocast(self.arguments), self.sharing.passing() if self.sharing else nullcontext():
            with self.offload.saving(self.module) if self.is_whole["offload"] else nullcontext():
                if self.is_whole["recompute"] and torch.is_grad_enabled():
                    from torch.utils.checkpoint import checkpoint

                    buffers = list(self.module.buffers())
                    contexts = lambda: (nullcontext(), unchanged(buffers, before))  # noqa: E731
                    outputs = checkpoint(self.module, *positional, use_reentrant=False, context_fn=contexts)
                else:
                    outputs = self.module(*positional)
        if torch.is_grad_enabled():
            self.written.end(before)
        return [outputs] if isinstance(outputs, torch.Tensor) else list(outputs)

    def forward(self, *tensors, **inputs):
        if self.is_first:
            inputs = dict(zip((name for _, name in self.late), tensors)) if tensors else inputs
            tensors = ()
        dtypes = self.dtypes or [tensor.dtype for tensor in tensors]
        values = {name: decode(t, dtype) for name, t, dtype in zip(self.received, tensors, dtypes)}
        for name in self.without_gradient & values.keys():
            values[name] = values[name].detach()
        for name, original in self.late:
            values[name] = inputs[original]
        outputs = self.run(values)
        if self.is_last:
            # The runtime detaches the last stage's outputs in place: the buffers of received tensors must stay
            # attached. (Another view than `alias` may change strides of dimensions of size one, which the runtime compares.)
            return tuple(torch.ops.aten.alias(o) if o.is_leaf or any(o is t for t in tensors) else o for o in outputs)
        self.sent_dtypes = [output.dtype for output in outputs]
        # Integers of the program are tensors of the processor, which NCCL does not send.
        outputs = [encode(output).to(self.arguments.device) for output in outputs]
        seen = {t.untyped_storage().data_ptr() for t in tensors}
        plain = []
        for output in outputs:
            place = output.untyped_storage().data_ptr()
            fresh = output if output.is_contiguous() else output.contiguous()
            if fresh is output and (place in seen or output._is_view()):
                fresh = output.clone()
            seen.add(place)
            plain.append(fresh)
        if not plain:  # nothing to send: the runtime still needs a message
            plain = [torch.zeros(1, device=self.arguments.device)]
        return tuple(plain)


def seed_pass(arguments, stage, micro_batch):
    """Seeds a pass of the check, so that random numbers agree between one process and many."""
    torch.manual_seed((arguments.seed * 1_000_003 + micro_batch) * 4099 + stage)


def seed_step(seed, step, rank):
    torch.manual_seed((seed * 1_000_003 + step) * 4099 + rank)
